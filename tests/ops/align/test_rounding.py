"""Which roundings happen, and how often: results a second rounding would change."""

from fractions import Fraction

import numpy as np
import pytest
import robocache
from arrays import BFLOAT16, FLOATS, on, to_numpy

PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8, "float64": 53}


def rounded(exact, dtype):
    """An exact number rounded once, half to even, to a float dtype (normal numbers only)."""
    exact = Fraction(exact)
    if exact == 0:
        return 0.0
    exponent = 0
    while abs(exact) >= 2 ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (exponent - PRECISION[dtype.name] + 1)
    return float(round(exact / step) * step)


def held(value, out_dtype, backend):
    """The one row of a stream, in another dtype."""
    given = (on(backend, x) for x in (np.array([value]), np.array([0.0]), np.array([0.0])))
    return float(to_numpy(robocache.resample_trajectories(*given, dtype=out_dtype.name, backend=backend))[0])


@pytest.mark.parametrize("out_dtype", FLOATS, ids=str)
def test_float64_is_rounded_once_to_the_output(out_dtype, backend, rng):
    ulp = 2.0 ** (1 - PRECISION[out_dtype.name])
    tricky = [1 + ulp / 2 + 2.0**-40, 1 + ulp / 2 - 2.0**-40, 1 + 3 * ulp / 2 - 2.0**-40, -(1 + ulp / 2 + 2.0**-40)]
    for value in [*tricky, *rng.normal(size=20)]:  # the tricky ones are ties once float32 has had them
        assert held(value, out_dtype, backend) == rounded(Fraction(float(value)), out_dtype)


@pytest.mark.parametrize("out_dtype", FLOATS, ids=str)
def test_integers_are_rounded_once_to_the_output(out_dtype, backend, rng):
    half = 2 ** (60 - PRECISION[out_dtype.name])  # of an ulp of 2**60
    tricky = [
        2**60 + half + 1,
        2**60 + half - 1,
        2**60 + half,
        2**60 + 3 * half,
        -(2**60) - half - 1,
        2**53 + 1,
        2**24 + 1,
    ]
    for value in [*tricky, *rng.integers(-(2**62), 2**62, size=20)]:
        if out_dtype != np.float16:
            assert held(np.int64(value), out_dtype, backend) == rounded(int(value), out_dtype)
    for value in (2049, 2051, -4098, 65504, 3):
        assert held(np.int64(value), out_dtype, backend) == rounded(value, out_dtype)
    if out_dtype != np.float16:
        assert held(np.uint64(2**64 - 1), out_dtype, backend) == 2.0**64
        assert held(np.uint64(2**63 + 2**62), out_dtype, backend) == 1.5 * 2.0**63


def test_the_blend_of_float32_is_one_fma(tdtype, rng):
    rows = rng.normal(size=(300, 2, 1)).astype(np.float32) * np.float32(1000)
    times, targets = np.sort(rng.random((300, 2)), axis=1), None
    times = (times * 1e9).astype(tdtype) if tdtype == np.int64 else times.astype(tdtype)
    targets = (times[:, :1] + (times[:, 1:] - times[:, :1]) * rng.random((300, 1))).astype(tdtype)
    values = robocache.resample_trajectories(rows, times, targets, backend="cpu")
    for (a, b), (t0, t1), t, got in zip(rows[:, :, 0], times, targets[:, 0], values[:, 0, 0], strict=True):
        weight = np.float32(np.float64(t - t0) / np.float64(t1 - t0))  # differences in the dtype of the times
        exact = Fraction(float(weight)) * Fraction(float(b - a)) + Fraction(float(a))
        assert float(got) == rounded(exact, rows.dtype)


def test_the_blend_of_float64_is_one_fma(rng):
    rows = rng.normal(size=(200, 2, 1))
    times = np.sort(rng.random((200, 2)), axis=1)
    targets = times[:, :1] + (times[:, 1:] - times[:, :1]) * rng.random((200, 1))
    values = robocache.resample_trajectories(rows, times, targets, backend="cpu")
    for (a, b), (t0, t1), t, got in zip(rows[:, :, 0], times, targets[:, 0], values[:, 0, 0], strict=True):
        exact = Fraction(float((t - t0) / (t1 - t0))) * Fraction(float(b - a)) + Fraction(float(a))
        assert float(got) == rounded(exact, rows.dtype)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_half_precision_blends_in_float32_and_rounds_at_the_end(dtype, rng):
    rows = rng.normal(size=(300, 2, 1)).astype(dtype)
    times = np.broadcast_to(np.array([0, 1_000_003]), (300, 2))
    targets = rng.integers(1, 1_000_003, size=(300, 1))
    values = robocache.resample_trajectories(rows, times, targets, backend="cpu")
    for (a, b), t, got in zip(rows[:, :, 0].astype(np.float32), targets[:, 0], values[:, 0, 0], strict=True):
        weight = np.float32(t / 1_000_003)
        blend = rounded(Fraction(float(weight)) * Fraction(float(b - a)) + Fraction(float(a)), np.dtype(np.float32))
        assert float(got) == rounded(Fraction(blend), dtype)


def test_float64_values_blend_into_bfloat16_with_one_rounding():
    # 1 + 2**-8 is a tie of bfloat16; the blend is a little above it, by less than float32 can see
    rows, times = np.array([1.0, 1.0 + 2.0**-7 + 2.0**-39]), np.array([0.0, 1.0])
    values = robocache.resample_trajectories(rows, times, np.array([0.5]), dtype="bfloat16", backend="cpu")
    assert float(values[0]) == 1 + 2.0**-7


def test_sums_of_a_mean_run_in_float64():
    rows = np.array([1.0, *([2.0**-24] * 2**12)], np.float32)  # in float32 the sum never leaves 1
    values = robocache.resample_trajectories(
        rows, np.arange(len(rows)), np.array([2048, 6144]), method="mean", backend="cpu"
    )
    assert values[0] == np.float32((1 + 2.0**-12 - 2.0**-24) / 4096)
