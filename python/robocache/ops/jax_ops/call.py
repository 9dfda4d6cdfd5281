"""A call of an XLA FFI handler from a traced function: is it possible, its operands, its results.

Whether a call is valid, and which results it has, is decided by ``_core.trace_*``: the plan of the C++ library, for
arrays without data. So a bad call raises while JAX traces, with the exception and the message of the eager call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax as _jax
import numpy as np

from ... import _core
from ..arrays import int32_times_refusal

jax: Any = _jax
jnp: Any = _jax.numpy
Array = Any

OLDEST_JAX = (0, 5)
INT32_MAX = 2**31 - 1


class Result(NamedTuple):
    """``wide``: int64 for the contract; int32 where JAX has no int64 (Note [int64 without x64] in jax/handler.hpp)."""

    shape: Sequence[int]
    dtype: str
    wide: bool = False


Plan = Callable[[bool], tuple[Any, int, str, list[int], list[float]]]
"""From whether the arrays are on CUDA to what ``_core.trace_*`` returns."""


# ---- whether there are handlers --------------------------------------------------------------------------------------


def require_handlers(op: str) -> None:
    """Registers the handlers once; NotImplementedError where this build or this JAX has none."""
    if (reason := _missing_handlers()) is not None:
        raise NotImplementedError(f"{op}: arrays that JAX traces (jit, grad, vmap) need {reason}")


@lru_cache(maxsize=1)
def _missing_handlers() -> str | None:
    if _core.xla_ffi_version is None:
        return (
            "a build with the headers of jaxlib, which were not found when this one was built: install jaxlib, then "
            "build robocache again (docs/guides/jax.md); or call the function outside of jax.jit"
        )
    version = tuple(int(x) for x in jax.__version__.split(".")[:2])
    if version < OLDEST_JAX:
        return f"jax 0.5 or newer, got {jax.__version__}"
    try:
        for name, platform, capsule in _core.xla_handlers():
            jax.ffi.register_ffi_target(name, capsule, platform=platform)
    except Exception as error:
        major, minor = _core.xla_ffi_version
        return (
            f"a jaxlib with XLA FFI {major}.{minor} or newer, whose headers this build used; that of jax "
            f"{jax.__version__} refuses it ({error}): install a newer jax, or build robocache with its headers"
        )
    return None


@lru_cache(maxsize=1)
def has_cuda() -> bool:
    """Whether a traced function may be compiled for a GPU that the library supports."""
    if not _core.cuda_status()["available"]:
        return False
    try:
        return len(jax.devices("cuda")) > 0
    except RuntimeError:
        return False


# ---- operands --------------------------------------------------------------------------------------------------------


def has_int64() -> bool:
    return bool(jnp.asarray(np.int64(0)).dtype == np.int64)


def operand(op: str, name: str, given: Any) -> Array:
    """A traced array as it is, a JAX or NumPy array as a constant. Nothing is narrowed in silence."""
    if isinstance(given, jax.Array):
        return given
    if not isinstance(given, (np.ndarray, np.generic)) or isinstance(given, np.ma.MaskedArray):
        raise ValueError(f"{op}: {name} must be a JAX or NumPy array in a traced call, got {type(given).__name__}")
    with_jax = jnp.asarray(given)
    if with_jax.dtype != given.dtype:
        raise ValueError(
            f"{op}: {name} must not be {given.dtype} while jax_enable_x64 is off, which makes it {with_jax.dtype}: "
            "set jax.config.update('jax_enable_x64', True) or convert it yourself, got a NumPy array"
        )
    return with_jax


def time_operand(op: str, name: str, given: Any) -> Array | None:
    """Times: int64 also without jax_enable_x64, from NumPy arrays. int32 is refused: it was int64 once."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "mM":
        if np.datetime_data(given.dtype) == ("ns", 1):
            if np.isnat(given).any():
                raise ValueError(f"{op}: {name} must be finite, got NaT at {np.argwhere(np.isnat(given))[0].tolist()}")
            given = given.view(np.int64)
        else:
            raise ValueError(f"{op}: {name} must be in nanoseconds, got {given.dtype}")
    if given is not None and (refusal := int32_times_refusal(op, name, given)) is not None:
        raise ValueError(refusal)
    return _wide(op, name, given)


def index_operand(op: str, name: str, given: Any) -> Array | None:
    """Offsets and episodes: int64; without jax_enable_x64 also int32, which is all that JAX has then."""
    if isinstance(given, jax.Array) and given.dtype == np.int32 and not has_int64():
        return jnp.stack([given, given >> 31], axis=-1)
    return _wide(op, name, given)


def _wide(op: str, name: str, given: Any) -> Array | None:
    if given is None:
        return None
    is_traced = isinstance(given, jax.core.Tracer)
    if not is_traced and hasattr(given, "dtype") and given.dtype == np.int64 and not has_int64():
        host = np.ascontiguousarray(np.asarray(given))
        return jnp.asarray(host.view(np.int32).reshape(*host.shape, 2))
    return operand(op, name, given)


def is_halves(x: Array) -> bool:
    """Whether an array of a wide role is int64 as int32 of shape (..., 2)."""
    return bool(x.dtype == np.int32)


def shape_of(x: Array) -> tuple[int, ...]:
    """The shape of an array of a wide role, as the contract sees it."""
    return tuple(x.shape[:-1]) if is_halves(x) else tuple(x.shape)


def offset_by(op: str, x: Array, amounts: Array, largest: int) -> Array:
    """``x + amounts`` of whole numbers below ``largest``, in the form of ``x``."""
    if not is_halves(x):
        return x + amounts.astype(x.dtype)
    if largest > INT32_MAX:
        raise NotImplementedError(
            f"{op}: jax.vmap over {largest} rows needs jax_enable_x64, got more than int32 counts"
        )
    low = x[..., 0] + amounts.astype(np.int32)
    return jnp.stack([low, low >> 31], axis=-1)


def abstract(op: str, name: str, x: Array | None, cuda: bool, wide: bool = False) -> Any:
    if x is None:
        return None
    halves = wide and is_halves(x)
    shape, dtype = (shape_of(x), "int64") if halves else (tuple(x.shape), str(x.dtype))
    return _core.AbstractArray.make([int(n) for n in shape], dtype, cuda, op, name)


# ---- the call --------------------------------------------------------------------------------------------------------


def call(
    target: str,
    plan: Plan,
    results: Sequence[Result],
    operands: Sequence[Array],
    *,
    waits: bool = False,
    aliases: dict[int, int] | None = None,
) -> list[Array]:
    """Calls a handler on whatever platform XLA compiles for. ``waits``: on a GPU it copies data to the host."""
    int64 = has_int64()
    made = [
        jax.ShapeDtypeStruct((*r.shape, 2), np.int32) if r.wide and not int64 else
        jax.ShapeDtypeStruct(tuple(r.shape), jnp.dtype(r.dtype))
        for r in results
    ]  # fmt: skip
    name = f"{target}_waiting" if waits else target

    def on(cuda: bool) -> Callable[..., Any]:
        _, workspace, names, integers, reals = plan(cuda)
        shapes = [*made, jax.ShapeDtypeStruct((workspace,), np.uint8)] if workspace else made
        handler = jax.ffi.ffi_call(name, shapes, input_output_aliases=aliases or {})
        attributes = {"integers": np.asarray(integers, np.int64), "reals": np.asarray(reals, np.float64)}
        return lambda *arrays: tuple(handler(*arrays, names=names, **attributes)[: len(made)])

    compute = partial(jax.lax.platform_dependent, cpu=on(False), cuda=on(True)) if has_cuda() else on(False)
    found = compute(*operands)
    return [x[..., 0] if r.wide and not int64 else x for x, r in zip(found, results, strict=True)]


def one_by_one(function: Callable[..., Any], batched: Any, arguments: Any) -> tuple[Any, Any]:
    """A rule for ``jax.vmap`` that calls ``function`` for one element after the other."""
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    flags = jax.tree_util.tree_leaves(batched)

    def one(slices: list[Array]) -> Any:
        rest = iter(slices)
        return function(*tree.unflatten([next(rest) if flag else x for x, flag in zip(leaves, flags, strict=True)]))

    made = jax.lax.map(one, [x for x, flag in zip(leaves, flags, strict=True) if flag])
    return made, jax.tree_util.tree_map(lambda _: True, made)


def refuse_choices(op: str, backend: str | None, device: Any) -> None:
    if backend is not None:
        raise ValueError(f"{op}: backend must be None in a traced call, which runs where JAX runs it, got {backend!r}")
    if device is not None:
        raise ValueError(f"{op}: device must be None in a traced call, which runs where JAX runs it, got {device!r}")


def flag_of(op: str, check: bool | None) -> bool:
    """``check``; None checks nothing, as in a graph of PyTorch."""
    if check is None or isinstance(check, bool):
        return bool(check)
    raise ValueError(f"{op}: check must be True or False, got {check!r}")


def refuse_perturbed(op: str, named: Sequence[tuple[str, Any]], what: str) -> None:
    """``named``: arguments as ``custom_vjp`` passes them, with what is differentiated marked."""
    for name, x in named:
        if x is not None and x.perturbed:
            raise NotImplementedError(
                f"{op}: {name} must not be differentiated, {what}: pass jax.lax.stop_gradient({name}); "
                "got an array that jax.grad or jax.vjp differentiates"
            )


def is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
