"""``delta_timestamps``: seconds around a frame to numbers of frames, with LeRobot's tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..loader.numbers import number


def delta_indices(
    delta_timestamps: Mapping[str, Sequence[float]], fps: float, tolerance_s: float
) -> dict[str, list[int]]:
    """``{key: [frames]}``. ValueError if a delta is further than ``tolerance_s`` from a multiple of ``1 / fps``.

    >>> delta_indices({"action": [-0.1, 0, 0.1]}, 10, 1e-4)
    {'action': [-1, 0, 1]}
    """
    if not isinstance(delta_timestamps, Mapping):
        raise TypeError(
            f"LeRobotDataset: delta_timestamps must be a dict, {{feature: [seconds]}}, got {delta_timestamps!r}"
        )
    given = {key: seconds_of(key, seconds) for key, seconds in delta_timestamps.items()}
    apart = {}
    for key, seconds in given.items():
        wrong = [s for s in seconds if not abs(s * fps - round(s * fps)) / fps <= tolerance_s]
        if wrong:
            apart[key] = wrong
    if apart:
        listed = "; ".join(f"{key}: {', '.join(map(str, wrong))}" for key, wrong in apart.items())
        raise ValueError(
            f"LeRobotDataset: delta_timestamps must be multiples of 1/{fps} s within tolerance_s={tolerance_s}, got "
            f"{listed}"
        )
    return {key: [round(s * fps) for s in seconds] for key, seconds in given.items()}


def seconds_of(key: str, given: Any) -> list[float]:
    what = f"delta_timestamps[{key!r}]"
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise TypeError(f"LeRobotDataset: {what} must be a list of seconds, got {given!r}")
    made = [number(what, seconds, "LeRobotDataset") for seconds in given]
    if wrong := [seconds for seconds in made if not math.isfinite(seconds)]:
        raise ValueError(f"LeRobotDataset: {what} must be finite, got {wrong[0]}")
    return made
