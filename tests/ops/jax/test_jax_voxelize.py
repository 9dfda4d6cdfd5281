"""voxelize under jax.jit, jax.grad and jax.vmap: the oracle's cells, the bits of the eager call, the same refusals."""

import jax
import numpy as np
import pytest
import robocache
import torch
import voxel_oracle
from arrays import to_numpy
from jax_calls import assert_same_bits, needs_handlers, without_x64
from robocache.ops.methods import OF_FEATURES, REDUCTIONS

pytestmark = needs_handlers
BOX = {"grid_min": (-1.0, -1.0, -1.0), "voxel_size": (0.5, 0.4, 0.7), "grid_size": (4, 5, 3)}
MODES = tuple(REDUCTIONS)
CUT = np.array([0, 7, 7, 40])


def cloud(rng, mode, num_points=40, dtype=np.float32, fdtype=np.float32, width=3):
    points = rng.uniform(-1.2, 1.2, (num_points, 3)).astype(dtype)
    points[3] = np.nan
    features = rng.normal(size=(num_points, width)) * 9
    return points, features.astype(fdtype) if mode in OF_FEATURES else None


# ---- dense grids of points -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", [None, CUT], ids=["one cloud", "three clouds"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("mode", MODES)
def test_a_grid_under_jit_is_that_of_the_oracle_and_of_the_eager_call(mode, dtype, offsets, rng):
    points, features = cloud(rng, mode, dtype=dtype)

    def call(points, features, offsets):
        return robocache.voxelize_pointcloud(
            points, features, **BOX, mode=mode, offsets=offsets, return_info=True, deterministic=True, check=True
        )

    grid, info = jax.jit(call)(points, features, offsets)
    assert_same_bits((grid, *info), call(points, features, offsets))
    want = voxel_oracle.dense(points, features, offsets, *BOX.values(), mode=mode, deterministic=True)
    np.testing.assert_array_equal(to_numpy(info.counts), want.counts.reshape(info.counts.shape))
    np.testing.assert_array_equal(to_numpy(info.dropped), np.reshape(want.dropped, info.dropped.shape))
    np.testing.assert_allclose(to_numpy(grid), want.grid.reshape(grid.shape), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("fdtype", ["float32", "float16", "bfloat16", "uint8"])
def test_features_of_every_dtype(fdtype, rng):
    import ml_dtypes

    points, features = cloud(rng, "max")
    features = np.abs(features).astype(ml_dtypes.bfloat16 if fdtype == "bfloat16" else fdtype)
    call = lambda p, f: robocache.voxelize_pointcloud(p, f, **BOX, mode="max", fill=-1.0)  # noqa: E731
    got, want = jax.jit(call)(points, features), call(points, features)
    np.testing.assert_array_equal(to_numpy(got).astype(np.float32), to_numpy(want).astype(np.float32))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float32"])
def test_a_grid_of_another_dtype(dtype, rng):
    points, _ = cloud(rng, "occupancy")
    call = lambda p: robocache.voxelize_pointcloud(p, **BOX, dtype=dtype)  # noqa: E731
    assert_same_bits(jax.jit(call)(points), call(points))


def test_offsets_and_dropped_without_x64(rng):
    points, _ = cloud(rng, "count")
    call = lambda p, cut: robocache.voxelize_pointcloud(p, **BOX, mode="count", offsets=cut, return_info=True)  # noqa: E731
    grid, info = call(points, CUT)
    with without_x64():
        for traced in (lambda p: jax.jit(lambda p: call(p, CUT))(p), lambda p: jax.jit(call)(p, CUT)):
            got, got_info = traced(points)
            assert got_info.dropped.dtype == np.int32
            np.testing.assert_array_equal(got, grid)
            np.testing.assert_array_equal(got_info.dropped, info.dropped)
        mapped, _ = jax.jit(jax.vmap(call, in_axes=(0, None)))(np.stack([points, -points]), CUT)
    np.testing.assert_array_equal(mapped[1], call(-points, CUT)[0])


@pytest.mark.parametrize("offsets", [None, CUT], ids=["one cloud", "three clouds"])
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_the_gradient_is_that_of_the_torch_op(mode, offsets, rng):
    points, features = cloud(rng, mode)
    shape = (4, 5, 3, 3) if offsets is None else (3, 4, 5, 3, 3)
    upstream = rng.normal(size=shape).astype(np.float32)

    def loss(features, points, upstream):
        grid = robocache.voxelize_pointcloud(points, features, **BOX, mode=mode, offsets=offsets)
        return (grid * upstream).sum()

    tensor = torch.tensor(features, requires_grad=True)
    cut = None if offsets is None else torch.tensor(offsets)
    grid = robocache.voxelize_pointcloud(torch.tensor(points), tensor, **BOX, mode=mode, offsets=cut)
    (grid * torch.tensor(upstream)).sum().backward()
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_array_equal(gradient(features, points, upstream), tensor.grad.numpy())
    many, ups = np.stack([features, -2 * features]), np.stack([upstream, upstream[::-1]])
    of_map = jax.grad(lambda f: jax.vmap(loss, in_axes=(0, None, 0))(f, points, ups).sum())(many)
    map_of = jax.vmap(jax.grad(loss), in_axes=(0, None, 0))(many, points, ups)
    for i in range(2):
        want = jax.grad(loss)(many[i], points, ups[i])
        np.testing.assert_array_equal(of_map[i], want)
        np.testing.assert_array_equal(map_of[i], want)


@pytest.mark.parametrize("mode", ["occupancy", "sum"])
def test_a_gradient_of_points_is_refused_and_never_zero(mode, rng):
    points, features = cloud(rng, mode)
    dtype = "float32" if mode == "occupancy" else None
    loss = lambda p: robocache.voxelize_pointcloud(p, features, **BOX, mode=mode, dtype=dtype).sum()  # noqa: E731
    with pytest.raises(NotImplementedError, match="points must not be differentiated, only features have a gradient"):
        jax.grad(loss)(points)


@pytest.mark.parametrize("mapped", ["points", "features", "points features", "offsets"])
@pytest.mark.parametrize("offsets", [None, CUT], ids=["one cloud", "three clouds"])
def test_a_map_has_the_bits_of_one_call_for_each_element(mapped, offsets, rng):
    clouds = [cloud(rng, "mean") for _ in range(3)]
    every = [{"points": p, "features": f, "offsets": offsets} for p, f in clouds]
    every[1]["offsets"] = None if offsets is None else np.array([0, 1, 30, 40])
    picked = set(mapped.split()) & {n for n, x in every[0].items() if x is not None} or {"points"}
    arrays = {n: np.stack([a[n] for a in every]) if n in picked else x for n, x in every[0].items()}

    def call(arrays):
        return robocache.voxelize_pointcloud(**arrays, **BOX, mode="mean", return_info=True)

    axes = ({n: 0 if n in picked else None for n in arrays},)
    grid, info = jax.jit(jax.vmap(call, in_axes=axes))(arrays)
    for i in range(3):
        one = call({n: x[i] if n in picked else x for n, x in arrays.items()})
        assert_same_bits([grid[i], info.counts[i], info.dropped[i]], [one[0], *one[1]])


# ---- depth images ----------------------------------------------------------------------------------------------------

CAMERA = np.array([[30, 0, 8], [0, 30, 6], [0, 0, 1]], np.float32)
ROOM = {"grid_min": (-0.5, -0.5, 0), "voxel_size": 0.25, "grid_size": (4, 4, 8), "mode": "count"}


@pytest.mark.parametrize(("shape", "views"), [((), False), ((3,), False), ((2,), True), ((3, 2), True)])
@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_depth_images_under_jit_and_mapped(dtype, shape, views, rng):
    depth = rng.integers(0, 2000, (*shape, 12, 16)).astype(dtype) * (1 if dtype == np.uint16 else np.float32(1e-3))
    pose = np.broadcast_to(np.eye(4, dtype=np.float32), (*shape, 4, 4)).copy()
    pose[..., 0, 3] = rng.normal(size=shape) * 0.1

    def call(depth, camera, pose):
        return robocache.voxelize_depth(depth, camera, pose, **ROOM, views=views, max_depth=1.5, return_info=True)

    grid, info = jax.jit(call)(depth, CAMERA, pose)
    assert_same_bits((grid, *info), call(depth, CAMERA, pose))
    many = np.stack([depth, depth[..., ::-1, :]])
    for camera, axis in ((CAMERA, None), (np.stack([CAMERA, 2 * CAMERA]), 0)):
        mapped, _ = jax.jit(jax.vmap(call, in_axes=(0, axis, None)))(many, camera, pose)
        for i in range(2):
            of = camera if axis is None else camera[i]
            np.testing.assert_array_equal(mapped[i], call(np.ascontiguousarray(many[i]), of, pose)[0])
    poses = np.stack([pose, pose @ pose])
    mapped, _ = jax.vmap(call, in_axes=(None, None, 0))(depth, CAMERA, poses)
    np.testing.assert_array_equal(mapped[1], call(depth, CAMERA, poses[1])[0])


def test_a_gradient_of_depth_is_refused(rng):
    depth = np.ones((12, 16), np.float32)
    features = np.ones((12, 16, 2), np.float32)
    room = ROOM | {"mode": "sum"}
    with pytest.raises(NotImplementedError, match="features must not be differentiated, voxelize_depth has no native"):
        jax.grad(lambda f: robocache.voxelize_depth(depth, CAMERA, None, f, **room).sum())(features)


# ---- lists of cells --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("mode", OF_FEATURES)
@pytest.mark.parametrize("max_voxels", [9, 100])
def test_padded_cells_under_jit_are_those_of_the_eager_call(mode, max_voxels, x64, rng):
    points, features = cloud(rng, mode)

    def call(points, features):
        return robocache.voxelize_sparse(
            points, features, 0.5, mode=mode, max_voxels=max_voxels, max_points=2, padded=True, deterministic=True
        )

    want = call(points, features)
    if x64:
        got = jax.jit(call)(points, features)
    else:
        with without_x64():
            got = jax.jit(call)(points, features)
    for name, a, b in zip(want._fields, got, want, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_the_gradient_of_cells_is_that_of_the_torch_op(mode, rng):
    points, features = cloud(rng, mode)
    upstream = rng.normal(size=(100, 3)).astype(np.float32)
    options = {"voxel_size": 0.9, "mode": mode, "max_voxels": 100, "padded": True}

    def loss(features):
        return (robocache.voxelize_sparse(points, features, **options).features * upstream).sum()

    tensor = torch.tensor(features, requires_grad=True)
    made = robocache.voxelize_sparse(torch.tensor(points), tensor, **options)
    (made.features * torch.tensor(upstream)).sum().backward()
    want = tensor.grad.numpy()
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(features), want, rtol=1e-4, atol=1e-5)
    mapped = jax.vmap(jax.grad(loss))(np.stack([features, features]))
    np.testing.assert_allclose(mapped[1], want, rtol=1e-4, atol=1e-5)


def test_cells_map_one_by_one(rng):
    points = np.stack([cloud(rng, "count")[0] for _ in range(3)])
    call = lambda p: robocache.voxelize_sparse(p, voxel_size=0.5, max_voxels=20, padded=True)  # noqa: E731
    got = jax.jit(jax.vmap(call))(points)
    for i in range(3):
        one = call(points[i])
        np.testing.assert_array_equal(got.coordinates[i], one.coordinates)
        np.testing.assert_array_equal(got.overflow[i], one.overflow)


def test_cells_whose_number_depends_on_data_are_refused(rng):
    with pytest.raises(
        NotImplementedError, match=r"padded must be True in a traced call.*pass padded=True and max_voxels"
    ):
        jax.jit(robocache.voxelize_sparse)(cloud(rng, "count")[0])


# ---- refusals --------------------------------------------------------------------------------------------------------

BAD = {
    "a mode": {"mode": "median"},
    "a size": {"voxel_size": -0.1},
    "a shape": {"grid_size": (0, 4, 4)},
    "points": {"points": np.zeros((9, 4), np.float32)},
    "features": {"features": np.zeros((8, 2), np.float32), "mode": "sum"},
    "features that nothing reads": {"features": np.zeros((9, 2), np.float32)},
    "a dtype": {"dtype": "float16"},
    "offsets": {"offsets": np.zeros(3, np.float32)},
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_call_raises_while_it_is_traced_with_the_message_of_the_eager_call(what):
    arguments = {"points": np.zeros((9, 3), np.float32)} | BOX | BAD[what]
    arrays = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray)}
    options = {name: x for name, x in arguments.items() if name not in arrays}
    with pytest.raises(ValueError) as eager:
        robocache.voxelize_pointcloud(**arguments)
    with pytest.raises(ValueError) as error:
        jax.jit(lambda arrays: robocache.voxelize_pointcloud(**arrays, **options)).lower(arrays)
    assert str(error.value) == str(eager.value)


def test_bad_offsets_are_found_where_they_are_checked(rng):
    points, _ = cloud(rng, "count")
    bad = np.array([0, 50, 40])
    call = jax.jit(lambda p, cut: robocache.voxelize_pointcloud(p, **BOX, offsets=cut, check=True))
    with pytest.raises(Exception, match="voxelize_pointcloud: offsets must"):
        jax.block_until_ready(call(points, bad))
