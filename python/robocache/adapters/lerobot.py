"""LeRobot v3.0 and v2.1: Parquet tables of frames, pictures in them or in videos, all at one rate."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from .._episode import DTYPES, JSON, StreamSpec
from . import _lerobot_meta as meta_files
from ._budget import BUDGET, Budget
from ._declared import as_declared, flat_values
from ._images import MAX_PICTURE_BYTES, decode_picture, picture_size
from ._lerobot_meta import Placed
from ._lerobot_video import read_video
from ._paths import need, num_bytes, read_file
from ._repair import Repairer
from ._source import BaseSource, Rows
from ._times import checked_rate, index_to_ns

AUTOMATIC = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def detect(path: Path) -> bool:
    try:
        return (path / "meta" / "info.json").is_file()
    except OSError:
        return False


def open(
    path: Path,
    video: bool = True,
    rate_hz: float | None = None,
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
) -> LeRobot:
    """``video``: decode the videos. ``rate_hz``: instead of the ``fps`` of info.json, where that is wrong. Datasets in
    the cache of the Hugging Face hub are links out of their folder: ``follow_symlinks=True``."""
    return LeRobot(Path(path), video, rate_hz, (repair, budget, follow_symlinks))


class LeRobot(BaseSource):
    format = "lerobot"

    def __init__(self, path: Path, video: bool, rate_hz: float | None, shared: tuple[Any, ...]) -> None:
        super().__init__(path, *shared)
        need("pyarrow.parquet", "lerobot")
        info, problems = meta_files.read_info(self.tree, self.budget)
        for problem in problems:
            warnings.warn(f"open: {path}/meta/info.json: {problem}", stacklevel=4)
        self._info = info
        self._rate_hz = float(info["fps"]) if rate_hz is None else checked_rate("rate_hz", rate_hz)
        self._given_rate = rate_hz is not None
        self._footer: tuple[Any, Any, NDArray[np.int64]] | None = None
        self._tasks = meta_files.read_tasks(self.tree, self.budget)
        self._episodes = meta_files.read_episodes(self.tree, info, self.budget)
        self.metadata = {
            "info": info,
            "tasks": {str(index): task for index, task in self._tasks.items()},
            "stats": meta_files.read_stats(self.tree, self.budget),
            "problems": problems,
        }
        self._add_specs(video)

    def _add_specs(self, video: bool) -> None:
        for name, feature in self._info["features"].items():
            if name in AUTOMATIC:
                continue
            where = f"lerobot: {self.path}/meta/info.json: feature {name}"
            dtype, shape, names = meta_files.read_feature(where, feature)
            if dtype == "video" and not video:
                continue
            if dtype in ("image", "video"):
                shape = self._picture_shape(name, dtype, shape, names)
                kind, pixel = ("image", "uint8") if len(shape) == 3 else ("depth", "uint16")
                self.specs[name] = StreamSpec(name, pixel, shape, kind, self._rate_hz, meta={"stored": dtype})
            elif dtype in DTYPES:
                self.specs[name] = StreamSpec(name, dtype, shape, "vector", self._rate_hz, names=names)
            else:  # text and what later versions add
                self.metadata.setdefault("left_out", []).append(name)
        for name, spec in self.specs.items():
            self.budget.check(f"lerobot: {self.path}/meta/info.json: one row of feature {name}", spec.row_bytes)

    def __len__(self) -> int:
        return len(self._episodes)

    def files(self) -> Iterable[Path]:
        return [path for folder in ("meta", "data", "videos") for path in self.tree.glob(f"{folder}/**/*")]

    def read(self, index: int, repairer: Repairer) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        placed = self._episodes[index]
        table, whole = self._table(placed)
        num_rows = int(table.num_rows)
        if placed.length is not None and placed.length != num_rows:
            what = f"row {min(num_rows, placed.length)}: {whole} has {num_rows} frames, meta/episodes {placed.length}"
            repairer.ask("missing", "timestamp", abs(placed.length - num_rows), what)
        times = self._times(table)
        self._check_size(index, num_rows)
        rows = []
        for spec in self.specs.values():
            if spec.meta.get("stored") == "video":
                clip = self._clip(placed, spec.name)
                values, kept = read_video(clip, spec, self._video_seconds(table), self._info["fps"], repairer)
                rows.append(Rows(spec, values, times[kept]))
            else:
                rows.append(Rows(spec, self._column(table, spec, f"{repairer.where}, {whole}"), times.copy()))
        numbers = table.column("task_index").to_pylist() if "task_index" in table.column_names else []
        tasks = list(dict.fromkeys(self._tasks.get(n, str(n)) for n in numbers)) or placed.tasks
        meta: dict[str, JSON] = {"episode_index": placed.index, "tasks": tasks, **placed.meta}
        return rows, tasks[0] if tasks else None, meta

    def _table(self, placed: Placed, only: str | None = None) -> tuple[Any, str]:
        """The episode's rows, and the file's name. Reads only row groups that have rows of it; or only one column."""
        parquet = need("pyarrow.parquet", "lerobot")
        path = self.tree.file(placed.data_file)
        try:
            metadata, first, last = self._footer_of(path)
            groups = self._row_groups(metadata, np.flatnonzero((first <= placed.index) & (placed.index <= last)), path)
            file = parquet.ParquetFile(path, metadata=metadata)
            wanted = {*AUTOMATIC, *(self.specs if only is None else (only,))}
            columns = [name for name in file.schema_arrow.names if name in wanted]
            table = file.read_row_groups(groups, columns=columns)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:  # pyarrow's, and odd statistics
            raise FormatError(f"lerobot: {path}: {error}") from error
        if "episode_index" in columns:
            number = table.column("episode_index").to_numpy()
            table = table.filter(number == placed.index)
        return table, placed.data_file

    def _footer_of(self, path: Path) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
        """What the file says of itself, and the first and last episode that each of its row groups may have.

        That of the last file is kept: with a row group for each episode it is long, and it is asked for once for each.
        """
        state = path.stat()
        key = (path, state.st_mtime_ns, state.st_size)
        if self._footer is None or self._footer[0] != key:
            metadata = need("pyarrow.parquet", "lerobot").ParquetFile(path).metadata
            names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
            bounds = np.full((metadata.num_row_groups, 2), [0, np.iinfo(np.int64).max], np.int64)
            if "episode_index" in names:
                for group in range(metadata.num_row_groups):
                    known = metadata.row_group(group).column(names.index("episode_index")).statistics
                    if known is not None and known.has_min_max:
                        bounds[group] = known.min, known.max
            self._footer = (key, metadata, bounds)
        return self._footer[1], self._footer[2][:, 0], self._footer[2][:, 1]

    def _row_groups(self, metadata: Any, groups: NDArray[np.int64], path: Path) -> list[int]:
        """The same row groups, after their sizes have been checked."""
        found, total = [], 0
        for group in groups.tolist():
            total += meta_files.row_group_bytes(metadata, group, path, self.budget)
            self.budget.check(f"lerobot: {path}: row group {group}", total, path.stat().st_size)
            found.append(group)
        return found

    def _times(self, table: Any) -> NDArray[Any]:
        """Exact multiples of 1 / fps where the float32 timestamps say no more than that; else what they say."""
        if "timestamp" not in table.column_names or self._given_rate:
            return index_to_ns(self._frame_index(table), self._rate_hz)
        stored = table.column("timestamp").to_numpy()
        ideal = self._frame_index(table) / self._info["fps"]
        if np.array_equal(stored.astype(np.float32), ideal.astype(np.float32)):
            return index_to_ns(self._frame_index(table), self._rate_hz)
        return np.asarray(stored, np.float64)

    def _video_seconds(self, table: Any) -> NDArray[np.float64]:
        """Where the rows are in their video: by the stored times, whatever rate the user gives."""
        if "timestamp" in table.column_names:
            return np.asarray(table.column("timestamp").to_numpy(), np.float64)
        return np.asarray(self._frame_index(table) / self._info["fps"], np.float64)

    def _frame_index(self, table: Any) -> NDArray[np.int64]:
        if "frame_index" in table.column_names:
            return np.asarray(table.column("frame_index").to_numpy(), np.int64)
        return np.arange(table.num_rows, dtype=np.int64)

    def _check_size(self, index: int, num_rows: int) -> None:
        total = sum(spec.row_bytes for spec in self.specs.values()) * num_rows
        self.budget.check(self.label(index), total)

    def _column(self, table: Any, spec: StreamSpec, where: str) -> NDArray[Any]:
        if spec.name not in table.column_names:
            raise FormatError(f"{where} has no column {spec.name}, which meta/info.json declares")
        column = table.column(spec.name).combine_chunks()
        if spec.meta.get("stored") == "image":
            values = np.empty((table.num_rows, *spec.shape), spec.numpy_dtype)
            for row in range(table.num_rows):
                at = f"{where}, stream {spec.name}, row {row}"
                values[row] = decode_picture(
                    self._picture(column[row].as_py(), at), spec.shape, "lerobot", at, self.budget
                )
            return values
        values = flat_values(column, f"{where}, stream {spec.name}")
        if values.dtype.name not in DTYPES:
            raise FormatError(f"{where}, stream {spec.name}: a column of {column.type} where {spec.dtype} is declared")
        if values.size * spec.numpy_dtype.itemsize != num_bytes((table.num_rows,), spec.row_bytes):
            raise FormatError(
                f"{where}, stream {spec.name}: {values.size} values for {table.num_rows} rows of shape {spec.shape}"
            )
        values = values.reshape(int(table.num_rows), *spec.shape)
        return as_declared(values, spec.dtype, f"{where}, stream {spec.name}")

    def _picture(self, cell: Any, where: str) -> bytes:
        if isinstance(cell, dict):
            if isinstance(data := cell.get("bytes"), bytes):
                return data
            if isinstance(cell.get("path"), str):
                return read_file(self.tree.file(cell["path"]), MAX_PICTURE_BYTES)
        if isinstance(cell, bytes):
            return cell
        raise FormatError(f"{where}: there is no picture")

    def _picture_shape(
        self, name: str, dtype: str, shape: tuple[int, ...], names: tuple[str, ...] | None
    ) -> tuple[int, ...]:
        """(height, width, channels), or (height, width) of 16-bit depth. What is declared may be in another order, or
        wrong; the first picture is not."""
        if dtype == "image" and self._episodes:
            table, whole = self._table(self._episodes[0], name)
            if table.num_rows and name in table.column_names:
                where = f"lerobot: {self.path}: {whole}, stream {name}, row 0"
                picture = self._picture(table.column(name)[0].as_py(), where)
                found, pixel = picture_size(picture, "lerobot", where, self.budget)
                if pixel not in ("uint8", "uint16"):
                    raise FormatError(f"{where}: pictures must have 8 or 16 bits, got {pixel}")
                return found
        if len(shape) != 3:
            raise FormatError(f"lerobot: {self.path}/meta/info.json: feature {name} must have 3 sizes, got {shape}")
        first = names[0] if names else ""
        channels_first = first.startswith("channel") or (not names and shape[0] in (1, 3) and shape[2] not in (1, 3))
        return (shape[1], shape[2], shape[0]) if channels_first else shape

    def _clip(self, placed: Placed, name: str) -> tuple[Path, float]:
        """The video file of the episode and where in it the episode begins."""
        if name not in placed.videos:
            raise FormatError(
                f"lerobot: {self.path}: meta/episodes names no video for {name} of episode {placed.index}"
            )
        file, begin_s = placed.videos[name]
        return self.tree.file(file), begin_s
