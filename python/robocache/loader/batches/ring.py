"""Batches made ahead: threads read them into pinned memory, a stream of its own copies them to the GPU."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..._core import MappingGuard, SampleOrder
from .reader import BatchReader

DEPTH = (3, 6)
"""Batches in pinned memory at once, at least and at most: one is copied, one is read, the others wait for threads."""
PINNED_BYTES = 512 << 20
"""Of all of them, where three are not more than that already."""
COPIED = 2
"""Batches on the device, or on their way there, when one is given out: that one, and the next. Always so many, so that
the memory of the device stays the same."""
ALIGNMENT = 256

Job = tuple[SampleOrder, int, int]
"""The order, first position, number of samples."""


def leaves(entry: Any) -> Iterator[Any]:
    """What is in a batch: a transform may have made dicts and tuples of its entries."""
    if isinstance(entry, Mapping):
        entry = tuple(entry.values())
    if isinstance(entry, tuple):
        for part in entry:
            yield from leaves(part)
    else:
        yield entry


def one_ahead(batches: Iterator[dict[str, Any]], torch: Any, device: Any) -> Iterator[dict[str, Any]]:
    """Batches that a GPU computes: each one on a CUDA stream of its own, while the consumer uses the one before.

    What goes wrong is raised where that batch is taken.
    """
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # rows may still be on their way to the device

    def start() -> tuple[dict[str, Any] | None, Any]:
        with torch.cuda.stream(side):
            try:
                return next(batches, None), side.record_event()
            except Exception as error:
                return None, error

    batch, made = start()
    while batch is not None:
        following = start()
        current = torch.cuda.current_stream(device)
        current.wait_event(made)
        for x in leaves(batch):
            if isinstance(x, torch.Tensor) and x.is_cuda:
                x.record_stream(current)  # its memory is used again only after the consumer's work
        yield batch
        batch, made = following
    if isinstance(made, Exception):
        raise made


class Ring:
    """Host batches of a reader as batches on the device, in order, a few of them ahead of the consumer.

    The threads of the library read. The consumer's own thread does the rest, whenever it asks for a batch: it begins
    to read into what has been copied, and to copy what has been read. Its stream waits for the copy, and the memory is
    not used again before that stream is done with it. What goes wrong in a thread is raised where the batch is taken.
    """

    def __init__(self, reader: BatchReader, device: Any) -> None:
        self.reader, self.device = reader, device
        self.torch = reader.arrays.xp
        self.stream = self.torch.cuda.Stream(device)
        self.shapes = [(x.shape[1:], x.dtype) for x in reader.read(SampleOrder(0, 0, 0, False), 0, 0)]

    def layout(self, count: int) -> tuple[list[tuple[int, int]], int]:
        """``[(begin, end), ...]`` of the tensors in the buffer of ``count`` samples, and its bytes."""
        places = []
        end = 0
        for shape, dtype in self.shapes:
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + count * math.prod(shape) * dtype.itemsize
            places.append((begin, end))
        return places, max(end, 1)

    def depth(self, count: int) -> int:
        least, most = DEPTH
        return max(least, min(most, PINNED_BYTES // self.layout(count)[1]))

    def views(self, buffer: Any, count: int) -> list[Any]:
        places, _ = self.layout(count)
        return [
            buffer[begin:end].view(dtype).view(count, *shape)
            for (begin, end), (shape, dtype) in zip(places, self.shapes, strict=True)
        ]

    def fill(self, views: list[Any], job: Job) -> None:
        for view, x in zip(views, self.reader.read(*job), strict=True):
            view.copy_(x)

    def batches(self, jobs: Iterable[Job]) -> Iterator[list[Any]]:
        torch = self.torch
        left = iter(jobs)
        if (first := next(left, None)) is None:
            return
        left = itertools.chain([first], left)
        # Of this iteration alone: another one at the same time would not know what is still being copied.
        slots = [Slot(self) for _ in range(self.depth(first[2]))]
        free, reading = deque(slots), deque[Slot]()
        copied: deque[tuple[Any, Any, int]] = deque()
        with ThreadPoolExecutor(1, "robocache-loader") as executor:  # for what threads of the library cannot read
            try:
                while True:
                    while free and (free[0].copied.query() or not (reading or copied)):
                        if (job := next(left, None)) is None:
                            break
                        free[0].read(job, executor)
                        reading.append(free.popleft())
                    while reading and len(copied) < COPIED:
                        copied.append(reading[0].copy())
                        free.append(reading.popleft())
                    if not copied:
                        return
                    buffer, event, count = copied.popleft()
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(event)
                    buffer.record_stream(current)
                    yield self.views(buffer, count)
            finally:
                executor.shutdown(cancel_futures=True)
                for slot in slots:
                    slot.close()


class Slot:
    """A batch in pinned memory, all of its tensors in one buffer, so that there is one copy."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.count = -1
        self.buffer: Any = None
        self.views: list[Any] = []
        self.guard: MappingGuard | None = None
        """While it is read, perhaps from mapped files."""
        self.pending: Any = None
        """Its ``result()`` waits until it is read."""
        self.copied = ring.torch.cuda.Event(blocking=True)
        """After its copy. At once where there was none."""

    def read(self, job: Job, executor: ThreadPoolExecutor) -> None:
        order, begin, count = job
        self.copied.synchronize()
        if count != self.count:
            _, num_bytes = self.ring.layout(count)
            self.buffer = self.ring.torch.empty(num_bytes, dtype=self.ring.torch.uint8, pin_memory=True)
            self.views = self.ring.views(self.buffer, count)
            self.count = count
        fused = self.ring.reader.fused
        self.guard = MappingGuard()
        if fused is not None:
            self.ring.reader.touch(order, begin, count)
            self.pending = fused.read_ahead(order, begin, self.views)
        else:
            self.pending = executor.submit(self.ring.fill, self.views, job)

    def copy(self) -> tuple[Any, Any, int]:
        """``(buffer, event, number of samples)``: on the device after the event. Waits until it is read."""
        self.pending.result()
        self.guard = None
        if self.ring.reader.mapped is not None:
            self.ring.reader.mapped.require_whole()
        torch = self.ring.torch
        with torch.cuda.stream(self.ring.stream):
            buffer = torch.empty(len(self.buffer), dtype=torch.uint8, device=self.ring.device)
            buffer.copy_(self.buffer, non_blocking=True)
            self.copied.record()
        return buffer, self.copied, self.count

    def close(self) -> None:
        """Nobody reads into it, or copies from it, any more."""
        self.pending = None  # drops what is not begun, and waits for the rest
        self.guard = None
        self.copied.synchronize()
