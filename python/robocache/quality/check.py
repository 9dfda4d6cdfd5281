"""``check``: reads a dataset once, episode by episode, and collects findings."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ..cache.cache import Cache
from ..cache.episode import Episode, LeftOut, Source, StreamSpec, left_out_of
from ..convert.ingest import LateStreams, read_streams
from ..sources.reading.repair import KEEP
from ..text import did_you_mean
from .report import BINS_PER_DECADE, DECADES, NUM_BINS, EpisodeReport, Group, Report, StreamReport, Timeline
from .rules import Finding, Thresholds
from .times import TimeFacts, find_offsets, measure_times
from .values import measure_values

NUM_TIMELINES = 5
SCALE_EPISODES = 4
DIRT = ("nan_time", "missing", "length")
"""Repairs that ``KEEP`` must apply: their rows are dropped, and their counts become findings."""


def check(
    source: str | os.PathLike[str] | Source,
    *,
    streams: Iterable[str] | None = None,
    thresholds: Thresholds | Mapping[str, float] | None = None,
    checksums: bool = True,
    keep: int = 100,
    progress: Callable[[int, int], None] | None = None,
    format: str | None = None,
    **options: Any,
) -> Report:
    """Checks data quality. Returns a score, and findings with episode, stream, row and count. See ``docs/check.md``.

    ``source``: a path (a cache, or a dataset; ``format`` and ``options`` are passed to ``robocache.open``), or an open
    source. A path is opened so that dirty data becomes findings instead of errors; with ``repair=`` in the options, the
    repaired data is checked. ``streams``: check only these. ``checksums``: first verify every byte of a cache; if a
    checksum is wrong, nothing else is checked. ``keep``: maximum of findings kept per kind and stream; all are counted.

    Memory: one episode, and a few numbers per episode.

    >>> import numpy as np, pathlib, robocache, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())  # CALVIN: a file per step, and which steps are an episode
    >>> for step in range(20):
    ...     np.savez(folder / f"episode_{step:07d}.npz", actions=np.array([float(step), step if step != 7 else np.nan]))
    >>> np.save(folder / "ep_start_end_ids.npy", np.array([[0, 19]]))
    >>> report = robocache.check(folder)
    >>> [(f.kind, f.stream, f.row, f.count) for f in report.findings], report.score
    ([('nan_value', 'actions', 7, 1)], 85.0)
    """
    opened, kept = _open(source, format, options)
    chosen = _choose(opened.specs, streams)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"check: keep must be an integer of at least 1, got {keep!r}")
    not_chosen = [LeftOut(name, "not selected", "streams=") for name in opened.specs if name not in chosen]
    tally = _Tally(Report(os.fspath(opened.path), opened.format, Thresholds.of(thresholds)), chosen, kept, keep)
    if isinstance(opened, Cache):
        problems = opened.verify() if checksums else []
        tally.report.checksums = "wrong" if problems else "right" if checksums else "not checked"
        for problem in problems:
            tally.add(Finding("checksum", problem))
        if problems:
            tally.report.score = 0.0
            tally.report.left_out = not_chosen
            return tally.finish()
    faults = opened.metadata.get("problems")
    for fault in faults if isinstance(faults, list) else []:
        tally.add(Finding("metadata", str(fault)))
    if len(opened) == 0:
        tally.add(Finding("empty", "the dataset has no episodes", count=0))
    elif not chosen:
        tally.add(Finding("empty", "the dataset has no streams", count=0))
    late = LateStreams(opened)
    for index in range(len(opened)):
        try:
            episode = read_streams(opened, index, None if streams is None else list(chosen))
            for name in chosen:
                if name in episode.streams:
                    episode.streams[name].values  # noqa: B018  encoded pictures are decoded here
        except FormatError as error:
            tally.unreadable(index, error)
        else:
            tally.episode(index, episode)
            if streams is None:
                late.add(episode)
        if progress is not None:
            progress(index + 1, len(opened))
    tally.report.left_out = left_out_of(opened) + not_chosen + late.left_out()
    return tally.finish()


def _open(source: str | os.PathLike[str] | Source, format: str | None, options: dict[str, Any]) -> tuple[Source, bool]:
    """The source, and whether it was opened here with the policies that keep dirty rows."""
    if not isinstance(source, str | os.PathLike):
        if format is not None or options:
            raise ValueError("check: format and options must not be given for a source that is already open")
        return source, False
    from ..sources import detect
    from ..sources import open as open_path

    found = format or detect(source)
    if found == "robocache":
        return open_path(source, found, **options), False
    return open_path(source, found, **{"repair": KEEP, **options}), "repair" not in options


def _choose(specs: Mapping[str, StreamSpec], streams: Iterable[str] | None) -> dict[str, StreamSpec]:
    if streams is None:
        return dict(specs)
    if isinstance(streams, str):
        raise ValueError(f"check: streams must be a list of names, got {streams!r}")
    wanted = list(streams)
    if not wanted:
        raise ValueError("check: streams must name at least one stream, got none")
    for name in wanted:
        if name not in specs:
            near = did_you_mean(str(name), specs)
            raise ValueError(f"check: the source has no stream {name!r}, only {', '.join(specs) or 'none'}{near}")
    return {name: spec for name, spec in specs.items() if name in wanted}


class _Tally:
    """Sums over episodes. What it keeps of each is a row of scores and of sizes, and the first findings of a kind."""

    def __init__(self, report: Report, specs: dict[str, StreamSpec], kept: bool, keep: int) -> None:
        self.report, self.specs, self.kept, self.keep = report, specs, kept, keep
        self.groups: dict[tuple[str, str, str | None], Group] = {}
        self.scores: list[NDArray[np.float64]] = []
        self.rms: list[NDArray[np.float64]] = []
        self.rates: dict[str, list[tuple[float, float]]] = {name: [] for name in specs}
        self.seconds: list[float] = []
        self.found: list[int] = []
        self.worst: list[tuple[float, int, Timeline]] = []
        for name, spec in specs.items():
            report.streams[name] = StreamReport(name, spec.kind, spec.dtype, spec.shape, spec.rate_hz)

    def add(self, finding: Finding) -> None:
        key = (finding.kind, finding.severity, finding.stream)
        group = self.groups.get(key)
        if group is None:
            self.groups[key] = Group(
                finding.kind, finding.severity, finding.stream, 1, finding.count, finding.points, finding
            )
        else:
            group.episodes += 1
            group.count += finding.count
            group.points += finding.points
            group.worst = min(group.worst, finding, key=lambda f: (f.rank, -f.count))
        if self.groups[key].episodes <= self.keep:
            self.report.findings.append(finding)
        else:
            self.report.findings_not_kept += 1

    def unreadable(self, index: int, error: FormatError) -> None:
        self.add(Finding("unreadable", str(error), index))
        self.scores.append(np.full(len(self.specs), np.nan))
        self.rms.append(np.full(len(self.specs), np.nan))
        self.seconds.append(0.0)
        self.found.append(1)

    def episode(self, index: int, episode: Episode) -> None:
        limits, facts, found = self.report.thresholds, {}, []
        rms = np.full(len(self.specs), np.nan)
        for i, (name, spec) in enumerate(self.specs.items()):
            stream = episode.streams.get(name)
            times = np.empty(0, np.int64) if stream is None else stream.times
            facts[name], faults = measure_times(spec, times, limits)
            if stream is not None:
                values = measure_values(stream, limits)
                faults += values.found
                rms[i] = np.nan if values.rms is None else values.rms
            found += [Finding(**fault, episode=index, stream=name) for fault in faults]
            self._count(self.report.streams[name], facts[name])
        found += self._repairs(index, episode, facts)
        lasting = {name: f for name, f in facts.items() if self.specs[name].kind != "text"}
        apart, span = find_offsets(lasting, limits, index)
        found += apart
        scores = np.full(len(self.specs), 100.0)
        names = list(self.specs)
        for finding in found:
            self.add(finding)
            # What concerns no single stream (a table that lacks rows) concerns all.
            at = names.index(finding.stream) if finding.stream in self.specs else slice(None)
            scores[at] -= finding.points
        self.scores.append(np.maximum(scores, 0.0))
        self.rms.append(rms)
        self.seconds.append((span[1] - span[0]) / 1e9 if span else 0.0)
        self.found.append(len(found))
        self._remember(index, facts)

    def _repairs(self, index: int, episode: Episode, facts: dict[str, TimeFacts]) -> list[Finding]:
        """Repairs that reading applied: faults if the data was opened here, else notes."""
        counts, places = _repairs_of(episode, "repairs", int), _repairs_of(episode, "repairs_at", str)
        longest = max((f.rows for f in facts.values()), default=0)
        found = []
        for stream in dict.fromkeys([*counts, *places]):
            if stream in episode.streams and stream not in facts:
                continue  # not selected
            for kind in dict.fromkeys([*counts.get(stream, {}), *places.get(stream, {})]):
                count, place = counts.get(stream, {}).get(kind, 0), places.get(stream, {}).get(kind, "")
                row = re.match(r"row (\d+): (.*)", place, re.S)
                text = row[2] if row else place or f"rows: {count}"
                rows = facts[stream].rows if stream in facts else longest
                share = count / (count + rows) if count > 0 else 0.0
                at = int(row[1]) if row else None
                dirt = self.kept and kind in DIRT
                kind, text = (kind, text) if dirt else ("repaired", f"{kind}: {text}")
                found.append(Finding(kind, text, index, stream, at, count, share))
        return found

    def _count(self, stream: StreamReport, facts: TimeFacts) -> None:
        stream.messages += facts.rows
        stream.episodes += facts.rows > 0
        stream.longest_s = max(stream.longest_s, facts.longest_ns / 1e9)
        if len(facts.intervals):
            place = (np.log10(facts.intervals.astype(np.float64)) - DECADES[0]) * BINS_PER_DECADE
            stream.histogram += np.bincount(np.clip(place, 0, NUM_BINS - 1).astype(np.int64), minlength=NUM_BINS)
        if facts.measured_hz is not None and facts.jitter is not None:
            self.rates[stream.name].append((facts.measured_hz, facts.jitter))

    def _remember(self, index: int, facts: dict[str, TimeFacts]) -> None:
        score = _of_episode(self.scores[-1])
        if score >= 100:
            return
        spans = {n: (f.begin_ns, f.end_ns, f.gaps) for n, f in facts.items()}
        known = {n: (b, e, gaps) for n, (b, e, gaps) in spans.items() if b is not None and e is not None}
        entry = (-score, -index, Timeline(index, score, known))
        (heapq.heappush if len(self.worst) < NUM_TIMELINES else heapq.heappushpop)(self.worst, entry)

    def _compare_scales(self) -> None:
        """Streams of which an episode's values are far larger or smaller than those of the others."""
        sizes, limit = np.array(self.rms), self.report.thresholds.scale_factor
        for i, name in enumerate(self.specs if len(sizes) >= SCALE_EPISODES else ()):
            known = np.flatnonzero(sizes[:, i] > 0)
            if len(known) < SCALE_EPISODES:
                continue
            middle = float(np.median(sizes[known, i]))
            for index in known[(sizes[known, i] > limit * middle) | (sizes[known, i] * limit < middle)].tolist():
                text = f"the RMS is {sizes[index, i]:.4g}, in the median episode {middle:.4g}"
                finding = Finding("scale", text, index, name)
                self.add(finding)
                self.scores[index][i] = max(0.0, self.scores[index][i] - finding.points)
                self.found[index] += 1

    def finish(self) -> Report:
        report = self.report
        self._compare_scales()
        report.groups = sorted(self.groups.values(), key=lambda g: (g.worst.rank[0], -g.points, g.kind, g.stream or ""))
        report.findings.sort(key=lambda f: (-1 if f.episode is None else f.episode, f.rank))
        report.stream_scores = np.array(self.scores).reshape(len(self.scores), len(self.specs))
        report.episodes = [
            EpisodeReport(i, _of_episode(scores), seconds, found)
            for i, (scores, seconds, found) in enumerate(zip(self.scores, self.seconds, self.found, strict=True))
        ]
        report.timelines = [replace(t, score=report.episodes[t.episode].score) for _, _, t in sorted(self.worst)[::-1]]
        if report.ok:
            report.score = float(np.mean([e.score for e in report.episodes])) if report.episodes else 0.0
        for i, (name, stream) in enumerate(report.streams.items()):
            known = report.stream_scores[:, i][~np.isnan(report.stream_scores[:, i])]
            stream.score = float(known.mean()) if len(known) else 0.0
            if self.rates[name]:
                stream.measured_hz, stream.jitter = (float(x) for x in np.median(self.rates[name], axis=0))
        return report


def _of_episode(scores: NDArray[np.float64]) -> float:
    return 0.0 if len(scores) == 0 or bool(np.isnan(scores).any()) else float((scores.mean() + scores.min()) / 2)


def _repairs_of(episode: Episode, key: str, kind: type) -> dict[str, dict[str, Any]]:
    """``{stream: {kind of repair: what}}`` of the meta; malformed entries are ignored."""
    value = episode.meta.get(key)
    streams = value.items() if isinstance(value, dict) else ()
    return {
        name: {what: value for what, value in of.items() if isinstance(value, kind)}
        for name, of in streams
        if isinstance(of, dict)
    }
