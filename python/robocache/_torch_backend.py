"""The ``torch`` backend of align: ``docs/align.md`` in plain PyTorch, to be read next to that page.

Runs on any torch device and is differentiable in ``values`` through autograd. Nothing loops over the batch, the targets
or the channels: searches run on all ``(B, T)`` targets at once. The arguments were validated by the contract in C++.
Blends are not fused multiply-adds here, so results may differ from the native backends in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._types import Query, Stream

ONE_ROW = ("previous", "next", "nearest")
WINDOW = ("mean", "min", "max")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def align(
    streams: Sequence[Stream], query: Query, dtypes: Sequence[torch.dtype], *, op: str = "align"
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Per stream: values ``(B, T, ...)`` of ``dtypes[i]``, valid ``(B, T)`` bool, index ``(B, T)`` int64."""
    if not streams:
        return []
    targets, episode = targets_of(streams, query)
    places = [Place(Rows(s, episode), add_times(targets, duration(s.latency, targets))) for s in streams]
    for i, (stream, place) in enumerate(zip(streams, places)):
        refuse_outside(stream, place, f"{op}: target at row {{}}, position {{}} is outside the rows of streams[{i}]")
    return [sample_stream(s, place, dtype) for s, place, dtype in zip(streams, places, dtypes)]


def targets_of(streams: Sequence[Stream], query: Query) -> tuple[Tensor, Tensor]:
    """The target times ``(B, T)`` and the episode ``(B, 1)`` that each row asks."""
    num_episodes = max(count_episodes(s) for s in streams)
    times = query.times
    if times is None:
        times = add_times(query.anchor[:, None], query.deltas)
    elif times.ndim == 1:
        times = times.expand(num_episodes if query.episode is None else len(query.episode), -1)
    episode = query.episode
    if episode is None:
        episode = torch.arange(len(times), device=times.device) * (num_episodes > 1)
    return times.detach(), episode[:, None]


def count_episodes(stream: Stream) -> int:
    if stream.times.ndim == 2:
        return len(stream.times)
    return 1 if stream.offsets is None else len(stream.offsets) - 1


# ---- time ------------------------------------------------------------------------------------------------------------


def duration(x: float, times: Tensor) -> Tensor:
    return torch.full((), x, dtype=times.dtype, device=times.device)


def add_times(a: Tensor, b: Tensor) -> Tensor:
    """a + b; int64 saturates."""
    total = a + b
    if total.is_floating_point():
        return total
    limit = torch.where(a < 0, INT64_MIN, INT64_MAX)
    return torch.where(((a ^ total) & (b ^ total)) < 0, limit, total)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| in the dtype of the times. int64 wraps around: read it as unsigned."""
    return torch.where(a < b, b - a, a - b)


def at_most(a: Tensor, b: Tensor) -> Tensor:
    """a <= b for distances."""
    return a <= b if a.is_floating_point() else (a ^ INT64_MIN) <= (b ^ INT64_MIN)


def half(a: Tensor) -> Tensor:
    """A distance of int64 times, halved and rounded down."""
    return (a >> 1) & INT64_MAX


def difference(a: Tensor, b: Tensor) -> Tensor:
    """a - b, exact in the dtype of the times, then one rounding to float64."""
    d = distance(a, b)
    real = d.to(widest(d))
    if not d.is_floating_point():
        real = torch.where(d < 0, (half(d) | (d & 1)).to(real.dtype) * 2, real)  # 2**63 and more
    return torch.where(a < b, -real, real)


# ---- search ----------------------------------------------------------------------------------------------------------


class Rows:
    """The rows ``[begin, end)`` that each query row asks: counted in the stream if ragged, in the episode if dense."""

    def __init__(self, stream: Stream, episode: Tensor) -> None:
        values, times, offsets = stream.values, stream.times.detach(), stream.offsets
        known = (episode >= 0) & (episode < count_episodes(stream)) & (times.numel() > 0)
        if times.numel() == 0:  # one row that no episode owns, so that there is something to index
            shape = (1,) * times.ndim + values.shape[times.ndim :]
            values = torch.cat([values.flatten(), values.new_zeros(shape).flatten()]).reshape(shape)
            times = times.new_zeros((1,) * times.ndim)
        self.values, self.times, self.num_rows = values, times, times.shape[-1]
        self.episode = torch.where(known, episode, 0)
        if offsets is None:
            self.begin, self.end = torch.zeros_like(episode), known * self.num_rows
        else:
            self.begin = offsets[self.episode].clamp(0, self.num_rows)
            self.end = offsets[self.episode + known.long()].clamp(max=self.num_rows).maximum(self.begin)

    def time(self, row: Tensor) -> Tensor:
        return self._take(self.times, row)

    def value(self, row: Tensor, channels: slice | None = None) -> Tensor:
        return self._take(self.values if channels is None else self.values[..., channels], row)

    def _take(self, x: Tensor, row: Tensor) -> Tensor:
        row = row.clamp(0, self.num_rows - 1)
        return x[self.episode, row] if self.times.ndim == 2 else x[row]

    def first(self, t: Tensor, *, after: bool) -> Tensor:
        """The first row with ``time > t``, or with ``time >= t`` if not ``after``; the end if there is none."""
        low, high = self.begin.expand_as(t), self.end.expand_as(t)
        for _ in range(self.num_rows.bit_length()):
            middle = low + ((high - low) >> 1)
            time = self.time(middle)
            go_on = ((time <= t) if after else (time < t)) & (low < high)
            low, high = torch.where(go_on, middle + 1, low), torch.where(go_on, high, middle)
        return low

    def later(self, row: Tensor) -> Tensor:
        """The (last) row of the next later time, or the row itself."""
        return torch.where(row + 1 < self.end, self.first(self.time(row + 1), after=True) - 1, row)

    def earlier(self, row: Tensor) -> Tensor:
        """The (last) row of the time before, or the row itself."""
        found = self.first(self.time(row), after=False) - 1
        return torch.where(found >= self.begin, found, row)


class Place:
    """Where the targets ``t (B, T)`` lie among the rows. ``left`` is the end row of that side for targets outside."""

    def __init__(self, rows: Rows, t: Tensor) -> None:
        first, last = rows.time(rows.begin), rows.time(rows.end - 1)
        self.rows, self.t = rows, t
        self.empty = (rows.begin == rows.end).expand_as(t)
        self.before, self.after = (t < first) & ~self.empty, (t > last) & ~self.empty
        self.outside = self.before | self.after
        self.left = (rows.first(t.maximum(first).minimum(last), after=True) - 1).maximum(rows.begin)
        self.exact = (rows.time(self.left) == t) & ~self.empty

    def sides(self, stream: Stream, *rules: str) -> Tensor:
        """The targets outside, on a side whose rule is one of these."""
        before, after = sides_of(stream)
        return (self.before & (before in rules)) | (self.after & (after in rules))


def sides_of(stream: Stream) -> tuple[str, str]:
    return (stream.outside, stream.outside) if isinstance(stream.outside, str) else stream.outside


def refuse_outside(stream: Stream, place: Place, message: str) -> None:
    if "error" in sides_of(stream):
        refused = (place.sides(stream, "error") | place.empty).nonzero()
        if len(refused):
            raise ValueError(message.format(*refused[0].tolist()))


# ---- one stream ------------------------------------------------------------------------------------------------------


def sample_stream(stream: Stream, place: Place, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    parts, valid = [], ~place.empty & (~place.outside | (place.sides(stream, "hold", "linear") & stream.outside_valid))
    for channels, method in ranges_of(stream):
        if method in WINDOW:
            part, seen = reduce_window(method, place, channels, dtype)
            valid = valid & (seen | place.outside)
        elif method in ONE_ROW:
            part = round_to(place.rows.value(one_row(method, place), channels), dtype)
        else:
            part = interpolate(method, stream, place, channels, dtype)
        parts.append(part)
        if stream.max_gap is not None:
            valid = valid & near_enough(method, place, duration(stream.max_gap, place.t))
    values = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    if "nan" in sides_of(stream):
        values = torch.where(spread(place.sides(stream, "nan"), values), torch.nan, values)
    values = torch.where(spread(place.empty, values), torch.zeros_like(values), values)
    return values, valid, torch.where(place.before | place.empty, -1, place.left)


def ranges_of(stream: Stream) -> list[tuple[slice | None, str]]:
    """The channel ranges and their methods; channels in none get the default."""
    default = "linear" if stream.values.is_floating_point() else "previous"
    if stream.method is None or isinstance(stream.method, str):
        return [(None, stream.method or default)]
    ranges: list[tuple[slice | None, str]] = []
    done, num_channels = 0, stream.values.shape[-1]
    for begin, end, name in [*sorted(stream.method), (num_channels, num_channels, default)]:
        ranges += [(slice(done, begin), default)] if begin > done else []
        ranges += [(slice(begin, end), name)] if end > begin else []
        done = max(done, end)
    return ranges or [(None, default)]


def near_enough(method: str, place: Place, max_gap: Tensor) -> Tensor:
    rows = place.rows
    away = distance(place.t, rows.time(one_row(method, place)))
    if method not in ONE_ROW:
        away = torch.where(place.outside, away, distance(rows.time(place.left), rows.time(rows.later(place.left))))
    return place.exact | at_most(away, max_gap)


def one_row(method: str, place: Place) -> Tensor:
    if method not in ("next", "nearest"):
        return place.left
    rows, left = place.rows, place.left
    right = rows.later(left)
    stay = place.exact | place.outside
    if method == "nearest":
        stay = stay | at_most(distance(place.t, rows.time(left)), distance(place.t, rows.time(right)))
    return torch.where(stay, left, right)


def interpolate(method: str, stream: Stream, place: Place, channels: slice | None, dtype: torch.dtype) -> Tensor:
    """linear, cubic, angle, slerp: between rows a and b, or through them outside; the row itself where exact or held."""
    rows, extrapolated = place.rows, place.sides(stream, "linear")
    a = torch.where(place.after & extrapolated, rows.earlier(place.left), place.left)
    b = rows.later(a)
    blended = (a != b) & ~place.exact & (extrapolated | ~place.outside)
    row = rows.value(a, channels)
    if method.startswith("slerp"):
        compute = widest(row)
    else:
        compute = torch.float64 if row.dtype == torch.float64 else torch.float32
    mask = spread(blended, row)

    def value(x: Tensor) -> Tensor:
        return torch.where(mask, x.to(compute), 1)  # a row that is not used must not make a gradient NaN

    def weight(x: Tensor) -> Tensor:
        return spread(torch.where(blended, x, 0).to(compute), row)

    p, q = value(row), value(rows.value(b, channels))
    w = weight(difference(place.t, rows.time(a)) / difference(rows.time(b), rows.time(a)))
    if method == "cubic":
        result = p
        for r, x in cubic_weights(place, a, b):
            result = torch.addcmul(result, weight(x), value(rows.value(r, channels)) - p)
    elif method == "angle":
        result = blend_angle(p, q, w, stream.period)
    elif method.startswith("slerp"):
        result = blend_slerp(p, q, w)
    else:
        result = torch.addcmul(p, w, q - p)
    return torch.where(mask, round_to(result, dtype), round_to(row, dtype))


def cubic_weights(place: Place, a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows r and weights w so that the result is ``a + Σ w (r - a)``: the parabolas through ``first a b`` and through
    ``a b last``, blended. Where an outer row is missing the other parabola counts in full; without both: linear."""
    rows, origin = place.rows, place.rows.time(a)
    first, last = rows.earlier(a), rows.later(b)
    has_first, has_last = (first != a) & ~place.outside, (last != b) & ~place.outside
    first, last = torch.where(has_first, first, a), torch.where(has_last, last, a)
    x, f, h, k = (difference(t, origin) for t in (place.t, rows.time(first), rows.time(b), rows.time(last)))
    f, k = torch.where(has_first, f, -h), torch.where(has_last, k, 2 * h)  # any that do not divide by 0
    w = x / h
    of_first = torch.where(has_first, torch.where(has_last, 1 - w, 1), 0)
    of_last = torch.where(has_last, 1 - of_first, 0)
    of_b = of_first * (x * (x - f) / (h * (h - f))) + of_last * (x * (k - x) / (h * (k - h)))
    return [
        (first, of_first * (x * (x - h) / (f * (f - h)))),
        (b, torch.where(has_first | has_last, of_b, w)),
        (last, of_last * (x * (x - h) / (k * (k - h)))),
    ]


def blend_angle(a: Tensor, b: Tensor, w: Tensor, period: float) -> Tensor:
    turns = ((b - a) / period).round().detach()
    result = torch.addcmul(a, w, b - a - turns * period)
    low, high = a.minimum(b).detach(), a.maximum(b).detach()
    symmetric, positive = (low >= -period / 2) & (high <= period / 2), (low >= 0) & (high <= period)
    low = torch.where(symmetric, -period / 2, 0.0).to(a.dtype)
    high = low + period
    turns = torch.where((result < low) | (result > high), ((result - low) / period).floor(), 0).detach()
    return torch.where(symmetric | positive, (result - turns * period).clamp(low, high), result)


def blend_slerp(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    a, b, w = a.unflatten(-1, (a.shape[-1] // 4, 4)), b.unflatten(-1, (b.shape[-1] // 4, 4)), w.unsqueeze(-1)
    a, b = a / norm(a), b / norm(b)
    b = torch.where((a * b).sum(-1, keepdim=True) < 0, -b, b)
    angle = 2 * torch.atan2(norm(b - a), norm(b + a))
    wide = angle > 1e-7
    angle = torch.where(wide, angle, 1)
    result = torch.where(wide, torch.sin((1 - w) * angle), 1 - w) * a + torch.where(wide, torch.sin(w * angle), w) * b
    return (result / norm(result)).flatten(-2)  # which also divides by the sine of the angle


def norm(q: Tensor) -> Tensor:
    return torch.linalg.vector_norm(q, dim=-1, keepdim=True)


def reduce_window(method: str, place: Place, channels: slice | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """mean, min, max of the rows in the windows, and which windows have rows; the left row where not."""
    rows, row = place.rows, place.rows.value(place.left, channels)
    begin, end = windows(rows, place.t)
    end = torch.where(place.outside | place.empty, begin, end)
    total = torch.zeros_like(row, dtype=widest(row) if method == "mean" else signed(row).dtype)
    count = torch.zeros_like(begin)
    for i in range(int((end - begin).max()) if begin.numel() else 0):
        r = begin + i
        used = (r < end) & ((r + 1 == rows.end) | (rows.time(r + 1) != rows.time(r)))  # of equal times the last
        x, mask = signed(rows.value(r, channels)).to(total.dtype), spread(used, row)
        if method == "mean":
            total = total + torch.where(mask, x, 0)
        else:
            better = (x < total) if method == "min" else (x > total)
            total = torch.where(mask & (better | (x != x) | spread(count == 0, row)), x, total)
        count = count + used
    if method == "mean":
        total = total / spread(count.clamp(min=1), row)
    elif total.dtype != row.dtype:
        total = (total ^ INT64_MIN).view(row.dtype) if row.dtype == torch.uint64 else total.to(row.dtype)
    return torch.where(spread(count > 0, row), round_to(total, dtype), round_to(row, dtype)), count > 0


def windows(rows: Rows, t: Tensor) -> tuple[Tensor, Tensor]:
    """The rows ``[begin, end)`` between the midpoints of the targets; one target has no window."""
    if t.shape[1] < 2:
        return rows.begin.expand_as(t), rows.begin.expand_as(t)
    if t.is_floating_point():
        t = t.to(widest(t))
        low, high = t[:, :1], t[:, -1:]
        middle = t[:, :-1] + t.diff() / 2
        edge, upper = low - (middle[:, :1] - low), torch.cat([middle, high + (high - middle[:, -1:])], 1)
        end = rows.first(upper, after=False)
    else:  # 2 time < t + next  <=>  time <= t + (next - t - 1) // 2
        gap = distance(t[:, 1:], t[:, :-1])
        gap = torch.cat([gap, gap[:, -1:]], 1)
        edge = add_times(t[:, :1], -half(gap[:, :1]))
        end = rows.first(add_times(t, torch.where(gap == 0, -1, half(gap - 1))), after=True)
    return torch.cat([rows.first(edge, after=False), end[:, :-1]], 1), end


# ---- numbers ---------------------------------------------------------------------------------------------------------


def widest(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64  # mps has no float64


def signed(x: Tensor) -> Tensor:
    """Unsigned integers, which torch does not compare, as int64 in the same order."""
    if x.dtype == torch.uint64:
        return x.view(torch.int64) ^ INT64_MIN
    return x.long() if x.dtype in (torch.uint16, torch.uint32) else x


def spread(x: Tensor, like: Tensor) -> Tensor:
    """``(B, T)`` over the channel dimensions of ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - 2))


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)`` with one rounding. From 64 to 16 bits torch rounds to float32 on the way: here what does not fit
    into 13 bits is cut and the last bit set ("round to odd"), which float32 holds and which the second rounding needs."""
    if not x.is_floating_point() and dtype.is_floating_point and dtype.itemsize == 2:
        x = x.to(widest(x))
    if x.dtype != torch.float64 or dtype.itemsize != 2:
        return x.to(dtype)
    bits, cut = x.detach().contiguous().view(torch.int64), 2**39 - 1
    odd = ((bits & ~cut) | (((bits & cut) != 0).long() << 39)).view(torch.float64)
    return torch.where(odd == x, x, x + (odd - x).detach()).to(dtype)
