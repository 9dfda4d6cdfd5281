"""The data model: episodes of streams, each stream with its own rate and its own times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..ops.methods import ONE_ROW
from ..ops.types import Method
from .pictures import VIDEO_CODECS, Pictures, codec_problem
from .video import Video

JSON = Any
"""What ``json.dumps`` takes: None, bool, int, float, str, and lists and dicts with string keys of these."""

KINDS = ("vector", "image", "points", "depth", "text")
RAGGED = ("points", "text")
"""Kinds whose messages have different sizes."""
FRAMES = ONE_ROW
"""Methods for images and point clouds, which are selected and never interpolated."""
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


@dataclass(frozen=True)
class StreamSpec:
    """Describes a stream: what its rows have in common in all episodes.

    ``shape`` is that of one row: ``(7,)`` for seven joints, ``(480, 640, 3)`` for an image, ``()`` for a scalar, and
    ``(F,)`` for one point of a cloud. ``kind``: ``vector``, ``image`` (uint8, height, width, channels), ``depth``
    (height, width), ``points`` or ``text`` (both ragged, see ``EpisodeStream``; text is uint8 of shape ``()``).
    ``rate_hz`` is declared by the source, never measured. ``dtype`` is a NumPy name, or ``bfloat16``, whose values are
    stored as uint16 bits.

    ``method`` is the default resampling method: a method of ``align``, or ``(begin, end, name)`` for ranges of
    channels. None: ``linear`` for floats, ``previous`` for integers, bool, images and clouds. ``period``: the period
    of angles, None for 2 pi. Loader, export and view use both unless their caller overrides them.

    ``codec``: ``"jpeg"`` or ``"png"`` where rows are encoded pictures, ``"h264"``, ``"hevc"``, ``"av1"``, ``"vp9"`` or
    ``"mpeg4"`` where they are frames of a video; ``dtype`` and ``shape`` are those of the decoded ones.

    >>> import robocache
    >>> robocache.StreamSpec("joints", "float32", (7,), rate_hz=500).row_bytes
    28
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "vector"
    rate_hz: float | None = None
    unit: str | None = None
    names: tuple[str, ...] | None = None
    meta: dict[str, JSON] = field(default_factory=dict)
    method: Method = None
    period: float | None = None
    codec: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"StreamSpec: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"StreamSpec: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if not self.name:
            raise ValueError("StreamSpec: name must not be empty")
        try:
            self.name.encode()
        except UnicodeEncodeError:  # halves of surrogate pairs, which the escapes of JSON may spell
            raise ValueError(f"StreamSpec: name must be valid UTF-8 text, got {self.name!r}") from None
        if self.rate_hz is not None and (isinstance(self.rate_hz, bool) or not isinstance(self.rate_hz, Real)):
            raise ValueError(f"StreamSpec: rate_hz must be a number or None, got {self.rate_hz!r}")
        if self.unit is not None and not isinstance(self.unit, str):
            raise ValueError(f"StreamSpec: unit must be a text or None, got {self.unit!r}")
        if self.names is not None and (isinstance(self.names, str) or not all(isinstance(n, str) for n in self.names)):
            raise ValueError(f"StreamSpec: names must be a tuple of texts or None, got {self.names!r}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"StreamSpec: shape must not have negative sizes, got {self.shape}")
        if math.prod(self.shape) * np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype).itemsize >= 1 << 63:
            raise ValueError(f"StreamSpec: a row of shape {self.shape} must have less than 2**63 bytes")
        if self.kind == "text" and (self.dtype, self.shape) != ("uint8", ()):
            raise ValueError(f"StreamSpec: text must be uint8 of shape (), got {self.dtype} {self.shape}")
        if self.codec is not None:
            problem = codec_problem(self.codec, self.kind, self.dtype, self.shape, self.meta)
            if problem:
                raise ValueError(f"StreamSpec: {problem}")
        if self.method is None and self.period is None:
            method, period = _marked(self)
        else:
            method, period = self.method, self.period
            _check_reading(self, method, period)
        if method is not None and not isinstance(method, str):
            method = tuple((int(begin), int(end), name) for begin, end, name in method) or None
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "period", None if period is None else float(period))

    @property
    def align_method(self) -> Method:
        """``method`` as ``align`` takes it, where None stands for ``linear`` of floats also if they are pictures."""
        return "previous" if self.method is None and self.kind != "vector" else self.method

    @property
    def align_period(self) -> float:
        """``period`` as ``align`` takes it: 2 pi where it is None."""
        return 2 * math.pi if self.period is None else self.period

    def __repr__(self) -> str:
        """Without ``names`` and ``meta``, which may be long, and without what is not set."""
        short = {f.name: getattr(self, f.name) for f in fields(self)[4:] if f.name not in ("names", "meta")}
        rest = "".join(f", {name}={value!r}" for name, value in short.items() if value is not None)
        return f"StreamSpec({self.name!r}, {self.dtype!r}, {self.shape}, {self.kind!r}{rest})"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the array in ``EpisodeStream.values``: uint16 for bfloat16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; of one point where ``kind`` is ``points``."""
        size = self.numpy_dtype.itemsize
        for n in self.shape:
            size *= n
        return size


def _check_reading(spec: StreamSpec, method: Method, period: float | None) -> None:
    """By the contract of ``align``, for a call without rows."""
    if method is not None and spec.kind != "vector" and method not in FRAMES:
        raise ValueError(
            f"StreamSpec: method of kind {spec.kind} must be one of {', '.join(FRAMES)}, because it is never "
            f"interpolated, got {method!r}"
        )
    nothing = np.empty(0, np.int64)
    values = np.empty((0, *spec.shape), "float32" if spec.dtype == "bfloat16" else spec.dtype)
    length = 1.0 if period is None else period
    stream = _core.Stream(values, nothing, None, method, 0, None, "hold", False, length, None, 0)
    names = _core.AlignNames("StreamSpec", "times", values=["values"], times=["times"])
    _core.check_align(names, [stream], nothing, None, None, None, check=False)


def _marked(spec: StreamSpec) -> tuple[Method, float | None]:
    """From ``meta``: ``method``, ``angles`` (a list of columns) and ``period``. Sources may mark a stream there, and
    caches have it there that were written before ``method`` was a field. A mark that does not fit the stream is
    something else of the same name."""
    angles, period = spec.meta.get("angles"), spec.meta.get("period")
    method = spec.meta.get("method")
    if not isinstance(method, str):
        width = spec.shape[0] if len(spec.shape) == 1 else 0
        columns = {c for c in angles if isinstance(c, int) and 0 <= c < width} if isinstance(angles, list) else ()
        method = [(c, c + 1, "angle") for c in sorted(columns)] or None
    for way in ((method, period), (method, None)) if method is not None else ():
        try:
            _check_reading(spec, *way)
        except ValueError:
            continue
        return way
    return None, None


class EpisodeStream:
    """The rows of one stream in one episode: ``values (rows, *shape)`` and ``times (rows,)`` int64 nanoseconds.

    Where ``spec.kind`` is ``points`` every message has its own number of points: ``values (all points, F)``,
    ``times (messages,)``, and message m owns the points ``[offsets[m], offsets[m + 1])``.

    Where ``spec.kind`` is ``text``, ``values`` may be a list of str; message m is the UTF-8 of ``values[offsets[m]:
    offsets[m + 1]]``, and ``texts`` returns the list.

    Where ``spec.codec`` is set, ``values`` is given as encoded pictures: a list of ``bytes``, or ``(bytes, splits)``,
    where message m is ``[splits[m], splits[m + 1])``. ``encoded`` returns the latter, ``values`` decodes them when it
    is first read.

    This is the form in which sources return rows. ``robocache.Stream`` is the input of ``align``: arrays of any
    framework, and a resampling method.

    >>> import numpy as np, robocache
    >>> arm = robocache.StreamSpec("arm", "float64", (1,))
    >>> rows = robocache.EpisodeStream(arm, np.array([[0.0], [2.0]]), np.array([0, 10]))
    >>> robocache.align(robocache.Stream(rows.values, rows.times), np.array([5])).values
    array([[[1.]]])
    """

    def __init__(
        self, spec: StreamSpec, values: Any, times: NDArray[np.int64], offsets: NDArray[np.int64] | None = None
    ) -> None:
        if spec.kind == "text" and isinstance(values, list) and offsets is None:
            values, offsets = encoded_texts(values)
        self.spec, self.times, self.offsets = spec, times, offsets
        self.pictures: Pictures | None = None
        """The encoded pictures; None where ``spec.codec`` is None or of a video."""
        self.video: Video | None = None
        """The packets; None where ``spec.codec`` is not of a video."""
        self._values: NDArray[Any] | None = None
        if spec.codec is None:
            self._values = values
        elif spec.codec in VIDEO_CODECS:
            try:
                self.video = Video.of(values, spec.codec)
            except ValueError as error:
                raise ValueError(f"EpisodeStream: {spec.name}: {error}") from None
        else:
            try:
                self.pictures = Pictures.of(values)
            except ValueError as error:
                raise ValueError(f"EpisodeStream: {spec.name}: {error}") from None
        self._check()

    @property
    def content(self) -> Pictures | Video | None:
        """What is encoded; None where ``spec.codec`` is None."""
        return self.video if self.pictures is None else self.pictures

    @property
    def values(self) -> NDArray[Any]:
        """The rows. Encoded pictures are decoded once, all of the episode; FormatError where one is damaged."""
        if self._values is None:
            assert self.content is not None
            self._values = self.content.decoded(self.spec)
        return self._values

    @property
    def encoded(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """``(bytes, splits)``: picture m is ``bytes[splits[m]:splits[m + 1]]``. ValueError unless ``spec.codec`` is one
        of pictures; the packets of a video are ``video``."""
        if self.video is not None:
            raise ValueError(
                f"EpisodeStream: {self.spec.name} is a video: its packets are video, got codec {self.spec.codec}"
            )
        if self.pictures is None:
            raise ValueError(f"EpisodeStream: {self.spec.name} must have a codec to have encoded pictures, got None")
        return self.pictures.data, self.pictures.splits

    @property
    def texts(self) -> list[str]:
        """Of a stream of text: one for each message."""
        if self.spec.kind != "text" or self.offsets is None:
            raise ValueError(
                f"EpisodeStream: {self.spec.name} must be of kind text to have texts, got {self.spec.kind}"
            )
        return texts_of(self.values, self.offsets, f"EpisodeStream: {self.spec.name}")

    def _check(self) -> None:
        name, times = self.spec.name, self.times
        if self.content is not None:
            if times.ndim != 1 or times.dtype != np.int64 or len(times) != len(self.content):
                raise ValueError(
                    f"EpisodeStream: times of {name} must be ({len(self.content)},) int64, one for each picture, got "
                    f"{times.dtype} {times.shape}"
                )
            if self.offsets is not None:
                raise ValueError(f"EpisodeStream: {name} is encoded; only kinds points and text have offsets")
            return
        values = self.values
        if values.shape[1:] != self.spec.shape or values.dtype != self.spec.numpy_dtype:
            raise ValueError(
                f"EpisodeStream: {name} must have rows of {self.spec.numpy_dtype} {self.spec.shape}, "
                f"got {values.dtype} {values.shape[1:]}"
            )
        if times.ndim != 1 or times.dtype != np.int64:
            raise ValueError(f"EpisodeStream: times of {name} must be (rows,) int64, got {times.dtype} {times.shape}")
        if (self.spec.kind in RAGGED) != (self.offsets is not None):
            raise ValueError(
                f"EpisodeStream: {name} is of kind {self.spec.kind}; only kinds points and text have offsets, and "
                "require them"
            )
        if self.offsets is None:
            if len(values) != len(times):
                raise ValueError(
                    f"EpisodeStream: {name} must have one time for each of {len(values)} rows, got {len(times)}"
                )
            return
        offsets = self.offsets
        if offsets.shape != (len(times) + 1,) or offsets.dtype != np.int64:
            raise ValueError(f"EpisodeStream: offsets of {name} must be ({len(times) + 1},) int64, got {offsets.shape}")
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((np.diff(offsets) < 0).any()):
            raise ValueError(f"EpisodeStream: offsets of {name} must rise from 0 to {len(values)}")

    def __len__(self) -> int:
        """Messages: rows, or clouds where ``kind`` is ``points``."""
        return len(self.times)

    def __repr__(self) -> str:
        """Sizes and times, no arrays."""
        what = "bytes" if self.spec.kind == "text" else "points"
        points = f" of {len(self.values)} {what}" if self.offsets is not None else ""
        points += f" of {self.spec.codec}" if self.spec.codec is not None else ""
        times = f", from {self.times[0]} to {self.times[-1]} ns" if len(self.times) else ""
        spec = self.spec
        return f"EpisodeStream({spec.name!r}, {spec.dtype} {spec.shape}, {len(self)} rows{points}{times})"


def encoded_texts(texts: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """``(bytes, offsets)`` of a stream of text. Unpaired surrogates become question marks."""
    encoded = [str(text).encode("utf-8", "replace") for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in encoded])]).astype(np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def texts_of(data: NDArray[Any], offsets: NDArray[np.int64], what: str) -> list[str]:
    """The texts of a stream. FormatError where one is no UTF-8."""
    whole = data.tobytes()
    try:
        return [whole[a:b].decode() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    except UnicodeDecodeError as error:
        raise _core.FormatError(f"{what} must have UTF-8 text: {error}") from None


@dataclass
class Episode:
    """One recording. ``meta`` is JSON; ``meta["repairs"]`` counts what a repair policy changed, stream by stream.

    >>> import robocache
    >>> robocache.Episode(0, {}, task="pour").task
    'pour'
    """

    index: int
    streams: dict[str, EpisodeStream]
    task: str | None = None
    meta: dict[str, JSON] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Names and numbers of rows, no arrays."""
        rows = ", ".join(f"{name!r}: {len(stream)} rows" for name, stream in self.streams.items())
        return f"Episode({self.index}, {{{rows}}}, task={self.task!r})"


@dataclass(frozen=True)
class LeftOut:
    """Content of a source that its episodes, an ingest or an export leave out.

    ``name``: the topic, feature, column or text, as the source names it. ``reason``: one clause, without a full stop.
    ``option``: the option that includes it, as a user writes it (``"video=True"``); None if there is none.

    >>> import robocache
    >>> str(robocache.LeftOut("/tf", "tf2_msgs/msg/TFMessage has no fixed shape", None))
    '/tf: tf2_msgs/msg/TFMessage has no fixed shape'
    """

    name: str
    reason: str
    option: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" + (f"; pass {self.option} to read it" if self.option else "")

    def to_json(self) -> dict[str, JSON]:
        """``{"name": ..., "reason": ..., "option": ...}``."""
        return {"name": self.name, "reason": self.reason, "option": self.option}


def left_out_from_json(value: JSON) -> list[LeftOut]:
    """The valid entries of a manifest; another program may have written it."""
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return [
        LeftOut(str(entry["name"]), str(entry["reason"]), None if entry.get("option") is None else str(entry["option"]))
        for entry in entries
        if "name" in entry and "reason" in entry
    ]


def left_out_of(source: object) -> list[LeftOut]:
    """What ``source`` left out; sources that users write may not have the attribute."""
    return list(getattr(source, "left_out", ()))


@runtime_checkable
class Source(Protocol):
    """An opened dataset. Reads lazily; memory is bounded by one episode. ``robocache.open`` returns one.

    >>> import robocache
    >>> isinstance({}, robocache.Source)
    False
    """

    @property
    def format(self) -> str:
        """The name of the format, as in ``robocache formats``."""
        ...

    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    @property
    def metadata(self) -> dict[str, JSON]:
        """What the source says of itself: JSON."""
        ...

    @property
    def specs(self) -> dict[str, StreamSpec]:
        """``{name: StreamSpec}`` of all streams. An episode may lack some of them."""
        ...

    def __len__(self) -> int: ...
    def episode(self, index: int) -> Episode:
        """The streams of one episode; ``index`` is from 0 to ``len(source) - 1``."""
        ...

    def __iter__(self) -> Iterator[Episode]: ...
    def fingerprint(self) -> str:
        """A text that differs where the rows may differ, such as a hash of the path and of names, sizes and times of
        the files (``st_mtime_ns`` and ``st_ctime_ns``); empty where there is none."""
        ...
