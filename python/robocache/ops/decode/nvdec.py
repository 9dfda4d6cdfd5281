"""Packets of H.264 and HEVC to the planes of their frames, GOP by GOP, by the decoding engines of a GPU (NVDEC)."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import _core
from .video import FULL_RANGE, MATRICES, PLANAR, UNSPECIFIED, Gop, Track

CODECS = ("h264", "hevc")
RGB = 0
"""Matrix coefficients that cannot be those of 4:2:0 samples: a decoder that finds none may return them."""


def why_not(track: Track, device: int) -> str:
    """Why the frames of a track are not decoded by this GPU; empty: they are."""
    if track.codec not in CODECS:
        return f"NVDEC is used for {' and '.join(CODECS)}, and the codec is {track.codec}"
    if not track.is_planar or track.width % 2:
        return f"frames of {track.pixel_format}, {track.height} x {track.width}, are converted by PyAV"
    if not PLANAR[track.pixel_format] and track.color_range == FULL_RANGE:
        return "the file declares the range 0 to 255, and NVDEC does not return whether its packets declare another"
    return _why_not(track.codec, track.width, track.height, device)


@functools.lru_cache(maxsize=256)
def _why_not(codec: str, width: int, height: int, device: int) -> str:
    return _core.why_no_gpu_video(codec, width, height, device)


def decode_gops(gops: Sequence[Gop], data: Any) -> list[dict[int, int]]:
    """Writes the wanted frames of all GOPs to their places in ``data``, a uint8 tensor on a GPU. Returns the
    PixelFormat (C++) of each. FormatError, of the first GOP that has one, as ``video.decode_gops``."""
    _register()
    tracks = list(dict.fromkeys(gop.track for gop in gops))
    numbers = {track: i for i, track in enumerate(tracks)}
    given = [
        (numbers[gop.track], gop.data, gop.offsets, _ranks(gop), np.fromiter(gop.wanted, np.int64), gop.places)
        for gop in gops
    ]
    colors, fault = _core.decode_video(
        [(track.codec, track.width, track.height, track.extradata) for track in tracks], given, data
    )
    if fault is not None:
        number, packet, rule = fault
        raise _core.FormatError(f"{gops[number].where(packet)} {rule}")
    formats: list[dict[int, int]] = []
    at = 0
    for gop in gops:
        formats.append({packet: _format(gop, packet, *colors[at + i]) for i, packet in enumerate(gop.wanted)})
        at += len(gop.wanted)
    return formats


def _ranks(gop: Gop) -> Any:
    """The place of each packet in the order of presentation."""
    ranks = np.empty(len(gop.times), np.int64)
    ranks[np.argsort(gop.times, kind="stable")] = np.arange(len(ranks))
    return ranks


def _format(gop: Gop, packet: int, declared: int, is_full_range: bool) -> int:
    matrix = gop.track.matrix if declared in (RGB, UNSPECIFIED) else declared
    if matrix not in MATRICES:
        raise _core.FormatError(f"{gop.where(packet)} must have a matrix like BT.601 or BT.709, got {matrix}")
    return 1 + 2 * MATRICES[matrix] + is_full_range


@functools.lru_cache(maxsize=1)
def _register() -> None:
    """Decoders are freed before the driver ends."""
    atexit.register(_core.release_video_decoders)
