"""Random clouds and depth images in every layout, and what agreeing with ``voxel_oracle.py`` means.

Points lie in the grid, beside it, and on the faces of cells; some are not finite. Grids are not cubic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import robocache
import torch
import voxel_oracle as oracle
from arrays import BFLOAT16, DEVICE, KIND, array_of, to_numpy
from cuda_tools import assert_same_bits
from tolerance import TOLERANCE

MODES = ("occupancy", "count", "sum", "mean", "min", "max", "std")
OF_FEATURES = oracle.OF_FEATURES
POINTS = tuple(np.dtype(t) for t in (np.float32, np.float16, np.float64))
FEATURES = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16, np.dtype(np.uint8))
GRID_DTYPES = {"occupancy": ("bool", "uint8", "int32", "float32"), "count": ("uint8", "int32", "int64")}

ORIGIN, SIZE, SHAPE = (-1.0, 0.5, -2.0), (0.1, 0.25, 0.3), (7, 3, 5)


@dataclass
class Case:
    """A cloud (or a ragged batch of them) with features, and a grid; as NumPy."""

    points: np.ndarray
    features: np.ndarray | None = None
    offsets: np.ndarray | None = None
    origin: tuple = ORIGIN
    size: tuple = SIZE
    shape: tuple | None = SHAPE

    def of(self, mode):
        """The case as the mode wants it: without features, if it reduces none."""
        return self if mode in OF_FEATURES else replace(self, features=None)

    def given(self, backend, kind=None):
        kind, device = kind or KIND[backend], DEVICE[backend]
        points, features, offsets = (array_of(kind, x, device) for x in (self.points, self.features, self.offsets))
        return {"points": points, "features": features, "offsets": offsets, "grid_min": self.origin,
                "voxel_size": self.size, "grid_size": self.shape, "backend": backend}  # fmt: skip

    def dense(self, backend="cpu", mode="occupancy", kind=None, **options):
        """(grid, counts, dropped) as the backend makes them."""
        given = self.of(mode).given(backend, kind)
        grid, info = robocache.voxelize_pointcloud(**given, mode=mode, return_info=True, **options)
        return grid, info.counts, info.dropped

    def sparse(self, backend="cpu", mode="mean", kind=None, **options):
        return robocache.voxelize_sparse(**self.given(backend, kind), mode=mode, **options)

    def expected(self, mode, **options):
        case = self.of(mode)
        return oracle.dense(
            case.points, case.features, case.offsets, case.origin, case.size, case.shape, mode, **options
        )

    def expected_sparse(self, mode="mean", **options):
        return oracle.sparse(
            self.points, self.features, self.offsets, self.origin, self.size, self.shape, mode, **options
        )


# ---- what is in a cloud ----------------------------------------------------------------------------------------------


def points_of(rng, num_points, dtype):
    """Most of them inside, many on faces, some outside, a few not finite."""
    origin, size, shape = (np.array(x) for x in (ORIGIN, SIZE, SHAPE))
    points = origin + size * shape * rng.uniform(-0.1, 1.1, (num_points, 3))
    on_face = rng.random((num_points, 3)) < 0.2
    faces = origin + size * rng.integers(0, shape + 1, (num_points, 3))
    points = np.where(on_face, faces, points)
    strange = rng.random((num_points, 3)) < 0.01
    points[strange] = rng.choice([np.nan, np.inf, -np.inf, 1e30, -0.0], strange.sum())
    with np.errstate(over="ignore"):
        return points.astype(dtype)


def features_of(rng, num_points, width, dtype):
    """Of many magnitudes, so that the order of a sum matters; zeros of both signs."""
    if dtype == np.uint8:
        return rng.integers(0, 256, (num_points, width), np.uint8)
    features = rng.normal(size=(num_points, width)) * 10.0 ** rng.integers(-3, 3, (num_points, width))
    zero = rng.random(features.shape) < 0.1
    features[zero] = rng.choice([0.0, -0.0], zero.sum())
    return features.astype(dtype)


def spoiled(rng, case, share=0.05):
    """The case with some features that are no numbers."""
    features = case.features.copy()
    strange = rng.random(features.shape) < share
    features[strange] = rng.choice([np.nan, np.inf, -np.inf], strange.sum()).astype(features.dtype)
    return replace(case, features=features)


def one_cloud(rng, dtype, fdtype=FEATURES[0], width=5, num_points=80):
    return Case(points_of(rng, num_points, dtype), features_of(rng, num_points, width, fdtype))


def ragged(rng, dtype, fdtype=FEATURES[0], width=3, lengths=(0, 40, 1, 0, 37)):
    case = one_cloud(rng, dtype, fdtype, width, sum(lengths))
    case.offsets = np.cumsum([0, *lengths]).astype(np.int64)
    return case


def transposed(rng, dtype, fdtype=FEATURES[0], width=4):
    """Axes and channels first in memory."""
    case = one_cloud(rng, dtype, fdtype, width)
    case.points, case.features = (np.ascontiguousarray(x.T).T for x in (case.points, case.features))
    return case


def strided(rng, dtype, fdtype=FEATURES[0], width=7):
    """Every other row of columns of wider arrays, the axes two apart; offsets three apart."""
    case = ragged(rng, dtype, fdtype, width)
    num_points = len(case.points)
    points, features = np.zeros((2 * num_points, 8), dtype), np.zeros((2 * num_points, width + 2), fdtype)
    points[::2, 1:7:2], features[::2, 1:-1] = case.points, case.features
    offsets = np.repeat(case.offsets, 3)
    return replace(case, points=points[::2, 1:7:2], features=features[::2, 1:-1], offsets=offsets[::3])


def expanded(rng, dtype, fdtype=FEATURES[0], width=6):
    """One point and one row of features, seen many times through a stride of 0."""
    case = one_cloud(rng, dtype, fdtype, width, 1)
    case.points = (np.array(ORIGIN) + 1.5 * np.array(SIZE)).astype(dtype)[None]
    case.points, case.features = (np.broadcast_to(x, (50, x.shape[1])) for x in (case.points, case.features))
    return case


LAYOUTS = {f.__name__: f for f in (one_cloud, ragged, transposed, strided, expanded)}


# ---- depth images ----------------------------------------------------------------------------------------------------


@dataclass
class Images:
    """Depth images, their cameras and a grid; as NumPy."""

    depth: np.ndarray
    intrinsics: np.ndarray
    pose: np.ndarray | None = None
    features: np.ndarray | None = None
    views: bool = False
    origin: tuple = (-1.5, -1.25, 0.5)
    size: tuple = (0.3, 0.25, 0.2)
    shape: tuple = (9, 10, 13)

    def dense(self, backend="cpu", mode="occupancy", kind=None, **options):
        features = self.features if mode in OF_FEATURES else None
        arrays = (self.depth, self.intrinsics, self.pose, features)
        given = [array_of(kind or KIND[backend], x, DEVICE[backend]) for x in arrays]
        grid, info = robocache.voxelize_depth(*given, self.origin, self.size, self.shape, mode, backend,
                                              views=self.views, return_info=True, **options)  # fmt: skip
        return grid, info.counts, info.dropped

    def expected(self, mode, *, depth_scale=None, **options):
        features = self.features if mode in OF_FEATURES else None
        return oracle.depth(self.depth, self.intrinsics, self.pose, features, self.origin, self.size, self.shape, mode,
                            views=self.views, unit=depth_scale, **options)  # fmt: skip


def images_of(rng, leading=(), dtype=np.uint16, fdtype=FEATURES[3], width=3, each=False, views=False, posed=True):
    """Images of 6 x 9 pixels; ``each``: every image has its own camera."""
    shape = (*leading, 6, 9)
    depth = rng.integers(500, 4000, shape)
    depth[rng.random(shape) < 0.1] = 0
    depth = depth.astype(np.uint16) if dtype == np.uint16 else (depth / 1000).astype(np.float32)
    if dtype == np.float32:
        strange = rng.random(shape) < 0.1
        depth[strange] = rng.choice([np.nan, np.inf, -np.inf, -1.0, -0.0], strange.sum())
    num = leading if each else ()
    intrinsics = np.zeros((*num, 3, 3), np.float32)
    intrinsics[..., :, :] = [[6.5, 0, 4.2], [0, 6.25, 2.6], [0, 0, 1]]
    intrinsics[..., :2, :] += rng.uniform(-0.2, 0.2, (*num, 2, 3))
    pose = np.zeros((*num, 4, 4), np.float32)
    pose[..., :, :] = np.eye(4)
    pose[..., :3, :] += rng.uniform(-0.1, 0.1, (*num, 3, 4))
    color = features_of(rng, int(np.prod(shape)), width, np.dtype(fdtype)).reshape(*shape, width)
    return Images(depth, intrinsics, pose if posed else None, color, views)


# ---- gradients -------------------------------------------------------------------------------------------------------


def sample(case, backend):
    """The arguments of a call as tensors where the backend computes; features want a gradient, if they can."""
    given = case.given(backend, "torch")
    if given["features"] is not None and given["features"].is_floating_point():
        given["features"] = given["features"].detach().clone().requires_grad_()
    return given


def up_of(x):
    """Some gradient of x, the same on every device."""
    return torch.arange(1.0, x.numel() + 1, device=x.device).reshape(x.shape).sin().to(x.dtype)


# ---- agreeing with the oracle ----------------------------------------------------------------------------------------


def assert_values(got, want, slack, what=""):
    """The bits of the oracle; or, for sums in any order, within ``slack`` and one rounding."""
    got = to_numpy(got)
    if not slack.any():
        assert_same_bits(got, want.astype(got.dtype) if want.dtype == np.float64 else want, what)
        return
    assert got.shape == want.shape
    _, output, subnormal = TOLERANCE[got.dtype.name]
    got = got.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
    with np.errstate(invalid="ignore"):
        far = (np.abs(got - want) > slack + output * (np.abs(want) + slack) + subnormal) & (got != want)
    far |= np.isinf(got) != np.isinf(want)
    assert not far.any(), f"{what}: {far.sum()} of {far.size}, first {got[far][0]}, not {want[far][0]}"


def assert_dense(result, want, what=""):
    """``(grid, counts, dropped)`` are what the oracle says."""
    grid, counts, dropped = result
    assert_values(grid, want.grid, want.slack, what)
    assert_same_bits(counts, want.counts, f"{what} counts")
    assert_same_bits(dropped, want.dropped, f"{what} dropped")


def assert_sparse(got, want, what=""):
    """``SparseVoxels`` is what the oracle says."""
    assert_same_bits(got.coordinates, want.coordinates, f"{what} coordinates")
    assert_same_bits(got.counts, want.counts, f"{what} counts")
    assert_same_bits(got.voxel, want.voxel, f"{what} voxel")
    assert (got.first_points is None) == (want.first_points is None)
    if want.first_points is not None:
        assert_same_bits(got.first_points, want.first_points, f"{what} first_points")
    assert (got.features is None) == (want.features is None)
    if want.features is not None:
        assert_values(got.features, want.features, want.slack, f"{what} features")
    kept = len(want.coordinates)
    assert [int(x) for x in (got.num_voxels, got.dropped, got.overflow)] == [kept, want.dropped, want.found - kept]
