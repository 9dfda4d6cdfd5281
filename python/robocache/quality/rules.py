"""The kinds of findings, their points and thresholds, as documented in docs/check.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..text import did_you_mean

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Rule:
    """A finding takes ``weight * min(1, share / full)`` points from its stream's 100; a note takes none."""

    severity: str
    weight: float
    full: float
    what: str
    """The meaning, and the quantity to which ``share`` refers."""
    do: str


RULES: dict[str, Rule] = {
    "checksum": Rule("error", 100, 1, "a file of the cache is damaged", "ingest again; check the disk"),
    "unreadable": Rule("error", 100, 1, "the episode cannot be read", "see the message; leave the episode out"),
    "empty": Rule("error", 100, 1, "the stream has no rows in the episode", "leave out the episode or the stream"),
    "single": Rule(
        "warning", 50, 1, "the stream has one row",
        "it has no rate and is held; leave out if it should move",
    ),
    "nan_time": Rule(
        "error", 50, 0.05, "times that are NaN, infinite or beyond int64 nanoseconds; share of rows",
        "repair nan_time: drop",
    ),
    "out_of_order": Rule(
        "error", 50, 0.05, "times before an earlier row's; share of rows",
        "repair unsorted: sort where rows are mixed up, drop where the clock was set back",
    ),
    "clock_jump": Rule(
        "error", 50, 1, "more than a day between two rows: the clock was set",
        "repair clock_jump: drop, or another clock",
    ),
    "time_unit": Rule(
        "error", 50, 1, "rows 100 times closer or further apart than declared: another unit of time",
        "set time_unit, or the declared rate",
    ),
    "missing": Rule(
        "error", 30, 0.1, "rows that are listed and not there; share of listed rows",
        "repair missing: drop, or fetch them",
    ),
    "length": Rule(
        "error", 30, 0.1, "rows more than the episode's shortest stream has; share of rows", "repair length: trim"
    ),
    "negative": Rule("warning", 20, 0.1, "times below 0; share of rows", "repair negative: keep or drop"),
    "duplicate": Rule(
        "warning", 20, 0.1, "the time of another row again; share of rows",
        "align takes the last; repair duplicate: last",
    ),
    "gap": Rule(
        "warning", 30, 0.2, "an interval far above the typical one: lost rows; share of rows that are lost",
        "set max_gap in align, so that holes are not valid",
    ),
    "jitter": Rule(
        "warning", 10, 1, "intervals that differ (gaps left out); share: their RMS deviation over their mean",
        "look at the clock: header.stamp instead of log_time, or a loaded recorder",
    ),
    "rate": Rule(
        "warning", 20, 0.5, "another rate than declared; share: the relative difference", "give the right rate_hz"
    ),
    "nan_value": Rule(
        "warning", 30, 0.1, "NaN among the values; share of rows",
        "repair nan_value: drop, or mask them",
    ),
    "inf_value": Rule(
        "warning", 30, 0.1, "an infinite value; share of rows",
        "find the division by zero; clip or mask",
    ),
    "dead": Rule(
        "warning", 30, 0.5, "channels that never change, or pictures of one color; share of channels or pictures",
        "look at the sensor and its cable; leave the channel out of training",
    ),
    "saturated": Rule(
        "warning", 15, 0.5, "a channel that stays at its smallest or largest value; share of rows (pictures: pixels)",
        "compare with the sensor's range or the controller's limits; clipped values are lost",
    ),
    "start_offset": Rule(
        "warning", 10, 0.2, "the stream begins before or after the others; share of the episode's duration",
        "cut the episode to what all streams cover",
    ),
    "end_offset": Rule(
        "warning", 10, 0.2, "the stream ends before or after the others; share of the episode's duration",
        "cut the episode to what all streams cover",
    ),
    "coverage": Rule(
        "warning", 30, 1, "the stream covers much less of the episode than the others; share that it lacks",
        "cut the episode, or look for a driver that died; no overlap at all: another clock",
    ),
    "scale": Rule(
        "warning", 20, 1, "values many times larger or smaller than in other episodes: another unit",
        "look for degrees among radians, millimeters among meters",
    ),
    "repaired": Rule(
        "note", 0, 1, "rows that a repair policy changed when the data was read",
        "nothing; it is counted",
    ),
    "metadata": Rule("note", 0, 1, "the dataset's description has faults that were read around", "correct the file"),
}  # fmt: skip
"""Each kind of finding. The order is that of docs/check.md."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds above or below which a value becomes a finding. All must be above 0.

    >>> Thresholds.of({"gap_factor": 3}).gap_factor
    3.0
    """

    gap_factor: float = 1.8
    """Typical intervals that one interval may last."""
    jitter: float = 0.2
    """RMS deviation of the intervals over their mean."""
    rate: float = 0.02
    """Relative difference between the declared and the measured rate."""
    offset_s: float = 0.1
    """Seconds that a stream may begin or end apart from the others; never less than two of its own intervals."""
    coverage: float = 0.8
    """Share of the episode that a stream must cover."""
    dead_rows: float = 10
    """Rows from which on a constant channel is dead."""
    limit_share: float = 0.1
    """Share of rows at the smallest or the largest value of a channel."""
    limit_run: float = 10
    """Rows in a row at that value."""
    pixel_share: float = 0.5
    """Share of an image stream's pixels that are 0, or 255."""
    scale_factor: float = 30
    """Times larger or smaller, in RMS, than the median episode; needs at least four episodes."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ValueError(f"check: thresholds[{name!r}] must be a number above 0, got {value!r}")

    @staticmethod
    def of(given: Thresholds | Mapping[str, float] | None) -> Thresholds:
        if isinstance(given, Thresholds):
            return given
        names = [field.name for field in dataclasses.fields(Thresholds)]
        numbers: dict[str, Any] = dict(given or {})
        for name, value in numbers.items():
            if name not in names:
                near = did_you_mean(str(name), names)
                raise ValueError(f"check: thresholds must have keys among {', '.join(names)}, got {name!r}{near}")
            numbers[name] = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        return Thresholds(**numbers)


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one stream of one episode.

    ``episode`` is its position in the dataset, ``row`` the first row concerned, ``count`` how many are (rows, gaps,
    channels: ``text`` says which); None where there is none. ``points`` is what the stream's score lost.
    """

    kind: str
    text: str
    episode: int | None = None
    stream: str | None = None
    row: int | None = None
    count: int = 1
    share: float = 1.0
    severity: str = ""
    """``error``, ``warning`` or ``note``; that of the rule unless given."""

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", RULES[self.kind].severity)

    @property
    def points(self) -> float:
        rule = RULES[self.kind]
        return 0.0 if self.severity == "note" else rule.weight * min(1.0, self.share / rule.full)

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts by severity, then by points."""
        return SEVERITIES.index(self.severity), -self.points
