"""The plain types of the Python face: what a stream, a query and a result are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

Array = Any
"""A NumPy, torch, JAX or CuPy array (anything that supports DLPack)."""

Method = str | Sequence[tuple[int, int, str]] | None
Outside = str | tuple[str, str]


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows of values, a time for each row, and how to read them at other times.

    Layouts (``docs/align.md``): dense ``values (E, S, ...)`` with ``times (E, S)``; ragged ``values (rows, ...)`` with
    ``times (rows,)`` and ``offsets (E + 1,)``; or one episode, ``values (rows, ...)`` with ``times (rows,)``.

    ``times`` are int64 nanoseconds, float64 seconds or float32 seconds; ``latency``, ``max_gap`` and ``tolerance`` are
    in the same unit. ``method`` is a name or a list of ``(begin, end, name)`` channel ranges; ``None`` means
    ``"linear"`` for floating values and ``"previous"`` for integers and bool. ``dtype`` is the dtype of the output. A
    target at most ``tolerance`` away from the time of a row is at that row.

    >>> import numpy as np, robocache
    >>> s = robocache.Stream(np.array([[0.0], [2.0]]), np.array([0.0, 1.0]))
    >>> robocache.align(s, np.array([0.25, 0.5])).values
    array([[[0.5],
            [1. ]]])
    """

    values: Array
    times: Array
    offsets: Array | None = None
    method: Method = None
    latency: float = 0
    max_gap: float | None = None
    outside: Outside = "hold"
    outside_valid: bool = False
    period: float = 2 * math.pi
    dtype: Any = None
    tolerance: float = 0

    def __repr__(self) -> str:
        """Shapes and dtypes instead of arrays, and the options that are not the default."""
        arrays = [f"{name} {_array(getattr(self, name))}" for name in ("values", "times", "offsets")]
        others = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[3:] if getattr(self, f.name) != f.default]
        return f"Stream({', '.join([*arrays[: 2 + (self.offsets is not None)], *others])})"


def _array(x: Array) -> str:
    shape = getattr(x, "shape", None)
    return f"{x.dtype} {tuple(shape)}" if shape is not None and hasattr(x, "dtype") else type(x).__name__


class Rules(NamedTuple):
    """How a stream is read at other times: the fields of ``Stream`` after its arrays, ``dtype`` by its name."""

    method: Method
    latency: float
    max_gap: float | None
    outside: Outside
    outside_valid: bool
    period: float
    dtype: str | None
    tolerance: float


class Query(NamedTuple):
    """Target times ``times (B, T)`` or ``(T,)``, or ``anchor (B,)`` + ``deltas (T,)``; row b reads ``episode[b]``."""

    times: Array | None = None
    episode: Array | None = None
    anchor: Array | None = None
    deltas: Array | None = None


class Aligned(NamedTuple):
    """What ``align`` returns. Each field has the structure of ``streams``: one array, a list or a dict of arrays.

    With B rows of the query and T targets in each: ``values (B, T, ...)``, ``valid (B, T)`` bool, and ``index (B, T)``
    int64 or None.

    >>> import numpy as np, robocache
    >>> stream = robocache.Stream(np.array([[0.0], [2.0]]), np.array([0.0, 1.0]))
    >>> aligned = robocache.align({"arm": stream}, np.array([0.5, 3.0]))
    >>> aligned.values["arm"].shape, aligned.valid["arm"]
    ((1, 2, 1), array([[ True, False]]))
    """

    values: Any
    """``(B, T, ...)``: the rows at the targets."""
    valid: Any
    """``(B, T)`` bool: whether the result rests on recorded rows."""
    index: Any
    """``(B, T)`` int64, with ``return_index=True``: the row left of each target."""


class VoxelInfo(NamedTuple):
    """What a dense grid leaves out: ``counts ([B,] X, Y, Z)`` int32, ``dropped ([B])`` int64. [B] is there for a batch.

    >>> import numpy as np, robocache
    >>> points = np.array([[0.5, 0.5, 0.5], [0.6, 0.5, 0.5], [-9.0, 0.0, np.nan]], np.float32)
    >>> _, info = robocache.voxelize_pointcloud(points, grid_min=(0, 0, 0), grid_size=(8, 8, 8), return_info=True)
    >>> int(info.counts.sum()), int(info.dropped)
    (2, 1)
    """

    counts: Array
    """``([B,] X, Y, Z)`` int32: points in each cell."""
    dropped: Array
    """``([B])`` int64: points outside the grid or not finite."""


class SparseVoxels(NamedTuple):
    """Occupied cells in ascending order of (cloud, x, y, z): row m of each array belongs to the same cell.

    ``M`` is the number of cells, or ``max_voxels`` with ``padded=True``.

    >>> import numpy as np, robocache
    >>> points = np.array([[0.5, 0.5, 0.5], [1.5, 0.5, 0.5], [0.6, 0.5, 0.5]], np.float32)
    >>> voxels = robocache.voxelize_sparse(points, voxel_size=1.0, max_points=2)
    >>> voxels.counts, voxels.first_points, voxels.num_voxels
    (array([2, 1], dtype=int32), array([[ 0,  2],
           [ 1, -1]]), 2)
    """

    coordinates: Array
    """``(M, 4)`` int32: cloud, x, y, z."""
    features: Array | None
    """``(M, F)``: the features of the points in the cell, reduced."""
    counts: Array
    """``(M,)`` int32: points in the cell."""
    voxel: Array
    """``(N,)`` int64: the row of each point's cell; -1 where a point was dropped or its cell did not fit."""
    first_points: Array | None
    """``(M, max_points)`` int64: rows of the first points of the cell, in input order, then -1."""
    num_voxels: Any
    """How many rows are in use."""
    dropped: Any
    """How many points are outside or not finite."""
    overflow: Any
    """How many cells did not fit into ``max_voxels``."""
