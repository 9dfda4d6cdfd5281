"""A bar on the terminal, and nothing where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def bar(items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
    for done, item in enumerate(items, 1):
        yield item
        show(done, total, label)


def show(done: int, total: int, label: str) -> None:
    if sys.stderr.isatty():
        filled = 40 * done // max(total, 1)
        end = "\n" if done == total else ""
        print(f"\r{label:9} [{'#' * filled}{'.' * (40 - filled)}] {done}/{total}", end=end, file=sys.stderr, flush=True)
