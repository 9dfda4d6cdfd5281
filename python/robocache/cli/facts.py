"""Summary of a dataset or a cache: streams, declared and measured rates, hours, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ..cache.cache import Cache
from ..cache.episode import Episode, Source, left_out_of
from ..convert.ingest import LateStreams
from ..text import escaped

HOUR_NS = 3.6e12


class Measured:
    """Sums over episodes. An episode lasts from the first row of any stream to the last row of any."""

    def __init__(self, source: Source) -> None:
        self.episodes = 0
        self.duration_ns = 0
        self.streams = {name: [0, 0, 0] for name in source.specs}
        """Number of messages, number of intervals, and total duration of the intervals in ns."""

    def add(self, episode: Episode) -> None:
        times = {name: s.times for name, s in episode.streams.items() if name in self.streams and len(s)}
        for name, t in times.items():
            sums = self.streams[name]
            sums[0] += len(t)
            sums[1] += len(t) - 1
            sums[2] += int(t[-1]) - int(t[0])
        if times:
            self.duration_ns += max(int(t[-1]) for t in times.values()) - min(int(t[0]) for t in times.values())
        self.episodes += 1

    def add_cache(self, cache: Cache) -> None:
        """Adds all episodes, shard by shard. Reads times, no values."""
        for shard in range(cache.num_shards):
            begins, ends = [], []
            for stream, sums in enumerate(self.streams.values()):
                _, times, _, offsets = cache._reader.shard_rows(shard, stream)
                begin, end = offsets[:-1], offsets[1:]
                some = end > begin
                if len(times) != int(offsets[-1]) or bool((end < begin).any()) or int(offsets[0]) != 0:
                    raise FormatError(f"{cache.path}: offsets are damaged; run robocache check for details")
                first, last = np.full(len(begin), np.iinfo(np.int64).max), np.full(len(begin), np.iinfo(np.int64).min)
                first[some], last[some] = times[begin[some]], times[end[some] - 1]
                begins.append(first)
                ends.append(last)
                sums[0] += len(times)
                sums[1] += len(times) - int(some.sum())
                sums[2] += difference(last[some], first[some])
            if begins:
                first, last = np.min(begins, 0), np.max(ends, 0)
                some = last >= first
                self.duration_ns += difference(last[some], first[some])
        self.episodes = len(cache)


def difference(ends: NDArray[np.int64], begins: NDArray[np.int64]) -> int:
    """The sum of all ends - begins, in Python integers: the difference of two int64 may overflow int64."""
    return int(sum(ends.tolist()) - sum(begins.tolist()))


def facts(
    source: Source, measure: int | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Measures all episodes of a cache. Of a dataset, reads all episodes, or ``measure`` episodes evenly spread.

    ``hours`` is the total of the measured episodes; ``measured_episodes`` is their number.
    """
    result: dict[str, Any] = {"path": str(source.path), "format": source.format, "episodes": len(source)}
    streams: dict[str, dict[str, Any]] = {
        name: {
            **{"dtype": spec.dtype, "shape": list(spec.shape), "kind": spec.kind, "declared_hz": spec.rate_hz},
            "codec": spec.codec,
        }
        for name, spec in source.specs.items()
    }
    measured, late = Measured(source), LateStreams(source)
    if isinstance(source, Cache):
        result |= {"generation": source.generation, "shards": source.num_shards, "bytes": source.size_bytes}
        result["notes"] = source.notes
        measured.add_cache(source)
    else:
        result["bytes"] = size_of(source)
        chosen = spread(len(source), measure)
        for done, index in enumerate(chosen, 1):
            episode = source.episode(index)
            measured.add(episode)
            late.add(episode)
            if progress is not None:
                progress(done, len(chosen))
    for name, (messages, intervals, span_ns) in measured.streams.items():
        streams[name] |= {"messages": messages, "measured_hz": intervals / span_ns * 1e9 if span_ns else None}
    result |= {"measured_episodes": measured.episodes, "hours": measured.duration_ns / HOUR_NS}
    left_out = [entry.to_json() for entry in [*left_out_of(source), *late.left_out()]]
    return result | {"streams": streams, "left_out": left_out}


def spread(count: int, num_chosen: int | None) -> list[int]:
    """``num_chosen`` numbers in [0, count), evenly spread; all of them if it is None."""
    if num_chosen is None or num_chosen >= count:
        return list(range(count))
    return [(2 * i + 1) * count // (2 * num_chosen) for i in range(num_chosen)]


def size_of(source: Source) -> int | None:
    """Total bytes of a dataset's files; None if the source has no list of files."""
    files = getattr(source, "files", None)
    return sum(path.stat().st_size for path in files()) if callable(files) else None


def table(result: dict[str, Any]) -> str:
    head = f"{result['path']}: {result['format']}, {result['episodes']} episodes, {len(result['streams'])} streams"
    part = result["measured_episodes"] < result["episodes"]
    head += f", {result['hours']:.3f} h" + (f" in {result['measured_episodes']} measured episodes" if part else "")
    if result["bytes"] is not None:
        head += f", {result['bytes'] / (1 << 20):.1f} MiB"
    if "shards" in result:
        head += f" in {result['shards']} shards"
    lines = [("stream", "kind", "dtype", "row", "declared Hz", "measured Hz", "messages")]
    for name, x in result["streams"].items():
        rates = [f"{rate:.2f}" if rate else "-" for rate in (x["declared_hz"], x["measured_hz"])]
        row = "x".join(map(str, x["shape"])) or "1"
        dtype = x["dtype"] if x["codec"] is None else f"{x['dtype']} {x['codec']}"
        lines.append((escaped(name), x["kind"], dtype, row, *rates, str(x["messages"])))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([head, *rows])
