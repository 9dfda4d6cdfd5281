"""Depth that is stored as 16-bit codes: what each code means. ROS stores float depth so (``compressedDepth``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CODES = "codes"
"""Key of ``StreamSpec.meta``: ``{"inverse_depth": [a, b]}``. The pictures are PNG of 16-bit codes ``z``; the depth is
``a / (z - b)`` in float32, NaN where ``z`` is 0."""

BLOCK = 1 << 20
"""Codes that are looked up at once: NumPy makes 8 bytes of each."""


def inverse_depth(a: float, b: float) -> dict[str, Any]:
    """The entry of ``StreamSpec.meta`` for these two parameters."""
    return {CODES: {"inverse_depth": [float(a), float(b)]}}


def codes_problem(meta: Mapping[str, Any]) -> str:
    """Why ``meta`` does not say what codes mean, for a message; empty if it does."""
    codes = meta.get(CODES)
    given = codes.get("inverse_depth") if isinstance(codes, dict) else None
    if isinstance(given, list) and len(given) == 2 and all(_is_number(x) for x in given):
        return ""
    return f"meta[{CODES!r}] must be {{'inverse_depth': [a, b]}} with two finite numbers, got {str(codes)[:80]}"


def _is_number(x: object) -> bool:
    """One that float32 can represent."""
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) and abs(x) < 3e38


def depth_of_codes(codes: NDArray[np.uint16], meta: Mapping[str, Any]) -> NDArray[np.float32]:
    """float32 meters, by a table: the same bits everywhere."""
    a, b = meta[CODES]["inverse_depth"]
    table = _table(float(a), float(b))
    depth = np.empty(codes.shape, np.float32)
    flat, out = codes.reshape(-1), depth.reshape(-1)
    for i in range(0, len(flat), BLOCK):
        np.take(table, flat[i : i + BLOCK], out=out[i : i + BLOCK], mode="clip")
    return depth


@lru_cache(maxsize=16)
def _table(a: float, b: float) -> NDArray[np.float32]:
    codes = np.arange(1 << 16, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        table = np.asarray(np.float32(a) / (codes - np.float32(b)), np.float32)
    table[0] = np.nan
    table.flags.writeable = False
    return table
