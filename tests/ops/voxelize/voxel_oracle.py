"""The truth about voxels: docs/voxelize.md as loops over Python integers and NumPy scalars. Slow, easy to believe."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

OF_FEATURES = ("sum", "mean", "min", "max", "std")
UNIT = 2.0**-24  # half a unit in the last place of float32


class Dense(NamedTuple):
    """``slack`` bounds what float32 sums in any order may add to the rounding of the result; 0: the bits are these."""

    grid: np.ndarray
    counts: np.ndarray
    dropped: np.ndarray
    slack: np.ndarray


class Sparse(NamedTuple):
    coordinates: np.ndarray
    features: np.ndarray | None
    counts: np.ndarray
    voxel: np.ndarray
    first_points: np.ndarray | None
    found: int
    dropped: int
    slack: np.ndarray | None


# ---- which cell ------------------------------------------------------------------------------------------------------


def cells_of(points, origin, size):
    """The cells ``(N, 3)`` as floats: whole, infinite or NaN. Of float64 points in float64, of others in float32."""
    real = np.float64 if points.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        return np.floor((points.astype(real) - np.array(origin, real)) / np.array(size, real))


def limits(shape, num_clouds):
    """The cells ``[begin, end)`` of each axis; without a shape those that a key of 64 bits can hold."""
    if shape is not None:
        return [(0, int(n)) for n in shape]
    bits = min(21, (63 - ceil_log2(num_clouds)) // 3)
    return [(-(2 ** (bits - 1)), 2 ** (bits - 1))] * 3


def occupied(points, offsets, origin, size, shape):
    """``{(cloud, x, y, z): [point, ...]}`` in order of the cells, points in input order; and the points dropped."""
    num_clouds = 1 if offsets is None else len(offsets) - 1
    offsets = [0, len(points)] if offsets is None else offsets
    ranges, cells, dropped = limits(shape, num_clouds), {}, [0] * num_clouds
    places = cells_of(points, origin, size).tolist()
    for cloud in range(num_clouds):
        for i in range(int(offsets[cloud]), int(offsets[cloud + 1])):
            if all(math.isfinite(c) and a <= int(c) < b for c, (a, b) in zip(places[i], ranges, strict=True)):
                cells.setdefault((cloud, *map(int, places[i])), []).append(i)
            else:
                dropped[cloud] += 1
    return dict(sorted(cells.items())), dropped


# ---- what a cell says ------------------------------------------------------------------------------------------------


def reduce(values, mode, deterministic):
    """One channel of one cell, ``values`` a float32 array: the result and its slack."""
    x = values.tolist()  # Python's floats hold every float32
    if mode in ("min", "max"):
        if any(map(math.isnan, x)):
            return np.float32(np.nan), 0.0
        return np.float32(
            (min if mode == "min" else max)(x, key=lambda x: (x, math.copysign(1, x)))
        ), 0.0  # -0.0 < +0.0
    if mode == "std":
        return fixed_point_deviation(x), 0.0
    if not all(map(math.isfinite, x)):
        ends = {v for v in x if not math.isfinite(v)}
        return np.float32(ends.pop() if len(ends) == 1 else math.nan), 0.0
    if deterministic:
        return fixed_point_sum(x, mode == "mean"), 0.0
    divisor = len(x) if mode == "mean" else 1
    slack = (len(x) + 1) * UNIT * math.fsum(map(abs, x)) / divisor
    return math.fsum(x) / divisor, slack + 2.0**-149


def fixed_point_sum(values, mean):
    """The sum (or mean) that no order of the values changes: whole numbers of a unit that the cell decides."""
    largest = max(map(abs, values))
    if largest == 0:
        return np.float32(0)
    k = 62 - math.frexp(largest)[1] - ceil_log2(len(values))
    total = sum(round(math.ldexp(x, k)) for x in values)  # round() of a float: half to even, as an exact int
    assert abs(total) <= 2**62
    result = math.ldexp(float(total), -k)
    with np.errstate(over="ignore"):
        return np.float32(result / len(values) if mean else result)


def fixed_point_deviation(values):
    """The root of the mean squared deviation from the mean, that no order of the values changes."""
    if not all(map(math.isfinite, values)):
        return np.float32(np.nan)
    middle = min(values) / 2 + max(values) / 2
    reach = max(max(values) - middle, middle - min(values))
    if reach == 0:
        return np.float32(0)
    n, e, k = len(values), math.frexp(reach)[1], 62 - ceil_log2(len(values))
    scaled = [math.ldexp(x - middle, -e) for x in values]
    mean, square = (math.ldexp(float(sum(round(math.ldexp(u, k)) for u in us)), -k) / n
                    for us in (scaled, [u * u for u in scaled]))  # fmt: skip
    return np.float32(math.ldexp(math.sqrt(max(square - mean * mean, 0.0)), e))


def ceil_log2(n):
    return (n - 1).bit_length()


def output_dtype(mode, features, dtype):
    if dtype is not None:
        return np.dtype(dtype)
    if mode not in OF_FEATURES:
        return np.dtype(np.int32)
    return np.dtype(np.float32) if features.dtype == np.uint8 else features.dtype


# ---- the three functions ---------------------------------------------------------------------------------------------


def dense(points, features, offsets, origin, size, shape, mode, *, dtype=None, fill=0.0, deterministic=True):
    """Sums that are not deterministic come in float64, without the rounding to ``dtype``; all others are final."""
    cells, dropped = occupied(points, offsets, origin, size, shape)
    num_clouds, dtype = len(dropped), output_dtype(mode, features, dtype)
    counts = np.zeros((num_clouds, *shape), np.int32)
    for cell, inside in cells.items():
        counts[cell] = len(inside)
    if mode in OF_FEATURES:
        width = features.shape[1]
        rough = mode in ("sum", "mean") and not deterministic
        empty = fill if mode in ("min", "max", "std") else 0.0
        grid = np.full((*counts.shape, width), empty, np.float64 if rough else dtype)
        slack = np.zeros(grid.shape)
        wide = features.astype(np.float32)
        with np.errstate(over="ignore"):
            for cell, inside in cells.items():
                for f in range(width):
                    grid[(*cell, f)], slack[(*cell, f)] = reduce(wide[inside, f], mode, deterministic)
    else:
        largest = 255 if dtype == np.uint8 else 2**31 - 1
        grid = np.minimum(counts, 1 if mode == "occupancy" else largest).astype(dtype)
        slack = np.zeros(grid.shape)
    result = Dense(grid, counts, np.array(dropped, np.int64), slack)
    return result if offsets is not None else Dense(*(x[0] for x in result))


def sparse(points, features, offsets, origin, size, shape, mode, *, max_points=None, max_voxels=None,
           deterministic=True):  # fmt: skip
    """Of all the voxels found those that fit; ``found`` counts them all."""
    cells, dropped = occupied(points, offsets, origin, size, shape)
    found, kept = len(cells), list(cells.items())[:max_voxels]
    coordinates = np.array([cell for cell, _ in kept], np.int32).reshape(-1, 4)
    counts = np.array([len(inside) for _, inside in kept], np.int32)
    voxel = np.full(len(points), -1, np.int64)
    for row, (_, inside) in enumerate(kept):
        voxel[inside] = row
    first = values = slack = None
    if max_points is not None:
        first = np.full((len(kept), max_points), -1, np.int64)
        for row, (_, inside) in enumerate(kept):
            first[row, : len(inside)] = inside[:max_points]
    if features is not None:
        rough = mode in ("sum", "mean") and not deterministic
        dtype = np.dtype(np.float64) if rough else output_dtype(mode, features, None)
        values, slack = np.zeros((len(kept), features.shape[1]), dtype), np.zeros((len(kept), features.shape[1]))
        wide = features.astype(np.float32)
        with np.errstate(over="ignore"):
            for row, (_, inside) in enumerate(kept):
                for f in range(features.shape[1]):
                    values[row, f], slack[row, f] = reduce(wide[inside, f], mode, deterministic)
    return Sparse(coordinates, values, counts, voxel, first, found, sum(dropped), slack)


def depth(images, intrinsics, pose, features, origin, size, shape, mode, *, views=False, unit=None, max_depth=None,
          **options):  # fmt: skip
    """Every measurement as a point in float32, cloud after cloud, and then ``dense``."""
    clouds = images.reshape(-1, *images.shape[-3:]) if views else images.reshape(-1, 1, *images.shape[-2:])
    num_images = clouds.shape[0] * clouds.shape[1]
    intrinsics = np.broadcast_to(intrinsics.reshape(-1, 3, 3), (num_images, 3, 3))
    pose = None if pose is None else np.broadcast_to(pose.reshape(-1, 4, 4), (num_images, 4, 4))
    color = None if features is None else features.reshape(-1, features.shape[-1])
    points, picked, offsets, image, pixel = [], [], [0], 0, 0
    for views_of_cloud in clouds:
        for view in views_of_cloud:
            for v in range(view.shape[0]):
                for u in range(view.shape[1]):
                    point = point_of(view[v, u], u, v, intrinsics[image], unit, max_depth)
                    if point is not None:
                        points.append(point if pose is None else moved(point, pose[image]))
                        picked.append(pixel)
                    pixel += 1
            image += 1
        offsets.append(len(points))
    result = dense(np.array(points, np.float32).reshape(-1, 3), None if color is None else color[picked], offsets,
                   origin, size, shape, mode, **options)  # fmt: skip
    batch = images.ndim == (4 if views else 3)
    return result if batch else Dense(*(x[0] for x in result))


def point_of(raw, u, v, intrinsics, unit, max_depth):
    """The point of a pixel in its camera, or None where nothing was measured."""
    f32 = np.float32
    unit = (0.001 if raw.dtype == np.uint16 else 1.0) if unit is None else unit
    with np.errstate(all="ignore"):
        d = f32(raw) * f32(unit)
        if not (d > 0 and math.isfinite(d)) or (max_depth is not None and d > f32(max_depth)):
            return None
        (fx, _, cx), (_, fy, cy), _ = (list(map(f32, row)) for row in intrinsics)
        return (f32(u) - cx) / fx * d, (f32(v) - cy) / fy * d, d


def moved(point, pose):
    with np.errstate(all="ignore"):
        return tuple(((r[0] * point[0] + r[1] * point[1]) + r[2] * point[2]) + r[3] for r in pose[:3])


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradient(points, features, offsets, origin, size, shape, mode, up):
    """What ``up``, the gradient of the dense grid, is for the features: float32 ``(N, F)``."""
    cells, _ = occupied(points, offsets, origin, size, shape)
    up = (up if offsets is not None else up[None]).astype(np.float32)
    result, wide = np.zeros(features.shape, np.float32), features.astype(np.float32)
    for cell, inside in cells.items():
        for f in range(features.shape[1]):
            if mode in ("min", "max"):
                values = wide[inside, f]
                best, _ = reduce(values, mode, True)
                first = next(i for i, x in zip(inside, values, strict=True) if is_the_same(x, best))
                result[first, f] = up[(*cell, f)]
            elif mode == "std":
                values = wide[inside, f].astype(np.float64)
                with np.errstate(all="ignore"):
                    slope = (values - values.mean()) / (len(inside) * values.std())
                slope = slope if values.std() != 0 else np.zeros(len(inside))
                result[inside, f] = up[(*cell, f)] * slope.astype(np.float32)
            else:
                result[inside, f] = up[(*cell, f)] / np.float32(len(inside) if mode == "mean" else 1)
    return result


def is_the_same(x, y):
    return np.isnan(y) if np.isnan(x) else bool(x == y and np.signbit(x) == np.signbit(y))
