"""What becomes of pictures in a batch: crop, resize, flip, color, layout and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops.arrays import dtype_name
from ..ops.decode import decode_images
from ..ops.decode.edits import as_size
from .numbers import number

DTYPES = ("uint8", "float16", "bfloat16", "float32")
FILTERS = ("bilinear", "area")
LAYOUTS = ("HWC", "CHW")
Box = tuple[int, int]


@dataclass(frozen=True)
class CenterCrop:
    """The middle of a picture: ``scale`` of its height and of its width, rounded to whole pixels.

    >>> import robocache
    >>> robocache.CenterCrop(0.9).box((480, 640))
    (432, 576)
    """

    scale: float

    def __post_init__(self) -> None:
        _check_scale("CenterCrop", self.scale)

    def box(self, size: Box) -> Box:
        """Height and width of the crop of a picture of that size."""
        return _box(size, self.scale)


@dataclass(frozen=True)
class RandomCrop:
    """A part of a picture at a random place: ``scale`` of its height and of its width, rounded to whole pixels.

    >>> import robocache
    >>> robocache.RandomCrop(0.5).box((480, 640))
    (240, 320)
    """

    scale: float

    def __post_init__(self) -> None:
        _check_scale("RandomCrop", self.scale)

    def box(self, size: Box) -> Box:
        """Height and width of the crop of a picture of that size."""
        return _box(size, self.scale)


@dataclass(frozen=True)
class ColorJitter:
    """Random factors of brightness, contrast and saturation: each is drawn evenly from ``[max(0, 1 - x), 1 + x]``.

    >>> import robocache
    >>> robocache.ColorJitter(brightness=0.2)
    ColorJitter(brightness=0.2, contrast=0.0, saturation=0.0)
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            given = number(name, getattr(self, name), "ColorJitter")
            if not 0 <= given <= 100:
                raise ValueError(f"ColorJitter: {name} must be from 0 to 100, got {given}")

    def factors(self, drawn: Any) -> Any:
        """``(n, 3)`` float32 from ``(n, 3)`` numbers in [0, 1)."""
        width = np.array([self.brightness, self.contrast, self.saturation])
        low = np.maximum(0.0, 1.0 - width)
        return (low + drawn * (1.0 + width - low)).astype(np.float32)


@dataclass(frozen=True)
class Image:
    """How pictures of a stream are edited for a batch: by ``decode_images``, in the order below. They are encoded or
    stored as pixels, uint8 with 1, 3 or 4 channels; the fourth one, alpha, is ignored.

    ``crop``: ``CenterCrop(scale)`` or ``RandomCrop(scale)``. ``size``: ``(height, width)`` after the crop; None: no
    resize. ``flip``: the probability of mirroring left and right. ``color``: a ``ColorJitter``. ``normalize``: ``(mean,
    std)`` or ``"imagenet"``, with a floating ``dtype``; without it floats are from 0 to 1. ``layout``: ``"HWC"`` or
    ``"CHW"``. ``filter``: ``"bilinear"`` (with antialias) or ``"area"``. In a batch:
    ``(B, T, height, width, C)``, or ``(B, T, C, height, width)`` with ``"CHW"``.

    Random crops, flips and colors depend on seed, epoch, position of the sample and name of the stream alone; all
    moments of a sample share them.

    >>> import robocache
    >>> image = robocache.Image(size=(224, 224), crop=robocache.RandomCrop(0.95), dtype="float32", normalize="imagenet")
    >>> image.shape((480, 640, 3))
    (224, 224, 3)
    """

    size: Box | None = None
    crop: CenterCrop | RandomCrop | None = None
    flip: float = 0.0
    color: ColorJitter | None = None
    layout: str = "HWC"
    dtype: Any = "uint8"
    normalize: Any = None
    filter: str = "bilinear"

    def __post_init__(self) -> None:
        try:
            size = as_size(self.size)
            if size is not None and min(size) < 1:
                raise ValueError(f"Image: size must be (height, width) of at least 1 pixel, got {self.size!r}")
            # Of no pictures: the numbers are checked before the first batch.
            decode_images(
                [], size=size, dtype="uint8" if self.normalize is None else "float32", normalize=self.normalize
            )
        except ValueError as error:
            raise ValueError(str(error).replace("decode_images", "Image", 1)) from None
        object.__setattr__(self, "size", size)
        if not isinstance(self.crop, CenterCrop | RandomCrop | None):
            raise ValueError(f"Image: crop must be CenterCrop(scale), RandomCrop(scale) or None, got {self.crop!r}")
        if not isinstance(self.color, ColorJitter | None):
            raise ValueError(f"Image: color must be ColorJitter(...) or None, got {self.color!r}")
        if not 0 <= number("flip", self.flip, "Image") <= 1:
            raise ValueError(f"Image: flip must be a probability from 0 to 1, got {self.flip!r}")
        for name, choices in (("layout", LAYOUTS), ("filter", FILTERS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"Image: {name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        dtype = dtype_name(self.dtype)
        if dtype not in DTYPES:
            raise ValueError(f"Image: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        object.__setattr__(self, "dtype", dtype)
        if self.normalize is not None and dtype == "uint8":
            raise ValueError("Image: normalize must have a floating dtype, got dtype 'uint8'")

    @property
    def is_random(self) -> bool:
        """Whether batches of different epochs differ: there is a random crop, flip or color."""
        return isinstance(self.crop, RandomCrop) or self.flip > 0 or self.color is not None

    def cropped(self, size: Box) -> Box:
        """Height and width after the crop."""
        return size if self.crop is None else self.crop.box(size)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a picture in a batch, from that of the stream, ``(height, width, channels)``."""
        height, width = self.size or self.cropped((shape[0], shape[1]))
        channels = channels_of(shape)
        return (channels, height, width) if self.layout == "CHW" else (height, width, channels)


def channels_of(shape: tuple[int, ...]) -> int:
    """Of a batch, where a picture of the stream has that shape: alpha is ignored."""
    return min(shape[2], 3) if len(shape) == 3 else 1


def _check_scale(op: str, scale: Any) -> None:
    if not 0 < number("scale", scale, op) <= 1:
        raise ValueError(f"{op}: scale must be above 0 and at most 1, got {scale!r}")


def _box(size: Box, scale: float) -> Box:
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
