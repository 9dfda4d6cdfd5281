"""Rows of streams as stored in files, and the base class of the sources of all formats."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import JSON, Episode, EpisodeStream, LeftOut, StreamSpec
from .budget import BUDGET, Budget
from .guard import guarded
from .paths import Tree, state_of
from .repair import Repairer, checked_policies

MOST_OTHERS = 20
"""Files and folders that are not read and are listed by name; of the others, how many there are."""


@dataclass
class Rows:
    """The rows of a stream as stored in a file. ``times`` are in units of ``unit_ns`` nanoseconds; if it is None,
    integers are nanoseconds and floats are seconds."""

    spec: StreamSpec
    values: Any
    """An array; encoded pictures where ``spec.codec`` is set."""
    times: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    unit_ns: int | None = None
    made: bool = False
    """The times were computed from a rate, so they need no check."""


def text_spec(name: str) -> StreamSpec:
    """Without a rate: a text is stored where it changes, so that long instructions are stored once."""
    return StreamSpec(name, "uint8", (), "text")


def text_rows(
    spec: StreamSpec, texts: Sequence[bytes], times: NDArray[Any], where: str, budget: Budget, made: bool = False
) -> Rows:
    """The rows of a stream whose row i has ``texts[i]`` at ``times[i]``: the first row, and every row with another text
    than the row before. Raises FormatError where a text is not UTF-8, and where they are too large."""
    budget.count(where, len(texts))
    changes = [i for i in range(len(texts)) if i == 0 or texts[i] != texts[i - 1]]
    sizes = np.array([len(texts[i]) for i in changes], np.int64)
    budget.check(where, int(sizes.sum()))
    for i in changes:
        try:
            str(texts[i], "utf-8")
        except UnicodeDecodeError as error:
            what = f"{error.reason} at byte {error.start}"
            raise FormatError(f"{where}, row {i}: the text must be UTF-8: {what}") from None
    values = np.array(bytearray(b"".join(texts[i] for i in changes)), np.uint8)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Rows(spec, values, times[np.array(changes, np.int64)], offsets, made=made)


def first_others(names: Iterable[str], reason: str, of: str, of_several: str = "") -> list[LeftOut]:
    """An entry for each file or folder that is not read. ``of``: what has them, where there are too many to list."""
    ordered = sorted(names)
    entries = [LeftOut(name, reason) for name in ordered[:MOST_OTHERS]]
    if len(ordered) > MOST_OTHERS:
        more = f"{len(ordered) - MOST_OTHERS} more files and folders of {of}"
        entries.append(LeftOut(more, of_several or reason))
    return entries


class BaseSource(ABC):
    """An opened dataset. Subclasses provide the specs, the number of episodes, and the rows of each episode."""

    format = ""
    open_options = "{}"
    """The options of ``robocache.open`` as JSON with sorted keys. Options and files together determine the data."""

    def __init__(
        self,
        path: Path,
        repair: Mapping[str, str] | None = None,
        budget: Budget = BUDGET,
        follow_symlinks: bool = False,
        encoded: bool = False,
    ) -> None:
        self.path = path
        self.encoded = encoded
        """Whether encoded pictures stay as they are, in formats that have the option."""
        self.metadata: dict[str, JSON] = {}
        self.specs: dict[str, StreamSpec] = {}
        self.left_out: list[LeftOut] = []
        """Content of the files that is not in ``specs``; filled when the dataset is opened."""
        self.policies = checked_policies(repair)
        self.budget = budget
        self.tree = Tree(path if path.is_dir() else path.parent, follow_symlinks)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int, repairer: Repairer) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        """The rows, the task and the meta of one episode."""

    @abstractmethod
    def files(self) -> Iterable[Path]:
        """The files that determine the content of the dataset."""

    def label(self, index: int) -> str:
        """Format, path and number of an episode, for messages."""
        return f"{self.format}: {self.path}: episode {index}"

    def read_streams(
        self, index: int, repairer: Repairer, names: Collection[str]
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        """Same as ``read``, but only the named streams. Formats that can skip the other streams override it."""
        rows, task, meta = self.read(index, repairer)
        return [r for r in rows if r.spec.name in names], task, meta

    def episode(self, index: int, streams: Collection[str] | None = None) -> Episode:
        """Episode ``index``. ``streams``: read only these."""
        if not 0 <= index < len(self):
            raise IndexError(f"episode: index must be in [0, {len(self)}), got {index}")
        repairer = Repairer(self.policies, self.label(index))
        with self.budget.call() as meter, guarded(repairer.where, meter):
            self.budget.count(repairer.where, len(self.specs))
            if streams is None:
                rows, task, meta = self.read(index, repairer)
            else:
                rows, task, meta = self.read_streams(index, repairer, streams)
            self.budget.check_time(repairer.where)
            names = {r.spec.name for r in rows}
            if len(names) < len(rows):
                twice = next(name for name in names if sum(r.spec.name == name for r in rows) > 1)
                raise FormatError(f"{repairer.where}: two streams are named {twice}")
            found: dict[str, EpisodeStream] = {
                r.spec.name: repairer.finish(r.spec, r.values, r.times, r.offsets, r.unit_ns, r.made) for r in rows
            }
        if repairer.counts:
            meta = {**meta, "repairs": repairer.counts, "repairs_at": repairer.places}
        return Episode(index, found, task, meta)

    def __repr__(self) -> str:
        return f"<{self.format} source {str(self.path)!r}: {len(self)} episodes, {len(self.specs)} streams>"

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def fingerprint(self) -> str:
        """Of the path, and of names, sizes and times of the files. If it differs, the files may have changed."""
        digest = hashlib.sha256(os.fsencode(f"{self.format}\0{os.path.realpath(self.path)}"))
        root = self.tree.root
        for path in sorted(self.files()):
            digest.update(state_of(path.relative_to(root) if path.is_relative_to(root) else path, path.stat()))
        return digest.hexdigest()
