"""``Feature``: one key of a batch, described by the streams it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ops.arrays import dtype_name
from ...ops.types import Method, Outside
from ...text import did_you_mean
from ..image import Image
from ..numbers import listed, number, rate, whole
from ..voxels import Voxels
from ..window import MOST_MOMENTS, Window, short_repr

ROTATIONS = {
    "quaternion_xyzw": 4,
    "quaternion_wxyz": 4,
    "6d": 6,
    "6d_columns": 6,
    "matrix": 9,
    "rotvec": 3,
    "euler": 3,
}
"""Forms of a rotation, and how many numbers each has."""
WAYS = ("mean_std", "min_max", "quantile", "unit", "imagenet")
"""Names of normalizations; ``(mean, std)`` is one too."""
COMPUTED = ("mean_std", "min_max", "quantile")
"""Those that need statistics."""
DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, repr=False)
class Feature:
    """One key of a batch: its streams, the moments at which they are read, and the transforms applied to them.

    ``streams``: a name, or several that are joined along the last axis. Moments: ``past`` and ``future`` seconds at
    ``rate_hz``; or ``steps`` (whole numbers, in units of 1 / ``rate_hz``); or ``deltas`` in seconds. Without any of
    them the feature is read at the anchor and is ``(B, ...)`` instead of ``(B, T, ...)``. ``method``, ``latency``,
    ``max_gap``, ``outside``, ``outside_valid``, ``tolerance``, ``image`` and ``voxels`` are those of ``Window``.

    ``relative_to``: ``"anchor"``, the value of the same streams at the anchor; or another feature or stream, at the
    anchor. Numbers are subtracted; angles too, along the shorter arc; poses (a position and the quaternion after it)
    are ``inverse(T_anchor) @ T``. ``rotation``: the form of quaternions in the batch, ``"quaternion_xyzw"``,
    ``"quaternion_wxyz"``, ``"6d"`` (the first two rows of the matrix), ``"6d_columns"``, ``"matrix"``, ``"rotvec"`` or
    ``"euler"`` (roll, pitch, yaw). ``StreamSpec.method`` marks the channels that are quaternions or angles; ``method``
    of the feature marks channels of the joined row.

    ``normalize``: ``"mean_std"``, ``"min_max"``, ``"quantile"``, with the statistics of this feature, of pictures with
    those of the cache; ``"unit"`` and ``"imagenet"`` for images; or ``(mean, std)``. ``dtype``: a floating one.
    ``tokenizer``: of a text, ``f(list of str)`` to ids. ``transform``: a function of the finished entry of the batch,
    to an entry or a dict or tuple of entries: samples are in the first dimension.

    >>> import robocache
    >>> action = robocache.Feature("tcp/pose", steps=range(16), rate_hz=20, relative_to="anchor", rotation="6d")
    >>> action.window.deltas_ns[:3]
    (0, 50000000, 100000000)
    >>> robocache.Feature(["left", "right"], past=0.1, rate_hz=20)
    Feature(streams=('left', 'right'), past=0.1, rate_hz=20)
    """

    streams: str | Sequence[str]
    past: float = field(default=0.0, kw_only=True)
    future: float = field(default=0.0, kw_only=True)
    rate_hz: float | None = field(default=None, kw_only=True)
    steps: Sequence[int] | None = field(default=None, kw_only=True)
    deltas: Sequence[float] | None = field(default=None, kw_only=True)
    method: Method = field(default=None, kw_only=True)
    latency: float = field(default=0.0, kw_only=True)
    max_gap: float | None = field(default=None, kw_only=True)
    outside: Outside = field(default="hold", kw_only=True)
    outside_valid: bool = field(default=False, kw_only=True)
    tolerance: float | None = field(default=None, kw_only=True)
    image: Image | None = field(default=None, kw_only=True)
    voxels: Voxels | None = field(default=None, kw_only=True)
    relative_to: str | None = field(default=None, kw_only=True)
    rotation: str | None = field(default=None, kw_only=True)
    normalize: Any = field(default=None, kw_only=True)
    dtype: Any = field(default=None, kw_only=True)
    tokenizer: Callable[..., Any] | None = field(default=None, kw_only=True)
    transform: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        streams = (self.streams,) if isinstance(self.streams, str) else self.streams
        if not isinstance(streams, Sequence) or not streams or not all(isinstance(s, str) for s in streams):
            raise ValueError(f"Feature: streams must be a name or a list of names, got {self.streams!r}")
        self._set("streams", streams[0] if isinstance(self.streams, str) else tuple(streams))
        for name in ("past", "future"):
            number(name, getattr(self, name), "Feature")
        if isinstance(self.method, list):
            self._set("method", tuple(tuple(part) if isinstance(part, list) else part for part in self.method))
        if self.steps is not None:
            self._set("steps", self._checked_steps())
        try:
            window = self.window
            window.deltas_ns  # noqa: B018
        except ValueError as error:
            raise ValueError(str(error).replace("Window:", "Feature:", 1)) from None
        if self.deltas is not None:
            self._set("deltas", tuple(window.deltas) if isinstance(window.deltas, Sequence) else window.deltas)
        if self.rotation is not None and (not isinstance(self.rotation, str) or self.rotation not in ROTATIONS):
            near = did_you_mean(str(self.rotation), ROTATIONS)
            raise ValueError(f"Feature: rotation must be one of {', '.join(ROTATIONS)}, got {self.rotation!r}{near}")
        if self.relative_to is not None and (not isinstance(self.relative_to, str) or not self.relative_to):
            raise ValueError(
                f"Feature: relative_to must be 'anchor' or the name of a feature or stream, got {self.relative_to!r}"
            )
        self._set("normalize", self._checked_normalize())
        if self.dtype is not None:
            dtype = dtype_name(self.dtype)
            if dtype not in DTYPES:
                raise ValueError(f"Feature: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
            self._set("dtype", dtype)
        for name in ("tokenizer", "transform"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ValueError(f"Feature: {name} must be a function, got {given!r}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _checked_steps(self) -> tuple[int, ...]:
        assert self.steps is not None
        if self.deltas is not None or self.past or self.future:
            raise ValueError("Feature: steps take the place of past, future and deltas, got both")
        if self.rate_hz is None:
            raise ValueError(f"Feature: rate_hz must be given with steps={self.steps!r}, got None")
        steps = listed("steps", self.steps, "whole numbers", "Feature")
        if not 1 <= len(steps) <= MOST_MOMENTS:
            raise ValueError(f"Feature: steps must be 1 to {MOST_MOMENTS} whole numbers, got {len(steps)}")
        return tuple(whole("steps", step, -(2**31), 2**31, "Feature") for step in steps)

    def _checked_normalize(self) -> Any:
        given = self.normalize
        if given is None:
            return None
        if isinstance(given, str):
            if given not in WAYS:
                near = did_you_mean(given, WAYS)
                raise ValueError(
                    f"Feature: normalize must be one of {', '.join(WAYS)}, (mean, std) or None, got {given!r}{near}"
                )
            return given
        if not isinstance(given, Sequence) or len(given) != 2:
            raise ValueError(f"Feature: normalize must be a name or (mean, std), got {given!r}")
        mean, std = (tuple(numbers_of(name, x)) for name, x in zip(("mean", "std"), given, strict=True))
        if any(not math.isfinite(x) for x in mean):
            raise ValueError(f"Feature: mean of normalize must be finite, got {given[0]!r}")
        if any(not 0 < x < float("inf") for x in std):
            raise ValueError(f"Feature: std of normalize must be above 0 and finite, got {given[1]!r}")
        return mean, std

    @property
    def names(self) -> tuple[str, ...]:
        """The streams."""
        return (self.streams,) if isinstance(self.streams, str) else tuple(self.streams)

    @property
    def timed(self) -> bool:
        """Whether the batch has a dimension of time."""
        return self.steps is not None or self.deltas is not None or self.rate_hz is not None

    @property
    def window(self) -> Window:
        """How its streams are read."""
        past, future, rate_hz, deltas = self.past, self.future, self.rate_hz, self.deltas
        if self.steps is not None:
            hz = rate("rate_hz", rate_hz, "Feature")
            past, future, rate_hz, deltas = 0.0, 0.0, None, tuple(step / hz for step in self.steps)
        elif deltas is not None and rate_hz is not None and not (past or future):
            rate_hz = None  # tells that streams of other rates are meant
        return Window(
            past, future, rate_hz, deltas, self.method, self.latency, self.max_gap, self.outside, self.outside_valid,
            self.voxels, self.tolerance, self.image,
        )  # fmt: skip


def numbers_of(name: str, given: Any) -> list[float]:
    """One number, or a list of them."""
    if isinstance(given, Sequence) or hasattr(given, "tolist"):
        listed = given.tolist() if hasattr(given, "tolist") else [*given]
        return [number(name, x, "Feature") for x in (listed if isinstance(listed, list) else [listed])]
    return [number(name, given, "Feature")]
