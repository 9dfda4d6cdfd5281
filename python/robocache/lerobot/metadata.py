"""``LeRobotDatasetMetadata``: the meta/ folder of a dataset, with the attributes that LeRobot's code reads."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from ..sources.lerobot import meta as meta_files
from ..sources.lerobot.depth import MM_PER_M, is_depth_map
from ..sources.lerobot.tables import Tables
from ..sources.reading.budget import BUDGET
from ..sources.reading.json_file import load_json
from ..sources.reading.paths import Tree, need
from . import location
from .tables import Table

LANGUAGE = ("language_persistent", "language_events")
LOG = logging.getLogger(__name__)
Stats = dict[str, Any]


@dataclass
class DatasetInfo:
    """meta/info.json. ``info["fps"]`` is ``info.fps``.

    >>> info = DatasetInfo.from_dict({"codebase_version": "v3.0", "fps": 30, "features": {}, "total_frames": 12})
    >>> info.fps, info["total_frames"], info.get("owner")
    (30, 12, None)
    """

    codebase_version: str
    fps: int
    features: dict[str, dict[str, Any]]
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    chunks_size: int = 1000
    data_files_size_in_mb: int = 100
    video_files_size_in_mb: int = 200
    data_path: str = meta_files.DATA_V30
    video_path: str | None = meta_files.VIDEO_V30
    robot_type: str | None = None
    splits: dict[str, str] = field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> DatasetInfo:
        """Keys that are not fields are logged and left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - known):
            LOG.warning("LeRobotDataset: meta/info.json has unknown keys, which are ignored: %s", ", ".join(unknown))
        info = cls(**{key: value for key, value in given.items() if key in known})
        for feature in info.features.values():
            if isinstance(feature.get("shape"), list):
                feature["shape"] = tuple(feature["shape"])
        return info

    def to_dict(self) -> dict[str, Any]:
        """As it is stored: shapes are lists, and ``tools`` is there only if it is set."""
        result = dataclasses.asdict(self)
        for feature in result["features"].values():
            if isinstance(feature.get("shape"), tuple):
                feature["shape"] = list(feature["shape"])
        if result["tools"] is None:
            del result["tools"]
        return result

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            raise KeyError(key)
        setattr(self, key, value)

    def __contains__(self, key: object) -> bool:
        return any(f.name == key for f in dataclasses.fields(self))

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key) if key in self else default


class LeRobotDatasetMetadata:
    """info, tasks, episodes and statistics of a dataset. Found or downloaded as ``LeRobotDataset`` does.

    ``info``: a ``DatasetInfo``. ``episodes``: a table with a row per episode: ``episodes[3]["dataset_from_index"]``,
    ``episodes["length"]``. ``tasks``: a pandas table with the texts as its index. ``stats``: ``{key: {statistic:
    array}}`` or None.

    >>> from robocache.lerobot import LeRobotDatasetMetadata
    >>> LeRobotDatasetMetadata("lerobot/pusht").shapes["action"]  # doctest: +SKIP
    (2,)
    """

    def __init__(
        self,
        repo_id: str,
        root: str | Path | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,
        metadata_buffer_size: int = 10,
        *,
        repo_type: str = "dataset",
        token: str | bool | None = None,
    ) -> None:
        if repo_type != "dataset":
            raise ValueError(
                f"LeRobotDatasetMetadata: repo_type must be 'dataset', because buckets are not read, got {repo_type!r}"
            )
        self.repo_id, self.repo_type = repo_id, repo_type
        self.revision = revision or location.FORMAT_VERSION
        given = None if root is None else Path(root)
        found = None if force_cache_sync else location.find(repo_id, given, self.revision)
        self.root = found or location.download(repo_id, given, self.revision, token, "meta/")
        self.is_local = found is not None
        """Whether it was there before; if not, data and videos must be downloaded, too."""
        self._load()

    def _load(self) -> None:
        need("pyarrow.parquet", "lerobot")
        self._tree = Tree(self.root, follow_symlinks=True)  # snapshots of the hub are links
        with BUDGET.call():
            tables = Tables(BUDGET)
            raw = load_json(self._tree.file(location.INFO), BUDGET)
            self._mended, _ = meta_files.read_info(self._tree, BUDGET)
            try:
                self.info = DatasetInfo.from_dict({"codebase_version": "", **raw, "fps": raw.get("fps")})
            except (TypeError, AttributeError) as error:
                raise FormatError(f"LeRobotDataset: {self.root}/{location.INFO}: {error}") from error
            self.info.fps = self.info.fps if isinstance(self.info.fps, int | float) else self._mended["fps"]
            texts = meta_files.read_tasks(self._tree, tables, BUDGET)
            stored = meta_files.read_stats(self._tree, BUDGET)
            self.placed = meta_files.read_episodes(self._tree, tables, self._mended, BUDGET)
            """Where each episode lies, in the order of their numbers."""
            self.episodes = self._read_episodes(tables)
        self.task_index = texts
        """Texts by their number, in the order of the file."""
        self.stats: Stats | None = as_arrays(stored) if isinstance(stored, dict) else None

    def _read_episodes(self, tables: Tables) -> Table:
        columns: dict[str, list[Any]] = {}
        if self._mended["layout"] == "v3.0":
            for path in self._tree.glob("meta/episodes/**/*.parquet"):
                names = [name for name in tables.columns(path) if not name.startswith("stats/")]
                for name, values in tables.whole(path, names).to_pydict().items():
                    columns.setdefault(name, []).extend(values)
        else:
            columns["episode_index"] = [placed.index for placed in self.placed]
            columns["tasks"] = [placed.tasks for placed in self.placed]
            columns["length"] = [placed.length for placed in self.placed]
            for key in self.video_keys:
                columns[f"videos/{key}/from_timestamp"] = [0.0] * len(self.placed)
        count = len(columns.get("episode_index", []))
        if any(len(column) != count for column in columns.values()):
            raise FormatError(f"LeRobotDataset: {self.root}/meta/episodes: files must have the same columns")
        if "dataset_to_index" not in columns and "length" in columns:
            ends = np.cumsum([length or 0 for length in columns["length"]])
            columns["dataset_from_index"] = [0, *ends[:-1].tolist()][:count]
            columns["dataset_to_index"] = ends.tolist()
        return Table(columns)

    @cached_property
    def tasks(self) -> Any:
        """A pandas table: texts are its index ``task``, ``task_index`` its column. None if there are no tasks."""
        pandas = importlib.import_module("pandas")
        if not self.task_index:
            return None
        index = pandas.Index(list(self.task_index.values()), name="task")
        return pandas.DataFrame({"task_index": list(self.task_index)}, index=index)

    @cached_property
    def task_texts(self) -> list[str]:
        """By their row in the file, which LeRobot takes for ``task_index``."""
        return list(self.task_index.values())

    def get_task_index(self, task: str) -> int | None:
        """The number of a task; None if the dataset has no such task."""
        return next((number for number, text in self.task_index.items() if text == task), None)

    def ensure_readable(self) -> None:
        """Has no effect: all is read when the object is made."""

    def filter_episodes(
        self, predicate: Callable[[dict[str, Any]], bool], candidates: list[int] | None = None
    ) -> list[int]:
        """Numbers of the episodes (of ``candidates``) for which ``predicate(row of episodes)`` is true, sorted."""
        among = None if candidates is None else set(candidates)
        rows = (row for row in self.episodes if among is None or row["episode_index"] in among)
        return sorted(int(row["episode_index"]) for row in rows if predicate(row))

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Statistics of depth in the unit in which depth is returned; without ``depth_unit`` they stay as they are."""
        unknown = [key for key in self.depth_keys if self.depth_unit(key) is None]
        if unknown:
            LOG.warning(
                "LeRobotDataset: depth of %s has no depth_unit in meta/info.json: pictures and statistics are returned "
                "as they are, not in %s",
                ", ".join(unknown),
                output_unit,
            )
        for key in self.depth_keys:
            stored = self.depth_unit(key)
            if self.stats is None or key not in self.stats or stored in (None, output_unit):
                continue
            factor = MM_PER_M if stored == "m" else 1.0 / MM_PER_M
            self.stats[key] = {s: v if s == "count" else v * factor for s, v in self.stats[key].items()}

    def depth_unit(self, key: str) -> str | None:
        """``"mm"`` or ``"m"``; None if meta/info.json has none."""
        info = self.features[key].get("info")
        return info.get("depth_unit") if isinstance(info, dict) else None

    def get_data_file_path(self, ep_index: int) -> Path:
        """Relative to ``root``."""
        return Path(self._place(ep_index).data_file)

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """Relative to ``root``."""
        return Path(self._place(ep_index).videos[vid_key][0])

    def _place(self, ep_index: int) -> meta_files.Placed:
        if not 0 <= ep_index < len(self.placed):
            raise IndexError(f"LeRobotDataset: episode must be in [0, {len(self.placed)}), got {ep_index}")
        return self.placed[ep_index]

    @property
    def data_path(self) -> str:
        """The pattern of the data files, relative to ``root``."""
        return self.info.data_path

    @property
    def video_path(self) -> str | None:
        """The pattern of the videos, relative to ``root``."""
        return self.info.video_path

    @property
    def robot_type(self) -> str | None:
        """As recorded."""
        return self.info.robot_type

    @property
    def fps(self) -> int:
        """Frames per second."""
        return self.info.fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """``{key: {"dtype": ..., "shape": ..., "names": ...}}``."""
        return self.info.features

    def _of_dtype(self, *dtypes: str) -> list[str]:
        return [key for key, feature in self.features.items() if feature.get("dtype") in dtypes]

    @property
    def image_keys(self) -> list[str]:
        """Pictures in the data files."""
        return self._of_dtype("image")

    @property
    def video_keys(self) -> list[str]:
        """Videos, depth included."""
        return self._of_dtype("video")

    @property
    def camera_keys(self) -> list[str]:
        """Images and videos, depth included."""
        return self._of_dtype("video", "image")

    @property
    def depth_keys(self) -> list[str]:
        """Depth images and depth videos."""
        return [key for key, feature in self.features.items() if is_depth_map(feature)]

    @property
    def has_language_columns(self) -> bool:
        """Whether a feature is a language column."""
        return any(name in self.features for name in LANGUAGE)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of tools that the dataset declares; if it declares none, those of the package lerobot, if there."""
        declared = self.info.tools
        if not declared:
            try:
                declared = importlib.import_module("lerobot.datasets.language").DEFAULT_TOOLS
            except ImportError:
                declared = []
        assert declared is not None
        return [dict(tool) for tool in declared]

    @property
    def names(self) -> dict[str, Any]:
        """``{key: names of its channels}``."""
        return {key: feature.get("names") for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """``{key: shape of one frame}``."""
        return {key: tuple(feature["shape"]) for key, feature in self.features.items()}

    @property
    def total_episodes(self) -> int:
        """Of the whole dataset."""
        return self.info.total_episodes

    @property
    def total_frames(self) -> int:
        """Of the whole dataset."""
        return self.info.total_frames

    @property
    def total_tasks(self) -> int:
        """Of the whole dataset."""
        return self.info.total_tasks

    @property
    def chunks_size(self) -> int:
        """Files in one folder."""
        return self.info.chunks_size

    @property
    def data_files_size_in_mb(self) -> int:
        """The size at which LeRobot begins another data file."""
        return self.info.data_files_size_in_mb

    @property
    def video_files_size_in_mb(self) -> int:
        """The size at which LeRobot begins another video."""
        return self.info.video_files_size_in_mb

    @property
    def url_root(self) -> str:
        """The dataset on the hub."""
        return f"hf://datasets/{self.repo_id}"

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.repo_id!r}, {self.total_episodes} episodes, {self.total_frames} frames, "
            f"features {', '.join(self.features)})"
        )


def as_arrays(stats: dict[str, Any]) -> dict[str, Any]:
    """Numbers and lists become arrays of at least one dimension; objects stay."""
    return {key: as_arrays(value) if isinstance(value, dict) else _array(value) for key, value in stats.items()}


def _array(value: Any) -> NDArray[Any]:
    return np.atleast_1d(np.array(value))
