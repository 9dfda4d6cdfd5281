"""The times of one stream in one episode: order, duplicates, jumps, gaps, jitter and rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache.episode import StreamSpec
from ..sources.reading.repair import JUMP_NS, UNIT_FACTOR
from .rules import Finding, Thresholds

MIN_STEPS = 3
"""Intervals from which on there is a typical one."""
MAX_MARKS = 64
"""Gaps that are remembered for the picture of an episode."""


@dataclass
class TimeFacts:
    """What the times tell. Intervals are those between different times, without jumps of the clock."""

    rows: int
    begin_ns: int | None = None
    end_ns: int | None = None
    """Of the longest stretch without a jump."""
    typical_ns: float | None = None
    """The lower median of the intervals."""
    measured_hz: float | None = None
    """One over the mean interval, gaps left out."""
    jitter: float | None = None
    longest_ns: int = 0
    intervals: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    gaps: list[tuple[int, int]] = field(default_factory=list)


def measure_times(
    spec: StreamSpec, times: NDArray[np.int64], limits: Thresholds
) -> tuple[TimeFacts, list[dict[str, Any]]]:
    """The facts, and what ``Finding`` takes besides episode and stream."""
    facts, found = TimeFacts(len(times)), []
    if len(times) == 0 and spec.kind == "text":
        return facts, []
    if len(times) == 0:
        return facts, [{"kind": "empty", "text": "no rows", "count": 0}]
    if len(times) == 1 and spec.kind != "text":
        found.append({"kind": "single", "text": "one row only", "row": 0})
    order, times_sorted = _find_disorder(times, found)
    # A difference of sorted int64 is exact as uint64, also where it would overflow.
    steps = times_sorted[1:].view(np.uint64) - times_sorted[:-1].view(np.uint64)
    same = np.flatnonzero(steps == 0)
    if len(same):
        rows = order[same + 1]
        text = f"rows with the time of another: {len(same)}"
        found.append(_at("duplicate", text, int(rows.min()), len(same), len(same) / len(times)))
    jumps = np.flatnonzero(steps > np.uint64(JUMP_NS))
    if len(jumps):
        row = int(order[jumps[0] + 1])
        text = f"the clock jumps by {_duration(int(steps[jumps[0]]))}"
        found.append(_at("clock_jump", text, row, len(jumps)))
    bounds = [0, *(jumps + 1).tolist(), len(times)]
    begin, end = max(pairwise(bounds), key=lambda run: run[1] - run[0])
    facts.begin_ns, facts.end_ns = int(times_sorted[begin]), int(times_sorted[end - 1])
    used = np.flatnonzero((steps > 0) & (steps <= np.uint64(JUMP_NS)))
    facts.intervals = steps[used]
    if len(used) and spec.kind != "text":  # a text lasts until the next one: it has no rate, and no gaps
        _find_gaps(facts, times_sorted, order, used, limits, found)
        _compare_rate(spec, facts, limits, found)
    return facts, found


def _find_disorder(
    times: NDArray[np.int64], found: list[dict[str, Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The times sorted, and the row each was at."""
    negative = times < 0
    if negative.any():
        count = int(negative.sum())
        text = f"negative times: {count}, the smallest {int(times.min())} ns"
        found.append(_at("negative", text, int(negative.argmax()), count, count / len(times)))
    back = times[1:] < times[:-1]
    if not back.any():
        return np.arange(len(times)), times
    latest = np.maximum.accumulate(times)
    late = times < latest
    count, row = int(late.sum()), int(back.argmax()) + 1
    furthest = int((latest.view(np.uint64) - times.view(np.uint64)).max())
    text = f"rows after a later one: {count}, by up to {_duration(furthest)}"
    found.append(_at("out_of_order", text, row, count, count / len(times)))
    order = np.argsort(times, kind="stable")
    return order, times[order]


def _find_gaps(
    facts: TimeFacts,
    times: NDArray[np.int64],
    order: NDArray[np.int64],
    used: NDArray[np.int64],
    limits: Thresholds,
    found: list[dict[str, Any]],
) -> None:
    steps = facts.intervals
    typical = int(np.partition(steps, (len(steps) - 1) // 2)[(len(steps) - 1) // 2])
    facts.typical_ns, facts.longest_ns = float(typical), int(steps.max())
    wide = steps > limits.gap_factor * typical if len(steps) >= MIN_STEPS else np.zeros(len(steps), bool)
    regular = steps[~wide].astype(np.float64)
    mean = float(regular.mean())
    facts.measured_hz = 1e9 / mean
    facts.jitter = float(np.sqrt(np.mean((regular / mean - 1) ** 2)))
    if wide.any():
        places = used[wide]
        lost = int((np.rint(steps[wide] / typical) - 1).sum())
        longest = int(used[int(steps.argmax())])
        text = (
            f"gaps above {limits.gap_factor:g} x {_duration(typical)}: {len(places)}, rows lost: about {lost}; "
            f"the longest {_duration(facts.longest_ns)}, before row {int(order[longest + 1])}"
        )
        found.append(_at("gap", text, int(order[places[0] + 1]), len(places), lost / (lost + facts.rows)))
        facts.gaps = [(int(times[i]), int(times[i + 1])) for i in places[:MAX_MARKS]]
    if len(regular) >= MIN_STEPS and facts.jitter > limits.jitter:
        text = f"intervals differ by {facts.jitter:.0%} of their mean, {_duration(mean)}"
        found.append({"kind": "jitter", "text": text, "count": len(regular), "share": facts.jitter})


def _compare_rate(spec: StreamSpec, facts: TimeFacts, limits: Thresholds, found: list[dict[str, Any]]) -> None:
    if not spec.rate_hz or not facts.measured_hz or len(facts.intervals) < 2:
        return
    ratio = facts.measured_hz / spec.rate_hz
    text = f"{facts.measured_hz:.4g} Hz measured, {spec.rate_hz:g} Hz declared"
    if not 1 / UNIT_FACTOR < ratio < UNIT_FACTOR:
        found.append({"kind": "time_unit", "text": text, "count": facts.rows})
    elif abs(ratio - 1) > limits.rate:
        found.append({"kind": "rate", "text": text, "count": facts.rows, "share": abs(ratio - 1)})


def _at(kind: str, text: str, row: int, count: int, share: float = 1.0) -> dict[str, Any]:
    return {"kind": kind, "text": text, "row": row, "count": count, "share": share}


def _duration(time_ns: float) -> str:
    for unit, size in (("d", 86400e9), ("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(time_ns) >= size:
            return f"{time_ns / size:.4g} {unit}"
    return f"{time_ns:.4g} ns"


def find_offsets(
    facts: dict[str, TimeFacts], limits: Thresholds, episode: int
) -> tuple[list[Finding], tuple[int, int] | None]:
    """Streams that begin or end apart from the others, or cover less; and the span that the others have."""
    spans = {
        name: (f.begin_ns, f.end_ns, f)
        for name, f in facts.items()
        if f.rows > 1 and f.begin_ns is not None and f.end_ns is not None
    }
    if len(spans) < 2:
        return [], next(((b, e) for b, e, _ in spans.values()), None)
    begins, ends = sorted(b for b, _, _ in spans.values()), sorted(e for _, e, _ in spans.values())
    # The lower median of the begins and the upper one of the ends: of two streams, the one that covers more is right.
    first, last = begins[(len(begins) - 1) // 2], ends[len(ends) // 2]
    span = max(last - first, 1)
    found = []
    for name, (begin, end, f) in spans.items():
        step = f.typical_ns or 0.0
        allowed = max(limits.offset_s * 1e9, 2 * step)
        for kind, verb, off in (("start_offset", "begins", begin - first), ("end_offset", "ends", end - last)):
            if abs(off) > allowed:
                text = f"{verb} {_duration(abs(off))} {'after' if off > 0 else 'before'} the others"
                found.append(Finding(kind, text, episode, name, None, 1, abs(off) / span))
        covered = (min(end, last) - max(begin, first) + step) / span
        if covered < limits.coverage and span > allowed:
            share = max(0.0, min(end, last) - max(begin, first)) / span
            apart = sum(b > end or e < begin for b, e, _ in spans.values())
            clock = ": another clock?" if 2 * apart >= len(spans) - 1 else ""
            text = f"covers {share:.0%} of {_duration(span)}{clock}"
            found.append(Finding("coverage", text, episode, name, None, 1, 1 - share))
    return found, (first, last)
