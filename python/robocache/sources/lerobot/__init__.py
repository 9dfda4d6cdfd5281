"""LeRobot v3.0 and v2.1: Parquet tables of frames, pictures in them or in videos, all at one rate."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import DTYPES, JSON, LeftOut, StreamSpec
from ..reading.budget import BUDGET, Budget
from ..reading.declared import as_declared, flat_values
from ..reading.images import (
    DECODED_DEPTH,
    MAX_PICTURE_BYTES,
    PICTURES,
    decode_picture,
    encoded_picture,
    mark_of,
    picture_size,
    stored_codec,
)
from ..reading.paths import need, num_bytes, read_file
from ..reading.repair import LATEST_S, Repairer
from ..reading.source import BaseSource, Rows, text_rows, text_spec
from ..reading.times import SECOND_NS, checked_rate, index_to_ns
from . import depth as depth_maps
from . import meta as meta_files
from .language import COLUMNS as LANGUAGE
from .language import Language
from .meta import Placed
from .packets import codec_of_video, read_packets
from .tables import Tables, text_column
from .video import Frames, read_video

AUTOMATIC = ("timestamp", "frame_index", "episode_index", "index", "task_index")
TASK = "task_index"
"""A stream only where the task changes within an episode."""


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
    encoded: bool = False,
    automatic: bool = False,
) -> LeRobot:
    """``video``: read the videos. ``rate_hz``: instead of the ``fps`` of info.json, where that is wrong. Datasets in
    the cache of the Hugging Face hub are links out of their folder: ``follow_symlinks=True``. ``encoded``: pictures in
    the tables and packets of videos stay as they are (``StreamSpec.codec``). ``automatic``: the columns that LeRobot
    fills in (``timestamp``, ``frame_index``, ``episode_index``, ``index``, ``task_index``) are streams, too."""
    return LeRobot(Path(path), video, rate_hz, automatic, (repair, budget, follow_symlinks, encoded))


class LeRobot(BaseSource):
    format = "lerobot"

    def __init__(
        self, path: Path, video: bool, rate_hz: float | None, automatic: bool, shared: tuple[Any, ...]
    ) -> None:
        super().__init__(path, *shared)
        self._automatic = automatic
        need("pyarrow.parquet", "lerobot")
        info, problems = meta_files.read_info(self.tree, self.budget)
        for problem in problems:
            warnings.warn(f"open: {path}/meta/info.json: {problem}", stacklevel=4)
        self._info = info
        self._rate_hz = float(info["fps"]) if rate_hz is None else checked_rate("rate_hz", rate_hz)
        self._given_rate = rate_hz is not None
        self._tables = Tables(self.budget)
        self._stats = meta_files.EpisodeStats(Tables(self.budget))
        self._tasks = meta_files.read_tasks(self.tree, self._tables, self.budget)
        self._episodes = meta_files.read_episodes(self.tree, self._tables, info, self.budget)
        self._codes: dict[str, NDArray[Any]] = {}
        """Of depth videos: the depth of each code."""
        self.metadata = {
            "info": info,
            "tasks": {str(index): task for index, task in self._tasks.items()},
            "stats": meta_files.read_stats(self.tree, self.budget),
            "problems": problems,
        }
        self._language = Language(self.budget)
        self._add_specs(video)
        self._list_frames()
        self._list_columns()
        self.left_out += meta_files.not_listed(self.tree, info, self._episodes, self.budget)
        if lost := [entry.name for entry in self.left_out if entry.option is None]:
            self.metadata["left_out"] = lost

    def _add_specs(self, video: bool) -> None:
        for name, feature in self._info["features"].items():
            where = f"lerobot: {self.path}/meta/info.json: feature {name}"
            dtype, shape, names = meta_files.read_feature(where, feature)
            spec: StreamSpec | LeftOut | None = None
            if name in AUTOMATIC and not (self._automatic and dtype in DTYPES):
                spec = StreamSpec(TASK, "int64", shape, "vector", self._rate_hz) if self._is_task_stream(name) else None
            elif dtype == "video" and not video:
                spec = LeftOut(name, "videos are not decoded", "video=True")
            elif dtype == "video" and depth_maps.is_depth_map(feature):
                spec = self._depth_video(where, name, feature, shape, names)
            elif dtype in ("image", "video"):
                spec = self._pictures(name, feature, dtype, shape, names)
            elif dtype in DTYPES:
                spec = StreamSpec(name, dtype, shape, "vector", self._rate_hz, names=names)
            elif dtype == "string" and shape in ((), (1,)):
                spec = text_spec(name)
            elif dtype == "language" and name in LANGUAGE:
                spec = self._add_language(name)
            else:  # lists of texts, and what later versions add
                what = f"features of dtype {dtype} and shape {list(shape)}"
                spec = LeftOut(name, f"{what} are neither numbers nor a text")
            if isinstance(spec, LeftOut):
                self.left_out.append(spec)
            elif spec is not None:
                self.specs[spec.name] = spec
        for name, spec in self.specs.items():
            self.budget.check(f"lerobot: {self.path}/meta/info.json: one row of feature {name}", spec.row_bytes)

    def _add_language(self, name: str) -> LeftOut | None:
        """Adds the streams of a language column. Which styles there are is not declared: all its entries are read."""
        files = [file for file in dict.fromkeys(p.data_file for p in self._episodes) if self.tree.has(file)]
        pieces = (piece for file in files for piece in self._tables.pieces(self.tree.file(file), name))
        found = self._language.scan(name, pieces, f"lerobot: {self.path}: {name}")
        if isinstance(found, LeftOut):
            return found
        self.specs |= {spec.name: spec for spec in found}
        return None

    def _is_task_stream(self, name: str) -> bool:
        if name != TASK:
            return False
        have_tasks = any(placed.tasks for placed in self._episodes)
        return any(len(placed.tasks) > 1 for placed in self._episodes) if have_tasks else len(self._tasks) > 1

    def _list_frames(self) -> None:
        """Frames of v3.0 that are in a table of listed episodes, but in no listed episode."""
        if self._info["layout"] != "v3.0" or any(placed.length is None for placed in self._episodes):
            return
        listed: dict[str, int] = {}
        for placed in self._episodes:
            listed[placed.data_file] = listed.get(placed.data_file, 0) + (placed.length or 0)
        for file, known in listed.items():
            self.budget.check_time(f"lerobot: {self.path}")
            try:
                num_rows = self._tables.num_rows(self.tree.file(file))
            except FormatError:  # an error where its episodes are read
                continue
            if num_rows > known:
                what = f"{file}: {num_rows - known} of {num_rows} frames"
                self.left_out.append(LeftOut(what, "no episode of meta/episodes has them"))

    def _list_columns(self) -> None:
        """Columns that info.json does not declare are not read. Those of other tables are in the meta of an episode."""
        self._listed: list[str] = []
        if not self._episodes or not self.tree.has(self._episodes[0].data_file):
            return
        self._listed = self._undeclared(self.tree.file(self._episodes[0].data_file))
        self.left_out += [LeftOut(name, "a column that meta/info.json does not declare") for name in self._listed]

    def _undeclared(self, path: Path) -> list[str]:
        known = (*self._info["features"], *AUTOMATIC, *self._listed)
        return [name for name in self._tables.columns(path) if name not in known]

    def __len__(self) -> int:
        return len(self._episodes)

    def files(self) -> Iterable[Path]:
        return [path for folder in ("meta", "data", "videos") for path in self.tree.glob(f"{folder}/**/*")]

    def read_streams(
        self, index: int, repairer: Repairer, names: Collection[str]
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        return self.read(index, repairer, names)

    def read(
        self, index: int, repairer: Repairer, names: Collection[str] | None = None
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        placed = self._episodes[index]
        wanted = self.specs if names is None else names
        specs = [spec for spec in self.specs.values() if spec.name in wanted]
        if not self._automatic:
            specs = [spec for spec in specs if spec.name != TASK]  # below, with what it means
        said = [spec for spec in specs if spec.name in self._language.keys]
        specs = [spec for spec in specs if spec.name not in self._language.keys]
        stored = [spec.name for spec in specs if spec.meta.get("stored") != "video"]
        stored += dict.fromkeys(self._language.keys[spec.name].selector.column for spec in said)
        table = self._tables.episode(self.tree.file(placed.data_file), placed.index, [*AUTOMATIC, *stored])
        num_rows = int(table.num_rows)
        if "episode_index" not in table.column_names and self._info["layout"] == "v3.0":  # a table of several episodes
            raise FormatError(f"{repairer.where}, {placed.data_file} must have a column episode_index")
        if placed.length is not None and placed.length != num_rows:
            file = placed.data_file
            what = f"row {min(num_rows, placed.length)}: {file} has {num_rows} frames, meta/episodes {placed.length}"
            repairer.apply_policy("missing", "timestamp", abs(placed.length - num_rows), what)
        elif self._info["layout"] == "v2.1":  # a file per episode
            others = self._tables.num_rows(self.tree.file(placed.data_file)) - num_rows
            if others:
                what = f"row {num_rows}: {placed.data_file} has {others} frames of other episodes (episode_index)"
                repairer.apply_policy("missing", "timestamp", others, what)
        times = self._times(table, repairer.where)
        self.budget.check(self.label(index), sum(s.row_bytes for s in specs if not s.codec) * num_rows)
        rows = []
        for spec in specs:
            if spec.meta.get("stored") == "video":
                clip, seconds = self._clip(placed, spec.name), self._video_seconds(table, repairer.where)
                values: Any
                how = (seconds, self._info["fps"], repairer, self.budget)
                if spec.codec is not None:
                    values, kept = read_packets(clip, spec, *how)
                else:
                    values, kept = read_video(clip, Frames(spec, self._codes.get(spec.name)), *how)
                rows.append(Rows(spec, values, times[kept]))
            elif spec.kind == "text":
                where = f"{repairer.where}, {placed.data_file}, stream {spec.name}"
                rows.append(text_rows(spec, text_column(table, spec.name, where), times, where, self.budget))
            else:
                where = f"{repairer.where}, {placed.data_file}, stream {spec.name}"
                rows.append(Rows(spec, self._column(table, spec, where), times.copy()))
        where = f"{repairer.where}, {placed.data_file}"
        rows += self._language.rows(table, said, times, self._time_of(table, times, where), where)
        tasks = placed.tasks
        if TASK in table.column_names:
            numbers = self._numbers(table, TASK, repairer.where)
            texts = {int(n): self._tasks.get(int(n)) for n in dict.fromkeys(numbers.tolist())}
            if None not in texts.values():  # else what meta/episodes says: a number is not a task
                tasks = [text for text in texts.values() if text is not None] or tasks
            if not self._automatic and (TASK in wanted or (len(texts) > 1 and names is None)):
                shape = self.specs[TASK].shape if TASK in self.specs else (1,)
                spec = StreamSpec(TASK, "int64", shape, "vector", self._rate_hz)
                rows.append(Rows(spec, numbers.reshape(num_rows, *shape), times.copy()))
        meta: dict[str, JSON] = {"episode_index": placed.index, "tasks": tasks}
        if undeclared := self._undeclared(self.tree.file(placed.data_file)):
            meta["left_out"] = [f"column {name}: meta/info.json does not declare it" for name in undeclared]
        if placed.stats is not None:
            meta["stats"] = self._stats.read(*placed.stats) if isinstance(placed.stats, tuple) else placed.stats
        return rows, tasks[0] if len(tasks) == 1 else None, meta

    def _times(self, table: Any, where: str) -> NDArray[Any]:
        """Exact multiples of 1 / fps where the float32 timestamps say no more than that; else what they say."""
        index = self._frame_index(table, where)
        if "timestamp" not in table.column_names or self._given_rate:
            self._require_column(table, "frame_index" if self._given_rate else "timestamp", where)
            return index_to_ns(index, self._rate_hz)
        stored = table.column("timestamp").to_numpy()
        if stored.dtype.kind not in "iuf":
            what = table.column("timestamp").type
            raise FormatError(f"{where}, column timestamp must have one number for each row, got {what}")
        ideal = index / self._info["fps"]
        rounded = ideal.astype(np.float32)  # as LeRobot stores them; other writers have float64
        exact = stored.dtype == np.float64 and bool((np.abs(stored - ideal) <= 2 * np.spacing(ideal)).all())
        if exact or np.array_equal(stored.astype(np.float64), rounded.astype(np.float64)):
            return index_to_ns(index, self._rate_hz)
        return np.asarray(stored, None if stored.dtype.kind == "f" else np.float64)

    def _require_column(self, table: Any, name: str, where: str) -> None:
        """Times are made only where the dataset declares none."""
        if name in self._info["features"] and name not in table.column_names:
            raise FormatError(f"{where}: the column {name} is missing, but meta/info.json declares it")

    def _time_of(self, table: Any, times: NDArray[Any], where: str) -> Callable[[float], float]:
        """Of a timestamp that an annotation has: that of the frame with the same timestamp, else by the rate."""
        seconds = self._video_seconds(table, where).astype(np.float32)
        frames: dict[float, float] = dict(zip(seconds.tolist(), times.tolist(), strict=True))
        scale = float(self._info["fps"] / self._rate_hz)
        floats = times.dtype.kind == "f"

        def time_of(second: float) -> float:
            found = frames.get(float(np.float32(second)))
            if found is not None:
                return found
            return second * scale if floats else round(second * scale * SECOND_NS)

        return time_of

    def _video_seconds(self, table: Any, where: str) -> NDArray[np.float64]:
        """Where the rows are in their video: by the stored times, whatever rate the user gives."""
        if "timestamp" in table.column_names:
            return np.asarray(table.column("timestamp").to_numpy(), np.float64)
        return np.asarray(self._frame_index(table, where) / self._info["fps"], np.float64)

    def _frame_index(self, table: Any, where: str) -> NDArray[np.int64]:
        if "frame_index" not in table.column_names:
            return np.arange(table.num_rows, dtype=np.int64)
        where = f"{where}, column frame_index"
        stored = flat_values(table.column("frame_index").combine_chunks(), where)
        if stored.size != table.num_rows or stored.dtype.kind not in "iuf":
            raise FormatError(f"{where} must have one number for each row, got {stored.dtype} {stored.shape}")
        index = as_declared(stored.reshape(-1), "int64", where)
        if (late := np.abs(index.astype(np.float64)) >= LATEST_S * min(self._rate_hz, self._info["fps"])).any():
            row = int(late.argmax())
            raise FormatError(f"{where}, row {row}: frame {index[row]} is outside the int64 nanosecond range")
        return index

    def _numbers(self, table: Any, name: str, where: str) -> NDArray[np.int64]:
        values = flat_values(table.column(name).combine_chunks(), f"{where}, column {name}")
        if values.dtype.kind not in "iu" or values.size != table.num_rows:
            raise FormatError(f"{where}, column {name} must have one integer for each row, got {values.dtype}")
        return values.astype(np.int64).reshape(-1)

    def _column(self, table: Any, spec: StreamSpec, where: str) -> Any:
        """An array, or encoded pictures."""
        if spec.name not in table.column_names:
            raise FormatError(f"{where}: the column is missing, but meta/info.json declares it")
        column = table.column(spec.name).combine_chunks()
        if spec.codec is not None:
            return self._encoded(column, spec, where)
        if spec.meta.get("stored") == "image":
            values = np.empty((table.num_rows, *spec.shape), spec.numpy_dtype)
            for row in range(table.num_rows):
                at = f"{where}, row {row}"
                values[row] = self._decoded(self._picture(column[row].as_py(), at), spec, at)
                self.budget.check_time(at)
            return values
        values = flat_values(column, where, spec.shape)
        if values.dtype.name not in DTYPES:
            raise FormatError(f"{where}: a column of {column.type} where {spec.dtype} is declared")
        if values.size * spec.numpy_dtype.itemsize != num_bytes((table.num_rows,), spec.row_bytes):
            raise FormatError(f"{where}: {values.size} values for {table.num_rows} rows of shape {spec.shape}")
        values = values.reshape(int(table.num_rows), *spec.shape)
        return as_declared(values, spec.dtype, where)

    def _encoded(self, column: Any, spec: StreamSpec, where: str) -> list[bytes]:
        pictures, total = [], 0
        for row, cell in enumerate(column):
            at = f"{where}, row {row}"
            picture = self._picture(cell.as_py(), at)
            total += len(picture)
            self.budget.check(where, 2 * total)
            pictures.append(encoded_picture(picture, spec, "lerobot", at, self.budget))
        return pictures

    def _decoded(self, picture: bytes, spec: StreamSpec, where: str) -> NDArray[Any]:
        if depth_maps.is_tiff(picture):
            return depth_maps.decode_tiff(picture, spec.shape, spec.dtype, where, self.budget)
        return decode_picture(picture, spec.shape, "lerobot", where, self.budget)

    def _picture(self, cell: Any, where: str) -> bytes:
        if isinstance(cell, dict):
            if isinstance(data := cell.get("bytes"), bytes):
                return data
            if isinstance(cell.get("path"), str):
                return read_file(self.tree.file(cell["path"]), MAX_PICTURE_BYTES)
        if isinstance(cell, bytes):
            return cell
        raise FormatError(f"{where}: there is no picture")

    def _pictures(
        self, name: str, feature: Any, dtype: str, shape: tuple[int, ...], names: tuple[str, ...] | None
    ) -> StreamSpec | LeftOut:
        """Images, or depth where pictures have 16 bits or are floats. What is declared may be in another order, or
        wrong; the first picture is not. One that is damaged is an error where the stream is read."""
        found: tuple[tuple[int, ...], str | None] | None = None
        codec, meta = None, {"stored": dtype}
        if dtype == "image" and self._episodes:
            try:
                picture, found = self._first_picture(name)
            except FormatError:
                found = None
            if found is not None and picture and self.encoded and not depth_maps.is_tiff(picture):
                codec = stored_codec(picture, "image" if found[1] == "uint8" else "depth", str(found[1]), found[0])
                if codec is None:
                    meta |= mark_of(picture, True)
            elif found is not None and picture and self.encoded:
                meta[PICTURES] = DECODED_DEPTH
            elif found is not None and picture:
                meta |= mark_of(picture, False)
        size, pixel = found or (self._declared_size(name, shape, names), "uint8")
        depth = depth_maps.is_depth_map(feature)
        if pixel == "uint8" and not (depth and found):
            spec = StreamSpec(name, "uint8", size, "image", self._rate_hz, meta=meta, codec=codec)
            return self._kept_video(spec) if dtype == "video" and self.encoded and self._episodes else spec
        if pixel not in ("uint16", "float32"):
            kind = "8-bit depth maps, which have no unit"
            if pixel is None:
                kind = "TIFF of another kind than uncompressed uint16 or float32"
            return LeftOut(name, f"its images are {kind}")
        unit = depth_maps.unit_of(feature) if depth else None
        return StreamSpec(name, pixel, size, "depth", self._rate_hz, unit, meta=meta, codec=codec)

    def _kept_video(self, spec: StreamSpec) -> StreamSpec:
        """The stream with the codec of its first video, if such packets can be kept."""
        try:
            path, _ = self._clip(self._episodes[0], spec.name)
        except FormatError:  # an error where the stream is read
            return spec
        return dataclasses.replace(spec, codec=codec_of_video(path, spec))

    def _first_picture(self, name: str) -> tuple[bytes, tuple[tuple[int, ...], str | None] | None]:
        """The picture, and its size and dtype; None where there is none."""
        first = self._episodes[0]
        table = self._tables.episode(self.tree.file(first.data_file), first.index, [name])
        if not table.num_rows or name not in table.column_names:
            return b"", None
        where = f"lerobot: {self.path}: {first.data_file}, stream {name}, row 0"
        picture = self._picture(table.column(name)[0].as_py(), where)
        if depth_maps.is_tiff(picture):
            return picture, depth_maps.tiff_size(picture, where, self.budget)
        return picture, picture_size(picture, "lerobot", where, self.budget)

    def _declared_size(self, name: str, shape: tuple[int, ...], names: tuple[str, ...] | None) -> tuple[int, ...]:
        """(height, width, channels)"""
        if len(shape) != 3:
            raise FormatError(f"lerobot: {self.path}/meta/info.json: feature {name} must have 3 sizes, got {shape}")
        first = names[0] if names else ""
        channels_first = first.startswith("channel") or (not names and shape[0] in (1, 3) and shape[2] not in (1, 3))
        return (shape[1], shape[2], shape[0]) if channels_first else shape

    def _depth_video(
        self, where: str, name: str, feature: dict[str, Any], shape: tuple[int, ...], names: tuple[str, ...] | None
    ) -> StreamSpec | LeftOut:
        info = feature.get("info")
        pixels = info.get("video.pix_fmt") if isinstance(info, dict) else None
        if pixels is not None and pixels != depth_maps.CODES:
            return LeftOut(
                name, f"depth video of pixel format {str(pixels)[:40]}; only {depth_maps.CODES} is supported"
            )
        size = self._declared_size(name, (*shape, 1) if len(shape) == 2 else shape, names)[:2]
        quantizer = depth_maps.quantizer_of(feature, where)
        unit = depth_maps.unit_of(feature) or "mm"  # codes are in meters: the unit is a choice, and this LeRobot's
        if quantizer.depth_max * depth_maps.MM_PER_M > np.iinfo(np.uint16).max:
            unit = "m"
        self._codes[name] = quantizer.table(unit)
        meta = {"stored": "video", "quantizer": quantizer.to_json()}
        if self.encoded:
            meta[PICTURES] = DECODED_DEPTH
        return StreamSpec(name, self._codes[name].dtype.name, size, "depth", self._rate_hz, unit, meta=meta)

    def _clip(self, placed: Placed, name: str) -> tuple[Path, float]:
        """The video file of the episode and where in it the episode begins."""
        if name not in placed.videos:
            raise FormatError(
                f"lerobot: {self.path}: meta/episodes names no video for {name} of episode {placed.index}"
            )
        file, begin_s = placed.videos[name]
        return self.tree.file(file), begin_s
