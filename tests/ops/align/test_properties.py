"""Properties that hold for any data (Hypothesis): what a result may depend on, and what it may not."""

import numpy as np
import pytest
import robocache
from arrays import BFLOAT16, bits, on, to_numpy
from cases import METHODS, WINDOW, dense, irregular, one_episode, ragged, span_of, times_of, values_of, wanted
from hypothesis import given
from hypothesis import strategies as st

TIMES = st.sampled_from([np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.float32)])
FLOATS = st.sampled_from([np.dtype(np.float32), np.dtype(np.float16), BFLOAT16, np.dtype(np.float64)])
SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
METHOD = st.sampled_from(METHODS)
ONE_TARGET = tuple(m for m in METHODS if m not in WINDOW)  # a target's result needs no other target


def call(backend, values, times, targets, **options):
    given = (on(backend, x) for x in (values, times, targets))
    return [to_numpy(x) for x in robocache.resample_trajectories(*given, return_valid=True, backend=backend, **options)]


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, method=st.sampled_from(ONE_TARGET), num_rows=st.integers(1, 40))
def test_own_timestamps_give_the_rows_back_bit_for_bit(rng, tdtype, dtype, method, num_rows, backend):
    steps = np.unique(irregular(rng, num_rows))
    values = values_of(rng, (len(steps), 8), dtype)  # any bits at all, not only unit quaternions
    values[rng.random(values.shape) < 0.1] = np.nan
    values[rng.random(values.shape) < 0.1] = -0.0
    times = times_of(steps, tdtype)
    got, valid = call(backend, values, times, times, method=method, max_gap=0 if tdtype == np.int64 else 0.0)
    assert valid.all()
    assert bits(got) == bits(values)


@given(rng=SEEDS, tdtype=TIMES, method=st.sampled_from(["linear", "cubic", "mean", "previous", "next", "nearest"]),
       gain=st.floats(-100, 100), shift=st.floats(-100, 100))  # fmt: skip
def test_an_affine_map_of_the_values_commutes_with_sampling(rng, tdtype, method, gain, shift, backend):
    case = one_episode(rng, np.dtype(np.float64), tdtype, (3,), num_rows=12)
    before, _ = call(backend, gain * case.values + shift, case.times, case.targets[0], method=method)
    after, _ = call(backend, case.values, case.times, case.targets[0], method=method)
    np.testing.assert_allclose(before, gain * after + shift, rtol=0, atol=1e-10 * (1 + abs(gain) + abs(shift)))


@given(rng=SEEDS, tdtype=TIMES, method=METHOD, shift=st.integers(-10_000, 10_000))
def test_moving_all_times_changes_nothing(rng, tdtype, method, shift, backend):
    case = one_episode(rng, np.dtype(np.float32), tdtype, (4,), method, num_rows=12)
    moved = [case.times + tdtype.type(span_of(shift, tdtype)), case.targets[0] + tdtype.type(span_of(shift, tdtype))]
    stay, stay_valid = call(backend, case.values, case.times, case.targets[0], method=method)
    move, move_valid = call(backend, case.values, *moved, method=method)
    assert bits(stay) == bits(move)
    assert bits(stay_valid) == bits(move_valid)


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, max_gap=st.sampled_from([None, 3]), num_rows=st.integers(1, 30))
def test_previous_never_reads_the_future(rng, tdtype, dtype, max_gap, num_rows, backend):
    steps = irregular(rng, num_rows)
    now = int(rng.integers(steps[0], steps[-1] + 5))
    targets = np.sort(rng.integers(steps[0], now + 1, 10))
    options = {"method": "previous", "max_gap": None if max_gap is None else span_of(max_gap, tdtype)}
    values, later = values_of(rng, (num_rows, 3), dtype), steps > now
    inside = times_of(targets, tdtype) <= times_of(steps, tdtype)[-1]  # whether a target is inside does know the end
    past, past_valid = call(backend, values, times_of(steps, tdtype), times_of(targets, tdtype), **options)
    values[later] = rng.choice([np.nan, np.inf, 1e3])
    steps[later] += 2 * rng.integers(0, 100)
    now_, now_valid = call(backend, values, times_of(steps, tdtype), times_of(targets, tdtype), **options)
    assert bits(past) == bits(now_)
    assert bits(past_valid[inside]) == bits(now_valid[inside])


@given(rng=SEEDS, dtype=FLOATS, method=st.sampled_from(["previous", "next", "nearest", "linear"]),
       start=st.sampled_from([2**53 + 1, 1_700_000_000_000_000_001, 2**62 + 1, -(2**62) - 3]))  # fmt: skip
def test_nanoseconds_above_2_to_the_53_keep_a_resolution_of_one(rng, dtype, method, start, backend):
    times = start + np.array([0, 1, 2, 3, 5, 7, 11])
    values = np.arange(7).astype(dtype)
    index = rng.permutation(7)
    got, valid = call(backend, values, times, times[index], method=method, max_gap=0)
    assert valid.all()
    assert got.tolist() == values[index].tolist()
    got, _ = call(backend, values, times, np.array([start + 4, start + 6, start + 8]), method=method)
    expected = {"previous": [3, 4, 5], "next": [4, 5, 6], "nearest": [3, 4, 5], "linear": [3.5, 4.5, 5.25]}
    assert got.tolist() == np.array(expected[method]).astype(dtype).tolist()


def test_the_whole_range_of_int64_times_works(backend):
    low, high = -(2**63), 2**63 - 1
    times, targets = np.array([low, high]), np.array([low, low + 1, -1, 0, high - 1, high])
    values, valid = call(backend, np.array([0.0, 1.0]), times, targets)
    np.testing.assert_allclose(values, [0.0, 2.0**-64, 0.5, 0.5, 1.0, 1.0], rtol=1e-15)
    assert valid.all()
    assert call(backend, np.array([0, 1]), times, targets, method="nearest")[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert call(backend, np.array([0, 1]), times, targets, max_gap=2**62)[1].tolist() == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert call(backend, np.array([5.0, 7.0]), times, np.array([low, 0, high]), method="max")[0].tolist() == [
        5.0,
        5.0,
        7.0,
    ]


def test_a_latency_or_delta_past_the_end_of_int64_saturates(backend):
    far = np.array([2**63 - 10, 2**63 - 1])
    values, _ = call(backend, np.array([1, 2]), far, np.array([2**63 - 5]), latency=2**62)
    assert values.tolist() == [2]
    stream = robocache.Stream(*(on(backend, x) for x in (np.array([1, 2]), far)))
    anchor, deltas = (on(backend, np.array(x)) for x in ([2**63 - 5], [-1, 0, 2**62]))
    assert to_numpy(robocache.align(stream, anchor=anchor, deltas=deltas, backend=backend).values).tolist() == [
        [1, 1, 2]
    ]


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, method=METHOD, cut=st.integers(0, 3))
def test_splitting_a_batch_changes_no_bit(rng, tdtype, dtype, method, cut, backend):
    case = dense(rng, dtype, tdtype, (4,), method)
    whole = call(backend, case.values, case.times, case.targets, method=method)
    parts = [
        call(backend, case.values[s], case.times[s], case.targets[s], method=method)
        for s in (slice(cut), slice(cut, 3))
    ]
    for i in range(2):
        assert bits(whole[i]) == bits(parts[0][i]) + bits(parts[1][i])


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, method=METHOD, cut=st.integers(1, 4))
def test_splitting_a_list_of_episodes_changes_no_bit(rng, tdtype, dtype, method, cut, backend):
    lengths = (4, 0, 1, 7, 2)
    case = ragged(rng, dtype, tdtype, (4,), method, lengths)
    whole = case.align(backend, method=method)
    row = int(case.offsets[cut])
    first = type(case)(case.values[:row], case.times[:row], case.targets[:cut], case.offsets[: cut + 1])
    second = type(case)(case.values[row:], case.times[row:], case.targets[cut:], case.offsets[cut:] - row)
    parts = [part.align(backend, method=method) for part in (first, second)]
    assert bits(whole.values) == bits(parts[0].values) + bits(parts[1].values)
    assert bits(whole.valid) == bits(parts[0].valid) + bits(parts[1].valid)


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, method=st.sampled_from(ONE_TARGET), cut=st.integers(0, 8))
def test_splitting_the_targets_changes_no_bit(rng, tdtype, dtype, method, cut, backend):
    case = one_episode(rng, dtype, tdtype, (4,), method)
    whole = call(backend, case.values, case.times, case.targets[0], method=method)
    parts = [
        call(backend, case.values, case.times, t, method=method) for t in (case.targets[0][:cut], case.targets[0][cut:])
    ]
    assert bits(whole[0]) == bits(parts[0][0]) + bits(parts[1][0])


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, method=METHOD)
def test_a_layout_changes_no_bit(rng, tdtype, dtype, method, backend):
    case = dense(rng, dtype, tdtype, (4,), method)
    whole = case.align(backend, method=method)
    rows = case.times.size
    flat = type(case)(
        case.values.reshape(rows, 4), case.times.reshape(rows), case.targets, np.arange(4) * case.times.shape[1]
    )
    assert bits(whole.values) == bits(flat.align(backend, method=method).values)
    strange = type(case)(np.asfortranarray(case.values), np.asfortranarray(case.times), np.asfortranarray(case.targets))
    assert bits(whole.values) == bits(strange.align(backend, method=method).values)


@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_threads_gives_the_same_bits(method, rng):
    case = dense(
        rng, np.dtype(np.float32), np.dtype(np.int64), (64,), method, num_rows=500, num_targets=700, num_episodes=5
    )
    before, results = robocache.num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            robocache.set_num_threads(threads)
            assert robocache.num_threads() == threads
            results.append(case.align("cpu", method=method))
    finally:
        robocache.set_num_threads(before)
    for other in results[1:]:
        assert [bits(x) for x in other] == [bits(x) for x in results[0]]


@given(rng=SEEDS, tdtype=TIMES, a=st.floats(-5, 5), b=st.floats(-5, 5), c=st.floats(-5, 5), num_rows=st.integers(3, 20))
def test_cubic_reproduces_quadratics(rng, tdtype, a, b, c, num_rows, backend):
    steps = np.cumsum(rng.integers(1, 9, num_rows))
    targets = rng.integers(steps[0], steps[-1] + 1, 30)
    x, y = (steps - steps[0]) / 50, (targets - steps[0]) / 50
    got, _ = call(backend, a * x * x + b * x + c, times_of(steps, tdtype), times_of(targets, tdtype), method="cubic")
    np.testing.assert_allclose(got, a * y * y + b * y + c, rtol=0, atol=1e-9)


@given(rng=SEEDS, tdtype=TIMES, method=st.sampled_from(["linear", "previous", "next", "nearest", "mean", "min", "max"]))
def test_results_stay_between_the_smallest_and_the_largest_row(rng, tdtype, method, backend):
    case = one_episode(rng, np.dtype(np.float32), tdtype, (3,))
    got, _ = call(backend, case.values, case.times, case.targets[0], method=method)
    slack = 1e-6  # the blend is one fma: it may round past an end
    assert (got >= case.values.min(axis=0) - slack).all()
    assert (got <= case.values.max(axis=0) + slack).all()


@given(rng=SEEDS, tdtype=TIMES, period=st.sampled_from([2 * np.pi, 360.0, 1.0]))
def test_angle_stays_in_the_range_of_its_rows(rng, tdtype, period, backend):
    steps = irregular(rng, 12)
    targets = times_of(wanted(rng, steps, 20), tdtype)
    for low, high, outside in ((-period / 2, period / 2, "linear"), (0.0, period, "hold")):
        rows = rng.uniform(low, high, (12, 3))
        got, _ = call(backend, rows, times_of(steps, tdtype), targets, method="angle", period=period, outside=outside)
        assert (got >= low).all()
        assert (got <= high).all()


@given(rng=SEEDS, tdtype=TIMES, dtype=FLOATS, method=st.sampled_from(["slerp_xyzw", "slerp_wxyz"]))
def test_slerp_gives_unit_quaternions_on_the_arc(rng, tdtype, dtype, method, backend):
    case = one_episode(rng, dtype, tdtype, (4,), method)
    got, _ = call(backend, case.values, case.times, case.targets[0], method=method, outside="linear", dtype="float64")
    exact = np.isin(case.targets[0], case.times)
    np.testing.assert_allclose(np.linalg.norm(got[~exact], axis=1), 1, atol=1e-14)
