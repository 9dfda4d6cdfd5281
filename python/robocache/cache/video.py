"""Video of a stream: packets as they were recorded, an index that finds the frame of each row, and the frames' pixels.

Packets are in decode order. An *entry point* is a keyframe after which no packet has an earlier presentation time: a
decoder that begins there needs nothing before it. The packets from one entry point to the next are a GOP.
"""

from __future__ import annotations

import bisect
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ..ops.decode.index import MAX_PIXELS
from ..ops.decode.video import Gop, Track, decode_gops
from ..ops.decode.yuv import decode_frames
from .pictures import PictureStatistics

if TYPE_CHECKING:
    from .episode import StreamSpec

MAGIC, VERSION = b"RCVI", 1
HEAD = struct.Struct("<4sIIIBB14sIIQQI")
"""magic, version, width, height, matrix, range, pixel format, time base (two numbers), packets, rows, bytes of
extradata. A zlib stream follows: extradata, u32 sizes of packets, i64 steps of their times, one bit each for keyframes,
i32 steps of the rows' packets."""
MAX_EXTRADATA = 1 << 20
DECODED_BYTES = 256 << 20
"""Of frames that are decoded at once."""


class VideoIndex:
    """The packets of one episode and the packet of each of its rows.

    ``sizes (P,)`` bytes, ``times (P,)`` presentation times in units of ``time_base`` seconds, ``keys (P,)`` whether it
    is a keyframe, ``rows (N,)`` the packet of each row. Packet p has the bytes ``[offsets[p], offsets[p + 1])``.
    """

    def __init__(
        self, track: Track, time_base: tuple[int, int], sizes: Any, times: Any, keys: Any, rows: Any, op: str = "video"
    ) -> None:
        self.track, self.time_base = track, time_base
        self.sizes, self.times = np.ascontiguousarray(sizes, np.int64), np.ascontiguousarray(times, np.int64)
        self.keys, self.rows = np.ascontiguousarray(keys, np.bool_), np.ascontiguousarray(rows, np.int64)
        self._check(op)
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])
        self.entries = entry_points(self.times, self.keys)
        """Packets that are entry points."""

    def _check(self, op: str) -> None:
        def refuse(rule: str, given: Any) -> None:
            raise FormatError(f"{op}: the index must {rule}, got {given}")

        track, count = self.track, len(self.sizes)
        if not (0 < track.width < 65536 and 0 < track.height < 65536) or track.width * track.height > MAX_PIXELS:
            refuse(f"have at most {MAX_PIXELS} pixels", f"{track.height} x {track.width}")
        if not (self.times.shape == self.keys.shape == (count,)) or self.rows.ndim != 1:
            refuse("have one time and one flag for each packet", f"{self.times.shape} and {self.keys.shape}")
        if count and (self.sizes.min() < 1 or self.sizes.max() >= 1 << 31):
            refuse("have packets of 1 to 2^31 bytes", f"{self.sizes.min()} to {self.sizes.max()}")
        if min(self.time_base) < 1:
            refuse("have a time base above 0", f"{self.time_base[0]} / {self.time_base[1]}")
        if count and not self.keys[0]:
            refuse("begin with a keyframe", "another packet")
        if count and (self.times < self.times[0]).any():
            refuse("begin with an entry point", "packets with earlier times after the first")
        if len(self.rows) and not (self.rows.min() >= 0 and self.rows.max() < count):
            refuse(f"have rows of its {count} packets", f"{self.rows.min()} to {self.rows.max()}")

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    @property
    def gops(self) -> NDArray[np.int64]:
        """The entry point of each row: the packet that decoding begins with."""
        return np.asarray(self.entries[np.searchsorted(self.entries, self.rows, "right") - 1])

    def to_bytes(self) -> NDArray[np.uint8]:
        track = self.track
        head = HEAD.pack(
            MAGIC, VERSION, track.width, track.height, track.matrix, track.color_range, track.pixel_format.encode(),
            *self.time_base, len(self.sizes), len(self.rows), len(track.extradata),
        )  # fmt: skip
        steps, rows = np.diff(self.times, prepend=0), np.diff(self.rows, prepend=0)
        parts = [
            track.extradata,
            self.sizes.astype("<u4").tobytes(),
            steps.astype("<i8").tobytes(),
            np.packbits(self.keys).tobytes(),
            rows.astype("<i4").tobytes(),
        ]
        return np.frombuffer(head + zlib.compress(b"".join(parts), 6), np.uint8)

    @classmethod
    def from_bytes(cls, data: Any, codec: str, num_bytes: int, op: str = "video") -> VideoIndex:
        """The index that ``to_bytes`` has written, for packets of ``num_bytes`` bytes together. FormatError where the
        bytes are not a valid one."""
        stored = np.asarray(data, np.uint8).tobytes()

        def refuse(rule: str, given: Any) -> FormatError:
            return FormatError(f"{op}: the index must {rule}, got {given}")

        if len(stored) < HEAD.size or stored[:4] != MAGIC:
            raise refuse("begin as one of a video", f"{stored[:8]!r}")
        (_, version, width, height, matrix, color_range, pixels, num, den, count, num_rows, extra) = HEAD.unpack_from(
            stored
        )
        if version != VERSION:
            raise refuse(f"have version {VERSION}", f"{version}: written by a newer RoboCache")
        # A packet has at least a byte; a row takes 4 bytes, and zlib makes at most 1,032 of one.
        if count > num_bytes or num_rows > 1100 * len(stored) or extra > MAX_EXTRADATA:
            raise refuse(f"fit {num_bytes} bytes of packets", f"{count} packets, {num_rows} rows, {extra} extradata")
        sizes_at, times_at = extra, extra + 4 * count
        keys_at = times_at + 8 * count
        rows_at = keys_at + (count + 7) // 8
        end = rows_at + 4 * num_rows
        try:
            unpacker = zlib.decompressobj()
            body = unpacker.decompress(stored[HEAD.size :], end + 1)
        except zlib.error as error:
            raise refuse("be undamaged", str(error)) from None
        if len(body) != end or not unpacker.eof or unpacker.unused_data:
            raise refuse(f"have exactly {end} bytes of tables", "more or fewer, or a damaged end")
        track = Track(
            codec, width, height, pixels.rstrip(b"\0").decode("ascii", "replace"), matrix, color_range, body[:extra]
        )
        with np.errstate(over="ignore"):
            index = cls(
                track,
                (num, den),
                np.frombuffer(body, "<u4", count, sizes_at),
                np.cumsum(np.frombuffer(body, "<i8", count, times_at)),
                np.unpackbits(np.frombuffer(body, np.uint8, (count + 7) // 8, keys_at), count=count),
                np.cumsum(np.frombuffer(body, "<i4", num_rows, rows_at), dtype=np.int64),
                op,
            )
        if int(index.offsets[-1]) != num_bytes:
            raise refuse(f"have packets of {num_bytes} bytes together", int(index.offsets[-1]))
        return index


def entry_points(times: NDArray[np.int64], keys: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Packets at which a decoder may begin: keyframes after which no packet has an earlier time."""
    if not len(times):
        return np.zeros(0, np.int64)
    least = np.minimum.accumulate(times[::-1])[::-1]
    return np.flatnonzero(keys & (times == least))


class Video:
    """The packets of one episode, ``data (bytes,)`` uint8 in decode order, and their index. Immutable."""

    def __init__(self, data: NDArray[np.uint8], index: VideoIndex) -> None:
        self.data, self.index = np.asarray(data), index
        if self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise ValueError(f"video: packets must be (n,) uint8, got {self.data.dtype} {self.data.shape}")
        if len(self.data) != index.offsets[-1]:
            raise FormatError(
                f"video: the index must have packets of {len(self.data)} bytes together, got {index.offsets[-1]}"
            )

    @classmethod
    def of(cls, given: Any, codec: str) -> Video:
        """From ``(bytes, index)``, the latter also as stored."""
        if isinstance(given, Video):
            return given
        if not isinstance(given, tuple) or len(given) != 2:
            raise ValueError(f"video: must be a Video or (bytes, index), got {type(given).__name__}")
        data, index = given
        if not isinstance(index, VideoIndex):
            index = VideoIndex.from_bytes(index, codec, len(data))
        return cls(data, index)

    @classmethod
    def join(cls, parts: Sequence[bytes], index: VideoIndex) -> Video:
        return cls(np.frombuffer(b"".join(parts), np.uint8), index)

    def __len__(self) -> int:
        """Rows."""
        return len(self.index)

    def __getitem__(self, rows: Any) -> Video:
        """Some of the rows, with the GOPs that they need."""
        index = self.index
        picked = index.rows[np.arange(len(self))[rows]]
        begins, ends = index.entries, np.append(index.entries[1:], len(index.sizes))
        gop = np.searchsorted(begins, picked, "right") - 1
        used = np.unique(gop)
        kept = np.zeros(len(index.sizes), bool)
        for i in used.tolist():
            kept[begins[i] : ends[i]] = True
        if kept.all():
            smaller = VideoIndex(index.track, index.time_base, index.sizes, index.times, index.keys, picked)
            return Video(self.data, smaller)
        numbers = np.cumsum(kept) - 1
        cut = VideoIndex(
            index.track, index.time_base, index.sizes[kept], index.times[kept], index.keys[kept], numbers[picked]
        )
        spans = [self.data[index.offsets[begins[i]] : index.offsets[ends[i]]] for i in used.tolist()]
        return Video(np.concatenate(spans) if spans else self.data[:0], cut)

    def copied(self) -> Video:
        """With packets of its own: those of a cache are a view of a file."""
        return Video(self.data.copy(), self.index)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def splits(self) -> NDArray[np.int64]:
        """Of the rows of a shard: all bytes belong to the first row of the episode."""
        splits = np.full(len(self) + 1, len(self.data), np.int64)
        splits[0] = 0
        return splits

    def problems(self, spec: StreamSpec) -> dict[int, str]:
        """``{row: what is wrong}``, by the index. Packets are not decoded."""
        track = self.index.track
        if track.codec != spec.codec or (track.height, track.width, 3) != spec.shape:
            got = f"{track.codec} {track.height} x {track.width}"
            return {0: f"must be {spec.codec} {spec.shape[0]} x {spec.shape[1]} as the stream, got {got}"}
        return {0: "must have packets, got none"} if len(self) and not len(self.data) else {}

    def decoded(self, spec: StreamSpec, rows: Iterable[int] | None = None) -> NDArray[np.uint8]:
        """Pixels ``(n, *spec.shape)`` of all rows, or of these."""
        picked = np.arange(len(self)) if rows is None else np.fromiter(rows, np.int64)
        out = np.empty((len(picked), *spec.shape), np.uint8)
        for part, made in self.parts(spec, picked):
            out[part] = made
        return out

    def parts(
        self,
        spec: StreamSpec,
        rows: NDArray[np.int64],
        most_bytes: int = DECODED_BYTES,
        progress: Callable[[], None] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """``(positions in rows, their pixels)``: whole GOPs, as many as ``most_bytes`` of pixels have room for, and at
        least one. ``progress`` is called before each."""
        order = np.argsort(self.index.rows[rows], kind="stable")
        gops = self.index.gops[rows]
        for first, last in chunks(gops[order], most_bytes // max(1, spec.row_bytes)):
            part = order[first:last]
            if progress is not None:
                progress()
            picked = np.stack([np.zeros(len(part), np.int64), self.index.rows[rows[part]], gops[part]], axis=1)
            made = decode_rows(picked, [self.index], self._read, lambda _: f"stream {spec.name!r}: ")
            yield part, decode_frames(*made)

    def _read(self, spans: list[tuple[int, int, int]]) -> list[NDArray[np.uint8]]:
        return [self.data[begin:end] for _, begin, end in spans]


def merged(videos: Sequence[Video]) -> Video:
    """Videos of the same track one after the other, as one."""
    parts = [video.index for video in videos]
    times, end = [], 0
    for part in parts:
        times.append(part.times - part.times[0] + end)  # an entry point is the earliest of its video
        end = int(times[-1].max()) + 1
    firsts = np.cumsum([0, *(len(part.sizes) for part in parts[:-1])])
    index = VideoIndex(
        parts[0].track,
        parts[0].time_base,
        np.concatenate([part.sizes for part in parts]),
        np.concatenate(times),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.rows + first for part, first in zip(parts, firsts, strict=True)]),
    )
    return Video(np.concatenate([video.data for video in videos]), index)


def chunks(gops: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """``[begin, end)`` of runs of equal numbers, at most ``most`` together. A longer run is cut, and its GOP decoded
    again for each part."""
    most = max(1, most)
    ends = [*(np.flatnonzero(np.diff(gops)) + 1).tolist(), len(gops)]
    begin = last = 0
    for end in ends:
        if end - begin > most and last > begin:
            yield begin, last
            begin = last
        while end - begin > most:
            yield begin, begin + most
            begin += most
        last = end
    if last > begin:
        yield begin, last


def decode_rows(
    frames: NDArray[np.int64],
    indexes: Sequence[VideoIndex],
    read: Callable[[list[tuple[int, int, int]]], Sequence[NDArray[np.uint8]]],
    where: Callable[[int], str],
    empty: Callable[[int], Any] = lambda size: np.empty(size, np.uint8),
    decode: Callable[[Sequence[Gop], Any], list[dict[int, int]]] | None = None,
) -> tuple[Any, NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Frames of several videos as ``decode_frames`` takes them: bytes, offsets, shapes, and the frame of each row.

    ``frames (n, 3)``: video, packet, and the entry point of the packet, of each row. Each GOP is decoded once, to the
    last frame that is needed. ``read`` returns the bytes of spans ``(video, begin, end)``, ``where`` names a video in
    messages, ``empty`` allocates the frames, ``decode`` writes those of GOPs to it; by default it is ``decode_gops``.
    """
    _, first, slots = np.unique(frames[:, 0] << 32 | frames[:, 1], return_index=True, return_inverse=True)
    frames = frames[first]
    tracks = [indexes[video].track for video in frames[:, 0].tolist()]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([t.frame_bytes for t in tracks], dtype=np.int64)])
    shapes = np.array([(t.height, t.width, 3, 0) for t in tracks], np.int32).reshape(-1, 4)
    data = empty(int(offsets[-1]))
    begins = np.flatnonzero(np.diff(frames[:, 0] << 32 | frames[:, 2], prepend=-1))
    runs = [*zip(begins.tolist(), [*begins[1:].tolist(), len(frames)], strict=False)]
    spans = []
    for begin, end in runs:
        ends = indexes[frames[begin, 0]].offsets
        spans.append((int(frames[begin, 0]), int(ends[frames[begin, 2]]), int(ends[frames[end - 1, 1] + 1])))
    gops = []
    for (begin, end), span, blob in zip(runs, spans, read(spans), strict=True):
        index, entry = indexes[span[0]], int(frames[begin, 2])
        numbers = (frames[begin:end, 1] - entry).tolist()
        cuts = index.offsets[entry : entry + numbers[-1] + 2] - span[1]
        times = index.times[entry : entry + numbers[-1] + 1]
        out = {number: data[offsets[begin + i] : offsets[begin + i + 1]] for i, number in enumerate(numbers)}
        name = partial(_name_packet, where, span[0], index, entry)
        gops.append(Gop(index.track, blob, cuts, times, out, offsets[begin:end], name))
    made = decode_gops(gops) if decode is None else decode(gops, data)
    for (begin, end), formats in zip(runs, made, strict=True):
        entry = int(frames[begin, 2])
        shapes[begin:end, 3] = [formats[packet - entry] for packet in frames[begin:end, 1].tolist()]
    return data, offsets, shapes, slots.reshape(-1)


def _name_packet(where: Callable[[int], str], video: int, index: VideoIndex, entry: int, number: int) -> str:
    rows = np.flatnonzero(index.rows == entry + number)
    return where(video) + (f"frame {rows[0]}" if len(rows) else f"packet {entry + number}")


def stored_video(spec: StreamSpec, data: Any, stored: Any, num_rows: int, where: str) -> Video:
    """Of an episode of a cache. FormatError where the index is damaged or not of these packets."""
    assert spec.codec is not None
    if num_rows == 0 and len(data) == 0:
        track = Track(spec.codec, spec.shape[1], spec.shape[0], "yuv420p", 2, 0)
        return Video(np.zeros(0, np.uint8), VideoIndex(track, (1, 1), [], [], [], []))
    index = VideoIndex.from_bytes(stored, spec.codec, len(data), where)
    if len(index) != num_rows:
        raise FormatError(f"{where}: the index must have {num_rows} rows, got {len(index)}")
    video = Video(data, index)
    for problem in video.problems(spec).values():
        raise FormatError(f"{where}: the video {problem}")
    return video


class VideoStatistics(PictureStatistics):
    """Statistics of at most 128 frames, chosen as those of ``PictureStatistics``: a frame costs its GOP. Their packets
    are kept, and decoded at the end, or earlier where they take too much memory."""

    MOST = 128

    def __init__(
        self, spec: StreamSpec, decode: Callable[[Video, StreamSpec, Sequence[int]], NDArray[np.uint8]]
    ) -> None:
        """``decode`` makes the pixels of rows of a video: here, or in another process."""
        super().__init__(spec)
        self.decode_rows = decode
        self.films: dict[int, Video] = {}
        """By number: the GOP of the frame, with one row."""
        self.begins: list[tuple[int, int]] = []
        """The first number of each episode, and the episode."""

    def add(self, video: Video, episode: int = 0) -> None:  # type: ignore[override]
        self.begins.append((self.seen, episode))
        new = self.choose(len(video))
        self.films = {number: x for number, x in self.films.items() if number % self.stride == 0}
        self.films |= {number: video[[number - self.seen]].copied() for number in new}
        self.encoded = dict.fromkeys(self.films, b"")  # counts them
        self.seen += len(video)
        if sum(film.nbytes for film in self.films.values()) > self.MOST_BYTES:
            self.decode()

    def decode(self) -> None:
        by_track: dict[Track, list[int]] = {}
        for number in sorted(self.films):
            by_track.setdefault(self.films[number].index.track, []).append(number)
        step = max(1, (DECODED_BYTES // 4) // max(1, self.spec.row_bytes))
        for numbers in by_track.values():
            for first in range(0, len(numbers), step):
                part = numbers[first : first + step]
                try:
                    pixels = self.decode_rows(merged([self.films[i] for i in part]), self.spec, range(len(part)))
                except FormatError:
                    for number in part:
                        self.check(number)
                    raise
                self.kept.update(zip(part, map(self.summary, pixels), strict=True))
        self.films, self.encoded = {}, {}

    def check(self, number: int) -> None:
        """Decodes a frame alone, for an error that names its episode."""
        try:
            self.decode_rows(self.films[number], self.spec, range(1))
        except FormatError as error:
            begin, episode = self.begins[bisect.bisect_right(self.begins, number, key=lambda pair: pair[0]) - 1]
            what = re.sub(r".*?(?:frame|packet) \d+ ", "", str(error), count=1, flags=re.DOTALL)
            raise FormatError(f"stream {self.spec.name!r}: episode {episode}, frame {number - begin} {what}") from None
