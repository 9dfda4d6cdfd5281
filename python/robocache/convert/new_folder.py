"""A folder that appears whole or not at all: written under another name, synced, renamed.

    .<out>.robocache-tmp/    locked while it is written
        journal.json         {"format": "robocache export journal", "creates": "new-<32 hex digits>"}
        new-.../             becomes <out>

Removed is only what the journal names, and the journal itself: whatever else is in a folder of that name stays.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._core import FormatError
from ..sources.reading.paths import read_file

JOURNAL, FORMAT, MAX_JOURNAL_BYTES = "journal.json", "robocache export journal", 1024
MADE = re.compile("new-[0-9a-f]{32}")
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)


@contextmanager
def new_folder(out: Path, op: str) -> Iterator[Path]:
    """A folder inside a hidden one beside ``out`` to write into. It becomes ``out`` at the end of the block, and only
    then: by the descriptors of both folders above, and only while the hidden name is still that of the locked folder.

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
            made = begin_journal(hidden, op)
            (hidden / made).mkdir()
            yield hidden / made
            synced = [sync(Path(folder)) for folder, _, _ in os.walk(hidden / made)]
            if not is_at(hidden, lock):
                raise FormatError(f"{op}: {hidden} was moved or replaced by another process; {out} was not written")
            if os.path.lexists(out):
                raise FileExistsError(f"{op}: {out} was created by another process, and is unchanged")
            os.rename(made, out.name, src_dir_fd=lock, dst_dir_fd=parent)
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
            try:
                if is_at(hidden, lock):
                    remove_hidden(hidden, op)
            finally:
                os.close(lock)
    finally:
        os.close(parent)


def begin_journal(hidden: Path, op: str) -> str:
    """The name of a folder to make, after removing what a killed process left."""
    end_journal(hidden, op)
    made = f"new-{uuid.uuid4().hex}"
    with open(hidden / JOURNAL, "w") as file:
        file.write(json.dumps({"format": FORMAT, "creates": made}))
        file.flush()
        os.fsync(file.fileno())  # before the folder is there: after a power loss nothing else names it
    sync(hidden)
    return made


def remove_hidden(hidden: Path, op: str) -> None:
    """The folder with what its journal names; a note where there is more in it."""
    try:
        end_journal(hidden, op)
        if not (others := sorted(os.listdir(hidden))):
            hidden.rmdir()
            return
    except (OSError, FormatError):
        return  # the error before it is the one to report, and the next export tries again
    named = f"{others[0]} and more" if others[1:] else others[0]
    warnings.warn(f"{op}: {hidden} has {named}, which no journal names: not removed", RuntimeWarning, stacklevel=4)


def end_journal(hidden: Path, op: str) -> None:
    """Removes what the journal names, and the journal. Raises FormatError where another program wrote it."""
    journal = hidden / JOURNAL
    try:
        text = read_file(journal, MAX_JOURNAL_BYTES)
        if text:  # else a process was killed before it wrote, and had not made anything
            entries = json.loads(text)
            if entries["format"] != FORMAT or not MADE.fullmatch(entries["creates"]):
                raise ValueError(entries)
            left = hidden / entries["creates"]
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink(missing_ok=True)
    except (ValueError, TypeError, KeyError, FormatError):
        if not os.path.lexists(journal):
            return
        raise FormatError(f"{op}: {journal} must be the journal of an export, got another file; move it away") from None
    journal.unlink()


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
