"""Independent checks: SciPy, NumPy and pandas, wherever they mean the same as docs/align.md."""

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import CubicHermiteSpline, interp1d
from scipy.spatial.transform import Rotation, Slerp


@pytest.fixture
def log(rng):
    """A jittered stream of 400 rows and 3 channels, and 300 targets inside it, some on rows."""
    times = np.cumsum(rng.uniform(0.001, 0.02, 400))
    targets = np.concatenate([rng.uniform(times[0], times[-1], 280), rng.choice(times, 20)])
    return rng.normal(size=(400, 3)), times, targets


@pytest.mark.parametrize("method", ["linear", "previous", "next", "nearest"])
def test_scipy_interp1d_means_the_same(method, log, resample):
    values, times, targets = log
    expected = interp1d(times, values, kind=method, axis=0)(targets)
    got, valid = resample(values, times, targets, method=method)
    assert valid.all()
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


def test_scipy_interp1d_extrapolates_along_the_same_lines(log, resample):
    values, times, _ = log
    targets = np.array([times[0] - 0.05, times[0] - 0.001, times[-1] + 0.001, times[-1] + 0.05])
    expected = interp1d(times, values, axis=0, fill_value="extrapolate")(targets)
    np.testing.assert_allclose(resample(values, times, targets, outside="linear")[0], expected, rtol=1e-10, atol=1e-10)
    expected = interp1d(times, values, axis=0, bounds_error=False)(targets)
    np.testing.assert_array_equal(resample(values, times, targets, outside="nan")[0], expected)


def test_numpy_interp_means_linear_with_hold(log, resample):
    values, times, targets = log
    targets = np.concatenate([targets, [times[0] - 1, times[-1] + 1]])
    expected = np.stack([np.interp(targets, times, v) for v in values.T], axis=1)
    np.testing.assert_allclose(resample(values, times, targets)[0], expected, rtol=1e-12, atol=1e-13)


def test_numpy_interp_with_a_period_means_angle(log, resample):
    _, times, targets = log
    turns = np.cumsum(np.random.default_rng(5).uniform(-2.0, 2.0, len(times)))  # less than half a turn a row
    expected = np.interp(targets, times, turns)
    got, _ = resample(np.angle(np.exp(1j * turns)), times, targets, method="angle")
    assert np.abs(got).max() <= np.pi + 1e-12
    np.testing.assert_allclose(np.exp(1j * got), np.exp(1j * expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", ["xyzw", "wxyz"])
def test_scipy_slerp_means_the_same_rotation(order, rng, resample):
    times, targets = np.sort(rng.uniform(0, 1, 50)), None
    rotations = Rotation.random(50, rng=rng)
    targets = rng.uniform(times[0], times[-1], 200)
    given = rotations.as_quat(scalar_first=order == "wxyz") * rng.choice([-1, 1], size=(50, 1))
    got, valid = resample(given, times, targets, method=f"slerp_{order}")
    assert valid.all()
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-14)
    off = Slerp(times, rotations)(targets).inv() * Rotation.from_quat(got, scalar_first=order == "wxyz")
    assert off.magnitude().max() < 1e-7  # an angle from an arc cosine: the square root of 1e-14


def test_a_hermite_spline_with_finite_difference_slopes_is_cubic(rng, resample):
    times = np.cumsum(rng.uniform(0.5, 2.0, 40))
    values = rng.normal(size=40)
    # the slope of the parabola through three rows at the middle one (what Barry and Goldman's spline has there)
    h, d = np.diff(times), np.diff(values) / np.diff(times)
    slopes = np.full(40, np.nan)
    slopes[1:-1] = (h[1:] * d[:-1] + h[:-1] * d[1:]) / (h[1:] + h[:-1])
    targets = rng.uniform(times[1], times[-2], 200)
    expected = CubicHermiteSpline(times[1:-1], values[1:-1], slopes[1:-1])(targets)
    np.testing.assert_allclose(resample(values, times, targets, method="cubic")[0], expected, rtol=1e-10, atol=1e-11)


DIRECTION = {"previous": "backward", "next": "forward", "nearest": "nearest"}


@pytest.mark.parametrize("max_gap_ns", [None, 3_000_000])
@pytest.mark.parametrize("method", DIRECTION)
def test_pandas_merge_asof_means_the_same(method, max_gap_ns, rng, resample):
    start = 1_700_000_000_000_000_000
    times = start + np.cumsum(rng.integers(0, 12_000_000, 300) // 3 * 3)  # some rows twice
    targets = np.sort(np.concatenate([rng.integers(times[0] - 10**7, times[-1] + 10**7, 200), rng.choice(times, 30)]))
    values = np.arange(300)
    merged = pd.merge_asof(
        pd.DataFrame({"time": targets}),
        pd.DataFrame({"time": times, "value": values}).drop_duplicates("time", keep="last"),
        on="time",
        direction=DIRECTION[method],
        tolerance=max_gap_ns,
    )["value"].to_numpy()
    inside = (targets >= times[0]) & (targets <= times[-1])
    got, valid = resample(values, times, targets, method=method, max_gap=max_gap_ns)
    assert 50 < valid.sum() < len(targets)
    np.testing.assert_array_equal(valid, inside & ~np.isnan(merged))
    np.testing.assert_array_equal(got[valid], merged[valid])


def test_pandas_resample_means_the_mean_of_a_regular_window(rng, resample):
    # bins of 10 around the targets 5, 15, 25 ...: [0, 10), [10, 20), ...
    times = np.sort(rng.choice(1000, 400, replace=False))
    values = rng.normal(size=400)
    binned = pd.Series(values).groupby(times // 10)
    targets = np.arange(5, 1000, 10)
    inside = (targets >= times[0]) & (targets <= times[-1])
    means = {method: getattr(binned, method)() for method in ("mean", "min", "max")}
    means["rms"] = np.sqrt(pd.Series(values**2).groupby(times // 10).mean())
    for method, found in means.items():
        expected = found.reindex(range(100)).to_numpy()
        got, valid = resample(values, times, targets, method=method)
        np.testing.assert_array_equal(valid, inside & ~np.isnan(expected))
        np.testing.assert_allclose(got[valid], expected[valid], rtol=1e-13)
