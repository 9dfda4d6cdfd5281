"""The work of the demo written in PyTorch and in NumPy: the same values and the same valid mask, stream by stream."""

from __future__ import annotations

import numpy as np
import robocache
import torch
import torch.nn.functional as F
from torch import Tensor

Streams = dict[str, robocache.Stream]


def torch_align(streams: Streams, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """searchsorted, index_select of rows, lerp (slerp for quaternions, embedding_bag for window means)."""
    return {name: _torch_stream(stream, targets + stream.latency) for name, stream in streams.items()}


def numpy_align(streams: Streams, targets: Tensor) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """numpy.interp per channel (slerp by hand for quaternions, differences of cumsum for window means)."""
    return {name: _numpy_stream(stream, targets.numpy() + stream.latency) for name, stream in streams.items()}


def ranges(stream: robocache.Stream) -> list[tuple[int, int, str]]:
    return [(0, stream.values.shape[1], stream.method)] if isinstance(stream.method, str) else stream.method


def _torch_stream(stream: robocache.Stream, t: Tensor) -> tuple[Tensor, Tensor]:
    times, values = stream.times, stream.values
    left = torch.searchsorted(times, t, right=True).sub_(1).clamp_(0, len(times) - 2)
    t_left, t_right = times[left], times[left + 1]
    weight = ((t - t_left).float() / (t_right - t_left).float()).clamp_(0, 1).unsqueeze(1)
    valid = (t >= times[0]) & (t <= times[-1]) & ((t_right - t_left <= stream.max_gap) | (t == t_left))
    if stream.method == "mean":
        held = (left + (t >= times[-1])).where(t >= times[0], 0)
        out, filled = _torch_mean(values, times, t, held)
        return out, valid & filled
    if stream.method == "linear":
        return torch.lerp(values.index_select(0, left), values.index_select(0, left + 1), weight), valid
    out = values.new_empty(len(t), values.shape[1])
    for begin, end, method in ranges(stream):
        channels = values[:, begin:end]
        blend = torch.lerp if method == "linear" else _torch_slerp
        out[:, begin:end] = blend(channels.index_select(0, left), channels.index_select(0, left + 1), weight)
    return out, valid


def _torch_slerp(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    dot = (a * b).sum(-1, keepdim=True)
    angle = dot.abs().clamp(max=1).acos()
    sine = angle.sin()
    near = sine < 1e-3
    wa = torch.where(near, 1 - w, ((1 - w) * angle).sin() / sine)
    wb = torch.where(near, w, (w * angle).sin() / sine)
    return F.normalize(wa * a + torch.where(dot < 0, -wb, wb) * b, dim=-1)


def _torch_mean(values: Tensor, times: Tensor, t: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    edges = torch.cat([3 * t[:1] - t[1:2], t[:-1] + t[1:], 3 * t[-1:] - t[-2:-1]])  # twice the midpoints
    rows = torch.searchsorted(2 * times, edges)
    filled = rows.diff() > 0
    index = torch.arange(int(rows[0]), int(rows[-1]))
    out = F.embedding_bag(index, values, rows[:-1] - rows[0], mode="mean")
    return torch.where(filled.unsqueeze(1), out, values.index_select(0, held)), filled


def _numpy_stream(stream: robocache.Stream, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    times, values = stream.times.numpy(), stream.values.numpy()
    left = np.clip(np.searchsorted(times, t, "right") - 1, 0, len(times) - 2)
    t_left, t_right = times[left], times[left + 1]
    valid = (t >= times[0]) & (t <= times[-1]) & ((t_right - t_left <= stream.max_gap) | (t == t_left))
    if stream.method == "mean":
        held = np.where(t >= times[0], left + (t >= times[-1]), 0)
        out, filled = _numpy_mean(values, times, t, held)
        return out, valid & filled
    x, xp = ((time - times[0]).astype(np.float64) for time in (t, times))  # float64 cannot hold Unix nanoseconds
    out = np.empty((len(t), values.shape[1]), np.float32)
    for begin, end, method in ranges(stream):
        if method == "linear":
            channels = np.ascontiguousarray(values[:, begin:end].T, np.float64)
            out[:, begin:end] = np.stack([np.interp(x, xp, channel) for channel in channels]).T
        else:
            weight = np.clip((t - t_left) / (t_right - t_left), 0, 1)[:, None]
            out[:, begin:end] = _numpy_slerp(values[left, begin:end], values[left + 1, begin:end], weight)
    return out, valid


def _numpy_slerp(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    dot = (a * b).sum(-1, keepdims=True, dtype=np.float64)
    angle = np.arccos(np.minimum(np.abs(dot), 1))
    sine = np.sin(angle)
    near = sine < 1e-3
    sine = np.where(near, 1, sine)
    wa = np.where(near, 1 - w, np.sin((1 - w) * angle) / sine)
    wb = np.where(near, w, np.sin(w * angle) / sine)
    out = wa * a + np.where(dot < 0, -wb, wb) * b
    return out / np.linalg.norm(out, axis=-1, keepdims=True)


def _numpy_mean(
    values: np.ndarray, times: np.ndarray, t: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    edges = np.concatenate([3 * t[:1] - t[1:2], t[:-1] + t[1:], 3 * t[-1:] - t[-2:-1]])  # twice the midpoints
    rows = np.searchsorted(2 * times, edges)
    count = np.diff(rows)[:, None]
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, dtype=np.float64, out=sums[1:])
    out = np.diff(sums[rows], axis=0) / np.maximum(count, 1)
    return np.where(count > 0, out, values[held]).astype(np.float32), count[:, 0] > 0
