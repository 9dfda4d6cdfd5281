"""From positions to a batch: one call of the fused reader; or ``align`` once for each set of deltas, then normalize."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from ... import _core
from ...cache.episode import StreamSpec
from ...convert.ingest import FLOATS
from ...ops.align import native_stream
from ...ops.types import Stream
from ..order.selection import Anchors
from ..window import Key, nanoseconds
from .store import Part, Store, as_tensor
from .verify import MappedRows

NAMES = _core.AlignNames("Loader", "times")
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


class BatchReader:
    """Reads batches from a store. Everything that does not depend on the position is made here, once."""

    def __init__(
        self,
        store: Store,
        scales: list[dict[str, Any]],
        columns: list[Column],
        anchors: list[tuple[Anchors, int]],
        anchor_stream: str | None,
        device: Any,
        mapped: MappedRows | None,
        episodes: tuple[Any, Any] | None,
    ) -> None:
        """``scales``: of each source, offset and scale of the columns with a ``way``. ``anchor_stream``: where each
        of its rows is an anchor. ``episodes``: source and number of each, through all sources, where batches have an
        index."""
        import torch

        self.torch = torch
        self.store = store
        self.columns = columns
        self.device = device
        self.mapped = mapped
        """Where rows are read from mapped files."""
        self.episodes = None if episodes is None else [torch.from_numpy(x) for x in episodes]
        self.place = device if store.tier in ("gpu", "pinned") else torch.device("cpu")
        """Where batches are computed."""
        self.scales = [
            {name: tuple(torch.from_numpy(x) for x in pair) for name, pair in found.items()} for found in scales
        ]
        if anchor_stream is not None and store.tier != "mmap" and anchor_stream in store.parts[0].rows:
            # The rows are there already, in one part for each source: the same tensors, once.
            rows = [part.rows[anchor_stream] for part in store.parts]
            self.tables = [
                _core.AnchorTable(offsets, times, a.count, 0.0, quota, slots_on(self.place, a))
                for (_, times, offsets), (a, quota) in zip(rows, anchors, strict=True)
            ]
        else:
            self.tables = self.tables_on(self.place, anchors)
        try:
            self.fused: _core.BatchReader | None = self.fused_reader()
        except NotImplementedError:
            if store.tier == "pinned":
                raise
            self.fused = None
            self.steps = StepByStep(self, anchors)

    def tables_on(self, place: Any, anchors: list[tuple[Anchors, int]]) -> list[_core.AnchorTable]:
        return [
            _core.AnchorTable(*arrays_on(place, a), a.count, a.period_ns, quota, slots_on(place, a))
            for a, quota in anchors
        ]

    def fused_reader(self) -> _core.BatchReader:
        """Reads batches in one go. NotImplementedError where only ``align`` and ``normalize`` can."""
        torch = self.torch
        columns = []
        for c in self.columns:
            like = torch.empty(0, dtype=getattr(torch, c.dtype), device=self.place)
            padding_like = like.new_empty(0, dtype=torch.bool)
            deltas = [*c.key.window.deltas_ns]
            columns.append(_core.BatchColumn(deltas, c.dtype, c.way is not None, like, padding_like))
        rows = []
        for part in self.store.parts:
            for c in self.columns:
                scales = self.scales[part.source].get(c.key.name, (None, None))
                rows.append(_core.BatchRows(native_stream(stream_of(part, c)), *scales))
        episodes = None
        if self.episodes is not None:
            source, episode = self.episodes
            index_like = torch.empty(0, dtype=torch.int64, device=self.place)
            episodes = _core.EpisodeNames(source, episode, index_like)
        return _core.BatchReader(self.tables, self.store.part, self.store.local, columns, rows, episodes)

    def anchors_at(
        self, order: _core.SampleOrder, begin: int, count: int, tables: list[_core.AnchorTable] | None = None
    ) -> tuple[Any, Any]:
        """``(episode, anchor)`` of each sample."""
        tables = self.tables if tables is None else tables
        drawn = self.torch.empty((2, count), dtype=self.torch.int64, device=tables[0].prefix.device)
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
            self.mapped.touch(self.anchors_at(order, begin, count)[0].cpu())

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
        self.torch, self.store = reader.torch, reader.store
        # Rows of several parts are sorted on the host.
        self.tables = reader.tables if len(self.store.parts) == 1 else reader.tables_on("cpu", anchors)
        by_deltas: dict[tuple[int, ...], list[Column]] = {}
        for column in reader.columns:
            by_deltas.setdefault(column.key.window.deltas_ns, []).append(column)
        self.groups = [
            Group(same, self.torch.tensor(deltas, dtype=self.torch.int64, device=reader.place))
            for deltas, same in by_deltas.items()
        ]
        self.streams = [
            [[native_stream(stream_of(part, c)) for c in group.columns] for group in self.groups]
            for part in self.store.parts
        ]
        self.names = None
        if reader.episodes is not None:
            self.names = self.torch.stack(reader.episodes).to(self.tables[0].prefix.device)
        self.scales = [
            {name: tuple(x.to(reader.place) for x in pair) for name, pair in scales.items()} for scales in reader.scales
        ]

    def read(self, order: _core.SampleOrder, begin: int, count: int) -> list[Any]:
        episode, anchor = self.reader.anchors_at(order, begin, count, self.tables)
        if count == 0:
            episode, anchor = (x.to(self.reader.place) for x in (episode, anchor))
        if len(self.store.parts) == 1 or count == 0:
            # The one shard of a mapped cache may hold more episodes than were kept.
            local = self.store.local[episode] if self.store.tier == "mmap" else episode
            made = self.read_part(0, local, anchor)
        else:
            made = self.read_parts(episode, anchor)
        found = [x for c in self.reader.columns for x in made[c.key.name]]
        if self.names is not None:
            named = self.names.index_select(1, episode.to(self.names.device))
            found += [x.to(self.reader.place) for x in (*named.unbind(), anchor)]
        return found

    def read_part(self, number: int, episode: Any, anchor: Any) -> dict[str, tuple[Any, Any]]:
        made: dict[str, tuple[Any, Any]] = {}
        part = self.store.parts[number]
        for i, group in enumerate(self.groups):
            # The times were looked at when the loader was made.
            streams = self.streams[number][i]
            results = _core.align(NAMES, streams, None, episode, anchor, group.deltas, True, False, False)
            for column, (values, valid, _) in zip(group.columns, results, strict=True):
                if column.way is not None:
                    values = self.scaled(values, column, part.source)
                made[column.key.name] = values, self.torch.logical_not(valid, out=valid)
        return made

    def scaled(self, values: Any, column: Column, source: int) -> Any:
        offset, scale = self.scales[source][column.key.name]
        out = (
            values
            if column.dtype == column.written
            else values.new_empty(values.shape, dtype=getattr(self.torch, column.dtype))
        )
        channels = len(offset)
        _core.normalize(values.view(-1, channels), offset, scale, out.view(-1, channels))
        return out

    def read_parts(self, episode: Any, anchor: Any) -> dict[str, tuple[Any, Any]]:
        """Rows sorted by part, each part read by itself, every row put back to its place."""
        torch, store = self.torch, self.store
        place = self.reader.place
        part = store.part[episode]
        order = torch.argsort(part, stable=True)
        local, anchor, part = store.local[episode][order].to(place), anchor[order].to(place), part[order]
        used, counts = torch.unique_consecutive(part, return_counts=True)
        order = order.to(place)
        made: dict[str, tuple[Any, Any]] = {}
        begin = 0
        for number, count in zip(used.tolist(), counts.tolist(), strict=True):
            rows = slice(begin, begin + count)
            begin += count
            for name, found in self.read_part(number, local[rows], anchor[rows]).items():
                if name not in made:
                    made[name] = tuple(x.new_empty((len(order), *x.shape[1:])) for x in found)
                for whole, x in zip(made[name], found, strict=True):
                    as_bytes = x.dtype in (torch.uint16, torch.uint32, torch.uint64)  # which torch cannot index
                    whole, x = (y.view(torch.uint8) if as_bytes else y for y in (whole, x))
                    whole.index_copy_(0, order[rows], x)
        return made


def arrays_on(place: Any, anchors: Anchors) -> tuple[Any, Any]:
    return as_tensor(anchors.prefix).to(place), as_tensor(anchors.times).to(place)


def slots_on(place: Any, anchors: Anchors) -> Any:
    return None if anchors.slots is None else as_tensor(anchors.slots).to(place)


def stream_of(part: Part, column: Column) -> Stream:
    window = column.key.window
    max_gap = None if window.max_gap is None else nanoseconds(window.max_gap)
    if column.key.near_ns is not None:
        max_gap = column.key.near_ns[part.source]
    return Stream(
        *part.rows[column.key.stream], window.method, nanoseconds(window.latency), max_gap,
        window.outside, window.outside_valid, column.key.period, column.written, column.key.tolerance_ns,
    )  # fmt: skip
