"""The ``torch`` backend of align: ``docs/align.md`` in plain PyTorch, to be read next to that page.

Runs on any torch device and is differentiable in ``values`` through autograd. Nothing loops over the batch, the targets
or the channels: a search runs on all ``(B, T)`` targets at once. The contract in C++ has validated the arguments.
Blends are not fused multiply-adds here, so results may differ from the native backends in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..methods import METHODS, ONE_ROW, WINDOW
from ..types import Query, Stream

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}  # hardly usable in torch


def align(
    streams: Sequence[Stream], query: Query, dtypes: Sequence[torch.dtype], *, op: str = "align"
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Per stream: values ``(B, T, ...)`` of ``dtypes[i]``, valid ``(B, T)`` bool, index ``(B, T)`` int64."""
    targets = targets_of(streams, query)
    places = []
    for i, stream in enumerate(streams):
        place = Place(stream, query.episode, add_times(targets, duration(stream.latency, targets)))
        if "error" in place.rules:
            refused = (place.ruled("error") | place.empty).nonzero()
            if len(refused):
                b, j = refused[0].tolist()
                raise ValueError(f"{op}: target at row {b}, position {j} is outside the rows of streams[{i}]")
        places.append(place)
    return [sample_stream(*of_stream) for of_stream in zip(streams, places, dtypes, strict=True)]


def targets_of(streams: Sequence[Stream], query: Query) -> Tensor:
    """The target times ``(B, T)``."""
    if query.anchor is not None and query.deltas is not None:
        return add_times(query.anchor[:, None], query.deltas).detach()
    assert query.times is not None
    times: Tensor = query.times.detach()
    if times.ndim == 2:
        return times
    counts = [count_episodes(s) for s in streams] if query.episode is None else [len(query.episode)]
    return times.expand(next((n for n in counts if n != 1), 1), -1)


def count_episodes(stream: Stream) -> int:
    if stream.times.ndim == 2:
        return len(stream.times)
    return 1 if stream.offsets is None else len(stream.offsets) - 1


# ---- time: int64 differences wrap around and are read as unsigned, which makes them exact ----------------------------


def duration(x: float, times: Tensor) -> Tensor:
    return torch.full((), x, dtype=times.dtype, device=times.device)


def add_times(a: Tensor, b: Tensor) -> Tensor:
    """a + b; int64 saturates."""
    total = a + b
    if total.is_floating_point():
        return total
    return torch.where(((a ^ total) & (b ^ total)) < 0, torch.where(a < 0, INT64_MIN, INT64_MAX), total)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| in the dtype of the times."""
    return torch.where(a < b, b - a, a - b)


def at_most(a: Tensor, b: Tensor) -> Tensor:
    """a <= b for distances."""
    return a <= b if a.is_floating_point() else (a ^ INT64_MIN) <= (b ^ INT64_MIN)


def half(a: Tensor) -> Tensor:
    """An int64 distance, halved and rounded down."""
    return (a >> 1) & INT64_MAX


def difference(a: Tensor, b: Tensor) -> Tensor:
    """a - b in the dtype of the times, then rounded to float64."""
    d = distance(a, b)
    real = d.to(widest(d))
    if not d.is_floating_point():
        real = torch.where(d < 0, (half(d) | (d & 1)).to(real.dtype) * 2, real)  # 2**63 and more
    return torch.where(a < b, -real, real)


# ---- search ----------------------------------------------------------------------------------------------------------


class Rows:
    """The rows ``[begin, end)`` that each query row reads: counted in the stream if ragged, in the episode if dense."""

    def __init__(self, stream: Stream, episode: Tensor) -> None:
        values, times, offsets = stream.values, stream.times.detach(), stream.offsets
        self.unsigned = values.dtype in SIGNED
        if self.unsigned:
            values = values.view(SIGNED[values.dtype])
        known = (episode >= 0) & (episode < count_episodes(stream)) & (times.numel() > 0)
        if times.numel() == 0:  # one row that no episode owns, so that there is something to index
            shape = (1,) * times.ndim + values.shape[times.ndim :]
            values = torch.cat([values.flatten(), values.new_zeros(shape).flatten()]).reshape(shape)
            times = times.new_zeros((1,) * times.ndim)
        self.values, self.times, self.num_rows = values, times, times.shape[-1]
        self.episode = torch.where(known, episode, 0)
        self.begin, self.end = torch.zeros_like(episode), known * self.num_rows
        if offsets is not None:
            self.begin = offsets[self.episode].clamp(0, self.num_rows)
            self.end = offsets[self.episode + known.long()].clamp(max=self.num_rows).maximum(self.begin)

    def time(self, row: Tensor) -> Tensor:
        return self._take(self.times, row)

    def value(self, row: Tensor, channels: slice | None) -> Tensor:
        return self._take(self.values if channels is None else self.values[..., channels], row)

    def _take(self, x: Tensor, row: Tensor) -> Tensor:
        row = row.clamp(0, self.num_rows - 1)
        return x[self.episode, row] if self.times.ndim == 2 else x[row]

    def first(self, t: Tensor, *, after: bool) -> Tensor:
        """The first row with ``time > t``, or with ``time >= t`` if not ``after``; ``end`` if there is none."""
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
    """Where the targets ``t (B, T)`` lie among the rows. Outside, ``left`` and ``right`` start from that side's row."""

    def __init__(self, stream: Stream, episode: Tensor | None, t: Tensor) -> None:
        if episode is None:
            episode = torch.arange(len(t), device=t.device) * (count_episodes(stream) != 1)
        self.t, self.rows = t, Rows(stream, episode[:, None])
        self.rules = (stream.outside, stream.outside) if isinstance(stream.outside, str) else stream.outside
        begin, end = self.rows.begin, self.rows.end
        first, last = self.rows.time(begin), self.rows.time(end - 1)
        self.empty = (begin == end).expand_as(t)
        self.before, self.after = (t < first) & ~self.empty, (t > last) & ~self.empty
        self.outside = self.before | self.after
        self.left = (self.rows.first(t.maximum(first).minimum(last), after=True) - 1).maximum(begin)
        self.right = self.rows.later(self.left)
        self.exact = (self.rows.time(self.left) == t) & ~self.empty
        if stream.tolerance:
            self.move_to_rows(duration(stream.tolerance, t))

    def move_to_rows(self, tolerance: Tensor) -> None:
        """Targets at most so far from a row are at that row: the nearer one, the left one at a tie. ``t`` stays, for
        the sake of windows: of an exact target nothing else depends on it."""
        from_left, to_right = (distance(self.t, self.rows.time(row)) for row in (self.left, self.right))
        moved = at_most(to_right, tolerance) & ~at_most(from_left, to_right) & ~self.outside & ~self.empty
        self.exact = moved | (at_most(from_left, tolerance) & ~self.empty)
        self.left = torch.where(moved, self.right, self.left)
        self.right = torch.where(moved, self.rows.later(self.left), self.right)
        self.before, self.after = self.before & ~self.exact, self.after & ~self.exact
        self.outside = self.before | self.after

    def ruled(self, *rules: str) -> Tensor:
        """The targets outside on a side whose rule is one of these."""
        found: Tensor = (self.before & (self.rules[0] in rules)) | (self.after & (self.rules[1] in rules))
        return found


# ---- one stream ------------------------------------------------------------------------------------------------------


def sample_stream(stream: Stream, place: Place, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    valid = ~place.empty & (~place.outside | (place.ruled("hold", "linear") & stream.outside_valid))
    parts, raw = [], SIGNED.get(stream.values.dtype, dtype)
    for channels, method in ranges_of(stream):
        if method in WINDOW:
            part, seen = reduce_window(method, place, channels, raw)
            valid = valid & (seen | place.outside)
        elif method in ONE_ROW:
            part = round_to(place.rows.value(one_row(method, place), channels), raw)
        else:
            part = interpolate(method, stream, place, channels, raw)
        parts.append(part)
        if stream.max_gap is not None:
            valid = valid & (place.exact | at_most(gap(method, place), duration(stream.max_gap, place.t)))
    values = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    values = torch.where(spread(place.empty, values), torch.zeros_like(values), values)
    if place.rows.unsigned:
        values = round_to(values.view(stream.values.dtype), dtype)
    if "nan" in place.rules:
        values = torch.where(spread(place.ruled("nan"), values), torch.nan, values)
    return values, valid, torch.where(place.before | place.empty, -1, place.left)


def ranges_of(stream: Stream) -> list[tuple[slice | None, str]]:
    """The channel ranges and their methods; channels in none get the default."""
    default = "linear" if stream.values.is_floating_point() else "previous"
    if not stream.method or isinstance(stream.method, str):
        return [(None, str(stream.method or default))]
    ranges: list[tuple[slice | None, str]] = []
    done, num_channels = 0, stream.values.shape[-1]
    for begin, end, name in [*sorted(stream.method), (num_channels, num_channels, default)]:
        ranges += [(slice(done, begin), default)] if done < begin else []
        ranges += [(slice(begin, end), name or default)] if begin < end else []
        done = end
    return ranges


def gap(method: str, place: Place) -> Tensor:
    """What ``max_gap`` limits: how far the one row is from t, or the two rows from each other."""
    away = distance(place.t, place.rows.time(one_row(method, place)))
    if method in ONE_ROW:
        return away
    return torch.where(place.outside, away, distance(place.rows.time(place.left), place.rows.time(place.right)))


def one_row(method: str, place: Place) -> Tensor:
    stay = place.exact | place.outside
    if method == "nearest":
        left, right = (distance(place.t, place.rows.time(row)) for row in (place.left, place.right))
        stay = stay | at_most(left, right)
    return torch.where(stay, place.left, place.right) if method in ("next", "nearest") else place.left


def interpolate(method: str, stream: Stream, place: Place, channels: slice | None, dtype: torch.dtype) -> Tensor:
    """linear, cubic, angle, slerp: between rows a and b, or along them outside; row a where exact or held."""
    rows, a, b, extrapolated = place.rows, place.left, place.right, place.ruled("linear")
    if place.rules[1] == "linear":
        a, b = torch.where(place.after, rows.earlier(a), a), torch.where(place.after, a, b)
    blended = (a != b) & ~place.exact & (extrapolated | ~place.outside)
    row = rows.value(a, channels)
    mask = spread(blended, row)
    compute = torch.float64 if row.dtype == torch.float64 else torch.float32
    if METHODS[method].family == "quaternion":
        compute = widest(row)

    def value(x: Tensor) -> Tensor:
        return torch.where(mask, x.to(compute), 1)  # a row that is not used must not make a gradient NaN

    def weight(x: Tensor) -> Tensor:
        return spread(torch.where(blended, x, 0).to(compute), row)

    p, q = value(row), value(rows.value(b, channels))
    w = difference(place.t, rows.time(a)) / difference(rows.time(b), rows.time(a))
    if method == "linear":
        result = torch.addcmul(p, weight(w), q - p)
    elif method == "angle":
        result = blend_angle(p, q, weight(w), stream.period)
    elif method == "cubic":
        result = p
        for r, x in cubic_weights(place, a, b, w):
            # Row a stands for a row that is missing: its difference is 0, also where a is infinite.
            step = torch.where(spread(r == a, row), 0, value(rows.value(r, channels)) - p)
            result = torch.addcmul(result, weight(x), step)
    else:
        result = blend_slerp(p, q, weight(w))
    return torch.where(mask, round_to(result, dtype), round_to(row, dtype))


def cubic_weights(place: Place, a: Tensor, b: Tensor, w: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows r and weights x so that ``a + Σ x (r - a)`` is the blend of the parabolas through ``z a b`` and ``a b c``.
    Where one of the outer rows z and c is missing, the other parabola counts in full; without both: linear."""
    rows, z, c = place.rows, place.rows.earlier(a), place.rows.later(b)
    has_z, has_c = (z != a) & ~place.outside, (c != b) & ~place.outside
    z, c = torch.where(has_z, z, a), torch.where(has_c, c, a)
    share = torch.where(has_z, torch.where(has_c, 1 - w, 1), 0)

    def lagrange(row: Tensor, *others: Tensor) -> Tensor:
        s, u, v = rows.time(row), *(rows.time(other) for other in others)
        return difference(place.t, u) / difference(s, u) * (difference(place.t, v) / difference(s, v))

    of_z = torch.where(has_z, share * lagrange(z, a, b), 0)
    of_c = torch.where(has_c, (1 - share) * lagrange(c, a, b), 0)
    of_b = torch.where(has_z, share * lagrange(b, z, a), 0) + torch.where(has_c, (1 - share) * lagrange(b, a, c), 0)
    return [(z, of_z), (b, torch.where(has_z | has_c, of_b, w)), (c, of_c)]


def blend_angle(a: Tensor, b: Tensor, w: Tensor, period: float) -> Tensor:
    turns = ((b - a) / period).round().detach()
    result = torch.addcmul(a, w, b - a - turns * period)
    low, high = a.minimum(b), a.maximum(b)
    symmetric, positive = (low >= -period / 2) & (high <= period / 2), (low >= 0) & (high <= period)
    low = torch.where(symmetric, -period / 2, 0.0).to(a.dtype)
    high = low + period
    turns = torch.where((result < low) | (result > high), ((result - low) / period).floor(), 0).detach()
    return torch.where(symmetric | positive, (result - turns * period).clamp(low, high), result)


def blend_slerp(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    shape, w = (*a.shape[:-1], a.shape[-1] // 4, 4), w.unsqueeze(-1)
    a, b = (q.reshape(shape) / norm(q.reshape(shape)) for q in (a, b))
    b = torch.where((a * b).sum(-1, keepdim=True) < 0, -b, b)
    angle = 2 * torch.atan2(norm(b - a), norm(b + a))
    far = angle > 1e-7
    angle = torch.where(far, angle, 1)
    result = torch.where(far, torch.sin((1 - w) * angle), 1 - w) * a + torch.where(far, torch.sin(w * angle), w) * b
    return (result / norm(result)).flatten(-2)  # the common divisor sin(angle) is part of the norm


def norm(q: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    return length


# ---- windows ---------------------------------------------------------------------------------------------------------


TERMS: dict[str, Callable[[Tensor], Tensor]] = {"mean": lambda x: x, "rms": torch.square}
"""Of methods that add: what is added for a row. min and max are not among them."""
RESULTS: dict[str, Callable[[Tensor], Tensor]] = {"mean": lambda mean: mean, "rms": lambda mean: root(mean)}
"""The result, from the mean of the terms."""


def reduce_window(method: str, place: Place, channels: slice | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a method makes of the rows in the windows, the left row where there are none; and where there are some."""
    rows, row = place.rows, place.rows.value(place.left, channels)
    begin, end = windows(rows, place.t)
    end = torch.where(place.outside | place.empty, begin, end)
    total = torch.zeros_like(row, dtype=widest(row) if method in TERMS else row.dtype)
    count = torch.zeros_like(begin)

    def ordered(x: Tensor) -> Tensor:
        return x ^ torch.iinfo(x.dtype).min if rows.unsigned else x

    for i in range(int((end - begin).max()) if begin.numel() else 0):
        r = begin + i
        used = (r < end) & ((r + 1 == rows.end) | (rows.time(r + 1) != rows.time(r)))  # of equal times the last
        x, mask = rows.value(r, channels), spread(used, row)
        if method in TERMS:
            total = total + TERMS[method](torch.where(mask, x, 0).to(total.dtype))
        else:
            better = ordered(x) < ordered(total) if method == "min" else ordered(x) > ordered(total)
            total = torch.where(mask & (better | (x != x) | spread(count == 0, row)), x, total)
        count = count + used
    if method in TERMS:
        total = RESULTS[method](total / spread(count.clamp(min=1), row))
    return torch.where(spread(count > 0, row), round_to(total, dtype), round_to(row, dtype)), count > 0


def windows(rows: Rows, t: Tensor) -> tuple[Tensor, Tensor]:
    """The rows ``[begin, end)`` between the midpoints of the targets; one target has no window."""
    if t.shape[1] < 2:
        return rows.begin.expand_as(t), rows.begin.expand_as(t)
    if t.is_floating_point():
        t = t.to(widest(t))
        first, last, middle = t[:, :1], t[:, -1:], t[:, :-1] + t.diff() / 2
        edge = first - (middle[:, :1] - first)
        end = rows.first(torch.cat([middle, last + (last - middle[:, -1:])], 1), after=False)
    else:  # 2 time < t + next is time <= t + (next - t - 1) // 2
        step = distance(t[:, 1:], t[:, :-1])
        step = torch.cat([step, step[:, -1:]], 1)
        edge = add_times(t[:, :1], -half(step[:, :1]))
        end = rows.first(add_times(t, half(step - 1)), after=True)
        end = torch.where(step == 0, rows.first(t, after=False), end)
    return torch.cat([rows.first(edge, after=False), end[:, :-1]], 1), end


# ---- numbers ---------------------------------------------------------------------------------------------------------


def root(x: Tensor) -> Tensor:
    """The square root; its gradient is 0, and not infinite, where x is 0."""
    return torch.where(x == 0, x, torch.where(x == 0, 1, x).sqrt())


def widest(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64  # mps has no float64


def spread(x: Tensor, like: Tensor) -> Tensor:
    """``(B, T)`` over the channel dimensions of ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - 2))


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)`` with one rounding. On the way from 64 to 16 bits torch also rounds to float32: so this keeps only
    13 bits of the mantissa, rounded to odd, which float32 holds and which still round to the right 16 bits."""
    if dtype not in (torch.float16, torch.bfloat16):
        return x.to(dtype)
    if x.dtype in (torch.int64, torch.uint64):
        bits = x.view(torch.int64)
        top = bits >> 53
        fits = (top == 0) | ((top == -1) & (x.dtype == torch.int64))
        x = torch.where(fits, bits, cut_to_odd(bits, 11)).view(x.dtype)
    if not x.is_floating_point():
        x = x.to(widest(x))
    if x.dtype != torch.float64:
        return x.to(dtype)
    odd = cut_to_odd(x.detach().contiguous().view(torch.int64), 39).view(torch.float64)
    return torch.where(odd == x, x, x + (odd - x).detach()).to(dtype)


def cut_to_odd(bits: Tensor, n: int) -> Tensor:
    """The last n bits cut off; the bit before them set if there was any among them."""
    kept = bits & -(1 << n)
    return torch.where(kept == bits, bits, kept | (1 << n))
