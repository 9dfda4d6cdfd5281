"""Where decoding of H.264 may begin: NAL units of a keyframe (ITU-T H.264, 7.3 and D.1).

A keyframe is an IDR, or a recovery point: a message (SEI) has the number of frames until pictures are whole. That is 0
in an open GOP. With gradual refresh (intra refresh) it is more, and a decoder that begins there omits those frames.
"""

from __future__ import annotations

from collections.abc import Iterator

SEI, IDR = 6, 5
"""Types of NAL units."""
RECOVERY_POINT = 6
"""Type of the message."""


def recovery_frames(packet: bytes, extradata: bytes) -> int | None:
    """Frames after this keyframe until pictures are whole. None: it is an IDR, or does not say."""
    found = None
    for unit in _units(packet, extradata):
        kind = unit[0] & 31 if unit else 0
        if kind == IDR:
            return None
        if kind == SEI and found is None:
            found = _recovery_point(unit[1:].replace(b"\0\0\3", b"\0\0"))
    return found


def _units(packet: bytes, extradata: bytes) -> Iterator[bytes]:
    """Behind start codes, or behind lengths where the extradata is an avcC."""
    if extradata[:1] != b"\1" or len(extradata) < 5:
        yield from packet.split(b"\0\0\1")[1:]
        return
    length_bytes, at = (extradata[4] & 3) + 1, 0
    while at < len(packet):
        begin = at + length_bytes
        at = begin + int.from_bytes(packet[at:begin], "big")
        yield packet[begin:at]


def _recovery_point(messages: bytes) -> int | None:
    """Message: type and size, each as bytes of 255 and one less | content. recovery_frame_cnt ue(v) is its first."""
    at = 0
    while at + 2 < len(messages):
        kind, at = _number(messages, at)
        size, at = _number(messages, at)
        if kind == RECOVERY_POINT:
            bits = "".join(f"{byte:08b}" for byte in messages[at : at + 8])
            zeros = len(bits) - len(bits.lstrip("0"))
            return int(bits[zeros : 2 * zeros + 1] or "1", 2) - 1
        at += size
    return None


def _number(messages: bytes, at: int) -> tuple[int, int]:
    value = 0
    while at < len(messages):
        value, at = value + messages[at], at + 1
        if messages[at - 1] != 255:
            break
    return value, at
