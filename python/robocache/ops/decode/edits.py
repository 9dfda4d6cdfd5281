"""What happens to each picture of a batch, as the arrays that ``_core`` takes. Values are checked there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

OP = "decode_images"
NORMALIZATIONS = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}


def as_crops(crop: Any, count: int) -> NDArray[np.int32] | None:
    """(N, 4) from one box or one for each picture."""
    if crop is None:
        return None
    boxes = _host(crop)
    if boxes.dtype.kind not in "iu" or boxes.shape[-1:] != (4,) or boxes.ndim > 2:
        raise ValueError(
            f"{OP}: crop must be (x0, y0, x1, y1) in whole pixels, or one of them for each picture, got {_shown(crop)}"
        )
    if (boxes < -(2**31)).any() or (boxes >= 2**31).any():
        raise ValueError(f"{OP}: crop must fit into int32, got {_shown(crop)}")
    return np.ascontiguousarray(np.broadcast_to(boxes, (count, 4)) if boxes.ndim == 1 else boxes, np.int32)


def as_flips(flip: Any, count: int) -> NDArray[np.uint8] | None:
    """(N,) from one flag or one for each picture."""
    if flip is None:
        return None
    flags = _host(flip)
    if flags.dtype != np.bool_ or flags.ndim > 1:
        raise ValueError(f"{OP}: flip must be True or False, or one of them for each picture, got {_shown(flip)}")
    return np.ascontiguousarray(np.broadcast_to(flags, (count,)) if flags.ndim == 0 else flags).view(np.uint8)


def as_colors(color: Any, count: int) -> NDArray[np.float32] | None:
    """(N, 3) from brightness, contrast and saturation, for all pictures or for each."""
    if color is None:
        return None
    factors = _host(color)
    if factors.dtype.kind not in "fiu" or factors.shape[-1:] != (3,) or factors.ndim > 2:
        raise ValueError(
            f"{OP}: color must be (brightness, contrast, saturation), or one of them for each picture, "
            f"got {_shown(color)}"
        )
    return np.ascontiguousarray(np.broadcast_to(factors, (count, 3)) if factors.ndim == 1 else factors, np.float32)


def as_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    try:
        height, width = (int(x) for x in size)
        if (height, width) == tuple(size):
            return height, width
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{OP}: size must be (height, width) in whole pixels, got {size!r}")


def as_normalization(normalize: Any) -> tuple[list[float], list[float]] | None:
    """(mean, std), three numbers each; one number stands for three."""
    if normalize is None:
        return None
    if isinstance(normalize, str):
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"{OP}: normalize must be 'imagenet' or (mean, std), got {normalize!r}")
        normalize = NORMALIZATIONS[normalize]
    try:
        mean, std = (np.broadcast_to(np.asarray(x, np.float64), (3,)).tolist() for x in normalize)
    except (TypeError, ValueError):
        raise ValueError(f"{OP}: normalize must be (mean, std) of three numbers each, got {normalize!r}") from None
    return mean, std


def _host(array: Any) -> NDArray[Any]:
    """Of numbers; what is no array, like a list of lists of different lengths, is one of objects."""
    given = array.detach().cpu() if hasattr(array, "detach") else array
    try:
        return np.asarray(given)
    except ValueError:
        return np.empty(0, object)


def _shown(value: Any) -> str:
    """A short value as it is, a long one by its shape."""
    text = repr(value)
    return text if len(text) <= 60 else f"an array of shape {np.shape(value)}"
