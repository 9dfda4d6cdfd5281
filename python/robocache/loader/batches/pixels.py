"""Pictures that are stored as pixels, in batches: the chosen rows go through the op that decodes the others, so that
all edits are the same code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...cache.episode import StreamSpec
from ...ops.decode import PictureIndex
from ...ops.decode.index import MAX_PIXELS
from ..order.selection import Selection
from .pictures import Edits, Pictures


class Pixels(Pictures):
    """The rows of one stream of pixels, uint8."""

    def joined_index(self, selections: list[Selection]) -> PictureIndex:
        return index_of_pixels(self.spec, len(self.ranges))

    def decoded(self, rows: NDArray[np.int64], edits: Edits) -> Any:
        on_gpu = self.arrays.on_gpu
        is_there = self.tier == ("gpu" if on_gpu else "memory")
        if self.image is None:  # of a stream that another key has an image for
            if is_there and on_gpu:
                return self.arrays.take(self.parts[0].reshape(-1, *self.spec.shape), self.there(rows))
            data = self.gather(rows, pinned=on_gpu)
            return self.arrays.to(data, self.device, wait=False).reshape(len(rows), *self.spec.shape)
        if is_there:
            return self.pixels((self.parts[0], self.splits), edits, index=self.index, rows=rows)
        data, splits = self.gather(rows, pinned=on_gpu), self.splits_of(rows)
        if on_gpu:
            data, splits = (self.arrays.to(x, self.device, wait=False) for x in (data, splits))
        return self.pixels((data, splits), edits, index=index_of_pixels(self.spec, len(rows)))


def index_of_pixels(spec: StreamSpec, count: int) -> PictureIndex:
    """Of ``count`` pictures of the size of a stream."""
    shape = np.array([[spec.shape[0], spec.shape[1], spec.shape[2] if len(spec.shape) == 3 else 1, 0]], np.int32)
    one = np.empty(spec.row_bytes, np.uint8)  # not read: the index has sizes alone
    offsets = np.array([0, len(one)], np.int64)
    index = PictureIndex(_core.index_pictures("Loader", one, offsets, 0, False, MAX_PIXELS, shape))
    return PictureIndex.join([index], np.zeros(count, np.int64))
