"""align on tensors of PyTorch, forward and backward, and its ``autograd.Function``.

A call is a ``Call`` (its options), the values of its streams, and all other tensors, ``Others``. ``compute`` and
``compute_backward`` pass it to ``_core``; the operators in ``align.py`` use the same two.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ... import _core
from ..align import Names, Result, Wants, require_fusible
from ..methods import gradient_reads_values
from ..torch_op import DTYPE_NAMES, detached, raise_refusal
from ..types import Query, Rules

Shapes = Sequence[tuple[Sequence[Any], torch.dtype]]


class Call(NamedTuple):
    """The options of a call."""

    names: Names
    rules: Sequence[Rules]
    wants: Wants
    check: bool
    wanted: Sequence[bool]  # streams that need a gradient: their methods must have one
    refusal: str | None  # what the call raises when it runs


class Others(NamedTuple):
    """The tensors of a call but the values: those of each stream, and those of the query."""

    times: Sequence[Tensor]
    offsets: Sequence[Tensor | None]
    target_times: Tensor | None
    episode: Tensor | None
    anchor: Tensor | None
    deltas: Tensor | None

    @property
    def query(self) -> Query:
        return Query(self.target_times, self.episode, self.anchor, self.deltas)


class Asked(NamedTuple):
    """The streams whose gradients a backward pass needs, and the shapes and dtypes of their values."""

    streams: Sequence[int]
    shapes: Sequence[Sequence[Any]]
    dtypes: Sequence[torch.dtype]


def kept_values(rules: Sequence[Rules], values: Sequence[Tensor]) -> list[Tensor | None]:
    """The values that a gradient reads; None for streams whose gradient reads only times."""
    return [v if gradient_reads_values(r.method) else None for v, r in zip(values, rules, strict=True)]


def unflatten(
    results: Sequence[Tensor], num_streams: int, wants: Wants, out: Sequence[Tensor] | None = None
) -> list[Result]:
    """The flat list of outputs, stream by stream; where ``out`` was given, it takes the values."""
    n = 1 if wants.fused else num_streams
    values, rest = list(results[:n]), list(results[n:])
    valid = rest[:n] if wants.valid else [None] * n
    index = rest[-n:] if wants.indices else [None] * n
    if out is not None:
        for target, result in zip(out, values, strict=True):
            target.copy_(result)
        values = list(out)
    return list(zip(values, valid, index, strict=True))


# ---- computing -------------------------------------------------------------------------------------------------------


def compute(call: Call, values: Sequence[Tensor], others: Others) -> list[Tensor]:
    """The outputs, flat: the values of each stream, then each valid, then each index; one of each if fused."""
    raise_refusal(call.refusal)
    fields = zip(values, others.times, others.offsets, call.rules, strict=True)
    streams = [_core.Stream(detached(v), detached(t), cut, *rules) for v, t, cut, rules in fields]
    names, query, gradient = call.names.native, without_graph(others.query), list(call.wanted)
    valid, indices, fused = call.wants
    if fused:
        return [x for x in _core.fuse(names, streams, query.times, valid, True, call.check, gradient) if x is not None]
    made = _core.align(names, streams, *query, valid, indices, call.check, None, gradient)
    return [x for outputs in zip(*made, strict=True) for x in outputs if x is not None]


def without_graph(query: Query) -> Query:
    return Query(*(detached(x) for x in query))


def empty_outputs(call: Call, shapes: Shapes, device: torch.device) -> list[Tensor]:
    if call.wants.fused:
        require_fusible(call.names, [(tuple(shape), DTYPE_NAMES[dtype]) for shape, dtype in shapes])
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


NO_RULES = Rules(None, 0, None, "hold", False, 1.0, None, 0)


def compute_backward(
    call: Call, others: Others, kept: Sequence[Tensor | None], asked: Asked, grads: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of the values of the streams in ``asked``; ``kept`` as of ``kept_values``."""
    if grads[0].is_cuda:
        alert_not_deterministic()
    sums = [total.zero_() for total in empty_sums(asked, grads[0].device)]
    num_streams = len(others.times)
    ups, totals = placed(asked, [grad.resolve_neg() for grad in grads], num_streams), placed(asked, sums, num_streams)
    streams = []
    for times, cut, values, rules, total in zip(others.times, others.offsets, kept, call.rules, totals, strict=True):
        t = detached(times)
        if total is None:  # it still counts for the number of query rows; its times serve as its values
            streams.append(_core.Stream(t, t, cut, *NO_RULES))
        else:  # where no values are read, only their shape and dtype count
            v = total if values is None else detached(values)
            streams.append(_core.Stream(v, t, cut, *rules._replace(dtype=None)))
    _core.align_backward(call.names.native, streams, *without_graph(others.query), ups, totals)
    return [total.to(dtype) for total, dtype in zip(sums, asked.dtypes, strict=True)]


def empty_sums(asked: Asked, device: torch.device) -> list[Tensor]:
    """Where gradients are summed up: in float64 for float64 values, in float32 for all others."""
    wide = [torch.float64 if dtype == torch.float64 else torch.float32 for dtype in asked.dtypes]
    return [torch.empty(tuple(s), dtype=d, device=device) for s, d in zip(asked.shapes, wide, strict=True)]


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


def remember(ctx: Any, call: Call, values: Sequence[Tensor], others: Others, made: Any) -> None:
    """What a gradient needs: all tensors but the values, of which mostly only the shapes count."""
    ctx.fused, ctx.shapes, ctx.dtypes = call.wants.fused, [list(v.shape) for v in values], [v.dtype for v in values]
    ctx.save_for_backward(*others.times, *others.offsets, *others.query, *kept_values(call.rules, values))
    ctx.set_materialize_grads(False)
    if not ctx.fused:
        ctx.mark_non_differentiable(*(x for x, v in zip(made, values, strict=False) if not v.requires_grad))


def remembered(ctx: Any) -> tuple[Others, list[Tensor | None]]:
    """The tensors of a call, and the kept values."""
    n, saved = len(ctx.shapes), ctx.saved_tensors
    return Others(list(saved[:n]), list(saved[n : 2 * n]), *saved[2 * n : -n]), list(saved[-n:])


def gradients_of(ctx: Any, needs: Sequence[bool], grads: Sequence[Tensor | None]) -> tuple[Asked, list[Tensor]]:
    """Which gradients a backward pass needs, and the gradients of their outputs."""
    if ctx.fused:
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
    """align where nothing is traced: the operator, without the cost of being one."""

    @staticmethod
    def forward(ctx: Any, call: Call, others: Others, *values: Tensor) -> tuple[Tensor, ...]:
        made = compute(call, values, others)
        ctx.call = call
        remember(ctx, call, values, others, made)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # The kept values are arguments too: a second derivative may go through them, and is refused there as well.
        results: tuple[Tensor | None, ...] = Gradient.backward_once(ctx, grads, *grads, *remembered(ctx)[1])
        return results

    @staticmethod
    @once_differentiable
    def backward_once(ctx: Any, grads: Sequence[Tensor | None], *_: Tensor | None) -> tuple[Tensor | None, ...]:
        num_streams = len(ctx.shapes)
        asked, given = gradients_of(ctx, ctx.needs_input_grad[2:], grads)
        if not given:
            return (None,) * (2 + num_streams)
        results = compute_backward(ctx.call, *remembered(ctx), asked, given)
        return (None, None, *placed(asked, results, num_streams))
