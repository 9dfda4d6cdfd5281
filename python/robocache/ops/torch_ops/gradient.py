"""align on tensors of PyTorch, forward and backward, and its ``autograd.Function``.

A call is a ``Call`` (everything that is no tensor) and ``Tensors``. ``compute`` and ``compute_backward`` hand it to
``_core``; the operators in ``align.py`` use the same two.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ... import _core
from ..arrays import HUGE
from ..methods import gradient_reads_values
from ..types import Stream

Shapes = Sequence[tuple[Sequence[Any], torch.dtype]]

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
DTYPE_FIELD = [field.name for field in dataclasses.fields(Stream)].index("dtype")
"""Where a stream has the dtype of its output, as ``_core`` reads it; in ``Call.options`` two places earlier."""


class Wants(NamedTuple):
    """What a call returns besides the values, and whether the values are columns of one tensor."""

    valid: bool = False
    indices: bool = False
    fused: bool = False


class Call(NamedTuple):
    """Everything about a call that is no tensor."""

    names: Any
    options: tuple[tuple[Any, ...], ...]  # of each stream: has offsets, then its fields from method on
    query: tuple[bool, ...]  # which of the query's arrays are given
    wants: Wants
    check: bool
    wanted: tuple[bool, ...]  # streams whose methods are still to be asked for their gradient
    refusal: str | None  # what the call is to raise when it runs


class Asked(NamedTuple):
    """The streams whose gradients a backward pass needs, and the shapes and dtypes of their values."""

    streams: Sequence[int]
    shapes: Sequence[Sequence[Any]]
    dtypes: Sequence[torch.dtype]


class Tensors(NamedTuple):
    """The tensors of a call, one entry per stream, None where one has no offsets."""

    values: list[Any]
    times: list[Tensor]
    offsets: list[Tensor | None]
    query: tuple[Tensor | None, ...]


def tensors_of(call: Call, values: Sequence[Any], others: Sequence[Tensor]) -> Tensors:
    """``others`` are the times of each stream, the offsets of those that have them, and what the query has."""
    rest = iter(others)
    return Tensors(
        list(values),
        [next(rest) for _ in call.options],
        [next(rest) if options[0] else None for options in call.options],
        tuple(next(rest) if given else None for given in call.query),
    )


def kept_values(call: Call, values: Sequence[Tensor]) -> list[Tensor]:
    """The values that a gradient reads."""
    return [v for v, options in zip(values, call.options, strict=True) if gradient_reads_values(options[1])]


def saved_tensors_of(call: Call, saved: Sequence[Tensor]) -> Tensors:
    """The tensors of a backward pass: ``others`` of ``tensors_of``, then the kept values. Other values are None."""
    needs = [gradient_reads_values(options[1]) for options in call.options]
    kept = iter(saved[len(saved) - sum(needs) :])
    return tensors_of(call, [next(kept) if need else None for need in needs], saved)


def unflatten(
    results: Sequence[Tensor], num_streams: int, wants: Wants, out: Sequence[Tensor] | None = None
) -> list[tuple[Any, ...]]:
    """The flat list of outputs, stream by stream; where ``out`` was given, it takes the values."""
    n = 1 if wants.fused else num_streams
    values, rest = list(results[:n]), list(results[n:])
    valid = rest[:n] if wants.valid else [None] * n
    index = rest[-n:] if wants.indices else [None] * n
    if out is not None:
        for target, result in zip(out, values, strict=True):
            target.copy_(result)
        values = list(out)
    column = 0 if wants.fused else None
    return [(v, m, i, column) for v, m, i in zip(values, valid, index, strict=True)]


# ---- computing -------------------------------------------------------------------------------------------------------


def compute(call: Call, tensors: Tensors) -> list[Tensor]:
    """The outputs, flat: the values of each stream, then each valid, then each index; one of each if fused."""
    if call.refusal is not None:
        raise NotImplementedError(call.refusal)
    specs = specs_of(call, tensors)
    query = tuple(None if x is None else detached(x) for x in tensors.query)
    if True in call.wanted:
        _core.require_align_gradient(call.names, specs, query, call.wanted)
    made: list[Tensor] = []

    def allocate(shapes: Sequence[tuple[tuple[int, ...], str]]) -> list[tuple[Any, ...]]:
        made.extend(empty_outputs(call, [(shape, DTYPES[name]) for shape, name in shapes], tensors.values[0].device))
        for x in made:
            if x.nbytes >= HUGE and not x.is_cuda:
                _core.prefer_huge_pages(x.data_ptr(), x.nbytes)
        if call.wants.fused:
            columns = accumulate((shape[2] for shape, _ in shapes[:-1]), initial=0)
            return [(made[0], made[1] if call.wants.valid else None, None, column) for column in columns]
        return unflatten(made, len(shapes), call.wants)

    _core.align(call.names, specs, query, allocate, call.check)
    return made


def empty_outputs(call: Call, shapes: Shapes, device: torch.device) -> list[Tensor]:
    if call.wants.fused:
        from ..align import require_fusible

        require_fusible(call.names, [(tuple(shape), NAMES[dtype]) for shape, dtype in shapes])
        (num_rows, num_targets, _), dtype = shapes[0]
        width = sum(shape[2] for shape, _ in shapes)
        made = [torch.empty((num_rows, num_targets, width), dtype=dtype, device=device)]
        planes: list[Any] = [(num_rows, num_targets, len(shapes))]
    else:
        made = [torch.empty(tuple(shape), dtype=dtype, device=device) for shape, dtype in shapes]
        planes = [tuple(shape[:2]) for shape, _ in shapes]
    for wanted, dtype in ((call.wants.valid, torch.bool), (call.wants.indices, torch.int64)):
        made += [torch.empty(shape, dtype=dtype, device=device) for shape in planes] if wanted else []
    return made


def compute_backward(call: Call, tensors: Tensors, asked: Asked, grads: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the values of the streams ``asked`` for; ``tensors`` as of ``saved_tensors_of``."""
    if grads[0].is_cuda:
        alert_not_deterministic()
    sums = [total.zero_() for total in empty_sums(asked, grads[0].device)]
    gradients: list[tuple[Tensor, Tensor] | None] = [None] * len(tensors.times)
    for i, total, grad in zip(asked.streams, sums, grads, strict=True):
        if tensors.values[i] is None:  # only shape and dtype count
            tensors.values[i] = total
        gradients[i] = (grad.resolve_neg(), total)
    # A stream without a gradient still counts for the number of query rows; its times serve as its values.
    specs = [
        (spec[1], *spec[1:3], None, 0, None, "hold", False, 1.0, None, 0)
        if spec[0] is None
        else (*spec[:DTYPE_FIELD], None, *spec[DTYPE_FIELD + 1 :])
        for spec in specs_of(call, tensors)
    ]
    query = tuple(None if x is None else detached(x) for x in tensors.query)
    _core.align_backward(call.names, specs, query, gradients)
    return [total.to(dtype) for total, dtype in zip(sums, asked.dtypes, strict=True)]


def empty_sums(asked: Asked, device: torch.device) -> list[Tensor]:
    """Where gradients are summed up: in float64 for float64 values, in float32 for all others."""
    wide = [torch.float64 if dtype == torch.float64 else torch.float32 for dtype in asked.dtypes]
    return [torch.empty(tuple(s), dtype=d, device=device) for s, d in zip(asked.shapes, wide, strict=True)]


def specs_of(call: Call, tensors: Tensors) -> list[tuple[Any, ...]]:
    """The streams as ``_core`` reads them."""
    fields = zip(tensors.values, tensors.times, tensors.offsets, call.options, strict=True)
    return [(None if v is None else detached(v), detached(t), cut, *options[1:]) for v, t, cut, options in fields]


def detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def alert_not_deterministic() -> None:
    """What PyTorch's own operators do that add with atomics."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    text = (
        "the gradient of robocache.align does not have a deterministic implementation on CUDA, but you set "
        "'torch.use_deterministic_algorithms(True)'. Turn it off for this call, pass warn_only=True to it, or pass "
        "backend='torch' to align"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(text)
    warnings.warn(text, stacklevel=2)


# ---- autograd --------------------------------------------------------------------------------------------------------


def remember(ctx: Any, call: Call, values: Sequence[Tensor], others: Sequence[Tensor], made: Any) -> None:
    """What a gradient needs: all tensors but the values, of which mostly only the shapes count."""
    ctx.call, ctx.shapes, ctx.dtypes = call, [list(v.shape) for v in values], [v.dtype for v in values]
    ctx.save_for_backward(*others, *kept_values(call, values))
    ctx.set_materialize_grads(False)
    if not call.wants.fused:
        ctx.mark_non_differentiable(*(x for x, v in zip(made, values, strict=False) if not v.requires_grad))


def gradients_of(ctx: Any, needs: Sequence[bool], grads: Sequence[Tensor | None]) -> tuple[Asked, list[Tensor]]:
    """Which gradients a backward pass needs, and the gradients of their outputs."""
    if ctx.call.wants.fused:
        grads = columns_of(grads[0], [shape[-1] for shape in ctx.shapes])
    found = {i: g for i, (g, n) in enumerate(zip(grads, needs, strict=False)) if n and g is not None}
    return Asked(list(found), [ctx.shapes[i] for i in found], [ctx.dtypes[i] for i in found]), list(found.values())


def columns_of(grad: Tensor | None, widths: Sequence[int]) -> list[Tensor | None]:
    if grad is None:
        return [None] * len(widths)
    return [grad.narrow(-1, end - width, width) for width, end in zip(widths, accumulate(widths), strict=True)]


def placed(asked: Asked, results: Sequence[Tensor], num_streams: int) -> list[Tensor | None]:
    """Results in the places of their streams."""
    by_stream = dict(zip(asked.streams, results, strict=True))
    return [by_stream.get(i) for i in range(num_streams)]


class Gradient(torch.autograd.Function):
    """align where nothing is traced: the operator below, without the cost of being one."""

    @staticmethod
    def forward(ctx: Any, call: Call, others: Sequence[Tensor], *values: Tensor) -> tuple[Tensor, ...]:
        made = compute(call, tensors_of(call, values, others))
        remember(ctx, call, values, others, made)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # The kept values are arguments too: a second derivative may go through them, and is refused there as well.
        kept: list[Tensor] = kept_values(ctx.call, saved_tensors_of(ctx.call, ctx.saved_tensors).values)
        results: tuple[Tensor | None, ...] = Gradient.backward_once(ctx, grads, *grads, *kept)
        return results

    @staticmethod
    @once_differentiable
    def backward_once(ctx: Any, grads: Sequence[Tensor | None], *_: Tensor | None) -> tuple[Tensor | None, ...]:
        num_streams = len(ctx.shapes)
        asked, given = gradients_of(ctx, ctx.needs_input_grad[2:], grads)
        if not given:
            return (None,) * (2 + num_streams)
        tensors = saved_tensors_of(ctx.call, ctx.saved_tensors)
        return (None, None, *placed(asked, compute_backward(ctx.call, tensors, asked, given), num_streams))
