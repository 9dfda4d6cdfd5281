"""The handlers on a GPU: the bits of the CPU, gradients, maps, and functions that XLA runs as CUDA graphs."""

import jax
import numpy as np
import pytest
import robocache
from arrays import FLOATS, to_numpy
from cases import LAYOUTS, METHODS, dense, one_episode
from jax_calls import assert_same_bits, gpu, needs_handlers, without_x64
from robocache.ops.methods import OF_FEATURES, REDUCTIONS
from test_agreement import channels_for
from test_jax_decode import STYLES, pictures_of
from test_jax_voxelize import BOX, CAMERA, CUT, ROOM, cloud
from tolerance import slerp_limit

NS = np.dtype(np.int64)
pytestmark = needs_handlers


@pytest.fixture
def device():
    return gpu()


def on_gpu(function, device, *arrays):
    """Under jax.jit on the GPU; the result must be there."""
    made = jax.jit(function)(*jax.device_put(arrays, device))
    for x in jax.tree_util.tree_leaves(made):
        assert next(iter(x.devices())).platform == "gpu"
    return made


@pytest.mark.parametrize("method", METHODS)
def test_align_on_a_gpu_has_the_bits_of_the_cpu(method, device, rng):
    layout = list(LAYOUTS)[METHODS.index(method) % len(LAYOUTS)]
    dtype = FLOATS[METHODS.index(method) % len(FLOATS)]
    case = LAYOUTS[layout](rng, dtype, NS, channels_for(layout, method), method)
    query = {name: x for name, x in case.query().items() if x is not None}

    def call(values, times, offsets, query):
        return robocache.align(robocache.Stream(values, times, offsets, method=method), **query, return_index=True)

    got, want = on_gpu(call, device, case.values, case.times, case.offsets, query), case.align(method=method)
    assert_same_bits([got.valid, got.index], [want.valid, want.index])
    got, want = to_numpy(got.values).astype(np.float64), to_numpy(want.values).astype(np.float64)
    limit = slerp_limit(want, dtype.name) if method.startswith("slerp") else 0
    assert (np.abs(got - want) <= limit).all()


def test_gradient_and_map_on_a_gpu_are_those_of_the_cpu(device, rng):
    case = one_episode(rng, np.dtype("f4"), NS, (3,))
    values = rng.normal(size=(4, 11, 3)).astype(np.float32)

    def loss(values, times, targets):
        made = jax.vmap(lambda v: robocache.resample_trajectories(v, times, targets, method="cubic"))(values)
        return (made**2).sum()

    want = jax.jit(jax.grad(loss))(values, case.times, case.targets[0])
    got = on_gpu(jax.grad(loss), device, values, case.times, case.targets[0])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_nanoseconds_of_numpy_on_a_gpu_without_x64(device, rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    with without_x64():
        got = on_gpu(lambda v: robocache.resample_trajectories(v, case.times, case.targets), device, case.values)
    np.testing.assert_array_equal(got, robocache.resample_trajectories(case.values, case.times, case.targets))


def test_a_check_on_a_gpu_finds_bad_times(device, rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    call = lambda v, t: robocache.resample_trajectories(v, t, case.targets, check=True)  # noqa: E731
    with pytest.raises(Exception, match="must not decrease"):
        jax.block_until_ready(on_gpu(call, device, case.values, case.times[:, ::-1].copy()))


@pytest.mark.parametrize("offsets", [None, CUT], ids=["one cloud", "three clouds"])
@pytest.mark.parametrize("mode", list(REDUCTIONS))
def test_voxelize_on_a_gpu_has_the_bits_of_the_cpu(mode, offsets, device, rng):
    points, features = cloud(rng, mode)

    def call(points, features, offsets):
        return robocache.voxelize_pointcloud(
            points, features, **BOX, mode=mode, offsets=offsets, deterministic=True, return_info=True
        )

    grid, info = on_gpu(call, device, points, features, offsets)
    want, want_info = call(points, features, offsets)
    assert_same_bits([grid, *info], [want, *want_info])
    if mode not in OF_FEATURES:
        return
    loss = lambda f, p: (robocache.voxelize_pointcloud(p, f, **BOX, mode=mode, offsets=offsets) ** 2).sum()  # noqa: E731
    np.testing.assert_allclose(
        on_gpu(jax.grad(loss), device, features, points),
        jax.jit(jax.grad(loss))(features, points),
        rtol=1e-4,
        atol=1e-4,
    )


def test_depth_images_and_padded_cells_on_a_gpu(device, rng):
    depth = rng.integers(0, 2000, (3, 12, 16)).astype(np.uint16)
    call = lambda d: robocache.voxelize_depth(d, CAMERA, **ROOM)  # noqa: E731
    np.testing.assert_array_equal(on_gpu(call, device, depth), call(depth))
    points, features = cloud(rng, "max")
    cells = lambda p, f: robocache.voxelize_sparse(p, f, 0.5, mode="max", max_voxels=90, max_points=2, padded=True)  # noqa: E731
    for name, a, b in zip(
        robocache.SparseVoxels._fields, on_gpu(cells, device, points, features), cells(points, features), strict=True
    ):
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("style", STYLES)
def test_pixels_on_a_gpu_have_the_bits_of_the_cpu(style, device, rng):
    data, offsets, index = pictures_of(rng)
    call = lambda d, o: robocache.decode_images((d, o), index=index, **STYLES[style])  # noqa: E731
    got, want = on_gpu(call, device, data, offsets), call(data, offsets)
    np.testing.assert_array_equal(np.asarray(got).view(np.uint8), np.asarray(want).view(np.uint8))


def test_a_compiled_function_runs_again_and_again_in_a_command_buffer(device, rng):
    """XLA records a function of several kernels as a CUDA graph after its first runs; data must not be kept in it."""
    cases = [dense(rng, np.dtype("f4"), NS, (4,), num_rows=40) for _ in range(6)]

    @jax.jit
    def step(values, times, targets):
        for _ in range(6):
            values = robocache.resample_trajectories(values[..., ::-1], times, times)
        return robocache.resample_trajectories(values, times, targets)

    for case in cases:
        on_device = jax.device_put((case.values, case.times, case.targets), device)
        want = robocache.resample_trajectories(case.values, case.times, case.targets)  # six reversals change nothing
        np.testing.assert_array_equal(step(*on_device), want)
