"""Depth maps of LeRobot 0.6: TIFF pictures as recorded, and videos of 12-bit codes. Their conventions, in one place.

A feature is one where ``info["is_depth_map"]`` is set, or the older ``video.is_depth_map``. Codes go from ``depth_min``
to ``depth_max`` in meters, evenly in the logarithm of the depth plus ``shift`` (``use_log``), or evenly.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ..reading.budget import Budget
from ..reading.paths import need

LAST_CODE = 4095
CODES = "gray12le"
"""The pixel format of the videos."""
MM_PER_M = 1000.0
MODES = {"I;16": "uint16", "I;16B": "uint16", "F": "float32"}
UNITS = ("mm", "m")


def is_depth_map(feature: dict[str, Any]) -> bool:
    info, older = feature.get("info"), feature.get("video_info")
    flags = [info.get("is_depth_map"), info.get("video.is_depth_map")] if isinstance(info, dict) else []
    flags += [older.get("video.is_depth_map")] if isinstance(older, dict) else []
    return any(flag is True for flag in flags)


def unit_of(feature: dict[str, Any]) -> str | None:
    """The unit in which the depth was recorded; None if it is not stated."""
    info = feature.get("info")
    unit = info.get("depth_unit") if isinstance(info, dict) else None
    return unit if unit in UNITS else None


@dataclass(frozen=True)
class Quantizer:
    """What the codes of a depth video mean; the defaults are LeRobot's."""

    depth_min: float = 0.01
    depth_max: float = 10.0
    shift: float = 3.5
    use_log: bool = True

    def table(self, unit: str) -> NDArray[Any]:
        """The depth of each code: uint16 millimeters or float32 meters, by the arithmetic of LeRobot."""
        low, high = self.depth_min, self.depth_max
        depth = np.arange(LAST_CODE + 1, dtype=np.float32)
        if self.use_log:
            low, high = math.log(low + self.shift), math.log(high + self.shift)
        depth = depth * np.float32((high - low) / LAST_CODE) + np.float32(low)
        if self.use_log:  # torch's float32 exp rounds almost always as the exact value does, NumPy's does not
            depth = np.exp(depth.astype(np.float64)).astype(np.float32) - np.float32(self.shift)
        depth = np.asarray(np.clip(depth, np.float32(self.depth_min), np.float32(self.depth_max)))
        if unit == "m":
            return depth
        return np.asarray(np.clip(np.rint(depth * np.float32(MM_PER_M)), 0, 65535).astype(np.uint16))

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def quantizer_of(feature: dict[str, Any], where: str) -> Quantizer:
    info = feature.get("info")
    info = info if isinstance(info, dict) else {}
    names = ("depth_min", "depth_max", "shift")
    given = {name: info[f"video.{name}"] for name in names if info.get(f"video.{name}") is not None}
    numbers = {**Quantizer().to_json(), **given}
    use_log = info.get("video.use_log", True)
    for name in names:
        if isinstance(numbers[name], bool) or not isinstance(numbers[name], int | float):
            raise FormatError(f"{where}: video.{name} must be a number, got {str(numbers[name])[:80]}")
        if not abs(numbers[name]) < 1e6:
            raise FormatError(f"{where}: video.{name} must be in meters, got {numbers[name]}")
    low, high, shift = (float(numbers[name]) for name in names)
    found = Quantizer(low, high, shift, use_log is not False)
    if not found.depth_min < found.depth_max or (found.use_log and not found.depth_min + found.shift > 0):
        raise FormatError(f"{where}: video.depth_min, depth_max and shift must be a range of depth, got {found}")
    return found


def is_tiff(data: bytes) -> bool:
    return data[:4] in (b"II*\0", b"MM\0*")


def tiff_size(data: bytes, where: str, budget: Budget) -> tuple[tuple[int, int], str | None]:
    """(height, width) and dtype of a picture from its header; None for a kind that LeRobot does not write."""
    with _opened(data, where) as image:
        budget.check(where, image.height * image.width * 4, len(data))
        return (image.height, image.width), _dtype(image)


def decode_tiff(data: bytes, shape: tuple[int, ...], dtype: str, where: str, budget: Budget) -> NDArray[Any]:
    with _opened(data, where) as image:
        if (image.height, image.width) != tuple(shape) or _dtype(image) != dtype:
            raise FormatError(
                f"{where}: the image is {_dtype(image) or image.mode} {image.height} x {image.width}, but the "
                f"stream has {dtype} {shape[0]} x {shape[1]}"
            )
        budget.check(where, image.height * image.width * 4, len(data))
        try:
            return np.asarray(image).astype(dtype)
        except (OSError, ValueError, SyntaxError) as error:
            raise FormatError(f"{where}: the image cannot be decoded: {error}") from error


def _dtype(image: Any) -> str | None:
    """Of uncompressed pictures only: all others would need libtiff, which LeRobot does not use."""
    return MODES.get(image.mode) if all(tile[0] == "raw" for tile in image.tile) else None


def _opened(data: bytes, where: str) -> Any:
    pillow = need("PIL.Image", "lerobot")
    try:
        return pillow.open(io.BytesIO(data), formats=("TIFF",))
    except Exception as error:  # Pillow's parser of TIFF raises many kinds
        raise FormatError(f"{where}: not a TIFF image: {error}") from error
