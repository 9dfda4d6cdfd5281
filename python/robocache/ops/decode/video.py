"""Packets of video to the planes of their frames, GOP by GOP, by PyAV (FFmpeg, dav1d)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from .h264 import recovery_frames

DECODERS = {"h264": "h264", "hevc": "hevc", "av1": "libdav1d", "vp9": "vp9", "mpeg4": "mpeg4"}
"""Codec of a stream: FFmpeg's decoder of it."""
PLANAR = {"yuv420p": False, "yuvj420p": True}
"""Pixel formats that are converted here; True: samples have the range 0 to 255 whatever is declared."""
MATRICES = {1: 1, 2: 0, 3: 0, 4: 2, 5: 0, 6: 0, 7: 3, 9: 4, 10: 4}
"""Matrix coefficients of H.273: YuvMatrix in C++. Unspecified is BT.601, as in swscale."""
UNSPECIFIED = 2
FULL_RANGE = 2
"""FFmpeg's number of the range 0 to 255."""
BLOCK = 128
"""Codecs round sizes up to whole blocks, of at most so many pixels."""
MIN_PIXELS = 1 << 20
"""FFmpeg's MPEG-4 decoder makes buffers of its own that are larger than a small picture."""
MOST_IDLE = 64
"""Decoders that are kept for later calls."""


@dataclass(frozen=True)
class Track:
    """What a decoder must know of a video before the first packet. ``matrix`` and ``color_range`` (numbers of FFmpeg)
    count where the packets declare none."""

    codec: str
    width: int
    height: int
    pixel_format: str
    matrix: int
    color_range: int
    extradata: bytes = field(repr=False, default=b"")

    @property
    def is_planar(self) -> bool:
        """Frames leave the decoder as planes. Else PyAV converts them to RGB: other pixel formats, and odd heights, for
        which swscale interpolates chroma."""
        return self.pixel_format in PLANAR and self.height % 2 == 0 and self.matrix in MATRICES

    @property
    def frame_bytes(self) -> int:
        pixels = self.width * self.height
        return pixels + 2 * ((self.width + 1) // 2) * ((self.height + 1) // 2) if self.is_planar else 3 * pixels


@dataclass
class Gop:
    """Packets from an entry point to the last one that is needed, in decode order, and which of them are wanted:
    ``{number among the packets: where its frame goes}``, ascending, uint8 arrays of ``track.frame_bytes``, the same for
    each. Packet i has the bytes ``[offsets[i], offsets[i + 1])`` of ``data`` and the presentation time ``times[i]``."""

    track: Track
    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    times: NDArray[np.int64]
    wanted: dict[int, Any]
    places: NDArray[np.int64]
    """Of each wanted frame: its first byte in the memory of all frames."""
    where: Callable[[int], str]
    """Names a packet by its number, for messages."""

    @property
    def packets(self) -> list[NDArray[np.uint8]]:
        return [self.data[begin:end] for begin, end in pairwise(self.offsets.tolist())]


def need_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise NotImplementedError(
            "decode: video needs the package av (pip install av); or ingest with images='jpeg'"
        ) from error
    return av


class Decoder:
    """One decoder of FFmpeg, on the thread that calls it. Reused for any number of GOPs of its track."""

    def __init__(self, track: Track, conceals: bool = False) -> None:
        """``conceals``: go on after errors, and refuse the frames that FFmpeg marks as damaged."""
        av = need_av()
        self.av, self.track = av, track
        self.context = av.CodecContext.create(DECODERS[track.codec], "r")
        if track.extradata:
            self.context.extradata = track.extradata
        self.context.thread_count = 1
        # strict: frames in the order of the standard, from the first on. explode: errors are not concealed.
        pixels = max(MIN_PIXELS, (track.height + BLOCK) * (track.width + BLOCK))
        errors = {} if conceals else {"err_detect": "explode"}
        self.context.options = {"strict": "1", "max_pixels": str(pixels), **errors}
        self.conceals = conceals

    def decode(self, gop: Gop) -> dict[int, int]:
        """Writes the wanted frames. Returns the PixelFormat (C++) of each."""
        formats: dict[int, int] = {}
        last = max(gop.wanted)
        number = 0
        try:
            for number, data in enumerate(gop.packets[: last + 1]):
                packet = self._packet(data)
                packet.pts = packet.dts = number
                self._take(self.context.decode(packet), gop, formats)
                if len(formats) == len(gop.wanted):
                    break
            else:
                self._take(self.context.decode(None), gop, formats)
        except self.av.error.FFmpegError as error:
            raise _core.FormatError(f"{gop.where(number)} cannot be decoded: {error.strerror}") from None
        except (MemoryError, ValueError) as error:
            raise _core.FormatError(f"{gop.where(number)} cannot be decoded: {error}") from None
        missing = gop.wanted.keys() - formats.keys()
        if missing:
            raise _core.FormatError(f"{gop.where(min(missing))} must decode to a frame, got none")
        self.context.flush_buffers()
        return formats

    def _packet(self, data: Any) -> Any:
        """A copy with zeros behind it. FFmpeg reads some bytes past the end of a damaged packet: pixels must not depend
        on what happens to be there, and behind a mapped file there is no memory."""
        if not len(data):  # without bytes it would end the stream
            return self.av.Packet(data)
        packet = self.av.Packet(len(data))
        packet.update(data)
        return packet

    def _take(self, frames: Sequence[Any], gop: Gop, formats: dict[int, int]) -> None:
        for frame in frames:
            number = frame.pts
            if frame.is_corrupt and (self.conceals or number in gop.wanted):
                raise _core.FormatError(f"{gop.where(number or 0)} is damaged")
            if number not in gop.wanted:
                continue
            formats[number] = self._store(frame, gop.wanted[number], gop, number)

    def _store(self, frame: Any, out: NDArray[np.uint8], gop: Gop, number: int) -> int:
        track = self.track
        if (frame.width, frame.height) != (track.width, track.height):
            raise _core.FormatError(
                f"{gop.where(number)} must be {track.height} x {track.width}, got {frame.height} x {frame.width}"
            )
        name = frame.format.name
        if name != track.pixel_format and {name, track.pixel_format} != PLANAR.keys():
            raise _core.FormatError(f"{gop.where(number)} must have pixels of {track.pixel_format}, got {name}")
        if not track.is_planar:
            if frame.colorspace == UNSPECIFIED:
                frame.colorspace = track.matrix
            if not frame.color_range:
                frame.color_range = track.color_range
            out[:] = frame.to_ndarray(format="rgb24").reshape(-1)
            return 0
        at = 0
        for i, plane in enumerate(frame.planes):
            height, width = track.height >> (i > 0), (track.width + (i > 0)) >> (i > 0)
            samples = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]
            out[at : at + height * width].reshape(height, width)[:] = samples
            at += height * width
        matrix = track.matrix if frame.colorspace == UNSPECIFIED else frame.colorspace
        if matrix not in MATRICES:
            raise _core.FormatError(f"{gop.where(number)} must have a matrix like BT.601 or BT.709, got {matrix}")
        is_full = PLANAR[name] or (frame.color_range or track.color_range) == FULL_RANGE
        return 1 + 2 * MATRICES[matrix] + is_full


class Pool:
    """Threads and idle decoders of this process. A fork begins with none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[Decoder] = []
        self.threads: ThreadPoolExecutor | None = None
        self.num_threads = 0

    def take(self, track: Track) -> Decoder:
        with self.lock:
            for i in range(len(self.idle) - 1, -1, -1):
                if self.idle[i].track == track:
                    return self.idle.pop(i)
        return Decoder(track)

    def give(self, decoder: Decoder) -> None:
        with self.lock:
            self.idle.append(decoder)
            del self.idle[:-MOST_IDLE]

    def decode(self, gop: Gop) -> dict[int, int]:
        decoder = self.take(gop.track)
        try:
            formats = decoder.decode(gop)
        except _core.FormatError:  # a decoder that has met an error is not used again
            if not begins_open(gop):
                raise
            # Its pictures may release references of the GOP before, which err_detect takes for damage.
            return Decoder(gop.track, conceals=True).decode(gop)
        self.give(decoder)
        return formats

    def begin(self, gops: Sequence[Gop], count: int) -> list[Future[dict[int, int]]]:
        """Decodes GOPs on ``count`` threads, in this order."""
        with self.lock:  # until all are begun: another thread may set another number of threads
            if self.threads is None or self.num_threads != count:
                if self.threads is not None:
                    self.threads.shutdown(wait=False)  # after what it has been given
                self.threads = ThreadPoolExecutor(count, thread_name_prefix="robocache-video")
                self.num_threads = count
            return [self.threads.submit(self.decode, gop) for gop in gops]


def begins_open(gop: Gop) -> bool:
    """An open GOP of H.264: later pictures may release references of the GOP before it, which is no damage."""
    track = gop.track
    return track.codec == "h264" and recovery_frames(gop.packets[0].tobytes(), track.extradata) == 0


POOL = Pool()
os.register_at_fork(after_in_child=POOL.__init__)  # type: ignore[misc]


def decode_gops(gops: Sequence[Gop]) -> list[dict[int, int]]:
    """Writes the wanted frames of all GOPs, on the threads of the library. Returns the PixelFormat of each.

    FormatError, of the first GOP that has one, where a packet is damaged or is not what its track declares.
    """
    count = _core.num_threads()
    if count == 1 or len(gops) < 2:
        return [POOL.decode(gop) for gop in gops]
    # Long ones first, so that no thread ends alone with one of them.
    order = sorted(range(len(gops)), key=lambda i: -max(gops[i].wanted))
    futures = dict(zip(order, POOL.begin([gops[i] for i in order], count), strict=True))
    error: BaseException | None = None
    results: list[dict[int, int]] = []
    for i in range(len(gops)):  # all of them: their outputs must outlive the threads that write them
        try:
            results.append(futures[i].result())
        except Exception as failed:
            error = error or failed
    if error is not None:
        raise error
    return results
