"""``Loader``: batch n is a pure function of the cache, the seed, the epoch and n."""

from __future__ import annotations

import json
import multiprocessing.context
import operator
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._core import MappingGuard, SampleOrder
from ..cache.cache import Cache
from ..text import did_you_mean
from .arguments import steps_of
from .batches.arrays import arrays_of
from .batches.framework import conversion
from .batches.ring import Ring, one_ahead
from .batches.video import Films
from .features.inverse import Inverse
from .mixture import Mixture
from .numbers import whole
from .options import Options, Order, What, Where, grouped
from .order.epochs import Epochs
from .order.map_style import SampleDataset
from .order.progress import NextBatch, Progress
from .order.ranks import Ranks
from .order.state import MOST_EPOCHS, check_state
from .samples import Samples
from .window import Window
from .workers import this_worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

Batch = dict[str, Any]


class Loader:
    """Aligned, shuffled, normalized batches of a cache: dicts of torch tensors, or of arrays of ``framework``.

    The guide: ``docs/loader.md``.

    A batch has for each stream ``(B, T, ...)`` and ``{stream}_is_pad (B, T)``: true where the recording has no value.
    ``features`` name and combine streams (``docs/features.md``); ``windows`` take them as they are.
    ``source``: a cache, its path, or a ``Mixture``. ``batch_size``: of one rank. The options are the fields of three
    groups:

    what=What(...)      what is in a batch: windows, delta_timestamps, normalize, dtype, return_index, features, stats
    order=Order(...)    which samples, in which order: anchors, anchor_hz, skip_anchors, drop_last_steps, edges,
                        weights, episodes, split, shuffle, seed, drop_last, rank, world_size
    where=Where(...)    where rows are kept and batches computed: device, tier, budget_bytes, verify,
                        framework

    ``help(robocache.Order)`` explains the fields. Each field is also a keyword of ``Loader``: ``Loader(cache, 64,
    windows, seed=3)`` is ``Loader(cache, 64, what=What(windows), order=Order(seed=3))``. A group that is given has all
    its fields, so a keyword of the same group is an error. ``loader.what``, ``loader.order`` and ``loader.where`` are
    the groups.

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
        what: What | None = None,
        order: Order | None = None,
        where: Where | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = dict(options) if windows is None else {"windows": windows, **options}
        self.what, self.order, self.where = grouped(what, order, where, given)
        guard = MappingGuard()  # until the rows are read
        self._arrays = arrays_of(self.where.framework, self.where.device)
        self.batch_size = whole("batch_size", batch_size, 1)
        self._ranks = Ranks(self.order.rank, self.order.world_size)
        self.device = self._arrays.device
        """Of the batches: a ``torch.device``, or ``"cpu"`` with another framework."""
        samples = Samples(source, self.what, self.order, self._arrays)
        self.caches = samples.caches
        self._source = source if isinstance(source, Mixture) else self.caches[0]
        self._kept = None if isinstance(source, Mixture) else samples.selections[0].kept.tolist()
        """Numbers of the episodes of a single cache."""
        self._weights = samples.weights[0]
        self.anchors = samples.anchors
        """The stream."""
        self.num_anchors = samples.num_anchors
        """Of all sources."""
        self.num_samples = samples.count
        """Of an epoch, over all ranks."""
        self._fingerprint = samples.fingerprint
        self._num_steps = self._steps_of(self._ranks.share.world_size * self.batch_size)
        self._length_told = False

        self._reader = samples.open_reader(self.where, self._ranks.num_local())
        self.tier = self._reader.store.tier
        self.size_bytes = self._reader.store.size_bytes
        """Of the memory that holds the rows; 0 for ``mmap``."""
        self._ragged = samples.open_ragged(self.tier, self.where)
        self._numbers = samples.open_numbers(self.tier)
        self._given = conversion(self.where.framework)
        self._form = samples.open_form(self._given)
        self._statistics = samples.statistics
        self._tasks = [
            table
            for table in self._reader.tables_on(self._arrays.host, [*zip(samples.tables, samples.quotas, strict=True)])
            if any(entry.kind == "task" for entry in samples.layout.entries)
            or any(table.bounds is not None and table.is_read_on_host for table in self._form.texts.values())
        ]
        """The anchors on the host, where batches have the task of their episode, or texts that sources number."""
        self._episodes = samples.episodes
        self._first_episode = np.cumsum([0, *(len(cache) for cache in self.caches)])
        """Of each cache, counted through all of them."""
        self._scales = samples.scales
        for cache in self.caches:
            cache._reader.require_readable()
        del guard
        self._ring: Ring | None = None
        self._progress = Progress()

    @property
    def seed(self) -> int:
        """That of ``order``."""
        return self.order.seed

    @property
    def shuffle(self) -> bool:
        """That of ``order``."""
        return self.order.shuffle

    @property
    def drop_last(self) -> bool:
        """That of ``order``."""
        return self.order.drop_last

    @property
    def return_index(self) -> bool:
        """That of ``what``."""
        return self.what.return_index

    @property
    def verify(self) -> str | None:
        """That of ``where``."""
        return self.where.verify

    @property
    def video_decoders(self) -> dict[str, str]:
        """What decodes each stream of video: ``"NVDEC"``, or ``"PyAV (reason)"``."""
        made = {}
        for films in (part for ragged in self._ragged for part in getattr(ragged, "made", [ragged])):
            if isinstance(films, Films):
                reason = films.why_no_nvdec()
                made[films.name] = f"PyAV ({reason})" if reason else "NVDEC"
        return made

    def _steps_of(self, global_batch: int) -> int:
        return steps_of(self.num_samples, global_batch, self.drop_last)

    def _settle(self, group_only: bool = False) -> None:
        """Looks up the rank of this process if none was given. Raises RuntimeError if ``len`` has returned another
        length before."""
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
        """The epoch that the next iteration reads."""
        return self._progress.next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration reads. A resumed epoch keeps its step if it is set again."""
        epoch = whole("epoch", epoch, 0, MOST_EPOCHS)
        self._progress.set_epoch(epoch, self._num_steps)

    def positions(self, step: int) -> tuple[int, int]:
        """``[begin, end)``: the positions of the epoch's order that this rank reads. Ranks are adjacent."""
        self._settle()
        return self._positions(step)

    def _positions(self, step: int) -> tuple[int, int]:
        rank, world_size = self._ranks.share
        begin = step * world_size * self.batch_size
        left = min(world_size * self.batch_size, self.num_samples - begin)
        return begin + left * rank // world_size, begin + left * (rank + 1) // world_size

    def scale_of(self, stream: str, source: int = 0) -> tuple[Any, Any]:
        """``(offset, scale)`` of each channel of a normalized stream, float64; ``source``: of a mixture. A batch holds
        ``(x - offset) * scale``; ``y / scale + offset`` converts the output of a policy back."""
        scales = self._scales
        if not 0 <= operator.index(source) < len(scales):
            raise ValueError(f"Loader.scale_of: source must be from 0 to {len(scales) - 1}, got {source}")
        if stream not in scales[source]:
            known = ", ".join(scales[source]) or "none"
            raise ValueError(
                f"Loader.scale_of: stream must be one that is normalized, {known}, got {stream!r}"
                f"{did_you_mean(str(stream), scales[source])}"
            )
        offset, scale = (self._arrays.of(x.copy()) for x in scales[source][stream])
        return (offset, scale) if self._given is None else (self._given(offset), self._given(scale))

    @property
    def stats(self) -> Any:
        """``{feature: {"mean": ..., "std", "min", "max", "q01", "q99", "count", "not_finite"}}``: arrays, a number for
        each channel, of all samples of the kept episodes without padding, after ``relative_to`` and ``rotation`` and
        before ``normalize``. Of pictures, only where they are normalized with them, and those of the whole cache. A
        list of such dicts, one for each cache, for a mixture. Computed when first asked for."""
        self._require_features("stats")
        found = [self._statistics.of_source(i) for i in range(len(self.caches))]
        return found if isinstance(self._source, Mixture) else found[0]

    def save_stats(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics of all features as JSON, to be kept beside the weights: ``Loader(..., stats=path)``
        normalizes with them instead of its own, and ``load_inverse(path, name)`` is the inverse without a cache."""
        self._require_features("save_stats")
        Path(path).write_text(json.dumps(self._statistics.to_json(), indent=1) + "\n")

    def inverse(self, name: str, source: int = 0) -> Inverse:
        """A function from the values of a feature to rows of its streams, ``f(values, anchor=None)``: not normalized,
        rotations as quaternions, not relative. ``anchor``: the row at the anchor, for a relative feature.
        ``source``: whose statistics, of a mixture. See docs/features.md."""
        self._require_features("inverse")
        if not 0 <= operator.index(source) < len(self.caches):
            raise ValueError(f"Loader.inverse: source must be from 0 to {len(self.caches) - 1}, got {source}")
        entries = self._statistics.entries()
        if not isinstance(name, str) or name not in entries:
            raise ValueError(
                f"Loader.inverse: name must be a feature of vectors, {', '.join(entries)}, got {name!r}"
                f"{did_you_mean(str(name), entries)}"
            )
        return self._statistics.inverse(entries[name], source)

    def _require_features(self, what: str) -> None:
        if self.what.features is None:
            raise ValueError(f"Loader.{what}: the loader must have features, got windows; scale_of is for these")

    def batch(self, step: int, epoch: int | None = None) -> Batch:
        """Batch ``step`` of an epoch (by default the current one), independent of what was read before."""
        try:
            step = operator.index(step)
        except TypeError:
            raise TypeError(f"Loader.batch: step must be a whole number, got {step!r}") from None
        self._settle(group_only=True)
        if not 0 <= step < self._num_steps:
            raise IndexError(f"Loader.batch: step must be in [0, {self._num_steps}), got {step}")
        epoch = self.epoch if epoch is None else whole("epoch", epoch, 0, MOST_EPOCHS)
        return self._read(step, epoch)

    def batch_at(self, step: Any) -> Batch:
        """The batch whose step is in a tensor: int64 without dimensions, on the device of the loader. Steps count
        through the epochs: step ``n`` is ``batch(n % len(loader), n // len(loader))``. In a CUDA graph that also
        increments the tensor, every replay reads the next batch without work on the host."""
        fused = self._reader.fused
        if fused is None or self._reader.place != self.device or self._is_read_by_host:
            raise NotImplementedError(f"Loader.batch_at: tier {self.tier!r} with these windows is read by the host")
        if not self.drop_last:
            raise ValueError("Loader.batch_at: drop_last must be True: the last batch of an epoch has another size")
        self._settle(group_only=True)
        rank, world_size = self._ranks.share
        stride, first = world_size * self.batch_size, rank * self.batch_size
        if self._reader.is_unchecked:
            number = int(step)
            begin, end = self.positions(number % self._num_steps)
            self._reader.touch(self._order(number // self._num_steps), begin, end - begin)
        with self._reader.watched():
            made = fused.read_step(self._order(0), step, self._num_steps, stride, first, self.batch_size)
            return self._form.batch(made, None, {})

    @property
    def _is_read_by_host(self) -> bool:
        """Whether the host takes part in a batch after its rows were read."""
        on_host = any(table.is_read_on_host for table in self._form.texts.values())
        return bool(self._ragged) or bool(self._tasks) or on_host

    def _order(self, epoch: int, numbers: Any = None) -> SampleOrder:
        return SampleOrder(self.order.seed, epoch, self.num_samples, self.order.shuffle, numbers)

    def _read(self, step: int, epoch: int) -> Batch:
        begin, end = self._positions(step)
        order = self._order(epoch)
        return self._read_positions(order, order, begin, (self.order.seed, epoch, np.arange(begin, end)))

    def _read_numbers(self, numbers: Any) -> Batch:
        """The samples of these numbers. Random edits are those of an epoch in ascending order."""
        order, on_host = self._order(0, self._reader.there(numbers)), self._order(0, numbers)
        return self._read_positions(order, on_host, 0, (self.order.seed, self.epoch, numbers))

    def _read_positions(
        self, order: SampleOrder, on_host: SampleOrder, begin: int, drawn: tuple[int, int, Any]
    ) -> Batch:
        """``order``: for where batches are computed. ``drawn``: seed, epoch and positions that random edits are of."""
        count = len(drawn[2])
        with self._reader.watched():
            made = self._reader.read(order, begin, count)
            numbers = self._numbers_of(on_host, begin, count, made)
            sources, episodes = self._index_of(on_host, begin, count, made)
            for ragged in self._ragged:
                found = numbers.get(ragged.place // 2)
                ragged.fill(made, drawn, {} if found is None else {ragged.name: found})
        for entry in self._form.layout.entries:
            if sources is not None and entry.kind == "text" and self._form.texts[entry.name].is_read_on_host:
                own = self._arrays.as_numpy(numbers[entry.place])
                numbers[entry.place] = self._form.texts[entry.name].of_sources(own, sources)
        if self._reader.place != self.device:
            made = [self._arrays.to(x, self.device) for x in made]
        return self._form.batch(made, episodes, numbers)

    def _numbers_of(self, order: SampleOrder, begin: int, count: int, made: list[Any]) -> dict[int, Any]:
        """Numbers of pictures and texts on the host, by column."""
        if self._reader.place == self._arrays.host:  # before they are sent to a device
            return {e.place: made[2 * e.place] for e in self._form.layout.entries if e.kind == "text"}
        if self._numbers is None:
            return {}
        places = {column.key.name: i for i, column in enumerate(self._reader.columns)}
        found = self._numbers.read(order, begin, count)
        return {places[c.key.name]: found[2 * i] for i, c in enumerate(self._numbers.columns)}

    def _index_of(self, order: SampleOrder, begin: int, count: int, made: list[Any]) -> tuple[Any, Any]:
        """The source of each sample and its episode, counted through all caches, on the host, where texts need them."""
        if not self._tasks or self._episodes is None:
            return None, None
        if self._reader.place == self._arrays.host:
            source, episode = (self._arrays.as_numpy(x) for x in made[-3:-1])
        else:  # drawn again: the host would otherwise wait for the device
            kept, anchor = np.empty((2, count), np.int64)
            _core.sample_anchors(self._tasks, order, begin, kept, anchor)
            source, episode = (x[kept] for x in self._episodes)
        return source, episode if len(self.caches) == 1 else episode + self._first_episode[source]

    def _batches(self, steps: range, epoch: int) -> Iterator[Batch]:
        if self._reader.place == self.device or self._is_read_by_host:
            batches = (self._read(step, epoch) for step in steps)
            is_slow = bool(self._ragged) and self._arrays.on_gpu
            yield from one_ahead(batches, self._arrays.xp, self.device) if is_slow else batches
            return
        if self._ring is None:
            self._ring = Ring(self._reader, self.device)
        ends = map(self._positions, steps)
        jobs = ((self._order(epoch), begin, end - begin) for begin, end in ends)
        yield from (self._form.batch(made, None, {}) for made in self._ring.batches(jobs))

    def __iter__(self) -> Iterator[Batch]:
        """The current epoch from its beginning, or from the step of ``load_state_dict``. The next one follows.

        In worker k of n of torch's ``DataLoader``: steps k, k + n, ...; every iteration reads the next epoch.
        """
        self._settle()
        worker = this_worker()
        batch_of_all = (self.batch_size, self._ranks.share.world_size)
        epoch, step = self._progress.begin(worker, batch_of_all, self._num_steps)
        for batch in self._batches(range(step + worker.id, self._num_steps, worker.num_workers), epoch):
            step = min(step + worker.num_workers, self._num_steps)
            self._progress.read(epoch, step)
            yield batch
            if (share := self._ranks.changed(group_only=True)) is not None:
                raise RuntimeError(
                    f"Loader: this process became rank {share.rank} of {share.world_size} in the middle of an "
                    "iteration: initialize torch.distributed before it, or give rank= and world_size="
                )
        self._progress.finish(worker, epoch)

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs to continue after the last returned batch: about 200 bytes of JSON."""
        return {
            "version": 1,
            "fingerprint": self._fingerprint,
            "seed": self.seed,
            "epoch": self.epoch,
            "step": self._progress.next.step,
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where another loader of this data stopped, with the same global batch on any number of ranks."""
        check_state(state, self.state_dict(), self._steps_of, self._ranks.known)
        batch = (int(state["batch_size"]), int(state["world_size"]))
        self._progress.resume(int(state["epoch"]), int(state["step"]), batch, self._num_steps)

    @property
    def dataset(self) -> SampleDataset:
        """All samples by number, for torch's samplers: ``loader.dataset[i]`` is a row of a batch. docs/loader.md."""
        return SampleDataset(self)

    def as_dataset(self) -> Any:
        """An ``IterableDataset`` of whole batches, for code that needs a ``DataLoader(dataset, batch_size=None)`` of
        PyTorch. The batches have the arrays of ``framework``."""
        try:
            from .dataset import LoaderDataset
        except ImportError:
            raise ImportError(
                "Loader.as_dataset: needs PyTorch, whose dataset it makes, and which is not installed: iterate over "
                "the Loader itself, or pip install 'robocache[torch]'"
            ) from None

        return LoaderDataset(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Caches, options and position, no rows. The copy opens the same version of the cache, with the same tier and,
        if it is known, for the same rank, or raises an error."""
        order, where = self.order, replace(self.where, tier=self.tier)
        if self._kept is not None:
            order = replace(order, episodes=self._kept)  # a function may not be picklable
            if callable(order.weights):
                order = replace(order, weights=self._weights)
        if self._ranks.known:
            order = replace(order, **self._ranks.share._asdict())
        # A process that this one starts counts epochs with it; any other copy does so by itself.
        epochs = self._progress.epochs if multiprocessing.context.get_spawning_popen() is not None else None
        groups = {"what": self.what, "order": order, "where": where}
        return _copied, (type(self), self._source, self.batch_size, groups, self._progress.next, epochs)


def _copied(kind: Any, source: Any, batch_size: int, groups: Any, next_batch: NextBatch, epochs: Epochs | None) -> Any:
    loader = kind(source, batch_size, **groups)
    loader._progress = Progress(replace(next_batch), epochs)
    return loader
