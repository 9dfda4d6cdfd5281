"""PNG of 16 bits, gray: values as they are stored. Both bytes of a value take the path of 8-bit pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from .edits import as_normalization
from .index import MAX_PIXELS, PictureIndex, selected_rows
from .inputs import alike, is_on_gpu, joined, moved, on_host
from .other_formats import JPEG, OTHER_JPEG, PNG, decode_all

OP = "decode_images"


def decode_16_bit(
    pictures: Any, *, size: Any, color: Any, normalize: Any, channels: int, index: Any, rows: Any, device: Any,
    max_pixels: int, **edits: Any,
) -> Any:  # fmt: skip
    """(N, H, W, 1) uint16, or as ``decode_images`` with these ``edits``: crop, flip, layout, filter."""
    from . import decode_images

    if size is not None:
        raise NotImplementedError(f"{OP}: size must be None for dtype 'uint16', which is not resized; got {size!r}")
    if as_normalization(normalize) is not None:
        raise ValueError(f"{OP}: dtype must be floating with normalize, got uint16")
    if color is not None:
        raise ValueError(f"{OP}: color must be None for dtype 'uint16', whose values are unchanged; got {color!r}")
    if index is not None:
        raise ValueError(
            f"{OP}: index must be None for dtype 'uint16', since PNG has no entry points; got {type(index).__name__}"
        )
    if channels not in (1, 3):
        raise ValueError(f"{OP}: channels must be 1 or 3, got {channels}")
    data, offsets = joined(OP, pictures)
    on_gpu = is_on_gpu(data, device)
    picked = None if rows is None else selected_rows(OP, rows)
    values = values_of(on_host(data), on_host(offsets), max_pixels, picked)
    halves, shared = bytes_of(values)
    decoded = [decode_images(half, index=shared, rows=picked, channels=1, **edits) for half in halves]

    def result(low: NDArray[np.uint8], high: NDArray[np.uint8]) -> Any:
        array = low.astype(np.uint16) | high.astype(np.uint16) << 8
        return moved(alike(array, data), device, on_gpu)

    if isinstance(decoded[0], list):
        return [result(low, high) for low, high in zip(*decoded, strict=True)]
    return result(*decoded)


def values_of(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], max_pixels: int, rows: NDArray[np.int64] | None
) -> list[NDArray[np.uint16]]:
    """(H, W) of each picture; (0, 0) of those that are not among ``rows``."""
    kinds = _core.picture_kinds(OP, data, offsets, rows)
    numbers = np.arange(len(kinds)) if rows is None else np.unique(rows)
    decoded = decode_all(
        [
            (data[offsets[i] : offsets[i + 1]].tobytes(), i, PNG, max_pixels)
            for i in numbers.tolist()
            if kinds[i] not in (JPEG, OTHER_JPEG)
        ]
    )
    values = [np.zeros((0, 0), np.uint16)] * len(kinds)
    for i in numbers.tolist():
        given = f"{decoded[i].dtype}" if i in decoded else "a JPEG"
        if given != "uint16":
            raise ValueError(f"{OP}: pictures[{i}] must be a gray PNG of 16 bits for dtype 'uint16', got {given}")
        values[i] = decoded[i]
    return values


def bytes_of(values: list[NDArray[np.uint16]]) -> tuple[list[Any], PictureIndex]:
    """Pictures of the low and of the high byte of each value, and the index of both."""
    shapes = np.array([(*x.shape, 1, 0) for x in values], np.int32).reshape(len(values), 4)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([x.size for x in values], dtype=np.int64)])
    flat = np.concatenate([np.zeros(0, np.uint16), *(x.reshape(-1) for x in values)])
    rows = np.flatnonzero(shapes[:, 0])
    low, high = (flat & 255).astype(np.uint8), (flat >> 8).astype(np.uint8)
    most = max([MAX_PIXELS, *(x.size for x in values)])
    index = PictureIndex(_core.index_pictures(OP, low, offsets, 0, False, most, shapes, rows))
    return [(low, offsets), (high, offsets)], index
