"""The truth: docs/align.md as plain loops over Python integers and float64. Slow, and written from that page alone."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

ONE_ROW = ("previous", "next", "nearest")
WINDOW = ("mean", "min", "max", "rms")


class Row(NamedTuple):
    """A row of an episode: its time (an int, or a NumPy float scalar), its number in the stream, its channels."""

    time: Any
    number: int
    values: list


class Expected(NamedTuple):
    """``scale`` bounds what a result is the sum of: rounding errors are small against it. 0: the row itself."""

    values: np.ndarray
    valid: np.ndarray
    index: np.ndarray
    scale: np.ndarray


def align(values, times, targets, *, offsets=None, episode=None, method=None, latency=0, max_gap=None, outside="hold",
          outside_valid=False, period=2 * math.pi, tolerance=0):  # fmt: skip
    """Samples one stream: ``targets (B, T)`` -> values ``(B, T, ...)``: float64, or the stream's own integer dtype."""
    cut = episodes(values, times, offsets)
    if episode is None:
        episode = [0] * len(targets) if len(cut) == 1 else range(len(targets))
    outside = (outside, outside) if isinstance(outside, str) else outside
    channels = values.shape[2:] if times.ndim == 2 else values.shape[1:]
    floating = is_floating(values.dtype)
    num_targets, width = targets.shape[1], math.prod(channels)

    out = np.zeros((len(targets), num_targets, width), np.float64 if floating else values.dtype)
    scale = np.zeros(out.shape)
    valid = np.zeros(targets.shape, bool)
    index = np.full(targets.shape, -1, np.int64)
    for b in range(len(targets)):
        rows = cut[int(episode[b])]
        ts = [add(moment(t), latency) for t in targets[b]]
        for j in range(num_targets):
            if not rows:
                if "error" in outside:
                    raise ValueError("an episode without rows")
                continue
            t = at_a_row(rows, ts[j], tolerance)
            left = left_of(rows, t)
            index[b, j] = rows[left].number if left >= 0 else -1
            valid[b, j] = True
            for name, picked in ranges(method, channels, floating):
                got, size, ok = sample(rows, t, ts, j, name, picked, outside, outside_valid, max_gap, period)
                out[b, j, picked] = got
                scale[b, j, picked] = size
                valid[b, j] &= ok
    shape = targets.shape + channels
    return Expected(out.reshape(shape), valid, index, scale.reshape(shape))


def episodes(values, times, offsets):
    """Every layout as a list of episodes, each a list of rows; of rows with the same time only the last is left."""
    if times.ndim == 2:
        cuts = [(values[e], times[e], 0) for e in range(len(times))]
    elif offsets is not None:
        cuts = [(values[a:b], times[a:b], int(a)) for a, b in itertools.pairwise(offsets)]
    else:
        cuts = [(values, times, 0)]
    result = []
    for v, t, first in cuts:
        rows = []
        for i in range(len(t)):
            row = Row(moment(t[i]), first + i, [plain(x) for x in np.ravel(v[i])])
            if rows and rows[-1].time == row.time:
                rows.pop()
            rows.append(row)
        result.append(rows)
    return result


def ranges(method, channels, floating):
    """``method`` as ``(name, channels it applies to)`` pairs that cover every channel (of the flattened row)."""
    default = "linear" if floating else "previous"
    width = math.prod(channels)
    if method is None or isinstance(method, str):
        return [(method or default, list(range(width)))]
    pairs = [(name, list(range(begin, end))) for begin, end, name in method]
    taken = {c for _, picked in pairs for c in picked}
    rest = [c for c in range(width) if c not in taken]
    return pairs + ([(default, rest)] if rest else [])


def sample(rows, t, ts, j, method, picked, outside, outside_valid, max_gap, period):
    """One target of one channel range: the channels, their scale, and whether the target is valid. ``ts``: all targets
    of the query row, with the latency and without the tolerance."""
    left = left_of(rows, t)
    exact = left >= 0 and rows[left].time == t
    if left < 0 or (left == len(rows) - 1 and not exact):
        return sample_outside(rows, t, method, picked, outside[0 if left < 0 else 1], outside_valid, max_gap, period)

    right = left if exact else left + 1
    within = max_gap is None or exact or rows[right].time - rows[left].time <= max_gap
    if method in WINDOW:
        window = rows_in_window(rows, ts, j)
        if not window:
            return take(rows[left], picked), 0, False
        return *reduce_window(window, method, picked), within
    if exact:
        return take(rows[left], picked), 0, True
    if method in ONE_ROW:
        row = rows[left]
        if method == "next" or (method == "nearest" and rows[right].time - t < t - rows[left].time):
            row = rows[right]
        return take(row, picked), 0, max_gap is None or abs(t - row.time) <= max_gap
    if method == "cubic":
        return *cubic(rows, left, t, picked), within
    return *blend(method, rows[left], rows[right], t, picked, period), within


def sample_outside(rows, t, method, picked, rule, outside_valid, max_gap, period):
    """A target before the first or after the last row of an episode."""
    before = t < rows[0].time
    end = rows[0] if before else rows[-1]
    ok = outside_valid and rule in ("hold", "linear") and (max_gap is None or abs(t - end.time) <= max_gap)
    if rule == "error":
        raise ValueError("a target outside the rows")
    if rule == "nan":
        return [math.nan] * len(picked), 0, ok
    if rule == "hold" or len(rows) == 1:
        return take(end, picked), 0, ok
    a, b = (rows[0], rows[1]) if before else (rows[-2], rows[-1])
    return *blend("linear" if method == "cubic" else method, a, b, t, picked, period), ok


def blend(method, a, b, t, picked, period):
    """Two rows and a weight."""
    w = float(t - a.time) / float(b.time - a.time)
    p, q = take(a, picked), take(b, picked)
    if method in ("slerp_xyzw", "slerp_wxyz"):
        groups = [slerp(p[i : i + 4], q[i : i + 4], w) for i in range(0, len(p), 4)]
        return [x for g in groups for x in g], 1 + abs(w)
    if method == "angle":
        scale = [(1 + abs(w)) * (abs(x) + abs(y) + period) for x, y in zip(p, q, strict=True)]
        return [angle(x, y, w, period) for x, y in zip(p, q, strict=True)], scale
    assert method == "linear", method
    scale = [(abs(1 - w) + abs(w)) * max(abs(x), abs(y)) for x, y in zip(p, q, strict=True)]
    return [x + w * (y - x) for x, y in zip(p, q, strict=True)], scale


def angle(a, b, w, period):
    turn = math.remainder(b - a, period)
    raw = a + w * turn
    if max(abs(a), abs(b)) <= period / 2:
        return raw if abs(raw) <= period / 2 else math.remainder(raw, period)
    if min(a, b) >= 0 and max(a, b) <= period:
        return raw if 0 <= raw <= period else raw % period
    return raw


def slerp(a, b, w):
    """The rows count as rotations: their lengths are taken out first."""
    a, b = np.array(a), np.array(b)
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    if a @ b < 0:
        b = -b
    theta = 2 * math.atan2(np.linalg.norm(a - b), np.linalg.norm(a + b))
    if theta < 1e-9:
        mix = a + w * (b - a)
    else:
        mix = (math.sin((1 - w) * theta) * a + math.sin(w * theta) * b) / math.sin(theta)
    return list(mix / np.linalg.norm(mix))


def cubic(rows, left, t, picked):
    """The parabolas through p0 p1 p2 and p1 p2 p3, blended; one of them at an end; a line with two rows."""
    if len(rows) == 2:
        return blend("linear", rows[0], rows[1], t, picked, None)
    w = float(t - rows[left].time) / float(rows[left + 1].time - rows[left].time)
    if left == 0:
        parts = [(1.0, rows[0:3])]
    elif left == len(rows) - 2:
        parts = [(1.0, rows[-3:])]
    else:
        parts = [(1 - w, rows[left - 1 : left + 2]), (w, rows[left : left + 3])]
    result, scale = np.zeros(len(picked)), np.zeros(len(picked))
    for share, three in parts:
        for i, row in enumerate(three):
            others = [other for k, other in enumerate(three) if k != i]
            weight = share * math.prod(float(t - o.time) / float(row.time - o.time) for o in others)
            result += weight * np.array(take(row, picked))
            scale += abs(weight) * np.max(np.abs([take(r, picked) for r in three]), axis=0)
    return result, scale


def rows_in_window(rows, ts, j):
    """The rows whose time is in [m(j-1), m(j)); everything is doubled for int64, so nothing is rounded."""
    if len(ts) == 1:
        return []
    if isinstance(ts[j], int):
        begin = 3 * ts[0] - ts[1] if j == 0 else ts[j - 1] + ts[j]
        end = 3 * ts[-1] - ts[-2] if j == len(ts) - 1 else ts[j] + ts[j + 1]
        return [r for r in rows if begin <= 2 * r.time < end]
    ts = [float(t) for t in ts]
    middle = [a + (b - a) / 2 for a, b in itertools.pairwise(ts)]
    begin = ts[0] - (middle[0] - ts[0]) if j == 0 else middle[j - 1]
    end = ts[-1] + (ts[-1] - middle[-1]) if j == len(ts) - 1 else middle[j]
    return [r for r in rows if begin <= float(r.time) < end]


def reduce_window(window, method, picked):
    columns = [[row.values[c] for row in window] for c in picked]
    if method == "mean":
        return [sum(c) / len(c) for c in columns], [max(abs(x) for x in c) for c in columns]
    if method == "rms":
        return [math.sqrt(sum(x * x for x in c) / len(c)) for c in columns], [max(abs(x) for x in c) for c in columns]
    reduce = min if method == "min" else max
    return [math.nan if any(map(math.isnan, c)) else reduce(c) for c in columns], 0


def at_a_row(rows, t, tolerance):
    """The nearer neighbor that is at most ``tolerance`` away, the earlier one at a tie; t where there is none."""
    limit = tolerance if isinstance(t, int) else type(t)(tolerance)
    left = left_of(rows, t)
    near = [(abs(row.time - t), row.time) for row in rows[max(left, 0) : left + 2] if abs(row.time - t) <= limit]
    return min(near)[1] if near else t


def left_of(rows, t):
    """The place of the last row with time <= t, -1 if there is none."""
    left = -1
    for i, row in enumerate(rows):
        if row.time <= t:
            left = i
    return left


def take(row, picked):
    return [row.values[c] for c in picked]


def moment(t):
    """A time as what the loops subtract: int64 as an exact Python int, floats in their own type."""
    return int(t) if isinstance(t, np.int64) else t


def plain(x):
    """A value as a Python int or a float64."""
    return float(x) if is_floating(x.dtype) else int(x)


def add(t, latency):
    """Added in the dtype of the times; int64 saturates."""
    if isinstance(t, int):
        return min(max(t + int(latency), -(2**63)), 2**63 - 1)
    return t + type(t)(latency)


def is_floating(dtype):
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"
