"""Dirty data: the kinds of faults, the repair policies for each, and counts of the repairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import EpisodeStream, StreamSpec
from ...cache.pictures import Pictures
from ...cache.video import Video
from .guard import OptionError
from .times import SECOND_NS, seconds_to_ns

POLICIES: dict[str, tuple[str, ...]] = {
    "nan_time": ("error", "drop"),
    "negative": ("error", "drop", "keep"),
    "unsorted": ("error", "sort", "drop"),
    "clock_jump": ("error", "keep", "drop"),
    "duplicate": ("keep", "last", "first", "error"),
    "time_unit": ("error", "keep"),
    "nan_value": ("keep", "drop", "error"),
    "missing": ("error", "drop"),
    "length": ("error", "trim"),
}
"""The policies for each kind of fault; the first is the default."""

KEEP = {
    **{"nan_time": "drop", "negative": "keep", "unsorted": "keep", "clock_jump": "keep", "duplicate": "keep"},
    **{"time_unit": "keep", "nan_value": "keep", "missing": "drop", "length": "trim"},
}
"""Only for ``robocache.check``, which reports faults: keeps all rows that can be kept, even with unsorted times."""

JUMP_NS = 24 * 3600 * SECOND_NS
UNIT_FACTOR = 100
COARSE_NS = 10**6
"""Steps of float times above this do not tell the rows of fast streams apart."""
LATEST_S = 9.2e9
"""About the largest second that fits in int64 nanoseconds."""


def checked_policies(repair: Mapping[str, str] | None) -> dict[str, str]:
    """The effective policies: the defaults, overridden by ``repair``."""
    if repair == KEEP:  # equal, not the same: it may have come from another process
        return dict(KEEP)
    policies = {name: choices[0] for name, choices in POLICIES.items()}
    for name, choice in (repair or {}).items():
        if name not in POLICIES:
            raise OptionError(f"open: repair must have keys among {', '.join(POLICIES)}, got {name!r}")
        if choice not in POLICIES[name]:
            raise OptionError(f"open: repair[{name!r}] must be one of {', '.join(POLICIES[name])}, got {choice!r}")
        policies[name] = choice
    return policies


@dataclass
class Repairer:
    """Converts the raw rows of one episode into valid streams, and counts the repairs."""

    policies: dict[str, str]
    where: str
    """Format, file and episode, as messages begin."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    places: dict[str, dict[str, str]] = field(default_factory=dict)
    """The first place of each repair, as text for a message."""

    def apply_policy(self, kind: str, stream: str, count: int, what: str) -> str:
        """The policy for ``count`` rows with a fault. Raises FormatError for ``error``; otherwise counts the repair."""
        policy = self.policies[kind]
        if policy == "error":
            other = " or ".join(repr(choice) for choice in POLICIES[kind] if choice != "error")
            raise FormatError(f"{self.where}, stream {stream}, {what}; to continue, pass repair={{{kind!r}: {other}}}")
        if policy != "keep":
            self.places.setdefault(stream, {}).setdefault(kind, what)
            self.note(kind, stream, count)
        return policy

    def note(self, kind: str, stream: str, count: int) -> None:
        if count == 0:
            return
        of_stream = self.counts.setdefault(stream, {})
        of_stream[kind] = of_stream.get(kind, 0) + count

    def finish(
        self,
        spec: StreamSpec,
        values: Any,
        times: NDArray[Any],
        offsets: NDArray[np.int64] | None = None,
        unit_ns: int | None = None,
        made: bool = False,
    ) -> EpisodeStream:
        """The repaired stream. ``times``, ``unit_ns``, ``made``: see ``Rows``."""
        encoded = spec.codec is not None and not isinstance(values, Video)
        rows = _Rows(Pictures.of(values) if encoded else values, times, offsets)
        if not made:
            self._drop_unusable_times(spec.name, rows, unit_ns)
            self._order(spec.name, rows)
            self._check_unit(spec, rows)
        self._drop_nan_values(spec, rows)
        return EpisodeStream(spec, rows.values, rows.times, rows.offsets)

    def _drop_unusable_times(self, name: str, rows: _Rows, unit_ns: int | None) -> None:
        floats = rows.times.dtype.kind == "f"
        unit_ns = unit_ns or (SECOND_NS if floats else 1)
        if floats:
            bad = ~(np.abs(rows.times.astype(np.float64) * (unit_ns / SECOND_NS)) < LATEST_S)
        else:
            bad = (rows.times > (2**63 - 1) // unit_ns) | (rows.times < -(2**63 // unit_ns))
        if bad.any():
            row = int(bad.argmax())
            what = f"row {row}: the time is {rows.times[row]}" + (
                "" if floats else ", outside the int64 nanosecond range"
            )
            self.apply_policy("nan_time", name, int(bad.sum()), what)
            rows.keep(~bad)
        self._check_precision(name, rows.times, unit_ns)
        rows.times = seconds_to_ns(rows.times, unit_ns) if floats else rows.times.astype(np.int64) * unit_ns
        negative = rows.times < 0
        if negative.any():
            row = int(negative.argmax())
            what = f"row {row}: the time is negative, {rows.times[row]} ns"
            if self.apply_policy("negative", name, int(negative.sum()), what) == "drop":
                rows.keep(~negative)

    def _check_precision(self, name: str, times: NDArray[Any], unit_ns: int) -> None:
        """Times of different rows that a narrow float rounds to the same one: Unix seconds in float32, for example."""
        if times.dtype.kind != "f" or times.dtype.itemsize >= 8 or len(times) < 3:
            return
        last = np.abs(times).max()
        step_ns = float(np.spacing(last)) * unit_ns
        if step_ns > COARSE_NS and 2 * len(np.unique(times)) <= len(times):
            what = (
                f"row 1: times are {times.dtype}, which has steps of {step_ns / SECOND_NS:g} s at {last:.0f}: most "
                "rows have the time of another one"
            )
            self.apply_policy("time_unit", name, 0, what)

    def _order(self, name: str, rows: _Rows) -> None:
        back = rows.times[1:] < rows.times[:-1]
        if back.any():
            row = int(back.argmax()) + 1
            what = f"row {row}: time decreases from {rows.times[row - 1]} to {rows.times[row]} ns"
            late = rows.times < np.maximum.accumulate(rows.times)
            policy = self.apply_policy("unsorted", name, int(late.sum()), what)
            if policy == "drop":
                rows.keep(~late)
            elif policy == "sort":
                rows.keep(np.argsort(rows.times, kind="stable"))
        later = rows.times[1:] > rows.times[:-1]
        steps = rows.times[1:].view(np.uint64) - rows.times[:-1].view(np.uint64)  # those of int64 may overflow it
        jumps = np.flatnonzero(later & (steps > np.uint64(JUMP_NS))) + 1
        if len(jumps):
            row = int(jumps[0])
            what = f"row {row}: the clock jumps from {rows.times[row - 1]} to {rows.times[row]} ns"
            bounds = [0, *jumps.tolist(), len(rows.times)]
            begin, end = max(pairwise(bounds), key=lambda run: run[1] - run[0])
            if self.apply_policy("clock_jump", name, len(rows.times) - (end - begin), what) == "drop":
                rows.keep(np.arange(begin, end))
        same = rows.times[1:] == rows.times[:-1]
        if same.any():
            row = int(same.argmax()) + 1
            policy = self.apply_policy(
                "duplicate", name, int(same.sum()), f"row {row}: duplicate time {rows.times[row]} ns"
            )
            if policy == "last":
                rows.keep(np.append(~same, True))
            elif policy == "first":
                rows.keep(np.append(True, ~same))

    def _drop_nan_values(self, spec: StreamSpec, rows: _Rows) -> None:
        if spec.codec is not None or rows.values.dtype.kind != "f" or self.policies["nan_value"] == "keep":
            return
        if rows.offsets is None:
            bad = np.isnan(rows.values).any(axis=tuple(range(1, rows.values.ndim)))
        else:
            points = np.isnan(rows.values).any(axis=1)
            before = np.concatenate([[0], np.cumsum(points)])
            bad = before[rows.offsets[1:]] > before[rows.offsets[:-1]]
        if bad.any():
            self.apply_policy("nan_value", spec.name, int(bad.sum()), f"row {int(bad.argmax())}: a value is NaN")
            rows.keep(~bad)

    def _check_unit(self, spec: StreamSpec, rows: _Rows) -> None:
        if not spec.rate_hz or len(rows.times) < 3:
            return
        step_ns = float(np.median(np.diff(rows.times)))
        ratio = step_ns * spec.rate_hz / SECOND_NS
        if step_ns > 0 and not 1 / UNIT_FACTOR < ratio < UNIT_FACTOR:
            what = f"row 1: rows are {step_ns:.0f} ns apart, but {spec.rate_hz:g} Hz is declared: check the time unit"
            self.apply_policy("time_unit", spec.name, 0, what)


@dataclass
class _Rows:
    """Rows before they are a stream: times may still be floats, and in any order."""

    values: Any
    times: NDArray[Any]
    offsets: NDArray[np.int64] | None

    def keep(self, rows: NDArray[Any]) -> None:
        """Keeps the rows of a mask, or those of a list, in its order."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        self.times = self.times[index]
        if self.offsets is None:
            self.values = self.values[index]
            return
        begins, sizes = self.offsets[:-1][index], np.diff(self.offsets)[index]
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.arange(int(self.offsets[-1])) + np.repeat(begins - self.offsets[:-1], sizes)
        self.values = self.values[places]
