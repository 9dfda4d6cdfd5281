"""Reads and writes caches: folders of immutable safetensors shards (docs/cache.md)."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from .episode import JSON, RAGGED, Episode, EpisodeStream, LeftOut, StreamSpec, left_out_from_json
from .pictures import VIDEO_CODECS, Pictures, PictureStatistics
from .statistics import Statistics
from .video import Video, VideoStatistics, stored_video

SHARD_BYTES = 64 << 20
JOURNAL = "manifest.json.next"
"""Journal with the names of the files that an ingest creates; removed at the end."""


def to_json(value: JSON) -> str:
    """JSON text for the manifest: NumPy values become plain, numbers that are not finite in float64 become null.

    Unpaired surrogates, which paths may contain, become question marks, because UTF-8 cannot encode them.
    """

    def plain(x: JSON) -> JSON:
        if isinstance(x, dict):
            return {plain(str(key)): plain(item) for key, item in x.items()}
        if isinstance(x, list | tuple):
            return [plain(item) for item in x]
        if isinstance(x, np.ndarray | np.generic):
            return plain(x.tolist())
        if isinstance(x, str):
            return x.encode("utf-8", "replace").decode()
        return None if isinstance(x, int | float) and not abs(x) <= sys.float_info.max else x

    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def utf8(what: str, path: str | os.PathLike[str]) -> str:
    """The path as text, for native code; ValueError if it is not UTF-8, or has a NUL, which would end it there."""
    text = os.fspath(path)
    if "\0" in text:
        raise ValueError(f"{what} must not have a NUL character, got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be UTF-8, got {text!r}") from None
    return text


def absolute(what: str, path: str | os.PathLike[str]) -> Path:
    """The absolute path, which stays valid after ``os.chdir``. ``..`` stays: behind a link it is not the folder that
    the text says. ValueError for the empty text, which is no path, and not the current folder."""
    if not os.fspath(path):
        raise ValueError(f"{what} must not be empty")
    return Path(path).absolute()


def details_of(spec: StreamSpec, statistics: Mapping[str, JSON] | None) -> str:
    fields = ("rate_hz", "unit", "names", "method", "period", "meta")
    details = {name: getattr(spec, name) for name in fields}
    return to_json(details | {"statistics": dict(statistics) if statistics is not None else None})


def check_details(where: str, details: dict[str, JSON]) -> None:
    """Raises FormatError if the types differ from those that ``details_of`` writes: a checksum is not a signature."""
    numbers, texts = (int, float), (str,)
    kinds = {"rate_hz": numbers, "unit": texts, "names": (list,), "meta": (dict,), "statistics": (dict,)}
    for key, kind in kinds.items():
        value = details.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise _core.FormatError(f"{where}: {key} must be of type {kind[-1].__name__}, got {str(value)[:80]!r}")
    if any(not isinstance(name, str) for name in details.get("names") or ()):
        raise _core.FormatError(f"{where}: names must be strings, got {str(details['names'])[:80]}")


class Cache:
    """One version of a cache, open for reading. It does not change while newer versions are written to the folder.

    A cache is also a source: ``episode(i)`` returns an ``Episode`` whose arrays are read-only views of mapped files.
    ``bfloat16`` streams are ``uint16`` bits, as everywhere outside torch.

    >>> import numpy as np, robocache, tempfile
    >>> arm = robocache.StreamSpec("arm", "float32", (2,))
    >>> writer = robocache.CacheWriter(tempfile.mkdtemp() + "/arm.cache", {"arm": arm})
    >>> rows = robocache.EpisodeStream(arm, np.ones((3, 2), np.float32), np.array([0, 10, 20]))
    >>> writer.add(robocache.Episode(0, {"arm": rows}, task="pour"))
    >>> cache = writer.commit()
    >>> cache.specs["arm"].dtype, cache.episode(0).task, cache.verify()
    ('float32', 'pour', [])
    """

    format = "robocache"

    def __init__(self, path: str | os.PathLike[str], *, _reader: _core.CacheReader | None = None) -> None:
        self.path = absolute("Cache: path", path)
        self._reader = _core.CacheReader(utf8("Cache: path", self.path)) if _reader is None else _reader
        self._metadata: dict[str, JSON] | None = None
        self.specs: dict[str, StreamSpec] = {}
        self.statistics: dict[str, dict[str, JSON]] = {}
        """``min``, ``max``, ``mean``, ``std``, ``q01``, ``q99`` of each channel, of the values as they are stored."""
        for stream in self._reader.streams:
            name, details = stream.name, json.loads(stream.details)
            check_details(f"{self.path}: stream {name!r} of the manifest", details)
            try:
                self.specs[name] = StreamSpec(
                    name, stream.dtype, tuple(stream.shape), stream.kind, details.get("rate_hz"), details.get("unit"),
                    tuple(details["names"]) if details.get("names") else None, details.get("meta") or {},
                    details.get("method"), details.get("period"), stream.codec or None,
                )  # fmt: skip
            except (TypeError, ValueError) as error:
                raise _core.FormatError(f"{self.path}: stream {name!r} of the manifest: {error}") from None
            self.statistics[name] = details.get("statistics") or {}

    @property
    def generation(self) -> int:
        """The number of this version of the cache in its folder, from 1."""
        return self._reader.generation

    @property
    def size_bytes(self) -> int:
        """Of all shards."""
        return self._reader.size_bytes

    @property
    def num_shards(self) -> int:
        """Files of rows."""
        return self._reader.num_shards

    @property
    def files(self) -> list[Path]:
        """The manifest, the shards, and ``episodes-*.parquet`` where there is one."""
        return [Path(name) for name in self._reader.files]

    @property
    def metadata(self) -> dict[str, JSON]:
        """JSON of the source, or the argument of ``CacheWriter.commit``."""
        if self._metadata is None:
            self._metadata = json.loads(self._reader.metadata)
        return self._metadata

    @property
    def left_out(self) -> list[LeftOut]:
        """What the source has and this cache lacks: unsupported features, streams and episodes not selected."""
        return left_out_from_json(self.metadata.get("left_out"))

    @property
    def notes(self) -> list[str]:
        """What ``ingest`` did to pictures: encoded, transcoded or resized them; one line per stream."""
        notes = self.metadata.get("notes")
        return [str(note) for note in notes] if isinstance(notes, list) else []

    def fingerprint(self) -> str:
        """Identifies the source and the options of the ingest."""
        return self._reader.fingerprint

    def _identity(self) -> str:
        """The fingerprint; if the writer had none, the checksum of the rows."""
        return self.fingerprint() or f"rows {self._reader.checksum:08x}"

    def __len__(self) -> int:
        return self._reader.num_episodes

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def episode(self, index: int, *, copy: bool = False) -> Episode:
        """Episode ``index`` of the cache; its own ``index`` is the one in the source.

        ``copy``: return copies instead of views, after verifying their checksums. Raises ``FormatError`` if a shard is
        damaged or truncated. If a file is truncated later, reading a view of it ends the process (SIGBUS).
        """
        if not 0 <= index < len(self):
            raise IndexError(f"episode: index must be in [0, {len(self)}), got {index}")
        streams = {}
        guard = _core.MappingGuard()
        for i, (name, spec) in enumerate(self.specs.items()):
            if copy:
                self._reader.check_rows(index, i)
            values, times, splits, _ = self._reader.rows(index, i)
            if copy:
                values, times = values.copy(), times.copy()
            if spec.codec is not None:
                entries = self._reader.index(index, i)
                known = entries.copy() if copy else entries
                if spec.codec in VIDEO_CODECS:
                    streams[name] = EpisodeStream(spec, self._video(spec, index, values, known, len(times)), times)
                    continue
                pictures = Pictures(values, splits - splits[0], known if len(known) else None)
                streams[name] = EpisodeStream(spec, pictures, times)
                continue
            streams[name] = EpisodeStream(spec, values, times, None if splits is None else splits - splits[0])
        del guard
        self._reader.require_whole(index)
        info = self.episode_info(index)
        return Episode(self._reader.episode_index(index), streams, info.get("task"), info.get("meta") or {})

    def _video(self, spec: StreamSpec, index: int, data: Any, stored: Any, num_rows: int) -> Video:
        """The packets of an episode, with their index checked."""
        where = f"{self.path}: episode {index}: stream {spec.name!r}"
        return stored_video(spec, data, stored, num_rows, where)

    def episode_info(self, index: int) -> dict[str, JSON]:
        """``task``, ``meta`` and ``position`` (in the source) of an episode, without its arrays."""
        try:
            info = json.loads(self._reader.episode_json(index))
        except (ValueError, RecursionError) as error:
            raise _core.FormatError(f"{self.path}: the description of episode {index} is damaged: {error}") from None
        if not isinstance(info, dict):
            raise _core.FormatError(f"{self.path}: the description of episode {index} is damaged")
        return info

    def verify(self) -> list[str]:
        """Reads every byte and verifies all checksums. Returns one line per problem; empty if the cache is intact."""
        problems = self._reader.verify()
        jpeg = [i for i, spec in enumerate(self.specs.values()) if spec.codec == "jpeg"]
        for i, episode in ((i, e) for i in jpeg if not problems for e in range(len(self))):
            values, times, splits, _ = self._reader.rows(episode, i)
            try:
                if len(times):
                    Pictures(values, splits - splits[0], self._reader.index(episode, i)).index  # noqa: B018
            except (_core.FormatError, ValueError) as error:
                name = list(self.specs)[i]
                problems.append(f"{self.path}: stream {name!r}: episode {episode}: {error}")
        videos = [(i, spec) for i, spec in enumerate(self.specs.values()) if spec.codec in VIDEO_CODECS]
        for (i, spec), episode in ((v, e) for v in videos if not problems for e in range(len(self))):
            values, times, _, _ = self._reader.rows(episode, i)
            try:
                self._video(spec, episode, values, self._reader.index(episode, i), len(times))
            except _core.FormatError as error:
                problems.append(str(error))
        return problems

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickling opens the same version; raises FormatError if that version has been replaced."""
        return _reopened, (self.path, self.generation, self._identity())

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r}, {len(self)} episodes, {len(self.specs)} streams, {self.size_bytes} bytes)"


def _reopened(path: Path, generation: int, identity: str) -> Cache:
    cache = Cache(path)
    if (cache.generation, cache._identity()) != (generation, identity):
        raise _core.FormatError(
            f"{path}: the cache of generation {generation} is gone; another one, of generation {cache.generation}, "
            "was written in its place"
        )
    return cache


class CacheWriter:
    """Writes the next version of a cache, episode by episode. The new version becomes visible when ``commit`` returns.

    Memory: the episodes of one shard. ``fingerprint`` identifies the source of the episodes. ``resume`` requires a
    fingerprint, and keeps the finished shards of an interrupted writer with the same ``specs`` and ``fingerprint``;
    ``len(writer)`` is the number of their episodes. The folder must be new, empty or a cache. Guide:
    ``docs/guides/cache_writer.md``.

    >>> import numpy as np, robocache, tempfile
    >>> arm = robocache.StreamSpec("arm", "float32", (2,))
    >>> writer = robocache.CacheWriter(tempfile.mkdtemp() + "/arm.cache", {"arm": arm})
    >>> rows = robocache.EpisodeStream(arm, np.ones((3, 2), np.float32), np.array([0, 10, 20]))
    >>> writer.add(robocache.Episode(0, {"arm": rows}))
    >>> len(writer.commit())
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        specs: Mapping[str, StreamSpec],
        *,
        fingerprint: str = "",
        shard_bytes: int = SHARD_BYTES,
        resume: bool = False,
        _decode_video: Callable[..., Any] = Video.decoded,
    ) -> None:
        """``_decode_video(video, spec, rows)`` decodes the frames that statistics are made of."""
        self.path = absolute("CacheWriter: path", path)
        self.specs = dict(specs)
        if not self.specs:
            raise ValueError("CacheWriter: specs must have at least one stream, got none")
        streams = [
            _core.CacheStream(
                name,
                spec.dtype,
                list(spec.shape),
                spec.kind,
                ragged=spec.kind in RAGGED,
                details=details_of(spec, None),
                codec=spec.codec or "",
            )
            for name, spec in self.specs.items()
        ]
        folder = utf8("CacheWriter: path", self.path)
        self._writer = _core.CacheWriter(folder, streams, shard_bytes, fingerprint, resume)
        self._noted = 0
        self._warn()
        self._statistics: dict[str, Statistics | PictureStatistics | VideoStatistics] = {
            name: statistics_of(spec, _decode_video) for name, spec in self.specs.items()
        }
        self._table = EpisodeTable(list(self.specs))
        self._lock = threading.Lock()
        self.last_position = -1
        """Position of the last added episode in the source; -1 if there is none."""
        try:
            finished = self._writer.finished()
            if finished is not None:
                for i, episode in enumerate(cache := Cache(self.path, _reader=finished)):
                    self._count(episode)
                    self.last_position = int(cache.episode_info(i).get("position", i))
        except BaseException:
            self._release()
            raise

    def __len__(self) -> int:
        return self._writer.num_episodes

    def add(self, episode: Episode, position: int | None = None) -> None:
        """Appends an episode. Missing streams get no rows; unknown streams raise ValueError. Threads take turns."""
        unknown = [name for name in episode.streams if name not in self.specs]
        if unknown:
            raise ValueError(f"CacheWriter.add: the cache has no stream {unknown[0]!r}, only {', '.join(self.specs)}")
        check_episode(episode)
        rows: list[_core.CacheRows | None] = []
        for name, spec in self.specs.items():
            stream = episode.streams.get(name)
            rows.append(None if stream is None else self._rows(spec, stream))
        with self._lock:
            position = len(self) if position is None else position
            info = to_json({"task": episode.task, "position": position, "meta": episode.meta})
            self._writer.add(episode.index, rows, info)
            self.last_position = position
            self._count(episode)

    def _release(self) -> None:
        """Unlocks the folder now, because the traceback of an error may keep the writer alive."""
        del self._writer

    @staticmethod
    def _rows(spec: StreamSpec, stream: EpisodeStream) -> _core.CacheRows:
        if spec.codec is not None:
            return encoded_rows(spec, stream)
        splits = None if stream.offsets is None else np.ascontiguousarray(stream.offsets)
        values, times = np.ascontiguousarray(stream.values), np.ascontiguousarray(stream.times)
        return _core.CacheRows(values, times, splits, is_bfloat16=spec.dtype == "bfloat16")

    def _count(self, episode: Episode) -> None:
        for name, stream in episode.streams.items():
            statistics = self._statistics[name]
            if isinstance(statistics, VideoStatistics):
                assert stream.video is not None
                statistics.add(stream.video, episode.index)
            elif isinstance(statistics, PictureStatistics):
                assert stream.pictures is not None
                statistics.add(stream.pictures)
            else:
                statistics.add(stream.values)
        self._table.add(episode)

    def commit(self, metadata: Mapping[str, JSON] | None = None) -> Cache:
        """Publishes all episodes atomically as the new version of the cache, and opens it."""
        with self._lock:
            for i, (name, spec) in enumerate(self.specs.items()):
                self._writer.set_details(i, details_of(spec, self._statistics[name].result()))
            table = self._table.parquet()
            if table is not None:
                self._writer.attach("episodes", "parquet", table)
            self._writer.commit(to_json(dict(metadata or {})))
            self._warn()
            return Cache(self.path, _reader=self._writer.finished())

    def _warn(self) -> None:
        notes = self._writer.notes
        for note in notes[self._noted :]:
            warnings.warn(note, RuntimeWarning, stacklevel=3)
        self._noted = len(notes)


def check_episode(episode: Episode) -> None:
    """Raises now what would otherwise fail when the table of episodes is written, with all of them added."""
    index, task = episode.index, episode.task
    if isinstance(index, bool) or not isinstance(index, Integral) or not -(2**63) <= index < 2**63:
        raise ValueError(f"CacheWriter.add: index must be an integer of 64 bits, got {index!r}")
    try:
        valid = task is None or (isinstance(task, str) and task.encode() is not None)
    except UnicodeEncodeError:  # halves of surrogate pairs, which the escapes of JSON may spell
        valid = False
    if not valid:
        raise ValueError(f"CacheWriter.add: task of episode {index} must be UTF-8 text or None, got {task!r}"[:400])


def statistics_of(
    spec: StreamSpec, decode_video: Callable[..., Any]
) -> Statistics | PictureStatistics | VideoStatistics:
    if spec.codec is None:
        return Statistics(spec)
    return VideoStatistics(spec, decode_video) if spec.codec in VIDEO_CODECS else PictureStatistics(spec)


def encoded_rows(spec: StreamSpec, stream: EpisodeStream) -> _core.CacheRows:
    """ValueError where a picture cannot be stored, with its number and time."""
    what = f"CacheWriter.add: stream {spec.name!r}"
    pictures, times = stream.content, np.ascontiguousarray(stream.times)
    if pictures is None or stream.spec.codec != spec.codec:
        raise ValueError(f"{what} must be encoded as {spec.codec}, got codec {stream.spec.codec}")
    for i, problem in pictures.problems(spec).items():
        raise ValueError(f"{what}: picture {i} at {times[i]} ns {problem}")
    index = pictures.index.to_bytes() if spec.codec != "png" and len(pictures) else None
    return _core.CacheRows(
        np.ascontiguousarray(pictures.data), times, np.ascontiguousarray(pictures.splits), index=index
    )


class EpisodeTable:
    """A row for each episode, kept as columns of plain numbers: a cache may have a million of them."""

    def __init__(self, streams: list[str]) -> None:
        self.streams = streams
        self.numbers = {name: array("q") for name in ("index", "begin_ns", "end_ns", *map(self.count, streams))}
        self.texts: dict[str, list[str | None]] = {"task": [], "meta": []}
        self.without_times: list[int] = []

    @staticmethod
    def count(stream: str) -> str:
        return f"messages/{stream}"

    def add(self, episode: Episode) -> None:
        times = [stream.times for stream in episode.streams.values() if len(stream.times)]
        if not times:
            self.without_times.append(len(self.texts["task"]))
        self.numbers["index"].append(episode.index)
        self.numbers["begin_ns"].append(min((int(t[0]) for t in times), default=0))
        self.numbers["end_ns"].append(max((int(t[-1]) for t in times), default=0))
        for name in self.streams:
            stream = episode.streams.get(name)
            self.numbers[self.count(name)].append(0 if stream is None else len(stream.times))
        self.texts["task"].append(episode.task)
        self.texts["meta"].append(to_json(episode.meta))

    def parquet(self) -> bytes | None:
        """As a file; None where pyarrow is not installed."""
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            return None
        columns = {name: pa.array(np.frombuffer(numbers, np.int64)) for name, numbers in self.numbers.items()}
        columns |= {name: pa.array(texts, pa.string()) for name, texts in self.texts.items()}
        missing = np.zeros(len(self.texts["task"]), bool)
        missing[self.without_times] = True
        for name in ("begin_ns", "end_ns"):
            columns[name] = pa.array(np.frombuffer(self.numbers[name], np.int64), mask=missing)
        order = ("index", "task", "begin_ns", "end_ns", "meta", *map(self.count, self.streams))
        episodes = pa.array(np.arange(len(missing), dtype=np.int64))
        sink = io.BytesIO()
        parquet.write_table(pa.table({"episode": episodes} | {name: columns[name] for name in order}), sink)
        return sink.getvalue()
