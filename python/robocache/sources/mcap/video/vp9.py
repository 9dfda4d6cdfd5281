"""VP9: frame headers, also of superframes (a frame that is not shown together with one that is)."""

from __future__ import annotations

from collections.abc import Callable

from .bits import Bits
from .packet import Form, Packet, pixel_format

SYNC = 0x498342
RGB = 7
MAX_HEADER_BYTES = 32


class Vp9:
    def __init__(self) -> None:
        self._form: Form | None = None

    def read(self, data: bytes, count: Callable[[], None]) -> Packet:
        """``count`` is for the units of the other codecs: a superframe has at most 8 frames."""
        frames = [self._frame(frame) for frame in _frames(data)]
        shown = sum(is_shown for _, is_shown in frames)
        if shown != 1:
            raise ValueError(f"a message must have one frame that is shown, got {shown}")
        return Packet(frames[0][0], self._form)

    def _frame(self, data: bytes) -> tuple[bool, bool]:
        """Whether it is a keyframe, and whether it is shown."""
        bits = Bits(data[:MAX_HEADER_BYTES])
        if bits.u(2) != 2:
            raise ValueError("a VP9 frame must begin with its marker")
        profile = bits.u(1) + 2 * bits.u(1)
        if profile == 3:
            bits.u(1)
        if bits.u(1):
            return False, True  # shows a frame that was decoded before
        is_key, is_shown = bits.u(1) == 0, bits.u(1) == 1
        bits.u(1)
        if is_key:
            self._form = _form(bits, profile)
        return is_key, is_shown


def _form(bits: Bits, profile: int) -> Form:
    if bits.u(24) != SYNC:
        raise ValueError("a VP9 keyframe must have its sync code")
    depth = 8 if profile < 2 else 12 if bits.u(1) else 10
    if bits.u(3) == RGB:
        raise ValueError("VP9 in RGB is not supported")
    bits.u(1)
    across, down = (bits.u(1), bits.u(1)) if profile % 2 else (1, 1)
    if profile % 2:
        bits.u(1)
    if (across, down) == (0, 1):
        raise ValueError("VP9 with chroma 4:4:0 is not supported")
    width, height = bits.u(16) + 1, bits.u(16) + 1
    return Form(height, width, pixel_format(3 - across - down, depth))


def _frames(data: bytes) -> list[bytes]:
    """Superframe: frames | marker u8 | size of each frame | marker u8."""
    mark = data[-1] if data else 0
    if mark & 0xE0 != 0xC0:
        return [data]
    count, width = (mark & 7) + 1, (mark >> 3 & 3) + 1
    begin = len(data) - 2 - count * width
    if begin < 0 or data[begin] != mark:
        return [data]
    frames, at = [], 0
    for i in range(count):
        place = begin + 1 + i * width
        size = int.from_bytes(data[place : place + width], "little")
        if size:
            frames.append(data[at : min(at + size, begin)])
        at += size
    if at > begin or not frames:
        raise ValueError("the frames of a VP9 superframe do not fit into it")
    return frames
