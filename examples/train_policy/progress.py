"""A bar on the terminal; where there is no terminal, a line at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def bar(items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
    for done, item in enumerate(items, 1):
        yield item
        show(done, total, label)


def show(done: int, total: int, label: str, note: str = "") -> None:
    if not sys.stderr.isatty():
        if done == total:
            print(f"{label:9} {total} {note}".rstrip(), file=sys.stderr, flush=True)
        return
    filled = 40 * done // max(total, 1)
    end = "\n" if done == total else ""
    shown = f"{label:9} [{'#' * filled}{'.' * (40 - filled)}] {done}/{total} {note}"
    print(f"\r{shown}", end=end, file=sys.stderr, flush=True)
