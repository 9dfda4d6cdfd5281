"""From features to columns of the reader, and back: which streams are read when, and how they are put together."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...cache.episode import StreamSpec
from ...convert.ingest import FLOATS
from ...ops.methods import names_in, uses_windows
from ...ops.types import Method
from ...text import did_you_mean
from ..image import Image
from ..voxels import Voxels
from ..window import Key, Window, nanoseconds, read_as_the_stream_says, require_image
from .feature import ROTATIONS, Feature

TASK = "task"
"""A feature of this stream is the task of the episode, where the cache has no stream of that name."""
SAME_RATE = 1.01
"""Streams whose intervals differ by less have one rate."""
QUATERNIONS = {"slerp_xyzw": "quaternion_xyzw", "slerp_wxyz": "quaternion_wxyz"}


class Channels(NamedTuple):
    """Channels of a column, at the moment of the output (-1) or at a fixed one."""

    column: int
    channel: int
    moment: int = -1


@dataclass(frozen=True)
class Part:
    """A part of a feature's row: ``_core.FeaturePart``."""

    math: str
    num_channels: int = 0
    period: float = 0.0
    stored: str = "quaternion_xyzw"
    form: str = "quaternion_xyzw"
    values: Channels | None = None
    turn: Channels | None = None
    from_values: Channels | None = None
    from_turn: Channels | None = None

    @property
    def width(self) -> int:
        """Channels in the batch."""
        return self.num_channels + (ROTATIONS[self.form] if self.turn is not None else 0)

    @property
    def stored_width(self) -> int:
        """Channels of the streams."""
        return self.num_channels + (4 if self.turn is not None else 0)


@dataclass(frozen=True)
class Composed:
    """A feature that is put together from columns which are not in the batch themselves."""

    name: str
    parts: tuple[Part, ...]
    paddings: tuple[tuple[int, int], ...]
    """Columns, and the moment of each; -1: that of the output."""
    dtype: str
    row: tuple[int, ...]
    num_moments: int

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def columns(self) -> set[int]:
        """Those it is made of."""
        parts = [x for p in self.parts for x in (p.values, p.turn, p.from_values, p.from_turn) if x is not None]
        return {x.column for x in parts} | {column for column, _ in self.paddings}


@dataclass(frozen=True)
class Entry:
    """One key of a batch, and where it comes from: ``column``, ``composed``, ``text`` or ``task`` number ``place``."""

    name: str
    kind: str
    place: int
    timed: bool = True
    padded: bool = True
    """Whether the batch has ``{name}_is_pad``."""
    squeezed: bool = False
    """A row of one number is a number, as LeRobot has it."""
    feature: Feature | None = None


@dataclass
class Layout:
    """What the reader reads, and what a batch has."""

    keys: list[Key] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    composed: list[Composed] = field(default_factory=list)

    def columns_in_batch(self) -> dict[int, Entry]:
        return {entry.place: entry for entry in self.entries if entry.kind in ("column", "text")}


class Piece(NamedTuple):
    """Channels ``[begin, end)`` of one stream that are treated alike: ``values``, ``angles`` or a ``turn``."""

    kind: str
    stream: int
    begin: int
    end: int
    period: float = 0.0
    stored: str = "quaternion_xyzw"

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Chunk:
    """One part before its columns are known: a piece, or the position and the turn of a pose."""

    first: Piece
    turn: Piece | None = None

    @property
    def form(self) -> tuple[str, int, str]:
        """What two chunks must have in common for one to be relative to the other."""
        turn = self.first if self.turn is None else self.turn
        return ("pose" if self.turn is not None else self.first.kind), self.first.size, turn.stored


def layout_of(
    features: Mapping[str, Feature],
    specs: Mapping[str, StreamSpec],
    intervals_ns: Callable[[str], list[float]],
    tolerance_ns: Callable[[str], int],
    task_stream: str | None = None,
) -> Layout:
    """``specs``: of all streams of the cache. ``task_stream``: that has the number of the task at each moment. The
    others as in ``keys_of``."""
    return _Builder(features, specs, intervals_ns, tolerance_ns, task_stream).layout()


class _Builder:
    def __init__(
        self,
        features: Mapping[str, Feature],
        specs: Mapping[str, StreamSpec],
        intervals_ns: Callable[[str], list[float]],
        tolerance_ns: Callable[[str], int],
        task_stream: str | None,
    ) -> None:
        self.features, self.specs, self.task_stream = features, specs, task_stream
        self.intervals_ns, self.tolerance_ns = intervals_ns, tolerance_ns
        self.made = Layout()
        self.hidden: dict[Any, int] = {}

    def layout(self) -> Layout:
        if not self.features:
            raise ValueError("Loader: features must name at least one feature, got none")
        for name, feature in self.features.items():
            if not isinstance(feature, Feature):
                raise ValueError(f"Loader: features[{name!r}] must be a Feature, got {type(feature).__name__}")
            self.made.entries.append(self.entry(str(name), feature))
        return self.made

    # ---- one feature ------------------------------------------------------------------------------------------------

    def entry(self, name: str, feature: Feature) -> Entry:
        what = f"Loader: features[{name!r}]"
        if feature.names == (TASK,) and TASK not in self.specs and self.task_stream is None:
            require_text_options(what, feature)
            if feature.timed:
                raise ValueError(
                    f"{what} must have no moments, because the cache has one task for an episode, got some"
                )
            return Entry(name, "task", 0, timed=False, padded=False, feature=feature)
        if feature.names == (TASK,) and self.task_stream is not None:
            require_text_options(what, feature)
            place = self.add(name, feature, self.specs[self.task_stream], feature.timed)
            return Entry(name, "text", place, timed=feature.timed, feature=feature)
        specs = [self.spec(stream) for stream in feature.names]
        if any(spec.kind == "text" for spec in specs):
            return self.text(what, name, feature, specs)
        if feature.tokenizer is not None:
            raise ValueError(f"{what}: tokenizer is for text, got a stream of kind {specs[0].kind}")
        if len(specs) == 1 and feature.relative_to is None and feature.rotation is None:
            return self.single(what, name, feature, specs[0])
        return self.joined(what, name, feature, specs)

    def spec(self, stream: str) -> StreamSpec:
        if stream not in self.specs:
            raise ValueError(
                f"Loader: the cache has no stream {stream!r}, only {', '.join(self.specs)}"
                f"{did_you_mean(stream, self.specs)}"
            )
        return self.specs[stream]

    def text(self, what: str, name: str, feature: Feature, specs: list[StreamSpec]) -> Entry:
        if len(specs) > 1:
            text = next(spec.name for spec in specs if spec.kind == "text")
            raise ValueError(f"{what}: stream {text!r} is text, which cannot be joined, got {feature.names}")
        require_text_options(what, feature)
        place = self.add(name, feature, specs[0], feature.timed)
        return Entry(name, "text", place, timed=feature.timed, feature=feature)

    def single(self, what: str, name: str, feature: Feature, spec: StreamSpec) -> Entry:
        """A stream as it is: a column of the reader."""
        if spec.kind == "points" and not isinstance(feature.voxels, Voxels):
            raise ValueError(f"{what}: stream {spec.name!r} is a point cloud: it needs voxels=robocache.Voxels(...)")
        if spec.kind != "points" and feature.voxels is not None:
            raise ValueError(f"{what}: voxels are for point clouds, and stream {spec.name!r} is of kind {spec.kind}")
        if feature.image is not None:
            require_image(spec)
        of_stream = [f for f in self.features.values() if isinstance(f, Feature) and f.names == feature.names]
        if spec.codec is not None or any(f.image is not None for f in of_stream):
            feature = with_own_image(what, feature)
        place = self.add(name, feature, spec, feature.timed)
        return Entry(name, "column", place, timed=feature.timed, feature=feature)

    def add(self, name: str, feature: Feature, spec: StreamSpec, timed: bool) -> int:
        option = f"features[{name!r}]"
        key = read_as_the_stream_says(name, feature.window, spec, self.tolerance_ns(spec.name), option, timed)
        self.made.keys.append(key)
        return len(self.made.keys) - 1

    # ---- several streams, relative, rotated -------------------------------------------------------------------------

    def joined(self, what: str, name: str, feature: Feature, specs: list[StreamSpec]) -> Entry:
        for spec in specs:
            if spec.kind != "vector":
                raise ValueError(f"{what} must be made of vectors, got stream {spec.name!r} of kind {spec.kind}")
            if len(specs) > 1 and len(spec.shape) > 1:
                raise ValueError(f"{what} must join streams of one dimension, got {spec.name!r} of shape {spec.shape}")
        if feature.image is not None or feature.voxels is not None:
            raise ValueError(f"{what}: image and voxels are for a stream of its own, got {feature.names}")
        self.require_one_rate(what, feature)
        chunks = chunks_of(what, feature, specs)
        if feature.rotation is not None and not any(is_turn(chunk) for chunk in chunks):
            raise ValueError(
                f"{what}: rotation={feature.rotation!r} must have a quaternion of 4 channels, got none in "
                f"{described(specs)}; mark it, as in method=[(3, 7, 'slerp_xyzw')]"
            )
        windows = windows_of(what, feature, specs)
        columns = [self.hidden_column(name, window, spec) for window, spec in zip(windows, specs, strict=True)]
        moments = {c: (c, -1) for c in columns}
        anchors = self.anchors(what, name, feature, specs, columns, chunks)
        parts = [part_of(chunk, columns, anchors, i, feature.rotation) for i, chunk in enumerate(chunks)]
        paddings = [*moments.values()]
        if anchors is not None:
            paddings += sorted({(c, moment) for c, moment in anchors[1]})
        width = sum(part.width for part in parts)
        row = specs[0].shape if len(specs) == 1 and feature.rotation is None else (width,)
        dtype = feature.dtype or joined_dtype(specs, feature)
        num_moments = len(feature.window.deltas_ns)
        self.made.composed.append(Composed(name, tuple(parts), tuple(paddings), dtype, row, num_moments))
        place = len(self.made.composed) - 1
        return Entry(name, "composed", place, timed=feature.timed, feature=feature)

    def require_one_rate(self, what: str, feature: Feature) -> None:
        if len(feature.names) == 1 or feature.rate_hz is not None:
            return
        rates = {stream: self.intervals_ns(stream) for stream in feature.names}
        for found in zip(*rates.values(), strict=True):
            known = [ns for ns in found if ns > 0]
            if known and max(known) > SAME_RATE * min(known):
                shown = ", ".join(f"{s} {1e9 / ns[0]:.4g} Hz" for s, ns in rates.items() if ns[0] > 0)
                raise ValueError(f"{what} joins streams of several rates: rate_hz must be given, got None for {shown}")

    def hidden_column(self, name: str, window: Window, spec: StreamSpec) -> int:
        """A column that is not in the batch; features that read the same share it."""
        read = (
            spec.name,
            window.deltas_ns,
            repr(dataclasses.replace(window, past=0, future=0, rate_hz=None, deltas=None)),
        )
        if read not in self.hidden:
            key = read_as_the_stream_says(
                f"{name}: {spec.name} #{len(self.made.keys)}", window, spec, self.tolerance_ns(spec.name),
                f"features[{name!r}]",
            )  # fmt: skip
            self.hidden[read] = len(self.made.keys)
            self.made.keys.append(key)
        return self.hidden[read]

    def anchors(
        self, what: str, name: str, feature: Feature, specs: list[StreamSpec], columns: list[int], chunks: list[Chunk]
    ) -> tuple[list[Chunk], list[tuple[int, int]]] | None:
        """What the feature is relative to: the chunks of a row, and column and moment of each of its streams."""
        if feature.relative_to is None:
            return None
        deltas = feature.window.deltas_ns
        if feature.relative_to == "anchor":
            if 0 in deltas:
                return chunks, [(column, deltas.index(0)) for column in columns]
            windows = [at_anchor(what, w, s) for w, s in zip(windows_of(what, feature, specs), specs, strict=True)]
            return chunks, [(self.hidden_column(name, w, s), 0) for w, s in zip(windows, specs, strict=True)]
        other = self.features.get(feature.relative_to)
        if other is None and feature.relative_to in self.specs:
            other = Feature(feature.relative_to)
        if other is None:
            known = ["anchor", *self.features, *self.specs]
            raise ValueError(
                f"{what}: relative_to must be 'anchor', a feature or a stream, got {feature.relative_to!r}"
                f"{did_you_mean(feature.relative_to, known)}"
            )
        others = [self.spec(stream) for stream in other.names]
        if any(spec.kind != "vector" for spec in others):
            raise ValueError(f"{what}: relative_to must be made of vectors, got {feature.relative_to!r}")
        marked = dataclasses.replace(other, relative_to="anchor", tokenizer=None)
        named = f"Loader: features[{feature.relative_to!r}]"
        found = chunks_of(named, marked, others)
        if [chunk.form for chunk in found] != [chunk.form for chunk in chunks]:
            raise ValueError(
                f"{what}: relative_to must have the same channels, {described(specs)}, got {feature.relative_to!r} "
                f"with {described(others)}"
            )
        windows = [at_anchor(what, w, s) for w, s in zip(windows_of(named, other, others), others, strict=True)]
        return found, [(self.hidden_column(name, w, s), 0) for w, s in zip(windows, others, strict=True)]


def at_anchor(what: str, window: Window, spec: StreamSpec) -> Window:
    """The same rules, at the anchor alone."""
    method = window.method or spec.align_method
    if uses_windows(method):
        raise ValueError(
            f"{what}: relative_to must be read at the anchor by a method of single moments, got {method!r} of "
            f"{spec.name!r}, by which one moment is padding; take 0 into the moments, or a feature with "
            "method='previous'"
        )
    return dataclasses.replace(window, past=0.0, future=0.0, rate_hz=None, deltas=(0.0,))


def require_text_options(what: str, feature: Feature) -> None:
    for option in ("relative_to", "rotation", "normalize", "dtype", "image", "voxels"):
        if getattr(feature, option) is not None:
            raise ValueError(f"{what} is text, which takes no {option}, got {getattr(feature, option)!r}")


def with_own_image(what: str, feature: Feature) -> Feature:
    """``normalize`` and ``dtype`` of a feature that is read as pictures are those of its ``Image``. Numbers that are
    computed come later, from ``FeatureStatistics``."""
    way = feature.normalize
    is_given = way == "imagenet" or isinstance(way, tuple)
    if feature.image is None and not is_given:
        return feature
    image = feature.image or Image()
    if way is not None and image.normalize is not None:
        raise ValueError(f"{what}: normalize must be given once, got {way!r} and that of its Image")
    if way is None and feature.dtype is None:
        return feature
    dtype = feature.dtype or (image.dtype if image.dtype != "uint8" else "float32")
    # Without numbers, values of a floating dtype are from 0 to 1, which is "unit".
    normalize = way if is_given else image.normalize
    return dataclasses.replace(feature, image=dataclasses.replace(image, dtype=dtype, normalize=normalize))


def described(specs: list[StreamSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.shape}" for spec in specs)


def joined_dtype(specs: list[StreamSpec], feature: Feature) -> str:
    """Equal dtypes stay; else float32, or float64 where float32 does not hold every number."""
    dtypes = {spec.dtype for spec in specs}
    computed = feature.relative_to is not None or feature.rotation is not None or feature.normalize is not None
    if len(dtypes) == 1 and (not computed or specs[0].dtype in FLOATS):
        return specs[0].dtype
    wide = dtypes & {"float64", "int32", "uint32", "int64", "uint64"}
    return "float64" if wide else "float32"


# ---- which channels are what ----------------------------------------------------------------------------------------


def methods_of(what: str, feature: Feature, specs: list[StreamSpec]) -> list[Method]:
    """How each stream is read. Channel ranges are those of the joined row; a stream that none of them is in is read as
    it says itself."""
    ranges: Any = feature.method
    if len(specs) == 1 or not isinstance(ranges, tuple):
        return [ranges] * len(specs)
    ends = [*itertools.accumulate(math.prod(spec.shape) for spec in specs)]
    found: list[Any] = [[] for _ in specs]
    for part in ranges:
        is_range = isinstance(part, tuple) and len(part) == 3 and all(hasattr(x, "__index__") for x in part[:2])
        if not is_range or not 0 <= part[0] < part[1] <= ends[-1]:
            rule = f"method must have ranges (begin, end, name) within {ends[-1]} channels"
            raise ValueError(f"{what}: {rule}, got {part!r}")
        begin, end, name = part
        for i, spec in enumerate(specs):
            first = ends[i] - math.prod(spec.shape)
            low, high = max(begin, first) - first, min(end, ends[i]) - first
            if name in QUATERNIONS and low < high and (high - low) % 4 != (end - begin) % 4:
                raise ValueError(
                    f"{what}: a quaternion must be in one stream, got {part!r} for the row {described(specs)}"
                )
            if low < high:
                found[i].append((low, high, name))
    for i, spec in enumerate(specs):
        is_whole = len(found[i]) == 1 and found[i][0][1] - found[i][0][0] == math.prod(spec.shape)
        found[i] = found[i][0][2] if is_whole else found[i] or None  # a number has no range of channels
    return found


def windows_of(what: str, feature: Feature, specs: list[StreamSpec]) -> list[Window]:
    """The window of each stream."""
    return [dataclasses.replace(feature.window, method=method) for method in methods_of(what, feature, specs)]


def pieces_of(what: str, method: Method, number: int, spec: StreamSpec) -> list[Piece]:
    """``method``: of the feature, for this stream. It, or else that of the stream, says which channels are what."""
    width = math.prod(spec.shape)
    is_marked = any(name in (*QUATERNIONS, "angle") for name in names_in(method))
    marks: Any = method if is_marked else spec.method
    ranges = [(0, width, marks)] if isinstance(marks, str) else [tuple(part) for part in marks or ()]
    marked = sorted(r for r in ranges if r[2] in (*QUATERNIONS, "angle"))
    pieces: list[Piece] = []
    done = 0
    for begin, end, method in marked:
        if method in QUATERNIONS and ((end - begin) % 4 != 0 or (spec.shape or (1,))[-1] < 4):
            raise ValueError(
                f"{what}: a quaternion must have 4 channels, got {end - begin} of stream {spec.name!r} {spec.shape}"
            )
        if begin > done:
            pieces.append(Piece("values", number, done, begin))
        if method in QUATERNIONS:
            firsts = range(begin, end, 4)  # one after the other, as in align
            pieces += [Piece("turn", number, i, i + 4, stored=QUATERNIONS[method]) for i in firsts]
        else:
            pieces.append(Piece("angles", number, begin, end, period=spec.align_period))
        done = end
    if done < width:
        pieces.append(Piece("values", number, done, width))
    return pieces


def chunks_of(what: str, feature: Feature, specs: list[StreamSpec]) -> list[Chunk]:
    """The row of a feature from left to right. A quaternion and the 3 numbers before it are a pose: in the same stream,
    or where the stream before it has these 3 alone."""
    if feature.relative_to is None and feature.rotation is None:
        return [Chunk(Piece("values", number, 0, math.prod(spec.shape))) for number, spec in enumerate(specs)]
    chunks: list[Chunk] = []
    methods = methods_of(what, feature, specs)
    for number, (method, spec) in enumerate(zip(methods, specs, strict=True)):
        for piece in pieces_of(what, method, number, spec):
            before = chunks[-1].first if chunks and chunks[-1].turn is None else None
            is_pose = piece.kind == "turn" and before is not None and before.kind == "values" and before.size >= 3
            if is_pose and before is not None and (before.stream == number or (before.size == 3 and piece.begin == 0)):
                chunks.pop()
                if before.size > 3:
                    chunks.append(Chunk(before._replace(end=before.end - 3)))
                chunks.append(Chunk(before._replace(begin=before.end - 3), piece))
            else:
                chunks.append(Chunk(piece))
    return chunks


def is_turn(chunk: Chunk) -> bool:
    return chunk.turn is not None or chunk.first.kind == "turn"


def part_of(
    chunk: Chunk,
    columns: list[int],
    anchors: tuple[list[Chunk], list[tuple[int, int]]] | None,
    number: int,
    rotation: str | None,
) -> Part:
    def here(piece: Piece) -> Channels:
        return Channels(columns[piece.stream], piece.begin)

    def there(piece: Piece) -> Channels:
        assert anchors is not None
        column, moment = anchors[1][piece.stream]
        return Channels(column, piece.begin, moment)

    origin = None if anchors is None else anchors[0][number]
    first = chunk.first
    if not is_turn(chunk):
        start = None if origin is None else there(origin.first)
        return Part(first.kind, first.size, first.period, values=here(first), from_values=start)
    turn = first if chunk.turn is None else chunk.turn
    position = None if chunk.turn is None else here(first)
    from_turn = from_position = None
    if origin is not None:
        from_turn = there(origin.first if origin.turn is None else origin.turn)
        from_position = None if origin.turn is None else there(origin.first)
    form = rotation or turn.stored
    if position is None:
        return Part("rotation", 0, 0.0, turn.stored, form, None, here(turn), None, from_turn)
    return Part("pose", 3, 0.0, turn.stored, form, position, here(turn), from_position, from_turn)


def description(key: Key) -> list[Any]:
    """Everything that decides what a column holds, for fingerprints."""
    window = key.window
    return [
        key.stream, list(key.window.deltas_ns), repr(window.method), nanoseconds(window.latency),
        None if window.max_gap is None else nanoseconds(window.max_gap), key.near_ns, repr(window.outside),
        window.outside_valid, key.period, key.tolerance_ns,
    ]  # fmt: skip
