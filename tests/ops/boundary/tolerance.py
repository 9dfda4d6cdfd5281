"""The one table of tolerances, and what agreeing with the oracle means."""

import numpy as np
from arrays import to_numpy

# dtype of the values: rounding errors of the arithmetic, relative to the oracle's `scale`;
# dtype of the output: its one rounding (half an ulp), relative to the result, and absolute where that is subnormal.
#            arithmetic   output     subnormal
TOLERANCE = {
    "float64": (2.0**-49, 2.0**-53, 0.0),
    "float32": (2.0**-21, 2.0**-24, 2.0**-150),
    "float16": (2.0**-21, 2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-21, 2.0**-8, 2.0**-134),
}
# CPU and CUDA give the same bits, but each has its own sine: two units in the last place of the output, and a few of
# float64, in which quaternions of length one are computed.
SLERP = (4, 2.0**-48)  # half units in the last place; absolute


def slerp_limit(want, name):
    """How far CUDA may be from the CPU where a quaternion was interpolated; ``name`` is the output's dtype."""
    halves, absolute = SLERP
    _, output, subnormal = TOLERANCE[name]
    return halves * (output * np.abs(want) + subnormal) + absolute


def assert_values_agree(got, want, scale, dtype):
    """``got`` (any array) is ``want`` up to rounding: exact for integers and for rows that are copied, see TOLERANCE.

    ``dtype`` is that of the stream's values.
    """
    got = to_numpy(got)
    assert got.shape == want.shape
    if got.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(got, want)
        return
    _, output, subnormal = TOLERANCE[got.dtype.name]
    arithmetic = TOLERANCE[dtype.name][0] if dtype.name in TOLERANCE else 0.0
    if got.dtype == dtype:
        np.testing.assert_array_equal(got[scale == 0].astype(np.float64), want[scale == 0].astype(np.float64))
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    limit = arithmetic * scale + output * np.abs(want) + subnormal
    bad = np.abs(got - want) > limit
    assert not bad.any(), (
        f"{bad.sum()} of {bad.size}, first at {np.argwhere(bad)[0]}: {got[bad][0]}, not {want[bad][0]}"
    )


def assert_agrees(result, expected, dtype):
    """An ``Aligned`` of one stream is what the oracle says: values, valid and (where asked) index."""
    np.testing.assert_array_equal(to_numpy(result.valid), expected.valid)
    assert to_numpy(result.valid).dtype == bool
    if result.index is not None:
        np.testing.assert_array_equal(to_numpy(result.index), expected.index)
    assert_values_agree(result.values, expected.values, expected.scale, dtype)
