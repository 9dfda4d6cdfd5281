"""The samples of a loader: which moments of which episodes they are, and what is read for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..cache.cache import Cache
from ..cache.episode import StreamSpec
from ..convert.export import TASK as TASK_INDEX
from .arguments import (
    anchor_stream,
    caches_of,
    dtypes_of,
    fingerprint_of,
    require_own_names,
    require_read_alike,
    require_rows,
    shared_specs,
)
from .batches.arrays import Arrays
from .batches.clouds import Clouds, number_messages, points_bytes
from .batches.mixed import open_pictures
from .batches.pictures import Output, Pictures, pictures_bytes
from .batches.reader import BatchReader, Column, columns_of, require_readable
from .batches.scale import check_ways, scale_of
from .batches.store import choose_tier, open_store, resident_bytes
from .batches.verify import MappedRows, is_checked
from .features.batch import BatchForm
from .features.composing import Composing
from .features.feature import Feature
from .features.layout import TASK, Entry, Layout, layout_of
from .features.statistics import FeatureStatistics
from .features.text import Numbered, messages, tasks, tasks_by_number, text_tables
from .mixture import BLOCK, Mixture
from .options import Order, What, Where
from .order.edges import bounds_of, limits_of, too_long
from .order.selection import Anchors, Selection, anchors_of, episodes_of
from .order.weights import by_episode, slots_of
from .window import Key, Window, keys_of, usual_tolerance_ns


class Samples:
    """Validates ``what`` and ``order`` against the caches and numbers the samples. ``open_reader`` then reads rows."""

    def __init__(self, source: Any, what: What, order: Order, arrays: Arrays) -> None:
        self.arrays = arrays
        mixture = source if isinstance(source, Mixture) else None
        self.caches: list[Cache] = caches_of(source, order.episodes)
        if len(self.caches) > 1 and not order.shuffle:
            raise ValueError(
                f"Loader: shuffle must be True for a Mixture, whose caches share blocks of {BLOCK} samples, got False; "
                "to read caches in order take a Loader for each"
            )
        self.what = what
        self.selections = [Selection(cache, order.episodes, order.split) for cache in self.caches]
        self.numbered: Numbered | None = None
        """The tasks of moments, where a stream has their numbers."""
        asked = self._asked(what)
        self.specs = shared_specs(self.caches, asked if what.delta_timestamps is None else None, with_image(what))
        self.layout = self._layout(what, self.specs)
        self.keys = self.layout.keys
        self.anchors = anchor_stream(order.anchors, asked, self.specs, self.caches)
        """The stream."""
        if not self.keys:  # the reader finds the samples of a batch of texts too
            self.keys.append(Key(f"{self.anchors} #0", Window(), stream=self.anchors))
        self.names = [*dict.fromkeys(key.stream for key in self.keys)]
        """The streams that are read."""
        self.columns = self._columns(what, self.specs)
        self.weights = [order.weights for _ in self.caches]
        """For each source; of its episodes, where they are a function."""
        self.tables = self._tables(order)
        self.has_rows_as_anchors = order.anchor_hz is None and all(
            table.count == int(s.counts(self.anchors).sum())
            for s, table in zip(self.selections, self.tables, strict=True)
        )
        """Whether every row of that stream is an anchor."""
        self.quotas = [1] if mixture is None or len(self.caches) == 1 else mixture.quotas()
        self.num_anchors = sum(table.count for table in self.tables)
        """Of all sources."""
        self.count = self.num_anchors if mixture is None else mixture.epoch_size or self.num_anchors
        """Of an epoch, over all ranks."""
        self.fingerprint = fingerprint_of(self.selections, self.tables, self.quotas, self.count, order.shuffle)
        self.statistics = FeatureStatistics(self)
        has_task = any(entry.kind == "task" for entry in self.layout.entries)
        has_task |= self.numbered is not None and self.numbered.bounds is not None
        has_index = what.return_index or has_task or (len(self.caches) > 1 and bool(self.layout.composed))
        self.episodes = episodes_of(self.selections) if has_index else None
        self.scales = self._scales(what)
        """For each source, offset and scale of what is normalized, by key."""
        self.composing = Composing(self.layout.composed, arrays, arrays.device, self.scales, len(self.keys))

    def _tables(self, order: Order) -> list[Anchors]:
        skip = (order.skip_anchors[0], order.skip_anchors[1] or order.drop_last_steps)
        limits = limits_of(order.edges)
        tables = [
            anchors_of(
                s, self.anchors, order.anchor_hz, skip, bounds_of(s, self.keys, limits),
                lambda s=s: too_long(s, self.keys, limits),  # type: ignore[misc]
            )
            for s in self.selections
        ]  # fmt: skip
        if order.weights is not None:
            if len(self.caches) > 1 and not callable(order.weights):
                raise ValueError(
                    f"Loader: weights of a Mixture must be a function, got {type(order.weights).__name__}; its caches "
                    "have weights of their own"
                )
            for i, (selection, table) in enumerate(zip(self.selections, tables, strict=True)):
                if callable(order.weights):
                    self.weights[i] = by_episode(selection, order.weights)
                table.slots = slots_of(selection, table, self.weights[i])
        return tables

    def _asked(self, what: What) -> list[str]:
        """Streams in the order in which they are named; unknown ones are left for ``layout_of`` and ``keys_of``."""
        if what.features is None:
            return [*(what.windows or what.delta_timestamps or {})]
        features = [f for f in what.features.values() if isinstance(f, Feature)]
        named = [stream for feature in features for stream in feature.names]
        named += [feature.relative_to for feature in features if feature.relative_to is not None]
        known = self.caches[0].specs
        return [*dict.fromkeys(name for name in named if name in known)] or [*known][:1]

    def _layout(self, what: What, specs: Mapping[str, StreamSpec]) -> Layout:
        def intervals_ns(name: str) -> list[float]:
            return [s.interval_ns(name) for s in self.selections]

        def tolerance_ns(name: str) -> int:
            return usual_tolerance_ns(min(s.shortest_interval_ns(name) for s in self.selections))

        given: dict[str, Window] = dict(what.windows or {})
        if what.features is not None:
            layout = layout_of(what.features, specs, intervals_ns, tolerance_ns, self._task_stream(specs))
            given = {key.name: key.window for key in layout.keys}
            for entry in layout.entries:
                if entry.kind in ("column", "text") and entry.feature is not None:
                    given[layout.keys[entry.place].name] = entry.feature.window
        else:
            keys = keys_of(specs, what.windows, what.delta_timestamps, intervals_ns, tolerance_ns)
            entries = [
                Entry(
                    key.name, "column", i, key.timed, key.timed,
                    squeezed=what.windows is None and specs[key.stream].shape == (1,),
                )
                for i, key in enumerate(keys)
            ]  # fmt: skip
            layout = Layout(keys, entries)
        require_read_alike(self.caches, layout.keys, given)
        require_own_names(layout.entries, what.return_index)
        require_rows(layout.keys, self.selections)
        return layout

    def _task_stream(self, specs: Mapping[str, StreamSpec]) -> str | None:
        """The stream of the numbers of tasks, where the tasks of an episode change."""
        if TASK not in specs:
            self.numbered = tasks_by_number(self.selections, TASK_INDEX)
        return TASK_INDEX if self.numbered is not None else None

    def _columns(self, what: What, specs: Mapping[str, StreamSpec]) -> list[Column]:
        of_key = {key.name: specs[key.stream] for key in self.keys}
        names = [*of_key]
        if what.features is None:
            self.ways: dict[str, Any] = {**check_ways(what.normalize, names, of_key)}
            dtype = what.dtype
        else:
            direct = {self.keys[i].name: entry.feature for i, entry in self.layout.columns_in_batch().items()}
            options = {name: feature for name, feature in direct.items() if feature is not None}
            images = {key.name for key in self.keys if key.window.image is not None}
            self.ways = {n: f.normalize for n, f in options.items() if f.normalize is not None and n not in images}
            dtype = {n: f.dtype for n, f in options.items() if f.dtype is not None and n not in images}
        read_as = number_messages(self.keys, self.selections, specs, self.ways, dtype)
        numbered = [key for key in self.keys if self.selections[0].is_numbered(key.stream)]
        pictures = {key.name: key for key in numbered if specs[key.stream].kind in ("image", "depth")}
        dtypes = dtypes_of(dtype, {key.name: read_as[key.stream] for key in self.keys}, names, self.ways)
        self.outputs = {name: output_of(key, self.ways.get(name), dtypes.get(name)) for name, key in pictures.items()}
        """Of keys whose numbers become pictures."""
        numbers = {name: x for name, x in self.ways.items() if name not in pictures}
        columns = columns_of(self.keys, read_as, numbers, {n: x for n, x in dtypes.items() if n not in pictures})
        require_readable(columns, read_as)
        return columns

    def _scales(self, what: What) -> list[dict[str, Any]]:
        if what.features is not None:
            return self.statistics.scales()
        ways = {c.key.name: (c.key.stream, c.way) for c in self.columns if c.way is not None}
        streams = {key.name: key.stream for key in self.keys}
        ways |= {name: (streams[name], x.way) for name, x in self.outputs.items() if x.way is not None}
        return [{name: scale_of(cache, *way) for name, way in ways.items()} for cache in self.caches]

    def open_form(self, given: Callable[[Any], Any] | None) -> BatchForm:
        """What makes batches of the columns. ``given``: converts arrays for the user; None: not."""
        entries = [e for e in self.layout.entries if e.kind in ("text", "task") and e.feature is not None]
        tokenizers = {e.name: e.feature.tokenizer for e in entries if e.feature is not None}
        texts = text_tables({e.name: self._numbered(e) for e in entries}, tokenizers, self.arrays)
        return BatchForm(self.layout, self.composing, texts, self.what.return_index, given)

    def _numbered(self, entry: Entry) -> Numbered:
        """The texts of a feature."""
        stream = self.keys[entry.place].stream
        if entry.kind == "task":
            return Numbered(tasks(self.selections))
        if self.specs[stream].kind == "text" or self.numbered is None:
            return Numbered(messages(self.selections, stream))
        return self.numbered

    def open_reader(self, where: Where, local_ranks: int) -> BatchReader:
        """Reads the rows into the tier of ``where``, or into the fastest one that fits: ``reader.store.tier``."""
        needed = resident_bytes(self.selections, self.names)
        keys = by_stream(self.keys)
        needed += points_bytes(keys, self.selections) + pictures_bytes(keys, self.selections)
        tier = choose_tier(where.tier, self.arrays, needed, where.budget_bytes, local_ranks)
        try:
            return self._reader_of(tier, needed, where.verify)
        except NotImplementedError as error:  # a GPU reads pinned memory in one way only
            if tier != "pinned":
                raise
            if where.tier is not None:
                raise NotImplementedError(
                    f"Loader: tier {tier!r} cannot read these windows, take 'gpu' or 'memory': {error}"
                ) from error
            return self._reader_of("memory", needed, where.verify)

    def _reader_of(self, tier: str, needed: int, verify: str | None) -> BatchReader:
        check = is_checked(verify, tier)
        store = open_store(self.selections, self.names, tier, needed, self.arrays, check)
        rows_of = self.anchors if self.has_rows_as_anchors else None
        mapped = MappedRows(self.selections, self.names, check) if tier == "mmap" else None
        anchors = [*zip(self.tables, self.quotas, strict=True)]
        scales = scales_of(self.scales, self.columns)
        return BatchReader(
            store, scales, self.columns, anchors, rows_of, self.arrays, mapped, self.episodes, self.composing
        )

    def open_numbers(self, tier: str) -> BatchReader | None:
        """Reads the numbers of pictures and texts on the host, where the tier has them on a device: the host
        decides what is decoded, and would otherwise wait for the device."""
        texts = {e.name for e in self.layout.entries if e.kind == "text" and e.feature and not e.feature.tokenizer}
        columns = [c for c in self.columns if c.key.name in self.outputs or c.key.name in texts]
        if not columns or tier in ("memory", "mmap"):
            return None
        names = [*dict.fromkeys(column.key.stream for column in columns)]
        store = open_store(self.selections, names, "memory", 0, self.arrays, False)
        anchors = [*zip(self.tables, self.quotas, strict=True)]
        return BatchReader(store, [{} for _ in self.caches], columns, anchors, None, self.arrays, None, None)

    def open_ragged(self, tier: str, where: Where) -> list[Clouds | Pictures]:
        """What makes grids and pixels of the numbers that the reader finds."""
        check = is_checked(where.verify, tier)
        made: list[Clouds | Pictures] = []
        pictures: dict[str, Pictures] = {}
        for i, (key, named) in enumerate(zip(self.keys, by_stream(self.keys), strict=True)):
            if key.window.voxels:
                made.append(Clouds(named, 2 * i, self.selections, tier, self.arrays, check))
            elif key.name in self.outputs:
                output = self.outputs[key.name]
                if output.way is not None:
                    output = output._replace(scales=tuple(found[key.name] for found in self.scales))
                if named.name in pictures:  # in memory once
                    made.append(pictures[named.name].of_key(named, 2 * i, output))
                    continue
                pictures[named.name] = open_pictures(named, 2 * i, self.selections, tier, self.arrays, output, check)
                made.append(pictures[named.name])
        return made


def with_image(what: What) -> set[str]:
    """Streams that a window or a feature has an ``image`` for."""
    windows = {name: (name,) for name, w in (what.windows or {}).items() if getattr(w, "image", None) is not None}
    features = {n: f.names for n, f in (what.features or {}).items() if getattr(f, "image", None) is not None}
    return {stream for names in (*windows.values(), *features.values()) for stream in names}


def by_stream(keys: list[Key]) -> list[Key]:
    """Under the names of their streams."""
    return [replace(key, name=key.stream) for key in keys]


def scales_of(scales: list[dict[str, Any]], columns: list[Column]) -> list[dict[str, Any]]:
    """Those of columns that the reader scales."""
    names = [c.key.name for c in columns if c.way is not None]
    return [{name: found[name] for name in names} for found in scales]


def output_of(key: Key, way: Any, dtype: str | None) -> Output:
    """What becomes of pictures without an ``image``; with one, it says that itself."""
    if key.window.image is not None:
        if way is not None or dtype is not None:
            what = "normalize" if way is not None else "dtype"
            raise ValueError(
                f"Loader: {what} of {key.name!r} must be a field of its Image, got {what} of the loader and an image"
            )
        return Output()
    return Output(way, dtype or ("float32" if way is not None else None))
