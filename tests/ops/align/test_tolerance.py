"""The tolerance of align: a target that is near enough to the time of a row is at that row."""

import numpy as np
import oracle
import pytest
import robocache
import torch
from arrays import DEVICE, bits, on, to_numpy
from cases import METHODS, WINDOW, dense, one_episode, ragged, span_of
from hypothesis import given
from hypothesis import strategies as st
from tolerance import assert_agrees

TIMES = np.array([0, 100, 200, 300])
ROWS = np.arange(4.0)


def resample(backend, targets, times=TIMES, values=ROWS, **options):
    given = (on(backend, np.asarray(x)) for x in (values, times, targets))
    made = robocache.resample_trajectories(*given, return_valid=True, backend=backend, **options)
    return [to_numpy(x).tolist() for x in made]


def test_a_target_within_the_tolerance_is_its_row_for_every_method(backend):
    rows = np.eye(4)
    for method in METHODS:
        if method not in WINDOW:
            got, valid = resample(backend, [98, 102], values=rows, method=method, tolerance=2, max_gap=0)
            assert got == [rows[1].tolist()] * 2, method
            assert valid == [True, True]


def test_a_target_one_beyond_the_tolerance_is_where_it_was(backend):
    assert resample(backend, [97, 103], method="previous", tolerance=2)[0] == [0, 1]
    assert resample(backend, [97, 103], method="linear", tolerance=2)[0] == [0.97, 1.03]


def test_previous_of_a_target_one_nanosecond_early_is_not_a_row_early(backend):
    times = np.round(np.arange(30) * 1e9 / 30).astype(np.int64)
    early = np.concatenate([times[:1], times[1:] - 1])
    assert resample(backend, early, times, np.arange(30), method="previous", tolerance=1)[0] == [*range(30)]
    assert resample(backend, early, times, np.arange(30), method="previous")[0] == [0, *range(29)]


def test_a_target_just_outside_the_rows_is_inside(backend):
    got, valid = resample(backend, [-3, -2, 302, 303], outside="nan", tolerance=2)
    assert np.isnan(got).tolist() == [True, False, False, True]
    assert valid == [False, True, True, False]
    assert resample(backend, [-2, 302], outside="error", tolerance=2) == [[0, 3], [True, True]]
    with pytest.raises(ValueError, match="outside"):
        resample(backend, [-2, 303], outside="error", tolerance=2)


def test_the_nearest_row_counts_and_the_earlier_one_at_a_tie(backend):
    got = resample(backend, [149, 150, 151, 1000], method="previous", tolerance=1000)
    assert got == [[1, 1, 2, 3], [True] * 4]


def test_of_rows_with_one_time_the_last_stands_for_all(backend):
    times, values = [0, 100, 100, 100, 200], np.arange(5.0)
    assert resample(backend, [99, 101, 199], times, values, method="next", tolerance=1) == [[3, 3, 4], [True] * 3]


def test_the_latency_comes_before_the_tolerance(backend):
    assert resample(backend, [97], method="previous", latency=2, tolerance=1)[0] == [1]
    assert resample(backend, [97], method="previous", tolerance=1)[0] == [0]


def test_windows_are_between_the_targets_as_they_were_asked(backend):
    targets = [99, 201]  # windows [48, 150) and [150, 252)
    times = [47, 48, 100, 149, 150, 200, 251, 252]
    values = np.arange(8.0)
    for tolerance in (0, 1, 48):
        assert resample(backend, targets, times, values, method="min", tolerance=tolerance)[0] == [1, 4]
        assert resample(backend, targets, times, values, method="max", tolerance=tolerance)[0] == [3, 6]


def test_a_window_just_outside_the_rows_uses_its_rows(backend):
    targets = [-1, 101, 203, 305]
    got, valid = resample(backend, targets, method="mean", outside="nan", tolerance=5)
    assert got == [0, 1, 2, 3]
    assert valid == [True] * 4
    got, valid = resample(backend, targets, method="mean", outside="nan", tolerance=4)
    assert valid == [True, True, True, False]


def test_whole_int64_distances_are_exact(backend):
    low, high = -(2**63), 2**63 - 1
    times, values = [low, 0, high], np.arange(3.0)
    targets = [-(2**62) - 1, -(2**62), 2**62, high]
    got, valid = resample(backend, targets, times, values, method="previous", tolerance=2**62 - 1)
    assert got == [0, 0, 2, 2]
    assert valid == [True] * 4
    got, _ = resample(backend, [2**62, -(2**62)], times, values, method="linear", tolerance=2**62)
    assert got == [2, 0]  # one nearer to the last row; a tie


def test_float32_distances_are_taken_in_float32(backend):
    times = np.array([0.0, 0.1, 0.2], np.float32)
    targets = np.array([0.1 - 0.01], np.float32)
    away = float(times[1] - targets[0])
    assert resample(backend, targets, times, np.arange(3.0), method="previous", tolerance=away)[0] == [1]
    assert resample(backend, targets, times, np.arange(3.0), method="previous", tolerance=away * 0.999)[0] == [0]


def test_index_is_that_of_the_row(backend):
    stream = robocache.Stream(on(backend, ROWS), on(backend, TIMES), tolerance=2)
    found = robocache.align(stream, on(backend, np.array([-3, -2, 98, 97, 302])), return_index=True, backend=backend)
    assert to_numpy(found.index).tolist() == [[-1, 0, 1, 0, 3]]


def test_fused_streams_have_tolerances_of_their_own_or_one_for_all(backend):
    def pair():
        return on(backend, ROWS[:, None]), on(backend, TIMES)

    targets = on(backend, np.array([98]))
    got = robocache.fuse_multimodal([pair(), pair()], targets, method="previous", tolerance=2, backend=backend)
    assert to_numpy(got).tolist() == [[1, 1]]
    values, times = pair()
    told = {"data": values, "times": times, "tolerance": 2}
    got = robocache.fuse_multimodal([told, pair()], targets, method="previous", dtype="float32", backend=backend)
    assert to_numpy(got).tolist() == [[1, 0]]


SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
TIME = st.sampled_from([np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.float32)])


@given(rng=SEEDS, tdtype=TIME, method=st.sampled_from([m for m in METHODS if m not in WINDOW]), steps=st.integers(0, 9))
def test_a_tolerance_is_the_call_with_the_targets_moved(rng, tdtype, method, steps, backend):
    case = one_episode(rng, np.dtype(np.float32), tdtype, (4,), method, num_rows=12)
    rows = oracle.episodes(case.values, case.times, None)[0]
    tolerance = span_of(steps, tdtype)
    moved = [[oracle.at_a_row(rows, oracle.moment(t), tolerance) for t in row] for row in case.targets]
    options = {"method": method, "max_gap": span_of(4, tdtype)}
    got = case.align(backend, tolerance=tolerance, **options)
    case.targets = np.array(moved, tdtype)
    want = case.align(backend, **options)
    for a, b in zip(got, want, strict=True):
        assert bits(to_numpy(a)) == bits(to_numpy(b))


@given(rng=SEEDS, tdtype=TIME, steps=st.integers(0, 9), layout=st.sampled_from([dense, ragged]))
def test_windows_with_a_tolerance_agree_with_the_oracle(rng, tdtype, steps, layout, backend):
    case = layout(rng, np.dtype(np.float64), tdtype, (2,))
    for method in WINDOW:
        options = {"method": method, "max_gap": span_of(4, tdtype), "tolerance": span_of(steps, tdtype)}
        assert_agrees(case.align(backend, **options), case.expected(**options), case.values.dtype)


@pytest.mark.parametrize("method", ["linear", "previous", "next", "nearest", "cubic", "mean", "rms"])
def test_gradients_follow_the_tolerance(method, backend, tdtype, rng):
    case = ragged(rng, np.dtype(np.float64), tdtype, (3,), method, lengths=(9, 1, 0, 5))
    options = {"method": method, "tolerance": span_of(1, tdtype)}

    def gradient(way):
        values = torch.from_numpy(case.values).to(DEVICE[backend]).requires_grad_()
        stream = case.stream(backend, "torch", **options)
        stream = robocache.Stream(values, stream.times, stream.offsets, **options)
        found = robocache.align(stream, **case.query(backend, "torch"), backend=way).values
        found.backward(torch.linspace(1, 2, found.numel(), dtype=found.dtype, device=found.device).view(found.shape))
        return values.grad.cpu().numpy()

    np.testing.assert_allclose(gradient(backend), gradient("torch"), rtol=1e-9, atol=1e-9)


def test_a_compiled_call_has_its_tolerance():
    values, times = torch.arange(4.0), torch.from_numpy(TIMES)

    def call(values, targets):
        return robocache.resample_trajectories(values, times, targets, method="previous", tolerance=2)

    targets = torch.tensor([97, 98, 102, 301])
    torch._dynamo.reset()
    got = torch.compile(call, fullgraph=True, backend="eager")(values, targets)
    assert got.tolist() == call(values, targets).tolist() == [0, 1, 1, 3]
