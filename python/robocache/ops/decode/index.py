"""index_pictures and PictureIndex: where a decoder may enter the pictures of a batch, a cache or a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core

MAX_PIXELS = 100_000_000
"""Of one picture; a larger one is refused before memory is allocated for it."""


class PictureIndex:
    """Headers, tables and entry points of N encoded pictures. Made by ``index_pictures``; immutable.

    ``sizes (N, 2)``: height and width. ``to_bytes() (size_bytes,)`` uint8: the whole index.

    >>> import io, robocache
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (64, 48)).save(file, "JPEG")
    >>> index = robocache.index_pictures([file.getvalue()])
    >>> again = robocache.PictureIndex.from_bytes(index.to_bytes())
    >>> len(robocache.PictureIndex.join([index, again]))
    2
    """

    def __init__(self, native: _core.PictureIndex) -> None:
        self._native = native
        self._copies: dict[str, Any] = {}

    @classmethod
    def from_bytes(cls, data: Any) -> PictureIndex:
        """The index that ``to_bytes`` has written. Raises ``FormatError`` where the bytes are not a valid one."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray, memoryview)) else np.asarray(data)
        return cls(_core.PictureIndex.from_bytes(array))

    @classmethod
    def join(cls, parts: Sequence[PictureIndex], rows: Any = None) -> PictureIndex:
        """The pictures of several indexes, one after the other; ``rows``: only these of them, in this order."""
        picked = None if rows is None else selected_rows("PictureIndex", rows)
        return cls(_core.PictureIndex.join([part.native for part in parts], picked))

    def to_bytes(self) -> NDArray[np.uint8]:
        """The whole index as a flat uint8 array, with a version: to be stored and read by ``from_bytes``. Read-only."""
        data: NDArray[np.uint8] = self._native.bytes
        return data

    @property
    def native(self) -> _core.PictureIndex:
        """The object of C++."""
        return self._native

    @property
    def sizes(self) -> NDArray[np.int32]:
        """``(N, 2)``: height and width of each picture."""
        return self.shapes_of()[:, :2]

    def shapes_of(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.int32]:
        """``(N, 3)``: height, width and channels of these pictures, or of all."""
        shapes: NDArray[np.int32] = self._native.shapes_of(rows)
        return shapes

    @property
    def num_entry_points(self) -> int:
        """Of all pictures together."""
        return self._native.num_entry_points

    @property
    def size_bytes(self) -> int:
        """Of ``to_bytes``."""
        return len(self.to_bytes())

    def on_device(self, device: Any) -> Any:
        """The bytes of the index as a torch tensor on a GPU, copied there once."""
        import torch

        device = torch.device(device)
        if str(device) not in self._copies:
            self._copies[str(device)] = torch.from_numpy(self.to_bytes().copy()).to(device)
        return self._copies[str(device)]

    def __len__(self) -> int:
        return self._native.num_pictures

    def __repr__(self) -> str:
        return f"PictureIndex({len(self)} pictures, {self.num_entry_points} entry points, {self.size_bytes} bytes)"


def selected_rows(op: str, rows: Any) -> NDArray[np.int64]:
    given = np.asarray(rows.cpu() if hasattr(rows, "cpu") else rows)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size > 0):
        raise ValueError(f"{op}: rows must be whole numbers (N,), got {given.dtype} of shape {given.shape}")
    return np.ascontiguousarray(given, np.int64)


def index_pictures(pictures: Any, *, every: int | None = None, max_pixels: int = MAX_PIXELS) -> PictureIndex:
    """Reads JPEG pictures once, to their last bit, and returns entry points at which a decoder can begin.

    ``pictures`` as in ``decode_images``, on the host. There is an entry point before every ``every``-th MCU (a block of
    8 x 8 to 32 x 32 pixels); by default as many as fit into 3 % of the picture's bytes. Raises ``FormatError`` for a
    truncated or corrupt picture and ``NotImplementedError`` for a JPEG of another kind (progressive, CMYK), naming the
    picture.

    >>> import io, robocache
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (64, 48)).save(file, "JPEG")
    >>> index = robocache.index_pictures([file.getvalue()], every=4)
    >>> len(index), index.sizes.tolist(), index.num_entry_points
    (1, [[48, 64]], 3)
    """
    from .inputs import joined

    if every is not None and (not isinstance(every, (int, np.integer)) or not 1 <= every < 2**31):
        raise ValueError(f"index_pictures: every must be a whole number from 1, got {every!r}")
    data, offsets = joined("index_pictures", pictures)
    return PictureIndex(_core.index_pictures("index_pictures", data, offsets, int(every or 0), True, int(max_pixels)))
