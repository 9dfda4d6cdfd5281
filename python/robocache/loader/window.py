"""Windows: which moments around an anchor a stream is read at, and how."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..cache.episode import StreamSpec
from ..ops.methods import uses_windows
from ..ops.types import Method, Outside
from ..text import did_you_mean
from .image import Image
from .numbers import flag, listed, number, rate
from .voxels import Voxels

MOST_SECONDS = 4e9  # in nanoseconds that is below 2^62
MOST_MOMENTS = 2**20
TOLERANCE_NS = 1000
"""Unless a window has another one. float64 counts seconds since 1970 in steps of 238 ns."""


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def short_repr(settings: Any) -> str:
    """Of a dataclass: the fields that differ from their defaults."""
    shown = []
    for field in fields(settings):
        value, default = getattr(settings, field.name), field.default
        if value is not default and (default is None or value != default):  # an array has no single truth value
            shown.append(f"{field.name}={value!r}")
    return f"{type(settings).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Window:
    """Moments around an anchor, in seconds: ``past`` before it, the anchor itself, ``future`` after it, at ``rate_hz``.

    Or ``deltas``, any list of seconds. ``method=None`` uses the method of the stream (``StreamSpec.method``).
    ``method``, ``outside`` and ``outside_valid`` are those of ``Stream``; ``latency`` and ``max_gap`` too, but always
    in seconds. ``voxels``: the grid for point clouds. ``image``: the edits of pictures, encoded or stored as pixels;
    None: pixels unchanged. In a batch the stream is ``(B, T, ...)``: B samples of T moments.

    ``tolerance``: a moment at most this many seconds from a row is at that row. None is one microsecond, or a quarter
    of the time between two rows if that is less; this covers rates that are rounded to nanoseconds, and Unix times that
    are rounded to float64.

    >>> import robocache
    >>> robocache.Window(past=0.04, future=0.02, rate_hz=50).deltas_ns
    (-40000000, -20000000, 0, 20000000)
    >>> robocache.Window(deltas=[-0.1, 0]).deltas_ns
    (-100000000, 0)
    >>> robocache.Window(future=0.5, rate_hz=20)
    Window(future=0.5, rate_hz=20)
    """

    past: float = 0.0
    future: float = 0.0
    rate_hz: float | None = None
    deltas: Sequence[float] | None = None
    method: Method = None
    latency: float = 0.0
    max_gap: float | None = None
    outside: Outside = "hold"
    outside_valid: bool = False
    voxels: Voxels | None = None
    tolerance: float | None = None
    image: Image | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _require_seconds("past", self.past, 0, "be 0 or more seconds")
        _require_seconds("future", self.future, 0, "be 0 or more seconds")
        if self.deltas is not None:
            if self.past or self.future or self.rate_hz is not None:
                raise ValueError("Window: deltas take the place of past, future and rate_hz, got both")
            deltas = listed("deltas", self.deltas, "seconds", "Window")
            if not deltas:
                raise ValueError("Window: deltas must not be empty, got []")
            for delta in deltas:
                _require_seconds("deltas", delta, -math.inf, "be finite")
            if uses_windows(self.method) and deltas != sorted(deltas):
                raise ValueError(f"Window: deltas must not decrease with method {self.method!r}, got {deltas}")
            if not isinstance(self.deltas, Sequence | np.ndarray):  # what can be read once, or has no Python numbers
                object.__setattr__(self, "deltas", tuple(number("deltas", delta, "Window") for delta in deltas))
        if self.rate_hz is not None:
            rate("rate_hz", self.rate_hz, "Window")
            moments = (self.past + self.future) * self.rate_hz
            if moments > MOST_MOMENTS:
                raise ValueError(
                    f"Window: past and future must hold at most {MOST_MOMENTS} moments at rate_hz={self.rate_hz}, got "
                    f"past={self.past} and future={self.future} seconds"
                )
        elif self.past or self.future:
            raise ValueError(f"Window: rate_hz must be given with past={self.past} and future={self.future}, got None")
        _require_seconds("latency", self.latency, -math.inf, "be finite")
        if self.max_gap is not None:
            _require_seconds("max_gap", self.max_gap, 0, "be 0 or more seconds")
        object.__setattr__(self, "outside_valid", flag("outside_valid", self.outside_valid, "Window"))
        if not isinstance(self.image, Image | None):
            raise ValueError(f"Window: image must be robocache.Image(...) or None, got {self.image!r}")
        if self.tolerance is not None:
            _require_seconds("tolerance", self.tolerance, 0, "be 0 or more seconds")

    @property
    def deltas_ns(self) -> tuple[int, ...]:
        """Nanoseconds from the anchor to each moment."""
        if self.deltas is not None:
            return tuple(nanoseconds(delta) for delta in self.deltas)
        rate = self.rate_hz or 1.0
        # 0.3 * 10 is 2.9999999999999996: a step that is missing by less than a millionth is there.
        before, after = (math.floor(seconds * rate + 1e-6) for seconds in (self.past, self.future))
        return tuple(round(k * 1e9 / rate) for k in range(-before, after + 1))

    @property
    def span_ns(self) -> int:
        """From the first moment to the last."""
        deltas = self.deltas_ns
        return max(deltas) - min(deltas)


def _require_seconds(name: str, value: Any, least: float, rule: str) -> None:
    seconds = number(name, value, "Window")
    _require(name, value, least <= seconds < math.inf and seconds > -math.inf, rule)
    _require(name, value, abs(seconds) <= MOST_SECONDS, f"be at most {MOST_SECONDS:g} seconds")


def _require(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"Window: {name} must {rule}, got {value}")


@dataclass(frozen=True)
class Key:
    """One column of the reader: a stream, its window, and whether the dimension of time stays in a batch."""

    name: str
    """Of the column; that of a batch where it is one of its keys."""
    window: Window
    timed: bool = True
    near_ns: tuple[int, ...] | None = None
    """For each source, in the place of ``window.max_gap``."""
    period: float = 2 * math.pi
    """Of angles."""
    tolerance_ns: int = 0
    stream: str = ""
    """That is read; by default the one of the same name."""
    option: str = ""
    """Where its window was given, for errors."""

    def __post_init__(self) -> None:
        if not self.stream:
            object.__setattr__(self, "stream", self.name)


def usual_tolerance_ns(interval_ns: float) -> int:
    """For a stream whose rows are so far apart: rows that are no further apart than rounding stay apart."""
    return int(min(TOLERANCE_NS, max(interval_ns, 0) / 4))


def read_as_the_stream_says(
    name: str, window: Window, spec: StreamSpec, tolerance_ns: int, option: str, timed: bool = True
) -> Key:
    """``spec`` and ``tolerance_ns`` are for a window that says nothing itself."""
    if window.method is None and spec.align_method is not None:
        window = dataclasses.replace(window, method=spec.align_method)
    if window.tolerance is not None:
        tolerance_ns = nanoseconds(window.tolerance)
    period = spec.align_period
    return Key(name, window, timed, period=period, tolerance_ns=tolerance_ns, stream=spec.name, option=option)


def require_image(spec: StreamSpec) -> None:
    """Raises unless a window may have an ``image``."""
    shape = spec.shape
    fits = len(shape) in (2, 3) and (len(shape) == 2 or shape[2] in (1, 3, 4)) and min(shape) > 0
    if spec.kind == "image" and spec.dtype == "uint8" and fits:
        return
    hint = ""
    if fits and spec.kind in ("image", "vector"):
        is_float = spec.dtype in ("float16", "bfloat16", "float32", "float64")
        hint = f"; ingest with dtype={{{spec.name!r}: 'uint8'}}" if is_float else "; store it as uint8 of kind 'image'"
    raise ValueError(
        f"Loader: the window of {spec.name!r} has an image, which is for uint8 images (height, width, 1, 3 or 4 "
        f"channels), got {spec.dtype} {spec.kind} {shape}{hint}"
    )


def keys_of(
    specs: Mapping[str, StreamSpec],
    windows: Mapping[str, Window] | None,
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    intervals_ns: Callable[[str], list[float]],
    tolerance_ns: Callable[[str], int],
) -> list[Key]:
    """The keys of a batch. ``intervals_ns(name)``: the usual time between two rows of a stream, for each source.
    ``tolerance_ns(name)``: of windows that do not say."""
    if (windows is None) == (delta_timestamps is None):
        given = "neither" if windows is None else "both"
        raise ValueError(f"Loader: features, windows or delta_timestamps must be given, got {given}")
    asked: Mapping[str, Any] = windows if windows is not None else delta_timestamps or {}
    if not asked:
        raise ValueError("Loader: windows must name at least one stream, got none")
    for name in asked:
        if name not in specs:
            raise ValueError(
                f"Loader: the cache has no stream {name!r}, only {', '.join(specs)}{did_you_mean(str(name), specs)}"
            )
        voxels = getattr(asked[name], "voxels", None)
        if specs[name].kind == "points" and not isinstance(voxels, Voxels):
            raise ValueError(
                f"Loader: stream {name!r} is a point cloud: it needs Window(voxels=robocache.Voxels(...)), got {voxels}"
            )
        if specs[name].kind != "points" and voxels is not None:
            raise ValueError(f"Loader: voxels are for point clouds, and stream {name!r} is of kind {specs[name].kind}")
        if getattr(asked[name], "image", None) is not None:
            require_image(specs[name])
    if windows is not None:
        for name, window in windows.items():
            if not isinstance(window, Window):
                raise ValueError(f"Loader: windows[{name!r}] must be a Window, got {type(window).__name__}")
        return [
            read_as_the_stream_says(name, window, specs[name], tolerance_ns(name), f"windows[{name!r}]")
            for name, window in windows.items()
        ]
    # LeRobot's: the row next to each moment, where one is within half an interval; the other streams at the anchor.
    keys = []
    for name, spec in specs.items():
        if spec.kind == "points" and name not in asked:
            continue
        window = Window(deltas=asked.get(name, (0.0,)), method="nearest", outside_valid=True)
        near_ns = tuple(int(ns / 2) for ns in intervals_ns(name))
        option = f"delta_timestamps[{name!r}]"
        keys.append(Key(name, window, name in asked, near_ns, tolerance_ns=tolerance_ns(name), option=option))
    return keys
