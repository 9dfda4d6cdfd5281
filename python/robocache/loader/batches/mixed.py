"""Pictures of one stream by how they are stored: encoded pictures, frames of video, pixels, or several of these."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cache.pictures import VIDEO_CODECS
from ...ops.arrays import dtype_name
from ..order.selection import Selection
from ..window import Key
from .arrays import Arrays
from .pictures import Edits, Output, Pictures
from .pixels import Pixels
from .video import Films


def open_pictures(
    key: Key, place: int, selections: list[Selection], tier: str, arrays: Arrays, output: Output, check: bool
) -> Pictures:
    """As ``Pictures``, of any codec."""
    codecs = {selection.cache.specs[key.name].codec for selection in selections}
    codec = next(iter(codecs))
    reads = Mixed if len(codecs) > 1 else Pixels if codec is None else Films if codec in VIDEO_CODECS else Pictures
    return reads(key, place, selections, tier, arrays, output, check)


class Mixed(Pictures):
    """Of caches that store a stream in different ways: ``made`` has the pictures of each cache."""

    def load(self, selections: list[Selection], check: bool) -> None:
        common = (self.tier, self.arrays, Output(), check)  # `finished` is called for all of them together
        self.made = [open_pictures(self.key, self.place, [selection], *common) for selection in selections]
        self.firsts = np.cumsum([0, *(len(part.ranges) for part in self.made)])
        """Of each cache: its first picture among all."""
        found = [(part.rows[1:], first) for part, first in zip(self.made, self.firsts[:-1], strict=True)]
        self.rows = np.concatenate([np.full(1, -1), *(np.where(rows < 0, -1, rows + first) for rows, first in found)])
        self.sources = np.repeat(np.arange(len(self.made)), np.diff(self.firsts))

    def of_key(self, key: Key, place: int, output: Output) -> Pictures:
        made = copy.copy(self)
        made.settle(key, place, output)
        made.made = [part.of_key(key, place, Output()) for part in self.made]
        return made

    def decoded(self, rows: NDArray[np.int64], edits: Edits) -> Any:
        sources = self.sources[rows]
        out = self.arrays.empty((len(rows), *self.black.shape), dtype_name(self.black.dtype) or "", self.device)
        for source in np.unique(sources).tolist():
            part = np.flatnonzero(sources == source)
            pixels = self.made[source].decoded(rows[part] - self.firsts[source], edits.take(part))
            self.arrays.put(out, self.there(part), pixels.reshape(len(part), *self.black.shape))
        return out
