"""Every defect of the earlier system that concerns voxels, and what others do wrong, by name (reference/kernels.md)."""

import numpy as np
import pytest
import robocache
import torch
from arrays import BACKENDS, DEVICE, on, to_numpy
from voxel_cases import MODES, OF_FEATURES, POINTS, Case, assert_dense

CUBE = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (4, 4, 4)}
point_dtypes = pytest.mark.parametrize("dtype", POINTS, ids=str)


@pytest.fixture
def voxelize(backend):
    """``voxelize_pointcloud`` on the backend, with NumPy in and out; always returns (grid, counts, dropped)."""

    def call(points, features=None, **options):
        arrays = {name: on(backend, np.asarray(options.pop(name))) for name in ("offsets",) if name in options}
        grid, info = robocache.voxelize_pointcloud(
            on(backend, np.asarray(points)),
            None if features is None else on(backend, np.asarray(features)),
            **{**CUBE, **options, **arrays},
            backend=backend,
            return_info=True,
        )
        return to_numpy(grid), to_numpy(info.counts), to_numpy(info.dropped)

    return call


# ---- where a cell is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_grid_is_indexed_x_y_z(mode, voxelize):
    """Defect 7: the earlier kernel wrote z first into an array shaped x, y, z."""
    points = np.array([[0.5, 1.5, 4.5], [1.5, 2.5, 0.5]], np.float32)
    features = np.ones((2, 3), np.float32) if mode in OF_FEATURES else None
    if mode == "std":  # of one point it is 0
        points, features = np.repeat(points, 2, axis=0), np.tile(np.array([[0], [2]], np.float32), (2, 3))
    grid, counts, _ = voxelize(points, features, mode=mode, grid_size=(2, 3, 5))
    assert grid.shape[:3] == (2, 3, 5)
    assert np.argwhere(grid if features is None else grid[..., 0]).tolist() == [[0, 1, 4], [1, 2, 0]]
    assert np.argwhere(counts).tolist() == [[0, 1, 4], [1, 2, 0]]


def test_batches_come_before_x_y_z(voxelize):
    points = np.array([[0.5, 1.5, 4.5], [1.5, 2.5, 0.5], [1.5, 0.5, 3.5]], np.float32)
    grid, _, _ = voxelize(points, grid_size=(2, 3, 5), offsets=np.array([0, 1, 1, 3]))
    assert np.argwhere(grid).tolist() == [[0, 0, 1, 4], [2, 1, 0, 3], [2, 1, 2, 0]]


@point_dtypes
@pytest.mark.parametrize("size", [0.1, 0.05, 0.3, 1 / 3, 0.7])
@pytest.mark.parametrize("start", [0.0, -1.0, 0.1, -12.8])
def test_a_size_without_an_exact_reciprocal_gives_the_cell_of_numpy(start, size, dtype, backend):
    """Defect 11: approximate division. Points on every face and one unit in the last place to both sides."""
    real = np.float64 if dtype == np.float64 else np.float32
    faces = (start + size * np.arange(257)).astype(dtype)
    x = np.concatenate([np.nextafter(faces, dtype.type(-np.inf)), faces, np.nextafter(faces, dtype.type(np.inf))])
    want = np.floor((x.astype(real) - real(start)) / real(size))
    by_reciprocal = np.floor((x.astype(real) - real(start)) * (real(1) / real(size)))
    if dtype != np.float16 and start <= 0 and size != 0.3:
        assert (want != by_reciprocal).any()  # so this can fail
    for axis in range(3):
        points = np.full((len(x), 3), start + size / 2, dtype)
        points[:, axis] = x
        got = robocache.voxelize_sparse(on(backend, points), None, size, (start,) * 3, backend=backend)
        cell = to_numpy(got.coordinates)[to_numpy(got.voxel), 1 + axis]
        assert cell.tolist() == want.tolist()
        shape = [1, 1, 1]
        shape[axis] = 256
        case = Case(points, None, None, (start,) * 3, (size,) * 3, tuple(shape))
        grid, _, dropped = case.dense(backend, "count")
        inside = want[(want >= 0) & (want < 256)].astype(int)
        assert to_numpy(grid).ravel().tolist() == np.bincount(inside, minlength=256).tolist()
        assert int(dropped) == len(x) - len(inside)


@point_dtypes
def test_points_on_upper_faces_are_outside(dtype, voxelize):
    points = np.array([[4, 0, 0], [0, 4, 0], [0, 0, 4], [4, 4, 4]], dtype)
    below = np.nextafter(points, dtype.type(0))
    assert voxelize(points)[2] == 4
    grid, _, dropped = voxelize(below)
    assert dropped == 0
    assert np.argwhere(grid).tolist() == [[0, 0, 3], [0, 3, 0], [3, 0, 0], [3, 3, 3]]


@point_dtypes
def test_points_on_lower_faces_are_inside_and_below_them_outside(dtype, voxelize):
    points = np.array([[0, 0, 0], [-0.0, -0.0, -0.0], [1, 2, 3]], dtype)
    grid, _, dropped = voxelize(points, mode="count")
    assert dropped == 0
    assert grid[0, 0, 0] == 2
    assert grid[1, 2, 3] == 1
    below = np.array([[-6e-8, 0, 0], [0, -1e-3, 0], [0, 0, -0.5], [-1, -1, -1]], dtype)
    assert voxelize(below)[2] == 4  # truncation would put three of them into cell 0


@point_dtypes
def test_points_outside_are_dropped_and_not_clamped(dtype, voxelize):
    """Defect 10: the fallback put them into the cells at the border."""
    far = 6e4 if dtype == np.float16 else 1e30
    points = np.array([[x if a == axis else 1.5 for a in range(3)] for axis in range(3) for x in (-far, -1, 4.5, far)])
    for mode in ("occupancy", "count"):
        grid, counts, dropped = voxelize(points.astype(dtype), mode=mode)
        assert dropped == 12
        assert not grid.any()
        assert not counts.any()


@point_dtypes
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_points_that_are_not_finite_are_dropped(mode, bad, dtype, voxelize, backend):
    """Defect 9: a NaN became cell 0."""
    points = np.full((10, 3), 0.5, dtype)
    for i in range(9):
        points[i, i % 3] = bad
    features = np.arange(20, dtype=np.float32).reshape(10, 2) if mode in OF_FEATURES else None
    grid, counts, dropped = voxelize(points, features, mode=mode)
    assert dropped == 9
    assert counts.sum() == counts[0, 0, 0] == 1
    assert np.count_nonzero(grid) == (1 if features is None else 0 if mode == "std" else 2)  # std of one point is 0
    for bounds in (None, (4, 4, 4)):
        got = robocache.voxelize_sparse(on(backend, points), None, 1.0, grid_size=bounds, backend=backend)
        assert to_numpy(got.coordinates).tolist() == [[0, 0, 0, 0]]
        assert int(got.dropped) == 9


def test_a_difference_that_overflows_is_outside(voxelize):
    big = np.float32(3e38)
    points = np.array([[big, 0.5, 0.5], [-big, 0.5, 0.5], [0.5, big, 0.5]], np.float32)
    assert voxelize(points, grid_min=(-3e38, 0, 0))[2] >= 2
    assert voxelize(points, voxel_size=1e-30)[2] == 3


def test_cells_past_2_to_the_24_are_counted_in_whole_numbers(backend):
    """A shape that float32 cannot hold is not rounded down to one that it can."""
    points = np.array([[2**24, 0, 0], [2**24 - 1, 0, 0], [2**24 + 2, 0, 0]], np.float32)
    for end, cells in ((2**24 + 1, 2), (2**24, 1), (2**24 + 2, 2), (2**24 + 3, 3), (2**25, 3)):
        got = robocache.voxelize_sparse(on(backend, points), None, 1.0, grid_size=(end, 1, 1), backend=backend)
        assert int(got.num_voxels) == cells
        assert int(got.dropped) == 3 - cells


def test_half_precision_points_are_compared_in_single_precision(voxelize):
    points = np.array([[2.99, 0.5, 0.5], [0.1, 0.2, 0.3]], np.float16)
    grid, _, _ = voxelize(points, voxel_size=0.1, grid_size=(30, 30, 30))
    want = np.floor((points.astype(np.float32) - np.float32(0)) / np.float32(0.1)).astype(int)
    assert np.argwhere(grid).tolist() == sorted(want.tolist())


def test_double_precision_points_keep_utm_coordinates_apart(backend):
    """Float32 has steps of half a meter there."""
    easting = np.array([[500_000.02, 5_400_000.02, 0.5], [500_000.12, 5_400_000.12, 0.5]])
    got = robocache.voxelize_sparse(on(backend, easting), None, 0.1, (500_000, 5_400_000, 0), backend=backend)
    assert to_numpy(got.coordinates).tolist() == [[0, 0, 0, 5], [0, 1, 1, 5]]


# ---- what a cell says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fdtype", ["float32", "float16"])
def test_negative_features_have_a_maximum(fdtype, voxelize):
    """Defects 8 and 19: the maximum of a cell began at 0, and floats were compared as signed integers."""
    points = np.full((3, 3), 0.5, np.float32)
    features = np.array([[-3, -1, -0.0, 2], [-1, -2, -5, -7], [-2, -3, -1, -2]], fdtype)
    assert voxelize(points, features, mode="max")[0][0, 0, 0].tolist() == [-1, -1, 0, 2]
    assert voxelize(points, features, mode="min")[0][0, 0, 0].tolist() == [-3, -3, -5, -7]
    assert (voxelize(points, features, mode="max", fill=-np.inf)[0][1:] == -np.inf).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_zeros_of_both_signs_have_an_order(order, voxelize):
    points = np.full((2, 3), 0.5, np.float32)
    features = np.array([[0.0], [-0.0]], np.float32)[list(order)]
    assert np.signbit(voxelize(points, features, mode="min")[0][0, 0, 0, 0])
    assert not np.signbit(voxelize(points, features, mode="max")[0][0, 0, 0, 0])


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_a_nan_feature_is_seen_in_its_channel_alone(mode, voxelize):
    points = np.array([[0.5] * 3, [0.5] * 3, [1.5] * 3], np.float32)
    for features in ([[np.nan, 1], [2, 3], [4, 5]], [[2, 1], [-np.nan, 3], [4, 5]]):
        grid, _, _ = voxelize(points, np.array(features, np.float32), mode=mode)
        assert np.argwhere(np.isnan(grid)).tolist() == [[0, 0, 0, 0]]


def test_the_features_of_dropped_points_are_not_read(voxelize):
    points = np.array([[0.5] * 3, [np.nan] * 3, [9.0] * 3], np.float32)
    features = np.array([[1.0], [np.nan], [np.inf]], np.float32)
    for mode in OF_FEATURES:
        grid, _, dropped = voxelize(points, features, mode=mode, deterministic=True)
        assert dropped == 2
        assert grid[0, 0, 0, 0] == (0 if mode == "std" else 1)
        assert np.count_nonzero(grid) == (0 if mode == "std" else 1)


@pytest.mark.parametrize("mode", ["sum", "mean", "std"])
def test_the_mean_is_the_same_in_every_run(mode, backend, rng):
    """Defect 12: "deterministic", with atomic additions of floats, and no test that used the mean."""
    num_points = 20_000
    points = rng.uniform(0, 4, (num_points, 3)).astype(np.float32)
    features = (rng.normal(size=(num_points, 3)) * 10.0 ** rng.integers(-6, 6, (num_points, 3))).astype(np.float32)
    case = Case(points, features, None, (0, 0, 0), (1, 1, 1), (4, 4, 4))
    seen = set()
    for order in (slice(None), slice(None, None, -1), rng.permutation(num_points), np.argsort(features[:, 0])):
        other = Case(points[order].copy(), features[order].copy(), None, case.origin, case.size, case.shape)
        seen.add(to_numpy(other.dense(backend, mode, deterministic=True)[0]).tobytes())
    assert len(seen) == 1
    assert_dense(case.dense(backend, mode, deterministic=True), case.expected(mode))


@pytest.mark.parametrize("width", [1, 2, 3, 5, 6, 7, 9, 13, 30])
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_channels_that_are_no_multiple_of_four(mode, width, voxelize):
    """Defect 17: six channels and more did not fit, unchecked."""
    points = np.repeat(np.arange(4) + 0.5, 3)[:, None].repeat(3, 1).astype(np.float32)
    features = np.arange(12 * width, dtype=np.float32).reshape(12, width) - 40
    grid, _, _ = voxelize(points, features, mode=mode)
    functions = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "std": np.std}
    want = functions[mode](features.reshape(4, 3, width), axis=1)
    i = np.arange(4)
    np.testing.assert_allclose(grid[i, i, i], want, rtol=2.0**-23 if mode == "std" else 0)
    grid[i, i, i] = 0
    assert not grid.any()


@pytest.mark.parametrize("mode", MODES)
def test_no_points_are_an_empty_grid(mode, voxelize):
    """Defect 6: a launch of no blocks."""
    features = np.zeros((0, 3), np.float32) if mode in OF_FEATURES else None
    grid, counts, dropped = voxelize(np.zeros((0, 3), np.float32), features, mode=mode, fill=-1.0)
    assert (grid == (-1 if mode in ("min", "max", "std") else 0)).all()
    assert not counts.any()
    assert dropped == 0


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_features_without_channels_are_an_empty_grid(mode, voxelize):
    grid, counts, _ = voxelize(np.full((5, 3), 0.5, np.float32), np.zeros((5, 0), np.float32), mode=mode)
    assert grid.shape == (4, 4, 4, 0)
    assert counts.sum() == counts[0, 0, 0] == 5


# ---- many points in one cell -----------------------------------------------------------------------------------------

native = pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "torch"])  # torch is slow
MANY = 2**24 + 3  # one more than float32 can count, and two for good measure


def many(backend, width=0):
    """So many points in cell (1, 2, 3), as one row that is seen again and again."""
    shown = torch.tensor([[1.5, 2.5, 3.5]], device=DEVICE[backend]).expand(MANY, 3)
    features = torch.ones(1, width, device=DEVICE[backend]).expand(MANY, width) if width else None
    return shown, features


@native
def test_counts_of_more_than_2_to_the_24_points_are_exact(backend):
    points, _ = many(backend)
    given = {**CUBE, "mode": "count", "backend": backend, "return_info": True}
    for dtype, want in ((None, MANY), ("int64", MANY), ("uint8", 255)):
        grid, info = robocache.voxelize_pointcloud(points, dtype=dtype, **given)
        assert int(grid[1, 2, 3]) == int(grid.long().sum()) == want
        assert int(info.counts[1, 2, 3]) == int(info.counts.sum()) == MANY
    for bounds in (None, (4, 4, 4)):
        got = robocache.voxelize_sparse(points, None, 1.0, grid_size=bounds, max_points=3, backend=backend)
        assert to_numpy(got.counts).tolist() == [MANY]
        assert to_numpy(got.first_points).tolist() == [[0, 1, 2]]


@native
def test_deterministic_sums_of_more_than_2_to_the_24_points_are_exact(backend):
    points, features = many(backend, 1)
    for mode, want in (("sum", np.float32(MANY)), ("mean", 1.0)):
        grid = robocache.voxelize_pointcloud(points, features, mode=mode, deterministic=True, **CUBE, backend=backend)
        assert float(grid[1, 2, 3, 0]) == want
        assert int(torch.count_nonzero(grid)) == 1


def test_counts_in_a_byte_stop_at_255(voxelize):
    for num_points in (254, 255, 256, 257, 511, 512, 70_000):
        grid, counts, _ = voxelize(np.full((num_points, 3), 0.5, np.float32), mode="count", dtype="uint8")
        assert grid[0, 0, 0] == min(num_points, 255)
        assert counts[0, 0, 0] == num_points
        assert grid.dtype == np.uint8


def test_an_unknown_backend_is_refused(backend):
    """Defect 16: an unknown backend was ignored."""
    points = on(backend, np.zeros((1, 3), np.float32))
    for function in (robocache.voxelize_pointcloud, robocache.voxelize_sparse):
        with pytest.raises(ValueError, match=r"backend .* got .*triton"):
            function(points, backend="triton")
