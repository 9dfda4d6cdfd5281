"""``view``: shows episodes in the Rerun viewer, each stream at its own times and resampled to one rate."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache.cache import utf8
from ..cache.depth_codes import CODES
from ..cache.episode import Episode, EpisodeStream, Source, StreamSpec
from ..cache.pictures import CODECS
from ..ops.types import Method
from ..sources.reading.times import MIN_RATE_HZ
from .grid import check_methods, frame_times, plain_values, values_at
from .ingest import Progress, Streams, check_episodes, choose_streams, open_source, read_streams
from .video_samples import CODECS as VIDEO_CODECS
from .video_samples import video_samples

UNIX_NS = 10**17
"""Times from here on (the year 1973) are dates; those before count from the beginning of a recording."""
PART_BYTES = 64 << 20
MAX_SERIES = 4096
STALLED_S = 20
"""Timeout: writing has failed if the file does not grow for this long while rows are pending."""
COLORS = {1: "L", 3: "RGB", 4: "RGBA"}
PIXELS = {
    **{"uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "int8": "I8", "int16": "I16"},
    **{"int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64"},
}


def view(
    source: str | os.PathLike[str] | Source,
    *,
    episodes: Iterable[int] | None = None,
    save: str | os.PathLike[str] | None = None,
    fps: float | None = None,
    streams: Streams = None,
    methods: Mapping[str, Method] | None = None,
    progress: Progress | None = None,
    format: str | None = None,
    **options: Any,
) -> list[int]:
    """Shows episodes in the Rerun viewer, or writes them to the new file ``save``; returns their numbers. Needs
    ``rerun-sdk``.

    Entity ``episode_3/streams/<name>`` has the stream at its own times: numbers as series, images, depth, point clouds,
    texts. Encoded pictures and packets of videos are sent as they are, if Rerun can show them.
    ``episode_3/aligned/<name>`` has the numbers resampled by ``align`` at ``fps`` (default: the rate of the slowest
    stream), NaN where they are not valid. ``episodes``: numbers of the episodes to show (default: the first).
    ``streams``, ``methods``, ``format`` and ``options``: see ``export``.

    The timeline is ``time``, in nanoseconds from zero, or ``unix_time`` if the times are Unix times.

    >>> robocache.view("logs/run_7.mcap", clock="log_time", save="run_7.rrd")  # doctest: +SKIP
    [0]
    """
    opened = open_source(source, format, options, "view")
    chosen = choose_streams(opened.specs, streams, "view")
    ways = check_methods(methods, {name: opened.specs[name] for name in chosen}, "view")
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6):
        raise ValueError(f"view: fps must be a rate in Hz above 0, got {fps!r}")
    first = range(min(1, len(opened)))
    positions = list(first) if episodes is None else check_episodes(episodes, len(opened), "view")
    if save is not None and os.path.lexists(utf8("view: save", save)):
        raise FileExistsError(f"view: save must not exist yet, got {save}")
    rerun = need_rerun()
    with new_file(save) if save is not None else nullcontext():
        shown = Shown(rerun, str(opened.path), save)
        try:
            for done, position in enumerate(positions, 1):
                episode = read_streams(opened, position, None if streams is None else list(chosen))
                shown.episode(f"episode_{position}", episode, chosen, ways, fps)
                if progress is not None:
                    progress(done, len(positions))
        finally:
            shown.close()
    return positions


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Creates the file, because Rerun's errors name neither file nor cause; removes it after any error."""
    try:
        open(path, "xb").close()
    except OSError as error:
        raise OSError(error.errno, f"view: save cannot be written: {error.strerror}", os.fspath(path)) from None
    try:
        yield
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def need_rerun() -> Any:
    try:
        return importlib.import_module("rerun")
    except ImportError as error:
        message = "view: the Rerun viewer needs the package rerun-sdk: pip install 'robocache[rerun]'"
        raise ImportError(message, name="rerun") from error


class Shown:
    """A Rerun recording."""

    def __init__(self, rerun: Any, name: str, save: str | os.PathLike[str] | None) -> None:
        self.rr, self.save = rerun, save
        self.recording = rerun.RecordingStream("robocache")
        if save is None:
            self.recording.spawn()
        else:
            try:
                self.recording.save(os.fspath(save))
            except RuntimeError as error:
                raise OSError(f"view: {os.fspath(save)}: {error}") from error
        self.recording.send_recording_name(name)

    def close(self) -> None:
        if self.save is None:
            self.recording.flush()
        else:
            self.flush(Path(self.save))
        self.recording.disconnect()

    def flush(self, path: Path) -> None:
        """Until the file has it all. Rerun waits for ever for its writer, also where that has ended (a full disk)."""
        timed = "timeout_sec" in inspect.signature(self.recording.flush).parameters
        size = path.stat().st_size
        while True:
            try:
                self.recording.flush(**({"timeout_sec": STALLED_S} if timed else {}))
                return
            except RuntimeError as error:
                before, size = size, path.stat().st_size
                if size == before:
                    self.forget()
                    raise OSError(
                        f"view: {path}: the recording is incomplete, the disk may be full: {error}"
                    ) from error

    def forget(self) -> None:
        """Rerun would wait when the recording is deleted, and at exit. What it holds is lost anyway."""
        atexit.unregister(self.rr.rerun_shutdown)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.recording))

    def episode(
        self, root: str, episode: Episode, chosen: Mapping[str, str], ways: Mapping[str, Method], fps: float | None
    ) -> None:
        rows = {new: s for old, new in chosen.items() if (s := episode.streams.get(old)) is not None and len(s)}
        by_new = {chosen[old]: way for old, way in ways.items()}
        if episode.task is not None:
            self.recording.log(f"{root}/task", self.rr.TextDocument(episode.task), static=True)
        for name, stream in rows.items():
            self.stream(self.path(root, "streams", name), stream)
        numbers = {name: s for name, s in rows.items() if s.spec.kind == "vector" and num_series(s.spec) <= MAX_SERIES}
        rate = fps or slowest(numbers.values())
        if rate is None:
            return
        times = frame_times(numbers.values(), rate, "all", f"view: {root}")
        for name, stream in numbers.items():
            values, valid = values_at(stream, times, by_new[name])
            shown = values.astype(np.float64).reshape(len(times), -1)
            shown[~valid] = np.nan
            self.series(self.path(root, "aligned", name), stream.spec, shown, times)

    def path(self, root: str, group: str, name: str) -> str:
        parts = [part for part in name.split("/") if part]
        return str(self.rr.new_entity_path([root, group, *parts]))

    def stream(self, path: str, stream: EpisodeStream) -> None:
        spec = stream.spec
        if spec.kind == "points":
            self.points(path, stream)
        elif spec.kind == "text":
            for text, t in zip(stream.texts, stream.times, strict=True):
                name, at = clock(t)
                self.recording.set_time(name, **at)
                self.recording.log(path, self.rr.TextDocument(text))
            self.recording.reset_time()
        elif stream.pictures is not None and (archetype := self.encoded_archetype(spec)) is not None:
            self.encoded(path, stream, archetype)
        elif stream.video is not None and (samples := self.video_samples(stream)) is not None:
            self.video(path, stream, samples)
        elif spec.kind == "image" and spec.dtype == "uint8" and (spec.shape[2:] or (1,))[0] in COLORS:
            self.pictures(path, stream, self.rr.Image, color_model=COLORS[(spec.shape[2:] or (1,))[0]])
        elif spec.kind == "depth" and spec.dtype in PIXELS and len(spec.shape) == 2:
            self.pictures(path, stream, self.rr.DepthImage)
        elif num_series(spec) <= MAX_SERIES:
            values = plain_values(stream).astype(np.float64).reshape(len(stream), -1)
            self.series(path, spec, values, stream.times)
        else:
            for value, t in zip(plain_values(stream), stream.times, strict=True):
                name, at = clock(t)
                self.recording.set_time(name, **at)
                self.recording.log(path, self.rr.Tensor(value))
            self.recording.reset_time()

    def series(self, path: str, spec: StreamSpec, values: NDArray[Any], times: NDArray[np.int64]) -> None:
        names = spec.names if spec.names and len(spec.names) == values.shape[1] else map(str, range(values.shape[1]))
        self.recording.log(path, self.rr.SeriesLines(names=list(names)), static=True)
        for part in parts(len(times), 8 * values.shape[1]):
            self.send(path, times[part], self.rr.Scalars.columns(scalars=values[part]))

    def pictures(self, path: str, stream: EpisodeStream, archetype: Any, **form: Any) -> None:
        height, width = stream.spec.shape[:2]
        kind = self.rr.components.ImageFormat(
            width=width, height=height, channel_datatype=PIXELS[stream.spec.dtype], **form
        )
        if archetype is self.rr.DepthImage:
            self.recording.log(path, archetype.from_fields(meter=depth_meter(stream.spec)), static=True)
        for part in parts(len(stream), stream.spec.row_bytes):
            raw = np.ascontiguousarray(stream.values[part]).reshape(len(stream.times[part]), -1).view(np.uint8)
            self.send(path, stream.times[part], archetype.columns(buffer=raw, format=[kind] * len(raw)))

    def encoded_archetype(self, spec: StreamSpec) -> Any:
        """What shows encoded pictures of the stream; None where Rerun has no such thing (codes of float depth)."""
        if CODES in spec.meta:
            return None
        name = "EncodedImage" if spec.kind == "image" else "EncodedDepthImage"
        found = getattr(self.rr, name, None)
        return found if hasattr(found, "columns") else None

    def encoded(self, path: str, stream: EpisodeStream, archetype: Any) -> None:
        """The bytes as they are: Rerun decodes those that it shows."""
        spec, pictures = stream.spec, stream.pictures
        assert pictures is not None
        if spec.kind == "depth":
            self.recording.log(path, archetype.from_fields(meter=depth_meter(spec)), static=True)
        for part in parts(len(stream), pictures.nbytes // max(1, len(stream))):
            blobs = [*pictures[part]]
            columns = archetype.columns(blob=blobs, media_type=[CODECS[spec.codec or ""]] * len(blobs))
            self.send(path, stream.times[part], columns)

    def video_samples(self, stream: EpisodeStream) -> list[bytes] | None:
        """Packets that Rerun can show; None where it cannot: then frames are decoded."""
        assert stream.video is not None
        known = getattr(getattr(self.rr, "VideoCodec", None), VIDEO_CODECS.get(stream.spec.codec or "", ""), None)
        if known is None or not hasattr(getattr(self.rr, "VideoStream", None), "columns"):
            return None
        return video_samples(stream.video)

    def video(self, path: str, stream: EpisodeStream, samples: list[bytes]) -> None:
        """The packets: Rerun decodes what it shows."""
        codec = getattr(self.rr.VideoCodec, VIDEO_CODECS[stream.spec.codec or ""])
        self.recording.log(path, self.rr.VideoStream(codec), static=True)
        for part in parts(len(samples), sum(map(len, samples)) // max(1, len(samples))):
            self.send(path, stream.times[part], self.rr.VideoStream.columns(sample=samples[part]))

    def points(self, path: str, stream: EpisodeStream) -> None:
        """The fields x, y, z; the first three where they are not named so."""
        assert stream.offsets is not None
        names = [name.lower() for name in stream.spec.names or ()]
        fields = (
            [names.index(axis) for axis in "xyz"] if {*"xyz"} <= {*names} else list(range(stream.spec.shape[0]))[:3]
        )
        values = plain_values(stream).reshape(len(stream.values), -1)
        xyz = np.zeros((len(values), 3), np.float32)
        xyz[:, : len(fields)] = values[:, fields]
        self.send(path, stream.times, self.rr.Points3D.columns(positions=xyz).partition(np.diff(stream.offsets)))

    def send(self, path: str, times: NDArray[np.int64], columns: Any) -> None:
        name, at = clock(times)
        self.recording.send_columns(path, [self.rr.TimeColumn(name, **at)], columns)


def clock(times: Any) -> tuple[str, dict[str, Any]]:
    """The time line, and the times as Rerun takes them without rounding."""
    if np.min(times) >= UNIX_NS:
        return "unix_time", {"timestamp": times.astype("datetime64[ns]")}
    return "time", {"duration": times.astype("timedelta64[ns]")}


def depth_meter(spec: StreamSpec) -> float:
    """Units in a meter."""
    return {"m": 1.0, "mm": 1000.0}.get(spec.unit or "", 1000.0 if spec.dtype[0] == "u" else 1.0)


def num_series(spec: StreamSpec) -> int:
    return math.prod(spec.shape)


def slowest(streams: Iterable[EpisodeStream]) -> float | None:
    """The lowest rate, as declared or else as measured, of streams that have one that frames can have."""
    rates = []
    for stream in streams:
        span_ns = int(stream.times[-1]) - int(stream.times[0])
        measured = (len(stream) - 1) / span_ns * 1e9 if span_ns else None
        rates.append(stream.spec.rate_hz or measured)
    return min((rate for rate in rates if rate is not None and rate >= MIN_RATE_HZ), default=None)


def parts(count: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, PART_BYTES // max(1, row_bytes))
    return (slice(begin, begin + step) for begin in range(0, count, step))
