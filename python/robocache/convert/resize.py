"""Pictures of another size: images as the mean of what a pixel covers, depth as the nearest pixel."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache.episode import StreamSpec

ImageSize = tuple[int, int] | Mapping[str, tuple[int, int]] | None
FILTERS = {"image": "box", "depth": "nearest"}
MAX_SIDE = 1 << 16


def resized_specs(specs: Mapping[str, StreamSpec], size: ImageSize) -> dict[str, StreamSpec]:
    """All streams of a cache, those with pictures in the given size. A size that changes none of them is an error."""
    resized = {name: resized_spec(spec, size) for name, spec in specs.items()}
    if all(resized[name] is spec for name, spec in specs.items()):
        pictures = {name: spec.shape[:2] for name, spec in specs.items() if spec.kind in FILTERS}
        sizes = ", ".join(f"{name!r} is {height} x {width}" for name, (height, width) in list(pictures.items())[:5])
        why = f"{sizes} already" if pictures else "no stream has images"
        raise ValueError(f"ingest: image_size must change at least one stream, got {size!r}, but {why}")
    return resized


def resized_spec(spec: StreamSpec, size: ImageSize) -> StreamSpec:
    """The stream with pictures of that size, (height, width). ``meta["resized"]``: the size it had, and the filter."""
    if isinstance(size, Mapping):
        if spec.name not in size:
            return spec
        if spec.kind not in FILTERS:
            raise ValueError(
                f"ingest: image_size must name image or depth streams, got {spec.name!r} of kind {spec.kind}"
            )
        size = size[spec.name]
    if size is None or spec.kind not in FILTERS:
        return spec
    height, width = checked_size(size)
    if spec.kind == "image" and spec.dtype != "uint8":
        raise ValueError(f"ingest: image_size must apply to uint8 images, got {spec.name!r} of dtype {spec.dtype}")
    if (height, width) == spec.shape[:2]:
        return spec
    if 0 in spec.shape:
        raise ValueError(f"ingest: image_size cannot resize {spec.name!r}, whose images have shape {spec.shape}")
    if spec.kind == "image":
        need_pillow()
    origin = {"from": list(spec.shape[:2]), "filter": FILTERS[spec.kind]}
    shape = (height, width, *spec.shape[2:])
    return dataclasses.replace(spec, shape=shape, meta={**spec.meta, "resized": origin})


def checked_size(size: Any) -> tuple[int, int]:
    ok = isinstance(size, tuple | list) and len(size) == 2 and all(type(x) is int and 0 < x <= MAX_SIDE for x in size)
    if not ok:
        raise ValueError(
            f"ingest: image_size must be (height, width), whole numbers from 1 to {MAX_SIDE}, got {size!r}"
        )
    return size[0], size[1]


def resize(values: NDArray[Any], spec: StreamSpec) -> NDArray[Any]:
    """Rows of pictures in the size that ``spec`` has."""
    height, width = spec.shape[:2]
    if values.shape[1:3] == (height, width):
        return values
    if spec.kind == "depth":  # a mean of near and far would be a surface that is not there
        rows, columns = nearest(values.shape[1], height), nearest(values.shape[2], width)
        return np.ascontiguousarray(values[:, rows][:, :, columns])
    pillow = need_pillow()
    flat = values.reshape(*values.shape[:3], -1)
    out = np.empty((len(values), height, width, flat.shape[3]), np.uint8)
    whole = flat.shape[3] == 3  # others channel by channel: Pillow would weigh colors by alpha
    for row, picture in enumerate(flat):
        for channels in (slice(0, 3),) if whole else range(flat.shape[3]):
            image = pillow.fromarray(np.ascontiguousarray(picture[:, :, channels]))
            out[row, :, :, channels] = np.asarray(image.resize((width, height), pillow.Resampling.BOX))
    return out.reshape(len(values), *spec.shape)


def nearest(have: int, want: int) -> NDArray[np.int64]:
    """The pixel that the middle of each new one is in."""
    return (2 * np.arange(want, dtype=np.int64) + 1) * have // (2 * want)


def need_pillow(option: str = "image_size") -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        message = f"ingest: {option} needs the package pillow: pip install 'robocache[images]'"
        raise ImportError(message, name="PIL") from error
