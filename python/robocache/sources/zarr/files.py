"""The files of a zarr store, in a folder or in a zip. Only requested files are opened."""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._core import FormatError
from ...cache.episode import JSON
from ..reading.budget import ENTRY_BYTES, Budget, add_stored
from ..reading.json_file import parse_json
from ..reading.paths import Tree, read_file, regular
from ..reading.zip_file import ERRORS, opened_zip

ARRAY_V2, NODE_V3 = ".zarray", "zarr.json"
MAX_METADATA_BYTES = 16 << 20
MAX_DEPTH = 16


class Files(ABC):
    """The files of a store by name."""

    budget: Budget

    @abstractmethod
    def nodes(self) -> Iterator[tuple[str, str]]:
        """The metadata files of arrays and groups: the name of the node, and of its file."""

    @abstractmethod
    def read(self, name: str, max_bytes: int) -> bytes | None:
        """All of a file; None where there is none of that name, FormatError where it is larger."""

    @abstractmethod
    def paths(self) -> list[Path]: ...

    def stored(self, num_bytes: int) -> int:
        """Bytes on disk of files that have this many together."""
        return num_bytes

    def attributes(self) -> JSON:
        if (found := self.load(".zattrs")) is not None:
            return found
        return (self.load(NODE_V3) or {}).get("attributes", {})

    def load(self, name: str) -> dict[str, Any] | None:
        data = self.read(name, MAX_METADATA_BYTES)
        if data is None:
            return None
        found = parse_json(data, f"zarr: {name}", self.budget)
        if not isinstance(found, dict):
            raise FormatError(f"zarr: {name} must be an object")
        return found


class FolderFiles(Files):
    def __init__(self, tree: Tree, budget: Budget) -> None:
        self.tree = tree
        self.budget = budget

    def nodes(self) -> Iterator[tuple[str, str]]:
        """Goes into groups only: folders of chunks may have millions of files."""
        left = [""]
        while left:
            node = left.pop()
            prefix = f"{node}/" if node else ""
            if prefix.count("/") > MAX_DEPTH:
                raise FormatError(f"zarr: {self.tree.root}/{node}: groups nested more than {MAX_DEPTH} deep")
            if self.tree.has(prefix + ARRAY_V2):
                yield node, prefix + ARRAY_V2
                continue
            if self.tree.has(prefix + NODE_V3):
                yield node, prefix + NODE_V3
                if (self.load(prefix + NODE_V3) or {}).get("node_type") == "array":
                    continue
            with os.scandir(self.tree.root / node) as entries:
                folders = [entry.name for entry in self._counted(entries) if entry.is_dir()]
            for name in sorted(folders, reverse=True):
                self.tree.check(self.tree.root / prefix / name)
                left.append(prefix + name)

    def _counted(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            add_stored(ENTRY_BYTES)
            self.budget.count(f"zarr: {self.tree.root}")
            yield entry

    def read(self, name: str, max_bytes: int) -> bytes | None:
        if not os.path.lexists(f"{self.tree.root}/{name}"):
            return None
        return read_file(self.tree.inside(name), max_bytes)

    def paths(self) -> list[Path]:
        return self.tree.glob("**/*")


class ZipFiles(Files):
    """A zip of a store. Nothing is unpacked to disk."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path = path
        self.budget = budget
        self._archive: zipfile.ZipFile | None = None
        self._pid = -1
        with opened_zip(path, f"zarr: {path}", budget) as archive:
            self._members = {member.filename: member for member in archive.infolist()}

    def nodes(self) -> Iterator[tuple[str, str]]:
        for name in self._members:
            node, _, last = name.rpartition("/")
            if last in (ARRAY_V2, NODE_V3):
                yield node, name

    def read(self, name: str, max_bytes: int) -> bytes | None:
        member = self._members.get(name)
        if member is None:
            return None
        if member.file_size > max_bytes:
            raise FormatError(f"zarr: {self.path}: {name} must have at most {max_bytes} bytes, got {member.file_size}")
        if self._archive is None or self._pid != os.getpid():  # processes must not share a place in the file
            regular(self.path)
            self._archive, self._pid = zipfile.ZipFile(self.path), os.getpid()
        add_stored(member.compress_size)
        try:
            with self._archive.open(member) as file:
                return file.read()  # checks the checksum
        except ERRORS as error:
            raise FormatError(f"zarr: {self.path}: {name} cannot be read: {error}") from error

    def stored(self, num_bytes: int) -> int:
        return min(num_bytes, self.path.stat().st_size)  # members may overlap

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def paths(self) -> list[Path]:
        return [self.path]
