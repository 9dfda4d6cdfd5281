"""Point clouds in batches: the cloud of each moment is found by its number, and voxelized.

For the reader of batches such a stream has one int64 for each cloud: its number from 1 on, through all caches and
shards. 0 is what ``align`` gives where an episode has none. So the cloud of a moment is chosen as an image is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...cache.episode import FRAMES, StreamSpec
from ...ops.voxelize import voxelize_pointcloud
from ..order.selection import Selection
from ..voxels import columns_of
from ..window import Key
from .arrays import Arrays


class Clouds:
    """The clouds of one stream, where they are, and how they are voxelized."""

    def __init__(
        self, key: Key, place: int, selections: list[Selection], tier: str, arrays: Arrays, check: bool = False
    ) -> None:
        """``check``: compare the checksums of the points that are copied."""
        self.arrays = arrays
        assert key.window.voxels is not None
        self.name, self.place, self.voxels = key.name, place, key.window.voxels
        specs = [selection.cache.specs[key.name] for selection in selections]
        spec = specs[0]
        self.xyz, self.features = columns_of(spec, self.voxels)
        for i, other in enumerate(specs):
            if columns_of(other, self.voxels) != (self.xyz, self.features):
                raise ValueError(
                    f"Loader: points of {self.name!r} of sources[{i}] must have the columns of the first, "
                    f"{spec.names}, got {other.names}"
                )
        self.nothing = arrays.of(np.zeros((0, *spec.shape), spec.dtype))
        self.is_double = spec.dtype == "float64"
        self.parts: list[Any] = []
        tables = [np.zeros((1, 3), np.int64)]
        for selection in selections:
            for episode in selection.kept.tolist() if check and tier != "mmap" else ():
                selection.cache._reader.check_rows(episode, list(selection.cache.specs).index(key.name))
            for shard in range(selection.cache.num_shards):
                tables.append(self.add(selection, shard, tier))
        self.table = np.concatenate(tables)
        """For each number: its part, its first point there, and how many it has."""
        self.grids([0])  # what does not fit speaks here

    def add(self, selection: Selection, shard: int, tier: str) -> Any:
        """The points of the kept episodes of a shard, run by run; the rows of the table for all its clouds."""
        points, splits = selection.ragged(self.name, shard)
        table = np.zeros((len(splits) - 1, 3), np.int64)
        for begin, end in selection.runs_of(self.name, shard):
            first, last = int(splits[begin]), int(splits[end])
            kept = points[first:last]
            part = self.arrays.of(kept if tier in ("gpu", "mmap") else kept.copy())
            if tier == "gpu":
                part = self.arrays.to(part, self.arrays.device)
            table[begin:end, 0] = len(self.parts)
            table[begin:end, 1] = splits[begin:end] - first
            table[begin:end, 2] = np.diff(splits[begin : end + 1])
            self.parts.append(part)
        return table

    def grids(self, numbers: list[int]) -> Any:
        """The clouds of these numbers, ``(len(numbers), X, Y, Z[, F])`` on the device."""
        rows = self.table[numbers]
        found = [self.parts[part][begin : begin + count] for part, begin, count in rows.tolist() if count > 0]
        points = self.arrays.xp.concatenate(found) if found else self.nothing
        offsets = self.arrays.of(np.concatenate([[0], np.cumsum(rows[:, 2])]))
        points, offsets = (self.arrays.to(x, self.arrays.device) for x in (points, offsets))
        features = None
        if self.features is not None:
            features = points[:, self.features]
            features = self.arrays.cast(features, "float32") if self.is_double else features
        v = self.voxels
        return voxelize_pointcloud(
            points[:, self.xyz], features, v.grid_min, v.voxel_size, v.grid_size, v.mode,
            offsets=offsets, dtype=v.dtype, fill=v.fill, deterministic=True, check=False,
        )  # fmt: skip

    def fill(self, made: list[Any], order: tuple[int, int, Any], numbers: Mapping[str, Any]) -> None:
        """Puts grids in the place of the numbers that the reader found: ``(B, T)`` becomes ``(B, T, X, Y, Z[, F])``."""
        found = made[self.place]
        grids = self.grids(found.flatten().tolist())
        made[self.place] = grids.reshape(*found.shape, *grids.shape[1:])


def number_messages(
    keys: list[Key], selections: list[Selection], specs: Mapping[str, StreamSpec], scaled: Mapping[str, Any], dtype: Any
) -> dict[str, StreamSpec]:
    """Makes each stream of clouds, encoded pictures or texts one of numbers, and each one of pixels that a window has
    an ``image`` for. Returns the specs of all streams as the reader sees them."""
    seen = dict(specs)
    with_image = {key.stream for key in keys if key.window.image is not None}
    for key in keys:
        spec = specs[key.stream]
        if key.window.voxels is not None:
            require_voxels(key, scaled, dtype)
        elif spec.codec is not None or key.stream in with_image:
            require_picture_method(key)
        elif spec.kind != "text":
            continue
        first = 1
        for selection in selections:
            first = selection.number_messages(key.stream, first)
        seen[key.stream] = selections[0].spec(key.stream)
    return seen


def require_voxels(key: Key, scaled: Mapping[str, Any], dtype: Any) -> None:
    what, window = f"Loader: stream {key.stream!r} is voxelized", key.window
    if window.method is not None and window.method not in FRAMES:
        raise ValueError(f"{what}: method must be previous, next or nearest, got {window.method!r}")
    if window.outside != "hold":
        raise ValueError(f"{what}: outside must be 'hold', got {window.outside!r}")
    if scaled.get(key.name) is not None or (isinstance(dtype, Mapping) and key.name in dtype):
        raise ValueError(f"{what}: its dtype is that of its Voxels, and there is nothing to normalize")


def require_picture_method(key: Key) -> None:
    method = key.window.method
    if method is not None and method not in FRAMES:
        raise ValueError(
            f"Loader: method of {key.name!r} must be previous, next or nearest, because pictures are not interpolated, "
            f"got {method!r}"
        )


def points_bytes(keys: list[Key], selections: list[Selection]) -> int:
    """Of the points of the kept episodes."""
    total = 0
    for key in (k for k in keys if k.window.voxels is not None):
        for selection in selections:
            for shard in selection.shards.tolist():
                splits = selection.ragged(key.stream, shard)[1]
                points = sum(int(splits[end] - splits[begin]) for begin, end in selection.runs_of(key.stream, shard))
                total += points * selection.cache.specs[key.stream].row_bytes
    return total
