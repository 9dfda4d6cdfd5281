"""Numbers that arguments are: Python's, NumPy's, or tensors of one."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

MOST_HZ = 1e9


def whole(name: str, value: Any, least: int, most: int = 2**31 - 1, op: str = "Loader") -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise ValueError(f"{op}: {name} must be a whole number, got {value!r}") from None
    if not least <= found <= most:
        raise ValueError(f"{op}: {name} must be from {least} to {most}, got {found}")
    return found


def number(name: str, value: Any, op: str = "Loader") -> float:
    """As a float. Text is none, though ``float`` would read it."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{op}: {name} must be a number, got {value!r}") from None


def rate(name: str, value: Any, op: str = "Loader") -> float:
    """In Hz. Times are whole nanoseconds, so that more than 1e9 would be the same moment several times."""
    found = number(name, value, op)
    if not 0 < found < math.inf:
        raise ValueError(f"{op}: {name} must be above 0, got {value}")
    if found > MOST_HZ:
        raise ValueError(f"{op}: {name} must be at most {MOST_HZ:g}, because times are nanoseconds, got {value}")
    return found


def flag(name: str, value: Any, op: str = "Loader") -> bool:
    """True or False, or 1 or 0. Text is none: "False" would be true."""
    if not isinstance(value, bool | int | np.bool_) or value not in (0, 1):
        raise ValueError(f"{op}: {name} must be True or False, got {value!r}")
    return bool(value)


def listed(name: str, value: Any, what: str, op: str) -> list[Any]:
    """Of a list, an array, or anything else that is iterated; not of text, bytes or the keys of a dict."""
    try:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        return [*value]
    except TypeError:
        raise ValueError(f"{op}: {name} must be a list of {what}, got {value!r}") from None
