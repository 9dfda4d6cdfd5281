"""Random numbers of samples: a hash of seed, epoch, stream and position, so that nothing has to be remembered."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..._core import crc32c

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def draws(seed: int, epoch: int, name: str, positions: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """``(len(positions), count)`` numbers in [0, 1), multiples of 2^-53. docs/loader.md has the formula."""
    stream = crc32c(name.encode())
    key = _mix(_mix(_mix(seed + GOLDEN) + epoch * GOLDEN + 1) + (2 + stream) * GOLDEN + 2)
    with np.errstate(over="ignore"):
        at = positions.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
        x = np.uint64(key) + (at + np.uint64(1)) * np.uint64(GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(x: int) -> int:
    """The last steps of splitmix64, as in src/batch/order.hpp."""
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)
