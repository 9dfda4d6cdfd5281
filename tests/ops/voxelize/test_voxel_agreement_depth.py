"""Agreement of depth images with their oracle: every reduction, dtype, set of cameras and backend."""

import numpy as np
import pytest
import robocache
from arrays import on, to_numpy
from voxel_cases import (
    FEATURES,
    GRID_DTYPES,
    MODES,
    OF_FEATURES,
    assert_dense,
    images_of,
)

SETS = {
    "one": {},
    "batch": {"leading": (3,)},
    "batch of cameras": {"leading": (3,), "each": True},
    "views": {"leading": (3,), "each": True, "views": True},
    "views of one camera": {"leading": (3,), "views": True},
    "batch of views": {"leading": (2, 3), "each": True, "views": True},
    "no pose": {"leading": (2,), "posed": False},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth_dtype", [np.uint16, np.float32], ids=["uint16", "float32"])
@pytest.mark.parametrize("which", SETS)
def test_depth_images_agree(which, depth_dtype, mode, backend, rng):
    for fdtype in FEATURES if mode in OF_FEATURES and which == "batch" else FEATURES[3:]:
        images = images_of(rng, dtype=depth_dtype, fdtype=fdtype, **SETS[which])
        for options in ({}, {"deterministic": True, "max_depth": 2.5, "fill": 3.0}):
            got = images.dense(backend, mode, **options)
            want = images.expected(mode, **{"deterministic": False, **options})
            assert want.counts.sum() > 5
            assert_dense(got, want, f"{fdtype} {options}")


@pytest.mark.parametrize("mode", GRID_DTYPES)
def test_counts_of_depth_images_come_in_any_dtype(mode, backend, rng):
    images = images_of(rng, (2,))
    for out in GRID_DTYPES[mode]:
        got = images.dense(backend, mode, dtype=out, depth_scale=0.0011)
        assert_dense(got, images.expected(mode, dtype=out, depth_scale=0.0011), out)


def test_depth_images_of_any_strides_agree(backend, rng):
    images = images_of(rng, (2, 3), np.float32, FEATURES[1], each=True, views=True)
    want = images.expected("mean")
    for name in ("depth", "intrinsics", "pose", "features"):
        array = getattr(images, name)
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
        wide[..., 1::2] = array
        setattr(images, name, wide[..., 1::2] if name != "depth" else np.asfortranarray(array))
    assert_dense(images.dense(backend, "mean", deterministic=True), want)
    images.intrinsics = np.broadcast_to(images.intrinsics[0, 0], (2, 3, 3, 3))
    assert_dense(images.dense(backend, "mean", deterministic=True), images.expected("mean"))


@pytest.mark.parametrize("form", [np.ndarray.tolist, np.int64, np.uint8, np.float64], ids=lambda f: f.__name__)
def test_cameras_and_poses_may_be_lists_and_whole_numbers(form, backend):
    depth = on(backend, np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 2.0]], np.float32))
    camera, pose = np.array([[2, 0, 1], [0, 2, 1], [0, 0, 1]]), np.eye(4, dtype=np.int64)
    pose[:3, 3] = 1, 2, 3
    options = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "grid_size": (9, 9, 15), "mode": "count", "backend": backend}
    want = robocache.voxelize_depth(depth, *(on(backend, x.astype(np.float32)) for x in (camera, pose)), **options)
    assert int(want.sum()) == 5
    got = robocache.voxelize_depth(depth, form(camera), form(pose), **options)
    assert to_numpy(got).tolist() == to_numpy(want).tolist()


def test_the_deepest_depth_is_still_a_point(backend):
    depth = np.array([[1.0, 2.0, np.nextafter(np.float32(2), np.float32(3)), 3.0]], np.float32)
    intrinsics = np.array([[4, 0, 0], [0, 4, 0], [0, 0, 1]], np.float32)
    for max_depth, points in ((2.0, 2), (None, 4), (3.0, 4), (0.5, 0)):
        given = [on(backend, x) for x in (depth, intrinsics)]
        _, info = robocache.voxelize_depth(*given, grid_size=(4, 4, 2), backend=backend, max_depth=max_depth,
                                           return_info=True)  # fmt: skip
        assert int(info.counts.sum()) + int(info.dropped) == points


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("posed", [True, False], ids=["posed", "in the camera"])
def test_the_points_of_pixels_are_right_to_the_last_bit(posed, axis, backend, rng):
    """Cells as wide as the last place of float32 in [0.5, 1): another order of operations or an fma is another one."""
    images = images_of(rng, dtype=np.float32, posed=posed)
    images.depth = rng.uniform(0.55, 0.9, (12, 40)).astype(np.float32)
    images.intrinsics = np.array([[83.7, 0, -70.3], [0, 81.1, -68.9], [0, 0, 1]], np.float32)
    if posed:
        images.pose[:3, 3] -= 0.01
    images.features = None
    images.origin, images.size, images.shape = [-4.0] * 3, [8.0] * 3, [1] * 3
    images.origin[axis], images.size[axis], images.shape[axis] = 0.5, 2.0**-24, 2**23
    want = images.expected("occupancy", dtype="bool")
    assert want.grid.sum() > 200
    got = images.dense(backend, "occupancy", dtype="bool")
    assert np.flatnonzero(to_numpy(got[0])).tolist() == np.flatnonzero(want.grid).tolist()
    assert int(got[2]) == want.dropped


def test_images_without_pixels_are_empty_grids(backend):
    for shape in ((0, 5), (5, 0), (2, 0, 5), (0, 4, 5)):
        images = images_of(np.random.default_rng(0))
        images.depth, images.features = np.zeros(shape, np.uint16), None
        grid, counts, dropped = (to_numpy(x) for x in images.dense(backend, "count"))
        assert grid.shape == counts.shape == (*shape[:-2], *images.shape)
        assert not grid.any()
        assert dropped.shape == shape[:-2]
