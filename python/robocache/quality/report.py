"""The report of a check: plain dataclasses, with text and JSON output."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..cache.cache import to_json
from ..cache.episode import JSON, LeftOut
from ..text import escaped
from .rules import SEVERITIES, Finding, Thresholds

BINS_PER_DECADE = 20
DECADES = (3, 12)
"""The histogram of intervals: powers of ten of nanoseconds, from 1 us to 1000 s. What is outside is in the end bins."""
NUM_BINS = BINS_PER_DECADE * (DECADES[1] - DECADES[0])


@dataclass
class StreamReport:
    """A stream over all episodes. ``score`` is the mean of its scores in the episodes."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    declared_hz: float | None
    score: float = 100.0
    messages: int = 0
    episodes: int = 0
    """Those in which it has rows."""
    measured_hz: float | None = None
    """Median over the episodes; gaps are left out."""
    jitter: float | None = None
    """Median over the episodes: RMS deviation of the intervals over their mean."""
    longest_s: float = 0.0
    """The longest interval between two rows of an episode, jumps of the clock left out."""
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64), repr=False)
    """Of the intervals, in bins of equal width in log10(ns)."""


@dataclass(frozen=True)
class EpisodeReport:
    """``score``: half the mean and half the smallest of the scores of its streams; 0 where it cannot be read."""

    episode: int
    score: float
    duration_s: float
    findings: int


@dataclass
class Group:
    """The findings of one kind in one stream, over all episodes."""

    kind: str
    severity: str
    stream: str | None
    episodes: int
    count: int
    points: float
    worst: Finding


@dataclass
class Timeline:
    """Where the streams of an episode begin, end and have gaps, in nanoseconds; for a picture."""

    episode: int
    score: float
    streams: dict[str, tuple[int, int, list[tuple[int, int]]]]


@dataclass
class Report:
    """What ``robocache.check`` found. Scores are from 0 to 100 (docs/check.md has the formula).

    >>> report = Report("log.mcap", "mcap", Thresholds())
    >>> report.ok, report.score
    (True, 100.0)
    """

    path: str
    format: str
    thresholds: Thresholds
    score: float = 100.0
    """The mean of the episodes' scores; 0 where there are none, or where a cache is damaged."""
    checksums: str = "none"
    """``right``, ``wrong``, ``not checked``; ``none`` where the format has none that are checked here."""
    episodes: list[EpisodeReport] = field(default_factory=list)
    streams: dict[str, StreamReport] = field(default_factory=dict)
    stream_scores: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    """(episodes, streams), in the order of both; NaN where an episode cannot be read."""
    groups: list[Group] = field(default_factory=list)
    """Sorted: errors, warnings, notes, and by the points that were lost."""
    findings: list[Finding] = field(default_factory=list)
    """By episode; of each group at most ``keep``."""
    findings_not_kept: int = 0
    """Findings that are counted in ``groups`` and not kept in ``findings``."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Content of the source that was not checked."""
    timelines: list[Timeline] = field(default_factory=list)
    """Of the worst episodes."""

    @property
    def problems(self) -> list[str]:
        """Checksum errors of a cache; empty if all match."""
        return [finding.text for finding in self.findings if finding.kind == "checksum"]

    @property
    def ok(self) -> bool:
        """True if no checksum is wrong. ``score`` rates the data itself."""
        return self.checksums != "wrong"

    @property
    def counts(self) -> dict[str, int]:
        """Findings by severity."""
        numbers = dict.fromkeys(SEVERITIES, 0)
        for group in self.groups:
            numbers[group.severity] += group.episodes
        return numbers

    def to_json(self) -> dict[str, JSON]:
        """For ``json.dumps``: numbers that are not finite are None."""
        result: dict[str, JSON] = {
            "path": self.path,
            "format": self.format,
            "ok": self.ok,
            "problems": self.problems,
            "checksums": self.checksums,
            "score": self.score,
            "counts": self.counts,
            "groups": [_group(group) for group in self.groups],
            "findings": [_finding(finding) for finding in self.findings],
            "findings_not_kept": self.findings_not_kept,
            "left_out": [entry.to_json() for entry in self.left_out],
            "streams": {
                name: {k: v for k, v in dataclasses.asdict(stream).items() if k not in ("name", "histogram")}
                for name, stream in self.streams.items()
            },
            "episodes": [dataclasses.asdict(episode) for episode in self.episodes],
            "stream_scores": self.stream_scores,
            "thresholds": dataclasses.asdict(self.thresholds),
        }
        plain: dict[str, JSON] = json.loads(to_json(result))
        return plain

    def text(self, lines: int = 30) -> str:
        """A short report: at most ``lines`` groups of findings, the worst first; then what was left out."""
        left_out = [f"  {escaped(str(entry))}" for entry in self.left_out]
        return "\n\n".join([self.found_text(lines), *(["\n".join(["left out:", *left_out])] if left_out else [])])

    def found_text(self, lines: int = 30) -> str:
        """The part of ``text`` about the checked streams."""
        counts = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in self.counts.items())
        head = f"{self.path}: {self.format}, {len(self.episodes)} episodes, {len(self.streams)} streams"
        parts = [f"{head}\nscore {shown(self.score)} of 100; {counts}"]
        if self.checksums in ("right", "not checked"):
            parts[0] += "; all checksums match" if self.checksums == "right" else "; checksums not checked"
        if self.groups:
            rows: list[tuple[str, ...]] = [("", "finding", "stream", "episodes", "count", "the worst")]
            for group in self.groups[:lines]:
                at = group.worst
                where = f"episode {at.episode}" if at.episode is not None else ""
                where += f", row {at.row}" if at.row is not None else ""
                worst = f"{where}: {at.text}" if where else at.text
                numbers = (str(group.episodes), str(group.count))
                rows.append((group.severity, group.kind, escaped(group.stream or ""), *numbers, escaped(worst)))
            parts.append(columns(rows))
            if len(self.groups) > lines:
                parts.append(f"... and {len(self.groups) - lines} more lines; --json has all")
        table: list[tuple[str, ...]] = [
            ("stream", "score", "messages", "declared Hz", "measured Hz", "jitter", "longest")
        ]
        for name, s in self.streams.items():
            rates = [f"{rate:.2f}" if rate else "-" for rate in (s.declared_hz, s.measured_hz)]
            jitter = "-" if s.jitter is None else f"{s.jitter:.1%}"
            table.append((escaped(name), shown(s.score), str(s.messages), *rates, jitter, f"{s.longest_s:.3f} s"))
        if self.streams:
            parts.append(columns(table))
        worst_first = sorted((e for e in self.episodes if e.score < 100), key=lambda e: (e.score, e.episode))
        if worst_first:
            parts.append("worst episodes: " + ", ".join(f"{e.episode} ({shown(e.score)})" for e in worst_first[:10]))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        """The score and how much was looked at; ``text()`` has the findings."""
        counts = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in self.counts.items())
        sizes = f"{len(self.episodes)} episodes, {len(self.streams)} streams"
        return f"Report({self.path!r}, {self.format}, score {shown(self.score)}, {sizes}, {counts})"

    def html(self) -> str:
        """One self-contained HTML page."""
        from .html import page

        return page(self)

    def save_html(self, path: str | PathLike[str]) -> None:
        """Writes ``html`` to a file."""
        Path(path).write_text(self.html(), "utf-8", "backslashreplace")


def columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cut = (" ".join(cell.ljust(width + 1) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(cut)


def shown(score: float) -> str:
    """Rounded down, so that 100 means no findings."""
    return f"{math.floor(score * 10) / 10:g}"


def _group(group: Group) -> dict[str, JSON]:
    plain = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return {**plain, "worst": _finding(group.worst)}


def _finding(finding: Finding) -> dict[str, JSON]:
    return {**dataclasses.asdict(finding), "points": finding.points}
