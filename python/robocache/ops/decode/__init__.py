"""decode_images: encoded pictures to pixels, cropped, resized, normalized. The contract is docs/decode.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _core
from ..arrays import allocator, dtype_name, finish, is_traced_by_jax, kind_of, work_queue
from ..types import Array
from .depth import decode_16_bit
from .edits import as_colors, as_crops, as_flips, as_normalization, as_size
from .index import MAX_PIXELS, PictureIndex, index_pictures
from .inputs import Batch, gather

Style = tuple[Any, str, str, str, Any, int]
"""size, filter, layout, dtype, normalize, channels"""

__all__ = ["PictureIndex", "decode_images", "index_pictures"]


def decode_images(
    pictures: Any,
    *,
    size: Any = None,
    crop: Any = None,
    flip: Any = None,
    color: Any = None,
    layout: str = "HWC",
    dtype: Any = "uint8",
    device: Any = None,
    index: PictureIndex | None = None,
    rows: Any = None,
    filter: str = "bilinear",
    normalize: Any = None,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
) -> Any:
    """Encoded pictures to ``(N, H, W, C)`` with ``layout="HWC"`` or ``(N, C, H, W)`` with ``"CHW"``.

    ``pictures`` is a list of ``bytes``, or ``(bytes, offsets)``: a uint8 array and int64 offsets ``(N + 1,)`` that cut
    it. ``rows`` selects pictures of it, in any order. JPEG pixels are byte-equal to libjpeg-turbo; JPEG of other
    kinds (progressive, CMYK) and PNG of other kinds (palette, interlaced) are decoded by Pillow.

    In this order: ``crop`` ``(x0, y0, x1, y1)``, one box or one for each picture; resize to ``size`` ``(height,
    width)`` as Pillow does, by ``filter`` ``"bilinear"`` (with antialias) or ``"area"``; ``flip``, one flag or one for
    each picture, mirrors left and right; ``color``, factors ``(brightness, contrast, saturation)``; ``normalize``,
    ``(mean, std)`` or ``"imagenet"``. A floating ``dtype`` without ``normalize`` has values from 0 to 1. Without
    ``size``, pictures of several sizes give a list of arrays.

    ``index`` has the entry points of the pictures (``index_pictures``): a GPU needs it to be fast. Without it the
    pictures are indexed on the CPU first. ``device="cuda"`` returns torch tensors; otherwise arrays of the kind of
    ``pictures``, NumPy for a list. A truncated or corrupt picture raises ``FormatError``. On a GPU, bytes that do not
    fit their index give undefined pixels.

    >>> import io, numpy as np, robocache
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (64, 48), (200, 100, 50)).save(file, "JPEG")
    >>> pixels = robocache.decode_images([file.getvalue()] * 3, size=(24, 32), layout="CHW", dtype="float32")
    >>> pixels.shape, pixels[0, :, 0, 0].round(2)
    ((3, 3, 24, 32), array([0.78, 0.39, 0.2 ], dtype=float32))
    """
    name = dtype_name(dtype) or "uint8"
    if is_traced_by_jax(pictures, *(pictures if isinstance(pictures, (list, tuple)) else ())):
        from ..jax_ops import decode as traced

        style = (as_size(size), filter, layout, name, as_normalization(normalize), channels)
        return traced.run(pictures, index, rows, (crop, flip, color), style, device)
    if name == "uint16":
        return decode_16_bit(
            pictures, size=size, crop=crop, flip=flip, color=color, layout=layout, device=device, index=index,
            rows=rows, filter=filter, normalize=normalize, channels=channels, max_pixels=max_pixels,
        )  # fmt: skip
    batch = gather(pictures, index, rows, device, max_pixels)
    count = len(batch.rows)
    edits = (as_crops(crop, count), as_flips(flip, count), as_colors(color, count))
    style = (as_size(size), filter, layout, name, as_normalization(normalize), channels)
    groups = [np.arange(count)] if size is not None else _groups(batch, edits[0])
    made = [_decode(batch, group, edits, style) for group in groups]
    if len(groups) == 1:
        return made[0]
    result: list[Any] = [None] * count
    for group, array in zip(groups, made, strict=True):
        for i, picture in zip(group.tolist(), array, strict=True):
            result[i] = picture
    return result


def _decode(batch: Batch, group: Any, edits: tuple[Any, ...], style: Style) -> Array:
    whole = len(group) == len(batch.rows)
    crops, flips, colors = (x if x is None or whole else x[group] for x in edits)
    like = batch.bytes
    return finish(
        _core.decode(
            like, batch.offsets, batch.index, batch.device_index, batch.rows if whole else batch.rows[group],
            crops, flips, colors, *style, allocator(like), work_queue(kind_of(like), like),
        )
    )  # fmt: skip


def _groups(batch: Batch, crops: Any) -> list[Any]:
    """Positions of pictures of the same size; all of them in one group where the sizes agree, or there is none."""
    count = len(batch.rows)
    is_refused = ((batch.rows < 0) | (batch.rows >= batch.index.num_pictures)).any()
    if is_refused or (crops is not None and len(crops) != count):
        return [np.arange(count)]  # refused by _core, with the reason
    if crops is None:
        sizes = batch.index.shapes_of(batch.rows)[:, :2]
    else:
        sizes = np.stack([crops[:, 3] - crops[:, 1], crops[:, 2] - crops[:, 0]], axis=1)
    if len(sizes) == 0 or (sizes == sizes[0]).all():
        return [np.arange(len(sizes))]
    _, which = np.unique(sizes, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [np.flatnonzero(which == i) for i in range(int(which.max()) + 1)]
