"""Times as int64 nanoseconds: of rows at a rate, and of seconds as files hold them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .guard import OptionError

SECOND_NS = 10**9
MIN_RATE_HZ, MAX_RATE_HZ = 1e-6, 10**9
"""A row in 12 days, and one in a nanosecond. Rates are counted in fractions with denominators up to a million."""
UNITS_NS = {"s": SECOND_NS, "ms": 10**6, "us": 10**3, "ns": 1}


def times_at_rate(num_rows: int, rate_hz: float) -> NDArray[np.int64]:
    """Row i is at i / rate_hz seconds, to the nearest nanosecond; exact however long the episode is.

    >>> times_at_rate(4, 30)
    array([        0,  33333333,  66666667, 100000000])
    """
    return index_to_ns(np.arange(num_rows, dtype=np.int64), rate_hz)


def index_to_ns(index: NDArray[Any], rate_hz: float) -> NDArray[np.int64]:
    """The times of rows by their number, at a rate."""
    rate = Fraction(rate_hz).limit_denominator(10**6)
    step = SECOND_NS * rate.denominator
    whole, rest = divmod(
        step, rate.numerator
    )  # i * step / numerator without overflow: i * whole + i * rest / numerator
    index = index.astype(np.int64)
    last = max(int(index.max()), -int(index.min())) if len(index) else 0
    if last * max(whole, rest) >= 1 << 62:  # a product would overflow
        index = index.astype(object)
    return np.asarray(index * whole + (index * rest + rate.numerator // 2) // rate.numerator, np.int64)


def seconds_to_ns(times: NDArray[Any], unit_ns: int = SECOND_NS) -> NDArray[np.int64]:
    """Finite floats, in units of ``unit_ns``: to the nearest nanosecond of what the float says, not of a product that
    is rounded before."""
    exact = times.astype(np.float64)
    whole = np.floor(exact)
    return np.asarray(whole.astype(np.int64) * unit_ns + np.rint((exact - whole) * unit_ns).astype(np.int64), np.int64)


def checked_rate(what: str, rate_hz: Any) -> float:
    """A rate that a user gave."""
    if not is_rate(rate_hz):
        slow = isinstance(rate_hz, float) and 0 < rate_hz < MIN_RATE_HZ
        rule = f"of at least {MIN_RATE_HZ:g}" if slow else "above 0"
        raise OptionError(f"open: {what} must be a rate in Hz {rule}, got {rate_hz!r}")
    return float(rate_hz)


def is_rate(rate_hz: Any) -> bool:
    """Whether rows at that rate have times. It may come from a file."""
    number = isinstance(rate_hz, (int, float)) and not isinstance(rate_hz, bool)
    return number and MIN_RATE_HZ <= rate_hz < MAX_RATE_HZ
