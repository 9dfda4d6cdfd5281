"""A LeRobot 3.0 dataset with videos as LeRobot 0.6 writes them: AV1 (libsvtav1), yuv420p, g=2, crf 30."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import robocache
from numpy.typing import NDArray
from robocache import Episode, EpisodeStream, StreamSpec
from robocache.sources.lerobot.write_video import kept_scheduling

ENCODER = {"g": "2", "crf": "30", "preset": "12"}
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


@dataclass(frozen=True)
class Shape:
    """What a dataset looks like."""

    name: str
    height: int
    width: int
    cameras: int
    fps: int
    frames: int  # that are encoded: one episode
    episodes: int  # the same packets again, so that samples of a batch seldom meet in a GOP

    @property
    def camera_names(self) -> list[str]:
        return [f"observation.images.camera_{i}" for i in range(self.cameras)]


SHAPES = (
    Shape("pusht-like", 96, 96, 1, 10, 120, 100),
    Shape("aloha-like", 480, 640, 4, 50, 120, 20),
    Shape("koch-like", 480, 640, 2, 30, 120, 20),
)


class Arm:
    """State and action of the episodes; the videos are added to what ``export`` writes of it."""

    format = "made"
    path = Path()

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.metadata: dict[str, Any] = {}
        rate_hz = float(shape.fps)
        self.specs = {
            name: StreamSpec(name, "float32", (6,), rate_hz=rate_hz) for name in ("observation.state", "action")
        }

    def __len__(self) -> int:
        return self.shape.episodes

    def episode(self, index: int) -> Episode:
        rng = np.random.default_rng(index)
        times = np.rint(np.arange(self.shape.frames) * 1e9 / self.shape.fps).astype(np.int64)
        rows = rng.normal(size=(self.shape.frames, 6)).astype(np.float32)
        return Episode(index, {n: EpisodeStream(s, rows, times) for n, s in self.specs.items()}, task="sort")

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def fingerprint(self) -> str:
        return self.shape.name


def scenes(shape: Shape, seed: int) -> Iterator[NDArray[np.uint8]]:
    """A textured scene that moves, with the noise of a camera."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (shape.height // 16 + 2, (shape.width + 2 * shape.frames) // 16 + 2, 3))
    wide = small.repeat(16, 0).repeat(16, 1).astype(np.int16)
    wide = (wide + np.roll(wide, 7, 0) + np.roll(wide, 9, 1)) // 3
    for i in range(shape.frames):
        view = wide[: shape.height, 2 * i : 2 * i + shape.width]
        yield np.clip(view + rng.integers(-5, 6, view.shape), 0, 255).astype(np.uint8)


def write_video(path: Path, shape: Shape, seed: int) -> None:
    """One episode is encoded; its packets are repeated for the others."""
    path.parent.mkdir(parents=True)
    once = path.with_suffix(".once.mp4")
    with av.open(str(once), "w") as container:
        stream = container.add_stream("libsvtav1", rate=shape.fps, options=ENCODER)
        stream.height, stream.width, stream.pix_fmt = shape.height, shape.width, "yuv420p"
        with kept_scheduling():
            stream.codec_context.open()
        for frame in scenes(shape, seed):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    with av.open(str(path), "w") as out:
        for episode in range(shape.episodes):
            with av.open(str(once)) as container:
                source = container.streams.video[0]
                if episode == 0:
                    stream = out.add_stream_from_template(source, opaque=True)
                    stream.time_base = source.time_base
                shift = round(episode * shape.frames / shape.fps / source.time_base)
                for packet in container.demux(source):
                    if packet.size:
                        packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, stream
                        out.mux(packet)
    once.unlink()


def write_dataset(root: Path, shape: Shape) -> None:
    robocache.export(Arm(shape), root, fps=shape.fps)
    info = json.loads((root / "meta/info.json").read_text())
    info["video_path"] = VIDEO
    (table_path,) = (root / "meta/episodes").rglob("*.parquet")
    table = pq.read_table(table_path)
    seconds = shape.frames / shape.fps
    for i, name in enumerate(shape.camera_names):
        write_video(root / VIDEO.format(video_key=name, chunk_index=0, file_index=0), shape, i)
        facts = {"height": shape.height, "width": shape.width, "codec": "av1", "pix_fmt": "yuv420p"}
        facts |= {"is_depth_map": False, "fps": shape.fps, "channels": 3}
        info["features"][name] = {
            "dtype": "video", "shape": [shape.height, shape.width, 3], "names": ["height", "width", "channels"],
            "info": {f"video.{key}": value for key, value in facts.items()} | {"has_audio": False},
        }  # fmt: skip
        begins = np.arange(shape.episodes) * seconds
        columns: dict[str, Any] = {
            "chunk_index": np.zeros(shape.episodes, np.int64), "file_index": np.zeros(shape.episodes, np.int64),
            "from_timestamp": begins, "to_timestamp": begins + seconds,
        }  # fmt: skip
        for key, column in columns.items():
            table = table.append_column(f"videos/{name}/{key}", pa.array(column))
    pq.write_table(table, table_path)
    (root / "meta/info.json").write_text(json.dumps(info))
