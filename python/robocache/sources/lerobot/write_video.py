"""Videos of a LeRobot v3.0 dataset: the pictures of many episodes in one MP4, and where each episode lies in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import JSON, StreamSpec
from ..reading.paths import need

VIDEO_V30 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILE_BYTES = 200 << 20
PIXELS = "yuv420p"
TASKS = "/proc/self/task"
"""The threads of this process."""


@dataclass(frozen=True)
class Encoder:
    """The settings of LeRobot 0.6 for this codec: every second frame is a key frame, because training reads frames in
    any order."""

    name: str
    encoder: str
    preset: int | None = None
    g: int = 2
    crf: int = 30
    even_sizes: bool = False
    """x264 takes no odd height or width of yuv420p."""

    def options(self) -> dict[str, str]:
        options = {"g": str(self.g), "crf": str(self.crf)}
        if self.preset is not None:
            options |= {"preset": str(self.preset), "svtav1-params": "fast-decode=0"}
        return options


ENCODERS = {
    "av1": Encoder("av1", "libsvtav1", preset=12),
    "h264": Encoder("h264", "libx264", even_sizes=True),
}


def video_problem(spec: StreamSpec, video: str) -> str:
    """Why a stream of images is not written as this video; empty if it is."""
    if spec.dtype != "uint8" or len(spec.shape) != 3 or spec.shape[2] != 3:
        return f"videos have 3 channels of uint8, not {spec.dtype} of shape {spec.shape}"
    if ENCODERS[video].even_sizes and (spec.shape[0] % 2 or spec.shape[1] % 2):
        return f"{video} needs an even height and width, not {spec.shape[0]} x {spec.shape[1]}"
    return ""


class VideoFiles:
    """MP4 files of one camera, of about 200 MB, a thousand to a chunk. The first frame of an episode is a key frame."""

    def __init__(self, root: Path, spec: StreamSpec, fps: float, video: str, chunk_files: int) -> None:
        self.root, self.spec, self.fps, self.chunk_files = root, spec, fps, chunk_files
        self.settings = ENCODERS[video]
        self.av = need("av", "lerobot")
        if self.settings.encoder not in self.av.codecs_available:
            raise NotImplementedError(
                f"export: video_codec={video!r} needs the encoder {self.settings.encoder}, which this PyAV "
                f"({self.av.__version__}) does not have"
            )
        self.rate = Fraction(fps).limit_denominator(1_000_000)
        self.chunk, self.file = 0, -1
        self.frames = self.episode_begin = self.size_bytes = 0
        """Frames of the current file, where in it the episode begins, and the bytes of its packets."""
        self.path: Path | None = None
        self._container: Any = None
        self._stream: Any = None
        self._is_first = True

    def begin_episode(self) -> None:
        if self.path is None or self.size_bytes >= FILE_BYTES:
            self.close()
            self.file += 1
            if self.file == self.chunk_files:
                self.chunk, self.file = self.chunk + 1, 0
            name = VIDEO_V30.format(video_key=self.spec.name, chunk_index=self.chunk, file_index=self.file)
            self.path = self.root / name
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open(self.path)
        self.episode_begin, self._is_first = self.frames, True

    def _open(self, path: Path) -> None:
        with self._named_errors(), quiet_encoder(), kept_scheduling():
            self._container = self.av.open(os.fspath(path), "w", format="mp4")
            self._stream = self._container.add_stream(
                self.settings.encoder, rate=self.rate, options=self.settings.options()
            )
            self._stream.pix_fmt = PIXELS
            self._stream.height, self._stream.width = self.spec.shape[:2]
            self._stream.codec_context.open()
        self.frames = self.size_bytes = 0

    def _mux(self, frame: Any) -> None:
        packets = self._stream.encode(frame)
        self.size_bytes += sum(packet.size for packet in packets)
        self._container.mux(packets)

    def add(self, pictures: Iterable[NDArray[np.uint8]]) -> None:
        """The next frames of the episode."""
        for picture in pictures:
            with self._named_errors():
                frame = self.av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                frame.pts, frame.time_base = self.frames, 1 / self.rate
                if self._is_first:
                    frame.pict_type = self.av.video.frame.PictureType.I
                self._mux(frame)
            self._is_first = False
            self.frames += 1

    def place(self) -> dict[str, JSON]:
        """Columns of meta/episodes: file of the episode that was added, and its seconds in it."""
        key = f"videos/{self.spec.name}"
        return {
            f"{key}/chunk_index": self.chunk,
            f"{key}/file_index": self.file,
            f"{key}/from_timestamp": self.episode_begin / self.fps,
            f"{key}/to_timestamp": self.frames / self.fps,
        }

    def close(self) -> None:
        if self._container is None:
            return
        with self._named_errors():
            self._mux(None)
            self._container.close()
        self._container = self._stream = None
        assert self.path is not None
        with self.path.open("rb") as file:
            os.fsync(file.fileno())

    def feature(self) -> dict[str, JSON]:
        """As LeRobot describes a video in info.json."""
        settings, (height, width) = self.settings, self.spec.shape[:2]
        rate = int(self.fps) if float(self.fps).is_integer() else self.fps
        info = {
            **{"height": height, "width": width, "codec": settings.name, "pix_fmt": PIXELS, "fps": rate, "channels": 3},
            **{"g": settings.g, "crf": settings.crf, "preset": settings.preset, "fast_decode": 0},
            **{"video_backend": "pyav", "extra_options": {}},
        }
        return {
            "dtype": "video",
            "shape": list(self.spec.shape),
            "names": ["height", "width", "channels"],
            "info": {**{f"video.{k}": v for k, v in info.items()}, "has_audio": False, "is_depth_map": False},
        }

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except self.av.error.FFmpegError as error:
            if isinstance(error, OSError) and error.errno in (28, 5, 27):  # no space, I/O error, file too large
                raise OSError(error.errno, f"export: {self.path}: {error.strerror}") from error
            raise FormatError(
                f"export: feature {self.spec.name}: {self.settings.encoder} cannot encode pictures of shape "
                f"{self.spec.shape}: {error}"
            ) from error


@contextmanager
def quiet_encoder() -> Iterator[None]:
    """SVT-AV1 prints its settings unless this variable is set when it is opened."""
    given = os.environ.get("SVT_LOG")
    os.environ.setdefault("SVT_LOG", "1")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop("SVT_LOG", None)


@contextmanager
def kept_scheduling() -> Iterator[None]:
    """As root, SVT-AV1 schedules the thread that opens it and its own threads in real time (SCHED_FIFO, 99). They keep
    other programs from the CPU, and processes that are started later inherit it. This restores the former policy."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    real_time = {task for task in os.listdir(TASKS) if is_real_time(task)}
    try:
        yield
    finally:
        for task in set(os.listdir(TASKS)) - real_time:
            with suppress(OSError):  # it has ended
                if is_real_time(task):
                    os.sched_setscheduler(int(task), policy, parameters)


def is_real_time(task: str) -> bool:
    with suppress(OSError):
        return os.sched_getscheduler(int(task)) in (os.SCHED_FIFO, os.SCHED_RR)
    return False


def video_columns(names: Iterable[str], arrow: Any) -> list[tuple[str, Any]]:
    """Of meta/episodes: name and type."""
    types = {"chunk_index": arrow.int64(), "file_index": arrow.int64()}
    types |= {"from_timestamp": arrow.float64(), "to_timestamp": arrow.float64()}
    return [(f"videos/{name}/{key}", kind) for name in names for key, kind in types.items()]
