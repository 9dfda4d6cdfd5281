"""``ingest``: from the logs people have to a cache."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._cache import SHARD_BYTES, Cache, CacheWriter, to_json
from ._core import FormatError
from ._episode import Episode, EpisodeStream, LeftOut, Source, StreamSpec, left_out_of
from ._resize import ImageSize, resize, resized_spec
from ._statistics import bfloat16_to_float32, float_to_bfloat16

FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDER: dict[str, tuple[str, ...]] = {
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": (),
}
"""The floats that hold every value of one."""

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
    image_size: ImageSize = None,
    episodes: Episodes = None,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    progress: Progress | None = None,
    format: str | None = None,
    **options: Any,
) -> Cache:
    """Converts a dataset into a cache in the folder ``out``, and opens it.

    ``streams``: names to keep, or ``{name in the source: name in the cache}``. ``dtype``: how floating streams are
    stored (``"bfloat16"``, ``"float16"``, ``"float32"``), for all or as ``{name in the cache: dtype}``. ``image_size``:
    (height, width) of the pictures, for all or as ``{name in the cache: size}``; images become the mean of what a pixel
    covers (Pillow's box filter), depth the nearest pixel. ``episodes``: numbers of those to keep, or a function that is
    asked for each. ``progress(done, total)`` is called after each episode. ``format`` and ``options`` go to
    ``robocache.open`` where ``source`` is a path.

    The folder holds the old cache, or none, until all is written. ``resume=True`` continues an ingest of the same
    source with the same options that was stopped (the function ``episodes`` is taken to be the same), and does nothing
    where it had come to its end.

    >>> import numpy as np, pathlib, robocache, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())  # CALVIN: a file per step, and which steps are an episode
    >>> for step in range(3):
    ...     np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64))
    >>> np.save(folder / "ep_start_end_ids.npy", np.array([[0, 2]]))
    >>> cache = robocache.ingest(folder, folder / "cache", streams=["actions"], dtype="float32")
    >>> cache.episode(0).streams["actions"].values[:, 0]
    array([0., 1., 2.], dtype=float32)
    """
    opened = open_source(source, format, options)
    chosen = choose_streams(opened.specs, streams, left_out=left_out_of(opened))
    specs = {new: stored_spec(opened.specs[old], new, dtype) for old, new in chosen.items()}
    for what, by_name in (("dtype", dtype), ("image_size", image_size)):
        if isinstance(by_name, Mapping) and (unknown := [name for name in by_name if name not in specs]):
            raise ValueError(f"ingest: {what} names {unknown[0]!r}, which is no stream of the cache")
    if image_size is not None:
        specs = {name: resized_spec(spec, image_size) for name, spec in specs.items()}
    positions = range(len(opened)) if episodes is None or callable(episodes) else check_episodes(episodes, len(opened))
    asked = {"streams": chosen, "dtypes": {name: spec.dtype for name, spec in specs.items()}}
    if image_size is not None:
        asked["shapes"] = {name: str(spec.shape) for name, spec in specs.items()}
    kept = "function" if callable(episodes) else list(positions) if episodes is not None else "all"
    decides = [opened.fingerprint(), getattr(opened, "open_options", "{}"), asked, kept]
    fingerprint = hashlib.sha256(to_json(decides).encode()).hexdigest()
    if resume and (finished := finished_cache(out, fingerprint)) is not None:
        return finished
    writer = CacheWriter(out, specs, fingerprint=fingerprint, shard_bytes=shard_bytes, resume=resume)
    one_by_one = not callable(episodes)  # a function is given all of an episode
    try:
        begin = positions.index(writer.last_position) + 1 if len(writer) else 0
        for done in range(begin, len(positions)):
            episode = read_streams(opened, positions[done], chosen if streams is not None and one_by_one else None)
            if not callable(episodes) or episodes(episode):
                if streams is None:
                    check_all_known(episode, chosen, opened)
                writer.add(convert(episode, chosen, opened.specs, specs, dtype), positions[done])
            if progress is not None:
                progress(done + 1, len(positions))
        told = {"format": opened.format, "path": os.fspath(opened.path), "fingerprint": opened.fingerprint()}
        return writer.commit({"source": told | {"metadata": opened.metadata}})
    finally:
        writer._release()


def open_source(
    source: str | os.PathLike[str] | Source, format: str | None, options: dict[str, Any], op: str = "ingest"
) -> Source:
    if not isinstance(source, str | os.PathLike):
        if format is not None or options:
            raise ValueError(f"{op}: format and options are for paths; this source is open already")
        return source
    from .adapters import open as open_path

    return open_path(source, format, **options)


def finished_cache(out: str | os.PathLike[str], fingerprint: str) -> Cache | None:
    if not (Path(out) / "manifest.json").exists():
        return None
    cache = Cache(out)
    return cache if cache.fingerprint() == fingerprint else None


def read_streams(source: Source, index: int, names: Collection[str] | None) -> Episode:
    """An episode with at least these streams: others are not read where the source can do without."""
    if names is None or "streams" not in inspect.signature(source.episode).parameters:
        return source.episode(index)
    return source.episode(index, streams=names)  # type: ignore[call-arg]


def choose_streams(
    specs: Mapping[str, StreamSpec], streams: Streams, op: str = "ingest", left_out: Iterable[LeftOut] = ()
) -> dict[str, str]:
    """``{name in the source: name in the result}``, in the order of the source."""
    if streams is None:
        return {name: name for name in specs}
    if isinstance(streams, str):
        raise ValueError(f"{op}: streams must be a list of names or a dict, got {streams!r}")
    wanted = dict(streams) if isinstance(streams, Mapping) else {name: name for name in streams}
    reasons = {left.name: left for left in left_out}
    for name in wanted:
        if name not in specs and name in reasons:
            raise ValueError(f"{op}: the stream {name!r} was left out: {reasons[name]}")
        if name not in specs:
            raise ValueError(f"{op}: the source has no stream {name!r}, only {', '.join(specs)}")
    if len(set(wanted.values())) < len(wanted):
        raise ValueError(f"{op}: streams must give every stream a name of its own")
    return {old: wanted[old] for old in specs if old in wanted}


def check_episodes(episodes: Iterable[int], count: int, op: str = "ingest") -> list[int]:
    """One by one: a range may be long, and wrong from its first number beyond the last episode on."""
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
        raise ValueError(f"{op}: episodes must name an episode at least, got none")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{op}: episodes must not name an episode twice")
    return numbers


def check_all_known(episode: Episode, chosen: Mapping[str, str], source: Source) -> None:
    """The streams of a cache are set when an ingest begins: one that turns up later must not be lost in silence."""
    for name in episode.streams:
        if name not in chosen:
            label = getattr(source, "label", None)
            where = label(episode.index) if callable(label) else f"{source.path}: episode {episode.index}"
            raise FormatError(
                f"ingest: {where} has the stream {name!r}, which the source did not have when it was opened; "
                "streams= that names the streams to keep leaves it out"
            )


def asked_dtype(spec: StreamSpec, name: str, dtype: Dtype) -> str | None:
    return dtype.get(name) if isinstance(dtype, Mapping) else dtype if spec.dtype in FLOATS else None


def stored_spec(spec: StreamSpec, name: str, dtype: Dtype) -> StreamSpec:
    wanted = asked_dtype(spec, name, dtype)
    if wanted is not None and (wanted not in FLOATS or spec.dtype not in FLOATS):
        raise ValueError(f"ingest: dtype of {name} must stay {spec.dtype} or be one float of another, got {wanted!r}")
    return dataclasses.replace(spec, name=name, dtype=wanted or spec.dtype)


def convert(
    episode: Episode,
    chosen: Mapping[str, str],
    had: Mapping[str, StreamSpec],
    specs: Mapping[str, StreamSpec],
    dtype: Dtype = None,
) -> Episode:
    """The chosen streams under their new names, in the dtypes and sizes they are stored in."""
    streams = {}
    for old, new in chosen.items():
        stream = episode.streams.get(old)
        if stream is None:
            continue
        spec, where = specs[new], f"ingest: episode {episode.index}: stream {old!r}"
        if (stream.spec.shape, stream.spec.kind) != (had[old].shape, spec.kind):
            raise FormatError(f"{where} must have rows of shape {had[old].shape}, got {stream.spec.shape}")
        have, asked = stream.spec.dtype, asked_dtype(spec, new, dtype) is not None
        if have != spec.dtype and (have not in FLOATS or not (asked or spec.dtype in WIDER[have])):
            go_on = "; dtype= sets one for all" if have in FLOATS and spec.dtype in FLOATS else ""
            raise FormatError(f"{where} must be {spec.dtype}, as in the source's specs, got {have}{go_on}")
        values = cast(stream.values, have, spec.dtype, where)
        if spec.shape != had[old].shape:
            values = resize(values, spec)
        streams[new] = EpisodeStream(spec, values, stream.times, stream.offsets)
    return Episode(episode.index, streams, episode.task, episode.meta)


def cast(values: Any, have: str, want: str, where: str) -> Any:
    """One float as another. A number that is too large for it is an error: infinity is another number."""
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
