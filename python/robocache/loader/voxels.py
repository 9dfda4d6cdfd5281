"""How the points of a cloud become a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..cache.episode import StreamSpec
from ..ops.methods import OF_FEATURES, REDUCTIONS

POINTS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Voxels:
    """How the clouds of a stream become grids: as ``voxelize_pointcloud`` does it, with ``deterministic=True``.

    The columns ``x``, ``y`` and ``z`` of a point are those of these names, or the first three. For the modes ``sum``,
    ``mean``, ``min``, ``max`` and ``std``, ``features`` are columns by name or number; None is all the others.
    In a batch of B samples of T moments: ``(B, T, X, Y, Z)``, or ``(B, T, X, Y, Z, F)`` for these modes.

    >>> import robocache
    >>> robocache.Voxels(grid_min=(-1, -1, 0), voxel_size=0.1, grid_size=(20, 20, 10)).mode
    'occupancy'
    """

    grid_min: Any
    voxel_size: Any
    grid_size: Any
    mode: str = "occupancy"
    features: Sequence[int | str] | None = None
    dtype: Any = None
    fill: float = 0.0


def columns_of(spec: StreamSpec, voxels: Voxels) -> tuple[Any, Any]:
    """Which columns of a point are where it is, and which are its features (None: it has none)."""
    what = f"Loader: stream {spec.name!r}"
    if spec.dtype not in POINTS or len(spec.shape) != 1 or spec.shape[0] < 3:
        raise ValueError(f"{what} must have points of 3 or more floats to be voxelized, got {spec.dtype} {spec.shape}")
    names = [*(spec.names or ())]
    xyz = [names.index(axis) for axis in "xyz"] if set("xyz") <= set(names) else [0, 1, 2]
    if voxels.mode in REDUCTIONS and voxels.mode not in OF_FEATURES:
        if voxels.features is not None:
            raise ValueError(f"{what}: mode {voxels.mode!r} of its voxels takes no features, got {voxels.features!r}")
        return slice_of(xyz), None
    asked = [i for i in range(spec.shape[0]) if i not in xyz] if voxels.features is None else [*voxels.features]
    features = []
    for column in asked:
        number = names.index(column) if column in names else column
        if not isinstance(number, int) or not 0 <= number < spec.shape[0]:
            raise ValueError(f"{what}: features of its voxels must be columns of {names or spec.shape}, got {column!r}")
        features.append(number)
    if not features:
        raise ValueError(f"{what}: mode {voxels.mode!r} of its voxels needs features, and its points have none")
    return slice_of(xyz), slice_of(features)


def slice_of(columns: list[int]) -> Any:
    """The same columns without a copy, where they lie side by side."""
    begin, count = columns[0], len(columns)
    return slice(begin, begin + count) if columns == [*range(begin, begin + count)] else columns
