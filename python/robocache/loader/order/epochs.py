"""Which epoch the workers of a ``DataLoader`` read.

Note [Epochs of workers]
Workers are new processes in every iteration, copies of a loader that does not move, and PyTorch tells the main process
nothing when an iteration begins. But all workers of an iteration have the same base seed (``worker_info.seed -
worker_info.id``), drawn anew for each, and workers that stay (``persistent_workers``) begin their iterations in the
same order. So ``(base seed, iterations begun by this process)`` names an iteration. The first worker that begins one
takes the next epoch from a file that all workers of a main process share; the others find it there by that name. A name
that the same worker has used before is another iteration: whoever seeds PyTorch alike before each epoch gets the same
base seed again.

The file also has the version of the main process's position: ``set_epoch`` and ``load_state_dict`` there count it up,
and then the next iteration begins at that position.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

KEPT = 64
"""Iterations that the file remembers: those that may begin at the same time, and more."""


class Position(NamedTuple):
    """Where the next iteration begins. ``version``: how often that was set."""

    version: int
    epoch: int
    step: int


class Epochs:
    """The epochs that workers of one loader have begun. Costs nothing until a worker begins one."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder or str(Path(tempfile.gettempdir()) / f"robocache-{uuid.uuid4().hex}")
        if folder is None:
            weakref.finalize(self, _remove, self.folder, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, (self.folder,)

    def set(self, position: Position) -> None:
        """Tells workers that live on. Others are copies of the loader that has the position."""
        path = self._path(os.getpid())
        if path.exists():
            with self._state(path) as state:
                _adopt(state, position)

    def begin(self, iteration: str, worker: int, position: Position) -> tuple[int, int]:
        """``(epoch, step)`` of an iteration that this worker begins. ``position``: that of its copy of the loader."""
        with self._state(self._path(_main_process())) as state:
            _adopt(state, position)
            for begun in reversed(state["begun"]):
                if begun["iteration"] == iteration and worker not in begun["workers"]:
                    begun["workers"].append(worker)
                    return begun["epoch"], begun["step"]
            epoch, step = state["next"]
            state["begun"].append({"iteration": iteration, "workers": [worker], "epoch": epoch, "step": step})
            del state["begun"][:-KEPT]
            state["next"] = [epoch + 1, 0]
            return epoch, step

    def resumed(self, iteration: str, position: Position, following: int) -> None:
        """A worker of an iteration had its position set by itself, as ``StatefulDataLoader`` does: the next iteration
        is epoch ``following``."""
        with self._state(self._path(_main_process())) as state:
            _adopt(state, position)
            first = state.get("resumed") != iteration
            state["resumed"] = iteration
            state["next"] = [following if first else max(following, state["next"][0]), 0]

    def _path(self, main_process: int) -> Path:
        return Path(self.folder) / f"{main_process}.json"

    @contextmanager
    def _state(self, path: Path) -> Iterator[dict[str, Any]]:
        """What the file holds, locked until it is replaced: a process that is killed, or whose disk is full, leaves it
        as it was and releases the lock."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(path.read_text()) if path.exists() else {"version": -1, "next": [0, 0], "begun": []}
            yield state
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(state))
            os.replace(partial, path)


def _adopt(state: dict[str, Any], position: Position) -> None:
    if position.version > state["version"]:
        state.update(version=position.version, next=[position.epoch, position.step])


def _main_process() -> int:
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
