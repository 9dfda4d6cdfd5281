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
    of each result. ``device``: where the frames are converted; ``data`` may be a tensor there."""
    from . import decode_images

    # An index of frames has their sizes and formats: bytes that are on a GPU are not read for it, and memory that is
    # never touched stands for them.
    is_on_gpu = getattr(getattr(data, "device", None), "type", "cpu") == "cuda"
    host = np.empty(len(data), np.uint8) if is_on_gpu else np.asarray(data)
    native = _core.index_pictures(OP, host, offsets, 0, False, MAX_PIXELS, np.ascontiguousarray(shapes))
    pictures: Any = (data, offsets)
    if device is not None:
        import torch

        pictures = tuple(
            x if is_on_gpu and x is data else torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in pictures
        )
    return decode_images(pictures, index=PictureIndex(native), rows=rows, **edits)
