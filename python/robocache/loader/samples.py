"""The samples of a loader: which moments of which episodes they are, and what is read for each."""

from __future__ import annotations

from typing import Any

from ..cache.cache import Cache
from ..cache.pictures import VIDEO_CODECS
from .arguments import (
    anchor_stream,
    caches_of,
    dtypes_of,
    fingerprint_of,
    require_own_names,
    require_read_alike,
    require_windows_fit,
    shared_specs,
)
from .batches.clouds import Clouds, number_messages, points_bytes
from .batches.pictures import Output, Pictures, pictures_bytes
from .batches.reader import BatchReader, columns_of
from .batches.scale import check_ways
from .batches.store import choose_tier, open_store, resident_bytes
from .batches.verify import MappedRows, is_checked
from .batches.video import Films
from .mixture import BLOCK, Mixture
from .options import Order, What, Where
from .order.selection import Selection, anchors_of, episodes_of
from .window import Key, keys_of, usual_tolerance_ns


class Samples:
    """Validates ``what`` and ``order`` against the caches and numbers the samples. ``open_reader`` then reads rows."""

    def __init__(self, source: Any, what: What, order: Order) -> None:
        mixture = source if isinstance(source, Mixture) else None
        self.caches: list[Cache] = caches_of(source, order.episodes)
        if len(self.caches) > 1 and not order.shuffle:
            raise ValueError(
                f"Loader: shuffle must be True for a Mixture, whose caches share blocks of {BLOCK} samples, got False; "
                "to read caches in order take a Loader for each"
            )
        self.selections = [Selection(cache, order.episodes, order.split) for cache in self.caches]
        asked = [*(what.windows or what.delta_timestamps or {})]
        specs = shared_specs(self.caches, asked if what.windows is not None else None)
        self.keys = self._keys(what, specs)
        self.names = [key.name for key in self.keys]
        self.columns = self._columns(what, specs)

        self.anchors = anchor_stream(order.anchors, asked, specs, self.caches)
        """The stream."""
        self.has_rows_as_anchors = order.anchor_hz is None and not any(order.skip_anchors)
        """Whether every row of that stream is an anchor."""
        self.tables = [anchors_of(s, self.anchors, order.anchor_hz, order.skip_anchors) for s in self.selections]
        self.quotas = [1] if mixture is None or len(self.caches) == 1 else mixture.quotas()
        self.num_anchors = sum(table.count for table in self.tables)
        """Of all sources."""
        self.count = self.num_anchors if mixture is None else mixture.epoch_size or self.num_anchors
        """Of an epoch, over all ranks."""
        self.fingerprint = fingerprint_of(self.selections, self.tables, self.quotas, self.count, order.shuffle)
        self.episodes = episodes_of(self.selections) if what.return_index else None

    def _keys(self, what: What, specs: Any) -> list[Key]:
        keys = keys_of(
            specs,
            what.windows,
            what.delta_timestamps,
            lambda name: [s.interval_ns(name) for s in self.selections],
            lambda name: usual_tolerance_ns(min(s.shortest_interval_ns(name) for s in self.selections)),
        )
        require_read_alike(self.caches, keys, what.windows or {})
        require_own_names(keys, what.return_index)
        require_windows_fit(keys, self.selections)
        return keys

    def _columns(self, what: What, specs: Any) -> list[Any]:
        ways = check_ways(what.normalize, self.names, specs)
        read_as = number_messages(self.keys, self.selections, specs, ways, what.dtype)
        encoded = {key.name: key for key in self.keys if specs[key.name].codec is not None}
        dtypes = dtypes_of(what.dtype, read_as, self.names, ways)
        self.outputs = {name: output_of(key, ways.get(name), dtypes.get(name)) for name, key in encoded.items()}
        numbers = {name: x for name, x in ways.items() if name not in encoded}
        return columns_of(self.keys, read_as, numbers, {n: x for n, x in dtypes.items() if n not in encoded})

    def open_reader(self, where: Where, device: Any, local_ranks: int) -> BatchReader:
        """Reads the rows into the tier of ``where``, or into the fastest one that fits: ``reader.store.tier``."""
        needed = resident_bytes(self.selections, self.names)
        needed += points_bytes(self.keys, self.selections) + pictures_bytes(self.keys, self.selections)
        tier = choose_tier(where.tier, device, needed, where.budget_bytes, local_ranks)
        try:
            return self._reader_of(tier, needed, where.verify, device)
        except NotImplementedError as error:  # a GPU reads pinned memory in one way only
            if tier != "pinned":
                raise
            if where.tier is not None:
                raise NotImplementedError(
                    f"Loader: tier {tier!r} cannot read these windows, take 'gpu' or 'memory': {error}"
                ) from error
            return self._reader_of("memory", needed, where.verify, device)

    def _reader_of(self, tier: str, needed: int, verify: str | None, device: Any) -> BatchReader:
        check = is_checked(verify, tier)
        store = open_store(self.selections, self.names, tier, needed, device, check)
        rows_of = self.anchors if self.has_rows_as_anchors else None
        mapped = MappedRows(self.selections, self.names, check) if tier == "mmap" else None
        anchors = [*zip(self.tables, self.quotas, strict=True)]
        return BatchReader(store, self.caches, self.columns, anchors, rows_of, device, mapped, self.episodes)

    def open_numbers(self, tier: str) -> BatchReader | None:
        """Reads the numbers of encoded pictures on the host, where the tier has them on a device: the host decides what
        is decoded, and would otherwise wait for the device."""
        import torch

        names = [*self.outputs]
        if not names or tier in ("memory", "mmap"):
            return None
        host = torch.device("cpu")
        store = open_store(self.selections, names, "memory", 0, host, False)
        columns = [column for column in self.columns if column.key.name in names]
        anchors = [*zip(self.tables, self.quotas, strict=True)]
        return BatchReader(store, self.caches, columns, anchors, None, host, None, None)

    def open_ragged(self, tier: str, where: Where, device: Any) -> list[Clouds | Pictures]:
        """What makes grids and pixels of the numbers that the reader finds."""
        check = is_checked(where.verify, tier)
        made: list[Clouds | Pictures] = []
        for i, key in enumerate(self.keys):
            if key.window.voxels:
                made.append(Clouds(key, 2 * i, self.selections, tier, device, check))
            elif key.name in self.outputs:
                is_video = self.caches[0].specs[key.name].codec in VIDEO_CODECS
                reads = Films if is_video else Pictures
                made.append(reads(key, 2 * i, self.selections, tier, device, self.outputs[key.name], check))
        return made


def output_of(key: Key, way: str | None, dtype: str | None) -> Output:
    """What becomes of encoded pictures without an ``image``; with one, it says that itself."""
    if key.window.image is not None:
        if way is not None or dtype is not None:
            what = "normalize" if way is not None else "dtype"
            raise ValueError(
                f"Loader: {what} of {key.name!r} must be a field of its Image, got {what} of the loader and an image"
            )
        return Output()
    return Output(way, dtype or ("float32" if way is not None else None))
