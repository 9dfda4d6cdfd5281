"""Numbers that arguments are: Python's, NumPy's, or tensors of one."""

from __future__ import annotations

import operator
from typing import Any


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
