"""Agreement of voxelization with its oracle: every reduction, dtype, layout and backend; dense, sparse, from depth."""

import numpy as np
import pytest
import robocache
import torch
from arrays import FLOATS, bits, kind_of, on, to_numpy
from voxel_cases import (
    FEATURES,
    GRID_DTYPES,
    LAYOUTS,
    MODES,
    OF_FEATURES,
    POINTS,
    Case,
    assert_dense,
    assert_sparse,
    assert_values,
    images_of,
    one_cloud,
    ragged,
    spoiled,
)

layouts = pytest.mark.parametrize("layout", LAYOUTS)
point_dtypes = pytest.mark.parametrize("dtype", POINTS, ids=str)
of_features = pytest.mark.parametrize("mode", OF_FEATURES)
deterministic = pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "deterministic"])

# ---- by hand ---------------------------------------------------------------------------------------------------------

HAND = {
    "occupancy": [[[1, 0]], [[0, 1]], [[0, 0]]],
    "count": [[[2, 0]], [[0, 1]], [[0, 0]]],
    "sum": [[[[4.0, 1.0], [0, 0]]], [[[0, 0], [5.0, -5.0]]], [[[0, 0], [0, 0]]]],
    "mean": [[[[2.0, 0.5], [0, 0]]], [[[0, 0], [5.0, -5.0]]], [[[0, 0], [0, 0]]]],
    "min": [[[[1.0, -1.0], [9, 9]]], [[[9, 9], [5.0, -5.0]]], [[[9, 9], [9, 9]]]],
    "max": [[[[3.0, 2.0], [9, 9]]], [[[9, 9], [5.0, -5.0]]], [[[9, 9], [9, 9]]]],
}
HAND_CASE = Case(
    np.array([[0.2, 0.5, 0.3], [0.9, 0.0, 0.99], [1.5, 0.1, 1.0], [0, 0, 2], [3, 0, 0], [0, -1e-3, 0]], np.float32),
    np.array([[1, 2], [3, -1], [5, -5], [7, 7], [7, 7], [7, 7]], np.float32),
    origin=(0, 0, 0),
    size=(1, 1, 1),
    shape=(3, 1, 2),
)


@pytest.mark.parametrize("mode", MODES)
def test_six_points_by_hand(mode, backend):
    grid, counts, dropped = HAND_CASE.dense(backend, mode, fill=9.0)
    assert to_numpy(grid).tolist() == HAND[mode]
    assert to_numpy(counts).tolist() == HAND["count"]
    assert int(dropped) == 3
    assert_dense(HAND_CASE.dense(backend, mode, fill=9.0, deterministic=True), HAND_CASE.expected(mode, fill=9.0))


def test_six_points_by_hand_as_a_list_of_voxels(backend):
    got = HAND_CASE.sparse(backend, "max", max_points=2)
    assert to_numpy(got.coordinates).tolist() == [[0, 0, 0, 0], [0, 1, 0, 1]]
    assert to_numpy(got.features).tolist() == [[3, 2], [5, -5]]
    assert to_numpy(got.counts).tolist() == [2, 1]
    assert to_numpy(got.voxel).tolist() == [0, 0, 1, -1, -1, -1]
    assert to_numpy(got.first_points).tolist() == [[0, 1], [2, -1]]
    assert [int(x) for x in got[5:]] == [2, 3, 0]


def test_four_pixels_by_hand(backend):
    """A camera at height 10 that looks down: x to the right, y towards us, depth from above."""
    depth = np.array([[1000, 0], [2000, 3000]], np.uint16)
    intrinsics = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]], np.float32)
    down = np.array([[1, 0, 0, 0], [0, -1, 0, 0], [0, 0, -1, 10], [0, 0, 0, 1]], np.float32)
    given = [on(backend, x) for x in (depth, intrinsics, down)]
    grid, info = robocache.voxelize_depth(*given, grid_min=(-1, -1, 7), voxel_size=(1, 1, 1), grid_size=(2, 2, 3),
                                          mode="count", return_info=True, backend=backend)  # fmt: skip
    # d 1: (-0.25, 0.25, 9); d 2: (-0.5, -0.5, 8); d 3: (0.75, -0.75, 7)
    assert np.argwhere(to_numpy(grid)).tolist() == [[0, 0, 1], [0, 1, 2], [1, 0, 0]]
    assert int(info.dropped) == 0


def test_the_defaults_are_those_of_the_earlier_system(backend):
    points = on(backend, np.array([[-10, -10, -10], [0.05, 0, 2.7], [2.75, 2.75, 2.75], [2.9, 0, 0]], np.float32))
    grid = robocache.voxelize_pointcloud(points, backend=backend)
    assert kind_of(grid) == kind_of(points)
    grid = to_numpy(grid)
    assert (grid.shape, grid.dtype) == ((128, 128, 128), np.int32)
    assert np.argwhere(grid).tolist() == [[0, 0, 0], [100, 100, 127], [127, 127, 127]]


# ---- dense -----------------------------------------------------------------------------------------------------------


@layouts
@point_dtypes
@pytest.mark.parametrize("mode", GRID_DTYPES)
def test_counts_agree(mode, dtype, layout, backend, rng):
    case = LAYOUTS[layout](rng, dtype)
    assert_dense(case.dense(backend, mode), case.expected(mode))
    for out in GRID_DTYPES[mode]:
        got = case.dense(backend, mode, dtype=out)
        assert to_numpy(got[0]).dtype == out
        assert_dense(got, case.expected(mode, dtype=out), out)


@layouts
@point_dtypes
@of_features
def test_features_agree(mode, dtype, layout, backend, rng):
    for fdtype in FEATURES:
        case = LAYOUTS[layout](rng, dtype, fdtype)
        own = np.dtype(np.float32) if fdtype == np.uint8 else fdtype
        for options in ({}, {"dtype": "float32", "fill": -2.5}, {"deterministic": True}):
            got = case.dense(backend, mode, **options)
            assert to_numpy(got[0]).dtype == options.get("dtype", own)
            options.setdefault("deterministic", False)
            assert_dense(got, case.expected(mode, **options), f"{fdtype} {options}")


@deterministic
@of_features
def test_features_that_are_no_numbers_agree(mode, deterministic, backend, rng):
    for fdtype in FEATURES[:3]:
        case = spoiled(rng, ragged(rng, POINTS[0], fdtype))
        got = case.dense(backend, mode, deterministic=deterministic)
        assert_dense(got, case.expected(mode, deterministic=deterministic), str(fdtype))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100])
@of_features
def test_every_number_of_channels_agrees(mode, width, backend, rng):
    for fdtype in FEATURES:
        case = one_cloud(rng, POINTS[0], fdtype, width, 20)
        got = case.dense(backend, mode, deterministic=True)
        assert_dense(got, case.expected(mode), str(fdtype))


@pytest.mark.parametrize("num_points", [0, 1, 2, 3, 7, 8, 9, 31, 33, 1000])
@pytest.mark.parametrize("mode", MODES)
def test_every_number_of_points_agrees(mode, num_points, backend, rng):
    case = one_cloud(rng, POINTS[0], width=2, num_points=num_points)
    assert_dense(case.dense(backend, mode, deterministic=True), case.expected(mode))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 1), (300, 1, 2), (1, 1, 1000), (33, 17, 9)], ids=str)
@pytest.mark.parametrize("mode", ["occupancy", "count", "mean"])
def test_every_shape_of_grid_agrees(mode, shape, backend, rng):
    case = ragged(rng, POINTS[0])
    case.shape, case.size = shape, tuple(1.0 / n for n in shape)
    assert_dense(case.dense(backend, mode, deterministic=True), case.expected(mode))


def test_one_voxel_size_stands_for_three(backend, rng):
    case = one_cloud(rng, POINTS[0])
    case.size = (0.15, 0.15, 0.15)
    want, case.size = case.expected("count"), 0.15
    assert_dense(case.dense(backend, "count"), want)


@pytest.mark.parametrize("number", [np.float32, np.array, torch.tensor], ids=["scalar", "array", "tensor"])
def test_a_voxel_size_may_be_a_number_of_any_framework(number, backend, rng):
    case = one_cloud(rng, POINTS[0])
    case.size = (0.25, 0.25, 0.25)
    want, case.size = case.expected("count"), number(0.25)
    assert_dense(case.dense(backend, "count"), want)


@pytest.mark.parametrize("dtype", FEATURES[:3], ids=str)
def test_a_fill_past_the_dtype_is_infinite(dtype, backend):
    points, features = on(backend, np.zeros((1, 3), np.float32)), on(backend, np.ones((1, 1), dtype))
    for fill in (1e39, -1e300):
        got = robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (1, 1, 2), "max", backend, fill=fill)
        assert to_numpy(got).astype(np.float64).ravel().tolist() == [1.0, np.inf if fill > 0 else -np.inf]


@pytest.mark.parametrize("fill", [0.0, -7.5, np.inf, -np.inf, np.nan, 1e-3, 65504.0])
@pytest.mark.parametrize("mode", MODES)
def test_the_fill_is_in_the_empty_cells_of_min_and_max_alone(mode, fill, backend, rng):
    for fdtype in FEATURES[:2]:
        case = one_cloud(rng, POINTS[0], fdtype, num_points=9)
        assert_dense(case.dense(backend, mode, fill=fill, deterministic=True), case.expected(mode, fill=fill))


def test_a_batch_without_clouds_and_clouds_without_points(backend):
    for offsets in ([0], [0, 0], [0, 0, 0, 0]):
        case = Case(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.float32), np.array(offsets))
        for mode in MODES:
            grid, counts, dropped = (to_numpy(x) for x in case.dense(backend, mode))
            assert len(grid) == len(counts) == len(dropped) == len(offsets) - 1
            assert not grid.any()
            assert not counts.any()
            assert not dropped.any()


# ---- sums that no order changes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1.0, 3e38])
@pytest.mark.parametrize("num_points", [1, 2, 3, 4, 5, 63, 64, 65, 1000])
def test_deterministic_sums_are_the_integers_of_the_specification(num_points, scale, mode, backend, rng):
    with np.errstate(over="ignore"):
        features = (rng.uniform(-1, 1, (num_points, 6)) * scale * 2.0 ** -rng.integers(0, 70, (num_points, 6))).astype(
            "f4"
        )
    features[:, 0] = np.abs(features[:, 0])
    features[:, 1] = np.where(np.arange(num_points) % 2, -features[0, 1], features[0, 1])
    features[:, 2] = scale if scale < 1e38 else np.finfo("f4").max
    features[:, 3] = -0.0
    case = Case(np.zeros((num_points, 3), np.float32), features, None, (0, 0, 0), (1, 1, 1), (1, 1, 1))
    assert_dense(case.dense(backend, mode, deterministic=True), case.expected(mode))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("num_points", [3, 4, 5, 8, 9, 64, 65])
def test_what_is_left_when_large_values_cancel_shows_the_unit_and_its_rounding(num_points, mode, backend, rng):
    """Halves and other parts of the unit, rounded to nearest even and not cut off."""
    k = 61 - (num_points - 1).bit_length()  # 1 = 0.5 * 2^1
    parts = rng.integers(1, 64, 40) + rng.choice([0.5, 0.6, 0.4, 0.99, 0.25], 40)
    features = np.zeros((num_points, 40), np.float32)
    features[0], features[1], features[2] = 1, -1, parts * 2.0**-k * rng.choice([-1, 1], 40)
    case = Case(np.zeros((num_points, 3), np.float32), features, None, (0, 0, 0), (1, 1, 1), (1, 1, 1))
    want = case.expected(mode)
    if mode == "sum":
        assert (np.ldexp(want.grid.astype(np.float64), k) == np.rint(features[2].astype(np.float64) * 2.0**k)).all()
    assert_dense(case.dense(backend, mode, deterministic=True), want)
    voxels = case.sparse(backend, mode, deterministic=True)
    assert_values(voxels.features, want.grid.reshape(1, 40), np.zeros(1))


def test_a_deterministic_sum_keeps_what_cancels(backend):
    """In float32 from left to right this is 0; the unit of the cell, 2^-34, also holds the 1."""
    features = np.array([2.0**24, 1.0, -(2.0**24), 2.0**-30, 2.0**-40], np.float32)[:, None]
    case = Case(np.zeros((5, 3), np.float32), features, None, (0, 0, 0), (1, 1, 1), (1, 1, 1))
    grid, *_ = case.dense(backend, "sum", deterministic=True)
    assert float(to_numpy(grid).item()) == np.float32(1 + 2.0**-30)
    assert_values(case.sparse(backend, "sum", deterministic=True).features[0], np.float32([1.0]), np.zeros(1))


# ---- sparse ----------------------------------------------------------------------------------------------------------

bounds = pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])


@bounds
@layouts
@point_dtypes
def test_voxels_agree(dtype, layout, bounded, backend, rng):
    case = LAYOUTS[layout](rng, dtype)
    case.shape = case.shape if bounded else None
    for options in ({}, {"max_points": 3}, {"max_points": 1, "max_voxels": 9}, {"max_voxels": 10_000}):
        assert_sparse(
            case.sparse(backend, **options), case.expected_sparse(deterministic=False, **options), str(options)
        )
    case.features = None
    got = case.sparse(backend, max_points=40)
    assert_sparse(got, case.expected_sparse(max_points=40))


@bounds
@of_features
@pytest.mark.parametrize("fdtype", FEATURES, ids=str)
def test_features_of_voxels_agree(fdtype, mode, bounded, backend, rng):
    for layout in LAYOUTS.values():
        case = layout(rng, POINTS[0], fdtype)
        case = spoiled(rng, case, 0.02) if fdtype in FLOATS else case
        case.shape = case.shape if bounded else None
        for deterministic in (False, True):
            got = case.sparse(backend, mode, deterministic=deterministic)
            want = case.expected_sparse(mode, deterministic=deterministic)
            assert to_numpy(got.features).dtype == (np.float32 if fdtype == np.uint8 else fdtype)
            assert_sparse(got, want, f"{layout.__name__} {deterministic}")


@bounds
@pytest.mark.parametrize("max_voxels", [1, 2, 7, 8, 9, 1000])
def test_voxels_that_do_not_fit_are_counted_and_the_others_are_whole(max_voxels, bounded, backend, rng):
    case = ragged(rng, POINTS[0])
    case.shape = case.shape if bounded else None
    all_of_them = case.expected_sparse()
    got = case.sparse(backend, deterministic=True, max_voxels=max_voxels, max_points=2)
    assert_sparse(got, case.expected_sparse(max_voxels=max_voxels, max_points=2))
    assert int(got.num_voxels) + int(got.overflow) == all_of_them.found
    padded = case.sparse(backend, deterministic=True, max_voxels=max_voxels, max_points=2, padded=True)
    used = int(padded.num_voxels)
    assert used == min(max_voxels, all_of_them.found)
    unused = {"coordinates": -1, "features": 0, "counts": 0, "first_points": -1}
    for name, value in unused.items():
        array = to_numpy(getattr(padded, name))
        assert len(array) == max_voxels
        assert (array[used:] == value).all(), name
    cut = padded._replace(**{name: getattr(padded, name)[:used] for name in unused})
    assert_sparse(cut, case.expected_sparse(max_voxels=max_voxels, max_points=2))


@bounds
def test_no_points_are_no_voxels(bounded, backend):
    for offsets in (None, [0, 0, 0], [0]):
        empty, features = np.zeros((0, 3), np.float32), np.zeros((0, 2), np.float32)
        case = Case(empty, features, None if offsets is None else np.array(offsets))
        case.shape = case.shape if bounded else None
        for options in ({}, {"max_points": 2}, {"max_voxels": 4}):
            assert_sparse(case.sparse(backend, **options), case.expected_sparse(**options))


@bounds
def test_a_cloud_that_is_dropped_as_a_whole(bounded, backend):
    case = Case(np.full((5, 3), np.nan, np.float32), np.ones((5, 2), np.float32), np.array([0, 2, 5]))
    case.shape = case.shape if bounded else None
    assert_sparse(case.sparse(backend, max_points=2), case.expected_sparse(max_points=2))
    assert_dense(Case(case.points, None, case.offsets).dense(backend, "count"), case.expected("count") if bounded else
                 Case(case.points, None, case.offsets).expected("count"))  # fmt: skip


@pytest.mark.parametrize("num_clouds", [1, 2, 3, 4, 5, 16, 17, 300])
def test_the_ends_of_an_unbounded_grid(num_clouds, backend):
    """2^20 cells to both sides of the origin for up to two clouds, then fewer."""
    num_bits = min(21, (63 - (num_clouds - 1).bit_length()) // 3)
    end = 2 ** (num_bits - 1)
    places = [-end - 1, -end, -end + 1, -1, 0, 1, end - 2, end - 1, end]
    points = np.array([np.roll([x, 0.5, -0.5], axis) for axis in range(3) for x in places])
    points = np.tile(points, (num_clouds, 1)) + 0.25
    offsets = np.arange(num_clouds + 1) * 27
    for dtype in (np.float64, np.float32):
        case = Case(points.astype(dtype), None, offsets, (0, 0, 0), (1, 1, 1), None)
        want = case.expected_sparse()
        assert want.dropped == 6 * num_clouds
        assert want.coordinates.min(0).tolist() == [0, -end, -end, -end]
        assert_sparse(case.sparse(backend), want)


def test_a_bounded_grid_of_many_cells_gives_the_same_voxels(backend, rng):
    """Cells of all clouds: more than a bitmap should hold, and more than 2^31."""
    case = ragged(rng, POINTS[2])
    case.points = rng.uniform(0, 2000, case.points.shape)
    for shape in ((1440, 1440, 41), (2000, 2000, 2000), (2**20, 2**20, 2**20)):
        case.origin, case.size, case.shape = (0, 0, 0), (1, 1, 1), shape
        assert_sparse(case.sparse(backend, deterministic=True), case.expected_sparse())


# ---- depth images ----------------------------------------------------------------------------------------------------

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


# ---- other arrays ----------------------------------------------------------------------------------------------------


def test_every_kind_of_array_comes_back_as_it_went_in(kind, rng):
    case = ragged(rng, POINTS[0])
    grid, *info = case.dense("cpu", "mean", kind=kind, deterministic=True)
    assert {kind_of(x) for x in (grid, *info)} == {kind}
    assert_dense((grid, *info), case.expected("mean"))
    voxels = case.sparse("cpu", kind=kind, deterministic=True, max_points=2)
    assert {kind_of(x) for x in voxels[:5]} == {kind}
    assert_sparse(voxels, case.expected_sparse(max_points=2))
    images = images_of(rng, (2,))
    grid, *_ = images.dense("cpu", "mean", kind=kind, deterministic=True)
    assert kind_of(grid) == kind
    assert bits(grid) == bits(images.expected("mean").grid)
