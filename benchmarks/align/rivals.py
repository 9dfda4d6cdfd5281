"""What RoboCache's `align` is measured against: the same work, written well in PyTorch and NumPy.

Dense arguments are values (B, S, D), times (B, S), targets (B, T); the result is (B, T, D). Every row has at least two
different times. Three ways to write `linear` in PyTorch:
- gather: `searchsorted`, `gather` with an expanded index, `lerp`. The usual one, and the one the targets name.
- rows:   the same with `index_select` of whole rows, which PyTorch copies faster than it gathers elements.
- bag:    one `embedding_bag` with two weights per target: no temporaries. float32 only: it rounds weights to the dtype.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Streams = list[tuple[Tensor, Tensor]]


def neighbors(times: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Left row (B, T) and weight (B, T) float32; differences in the dtype of the times, targets outside are held."""
    left = torch.searchsorted(times, targets, right=True).sub_(1).clamp_(0, times.shape[1] - 2)
    t_left, t_right = times.gather(1, left), times.gather(1, left + 1)
    return left, ((targets - t_left).float() / (t_right - t_left).float()).clamp_(0, 1)


def flat_rows(left: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The left rows as indices (B*T,) into values seen as (B*S, D), and that view."""
    begin = torch.arange(0, values.shape[0] * values.shape[1], values.shape[1], device=values.device)
    return (left + begin.unsqueeze(1)).view(-1), values.view(-1, values.shape[2])


def blend(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """lerp in float32, one rounding: `lerp` in bfloat16 would round the weights and be another result."""
    if a.dtype == torch.float32:
        return torch.lerp(a, b, weight)
    return torch.lerp(a.float(), b.float(), weight).to(a.dtype)


def linear_gather(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, weight = neighbors(times, targets)
    index = left.unsqueeze(-1).expand(-1, -1, values.shape[2])
    return blend(values.gather(1, index), values[:, 1:].gather(1, index), weight.unsqueeze(-1))


def linear_rows(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, weight = neighbors(times, targets)
    index, rows = flat_rows(left, values)
    out = blend(rows.index_select(0, index), rows.index_select(0, index + 1), weight.view(-1, 1))
    return out.view(*targets.shape, -1)


def linear_bag(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, weight = neighbors(times, targets)
    index, rows = flat_rows(left, values)
    w = weight.view(-1)
    return weighted_rows(rows, torch.stack([index, index + 1], 1), torch.stack([1 - w, w], 1)).view(*targets.shape, -1)


def weighted_rows(rows: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(index, rows, per_sample_weights=weights.to(rows.dtype), mode="sum")


def fuse_gather(streams: Streams, targets: Tensor) -> Tensor:
    return torch.cat([linear_gather(values, times, targets) for values, times in streams], -1)


def fuse_rows(streams: Streams, targets: Tensor) -> Tensor:
    """Writes each stream into its columns: no `cat`."""
    out = streams[0][0].new_empty(*targets.shape, sum(values.shape[2] for values, _ in streams))
    begin = 0
    for values, times in streams:
        left, weight = neighbors(times, targets)
        index, rows = flat_rows(left, values)
        columns = out[..., begin : begin + values.shape[2]].view(-1, values.shape[2])
        torch.lerp(rows.index_select(0, index), rows.index_select(0, index + 1), weight.view(-1, 1), out=columns)
        begin += values.shape[2]
    return out


def ragged_left(times: Tensor, offsets: Tensor, targets: Tensor) -> Tensor:
    """The left row of each target, (B, T), with a row after it. One search: episodes are moved apart on one axis of
    time, int64 exactly, float32 in float64."""
    if times.is_floating_point():
        times, targets = times.double(), targets.double()
    first, last, start = offsets[:-1], offsets[1:] - 1, times[offsets[:-1]]
    span = torch.maximum((times[last] - start).max(), (targets[:, -1] - start).max()) + 1
    shift = torch.arange(len(first), device=times.device) * span - start
    key = times + torch.repeat_interleave(shift, offsets.diff(), output_size=len(times))
    wanted = torch.maximum(targets, start.unsqueeze(1)) + shift.unsqueeze(1)
    left = torch.searchsorted(key, wanted, right=True).sub_(1)
    return left.clamp_(first.unsqueeze(1), (last - 1).unsqueeze(1))


def ragged_rows(values: Tensor, times: Tensor, offsets: Tensor, targets: Tensor) -> Tensor:
    """values (rows, D), times (rows,), every episode of two rows or more."""
    left = ragged_left(times, offsets, targets)
    t_left, t_right = times[left], times[left + 1]
    weight = ((targets - t_left).float() / (t_right - t_left).float()).clamp_(0, 1)
    index = left.view(-1)
    out = blend(values.index_select(0, index), values.index_select(0, index + 1), weight.view(-1, 1))
    return out.view(*targets.shape, -1)


def previous_rows(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left = torch.searchsorted(times, targets, right=True).sub_(1).clamp_(min=0)
    index, rows = flat_rows(left, values)
    return rows.index_select(0, index).view(*targets.shape, -1)


def nearest_rows(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left = torch.searchsorted(times, targets, right=True).sub_(1).clamp_(0, times.shape[1] - 2)
    left += targets - times.gather(1, left) > times.gather(1, left + 1) - targets
    index, rows = flat_rows(left, values)
    return rows.index_select(0, index).view(*targets.shape, -1)


def cubic_bag(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    """Four rows and four weights per target. Every target must have two rows on each side."""
    left, w = neighbors(times, targets)
    t1, t2 = times.gather(1, left), times.gather(1, left + 1)
    step = (t2 - t1).float()
    x0 = (times.gather(1, left - 1) - t1).float() / step  # times of the four rows, left at 0, right at 1
    x3 = (times.gather(1, left + 2) - t1).float() / step
    v = 1 - w
    weights = torch.stack([
        v * w * (w - 1) / (x0 * (x0 - 1)),
        v * (w - x0) * (w - 1) / x0 + w * (w - 1) * (w - x3) / x3,
        v * (w - x0) * w / (1 - x0) + w * w * (w - x3) / (1 - x3),
        w * w * (w - 1) / (x3 * (x3 - 1)),
    ], -1)  # fmt: skip
    index, rows = flat_rows(left, values)
    around = index.unsqueeze(1) + torch.arange(-1, 3)
    return weighted_rows(rows, around, weights.view(-1, 4)).view(*targets.shape, -1)


def slerp_rows(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, weight = neighbors(times, targets)
    index, rows = flat_rows(left, values)
    a, b = (rows.index_select(0, i).view(len(index), -1, 4) for i in (index, index + 1))
    dot = (a * b).sum(-1, keepdim=True)
    angle = dot.abs().clamp_(max=1).acos_()
    w = weight.view(-1, 1, 1)
    sine = angle.sin()
    near = sine < 1e-4
    wa = torch.where(near, 1 - w, ((1 - w) * angle).sin() / sine)
    wb = torch.where(near, w, (w * angle).sin() / sine)
    out = F.normalize(wa * a + torch.where(dot < 0, -wb, wb) * b, dim=-1)
    return out.view(*targets.shape, -1)


def angle_rows(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    """Period 2π, values in [-π, π]."""
    left, weight = neighbors(times, targets)
    index, rows = flat_rows(left, values)
    a, b = rows.index_select(0, index), rows.index_select(0, index + 1)
    out = a + weight.view(-1, 1) * wrap(b - a)
    return wrap(out).view(*targets.shape, -1)


def wrap(x: Tensor) -> Tensor:
    return torch.remainder(x + math.pi, 2 * math.pi).sub_(math.pi)


def mean_bag(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    """int64 times; windows between the midpoints of targets; every window must have a row."""
    outer = 3 * targets[:, :1] - targets[:, 1:2], 3 * targets[:, -1:] - targets[:, -2:-1]
    edges = torch.cat([outer[0], targets[:, :-1] + targets[:, 1:], outer[1]], 1)  # twice the midpoints: no rounding
    bags, rows = flat_rows(torch.searchsorted(2 * times, edges), values)
    begin = int(bags[0])
    out = F.embedding_bag(torch.arange(begin, len(rows)), rows, bags - begin, mode="mean")
    return out.view(*edges.shape, -1)[:, :-1]  # the last bag of a row is what lies after its last window


def numpy_interp(values: np.ndarray, times: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """`numpy.interp` per row and channel, one thread. int64 times are made relative: float64 cannot hold them."""
    out = np.empty((*targets.shape, values.shape[2]), np.float32)
    for b in range(len(values)):
        start = times[b, 0] if times.dtype == np.int64 else 0
        x, xp = (np.asarray(t - start, np.float64) for t in (targets[b], times[b]))
        channels = np.ascontiguousarray(values[b].T, np.float64)
        out[b] = np.stack([np.interp(x, xp, channel) for channel in channels]).T
    return out
