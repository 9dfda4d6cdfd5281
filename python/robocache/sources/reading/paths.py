"""Files that a dataset may name, and shapes that it may declare: both are checked before they are used."""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..._core import FormatError
from ...cache.cache import JOURNAL
from .budget import ENTRY_BYTES, add_stored

MAX_RANK = 8


def need(package: str, extra: str) -> Any:
    """The optional package, or an ImportError that names the extra to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        message = f"open: {extra} datasets need the package {top}: pip install 'robocache[{extra}]'"
        raise ImportError(message, name=top) from error


@dataclass(frozen=True)
class Tree:
    """A dataset's folder. Gives out only files that are inside it, wherever names and links in it point."""

    root: Path
    follow_symlinks: bool = False

    def file(self, name: str | Path) -> Path:
        """The regular file of that name relative to the root; FormatError where it is missing or leads out."""
        path = self.inside(name)
        regular(path)
        return path

    def has(self, name: str | Path) -> bool:
        """Whether there is anything of that name, so that opening it may fail for what it is."""
        return os.path.lexists(self.inside(name))

    def inside(self, name: str | Path) -> Path:
        """The path of that name, which may not exist; FormatError where it leads out of the root."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in str(name) or "\\" in str(name):
            raise FormatError(f"open: {self.root}: the file name {str(name)!r} points outside the dataset")
        path = self.root / pure
        self.check(path)
        return path

    def check(self, path: Path) -> None:
        if self.follow_symlinks:
            return
        try:
            real, root = os.path.realpath(path), os.path.realpath(self.root)
        except (OSError, ValueError) as error:
            raise FormatError(f"open: {path}: {error}") from error
        if real != root and not real.startswith(root.rstrip("/") + "/"):
            raise FormatError(
                f"open: {path} is a link out of the dataset, to {real}; if the dataset is trusted, pass "
                "follow_symlinks=True"
            )

    def outside_caches(self, files: Iterable[Path]) -> Iterator[Path]:
        """Without the files of caches in folders of the dataset: an ingest may write there, and changes no data."""
        known = {self.root: False}

        def is_inside(folder: Path) -> bool:
            if folder not in known:
                known[folder] = is_inside(folder.parent) or is_cache(folder)
            return known[folder]

        return (path for path in files if not is_inside(path.parent))

    def glob(self, pattern: str) -> list[Path]:
        """Files that match, sorted, without those of caches; FormatError where one leads out or is no regular file."""
        found = [path for path in self.root.glob(pattern) if path.is_symlink() or not path.is_dir()]
        found = sorted(self.outside_caches(found))
        for path in found:
            self.check(path)
            if not path.is_dir():
                regular(path)
        add_stored(len(found) * ENTRY_BYTES)
        return found


def is_cache(path: str | Path) -> bool:
    """Whether a folder is a cache, or an unfinished one: it may be an ingest of the dataset beside it."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("manifest.json", JOURNAL))


def regular(path: Path) -> os.stat_result:
    """The state of a regular file. FormatError for all else: opening a pipe blocks, reading a device never ends."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        raise FormatError(f"open: {path} is missing or not a file: {error}") from error
    return _checked(path, state)


def state_of(name: str | Path, state: os.stat_result) -> bytes:
    """Of a file, for fingerprints. Archives and copies can give files of other content the same time of modification
    (``st_mtime``); nothing sets the time of the last change (``st_ctime``)."""
    return os.fsencode(f"\0{name}\0{state.st_size}\0{state.st_mtime_ns}\0{state.st_ctime_ns}")


def open_regular(path: Path) -> IO[bytes]:
    """A regular file, opened for reading. Does not block, whatever lies there; see ``regular``."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FormatError(f"open: {path} is missing or not a file: {error}") from error
    try:
        _checked(path, os.fstat(handle))
        file = os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
    return file


def read_file(path: Path, max_bytes: int) -> bytes:
    """All of a regular file; FormatError where it is larger."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= max_bytes else b""
    if size > max_bytes or len(data) > max_bytes:
        raise FormatError(f"open: {path} must have at most {max_bytes} bytes, got {max(size, len(data))}")
    return data


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether it is a regular file that begins with these bytes. Never raises: for ``detect``."""
    try:
        with open_regular(path) as file:
            return file.read(len(magic)) == magic
    except (FormatError, OSError):
        return False


def _checked(path: Path, state: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(state.st_mode):
        raise FormatError(f"open: {path} must be a regular file, got a {_kind(state.st_mode)}")
    add_stored(allocated_bytes(state))
    return state


def allocated_bytes(state: os.stat_result) -> int:
    """What a file takes on disk: of a sparse one, less than its size. Some file systems do not say."""
    return min(state.st_size, state.st_blocks * 512) if state.st_blocks else state.st_size


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "folder",
        stat.S_IFIFO: "pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return kinds.get(stat.S_IFMT(mode), "file of another kind")


def checked_shape(where: str, shape: Any) -> tuple[int, ...]:
    """A shape from a file: a short list of sizes that are not negative."""
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_RANK:
        raise FormatError(f"{where}: shape must be a list of at most {MAX_RANK} sizes, got {str(shape)[:80]}")
    sizes = []
    for size in shape:
        try:
            sizes.append(int(size))
        except (TypeError, ValueError):
            raise FormatError(f"{where}: shape must be a list of sizes, got {str(shape)[:80]}") from None
    if any(size < 0 or size >= 1 << 48 for size in sizes):
        raise FormatError(f"{where}: shape must be a list of sizes, got {str(shape)[:80]}")
    return tuple(sizes)


def num_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Bytes of an array, in Python's integers: no overflow."""
    for size in shape:
        itemsize *= size
    return itemsize
