"""Writes the files of a LeRobot v3.0 dataset: frames, tasks, statistics, and where each episode lies."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cache.cache import to_json
from ...cache.episode import JSON, EpisodeStream, StreamSpec
from ...ops.decode.png import has_plain_pixels
from ..reading.paths import need
from .depth import UNITS
from .meta import DATA_V30
from .stats import Counted, flat
from .write_video import VIDEO_V30, VideoFiles, video_columns

FILE_BYTES = 100 << 20
CHUNK_FILES = 1000
GROUP_BYTES = 64 << 20
"""Of decoded rows: a row group is an episode, or this much of it where it is longer."""
META_ROWS = 500
"""Rows of meta/episodes that are written together."""
AUTOMATIC = {
    "timestamp": StreamSpec("timestamp", "float32", (1,)),
    **{n: StreamSpec(n, "int64", (1,)) for n in ("frame_index", "episode_index", "index", "task_index")},
}


@dataclass(frozen=True)
class Pictures:
    """Frame i is row ``rows[i]`` of the stream. Encoded pictures are written as they are, others as PNG, once where
    they repeat."""

    stream: EpisodeStream
    rows: NDArray[np.int64]

    def pixels(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """Of frames ``[begin, end)``. Only these pictures are decoded, each once."""
        needed, which = np.unique(self.rows[begin:end], return_inverse=True)
        pictures = self.stream.pictures
        found = self.stream.values[needed] if pictures is None else pictures.decoded(self.stream.spec, needed)
        return (found[i] for i in which.reshape(-1))


Column = NDArray[Any] | Pictures


class LeRobotWriter:
    """``specs`` say what is written: kind ``image`` and ``depth`` as pictures, ``vector`` as numbers. ``videos``:
    names of images that become videos of the codec ``video`` instead."""

    def __init__(
        self,
        root: Path,
        specs: Mapping[str, StreamSpec],
        fps: float,
        robot_type: str | None,
        videos: Collection[str] = (),
        video: str = "av1",
    ) -> None:
        self.root, self.fps, self.robot_type = root, fps, robot_type
        self.arrow = need("pyarrow", "lerobot")
        need("pyarrow.parquet", "lerobot")
        self.specs = {**specs, **AUTOMATIC}
        self.tasks: dict[str, int] = {}
        self.episodes = self.frames = 0
        self.pending: list[dict[str, JSON]] = []
        self.counted = Counted(self.specs)
        self.videos = {name: VideoFiles(root, self.specs[name], fps, video, CHUNK_FILES) for name in videos}
        columns = [(name, self.arrow_type(spec)) for name, spec in self.specs.items() if name not in self.videos]
        self.data = Tables(root, DATA_V30, self.arrow.schema(columns))
        self.meta = Tables(root, f"meta/episodes/{DATA_V30.partition('/')[2]}", self.meta_schema())

    def abandon(self) -> None:
        """After an error: writes no more."""
        self.data.abandon()
        self.meta.abandon()

    def add(self, num_frames: int, columns: Mapping[str, Column], tasks: Sequence[str]) -> None:
        """The next episode: as many frames of every stream. ``tasks``: one of all frames, or one for each."""
        index = np.arange(num_frames, dtype=np.int64)
        numbers = [self.tasks.setdefault(task, len(self.tasks)) for task in tasks]
        automatic: dict[str, Column] = {
            "timestamp": (index / self.fps).astype(np.float32),
            "frame_index": index,
            "episode_index": np.full(num_frames, self.episodes, np.int64),
            "index": index + self.frames,
            "task_index": np.ascontiguousarray(np.broadcast_to(np.array(numbers, np.int64), num_frames)),
        }
        chunk, file = self.data.place()
        png = {name: PngEncoder(spec) for name, spec in self.specs.items() if spec.kind != "vector"}
        for files in self.videos.values():
            files.begin_episode()
        for begin, end in self.groups(num_frames):
            made = {}
            for name, spec in self.specs.items():
                column = automatic[name] if name in automatic else columns[name]
                if isinstance(column, Pictures):
                    pixels = [*column.pixels(begin, end)]
                    if name in self.videos:
                        self.videos[name].add(pixels)
                    else:
                        cells = png[name](column.stream, column.rows[begin:end], pixels)
                        made[name] = self.arrow.array(cells, self.arrow_type(spec))
                    for picture in pixels:
                        self.counted.add(name, picture[None])
                else:
                    part = np.ascontiguousarray(column[begin:end])
                    made[name] = self.array(part.reshape(len(part), *spec.shape), spec)
                    self.counted.add(name, part)
            self.data.write(self.arrow.table(made, self.data.schema))
        self.pending.append(
            {
                **{"episode_index": self.episodes, "tasks": list(dict.fromkeys(tasks)), "length": num_frames},
                **{"dataset_from_index": self.frames, "dataset_to_index": self.frames + num_frames},
                **{"data/chunk_index": chunk, "data/file_index": file},
                **{key: value for files in self.videos.values() for key, value in files.place().items()},
                **flat(self.counted.end_episode(num_frames)),
            }
        )
        if len(self.pending) == META_ROWS:
            self.write_pending()
        self.episodes += 1
        self.frames += num_frames

    def write_pending(self) -> None:
        chunk, file = self.meta.place()
        place = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
        self.meta.write(self.arrow.Table.from_pylist([row | place for row in self.pending], self.meta.schema))
        self.pending.clear()

    def finish(self) -> None:
        """The files that say what the others are."""
        if self.pending:
            self.write_pending()
        self.data.close()
        self.meta.close()
        for files in self.videos.values():
            files.close()
        write_tasks(self.arrow, self.root / "meta/tasks.parquet", self.tasks)
        write_json(self.root / "meta/stats.json", self.counted.of_dataset(self.frames))
        info = {
            "codebase_version": "v3.0",
            "robot_type": self.robot_type,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": FILE_BYTES >> 20,
            "video_files_size_in_mb": 200,
            "fps": int(self.fps) if float(self.fps).is_integer() else self.fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": DATA_V30,
            "video_path": VIDEO_V30 if self.videos else None,
            "features": {
                name: self.videos[name].feature() if name in self.videos else feature_of(spec)
                for name, spec in self.specs.items()
            },
        }
        write_json(self.root / "meta/info.json", info)

    def groups(self, num_frames: int) -> Iterator[tuple[int, int]]:
        step = max(1, GROUP_BYTES // max(1, sum(spec.row_bytes for spec in self.specs.values())))
        return ((begin, min(begin + step, num_frames)) for begin in range(0, num_frames, step))

    def arrow_type(self, spec: StreamSpec) -> Any:
        pa = self.arrow
        if spec.kind != "vector":
            return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        kind = pa.from_numpy_dtype(spec.numpy_dtype)
        if spec.shape == (1,):
            return kind
        if len(spec.shape) == 1:
            return pa.list_(kind, spec.shape[0])
        for _ in spec.shape:
            kind = pa.list_(kind)
        return kind

    def array(self, rows: NDArray[Any], spec: StreamSpec) -> Any:
        """(frames, ...) as a column: numbers, lists of numbers, lists of lists."""
        pa = self.arrow
        made = pa.array(rows.reshape(-1))
        if spec.shape == (1,):
            return made
        if len(spec.shape) == 1:
            return pa.FixedSizeListArray.from_arrays(made, spec.shape[0])
        for axis in range(len(spec.shape), 0, -1):
            ends = np.arange(math.prod(rows.shape[:axis]) + 1, dtype=np.int32) * spec.shape[axis - 1]
            made = pa.ListArray.from_arrays(pa.array(ends), made)
        return made

    def meta_schema(self) -> Any:
        pa = self.arrow
        numbers = ("length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
        columns = [("episode_index", pa.int64()), ("tasks", pa.list_(pa.string())), *((n, pa.int64()) for n in numbers)]
        columns += [(f"meta/episodes/{n}_index", pa.int64()) for n in ("chunk", "file")]
        columns += video_columns(self.videos, pa)
        columns += self.counted.columns(pa)
        return pa.schema(columns)


class Tables:
    """Parquet files of about 100 MB, a thousand to a chunk: chunk-000/file-000.parquet and on."""

    def __init__(self, root: Path, template: str, schema: Any) -> None:
        self.root, self.template, self.schema = root, template, schema
        self.chunk, self.file = 0, -1
        self._handle: Any = None
        self._writer: Any = None

    def place(self) -> tuple[int, int]:
        """Chunk and file that the next rows go to."""
        if self._handle is None or self._handle.tell() >= FILE_BYTES:
            self.close()
            self.file += 1
            if self.file == CHUNK_FILES:
                self.chunk, self.file = self.chunk + 1, 0
            path = self.root / self.template.format(chunk_index=self.chunk, file_index=self.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = path.open("wb")
            parquet = need("pyarrow.parquet", "lerobot")
            self._writer = parquet.ParquetWriter(self._handle, self.schema, compression="snappy")
        return self.chunk, self.file

    def write(self, table: Any) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def abandon(self) -> None:
        """After an error. A writer that is deleted ends its file, and prints the errors of that."""
        if self._writer is not None:
            self._writer.is_open = False

    def close(self) -> None:
        if self._handle is not None:
            self._writer.close()
            finish_file(self._handle)
            self._handle = self._writer = None


class PngEncoder:
    """Cells of a picture column. The same row twice in a row is encoded once."""

    def __init__(self, spec: StreamSpec) -> None:
        self.pillow = need("PIL.Image", "lerobot")
        self.spec = spec
        self.last: tuple[int, bytes] = (-1, b"")

    def __call__(
        self, stream: EpisodeStream, rows: NDArray[np.int64], pixels: Sequence[NDArray[Any]]
    ) -> list[dict[str, Any]]:
        cells = []
        for row, picture in zip(map(int, rows), pixels, strict=True):
            known = b"" if stream.pictures is None or self.last[0] == row else stream.pictures.picture(row)
            # LeRobot would take the numbers of a palette for pixels.
            if known and (stream.spec.codec == "jpeg" or has_plain_pixels(known)):
                self.last = (row, known)
            elif self.last[0] != row:
                picture = np.ascontiguousarray(picture)
                if picture.ndim == 3 and picture.shape[2] == 1:
                    picture = picture[:, :, 0]
                data = io.BytesIO()
                self.pillow.fromarray(picture).save(data, "PNG", compress_level=1)
                self.last = (row, data.getvalue())
            cells.append({"bytes": self.last[1], "path": None})
        return cells


def feature_of(spec: StreamSpec) -> dict[str, JSON]:
    if spec.kind == "vector":
        return {"dtype": spec.dtype, "shape": list(spec.shape), "names": list(spec.names) if spec.names else None}
    shape = [*spec.shape, 1] if len(spec.shape) == 2 else list(spec.shape)
    feature: dict[str, JSON] = {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
    unit = {"depth_unit": spec.unit} if spec.unit in UNITS else {}
    return feature | ({"info": {"is_depth_map": True, **unit}} if spec.kind == "depth" else {})


def write_tasks(arrow: Any, path: Path, tasks: Mapping[str, int]) -> None:
    """The text is the index of the table, as pandas reads and writes it."""
    parquet = need("pyarrow.parquet", "lerobot")
    text = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    number = {**text, "name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    axis = {**text, "name": None, "field_name": None, "metadata": {"encoding": "UTF-8"}}
    pandas = {"index_columns": ["task"], "column_indexes": [axis], "columns": [number, text], "pandas_version": "2.0.0"}
    columns = {
        "task_index": arrow.array(list(tasks.values()), arrow.int64()),
        "task": arrow.array(list(tasks), arrow.string()),
    }
    table = arrow.table(columns).replace_schema_metadata({"pandas": json.dumps(pandas)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        parquet.write_table(table, handle)
        finish_file(handle)


def write_json(path: Path, value: JSON) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        handle.write(json.dumps(json.loads(to_json(value)), indent=4, ensure_ascii=False).encode())
        finish_file(handle)


def finish_file(handle: Any) -> None:
    """Closed when its bytes are on the disk."""
    handle.flush()
    os.fsync(handle.fileno())
    handle.close()
