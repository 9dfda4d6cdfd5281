"""Batches made ahead: a thread reads them into pinned memory, a stream of its own copies them to the GPU."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from ._batch import BatchReader, Order

DEPTH = 3
"""Batches that are on their way at once."""
ALIGNMENT = 256

Job = tuple[Order, int, int]
"""Order, first position, number of samples."""


class Ring:
    """Host batches of a reader as batches on the device, in order, a few of them ahead of the consumer.

    All tensors of a batch lie in one buffer, so that there is one copy. The consumer's stream waits for it, the buffer
    is not used again before that stream is done with it, and what the thread throws reaches the consumer.
    """

    def __init__(self, reader: BatchReader, device: Any) -> None:
        self.reader, self.device = reader, device
        torch = reader.torch
        self.stream = torch.cuda.Stream(device)
        self.shapes = [(x.shape[1:], x.dtype) for x in reader.read((0, 0, 0, False), 0, 0)]

    def layout(self, count: int) -> tuple[list[tuple[int, int]], int]:
        """``[(begin, end), ...]`` of the tensors in the buffer of ``count`` samples, and its bytes."""
        places = []
        end = 0
        for shape, dtype in self.shapes:
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + count * math.prod(shape) * dtype.itemsize
            places.append((begin, end))
        return places, max(end, 1)

    def views(self, buffer: Any, count: int) -> list[Any]:
        places, _ = self.layout(count)
        return [
            buffer[begin:end].view(dtype).view(count, *shape)
            for (begin, end), (shape, dtype) in zip(places, self.shapes, strict=True)
        ]

    def fill(self, staged: Any, job: Job) -> None:
        order, begin, count = job
        views = self.views(staged, count)
        if self.reader.fused is not None:
            self.reader.fused.read_into(order, begin, views)
        else:
            for view, x in zip(views, self.reader.read(order, begin, count), strict=True):
                view.copy_(x)

    def produce(self, jobs: Iterable[Job], ready: queue.Queue[Any], stop: threading.Event) -> None:
        torch = self.reader.torch
        # Of this iteration alone: another one at the same time would not know what is still being copied.
        slots: list[Any] = [None] * DEPTH
        copied: list[Any] = [None] * DEPTH
        try:
            for job, i in zip(jobs, itertools.cycle(range(DEPTH)), strict=False):
                _, num_bytes = self.layout(job[2])
                if copied[i] is not None:
                    copied[i].synchronize()
                if slots[i] is None or len(slots[i]) < num_bytes:
                    slots[i] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
                staged = slots[i][:num_bytes]
                self.fill(staged, job)
                with torch.cuda.stream(self.stream):
                    buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
                    buffer.copy_(staged, non_blocking=True)
                    copied[i] = torch.cuda.Event(blocking=True)
                    copied[i].record(self.stream)
                if not put(ready, (buffer, copied[i], job[2]), stop):
                    return
            put(ready, None, stop)
        except BaseException as error:  # the consumer's to handle
            put(ready, error, stop)
        finally:
            for event in copied:  # nobody writes to a slot that is still being copied
                if event is not None:
                    event.synchronize()

    def batches(self, jobs: Iterable[Job]) -> Iterator[list[Any]]:
        torch = self.reader.torch
        ready: queue.Queue[Any] = queue.Queue(DEPTH - 1)
        stop = threading.Event()
        thread = threading.Thread(target=self.produce, args=(jobs, ready, stop), name="robocache-loader", daemon=True)
        thread.start()
        try:
            while (made := take(ready, thread)) is not None:
                if isinstance(made, BaseException):
                    raise made
                buffer, copied, count = made
                current = torch.cuda.current_stream(self.device)
                current.wait_event(copied)
                buffer.record_stream(current)
                yield self.views(buffer, count)
        finally:
            stop.set()
            thread.join()


def put(ready: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    """Waits for room; False once the consumer has left."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def take(ready: queue.Queue[Any], thread: threading.Thread) -> Any:
    while True:
        try:
            return ready.get(timeout=1.0)
        except queue.Empty:
            if not thread.is_alive() and ready.empty():
                raise RuntimeError("Loader: the thread that reads batches ahead has ended") from None
