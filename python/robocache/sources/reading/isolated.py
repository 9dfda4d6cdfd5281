"""A source that is read in another process; a crash, an endless loop or lack of memory there raises FormatError."""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import JSON, Episode, EpisodeStream, LeftOut, StreamSpec
from ...cache.video import Video
from ...text import escaped
from . import wire
from .budget import Budget
from .guard import NeedsOption, OptionError

SILENT_S = 120.0
"""Timeout in wall time without a heartbeat, for a hanging file system. A processor time limit ends endless loops."""
END_S = 2.0
"""Time in which a reader process must exit by itself."""
BOOT = (
    "import sys, json; sys.path[:], hidden = json.loads(sys.argv[2]); sys.modules.update(dict.fromkeys(hidden)); "
    "from robocache.sources.reading.reader_process import main; main(int(sys.argv[1]))"
)
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve a gigabyte of address space each
    "CUDA_VISIBLE_DEVICES": "",
    "HDF5_PLUGIN_PRELOAD": "::",  # files name filters, and HDF5 would load them
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
ERRORS: dict[str, type[Exception]] = {
    "FormatError": FormatError,
    "NeedsOption": NeedsOption,
    "OptionError": OptionError,
}


class ReaderProcess:
    """A reader process and the connection to it. One request at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.closed: list[int] = []
        """Sources that are no longer used; sent with the next request. Appended to by finalizers."""
        ours, theirs = map(_above_standard, socket.socketpair())
        paths = [os.path.abspath(path) if path == "" else path for path in sys.path]
        hidden = [name for name, module in list(sys.modules.items()) if module is None]
        command = [sys.executable, "-I", "-c", BOOT, str(theirs.fileno()), json.dumps([paths, hidden])]
        with theirs, os.fdopen(wire.anonymous_file(), "w+b") as errors:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **ENVIRONMENT},
                )
            except OSError as error:
                raise RuntimeError(f"open: the reader process cannot be started: {error}") from error
            theirs.close()
            self.connection = ours
            self.connection.settimeout(SILENT_S)
            self.end = weakref.finalize(self, _end, self.process, ours, os.getpid())
            try:
                wire.receive(ours)
            except (wire.Broken, OSError) as error:
                self.end()
                errors.seek(0)
                last = errors.read()[-2000:].decode("utf-8", "replace").strip()
                raise RuntimeError(f"open: the reader process cannot be started: {last or error}") from error

    def usable(self) -> bool:
        """False after the process has ended, and in a fork. A busy process counts as usable."""
        return self.end.alive and (self.lock.locked() or self.process.poll() is None)

    def runs(self) -> bool:
        """Whether the process runs. For the holder of the lock, which may have waited until it ended."""
        return self.end.alive and self.process.poll() is None

    def request(self, where: str, message: dict[str, JSON], given: Sequence[Any] = ()) -> tuple[JSON, list[Any]]:
        """The result and its arrays. ``given``: arrays that the message has. FormatError where the process ends."""
        try:
            closed = [self.closed.pop() for _ in range(len(self.closed))]
            wire.send(self.connection, {**message, "close": closed, "given": wire.layout(given)})
            wire.send_arrays(self.connection, [*given])
            answer = wire.receive(self.connection)
            result = answer.get("result")
            arrays = []
            if isinstance(result, dict) and "arrays" in result:
                arrays = wire.receive_arrays(self.connection, result["arrays"])
        except TimeoutError as error:
            self.process.kill()
            self.end()
            text = f"{where}: no progress for {SILENT_S:.0f} s; reading was stopped"
            raise FormatError(escaped(text)) from error
        except (wire.Broken, OSError) as error:
            self.end()
            raise FormatError(escaped(f"{where}: {_cause(self.process.returncode)}")) from error
        except BaseException:  # the answer is in transit and will not be received
            self.process.kill()
            self.end()
            raise
        for text in answer.get("warnings", ()):
            warnings.warn(text, stacklevel=5)
        if "error" in answer:
            _raise(answer)
        return result, arrays


def _above_standard(connection: socket.socket) -> socket.socket:
    """Where a standard stream is closed, a socket takes its number, which in the child stands for that stream."""
    if connection.fileno() > 2:
        return connection
    with connection:
        return socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _end(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    connection.close()
    if os.getpid() != owner:  # a fork: the process is not its child
        process.returncode = 0
        return
    try:
        process.wait(END_S)  # it ends when the connection does
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _cause(status: int | None) -> str:
    if status == -signal.SIGXCPU:
        return "reading exceeded its processor time and was stopped; the file is damaged or malicious"
    if status == -signal.SIGKILL:
        return "the reader process was killed, perhaps for lack of memory"
    name = signal.Signals(-status).name if status is not None and status < 0 else f"exit code {status}"
    return f"the library that reads the file crashed ({name}); the file is damaged or malicious"


def _raise(answer: JSON) -> None:
    message = str(answer.get("message"))
    if answer["error"] == "ImportError":
        raise ImportError(message, name=answer.get("name"))
    raise ERRORS.get(answer["error"], FormatError)(message)


class Readers:
    """The reader processes of this process: one, and more only where threads read at the same time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.Lock()
        self.processes: list[ReaderProcess] = []

    def choose(self) -> ReaderProcess:
        with self.lock:
            self.processes = [reader for reader in self.processes if reader.usable()]
            idle = [reader for reader in self.processes if not reader.lock.locked()]
            if not idle and len(self.processes) < self.limit:
                self.processes.append(ReaderProcess())
                return self.processes[-1]
            return idle[0] if idle else self.processes[0]

    @contextmanager
    def locked(self) -> Iterator[ReaderProcess]:
        """A reader process that runs, for one request. One that ends while this thread waits for it is replaced."""
        while True:
            reader = self.choose()
            with reader.lock:
                if reader.runs():
                    yield reader
                    return
                reader.end()

    def forget(self) -> None:
        """After a fork: the processes and the locks belong to the process that forked."""
        for reader in self.processes:
            reader.end()
        self.__init__(self.limit)  # type: ignore[misc]

    def end(self) -> None:
        for reader in self.processes:
            reader.end()


READERS = Readers(limit=max(1, min(4, os.cpu_count() or 1)))
NUMBERS = itertools.count()
os.register_at_fork(after_in_child=READERS.forget)


class IsolatedSource:
    """The source that ``robocache.open`` returns for formats whose libraries may crash on malicious files.

    Reopens itself after a fork, after unpickling, and after the reader process has ended.
    """

    def __init__(self, path: Path, format: str, budget: Budget, options: Mapping[str, Any]) -> None:
        self.path = path
        self.format = format
        self.budget = budget
        self.open_options = "{}"
        self._where = str(path.absolute())
        self._options = plain_options(options)
        self._place: tuple[ReaderProcess, int] | None = None
        """The process that has the source open, and its number there. Replaced as a whole: threads share a source."""
        opened = self._open()[1]
        try:
            self.metadata: dict[str, JSON] = opened["metadata"]
            self.specs = {fields["name"]: _spec(fields) for fields in opened["specs"]}
            self.left_out = [LeftOut(**fields) for fields in opened["left_out"]]
            self._length = int(opened["length"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{format}: {path}: {error}") from error

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def episode(self, index: int, streams: Collection[str] | None = None) -> Episode:
        """Episode ``index``. ``streams``: read only these."""
        if not 0 <= index < len(self):
            raise IndexError(f"episode: index must be in [0, {len(self)}), got {index}")
        answer, arrays = self._request("episode", index=int(index), streams=None if streams is None else list(streams))
        found = {}
        try:
            parts = iter(arrays)
            for stream in answer["streams"]:
                spec = _spec(stream["spec"])
                values, times = next(parts), next(parts)
                offsets = next(parts) if stream["ragged"] else None
                if spec.codec is not None:
                    values, offsets = (values, offsets), None
                found[spec.name] = EpisodeStream(spec, values, times, offsets)
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise FormatError(f"{self.format}: {self.path}: episode {index}: {error}") from error
        return Episode(index, found, answer["task"], answer["meta"])

    def fingerprint(self) -> str:
        """A hash of the path, and of names, sizes and times of the files. If it differs, the files may have changed."""
        return str(self._request("fingerprint")[0])

    def files(self) -> list[Path]:
        return [Path(name) for name in self._request("files")[0]]

    def label(self, index: int) -> str:
        return str(self._request("label", index=int(index))[0])

    def __repr__(self) -> str:
        return f"<{self.format} source {str(self.path)!r}: {len(self)} episodes, {len(self.specs)} streams>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None}

    @property
    def _reader(self) -> ReaderProcess | None:
        return self._place[0] if self._place is not None else None

    def _request(self, op: str, **more: JSON) -> tuple[JSON, list[Any]]:
        where = f"{self.format}: {self._where}" + (f": episode {more['index']}" if "index" in more else "")
        while True:
            place = self._place
            if place is None or not place[0].usable():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # already issued when the source was first opened
                    place = self._open()[0]
            reader, number = place
            with reader.lock:
                if reader.runs():
                    return reader.request(where, {"op": op, "source": number, **more})
                reader.end()  # it ended with the request of another source, while this one waited

    def _open(self) -> tuple[tuple[ReaderProcess, int], JSON]:
        number = next(NUMBERS)
        message = {
            "op": "open",
            "source": number,
            "path": self._where,
            "format": self.format,
            "budget": dataclasses.asdict(self.budget),
            "options": self._options,
        }
        with READERS.locked() as reader:
            opened, _ = reader.request(f"{self.format}: {self._where}", message)
        self._place = place = reader, number
        weakref.finalize(self, reader.closed.append, number).atexit = False
        return place, opened


def decode_video(video: Video, spec: StreamSpec, rows: Sequence[int]) -> NDArray[np.uint8]:
    """Pixels ``(n, *spec.shape)`` of rows of a video, decoded in the reader process: packets may be hostile."""
    part = video[np.asarray(rows, np.int64)]
    message = {"op": "decode_video", "source": None, "spec": dataclasses.asdict(spec)}
    where = f"stream {spec.name}"
    with READERS.locked() as reader:
        _, arrays = reader.request(where, message, [part.data, part.index.to_bytes()])
    if len(arrays) != 1 or arrays[0].shape != (len(rows), *spec.shape) or arrays[0].dtype != np.uint8:
        raise FormatError(f"{where}: the reader process must return its frames")
    pixels: NDArray[np.uint8] = arrays[0]
    return pixels


def _spec(fields: JSON) -> StreamSpec:
    names = fields.get("names")
    return StreamSpec(**{**fields, "shape": tuple(fields["shape"]), "names": None if names is None else tuple(names)})


def plain_options(options: Mapping[str, Any]) -> dict[str, JSON]:
    """Options as JSON, as they are sent to the reader process."""
    found = {}
    for name, value in options.items():
        plain = value.item() if hasattr(value, "item") else dict(value) if isinstance(value, Mapping) else value
        try:
            found[name] = json.loads(json.dumps(os.fspath(plain) if isinstance(plain, os.PathLike) else plain))
        except (TypeError, ValueError):
            raise ValueError(f"open: {name} must be a number, a string, a bool or a dict, got {value!r}") from None
    return found
