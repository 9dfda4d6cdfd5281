"""Paths that a dataset may name, and sizes that it may declare: both are checked before they are used."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .._core import FormatError

MAX_JSON_BYTES = 256 << 20
MAX_RANK = 8


def need(package: str, extra: str) -> Any:
    """The optional package, or an ImportError that says how to get it."""
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
        if not path.is_file():
            raise FormatError(f"open: {path} is missing or not a file")
        return path

    def inside(self, name: str | Path) -> Path:
        """The path of that name, which may not exist; FormatError where it leads out of the root."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in str(name) or "\\" in str(name):
            raise FormatError(f"open: {self.root}: the file name {str(name)!r} leads out of the dataset")
        path = self.root / pure
        self.check(path)
        return path

    def check(self, path: Path) -> None:
        if self.follow_symlinks:
            return
        try:
            real, root = path.resolve(), self.root.resolve()
        except (OSError, RuntimeError) as error:
            raise FormatError(f"open: {path}: {error}") from error
        if not real.is_relative_to(root):
            raise FormatError(
                f"open: {path} is a link out of the dataset, to {real}; follow_symlinks=True allows it where the "
                "dataset is trusted"
            )

    def glob(self, pattern: str) -> list[Path]:
        """Files that match, by name; FormatError where one leads out."""
        found = sorted(path for path in self.root.glob(pattern) if path.is_file() or path.is_symlink())
        for path in found:
            self.check(path)
        return found


@dataclass(frozen=True)
class Limits:
    """How much memory a file may ask for. A small file that asks for a thousand times its size is refused as well."""

    episode_bytes: int = 8 << 30
    expansion: int = 1000
    free_bytes: int = 64 << 20
    """Below this, expansion is not looked at."""

    def check(self, where: str, needed: int, stored: int | None = None) -> None:
        """FormatError where ``needed`` bytes, declared by a file, are too many for ``stored`` bytes of it."""
        if needed < 0 or needed > self.episode_bytes:
            raise FormatError(
                f"{where} declares {needed} bytes, more than the limit of {self.episode_bytes}; max_bytes sets it"
            )
        if stored is not None and needed > self.free_bytes and needed > stored * self.expansion:
            raise FormatError(
                f"{where} declares {needed} bytes in {stored} stored ones: "
                f"more than {self.expansion} times as many, refused as a decompression bomb"
            )


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


def load_json(path: Path) -> Any:
    """A JSON file of a sane size; FormatError otherwise."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise FormatError(f"open: {path} is larger than {MAX_JSON_BYTES} bytes")
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"open: {path} is not readable JSON: {error}") from error
