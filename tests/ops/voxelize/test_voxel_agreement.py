"""Agreement of voxelization with its oracle: every reduction, dtype, layout and backend; dense grids."""

import numpy as np
import pytest
import robocache
import torch
from arrays import bits, kind_of, on, to_numpy
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
    "std": [[[[1.0, 1.5], [9, 9]]], [[[9, 9], [0.0, 0.0]]], [[[9, 9], [9, 9]]]],
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
@pytest.mark.parametrize("mode", ["occupancy", "count", "mean", "std"])
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
