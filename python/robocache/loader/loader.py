"""``Loader``: batch n is a pure function of the cache, the seed, the epoch and n."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._core import MappingGuard
from ..cache.cache import Cache
from ..text import did_you_mean
from .arguments import (
    anchor_stream,
    caches_of,
    device_of,
    dtypes_of,
    fingerprint_of,
    import_torch,
    require_mapping,
    require_own_names,
    require_read_alike,
    require_windows_fit,
    shared_specs,
    skipped,
    steps_of,
)
from .batches.clouds import Clouds, number_clouds, points_bytes
from .batches.reader import BatchReader, Order, columns_of
from .batches.ring import Ring
from .batches.scale import check_ways
from .batches.store import choose_tier, open_store, resident_bytes
from .batches.verify import MappedRows, check_verify, is_checked
from .mixture import BLOCK, Mixture
from .numbers import whole
from .order.epochs import Epochs, Position
from .order.ranks import Ranks
from .order.selection import Episodes, Selection, Split, anchors_of, episodes_of
from .order.state import MOST_EPOCHS, Place, check_state, require_same_batch
from .window import Window, keys_of, usual_tolerance_ns
from .workers import Worker, given_arguments, reduced, this_worker

Batch = dict[str, Any]


class Loader:
    """Aligned, shuffled, normalized batches of a cache: dicts of torch tensors. The guide: ``docs/loader.md``.

    ``windows``: ``{stream: Window(past, future, rate_hz)}``; or LeRobot's ``delta_timestamps={stream: [seconds]}``. A
    batch has for each stream ``(B, T, ...)`` and ``{stream}_is_pad (B, T)``: where the recording has nothing to say.

    Every row of the stream ``anchors`` (by default the first vector stream of the windows) is the anchor of a sample,
    or every moment at ``anchor_hz`` between its first row and its last; ``skip_anchors=(first, last)`` leaves out so
    many at both ends of each episode. ``episodes`` (numbers, or a function of an ``Episode``) and
    ``split=("train", 0.9)`` choose episodes.

    ``normalize``: ``{stream: "mean_std" | "min_max" | "quantile" | "unit"}``, by the statistics of the cache; or one of
    these alone: ``"unit"`` for all uint8 and uint16 streams, the others for all vectors of floats.
    ``dtype``: of floating and normalized streams, for all or as ``{stream: dtype}``.

    ``batch_size`` is that of one rank; ``rank`` and ``world_size`` come from ``torch.distributed`` or the launcher,
    also where the process group is initialized after the loader was made.
    ``tier``: ``"gpu"``, ``"pinned"``, ``"memory"`` or ``"mmap"``; None takes the fastest that fits into
    ``budget_bytes`` (by default 80 % of what is free, shared with the other ranks of this machine).
    ``return_index`` adds ``source_index``, ``episode_index`` and ``anchor_ns``, on the device of the loader.
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
        source: Cache | Mixture | str | os.PathLike[str],
        batch_size: int,
        windows: Mapping[str, Window] | None = None,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        anchors: str | None = None,
        anchor_hz: float | None = None,
        skip_anchors: tuple[int, int] = (0, 0),
        episodes: Episodes = None,
        split: Split = None,
        normalize: Mapping[str, str | None] | str | None = None,
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
        for name, given in (("windows", windows), ("delta_timestamps", delta_timestamps)):
            require_mapping(name, given)
        mixture = source if isinstance(source, Mixture) else None
        caches = caches_of(source, episodes)
        if mixture is None:
            self._arguments["source"] = caches[0]  # a path may lead to another version later
        if len(caches) > 1 and not shuffle:
            raise ValueError(
                f"Loader: shuffle must be True for a Mixture, whose caches share blocks of {BLOCK} samples, got False; "
                "to read caches in order take a Loader for each"
            )
        self.batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self._ranks = Ranks(torch, rank, world_size)
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
        ways = check_ways(normalize, names, specs)
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
        self._num_steps = self._steps_of(self._ranks.share.world_size * self.batch_size)
        self._length_told = False

        needed = resident_bytes(selections, names) + points_bytes(keys, selections)
        budget = None if budget_bytes is None else whole("budget_bytes", budget_bytes, 0, 2**62)
        self.tier = choose_tier(tier, self.device, needed, budget, self._ranks.num_local())

        told = episodes_of(selections) if self.return_index else None

        def reader_of(tier: str) -> BatchReader:
            check = is_checked(self.verify, tier)
            store = open_store(selections, names, tier, needed, self.device, check)
            rows_of = self.anchors if anchor_hz is None and not any(skip) else None
            mapped = MappedRows(selections, names, check) if tier == "mmap" else None
            order = [*zip(tables, quotas, strict=True)]
            return BatchReader(store, caches, columns, order, rows_of, self.device, mapped, told)

        try:
            self._reader = reader_of(self.tier)
        except NotImplementedError as error:  # a GPU reads pinned memory in one way only
            if self.tier != "pinned":
                raise
            if tier is not None:
                raise NotImplementedError(
                    f"Loader: tier {tier!r} cannot read these windows, take 'gpu' or 'memory': {error}"
                ) from error
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
        self._fingerprint = fingerprint_of(selections, tables, quotas, self.num_samples, self.shuffle)
        self._ring: Ring | None = None
        self._place = Place()
        self._epochs = Epochs()
        self._begun_as_worker = 0
        """Iterations, by this process as a worker of a ``DataLoader``."""
        self._set_in_worker = False

    def _steps_of(self, global_batch: int) -> int:
        return steps_of(self.num_samples, global_batch, self.drop_last)

    def _settle(self, group_only: bool = False) -> None:
        """Takes the rank that this process has by now, where none was given. An error where the length that was told
        before is another one then."""
        share = self._ranks.changed(group_only)
        if share is None:
            return
        num_steps = self._steps_of(share.world_size * self.batch_size)
        if self._length_told and num_steps != self._num_steps:
            before = self._ranks.share
            raise RuntimeError(
                f"Loader: len() was {self._num_steps} batches for rank {before.rank} of {before.world_size}, but this "
                f"process is rank {share.rank} of {share.world_size} now, which has {num_steps}: initialize "
                "torch.distributed before len(loader), or give rank= and world_size="
            )
        self._ranks.take(share)
        self._num_steps = num_steps

    @property
    def rank(self) -> int:
        """Given, or that of ``torch.distributed`` or the launcher, as soon as one is known."""
        self._settle()
        return self._ranks.share.rank

    @property
    def world_size(self) -> int:
        """As ``rank``."""
        self._settle()
        return self._ranks.share.world_size

    @property
    def num_steps(self) -> int:
        """Batches of an epoch, for each rank."""
        self._settle()
        self._length_told = True
        return self._num_steps

    def __repr__(self) -> str:
        source = repr(str(self.caches[0].path)) if len(self.caches) == 1 else f"{len(self.caches)} caches"
        return (
            f"Loader({source}, batch_size={self.batch_size}, {self.num_samples} samples, tier={self.tier!r}, "
            f"device={str(self.device)!r})"
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.num_steps

    @property
    def epoch(self) -> int:
        return self._place.epoch

    @property
    def _finished(self) -> bool:
        """Whether the last batch of the epoch was given to somebody who did not ask whether there is another."""
        return self._place.step == self._num_steps and self._place.resumed_from is None

    @property
    def _position(self) -> Position:
        """Where a worker begins that is a copy of this loader."""
        place = self._place
        if self._finished:
            return Position(place.version, place.epoch + 1, 0)
        return Position(place.version, place.epoch, 0 if place.resumed_from is None else place.step)

    def _set_place(self, epoch: int, step: int, resumed_from: tuple[int, int] | None) -> None:
        worker = this_worker()
        self._place = Place(epoch, step, resumed_from, self._place.version + (not worker.is_one))
        if worker.is_one:
            self._set_in_worker = True
            self._epochs.resumed(self._iteration_of(worker), self._position, epoch + (step > 0))
        else:
            self._epochs.set(self._position)

    def set_epoch(self, epoch: int) -> None:
        """The order of which epoch comes next. An epoch that was resumed goes on where that is the one at hand."""
        epoch = whole("epoch", epoch, 0, MOST_EPOCHS)
        same = epoch == self._place.epoch and not self._finished
        self._set_place(epoch, self._place.step if same else 0, self._place.resumed_from if same else None)

    def positions(self, step: int) -> tuple[int, int]:
        """``[begin, end)``: what this rank reads of the order of an epoch. Ranks lie side by side."""
        self._settle()
        return self._positions(step)

    def _positions(self, step: int) -> tuple[int, int]:
        rank, world_size = self._ranks.share
        begin = step * world_size * self.batch_size
        left = min(world_size * self.batch_size, self.num_samples - begin)
        return begin + left * rank // world_size, begin + left * (rank + 1) // world_size

    def scale_of(self, stream: str, source: int = 0) -> tuple[Any, Any]:
        """``(offset, scale)`` of each channel of a normalized stream, float64; ``source``: of a mixture. A batch holds
        ``(x - offset) * scale``, and ``y / scale + offset`` is the way back, for what a policy has learned to say."""
        scales = self._reader.scales
        if not 0 <= operator.index(source) < len(scales):
            raise ValueError(f"Loader.scale_of: source must be from 0 to {len(scales) - 1}, got {source}")
        if stream not in scales[source]:
            known = ", ".join(scales[source]) or "none"
            raise ValueError(
                f"Loader.scale_of: stream must be one that is normalized, {known}, got {stream!r}"
                f"{did_you_mean(str(stream), scales[source])}"
            )
        offset, scale = scales[source][stream]
        return offset.clone(), scale.clone()

    def batch(self, step: int, epoch: int | None = None) -> Batch:
        """Batch ``step`` of an epoch (by default of the one at hand), whatever was read before."""
        step = operator.index(step)
        self._settle(group_only=True)
        if not 0 <= step < self._num_steps:
            raise IndexError(f"Loader.batch: step must be in [0, {self._num_steps}), got {step}")
        epoch = self._place.epoch if epoch is None else whole("epoch", epoch, 0, MOST_EPOCHS)
        return self._read(step, epoch)

    def batch_at(self, step: Any) -> Batch:
        """The batch of a step that a tensor tells: an int64 tensor without dimensions, on the device of the loader. It
        counts through the epochs: step ``n`` is ``batch(n % len(loader), n // len(loader))``. In a CUDA graph that also
        counts it up, every replay reads the next batch, and the host does nothing."""
        fused = self._reader.fused
        if fused is None or self._reader.place != self.device or self._clouds:
            raise NotImplementedError(f"Loader.batch_at: tier {self.tier!r} with these windows is read by the host")
        if not self.drop_last:
            raise ValueError("Loader.batch_at: drop_last must be True: the last batch of an epoch has another size")
        self._settle(group_only=True)
        rank, world_size = self._ranks.share
        steps = (step, self._num_steps, world_size * self.batch_size, rank * self.batch_size)
        if self._reader.is_unchecked:
            number = int(step)
            begin, end = self.positions(number % self._num_steps)
            self._reader.touch(self._order(number // self._num_steps), begin, end - begin)
        with self._reader.watched():
            return self._reader.batch_of(fused.read_step(self._order(0), steps, self.batch_size))

    def _order(self, epoch: int) -> Order:
        return self.seed, epoch, self.num_samples, self.shuffle

    def _read(self, step: int, epoch: int) -> Batch:
        begin, end = self._positions(step)
        with self._reader.watched():
            made = self._reader.read(self._order(epoch), begin, end - begin)
            for clouds in self._clouds:
                clouds.fill(made)
        if self._reader.place != self.device:
            made = [x.to(self.device) for x in made]
        return self._reader.batch_of(made)

    def _batches(self, steps: range, epoch: int) -> Iterator[Batch]:
        if self._reader.place == self.device or self._clouds:
            yield from (self._read(step, epoch) for step in steps)
            return
        if self._ring is None:
            self._ring = Ring(self._reader, self.device)
        ends = map(self._positions, steps)
        jobs = ((self._order(epoch), begin, end - begin) for begin, end in ends)
        yield from map(self._reader.batch_of, self._ring.batches(jobs))

    def __iter__(self) -> Iterator[Batch]:
        """The epoch at hand from its beginning, or from where ``load_state_dict`` said. Then the next is at hand.

        In a worker of torch's ``DataLoader``: every so many steps, so that all workers together read each once; the
        next epoch in each iteration.
        """
        self._settle()
        worker = this_worker()
        epoch, step = self._begin_as(worker) if worker.is_one else self._begin()
        self._place.version += not worker.is_one
        for batch in self._batches(range(step + worker.id, self._num_steps, worker.num_workers), epoch):
            step = min(step + worker.num_workers, self._num_steps)
            self._place.epoch, self._place.step = epoch, step
            yield batch
            if (share := self._ranks.changed(group_only=True)) is not None:
                raise RuntimeError(
                    f"Loader: this process became rank {share.rank} of {share.world_size} in the middle of an "
                    "iteration: initialize torch.distributed before it, or give rank= and world_size="
                )
        self._place.epoch, self._place.step = epoch + 1, 0
        self._place.version += not worker.is_one

    def _begin(self) -> tuple[int, int]:
        """Epoch and first step of an iteration."""
        place = self._place
        if place.resumed_from is not None:
            require_same_batch(place.resumed_from, (self.batch_size, self._ranks.share.world_size))
        version, epoch, step = self._position
        self._place = Place(epoch, step, None, version)
        return epoch, step

    def _iteration_of(self, worker: Worker) -> str:
        return f"{worker.base_seed}/{self._begun_as_worker}"

    def _begin_as(self, worker: Worker) -> tuple[int, int]:
        """The same in a worker of a ``DataLoader``. Note [Epochs of workers]."""
        iteration, position = self._iteration_of(worker), self._position
        self._begun_as_worker += 1
        if self._set_in_worker:
            self._set_in_worker = False
            epoch, step = self._begin()
            self._epochs.resumed(iteration, position, epoch + 1)
            return epoch, step
        epoch, step = self._epochs.begin(iteration, worker.id, position)
        if step > 0 and self._place.resumed_from is not None:
            require_same_batch(self._place.resumed_from, (self.batch_size, self._ranks.share.world_size))
        self._place = Place(epoch, step, None, position.version)
        return epoch, step

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs to go on after the batch that was given last: small, and plain JSON."""
        return {
            "version": 1,
            "fingerprint": self._fingerprint,
            "seed": self.seed,
            "epoch": self._place.epoch,
            "step": self._place.step,
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another loader of the same data was, on any number of ranks with the same batch in all."""
        check_state(state, self.state_dict(), self._steps_of, self._ranks.known)
        self._set_place(int(state["epoch"]), int(state["step"]), (int(state["batch_size"]), int(state["world_size"])))

    def as_dataset(self) -> Any:
        """An ``IterableDataset`` of whole batches, where code insists on a ``DataLoader(dataset, batch_size=None)``."""
        from .dataset import LoaderDataset

        return LoaderDataset(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self, self._arguments)
