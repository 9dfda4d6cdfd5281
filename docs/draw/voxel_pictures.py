"""The pictures of docs/voxelize.md; make_pictures.py draws them."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import robocache
import torch
from robocache.cli import clouds as _clouds

RAW, BAD, GRID = "#30343b", "#f4a261", "#c8ccd2"


def modes() -> Any:
    """One layer of cells: the points and what the modes make of them."""
    rng = np.random.default_rng(5)
    xy = np.concatenate([rng.normal((2.2, 2.5), 0.7, (26, 2)), rng.normal((5.2, 1.4), 0.6, (14, 2))])
    xy = np.concatenate([xy, [[7.0, 2.5], [3.0, 4.0], [6.0, 3.0], [0.0, 0.0], [-0.3, 3.2]]]).astype(np.float32)
    points = np.concatenate([xy, np.full((len(xy), 1), 0.5, np.float32)], 1)
    value = np.sin(xy[:, :1] * 1.3) + 0.3 * xy[:, 1:]
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (7, 4, 1)}
    inside = ((xy >= 0) & (xy < (7, 4))).all(1)
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 4.6))
    for ax, mode in zip(axes.flat[1:], ("occupancy", "count", "mean", "min", "max"), strict=True):
        features = None if mode in ("occupancy", "count") else value
        cells = robocache.voxelize_pointcloud(points, features, mode=mode, fill=np.nan, **grid)[:, :, 0]
        cells = cells.reshape(7, 4).astype(float)
        seen = robocache.voxelize_pointcloud(points, **grid)[:, :, 0] > 0
        cells[~seen] = np.nan
        style = (
            {"vmin": -1, "vmax": 2.2}
            if features is not None
            else {"vmin": 0, "vmax": {"occupancy": 2, "count": 8}[mode]}
        )
        cmap = plt.get_cmap("Blues" if features is None else "viridis")
        ax.imshow(cells.T, origin="lower", extent=(0, 7, 0, 4), cmap=cmap, **style)
        for x, y in np.argwhere(seen):
            share = (cells[x, y] - style["vmin"]) / (style["vmax"] - style["vmin"])
            ink = RAW if (share < 0.6) == (features is None) else "white"
            text = f"{cells[x, y]:.0f}" if features is None else f"{cells[x, y]:.1f}"
            ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
        ax.set_title(f'mode="{mode}"', family="monospace", fontsize=9)
    axes[0, 0].scatter(*xy[inside].T, c=value[inside, 0], s=14, vmin=-1, vmax=2.2, zorder=3)
    axes[0, 0].plot(*xy[~inside].T, "x", color=BAD, ms=7, mew=2, clip_on=False, zorder=4, label="dropped")
    axes[0, 0].set_title("points; upper faces are outside")
    axes[0, 0].legend(loc="upper right", fontsize=8)
    for ax in axes.flat:
        ax.set(xlim=(-0.4, 7.3), ylim=(-0.3, 4.3), aspect="equal", xticks=range(8), yticks=range(5))
        ax.set_axisbelow(True)
        ax.grid(color=GRID, lw=0.7)
    return figure


def heights(ax: Any, occupied: np.ndarray, low: float, size: float) -> None:
    """Cells as boxes, colored by height."""
    colors = plt.get_cmap("viridis")(np.linspace(0, 1, occupied.shape[2]))
    faces = np.broadcast_to(colors, (*occupied.shape, 4))
    edges = [np.arange(n + 1) * size + start for n, start in zip(occupied.shape, low, strict=True)]
    ax.voxels(*np.meshgrid(*edges, indexing="ij"), occupied, facecolors=faces, edgecolor="#00000020", linewidth=0.2)
    ax.set(xlim=(-6, 6), ylim=(-4.5, 4.5), zlim=(-1.5, 3), xticks=[], yticks=[], zticks=[])
    ax.set_box_aspect((12, 9, 4.5))
    ax.view_init(55, -65)


def room() -> Any:
    """A scan of a room and a depth image of it, before and after."""
    torch.manual_seed(0)
    scan = _clouds.scan_room(60_000).numpy()
    depth, intrinsics, pose = (x.numpy() for x in _clouds.make_depth(8, 240, 320))
    low, size = (-6.25, -4.75, -1.75), 0.25
    grid = {"grid_min": low, "voxel_size": size, "grid_size": (50, 38, 14)}
    figure = plt.figure(figsize=(10.5, 6.4))
    ax = figure.add_subplot(2, 2, 1)
    ax.scatter(*scan[::6, :2].T, c=scan[::6, 2], s=0.5, lw=0)
    ax.set(aspect="equal", xticks=[], yticks=[], title=f"LiDAR scan, {len(scan)} points, from above")
    ax = figure.add_subplot(2, 2, 2, projection="3d")
    cells = robocache.voxelize_pointcloud(scan, **grid)
    cells[:, :, 9:] = 0  # without the ceiling, to look in
    heights(ax, cells > 0, low, size)
    ax.set_title(f"its {int((cells > 0).sum())} cells of 25 cm, without the ceiling")
    ax = figure.add_subplot(2, 2, 3)
    shown = np.ma.masked_equal(depth[1], 0) / 1000
    ax.imshow(shown, cmap=plt.get_cmap("magma_r").with_extremes(bad="#9aa3ad"))
    ax.set(xticks=[], yticks=[], title="depth image 2 of 8; grey: not measured")
    ax = figure.add_subplot(2, 2, 4, projection="3d")
    cells = robocache.voxelize_depth(depth, intrinsics, pose, views=True, **grid)
    cells[:, :, 9:] = 0
    heights(ax, cells > 0, low, size)
    ax.set_title("the eight images, in one pass")
    return figure


PICTURES = {"voxel_modes": modes, "voxel_room": room}
