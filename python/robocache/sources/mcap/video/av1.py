"""AV1: sequence headers and frame headers of a temporal unit (AV1 specification, 5.5 and 5.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .bits import MAX_HEADER_BYTES, Bits
from .packet import Form, Packet, pixel_format

SEQUENCE, FRAME_HEADER, FRAME = 1, 3, 6
SRGB = (1, 13, 0)
"""Primaries, transfer and matrix that imply RGB."""


class Av1:
    def __init__(self) -> None:
        self._form: Form | None = None
        self._still = False

    def read(self, data: bytes, count: Callable[[], None]) -> Packet:
        has_sequence, shown, keys = False, 0, []
        for kind, content in _units(data, count):
            if kind == SEQUENCE:
                self._form, self._still = _sequence(Bits(content))
                has_sequence = True
            elif kind in (FRAME_HEADER, FRAME):
                is_key, is_shown = (True, True) if self._still else _frame(Bits(content))
                shown += is_shown
                keys.append(is_key and is_shown)
        if shown != 1:
            raise ValueError(f"a message must have one frame that is shown, got {shown}")
        return Packet(has_sequence and keys[0], self._form)


def _frame(bits: Bits) -> tuple[bool, bool]:
    if bits.u(1):
        return False, True  # shows a frame that was decoded before
    return bits.u(2) == 0, bits.u(1) == 1


def _units(data: bytes, count: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
    """Kind and first bytes of each unit. Calls ``count`` before each."""
    at = 0
    while at < len(data):
        count()
        head = data[at]
        at += 2 if head & 4 else 1
        if head & 0x80 or at > len(data):
            raise ValueError("an AV1 unit (OBU) has no valid header")
        size = len(data) - at
        if head & 2:
            size, at = _leb128(data, at)
        if size > len(data) - at:
            raise ValueError("an AV1 unit (OBU) ends after the message")
        yield head >> 3 & 15, data[at : at + min(size, MAX_HEADER_BYTES)]
        at += size


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(8):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at
    raise ValueError("the size of an AV1 unit (OBU) is not valid")


def _sequence(bits: Bits) -> tuple[Form, bool]:
    profile = bits.u(3)
    bits.u(1)
    still = bits.u(1) == 1
    if still:
        bits.u(5)
    else:
        _skip_operating_points(bits)
    across, down = bits.u(4) + 1, bits.u(4) + 1
    width, height = bits.u(across) + 1, bits.u(down) + 1
    if not still and bits.u(1):
        bits.u(7)
    bits.u(3)
    if not still:
        _skip_tools(bits)
    bits.u(3)
    return Form(height, width, _pixel_format(bits, profile)), still


def _skip_operating_points(bits: Bits) -> None:
    delay_bits = 0
    if bits.u(1):  # timing
        bits.u(64)
        if bits.u(1):
            bits.ue()
        if bits.u(1):  # decoder model
            delay_bits = bits.u(5) + 1
            bits.u(42)
    has_delays = bits.u(1)
    for _ in range(bits.u(5) + 1):
        bits.u(12)
        if bits.u(5) > 7:
            bits.u(1)
        if delay_bits and bits.u(1):
            bits.u(2 * delay_bits + 1)
        if has_delays and bits.u(1):
            bits.u(4)


def _skip_tools(bits: Bits) -> None:
    bits.u(4)
    has_order = bits.u(1)
    if has_order:
        bits.u(2)
    screen = 2 if bits.u(1) else bits.u(1)
    if screen and not bits.u(1):
        bits.u(1)
    if has_order:
        bits.u(3)


def _pixel_format(bits: Bits, profile: int) -> str:
    high = bits.u(1)
    depth = 12 if profile == 2 and high and bits.u(1) else 10 if high else 8
    if profile != 1 and bits.u(1):
        return pixel_format(0, depth)
    if bits.u(1) and (bits.u(8), bits.u(8), bits.u(8)) == SRGB:
        raise ValueError("AV1 in RGB is not supported")
    bits.u(1)
    if profile == 2 and depth == 12:
        return pixel_format(3 if not bits.u(1) else 2 if not bits.u(1) else 1, depth)
    return pixel_format((1, 3, 2)[profile] if profile < 3 else -1, depth)
