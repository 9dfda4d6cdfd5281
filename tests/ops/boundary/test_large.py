"""Large problems: many threads' worth of work, and more than 2**31 elements."""

import numpy as np
import pytest
import robocache
from arrays import on, to_numpy
from cases import METHODS, WINDOW, dense, irregular, one_episode, times_of
from tolerance import TOLERANCE

FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)


@pytest.mark.parametrize(
    "shape", [(1, 5000, 3000, 8), (300, 40, 30, 8), (5, 900, 700, 36), (2, 60, 20_000, 4)], ids=str
)
@pytest.mark.parametrize("method", METHODS)
def test_the_cpu_and_plain_pytorch_agree_on_large_problems(method, shape, rng):
    num_episodes, num_rows, num_targets, width = shape
    case = dense(rng, FLOAT32, INT64, (width,), method, num_rows, num_targets, num_episodes)
    if method not in WINDOW:
        case.targets = rng.permuted(case.targets, axis=1)
    native, plain = case.align("cpu", method=method), case.align("torch", method=method)
    np.testing.assert_array_equal(native.valid, to_numpy(plain.valid))
    np.testing.assert_array_equal(native.index, to_numpy(plain.index))
    got, want = native.values, to_numpy(plain.values)
    scale = {"cubic": 100, "angle": 3}.get(method, 2) * np.abs(case.values).max()  # the weights of cubic reach 9 * 9
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE["float32"][0] * scale)


def test_windows_of_a_million_rows_are_read_whole(rng):
    rows = rng.integers(-100, 100, 1_000_000).astype(np.float64)
    times, targets = np.arange(1_000_000), np.arange(25_000, 1_000_000, 50_000)
    parts = rows.reshape(20, 50_000)
    for method, expected in (("mean", parts.mean(1)), ("min", parts.min(1)), ("max", parts.max(1))):
        values, valid = robocache.resample_trajectories(rows, times, targets, method=method, return_valid=True)
        np.testing.assert_allclose(values, expected, rtol=1e-12)
        assert valid.all()


def test_rows_more_than_2_to_the_31_elements_apart_are_read(backend):
    wide = np.zeros((1_100_000, 2000), np.int8)  # 2.2 GB that nobody touches but for two rows
    wide[1_099_998:] = [[5], [9]]
    times = np.arange(1_100_000)
    targets = np.array([0, 1_099_997, 1_099_998, 1_099_999])
    values = robocache.resample_trajectories(*(on(backend, x) for x in (wide, times, targets)), backend=backend)
    assert to_numpy(values).min(axis=1).tolist() == to_numpy(values).max(axis=1).tolist() == [0, 0, 5, 9]
    far = np.zeros(3 * 10**9, np.int8)[:: 10**8]  # one element a row, 10**8 apart
    far[:] = np.arange(30)
    values = robocache.resample_trajectories(*(on(backend, x) for x in (far, times[:30], times[:30])), backend=backend)
    assert to_numpy(values).tolist() == list(range(30))


def test_outputs_more_than_2_to_the_31_elements_apart_are_written():
    out = np.zeros((3, 10**9), np.int8)[:, :: 10**8]  # (3, 10), the rows 10**9 apart
    rows = np.arange(30, dtype=np.int8).reshape(3, 10)
    times = np.tile(np.arange(10), (3, 1))
    robocache.align(robocache.Stream(rows, times), times, out=out)
    assert out.tolist() == rows.tolist()


def test_an_output_of_more_than_2_to_the_31_elements_is_written_to_its_end():
    num_targets, width = 1_100_000, 2000
    with open("/proc/meminfo") as memory:
        available_kb = next(int(line.split()[1]) for line in memory if line.startswith("MemAvailable"))
    if available_kb < 5_000_000:
        pytest.skip("needs 3 GB of memory")
    rows = np.repeat(np.array([[1], [2]], np.int8), width, axis=1)
    values = robocache.resample_trajectories(rows, np.array([0, 1_099_000]), np.arange(num_targets))
    assert values.shape == (num_targets, width)
    sums = values[::1000].sum(axis=1, dtype=np.int64)
    assert sums.tolist() == [width] * 1099 + [2 * width]
    assert values[-1].min() == values[-1].max() == 2


def test_many_short_episodes_agree_with_the_oracle(backend, rng):
    case = one_episode(rng, FLOAT32, INT64, (2,), num_rows=3000)
    lengths = rng.multinomial(3000, np.ones(1000) / 1000)
    case.offsets = np.concatenate([[0], np.cumsum(lengths)])
    case.times = times_of(irregular(rng, 3000), INT64)
    case.episode = rng.integers(0, 1000, 400)
    case.targets = np.sort(rng.choice(case.times, (400, 2)), axis=1)
    got, want = case.align(backend), case.expected()
    np.testing.assert_array_equal(to_numpy(got.index), want.index)
    np.testing.assert_array_equal(to_numpy(got.valid), want.valid)
