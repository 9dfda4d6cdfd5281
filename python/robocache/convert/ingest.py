"""``ingest``: converts a dataset into a cache."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import operator
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._core import FormatError, remove_leftovers
from ..cache.cache import JOURNAL, SHARD_BYTES, Cache, CacheWriter, to_json
from ..cache.episode import Episode, EpisodeStream, LeftOut, Source, StreamSpec, left_out_of
from ..cache.statistics import bfloat16_to_float32, float_to_bfloat16
from ..sources.reading.isolated import decode_video
from ..text import did_you_mean
from .pictures import MARK, QUALITY, check_images, converted, stored_pictures, whole_pictures
from .resize import ImageSize, resize, resized_specs

FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDER: dict[str, tuple[str, ...]] = {
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": (),
}
"""The floats that hold every value of one."""
MOST_LEVELS, MOST_VALUES, MOST_BYTES = 64 - 3, (1 << 20) - 8, 64 << 20
"""Of the metadata of a source: the limits of a manifest, where it is in metadata.source.metadata."""
MOST_REASONS = 5
"""Entries of what was left out that an error message lists."""

Streams = Iterable[str] | Mapping[str, str] | None
Episodes = Iterable[int] | Callable[[Episode], bool] | None
Dtype = str | Mapping[str, str] | None
Progress = Callable[[int, int], None]


def ingest(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
    *,
    streams: Streams = None,
    dtype: Dtype = None,
    images: str = "keep",
    quality: int = QUALITY,
    image_size: ImageSize = None,
    episodes: Episodes = None,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    progress: Progress | None = None,
    format: str | None = None,
    **options: Any,
) -> Cache:
    """Converts a dataset into a cache in the folder ``out``, and opens it.

    ``streams``: names to keep, or ``{name in the source: name in the cache}``. ``dtype``: stored dtype of float streams
    (``"bfloat16"``, ``"float16"``, ``"float32"``), for all or as ``{name in the cache: dtype}``; ``"uint8"`` makes
    images of pixels that are floats from 0 to 255. ``images``: ``"keep"`` stores encoded pictures as they are and raw
    camera messages as PNG; ``"jpeg"`` encodes all 8-bit pictures that are not JPEG as JPEG of that ``quality`` (1 to
    100); ``"raw"`` stores pixels. ``Cache.notes`` lists what was encoded.
    ``image_size``: (height, width) of images and depth, for all or as ``{name in the cache: size}``; images use
    Pillow's box filter, depth the nearest pixel. ``episodes``: numbers to keep, or a function ``Episode -> bool``.
    ``progress(done, total)`` is called after each episode. If ``source`` is a path, ``format`` and ``options`` are
    passed to ``robocache.open``. ``Cache.left_out`` lists what the source has and the cache lacks. Raises if the cache
    would have no streams or no episodes, or if ``image_size`` changes no stream.

    ``out`` must be a new folder, an empty folder or a cache; not the source, nor a folder that contains it. An existing
    cache is replaced atomically at the end. ``resume=True`` continues an interrupted ingest of the same source with the
    same options, and returns the cache if that ingest had finished. If ``out`` has another one, the ingest starts at
    the first episode, with a ``RuntimeWarning``. ``resume`` requires a source with a fingerprint, and ``episodes`` as
    numbers. If the source changes during the ingest, raises ``FormatError`` and commits nothing.

    >>> import numpy as np, pathlib, robocache, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())  # CALVIN: a file per step, and which steps are an episode
    >>> for step in range(3):
    ...     np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64))
    >>> np.save(folder / "ep_start_end_ids.npy", np.array([[0, 2]]))
    >>> cache = robocache.ingest(folder, folder / "cache", streams=["actions"], dtype="float32")
    >>> cache.episode(0).streams["actions"].values[:, 0]
    array([0., 1., 2.], dtype=float32)
    """
    if isinstance(source, str | os.PathLike):
        require_apart(source, out)
    check_images(images, quality)
    opened = open_source(source, format, options, encoded=images != "raw")
    require_apart(opened.path, out)
    chosen = choose_streams(opened.specs, streams, left_out=left_out_of(opened))
    if not chosen or not len(opened):
        raise FormatError(f"ingest: {nothing_to_read(opened)}")
    specs = {new: stored_spec(opened.specs[old], new, dtype) for old, new in chosen.items()}
    for what, by_name in (("dtype", dtype), ("image_size", image_size)):
        if isinstance(by_name, Mapping) and (unknown := [name for name in by_name if name not in specs]):
            near = did_you_mean(unknown[0], specs)
            raise ValueError(f"ingest: {what} must name streams of the cache, got {unknown[0]!r}{near}")
    if image_size is not None:
        specs = resized_specs(specs, image_size)
    kept_as = {new: stored_pictures(opened.specs[old], specs[new], images, quality) for old, new in chosen.items()}
    specs = {name: stored.spec for name, stored in kept_as.items()}
    notes = [stored.note for stored in kept_as.values() if stored.note]
    positions = range(len(opened)) if episodes is None or callable(episodes) else check_episodes(episodes, len(opened))
    stored: dict[str, Any] = {"streams": chosen, "dtypes": {name: spec.dtype for name, spec in specs.items()}}
    if image_size is not None:
        stored["shapes"] = {name: str(spec.shape) for name, spec in specs.items()}
    if codecs := {name: [spec.codec, spec.meta.get(MARK)] for name, spec in specs.items() if spec.codec is not None}:
        stored["codecs"] = codecs
    kept = "function" if callable(episodes) else list(positions) if episodes is not None else "all"
    identity = identity_of(opened)
    require_room(opened)
    if resume:
        require_identity(identity, episodes)
    decides = [identity, getattr(opened, "open_options", "{}"), stored, kept]
    fingerprint = hashlib.sha256(to_json(decides).encode()).hexdigest() if identity else ""
    if resume:
        if (finished := finished_cache(out, fingerprint)) is not None:
            return finished
        if reason := other_state(out, fingerprint, identity):
            message = f"ingest: resume is not possible, starting at the first episode: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
    try:
        options = {"fingerprint": fingerprint, "shard_bytes": shard_bytes, "resume": resume}
        writer = CacheWriter(out, specs, **options, _decode_video=decode_video)
    except ValueError as error:
        problem = str(error).removeprefix("CacheWriter: ")
        if isinstance(streams, Mapping) or not problem.startswith("stream "):
            raise  # a name that the user chose, or an option
        raise FormatError(f"ingest: {opened.path}: {problem}; rename it or leave it out with streams=") from None
    blamed = BlameSource(opened) if isinstance(source, str | os.PathLike) else contextlib.nullcontext()
    changed = False
    one_by_one = not callable(episodes)  # a function is given all of an episode
    try:
        begin = positions.index(writer.last_position) + 1 if len(writer) else 0
        for done in range(begin, len(positions)):
            episode = read_streams(opened, positions[done], chosen if streams is not None and one_by_one else None)
            if not callable(episodes) or episodes(episode):
                if streams is None:
                    check_all_known(episode, chosen, opened)
                for name, spec in opened.specs.items():
                    if spec.codec is not None and name in chosen and name in episode.streams:
                        episode.streams[name] = whole_pictures(episode, name, opened)
                with blamed:
                    writer.add(convert(episode, chosen, opened.specs, specs, dtype, quality), positions[done])
            if progress is not None:
                progress(done + 1, len(positions))
        if not len(writer):
            raise ValueError(f"ingest: episodes must keep at least one episode, got none of {len(opened)}")
        if identity_of(opened) != identity:
            changed = True
            raise FormatError(
                f"ingest: {opened.path} changed during the ingest, so nothing was committed; run it again when no "
                "process writes to the source"
            )
        origin = {"format": opened.format, "path": os.fspath(opened.path), "fingerprint": identity}
        left_out = [entry.to_json() for entry in all_left_out(opened, chosen, len(writer))]
        with blamed:
            metadata = {"source": origin | {"metadata": opened.metadata}, "left_out": left_out}
            return writer.commit(metadata | ({"notes": notes} if notes else {}))
    finally:
        writer._release()
        if changed:  # some of its shards may be of either state
            remove_leftovers(os.fspath(writer.path))


class BlameSource(contextlib.AbstractContextManager[None]):
    """Converts a ValueError of the writer to FormatError, because the files caused it (metadata nested too deeply)."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ValueError):
            raise FormatError(f"ingest: {self.source.path}: {error}") from error


def open_source(
    source: str | os.PathLike[str] | Source,
    format: str | None,
    options: dict[str, Any],
    op: str = "ingest",
    encoded: bool = False,
) -> Source:
    """``encoded``: pictures stay as they are, in formats that have the option."""
    if not isinstance(source, str | os.PathLike):
        if format is not None or options:
            given = ", ".join([*(["format"] if format is not None else []), *options])
            raise ValueError(
                f"{op}: format and options must not be given for a source that is already open, got {given}"
            )
        return source
    from ..sources import detect, takes
    from ..sources import open as open_path

    if encoded and "encoded" not in options and takes(format or detect(source), "encoded"):
        options = {**options, "encoded": True}
    return open_path(source, format, **options)


def nothing_to_read(source: Source) -> str:
    """The reason why the result would be empty, with the first entries of ``left_out``."""
    if source.specs:
        return f"{source.path} has no episodes"
    reasons = left_out_of(source)
    listed = "".join(f"\n  {entry}" for entry in reasons[:MOST_REASONS])
    more = f"\n  and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
    return f"{source.path} has no stream that can be read" + (f"; left out:{listed}{more}" if reasons else "")


def all_left_out(
    source: Source, chosen: Mapping[str, str], num_episodes: int, more: Iterable[LeftOut] = ()
) -> list[LeftOut]:
    """What the source leaves out, then ``more``, then the streams and episodes that were not selected."""
    more = list(more)
    entries, named = [*left_out_of(source), *more], {entry.name for entry in more}
    others = [name for name in source.specs if name not in chosen and name not in named]
    entries += [LeftOut(name, "not selected", "streams=") for name in others]
    if num_episodes < len(source):
        entries.append(LeftOut(f"{len(source) - num_episodes} of {len(source)} episodes", "not selected", "episodes="))
    return entries


def require_apart(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Raises if ``out`` is the source or contains it, also through links."""
    if not os.path.exists(source) or not os.path.isdir(out):
        return
    real = Path(os.path.realpath(source))
    for place in (real, *real.parents):
        if os.path.samefile(place, out):
            what = "be the source" if place == real else "hold the source"
            raise ValueError(f"ingest: out must not {what}, got {os.fspath(out)} for {os.fspath(source)}")


def identity_of(source: Source) -> str:
    """Identifies the current state of the dataset; empty if the source has no fingerprint."""
    try:
        return source._identity() if isinstance(source, Cache) else source.fingerprint() or ""
    except OSError as error:
        raise FormatError(f"ingest: {source.path}: cannot read its files: {error}") from error


def require_room(source: Source) -> None:
    """Raises before the ingest if its manifest could not hold the metadata of the source."""
    levels = num_values = 0
    found: list[Any] = [source.metadata]
    while found:
        num_values += len(found)
        found = [item for item in found if isinstance(item, dict | list | tuple)]
        levels += bool(found)
        found = [child for item in found for child in (item.values() if isinstance(item, dict) else item)]
    where = f"ingest: {source.path}: the metadata"
    if levels > MOST_LEVELS:
        raise FormatError(f"{where} must have at most {MOST_LEVELS} levels of lists and objects, got {levels}")
    if num_values > MOST_VALUES:
        raise FormatError(f"{where} must have at most {MOST_VALUES} values, got {num_values}")
    if (size := len(to_json(source.metadata).encode())) > MOST_BYTES:
        raise FormatError(f"{where} must have at most {MOST_BYTES} bytes of JSON, got {size}")


def require_identity(identity: str, episodes: Episodes) -> None:
    """Raises if a resumed ingest could not check that existing rows come from this source and these options."""
    if not identity:
        raise ValueError(
            "ingest: resume must have a source whose fingerprint() is not empty, because the fingerprint identifies "
            "the source of a cache; give the source a fingerprint (a version, or path, sizes and times of its "
            "files), or pass resume=False to start over"
        )
    if callable(episodes):
        raise ValueError(
            "ingest: resume must have episodes as numbers, because functions cannot be compared; "
            "pass episodes=[i for i, e in enumerate(source) if keep(e)], or resume=False to start over"
        )


def finished_cache(out: str | os.PathLike[str], fingerprint: str) -> Cache | None:
    """The finished cache of this ingest, after removing leftover files; None if there is none."""
    if not (Path(out) / "manifest.json").exists():
        return None
    cache = Cache(out)
    if cache.fingerprint() != fingerprint:
        return None
    if (cache.path / JOURNAL).exists():
        remove_leftovers(os.fspath(cache.path))
    return cache


def other_state(out: str | os.PathLike[str], fingerprint: str, identity: str) -> str:
    """Why nothing in ``out`` belongs to this ingest; empty where something does, and where there is nothing."""
    folder = Path(out)
    try:
        with open(folder / JOURNAL, "rb") as file:
            if fingerprint.encode() in file.readline(1 << 16):
                return ""
            reason = f"{folder} has an interrupted ingest of another source, of changed files or of other options"
    except OSError:
        reason = ""
    if not (folder / "manifest.json").exists():
        return reason
    origin = Cache(folder).metadata.get("source")
    origin = origin if isinstance(origin, dict) else {}
    if origin.get("fingerprint") == identity:
        return f"{folder} has a cache of this source with other options"
    return (
        f"{folder} has a cache of {origin.get('path', 'another source')}; its files are others, have changed or were "
        "moved since, or it was made by an earlier version of RoboCache"
    )


def read_streams(source: Source, index: int, names: Collection[str] | None) -> Episode:
    """An episode with at least these streams; other streams are skipped if the source supports it."""
    if names is None or "streams" not in inspect.signature(source.episode).parameters:
        return source.episode(index)
    return source.episode(index, streams=names)  # type: ignore[call-arg]


class LateStreams:
    """Streams of episodes that the source did not have when it was opened, so that no result has them."""

    def __init__(self, source: Source) -> None:
        self.known = frozenset(source.specs)
        self.found: dict[str, list[int]] = {}
        """Number of episodes, and the first of them."""

    def add(self, episode: Episode) -> None:
        for name in episode.streams:
            if name not in self.known:
                self.found.setdefault(name, [0, episode.index])[0] += 1

    def left_out(self) -> list[LeftOut]:
        reason = "only in {} episodes, the first is {}: the source did not have it when it was opened"
        return [LeftOut(name, reason.format(*where)) for name, where in self.found.items()]


def choose_streams(
    specs: Mapping[str, StreamSpec], streams: Streams, op: str = "ingest", left_out: Iterable[LeftOut] = ()
) -> dict[str, str]:
    """``{name in the source: name in the result}``, in the order of the source."""
    if streams is None:
        return {name: name for name in specs}
    if isinstance(streams, str):
        raise ValueError(f"{op}: streams must be a list of names or a dict, got {streams!r}")
    wanted = dict(streams) if isinstance(streams, Mapping) else {name: name for name in streams}
    if not wanted:
        raise ValueError(f"{op}: streams must name at least one stream, got none")
    reasons = {left.name: left for left in left_out}
    for name in wanted:
        if name not in specs and name in reasons:
            raise ValueError(f"{op}: the stream {name!r} was left out: {reasons[name]}")
        if name not in specs:
            near = did_you_mean(str(name), specs)
            raise ValueError(f"{op}: the source has no stream {name!r}, only {', '.join(specs) or 'none'}{near}")
    if len(set(wanted.values())) < len(wanted):
        raise ValueError(f"{op}: streams must give each stream a unique name")
    return {old: wanted[old] for old in specs if old in wanted}


def check_episodes(episodes: Iterable[int], count: int, op: str = "ingest") -> list[int]:
    """The numbers as a list, checked one by one, because a range may be far longer than the dataset."""
    numbers: list[int] = []
    if not isinstance(episodes, Iterable):
        raise ValueError(f"{op}: episodes must be numbers of episodes, got {episodes!r}")
    for given in episodes:
        try:
            i = operator.index(given)
        except TypeError:
            i = None
        if i is None or isinstance(given, bool | np.bool_):
            raise ValueError(f"{op}: episodes must be numbers of episodes, got {given!r}")
        if not 0 <= i < count:
            raise ValueError(f"{op}: episodes must be from 0 to {count - 1}, got {i}")
        numbers.append(i)
    if not numbers:
        raise ValueError(f"{op}: episodes must name at least one episode, got none")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{op}: episodes must not name an episode twice")
    return numbers


def check_all_known(episode: Episode, chosen: Mapping[str, str], source: Source) -> None:
    """Raises if an episode has a stream that was unknown when the ingest began: it must not be lost silently."""
    for name in episode.streams:
        if name not in chosen:
            label = getattr(source, "label", None)
            where = label(episode.index) if callable(label) else f"{source.path}: episode {episode.index}"
            raise FormatError(
                f"ingest: {where} has the stream {name!r}, which the source did not have when it was opened; "
                "to leave it out, name the streams to keep with streams="
            )


def chosen_dtype(spec: StreamSpec, name: str, dtype: Dtype) -> str | None:
    return dtype.get(name) if isinstance(dtype, Mapping) else dtype if spec.dtype in FLOATS else None


def stored_spec(spec: StreamSpec, name: str, dtype: Dtype) -> StreamSpec:
    chosen = chosen_dtype(spec, name, dtype)
    if chosen is not None and spec.dtype not in FLOATS:
        raise ValueError(f"ingest: dtype of {name!r} must stay {spec.dtype}, which is not a float, got {chosen!r}")
    if chosen == "uint8":
        if spec.kind not in ("vector", "image") or len(spec.shape) != 3 or spec.shape[2] not in (1, 3, 4):
            raise ValueError(
                f"ingest: dtype 'uint8' of {name!r} must be for pixels (height, width, 1, 3 or 4 channels), got "
                f"{spec.kind} {spec.shape}"
            )
        return dataclasses.replace(spec, name=name, dtype=chosen, kind="image", method=None, period=None)
    if chosen is not None and chosen not in FLOATS:
        raise ValueError(f"ingest: dtype of {name!r} must be one of {', '.join(FLOATS)}, got {chosen!r}")
    return dataclasses.replace(spec, name=name, dtype=chosen or spec.dtype)


def convert(
    episode: Episode,
    chosen: Mapping[str, str],
    had: Mapping[str, StreamSpec],
    specs: Mapping[str, StreamSpec],
    dtype: Dtype = None,
    quality: int = QUALITY,
) -> Episode:
    """The chosen streams under their new names, in the dtypes and sizes they are stored in."""
    streams = {}
    for old, new in chosen.items():
        stream = episode.streams.get(old)
        if stream is None:
            continue
        spec, where = specs[new], f"ingest: episode {episode.index}: stream {old!r}"
        if (stream.spec.shape, stream.spec.kind) != (had[old].shape, had[old].kind):
            raise FormatError(f"{where} must have rows of shape {had[old].shape}, got {stream.spec.shape}")
        if stream.spec.codec != had[old].codec:
            raise FormatError(
                f"{where} must have codec {had[old].codec}, as in the source's specs, got {stream.spec.codec}"
            )
        if spec.dtype == "uint8" and had[old].dtype in FLOATS and stream.spec.dtype in FLOATS:
            pixels = as_pixels(stream.values, stream.spec.dtype, where)
            shown = dataclasses.replace(spec, shape=had[old].shape, codec=None)
            stream = EpisodeStream(shown, pixels, stream.times)
        if stream.pictures is not None or spec.codec is not None:
            if stream.spec.dtype != spec.dtype:
                raise FormatError(f"{where} must be {spec.dtype}, as in the source's specs, got {stream.spec.dtype}")
            streams[new] = converted(stream, spec, quality, where)
            continue
        have, explicit = stream.spec.dtype, chosen_dtype(spec, new, dtype) is not None
        if have != spec.dtype and (have not in FLOATS or not (explicit or spec.dtype in WIDER[have])):
            fix = "; set one dtype for all with dtype=" if have in FLOATS and spec.dtype in FLOATS else ""
            raise FormatError(f"{where} must be {spec.dtype}, as in the source's specs, got {have}{fix}")
        values = cast(stream.values, have, spec.dtype, where)
        if spec.shape != had[old].shape:
            values = resize(values, spec)
        streams[new] = EpisodeStream(spec, values, stream.times, stream.offsets)
    return Episode(episode.index, streams, episode.task, episode.meta)


def as_pixels(values: Any, have: str, where: str) -> Any:
    """Floats that are whole numbers from 0 to 255, as uint8."""
    wide = bfloat16_to_float32(values) if have == "bfloat16" else values
    with np.errstate(invalid="ignore"):
        pixels = wide.astype(np.uint8)
    if not np.array_equal(pixels, wide):
        at = np.unravel_index(int((pixels != wide).argmax()), wide.shape)
        raise FormatError(f"{where}, row {at[0]}: pixels must be whole numbers from 0 to 255, got {wide[at]}")
    return pixels


def cast(values: Any, have: str, want: str, where: str) -> Any:
    """Converts floats. A finite value that would become infinite is an error."""
    if have == want:
        return values
    wide = bfloat16_to_float32(values) if have == "bfloat16" else values
    with np.errstate(over="ignore"):
        stored = float_to_bfloat16(wide) if want == "bfloat16" else wide.astype(want)
    over = (stored & 0x7FFF) == 0x7F80 if want == "bfloat16" else np.isinf(stored)
    if over.any() and (over := over & np.isfinite(wide)).any():
        at = np.unravel_index(int(over.argmax()), over.shape)
        raise FormatError(f"{where}, row {at[0]}: the value {wide[at]} is too large for {want}")
    return stored
