"""Damage under a loader: checksums where rows are copied or first touched, and files that are cut short meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..._core import FormatError, MappingGuard
from ..order.selection import Selection

VERIFY = ("auto", "load", "none")


def check_verify(verify: str | None) -> str:
    if verify is None:
        return "none"
    if verify not in VERIFY:
        raise ValueError(f"Loader: verify must be one of {', '.join(VERIFY)} or None, got {verify!r}")
    return verify


def is_checked(verify: str | None, tier: str) -> bool:
    """Whether checksums are compared: where rows are copied anyway, unless told otherwise."""
    return verify == "load" or (verify == "auto" and tier != "mmap")


class MappedRows:
    """What is done before and after rows are read from mapped files, which others may damage meanwhile."""

    def __init__(self, selections: list[Selection], names: list[str], check: bool) -> None:
        self.readers = [selection.cache._reader for selection in selections]
        self.numbers = [[list(s.cache.specs).index(name) for name in names] for s in selections]
        self.places = [(i, int(e)) for i, s in enumerate(selections) for e in s.kept] if check else []
        self.unchecked = np.ones(len(self.places), bool)
        self.num_unchecked = len(self.places)
        self.require_whole()

    def touch(self, episodes: Any) -> None:
        """Compares the checksums of the rows of these kept episodes, of each once."""
        found = np.unique(np.asarray(episodes))
        found = found[self.unchecked[found]]
        for number in found.tolist():
            source, episode = self.places[number]
            for stream in self.numbers[source]:
                self.readers[source].check_rows(episode, stream)
            self.unchecked[number] = False
        if len(found):  # counted, not decremented: another thread may have checked the same episodes
            self.num_unchecked = int(np.count_nonzero(self.unchecked))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A page that is gone reads as zeros meanwhile, and is an error at the end."""
        guard = MappingGuard()
        try:
            yield
        except FormatError:
            self.require_whole()  # the cause, where a file was cut short
            raise
        finally:
            del guard
        self.require_whole()

    def require_whole(self) -> None:
        for reader in self.readers:
            reader.require_whole()
