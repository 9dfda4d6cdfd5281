"""From anchors to a batch: ``align`` once for each set of deltas, then normalise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _core
from .._align import align
from .._cache import Cache
from .._episode import StreamSpec
from .._ingest import FLOATS
from .._types import Stream
from ._scale import scale_of
from ._store import Part, Store
from ._window import Key, nanoseconds

NAMES: tuple[str, str, tuple[Any, ...]] = ("Loader", "times", ())


class Column(NamedTuple):
    """How one key is read: the dtype ``align`` writes, that of the batch, and how it is normalised."""

    key: Key
    written: str
    dtype: str
    way: str | None


class Group(NamedTuple):
    """Columns with the same deltas: one call of ``align``."""

    columns: list[Column]
    deltas: Any


def columns_of(
    keys: list[Key], specs: Mapping[str, StreamSpec], ways: Mapping[str, str], dtypes: Mapping[str, str]
) -> list[Column]:
    columns = []
    for key in keys:
        stored, way = specs[key.name].dtype, ways.get(key.name)
        dtype = dtypes.get(key.name) or ("float32" if way is not None and stored not in FLOATS else stored)
        # What is scaled is written with all its bits first, so that there is one rounding to the dtype of the batch.
        written = dtype if way is None else "float32" if stored in ("float16", "bfloat16") else stored
        columns.append(Column(key, written, dtype, way))
    return columns


class BatchReader:
    """Reads batches from a store. Everything that does not depend on the anchors is made here, once."""

    def __init__(self, store: Store, caches: list[Cache], columns: list[Column], device: Any) -> None:
        import torch

        self.torch = torch
        self.store = store
        self.device = device
        self.place = device if store.tier == "gpu" else torch.device("cpu")
        """Where batches are computed."""
        by_deltas: dict[tuple[int, ...], list[Column]] = {}
        for column in columns:
            by_deltas.setdefault(column.key.window.deltas_ns, []).append(column)
        self.groups = [
            Group(same, torch.tensor(deltas, dtype=torch.int64, device=self.place))
            for deltas, same in by_deltas.items()
        ]
        self.order = [column.key for column in columns]
        self.streams = [
            [[self.stream(part, c) for c in group.columns] for group in self.groups] for part in store.parts
        ]
        self.fields = [[[fields_of(s) for s in streams] for streams in groups] for groups in self.streams]
        self.scales = [
            {
                c.key.name: tuple(torch.from_numpy(x).to(self.place) for x in scale_of(cache, c.key.name, c.way))
                for c in columns
                if c.way is not None
            }
            for cache in caches
        ]

    @staticmethod
    def stream(part: Part, column: Column) -> Stream:
        window = column.key.window
        max_gap = None if window.max_gap is None else nanoseconds(window.max_gap)
        if column.key.near_ns is not None:
            max_gap = column.key.near_ns[part.source]
        return Stream(
            *part.rows[column.key.name], window.method, nanoseconds(window.latency), max_gap,
            window.outside, window.outside_valid, dtype=column.written,
        )  # fmt: skip

    def read(self, episode: Any, anchor: Any) -> dict[str, Any]:
        """``episode (B,)`` and ``anchor (B,)``; on the device of the data, or on the host where there are parts."""
        if len(self.store.parts) == 1 or len(episode) == 0:
            # The one shard of a mapped cache may hold more episodes than were kept.
            local = self.store.local[episode] if self.store.tier == "mmap" else episode
            made = self.read_part(0, local, anchor)
        else:
            made = self.read_parts(episode, anchor)
        batch: dict[str, Any] = {}
        for key in self.order:
            values, pad = made[key.name]
            batch[key.name] = values if key.timed else values[:, 0]
            if key.timed:
                batch[f"{key.name}_is_pad"] = pad
        if self.place != self.device:
            batch = {name: x.to(self.device) for name, x in batch.items()}
        return batch

    def read_part(self, number: int, episode: Any, anchor: Any) -> dict[str, tuple[Any, Any]]:
        made: dict[str, tuple[Any, Any]] = {}
        part = self.store.parts[number]
        for i, group in enumerate(self.groups):
            query = (None, episode, anchor, group.deltas)
            # The times were looked at when the loader was made.
            results = _core.align_tensors(NAMES, self.fields[number][i], query, True, False, True, False)
            if results is None:  # refused: this says why
                found = align(self.streams[number][i], episode=episode, anchor=anchor, deltas=group.deltas, check=False)
                results = list(zip(found.values, found.valid, found.valid, strict=True))
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
        _core.normalise(values.view(-1, channels), offset, scale, out.view(-1, channels))
        return out

    def read_parts(self, episode: Any, anchor: Any) -> dict[str, tuple[Any, Any]]:
        """Rows sorted by part, each part read by itself, every row put back to its place."""
        torch, store = self.torch, self.store
        part = store.part[episode]
        order = torch.argsort(part, stable=True)
        local, anchor, part = store.local[episode][order], anchor[order], part[order]
        used, counts = torch.unique_consecutive(part, return_counts=True)
        if self.place.type != "cpu":
            local, anchor, places = local.to(self.place), anchor.to(self.place), order.to(self.place)
        else:
            places = order
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
                    whole.index_copy_(0, places[rows], x)
        return made


def fields_of(s: Stream) -> tuple[Any, ...]:
    return (s.values, s.times, s.offsets, s.method, s.latency, s.max_gap, s.outside, s.outside_valid, s.period, s.dtype)
