"""The packets of one LeRobot episode out of a video file, as they are, matched to the table's rows by time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import StreamSpec
from ...cache.pictures import VIDEO_CODECS
from ...cache.video import MAX_EXTRADATA, Video, VideoIndex, entry_points
from ...ops.decode.h264 import recovery_frames
from ...ops.decode.video import Track
from ..reading.budget import Budget, add_stored
from ..reading.paths import need
from ..reading.repair import Repairer
from .video import CONTAINERS, EARLY_S, checked_video

BEFORE_S = (EARLY_S, 30.0, None)
"""Seconds before the first row at which reading of packets starts; the next one is tried until a keyframe is found.
None: the start of the file."""


@dataclass
class Packets:
    """Of a part of a file, in decode order."""

    data: list[bytes]
    times: NDArray[np.int64]
    keys: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    """False: only other packets need it, it is outside of the file's edit list."""


def codec_of_video(path: Path, spec: StreamSpec) -> str | None:
    """The codec of a stream whose first video this is; None where its packets cannot be kept."""
    av = need("av", "lerobot")
    if spec.shape[2:] != (3,):
        return None
    try:
        with av.open(str(path), options=CONTAINERS) as container:
            name = str(checked_video(container, spec).codec_context.codec.canonical_name)
    except (av.error.FFmpegError, FormatError):
        return None  # an error where the stream is read
    return name if name in VIDEO_CODECS else None


def read_packets(
    clip: tuple[Path, float],
    spec: StreamSpec,
    seconds: NDArray[np.float64],
    rate_hz: float,
    repairer: Repairer,
    budget: Budget,
) -> tuple[Video, NDArray[np.int64]]:
    """The packets from the entry point of the first row on, and the rows that have a frame: the nearest to their time,
    at most half a row away, as ``read_video`` chooses it."""
    path, begin_s = clip
    av = need("av", "lerobot")
    where = f"{repairer.where}, stream {spec.name}: {path}"
    try:
        with av.open(str(path), options=CONTAINERS) as container:
            video = checked_video(container, spec)
            track = _track(video, spec, where)
            found = _find(container, video, begin_s + seconds, 0.5 / rate_hz, where, budget)
            base = (video.time_base.numerator, video.time_base.denominator)
    except av.error.FFmpegError as error:
        raise FormatError(f"{where}: {error}") from error
    packets, chosen = found
    kept = np.flatnonzero(chosen >= 0)
    if len(kept) < len(seconds):
        row = int((chosen < 0).argmax())
        what = f"row {row}: {path} has no frame at {begin_s + seconds[row]:.4f} s"
        repairer.apply_policy("missing", spec.name, len(seconds) - len(kept), what)
    rows = chosen[kept]
    if not len(rows):
        return Video.join([], VideoIndex(track, base, [], [], [], [])), kept
    entries = entry_points(packets.times, packets.keys)
    first, end = int(entries[entries <= rows.min()][-1]), int(rows.max()) + 1
    part = packets.data[first:end]
    index = VideoIndex(
        track, base, [len(x) for x in part], packets.times[first:end], packets.keys[first:end], rows - first, where
    )
    return Video.join(part, index), kept


def _track(video: Any, spec: StreamSpec, where: str) -> Track:
    context = video.codec_context
    codec = str(context.codec.canonical_name)
    if codec != spec.codec:
        raise FormatError(
            f"{where}: the video is {codec}, but the first of its stream is {spec.codec}; to store pixels instead, "
            'pass images="raw" to ingest'
        )
    extradata = bytes(context.extradata or b"")
    if len(extradata) > MAX_EXTRADATA:
        raise FormatError(f"{where}: extradata must have at most {MAX_EXTRADATA} bytes, got {len(extradata)}")
    pixels = str(context.pix_fmt or "")
    if not 0 < len(pixels) <= 14 or not pixels.isascii():
        raise FormatError(f"{where}: the video must have a pixel format, got {pixels!r}")
    return Track(
        codec, spec.shape[1], spec.shape[0], pixels, int(context.colorspace), int(context.color_range), extradata
    )


def _find(
    container: Any, video: Any, wanted_s: NDArray[np.float64], reach_s: float, where: str, budget: Budget
) -> tuple[Packets, NDArray[np.int64]]:
    """Packets, and for each row the number of its packet; -1 for none."""
    nothing = Packets([], np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0, np.bool_))
    finite = wanted_s[np.isfinite(wanted_s)]
    if not len(finite):
        return nothing, np.full(len(wanted_s), -1)
    for before_s in BEFORE_S:
        packets = _demux(container, video, before_s, (float(finite.min()), float(finite.max())), where, budget)
        chosen = _choose(packets, video, wanted_s, reach_s)
        used = chosen[chosen >= 0]
        entries = entry_points(packets.times, packets.keys)
        if not len(used) or (len(entries) and entries[0] <= used.min()):
            return packets, chosen
    raise FormatError(f"{where}: no keyframe from which the frames of the episode can be decoded")


def _origin(video: Any) -> int:
    return int(video.start_time or 0)


def _demux(
    container: Any, video: Any, before_s: float | None, span_s: tuple[float, float], where: str, budget: Budget
) -> Packets:
    base = float(video.time_base)
    first = int((span_s[0] - before_s) / base) if before_s is not None else -1
    # Without an edit list, FFmpeg compares this with times of decoding, which begin before the first frame is shown.
    container.seek(first + _origin(video) if first > 0 else min(0, _origin(video)), stream=video)
    last = (span_s[1] + EARLY_S) / base + _origin(video)
    data: list[bytes] = []
    facts: list[tuple[int, bool, bool]] = []
    total = 0
    for packet in container.demux(video):
        budget.count(where)
        if not packet.size:
            continue
        if packet.pts is None:
            raise FormatError(f'{where}: a packet has no time; to store pixels instead, pass images="raw" to ingest')
        total += packet.size
        budget.check(where, 2 * total)
        add_stored(packet.size)
        data.append(bytes(packet))
        facts.append((packet.pts, _is_entry(packet, video.codec_context), not packet.is_discard))
        if packet.dts is not None and packet.dts > last:
            break  # later packets are shown later
    table = np.array(facts, np.int64).reshape(-1, 3)
    return Packets(data, table[:, 0].copy(), table[:, 1] != 0, table[:, 2] != 0)


def _is_entry(packet: Any, context: Any) -> bool:
    """A keyframe whose picture is whole: not one of a gradual refresh, which takes frames."""
    if not packet.is_keyframe:
        return False
    return context.codec.canonical_name != "h264" or not recovery_frames(bytes(packet), bytes(context.extradata or b""))


def _choose(packets: Packets, video: Any, wanted_s: NDArray[np.float64], reach_s: float) -> NDArray[np.int64]:
    shown = np.flatnonzero(packets.shown)
    if not len(shown):
        return np.full(len(wanted_s), -1)
    order = shown[np.argsort(packets.times[shown], kind="stable")]
    at_s = (packets.times[order] - _origin(video)) * float(video.time_base)
    after = np.clip(np.searchsorted(at_s, wanted_s), 1, max(1, len(at_s) - 1)) if len(at_s) > 1 else None
    if after is None:
        nearest = np.zeros(len(wanted_s), np.int64)
    else:
        nearest = np.where(np.abs(wanted_s - at_s[after - 1]) <= np.abs(at_s[after] - wanted_s), after - 1, after)
    close = np.abs(at_s[nearest] - wanted_s) < reach_s
    return np.where(close, order[nearest], -1)
