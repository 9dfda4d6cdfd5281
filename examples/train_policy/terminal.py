"""The terminal: checked numbers of the command line, and a progress bar (one line at the end without a terminal)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace, *counts: str) -> argparse.Namespace:
    """The options, after the counts among them and the seed have been looked at; ends the program where one is bad."""
    for name in counts:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}")
    return options


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
