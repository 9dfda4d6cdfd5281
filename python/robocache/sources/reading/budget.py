"""Limits on reading: bytes, items and seconds. ``Budget`` holds the limits; each open or episode call has a meter."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ..._core import FormatError

EXPANSION = 1000
"""A file may declare this many times the bytes that it stores."""
VIDEO_EXPANSION = 20_000
"""The same of the decoded frames of a video: one of a scene at rest is small."""
FREE_BYTES = 64 << 20
"""Below this many bytes, expansion is not checked."""
FREE_ITEMS = 1 << 18
ITEMS_PER_BYTE = 8
"""Items above ``FREE_ITEMS`` that each stored byte allows: a message of 100 bytes may be packed into a few."""
BASE_SECONDS = 8.0
BYTES_PER_SECOND = 256 << 10
"""Stored bytes that allow one second more: a tenth of what the slowest reader handles."""
ENTRY_BYTES = 4096
"""What an entry of a folder counts as stored bytes."""
LOOK_EVERY = 256
"""Items between two looks at the clock."""


@dataclass
class Meter:
    """What one call has used so far."""

    items: int = 0
    stored_bytes: int = 0
    began_s: float = field(default_factory=time.thread_time)
    thread: int = field(default_factory=threading.get_ident)
    next_look: int = LOOK_EVERY


_METER: ContextVar[Meter | None] = ContextVar("robocache_meter", default=None)


@dataclass(frozen=True)
class Budget:
    """Limits on one call of ``open`` or ``episode``. Stateless, so threads may share it.

    ``max_seconds`` is processor time of the calling thread, so a slow disk or a busy machine does not exceed it. None:
    8 s plus 1 s for each 256 KiB that the files store.
    """

    max_bytes: int = 8 << 30
    max_items: int = 200_000_000
    max_seconds: float | None = None

    @contextmanager
    def call(self) -> Iterator[Meter]:
        """A call begins: its items and seconds count from 0."""
        meter = Meter()
        token = _METER.set(meter)
        try:
            yield meter
        finally:
            _METER.reset(token)

    def check(self, where: str, needed: int, stored: int | None = None, expansion: int = EXPANSION) -> None:
        """Raises FormatError if the declared bytes ``needed`` are too many, in total or relative to ``stored``."""
        if needed < 0 or needed > self.max_bytes:
            raise FormatError(
                f"{where} declares {needed} bytes, more than the limit of {self.max_bytes}; raise it with max_bytes="
            )
        if stored is not None and needed > FREE_BYTES and needed > stored * expansion:
            raise FormatError(
                f"{where} declares {needed} bytes, more than {expansion} times its {stored} stored bytes: rejected as "
                "a decompression bomb"
            )

    def count(self, where: str, items: int = 1) -> None:
        """Counts records, chunks, files or values before a loop processes them."""
        meter = _METER.get()
        if meter is None:
            return
        meter.items += items
        if meter.items > self.max_items:
            raise FormatError(
                f"{where}: {meter.items} items, more than the limit of {self.max_items}; raise it with max_items="
            )
        if meter.items > FREE_ITEMS + ITEMS_PER_BYTE * meter.stored_bytes:
            raise FormatError(
                f"{where}: {meter.items} items in {meter.stored_bytes} stored bytes, rejected as a decompression bomb"
            )
        if meter.items >= meter.next_look:
            meter.next_look = meter.items + LOOK_EVERY
            self.check_time(where)

    def check_time(self, where: str) -> None:
        """Raises FormatError if the call has taken too long. For loops with long iterations; ``count`` checks too."""
        meter = _METER.get()
        if meter is None or meter.thread != threading.get_ident():
            return
        allowed = self.seconds_left(meter)
        if allowed < 0:
            total = self.max_seconds_of(meter)
            raise FormatError(
                f"{where}: reading took more than {total:.0f} s of processor time; raise it with max_seconds="
            )

    def max_seconds_of(self, meter: Meter) -> float:
        if self.max_seconds is not None:
            return self.max_seconds
        return BASE_SECONDS + meter.stored_bytes / BYTES_PER_SECOND

    def seconds_left(self, meter: Meter | None = None) -> float:
        """Of the call that runs, or of a new one where none does. For the limits of a child process."""
        meter = meter or _METER.get() or Meter()
        return self.max_seconds_of(meter) - (time.thread_time() - meter.began_s)


BUDGET = Budget()
"""The default."""


def add_stored(num_bytes: int) -> None:
    """The call that runs reads a file of this size: it may take longer, and have more items."""
    meter = _METER.get()
    if meter is not None:
        meter.stored_bytes += num_bytes


def stored_bytes() -> int:
    """What the files that the running call has read store."""
    meter = _METER.get()
    return meter.stored_bytes if meter is not None else 0
