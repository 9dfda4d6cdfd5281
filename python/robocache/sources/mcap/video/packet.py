"""What the headers of one packet declare."""

from __future__ import annotations

from dataclasses import dataclass

PLANES = ("gray", "yuv420p", "yuv422p", "yuv444p")
"""FFmpeg's names by chroma format."""


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
