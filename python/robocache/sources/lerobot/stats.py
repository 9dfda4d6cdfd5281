"""Statistics in LeRobot's format, of the dataset and of each episode, computed in one pass over the frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ...cache.episode import JSON, StreamSpec
from ...cache.statistics import Statistics

RANKS = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
MOMENTS = ("min", "max", "mean", "std")


class Counted:
    """Pictures have values from 0 to 1 and shape (channels, 1, 1); ``count`` is in frames; not finite is left out."""

    def __init__(self, specs: Mapping[str, StreamSpec]) -> None:
        self.specs = dict(specs)
        self.dataset = self.fresh()
        self.episode = self.fresh()

    def fresh(self) -> dict[str, Statistics]:
        return {name: Statistics(spec, RANKS) for name, spec in self.specs.items()}

    def add(self, name: str, rows: NDArray[Any]) -> None:
        self.episode[name].add(rows)
        if self.dataset[name].histogram is None:
            self.dataset[name].add(rows)

    def end_episode(self, num_frames: int) -> dict[str, dict[str, JSON]]:
        """Those of the episode that has passed; the next one begins."""
        for name, found in self.episode.items():
            histogram = self.dataset[name].histogram
            if histogram is not None and found.histogram is not None:
                histogram += found.histogram  # 8-bit values are counted once for both
        result = {name: plain_stats(found, num_frames) for name, found in self.episode.items()}
        self.episode = self.fresh()
        return result

    def of_dataset(self, num_frames: int) -> dict[str, dict[str, JSON]]:
        return {name: plain_stats(found, num_frames) for name, found in self.dataset.items()}

    def columns(self, arrow: Any) -> list[tuple[str, Any]]:
        """Columns of meta/episodes: name and type."""
        result = []
        for name, spec in self.specs.items():
            kind = arrow.float64()
            for _ in stat_shape(spec, 1):
                kind = arrow.list_(kind)
            types = {**dict.fromkeys(MOMENTS, kind), "count": arrow.list_(arrow.int64()), **dict.fromkeys(RANKS, kind)}
            result += [(f"stats/{name}/{key}", of) for key, of in types.items()]
        return result


def plain_stats(found: Statistics, num_frames: int) -> dict[str, JSON]:
    numbers = found.result()
    scale = 255.0 if found.spec.kind == "image" else 1.0
    shape = stat_shape(found.spec, found.channels)

    def scaled(key: str) -> JSON:
        return nested([None if x is None else x / scale for x in numbers[key]], shape)

    return {
        **{key: scaled(key) for key in MOMENTS},
        "count": [num_frames],
        **{key: scaled(key) for key in RANKS},
    }


def stat_shape(spec: StreamSpec, channels: int) -> tuple[int, ...]:
    if spec.kind != "vector":
        return (channels, 1, 1)
    return spec.shape if math.prod(spec.shape) == channels else (1,) * len(spec.shape)


def nested(numbers: list[JSON], shape: tuple[int, ...]) -> list[JSON]:
    """The numbers, row by row, in lists of that shape."""
    if len(shape) < 2:
        return numbers
    step = len(numbers) // shape[0]
    return [nested(numbers[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def flat(stats: Mapping[str, Mapping[str, JSON]]) -> dict[str, JSON]:
    return {f"stats/{name}/{key}": value for name, numbers in stats.items() for key, value in numbers.items()}
