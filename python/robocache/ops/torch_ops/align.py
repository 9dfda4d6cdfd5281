"""align for autograd and for the compilers of PyTorch.

A gradient is an ``autograd.Function`` around ``_core`` (``gradient.py``). While PyTorch is compiling or tracing,
a call of however many streams is one node, ``robocache::align``, and its gradient another,
``robocache::align_backward``. This module is imported only for these two; other calls go straight to ``_core``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..align import FORMS, Names, Result, Wants
from ..arrays import as_torch, dtype_name
from ..backend import gradient_refusal, output_refusal, refuse_arrays, select_backend
from ..torch_op import DTYPE_NAMES, DTYPES, is_traced, refuse_second_order, register
from ..types import Query, Rules, Stream
from .gradient import (
    Asked,
    Call,
    Gradient,
    Others,
    compute,
    compute_backward,
    empty_outputs,
    empty_sums,
    gradients_of,
    placed,
    remember,
    remembered,
    unflatten,
)

# ---- the face: from streams to an operator ---------------------------------------------------------------------------


def run(
    names: Names,
    streams: Sequence[Stream],
    query: Query,
    wants: Wants,
    check: bool | None,
    backend: str | None,
    out: Sequence[Tensor] | None,
) -> list[Result]:
    """The outputs of each stream, or of all if fused.

    Compilers trace this. A call that breaks the contract raises when the operator runs.
    """
    traced = is_traced([s.values for s in streams])
    where = select_backend(names.op, backend, streams[0].values)
    if traced:
        refusal = gradient_refusal(names, streams, query)
    else:
        refuse_arrays(names.op, names, streams, query, where)
        refusal = None
    wanted = [torch.is_grad_enabled() and s.values.requires_grad for s in streams]
    if out is not None and refusal is None and True in wanted:
        refusal = f"{names.op}: out must not be given where values require grad, got out"
    if out is not None and refusal is None:
        refusal = output_refusal(names.op, out)
    if check is None:
        check = where == "cpu" and not traced
    call = Call(names, [rules_of(s) for s in streams], wants, check, wanted, refusal)
    values = [s.values for s in streams]
    others = Others(
        [as_tensor(s.times) for s in streams], [as_tensor(s.offsets) for s in streams], *[as_tensor(x) for x in query]
    )
    if traced:
        results = torch.ops.robocache.align(values, *others, *options_of(call, others))
    else:
        results = Gradient.apply(call, others, *values)  # type: ignore[no-untyped-call]
    return unflatten(results, len(streams), call.wants, out if refusal is None else None)


def as_tensor(x: Any) -> Any:
    """An array of another framework as a tensor; what is no array is left for the contract to name."""
    if x is None or isinstance(x, Tensor):
        return x
    try:
        return as_torch(x)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return x


def rules_of(s: Stream) -> Rules:
    dtype = DTYPE_NAMES[s.dtype] if s.dtype in DTYPE_NAMES else dtype_name(s.dtype)
    return Rules(s.method, s.latency, s.max_gap, s.outside, s.outside_valid, s.period, dtype, s.tolerance)


# ---- options as arguments of an operator -----------------------------------------------------------------------------


class Values(NamedTuple):
    values: list[Tensor]


class Options(NamedTuple):
    """A ``Call`` as an operator takes it: numbers, names, and lists of them. "" where a name is not given.

    A duration is an integer or a float, in the unit of the stream's times: the list of its kind has it, the other one
    a 0. Compilers may keep both symbolic, so that one graph serves all values.
    """

    form: str
    methods: list[str]
    num_ranges: list[int]  # of each stream
    range_bounds: list[int]  # begin and end of each range of channels
    range_methods: list[str]
    duration_kinds: list[str]  # of latency, max_gap and tolerance of each stream: "int", "float" or "none"
    int_durations: list[int]
    float_durations: list[float]
    outside: list[str]  # before and after of each stream
    outside_valid: list[bool]
    periods: list[float]
    dtypes: list[str]
    valid: bool
    indices: bool
    fused: bool
    check: bool
    wanted: list[bool]
    refusal: str | None


def options_of(call: Call, others: Others) -> Options:
    methods: list[str] = []
    num_ranges: list[int] = []
    bounds: list[int] = []
    range_methods: list[str] = []
    kinds: list[str] = []
    ints: list[int] = []
    floats: list[float] = []
    outside: list[str] = []
    for i, rules in enumerate(call.rules):
        method, ranges = read_method(call.names, i, rules.method)
        methods.append(method)
        num_ranges.append(len(ranges))
        for begin, end, name in ranges:
            bounds += [begin, end]
            range_methods.append(name)
        for field, duration in (
            ("latency", rules.latency), ("max_gap", rules.max_gap), ("tolerance", rules.tolerance),
        ):  # fmt: skip
            kind, whole, real = read_duration(call.names, i, field, duration, others.times[i])
            kinds.append(kind)
            ints.append(whole)
            floats.append(real)
        outside += read_outside(call.names, i, rules.outside)
        if not isinstance(rules.outside_valid, bool):
            refuse(call.names, i, "outside_valid", "be True or False", rules.outside_valid)
        if not isinstance(rules.period, (int, float)) and not hasattr(rules.period, "item"):
            refuse(call.names, i, "period", "be a number", rules.period)
        if rules.dtype == "":
            refuse(call.names, i, "dtype", "be the name of a dtype", rules.dtype)
    periods = [float(rules.period) for rules in call.rules]
    dtypes = ["" if rules.dtype is None else rules.dtype for rules in call.rules]
    held = [rules.outside_valid for rules in call.rules]
    numbers = (methods, num_ranges, bounds, range_methods, kinds, ints, floats, outside, held, periods, dtypes)
    return Options(call.names.form, *numbers, *call.wants, call.check, list(call.wanted), call.refusal)


def read_method(names: Names, i: int, method: Any) -> tuple[str, list[tuple[Any, Any, str]]]:
    """A name for all channels, or ranges of channels."""
    rule = "be a name or a list of (begin, end, name)"
    if method is None:
        return "", []
    if isinstance(method, str) and method != "":
        return method, []
    if not isinstance(method, (list, tuple)):
        refuse(names, i, "method", rule, method)
    for item in method:
        if not isinstance(item, (list, tuple)) or len(item) != 3 or not isinstance(item[2], str):
            refuse(names, i, "method", rule, item)
    return "", [(as_int(begin), as_int(end), name) for begin, end, name in method]


def as_int(x: Any) -> Any:
    return x if isinstance(x, int) else operator.index(x)  # a number of NumPy


def read_duration(names: Names, i: int, field: str, duration: Any, times: Tensor) -> tuple[str, Any, Any]:
    if duration is None:
        return "none", 0, 0.0
    if isinstance(duration, float):
        return "float", 0, duration
    if isinstance(duration, int):
        return "int", duration, 0.0
    # A number of NumPy as one of Python: Dynamo of torch 2.11 reports that every one of them has __index__.
    number = duration.item() if hasattr(duration, "item") else duration
    if isinstance(number, float):
        return "float", 0, number
    if not hasattr(number, "__index__"):
        whole = times.dtype == torch.int64
        rule = "be a whole number of nanoseconds with int64 times" if whole else "be a number of seconds"
        refuse(names, i, field, rule, duration)
    return "int", as_int(number), 0.0


def read_outside(names: Names, i: int, outside: Any) -> list[str]:
    both = [outside, outside] if isinstance(outside, str) else outside
    if not isinstance(both, (list, tuple)) or len(both) != 2 or not all(isinstance(x, str) for x in both):
        refuse(names, i, "outside", "be a name or (before, after)", outside)
    return list(both)


def refuse(names: Names, i: int, field: str, rule: str, given: Any) -> None:
    raise ValueError(f"{names.op}: {names.field(i, field)} must {rule}, got {given!r}")


def call_of(options: Options) -> Call:
    """The inverse of ``options_of``."""
    durations: list[Any] = []
    for kind, whole, real in zip(
        options.duration_kinds, options.int_durations, options.float_durations, strict=True
    ):  # fmt: skip
        durations.append(None if kind == "none" else whole if kind == "int" else real)
    bounds = options.range_bounds
    ranges = list(zip(bounds[::2], bounds[1::2], options.range_methods, strict=True))
    ends = list(accumulate(options.num_ranges))
    rules = []
    for i, name in enumerate(options.methods):
        method = ranges[ends[i] - options.num_ranges[i] : ends[i]] or name or None
        latency, max_gap, tolerance = durations[3 * i : 3 * i + 3]
        outside = (options.outside[2 * i], options.outside[2 * i + 1])
        dtype = options.dtypes[i] or None
        held, period = options.outside_valid[i], options.periods[i]
        rules.append(Rules(method, latency, max_gap, outside, held, period, dtype, tolerance))
    wants = Wants(options.valid, options.indices, options.fused)
    return Call(FORMS[options.form], rules, wants, options.check, options.wanted, options.refusal)


# ---- robocache::align ------------------------------------------------------------------------------------------------


def run_align(given: Values, others: Others, options: Options) -> list[Tensor]:
    return compute(call_of(options), given.values, others)


def fake_align(given: Values, others: Others, options: Options) -> list[Tensor]:
    """Validation happens when the operator runs."""
    num_rows, num_targets = query_shape(others)
    shapes = []
    for v, t, cut, dtype in zip(given.values, others.times, others.offsets, options.dtypes, strict=True):
        row_dims = 2 if cut is None and t.ndim == 2 else 1
        shapes.append(((num_rows, num_targets, *v.shape[row_dims:]), DTYPES.get(dtype, v.dtype)))
    return empty_outputs(call_of(options), shapes, given.values[0].device)


def query_shape(others: Others) -> tuple[Any, Any]:
    """``(B, T)``, as ``plan_rows`` in contract.cpp decides it."""
    times, episode, anchor, deltas = others.query
    num_targets = 0
    rows = [] if episode is None else [episode.shape[0]]
    if times is not None:
        num_targets = times.shape[-1]
        rows += [times.shape[0]] if times.ndim == 2 else []
    elif anchor is not None and deltas is not None:
        num_targets = deltas.shape[0]
        rows += [anchor.shape[0]]
    if not rows:
        for t, cut in zip(others.times, others.offsets, strict=True):
            episodes = (t.shape[0] if t.ndim == 2 else 1) if cut is None else cut.shape[0] - 1
            rows += [episodes] if episodes != 1 else []
    return (rows[0] if rows else 1), num_targets


def remember_align(ctx: Any, parts: tuple[Values, Others, Options], output: list[Tensor]) -> None:
    given, others, ctx.options = parts
    remember(ctx, call_of(ctx.options), given.values, others, output)


def align_gradient(ctx: Any, grads: list[Tensor | None]) -> dict[str, Any]:
    asked, given = gradients_of(ctx, ctx.needs_input_grad[0], grads)
    results: list[Tensor] = []
    if given:
        ranks, sizes = [len(shape) for shape in asked.shapes], [size for shape in asked.shapes for size in shape]
        flat = FlatAsked(given, list(asked.streams), ranks, sizes, [DTYPE_NAMES[dtype] for dtype in asked.dtypes])
        others, kept = remembered(ctx)
        results = torch.ops.robocache.align_backward(*flat, *others, kept, *ctx.options)
    return {"values": placed(asked, results, len(ctx.shapes))}


# ---- robocache::align_backward ---------------------------------------------------------------------------------------


class FlatAsked(NamedTuple):
    """Gradients of outputs, and ``Asked`` as an operator takes it."""

    grads: list[Tensor]
    streams: list[int]
    ranks: list[int]
    sizes: list[Any]
    value_dtypes: list[str]

    def unflatten(self) -> Asked:
        shapes = [self.sizes[end - rank : end] for rank, end in zip(self.ranks, accumulate(self.ranks), strict=True)]
        return Asked(self.streams, shapes, [DTYPES[name] for name in self.value_dtypes])


class Kept(NamedTuple):
    """The values that the gradient reads, as of ``kept_values``."""

    kept: list[Tensor | None]


def run_backward(flat: FlatAsked, others: Others, values: Kept, options: Options) -> list[Tensor]:
    return compute_backward(call_of(options), others, values.kept, flat.unflatten(), flat.grads)


def fake_backward(flat: FlatAsked, others: Others, values: Kept, options: Options) -> list[Tensor]:
    asked = flat.unflatten()
    sums = empty_sums(asked, flat.grads[0].device)
    return [total.to(dtype) for total, dtype in zip(sums, asked.dtypes, strict=True)]


OTHERS = "Tensor[] times, Tensor?[] offsets, Tensor? target_times, Tensor? episode, Tensor? anchor, Tensor? deltas"
OPTIONS = (
    "str form, str[] methods, int[] num_ranges, SymInt[] range_bounds, str[] range_methods, str[] duration_kinds, "
    "SymInt[] int_durations, float[] float_durations, str[] outside, bool[] outside_valid, float[] periods, "
    "str[] dtypes, bool valid, bool indices, bool fused, bool check, bool[] wanted, str? refusal"
)
ASKED = "Tensor[] grads, int[] streams, int[] ranks, SymInt[] sizes, str[] value_dtypes"

register(
    f"align(Tensor[] values, {OTHERS}, {OPTIONS}) -> Tensor[]",
    (Values, Others, Options),
    compute=run_align,
    fake=fake_align,
    remember=remember_align,
    gradient=align_gradient,
)
register(
    f"align_backward({ASKED}, {OTHERS}, Tensor?[] kept, {OPTIONS}) -> Tensor[]",
    (FlatAsked, Others, Kept, Options),
    compute=run_backward,
    fake=fake_backward,
    gradient=refuse_second_order("align"),
)
