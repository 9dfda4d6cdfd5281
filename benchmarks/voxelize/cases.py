"""The cases of bench_voxelize, on the CPU and on CUDA: our call, the rivals' calls, the bytes moved, the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import robocache
import torch
from measure.cuda import CudaCase
from measure.run import Honest
from measure.targets import SPREAD, Limit
from measure.timing import Call, Inputs
from robocache.cli.clouds import ROOM_M, ROOM_ON_FACES_M, grid_of, make_depth, size_of
from torch import Tensor
from voxelize import clouds, rivals

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
    reference: Call | None = None
    beside: dict[str, tuple[Call, Inputs]] = field(default_factory=dict)


def thousands(n: int) -> str:
    """64M, 250k, 77."""
    return f"{n // M}M" if n % M == 0 else f"{n // 1000}k" if n % 1000 == 0 else str(n)


def axes(cloud: str, points: str, grid: str, values: str, in_grid: float) -> dict[str, str]:
    return {"cloud": cloud, "points": points, "grid": grid, "values": values, "in grid": f"{100 * in_grid:.1f} %"}


@lru_cache
def cube(num_cells: int, device: str) -> rivals.Grid:
    return as_tensors(grid_of(num_cells), device)


@lru_cache
def rival_of(call: Call, num_cells: int, device: str, **options: Any) -> Call:
    """The same object for every cloud, so that torch.compile compiles it once."""
    return partial(call, grid=cube(num_cells, device), **options)


def as_tensors(grid: dict[str, Any], device: str) -> rivals.Grid:
    size = grid["voxel_size"]
    size = size if isinstance(size, tuple) else (size,) * 3
    origin, step = (torch.tensor(x, dtype=torch.float32, device=device) for x in (grid["grid_min"], size))
    return origin, step, grid["grid_size"]


def share_inside(points: Tensor, grid: rivals.Grid) -> float:
    nx, ny, nz = grid[2]
    return float((rivals.cells_of(points, grid) < nx * ny * nz).float().mean())


def dense(cloud: str, num_points: int, num_cells: int, mode: str, dtype: str, device: str) -> Work:
    """occupancy or count."""
    torch.manual_seed(0)
    points, where = clouds.make(cloud, num_points, device), grid_of(num_cells)
    made = getattr(torch, dtype)
    if mode == "occupancy":
        ways: dict[str, Call] = {"scatter": rival_of(rivals.occupancy, num_cells, device, dtype=made)}
    else:
        ways = {way: rival_of(rivals.count, num_cells, device, dtype=made, way=way)
                for way in ("scatter_reduce", "index_add")}  # fmt: skip
    share = share_inside(points, cube(num_cells, device))
    return Work(
        mode, axes(cloud, thousands(num_points), f"{num_cells}^3", dtype, share), (points,),
        partial(robocache.voxelize_pointcloud, mode=mode, dtype=dtype, **where), ways,
        size_of(points) + num_cells**3 * made.itemsize, share,
    )  # fmt: skip


def reduced(cloud: str, num_points: int, num_channels: int, num_cells: int, mode: str, device: str,
            deterministic: bool = False) -> Work:  # fmt: skip
    """mean or max of float32 features. `deterministic`: the atomic mean is timed beside it."""
    torch.manual_seed(0)
    points, where = clouds.make(cloud, num_points, device), grid_of(num_cells)
    features = torch.randn(num_points, num_channels, device=device)
    share = share_inside(points, cube(num_cells, device))
    ours = partial(robocache.voxelize_pointcloud, mode=mode, **where)
    ways = {"scatter_reduce": rival_of(rivals.reduce, num_cells, device, how=AMAX[mode], way="scatter_reduce")}
    if mode == "mean":
        ways["index_add"] = rival_of(rivals.reduce, num_cells, device, how=mode, way="index_add")
    name = f"deterministic {mode}" if deterministic else mode
    return Work(
        name, axes(cloud, f"{thousands(num_points)} x {num_channels}", f"{num_cells}^3", "float32", share),
        (points, features), partial(ours, deterministic=True) if deterministic else ours, ways,
        size_of(points, features) + num_cells**3 * num_channels * 4, share,
        beside={"atomic mean": (ours, (points, features))} if deterministic else {},
    )  # fmt: skip


def batch(num_clouds: int, per_cloud: int, num_cells: int, device: str) -> Work:
    torch.manual_seed(0)
    points, where = clouds.make("uniform", num_clouds * per_cloud, device), grid_of(num_cells)
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
        {"scatter": scatter}, size_of(points, offsets) + num_clouds * num_cells**3, share,
    )  # fmt: skip


def sparse(cloud: str, num_points: int, device: str) -> Work:
    """Mean of four features in the grid of nuScenes, padded so that a graph can hold it."""
    torch.manual_seed(0)
    points = clouds.make(cloud, num_points, device) * torch.tensor([8.4, 8.4, 0.6], device=device)
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
        (points, features), ours, {}, size_of(points, features) + written, share,
        reference=partial(rivals.sparse_mean, grid=grid),
    )  # fmt: skip


def depth(num_views: int, height: int, width: int, num_cells: int, device: str,
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
        size_of(images, intrinsics, pose) + num_cells**3 * 4, share,
    )  # fmt: skip


def downsample(cloud: str, num_points: int, voxel_size: float, num_threads: int) -> Work:
    """Sparse mean of xyz on the CPU. small_gicp is given float64, its own type, and not charged for the conversion."""
    torch.manual_seed(0)
    points = clouds.make(cloud, num_points)

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
        size_of(points) + num_voxels * (16 + 12 + 4) + num_points * 8, 1.0,
    )  # fmt: skip


def downsampled_alike(ours: Tensor, cloud: Any, num_points: int) -> bool:
    """small_gicp cuts the points into blocks of 1,024 where it has several threads, and a voxel that is in two of them
    comes twice; its order is another one. So: up to one voxel more for each block, and the same centre of all."""
    theirs = np.asarray(cloud.points())[:, :3]
    same_centre = np.allclose(ours.mean(0).numpy(), theirs.mean(0), atol=0.05)
    return len(ours) <= len(theirs) * 1.001 and len(theirs) <= len(ours) + num_points // 1024 + 1 and same_centre


@dataclass(frozen=True)
class OnCpu:
    """A case over clouds, made one at a time. `least`: ratios required on `judged` clouds; `spread`: the most between
    the slowest and the fastest cloud."""

    what: str
    make: Callable[[str], Work]
    clouds: tuple[str, ...]
    least: dict[str, float] = field(default_factory=dict)
    judged: tuple[str, ...] = ("uniform", "lidar")
    spread: float | None = None


def cpu_cases(quick: bool, num_threads: int, tiny: bool = False) -> Iterator[OnCpu]:
    """The targets are for 1M points."""
    n, cells = (2000, 16) if tiny else (M, 128)
    every = clouds.HONEST if tiny or not quick else ("uniform", "lidar", "shuffled", "clustered")
    limits: dict[str, Any] = {"least": {"scatter_reduce": 5.0}, "spread": MOST_SPREAD}
    yield OnCpu("count", lambda cloud: dense(cloud, n, cells, "count", "int32", "cpu"), (*every, "one voxel"), **limits)
    yield OnCpu("mean", lambda cloud: reduced(cloud, n, 4, cells, "mean", "cpu"), (*every, "one voxel"), **limits)
    yield OnCpu("occupancy", lambda cloud: dense(cloud, n, cells, "occupancy", "uint8", "cpu"), ("uniform", "lidar"))
    yield OnCpu("max", lambda cloud: reduced(cloud, n, 4, cells, "max", "cpu"), ("uniform",))
    make = partial(reduced, num_points=n, num_channels=4, num_cells=cells, mode="mean", device="cpu")
    yield OnCpu("deterministic mean", lambda cloud: make(cloud, deterministic=True), ("uniform",))
    faster = {"small_gicp": 1.5}
    for size, kinds in ((0.05, ("lidar",)), (0.1, ("uniform",)), (0.25, ("lidar", "shuffled"))):
        down = partial(lambda size, cloud: downsample(cloud, n, size, num_threads), size)
        yield OnCpu(f"downsample {size} m", down, kinds, faster, kinds[:1])
    yield OnCpu("sparse", lambda cloud: sparse(cloud, n // 4, "cpu"), ("lidar",))
    views, height, width = (2, 24, 32) if tiny else (8, 480, 640)
    yield OnCpu("depth", lambda _: depth(views, height, width, cells, "cpu"), ("room",))


MOST_SPREAD = 2.0
SCATTERED = (Limit("x scatter_reduce", 1.0), Limit("x index_add", 1.0), Limit(SPREAD, MOST_SPREAD))


def uniform_us(most: float) -> Limit:
    return Limit("us", most, "uniform")


def over_clouds(what: str, make: Callable[[str], Work], kinds: tuple[str, ...], *limits: Limit) -> Honest:
    inputs = {cloud: partial(lambda cloud: on_cuda(make(cloud), cloud, kinds[0]), cloud) for cloud in kinds}
    return Honest(what, inputs, limits, x_clean=None)


def cuda_cases(device: str, quick: bool, tiny: bool = False) -> Iterator[Honest]:
    """`quick` leaves out clouds of the largest cases; `tiny` keeps the kinds and cuts the sizes."""
    n = 4000 if tiny else M
    c128, c200, c256, c64 = (8, 10, 12, 6) if tiny else (128, 200, 256, 64)
    big, middle = (8000, 6000) if tiny else (64 * M, 8 * M)
    spread = Limit(SPREAD, MOST_SPREAD)
    every = clouds.HONEST
    some = ("uniform", "lidar") if quick else ("uniform", "lidar", "shuffled", "clustered")

    def of_count(cloud: str, num_points: int = n, cells: int = c128) -> Work:
        return dense(cloud, num_points, cells, "count", "int32", device)

    def of_mean(cloud: str, channels: int = 4, cells: int = c128, mode: str = "mean", **options: bool) -> Work:
        return reduced(cloud, n, channels, cells, mode, device, **options)

    yield over_clouds("count int32 1M", of_count, every, uniform_us(13), *SCATTERED)
    yield over_clouds("mean 1M x 4", of_mean, every, *SCATTERED)
    for dtype in ("int32", "uint8"):
        make = partial(lambda dtype, cloud: dense(cloud, n, c128, "occupancy", dtype, device), dtype)
        yield over_clouds(f"occupancy {dtype} 1M", make, some if quick else every, uniform_us(13), spread)
    yield over_clouds("count int32 8M", lambda cloud: of_count(cloud, middle),
                      ("uniform", "sphere r9", "sphere r3", *(() if quick else ("lidar", "shuffled", "clustered"))),
                      Limit("us", 60, "sphere r9"), *SCATTERED)  # fmt: skip
    yield over_clouds("occupancy uint8 64M", lambda cloud: dense(cloud, big, c256, "occupancy", "uint8", device),
                      some[:1] if quick else some, uniform_us(450), spread)  # fmt: skip
    yield over_clouds("count int32 64M", lambda cloud: of_count(cloud, big, c256), some[:1] if quick else some,
                      uniform_us(450), *SCATTERED)  # fmt: skip
    yield over_clouds("max 1M x 16", lambda cloud: of_mean(cloud, 16, c200, "max"), some, uniform_us(190), *SCATTERED)
    yield over_clouds("mean 1M x 16", lambda cloud: of_mean(cloud, 16, c200), some, uniform_us(220), *SCATTERED)
    yield over_clouds("deterministic mean 1M x 16", lambda cloud: of_mean(cloud, 16, c200, deterministic=True), some,
                      Limit("x atomic mean", 2.0, "uniform"), *SCATTERED)  # fmt: skip
    num_clouds, each = (3, 500) if tiny else (128, 8000)
    yield over_clouds("batch occupancy uint8 128 x 8k", lambda _: batch(num_clouds, each, c64, device), ("uniform",),
                      Limit("x floor", 1.5))  # fmt: skip
    yield over_clouds("sparse mean 250k x 4", lambda cloud: sparse(cloud, n // 4, device),
                      ("uniform", "lidar", "shuffled", "rings"), Limit("us", 80), spread)  # fmt: skip
    views, height, width = (2, 24, 32) if tiny else (64, 480, 640)
    yield over_clouds("depth occupancy 64 x 640x480",
                      lambda room: depth(views, height, width, c128, device, on_faces=room != "room"),
                      ("room", "room, walls on faces"), Limit("us", 40, "room"))  # fmt: skip
    if not quick:
        yield over_clouds("one voxel, count int32 1M", of_count, ("one voxel",), *SCATTERED[:2])
        yield over_clouds("one voxel, mean 1M x 4", of_mean, ("one voxel",), *SCATTERED[:2])


def on_cuda(work: Work, cloud: str = clouds.CLEAN, clean: str = clouds.CLEAN) -> CudaCase:
    compiled = "scatter_reduce" if "scatter_reduce" in work.rivals else "scatter" if work.rivals else None
    facts = {"in_grid": work.in_grid, "num_points": len(work.inputs[0]) if work.inputs[0].ndim == 2
             else work.inputs[0].numel()}  # fmt: skip
    return CudaCase(
        work.name, work.axes, work.inputs, work.ours, work.rivals, work.size_bytes, cloud, clean, work.beside, compiled,
        work.reference, required=("scatter_reduce", "index_add"), facts=facts,
    )  # fmt: skip
