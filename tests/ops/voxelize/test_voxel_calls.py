"""Large and random calls of voxelization: native backends give the bits of the torch backend, which is plain code."""

import numpy as np
import pytest
import robocache
import torch
from arrays import BACKENDS, DEVICE
from cuda_tools import assert_same_bits, tensor
from voxel_calls import CLOUDS, SHAPES, WIDTHS, leaves, moved, some, some_call, uniform
from voxel_cases import FEATURES, GRID_DTYPES, MODES, OF_FEATURES, features_of

native = pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "torch"])


def check(function, given, backend, what="", **options):
    given = moved(given, DEVICE[backend])
    got, want = (leaves(function(**given, **options, backend=which)) for which in (backend, "torch"))
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if isinstance(theirs, torch.Tensor):
            assert_same_bits(mine, theirs, f"{what} output {i}")
        else:
            assert mine == theirs, f"{what} output {i}"


@native
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", GRID_DTYPES)
def test_counts(mode, shape, backend, rng):
    for _ in range(5):
        dtype = some(rng, (None, *GRID_DTYPES[mode]))
        given = some_call(rng, shape=shape)
        check(robocache.voxelize_pointcloud, given, backend, dtype, mode=mode, dtype=dtype, return_info=True)


@native
@pytest.mark.parametrize("width", [1, 3, 4, 8, 16, 33])
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_features(mode, width, backend, rng):
    for _ in range(2):
        given = some_call(rng, width=width, shape=some(rng, SHAPES[:5]))
        options = {"dtype": some(rng, (None, "float32")), "fill": 1.5, "deterministic": True}
        check(robocache.voxelize_pointcloud, given, backend, f"{options}", mode=mode, return_info=True, **options)


@native
@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_voxels(mode, bounded, backend, rng):
    for _ in range(5):
        given = some_call(rng, width=some(rng, WIDTHS[:9]))
        given["grid_size"] = given["grid_size"] if bounded else None
        options = {"max_points": some(rng, (None, 1, 5, 32)), "max_voxels": some(rng, (None, None, 1, 100, 10**6))}
        check(robocache.voxelize_sparse, given, backend, f"{options}", mode=mode, deterministic=True, **options)


@native
@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["occupancy", "count", "mean", "max", "std"])
def test_many_points(mode, cloud, backend, rng):
    points = tensor(cloud(rng, 100_003).astype(np.float32))
    given = {"points": points, "grid_min": (0, 0, 0), "voxel_size": 1 / 70, "grid_size": (70,) * 3}
    if mode in OF_FEATURES:
        given["features"] = tensor(features_of(rng, len(points), 2, FEATURES[0]))
        check(robocache.voxelize_sparse, given, backend, mode=mode, deterministic=True, max_points=3)
    check(robocache.voxelize_pointcloud, given, backend, mode=mode, return_info=True, deterministic=True)


@native
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_many_clouds(mode, backend, rng):
    lengths = rng.integers(0, 400, 128)
    points = tensor(uniform(rng, lengths.sum()).astype(np.float32))
    given = {"points": points, "offsets": tensor(np.array([0, *np.cumsum(lengths)])), "grid_min": (0, 0, 0),
             "voxel_size": 1 / 16, "grid_size": (16, 17, 16)}  # fmt: skip
    if mode in OF_FEATURES:
        given["features"] = tensor(features_of(rng, len(points), 2, FEATURES[0]))
    for dtype in (None, "uint8") if mode not in OF_FEATURES else (None,):
        options = {"mode": mode, "dtype": dtype, "return_info": True, "deterministic": True}
        check(robocache.voxelize_pointcloud, given, backend, **options)


@native
@pytest.mark.parametrize("mode", ["occupancy", "mean"])
def test_large_depth_images(mode, backend, rng):
    depth = tensor(rng.integers(0, 5000, (3, 120, 160)).astype(np.uint16))
    camera = torch.tensor([[120.0, 0, 79.5], [0, 121, 59.5], [0, 0, 1]])
    pose = torch.tensor([[0.0, 0, 1, 0.1], [-1, 0, 0, 0.2], [0, -1, 0, 0.3], [0, 0, 0, 1]])
    given = {"depth": depth, "intrinsics": camera, "pose": pose, "grid_min": (0, -3, -3), "voxel_size": 0.05,
             "grid_size": (90, 120, 110)}  # fmt: skip
    if mode == "mean":
        given["features"] = tensor(features_of(rng, depth.numel(), 3, FEATURES[3])).reshape(3, 120, 160, 3)
    for views in (False, True):
        options = {"mode": mode, "views": views, "return_info": True, "deterministic": True}
        check(robocache.voxelize_depth, given, backend, f"{views}", **options)
