"""The second half of the demo: a LiDAR scan of a room and depth images of it, voxelized; how fast, and a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import robocache
import torch
from robocache.cli.clouds import make_depth, scan_room

VOXEL_M = 0.1
GRID = {"grid_min": (-6.4, -4.8, -1.6), "voxel_size": VOXEL_M, "grid_size": (128, 96, 32)}
NUM_VIEWS = 8


def torch_count(points: torch.Tensor) -> torch.Tensor:
    """The same count in plain PyTorch."""
    shape = GRID["grid_size"]
    cell = torch.floor((points - torch.tensor(GRID["grid_min"])) / torch.tensor(VOXEL_M))
    inside = ((cell >= 0) & (cell < torch.tensor(shape))).all(1)
    x, y, z = cell[inside].long().unbind(1)
    flat = torch.zeros(shape[0] * shape[1] * shape[2], dtype=torch.int32)
    index = (x * shape[1] + y) * shape[2] + z
    return flat.scatter_reduce_(0, index, torch.ones_like(index, dtype=torch.int32), "sum").view(shape)


def torch_unproject(depth: torch.Tensor, intrinsics: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
    """Depth images as the point cloud that voxelize_depth does without."""
    z = depth.float() * 0.001
    z = torch.where(z > 0, z, torch.nan)
    x = (torch.arange(depth.shape[2]).float() - intrinsics[0, 2]) / intrinsics[0, 0] * z
    y = (torch.arange(depth.shape[1]).float()[:, None] - intrinsics[1, 2]) / intrinsics[1, 1] * z
    p = pose[:, :, :, None, None]
    moved = [((p[:, i, 0] * x + p[:, i, 1] * y) + p[:, i, 2] * z) + p[:, i, 3] for i in range(3)]
    return torch.stack(moved, -1).view(-1, 3)


def run(
    num_points: int, out: Path, best_ms: Callable[[dict[str, Callable[[], Any]]], dict[str, float]]
) -> list[dict[str, Any]]:
    """Voxelizes both, checks them against PyTorch, times them with `best_ms`, draws `out`."""
    torch.manual_seed(7)
    scan = scan_room(num_points)
    images = make_depth(NUM_VIEWS, 240, 320)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "LiDAR scan": (
            lambda: robocache.voxelize_pointcloud(scan, mode="count", **GRID),
            lambda: torch_count(scan),
        ),
        f"{NUM_VIEWS} depth images": (
            lambda: robocache.voxelize_depth(*images, mode="count", views=True, **GRID),
            lambda: torch_count(torch_unproject(*images)),
        ),
    }
    sizes = [num_points, int((images[0].to(torch.int32) > 0).sum())]
    rows, grids = [], []
    for (name, (ours, theirs)), size in zip(calls.items(), sizes, strict=True):
        grid = ours()
        assert torch.equal(grid, theirs()), f"PyTorch differs on {name}"
        ms = best_ms({"ours": ours, "theirs": theirs})
        rows.append({"cloud": name, "points": size, "in_grid": int(grid.sum()), "occupied": int((grid > 0).sum()),
                     "ours_ms": ms["ours"], "theirs_ms": ms["theirs"],
                     "times_faster": ms["theirs"] / ms["ours"]})  # fmt: skip
        grids.append(grid.numpy())
    draw(scan.numpy(), images[0].numpy(), grids, out)
    return rows


def heights(grid: np.ndarray) -> np.ndarray:
    """Seen from above: how high the highest occupied cell below the ceiling is, in meters; NaN where there is none."""
    below = grid[:, :, : int(2.9 / VOXEL_M)] > 0
    top = below.shape[2] - 1 - below[:, :, ::-1].argmax(2)
    return np.where(below.any(2), top * VOXEL_M, np.nan)


def draw(scan: np.ndarray, depth: np.ndarray, grids: list[np.ndarray], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    low, shape = GRID["grid_min"], GRID["grid_size"]
    extent = (low[0], low[0] + shape[0] * VOXEL_M, low[1], low[1] + shape[1] * VOXEL_M)
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    step = (len(scan) // 30_000) | 1  # odd, so that every ring is shown
    axes[0, 0].scatter(*scan[::step, :2].T, c=scan[::step, 2], s=0.6, lw=0)
    axes[0, 0].set(title=f"LiDAR scan of a room, {len(scan)} points, from above", aspect="equal", xlim=extent[:2],
                   ylim=extent[2:])  # fmt: skip
    shown = np.ma.masked_equal(depth[1], 0) / 1000
    axes[1, 0].imshow(shown, cmap=plt.get_cmap("magma_r").with_extremes(bad="#9aa3ad"))
    axes[1, 0].set(title=f"depth image 2 of {len(depth)} (grey: not measured)", xticks=[], yticks=[])
    names = ("voxelize_pointcloud", "voxelize_depth")
    for ax, grid, name in zip(axes[:, 1], grids, names, strict=True):
        image = ax.imshow(heights(grid).T, origin="lower", extent=extent, cmap="viridis", vmin=0, vmax=3)
        ax.set_title(f"{name}: {int((grid > 0).sum())} cells of {VOXEL_M * 100:.0f} cm, highest below the ceiling")
        figure.colorbar(image, ax=ax, label="meters above the floor", shrink=0.8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    plt.close(figure)
