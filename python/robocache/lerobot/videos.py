"""Frames of the dataset's own video files at given times, by PyAV or torchcodec: those that LeRobot returns."""

from __future__ import annotations

import importlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._core import FormatError
from ..sources.lerobot.video import CONTAINERS
from ..sources.reading.paths import need

BACKENDS = ("torchcodec", "pyav", "video_reader")
MOST_OPEN = 32
"""Files that stay open, in each process."""
ABANDONED: list[Any] = []
"""Open files of the parent, in a forked process. Closing them would wait for threads that only the parent has."""


class FrameTimestampError(ValueError):
    """A video has no frame within ``tolerance_s`` of a time that an item needs.

    >>> from robocache.lerobot import FrameTimestampError
    >>> issubclass(FrameTimestampError, ValueError)
    True
    """


def chosen_backend(asked: str | None) -> str:
    """As LeRobot chooses: torchcodec if it can be imported, else PyAV. ``video_reader`` is its old name for PyAV."""
    if asked is None:
        with suppress(ImportError, OSError, RuntimeError):
            importlib.import_module("torchcodec")
            return "torchcodec"
        return "pyav"
    if asked not in BACKENDS:
        raise ValueError(f"LeRobotDataset: video_backend must be one of {', '.join(BACKENDS)} or None, got {asked!r}")
    return "pyav" if asked == "video_reader" else asked


def opened(av: Any, path: Path) -> Any:
    """One thread for each file: GOPs of LeRobot have 2 frames, and workers of a ``DataLoader`` are processes."""
    container = av.open(str(path), options=CONTAINERS)
    container.streams.video[0].codec_context.thread_count = 1
    return container


class Videos:
    """Reads frames. Files stay open; a forked or unpickled copy opens its own, because a file position is shared."""

    def __init__(self, backend: str, tolerance_s: float) -> None:
        self.backend, self.tolerance_s = backend, tolerance_s
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, Path], Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"backend": self.backend, "tolerance_s": self.tolerance_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def frames(self, path: Path, seconds: Sequence[float], depth: bool = False) -> torch.Tensor:
        """The frame nearest to each time: uint8 (N, 3, height, width), or uint16 codes (N, 1, height, width) if
        ``depth``. Raises FrameTimestampError if one is further than the tolerance."""
        if self._pid != os.getpid():
            ABANDONED.append(self._open)
            self._reset()
        with self._lock:
            if self.backend == "torchcodec" and not depth:
                return self._by_torchcodec(path, seconds)
            return self._by_pyav(path, seconds, depth)

    def _file(self, backend: str, path: Path, opened: Callable[[], Any]) -> Any:
        key = (backend, path)
        if key not in self._open:
            self._open[key] = opened()
            if len(self._open) > MOST_OPEN:
                _, oldest = self._open.popitem(last=False)
                if hasattr(oldest, "close"):
                    oldest.close()
        self._open.move_to_end(key)
        return self._open[key]

    def _by_pyav(self, path: Path, seconds: Sequence[float], depth: bool) -> torch.Tensor:
        av = need("av", "lerobot")
        nearest: list[Any] = [None] * len(seconds)
        wanted = np.asarray(seconds, np.float32)
        apart = np.full(len(seconds), np.inf, np.float32)
        try:
            container = self._file("pyav", path, lambda: opened(av, path))
            stream = container.streams.video[0]
            before = round(min(seconds) / stream.time_base) - 1
            container.seek(before, backward=True, any_frame=False, stream=stream)
            for frame in container.decode(stream):
                if frame.pts is None:
                    continue
                at_s = float(frame.pts * stream.time_base)
                error = np.abs(wanted - np.float32(at_s))
                for i in np.flatnonzero(error < apart):
                    nearest[i] = frame
                apart = np.minimum(apart, error)
                if at_s >= max(seconds):
                    break
        except (av.error.FFmpegError, IndexError) as error:
            self._open.pop(("pyav", path), None)
            raise FormatError(f"LeRobotDataset: {path}: {error}") from error
        self._check(path, seconds, apart)
        layout = "gray12le" if depth else "rgb24"
        arrays = {id(frame): frame.to_ndarray(format=layout) for frame in nearest}  # ends repeat a frame
        pixels = np.stack([arrays[id(frame)] for frame in nearest])
        return torch.from_numpy(pixels[:, None] if depth else pixels.transpose(0, 3, 1, 2).copy())

    def _by_torchcodec(self, path: Path, seconds: Sequence[float]) -> torch.Tensor:
        decoders = importlib.import_module("torchcodec.decoders")
        decoder = self._file("torchcodec", path, lambda: decoders.VideoDecoder(str(path), seek_mode="approximate"))
        numbers = [round(s * decoder.metadata.average_fps) for s in seconds]
        found = decoder.get_frames_at(indices=numbers)
        loaded = np.asarray(found.pts_seconds.numpy(), np.float32)
        error = np.abs(np.asarray(seconds, np.float32)[:, None] - loaded)
        self._check(path, seconds, error.min(axis=1))
        return torch.stack([found.data[i] for i in error.argmin(axis=1).tolist()])

    def _check(self, path: Path, seconds: Sequence[float], apart: Any) -> None:
        if (late := np.flatnonzero(~(apart <= np.float32(self.tolerance_s)))).size:
            i = int(late[0])
            raise FrameTimestampError(
                f"LeRobotDataset: {path} must have a frame within tolerance_s={self.tolerance_s} of "
                f"{seconds[i]:.6f} s, got one {apart[i]:.6f} s away; raise tolerance_s, or leave this episode out"
            )
