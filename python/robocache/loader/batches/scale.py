"""Normalization: the numbers that bring each channel of a stream to one range, from the statistics of its cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...cache.cache import Cache
from ...cache.episode import StreamSpec
from ...cache.statistics import num_channels
from ...convert.ingest import FLOATS
from ...text import did_you_mean

RANGES = {"min_max": ("min", "max"), "quantile": ("q01", "q99")}
WAYS = ("mean_std", *RANGES, "unit")
UNIT_DTYPES = ("uint8", "uint16")

Float64 = NDArray[np.float64]


def check_ways(
    normalize: Mapping[str, str | None] | str | None, keys: list[str], specs: Mapping[str, StreamSpec]
) -> dict[str, str]:
    """``{key: way}`` without those that stay as they are. A way alone is for all keys that it is meant for."""
    if normalize is None:
        return {}
    if isinstance(normalize, str):
        return ways_of_all(normalize, keys, specs)
    if not isinstance(normalize, Mapping):
        raise ValueError(f"Loader: normalize must be a dict of streams or one of {', '.join(WAYS)}, got {normalize!r}")
    for key, way in normalize.items():
        if key not in keys:
            raise ValueError(
                f"Loader: normalize names {key!r}, which is not a key of the batch: {', '.join(keys)}"
                f"{did_you_mean(str(key), keys)}"
            )
        if way is not None and way not in WAYS:
            raise ValueError(f"Loader: normalize[{key!r}] must be None or one of {', '.join(WAYS)}, got {way!r}")
    return {key: way for key, way in normalize.items() if way is not None}


def ways_of_all(way: str, keys: list[str], specs: Mapping[str, StreamSpec]) -> dict[str, str]:
    """``unit`` is meant for unsigned integers of 8 and 16 bits, the others for vectors of floats."""
    if way not in WAYS:
        raise ValueError(f"Loader: normalize must be one of {', '.join(WAYS)}, got {way!r}{did_you_mean(way, WAYS)}")
    if way == "unit":
        what = "uint8 or uint16"
        found = [key for key in keys if specs[key].dtype in UNIT_DTYPES and specs[key].kind != "points"]
    else:
        what = "vectors of floats"
        found = [key for key in keys if specs[key].dtype in FLOATS and specs[key].kind == "vector"]
    if not found:
        raise ValueError(f"Loader: normalize={way!r} must be for a stream of {what}, got none among {', '.join(keys)}")
    return dict.fromkeys(found, way)


def scale_of(cache: Cache, name: str, way: str) -> tuple[Float64, Float64]:
    """(offset, scale) of each channel: the loader computes ``(x - offset) * scale``.

    A channel that never changes is only shifted: it becomes 0, not the noise of a division by almost nothing.
    """
    spec = cache.specs[name]
    channels = max(1, num_channels(spec))
    if way == "unit":
        if spec.dtype not in UNIT_DTYPES:
            raise ValueError(f"Loader: normalize[{name!r}] 'unit' is for uint8 and uint16, got {spec.dtype}")
        return np.zeros(channels), np.full(channels, 1 / (255 if spec.dtype == "uint8" else 65535))
    return scale_from(way, lambda which: column(cache, name, which))


def scale_from(way: str, statistic: Callable[[str], Float64]) -> tuple[Float64, Float64]:
    """The same from statistics by their names."""
    if way == "mean_std":
        offset, width = (statistic(which) for which in ("mean", "std"))
        low, high = (statistic(which) for which in RANGES["min_max"])
        # The mean of equal numbers may be off by a rounding, and so their deviation.
        offset, width = np.where(low == high, low, offset), np.where(low == high, 0.0, width)
    else:
        low, high = (statistic(which) for which in RANGES[way])
        offset, width = low + (high - low) / 2, (high - low) / 2
    with np.errstate(divide="ignore"):
        return offset, np.where(width > 0, 1.0 / width, 1.0)


def column(cache: Cache, name: str, which: str) -> Float64:
    told = cache.statistics[name].get(which)
    if not isinstance(told, list) or len(told) != max(1, num_channels(cache.specs[name])):
        raise ValueError(f"Loader: {cache.path} has no {which} of stream {name!r} to normalize with")
    missing = [i for i, x in enumerate(told) if not isinstance(x, int | float)]
    if missing:
        raise ValueError(f"Loader: {cache.path} has no {which} of channel {missing[0]} of stream {name!r}")
    return np.array(told, np.float64)
