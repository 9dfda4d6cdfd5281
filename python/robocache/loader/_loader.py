"""``Loader``: batch n is a pure function of the cache, the seed, the epoch and n."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from .._cache import Cache
from ._arguments import (
    anchor_stream,
    caches_of,
    dtypes_of,
    fingerprint_of,
    import_torch,
    rank_of,
    require_windows_fit,
    shared_specs,
    steps_of,
    whole,
)
from ._batch import BatchReader, columns_of
from ._mixture import Mixture
from ._scale import check_ways
from ._selection import Episodes, Selection, Split, anchors_of
from ._state import check_state
from ._store import choose_tier, open_store, resident_bytes
from ._window import Window, keys_of
from ._workers import given_arguments, reduced, worker_share

Batch = dict[str, Any]


class Loader:
    """Aligned, shuffled, normalised batches of a cache: dicts of torch tensors. The guide: ``docs/loader.md``.

    ``windows``: ``{stream: Window(past, future, rate_hz)}``; or LeRobot's ``delta_timestamps={stream: [seconds]}``. A
    batch has for each stream ``(B, T, ...)`` and ``{stream}_is_pad (B, T)``: where the recording has nothing to say.

    Every row of the stream ``anchors`` (by default the first vector stream of the windows) is the anchor of a sample,
    or every moment at ``anchor_hz`` between its first row and its last. ``episodes`` (numbers, or a function of an
    ``Episode``) and ``split=("train", 0.9)`` choose episodes.

    ``normalise``: ``{stream: "mean_std" | "min_max" | "quantile" | "unit"}``, by the statistics of the cache.
    ``dtype``: of floating and normalised streams, for all or as ``{stream: dtype}``.

    ``batch_size`` is that of one rank; ``rank`` and ``world_size`` come from ``torch.distributed`` where that runs.
    ``tier``: ``"memory"``, ``"mmap"`` or ``"gpu"``; None takes the fastest that fits into ``budget_bytes`` (by default
    80 % of what is free). ``return_index`` adds ``source_index``, ``episode_index`` and ``anchor_ns``.

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
    ) -> None:
        self._arguments = given_arguments(locals())
        torch = import_torch()
        mixture = source if isinstance(source, Mixture) else None
        caches = caches_of(source, episodes)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self.rank, self.world_size = rank_of(torch, rank, world_size)
        self.shuffle, self.drop_last, self.return_index = bool(shuffle), bool(drop_last), bool(return_index)
        self.device = torch.device(device)
        self.caches = caches

        selections = [Selection(cache, episodes, split) for cache in caches]
        if mixture is None:
            self._arguments["episodes"] = selections[0].kept.tolist()  # a function may not travel to another process
        asked = [*(windows or delta_timestamps or {})]
        specs = shared_specs(caches, asked if windows is not None else None)
        keys = keys_of(specs, windows, delta_timestamps, lambda name: [s.interval_ns(name) for s in selections])
        names = [key.name for key in keys]
        require_windows_fit(keys, selections)
        columns = columns_of(keys, specs, check_ways(normalise or {}, names), dtypes_of(dtype, specs, names))

        self.anchors = anchor_stream(anchors, anchor_hz, asked, specs, caches)
        tables = [anchors_of(selection, self.anchors, anchor_hz) for selection in selections]
        quotas = [1] if mixture is None else mixture.quotas()
        self.num_anchors = sum(table.count for table in tables)
        """Of all sources."""
        self.num_samples = self.num_anchors if mixture is None else mixture.epoch_size or self.num_anchors
        """Of an epoch, over all ranks."""
        self.num_steps = steps_of(self.num_samples, self.world_size * self.batch_size, self.drop_last)

        needed = resident_bytes(selections, names)
        self.tier = choose_tier(tier, self.device, needed, budget_bytes)
        store = open_store(selections, names, self.tier, needed, self.device)
        self.size_bytes = store.size_bytes
        """Of the memory that holds the rows; 0 for ``mmap``."""
        self._reader = BatchReader(store, caches, columns, self.device)
        self._sampling = self._reader.place if len(store.parts) == 1 else torch.device("cpu")
        self._tables = [
            (*(torch.tensor(x, device=self._sampling) for x in (t.prefix, t.times)), t.count, t.period_ns, quota)
            for t, quota in zip(tables, quotas, strict=True)
        ]
        self._episodes = [(i, int(e)) for i, s in enumerate(selections) for e in s.kept] if return_index else []
        self._fingerprint = fingerprint_of(selections, tables, quotas, self.num_samples, self.shuffle)
        self._epoch, self._step, self._resumed = 0, 0, False

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

    def positions(self, step: int) -> tuple[int, int]:
        """``[begin, end)``: what this rank reads of the order of an epoch. Ranks lie side by side."""
        begin = step * self.world_size * self.batch_size
        left = min(self.world_size * self.batch_size, self.num_samples - begin)
        return begin + left * self.rank // self.world_size, begin + left * (self.rank + 1) // self.world_size

    def batch(self, step: int, epoch: int | None = None) -> Batch:
        """Batch ``step`` of an epoch (by default of the one at hand), whatever was read before."""
        step = operator.index(step)
        if not 0 <= step < self.num_steps:
            raise IndexError(f"Loader.batch: step must be in [0, {self.num_steps}), got {step}")
        torch = self._reader.torch
        begin, end = self.positions(step)
        drawn = torch.empty((2, end - begin), dtype=torch.int64, device=self._sampling)
        order = (self.seed, self._epoch if epoch is None else epoch, self.num_samples, self.shuffle)
        _core.sample_anchors(self._tables, order, begin, drawn[0], drawn[1])
        batch = self._reader.read(drawn[0], drawn[1])
        if self.return_index:
            found = torch.tensor([self._episodes[e] for e in drawn[0].tolist()], dtype=torch.int64).view(-1, 2)
            batch["source_index"], batch["episode_index"] = found[:, 0], found[:, 1]
            batch["anchor_ns"] = drawn[1].cpu()
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """The epoch at hand from its beginning, or from where ``load_state_dict`` said. Then the next is at hand.

        In a worker of torch's ``DataLoader``: every so many steps, so that all workers together read each once.
        """
        if self._finished:
            self._epoch += 1
        if not self._resumed:
            self._step = 0
        self._resumed = False
        epoch, step = self._epoch, self._step
        worker, workers = worker_share()
        while step + worker < self.num_steps:
            batch = self.batch(step + worker, epoch)
            step = min(step + workers, self.num_steps)
            self._epoch, self._step = epoch, step
            yield batch
        self._epoch, self._step = epoch + 1, 0

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

    def as_dataset(self) -> Any:
        """An ``IterableDataset`` of whole batches, where code insists on a ``DataLoader(dataset, batch_size=None)``."""
        from ._dataset import LoaderDataset

        return LoaderDataset(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self, self._arguments)
