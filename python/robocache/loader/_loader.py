"""``Loader``: batch n is a pure function of the cache, the seed, the epoch and n."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._cache import Cache
from .._core import MappingGuard
from ._arguments import (
    INDEX,
    anchor_stream,
    caches_of,
    device_of,
    dtypes_of,
    fingerprint_of,
    import_torch,
    rank_of,
    require_mapping,
    require_own_names,
    require_read_alike,
    require_windows_fit,
    shared_specs,
    skipped,
    steps_of,
)
from ._batch import BatchReader, Order, columns_of
from ._clouds import Clouds, number_clouds, points_bytes
from ._mixture import BLOCK, Mixture
from ._numbers import whole
from ._ring import Ring
from ._scale import check_ways
from ._selection import Episodes, Selection, Split, anchors_of
from ._state import check_state
from ._store import choose_tier, open_store, resident_bytes
from ._verify import MappedRows, check_verify, is_checked
from ._window import Window, keys_of, usual_tolerance_ns
from ._workers import given_arguments, in_worker, reduced, worker_share

Batch = dict[str, Any]


class Loader:
    """Aligned, shuffled, normalised batches of a cache: dicts of torch tensors. The guide: ``docs/loader.md``.

    ``windows``: ``{stream: Window(past, future, rate_hz)}``; or LeRobot's ``delta_timestamps={stream: [seconds]}``. A
    batch has for each stream ``(B, T, ...)`` and ``{stream}_is_pad (B, T)``: where the recording has nothing to say.

    Every row of the stream ``anchors`` (by default the first vector stream of the windows) is the anchor of a sample,
    or every moment at ``anchor_hz`` between its first row and its last; ``skip_anchors=(first, last)`` leaves out so
    many at both ends of each episode. ``episodes`` (numbers, or a function of an ``Episode``) and
    ``split=("train", 0.9)`` choose episodes.

    ``normalise``: ``{stream: "mean_std" | "min_max" | "quantile" | "unit"}``, by the statistics of the cache.
    ``dtype``: of floating and normalised streams, for all or as ``{stream: dtype}``.

    ``batch_size`` is that of one rank; ``rank`` and ``world_size`` come from ``torch.distributed`` where that runs.
    ``tier``: ``"gpu"``, ``"pinned"``, ``"memory"`` or ``"mmap"``; None takes the fastest that fits into
    ``budget_bytes`` (by default 80 % of what is free).
    ``return_index`` adds ``source_index``, ``episode_index`` and ``anchor_ns``.
    ``verify``: ``"load"`` compares checksums where rows are copied, or for ``mmap`` before rows are read for the first
    time; ``"none"`` or None never does; ``"auto"`` is ``"load"`` for tiers that copy. Damage is a ``FormatError``.

    >>> import numpy as np, robocache, tempfile
    >>> arm = robocache.StreamSpec("arm", "float32", (1,))
    >>> writer = robocache.CacheWriter(tempfile.mkdtemp() + "/arm.cache", {"arm": arm})
    >>> rows = np.arange(4, dtype=np.float32)[:, None]
    >>> writer.add(robocache.Episode(0, {"arm": robocache.EpisodeStream(arm, rows, np.arange(4) * 10**7)}))
    >>> windows = {"arm": robocache.Window(future=0.01, rate_hz=100)}
    >>> loader = robocache.Loader(writer.commit(), 2, windows, shuffle=False)
    >>> for batch in loader:
    ...     print(batch["arm"][..., 0].tolist(), batch["arm_is_pad"].tolist())
    [[0.0, 1.0], [1.0, 2.0]] [[False, False], [False, False]]
    [[2.0, 3.0], [3.0, 3.0]] [[False, False], [False, True]]
    """

    def __init__(
        self,
        source: Cache | Mixture,
        batch_size: int,
        windows: Mapping[str, Window] | None = None,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        anchors: str | None = None,
        anchor_hz: float | None = None,
        skip_anchors: tuple[int, int] = (0, 0),
        episodes: Episodes = None,
        split: Split = None,
        normalise: Mapping[str, str | None] | None = None,
        dtype: Any = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        device: Any = "cpu",
        tier: str | None = None,
        budget_bytes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        return_index: bool = False,
        verify: str | None = "auto",
    ) -> None:
        self._arguments = given_arguments(locals())
        guard = MappingGuard()  # until the end of this
        torch = import_torch()
        for name, given in (("windows", windows), ("delta_timestamps", delta_timestamps), ("normalise", normalise)):
            require_mapping(name, given)
        mixture = source if isinstance(source, Mixture) else None
        caches = caches_of(source, episodes)
        if len(caches) > 1 and not shuffle:
            raise ValueError(
                f"Loader: shuffle must be True for a Mixture, whose caches share blocks of {BLOCK} samples, got False; "
                "to read caches in order take a Loader for each"
            )
        self.batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self.rank, self.world_size = rank_of(torch, rank, world_size)
        self.shuffle, self.drop_last, self.return_index = bool(shuffle), bool(drop_last), bool(return_index)
        self.device = device_of(torch, device)
        self.caches = caches
        self.verify = check_verify(verify)

        selections = [Selection(cache, episodes, split) for cache in caches]
        if mixture is None:
            self._arguments["episodes"] = selections[0].kept.tolist()  # a function may not travel to another process
        asked = [*(windows or delta_timestamps or {})]
        specs = shared_specs(caches, asked if windows is not None else None)
        keys = keys_of(
            specs,
            windows,
            delta_timestamps,
            lambda name: [s.interval_ns(name) for s in selections],
            lambda name: usual_tolerance_ns(min(s.shortest_interval_ns(name) for s in selections)),
        )
        names = [key.name for key in keys]
        require_read_alike(caches, keys, windows or {})
        require_own_names(keys, return_index)
        require_windows_fit(keys, selections)
        ways = check_ways(normalise or {}, names)
        read_as = number_clouds(keys, selections, specs, ways, dtype)
        columns = columns_of(keys, read_as, ways, dtypes_of(dtype, read_as, names, ways))

        self.anchors = anchor_stream(anchors, anchor_hz, asked, specs, caches)
        skip = skipped(skip_anchors)
        tables = [anchors_of(selection, self.anchors, anchor_hz, skip) for selection in selections]
        quotas = [1] if mixture is None or len(caches) == 1 else mixture.quotas()
        self.num_anchors = sum(table.count for table in tables)
        """Of all sources."""
        self.num_samples = self.num_anchors if mixture is None else mixture.epoch_size or self.num_anchors
        """Of an epoch, over all ranks."""
        self.num_steps = steps_of(self.num_samples, self.world_size * self.batch_size, self.drop_last)

        needed = resident_bytes(selections, names) + points_bytes(keys, selections)
        budget = None if budget_bytes is None else whole("budget_bytes", budget_bytes, 0, 2**62)
        self.tier = choose_tier(tier, self.device, needed, budget)

        def reader_of(tier: str) -> BatchReader:
            check = is_checked(self.verify, tier)
            store = open_store(selections, names, tier, needed, self.device, check)
            rows_of = self.anchors if anchor_hz is None and not any(skip) else None
            mapped = MappedRows(selections, names, check) if tier == "mmap" else None
            order = [*zip(tables, quotas, strict=True)]
            return BatchReader(store, caches, columns, order, rows_of, self.device, mapped)

        try:
            self._reader = reader_of(self.tier)
        except NotImplementedError as error:  # a GPU reads pinned memory in one way only
            if self.tier != "pinned":
                raise
            if tier is not None:
                told = f"tier {tier!r} cannot read these windows, take 'gpu' or 'memory': {error}"
                raise NotImplementedError(f"Loader: {told}") from error
            self.tier = "memory"
            self._reader = reader_of(self.tier)
        self.size_bytes = self._reader.store.size_bytes
        """Of the memory that holds the rows; 0 for ``mmap``."""
        check = is_checked(self.verify, self.tier)
        self._clouds = [
            Clouds(key, 2 * i, selections, self.tier, self.device, check)
            for i, key in enumerate(keys)
            if key.window.voxels
        ]
        for cache in caches:
            cache._reader.require_readable()
        del guard
        self._episodes = [(i, int(e)) for i, s in enumerate(selections) for e in s.kept] if return_index else []
        self._fingerprint = fingerprint_of(selections, tables, quotas, self.num_samples, self.shuffle)
        self._ring: Ring | None = None
        self._epoch, self._step, self._resumed = 0, 0, False
        self._begun_by_worker = False

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.num_steps

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def _finished(self) -> bool:
        """Whether the last batch of the epoch was given to somebody who did not ask whether there is another."""
        return self._step == self.num_steps and not self._resumed

    def set_epoch(self, epoch: int) -> None:
        """The order of which epoch comes next. Nothing happens where that is the one at hand, so that a resumed one
        goes on."""
        epoch = whole("epoch", epoch, 0, 2**62)
        if epoch != self._epoch or self._finished:
            self._epoch, self._step, self._resumed = epoch, 0, False
            self._begun_by_worker = False

    def positions(self, step: int) -> tuple[int, int]:
        """``[begin, end)``: what this rank reads of the order of an epoch. Ranks lie side by side."""
        begin = step * self.world_size * self.batch_size
        left = min(self.world_size * self.batch_size, self.num_samples - begin)
        return begin + left * self.rank // self.world_size, begin + left * (self.rank + 1) // self.world_size

    def scale_of(self, stream: str, source: int = 0) -> tuple[Any, Any]:
        """``(offset, scale)`` of each channel of a normalised stream, float64; ``source``: of a mixture. A batch holds
        ``(x - offset) * scale``, and ``y / scale + offset`` is the way back, for what a policy has learned to say."""
        scales = self._reader.scales
        if not 0 <= operator.index(source) < len(scales):
            raise ValueError(f"Loader.scale_of: source must be from 0 to {len(scales) - 1}, got {source}")
        if stream not in scales[source]:
            known = ", ".join(scales[source]) or "none"
            raise ValueError(f"Loader.scale_of: stream must be one that is normalised, {known}, got {stream!r}")
        offset, scale = scales[source][stream]
        return offset.clone(), scale.clone()

    def batch(self, step: int, epoch: int | None = None) -> Batch:
        """Batch ``step`` of an epoch (by default of the one at hand), whatever was read before."""
        step = operator.index(step)
        if not 0 <= step < self.num_steps:
            raise IndexError(f"Loader.batch: step must be in [0, {self.num_steps}), got {step}")
        epoch = self._epoch if epoch is None else whole("epoch", epoch, 0, 2**62)
        return self._indexed(self._read(step, epoch), step, epoch)

    def batch_at(self, step: Any) -> Batch:
        """The batch of a step that a tensor tells: an int64 tensor without dimensions, on the device of the loader. It
        counts through the epochs: step ``n`` is ``batch(n % len(loader), n // len(loader))``. In a CUDA graph that also
        counts it up, every replay reads the next batch, and the host does nothing."""
        fused = self._reader.fused
        if fused is None or self._reader.place != self.device or self._clouds:
            raise NotImplementedError(f"Loader.batch_at: tier {self.tier!r} with these windows is read by the host")
        if not self.drop_last:
            raise ValueError("Loader.batch_at: drop_last must be True: the last batch of an epoch has another size")
        if self.return_index:
            raise ValueError("Loader.batch_at: return_index must be False: the index is made by the host")
        steps = (step, self.num_steps, self.world_size * self.batch_size, self.rank * self.batch_size)
        if self._reader.is_unchecked:
            number = int(step)
            begin, end = self.positions(number % self.num_steps)
            self._reader.touch(self._order(number // self.num_steps), begin, end - begin)
        with self._reader.watched():
            return self._reader.batch_of(fused.read_step(self._order(0), steps, self.batch_size))

    def _order(self, epoch: int) -> Order:
        return self.seed, epoch, self.num_samples, self.shuffle

    def _read(self, step: int, epoch: int) -> Batch:
        begin, end = self.positions(step)
        with self._reader.watched():
            made = self._reader.read(self._order(epoch), begin, end - begin)
            for clouds in self._clouds:
                clouds.fill(made)
        if self._reader.place != self.device:
            made = [x.to(self.device) for x in made]
        return self._reader.batch_of(made)

    def _indexed(self, batch: Batch, step: int, epoch: int) -> Batch:
        if self.return_index:
            begin, end = self.positions(step)
            episode, anchor = self._reader.anchors_at(self._order(epoch), begin, end - begin)
            torch = self._reader.torch
            found = torch.tensor([self._episodes[e] for e in episode.tolist()], dtype=torch.int64).view(-1, 2)
            batch |= dict(zip(INDEX, (found[:, 0], found[:, 1], anchor.cpu()), strict=True))
        return batch

    def _batches(self, steps: range, epoch: int) -> Iterator[Batch]:
        if self._reader.place == self.device or self._clouds:
            yield from (self._read(step, epoch) for step in steps)
            return
        if self._ring is None:
            self._ring = Ring(self._reader, self.device)
        ends = map(self.positions, steps)
        jobs = ((self._order(epoch), begin, end - begin) for begin, end in ends)
        yield from map(self._reader.batch_of, self._ring.batches(jobs))

    def __iter__(self) -> Iterator[Batch]:
        """The epoch at hand from its beginning, or from where ``load_state_dict`` said. Then the next is at hand.

        In a worker of torch's ``DataLoader``: every so many steps, so that all workers together read each once.
        """
        worker, workers = worker_share()
        if self._finished or self._begun_by_worker:
            self._epoch, self._step = self._epoch + 1, 0
        if not self._resumed:
            self._step = 0
        self._resumed = False
        # Workers that live on go to the next epoch together, however far each had come when the last was left.
        self._begun_by_worker = in_worker()
        epoch, step = self._epoch, self._step
        for batch in self._batches(range(step + worker, self.num_steps, workers), epoch):
            self._indexed(batch, step + worker, epoch)
            step = min(step + workers, self.num_steps)
            self._epoch, self._step = epoch, step
            yield batch
        self._epoch, self._step = epoch + 1, 0
        self._begun_by_worker = False

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs to go on after the batch that was given last: small, and plain JSON."""
        return {
            "version": 1,
            "fingerprint": self._fingerprint,
            "seed": self.seed,
            "epoch": self._epoch,
            "step": self._step,
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another loader of the same data was, on any number of ranks with the same batch in all."""
        check_state(state, self.state_dict(), self.num_steps)
        self._epoch, self._step, self._resumed = int(state["epoch"]), int(state["step"]), True
        self._begun_by_worker = False

    def as_dataset(self) -> Any:
        """An ``IterableDataset`` of whole batches, where code insists on a ``DataLoader(dataset, batch_size=None)``."""
        from ._dataset import LoaderDataset

        return LoaderDataset(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self, self._arguments)
