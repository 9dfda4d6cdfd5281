"""The ``torch`` backend of voxelize: ``docs/voxelize.md`` in plain PyTorch, to be read next to that page.

Runs on any torch device and is differentiable in the features through autograd. Points are grouped into the list of
occupied cells, the groups are reduced, and a dense grid is that list put in its place. The contract in C++ has
validated the arguments. Everything but sums that are not deterministic has the bits of the native backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..methods import OF_FEATURES, REDUCTIONS
from .align import root, round_to

INT32_MIN, INT32_MAX, INT64_MIN = -(2**31), 2**31 - 1, -(2**63)

Dense = tuple[Tensor, Tensor, Tensor]
"""The grid, int32 counts of its cells, and the int64 number of dropped points (of each cloud, where there are many)."""


def dense(
    points: Tensor,
    features: Tensor | None,
    offsets: Tensor | None,
    origin: Sequence[float],
    size: Sequence[float],
    shape: Sequence[int],
    mode: str,
    dtype: torch.dtype | None,
    fill: float,
    deterministic: bool,
) -> Dense:
    """``points (N, 3)`` to a grid ``([B,] X, Y, Z[, F])``; ``B`` where there are offsets."""
    cloud, num_clouds = clouds_of(points, offsets)
    voxels = occupied(points, cloud, num_clouds, origin, size, shape)
    placed = place(voxels, features, shape, mode, dtype, fill, deterministic)
    return placed if offsets is not None else without_batch(placed)


def sparse(
    points: Tensor,
    features: Tensor | None,
    offsets: Tensor | None,
    origin: Sequence[float],
    size: Sequence[float],
    shape: Sequence[int] | None,
    mode: str,
    max_points: int | None,
    deterministic: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None, Tensor]:
    """All voxels in order of (cloud, x, y, z): coordinates ``(M, 4)`` int32, features ``(M, F)``, counts ``(M,)``
    int32; voxel ``(N,)`` int64 (-1: dropped); first_points ``(M, max_points)`` int64 (-1: no more); dropped points.
    """
    cloud, num_clouds = clouds_of(points, offsets)
    voxels = occupied(points, cloud, num_clouds, origin, size, shape)
    reduced = None
    if features is not None:
        dtype = torch.float32 if features.dtype == torch.uint8 else features.dtype
        reduced = reduce(features, voxels, mode, deterministic).to(dtype)
    first = None if max_points is None else first_of_each(voxels, max_points)
    return voxels.cells.int(), reduced, voxels.counts.int(), voxels.of_point, first, voxels.dropped.sum()


def depth(
    depth: Tensor,
    intrinsics: Tensor,
    pose: Tensor | None,
    features: Tensor | None,
    views: bool,
    unit: float | None,
    max_depth: float | None,
    origin: Sequence[float],
    size: Sequence[float],
    shape: Sequence[int],
    mode: str,
    dtype: torch.dtype | None,
    fill: float,
    deterministic: bool,
) -> Dense:
    """Depth images ``([B,] [V,] H, W)`` to a grid ``([B,] X, Y, Z[, F])``; ``V`` where there are views of one cloud."""
    batched = depth.ndim == (4 if views else 3)
    num_clouds = depth.shape[0] if batched else 1
    points, measured = points_of(depth, intrinsics, pose, unit, max_depth)
    pixels = measured.numel() // max(num_clouds, 1)
    cloud = torch.arange(num_clouds, device=depth.device).repeat_interleave(pixels)[measured]
    if features is not None:
        features = features.reshape(measured.numel(), features.shape[-1])[measured]
    voxels = occupied(points[measured], cloud, num_clouds, origin, size, shape)
    placed = place(voxels, features, shape, mode, dtype, fill, deterministic)
    return placed if batched else without_batch(placed)


def without_batch(placed: Dense) -> Dense:
    grid, counts, dropped = placed
    return grid[0], counts[0], dropped[0]


# ---- points to voxels ------------------------------------------------------------------------------------------------


class Voxels(NamedTuple):
    """The occupied cells, in order, and which of them each point is in (-1: dropped)."""

    cells: Tensor  # (M, 4) int64: cloud, x, y, z
    counts: Tensor  # (M,) int64
    of_point: Tensor  # (N,) int64
    dropped: Tensor  # (B,) int64


def clouds_of(points: Tensor, offsets: Tensor | None) -> tuple[Tensor, int]:
    """The cloud of each point, and how many clouds there are. Offsets that were not checked give some cloud."""
    number = torch.arange(len(points), device=points.device)
    if offsets is None:
        return torch.zeros_like(number), 1
    cloud = torch.searchsorted(offsets.contiguous(), number, right=True) - 1
    return cloud.clamp(0, max(len(offsets) - 2, 0)), len(offsets) - 1


def occupied(
    points: Tensor,
    cloud: Tensor,
    num_clouds: int,
    origin: Sequence[float],
    size: Sequence[float],
    shape: Sequence[int] | None,
) -> Voxels:
    real = torch.float64 if points.dtype == torch.float64 else torch.float32
    # tensors, not numbers: on CUDA PyTorch multiplies by the reciprocal of a number, which is another cell at times
    start, step = (torch.tensor(x, dtype=torch.float64).to(points.device, real) for x in (list(origin), list(size)))
    cell = torch.floor((points.detach().to(real) - start) / step).double()
    low, high = limits(shape, num_clouds)
    inside = torch.ones_like(cloud, dtype=torch.bool)
    for axis in range(3):
        inside &= (cell[:, axis] >= low[axis]) & (cell[:, axis] < high[axis])  # false for NaN
    rows = torch.cat([cloud[inside, None], cell[inside].long()], 1)
    key = rows[:, 0]
    for axis in range(3):
        key = key * (high[axis] - low[axis]) + (rows[:, 1 + axis] - low[axis])
    # keys are unsigned and may have 64 bits: with the highest one turned over their order is that of signed numbers
    _, index, counts = torch.unique(key ^ INT64_MIN, return_inverse=True, return_counts=True)
    cells = rows.new_empty(len(counts), 4)
    cells[index] = rows
    of_point = torch.full_like(cloud, -1)
    of_point[inside] = index
    dropped = cloud.new_zeros(num_clouds).index_add(0, cloud, (~inside).long())
    return Voxels(cells, counts, of_point, dropped)


def limits(shape: Sequence[int] | None, num_clouds: int) -> tuple[list[int], list[int]]:
    """The cells ``[low, high)`` of each axis; without a shape those that a key of 64 bits can hold."""
    if shape is not None:
        return [0] * 3, list(shape)
    bits = min(21, (63 - max(num_clouds - 1, 0).bit_length()) // 3)
    return [-(1 << (bits - 1))] * 3, [1 << (bits - 1)] * 3


def first_of_each(voxels: Voxels, max_points: int) -> Tensor:
    """The first points of each voxel in input order, then -1."""
    order = torch.argsort(voxels.of_point, stable=True)[int((voxels.of_point < 0).sum()) :]
    voxel = voxels.of_point[order]
    rank = torch.arange(len(order), device=order.device) - (voxels.counts.cumsum(0) - voxels.counts)[voxel]
    first = voxels.counts.new_full((len(voxels.counts), max_points), -1)
    kept = rank < max_points
    first[voxel[kept], rank[kept]] = order[kept]
    return first


# ---- voxels to a grid ------------------------------------------------------------------------------------------------


def place(
    voxels: Voxels,
    features: Tensor | None,
    shape: Sequence[int],
    mode: str,
    dtype: torch.dtype | None,
    fill: float,
    deterministic: bool,
) -> Dense:
    where = tuple(voxels.cells.unbind(1))
    size = (len(voxels.dropped), *shape)
    counts = torch.zeros(size, dtype=torch.int32, device=voxels.counts.device)
    counts[where] = voxels.counts.int()
    if mode in OF_FEATURES:
        assert features is not None
        empty = fill if REDUCTIONS[mode].fills else 0.0
        values = reduce(features, voxels, mode, deterministic)
        default = torch.float32 if features.dtype == torch.uint8 else features.dtype
    else:
        empty = 0.0
        values = voxels.counts.clamp(max=1 if mode == "occupancy" else 255 if dtype == torch.uint8 else INT32_MAX)
        default = torch.int32
    dtype = dtype or default
    empty = round_to(torch.tensor(float(empty), dtype=torch.float64), dtype).item()  # infinite past the dtype
    grid = torch.full((*size, *values.shape[1:]), empty, dtype=dtype, device=counts.device)
    grid[where] = values.to(dtype)
    return grid, counts, voxels.dropped


# ---- points to the value of their voxel ------------------------------------------------------------------------------


def reduce(features: Tensor, voxels: Voxels, mode: str, deterministic: bool) -> Tensor:
    """``(M, F)`` float32."""
    inside = voxels.of_point >= 0
    values, voxel = features[inside].float(), voxels.of_point[inside]
    if mode in ("min", "max"):
        return extreme(values, voxel, len(voxels.counts), mode)
    counts = voxels.counts[:, None]
    if mode == "std":
        return deviation(values, voxel, counts)
    if deterministic:
        total: Tensor = FixedPoint.apply(values, voxel, counts, mode)  # type: ignore[no-untyped-call]
        return total
    total = values.new_zeros(len(counts), values.shape[1]).index_add(0, voxel, values)
    return total / counts.float() if mode == "mean" else total


def extreme(values: Tensor, voxel: Tensor, num_voxels: int, mode: str) -> Tensor:
    """min or max: the first point that has it is found by whole numbers in the order of the floats, then read."""
    bits = values.detach().contiguous().view(torch.int32)
    key = torch.where(bits < 0, bits ^ INT32_MAX, bits)  # -0.0 before +0.0
    key = torch.where(values.isnan(), INT32_MIN if mode == "min" else INT32_MAX, key)
    spread = voxel[:, None].expand_as(key)
    best = key.new_zeros(num_voxels, key.shape[1])
    best = best.scatter_reduce(0, spread, key, "amin" if mode == "min" else "amax", include_self=False)
    number = torch.arange(len(key), device=key.device)[:, None].expand_as(key)
    number = torch.where(key == best.gather(0, spread), number, len(key))
    first = number.new_zeros(best.shape).scatter_reduce(0, spread, number, "amin", include_self=False)
    return values.gather(0, first)


class FixedPoint(torch.autograd.Function):
    """sum or mean with whole numbers of a unit that suits the voxel: no order of the points changes it.

    The largest value m < 2^e and the number of points n < 2^s give the unit 2^-k, k = 62 - e - s: the sum fits int64.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, voxel: Tensor, counts: Tensor, mode: str) -> Tensor:
        ctx.save_for_backward(voxel, counts)
        ctx.mode = mode
        shape = (len(counts), values.shape[1])
        finite = values.isfinite()
        known = torch.where(finite, values, 0.0).double()
        spread = voxel[:, None].expand_as(values)
        largest = known.new_zeros(shape).scatter_reduce(0, spread, known.abs(), "amax")
        bits_of_largest, bits_of_count = torch.frexp(largest).exponent, torch.frexp((counts - 1).double()).exponent
        k = (62 - bits_of_largest - bits_of_count).long()
        whole = torch.round(known * power_of_two(k)[voxel]).long()  # half to even
        total = whole.new_zeros(shape).index_add(0, voxel, whole).double() * power_of_two(-k)
        if mode == "mean":
            total = total / counts.double()
        strange = values.new_zeros(shape).index_add(0, voxel, torch.where(finite, 0.0, values))  # 0, infinite or NaN
        return torch.where(strange == 0, total.float(), strange)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        voxel, counts = ctx.saved_tensors
        return (grad / counts.float() if ctx.mode == "mean" else grad)[voxel], None, None, None


def deviation(values: Tensor, voxel: Tensor, counts: Tensor) -> Tensor:
    """std: its bits are those of whole numbers, its derivatives those of float64."""
    n, x = counts.double(), values.double()
    zeros = x.new_zeros(len(counts), x.shape[1])
    away = x - (zeros.index_add(0, voxel, x) / n)[voxel]
    smooth = root(zeros.index_add(0, voxel, away.square()) / n).float()
    return fixed_deviation(values.detach(), voxel, n) + (smooth - smooth.detach())


def fixed_deviation(values: Tensor, voxel: Tensor, n: Tensor) -> Tensor:
    """Like FixedPoint: values moved by the middle of their range, scaled into (-1, 1), and added as whole numbers."""
    shape, spread, finite = (len(n), values.shape[1]), voxel[:, None].expand_as(values), values.isfinite()
    known = torch.where(finite, values, 0.0).double()
    zeros = known.new_zeros(shape)
    low, high = (zeros.scatter_reduce(0, spread, known, which, include_self=False) for which in ("amin", "amax"))
    middle = 0.5 * low + 0.5 * high
    reach = torch.maximum(high - middle, middle - low)
    scale = power_of_two(-torch.frexp(reach).exponent.long())
    fixed = power_of_two(62 - torch.frexp(n - 1).exponent.long())
    u = (known - middle[voxel]) * scale[voxel]
    whole = [torch.round(x * fixed[voxel]).long() for x in (u, u * u)]
    mean, square = (x.new_zeros(shape).index_add(0, voxel, x).double() / fixed / n for x in whole)
    result = (square - mean * mean).clamp(min=0).sqrt() / scale
    strange = zeros.index_add(0, voxel, torch.where(finite, 0.0, 1.0).double()) > 0
    return torch.where(strange, torch.nan, torch.where(reach == 0, 0.0, result)).float()


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, made of its bits: exact on every device."""
    return ((exponent + 1023) << 52).view(torch.float64)


# ---- depth images ----------------------------------------------------------------------------------------------------


def points_of(
    depth: Tensor, intrinsics: Tensor, pose: Tensor | None, unit: float | None, max_depth: float | None
) -> tuple[Tensor, Tensor]:
    """The pixels of all images as float32 points ``(N, 3)``, and which of them were measured ``(N,)``."""
    unit = unit or (0.001 if depth.dtype == torch.uint16 else 1.0)
    height, width = depth.shape[-2:]
    z = depth.detach().float() * torch.tensor(unit, dtype=torch.float32, device=depth.device)
    measured = (z > 0) & z.isfinite()
    if max_depth:
        measured &= z <= torch.tensor(max_depth, dtype=torch.float32, device=depth.device)
    k = intrinsics.detach().float()[..., None, None]  # one number for all pixels of an image
    u = torch.arange(width, device=depth.device).float()
    v = torch.arange(height, device=depth.device).float()[:, None]
    x = (u - k[..., 0, 2, :, :]) / k[..., 0, 0, :, :] * z
    y = (v - k[..., 1, 2, :, :]) / k[..., 1, 1, :, :] * z
    if pose is not None:
        p = pose.detach().float()[..., None, None]
        x, y, z = (
            ((p[..., i, 0, :, :] * x + p[..., i, 1, :, :] * y) + p[..., i, 2, :, :] * z) + p[..., i, 3, :, :]
            for i in range(3)
        )
    return torch.stack([x, y, z], -1).reshape(-1, 3), measured.reshape(-1)
