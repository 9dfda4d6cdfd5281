"""The pictures of a call: bytes and offsets in one place, with the index that belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ..arrays import as_torch, device_type, kind_of
from ..types import Array
from .index import PictureIndex, selected_rows
from .other_formats import replace_other_formats

OP = "decode_images"


@dataclass
class Batch:
    """What ``_core.decode`` takes; ``device_index`` on a GPU only."""

    bytes: Array
    offsets: Array
    index: _core.PictureIndex
    device_index: Array | None
    rows: NDArray[np.int64]


def joined(op: str, pictures: Any) -> tuple[Array, Array]:
    """(bytes, offsets) as they were given, or those of a list of pictures, joined on the host."""
    if isinstance(pictures, tuple) and len(pictures) == 2 and not _is_picture(pictures[1]):
        data, offsets = pictures
        if isinstance(data, (bytes, bytearray, memoryview)) and (_has_dtype(offsets) or isinstance(offsets, list)):
            data = np.frombuffer(data, np.uint8)
        if _has_dtype(data):
            return _unit_stride(data), _unit_stride(offsets)
    if not isinstance(pictures, (list, tuple)):
        raise ValueError(f"{op}: pictures must be a list of bytes, or (bytes, offsets), got {type(pictures).__name__}")
    for i, picture in enumerate(pictures):
        if not _is_picture(picture):
            raise ValueError(f"{op}: pictures[{i}] must be bytes, got {type(picture).__name__}")
    views = [np.frombuffer(picture, np.uint8) for picture in pictures]
    offsets = np.zeros(len(views) + 1, np.int64)
    np.cumsum([len(view) for view in views], out=offsets[1:])
    return np.concatenate(views) if views else np.zeros(0, np.uint8), offsets


def gather(pictures: Any, index: PictureIndex | None, rows: Any, device: Any, max_pixels: int) -> Batch:
    data, offsets = joined(OP, pictures)
    on_gpu = is_on_gpu(data, device)
    picked = None if rows is None else selected_rows(OP, rows)
    if index is None:
        data, offsets, index = _index(data, offsets, on_gpu, max_pixels, picked)
    elif not isinstance(index, PictureIndex):
        raise ValueError(f"{OP}: index must be a PictureIndex (index_pictures), got {type(index).__name__}")
    if device is not None or on_gpu:
        data, offsets = moved(data, device, on_gpu), moved(offsets, device, on_gpu)
    copy = index.on_device(as_torch(data).device) if on_gpu else None
    return Batch(data, offsets, index.native, copy, np.arange(len(index)) if picked is None else picked)


def _index(
    data: Array, offsets: Array, on_gpu: bool, max_pixels: int, rows: NDArray[np.int64] | None
) -> tuple[Array, Array, PictureIndex]:
    """Reads headers; for a GPU also scans, on the host. Pictures of other formats become pixels. Of ``rows`` only."""
    host, host_offsets = on_host(data), on_host(offsets)
    replaced = replace_other_formats(host, host_offsets, max_pixels, rows)
    pixels = None
    if replaced is not None:
        host, host_offsets, pixels = replaced
        data, offsets = alike(host, data), alike(host_offsets, data)
    native = _core.index_pictures(OP, host, host_offsets, 0, on_gpu, int(max_pixels), pixels, rows)
    return data, offsets, PictureIndex(native)


def is_on_gpu(data: Array, device: Any) -> bool:
    """Whether the results are, with a device that was checked."""
    if device is None:
        return device_type(data) == "cuda"
    kind = str(device).split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"{OP}: device must be 'cpu' or a GPU like 'cuda', got {str(device)!r}")
    if kind == "cuda" and device_type(data) != "cuda":
        import torch

        if not torch.cuda.is_available():
            reason = _core.cuda_status()["reason"] or "PyTorch sees no GPU (torch.cuda.is_available() is False)"
            raise NotImplementedError(f"{OP}: device {str(device)!r} is not available: {reason}")
    return kind == "cuda"


def moved(array: Array, device: Any, on_gpu: bool) -> Array:
    """On the given device: torch tensors, unless both are the host."""
    if not on_gpu and kind_of(array) == "numpy" and str(device) == "cpu":
        return array
    if device is None:
        return array
    return as_torch(array).to(device)


def alike(array: NDArray[Any], given: Array) -> Array:
    """A host array as the kind of array that the pictures were given as."""
    return as_torch(array).to(given.device) if kind_of(given) == "torch" else array


def on_host(array: Array) -> NDArray[Any]:
    if kind_of(array) == "torch":
        array = array.cpu().numpy()
    elif kind_of(array) == "cupy":
        array = array.get()
    return np.asarray(array)


def _unit_stride(array: Array) -> Array:
    return np.ascontiguousarray(array) if isinstance(array, (list, np.ndarray)) else array


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "dtype")


def _is_picture(value: Any) -> bool:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return True
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1 and value.flags.c_contiguous
