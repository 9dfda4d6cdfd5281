"""What RoboCache's voxelize is measured against: the same work, written well in PyTorch, and small_gicp.

Dense ways can be captured in a graph and compiled: points outside go to one more cell at the end, which is cut off.
The grid is (origin (3,), size (3,), shape): tensors, since PyTorch multiplies by the reciprocal of a number on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Grid = tuple[Tensor, Tensor, tuple[int, int, int]]


def cells_of(points: Tensor, grid: Grid) -> Tensor:
    """(N,) int64: the cell of each point, the last one for points outside."""
    origin, size, (nx, ny, nz) = grid
    cell = torch.floor((points - origin) / size)
    x, y, z = cell.unbind(1)
    inside = (x >= 0) & (x < nx) & (y >= 0) & (y < ny) & (z >= 0) & (z < nz)  # false for NaN
    x, y, z = cell.long().unbind(1)
    return torch.where(inside, (x * ny + y) * nz + z, nx * ny * nz)


def count(points: Tensor, grid: Grid, dtype: torch.dtype, way: str) -> Tensor:
    nx, ny, nz = grid[2]
    index = cells_of(points, grid)
    flat = torch.zeros(nx * ny * nz + 1, dtype=dtype, device=points.device)
    ones = torch.ones(len(points), dtype=dtype, device=points.device)
    if way == "scatter_reduce":
        flat.scatter_reduce_(0, index, ones, "sum")
    elif way == "scatter_add":
        flat.scatter_add_(0, index, ones)
    else:
        flat.index_add_(0, index, ones)
    return flat[:-1].view(nx, ny, nz)


def occupancy(points: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
    nx, ny, nz = grid[2]
    flat = torch.zeros(nx * ny * nz + 1, dtype=dtype, device=points.device)
    return flat.scatter_(0, cells_of(points, grid), 1)[:-1].view(nx, ny, nz)


def batch_occupancy(points: Tensor, grid: Grid, dtype: torch.dtype, num_clouds: int) -> Tensor:
    """Clouds of the same size, so that the cloud of a point is known without a search."""
    nx, ny, nz = grid[2]
    num_cells = nx * ny * nz
    cloud = torch.arange(num_clouds, device=points.device).repeat_interleave(len(points) // num_clouds)
    index = cells_of(points, grid)
    index = torch.where(index == num_cells, num_clouds * num_cells, index + cloud * num_cells)
    flat = torch.zeros(num_clouds * num_cells + 1, dtype=dtype, device=points.device)
    return flat.scatter_(0, index, 1)[:-1].view(num_clouds, nx, ny, nz)


def reduce(points: Tensor, features: Tensor, grid: Grid, how: str, way: str) -> Tensor:
    """mean or amax of float32 features."""
    nx, ny, nz = grid[2]
    num_cells, num_channels = nx * ny * nz, features.shape[1]
    index = cells_of(points, grid)
    flat = torch.zeros(num_cells + 1, num_channels, device=points.device)
    if way == "scatter_reduce":
        flat.scatter_reduce_(0, index[:, None].expand(-1, num_channels), features, how, include_self=False)
    else:
        counts = torch.zeros(num_cells + 1, device=points.device)
        counts.index_add_(0, index, torch.ones(len(points), device=points.device))
        flat = flat.index_add_(0, index, features) / counts.clamp(min=1)[:, None]
    return flat[:-1].view(nx, ny, nz, num_channels)


def unproject(depth: Tensor, intrinsics: Tensor, pose: Tensor) -> Tensor:
    """(V, H, W) millimeters as points (N, 3) of the grid; not measured: NaN. In the order of docs/voxelize.md."""
    height, width = depth.shape[1:]
    z = depth.float() * 0.001
    z = torch.where(z > 0, z, torch.nan)
    x = (torch.arange(width, device=depth.device).float() - intrinsics[0, 2]) / intrinsics[0, 0] * z
    y = (torch.arange(height, device=depth.device).float()[:, None] - intrinsics[1, 2]) / intrinsics[1, 1] * z
    p = pose[:, :, :, None, None]
    moved = [((p[:, i, 0] * x + p[:, i, 1] * y) + p[:, i, 2] * z) + p[:, i, 3] for i in range(3)]
    return torch.stack(moved, -1).view(-1, 3)


def sparse_mean(points: Tensor, features: Tensor, grid: Grid) -> Tensor:
    """Means of the occupied cells in ascending order. Its shape depends on the data: it cannot be in a graph."""
    nx, ny, nz = grid[2]
    index = cells_of(points, grid)
    inside = index < nx * ny * nz
    cells, row, counts = torch.unique(index[inside], return_inverse=True, return_counts=True)
    sums = torch.zeros(len(cells), features.shape[1], device=points.device).index_add_(0, row, features[inside])
    return sums / counts[:, None]


def small_gicp_or_none() -> Any:
    """The package, if it is installed: `pip install -r tools/requirements-bench.txt`."""
    try:
        import small_gicp
    except ImportError:
        return None
    return small_gicp
