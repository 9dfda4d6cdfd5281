"""align, resample_trajectories and fuse_multimodal in functions that JAX traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ... import _core
from .. import align as face
from ..arrays import dtype_name
from ..methods import gradient_reads_values
from ..types import Query, Rules, Stream
from .call import (
    Array,
    Result,
    abstract,
    call,
    flag_of,
    index_operand,
    is_zero,
    jax,
    jnp,
    one_by_one,
    operand,
    refuse_choices,
    refuse_perturbed,
    require_handlers,
    shape_of,
    time_operand,
)
from .fold import Others, fold, sizes_of, unfold_index, unfold_rows, unfold_values

FIELDS = ("target_times", "episode", "anchor", "deltas")


class Call(NamedTuple):
    """Everything about a call but its arrays."""

    names: face.Names
    rules: tuple[Rules, ...]
    wants: face.Wants
    check: bool

    @property
    def waits(self) -> bool:
        return self.check or any("error" in rules.outside for rules in self.rules)


def run(
    names: face.Names,
    streams: Sequence[Stream],
    query: Query,
    wants: face.Wants,
    check: bool | None,
    backend: str | None,
    device: Any,
) -> list[face.Result]:
    """The outputs of each stream, or of all if fused. ``check=None`` checks nothing, as in a graph of PyTorch."""
    op = names.op
    require_handlers(op)
    refuse_choices(op, backend, device)
    check = flag_of(op, check)
    values = tuple(operand(op, names.values_of(i), s.values) for i, s in enumerate(streams))
    others = Others(
        tuple(time_operand(op, names.times_of(i), s.times) for i, s in enumerate(streams)),
        tuple(index_operand(op, names.field(i, "offsets"), s.offsets) for i, s in enumerate(streams)),
        time_operand(op, names.times, query.times),
        index_operand(op, "episode", query.episode),
        time_operand(op, "anchor", query.anchor),
        time_operand(op, "deltas", query.deltas),
    )
    rules = tuple(rules_of(s) for s in streams)
    made = Call(names, rules, wants, check)
    plan(made, values, others, False)  # the call of one element: refused here, and not as a part of a folded one
    flat = differentiable(made, values, others)
    n = 1 if wants.fused else len(streams)
    rest = list(flat[n:])
    valid = rest[:n] if wants.valid else [None] * n
    index = rest[-n:] if wants.indices else [None] * n
    return list(zip(flat[:n], valid, index, strict=True))


def rules_of(s: Stream) -> Rules:
    return Rules(
        s.method, s.latency, s.max_gap, s.outside, s.outside_valid, s.period, dtype_name(s.dtype), s.tolerance
    )  # fmt: skip


def plan(
    made: Call, values: Sequence[Array], others: Others, cuda: bool, gradient: Sequence[bool] | None = None
) -> tuple[Any, int, str, list[int], list[float]]:
    names = made.names
    streams = [
        _core.Stream(
            abstract(names.op, names.values_of(i), v, cuda),
            abstract(names.op, names.times_of(i), others.times[i], cuda, wide=True),
            abstract(names.op, names.field(i, "offsets"), others.offsets[i], cuda, wide=True),
            *made.rules[i],
        )
        for i, v in enumerate(values)
    ]
    times, episode, anchor, deltas = (
        abstract(names.op, name, getattr(others, name), cuda, wide=True) for name in FIELDS
    )  # fmt: skip
    valid, indices, fused = made.wants
    wanted = None if gradient is None else list(gradient)
    return _core.trace_align(
        names.native, streams, times, episode, anchor, deltas, valid, indices, fused, made.check, wanted
    )  # fmt: skip


def results_of(made: Call, values: Sequence[Array], others: Others) -> list[Result]:
    shapes = plan(made, values, others, False)[0]
    wants = made.wants
    if wants.fused:
        face.require_fusible(made.names, shapes)
        (num_rows, num_targets, _), dtype = shapes[0]
        results = [Result((num_rows, num_targets, sum(shape[2] for shape, _ in shapes)), dtype)]
        planes = [(num_rows, num_targets, len(shapes))]
    else:
        results = [Result(shape, dtype) for shape, dtype in shapes]
        planes = [shape[:2] for shape, _ in shapes]
    results += [Result(shape, "bool") for shape in planes] if wants.valid else []
    return results + ([Result(shape, "int64", wide=True) for shape in planes] if wants.indices else [])


# ---- forward ---------------------------------------------------------------------------------------------------------


def forward(made: Call, values: tuple[Array, ...], others: Others) -> tuple[Array, ...]:
    compute = jax.custom_batching.custom_vmap(partial(compute_one, made))
    compute.def_vmap(partial(compute_mapped, made))
    return compute(values, others)  # type: ignore[no-any-return]


def compute_one(made: Call, values: tuple[Array, ...], others: Others) -> tuple[Array, ...]:
    operands = [x for of in zip(values, others.times, others.offsets, strict=True) for x in of if x is not None]
    operands += [x for x in others[2:] if x is not None]
    results = results_of(made, values, others)
    plans = partial(plan, made, values, others)
    return tuple(call("robocache_align", plans, results, operands, waits=made.waits))


def compute_mapped(
    made: Call, n: int, batched: Any, values: tuple[Array, ...], others: Others
) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
    sizes = sizes_of(made.names.op, n, others, batched[1])
    folded = fold(sizes, values, others, batched[0], batched[1])
    if folded is None:
        return one_by_one(partial(forward, made), batched, (values, others))
    flat = forward(made, folded.values, folded.others)
    if not made.wants.indices:
        outputs = [unfold_rows(sizes, x) for x in flat]
    else:
        count = len(values)
        outputs = [unfold_rows(sizes, x) for x in flat[:-count]]
        outputs += [unfold_index(sizes, i, folded.places[i], x) for i, x in enumerate(flat[-count:])]
    return tuple(outputs), (True,) * len(outputs)


# ---- gradient --------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A backward pass: the streams with a gradient, the channel dimensions of all, and in which dtype to add."""

    wanted: tuple[bool, ...]
    channels: tuple[tuple[int, ...], ...]
    sums: tuple[str, ...]


def differentiable(made: Call, values: tuple[Array, ...], others: Others) -> tuple[Array, ...]:
    """``forward``, with the gradient of the values. A backward pass keeps times and query, and values only where
    the gradient reads them."""
    names = made.names
    channels = tuple(tuple(v.shape[len(shape_of(t)) :]) for v, t in zip(values, others.times, strict=True))
    sums = tuple("float64" if v.dtype == np.float64 else "float32" for v in values)
    dtypes = [v.dtype for v in values]

    def primal(values: tuple[Array, ...], others: Others) -> tuple[Array, ...]:
        return forward(made, values, others)

    def forward_pass(values: tuple[Any, ...], others: Others) -> tuple[Any, Any]:
        named = [(names.times_of(i), t) for i, t in enumerate(others.times)]
        named += [(names.times, others.target_times), ("anchor", others.anchor), ("deltas", others.deltas)]
        refuse_perturbed(names.op, named, "only values have a gradient")
        plain: Others = jax.tree_util.tree_map(lambda x: x.value, others, is_leaf=lambda x: hasattr(x, "perturbed"))
        wanted = tuple(v.perturbed for v in values)
        arrays = tuple(v.value for v in values)
        plan(made, arrays, plain, False, wanted)  # refuses methods without a gradient
        outputs = forward(made, arrays, plain)
        marks = tuple(() if w else None for w in wanted)  # known while tracing: a part of the tree, not an array
        reads = [w and gradient_reads_values(r.method) for w, r in zip(wanted, made.rules, strict=True)]
        return outputs, (marks, tuple(v if r else None for v, r in zip(arrays, reads, strict=True)), plain)

    def backward_pass(kept: Any, grads: tuple[Any, ...]) -> tuple[Any, Any]:
        marks, read, plain = kept
        ups = [grads[0]] * len(marks) if made.wants.fused else list(grads[: len(marks)])
        wanted = tuple(mark is not None and not is_zero(up) for mark, up in zip(marks, ups, strict=True))
        if not any(wanted):
            return (None,) * len(marks), None
        given = (grads[0],) if made.wants.fused else tuple(up for up, w in zip(ups, wanted, strict=True) if w)
        read = tuple(v if w else None for v, w in zip(read, wanted, strict=True))
        found = iter(backward(made, Asked(wanted, channels, sums), given, read, plain))
        return tuple(next(found).astype(d) if w else None for w, d in zip(wanted, dtypes, strict=True)), None

    compute = jax.custom_vjp(primal)
    compute.defvjp(forward_pass, backward_pass, symbolic_zeros=True)
    return compute(values, others)  # type: ignore[no-any-return]


def backward(
    made: Call, asked: Asked, grads: tuple[Array, ...], read: tuple[Array | None, ...], others: Others
) -> tuple[Array, ...]:
    """The sums of the gradients of the wanted streams, in float32 or float64."""
    compute = jax.custom_batching.custom_vmap(partial(backward_one, made, asked))
    compute.def_vmap(partial(backward_mapped, made, asked))
    return compute(grads, read, others)  # type: ignore[no-any-return]


def backward_one(
    made: Call, asked: Asked, grads: tuple[Array, ...], read: tuple[Array | None, ...], others: Others
) -> tuple[Array, ...]:
    fused = made.wants.fused
    up = iter(grads)
    operands: list[Array] = []
    aliases: dict[int, int] = {}
    results: list[Result] = []
    flags: list[bool] = []
    values = []  # only their shapes and dtypes are used
    for i, wanted in enumerate(asked.wanted):
        shape = (*shape_of(others.times[i]), *asked.channels[i])
        values.append(jax.ShapeDtypeStruct(shape, jnp.dtype(asked.sums[i])))
        if wanted:
            aliases[len(operands)] = len(results)
            operands.append(jnp.zeros(shape, asked.sums[i]))
            results.append(Result(shape, asked.sums[i]))
            operands += [] if fused else [next(up)]
            operands += [] if read[i] is None else [read[i]]
            flags.append(read[i] is not None)
        operands += [x for x in (others.times[i], others.offsets[i]) if x is not None]
    operands += [x for x in others[2:] if x is not None]
    operands += [grads[0]] if fused else []
    # The dtypes of the outputs play no part, and those of the sums do not fit every rule of the forward call.
    rules = tuple(r._replace(dtype=None) for r in made.rules)
    unchecked = made._replace(rules=rules, check=False)

    def plans(cuda: bool) -> Any:
        results, workspace, names, integers, reals = plan(unchecked, values, others, cuda)
        widths = [of[-1] for of in asked.channels] if fused else []
        return results, workspace, names, [len(values), *asked.wanted, *integers, *flags, *widths], reals

    return tuple(call("robocache_align_backward", plans, results, operands, aliases=aliases))


def backward_mapped(
    made: Call, asked: Asked, n: int, batched: Any, grads: tuple[Array, ...], read: tuple[Array | None, ...],
    others: Others,
) -> tuple[tuple[Array, ...], tuple[bool, ...]]:  # fmt: skip
    streams = [i for i, wanted in enumerate(asked.wanted) if wanted]
    sizes = sizes_of(made.names.op, n, others, batched[2])
    flags = tuple(bool(flag) for flag in batched[1])  # None where nothing is read
    folded = fold(sizes, read, others, flags, batched[2], own=streams)
    if folded is None:
        return one_by_one(partial(backward, made, asked), batched, (grads, read, others))
    ups = []
    for grad, flag in zip(grads, batched[0], strict=True):
        whole = grad if flag else jnp.broadcast_to(grad, (n, *grad.shape))
        ups.append(whole.reshape(n * sizes.rows, *whole.shape[2:]))
    found = backward(made, asked, tuple(ups), folded.values, folded.others)
    outputs = [unfold_values(sizes, i, folded.places[i], x) for i, x in zip(streams, found, strict=True)]
    return tuple(outputs), (True,) * len(outputs)
