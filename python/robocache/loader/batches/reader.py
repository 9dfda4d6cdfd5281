"""From positions to a batch: one call of the fused reader; or ``align`` once for each set of deltas, then normalize."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import _core
from ...cache.episode import StreamSpec
from ...convert.ingest import FLOATS
from ...ops.align import native_stream
from ...ops.methods import uses_windows
from ...ops.types import Stream
from ..order.selection import Anchors
from ..window import Key, nanoseconds
from .arrays import Arrays
from .store import Part, Store
from .verify import MappedRows

if TYPE_CHECKING:
    from ..features.composing import Composing

NOTHING = nullcontext()
INDEX = ("source_index", "episode_index", "anchor_ns")
"""What ``return_index`` adds to a batch."""


class Column(NamedTuple):
    """How one key is read: the dtype ``align`` writes, that of the batch, and how it is normalized."""

    key: Key
    written: str
    dtype: str
    way: Any


class Group(NamedTuple):
    """Columns with the same deltas: one call of ``align``."""

    columns: list[Column]
    deltas: Any
    names: _core.AlignNames


def columns_of(
    keys: list[Key], specs: Mapping[str, StreamSpec], ways: Mapping[str, str], dtypes: Mapping[str, str]
) -> list[Column]:
    columns = []
    for key in keys:
        stored, way = specs[key.stream].dtype, ways.get(key.name)
        dtype = dtypes.get(key.name) or ("float32" if way is not None and stored not in FLOATS else stored)
        # What is scaled is written with all its bits first, so that there is one rounding to the dtype of the batch.
        written = dtype if way is None else "float32" if stored in ("float16", "bfloat16") else stored
        columns.append(Column(key, written, dtype, way))
    return columns


def names_of(columns: list[Column]) -> _core.AlignNames:
    """What errors call the streams of a call of ``align``."""
    options = [f"stream {c.key.stream!r} ({c.key.option})" for c in columns]
    return _core.AlignNames("Loader", "times", options, [f"times of {option}" for option in options])


def require_readable(columns: list[Column], specs: Mapping[str, StreamSpec]) -> None:
    """By the contract of ``align``, for streams without rows, so that errors name the option. ``specs``: of the streams
    as they are read."""
    nothing = np.empty(0, np.int64)
    for column in columns:
        key, spec = column.key, specs[column.key.stream]
        names = _core.AlignNames(f"Loader: {key.option}", "times", values=["values"], times=["times"])
        values = np.empty((0, *spec.shape), "float32" if spec.dtype == "bfloat16" else spec.dtype)
        stream = native_stream(stream_of(Part(0, {key.stream: (values, nothing, None)}), column))
        _core.check_align(names, [stream], nothing, None, None, None, check=False)
        if uses_windows(key.window.method) and len(set(key.window.deltas_ns)) < 2:
            raise ValueError(
                f"Loader: {key.option}: method {key.window.method!r} must have several moments, from which its windows "
                "of rows follow, got one, where all would be padding; take method='previous' for one moment"
            )


class BatchReader:
    """Reads batches from a store. Everything that does not depend on the position is made here, once."""

    def __init__(
        self,
        store: Store,
        scales: list[dict[str, Any]],
        columns: list[Column],
        anchors: list[tuple[Anchors, int]],
        anchor_stream: str | None,
        arrays: Arrays,
        mapped: MappedRows | None,
        episodes: tuple[Any, Any] | None,
        composing: Composing | None = None,
    ) -> None:
        """``scales``: of each source, offset and scale of the columns with a ``way``. ``anchor_stream``: where each
        of its rows is an anchor. ``episodes``: source and number of each, through all sources, where batches have an
        index. ``composing``: features, which are composed here where rows are read on the host in one go."""
        self.arrays = arrays
        self.store = store
        self.columns = columns
        self.mapped = mapped
        """Where rows are read from mapped files."""
        self.episodes = episodes
        self.place = arrays.device if store.tier in ("gpu", "pinned") else arrays.host
        """Where batches are computed."""
        self.scales = scales
        if anchor_stream is not None and store.tier != "mmap" and anchor_stream in store.parts[0].rows:
            # The rows are there already, in one part for each source: the same tensors, once.
            rows = [part.rows[anchor_stream] for part in store.parts]
            self.tables = [
                _core.AnchorTable(offsets, times, a.count, 0.0, quota, self.there(a.slots))
                for (_, times, offsets), (a, quota) in zip(rows, anchors, strict=True)
            ]
        else:
            self.tables = self.tables_on(self.place, anchors)
        try:
            self.fused: _core.BatchReader | None = self.fused_reader(composing)
        except NotImplementedError:
            if store.tier == "pinned":
                raise
            self.fused = None
            self.steps = StepByStep(self, anchors)

    def tables_on(self, place: Any, anchors: list[tuple[Anchors, int]]) -> list[_core.AnchorTable]:
        def there(array: Any) -> Any:
            return self.there(array, place)

        return [
            _core.AnchorTable(there(a.prefix), there(a.times), a.count, a.period_ns, quota, there(a.slots))
            for a, quota in anchors
        ]

    def there(self, array: Any, place: Any = None) -> Any:
        """A NumPy array where batches are computed, or at another place. None stays None."""
        if array is None:
            return None
        return self.arrays.to(self.arrays.of(array), self.place if place is None else place)

    def fused_reader(self, composing: Composing | None) -> _core.BatchReader:
        """Reads batches in one go. NotImplementedError where only ``align`` and ``normalize`` can."""
        if composing is not None and not (composing.rows and self.place == self.arrays.host == composing.place):
            composing = None
        columns = []
        for i, c in enumerate(self.columns):
            like, padding_like = (self.arrays.empty((0,), dtype, self.place) for dtype in (c.dtype, "bool"))
            deltas, hidden = [*c.key.window.deltas_ns], composing is not None and i in composing.hidden
            columns.append(_core.BatchColumn(deltas, c.dtype, c.way is not None, like, padding_like, hidden))
        rows = []
        for part in self.store.parts:
            for c in self.columns:
                scales = self.scales[part.source].get(c.key.name, (None, None))
                rows.append(_core.BatchRows(native_stream(stream_of(part, c)), *scales))
        episodes = None
        if self.episodes is not None:
            episodes = _core.EpisodeNames(*self.episodes, self.arrays.empty((0,), "int64", self.place))
        features = [] if composing is None else composing.rows
        made = _core.BatchReader(self.tables, self.store.part, self.store.local, columns, rows, episodes, features)
        if composing is not None:
            composing.composer = None
        return made

    def anchors_at(
        self, order: _core.SampleOrder, begin: int, count: int, tables: list[_core.AnchorTable], place: Any
    ) -> tuple[Any, Any]:
        """``(episode, anchor)`` of each sample, at the place of the tables."""
        drawn = self.arrays.empty((2, count), "int64", place)
        _core.sample_anchors(tables, order, begin, drawn[0], drawn[1])
        return drawn[0], drawn[1]

    def read(self, order: _core.SampleOrder, begin: int, count: int) -> list[Any]:
        """``[values, padding, values, padding, ...]`` where batches are computed; then ``INDEX``, if that is wanted."""
        self.touch(order, begin, count)
        if self.fused is not None:
            return self.fused.read(order, begin, count)
        return self.steps.read(order, begin, count)

    def touch(self, order: _core.SampleOrder, begin: int, count: int) -> None:
        """Compares checksums of mapped rows before they are read for the first time, where that was asked for."""
        if count and self.mapped is not None and self.is_unchecked:
            self.mapped.touch(self.anchors_at(order, begin, count, self.tables, self.place)[0])

    @property
    def is_unchecked(self) -> bool:
        return self.mapped is not None and self.mapped.num_unchecked > 0

    def watched(self) -> AbstractContextManager[Any]:
        """Around a read: a mapped file that is cut short meanwhile is an error."""
        return NOTHING if self.mapped is None else self.mapped.watched()


class StepByStep:
    """What the fused reader does not do: anchors, then ``align`` once for each set of deltas, then normalize."""

    def __init__(self, reader: BatchReader, anchors: list[tuple[Anchors, int]]) -> None:
        self.reader = reader
        self.arrays, self.store, self.place = reader.arrays, reader.store, reader.place
        # Rows of several parts are sorted on the host.
        self.is_sorted = len(self.store.parts) > 1
        self.tables_place = self.arrays.host if self.is_sorted else self.place
        self.tables = reader.tables_on(self.tables_place, anchors) if self.is_sorted else reader.tables
        by_deltas: dict[tuple[int, ...], list[Column]] = {}
        for column in reader.columns:
            by_deltas.setdefault(column.key.window.deltas_ns, []).append(column)
        self.groups = [
            Group(same, reader.there(np.array(deltas, np.int64)), names_of(same)) for deltas, same in by_deltas.items()
        ]
        self.streams = [
            [[native_stream(stream_of(part, c)) for c in group.columns] for group in self.groups]
            for part in self.store.parts
        ]
        self.dtypes = {column.key.name: column.dtype for column in reader.columns}
        self.names = None
        if reader.episodes is not None:
            self.names = [reader.there(np.ascontiguousarray(x, np.int64), self.tables_place) for x in reader.episodes]
        self.scales = [
            {name: tuple(reader.there(x) for x in pair) for name, pair in scales.items()} for scales in reader.scales
        ]

    def read(self, order: _core.SampleOrder, begin: int, count: int) -> list[Any]:
        episode, anchor = self.reader.anchors_at(order, begin, count, self.tables, self.tables_place)
        names = [] if self.names is None else [*(x[episode] for x in self.names), anchor]
        if self.is_sorted and count > 0:
            made = self.read_parts(*(self.arrays.as_numpy(x) for x in (episode, anchor)))
        else:
            if self.store.tier == "mmap":  # its one shard may hold more episodes than were kept
                episode = self.arrays.of(self.store.local[self.arrays.as_numpy(episode)])
            made = self.read_part(0, *(self.arrays.to(x, self.place) for x in (episode, anchor)))
        found = [x for c in self.reader.columns for x in made[c.key.name]]
        return found + [self.arrays.to(x, self.place) for x in names]

    def read_part(self, number: int, episode: Any, anchor: Any) -> dict[str, tuple[Any, Any]]:
        made: dict[str, tuple[Any, Any]] = {}
        part = self.store.parts[number]
        for i, group in enumerate(self.groups):
            # The times were looked at when the loader was made.
            streams = self.streams[number][i]
            results = _core.align(group.names, streams, None, episode, anchor, group.deltas, True, False, False)
            for column, (values, valid, _) in zip(group.columns, results, strict=True):
                if column.way is not None:
                    values = self.scaled(values, column, part.source)
                made[column.key.name] = values, self.arrays.xp.logical_not(valid, out=valid)
        return made

    def scaled(self, values: Any, column: Column, source: int) -> Any:
        offset, scale = self.scales[source][column.key.name]
        out = values
        if column.dtype != column.written:
            out = self.arrays.empty(values.shape, column.dtype, self.place)
        channels = len(offset)
        _core.normalize(values.reshape(-1, channels), offset, scale, out.reshape(-1, channels))
        return out

    def read_parts(self, episode: Any, anchor: Any) -> dict[str, tuple[Any, Any]]:
        """Rows sorted by part, each part read by itself, every row put back to its place."""
        part = self.store.part[episode]
        order = np.argsort(part, kind="stable")
        used, counts = np.unique(part, return_counts=True)
        local, anchor, order = map(self.reader.there, (self.store.local[episode][order], anchor[order], order))
        made: dict[str, tuple[Any, Any]] = {}
        begin = 0
        for number, count in zip(used.tolist(), counts.tolist(), strict=True):
            rows = slice(begin, begin + count)
            begin += count
            for name, found in self.read_part(number, local[rows], anchor[rows]).items():
                if name not in made:
                    shapes = [(len(order), *x.shape[1:]) for x in found]
                    values = self.arrays.empty(shapes[0], self.dtypes[name], self.place)
                    made[name] = values, self.arrays.empty(shapes[1], "bool", self.place)
                for whole, x in zip(made[name], found, strict=True):
                    self.arrays.put(whole, order[rows], x)
        return made


def stream_of(part: Part, column: Column) -> Stream:
    window = column.key.window
    max_gap = None if window.max_gap is None else nanoseconds(window.max_gap)
    if column.key.near_ns is not None:
        max_gap = column.key.near_ns[part.source]
    return Stream(
        *part.rows[column.key.stream], window.method, nanoseconds(window.latency), max_gap,
        window.outside, window.outside_valid, column.key.period, column.written, column.key.tolerance_ns,
    )  # fmt: skip
