"""The meta/ folder of a LeRobot dataset, v2.1 and v3.0: info, tasks, statistics, and where each episode lies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..._core import FormatError
from ...cache.episode import JSON, LeftOut
from ..reading.budget import ENTRY_BYTES, Budget, add_stored
from ..reading.json_file import load_json, load_json_lines
from ..reading.paths import Tree, checked_shape
from ..reading.source import first_others
from ..reading.times import is_rate
from .tables import Tables

DATA_V21 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_V21 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
DATA_V30 = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_V30 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
KNOWN = {
    *("codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "total_videos"),
    *("total_chunks", "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path"),
    *("robot_type", "splits", "tools"),
}
MAX_EPISODES = 50_000_000


@dataclass
class Placed:
    """Where the frames of an episode are. ``videos``: file and the second at which the episode begins in it.
    ``stats``: as v2.1 has them, or the file and the row of those of v3.0."""

    index: int
    data_file: str
    length: int | None = None
    tasks: list[str] = field(default_factory=list)
    videos: dict[str, tuple[str, float]] = field(default_factory=dict)
    stats: JSON | tuple[Path, int] = None


def read_info(tree: Tree, budget: Budget) -> tuple[dict[str, Any], list[str]]:
    """info.json with its usual faults mended, and what these were. Without features or a rate nothing can be read."""
    path = tree.file("meta/info.json")
    info = load_json(path, budget)
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise FormatError(f"lerobot: {path} must be an object with features")
    problems = [f"the key {key!r} is not known and left alone" for key in info if key not in KNOWN]
    info["fps"] = _rate(path, info, problems)
    version = str(info.get("codebase_version", ""))
    split = not version.startswith("v2") and (tree.root / "meta/episodes").is_dir()
    if not version.startswith(("v2", "v3")):
        problems.append(f"codebase_version is {version!r}; the files are laid out as {'v3.0' if split else 'v2.1'}")
    elif version.startswith("v3") and not split:
        problems.append(f"codebase_version is {version!r}, but the files are laid out as v2.1")
    info["layout"] = "v3.0" if split else "v2.1"
    for key, default, marker in (
        ("data_path", DATA_V30 if split else DATA_V21, "file_index" if split else "episode_index"),
        ("video_path", VIDEO_V30 if split else VIDEO_V21, "file_index" if split else "episode_index"),
    ):
        given = info.get(key)
        if given is not None and not (isinstance(given, str) and marker in given):
            problems.append(f"{key} is {str(given)[:80]!r}, which is not of {info['layout']}; using {default!r}")
        if not (isinstance(given, str) and marker in given):
            info[key] = default
    return info, problems


def _rate(path: Path, info: dict[str, Any], problems: list[str]) -> float:
    fps = info.get("fps")
    if isinstance(fps, str):
        problems.append(f"fps is the text {fps[:20]!r}")
        try:
            fps = float(fps)
        except ValueError:
            fps = None
    if fps is None:
        of_features = [f.get("fps") for f in info["features"].values() if isinstance(f, dict) and f.get("fps")]
        fps = of_features[0] if of_features else None
        if fps is not None:
            problems.append(f"fps is missing; that of a feature is used, {fps}")
    if fps is None or not is_rate(fps):
        raise FormatError(f"lerobot: {path}: fps must be a rate above 0, got {info.get('fps')!r}")
    return float(fps)


def read_feature(where: str, feature: Any) -> tuple[str, tuple[int, ...], tuple[str, ...] | None]:
    """dtype, shape and channel names. Names come as a list, as {"motors": [...]}, or not at all."""
    if not isinstance(feature, dict):
        raise FormatError(f"{where} must be an object, got {str(feature)[:80]}")
    shape = checked_shape(where, feature.get("shape", []))
    names = feature.get("names")
    if isinstance(names, dict):
        lists = [value for value in names.values() if isinstance(value, list)]
        names = lists[0] if len(lists) == 1 else list(names)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = None
    return str(feature.get("dtype")), shape, tuple(names) if names else None


def read_tasks(tree: Tree, tables: Tables, budget: Budget) -> dict[int, str]:
    """Task texts by number: tasks.parquet (the text is pandas' index) or tasks.jsonl."""
    if tree.has("meta/tasks.parquet"):
        table = tables.whole(tree.file("meta/tasks.parquet"))
        texts = [name for name in ("task", "__index_level_0__") if name in table.column_names]
        if not texts or "task_index" not in table.column_names:
            raise FormatError(f"lerobot: {tree.root}/meta/tasks.parquet must have a task and a task_index column")
        rows = zip(table.column("task_index").to_pylist(), table.column(texts[0]).to_pylist(), strict=True)
        return _numbered(rows, f"lerobot: {tree.root}/meta/tasks.parquet")
    if tree.has("meta/tasks.jsonl"):
        lines = load_json_lines(tree.file("meta/tasks.jsonl"), budget)
        found = ((line["task_index"], line["task"]) for line in lines if "task_index" in line and "task" in line)
        return _numbered(found, f"lerobot: {tree.root}/meta/tasks.jsonl")
    return {}


def _numbered(rows: Iterable[tuple[Any, Any]], where: str) -> dict[int, str]:
    tasks: dict[int, str] = {}
    for number, text in rows:
        if not isinstance(text, str):
            raise FormatError(f"{where}: a task must be a text, got {str(text)[:80]}")
        number = _whole(number, f"{where}: task_index")
        if tasks.setdefault(number, text) != text:
            raise FormatError(f"{where}: task {number} has two texts, {tasks[number][:80]!r} and {text[:80]!r}")
    return tasks


def _whole(value: Any, where: str) -> int:
    """A whole number, which pandas may have stored as a float."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and not (isinstance(value, float) and value.is_integer()):
        raise FormatError(f"{where} must be a whole number, got {str(value)[:80]!r}")
    return int(value)


def _texts(value: Any, where: str) -> list[str]:
    """The tasks of an episode: a list of texts, or one text."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise FormatError(f"{where} must be a list of texts, got {str(value)[:80]}")
    return found


def read_stats(tree: Tree, budget: Budget) -> JSON:
    """stats.json of the dataset; v2.1 has episodes_stats.jsonl, which goes to each episode instead."""
    return load_json(tree.file("meta/stats.json"), budget) if tree.has("meta/stats.json") else None


def read_episodes(tree: Tree, tables: Tables, info: dict[str, Any], budget: Budget) -> list[Placed]:
    placed = _episodes_v30(tree, tables, info) if info["layout"] == "v3.0" else _episodes_v21(tree, info, budget)
    placed.sort(key=lambda episode: episode.index)
    for one, other in pairwise(placed):
        if one.index == other.index:
            raise FormatError(f"lerobot: {tree.root}/{_list_of(info)} lists episode {one.index} twice")
    return placed


def not_listed(tree: Tree, info: dict[str, Any], placed: list[Placed], budget: Budget) -> list[LeftOut]:
    """Episodes that info.json counts, and tables of frames, that no entry of meta/episodes names: an interrupted
    upload or copy has lost the end of that list."""
    source, left = _list_of(info), []
    total = info.get("total_episodes")
    if isinstance(total, int) and not isinstance(total, bool) and total > len(placed):
        reason = f"meta/info.json counts them, but {source} does not list them"
        left.append(LeftOut(f"{total - len(placed)} of {total} episodes", reason))
    known, others = {episode.data_file for episode in placed}, []
    for path in tree.outside_caches(tree.root.glob("data/**/*.parquet")):
        budget.count(f"lerobot: {tree.root}/data")
        add_stored(ENTRY_BYTES)
        if (name := path.relative_to(tree.root).as_posix()) not in known:
            others.append(name)
    reason = f"no episode of {source} is in"
    return left + first_others(others, f"{reason} this file", "data", f"{reason} them")


def _list_of(info: dict[str, Any]) -> str:
    return "meta/episodes" if info["layout"] == "v3.0" else "meta/episodes.jsonl"


def _video_keys(info: dict[str, Any]) -> list[str]:
    return [name for name, f in info["features"].items() if isinstance(f, dict) and f.get("dtype") == "video"]


def _fill(template: str, **values: Any) -> str:
    """A path template. Only the plain fields that LeRobot has: str.format would reach into attributes."""
    filled = template
    for name, value in values.items():
        for form in ("", ":03d", ":06d"):
            text = format(value, form[1:]) if not isinstance(value, str) else value
            filled = filled.replace("{" + name + form + "}", text)
    if "{" in filled or "}" in filled:
        raise FormatError(f"lerobot: the path template {template[:200]!r} has an unknown field")
    return filled


def _episodes_v21(tree: Tree, info: dict[str, Any], budget: Budget) -> list[Placed]:
    lines = load_json_lines(tree.file("meta/episodes.jsonl"), budget)
    stats = {}
    if tree.has("meta/episodes_stats.jsonl"):
        found = load_json_lines(tree.file("meta/episodes_stats.jsonl"), budget)
        stats = {line["episode_index"]: line.get("stats") for line in found if "episode_index" in line}
    size = info.get("chunks_size")
    size = size if isinstance(size, int) and size > 0 else 1000
    placed = []
    for line in lines:
        budget.count(f"lerobot: {tree.root}/meta/episodes.jsonl")
        index = line.get("episode_index")
        if not isinstance(index, int) or not 0 <= index < MAX_EPISODES:
            raise FormatError(
                f"lerobot: {tree.root}/meta/episodes.jsonl: episode_index must be a number, got {index!r}"
            )
        place = {"episode_chunk": index // size, "episode_index": index}
        file = _fill(info["data_path"], **place)
        videos = {key: (_fill(info["video_path"], video_key=key, **place), 0.0) for key in _video_keys(info)}
        where = f"lerobot: {tree.root}/meta/episodes.jsonl: episode {index}"
        length = line.get("length")
        length = None if length is None else _whole(length, f"{where}: length")
        tasks = _texts(line.get("tasks"), f"{where}: tasks")
        placed.append(Placed(index, file, length, tasks, videos, stats.get(index)))
    return placed


def _episodes_v30(tree: Tree, tables: Tables, info: dict[str, Any]) -> list[Placed]:
    keys = _video_keys(info)
    numbers = ("chunk_index", "file_index", "from_timestamp")
    wanted = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
    wanted += [f"videos/{key}/{number}" for key in keys for number in numbers]
    placed = []
    for path in tree.glob("meta/episodes/**/*.parquet"):
        names = tables.columns(path)
        if "episode_index" not in names:
            raise FormatError(f"lerobot: {path} has no column episode_index")
        stats = any(name.startswith("stats/") for name in names)
        for at, row in enumerate(tables.whole(path, wanted).to_pylist()):
            tables.budget.count(f"lerobot: {path}")
            where = f"lerobot: {path}, row {at}"
            place = {n: _whole(row.get(f"data/{n}", 0), f"{where}: data/{n}") for n in ("chunk_index", "file_index")}
            videos = {}
            for key in keys:
                chunk, file, begin_s = (row.get(f"videos/{key}/{number}") for number in numbers)
                if file is not None:
                    video = [_whole(number, f"{where}: the place of {key}") for number in (chunk, file)]
                    name = _fill(info["video_path"], video_key=key, chunk_index=video[0], file_index=video[1])
                    if isinstance(begin_s, bool) or not isinstance(begin_s, (int, float)) or not math.isfinite(begin_s):
                        raise FormatError(f"{where}: from_timestamp of {key} must be a number, got {str(begin_s)[:80]}")
                    videos[key] = (name, float(begin_s))
            tasks = _texts(row.get("tasks"), f"{where}: tasks")
            length = row.get("length")
            length = None if length is None else _whole(length, f"{where}: length")
            index = _whole(row["episode_index"], f"{where}: episode_index")
            file = _fill(info["data_path"], **place)
            placed.append(Placed(index, file, length, tasks, videos, (path, at) if stats else None))
    return placed


class EpisodeStats:
    """The statistics of episodes of v3.0: columns stats/<feature>/<statistic> of the tables in meta/episodes.

    They are most of these tables, so they are read when an episode is. Those of the last file are kept.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._last: tuple[Path, Any] | None = None

    def read(self, path: Path, row: int) -> dict[str, dict[str, JSON]]:
        if self._last is None or self._last[0] != path:
            names = [name for name in self.tables.columns(path) if name.startswith("stats/")]
            self._last = (path, self.tables.whole(path, names))
        stats: dict[str, dict[str, JSON]] = {}
        for found in self._last[1].slice(row, 1).to_pylist():
            for name, value in found.items():
                feature, _, statistic = name[len("stats/") :].rpartition("/")
                stats.setdefault(feature, {})[statistic] = value
        return stats
