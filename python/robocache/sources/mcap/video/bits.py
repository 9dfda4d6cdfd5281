"""Bits of a header, first bit first, and the NAL units of a packet. Raises ValueError where a header ends too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator

MAX_HEADER_BYTES = 4096
"""Of a unit: the fields that are read here come first."""
START = b"\0\0\1"


class Bits:
    def __init__(self, data: bytes) -> None:
        self._bits = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def u(self, count: int) -> int:
        """An unsigned number of ``count`` bits."""
        if count > self._left:
            raise ValueError("a header ends too early")
        self._left -= count
        return self._bits >> self._left & ((1 << count) - 1)

    def ue(self) -> int:
        """An unsigned Exp-Golomb number."""
        zeros = 0
        while self.u(1) == 0:
            zeros += 1
            if zeros > 32:
                raise ValueError("a number in a header has more than 32 bits")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """A signed Exp-Golomb number."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)


def nal_units(packet: bytes, count: Callable[[], None]) -> Iterator[bytes]:
    """The NAL units of an Annex B packet, without start codes. Calls ``count`` before each."""
    begin = packet.find(START) + len(START)
    if begin < len(START) or packet[: begin - 1].strip(b"\0"):
        raise ValueError("H.264 and H.265 must be Annex B: it does not begin with a start code")
    while begin:
        count()
        found = packet.find(START, begin)
        end, following = (found, found + len(START)) if found >= 0 else (len(packet), 0)
        if unit := packet[begin:end].rstrip(b"\0"):
            yield unit
        begin = following


def header(unit: bytes, head_bytes: int) -> Bits:
    """The bits of a NAL unit behind its head, without the bytes that prevent start codes."""
    return Bits(unit[head_bytes:MAX_HEADER_BYTES].replace(b"\0\0\3", b"\0\0"))
