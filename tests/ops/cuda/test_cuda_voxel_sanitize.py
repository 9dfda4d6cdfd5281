"""Every path through the CUDA kernels of voxelize once, small, and right: what compute-sanitizer watches.

As in test_cuda_sanitize.py, inputs come from the host and outputs go back to it, so that only our kernels run.
"""

import numpy as np
import pytest
import robocache
import torch
from cuda_tools import DEVICE, assert_same_bits, needs_cuda, tensor
from voxel_calls import check, check_images, moved
from voxel_cases import (
    FEATURES,
    GRID_DTYPES,
    LAYOUTS,
    MODES,
    OF_FEATURES,
    POINTS,
    features_of,
    images_of,
    one_cloud,
    ragged,
    spoiled,
)

pytestmark = [needs_cuda, pytest.mark.sanitize]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
def test_every_reduction_and_layout_under_the_sanitizer(mode, layout, rng):
    for dtype, fdtype in zip(POINTS, FEATURES[:3], strict=True):
        case = spoiled(rng, LAYOUTS[layout](rng, dtype, fdtype)).of(mode)
        given = {"points": case.points, "features": case.features, "offsets": case.offsets}
        given = {name: tensor(x) for name, x in given.items()}
        grid = {"grid_min": case.origin, "voxel_size": case.size, "grid_size": case.shape}
        for out in (None, *GRID_DTYPES.get(mode, ())):
            options = {"mode": mode, "dtype": out, "return_info": True, "deterministic": True}
            check(robocache.voxelize_pointcloud, {**given, **grid}, f"{dtype} {out}", **options)
        if mode in ("sum", "mean"):
            robocache.voxelize_pointcloud(**moved({**given, **grid}), mode=mode)[0].cpu()


@pytest.mark.parametrize("shape", [(1, 1, 1), (64, 64, 64), (5, 128, 3)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_size_of_grid_under_the_sanitizer(mode, shape, rng):
    for num_points in (0, 1, 300, 3000):
        case = one_cloud(rng, POINTS[0], FEATURES[0], 4, num_points).of(mode)
        given = {"points": tensor(case.points), "features": tensor(case.features), "grid_min": case.origin,
                 "voxel_size": tuple(1 / n for n in shape), "grid_size": shape}  # fmt: skip
        check(robocache.voxelize_pointcloud, given, mode=mode, deterministic=True, return_info=True)


@pytest.mark.parametrize("mode", GRID_DTYPES)
def test_points_that_stream_through_a_ring_under_the_sanitizer(mode, rng):
    """Enough of them for two tiles of a block."""
    points = tensor(rng.uniform(-0.05, 1.05, (2_300_003, 3)).astype(np.float32))
    given = {"points": points, "grid_min": (0, 0, 0), "voxel_size": 1 / 64, "grid_size": (64,) * 3}
    check(robocache.voxelize_pointcloud, given, mode=mode, return_info=True)


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_large_and_mostly_empty_grids_under_the_sanitizer(mode, rng):
    points = rng.uniform(-0.05, 1.05, (30_000, 3)).astype(np.float32)
    points[20_000:] *= 0.05  # crowded
    given = {"points": tensor(points), "features": tensor(features_of(rng, len(points), 3, FEATURES[0])),
             "grid_min": (0, 0, 0), "voxel_size": 1 / 103, "grid_size": (103,) * 3}  # fmt: skip
    check(robocache.voxelize_pointcloud, given, mode=mode, deterministic=True, return_info=True)


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
def test_voxels_under_the_sanitizer(bounded, rng):
    for mode in OF_FEATURES:
        for lengths in ((40, 0, 37), (0, 0), (2000, 1, 500)):
            case = ragged(rng, POINTS[0], FEATURES[0], 3, lengths)
            given = {"points": tensor(case.points), "features": tensor(case.features), "offsets": tensor(case.offsets),
                     "grid_min": case.origin, "voxel_size": case.size,
                     "grid_size": case.shape if bounded else None}  # fmt: skip
            for options in ({}, {"max_points": 3}, {"max_voxels": 9}):
                check(robocache.voxelize_sparse, given, f"{mode} {options}", mode=mode, deterministic=True, **options)


@pytest.mark.parametrize("mode", MODES)
def test_depth_images_under_the_sanitizer(mode, rng):
    for options in ({}, {"leading": (2, 3), "each": True, "views": True, "dtype": np.float32}):
        check_images(images_of(rng, **options), mode)


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_gradients_under_the_sanitizer(mode, rng):
    case = ragged(rng, POINTS[0], FEATURES[0], 3)
    grid = {"grid_min": case.origin, "voxel_size": case.size, "grid_size": case.shape, "mode": mode}
    up = tensor(features_of(rng, 5 * 7 * 3 * 5, 3, FEATURES[0])).reshape(5, 7, 3, 5, 3)
    found = []
    for device in ("cpu", DEVICE):
        points, features, offsets = (tensor(x).to(device) for x in (case.points, case.features, case.offsets))
        result = robocache.voxelize_pointcloud(points, features.requires_grad_(), offsets=offsets, **grid)
        found += torch.autograd.grad(result, features, up.to(device))
    assert_same_bits(found[1], found[0])


@pytest.mark.parametrize("offsets", [[0, 50, 99], [-7, 5, 80], [0, 70, 20], [2**62, -(2**62), 80]], ids=str)
def test_bad_offsets_stay_inside_the_memory(offsets, rng):
    case = one_cloud(rng, POINTS[0])
    given = {"points": tensor(case.points), "offsets": tensor(np.array(offsets)), "grid_min": case.origin,
             "voxel_size": case.size, "grid_size": case.shape}  # fmt: skip
    for mode in MODES:
        features = {"features": tensor(case.features)} if mode in OF_FEATURES else {}
        robocache.voxelize_pointcloud(**moved({**given, **features}), mode=mode, deterministic=True, check=False).cpu()
    robocache.voxelize_sparse(**moved({**given, "features": tensor(case.features)}), max_points=2, check=False)
    torch.cuda.synchronize()
