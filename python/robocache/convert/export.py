"""``export``: writes a cache or a dataset as a LeRobot v3.0 dataset, and lists what is lost or left out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ..cache.depth_codes import CODES
from ..cache.episode import JSON, Episode, EpisodeStream, LeftOut, Source, StreamSpec, left_out_of
from ..ops.types import Method
from ..sources.lerobot.depth import UNITS
from ..sources.lerobot.write import AUTOMATIC, Column, LeRobotWriter, Pictures
from ..sources.lerobot.write_video import ENCODERS, video_problem
from ..sources.reading.times import SECOND_NS
from .grid import MAX_SPAN_NS, SPANS, check_methods, frame_times, rows_at, values_at
from .ingest import (
    LateStreams,
    Progress,
    Streams,
    all_left_out,
    check_episodes,
    choose_streams,
    nothing_to_read,
    open_source,
    read_streams,
)
from .new_folder import new_folder

MAX_RANK = 5
TASK = "task_index"
"""The stream of LeRobot sources in which the task changes within an episode."""


@dataclass(frozen=True)
class Exported:
    """The result of ``export``. ``lost``: information that LeRobot cannot store; ``left_out``: streams not written.

    >>> import pathlib, robocache
    >>> lidar = robocache.LeftOut("/lidar", "LeRobot has no point clouds")
    >>> done = robocache.Exported(pathlib.Path("out"), 30.0, 2, 180, 4096, {"/arm": "arm"}, [], [lidar])
    >>> done.features["/arm"], done.frames / done.fps, str(done.left_out[0])
    ('arm', 6.0, '/lidar: LeRobot has no point clouds')
    >>> done
    Exported('out', 2 episodes, 180 frames at 30 Hz, 1 features, 0 lost, 1 left out)
    """

    path: Path
    fps: float
    episodes: int
    frames: int
    size_bytes: int
    features: dict[str, str]
    """{stream of the source: feature of the dataset}"""
    lost: list[str]
    left_out: list[LeftOut] = field(default_factory=list)

    def __repr__(self) -> str:
        size = f"{self.episodes} episodes, {self.frames} frames at {self.fps:g} Hz, {len(self.features)} features"
        return f"Exported({str(self.path)!r}, {size}, {len(self.lost)} lost, {len(self.left_out)} left out)"


def export(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
    *,
    fps: float | None = None,
    streams: Streams = None,
    methods: Mapping[str, Method] | None = None,
    episodes: Iterable[int] | None = None,
    span: str = "overlap",
    max_gap_s: float | None = None,
    skip_incomplete: bool = False,
    robot_type: str | None = None,
    video_codec: str | None = None,
    progress: Progress | None = None,
    format: str | None = None,
    **options: Any,
) -> Exported:
    """Writes a LeRobot v3.0 dataset into the new folder ``out``. After an error, ``out`` does not exist.

    LeRobot has one rate, so each stream is resampled by ``align`` at multiples of 1 / ``fps``. The frames span the time
    in which all streams have rows (``span="overlap"``), or in which any stream has rows (``span="all"``; missing rows
    are held). ``methods``: ``{stream: method}``; by default the method that the source declares (quaternions, angles),
    else ``previous`` for images, integers and bool and ``linear`` for floats. Rows that are already at these times are
    copied bit for bit. ``fps`` is optional if all streams declare the same rate.

    ``streams``: names to keep, or ``{name in the source: name of the feature}``. ``max_gap_s``: frames in longer gaps
    are counted in ``lost``. ``skip_incomplete``: leave out episodes without frames instead of raising. Encoded images
    are stored as they are, others as PNG; with ``video_codec="av1"`` or ``"h264"`` images become videos, encoded as
    LeRobot 0.6 does, which loses a little. If ``source`` is a path, ``format`` and ``options`` are passed to
    ``robocache.open``. See docs/formats.md.

    >>> import numpy as np, pathlib, robocache, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())  # CALVIN: a file per step, and which steps are an episode
    >>> for step in range(30):
    ...     np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64))
    >>> np.save(folder / "ep_start_end_ids.npy", np.array([[0, 29]]))
    >>> robocache.export(folder, folder / "lerobot", fps=10).frames
    10
    """
    opened = open_source(source, format, options, "export")
    chosen = choose_streams(opened.specs, streams, "export", left_out_of(opened))
    if not chosen or not len(opened):
        raise FormatError(f"export: {nothing_to_read(opened)}")
    texts = task_texts(opened) if chosen.get(TASK) == TASK else {}
    features = {
        old: new for old, new in chosen.items() if not (texts and old == TASK)
    }  # LeRobot has its own task_index
    homeless = [entry for old in features if (entry := without_feature(opened.specs[old])) is not None]
    skipped = {entry.name for entry in homeless}
    lost: list[str] = []
    plan = {old: feature_spec(opened.specs[old], new, lost) for old, new in features.items() if old not in skipped}
    check_names(plan, homeless)
    used = {name: opened.specs[name] for name in plan}
    ways = check_methods(methods, used, "export")
    videos = chosen_videos(plan, video_codec, lost)
    rate = checked_fps(fps, used)
    if span not in SPANS:
        raise ValueError(f"export: span must be one of {', '.join(SPANS)}, got {span!r}")
    if max_gap_s is not None and not max_gap_s > 0:
        raise ValueError(f"export: max_gap_s must be above 0, got {max_gap_s!r}")
    gap_ns = None if max_gap_s is None or max_gap_s * SECOND_NS > MAX_SPAN_NS else round(max_gap_s * SECOND_NS)
    positions = range(len(opened)) if episodes is None else check_episodes(episodes, len(opened), "export")
    tally, late = Tally(opened, used), LateStreams(opened)
    with new_folder(Path(out), "export") as folder, ExitStack() as undo:
        robot = robot_type or found_robot_type(opened)
        writer = LeRobotWriter(
            folder, {spec.name: spec for spec in plan.values()}, rate, robot, videos, video_codec or "av1"
        )
        undo.callback(writer.abandon)
        for done, position in enumerate(positions, 1):
            episode = read_streams(opened, position, None if streams is None else [*used, *([TASK] if texts else [])])
            if streams is None:
                late.add(episode)
            times, why = times_of(episode, position, used, rate, span)
            if why and not skip_incomplete:
                raise FormatError(
                    f"export: episode {position}: {why}; leave it out with streams= or episodes=, or pass "
                    "skip_incomplete to skip it"
                )
            if not why:
                columns: dict[str, Column] = {}
                for name in used:
                    stream = episode.streams[name]
                    columns[plan[name].name], num_invalid = column_at(stream, plan[name], times, ways[name], gap_ns)
                    tally.stream(stream, times, num_invalid)
                tasks = tasks_at(episode, times, texts)
                writer.add(len(times), columns, tasks or [episode.task or ""])
            tally.episode(episode, times, bool(texts) and TASK in episode.streams)
            if progress is not None:
                progress(done, len(positions))
        if not writer.episodes:
            raise FormatError("export: no episode has a frame")
        writer.finish()
        undo.pop_all()
    size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    features = {old: spec.name for old, spec in plan.items()}
    lost += tally.lines(rate, ways)
    left_out = all_left_out(opened, chosen, len(positions), homeless + late.left_out() + tally.left_out())
    return Exported(Path(out), rate, writer.episodes, writer.frames, size, features, lost, left_out)


def times_of(
    episode: Episode, position: int, specs: Iterable[str], rate_hz: float, span: str
) -> tuple[NDArray[np.int64], str]:
    """The times of the frames, and the reason if there are none."""
    nothing = np.empty(0, np.int64)
    for name in specs:
        if not len(episode.streams.get(name, ())):
            return nothing, f"stream {name!r} has no rows"
    times = frame_times([episode.streams[name] for name in specs], rate_hz, span, f"export: episode {position}")
    return times, "" if len(times) else "its streams do not overlap in time"


def column_at(
    stream: EpisodeStream, spec: StreamSpec, times: NDArray[np.int64], method: Method, max_gap_ns: int | None
) -> tuple[Column, int]:
    """The stream at the times of the frames, and the number of frames at which it is not valid."""
    if spec.kind == "vector":
        values, valid = values_at(stream, times, method, max_gap_ns)
        return values, int((~valid).sum())
    rows, valid = rows_at(stream, times, method, max_gap_ns)
    return Pictures(stream, rows), int((~valid).sum())


def without_feature(spec: StreamSpec) -> LeftOut | None:
    """A stream that LeRobot has no feature for."""
    if spec.kind == "points":
        return LeftOut(spec.name, "LeRobot has no point clouds")
    if spec.kind == "text":
        return LeftOut(spec.name, "export writes no text but the tasks of episodes and frames")
    if 0 in spec.shape or len(spec.shape) > MAX_RANK:
        return LeftOut(spec.name, f"LeRobot has no rows of shape {spec.shape}")
    return None


def feature_spec(spec: StreamSpec, wanted: str, lost: list[str]) -> StreamSpec:
    """The spec of the stream's feature; appends a line to ``lost`` for each loss."""
    name = wanted.strip("/").replace("/", ".")
    if name != wanted:
        lost.append(f"{spec.name}: renamed to {name}: LeRobot names cannot contain slashes")
    shape, dtype, kind = spec.shape or (1,), spec.dtype, spec.kind
    if kind == "image" and not (dtype == "uint8" and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)))):
        kind = "vector"
    if kind == "depth" and (dtype != "uint16" or len(shape) != 2):
        kind = "vector"
    if kind != spec.kind:
        lost.append(f"{spec.name}: stored as numbers: PNG cannot hold {dtype} {spec.kind} of shape {shape}")
    if kind == "image" and len(shape) == 2:
        shape = (*shape, 1)
    if dtype == "bfloat16":
        dtype = "float32"
        lost.append(f"{spec.name}: stored as float32: LeRobot has no bfloat16; the values are unchanged")
    if shape != spec.shape:
        lost.append(f"{spec.name}: stored with rows of shape {shape} instead of {spec.shape}")
    beside = [key for key in spec.meta if key not in ("stored", "method", "angles", "quantizer", "encoded", CODES)]
    if spec.unit is not None and not (kind == "depth" and spec.unit in UNITS):
        beside.insert(0, "unit")
    if beside:
        lost.append(f"{spec.name}: not stored: {', '.join(beside)}")
    names = spec.names if kind == "vector" else None
    codec = spec.codec if kind != "vector" else None
    return dataclasses.replace(spec, name=name, shape=shape, dtype=dtype, kind=kind, names=names, codec=codec)


def chosen_videos(plan: Mapping[str, StreamSpec], codec: str | None, lost: list[str]) -> list[str]:
    """Names of the features that become videos; appends a line to ``lost`` for each image."""
    if codec is None:
        return []
    if codec not in ENCODERS:
        raise ValueError(f"export: video_codec must be one of {', '.join(ENCODERS)} or None, got {codec!r}")
    chosen = []
    for old, spec in plan.items():
        if spec.kind != "image":
            continue
        if problem := video_problem(spec, codec):
            lost.append(f"{old}: stored as images: {problem}")
        else:
            settings = ENCODERS[codec]
            lost.append(f"{old}: encoded as {codec} ({settings.encoder}, crf {settings.crf}): pixels change a little")
            chosen.append(spec.name)
    return chosen


def check_names(plan: Mapping[str, StreamSpec], homeless: Iterable[LeftOut]) -> None:
    if not plan:
        why = "; ".join(str(entry) for entry in homeless)
        raise ValueError(f"export: no stream can be a LeRobot feature: {why}")
    seen: dict[str, str] = {}
    for old, spec in plan.items():
        if not spec.name or spec.name in AUTOMATIC:
            raise ValueError(f"export: the feature of {old!r} must not be named {spec.name!r}; rename it with streams=")
        if spec.name in seen:
            raise ValueError(
                f"export: {seen[spec.name]!r} and {old!r} would both be named {spec.name!r}; rename one with streams="
            )
        seen[spec.name] = old


def checked_fps(fps: float | None, specs: Mapping[str, StreamSpec]) -> float:
    if fps is None:
        rates = sorted({spec.rate_hz for spec in specs.values()}, key=lambda rate: rate or 0.0)
        if len(rates) != 1 or rates[0] is None:
            listed = ", ".join("none" if rate is None else f"{rate:g}" for rate in rates)
            raise ValueError(f"export: fps is required if streams have no rate or different rates, got rates {listed}")
        return float(rates[0])
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise ValueError(f"export: fps must be a rate in Hz above 0, got {fps!r}")
    return float(fps)


def original_metadata(source: Source) -> Mapping[str, JSON]:
    """The metadata of the dataset that a cache was made from; for other sources, their own metadata."""
    inner: Mapping[str, JSON] = source.metadata
    while isinstance(inner.get("source"), dict) and isinstance(inner["source"].get("metadata"), dict):
        inner = inner["source"]["metadata"]
    return inner


def found_robot_type(source: Source) -> str | None:
    info = original_metadata(source).get("info")
    robot = info.get("robot_type") if isinstance(info, dict) else None
    return robot if isinstance(robot, str) else None


def task_texts(source: Source) -> dict[int, str]:
    """The texts of the numbers in a stream ``task_index``; empty where it is none of LeRobot's."""
    tasks = original_metadata(source).get("tasks")
    if not isinstance(tasks, dict) or source.specs[TASK].dtype != "int64":
        return {}
    return {int(number): str(text) for number, text in tasks.items() if str(number).isdecimal()}


def tasks_at(episode: Episode, times: NDArray[np.int64], texts: Mapping[int, str]) -> list[str]:
    """The task of each frame where it changes within the episode; empty where it does not."""
    if not texts or TASK not in episode.streams:
        return []
    numbers, _ = values_at(episode.streams[TASK], times, "previous", None)
    return [texts.get(int(number), str(number)) for number in numbers.reshape(-1)]


class Tally:
    """Counts what an export loses, episode by episode."""

    def __init__(self, source: Source, specs: Mapping[str, StreamSpec]) -> None:
        self.moved = dict.fromkeys(specs, 0)
        self.invalid = dict.fromkeys(specs, 0)
        self.skipped: list[int] = []
        self.no_task = self.several_tasks = self.began = self.meta = 0
        self.metadata = bool(source.metadata)

    def stream(self, stream: EpisodeStream, times: Any, invalid: int) -> None:
        self.moved[stream.spec.name] += not np.array_equal(stream.times, times)
        self.invalid[stream.spec.name] += invalid

    def episode(self, episode: Episode, times: Any, tasks_of_frames: bool) -> None:
        if not len(times):
            self.skipped.append(episode.index)
            return
        tasks = episode.meta.get("tasks")
        self.no_task += episode.task is None and not tasks_of_frames
        self.several_tasks += isinstance(tasks, list) and len(tasks) > 1 and not tasks_of_frames
        self.began += int(times[0]) != 0
        self.meta += bool(episode.meta)

    def left_out(self) -> list[LeftOut]:
        """Episodes that ``skip_incomplete`` skipped."""
        some = f"{', '.join(map(str, self.skipped[:20]))}{', ...' if len(self.skipped) > 20 else ''}"
        return [LeftOut(f"{len(self.skipped)} episodes", f"without a frame: {some}")] if self.skipped else []

    def lines(self, rate: float, ways: Mapping[str, Method]) -> list[str]:
        counts = {
            f"{self.no_task} episodes have no task; stored with an empty one, which LeRobot requires": self.no_task,
            f"{self.several_tasks} episodes have several tasks; only the first is stored": self.several_tasks,
            f"{self.began} episodes do not start at time 0; the start time is not stored": self.began,
            f"meta of {self.meta} episodes is not stored": self.meta,
            "metadata of the dataset is not stored": self.metadata,
        }
        lines = [text for text, number in counts.items() if number]
        for name, number in self.moved.items():
            if number:
                way = ways[name] or "align's default method"
                lines.append(f"{name}: resampled in {number} episodes, at {rate:g} Hz by {way}")
        return lines + [
            f"{name}: {number} frames are held or in gaps; LeRobot cannot mark them"
            for name, number in self.invalid.items()
            if number
        ]
