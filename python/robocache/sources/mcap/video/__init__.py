"""foxglove_msgs/CompressedVideo: one packet a message, to the packets and the index of a video.

Only headers are read, so packets stay as they are and nothing is decoded. Messages are in the order in which frames are
shown; before the first keyframe they cannot be decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...._core import FormatError
from ....cache.episode import StreamSpec
from ....cache.video import Video, VideoIndex
from ....ops.decode.index import MAX_PIXELS
from ....ops.decode.video import UNSPECIFIED, Track
from ...reading.budget import VIDEO_EXPANSION, Budget, stored_bytes
from ...reading.isolated import decode_video
from .av1 import Av1
from .h264 import H264
from .hevc import Hevc
from .packet import Form, Packet, UnitCounter
from .vp9 import Vp9

COMPRESSED_VIDEO = "foxglove_msgs/msg/CompressedVideo"
FORMATS: dict[str, tuple[str, type[H264] | type[Hevc] | type[Vp9] | type[Av1]]] = {
    "h264": ("h264", H264),
    "h265": ("hevc", Hevc),
    "vp9": ("vp9", Vp9),
    "av1": ("av1", Av1),
}
"""``format`` of a message: our codec, and the reader of its headers."""
DECODED_BYTES = 64 << 20
"""Of frames that are decoded at once, ..."""
MOST_RESTARTS = 4
"""... and more, so that a keyframe and those after it are at most so many parts: each is decoded from there on."""


class VideoMessages:
    """The messages of one topic of an episode, from the first keyframe on."""

    def __init__(self, topic: str, budget: Budget, encoded: bool) -> None:
        self.topic = topic
        self.times: list[int] = []
        self.before_key = 0
        """Messages that cannot be decoded, because they precede the first keyframe."""
        self._budget, self._encoded = budget, encoded
        self._packets: list[bytes] = []
        self._keys: list[bool] = []
        self._format = ""
        self._form: Form | None = None
        self._order: int | None = None
        self._first_sets = self._last_sets = b""
        self._all_have_sets = True

    @property
    def num_messages(self) -> int:
        return self.before_key + len(self.times)

    def add(self, message: Any, time_ns: int, where: str) -> None:
        if message.format not in FORMATS:
            raise FormatError(
                f"{where}: format of a video must be one of {', '.join(FORMATS)}, got {message.format!r}; to leave the "
                "topic out, name the others with topics="
            )
        if self._format not in ("", message.format):
            raise FormatError(f"{where}: the video is {message.format}, but its first message is {self._format}")
        if not self._format:
            self._format = message.format
            self._reader = FORMATS[message.format][1]()
        data = bytes(message.data)
        self._budget.count(where)
        try:
            packet = self._reader.read(data, UnitCounter(self._budget, where))
        except ValueError as error:
            raise FormatError(f"{where}: the {message.format} packet cannot be used: {error}") from None
        if self._add(packet, where):
            self._packets.append(data)
            self.times.append(time_ns)
        else:
            self.before_key += 1

    def _add(self, packet: Packet, where: str) -> bool:
        """False before the first keyframe."""
        is_key = packet.is_key and packet.form is not None
        if not self._keys:
            if not is_key:
                return False
            assert packet.form is not None
            _check_size(packet.form, where, self._budget)
            self._form, self._first_sets = packet.form, packet.sets
        assert self._form is not None
        assert packet.form is not None
        had, has = self._form, packet.form
        if (had.height, had.width, had.pixel_format) != (has.height, has.width, has.pixel_format):
            raise FormatError(
                f"{where}: the video is {has.height} x {has.width} {has.pixel_format}, its first keyframe "
                f"{had.height} x {had.width} {had.pixel_format}"
            )
        self._last_sets = packet.sets or self._last_sets
        if is_key and not packet.sets:
            self._all_have_sets = False
            is_key = self._last_sets == self._first_sets  # else a decoder that begins here has other sets
        if self._order is not None and packet.order is not None and not packet.restarts:
            step = (packet.order - self._order) % (1 << has.order_bits)
            if not 0 < step < 1 << (has.order_bits - 1):
                raise FormatError(
                    f"{where}: the video has B-frames: this frame is shown before that of the message before it, so "
                    "messages do not have the times of their frames; encode without B-frames, or leave the topic out: "
                    "name the others with topics="
                )
        self._order = packet.order
        self._keys.append(is_key)
        return True

    def specs(self) -> list[StreamSpec]:
        if self._form is None:
            return []
        codec = FORMATS[self._format][0] if self._encoded else None
        return [self._spec(codec)]

    def _spec(self, codec: str | None) -> StreamSpec:
        assert self._form is not None
        shape = (self._form.height, self._form.width, 3)
        return StreamSpec(self.topic, "uint8", shape, "image", meta={"encoding": self._format}, codec=codec)

    def values(self) -> Video | NDArray[np.uint8]:
        """Packets, or the pixels of all frames."""
        assert self._form is not None
        codec = FORMATS[self._format][0]
        has_sets = self._all_have_sets or not self._first_sets
        track = Track(
            codec, self._form.width, self._form.height, self._form.pixel_format, UNSPECIFIED, 0,
            b"" if has_sets else self._first_sets,
        )  # fmt: skip
        count = len(self._packets)
        numbers = np.arange(count)
        index = VideoIndex(track, (1, 1), [len(x) for x in self._packets], numbers, self._keys, numbers)
        video = Video.join(self._packets, index)
        if self._encoded:
            return video
        spec = self._spec(codec)
        where = f"stream {self.topic}"
        self._budget.check(where, count * spec.row_bytes, stored_bytes(), VIDEO_EXPANSION)
        pixels = np.empty((count, *spec.shape), np.uint8)
        entries = np.flatnonzero(self._keys)
        longest = int(np.diff(entries, append=count).max())
        step = max(1, DECODED_BYTES // spec.row_bytes, -(-longest // MOST_RESTARTS))
        for first in range(0, count, step):
            self._budget.check_time(where)
            pixels[first : first + step] = decode_video(video, spec, range(first, min(first + step, count)))
        return pixels


def _check_size(form: Form, where: str, budget: Budget) -> None:
    height, width = form.height, form.width
    if not (0 < height < 65536 and 0 < width < 65536) or height * width > MAX_PIXELS:
        raise FormatError(f"{where}: a video must have 1 to {MAX_PIXELS} pixels, got {height} x {width}")
    budget.check(where, height * width * 4)
