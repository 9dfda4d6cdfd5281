"""The streams of an episode at one rate: when its frames are, and each stream read at them by ``align``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ..cache.episode import FRAMES, EpisodeStream, StreamSpec
from ..cache.statistics import bfloat16_to_float32
from ..ops.align import align
from ..ops.types import Method, Stream
from ..sources.reading.times import MIN_RATE_HZ, SECOND_NS, times_at_rate
from ..text import did_you_mean

SPANS = ("overlap", "all")
MAX_FRAMES = 1 << 24
"""Of an episode: two days at 100 Hz. More is a clock that jumped."""
MAX_SPAN_NS = 1 << 62
"""Of an episode: the times of its frames, and of one more, are int64."""


def method_of(spec: StreamSpec, given: Method = None, op: str = "export") -> Method:
    """How ``align`` reads the stream: as given, else by the method of the stream."""
    if given is not None and spec.kind in ("image", "depth") and given not in FRAMES:
        raise ValueError(
            f"{op}: method of {spec.name!r} must be one of {', '.join(FRAMES)}, because images are never interpolated, "
            f"got {given!r}"
        )
    if given is not None and spec.kind == "vector":
        check_method(spec, given, op)
    return spec.align_method if given is None else given


def check_method(spec: StreamSpec, given: Method, op: str) -> None:
    """Before the first episode is read, and with the name of the stream: what ``align`` says of the method."""
    row = np.zeros((1, *spec.shape), "float32" if spec.dtype == "bfloat16" else spec.dtype)
    at = np.zeros(1, np.int64)
    try:
        align(Stream(row, at, method=given, period=spec.align_period), at[None])
    except (ValueError, TypeError, NotImplementedError) as error:
        _, found, rule = str(error).partition("streams[0].method must ")
        what = f"{op}: method of {spec.name!r}"
        raise ValueError(f"{what} must {rule}" if found else f"{what}: {error}") from error


def check_methods(methods: Mapping[str, Method] | None, specs: Mapping[str, StreamSpec], op: str) -> dict[str, Method]:
    """A method for each stream of ``specs``."""
    for name in methods or {}:
        if name not in specs:
            near = did_you_mean(str(name), specs)
            raise ValueError(f"{op}: methods must name streams among {', '.join(specs)}, got {name!r}{near}")
    return {name: method_of(spec, (methods or {}).get(name), op) for name, spec in specs.items()}


def frame_times(streams: Iterable[EpisodeStream], rate_hz: float, span: str, where: str) -> NDArray[np.int64]:
    """The first frame is where the span begins, the others at whole multiples of 1 / rate after it, to the nanosecond.

    The span: where all streams have rows (``overlap``), or from the first row of any to the last of any (``all``).
    """
    found = [(int(s.times[0]), int(s.times[-1])) for s in streams]
    begins, ends = [begin for begin, _ in found], [end for _, end in found]
    begin, end = (max(begins), min(ends)) if span == "overlap" else (min(begins), max(ends))
    if end < begin:
        return np.empty(0, np.int64)
    if rate_hz < MIN_RATE_HZ:
        raise ValueError(f"{where}: fps must be at least {MIN_RATE_HZ:g}, got {rate_hz!r}")
    count = int(Fraction(end - begin) * Fraction(rate_hz).limit_denominator(10**6) / SECOND_NS) + 2
    if count > MAX_FRAMES or end - begin > MAX_SPAN_NS:
        raise FormatError(
            f"{where} lasts {(end - begin) / SECOND_NS:.0f} s, {count} frames at {rate_hz:g} Hz: too many"
        )
    times = times_at_rate(count, rate_hz)
    return begin + times[times <= end - begin]


def plain_values(stream: EpisodeStream) -> NDArray[Any]:
    """The values as NumPy can compute with them: bfloat16 as the float32 it is."""
    return bfloat16_to_float32(stream.values) if stream.spec.dtype == "bfloat16" else stream.values


def values_at(
    stream: EpisodeStream, times: NDArray[np.int64], method: Method, max_gap_ns: int | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The stream at these times, and where that is not held and not across a longer gap."""
    period = stream.spec.align_period
    rows = Stream(plain_values(stream), stream.times, method=method, max_gap=max_gap_ns, period=period)
    aligned = align(rows, times[None])
    return np.asarray(aligned.values[0]), np.asarray(aligned.valid[0])


def rows_at(
    stream: EpisodeStream, times: NDArray[np.int64], method: Method, max_gap_ns: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Which rows of the stream these are, for pictures: by ``align`` of the numbers of the rows."""
    numbers = np.arange(len(stream), dtype=np.int64)
    aligned = align(Stream(numbers, stream.times, method=method, max_gap=max_gap_ns), times[None])
    return np.asarray(aligned.values[0]), np.asarray(aligned.valid[0])
