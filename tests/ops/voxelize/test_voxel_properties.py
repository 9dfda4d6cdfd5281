"""Properties of voxelization that hold for any data (Hypothesis): what a grid may depend on, and what it may not."""

from dataclasses import replace

import numpy as np
import pytest
import robocache
from arrays import DEVICE, bits, on, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from voxel_cases import FEATURES, MODES, OF_FEATURES, POINTS, Case, images_of, one_cloud, ragged, spoiled

SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
MODE = st.sampled_from(MODES)
POINT = st.sampled_from(POINTS)
FEATURE = st.sampled_from(FEATURES)
NUM_POINTS = st.sampled_from([0, 1, 2, 5, 17, 100, 400])
few = settings(max_examples=10)
enough = settings(max_examples=25)


def some_case(rng, dtype, fdtype, num_points, width=3):
    case = one_cloud(rng, dtype, fdtype, width, num_points)
    return spoiled(rng, case) if fdtype != np.uint8 and rng.random() < 0.3 else case


def cut(rng, case, num_clouds):
    """The same points as a ragged batch."""
    inner = np.sort(rng.integers(0, len(case.points) + 1, num_clouds - 1))
    return replace(case, offsets=np.array([0, *inner, len(case.points)], np.int64))


def dense(case, backend, mode, **options):
    return [to_numpy(x) for x in case.dense(backend, mode, deterministic=True, **options)]


# ---- counts ----------------------------------------------------------------------------------------------------------


@enough
@given(rng=SEEDS, dtype=POINT, num_points=NUM_POINTS, num_clouds=st.integers(1, 5))
def test_every_point_is_counted_once_or_dropped(rng, dtype, num_points, num_clouds, backend):
    case = cut(rng, some_case(rng, dtype, FEATURES[0], num_points), num_clouds)
    grid, counts, dropped = dense(case, backend, "count", dtype="int64")
    assert (grid.sum((1, 2, 3)) + dropped == np.diff(case.offsets)).all()
    assert (grid == counts).all()
    occupancy, *_ = dense(case, backend, "occupancy")
    assert (occupancy == (counts > 0)).all()
    voxels = case.sparse(backend)
    voxel = to_numpy(voxels.voxel)
    assert int(voxels.dropped) == dropped.sum() == (voxel < 0).sum()
    assert np.bincount(voxel[voxel >= 0], minlength=int(voxels.num_voxels)).tolist() == to_numpy(voxels.counts).tolist()


@enough
@given(rng=SEEDS, dtype=POINT, fdtype=FEATURE, mode=st.sampled_from(OF_FEATURES), num_points=NUM_POINTS,
       num_clouds=st.integers(1, 4))  # fmt: skip
def test_voxels_are_the_occupied_cells_of_the_grid_in_order(rng, dtype, fdtype, mode, num_points, num_clouds, backend):
    case = cut(rng, some_case(rng, dtype, fdtype, num_points), num_clouds)
    grid, counts, _ = dense(case, backend, mode)
    voxels = case.sparse(backend, mode, deterministic=True)
    assert to_numpy(voxels.coordinates).tolist() == np.argwhere(counts).tolist()
    assert bits(voxels.features) == bits(grid[counts > 0])
    assert bits(voxels.counts) == bits(counts[counts > 0])


# ---- order -----------------------------------------------------------------------------------------------------------


@enough
@given(rng=SEEDS, dtype=POINT, fdtype=FEATURE, mode=MODE, num_points=NUM_POINTS)
def test_the_order_of_the_points_changes_no_bit(rng, dtype, fdtype, mode, num_points, backend):
    case = some_case(rng, dtype, fdtype, num_points)
    order = rng.permutation(num_points)
    other = replace(case, points=case.points[order], features=case.features[order])
    for got, want in zip(dense(other, backend, mode), dense(case, backend, mode), strict=True):
        assert bits(got) == bits(want)
    if mode in OF_FEATURES:
        got, want = (x.sparse(backend, mode, deterministic=True) for x in (other, case))
        for name in ("coordinates", "features", "counts"):
            assert bits(getattr(got, name)) == bits(getattr(want, name))
        assert to_numpy(got.voxel).tolist() == to_numpy(want.voxel)[order].tolist()


@enough
@given(rng=SEEDS, dtype=POINT, fdtype=FEATURE, mode=MODE, num_clouds=st.integers(1, 5), num_points=NUM_POINTS)
def test_a_batch_is_a_loop_over_its_clouds(rng, dtype, fdtype, mode, num_clouds, num_points, backend):
    case = cut(rng, some_case(rng, dtype, fdtype, num_points), num_clouds)
    whole = dense(case, backend, mode, fill=3.0)
    listed = case.sparse(backend, "max", max_points=2)
    before = 0
    for b in range(num_clouds):
        rows = slice(*case.offsets[b : b + 2])
        single = Case(case.points[rows], case.features[rows])
        for got, want in zip(dense(single, backend, mode, fill=3.0), whole, strict=True):
            assert bits(got) == bits(want[b])
        one = single.sparse(backend, "max", max_points=2)
        mine = to_numpy(listed.coordinates)[:, 0] == b
        assert to_numpy(one.coordinates)[:, 1:].tolist() == to_numpy(listed.coordinates)[mine, 1:].tolist()
        assert bits(one.features) == bits(to_numpy(listed.features)[mine])
        first = to_numpy(listed.first_points)[mine]
        assert (np.where(first >= 0, first - case.offsets[b], -1) == to_numpy(one.first_points)).all()
        voxel = to_numpy(listed.voxel)[rows]
        assert (np.where(voxel >= 0, voxel - before, -1) == to_numpy(one.voxel)).all()
        before += int(one.num_voxels)


@enough
@given(rng=SEEDS, dtype=POINT, max_points=st.integers(1, 9), bounded=st.booleans())
def test_the_first_points_are_the_first_in_input_order(rng, dtype, max_points, bounded, backend):
    case = cut(rng, some_case(rng, dtype, FEATURES[0], 200), 3)
    case.shape = case.shape if bounded else None
    voxels = case.sparse(backend, max_points=max_points)
    voxel, first = to_numpy(voxels.voxel), to_numpy(voxels.first_points)
    for row in range(int(voxels.num_voxels)):
        mine = np.flatnonzero(voxel == row)[:max_points].tolist()
        assert first[row].tolist() == mine + [-1] * (max_points - len(mine))


# ---- place -----------------------------------------------------------------------------------------------------------


@enough
@given(rng=SEEDS, fdtype=FEATURE, mode=MODE, shift=st.tuples(*[st.integers(-9, 9)] * 3), origin_too=st.booleans(),
       exponent=st.integers(-3, 2))  # fmt: skip
def test_a_shift_by_whole_voxels_shifts_the_grid(rng, fdtype, mode, shift, origin_too, exponent, backend):
    """Sizes are powers of two and points whole multiples of a part of them, so that nothing is rounded."""
    size, shape = 2.0**exponent, np.array((6, 4, 5))
    points = (size / 8 * rng.integers(-8, 8 * shape + 8, (150, 3))).astype(np.float32)
    case = Case(points, some_case(rng, POINTS[0], fdtype, 150).features, None, (0, 0, 0), (size,) * 3, tuple(shape))
    here, counts, dropped = dense(case, backend, mode, fill=5.0)
    moved = replace(case, points=(points + size * np.array(shift)).astype(np.float32))
    if origin_too:  # the same grid
        moved.origin = tuple(size * np.array(shift))
        for got, want in zip(dense(moved, backend, mode, fill=5.0), (here, counts, dropped), strict=True):
            assert bits(got) == bits(want)
        return
    there, moved_counts, _ = dense(moved, backend, mode, fill=5.0)
    low, high = np.maximum(0, shift), np.minimum(shape, shape + shift)
    if (low < high).all():
        inner = tuple(map(slice, low, high))
        outer = tuple(map(slice, low - shift, high - shift))
        assert bits(there[inner]) == bits(here[outer])
        assert bits(moved_counts[inner]) == bits(counts[outer])
    case.shape = moved.shape = None
    got, want = (to_numpy(x.sparse(backend, "max").coordinates) for x in (moved, case))
    assert (got - [0, *shift]).tolist() == want.tolist()


@enough
@given(rng=SEEDS, dtype=POINT, mode=MODE)
def test_a_larger_grid_has_the_smaller_one_in_it(rng, dtype, mode, backend):
    case = some_case(rng, dtype, FEATURES[0], 100)
    small, counts, dropped = dense(case, backend, mode)
    x, y, z = case.shape
    large, large_counts, still = dense(replace(case, shape=(x + 2, y + 1, z + 3)), backend, mode)
    assert bits(large[:x, :y, :z]) == bits(small)
    assert bits(large_counts[:x, :y, :z]) == bits(counts)
    assert still <= dropped


# ---- values ----------------------------------------------------------------------------------------------------------


@enough
@given(rng=SEEDS, fdtype=st.sampled_from(FEATURES[:3]), num_points=NUM_POINTS)
def test_min_is_max_of_the_opposite(rng, fdtype, num_points, backend):
    case = some_case(rng, POINTS[0], fdtype, num_points)
    low, *_ = dense(case, backend, "min", fill=2.0)
    high, *_ = dense(replace(case, features=-case.features), backend, "max", fill=-2.0)
    nan = np.isnan(low)
    assert (nan == np.isnan(high)).all()
    assert bits(np.where(nan, 0, low).astype(low.dtype)) == bits(np.where(nan, 0, -high).astype(low.dtype))


@enough
@given(rng=SEEDS, num_points=NUM_POINTS, exponent=st.integers(-20, 20), mode=st.sampled_from(["sum", "mean", "std"]))
def test_a_power_of_two_scales_deterministic_sums_to_the_bit(rng, num_points, exponent, mode, backend):
    case = one_cloud(rng, POINTS[0], FEATURES[0], 3, num_points)
    scaled = replace(case, features=case.features * np.float32(2.0**exponent))
    got, want = dense(scaled, backend, mode)[0], dense(case, backend, mode)[0]
    assert bits(got) == bits(want * np.float32(2.0**exponent))


@enough
@given(rng=SEEDS, num_points=NUM_POINTS, fdtype=FEATURE)
def test_the_mean_is_between_min_and_max(rng, num_points, fdtype, backend):
    case = one_cloud(rng, POINTS[0], fdtype, 3, num_points)
    low, mean, high = (dense(case, backend, mode, dtype="float32")[0] for mode in ("min", "mean", "max"))
    assert (low <= mean).all()
    assert (mean <= high).all()


@enough
@given(rng=SEEDS, num_points=NUM_POINTS, fdtype=FEATURE, offset=st.sampled_from([0, 100, 4096]))
def test_the_deviation_is_that_of_numpy(rng, num_points, fdtype, offset, backend):
    case = one_cloud(rng, POINTS[0], fdtype, 3, num_points)
    if fdtype == np.float32:
        case = replace(case, features=case.features + np.float32(offset))
    voxels = case.sparse(backend, "std")
    inside, wide = to_numpy(voxels.voxel), case.features.astype(np.float64)
    want = [wide[inside == row].std(axis=0) for row in range(len(to_numpy(voxels.counts)))]
    step = {2: 2.0**-7, 4: 2.0**-22, 1: 2.0**-22}[fdtype.itemsize]
    got = to_numpy(voxels.features).astype(np.float64)
    np.testing.assert_allclose(got, np.reshape(want, got.shape), rtol=step, atol=1e-7)


# ---- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_threads_gives_the_same_bits(mode, rng):
    case = ragged(rng, POINTS[0], FEATURES[0], 5, (20_000, 0, 9_001, 3))
    case.points = rng.uniform(-1, 3, case.points.shape).astype(np.float32)
    case.origin, case.size, case.shape = (0, 0, 0), (0.1, 0.2, 0.3), (20, 10, 7)
    images = images_of(rng, (7,))
    before, results = robocache.num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            robocache.set_num_threads(threads)
            found = dense(case, "cpu", mode) + [to_numpy(x) for x in images.dense("cpu", mode, deterministic=True)]
            for shape in (case.shape, None) if mode in OF_FEATURES else ():
                listed = replace(case, shape=shape).sparse("cpu", mode, deterministic=True, max_points=4)
                found += [np.asarray(x) for x in listed]
            results.append([bits(x) for x in found])
    finally:
        robocache.set_num_threads(before)
    assert all(other == results[0] for other in results[1:])


@pytest.mark.parametrize("mode", MODES)
def test_every_call_gives_the_same_bits(mode, backend, rng):
    case = ragged(rng, POINTS[0], FEATURES[0], 5, (3_000, 0, 5_000))
    results = {tuple(map(bits, dense(case, backend, mode))) for _ in range(4)}
    assert len(results) == 1


@few
@given(rng=SEEDS, mode=MODE, depth_dtype=st.sampled_from([np.uint16, np.float32]), scale=st.sampled_from([None, 0.5]))
def test_depth_images_are_their_points(rng, mode, depth_dtype, scale, backend):
    """Without a pose: the points, made here in float32, as a cloud."""
    images = images_of(rng, (2,), depth_dtype, FEATURES[0], posed=False)
    unit = np.float32(scale or (0.001 if depth_dtype == np.uint16 else 1.0))
    d = images.depth.astype(np.float32) * unit
    (fx, _, cx), (_, fy, cy), _ = images.intrinsics
    v, u = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in d.shape[1:]), indexing="ij")
    with np.errstate(invalid="ignore"):
        points = np.stack([(u - cx) / fx * d, (v - cy) / fy * d, d], -1)
        measured = (d > 0) & np.isfinite(d)
    offsets = np.array([0, *np.cumsum(measured.sum((1, 2)))])
    cloud = Case(points[measured], images.features[measured], offsets, images.origin, images.size, images.shape)
    got = [to_numpy(x) for x in images.dense(backend, mode, deterministic=True, depth_scale=scale)]
    for mine, theirs in zip(got, dense(cloud, backend, mode), strict=True):
        assert bits(mine) == bits(theirs)


@few
@given(rng=SEEDS, dtype=POINT, mode=MODE)
def test_the_inputs_are_left_as_they_are(rng, dtype, mode, backend):
    case = cut(rng, some_case(rng, dtype, FEATURES[0], 50), 3)
    arrays = [on(backend, x.copy()) for x in (case.points, case.features, case.offsets)]
    before = [bits(x) for x in arrays]
    grid = {"grid_min": case.origin, "voxel_size": case.size, "grid_size": case.shape, "backend": backend}
    features = arrays[1] if mode in OF_FEATURES else None
    robocache.voxelize_pointcloud(arrays[0], features, offsets=arrays[2], mode=mode, **grid)
    robocache.voxelize_sparse(arrays[0], arrays[1], offsets=arrays[2], **grid)
    assert [bits(x) for x in arrays] == before
    assert DEVICE[backend] in str(getattr(arrays[0], "device", "cpu"))
