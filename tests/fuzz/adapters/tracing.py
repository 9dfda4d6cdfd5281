"""Which lines of an adapter a dataset reaches, in this process and in the reader processes that it starts."""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WATCHED = ("/robocache/", "/mcap/")
"""Whose lines count: the adapters, and the parser of MCAP records that they call."""


class Coverage:
    """Pairs of lines that follow each other in a function, and how often, in powers of two."""

    def __init__(self, watched: tuple[str, ...] = WATCHED) -> None:
        self.watched = watched
        self.codes: dict[CodeType, int] = {}
        self.counts: dict[int, int] = {}
        self.features: set[tuple[int, int]] = set()

    def __enter__(self) -> Coverage:
        self.counts = {}
        sys.settrace(self.on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        number = self.codes.get(code)
        if number is None:
            mine = any(part in code.co_filename for part in self.watched)
            number = self.codes[code] = zlib.crc32(f"{code.co_filename}:{code.co_firstlineno}".encode()) if mine else 0
        if number == 0:
            return None
        counts, before = self.counts, 0

        def on_line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            if event == "line":
                line = frame.f_lineno
                edge = number << 40 | before << 20 | line
                counts[edge] = counts.get(edge, 0) + 1
                before = line
            return on_line

        return on_line

    def add(self, counts: dict[int, int]) -> None:
        """What another process counted for the same input."""
        for edge, count in counts.items():
            self.counts[edge] = self.counts.get(edge, 0) + count

    def take(self) -> int:
        """How many features of the last run are new."""
        found = {(edge, count.bit_length()) for edge, count in self.counts.items()}
        new = len(found - self.features)
        self.features |= found
        return new

    @property
    def num_edges(self) -> int:
        return len({edge for edge, _ in self.features})


def trace_reader(counted: str) -> None:
    """In the reader process of an isolated adapter: appends the counts of each request to the file."""
    from robocache.sources.reading import reader_process

    coverage, answer = Coverage(), reader_process.Server._answer

    def traced(self: Any, request: Any, arrays: list[Any]) -> Any:
        try:
            with coverage:
                return answer(self, request, arrays)
        finally:
            with open(counted, "a") as file:
                file.write(json.dumps(list(coverage.counts.items())) + "\n")

    reader_process.Server._answer = traced


def trace_readers(counted: Path) -> None:
    """Has every reader process that this process starts count its lines."""
    from robocache.sources.reading import isolated as _isolated

    start = "main(int(sys.argv[1]))"
    assert _isolated.BOOT.endswith(start)
    _isolated.BOOT = (
        f"{_isolated.BOOT.removesuffix(start)}import tracing; tracing.trace_reader({str(counted)!r}); {start}"
    )


def counted_by_readers(counted: Path) -> dict[int, int]:
    """What they counted since the last call."""
    found: Counter[int] = Counter()
    if counted.exists():
        for line in counted.read_text().splitlines():
            with contextlib.suppress(ValueError):  # cut where a limit ended the process
                found.update(dict(json.loads(line)))
        counted.write_text("")
    return dict(found)
