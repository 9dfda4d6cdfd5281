"""Examples by hand: each method and each edge of docs/align.md, with the numbers a person would write down."""

import math

import numpy as np
import pytest
import robocache
from arrays import on

NAN = math.nan
T = [0.0, 1.0, 3.0]  # the rows of most examples
V = [0.0, 10.0, 30.0]
STEPS = np.array([0.0, 10.0, 11.0])  # values no line goes through


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        #            t = 0.0  0.25   0.5    1.0    1.5   2.0   2.5   3.0
        ("linear", [0.0, 2.5, 5.0, 10.0, 10.25, 10.5, 10.75, 11.0]),
        ("previous", [0.0, 0.0, 0.0, 10.0, 10.0, 10.0, 10.0, 11.0]),
        ("next", [0.0, 10.0, 10.0, 10.0, 11.0, 11.0, 11.0, 11.0]),
        ("nearest", [0.0, 0.0, 0.0, 10.0, 10.0, 10.0, 11.0, 11.0]),
        (None, [0.0, 2.5, 5.0, 10.0, 10.25, 10.5, 10.75, 11.0]),
    ],
)
def test_a_method_inside_the_rows_gives(method, expected, resample):
    values, valid = resample(STEPS, np.array(T), np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]), method=method)
    assert values.tolist() == expected
    assert valid.all()


def test_cubic_follows_a_parabola_and_blends_two_of_them_in_the_middle(resample):
    times = np.array([0.0, 1.0, 3.0, 4.0])
    values, _ = resample(times**2, times, np.array([0.5, 2.0, 3.5]), method="cubic")
    np.testing.assert_allclose(values, [0.25, 4.0, 12.25], rtol=1e-14)
    # rows 0 0 1 1 at 0 1 2 3, t = 1.25: the parabola through the first three rows is t(t-1)/2 = 0.15625, the one
    # through the last three is 1 - (t-2)(t-3)/2 = 0.34375; w = 0.25 blends them.
    values, _ = resample(np.array([0.0, 0.0, 1.0, 1.0]), np.arange(4.0), np.array([1.25]), method="cubic")
    assert values[0] == pytest.approx(0.75 * 0.15625 + 0.25 * 0.34375, rel=1e-14)


def test_cubic_with_two_rows_is_linear(resample):
    assert resample(np.array([1.0, 3.0]), np.array([0.0, 2.0]), np.array([0.5]), method="cubic")[0].tolist() == [1.5]


@pytest.mark.parametrize("method", ["slerp_xyzw", "slerp_wxyz"])
def test_slerp_turns_at_constant_speed_the_short_way_round(method, resample):
    def about_z(degrees):  # the same four numbers in both orders: only their meaning differs
        return [0.0, 0.0, math.sin(math.radians(degrees / 2)), math.cos(math.radians(degrees / 2))]

    rows = np.array([about_z(0), about_z(90)])
    values, _ = resample(rows, np.array([0.0, 3.0]), np.array([1.0, 2.0]), method=method)
    np.testing.assert_allclose(values, [about_z(30), about_z(60)], atol=1e-15)
    values, _ = resample(rows * [[1], [-1]], np.array([0.0, 3.0]), np.array([1.0]), method=method)
    np.testing.assert_allclose(values, [about_z(30)], atol=1e-15)  # -q is the same rotation
    values, _ = resample(rows, np.array([0.0, 3.0]), np.array([-1.0, 4.0]), method=method, outside="linear")
    np.testing.assert_allclose(values, [about_z(-30), about_z(120)], atol=1e-15)  # the same rotation goes on


def test_slerp_of_equal_rows_is_that_row(resample):
    row = np.array([0.5, 0.5, -0.5, 0.5])
    values, _ = resample(np.stack([row, row, -row]), np.arange(3.0), np.array([0.3, 1.3]), method="slerp_wxyz")
    np.testing.assert_allclose(values[0], row, atol=1e-15)
    np.testing.assert_allclose(values[1], row, atol=1e-15)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([170.0, -170.0], [175.0, -175.0]),  # both in [-180, 180]: so is the result
        ([350.0, 10.0], [355.0, 5.0]),  # both in [0, 360]: so is the result
        ([350.0, 370.0], [355.0, 365.0]),  # neither: on from the left row
        ([-350.0, 350.0], [-355.0, -365.0]),  # on from the left row, the short way (20 back)
        ([10.0, 350.0], [5.0, 355.0]),
    ],
)
def test_angle_goes_the_short_way_round(rows, expected, resample):
    values, _ = resample(np.array(rows), np.array([0.0, 4.0]), np.array([1.0, 3.0]), method="angle", period=360.0)
    np.testing.assert_allclose(values, expected, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("low", "high"), [(-180, 180), (0, 360)])
def test_an_angle_extrapolated_over_billions_of_turns_stays_in_the_range_of_its_rows(low, high, dtype, resample):
    rows, times = (
        np.array([2.0, 1.0], dtype) + (300 if low == 0 else 0),
        np.array([1_700_000_000_000_133_499, 1_700_000_000_000_198_279]),
    )
    values, _ = resample(rows, times, np.array([1, 10**9]), method="angle", period=360.0, outside="linear")
    assert ((low <= values) & (values <= high)).all()


def test_the_period_of_angle_is_a_full_turn_by_default(resample):
    values, _ = resample(np.array([3.0, -3.0]), np.array([0.0, 1.0]), np.array([0.25]), method="angle")
    assert values[0] == pytest.approx(3.0 + 0.25 * (2 * math.pi - 6.0), rel=1e-14)


@pytest.mark.parametrize(
    ("method", "expected"),
    [("mean", [0.5, 3.5, 7.5, 10.5]), ("min", [0.0, 2.0, 6.0, 10.0]), ("max", [1.0, 5.0, 9.0, 11.0])],
)
def test_windows_are_half_open_between_the_midpoints_of_targets(method, expected, resample):
    # [0, 2), [2, 6), [6, 10), [10, 12): the outer ones are as wide to the outside as to the inside
    rows = np.arange(13.0)
    values, valid = resample(rows, rows, np.array([1.0, 3.0, 9.0, 11.0]), method=method)
    assert values.tolist() == expected
    assert valid.all()


def test_midpoints_of_nanoseconds_are_not_rounded(resample):
    # targets 0 and 1: their midpoint is 0.5, so row 0 is in the first window and row 1 in the second
    values, valid = resample(np.array([5.0, 7.0]), np.array([0, 1]), np.array([0, 1]), method="mean")
    assert values.tolist() == [5.0, 7.0]
    # targets 0 and 3: midpoint 1.5; rounded up or down, row 1 or row 2 would change sides
    values, valid = resample(np.array([1.0, 2.0, 3.0, 4.0]), np.arange(4), np.array([0, 3]), method="max")
    assert values.tolist() == [2.0, 4.0]
    assert valid.all()


def test_a_window_without_rows_gives_the_left_row_and_is_not_valid(resample):
    values, valid = resample(np.array([1.0, 2.0]), np.array([0.0, 10.0]), np.array([0.0, 4.0, 5.0, 9.8]), method="mean")
    assert values.tolist() == [1.0, 1.0, 1.0, 2.0]
    assert valid.tolist() == [True, False, False, True]


def test_a_single_target_has_no_window(resample):
    values, valid = resample(np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.array([1.0]), method="mean")
    assert (values.tolist(), valid.tolist()) == ([2.0], [False])


@pytest.mark.parametrize("method", ["linear", "previous", "next", "nearest", "cubic", "angle", "mean"])
def test_hold_repeats_the_first_and_the_last_row(method, resample):
    values, valid = resample(np.array(V), np.array(T), np.array([-5.0, 99.0]), method=method)
    assert values.tolist() == [0.0, 30.0]
    assert valid.tolist() == [False, False]


def test_each_side_has_its_own_outside(resample):
    ask = np.array([-1.0, 0.0, 4.0])
    assert resample(np.array(V), np.array(T), ask, outside="linear")[0].tolist() == [-10.0, 0.0, 40.0]
    values, _ = resample(np.array(V), np.array(T), ask, outside=("nan", "hold"))
    np.testing.assert_array_equal(values, [NAN, 0.0, 30.0])
    values, _ = resample(np.array(V), np.array(T), ask, outside=("hold", "linear"))
    assert values.tolist() == [0.0, 0.0, 40.0]
    with pytest.raises(ValueError, match="outside"):
        resample(np.array(V), np.array(T), ask, outside=("hold", "error"))
    assert resample(np.array(V), np.array(T), ask[:2], outside=("hold", "error"))[0].tolist() == [0.0, 0.0]


def test_outside_valid_asks_for_held_and_extrapolated_values_but_never_for_nan(resample):
    ask = np.array([-1.0, 0.5, 5.0])
    for outside, expected in [
        ("hold", [True, True, True]),
        ("linear", [True, True, True]),
        ("nan", [False, True, False]),
    ]:
        _, valid = resample(np.array(V), np.array(T), ask, outside=outside, outside_valid=True)
        assert valid.tolist() == expected
    _, valid = resample(np.array(V), np.array(T), ask, outside_valid=True, max_gap=1.5)
    assert valid.tolist() == [True, True, False]  # 1 before the first row, 2 after the last


def test_an_episode_of_one_row_is_held_whatever_is_asked(resample):
    for method in ("linear", "cubic", "angle", "nearest"):
        for outside in ("hold", "linear") if method != "nearest" else ("hold",):
            values, valid = resample(
                np.array([7.0]), np.array([1.0]), np.array([0.0, 1.0, 2.0]), method=method, outside=outside
            )
            assert (values.tolist(), valid.tolist()) == ([7.0, 7.0, 7.0], [False, True, False])


@pytest.mark.parametrize(
    ("method", "expected"),
    [  #            t = 0     1     1.5   3     4.5   6  (rows at 0, 1, 3, 6; max_gap 2)
        ("linear", [True, True, True, True, False, True]),
        ("cubic", [True, True, True, True, False, True]),
        ("previous", [True, True, True, True, True, True]),
        ("next", [True, True, True, True, True, True]),
        ("nearest", [True, True, True, True, True, True]),
    ],
)
def test_max_gap_is_between_neighbors_for_blends_and_to_the_row_for_single_rows(method, expected, resample):
    rows, ask = np.array([0.0, 1.0, 3.0, 6.0]), np.array([0.0, 1.0, 1.5, 3.0, 4.5, 6.0])
    assert resample(rows, rows, ask, method=method, max_gap=2.0)[1].tolist() == expected


def test_max_gap_is_inclusive_and_an_exact_target_needs_no_neighbor(resample):
    rows, ask = np.array([0.0, 4.0, 8.0]), np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert resample(rows, rows, ask, method="previous", max_gap=2.0)[1].tolist() == [True, True, True, False, True]
    assert resample(rows, rows, ask, method="next", max_gap=2.0)[1].tolist() == [True, False, True, True, True]
    assert resample(rows, rows, ask, method="linear", max_gap=4.0)[1].tolist() == [True] * 5
    assert resample(rows, rows, ask, method="linear", max_gap=0.0)[1].tolist() == [True, False, False, False, True]


def test_latency_reads_the_stream_later(resample):
    # a row stamped 0.5 too late is used for the moment it describes
    values, _ = resample(np.array(V), np.array(T), np.array([0.0, 0.5, -0.5, 2.5]), latency=0.5)
    assert values.tolist() == [5.0, 10.0, 0.0, 30.0]
    values, valid = resample(np.array(V), np.array([0, 1, 3]), np.array([1, 2]), latency=-1)
    assert values.tolist() == [0.0, 10.0]
    assert valid.all()


def test_of_rows_with_the_same_time_only_the_last_exists(resample):
    times, rows = np.array([0.0, 1.0, 1.0, 1.0, 2.0]), np.array([0.0, 5.0, 6.0, 10.0, 20.0])
    ask = np.array([0.5, 1.0, 1.5])
    assert resample(rows, times, ask)[0].tolist() == [5.0, 10.0, 15.0]
    assert resample(rows, times, ask, method="next")[0].tolist() == [10.0, 10.0, 20.0]
    assert resample(rows, times, ask, method="mean")[0].tolist()[1] == 10.0
    assert resample(rows, times, ask, method="min")[0].tolist()[1] == 10.0
    np.testing.assert_allclose(resample(rows, times, ask, method="cubic")[0], [5.0, 10.0, 15.0], rtol=1e-15)
    # one time only: held, even when extrapolation is asked
    assert (
        resample(np.array([1.0, 2.0]), np.array([0.0, 0.0]), np.array([-1.0, 0.0, 1.0]), outside="linear")[0].tolist()
        == [2.0] * 3
    )


def test_nan_values_propagate_but_only_from_rows_that_are_read(resample):
    rows, times = np.array([0.0, NAN, 2.0, 3.0]), np.arange(4.0)
    np.testing.assert_array_equal(
        resample(rows, times, np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5]))[0], [0, NAN, NAN, NAN, 2, 2.5]
    )
    np.testing.assert_array_equal(resample(rows, times, np.array([0.9, 1.9]), method="previous")[0], [0, NAN])
    for method in ("mean", "min", "max", "rms"):
        values, valid = resample(rows, times, np.array([0.5, 2.5]), method=method)
        assert np.isnan(values[0])  # the rows at 0 and 1
        assert values[1] == {"mean": 2.5, "min": 2.0, "max": 3.0, "rms": np.sqrt(6.5)}[method]
        assert valid.all()  # valid says nothing about NaN


def test_rms_is_the_root_of_the_mean_of_the_squares_of_a_window(resample):
    rows, times = np.array([3.0, -4.0, 0.0, 12.0, -12.0, 12.0, 0.0, 0.0]), np.arange(8.0)
    values, valid = resample(rows, times, np.array([0.5, 2.5, 4.5, 6.5]), method="rms")
    np.testing.assert_allclose(values, [np.sqrt(12.5), np.sqrt(72.0), 12.0, 0.0], rtol=1e-15)
    assert valid.all()
    values, valid = resample(rows, times, np.array([-3.0, 0.2, 0.4, 99.0]), method="rms")
    assert values.tolist() == [3.0, 3.0, 8.0, 0.0]  # held, [-1.4, 0.3), [0.3, 49.7), held
    values, valid = resample(rows, times, np.array([1.2, 1.4, 1.6]), method="rms")
    assert (values.tolist(), valid.tolist()) == ([-4.0] * 3, [False] * 3)  # no row in the window: the left row
    tiny = np.array([1e-30, 1e-30], np.float32)  # whose squares float32 does not hold
    assert resample(tiny, times[:2], np.array([0.5, 9.0]), method="rms", outside="nan")[0][0] == tiny[0]


def test_channel_ranges_have_their_own_methods_and_the_others_the_default(resample):
    rows = np.array([[0.0, 0.0, 350.0, 0.0], [10.0, 10.0, 10.0, 10.0]])
    method = [(1, 2, "previous"), (2, 3, "angle")]
    values, valid = resample(rows, np.array([0.0, 4.0]), np.array([1.0]), method=method, period=360.0)
    assert values.tolist() == [[2.5, 0.0, 355.0, 2.5]]
    _, valid = resample(rows, np.array([0.0, 4.0]), np.array([1.0, 4.0]), method=method, period=360.0, max_gap=2.0)
    assert valid.tolist() == [False, True]  # previous alone would be valid, linear is not


def test_integers_take_a_row_and_never_a_mixture(resample):
    rows, times, ask = np.array([5, 8, -3], np.int32), np.array([0, 10, 20]), np.array([0, 4, 9, 15, 16])
    values, _ = resample(rows, times, ask)
    assert (values.dtype, values.tolist()) == (np.int32, [5, 5, 5, 8, 8])
    assert resample(rows, times, ask, method="nearest")[0].tolist() == [5, 5, 8, 8, -3]
    assert resample(rows, times, np.array([5, 15]), method="max")[0].tolist() == [5, 8]
    assert resample(np.array([True, False]), times[:2], np.array([3, 10]))[0].tolist() == [True, False]


def test_index_counts_in_the_stream_when_ragged_and_in_the_episode_when_dense():
    times, values = np.array([0.0, 1.0, 1.0, 0.0, 2.0]), np.arange(5.0)
    ask = np.array([[-1.0, 0.5, 1.5]] * 2)
    got = robocache.align(robocache.Stream(values, times, np.array([0, 3, 5])), ask, return_index=True)
    assert got.index.tolist() == [[-1, 0, 2], [-1, 3, 3]]
    dense = robocache.Stream(np.zeros((2, 2)), np.array([[0.0, 1.0], [0.0, 2.0]]))
    assert robocache.align(dense, ask, return_index=True).index.tolist() == [[-1, 0, 1], [-1, 0, 0]]
    assert robocache.align(dense, ask).index is None


def test_an_episode_without_rows_gives_zeros_that_are_not_valid(backend):
    given = (np.ones((2, 3)), np.array([0.0, 1.0]), np.array([0, 0, 2]), np.array([[0.5], [0.5]]))
    *stream, targets = (on(backend, x) for x in given)
    got = robocache.align(robocache.Stream(*stream), targets, return_index=True, backend=backend)
    assert got.values.tolist() == [[[0, 0, 0]], [[1, 1, 1]]]
    assert (got.valid.tolist(), got.index.tolist()) == ([[False], [True]], [[-1], [0]])


def test_no_targets_no_query_rows_or_no_channels_give_an_empty_output(resample):
    values, valid = resample(np.ones((2, 4, 3)), np.zeros((2, 4)), np.zeros((2, 0)))
    assert (values.shape, valid.shape) == ((2, 0, 3), (2, 0))
    values, valid = resample(np.ones((0, 4, 3), np.float32), np.zeros((0, 4)), np.zeros((0, 5)))
    assert (values.shape, values.dtype, valid.shape) == ((0, 5, 3), np.float32, (0, 5))
    values, valid = resample(np.ones((2, 4, 0)), np.zeros((2, 4)), np.zeros((2, 3)))
    assert (values.shape, valid.all()) == ((2, 3, 0), True)


def test_cubic_beyond_infinite_rows_is_what_linear_is(resample):
    """Outer rows that are not there must not take part: infinity minus infinity would be NaN."""
    times, targets = np.arange(4.0), np.array([-1.0, -0.5, 3.5, 4.0])
    for rows in ([np.inf, 1, 2, 3], [1, 2, 3, np.inf], [-np.inf, 1, np.inf, 0], [1, np.inf, 2, 3], [np.inf] * 4):
        values = np.array(rows, np.float32)[:, None]
        cubic, line = (resample(values, times, targets, method=m, outside="linear")[0] for m in ("cubic", "linear"))
        assert np.array_equal(cubic, line, equal_nan=True), rows
