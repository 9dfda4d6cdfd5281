"""Statistics of streams whose rows pass by once: exact moments, and quantiles of a bounded sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .episode import JSON, StreamSpec

QUANTILES = {"q01": 0.01, "q99": 0.99}
CHUNK = 1 << 16
"""Values looked at together: enough that a call of NumPy costs little, few enough for the caches of a core."""
MAX_CHANNELS = 4096
SAMPLE = 1 << 15
"""Half the rows a sample may hold."""

Float64 = NDArray[np.float64]


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if values.dtype == np.float64:
        # One rounding only: an inexact float32 is cut towards zero and its last bit set ("round to odd").
        inexact = np.isfinite(narrow) & (narrow.astype(np.float64) != values)
        bits = narrow.view(np.uint32)
        bits -= (inexact & (np.abs(narrow.astype(np.float64)) > np.abs(values))).astype(np.uint32)
        bits |= inexact.astype(np.uint32)
    bits = np.ascontiguousarray(narrow).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(narrow), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def num_channels(spec: StreamSpec) -> int:
    """Colors of an image, fields of a point, numbers of a vector; 1 for depth and for very long rows."""
    if spec.kind == "image":
        return spec.shape[-1] if len(spec.shape) == 3 else 1
    count = math.prod(spec.shape)
    return 1 if spec.kind == "depth" or count > MAX_CHANNELS else count


class Sample:
    """A row of each of at most ``2 * size`` equal stretches of all rows; which one is random but always the same.

    All rows while they fit. The rank of a quantile q of n sampled rows is off by about sqrt(q (1 - q) / n): for the 1 %
    quantile of 32768 rows, by 0.05 %.
    """

    def __init__(self, channels: int) -> None:
        self.size = max(1024, min(SAMPLE, (1 << 22) // channels))
        self.stride = 1
        self.seen = 0
        self.count = 0
        self.rows: NDArray[Any] | None = None

    def add(self, rows: NDArray[Any]) -> None:
        if self.rows is None or len(self.rows) < min(2 * self.size, self.count + len(rows)):
            grown = np.empty((min(2 * self.size, max(1024, 2 * (self.count + len(rows)))), rows.shape[1]), rows.dtype)
            if self.rows is not None:
                grown[: self.count] = self.rows[: self.count]
            self.rows = grown
        end = self.seen + len(rows)
        while True:
            stretches = np.arange(self.count, min(2 * self.size, -(-end // self.stride)))
            places = stretches * self.stride + self.draw(stretches, self.stride)
            places = places[places < end] - self.seen
            self.rows[self.count : self.count + len(places)] = rows[places]
            self.count += len(places)
            if self.count < 2 * self.size:
                break
            keep = np.arange(0, self.count, 2) + self.draw(np.arange(self.size), 2)
            self.rows[: self.size] = self.rows[keep]
            self.count = self.size
            self.stride *= 2
        self.seen = end

    @staticmethod
    def draw(numbers: NDArray[np.int64], below: int) -> NDArray[np.int64]:
        """Numbers in [0, below): a hash (splitmix64), so that a resumed ingest draws the same."""
        x = (numbers.astype(np.uint64) + np.uint64(below)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        drawn: NDArray[np.int64] = ((x ^ (x >> np.uint64(31))) % np.uint64(below)).astype(np.int64)
        return drawn


class Statistics:
    """min, max, mean, std and the quantiles of each channel. Values that are not finite are counted and left out."""

    def __init__(self, spec: StreamSpec, ranks: Mapping[str, float] = QUANTILES) -> None:
        self.spec = spec
        self.ranks = ranks
        self.channels = max(1, num_channels(spec))
        self.counts = np.zeros(self.channels, np.int64)
        self.not_finite = 0
        self.mean: Float64 = np.zeros(self.channels)
        self.squares: Float64 = np.zeros(self.channels)
        self.low: Float64 = np.full(self.channels, np.inf)
        self.high: Float64 = np.full(self.channels, -np.inf)
        self.small = spec.dtype in ("bool", "uint8", "int8")
        self.histogram = np.zeros((self.channels, 256), np.int64) if self.small else None
        self.sample = Sample(self.channels)
        # Rows that wait until there are enough of them, a channel after the other. Where a part ends depends on the
        # number of rows alone: an ingest that was resumed has the same sums to the last bit.
        self.waiting: NDArray[Any] = np.empty((self.channels, max(1, CHUNK // self.channels)), np.float32)
        self.num_waiting = 0

    def add(self, values: NDArray[Any]) -> None:
        """Rows as they are stored: uint16 bits where the stream is bfloat16."""
        rows = np.ascontiguousarray(values).reshape(-1, self.channels)
        step = self.waiting.shape[1]
        if self.small:
            for begin in range(0, len(rows), step):
                self.add_small(rows[begin : begin + step])
            return
        if self.waiting.dtype != rows.dtype:
            self.waiting = np.empty(self.waiting.shape, rows.dtype)
        while len(rows):
            part = rows[: step - self.num_waiting]
            self.waiting[:, self.num_waiting : self.num_waiting + len(part)] = part.T
            self.num_waiting += len(part)
            rows = rows[len(part) :]
            if self.num_waiting == step:
                self.add_waiting()

    def add_waiting(self) -> None:
        columns = self.waiting[:, : self.num_waiting]
        self.num_waiting = 0
        if self.spec.dtype == "bfloat16":
            columns = bfloat16_to_float32(columns)
        elif columns.dtype == np.float16:
            columns = columns.astype(np.float32)
        if columns.shape[1]:
            self.add_columns(columns)

    def add_small(self, rows: NDArray[Any]) -> None:
        assert self.histogram is not None
        shifted = rows.view(np.uint8) ^ np.uint8(0x80 if self.spec.dtype == "int8" else 0)
        _core.count_bytes(np.ascontiguousarray(shifted), self.histogram)

    def add_columns(self, columns: NDArray[Any]) -> None:
        """``(channels, rows)``."""
        self.sample.add(columns.T)
        finite = None if columns.dtype.kind != "f" else np.isfinite(columns)
        if finite is None or bool(finite.all()):
            counts = np.full(self.channels, columns.shape[1])
            self.merge(counts, columns.mean(1, dtype=np.float64), columns, None)
            self.low, self.high = np.minimum(self.low, columns.min(1)), np.maximum(self.high, columns.max(1))
            return
        self.not_finite += int(finite.size - finite.sum())
        counts = finite.sum(1)
        self.merge(
            counts, np.where(finite, columns, 0).sum(1, dtype=np.float64) / np.maximum(counts, 1), columns, finite
        )
        self.low = np.minimum(self.low, np.where(finite, columns, np.inf).min(1))
        self.high = np.maximum(self.high, np.where(finite, columns, -np.inf).max(1))

    def merge(self, counts: NDArray[Any], mean: Float64, columns: NDArray[Any], finite: NDArray[Any] | None) -> None:
        """Moments of two parts from those of each (Chan, Golub and LeVeque)."""
        with np.errstate(over="ignore", invalid="ignore"):
            away = columns - mean[:, None]
            if finite is not None:
                away = np.where(finite, away, 0.0)
            squares = np.einsum("ij,ij->i", away, away, dtype=np.float64)
            total = np.maximum(self.counts + counts, 1)
            delta = np.where(counts > 0, mean - self.mean, 0.0)
            self.mean = self.mean + delta * counts / total
            self.squares = self.squares + squares + delta * delta * self.counts * counts / total
        self.counts = self.counts + counts

    def result(self) -> dict[str, JSON]:
        """Lists with a number for each channel; None where there is none to give."""
        self.add_waiting()
        if self.histogram is not None:
            return self.from_histogram(self.histogram)
        some = self.counts > 0
        std = np.sqrt(self.squares / np.maximum(self.counts, 1))
        columns = {"min": self.low, "max": self.high, "mean": self.mean, "std": std}
        columns |= dict(zip(self.ranks, self.quantiles(), strict=True))
        return {
            "count": int(self.counts.max(initial=0)),
            "not_finite": self.not_finite,
            **{name: [number(x) if ok else None for x, ok in zip(c, some, strict=True)] for name, c in columns.items()},
        }

    def quantiles(self) -> Float64:
        kept = None if self.sample.rows is None else self.sample.rows[: self.sample.count]
        if kept is None or len(kept) == 0:
            return np.full((len(self.ranks), self.channels), np.nan)
        with np.errstate(all="ignore"):
            wide = kept.astype(np.float64)
            wide[~np.isfinite(wide)] = np.nan
            if np.isnan(wide).any():
                columns = [c[~np.isnan(c)] for c in wide.T]
                nothing = np.full(len(self.ranks), np.nan)
                return np.stack([np.quantile(c, [*self.ranks.values()]) if len(c) else nothing for c in columns], 1)
            return np.asarray(np.quantile(wide, [*self.ranks.values()], axis=0))

    def from_histogram(self, histogram: NDArray[np.int64]) -> dict[str, JSON]:
        levels = np.arange(256, dtype=np.float64) - (128 if self.spec.dtype == "int8" else 0)
        columns: dict[str, list[float | None]] = {name: [] for name in ("min", "max", "mean", "std", *self.ranks)}
        for counts in histogram:
            total = int(counts.sum())
            if total == 0:
                for column in columns.values():
                    column.append(None)
                continue
            used = np.flatnonzero(counts)
            mean = float(counts @ levels) / total
            columns["min"].append(float(levels[used[0]]))
            columns["max"].append(float(levels[used[-1]]))
            columns["mean"].append(mean)
            columns["std"].append(math.sqrt(float(counts @ (levels - mean) ** 2) / total))
            below = np.cumsum(counts)
            for name, q in self.ranks.items():
                columns[name].append(float(levels[np.searchsorted(below, q * total)]))
        return {"count": int(histogram.sum(1).max(initial=0)), "not_finite": 0, **columns}


def number(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None
