"""align for autograd and for the compilers of PyTorch.

A gradient is an ``autograd.Function`` around ``_core`` (``gradient.py``). While PyTorch is compiling or tracing,
a call of however many streams is one node, ``robocache::align``, and its gradient another,
``robocache::align_backward``. This module is imported only for these two; other calls go straight to ``_core``.

An operator takes tensors, numbers and strings. So the tensors of a call travel in two lists, and everything else as
``integers``, ``floats`` and ``spec``: the text of a tuple in which the numbers are left out (Note [Packing]).
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..arrays import as_torch, dtype_name
from ..backend import gradient_refusal, output_refusal, refuse_arrays, select_backend
from ..types import Query, Stream
from .gradient import (
    DTYPE_FIELD,
    DTYPES,
    NAMES,
    Asked,
    Call,
    Gradient,
    Tensors,
    Wants,
    compute,
    compute_backward,
    empty_outputs,
    empty_sums,
    gradients_of,
    placed,
    remember,
    saved_tensors_of,
    tensors_of,
    unflatten,
)

# ---- the face: from streams to an operator ---------------------------------------------------------------------------


def run(
    names: Any,
    streams: Sequence[Stream],
    query: Query,
    wants: tuple[bool, bool, bool],
    check: bool | None,
    backend: str | None,
    out: Sequence[Tensor] | None,
) -> list[tuple[Any, ...]]:
    """(values, valid, index, column) of each stream; one for all if fused.

    Compilers trace this. So what is wrong with a call is said by the operator, when it runs.
    """
    traced = torch.compiler.is_compiling() or any(is_traced(s.values) for s in streams)
    where = select_backend(names[0], backend, streams[0].values)
    if traced:
        refusal = gradient_refusal(names, streams, query)
    else:
        refuse_arrays(names[0], names, streams, query, where)
        refusal = None
    wanted = tuple([torch.is_grad_enabled() and s.values.requires_grad for s in streams])
    if out is not None and refusal is None and True in wanted:
        refusal = f"{names[0]}: out must not be given where values require grad, got out"
    if out is not None and refusal is None:
        refusal = output_refusal(names[0], out)
    if check is None:
        check = where == "cpu" and not traced
    given = tuple([x is not None for x in query])
    call = Call(names, tuple([options_of(s) for s in streams]), given, Wants(*wants), check, wanted, refusal)
    values = [s.values for s in streams]
    others = [as_tensor(s.times) for s in streams]
    others += [as_tensor(s.offsets) for s in streams if s.offsets is not None]
    others += [as_tensor(x) for x in query if x is not None]
    if traced:
        integers, floats = [0], [0.0]
        spec = repr(pack(tuple(call), integers, floats))
        results = torch.ops.robocache.align(values, others, integers, floats, spec)
    else:
        results = Gradient.apply(call, others, *values)  # type: ignore[no-untyped-call]
    return unflatten(results, len(streams), call.wants, out if refusal is None else None)


def is_traced(x: Tensor) -> bool:
    """A tensor without data of its own, as compilers pass them around."""
    return type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__


def as_tensor(x: Any) -> Any:
    """An array of another framework as a tensor; what is no array is left for the contract to name."""
    if isinstance(x, Tensor):
        return x
    try:
        return as_torch(x)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return x


def options_of(s: Stream) -> tuple[Any, ...]:
    dtype = NAMES[s.dtype] if s.dtype in NAMES else dtype_name(s.dtype)
    rules = (s.method, s.latency, s.max_gap, s.outside, s.outside_valid, s.period, dtype, s.tolerance)
    return (s.offsets is not None, *rules)


# ---- Note [Packing] --------------------------------------------------------------------------------------------------
# A compiler may keep a number symbolic, so that one graph serves all of its values, and a symbolic number has no text.
# So numbers go into lists, and the text keeps their places: (True, 5, ("a", 0.5)) is [0, 5], [0.0, 0.5] and
# "(True, 'i', ('sa', 'f'))". A string is told from a place by its first letter. The zeros in front are there because an
# empty list is a list of tensors to PyTorch, which then expects gradients for it.


def pack(x: Any, integers: list[int], floats: list[float]) -> Any:
    if x is None or isinstance(x, bool):
        return x
    if isinstance(x, str):
        return "s" + x
    if isinstance(x, int):
        integers.append(x)
        return "i"
    if isinstance(x, float):
        floats.append(x)
        return "f"
    if hasattr(x, "__index__"):  # a number of NumPy
        return pack(operator.index(x), integers, floats)
    return tuple([pack(item, integers, floats) for item in x])


def unpack(x: Any, integers: Iterator[int], floats: Iterator[float]) -> Any:
    if isinstance(x, tuple):
        return tuple(unpack(item, integers, floats) for item in x)
    if not isinstance(x, str):
        return x
    if x[0] == "s":
        return x[1:]
    return next(integers) if x[0] == "i" else next(floats)


@functools.lru_cache(maxsize=256)
def parsed(spec: str) -> Any:
    return ast.literal_eval(spec)


def call_of(spec: str, integers: Sequence[int], floats: Sequence[float]) -> Call:
    call = Call(*unpack(parsed(spec), iter(integers[1:]), iter(floats[1:])))
    return call._replace(wants=Wants(*call.wants))


# ---- the operators ---------------------------------------------------------------------------------------------------


def align(
    values: list[Tensor],
    others: list[Tensor],
    integers: list[int],
    floats: list[float],
    spec: str,
) -> list[Tensor]:
    call = call_of(spec, integers, floats)
    return compute(call, tensors_of(call, values, others))


def align_fake(
    values: list[Tensor],
    others: list[Tensor],
    integers: list[int],
    floats: list[float],
    spec: str,
) -> list[Tensor]:
    """The outputs without their data; sizes may be symbolic. Validation happens when the operator runs."""
    call = call_of(spec, integers, floats)
    tensors = tensors_of(call, values, others)
    num_rows, num_targets = query_shape(tensors)
    shapes = []
    for v, t, cut, options in zip(tensors.values, tensors.times, tensors.offsets, call.options, strict=True):
        row_dims = 2 if cut is None and t.ndim == 2 else 1
        shapes.append(((num_rows, num_targets, *v.shape[row_dims:]), DTYPES.get(options[DTYPE_FIELD - 2], v.dtype)))
    return empty_outputs(call, shapes, values[0].device)


def query_shape(tensors: Tensors) -> tuple[Any, Any]:
    """``(B, T)``, as ``plan_rows`` in contract.cpp decides it."""
    times, episode, anchor, deltas = tensors.query
    num_targets = 0
    rows = [] if episode is None else [episode.shape[0]]
    if times is not None:
        num_targets = times.shape[-1]
        rows += [times.shape[0]] if times.ndim == 2 else []
    elif anchor is not None and deltas is not None:
        num_targets = deltas.shape[0]
        rows += [anchor.shape[0]]
    if not rows:
        for t, cut in zip(tensors.times, tensors.offsets, strict=True):
            episodes = (t.shape[0] if t.ndim == 2 else 1) if cut is None else cut.shape[0] - 1
            rows += [episodes] if episodes != 1 else []
    return (rows[0] if rows else 1), num_targets


def align_backward(
    grads: list[Tensor],
    others: list[Tensor],
    streams: list[int],
    ranks: list[int],
    sizes: list[int],
    dtypes: list[str],
    integers: list[int],
    floats: list[float],
    spec: str,
) -> list[Tensor]:
    call = call_of(spec, integers, floats)
    tensors = saved_tensors_of(call, others)
    return compute_backward(call, tensors, asked_of(streams, ranks, sizes, dtypes), grads)


def align_backward_fake(
    grads: list[Tensor],
    others: list[Tensor],
    streams: list[int],
    ranks: list[int],
    sizes: list[int],
    dtypes: list[str],
    integers: list[int],
    floats: list[float],
    spec: str,
) -> list[Tensor]:
    asked = asked_of(streams, ranks, sizes, dtypes)
    return [total.to(dtype) for total, dtype in zip(empty_sums(asked, grads[0].device), asked.dtypes, strict=True)]


def asked_of(streams: Sequence[int], ranks: Sequence[int], sizes: Sequence[Any], dtypes: Sequence[str]) -> Asked:
    shapes = [sizes[end - rank : end] for rank, end in zip(ranks, accumulate(ranks), strict=True)]
    return Asked(streams, shapes, [DTYPES[name] for name in dtypes])


def remember_operator(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    values, others, *ctx.packed = inputs
    integers, floats, spec = ctx.packed
    ctx.num_others = len(others)
    remember(ctx, call_of(spec, integers, floats), values, others, output)


def go_back(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    others = list(ctx.saved_tensors)  # and the values that are kept
    asked, given = gradients_of(ctx, ctx.needs_input_grad[0], grads)
    results: list[Tensor] = []
    if given:
        ranks, sizes = [len(shape) for shape in asked.shapes], [size for shape in asked.shapes for size in shape]
        shapes = (asked.streams, ranks, sizes, [NAMES[dtype] for dtype in asked.dtypes])
        results = torch.ops.robocache.align_backward(given, others, *shapes, *ctx.packed)
    return placed(asked, results, len(ctx.shapes)), [None] * ctx.num_others, None, None, None


def refuse_second_order(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    raise RuntimeError(
        "align: the native gradient has no gradient of its own; pass backend='torch' for second derivatives"
    )


# ---- registration ----------------------------------------------------------------------------------------------------

OPTIONS = "SymInt[] integers, float[] floats, str spec"

library = torch.library.Library("robocache", "FRAGMENT")  # type: ignore[no-untyped-call]
for schema in (
    f"align(Tensor[] values, Tensor[] others, {OPTIONS}) -> Tensor[]",
    f"align_backward(Tensor[] grads, Tensor[] others, int[] streams, int[] ranks, SymInt[] sizes, str[] dtypes, "
    f"{OPTIONS}) -> Tensor[]",
):
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
for device in ("CPU", "CUDA"):
    library.impl("align", align, device)  # type: ignore[no-untyped-call]
    library.impl("align_backward", align_backward, device)  # type: ignore[no-untyped-call]
torch.library.register_fake("robocache::align", align_fake, lib=library)
torch.library.register_fake("robocache::align_backward", align_backward_fake, lib=library)
torch.library.register_autograd("robocache::align", go_back, setup_context=remember_operator, lib=library)
torch.library.register_autograd("robocache::align_backward", refuse_second_order, lib=library)
