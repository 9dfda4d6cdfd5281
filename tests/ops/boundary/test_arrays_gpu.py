"""Arrays of every framework on a GPU: found there, written there, ready on the stream of the call."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robocache
import torch
from arrays import (
    FLOATS,
    INTEGERS,
    array_of,
    bits,
    cupy,
    is_on_gpu,
    kind_of,
    missing_on_gpu,
    to_numpy,
)
from cases import anchored, dense, ragged


def has_dtype(kind, dtype):
    """Whether a framework has a dtype: CuPy got bfloat16 in version 14."""
    try:
        array_of(kind, np.zeros(1, dtype), "cuda")
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_array_on_a_gpu_in_same_kind_on_it_and_same_bits_out(gpu_kind, dtype, rng):
    if not has_dtype(gpu_kind, dtype):
        pytest.skip(f"{gpu_kind} has no {dtype} here")
    for layout in (dense, ragged, anchored):
        case = layout(rng, dtype, np.dtype(np.int64), (3,))
        got, want = case.align("cuda", gpu_kind), case.align()
        assert [kind_of(x) for x in got] == [gpu_kind] * 3
        assert all(is_on_gpu(x) for x in got)
        assert [to_numpy(x).dtype for x in got] == [x.dtype for x in want]
        assert [bits(x) for x in got] == [bits(x) for x in want]


def test_every_kind_on_a_gpu_is_found_without_naming_a_backend(gpu_kind, rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.float32), (3,))
    arrays = [array_of(gpu_kind, x, "cuda") for x in (case.values, case.times, case.targets)]
    got = robocache.resample_trajectories(*arrays)
    assert kind_of(got) == gpu_kind
    assert is_on_gpu(got)
    assert bits(got) == bits(robocache.resample_trajectories(case.values, case.times, case.targets))
    fused = robocache.fuse_multimodal([arrays[:2], arrays[:2]], arrays[2])
    assert bits(fused) == bits(np.concatenate([to_numpy(got)] * 2, axis=2))
    torchs = robocache.resample_trajectories(*arrays, backend="torch")
    assert kind_of(torchs) == gpu_kind
    np.testing.assert_allclose(to_numpy(torchs), to_numpy(got), rtol=1e-6)


def test_bad_times_on_a_gpu_are_found_where_asked(gpu_kind):
    values, times, targets = (array_of(gpu_kind, np.array(x, "f4"), "cuda") for x in ([1, 2, 3], [0, 2, 1], [0.5]))
    with pytest.raises(ValueError, match=r"^resample_trajectories: source_times must .*, got 1 after 2"):
        robocache.resample_trajectories(values, times, targets, check=True)


def test_an_empty_output_on_a_gpu_is_empty(gpu_kind):
    values, times, targets = (array_of(gpu_kind, np.zeros(n, "f4"), "cuda") for n in ((2, 5, 3), (2, 5), (2, 0)))
    got = robocache.resample_trajectories(values, times, targets)
    assert (kind_of(got), tuple(got.shape)) == (gpu_kind, (2, 0, 3))


def test_arrays_on_a_gpu_and_on_the_cpu_do_not_mix(gpu_kind):
    rows = np.arange(4.0)
    there = array_of(gpu_kind, rows, "cuda")
    for arrays, name in (((there, rows, rows), "source_times"), ((rows, there, rows), "source_times")):
        with pytest.raises(ValueError, match=rf"^resample_trajectories: {name} must be on c.*, got c"):
            robocache.resample_trajectories(*arrays)


def test_kinds_mix_on_a_gpu_as_inputs(gpu_kind, rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.float32), (3,))
    want = bits(robocache.resample_trajectories(case.values, case.times, case.targets))
    for other in ("torch", gpu_kind):
        values = array_of(gpu_kind if other == "torch" else "torch", case.values, "cuda")
        times, targets = (array_of(other, x, "cuda") for x in (case.times, case.targets))
        got = robocache.resample_trajectories(values, times, targets)
        assert kind_of(got) == kind_of(values)
        assert bits(got) == want


def test_outputs_on_a_gpu_are_written_where_they_are(gpu_kind):
    rows = array_of(gpu_kind, np.arange(4.0), "cuda")
    out = array_of(gpu_kind, np.full((1, 4, 3), 7.0), "cuda")
    stream = robocache.Stream(rows, rows)
    if gpu_kind == "jax":
        with pytest.raises(ValueError, match=r"^align: out.* must be writable, got a JAX array"):
            robocache.align(stream, rows, out=out[:, :, 1])
        return
    robocache.align(stream, rows, out=out[:, :, 1])
    assert to_numpy(out)[0].T.tolist() == [[7] * 4, [0, 1, 2, 3], [7] * 4]


def test_an_output_of_another_framework_is_refused_on_a_gpu(gpu_kind):
    if gpu_kind == "torch":
        pytest.skip("it takes two")
    rows = array_of(gpu_kind, np.arange(4.0), "cuda")
    out = torch.zeros(1, 4, dtype=torch.float64, device="cuda")
    with pytest.raises(ValueError, match=rf"^align: out\[0\] must be a {gpu_kind} array.*, got torch"):
        robocache.align(robocache.Stream(rows, rows), rows, out=out)


class OnAGpu:
    """An array that says it is on a GPU, though it is not, and remembers for which streams it was asked."""

    def __init__(self, array):
        self.array, self.streams = array, []

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None, **options):
        self.streams.append(stream)
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize(("stream", "asked"), [(0, 1), (1, 1), (2, 2), (2**47 + 64, 2**47 + 64)])
def test_every_array_is_asked_to_be_ready_on_the_stream_of_the_call(stream, asked):
    core = importlib.import_module("robocache._core")
    arrays = [OnAGpu(np.arange(4.0)) for _ in range(3)]
    out = OnAGpu(np.zeros((1, 4)))
    rows = core.Stream(*arrays[:2], None, None, 0, None, "hold", False, 1.0, None, 0)
    query = (arrays[2], None, None, None)
    names = core.AlignNames("align", "times")
    core.align(names, [rows], *query, valid=False, index=False, check=True, out=[out], queue=(stream, None))
    assert [array.streams for array in (*arrays, out)] == [[asked]] * 4
    assert out.array.tolist() == [[0, 1, 2, 3]]


def test_an_array_that_cannot_be_made_ready_says_why():
    class Deleted(OnAGpu):
        def __dlpack__(self, *, stream=None):
            raise RuntimeError("Array has been deleted.")

    core = importlib.import_module("robocache._core")
    array = Deleted(np.arange(4.0))
    rows = core.Stream(array, array, None, None, 0, None, "hold", False, 1.0, None, 0)
    names = core.AlignNames("align", "times")
    with pytest.raises(ValueError, match=r"^align: streams\[0\]\.values must be .*, got .*Array has been deleted"):
        core.align(names, [rows], array, None, None, None, valid=False, index=False, check=True, queue=(1, None))


SPIN = """
extern "C" __global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


def test_a_call_joins_the_stream_that_cupy_is_working_on():
    if missing_on_gpu("cupy"):
        pytest.skip(missing_on_gpu("cupy"))
    spin = cupy.RawKernel(SPIN, "spin")
    times = cupy.arange(100_000, dtype=cupy.float64)
    late, values = times + 1, cupy.zeros_like(times)
    robocache.resample_trajectories(values, times, times)  # everything is loaded and compiled from here on
    values[...] = late * 0
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):  # not even the default stream waits for it
        spin((1,), (1,), (np.int64(400_000_000),))  # about 0.2 s
        values[...] = late
        got = robocache.resample_trajectories(values, times, times)
        values[...] = late * 0  # behind the call, too
        assert bool((got == late).all())


def test_a_call_waits_for_what_jax_is_still_computing():
    if missing_on_gpu("jax"):
        pytest.skip(missing_on_gpu("jax"))
    gpu = jax.devices("gpu")[0]

    @jax.jit
    def slow(rows, square):
        for _ in range(100):
            square = jnp.tanh(square @ square)
        return rows + 0 * square[0, 0]

    with jax.default_device(gpu):
        rows = jnp.arange(100_000.0)
        square = jnp.full((4096, 4096), 1e-4, jnp.float32)
        slow(rows, square).block_until_ready()
        for _ in range(3):
            got = robocache.resample_trajectories(slow(rows, square), rows, rows)
            assert bool((jnp.sin(got) == jnp.sin(rows)).all())
            assert got.devices() == {gpu}
