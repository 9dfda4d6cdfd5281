"""Which backend serves a call, and what it refuses. Never a silent fallback."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from .. import _core
from .arrays import as_torch, device_type, from_torch, int32_times_refusal, kind_of
from .types import Array, Query, Stream

Backend = Literal["cpu", "cuda", "torch"]


def select_backend(op: str, backend: str | None, first: Array | None) -> Backend:
    """The given backend, or that of the device of the first array; an error if it cannot run there."""
    if backend in ("torch", "pytorch"):
        if sys.modules.get("torch") is None:
            try:
                import torch  # noqa: F401
            except ImportError as error:
                raise NotImplementedError(f"{op}: backend '{backend}' needs PyTorch: pip install torch") from error
        return "torch"
    if backend not in (None, "cpu", "cuda"):
        raise ValueError(f"{op}: backend must be None, 'cpu', 'cuda', 'torch' or 'pytorch', got {backend!r}")
    where = "cpu" if first is None else device_type(first)
    if where not in ("cpu", "cuda"):
        raise NotImplementedError(f"{op}: no native backend for tensors on {where}; pass backend='torch'")
    if backend == "cpu" and where != "cpu":
        raise ValueError(f"{op}: backend must be 'cuda' or 'torch' for tensors on {where}, got 'cpu'")
    if backend == "cuda" and where != "cuda":
        status = _core.cuda_status()
        if not status["available"]:
            raise NotImplementedError(f"{op}: backend 'cuda' is not available: {status['reason']}")
        raise ValueError(f"{op}: backend must be 'cpu' or 'torch' for arrays on {where}, or move them; got 'cuda'")
    return "cuda" if where == "cuda" else "cpu"


def needs_torch(streams: Sequence[Any], backend: str | None) -> bool:
    """Whether the call goes through PyTorch's operator: it is compiled or traced, or values require a gradient."""
    torch = sys.modules.get("torch")
    if torch is None or backend in ("torch", "pytorch"):
        return False
    tensors = [s.values for s in streams if isinstance(s, Stream) and isinstance(s.values, torch.Tensor)]
    if not tensors or len(tensors) != len(streams):
        return False
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return True
    return any(type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for x in tensors)


def wants_op() -> bool:
    """Whether torch has to see this call as an operation of its own, or tensors may have tangents, so that the direct
    call into C++, which is for plain torch tensors and makes the outputs too, is not possible."""
    torch = sys.modules.get("torch")
    return torch is not None and (torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0)


def gradient_refusal(names: Any, streams: Sequence[Stream], query: Query) -> str | None:
    """The message about a tensor that requires a gradient and cannot have one; None if there is no such tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return None
    tensors = all(isinstance(s.values, torch.Tensor) for s in streams)
    for name, array in (_named_times if tensors else _named_arrays)(names, streams, query):
        if isinstance(array, torch.Tensor) and array.requires_grad:
            why = "only values have a gradient" if tensors else "not all values are torch tensors"
            return (
                f"{names.op}: {name} must not require grad, {why}: "
                "detach it, or call under torch.no_grad(); got requires_grad=True"
            )
    return None


def refuse_arrays(op: str, names: Any, streams: Sequence[Stream], query: Query, backend: Backend) -> None:
    """What the C++ contract cannot see of a call of align."""
    if backend != "torch" and (refusal := gradient_refusal(names, streams, query)) is not None:
        raise NotImplementedError(refusal)
    for name, array in _named_times(names, streams, query):
        if (refusal := int32_times_refusal(op, name, array)) is not None:
            raise ValueError(refusal)
    refuse_unseen(op, _named_arrays(names, streams, query), backend)


def refuse_unseen(op: str, named: Iterable[tuple[str, Array]], backend: Backend) -> None:
    """What DLPack cannot express: tangents, lazy negations and NumPy's "not a time"."""
    torch = sys.modules.get("torch")
    for name, array in named:
        if isinstance(array, np.ndarray):
            if array.dtype.kind in "mM" and np.isnat(array).any():
                raise ValueError(f"{op}: {name} must be finite, got NaT at {np.argwhere(np.isnat(array))[0].tolist()}")
        elif backend != "torch" and torch is not None and isinstance(array, torch.Tensor):
            refuse_tangent(op, name, array)
            refuse_lazy(op, name, array)


def refuse_tangent(op: str, name: str, tensor: Array) -> None:
    from torch.autograd.forward_ad import unpack_dual

    if unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            f"{op}: {name} must have no tangent, forward-mode differentiation needs backend='torch'; got a dual tensor"
        )


def refuse_lazy(op: str, name: str, tensor: Array) -> None:
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError(f"{op}: {name} must be resolved in memory (x.resolve_neg()), got a lazy negation")


def output_refusal(op: str, out: Sequence[Array]) -> str | None:
    """The message about an output that requires a gradient; None if there is no such output."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return None
    for i, array in enumerate(out):
        if isinstance(array, torch.Tensor) and array.requires_grad:
            return (
                f"{op}: out[{i}] must not require grad, what is written there has none: "
                "detach it, or call under torch.no_grad(); got requires_grad=True"
            )
    return None


def refuse_outputs(op: str, out: Sequence[Array], kind: str, backend: Backend) -> None:
    """What the C++ contract cannot see of the outputs that the user gave."""
    if (refusal := output_refusal(op, out)) is not None:
        raise NotImplementedError(refusal)
    torch = sys.modules.get("torch")
    for i, array in enumerate(out):
        # a framework does not know what was written to its array on the stream of another one
        if backend == "cuda" and kind_of(array) != kind:
            raise ValueError(f"{op}: out[{i}] must be a {kind} array like the values on a GPU, got {kind_of(array)}")
        if backend != "torch" and torch is not None and isinstance(array, torch.Tensor):
            refuse_lazy(op, f"out[{i}]", array)


def mark_written(out: Sequence[Array]) -> None:
    """Tells autograd that C++ has changed these tensors, as operators of PyTorch do themselves."""
    torch = sys.modules.get("torch")
    for array in out:
        if torch is not None and isinstance(array, torch.Tensor):
            torch.autograd.graph.increment_version(array)


def _named_arrays(names: Any, streams: Sequence[Stream], query: Query) -> Iterable[tuple[str, Array]]:
    for i, stream in enumerate(streams):
        yield names.values_of(i), stream.values
    yield from _named_times(names, streams, query)


def _named_times(names: Any, streams: Sequence[Stream], query: Query) -> Iterable[tuple[str, Array]]:
    for i, stream in enumerate(streams):
        yield names.times_of(i), stream.times
    yield names.times, query.times
    yield "anchor", query.anchor
    yield "deltas", query.deltas


def on_device(op: str, streams: Sequence[Stream], query: Query, device: Any) -> tuple[list[Stream], Query]:
    """Everything on the given device."""

    def move(array: Array | None) -> Array | None:
        return move_to(op, array, device)

    moved = [
        dataclasses.replace(s, values=move(s.values), times=move(s.times), offsets=move(s.offsets)) for s in streams
    ]
    return moved, Query(*(move(x) for x in query))


def move_to(op: str, array: Array | None, device: Any) -> Array | None:
    """An array on a device: torch tensors are moved, other arrays must be there already."""
    if array is None:
        return None
    if kind_of(array) == "torch":
        return array.to(device)
    if str(device) != device_type(array):
        raise ValueError(f"{op}: device must be where the arrays are ({device_type(array)}), got {device!r}")
    return array


def run_torch(
    op: str, streams: Sequence[Stream], query: Query, dtypes: Sequence[str], out: Sequence[Array] | None
) -> list[tuple[Array, Array, Array]]:
    """The torch backend on arrays of any kind; ``out``, of these ``dtypes``, takes copies of the values."""
    import torch

    from .torch_backend import align as in_torch

    kind = kind_of(streams[0].values)
    tensors = [
        dataclasses.replace(
            s,
            values=as_torch(s.values),
            times=as_torch(s.times),
            offsets=None if s.offsets is None else as_torch(s.offsets),
        )
        for s in streams
    ]
    targets = Query(*(None if x is None else as_torch(x) for x in query))
    results = in_torch.align(tensors, targets, [getattr(torch, name) for name in dtypes], op=op)
    if kind == "jax" and tensors[0].values.is_cuda:  # JAX may reuse the inputs as soon as we return
        torch.cuda.current_stream(tensors[0].values.device).synchronize()
    arrays = [tuple(from_torch(kind, x) for x in result) for result in results]
    if out is None:
        return arrays
    for (values, _, _), target in zip(results, out, strict=True):
        if isinstance(target, np.ndarray):  # any strides, which torch would not take
            target[...] = from_torch("numpy", values.detach())
        else:
            as_torch(target).copy_(values)
    return [(target, valid, index) for target, (_, valid, index) in zip(out, arrays, strict=True)]
