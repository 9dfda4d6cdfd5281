"""Agreement of lists of voxels with their oracle: every reduction, dtype, layout, limit and backend."""

import numpy as np
import pytest
from arrays import FLOATS, to_numpy
from voxel_cases import (
    FEATURES,
    LAYOUTS,
    OF_FEATURES,
    POINTS,
    Case,
    assert_dense,
    assert_sparse,
    ragged,
    spoiled,
)

layouts = pytest.mark.parametrize("layout", LAYOUTS)
point_dtypes = pytest.mark.parametrize("dtype", POINTS, ids=str)
of_features = pytest.mark.parametrize("mode", OF_FEATURES)
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
