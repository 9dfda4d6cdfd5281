"""Frames of video in batches: the packets of the kept episodes, and each GOP decoded once per batch.

The reader chooses a number for each moment, as for other pictures. A number stands for an episode's video and one of
its packets; frames are decoded from the entry point before it, on the CPU (PyAV) or by the engines of the GPU (NVDEC),
and converted and edited on the loader's device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...cache.video import DECODED_BYTES, VideoIndex, chunks, decode_rows, stored_video
from ...ops.arrays import dtype_name
from ...ops.decode import nvdec
from ...ops.decode.yuv import decode_frames
from ..image import Image
from ..order.selection import Selection
from .pictures import Edits, Pictures


class Films(Pictures):
    """The frames of one stream of video. ``ranges`` has the video, the packet and its entry point of each kept row."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.indexes: list[VideoIndex] = []
        self.places: list[tuple[int, int]] = []
        """Of each video: its part, and the first of its bytes there."""
        self.labels: list[str] = []
        super().__init__(*arguments, **options)

    def add(self, selection: Selection, shard: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        data, splits = selection.ragged(self.name, shard)
        found, kept = np.zeros((len(splits) - 1, 3), np.int64), np.zeros(len(splits) - 1, bool)
        here = selection.shard_of == shard
        offsets = selection.stream(self.name, shard).offsets
        number = list(selection.cache.specs).index(self.name)
        guard = _core.MappingGuard()
        for episode, local in zip(selection.kept[here].tolist(), selection.local[here].tolist(), strict=True):
            begin, end = int(offsets[local]), int(offsets[local + 1])
            if begin == end:
                continue
            first, last = int(splits[begin]), int(splits[end])
            label = f"episode {episode}, "
            stored = selection.cache._reader.index(episode, number)
            index = stored_video(self.spec, data[first:last], stored, end - begin, label.removesuffix(", ")).index
            found[begin:end] = np.stack([np.full(end - begin, len(self.indexes)), index.rows, index.gops], axis=1)
            kept[begin:end] = True
            self.indexes.append(index)
            self.places.append((len(self.parts), first))
            self.labels.append(label)
        del guard
        if kept.any():
            self.parts.append(self.arrays.of(data))
        return found, kept

    def copy(self) -> None:
        """All packets of the kept episodes one after the other, on the host: decoders read them there."""
        sizes = np.array([index.offsets[-1] for index in self.indexes], np.int64)
        everything = [(i, 0, int(size)) for i, size in enumerate(sizes)]
        self.parts = [self.arrays.of(self.read_all(everything))]
        self.places = [(0, int(end - size)) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]

    def read_all(self, spans: list[tuple[int, int, int]]) -> NDArray[np.uint8]:
        """The bytes of spans of videos, one after the other."""
        picked = np.array([(self.places[i][0], self.places[i][1] + b, self.places[i][1] + e) for i, b, e in spans])
        picked = picked.reshape(-1, 3).astype(np.int64)
        used, part = np.unique(picked[:, 0], return_inverse=True)
        picked[:, 0] = part.reshape(-1)
        data = np.empty(int((picked[:, 2] - picked[:, 1]).sum()), np.uint8)
        _core.gather_bytes([self.parts[i] for i in used.tolist()], picked, data)
        return data

    def read(self, spans: list[tuple[int, int, int]]) -> list[NDArray[np.uint8]]:
        ends = np.cumsum([end - begin for _, begin, end in spans])
        return np.split(self.read_all(spans), ends[:-1])

    def decoded(self, rows: NDArray[np.int64], edits: Edits) -> Any:
        frames = self.ranges[rows]
        order = np.argsort(frames[:, 0] << 32 | frames[:, 1], kind="stable")
        gops = (frames[:, 0] << 32 | frames[:, 2])[order]
        most_bytes = max(self.indexes[i].track.frame_bytes for i in np.unique(frames[:, 0]).tolist())
        parts = [*chunks(gops, DECODED_BYTES // most_bytes)]
        if len(parts) == 1:
            return self.converted(frames, edits)
        # In parts, so that the memory for decoded frames is bounded.
        dtype = dtype_name(self.black.dtype) or ""
        out = self.arrays.empty((len(rows), *self.black.shape), dtype, self.device)
        for begin, end in parts:
            part = order[begin:end]
            pixels = self.converted(frames[part], edits.take(part)).reshape(len(part), *self.black.shape)
            self.arrays.put(out, self.there(part), pixels)
        return out

    def why_no_nvdec(self, videos: Iterable[int] | None = None) -> str:
        """Why these videos, by default all, are not decoded by the engines of the GPU; empty: they are."""
        if not self.arrays.on_gpu:
            return f"the device is {self.device}"
        chosen = range(len(self.indexes)) if videos is None else videos
        tracks = dict.fromkeys(self.indexes[i].track for i in chosen)
        device = self.arrays.xp.cuda.current_device() if self.device.index is None else self.device.index
        return next(filter(None, (nvdec.why_not(track, device) for track in tracks)), "")

    def converted(self, frames: NDArray[np.int64], edits: Edits) -> Any:
        on_gpu = self.arrays.on_gpu

        def empty(size: int) -> NDArray[np.uint8]:
            made = self.arrays.empty((size,), "uint8", self.arrays.host, pinned=on_gpu and size > 0)
            return self.arrays.as_numpy(made)

        def empty_on_gpu(size: int) -> Any:
            return self.arrays.empty((size,), "uint8", self.device)

        by_nvdec = on_gpu and not self.why_no_nvdec(np.unique(frames[:, 0]).tolist())
        made = decode_rows(
            frames, self.indexes, self.read, lambda i: self.labels[i], empty_on_gpu if by_nvdec else empty,
            nvdec.decode_gops if by_nvdec else None,
        )  # fmt: skip
        image = self.image or Image()
        device = None if self.arrays.xp is np else self.device  # None: NumPy arrays stay what they are
        return decode_frames(
            *made, device=device, size=image.size, crop=edits.crop, flip=edits.flip, color=edits.color,
            layout=image.layout, dtype=image.dtype, filter=image.filter, normalize=image.normalize,
        )  # fmt: skip
