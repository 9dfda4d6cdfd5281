"""Packets of a video as Rerun's VideoStream takes them: one for each row, each keyframe with its parameter sets.

H.264 and HEVC in MP4 have NAL units behind their lengths, and parameter sets in the extradata (avcC, hvcC). A stream
without a container has start codes, and the parameter sets before each keyframe (Annex B).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..cache.video import Video

CODECS = {"h264": "H264", "hevc": "H265", "av1": "AV1", "vp9": "VP9"}
"""By our name: that of Rerun."""
START = b"\0\0\0\1"
HEVC_SETS = (32, 33, 34)
"""Types of NAL units: parameter sets of video, sequence and picture. hvcC may have messages too (SEI)."""


def video_samples(video: Video) -> list[bytes] | None:
    """One for each row; None where Rerun cannot show the packets: frames that are not in the order of their times
    (B-frames), packets that no row or several rows have, other codecs, and damaged NAL units."""
    index, track = video.index, video.index.track
    in_order = np.array_equal(index.rows, np.arange(len(index.sizes))) and bool((np.diff(index.times) > 0).all())
    if track.codec not in CODECS or not in_order:
        return None
    packets = [video.data[a:b].tobytes() for a, b in zip(index.offsets[:-1], index.offsets[1:], strict=True)]
    if track.codec not in ("h264", "hevc") or track.extradata[:3] in (b"", b"\0\0\1", START[:3]):
        return packets
    try:
        length_bytes, sets = (_avcc if track.codec == "h264" else _hvcc)(track.extradata)
        head = b"".join(START + one for one in sets)
        return [
            (head if key else b"") + b"".join(START + unit for unit in _units(packet, length_bytes))
            for packet, key in zip(packets, index.keys.tolist(), strict=True)
        ]
    except (ValueError, IndexError):
        return None


def _taken(data: bytes, at: int, length_bytes: int) -> tuple[bytes, int]:
    """The bytes behind a length, and where they end."""
    begin = at + length_bytes
    end = begin + int.from_bytes(data[at:begin], "big")
    if end > len(data):
        raise ValueError(f"a unit ends at byte {end} of {len(data)}")
    return data[begin:end], end


def _units(packet: bytes, length_bytes: int) -> Iterator[bytes]:
    at = 0
    while at < len(packet):
        unit, at = _taken(packet, at, length_bytes)
        yield unit


def _avcc(data: bytes) -> tuple[int, list[bytes]]:
    """Bytes of a length, and the parameter sets: first those of sequences, then those of pictures."""
    sets, at = [], 5
    for mask in (0x1F, 0xFF):
        count, at = data[at] & mask, at + 1
        for _ in range(count):
            one, at = _taken(data, at, 2)
            sets.append(one)
    return (data[4] & 3) + 1, sets


def _hvcc(data: bytes) -> tuple[int, list[bytes]]:
    sets, at = [], 23
    for _ in range(data[22]):
        kind, count, at = data[at] & 0x3F, int.from_bytes(data[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            one, at = _taken(data, at, 2)
            if kind in HEVC_SETS:
                sets.append(one)
    return (data[21] & 3) + 1, sets
