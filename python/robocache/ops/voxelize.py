"""voxelize_pointcloud, voxelize_sparse and voxelize_depth: points to cells. The contract is docs/voxelize.md."""

from __future__ import annotations

import sys
from typing import Any

from .. import _core
from .arrays import dtype_name
from .backend import wants_op
from .types import Array, SparseVoxels, VoxelInfo


def voxelize_pointcloud(
    points: Array,
    features: Array | None = None,
    grid_min: Any = (-10, -10, -10),
    voxel_size: Any = 0.1,
    grid_size: Any = (128, 128, 128),
    mode: str = "occupancy",
    backend: str | None = None,
    *,
    offsets: Array | None = None,
    dtype: Any = None,
    fill: float = 0.0,
    deterministic: bool | None = None,
    return_info: bool = False,
    check: bool | None = None,
    device: Any = None,
) -> Any:
    """Points to a dense grid: cell ``(x, y, z)`` holds the points with ``floor((p - grid_min) / voxel_size)`` equal to
    ``(x, y, z)``. Points outside the grid or not finite are dropped.

    ``points (N, 3)`` give ``(X, Y, Z)``, with ``offsets (B + 1,)`` that cut them into clouds ``(B, X, Y, Z)``. ``mode``
    is ``"occupancy"`` or ``"count"``, or for ``features (N, F)`` ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or
    ``"std"``, which give the grid a last dimension ``F``. Cells without points are 0, and ``fill`` for min, max and
    std. ``dtype`` is that of the grid: int32 by default, for features their own. ``deterministic=True``: sum and mean
    are the same to the bit on every device and in every order of the points; the other modes always are.

    ``return_info=True`` also returns ``VoxelInfo(counts, dropped)``. ``check=True`` verifies the offsets first: the
    default on the CPU, not on a GPU, where the call would have to wait.

    >>> import numpy as np, robocache
    >>> points = np.array([[0.5, 0.5, 0.5], [0.6, 0.5, 0.5], [1.5, 0.5, 0.5], [9.0, 0.0, 0.0]], np.float32)
    >>> grid, info = robocache.voxelize_pointcloud(
    ...     points, grid_min=(0, 0, 0), voxel_size=1.0, grid_size=(2, 1, 1), mode="count", return_info=True)
    >>> grid.ravel(), int(info.dropped)
    (array([2, 1], dtype=int32), 1)
    """
    if dtype is not None:
        dtype = dtype_name(dtype)
    same_bits = _deterministic(deterministic)
    made: tuple[Any, Any, Any]
    if backend is None and device is None and not wants_op() and _core.are_plain_tensors(points, offsets, features):
        made = _core.voxelize(
            points, offsets, features, grid_min, voxel_size, grid_size, mode, dtype, fill, same_bits, check,
            bool(return_info),
        )  # fmt: skip
    else:
        from .voxel_call import Box, Cloud, Settings, run_points

        box, settings = Box(grid_min, voxel_size, grid_size), Settings(mode, dtype, fill, same_bits, check)
        made = run_points(Cloud(points, offsets, features), box, settings, return_info, backend, device)
    return (made[0], VoxelInfo(made[1], made[2])) if return_info else made[0]


def voxelize_depth(
    depth: Array,
    intrinsics: Array,
    pose: Array | None = None,
    features: Array | None = None,
    grid_min: Any = (-10, -10, -10),
    voxel_size: Any = 0.1,
    grid_size: Any = (128, 128, 128),
    mode: str = "occupancy",
    backend: str | None = None,
    *,
    views: bool = False,
    depth_scale: float | None = None,
    max_depth: float | None = None,
    dtype: Any = None,
    fill: float = 0.0,
    deterministic: bool | None = None,
    return_info: bool = False,
    device: Any = None,
) -> Any:
    """Depth images to a dense grid in one pass, without a point cloud in memory.

    ``depth (H, W)`` gives ``(X, Y, Z)`` and ``(B, H, W)`` gives ``(B, X, Y, Z)``; with ``views=True`` ``(V, H, W)`` and
    ``(B, V, H, W)`` are V views of the same cloud. uint16 is in millimeters and float32 in meters, unless
    ``depth_scale`` gives the meters of a value of 1. 0, negative, not finite or more than ``max_depth`` meters is no
    measurement: neither a point nor a dropped one. ``intrinsics (3, 3)`` and ``pose (4, 4)``, camera to grid, are for
    all images, or one for each: ``(B, 3, 3)``, ``(B, V, 4, 4)``. ``features`` have depth's shape and a last dimension
    ``F``. The rest is as in ``voxelize_pointcloud``.

    >>> import numpy as np, robocache
    >>> camera = np.array([[100, 0, 2], [0, 100, 1], [0, 0, 1]], np.float32)
    >>> depth = np.full((3, 5), 2000, np.uint16)
    >>> robocache.voxelize_depth(depth, camera, grid_min=(-1, -1, 0), voxel_size=1.0, grid_size=(2, 2, 3), mode="count")
    array([[[0, 0, 2],
            [0, 0, 4]],
    <BLANKLINE>
           [[0, 0, 3],
            [0, 0, 6]]], dtype=int32)
    """
    if dtype is not None:
        dtype = dtype_name(dtype)
    same_bits = _deterministic(deterministic)
    made: tuple[Any, Any, Any]
    if (
        backend is None and device is None and not wants_op()
        and _core.are_plain_tensors(depth, intrinsics, pose, features)
    ):  # fmt: skip
        made = _core.voxelize_depth(
            depth, intrinsics, pose, features, views, depth_scale, max_depth, grid_min, voxel_size, grid_size,
            mode, dtype, fill, same_bits, False, bool(return_info),
        )  # fmt: skip
    else:
        from .voxel_call import Box, Images, Settings, run_depth

        images = Images(depth, intrinsics, pose, features, views, depth_scale, max_depth)
        box, settings = Box(grid_min, voxel_size, grid_size), Settings(mode, dtype, fill, same_bits, False)
        made = run_depth(images, box, settings, return_info, backend, device)
    return (made[0], VoxelInfo(made[1], made[2])) if return_info else made[0]


def voxelize_sparse(
    points: Array,
    features: Array | None = None,
    voxel_size: Any = 0.1,
    grid_min: Any = (0, 0, 0),
    grid_size: Any = None,
    mode: str = "mean",
    backend: str | None = None,
    *,
    offsets: Array | None = None,
    max_voxels: int | None = None,
    max_points: int | None = None,
    padded: bool = False,
    deterministic: bool | None = None,
    check: bool | None = None,
    device: Any = None,
) -> SparseVoxels:
    """Points to the list of occupied cells, in ascending order of ``(cloud, x, y, z)``.

    Without ``grid_size`` the grid has no bounds but 2^20 cells to both sides of ``grid_min``. ``features (N, F)`` are
    reduced by ``mode``: sum, mean, min, max or std. ``max_points=K`` returns the rows of the first K points of each
    cell. ``max_voxels`` keeps the first cells and counts the others in ``overflow``.

    The result is cut to the cells found, for which a call on a GPU has to wait once. ``padded=True`` keeps
    ``max_voxels`` rows and waits for nothing, so that shapes do not depend on data: unused rows have coordinates -1,
    counts 0, features 0 and first_points -1, and ``num_voxels``, ``dropped`` and ``overflow`` are arrays.

    >>> import numpy as np, robocache
    >>> points = np.array([[0.5, 0.5, 0.5], [-1.5, 0.5, 0.5], [0.7, 0.5, 0.5]], np.float32)
    >>> voxels = robocache.voxelize_sparse(points, points, voxel_size=1.0)
    >>> voxels.coordinates, voxels.voxel
    (array([[ 0, -2,  0,  0],
           [ 0,  0,  0,  0]], dtype=int32), array([1, 0, 1]))
    >>> voxels.features
    array([[-1.5,  0.5,  0.5],
           [ 0.6,  0.5,  0.5]], dtype=float32)
    """
    padded = bool(padded)
    same_bits = _deterministic(deterministic)
    if backend is None and device is None and not wants_op() and _core.are_plain_tensors(points, offsets, features):
        made = _core.voxelize_sparse(
            points, offsets, features, grid_min, voxel_size, grid_size, mode, None, 0.0, same_bits, check,
            max_voxels, max_points, padded, padded,
        )  # fmt: skip
        return finish_sparse(made[:5], made[5], padded)
    from .voxel_call import Box, Cloud, Limits, Settings, run_sparse

    box, settings = Box(grid_min, voxel_size, grid_size), Settings(mode, None, 0.0, same_bits, check)
    limits = Limits(max_voxels, max_points, padded)
    return run_sparse(Cloud(points, offsets, features), box, settings, limits, backend, device)


def finish_sparse(rows: tuple[Any, ...], found: Array, padded: bool) -> SparseVoxels:
    """``rows``: the first five fields, cut here to the cells ``found`` unless they are ``padded``."""
    coordinates, features, counts, voxel, first = rows
    capacity = len(coordinates)
    if padded:
        overflow = (found[0] - capacity).clip(0, 2**31 - 1)
        num_voxels = found[0].clip(0, capacity)
        return SparseVoxels(coordinates, features, counts, voxel, first, num_voxels, found[1], overflow)
    num_found, dropped = found.tolist()
    n = min(num_found, capacity)
    return SparseVoxels(
        coordinates[:n], None if features is None else features[:n], counts[:n], voxel,
        None if first is None else first[:n], n, dropped, num_found - n,
    )  # fmt: skip


def _deterministic(asked: bool | None) -> bool:
    """As given; else as in PyTorch."""
    if asked is not None:
        return asked
    torch = sys.modules.get("torch")
    return torch is not None and torch.are_deterministic_algorithms_enabled()
