"""Pictures in batches: the picture of each moment is found by its number, and decoded.

For the reader of batches such a stream has one int64 for each picture: its number from 1 on, through all caches and
shards. 0 is what ``align`` gives where an episode has none. So a picture is chosen as a row of pixels is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...cache import pictures as encoded
from ...cache.episode import RAGGED
from ...ops.decode import PictureIndex, decode_images
from ...ops.decode.edits import as_normalization
from ..image import Image, RandomCrop, channels_of
from ..order.draws import draws
from ..order.selection import Selection
from ..window import Key
from .arrays import Arrays
from .store import STAGED_BYTES

INDEX_BYTES = 64
"""Of a picture that is not encoded: its record in an index."""
NUM_DRAWS = 6
"""Of a sample: top and left of the crop, flip, brightness, contrast, saturation."""


class Output(NamedTuple):
    """What pictures become where their window has no ``image``: normalized as rows of pixels are."""

    way: str | None = None
    dtype: str | None = None
    scales: tuple[Any, ...] = ()
    """For each source, offset and scale of each channel."""


class Edits(NamedTuple):
    """What happens to each picture, one row of each array per picture; None: nothing."""

    crop: Any = None
    flip: Any = None
    color: Any = None

    def take(self, rows: Any) -> Edits:
        return Edits(*(None if x is None else x[rows] for x in self))


class Pictures:
    """The pictures of one stream, where they are, and what becomes of them."""

    def __init__(
        self,
        key: Key,
        place: int,
        selections: list[Selection],
        tier: str,
        arrays: Arrays,
        output: Output,
        check: bool = False,
    ) -> None:
        """``check``: compare the checksums of the pictures that are copied."""
        self.arrays, self.device, self.tier = arrays, arrays.device, tier
        self.spec = selections[0].cache.specs[key.name]
        self.channels = channels_of(self.spec.shape)
        """With an ``image``."""
        self.is_native = self.spec.codec in ("jpeg", None)
        """Decoded by the op, also on a GPU; else to pixels on the host first."""
        self.settle(key, place, output)
        self.load(selections, check)

    def settle(self, key: Key, place: int, output: Output) -> None:
        """What becomes of the pictures."""
        self.key, self.name, self.place, self.output, self.image = key, key.name, place, output, key.window.image
        self.black = self.black_picture()

    def of_key(self, key: Key, place: int, output: Output) -> Pictures:
        """The same pictures for another key of the stream, without another copy in memory."""
        made = copy.copy(self)
        made.settle(key, place, output)
        return made

    def load(self, selections: list[Selection], check: bool) -> None:
        """Finds the pictures, and copies them into the memory of the tier."""
        self.parts: list[Any] = []
        rows: list[Any] = [np.full(1, -1)]
        ranges: list[Any] = []
        sources: list[Any] = []
        count = 0
        for source, selection in enumerate(selections):
            number = list(selection.cache.specs).index(self.name)
            for episode in selection.kept.tolist() if check and self.tier != "mmap" else ():
                selection.cache._reader.check_rows(episode, number)
            for shard in range(selection.cache.num_shards):
                found, kept = self.add(selection, shard)
                rows.append(np.where(kept, np.cumsum(kept) - 1 + count, -1))
                ranges.append(found[kept])
                count += int(kept.sum())
            sources.append(np.full(count - sum(len(x) for x in sources), source))
        self.rows = np.concatenate(rows)
        """For each number: which of the kept pictures it is; -1 for none."""
        self.ranges = np.concatenate(ranges) if ranges else np.zeros((0, 3), np.int64)
        """For each kept picture: its part, and its bytes there."""
        self.sources = np.concatenate(sources)
        self.index = self.joined_index(selections) if self.is_native and self.tier != "mmap" else None
        if self.tier != "mmap":
            self.copy()

    def joined_index(self, selections: list[Selection]) -> PictureIndex:
        """Of the kept pictures."""
        return PictureIndex.join([index_of(s, self.name, episode) for s in selections for episode in s.kept.tolist()])

    def add(self, selection: Selection, shard: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """``(part, begin, end)`` of each picture of a shard, and whether it belongs to a kept episode."""
        data, splits = selection.ragged(self.name, shard)
        part = np.full(len(splits) - 1, len(self.parts))
        kept = np.zeros(len(splits) - 1, bool)
        for begin, end in selection.runs_of(self.name, shard):
            kept[begin:end] = True
        if kept.any():
            self.parts.append(self.arrays.of(data))
        return np.stack([part, splits[:-1], splits[1:]], axis=1), kept

    def copy(self) -> None:
        """All kept pictures one after the other, in the memory of the tier. Those that are not JPEG stay on the
        host."""
        everything = np.arange(len(self.ranges))
        ends = np.cumsum(self.ranges[:, 2] - self.ranges[:, 1])
        splits = np.concatenate([np.zeros(1, np.int64), ends])
        if self.tier == "gpu" and self.is_native:
            data = self.arrays.empty((int(splits[-1]),), "uint8", self.device)
            for rows in np.split(everything, np.flatnonzero(np.diff(ends // STAGED_BYTES)) + 1):
                if len(rows):
                    self.arrays.copy(data[splits[rows[0]] : splits[rows[-1] + 1]], self.gather(rows))
        else:
            data = self.gather(everything, pinned=self.tier == "pinned")
        self.parts = [data]
        self.ranges = np.stack([np.zeros(len(ends), np.int64), splits[:-1], splits[1:]], axis=1)
        self.splits = self.arrays.of(splits)
        if not self.arrays.is_on_host(data):
            self.splits = self.there(splits)

    def gather(self, rows: NDArray[np.int64], pinned: bool = False) -> Any:
        """The bytes of these pictures, in their order, on the host."""
        ranges = self.ranges[rows]
        used, part = np.unique(ranges[:, 0], return_inverse=True)
        size = int((ranges[:, 2] - ranges[:, 1]).sum())
        data = self.arrays.empty((size,), "uint8", self.arrays.host, pinned=pinned and size > 0)
        picked = np.ascontiguousarray(np.stack([part.reshape(-1), ranges[:, 1], ranges[:, 2]], axis=1), np.int64)
        _core.gather_bytes([self.parts[i] for i in used.tolist()], picked, data)
        return data

    def splits_of(self, rows: NDArray[np.int64]) -> Any:
        sizes = self.ranges[rows, 2] - self.ranges[rows, 1]
        return self.arrays.of(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    def there(self, array: Any) -> Any:
        """A NumPy array on the device of the loader."""
        return self.arrays.to(self.arrays.of(array), self.device)

    def decoded(self, rows: NDArray[np.int64], edits: Edits) -> Any:
        """Pixels of these kept pictures, ``(n, ...)``, on the device of the loader."""
        if not self.is_native and self.image is None and (self.spec.shape[2:] == (4,) or self.spec.dtype != "uint8"):
            picked = encoded.Pictures(*map(self.arrays.as_numpy, (self.gather(rows), self.splits_of(rows))))
            return self.there(picked.decoded(self.spec))
        on_gpu = self.arrays.on_gpu
        if self.index is not None and self.tier in (("gpu",) if on_gpu else ("memory",)):
            # The pictures are where they are decoded.
            return self.pixels((self.parts[0], self.splits), edits, index=self.index, rows=rows)
        data, splits = self.gather(rows, pinned=on_gpu), self.splits_of(rows)
        if self.index is not None and on_gpu:
            index = PictureIndex.join([self.index], rows)
            data, splits = (self.arrays.to(x, self.device, wait=False) for x in (data, splits))
            return self.pixels((data, splits), edits, index=index)
        return self.arrays.to(self.pixels((data, splits), edits), self.device)

    def pixels(self, pictures: Any, edits: Edits, **which: Any) -> Any:
        image = self.image or Image()
        return decode_images(
            pictures, size=image.size, crop=edits.crop, flip=edits.flip, color=edits.color, layout=image.layout,
            dtype=image.dtype, filter=image.filter, normalize=image.normalize, channels=self.channels, **which,
        )  # fmt: skip

    def edits(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> Edits:
        """Of samples at these positions of an epoch: the same on every device, rank and tier."""
        image = self.image
        if image is None:
            return Edits()
        count = len(positions)
        drawn = np.zeros((count, NUM_DRAWS))
        if image.is_random:
            drawn = draws(seed, epoch, self.name, positions, NUM_DRAWS)
        crop = None
        if image.crop is not None:
            whole = (self.spec.shape[0], self.spec.shape[1])
            height, width = image.cropped(whole)
            free = np.array([whole[0] - height, whole[1] - width])
            if isinstance(image.crop, RandomCrop):
                corner = np.floor(drawn[:, :2] * (free + 1)).astype(np.int32)
            else:
                corner = np.broadcast_to(free // 2, (count, 2)).astype(np.int32)
            top, left = corner.T
            crop = np.stack([left, top, left + width, top + height], axis=1)
        flip = drawn[:, 2] < image.flip if image.flip > 0 else None
        color = None if image.color is None else image.color.factors(drawn[:, 3:6])
        return Edits(crop, flip, color)

    def black_picture(self) -> Any:
        """What a batch has where an episode has no picture: pixels of 0, normalized like all others."""
        if self.image is None:
            return self.there(np.zeros(self.spec.shape, self.spec.dtype))
        black = np.zeros(self.image.shape(self.spec.shape), np.float32)
        normalize = as_normalization(self.image.normalize)
        if normalize is not None:
            mean, std = (np.array(x[: self.channels], np.float32).astype(np.float64) for x in normalize)
            offset = (-mean / std).astype(np.float32)  # as decode rounds it
            black += offset.reshape((-1, 1, 1) if self.image.layout == "CHW" else (1, 1, -1))
        return self.arrays.cast(self.there(black), self.image.dtype)

    def fill(self, made: list[Any], order: tuple[int, int, Any], numbers: Mapping[str, Any]) -> None:
        """Puts pixels in the place of the numbers that the reader found: ``(B, T)`` becomes ``(B, T, ...)``. ``order``:
        seed, epoch and positions. ``numbers``: those that were read on the host, by name."""
        found = numbers.get(self.name, made[self.place])
        count, moments = found.shape
        rows = self.rows[self.arrays.as_numpy(found).reshape(-1)]
        there = np.flatnonzero(rows >= 0)
        edits = self.edits(*order).take(there // max(1, moments))
        shape = tuple(self.black.shape)
        pixels = None
        if len(there):
            try:
                pixels = self.decoded(rows[there], edits).reshape(len(there), *shape)
            except _core.FormatError as error:
                raise _core.FormatError(f"Loader: stream {self.name!r}: {error}") from None
        if pixels is None or len(there) < len(rows):
            whole = self.arrays.repeated(self.black, len(rows))
            if pixels is not None:
                self.arrays.put(whole, self.there(there), pixels)
            pixels = whole
        pixels = self.finished(pixels, self.sources[np.maximum(rows, 0)] if len(self.sources) else rows)
        made[self.place] = pixels.reshape(count, moments, *shape)

    def finished(self, pixels: Any, sources: NDArray[np.int64]) -> Any:
        """Without an ``image``: normalized and converted as rows of pixels are."""
        dtype = self.output.dtype
        if self.image is not None or dtype is None:
            return pixels
        if self.output.way is None:
            return self.arrays.cast(pixels, dtype)
        out = self.arrays.empty(pixels.shape, dtype, self.device)
        for source in np.unique(sources).tolist():
            offset, scale = (self.there(x) for x in self.output.scales[source])
            rows = self.there(np.flatnonzero(sources == source))
            everything = len(rows) == len(pixels)
            part = pixels if everything else self.arrays.take(pixels, rows)
            into = out if everything else self.arrays.empty(part.shape, dtype, self.device)
            channels = len(offset)
            _core.normalize(part.reshape(-1, channels), offset, scale, into.reshape(-1, channels))
            if not everything:
                self.arrays.put(out, rows, into)
        return out


def index_of(selection: Selection, name: str, episode: int) -> PictureIndex:
    """The stored index of an episode. FormatError where it is damaged, or is not of these pictures."""
    reader, stream = selection.cache._reader, list(selection.cache.specs).index(name)
    data, _, splits, _ = reader.rows(episode, stream)
    stored = reader.index(episode, stream)
    return encoded.Pictures(data, splits - splits[0], stored if len(stored) else None).index


def pictures_bytes(keys: list[Key], selections: list[Selection]) -> int:
    """Of the pictures of the kept episodes, with their indexes."""
    total = 0
    for name in dict.fromkeys(key.name for key in keys):
        for selection in selections:
            spec = selection.cache.specs[name]
            if not selection.is_numbered(name) or spec.kind in RAGGED:
                continue
            number = list(selection.cache.specs).index(name)
            for shard in selection.shards.tolist():
                splits = selection.ragged(name, shard)[1]
                total += sum(int(splits[end] - splits[begin]) for begin, end in selection.runs_of(name, shard))
            if spec.codec is None:
                total += int(selection.counts(name).sum()) * INDEX_BYTES
                continue
            total += sum(len(selection.cache._reader.index(episode, number)) for episode in selection.kept.tolist())
    return total
