"""How calls are timed on a GPU: in a graph over rotating buffers, and as eager calls in a Python loop.

Every function takes the device. "cpu" follows the same path with the wall clock instead of graphs and events: it is
there so that the tests can walk through the whole benchmark on a machine without a GPU, and measures nothing.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = tuple[Tensor, ...]
Call = Callable[..., Any]

COPY_BYTES = 4 << 30
PLAUSIBLE_COPY_TBPS = (3.5, 4.8)  # of an H200: what copies reach, and what its memory is sold as
ROTATE_L2 = 4  # buffers that take turns hold this many times the L2 cache
MAX_SETS = 1024  # tiny inputs take turns over fewer bytes instead of a graph without end
MIN_REPLAY_S = 1e-3  # a replay this long hides the few microseconds in which a graph starts
LEAST_CALL_S = 2e-6
WARM_S = 0.15  # before samples: a GPU that was idle, for example while something compiled, has low clocks


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def l2_bytes(device: str) -> int:
    if device != "cuda":
        return 1 << 12
    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 60 << 20))  # older PyTorch does not say


def plan_rotation(size_bytes: int, l2: int) -> tuple[int, int]:
    """(how many input sets take turns, how many calls one graph has) for calls that move `size_bytes` each.

    At least two sets, together ROTATE_L2 times the L2 cache, and a graph that runs for MIN_REPLAY_S at least.
    """
    num_sets = min(MAX_SETS, max(2, math.ceil(ROTATE_L2 * l2 / size_bytes)))
    call_s = max(LEAST_CALL_S, size_bytes / 4e12)
    return num_sets, num_sets * math.ceil(MIN_REPLAY_S / (num_sets * call_s))


def rotate(inputs: Inputs, num_sets: int) -> list[Inputs]:
    """The inputs and copies of them elsewhere in memory."""
    return [inputs, *(tuple(x.clone() for x in inputs) for _ in range(num_sets - 1))]


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeing an older graph or its memory, as a collection may, invalidates a capture in progress."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Replay:
    """`num_calls` calls over the sets in turn, as one CUDA graph. Results are kept, so that the outputs rotate too.
    `before` is captured in front of each call: a foreign kernel."""

    def __init__(
        self, call: Call, sets: list[Inputs], num_calls: int, device: str, before: Callable[[], Any] | None = None
    ) -> None:
        self.num_calls, self.device = num_calls, device
        self._turns = [sets[i % len(sets)] for i in range(num_calls)]
        self._call, self._before = call, before or (lambda: None)
        self._results: list[Any] = []
        if device == "cuda":
            self._capture()

    def _capture(self) -> None:
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for inputs in self._turns[:3]:
                self._before()
                self._call(*inputs)
        torch.cuda.current_stream().wait_stream(warm)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._graph = torch.cuda.CUDAGraph()
        # Of this thread alone: calls of other threads, such as those of a test runner, do not invalidate it.
        with _no_garbage_collection(), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            for inputs in self._turns:
                self._before()
                self._results.append(self._call(*inputs))

    def __call__(self) -> float:
        """Seconds per call of one replay."""
        if self.device == "cuda":
            self._events[0].record()
            self._graph.replay()
            self._events[1].record()
            self._events[1].synchronize()
            return self._events[0].elapsed_time(self._events[1]) * 1e-3 / self.num_calls
        begin = time.perf_counter()
        for inputs in self._turns:
            self._before()
            self._call(*inputs)
        return (time.perf_counter() - begin) / self.num_calls


class EagerCopies:
    """Seconds per copy of a few that are queued at once."""

    num_calls = 5

    def __init__(self, source: torch.Tensor, target: torch.Tensor, device: str) -> None:
        self._source, self._target, self._device = source, target, device

    def __call__(self) -> float:
        if self._device != "cuda":
            begin = time.perf_counter()
            self._target.copy_(self._source)
            return time.perf_counter() - begin
        begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin_event.record()
        for _ in range(self.num_calls):
            self._target.copy_(self._source)
        end_event.record()
        end_event.synchronize()
        return begin_event.elapsed_time(end_event) * 1e-3 / self.num_calls


def interleave(
    replays: Mapping[str, Callable[[], float]], samples: int, warm_s: float | None = None
) -> dict[str, list[float]]:
    """Seconds per call by name. Rounds go over all replays in turn, so that a noisy moment hits every rival; each round
    begins with the next of them, so that nobody always comes after the same one."""
    end = time.perf_counter() + (WARM_S if warm_s is None else warm_s)
    for rounds in itertools.count():
        for replay in replays.values():
            replay()
        if rounds >= 2 and time.perf_counter() >= end:
            break
    seconds: dict[str, list[float]] = {name: [] for name in replays}
    names = list(replays)
    for i in range(samples):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(replays[name]())
    return seconds


def eager_loops(calls: dict[str, Callable[[], Any]], num_calls: int, loops: int, device: str) -> dict[str, list[float]]:
    """Wall-clock seconds per call of a Python loop that never waits for the device: what the caller's thread spends.
    If the device is slower than the loop, launches queue up and the device is what is measured."""
    for call in calls.values():
        for _ in range(50):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for _ in range(loops):
            for name, call in calls.items():
                synchronize(device)
                begin = time.perf_counter()
                for _ in range(num_calls):
                    call()
                seconds[name].append((time.perf_counter() - begin) / num_calls)
    finally:
        gc.enable()
    synchronize(device)
    return seconds


def copy_bandwidth(device: str, size_bytes: int, warm_s: float = 1.0, samples: int = 20) -> dict[str, Any]:
    """The limit of everything that moves bytes: `copy_` of 4 GiB, bytes read + written, best of the samples.
    Warm for a second first: a figure taken at low clocks would flatter everything that is compared with it. Both as a
    plain call and in a graph, where it was 2.8 instead of 4.3 TB/s (a copy node, not a kernel): the better counts."""
    source = torch.randint(-(2**31), 2**31 - 1, (size_bytes // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    replay = Replay(lambda a, b: b.copy_(a), [(source, target)], 1, device)
    eager = EagerCopies(source, target, device)
    ways = interleave({"call": eager, "graph": replay}, samples, warm_s)
    best = {name: 2 * size_bytes / min(seconds) / 1e12 for name, seconds in ways.items()}
    tbps = max(best.values())
    low, high = PLAUSIBLE_COPY_TBPS
    return {
        "tbps": tbps,
        "ways_tbps": best,
        "size_bytes": size_bytes,
        "plausible": low <= tbps <= high,
        "samples_s": ways,
    }


def empty_kernel(device: str, samples: int = 20) -> dict[str, Any]:
    """What a kernel that does nothing takes inside a graph: a spin of zero cycles on one thread."""
    call: Call = (lambda: torch.cuda._sleep(0)) if device == "cuda" else (lambda: None)
    seconds = interleave({"empty": Replay(call, [()], 1000, device)}, samples)["empty"]
    return {"us": sorted(seconds)[len(seconds) // 2] * 1e6, "samples_s": seconds}


def gpu_facts(device: str) -> dict[str, Any]:
    """What a reader needs to judge or repeat the figures; empty without a GPU."""
    if device != "cuda":
        return {}
    p = torch.cuda.get_device_properties(0)
    facts: dict[str, Any] = {
        "name": p.name, "compute_capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
        "memory_bytes": p.total_memory, "l2_bytes": l2_bytes(device),
    }  # fmt: skip
    fields = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        facts |= dict(zip(fields, (x.strip() for x in done.stdout.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        facts["nvidia-smi"] = f"failed: {error}"
    return facts
