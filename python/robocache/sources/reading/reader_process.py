"""The reader process: opens untrusted datasets and reads their episodes, with limits on memory and processor time.

Libraries for Parquet, HDF5 and videos may abort, loop or allocate without bounds on malicious files. That ends only
this process; ``isolated`` raises FormatError for it. ``isolated`` starts one reader process and reuses it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import resource
import signal
import socket
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._core import FormatError
from ...cache.episode import JSON, Episode
from ...cache.video import Video
from .. import open_here
from . import wire
from .budget import EXPANSION, Budget, stored_bytes
from .guard import NeedsOption, OptionError

MEMORY_BYTES = 640 << 20
"""Memory of a request in addition to the bytes that the budget of its source has approved."""
MEMORY_PER_PIXEL = 4
"""Memory per byte of decoded frames: the frames, their planes, and those that the decoder keeps."""
OBJECTS = 16
"""Memory per stored byte, for Python objects of the episode tables."""
CPU_S = 5
"""Processor time between two steps of a reader. An endless loop takes more."""
ALIVE_S = 0.5
"""Limits are moved, and a sign of life is sent, this often at most."""
PASSED_ON = (NeedsOption, FormatError, OptionError, ImportError)
"""All other errors are made FormatError by the guard of ``open`` and of ``episode``."""
PARSED = ("open", "episode", "decode_video")
"""Requests that read what files contain, under limits."""
LIBRARIES = {
    "lerobot": ("pyarrow.parquet", "pyarrow.compute", "av", "PIL.Image", "PIL.TiffImagePlugin"),
    "robomimic": ("h5py",),
}
"""Loaded before memory is limited: their code takes more address space than most episodes."""


class ProcessLimits:
    """Ends this process where a request takes too much. Both limits move: with approved bytes, and with progress."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.reported_s = 0.0
        self.before = self.approved = 0

    def begin(self) -> None:
        """Of a request."""
        self.before = _address_space(self.page) + MEMORY_BYTES
        self.approved = 0
        _set_limit(resource.RLIMIT_AS, self.before)
        self._limit_cpu()
        self.reported_s = time.monotonic()

    def end(self) -> None:
        _set_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        _set_limit(resource.RLIMIT_CPU, resource.RLIM_INFINITY)

    def approve(self, num_bytes: int) -> None:
        """Memory that a budget allows the request. Rounded up, so that few limits are set."""
        if num_bytes > self.approved:
            self.approved = (num_bytes | (16 << 20) - 1) + 1
            _set_limit(resource.RLIMIT_AS, self.before + self.approved)

    def progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self.reported_s >= ALIVE_S:
            self.reported_s = now_s
            self._limit_cpu()
            wire.send_alive(self.connection)

    def _limit_cpu(self) -> None:
        _set_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + CPU_S)


def _set_limit(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    soft = hard if soft == resource.RLIM_INFINITY or (hard != resource.RLIM_INFINITY and soft > hard) else soft
    resource.setrlimit(kind, (soft, hard))


@dataclass(frozen=True)
class WatchedBudget(Budget):
    """Moves the limits of this process with what it allows."""

    limits: ProcessLimits | None = None

    def check(self, where: str, needed: int, stored: int | None = None, expansion: int = EXPANSION) -> None:
        super().check(where, needed, stored, expansion)
        if self.limits:
            # Twice: what is stored in a table, and the arrays that are made of it. Lists of episodes are Python's.
            self.limits.approve(2 * needed + OBJECTS * stored_bytes())
            self.limits.progress()

    def count(self, where: str, items: int = 1) -> None:
        super().count(where, items)
        if self.limits:
            self.limits.approve(OBJECTS * stored_bytes())
            self.limits.progress()

    def check_time(self, where: str) -> None:
        super().check_time(where)
        if self.limits:
            self.limits.progress()


def _address_space(page: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * page


class Server:
    """Answers requests. Sources stay open between them, by numbers that the other process gives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.limits = ProcessLimits(connection)
        self.sources: dict[int, Any] = {}

    def run(self) -> None:
        wire.send(self.connection, {"ready": os.getpid()})
        while True:
            request = wire.receive(self.connection)
            for number in request.get("close", ()):
                self.sources.pop(number, None)
            arrays: list[Any] = wire.receive_arrays(self.connection, request.get("given") or [])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                answer = self._answer(request, arrays)
            answer["warnings"] = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
            try:
                text = wire.encoded(answer)
            except (TypeError, ValueError, RecursionError) as error:
                arrays.clear()
                text = wire.encoded(_error_answer(FormatError(f"{request.get('path', '')}: {error}")))
            self.connection.sendall(text)
            wire.send_arrays(self.connection, arrays)

    def _answer(self, request: JSON, arrays: list[Any]) -> dict[str, JSON]:
        source = self.sources.get(request["source"])
        where = source.label(request["index"]) if source and "index" in request else str(request.get("path", ""))
        try:
            if request["op"] == "open":
                for library in LIBRARIES.get(request["format"], ()):
                    _load(library)
            if request["op"] in PARSED:
                self.limits.begin()
            return {"result": getattr(self, request["op"])(source, request, arrays)}
        except PASSED_ON as error:
            return _error_answer(error)
        except MemoryError:
            return _error_answer(FormatError(f"{where}: reading takes more memory than the files declare"))
        except Exception as error:  # of the file system: the guards of ``open`` and ``episode`` pass on no other
            return _error_answer(FormatError(f"{where}: {type(error).__name__}: {error}"))
        finally:
            self.limits.end()

    def open(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        budget = WatchedBudget(**request["budget"], limits=self.limits)
        source = open_here(Path(request["path"]), request["format"], budget, request["options"])
        self.sources[request["source"]] = source
        return {
            "length": len(source),
            "metadata": source.metadata,
            "specs": [dataclasses.asdict(spec) for spec in source.specs.values()],
            "left_out": [left.to_json() for left in source.left_out],
        }

    def episode(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        episode: Episode = source.episode(request["index"], request["streams"])
        streams = []
        for stream in episode.streams.values():
            pictures, video = stream.pictures, stream.video
            values: Any
            offsets: Any
            if video is not None:
                values, offsets = video.data, video.index.to_bytes()
            else:
                values = stream.values if pictures is None else pictures.data
                offsets = stream.offsets if pictures is None else pictures.splits
            streams.append({"spec": dataclasses.asdict(stream.spec), "ragged": offsets is not None})
            arrays += [values, stream.times, *([offsets] if offsets is not None else ())]
        answer = {"streams": streams, "task": episode.task, "meta": episode.meta, "arrays": wire.layout(arrays)}
        episode.streams.clear()
        return answer

    def decode_video(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        """The first array has packets, the second their index; they are replaced by the frames of all rows."""
        from .isolated import _spec

        data, index = arrays
        arrays.clear()
        spec = _spec(request["spec"])
        video = Video.of((data, index), spec.codec or "")
        if problems := video.problems(spec):
            raise FormatError(f"stream {spec.name}: the video {problems[0]}")
        self.limits.approve(MEMORY_PER_PIXEL * len(video) * spec.row_bytes)
        pixels = np.empty((len(video), *spec.shape), np.uint8)
        for part, made in video.parts(spec, np.arange(len(video)), 1 << 20, self.limits.progress):
            pixels[part] = made
        arrays.append(pixels)
        return {"arrays": wire.layout(arrays)}

    def files(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        return [os.fspath(path) for path in source.files()]

    def fingerprint(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        return source.fingerprint()

    def label(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        return source.label(request["index"])


def _load(library: str) -> None:
    with contextlib.suppress(ImportError):  # the adapter says how to get it
        importlib.import_module(library)


def _error_answer(error: BaseException) -> dict[str, JSON]:
    kind = next(kind.__name__ for kind in PASSED_ON if isinstance(error, kind))
    return {"error": kind, "message": str(error), "name": getattr(error, "name", None)}


def main(fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=fd)
    null = os.open(os.devnull, os.O_WRONLY)
    server = Server(connection)
    os.dup2(null, 2)
    with contextlib.suppress(wire.Broken, OSError):  # the other process has ended
        server.run()
    os._exit(0)
