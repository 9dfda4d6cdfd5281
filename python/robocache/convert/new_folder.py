"""A folder that appears whole or not at all: written under another name, synced, renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._core import FormatError

CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)


@contextmanager
def new_folder(out: Path, op: str) -> Iterator[Path]:
    """A hidden folder beside ``out`` to write into. It becomes ``out`` at the end of the block, and only then: by the
    descriptor of the folder above, and only while the name is still that of the folder that is locked.

    After an error nothing is left. After a kill the hidden folder is, and the next one to write ``out`` removes it.
    """
    out = Path(os.path.abspath(out))
    if os.path.lexists(out):
        raise FileExistsError(f"{op}: out must not exist yet, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.parent / f".{out.name}.robocache-tmp"
    parent = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock = locked(hidden, op)
        try:
            for left in list(hidden.iterdir()):
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            yield hidden
            synced = [sync(Path(folder)) for folder, _, _ in os.walk(hidden)]
            if not is_at(hidden, lock):
                raise FormatError(f"{op}: {hidden} was moved or replaced by another process; {out} was not written")
            if os.path.lexists(out):
                raise FileExistsError(f"{op}: {out} was created by another process, and is unchanged")
            os.rename(hidden.name, out.name, src_dir_fd=parent, dst_dir_fd=parent)
            if not (sync_handle(parent) and all(synced)):
                warnings.warn(
                    f"{op}: {out.parent}: this file system cannot sync folders: after a power loss {out.name} may be "
                    "missing or incomplete",
                    RuntimeWarning,
                    stacklevel=3,
                )
        except BaseException as error:
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                raise OSError(error.errno, f"{op}: {error.strerror}", str(out)) from error  # write() names no file
            raise
        finally:
            if is_at(hidden, lock):
                shutil.rmtree(hidden, ignore_errors=True)
            os.close(lock)
    finally:
        os.close(parent)


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
        if is_at(folder, handle):
            return handle
        os.close(handle)  # it was renamed or removed between the two calls


def is_at(folder: Path, handle: int) -> bool:
    """Whether the path still names the folder that is open."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder, follow_symlinks=False))
    except OSError:
        return False


def sync(folder: Path) -> bool:
    """The names in a folder, until the disk has them; False where its file system cannot do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        return sync_handle(handle)
    finally:
        os.close(handle)


def sync_handle(handle: int) -> bool:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in CANNOT_SYNC:
            return False
        raise
    return True
