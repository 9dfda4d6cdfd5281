"""The values of one stream in one episode: NaN, infinity, dead channels, values at a limit, pictures of one color."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache.episode import EpisodeStream, StreamSpec
from ..cache.statistics import CHUNK, bfloat16_to_float32
from .rules import Thresholds

SHOWN_CHANNELS = 8


@dataclass
class ValueFacts:
    rms: float | None = None
    """Of all finite values of a floating vector stream."""
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    found: list[dict[str, Any]] = field(default_factory=list)


def measure_values(stream: EpisodeStream, limits: Thresholds) -> ValueFacts:
    """Memory: a few arrays of ``CHUNK`` values, whatever the stream's size."""
    spec = stream.spec
    if len(stream.values) == 0 or math.prod(spec.shape) == 0 or spec.dtype == "bool":
        return ValueFacts()
    facts = ValueFacts()
    rows = stream.values.reshape(len(stream.values), -1)
    if spec.dtype.startswith(("float", "bfloat")):
        _find_not_finite(stream, rows, facts)
    if spec.kind in ("image", "depth"):
        _find_pictures(spec, rows, limits, facts)
    else:
        _find_limits(stream, rows, limits, facts)
    return facts


def _parts(spec: StreamSpec, rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    step = max(1, CHUNK // rows.shape[1])
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        yield begin, bfloat16_to_float32(part) if spec.dtype == "bfloat16" else part


def _find_not_finite(stream: EpisodeStream, rows: NDArray[Any], facts: ValueFacts) -> None:
    """Clouds and depth have NaN where nothing was measured: there it is a note."""
    spec = stream.spec
    bad: dict[str, list[NDArray[np.int64]]] = {"nan_value": [], "inf_value": []}
    values = dict.fromkeys(bad, 0)
    for begin, part in _parts(spec, rows):
        if np.isfinite(part).all():
            continue
        for kind, is_bad in (("nan_value", np.isnan(part)), ("inf_value", np.isinf(part))):
            bad[kind].append(np.flatnonzero(is_bad.any(1)) + begin)
            values[kind] += int(is_bad.sum())
    severity = "note" if spec.kind in ("points", "depth") else ""
    for kind, lists in bad.items():
        places = np.concatenate(lists) if lists else np.empty(0, np.int64)
        if stream.offsets is not None:
            places = np.unique(np.searchsorted(stream.offsets, places, "right") - 1)
        if len(places):
            name = "NaN" if kind == "nan_value" else "infinity"
            text = f"values that are {name}: {values[kind]}, in {len(places)} of {len(stream)} rows"
            share = len(places) / len(stream)
            facts.found.append(_finding(kind, text, int(places[0]), len(places), share, severity))


def _find_pictures(spec: StreamSpec, rows: NDArray[Any], limits: Thresholds, facts: ValueFacts) -> None:
    blank: list[NDArray[np.int64]] = []
    ends = {0: 0, 255: 0}
    for begin, part in _parts(spec, rows):
        blank.append(np.flatnonzero(part.min(1) == part.max(1)) + begin)
        if spec.kind == "image" and spec.dtype == "uint8":
            for value in ends:
                ends[value] += int(np.count_nonzero(part == value))
    places = np.concatenate(blank)
    if len(places):
        text = f"{len(places)} of {len(rows)} pictures are of one value"
        facts.found.append(_finding("dead", text, int(places[0]), len(places), len(places) / len(rows)))
    for value, count in ends.items():
        share = count / rows.size
        if share >= limits.pixel_share and len(places) < len(rows):
            text = f"{share:.0%} of the pixels are {value}"
            facts.found.append(_finding("saturated", text, 0, len(rows), share))


def _find_limits(stream: EpisodeStream, rows: NDArray[Any], limits: Thresholds, facts: ValueFacts) -> None:
    """Channels that never change and, where they are floating vectors, those that stay at an end of their range."""
    spec = stream.spec
    floating = spec.dtype.startswith(("float", "bfloat"))
    low, high, count, squares = _ranges(spec, rows, floating)
    facts.low, facts.high = low, high
    dead = (low == high) & (count >= limits.dead_rows)
    if dead.any():
        text = f"{int(dead.sum())} of {len(dead)} channels never change: {channel_names(spec, dead)}"
        severity = "" if floating and spec.kind == "vector" else "note"  # flags and labels may well be constant
        facts.found.append(_finding("dead", text, 0, int(dead.sum()), float(dead.mean()), severity))
    if not floating or spec.kind != "vector":
        return
    if count.sum():
        facts.rms = math.sqrt(squares / int(count.sum()))
    at_low, at_high = np.zeros(len(low), np.int64), np.zeros(len(low), np.int64)
    for _, part in _parts(spec, rows):
        at_low += np.count_nonzero(part == low, axis=0)
        at_high += np.count_nonzero(part == high, axis=0)
    between = count - at_low - at_high  # none: a switch, which is always at one of its two values
    worst: tuple[int, int, int, float] | None = None
    marked = np.zeros(len(low), bool)
    for at, end in ((at_low, low), (at_high, high)):
        for channel in np.flatnonzero((low < high) & (between > 0) & (at >= limits.limit_share * len(rows))):
            row, run = longest_run(_column(spec, rows, int(channel)) == end[channel])
            if run < limits.limit_run:
                continue
            marked[channel] = True
            if worst is None or at[channel] > worst[0]:
                worst = int(at[channel]), row, run, float(end[channel])
    if worst is not None:
        at_end, row, run, value = worst
        text = (
            f"{int(marked.sum())} of {len(low)} channels stay at a limit: {channel_names(spec, marked)}; "
            f"{at_end / len(rows):.0%} of the rows are {value:.6g}, {run} in a row from row {row} on"
        )
        facts.found.append(_finding("saturated", text, row, at_end, at_end / len(rows)))


def _ranges(spec: StreamSpec, rows: NDArray[Any], floating: bool) -> tuple[Any, Any, NDArray[np.int64], float]:
    """Smallest, largest and number of finite values of each channel, and the sum of all squares."""
    low = high = None
    count, squares = np.zeros(rows.shape[1], np.int64), 0.0
    for _, part in _parts(spec, rows):
        if floating and not np.isfinite(part).all():
            finite = np.isfinite(part)
            below, above = np.where(finite, part, np.inf).min(0), np.where(finite, part, -np.inf).max(0)
            count += finite.sum(0)
            used = part[finite]
        else:
            below, above = part.min(0), part.max(0)
            count += len(part)
            used = part
        if floating and spec.kind == "vector":
            wide = used.astype(np.float64).ravel()
            with np.errstate(over="ignore"):
                squares += float(wide @ wide)
        low = below if low is None else np.minimum(low, below)
        high = above if high is None else np.maximum(high, above)
    return low, high, count, squares


def _column(spec: StreamSpec, rows: NDArray[Any], channel: int) -> NDArray[Any]:
    column = np.ascontiguousarray(rows[:, channel])
    return bfloat16_to_float32(column) if spec.dtype == "bfloat16" else column


def longest_run(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest run of True begins, and its length.

    >>> longest_run(np.array([True, False, True, True, False, True]))
    (2, 2)
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if len(begins) == 0:
        return 0, 0
    best = int((ends - begins).argmax())
    return int(begins[best]), int(ends[best] - begins[best])


def channel_names(spec: StreamSpec, marked: NDArray[np.bool_]) -> str:
    names = spec.names if spec.names is not None and len(spec.names) == len(marked) else None
    places = np.flatnonzero(marked)
    listed = [names[i] if names else str(i) for i in places[:SHOWN_CHANNELS]]
    return ", ".join(listed) + (", ..." if len(places) > SHOWN_CHANNELS else "")


def _finding(kind: str, text: str, row: int, count: int, share: float, severity: str = "") -> dict[str, Any]:
    return {"kind": kind, "text": text, "row": row, "count": count, "share": share, "severity": severity}
