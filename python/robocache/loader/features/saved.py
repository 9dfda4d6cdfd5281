"""The JSON of ``Loader.save_stats``: the statistics of features, and the way back to commands."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...text import did_you_mean
from ..numbers import number, whole
from .feature import ROTATIONS
from .inverse import Inverse
from .layout import Channels, Part

VERSION = 1


def read_saved(given: Any, what: str) -> Mapping[str, Any]:
    """What the file has of each feature. ``given``: its path, or the same as a dict."""
    if not isinstance(given, Mapping):
        try:
            given = json.loads(Path(given).read_text())
        except TypeError:
            raise ValueError(f"{what} must be a path or a dict, got {type(given).__name__}") from None
        except ValueError as error:
            raise ValueError(f"{what} must be a file of Loader.save_stats, got {given}: {error}") from None
    features = given.get("features") if isinstance(given, Mapping) else None
    if not isinstance(features, Mapping) or given.get("robocache_statistics") != VERSION:
        raise ValueError(f"{what} must be a file of Loader.save_stats of version {VERSION}, got {str(given)[:80]}")
    return features


def described_parts(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """What a row is made of, wherever its numbers come from."""
    names = ("math", "num_channels", "period", "stored", "form")
    return [{name: getattr(part, name) for name in names} for part in parts]


def saved_inverse(inverse: Inverse, scales: list[Any]) -> dict[str, Any]:
    """``scales``: ``(offset, scale)`` or None for each source."""
    return {
        "parts": described_parts(inverse.parts),
        "is_relative": inverse.is_relative,
        "row": inverse.row,
        "lows": inverse.lows,
        "scales": [None if pair is None else [x.tolist() for x in pair] for pair in scales],
    }


def load_inverse(path: str | os.PathLike[str] | Mapping[str, Any], name: str, source: int = 0) -> Inverse:
    """``Loader.inverse(name, source)`` of the loader that wrote a file of ``Loader.save_stats``: a robot has the file,
    and no cache.

    >>> import numpy as np, robocache, tempfile
    >>> arm = robocache.StreamSpec("arm", "float32", (2,))
    >>> writer = robocache.CacheWriter(tempfile.mkdtemp() + "/arm.cache", {"arm": arm})
    >>> rows = np.array([[0, 10], [1, 30], [2, 20]], np.float32)
    >>> writer.add(robocache.Episode(0, {"arm": robocache.EpisodeStream(arm, rows, np.arange(3) * 10**7)}))
    >>> features = {"action": robocache.Feature("arm", normalize="min_max")}
    >>> path = tempfile.mkdtemp() + "/stats.json"
    >>> robocache.Loader(writer.commit(), 3, features=features).save_stats(path)
    >>> robocache.load_inverse(path, "action")(np.array([0.5, -1.0])).tolist()
    [1.5, 10.0]
    """
    features = read_saved(path, "load_inverse: path")
    if name not in features:
        raise ValueError(
            f"load_inverse: name must be a feature of the file, {', '.join(features)}, got {name!r}"
            f"{did_you_mean(str(name), features)}"
        )
    try:
        told = features[name]["inverse"]
        parts = tuple(part_from(part, bool(told["is_relative"])) for part in told["parts"])
        scales = [None if pair is None else pair_from(*pair) for pair in told["scales"]]
        row, lows = (None if told[key] is None else tuple(told[key]) for key in ("row", "lows"))
        made = [Inverse(name, parts, scale, row, lows) for scale in scales]
        for one in made:
            require_widths(one)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"load_inverse: path must be a file of Loader.save_stats with the inverse of {name!r}, got "
            f"{type(error).__name__} {error}; save it again"
        ) from None
    if not 0 <= operator.index(source) < len(made):
        raise ValueError(f"load_inverse: source must be from 0 to {len(made) - 1}, got {source}")
    return made[source]


def require_widths(made: Inverse) -> None:
    """Everything must be of one feature: a file may have been edited."""
    for numbers in made.scale or ():
        if numbers.shape != (made.width,) or not np.isfinite(numbers).all():
            raise ValueError(f"a scale of shape {numbers.shape} for {made.width} numbers, or one that is not finite")
    if made.scale is not None and (made.scale[1] == 0).any():
        raise ValueError("a scale of 0")
    sizes = [whole("row", size, 0) for size in made.row or ()]
    if made.row is not None and (math.prod(sizes) != made.width or made.width != made.stored_width):
        raise ValueError(f"rows of shape {made.row} for {made.width} numbers")
    if made.lows is not None and len(made.lows) != made.stored_width:
        raise ValueError(f"{len(made.lows)} lows for {made.stored_width} numbers")
    for low in made.lows or ():
        if low is not None:
            number("lows", low, "inverse")


def pair_from(offset: Any, scale: Any) -> tuple[Any, Any]:
    return np.array(offset, np.float64), np.array(scale, np.float64)


def part_from(told: Mapping[str, Any], is_relative: bool) -> Part:
    """A part whose columns are not known: an inverse needs to know only which ones there are."""
    if told["math"] not in ("values", "angles", "rotation", "pose") or told["form"] not in ROTATIONS:
        raise ValueError(f"part {told}")
    told = {**told, "num_channels": whole("num_channels", told["num_channels"], 0, op="part"),
            "period": number("period", told["period"], "part")}  # fmt: skip
    there = Channels(0, 0)
    values = None if told["math"] == "rotation" else there
    turn = there if told["math"] in ("rotation", "pose") else None
    return Part(**told, values=values, turn=turn, from_values=values if is_relative else None,
                from_turn=turn if is_relative else None)  # fmt: skip
