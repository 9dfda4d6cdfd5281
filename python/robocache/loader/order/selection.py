"""Which episodes of a cache are loaded, where they are in its shards, and which moments are their anchors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import CacheReader, FormatError
from ...cache.cache import Cache
from ...cache.episode import RAGGED, Episode, StreamSpec
from ...convert.ingest import check_episodes
from ..window import usual_tolerance_ns

Int64 = NDArray[np.int64]
Episodes = Iterable[int] | Callable[[Episode], bool] | None
Split = tuple[str, float] | None


@dataclass
class ShardStream:
    """One stream in one shard: views of the mapping, whose offsets and times are as the format says."""

    values: NDArray[Any] | None
    """None for a shard that does not stay mapped: ``Selection.values``."""
    times: Int64
    offsets: Int64
    shard: int


class Selection:
    """The kept episodes of one cache, and its shards."""

    def __init__(self, cache: Cache, episodes: Episodes, split: Split) -> None:
        # A shard that was deleted or cut short since the cache was opened is an error here: reading a mapping that was
        # cut short is a signal. A newer version in its place changes nothing.
        CacheReader(os.fspath(cache.path))
        self.cache = cache
        self.kept = kept_episodes(cache, episodes, split)
        reader = cache._reader
        firsts = [reader.first_episode(i) for i in range(reader.num_shards + 1)]
        self.firsts = np.array(firsts, np.int64)
        self.shard_of = np.searchsorted(self.firsts, self.kept, "right") - 1
        self.local = self.kept - self.firsts[self.shard_of]
        self.shards = np.unique(self.shard_of)
        self._streams: dict[tuple[str, int], ShardStream] = {}
        self._first_numbers: dict[tuple[str, int], int] = {}
        self._numbered: set[str] = set()

    def stream(self, name: str, shard: int) -> ShardStream:
        found = self._streams.get((name, shard))
        if found is None:
            number = list(self.cache.specs).index(name)
            values, times, _, offsets = self.cache._reader.shard_rows(shard, number)
            first = self._first_numbers.get((name, shard))
            if not self.cache._reader.stays_mapped(shard):
                values, times, offsets = None, times.copy(), offsets.copy()
            if first is not None:
                values = np.arange(first, first + len(times), dtype=np.int64)
            found = ShardStream(values, times, offsets, shard)
            self._check(name, shard, found)
            self._streams[name, shard] = found
        return found

    def _check(self, name: str, shard: int, stream: ShardStream) -> None:
        """Once, at opening: batches are read without another look."""
        offsets, times = stream.offsets, stream.times
        rising = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(times) and not (np.diff(offsets) < 0).any()
        if not rising:
            raise FormatError(f"{self.cache.path}: shard {shard}: offsets of {name!r} must rise from 0 to {len(times)}")
        back = np.flatnonzero(times[1:] < times[:-1]) + 1
        wrong = back[~np.isin(back, offsets)]
        if len(wrong):
            raise FormatError(f"{self.cache.path}: shard {shard}: times of {name!r} decrease at row {wrong[0]}")

    def values(self, name: str, stream: ShardStream) -> NDArray[Any]:
        if stream.values is not None:
            return stream.values
        rows = self.cache._reader.shard_rows(stream.shard, list(self.cache.specs).index(name))
        return np.asarray(rows[0])

    def number_messages(self, name: str, first: int) -> int:
        """From now on the values of a stream of clouds, pictures or texts are their numbers, from ``first`` on.
        Returns the next number."""
        self._numbered.add(name)
        for shard in range(self.cache.num_shards):
            self._first_numbers[name, shard] = first
            self._streams.pop((name, shard), None)
            first += len(self.ragged(name, shard)[1]) - 1
        return first

    def is_numbered(self, name: str) -> bool:
        """Whether the values of a stream are numbers of messages."""
        return name in self._numbered

    def spec(self, name: str) -> StreamSpec:
        """Of the values of ``stream``."""
        spec = self.cache.specs[name]
        if not self.is_numbered(name):
            return spec
        return StreamSpec(name, "int64", (), rate_hz=spec.rate_hz, method=spec.method)

    def ragged(self, name: str, shard: int) -> tuple[NDArray[Any], Int64]:
        """Of all clouds or pictures of a shard: message m has the points or bytes ``[splits[m], splits[m + 1])``."""
        values, _, splits, _ = self.cache._reader.shard_rows(shard, list(self.cache.specs).index(name))
        spec = self.cache.specs[name]
        if spec.codec is None and spec.kind not in RAGGED:  # pixels: each row has as many bytes
            return values.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * spec.row_bytes
        if len(splits) == 0 or splits[0] != 0 or splits[-1] != len(values) or (np.diff(splits) < 0).any():
            raise FormatError(f"{self.cache.path}: shard {shard}: splits of {name!r} must rise from 0 to {len(values)}")
        return values, splits

    def counts(self, name: str) -> Int64:
        """Rows of a stream in each kept episode."""
        counts = np.zeros(len(self.kept), np.int64)
        for shard in self.shards:
            here = self.shard_of == shard
            counts[here] = np.diff(self.stream(name, int(shard)).offsets)[self.local[here]]
        return counts

    def ends(self, name: str) -> tuple[Int64, Int64]:
        """The first and the last time of each kept episode that has rows."""
        first, last = [], []
        for shard in self.shards:
            stream = self.stream(name, int(shard))
            local = self.local[self.shard_of == shard]
            begin, end = stream.offsets[local], stream.offsets[local + 1]
            some = end > begin
            first.append(stream.times[begin[some]])
            last.append(stream.times[end[some] - 1])
        return np.concatenate(first), np.concatenate(last)

    def runs(self, name: str) -> Iterable[tuple[ShardStream, int, int]]:
        """Rows ``[begin, end)`` of shards that, one after the other, are the rows of all kept episodes."""
        for shard in self.shards:
            yield from ((self.stream(name, int(shard)), *run) for run in self.runs_of(name, int(shard)))

    def runs_of(self, name: str, shard: int) -> Iterable[tuple[int, int]]:
        """The same of one shard."""
        local = self.local[self.shard_of == shard]
        if len(local) == 0:
            return
        offsets = self.stream(name, shard).offsets
        for part in np.split(local, np.flatnonzero(np.diff(local) != 1) + 1):
            begin, end = int(offsets[part[0]]), int(offsets[part[-1] + 1])
            if end > begin:
                yield begin, end

    def interval_ns(self, name: str) -> float:
        """The usual time between two rows: the declared rate, or the median of all intervals within episodes."""
        rate = self.cache.specs[name].rate_hz
        if rate is not None and rate > 0 and math.isfinite(rate):
            return 1e9 / rate
        gaps = []
        for stream, begin, end in self.runs(name):
            starts = stream.offsets[(stream.offsets > begin) & (stream.offsets < end)]
            gaps.append(np.delete(np.diff(stream.times[begin:end]), starts - begin - 1))
        positive = np.concatenate(gaps) if gaps else np.zeros(0, np.int64)
        positive = positive[positive > 0]
        return float(np.median(positive)) if len(positive) else 0.0

    def shortest_interval_ns(self, name: str) -> float:
        """The mean time between two rows of an episode, of the one where that is shortest."""
        counts = self.counts(name)
        first, last = self.ends(name)
        counts = counts[counts > 0]
        spans = last.astype(np.float64) - first.astype(np.float64)
        means = spans[counts > 1] / (counts[counts > 1] - 1)
        return float(means.min()) if len(means) else math.inf


def kept_episodes(cache: Cache, episodes: Episodes, split: Split) -> Int64:
    if episodes is None:
        kept = np.arange(len(cache), dtype=np.int64)
    elif callable(episodes):
        kept = np.array([i for i in range(len(cache)) if episodes(cache.episode(i))], np.int64)
    else:
        kept = np.array(sorted(check_episodes(episodes, len(cache), "Loader")), np.int64)
    if split is not None:
        kept = kept[in_split(cache, kept, split)]
    if len(kept) == 0:
        raise ValueError(f"Loader: episodes and split must keep at least one of {len(cache)} episodes, got none")
    return kept


def in_split(cache: Cache, kept: Int64, split: Split) -> NDArray[np.bool_]:
    """By a hash of the number of the episode in its source: other episodes, earlier or later, change nothing."""
    given: Any = split if isinstance(split, tuple | list) and len(split) == 2 else (None, None)
    side, share = given
    if side not in ("train", "validation") or not is_number(share):
        raise ValueError(f"Loader: split must be ('train', share) or ('validation', share), got {split!r}")
    if not 0 < share < 1:
        raise ValueError(f"Loader: the share of split must be between 0 and 1, got {share}")
    numbers = np.array([cache._reader.episode_index(int(i)) for i in kept], np.int64)
    place = hashed(numbers)
    # The two ends of [0, 1): ("train", 0.9) and ("validation", 0.1) have no episode in common and leave none out.
    train: NDArray[np.bool_] = place < share
    validation: NDArray[np.bool_] = 1.0 - place <= share
    return train if side == "train" else validation


def is_number(x: Any) -> bool:
    return isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)


def hashed(numbers: Int64) -> NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2^-53 (splitmix64). Splits of existing runs depend on every bit of it."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@dataclass
class Anchors:
    """The table that ``sample_anchors`` takes, on the host."""

    prefix: Int64
    times: Int64
    period_ns: float
    slots: Int64 | None = None
    """Of an alias table, where anchors are drawn by their weights."""

    @property
    def count(self) -> int:
        return int(self.prefix[-1])


def steps_within(span: Int64, period: float, tolerance_ns: int = 0) -> Int64:
    """The last k whose moment, k periods rounded to a nanosecond as ``anchor_time`` does it, is within the span, or no
    more than the tolerance after it."""
    span = span + tolerance_ns
    steps = np.floor(span / period)
    steps += np.rint((steps + 1) * period) <= span
    steps -= np.rint(steps * period) > span
    return np.maximum(steps, 0).astype(np.int64)


def anchors_of(
    selection: Selection,
    name: str,
    hz: float | None,
    skip: tuple[int, int] = (0, 0),
    bounds: Int64 | None = None,
    why: Callable[[], str] = str,
) -> Anchors:
    """The rows of a stream; or moments at ``hz`` from its first row to its last, episode by episode. ``skip``: without
    so many of the first and of the last ones of each. ``bounds``: the first and the last time of each, if given.
    ``why``: there may be none within them, for the error."""
    counts = selection.counts(name)
    if hz is None:
        parts = [stream.times[begin:end] for stream, begin, end in selection.runs(name)]
        times = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if any(skip) or bounds is not None:
            episode = np.repeat(np.arange(len(counts)), counts)
            number = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
            kept = (number >= skip[0]) & (number < counts[episode] - skip[1])
            if bounds is not None:
                kept &= (times >= bounds[episode, 0]) & (times <= bounds[episode, 1])
            times, counts = times[kept], np.bincount(episode[kept], minlength=len(counts)).astype(np.int64)
        period = 0.0
    else:
        period = 1e9 / hz
        first, last = selection.ends(name)
        times = np.zeros(len(counts), np.int64)
        times[counts > 0] = first
        tolerance_ns = usual_tolerance_ns(min(selection.shortest_interval_ns(name), period))
        counts[counts > 0] = steps_within(last - first, period, tolerance_ns) + 1
        begin, end = np.full(len(counts), skip[0]), counts - skip[1]
        if bounds is not None:
            early, late = np.clip(bounds[:, 0] - times, 0, None), np.clip(bounds[:, 1] - times, -1, None)
            begin = np.maximum(begin, np.where(early > 0, steps_within(early - 1, period) + 1, 0))
            end = np.minimum(end, np.where(late >= 0, steps_within(late, period) + 1, 0))
        times += np.rint(begin * period).astype(np.int64)
        counts = np.maximum(end - begin, 0)
    prefix = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if prefix[-1] == 0:
        rows = "rows" if bounds is None else "rows whose windows have as little padding as edges says"
        left_out = f"; without the first {skip[0]} and the last {skip[1]} of each episode" if any(skip) else ""
        raise ValueError(f"Loader: anchors {name!r} must have {rows} in the kept episodes, got none{left_out}{why()}")
    return Anchors(prefix, times, period)


def episodes_of(selections: list[Selection]) -> tuple[Any, Any]:
    """``(source, number in its source)`` of each kept episode, through all sources."""
    sources = np.repeat(np.arange(len(selections)), [len(s.kept) for s in selections])
    return sources.astype(np.int64), np.concatenate([s.kept for s in selections]).astype(np.int64)
