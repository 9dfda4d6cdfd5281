"""What the headers of one packet declare."""

from __future__ import annotations

from dataclasses import dataclass

from ...reading.budget import Budget

PLANES = ("gray", "yuv420p", "yuv422p", "yuv444p")
"""FFmpeg's names by chroma format."""


MAX_UNITS = 1 << 13
"""Of a message. Encoders write a few hundred slices at most: one for each row of macroblocks or network packet."""


class UnitCounter:
    """Called before each unit of one message, which may be as large as a chunk: counts it and checks the time."""

    def __init__(self, budget: Budget, where: str) -> None:
        self._budget, self._where = budget, where
        self._num_units = 0

    def __call__(self) -> None:
        self._num_units += 1
        if self._num_units > MAX_UNITS:
            raise ValueError(f"a message must have at most {MAX_UNITS} units")
        self._budget.count(self._where)
        self._budget.check_time(self._where)


@dataclass(frozen=True)
class Form:
    """Of the frames of a video. ``order_bits``: of the number by which H.264 and HEVC order pictures, 0 for none."""

    height: int
    width: int
    pixel_format: str
    order_bits: int = 0


@dataclass(frozen=True)
class Packet:
    """``form``: None before the first parameter sets. ``sets``: the parameter sets of the packet, as they are in it;
    a decoder needs them before the packet. ``order``: the low bits of the picture's place in the order of display."""

    is_key: bool
    form: Form | None
    sets: bytes = b""
    order: int | None = None
    restarts: bool = False
    """The order begins anew."""


def pixel_format(chroma: int, depth: int) -> str:
    if not (0 <= chroma < len(PLANES) and 8 <= depth <= 16):
        raise ValueError(f"chroma format {chroma} with {depth} bits does not exist")
    return PLANES[chroma] + (f"{depth}le" if depth > 8 else "")
