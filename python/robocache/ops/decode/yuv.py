"""Decoded frames of video to pixels: conversion to RGB, then the edits that all pictures take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from .index import MAX_PIXELS, PictureIndex

OP = "decode_frames"


def decode_frames(
    data: Any, offsets: NDArray[np.int64], shapes: NDArray[np.int32], rows: Any = None, device: Any = None, **edits: Any
) -> Any:
    """``(N, H, W, 3)`` or as ``decode_images`` with these ``edits``. ``shapes (F, 4)``: height, width, channels and
    PixelFormat (C++) of each frame, whose bytes are ``[offsets[i], offsets[i + 1])`` of ``data``. ``rows``: the frame
    of each result. ``device``: where the frames are converted."""
    from . import decode_images

    host = np.asarray(data)
    native = _core.index_pictures(OP, host, offsets, 0, False, MAX_PIXELS, np.ascontiguousarray(shapes))
    pictures: Any = (data, offsets)
    if device is not None:
        import torch

        pictures = tuple(torch.from_numpy(np.ascontiguousarray(x)) for x in pictures)
        pictures = tuple(x.to(device, non_blocking=True) for x in pictures)
    return decode_images(pictures, index=PictureIndex(native), rows=rows, **edits)
