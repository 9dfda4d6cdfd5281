"""A folder that appears whole or not at all: written under another name, synced, renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._core import FormatError


@contextmanager
def new_folder(out: Path, op: str) -> Iterator[Path]:
    """A hidden folder beside ``out`` to write into. It becomes ``out`` at the end of the block, and only then.

    After an error nothing is left. After a kill the hidden folder is, and the next one to write ``out`` removes it.
    """
    if os.path.lexists(out):
        raise FileExistsError(f"{op}: out must not exist yet, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.parent / f".{out.name}.robocache-tmp"
    lock = locked(hidden, op)
    try:
        try:
            for left in list(hidden.iterdir()):
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            yield hidden
            for folder, _, _ in os.walk(hidden):
                sync(Path(folder))
            if os.path.lexists(out):
                raise FileExistsError(f"{op}: {out} has appeared meanwhile, and is left alone")
            hidden.rename(out)
        except BaseException as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                raise OSError(error.errno, f"{op}: {error.strerror}", str(out)) from error  # write() names no file
            raise
        sync(out.parent)
    finally:
        os.close(lock)


def locked(folder: Path, op: str) -> int:
    """A handle that keeps other processes out for as long as it is open."""
    while True:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise FormatError(f"{op}: {folder}: another process is writing here") from None
        try:
            if os.path.samestat(os.fstat(handle), os.stat(folder)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # it was renamed or removed between the two calls


def sync(path: Path) -> None:
    """Until the disk has it: a file's bytes, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
