"""The cases of bench_voxelize, on the CPU and on CUDA: clouds, our call, the rivals' calls, the bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import robocache
import torch
import voxelize_rivals as rivals
from cuda_measure import CudaCase
from cuda_timing import Call, Inputs
from robocache.cli.clouds import CLOUDS, ROOM_M, ROOM_ON_FACES_M, grid_of, make_cloud, make_depth, size_of
from torch import Tensor

BYTES = "bytes = points (or depth) + features + offsets, each read once, + outputs, each written once"
M = 1_000_000
NUSCENES = {"grid_min": (-54.0, -54.0, -5.0), "voxel_size": (0.075, 0.075, 0.2), "grid_size": (1440, 1440, 41)}
AMAX = {"max": "amax", "mean": "mean"}


@dataclass
class Work:
    """`ours` and every rival take the inputs and return the same tensor."""

    name: str
    axes: dict[str, str]
    inputs: Inputs
    ours: Call
    rivals: dict[str, Call]
    size_bytes: int
    in_grid: float
    bars: dict[str, float] = field(default_factory=dict)
    reference: Call | None = None
    beside: dict[str, tuple[Call, Inputs]] = field(default_factory=dict)


def thousands(n: int) -> str:
    """64M, 250k, 77."""
    return f"{n // M}M" if n % M == 0 else f"{n // 1000}k" if n % 1000 == 0 else str(n)


def axes(cloud: str, points: str, grid: str, values: str, in_grid: float) -> dict[str, str]:
    return {"cloud": cloud, "points": points, "grid": grid, "values": values, "in grid": f"{100 * in_grid:.1f} %"}


def as_tensors(grid: dict[str, Any], device: str) -> rivals.Grid:
    size = grid["voxel_size"]
    size = size if isinstance(size, tuple) else (size,) * 3
    origin, step = (torch.tensor(x, dtype=torch.float32, device=device) for x in (grid["grid_min"], size))
    return origin, step, grid["grid_size"]


def share_inside(points: Tensor, grid: rivals.Grid) -> float:
    nx, ny, nz = grid[2]
    return float((rivals.cells_of(points, grid) < nx * ny * nz).float().mean())


def dense(cloud: str, num_points: int, num_cells: int, mode: str, dtype: str, device: str,
          bars: dict[str, float] | None = None) -> Work:  # fmt: skip
    """occupancy or count."""
    torch.manual_seed(0)
    points, where = make_cloud(cloud, num_points, device), grid_of(num_cells)
    grid, made = as_tensors(where, device), getattr(torch, dtype)
    if mode == "occupancy":
        ways: dict[str, Call] = {"scatter": partial(rivals.occupancy, grid=grid, dtype=made)}
    else:
        ways = {way: partial(rivals.count, grid=grid, dtype=made, way=way) for way in ("scatter_reduce", "index_add")}
    share = share_inside(points, grid)
    return Work(
        mode, axes(cloud, thousands(num_points), f"{num_cells}^3", dtype, share), (points,),
        partial(robocache.voxelize_pointcloud, mode=mode, dtype=dtype, **where), ways,
        size_of(points) + num_cells**3 * made.itemsize, share, bars or {},
    )  # fmt: skip


def reduced(cloud: str, num_points: int, num_channels: int, num_cells: int, mode: str, device: str,
            bars: dict[str, float] | None = None, deterministic: bool = False) -> Work:  # fmt: skip
    """mean or max of float32 features. `deterministic`: the atomic mean is timed beside it."""
    torch.manual_seed(0)
    points, where = make_cloud(cloud, num_points, device), grid_of(num_cells)
    features = torch.randn(num_points, num_channels, device=device)
    grid, share = as_tensors(where, device), 0.0
    share = share_inside(points, grid)
    ours = partial(robocache.voxelize_pointcloud, mode=mode, **where)
    ways: dict[str, Call] = {"scatter_reduce": partial(rivals.reduce, grid=grid, how=AMAX[mode], way="scatter_reduce")}
    if mode == "mean":
        ways["index_add"] = partial(rivals.reduce, grid=grid, how=mode, way="index_add")
    name = f"deterministic {mode}" if deterministic else mode
    return Work(
        name, axes(cloud, f"{thousands(num_points)} x {num_channels}", f"{num_cells}^3", "float32", share),
        (points, features), partial(ours, deterministic=True) if deterministic else ours, ways,
        size_of(points, features) + num_cells**3 * num_channels * 4, share, bars or {},
        beside={"atomic mean": (ours, (points, features))} if deterministic else {},
    )  # fmt: skip


def batch(num_clouds: int, per_cloud: int, num_cells: int, device: str, bars: dict[str, float]) -> Work:
    torch.manual_seed(0)
    points, where = make_cloud("uniform", num_clouds * per_cloud, device), grid_of(num_cells)
    offsets = torch.arange(num_clouds + 1, device=device) * per_cloud
    grid = as_tensors(where, device)
    share = share_inside(points, grid)

    def ours(points: Tensor, offsets: Tensor) -> Tensor:
        made: Tensor = robocache.voxelize_pointcloud(points, offsets=offsets, dtype="uint8", **where)
        return made

    def scatter(points: Tensor, offsets: Tensor) -> Tensor:
        return rivals.batch_occupancy(points, grid, torch.uint8, num_clouds)

    label = f"{num_clouds} x {thousands(per_cloud)}"
    return Work(
        "batch occupancy", axes("uniform", label, f"{num_cells}^3", "uint8", share), (points, offsets), ours,
        {"scatter": scatter}, size_of(points, offsets) + num_clouds * num_cells**3, share, bars,
    )  # fmt: skip


def sparse(cloud: str, num_points: int, device: str, bars: dict[str, float]) -> Work:
    """Mean of four features in the grid of nuScenes, padded so that a graph can hold it."""
    torch.manual_seed(0)
    points = make_cloud(cloud, num_points, device) * torch.tensor([8.4, 8.4, 0.6], device=device)
    features = torch.cat([points, torch.rand(num_points, 1, device=device)], 1)
    grid = as_tensors(NUSCENES, device)
    share = share_inside(points, grid)
    num_voxels = len(rivals.sparse_mean(points, features, grid))

    def ours(points: Tensor, features: Tensor) -> Tensor:
        made = robocache.voxelize_sparse(points, features, max_voxels=num_points, padded=True, **NUSCENES)
        kept: Tensor = made.features[:num_voxels]
        return kept

    written = num_voxels * (16 + 16 + 4) + num_points * 8 + 16
    return Work(
        "sparse mean", axes(cloud, f"{thousands(num_points)} x 4", "1440 x 1440 x 41", "float32", share),
        (points, features), ours, {}, size_of(points, features) + written, share, bars,
        reference=partial(rivals.sparse_mean, grid=grid),
    )  # fmt: skip


def depth(num_views: int, height: int, width: int, num_cells: int, device: str, bars: dict[str, float],
          on_faces: bool = False) -> Work:  # fmt: skip
    """Views of one room into one grid. `on_faces`: its walls lie on faces of cells, the worst place they can be."""
    torch.manual_seed(0)
    room = ROOM_ON_FACES_M if on_faces else ROOM_M
    images, intrinsics, pose = make_depth(num_views, height, width, device, room)
    where = grid_of(num_cells)
    grid = as_tensors(where, device)
    share = share_inside(rivals.unproject(images, intrinsics, pose), grid)

    def scatter(images: Tensor, intrinsics: Tensor, pose: Tensor) -> Tensor:
        return rivals.occupancy(rivals.unproject(images, intrinsics, pose), grid, torch.int32)

    cloud = "room, walls on faces" if on_faces else "room"
    return Work(
        "depth occupancy", axes(cloud, f"{num_views} x {width}x{height} u16", f"{num_cells}^3", "int32", share),
        (images, intrinsics, pose), partial(robocache.voxelize_depth, views=True, **where), {"scatter": scatter},
        size_of(images, intrinsics, pose) + num_cells**3 * 4, share, bars,
    )  # fmt: skip


def downsample(cloud: str, num_points: int, voxel_size: float, num_threads: int, bars: dict[str, float]) -> Work:
    """Sparse mean of xyz on the CPU. small_gicp is given float64, its own type, and not charged for the conversion."""
    torch.manual_seed(0)
    points = make_cloud(cloud, num_points)

    def ours(points: Tensor) -> Tensor:
        made: Tensor = robocache.voxelize_sparse(points, points, voxel_size).features
        return made

    ways: dict[str, Call] = {}
    package = rivals.small_gicp_or_none()
    if package is not None:
        wide = points.double().numpy()
        ways["small_gicp"] = lambda _: package.voxelgrid_sampling(wide, voxel_size, num_threads)
    num_voxels = len(ours(points))
    return Work(
        "downsample", axes(cloud, thousands(num_points), f"{voxel_size} m", "float32", 1.0), (points,), ours, ways,
        size_of(points) + num_voxels * (16 + 12 + 4) + num_points * 8, 1.0, bars if package else {},
    )  # fmt: skip


def downsampled_alike(ours: Tensor, cloud: Any, num_points: int) -> bool:
    """small_gicp cuts the points into blocks of 1,024 where it has several threads, and a voxel that is in two of them
    comes twice; its order is another one. So: up to one voxel more for each block, and the same center of all."""
    theirs = np.asarray(cloud.points())[:, :3]
    same_center = np.allclose(ours.mean(0).numpy(), theirs.mean(0), atol=0.05)
    return len(ours) <= len(theirs) * 1.001 and len(theirs) <= len(ours) + num_points // 1024 + 1 and same_center


def cpu_cases(quick: bool, num_threads: int, tiny: bool = False) -> Iterator[tuple[str, Callable[[], Work]]]:
    """(what it is, how to make it), made one at a time. The bars are at 1M points."""
    n, cells = (2000, 16) if tiny else (M, 128)
    five = {"scatter_reduce": 5.0}
    for cloud in CLOUDS[:2] if quick else CLOUDS:
        bars = five if cloud in ("uniform", "lidar") else {}
        yield f"count {cloud}", partial(dense, cloud, n, cells, "count", "int32", "cpu", bars)
        yield f"mean {cloud}", partial(reduced, cloud, n, 4, cells, "mean", "cpu", bars)
    yield "occupancy uniform", partial(dense, "uniform", n, cells, "occupancy", "uint8", "cpu")
    yield "max uniform", partial(reduced, "uniform", n, 4, cells, "max", "cpu")
    yield "deterministic mean", partial(reduced, "uniform", n, 4, cells, "mean", "cpu", deterministic=True)
    for size in (0.05, 0.25):
        yield f"downsample lidar {size}", partial(downsample, "lidar", n, size, num_threads, {"small_gicp": 1.5})
    yield "downsample uniform", partial(downsample, "uniform", n, 0.1, num_threads, {"small_gicp": 1.5})
    yield "sparse lidar", partial(sparse, "lidar", n // 4, "cpu", {})
    views, height, width = (2, 24, 32) if tiny else (8, 480, 640)
    yield "depth", partial(depth, views, height, width, cells, "cpu", {})


def cuda_cases(device: str, quick: bool, tiny: bool = False) -> Iterator[tuple[str, Callable[[], Work]]]:
    """The table of the issue, then clouds that are hard in other ways. `tiny` keeps the kinds and cuts the sizes."""
    n = 4000 if tiny else M
    c128, c200, c256, c64 = (8, 10, 12, 6) if tiny else (128, 200, 256, 64)
    big, middle = (8000, 6000) if tiny else (64 * M, 8 * M)
    u = "uniform"
    yield "occupancy int32 uniform 1M", partial(dense, u, n, c128, "occupancy", "int32", device, {"us": 12})
    yield "occupancy uint8 uniform 1M", partial(dense, u, n, c128, "occupancy", "uint8", device, {"us": 9})
    yield "count int32 uniform 1M", partial(dense, u, n, c128, "count", "int32", device, {"us": 12})
    yield "occupancy uint8 uniform 64M", partial(dense, u, big, c256, "occupancy", "uint8", device, {"us": 450})
    yield "count int32 uniform 64M", partial(dense, u, big, c256, "count", "int32", device, {"us": 900})
    yield "count int32 sphere 8M", partial(dense, "sphere", middle, c128, "count", "int32", device, {"us": 60})
    yield "max uniform 1M x 16", partial(reduced, u, n, 16, c200, "max", device, {"us": 190})
    yield "mean uniform 1M x 16", partial(reduced, u, n, 16, c200, "mean", device, {"us": 220})
    clouds, each = (3, 500) if tiny else (128, 8000)
    yield "batch occupancy uint8 128 x 8k", partial(batch, clouds, each, c64, device, {"floor": 1.5})
    bars = {"atomic mean": 2.0}
    yield "deterministic mean 1M x 16", partial(reduced, u, n, 16, c200, "mean", device, bars, deterministic=True)
    for cloud in (u, "lidar"):
        yield f"sparse mean 250k x 4 {cloud}", partial(sparse, cloud, n // 4, device, {"us": 80})
    views, height, width = (2, 24, 32) if tiny else (64, 480, 640)
    yield "depth occupancy 64 x 640x480", partial(depth, views, height, width, c128, device, {"us": 40})
    yield "depth on faces", partial(depth, views, height, width, c128, device, {}, on_faces=True)
    for cloud in () if quick else CLOUDS[1:]:
        yield f"count int32 {cloud} 1M", partial(dense, cloud, n, c128, "count", "int32", device)
        yield f"mean {cloud} 1M x 4", partial(reduced, cloud, n, 4, c128, "mean", device)


def on_cuda(work: Work) -> CudaCase:
    compiled = "scatter_reduce" if "scatter_reduce" in work.rivals else "scatter" if work.rivals else None
    return CudaCase(
        work.name, work.axes, work.inputs, work.ours, work.rivals, work.size_bytes, work.bars, work.beside, compiled,
        work.reference,
    )  # fmt: skip
