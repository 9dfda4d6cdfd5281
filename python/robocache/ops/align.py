"""align, resample_trajectories and fuse_multimodal: one primitive, three faces. The contract is docs/align.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .. import _core
from .arrays import Kind, as_torch, device_type, dtype_name, empty, finish, from_torch, kind_of, native, work_queue
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

Fields = tuple[Any, ...]
"""A ``Stream`` as the tuple of its fields, in their order."""

Names = tuple[str, str, tuple[tuple[str, str, bool], ...]]
"""What error messages call things: the function, its target times, and (values, times, bare fields) per stream."""
_ALIGN: Names = ("align", "times", ())
_RESAMPLE: Names = ("resample_trajectories", "target_times", (("source_data", "source_times", True),))
_FUSE: Names = ("fuse_multimodal", "target_times", ())
_FUSE_THREE: Names = (*_FUSE[:2], tuple((f"data{i}", f"times{i}", True) for i in (1, 2, 3)))


class _Output(NamedTuple):
    values: Array
    valid: Array | None = None
    index: Any = None
    column: int | None = None  # write columns [column, column + width) of values, and plane i of valid


Shapes = Sequence[tuple[tuple[int, ...], str]]
Allocate = Callable[[Shapes, Kind, Array], list[_Output]]


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

    Query row ``b`` asks episode ``episode[b]`` (default: episode ``b``) for ``T`` target times: ``times (B, T)``, or
    ``times (T,)`` shared by all rows, or ``anchor (B,)`` + ``deltas (T,)``.

    Returns ``Aligned(values, valid, index)``, each with the structure of ``streams``: ``values (B, T, ...)`` in the
    framework, on the device and in the dtype of the stream, ``valid (B, T)`` bool, and with ``return_index=True``
    ``index (B, T)`` int64, the left neighbor's row. ``out`` (same structure) takes the values instead, for example
    column slices of one tensor. ``check`` says whether the times are read for order and finiteness first; by default
    they are on the CPU and are not on a GPU, where that means to wait for it.

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
    results: Sequence[tuple[Any, ...]]
    given = (times, episode, anchor, deltas)
    fields = [_fields(s) for s in items if isinstance(s, Stream)]
    if out is None and len(fields) == len(items) and _is_direct(fields, given, backend, device):
        results = _core.align_tensors(_ALIGN, fields, given, True, bool(return_index), True, check)
    else:
        outs = None if out is None else _outputs(streams, out)

        def allocate(shapes: Shapes, kind: Kind, like: Array) -> list[_Output]:
            made = [
                _Output(
                    empty(kind, shape, dtype, like) if outs is None else None,
                    empty(kind, shape[:2], "bool", like),
                    empty(kind, shape[:2], "int64", like) if return_index else None,
                )
                for shape, dtype in shapes
            ]
            return made if outs is None else [o._replace(values=x) for o, x in zip(made, outs, strict=True)]

        query = Query(*given)
        wants = (True, return_index, False)
        results = _run(_ALIGN, items, query, allocate, wants, check, backend, device, outs)
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
    name = None if dtype is None else dtype_name(dtype)
    rules = (method, latency, max_gap, outside, outside_valid, period, name, tolerance)
    fields = (source_data, source_times, None, *rules)
    query = (target_times, None, None, None)
    if _is_direct([fields], query, backend, device):
        made = _core.align_tensors(_RESAMPLE, [fields], query, bool(return_valid), False, False, check)
        values, valid, _ = made[0]
        return (values, valid) if return_valid else values

    def allocate(shapes: Shapes, kind: Kind, like: Array) -> list[_Output]:
        shape, out_dtype = shapes[0]
        valid = empty(kind, shape[:2], "bool", like) if return_valid else None
        return [_Output(empty(kind, shape, out_dtype, like), valid)]

    wants = (return_valid, False, False)
    stream = Stream(*fields)
    values, valid, *_ = _run(_RESAMPLE, [stream], Query(target_times), allocate, wants, check, backend, device)[0]
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
    for dicts that do not say otherwise. ``dtype`` is that of the result; without it all streams must have the same.
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
    fields, target_times, names = _fuse_arguments(args, arrays, options)
    if dtype is not None:
        fields = [(*f[:_DTYPE], dtype_name(dtype), *f[_DTYPE + 1 :]) for f in fields]
    query = (target_times, None, None, None)
    if _is_direct(fields, query, backend, device):
        made = _core.fuse_tensors(names, fields, query, bool(return_valid), check)
        return made if return_valid else made[0]
    streams = [Stream(*f) for f in fields]

    def allocate(shapes: Shapes, kind: Kind, like: Array) -> list[_Output]:
        require_fusible(names, shapes)
        (num_rows, num_targets, _), name = shapes[0]
        columns = list(accumulate((shape[2] for shape, _ in shapes), initial=0))
        values = empty(kind, (num_rows, num_targets, columns[-1]), name, like)
        valid = empty(kind, (num_rows, num_targets, len(shapes)), "bool", like) if return_valid else None
        return [_Output(values, valid, None, column) for column in columns[:-1]]

    wants = (return_valid, False, True)
    results = _run(names, streams, Query(target_times), allocate, wants, check, backend, device)
    if results[0].column is None:  # the torch backend makes outputs of its own
        values, valid = _concatenated(names, results)
    else:
        values, valid, *_ = results[0]
    unbatched = all(s.offsets is None and getattr(s.times, "ndim", 2) == 1 for s in streams)
    if unbatched and getattr(target_times, "ndim", 2) == 1:
        values, valid = values[0], None if valid is None else valid[0]
    return (values, valid) if return_valid else values


def _fuse_arguments(
    args: tuple[Any, ...], arrays: dict[str, Any], options: Fields
) -> tuple[list[Fields], Array, Names]:
    """Sorts out the two ways to call fuse_multimodal. ``options``: the fields of a Stream after values and times."""
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
        fields = [(given[f"data{i}"], given[f"times{i}"], *options) for i in (1, 2, 3)]
        return fields, given["target_times"], _FUSE_THREE
    return [_as_fields(op, i, x, options) for i, x in enumerate(given["streams"])], given["target_times"], _FUSE


_STREAM_FIELDS = tuple(f.name for f in dataclasses.fields(Stream))
_DTYPE = _STREAM_FIELDS.index("dtype")


def _as_fields(op: str, i: int, item: Any, options: Fields) -> Fields:
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return (item[0], item[1], *options)
    if isinstance(item, Stream):
        return _fields(item)
    if isinstance(item, Mapping):
        fields = dict(zip(_STREAM_FIELDS[2:], options, strict=True))
        fields |= {("values" if k == "data" else k): v for k, v in item.items()}
        if not {"values", "times"} <= set(fields) <= set(_STREAM_FIELDS):
            raise ValueError(
                f"{op}: streams[{i}] must have data and times and only fields of Stream, got {sorted(item)}"
            )
        return tuple(fields[name] for name in _STREAM_FIELDS)
    if isinstance(item, Sequence) and len(item) == 2:
        return (item[0], item[1], *options)
    raise ValueError(f"{op}: streams[{i}] must be (data, times), a dict or a Stream, got {type(item).__name__}")


def _is_direct(streams: Sequence[Fields], query: Fields, backend: str | None, device: Any) -> bool:
    """Whether one call into C++ does it all: plain torch tensors where they are, and no operator for torch to see."""
    return backend is None and device is None and not wants_op() and _core.are_plain_tensors(query, streams)


def _fields(s: Stream) -> Fields:
    return (
        s.values, s.times, s.offsets, s.method, s.latency, s.max_gap,
        s.outside, s.outside_valid, s.period, None if s.dtype is None else dtype_name(s.dtype), s.tolerance,
    )  # fmt: skip


def require_fusible(names: Names, shapes: Shapes) -> None:
    for i, (shape, dtype) in enumerate(shapes):
        name = names[2][i][0] if names[2] else f"streams[{i}].values"
        if len(shape) != 3:
            channels = "no channel dimension" if len(shape) < 3 else f"{len(shape) - 2} channel dimensions"
            raise ValueError(f"{names[0]}: {name} must have shape (B, S, D) or (S, D), got {channels}")
        if dtype != shapes[0][1]:
            raise ValueError(
                f"{names[0]}: {name} must have dtype {shapes[0][1]} like the first stream, or pass dtype=, got {dtype}"
            )


def _concatenated(names: Names, results: list[_Output]) -> tuple[Array, Array]:
    """Separate outputs as one: what the native backends write in place."""
    require_fusible(names, [(tuple(r.values.shape), dtype_name(r.values.dtype) or "") for r in results])
    kind = kind_of(results[0].values)
    values, valid = [as_torch(r.values) for r in results], [as_torch(r.valid) for r in results]
    import torch

    return from_torch(kind, torch.cat(values, dim=-1)), from_torch(kind, torch.stack(valid, dim=-1))


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


def _spec(op: str, i: int, s: Any) -> tuple[Any, ...]:
    """A Stream as the tuple ``_core`` reads."""
    if not isinstance(s, Stream):
        raise ValueError(f"{op}: streams[{i}] must be a Stream, got {type(s).__name__}")
    values, times, offsets, *options = _fields(s)
    return (native(values), native(times), None if offsets is None else native(offsets), *options)


def _run(
    names: Names,
    streams: list[Stream],
    query: Query,
    allocate: Allocate,
    wants: tuple[bool, bool, bool],
    check: bool | None,
    backend: str | None,
    device: Any,
    out: list[Array] | None = None,
) -> list[_Output]:
    """One call: choose the backend, let C++ speak the contract, allocate, compute.

    ``wants`` (valid, index, fused) says in advance what ``allocate`` will make.
    """
    op = names[0]
    if device is not None:
        streams, query = on_device(op, streams, query, device)
    if needs_torch(streams, backend):
        from .torch_ops import align as operators

        results = operators.run(names, streams, query, wants, check, backend, out)
        return [_Output(*fields) for fields in results]
    specs = [_spec(op, i, s) for i, s in enumerate(streams)]
    kind = kind_of(streams[0].values) if streams else "numpy"
    targets = tuple(None if x is None else native(x) for x in query)
    chosen = select_backend(op, backend, streams[0].values if streams else None)
    refuse_arrays(op, names, streams, query, chosen)
    if check is None:  # reading times back from a GPU would stop the queue of work there
        check = not streams or device_type(streams[0].values) == "cpu"
    if out is not None:
        refuse_outputs(op, out, kind, chosen)
    queue = work_queue(kind, streams[0].values) if streams else None
    if chosen == "torch":
        outputs = None if out is None else [(native(x), None, None, None) for x in out]
        shapes = _core.check_align(names, specs, targets, outputs, check, queue)
        return [_Output(*fields) for fields in run_torch(op, streams, query, [name for _, name in shapes], out)]
    made: list[_Output] = []

    def allocate_once(shapes: Shapes) -> list[tuple[Any, ...]]:
        made.extend(allocate(shapes, kind, streams[0].values))
        return [(*(None if x is None else native(x) for x in o[:3]), o.column) for o in made]

    _core.align(names, specs, targets, allocate_once, check, queue)
    if out is not None:
        mark_written(out)
    if kind != "jax":
        return made
    return [o._replace(values=finish(o.values), valid=finish(o.valid), index=finish(o.index)) for o in made]
