"""A golden file: what is wrong with it and what must be said of it; and the times that files of several formats have.

Row i of the stream that is looked at begins with 2 i, so that rows are known by their values. ``times_s``: seconds as
the file has them. ``repairs``: (policies, rows that are left, counts), and the options where it takes others.
``findings``: all that ``check`` finds, as (kind, row, count); then the stream and the episode where they are others.
"""

import dataclasses
from typing import Any

NAN, INF = float("nan"), float("inf")
RATE_HZ = 10
ROWS = 12
EVEN = [i / RATE_HZ for i in range(ROWS)]
ALL = list(range(ROWS))


def but(*left_out, rows=ROWS):
    return [i for i in range(rows) if i not in left_out]


@dataclasses.dataclass
class Case:
    name: str
    times_s: list[float] | None = None
    strict: str | None = None
    repairs: list[tuple] = dataclasses.field(default_factory=list)
    refuses: list[tuple] = dataclasses.field(default_factory=list)
    findings: list[tuple] = dataclasses.field(default_factory=list)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    planted: dict[int, float] = dataclasses.field(default_factory=dict)
    """Second values of rows that are not 2 i + 1."""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What only the writer of this format knows."""
    episode: int = 0


SWAPPED = [*EVEN[:5], 0.6, 0.5, *EVEN[7:]]
TWICE = sorted([*EVEN, 0.3])
RESTART = EVEN[:6] * 2
SET_S = 1.7e9
SET = [*EVEN[:4], *(SET_S + t for t in EVEN[4:])]
SET_BACK = [*(SET_S + t for t in EVEN[:6]), *(SET_S - 3600 + t for t in EVEN[6:])]
BELOW = [(i - 3) / RATE_HZ for i in range(ROWS)]
UNEVEN = [t + (0.04 if i % 2 else 0) for i, t in enumerate(EVEN)]
PAUSE = [*EVEN[:6], *(t + 10 for t in EVEN[6:])]
MIXED = [*EVEN[:6], *(1000 * t for t in EVEN[6:])]
UNIT = "check the time unit"
JUMP = "row 4: the clock jumps from 300000000 to 17000"
BACK = "row 6: time decreases from 600000000 to 500000000 ns"
SORTED = [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11]
