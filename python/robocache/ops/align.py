"""align, resample_trajectories and fuse_multimodal: one primitive, three faces. The contract is docs/align.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _core
from .arrays import (
    allocator,
    as_torch,
    dtype_name,
    finish,
    from_torch,
    is_traced_by_jax,
    kind_of,
    work_queue,
)
from .backend import (
    mark_written,
    needs_torch,
    on_device,
    refuse_arrays,
    refuse_outputs,
    run_torch,
    select_backend,
    wants_op,
)
from .types import Aligned, Array, Method, Outside, Query, Stream

Result = tuple[Array, Array | None, Array | None]
"""Values, valid and index."""


class Names:
    """What error messages call a function and its arguments."""

    def __init__(self, op: str, times: str, streams: tuple[tuple[str, str], ...] = (), form: str = "") -> None:
        """``streams``: the values and times of each where they are arguments of their own, else ``streams[i].values``.
        ``form``: the key in ``FORMS``."""
        self.op, self.times, self.streams, self.form = op, times, streams, form
        self.native = _core.AlignNames(op, times, [values for values, _ in streams], [t for _, t in streams])

    def values_of(self, i: int) -> str:
        return self.streams[i][0] if self.streams else f"streams[{i}].values"

    def times_of(self, i: int) -> str:
        return self.streams[i][1] if self.streams else f"streams[{i}].times"

    def field(self, i: int, name: str) -> str:
        """A field of stream ``i`` other than its values and times."""
        return name if self.streams else f"streams[{i}].{name}"


_ALIGN = Names("align", "times", form="align")
_RESAMPLE = Names("resample_trajectories", "target_times", (("source_data", "source_times"),), "resample")
_FUSE = Names("fuse_multimodal", "target_times", form="fuse")
_FUSE_THREE = Names(
    "fuse_multimodal", "target_times", tuple((f"data{i}", f"times{i}") for i in (1, 2, 3)), "fuse_three"
)  # fmt: skip
FORMS = {names.form: names for names in (_ALIGN, _RESAMPLE, _FUSE, _FUSE_THREE)}
_NATIVE_RESAMPLE = _RESAMPLE.native


class Wants(NamedTuple):
    """What a call returns besides the values, and whether the values are columns of one array."""

    valid: bool = False
    indices: bool = False
    fused: bool = False


def align(
    streams: Stream | Sequence[Stream] | Mapping[str, Stream],
    times: Array | None = None,
    *,
    episode: Array | None = None,
    anchor: Array | None = None,
    deltas: Array | None = None,
    out: Any = None,
    return_index: bool = False,
    check: bool | None = None,
    backend: str | None = None,
    device: Any = None,
) -> Aligned:
    """Samples every stream at every query time.

    Query row ``b`` reads episode ``episode[b]`` (default: episode ``b``) at ``T`` target times: ``times (B, T)``, or
    ``times (T,)`` shared by all rows, or ``anchor (B,)`` + ``deltas (T,)``.

    Returns ``Aligned(values, valid, index)``, each with the structure of ``streams``: ``values (B, T, ...)`` in the
    framework, on the device and in the dtype of the stream, ``valid (B, T)`` bool, and with ``return_index=True``
    ``index (B, T)`` int64, the left neighbor's row. ``out`` (same structure) takes the values instead, for example
    column slices of one tensor. ``check=True`` first verifies that times are in order and finite: the default on
    the CPU, not on a GPU, where the call would have to wait.

    >>> import numpy as np, robocache
    >>> joints = robocache.Stream(np.arange(8.0).reshape(1, 4, 2), np.array([[0, 10, 20, 30]]))
    >>> gripper = robocache.Stream(np.array([[False, True]]), np.array([[0, 15]]))
    >>> result = robocache.align({"joints": joints, "gripper": gripper}, np.array([5, 25, 40]))
    >>> result.values["joints"]
    array([[[1., 2.],
            [5., 6.],
            [6., 7.]]])
    >>> result.values["gripper"], result.valid["joints"]
    (array([[False,  True,  True]]), array([[ True,  True, False]]))
    """
    rebuild, items = _flatten(streams)
    results: Sequence[Result] | None = None
    if out is None and backend is None and device is None and not wants_op():
        native = [remade(s, _core.Stream) for s in items if isinstance(s, Stream)]
        if len(native) == len(items) and _core.are_plain_tensors(times, episode, anchor, deltas, native):
            index = bool(return_index)
            results = _core.align(_ALIGN.native, native, times, episode, anchor, deltas, True, index, check)
    if results is None:
        outs = None if out is None else _outputs(streams, out)
        query = Query(times, episode, anchor, deltas)
        results = _run(_ALIGN, items, query, Wants(True, bool(return_index)), check, backend, device, outs)
    return Aligned(
        rebuild([r[0] for r in results]),
        rebuild([r[1] for r in results]),
        rebuild([r[2] for r in results]) if return_index else None,
    )


def resample_trajectories(
    source_data: Array,
    source_times: Array,
    target_times: Array,
    *,
    method: Method = None,
    outside: Outside = "hold",
    max_gap: float | None = None,
    latency: float = 0,
    outside_valid: bool = False,
    period: float = 2 * math.pi,
    dtype: Any = None,
    tolerance: float = 0,
    return_valid: bool = False,
    check: bool | None = None,
    backend: str | None = None,
    device: Any = None,
) -> Any:
    """Resamples trajectories to new times: ``align`` with one stream.

    ``source_data (B, S, ...)`` with ``source_times (B, S)`` and ``target_times (B, T)`` or ``(T,)`` give
    ``(B, T, ...)``; without the batch dimension, ``(S, ...)``, ``(S,)`` and ``(T,)`` give ``(T, ...)``. Times are int64
    nanoseconds, float64 or float32 seconds. ``method=None`` is ``"linear"`` for floating data and ``"previous"`` for
    integers and bool. A target at most ``tolerance`` away from a row is at that row. ``return_valid=True`` also returns
    the mask of valid targets, ``(B, T)`` bool.

    >>> import numpy as np, robocache
    >>> robocache.resample_trajectories(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]), np.array([0.5, 2.0]))
    array([[0.5],
           [1. ]])
    """
    if dtype is not None:
        dtype = dtype_name(dtype)
    if (
        backend is None and device is None and not wants_op()
        and _core.are_plain_tensors(source_data, source_times, target_times)
    ):  # fmt: skip
        values, valid, _ = _core.resample(
            _NATIVE_RESAMPLE, source_data, source_times, target_times, method, latency, max_gap, outside, outside_valid,
            period, dtype, tolerance, bool(return_valid), check,
        )  # fmt: skip
        return (values, valid) if return_valid else values
    stream = Stream(
        source_data, source_times, None, method, latency, max_gap, outside, outside_valid, period, dtype, tolerance
    )  # fmt: skip
    wants = Wants(bool(return_valid))
    values, valid, _ = _run(_RESAMPLE, [stream], Query(target_times), wants, check, backend, device)[0]
    if getattr(source_times, "ndim", 2) == 1 and getattr(target_times, "ndim", 2) == 1:
        values, valid = values[0], None if valid is None else valid[0]
    return (values, valid) if return_valid else values


def fuse_multimodal(
    *args: Any,
    method: Method = None,
    outside: Outside = "hold",
    max_gap: float | None = None,
    latency: float = 0,
    outside_valid: bool = False,
    period: float = 2 * math.pi,
    dtype: Any = None,
    tolerance: float = 0,
    return_valid: bool = False,
    check: bool | None = None,
    backend: str | None = None,
    device: Any = None,
    **arrays: Any,
) -> Any:
    """Samples several streams at the same times into one tensor: ``align`` into column slices.

    ``fuse_multimodal(streams, target_times)`` takes a list of ``(data, times)`` pairs, of dicts with the fields of
    ``Stream`` (``data`` is another name for ``values``) or of ``Stream``. Stream i is ``data (B, S_i, D_i)`` with
    ``times (B, S_i)``; ``target_times`` is ``(B, T)`` or ``(T,)``; the result is ``(B, T, sum of D_i)`` in the order of
    the streams. Without the batch dimension everything loses it. Three streams may also be passed one by one:
    ``fuse_multimodal(data1, times1, data2, times2, data3, times3, target_times)``.

    ``method``, ``outside``, ``max_gap``, ``latency``, ``outside_valid``, ``period`` and ``tolerance`` are for pairs and
    for dicts without them. ``dtype`` is that of the result; without it all streams must have the same.
    ``return_valid=True`` also returns ``(B, T, number of streams)`` bool.

    >>> import numpy as np, robocache
    >>> fast = (np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 0.1, 0.2]))
    >>> slow = (np.array([[10.0], [20.0]]), np.array([0.0, 0.2]))
    >>> robocache.fuse_multimodal([fast, slow], np.array([0.0, 0.05, 0.1]))
    array([[ 0. , 10. ],
           [ 0.5, 12.5],
           [ 1. , 15. ]])
    """
    options = (None, method, latency, max_gap, outside, outside_valid, period, None, tolerance)
    items, target_times, names = _fuse_arguments(args, arrays)
    if dtype is not None:
        dtype = dtype_name(dtype)
    if backend is None and device is None and not wants_op():
        native = _fuse_streams(items, options, dtype, _core.Stream)
        if _core.are_plain_tensors(target_times, None, None, None, native):
            made = _core.fuse(names.native, native, target_times, bool(return_valid), False, check)
            return made if return_valid else made[0]
    streams = _fuse_streams(items, options, dtype, Stream)
    wants = Wants(bool(return_valid), fused=True)
    values, valid, _ = _run(names, streams, Query(target_times), wants, check, backend, device)[0]
    unbatched = all(s.offsets is None and getattr(s.times, "ndim", 2) == 1 for s in streams)
    if unbatched and getattr(target_times, "ndim", 2) == 1:
        values, valid = values[0], None if valid is None else valid[0]
    return (values, valid) if return_valid else values


def _fuse_arguments(args: tuple[Any, ...], arrays: dict[str, Any]) -> tuple[Sequence[Any], Array, Names]:
    """The streams and the target times, in both ways to call fuse_multimodal."""
    op = "fuse_multimodal"
    three = ("data1", "times1", "data2", "times2", "data3", "times3", "target_times")
    form = three if len(args) > 2 or "data1" in arrays else ("streams", "target_times")
    given = dict(zip(form, args, strict=False))
    wrong = [name for name in arrays if name in given or name not in form]
    if wrong or len(args) > len(form):
        raise TypeError(
            f"{op}: takes ({', '.join(form)}), got {len(args)} positional and {', '.join(arrays) or 'none by name'}"
        )
    given.update(arrays)
    missing = [name for name in form if name not in given]
    if missing:
        raise TypeError(f"{op}: missing {', '.join(missing)}")
    if form is three:
        pairs = [(given[f"data{i}"], given[f"times{i}"]) for i in (1, 2, 3)]
        return pairs, given["target_times"], _FUSE_THREE
    return given["streams"], given["target_times"], _FUSE


_STREAM_FIELDS = tuple(f.name for f in dataclasses.fields(Stream))


def _fuse_streams(items: Sequence[Any], options: tuple[Any, ...], dtype: str | None, make: Any) -> list[Any]:
    """``make``: ``Stream`` or ``_core.Stream``. ``options``: its fields after values and times, for pairs and dicts."""
    if dtype is not None:
        options = (*options[:-2], dtype, options[-1])
    made = []
    for i, item in enumerate(items):
        if isinstance(item, (tuple, list)) and len(item) == 2:
            made.append(make(item[0], item[1], *options))
        elif isinstance(item, Stream):
            made.append(remade(item, make, dtype))
        elif isinstance(item, Mapping):
            made.append(make(*_dict_fields(i, item, options, dtype)))
        elif isinstance(item, Sequence) and len(item) == 2:
            made.append(make(item[0], item[1], *options))
        else:
            raise ValueError(
                f"fuse_multimodal: streams[{i}] must be (data, times), a dict or a Stream, got {type(item).__name__}"
            )
    return made


def _dict_fields(i: int, item: Mapping[str, Any], options: tuple[Any, ...], dtype: str | None) -> list[Any]:
    fields = dict(zip(_STREAM_FIELDS[2:], options, strict=True))
    fields |= {("values" if k == "data" else k): v for k, v in item.items()}
    if not {"values", "times"} <= set(fields) <= set(_STREAM_FIELDS):
        raise ValueError(
            f"fuse_multimodal: streams[{i}] must have data and times and only fields of Stream, got {sorted(item)}"
        )
    fields["dtype"] = dtype_name(fields["dtype"]) if dtype is None else dtype
    return [fields[name] for name in _STREAM_FIELDS]


def remade(s: Stream, make: Any, dtype: str | None = None) -> Any:
    """The stream as one of ``make``, ``Stream`` or ``_core.Stream``, with another dtype if one is given."""
    if dtype is None and s.dtype is not None:
        dtype = dtype_name(s.dtype)
    return make(
        s.values, s.times, s.offsets, s.method, s.latency, s.max_gap,
        s.outside, s.outside_valid, s.period, dtype, s.tolerance,
    )  # fmt: skip


def native_stream(s: Stream) -> _core.Stream:
    made: _core.Stream = remade(s, _core.Stream)
    return made


def require_fusible(names: Names, shapes: Sequence[tuple[tuple[int, ...], str]]) -> None:
    for i, (shape, dtype) in enumerate(shapes):
        name = names.values_of(i)
        if len(shape) != 3:
            channels = "no channel dimension" if len(shape) < 3 else f"{len(shape) - 2} channel dimensions"
            raise ValueError(f"{names.op}: {name} must have shape (B, S, D) or (S, D), got {channels}")
        if dtype != shapes[0][1]:
            raise ValueError(
                f"{names.op}: {name} must have dtype {shapes[0][1]} like the first stream, or pass dtype=, got {dtype}"
            )


def _concatenated(names: Names, results: Sequence[Result]) -> Result:
    """Separate outputs as one: what the native backends write in place."""
    require_fusible(names, [(tuple(values.shape), dtype_name(values.dtype) or "") for values, _, _ in results])
    kind = kind_of(results[0][0])
    values, valid = [as_torch(v) for v, _, _ in results], [as_torch(m) for _, m, _ in results]
    import torch

    return from_torch(kind, torch.cat(values, dim=-1)), from_torch(kind, torch.stack(valid, dim=-1)), None


def _outputs(streams: Any, out: Any) -> list[Array]:
    """The outputs that the user gave, in the order of the streams."""
    if isinstance(streams, Mapping) != isinstance(out, Mapping) or (
        isinstance(streams, Mapping) and streams.keys() != out.keys()
    ):
        keys = list(streams) if isinstance(streams, Mapping) else "no names"
        given = list(out) if isinstance(out, Mapping) else type(out).__name__
        raise ValueError(f"align: out must have the structure of streams ({keys}), got {given}")
    outs = [out[key] for key in streams] if isinstance(streams, Mapping) else _flatten(out)[1]
    num_streams = len(_flatten(streams)[1])
    if len(outs) != num_streams:
        raise ValueError(f"align: out must have one array for each of the {num_streams} streams, got {len(outs)}")
    for i, array in enumerate(outs):
        if kind_of(array) == "jax":
            raise ValueError(f"align: out[{i}] must be writable, got a JAX array, which never changes")
    return outs


def _flatten(items: Any) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """The items as a list, and how to give a list of results the same structure."""
    if isinstance(items, Mapping):
        keys = list(items)
        return lambda results: dict(zip(keys, results, strict=True)), list(items.values())
    if isinstance(items, (list, tuple)):
        return list, list(items)
    return lambda results: results[0], [items]


def _run(
    names: Names,
    streams: list[Stream],
    query: Query,
    wants: Wants,
    check: bool | None,
    backend: str | None,
    device: Any,
    out: list[Array] | None = None,
) -> Sequence[Result]:
    """A call on arrays of any framework and on every backend: the outputs of each stream, or of all if fused. They have
    a batch dimension."""
    op = names.op
    arrays = [x for s in streams if isinstance(s, Stream) for x in (s.values, s.times, s.offsets)]
    if is_traced_by_jax(*arrays, *query):
        from .jax_ops import align as traced

        _require_streams(op, streams)
        return traced.run(names, streams, query, wants, check, backend, device)
    if device is not None:
        streams, query = on_device(op, streams, query, device)
    if needs_torch(streams, backend):
        from .torch_ops import align as operators

        return operators.run(names, streams, query, wants, check, backend, out)
    _require_streams(op, streams)
    native = [native_stream(s) for s in streams]
    like = streams[0].values if streams else None
    kind = kind_of(like)
    chosen = select_backend(op, backend, like)
    refuse_arrays(op, names, streams, query, chosen)
    if out is not None:
        refuse_outputs(op, out, kind, chosen)
    queue = work_queue(kind, like)
    if chosen == "torch":
        dtypes = _core.check_align(names.native, native, *query, check, out, queue)
        found = run_torch(op, streams, query, dtypes, out)
        return [_concatenated(names, found)] if wants.fused else found
    results: Sequence[Result]
    if wants.fused:
        made = _core.fuse(names.native, native, query.times, wants.valid, True, check, None, allocator(like), queue)
        results = [(*made, None)]
    else:
        flags = (wants.valid, wants.indices)
        results = _core.align(names.native, native, *query, *flags, check, out, None, allocator(like), queue)
    if out is not None:
        mark_written(out)
    return results if kind != "jax" else [(finish(v), finish(m), finish(i)) for v, m, i in results]


def _require_streams(op: str, streams: Sequence[Any]) -> None:
    for i, s in enumerate(streams):
        if not isinstance(s, Stream):
            raise ValueError(f"{op}: streams[{i}] must be a Stream, got {type(s).__name__}")
