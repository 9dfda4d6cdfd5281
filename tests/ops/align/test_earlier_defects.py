"""Every defect of the earlier system that concerns resampling or fusion, by name (reference/kernels.md, section 5)."""

import numpy as np
import pytest
import robocache
import torch
from arrays import DEVICE, on, to_numpy

ROWS = np.arange(10.0)  # values are times: what comes back says where it was read


@pytest.fixture
def fuse(backend):
    """``fuse_multimodal`` of three streams on the backend, with NumPy in and out."""

    def call(*arrays, **options):
        arrays = [on(backend, x) for x in arrays]
        return to_numpy(robocache.fuse_multimodal(*arrays, backend=backend, **options))

    return call


def test_resampling_past_the_end_holds_and_does_not_extrapolate(resample):
    values, valid = resample(ROWS[:, None], ROWS, np.array([-3.0, 9.0, 9.5, 1e6]))
    assert values[:, 0].tolist() == [0.0, 9.0, 9.0, 9.0]
    assert valid.tolist() == [False, True, False, False]


def test_fusion_holds_on_both_sides(fuse):
    rows, times = ROWS[None, :, None], ROWS[None]
    got = fuse(rows, times, rows + 100, times, rows * 2, times, np.array([[-5.0, 20.0]]))
    assert got.tolist() == [[[0.0, 100.0, 0.0], [9.0, 109.0, 18.0]]]


@pytest.mark.parametrize("method", ["linear", "cubic", "nearest", "previous", "next", "angle", "mean", "rms"])
def test_a_single_row_is_held(method, resample):
    values, valid = resample(np.full((3, 1, 2), 7.0), np.ones((3, 1)), np.tile([0.0, 1.0, 2.0], (3, 1)), method=method)
    assert (values == 7.0).all()
    assert valid.tolist() == [[False, True, False]] * 3


def test_a_single_row_is_held_in_fusion(fuse):
    one, t1, rows, times = np.array([[[7.0]]]), np.array([[2.0]]), ROWS[None, :, None], ROWS[None]
    got = fuse(one, t1, rows, times, one, t1, np.array([[0.0, 2.0, 3.5]]))
    assert got.tolist() == [[[7.0, 0.0, 7.0], [7.0, 2.0, 7.0], [7.0, 3.5, 7.0]]]


def test_no_rows_at_all_give_zeros_that_are_not_valid(resample, fuse):
    values, valid = resample(np.ones((2, 0, 3)), np.ones((2, 0)), np.zeros((2, 4)))
    assert values.shape == (2, 4, 3)
    assert not values.any()
    assert not valid.any()
    none, t0, rows, times = np.ones((1, 0, 2)), np.ones((1, 0)), ROWS[None, :, None], ROWS[None]
    assert fuse(none, t0, rows, times, none, t0, np.array([[3.5]])).tolist() == [[[0.0, 0.0, 3.5, 0.0, 0.0]]]


@pytest.mark.parametrize("num_rows", [512, 513, 4096, 4097, 70_001])
def test_rows_after_the_512th_are_found(num_rows, resample):
    rows = np.arange(num_rows, dtype=np.float64)
    targets = np.array([0.5, 510.5, 511.0, num_rows - 2.5, num_rows - 1.25, num_rows - 1])
    values, valid = resample(rows[:, None], rows, targets)
    assert values[:, 0].tolist() == targets.tolist()
    assert valid.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_times_with_a_stride_of_zero_are_read_where_they_are(dtype, backend):
    # what the earlier docstring showed: torch.linspace(...).expand(batch, -1), garbage for every row but the first
    batch, device = 5, DEVICE[backend]
    data = (
        torch.arange(10.0, device=device)[None, :, None].repeat(batch, 1, 3)
        + 100 * torch.arange(batch, device=device)[:, None, None]
    )
    times = (torch.arange(10, device=device) * 2).to(dtype).expand(batch, -1)
    targets = torch.tensor([1, 7, 18], device=device).to(dtype).expand(batch, -1)
    assert times.stride() == (0, 1)
    got = robocache.resample_trajectories(data, times, targets, backend=backend)
    expected = torch.tensor([0.5, 3.5, 9.0])[None, :, None] + 100 * torch.arange(batch)[:, None, None]
    assert torch.equal(got.cpu(), expected.expand(-1, -1, 3))
    data = torch.arange(10.0, device=device)[:, None].expand(batch, 10, 3)  # and the data too
    got = robocache.resample_trajectories(data, times, targets, backend=backend)
    assert torch.equal(got.cpu(), torch.tensor([0.5, 3.5, 9.0])[None, :, None].expand(batch, -1, 3))


def test_half_precision_is_not_read_as_float32(resample, fuse):
    rows = (np.arange(64) / 8).astype(np.float16).reshape(2, 8, 4)
    times = np.tile(np.arange(8.0), (2, 1))
    values, _ = resample(rows, times, times[:, :-1] + 0.5)
    assert values.dtype == np.float16
    np.testing.assert_array_equal(values, (rows[:, :-1] + rows[:, 1:]) / np.float16(2))
    got = fuse(rows, times, rows, times, rows, times, times[:, :-1] + 0.5)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, np.tile((rows[:, :-1] + rows[:, 1:]) / np.float16(2), 3))


def test_unix_time_in_nanoseconds_or_float64_resolves_what_float32_cannot(resample):
    second = 1_700_000_000
    offsets_ns = np.arange(0, 10**9, 10**7)  # 100 Hz for a second
    rows = np.arange(100.0)
    targets_ns = second * 10**9 + np.array([5_000_000, 500_000_000, 987_500_000])
    values, valid = resample(rows, second * 10**9 + offsets_ns, targets_ns)
    assert (values.tolist(), valid.all()) == ([0.5, 50.0, 98.75], True)
    values, _ = resample(rows, second + offsets_ns / 1e9, targets_ns / 1e9)
    np.testing.assert_allclose(values, [0.5, 50.0, 98.75], atol=1e-4)  # 2.4e-7 s of float64 in 1e-2 s
    # float32 has a step of 128 s there: every row has the same time, and so the last one is all there is
    times = (second + offsets_ns / 1e9).astype(np.float32)
    assert len(np.unique(times)) == 1
    values, _ = resample(rows, times, (targets_ns / 1e9).astype(np.float32))
    assert values.tolist() == [99.0] * 3


def test_a_difference_of_a_nanosecond_is_not_a_bias_or_a_hold(resample):
    # the earlier kernels added 1e-8 to the difference, or held where it was below 1e-6
    values, _ = resample(np.array([0.0, 1.0]), np.array([0, 4]), np.array([1, 2, 3]))
    assert values.tolist() == [0.25, 0.5, 0.75]
    values, _ = resample(np.array([0.0, 1.0]), np.array([0.0, 4e-9]), np.array([1e-9, 2e-9]))
    np.testing.assert_allclose(values, [0.25, 0.5], rtol=1e-15)


@pytest.mark.parametrize("num_targets", [65_535, 65_536, 200_000])
def test_more_than_65535_targets(num_targets, resample, fuse):
    rows, targets = np.array([0.0, 1.0]), np.linspace(0.0, 1.0, num_targets)
    values, valid = resample(rows[:, None], rows, targets)
    np.testing.assert_array_equal(values[:, 0], targets)
    assert valid.all()
    got = fuse(
        rows[None, :, None],
        rows[None],
        rows[None, :, None],
        rows[None],
        -rows[None, :, None],
        rows[None],
        targets[None],
    )
    np.testing.assert_array_equal(got[0], np.stack([targets, targets, -targets], axis=1))


@pytest.mark.parametrize("name", ["triton", "CPU", "", "cpu:0", "gpu", "auto"])
def test_an_unknown_backend_is_an_error(name):
    rows = ROWS[None, :, None]
    with pytest.raises(ValueError, match=rf"resample_trajectories: backend .*{name}"):
        robocache.resample_trajectories(rows, ROWS[None], ROWS[None], backend=name)
    with pytest.raises(ValueError, match=rf"fuse_multimodal: backend .*{name}"):
        robocache.fuse_multimodal([(rows, ROWS[None])], ROWS[None], backend=name)
    with pytest.raises(ValueError, match=rf"align: backend .*{name}"):
        robocache.align(robocache.Stream(rows, ROWS[None]), ROWS[None], backend=name)


def test_a_backend_that_is_not_there_is_an_error_and_never_a_fallback():
    if torch.cuda.is_available():
        pytest.skip("CUDA is there")
    with pytest.raises(NotImplementedError, match=r"resample_trajectories: .*cuda"):
        robocache.resample_trajectories(ROWS[None, :, None], ROWS[None], ROWS[None], backend="cuda")


def test_pytorch_is_another_name_of_the_torch_backend():
    data, times = torch.from_numpy(ROWS[:, None]), torch.from_numpy(ROWS)
    got = robocache.resample_trajectories(data, times, times + 0.25, backend="pytorch")
    assert torch.equal(got, robocache.resample_trajectories(data, times, times + 0.25, backend="torch"))


def test_the_self_test_passes():
    robocache.self_test()
