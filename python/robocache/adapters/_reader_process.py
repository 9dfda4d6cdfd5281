"""The reader process: opens untrusted datasets and reads their episodes, under limits of memory and of processor time.

Libraries that read Parquet, HDF5 and videos abort, loop and allocate without bounds on files made to harm. Here that
ends this process; ``_isolated`` makes a FormatError of it. Started by ``_isolated``, one for a whole process.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import resource
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from .._core import FormatError
from .._episode import JSON, Episode
from . import _wire

MEMORY_BYTES = 640 << 20
"""What a request may take beside the bytes that the budget of its source has approved."""
CPU_S = 8
"""Processor time without progress: an endless loop. Seconds between two calls of ``alive``, at most."""
ALIVE_S = 1.0
PASSED_ON = (FormatError, ValueError, NotImplementedError, ImportError, FileNotFoundError)
LIBRARIES = {
    "lerobot": ("pyarrow.parquet", "pyarrow.compute", "av", "PIL.Image", "PIL.TiffImagePlugin"),
    "robomimic": ("h5py",),
}
"""Loaded before memory is limited: their code takes more address space than most episodes."""


class ProcessLimits:
    """Ends this process where a request takes too much. Both limits move: with progress, and with approved bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.told_s = 0.0
        self.address_space = 0

    def begin(self) -> None:
        """Of a request."""
        self._set_memory(_address_space(self.page) + MEMORY_BYTES)
        self._set_cpu()
        self.told_s = time.monotonic()

    def end(self) -> None:
        self._set_memory(resource.RLIM_INFINITY)

    def allow(self, num_bytes: int) -> None:
        """Bytes that a file declares and that were found to be few enough."""
        self._set_memory(self.address_space + num_bytes)
        self.alive()

    def alive(self) -> None:
        """There is progress."""
        now_s = time.monotonic()
        if now_s - self.told_s >= ALIVE_S:
            self.told_s = now_s
            self._set_cpu()
            _wire.send_alive(self.connection)

    def _set_memory(self, size: int) -> None:
        self.address_space = size
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if size != resource.RLIM_INFINITY:
            size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (size if size != resource.RLIM_INFINITY else hard, hard))

    def _set_cpu(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = int(time.process_time()) + CPU_S
        if hard == resource.RLIM_INFINITY or soft < hard:
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


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
        _wire.send(self.connection, {"ready": os.getpid()})
        while True:
            request = _wire.receive(self.connection)
            for number in request.get("close", ()):
                self.sources.pop(number, None)
            arrays: list[Any] = []
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                answer = self._answer(request, arrays)
            answer["warnings"] = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
            _wire.send(self.connection, answer)
            _wire.send_arrays(self.connection, arrays)

    def _answer(self, request: JSON, arrays: list[Any]) -> dict[str, JSON]:
        source = self.sources.get(request["source"])
        where = source.label(request["index"]) if source and "index" in request else str(request.get("path", ""))
        try:
            if request["op"] == "open":
                for library in LIBRARIES.get(request["format"], ()):
                    _load(library)
            self.limits.begin()
            return {"result": getattr(self, request["op"])(source, request, arrays)}
        except PASSED_ON as error:
            return _told(error)
        except MemoryError:
            arrays.clear()
            return _told(FormatError(f"{where}: reading takes more memory than the files declare"))
        except Exception as error:
            return _told(FormatError(f"{where}: {type(error).__name__}: {error}"))
        finally:
            self.limits.end()

    def open(self, _: Any, request: JSON, arrays: list[Any]) -> JSON:
        module = importlib.import_module(f"{__package__}.{request['format']}")
        source = module.open(Path(request["path"]), **request["options"])
        self.sources[request["source"]] = source
        return {
            "length": len(source),
            "metadata": source.metadata,
            "specs": [dataclasses.asdict(spec) for spec in source.specs.values()],
            "left_out": [left.to_json() for left in source.left_out],
        }

    def episode(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        episode: Episode = source.episode(request["index"])
        streams = []
        for stream in episode.streams.values():
            ragged = stream.offsets is not None
            streams.append({"spec": dataclasses.asdict(stream.spec), "ragged": ragged})
            arrays += [stream.values, stream.times, *([stream.offsets] if ragged else ())]
        answer = {"streams": streams, "task": episode.task, "meta": episode.meta, "arrays": _wire.layout(arrays)}
        episode.streams.clear()
        return answer

    def files(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        return [os.fspath(path) for path in source.files()]

    def fingerprint(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        return source.fingerprint()

    def label(self, source: Any, request: JSON, arrays: list[Any]) -> JSON:
        return source.label(request["index"])


def _load(library: str) -> None:
    try:
        importlib.import_module(library)
    except ImportError:
        pass  # the adapter says how to get it


def _told(error: BaseException) -> dict[str, JSON]:
    kind = next(kind.__name__ for kind in PASSED_ON if isinstance(error, kind))
    return {"error": kind, "message": str(error), "name": getattr(error, "name", None)}


def main(fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=fd)
    null = os.open(os.devnull, os.O_WRONLY)
    server = Server(connection)
    os.dup2(null, 2)
    try:
        server.run()
    except (_wire.Broken, OSError):
        pass  # the other process has ended
    sys.stderr = None
    os._exit(0)
