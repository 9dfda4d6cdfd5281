"""A foreign kernel before each call, as in a training step: a matmul that fills the GPU and evicts half of the L2.

The cost of a call is the time of [matmul, call] less the time of [matmul], both measured in the same rounds: in CUDA
graphs, and as eager calls on one stream between two events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from measure import harness, timing
from measure.timing import Call, Inputs

SIZE = 2048  # bfloat16: one wave of thread blocks on an H200, about 25 µs, 24 MB
MATMUL_S = 25e-6
MAX_SETS = 64  # the matmul evicts, too: fewer sets of inputs than alone
EAGER_CALLS = 100
WARM_S = 0.05  # the GPU is warm: it was just measured alone
ALONE = "matmul"


class Matmul:
    """Writes the same product each time; allocates nothing."""

    def __init__(self, device: str, size: int = SIZE) -> None:
        size = size if device == "cuda" else 8
        self._a, self._b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
        self._out = torch.empty_like(self._a)

    def __call__(self) -> None:
        torch.mm(self._a, self._b, out=self._out)


class EagerReplay:
    """Seconds per step of `num_calls` steps, queued one after the other: before(), then the call."""

    def __init__(self, call: Call, sets: list[Inputs], num_calls: int, device: str, before: Call) -> None:
        self._turns = [sets[i % len(sets)] for i in range(num_calls)]
        self._call, self._before, self._device = call, before, device
        if device == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def _steps(self) -> None:
        for inputs in self._turns:
            self._before()
            self._call(*inputs)

    def __call__(self) -> float:
        if self._device != "cuda":
            begin = time.perf_counter()
            self._steps()
            return (time.perf_counter() - begin) / len(self._turns)
        self._before()  # the queue has work when the timing begins
        self._events[0].record()
        self._steps()
        self._events[1].record()
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) * 1e-3 / len(self._turns)


def nothing(*_: object) -> None:
    """A step without a call: the matmul alone."""


def plan_calls(num_sets: int, size_bytes: int) -> tuple[int, int]:
    """(sets, calls) of a graph of [matmul, call] pairs that runs for MIN_REPLAY_S at least."""
    sets = min(num_sets, MAX_SETS)
    step_s = MATMUL_S + max(timing.LEAST_CALL_S, size_bytes / 4e12)
    return sets, sets * math.ceil(timing.MIN_REPLAY_S / (sets * step_s))


def measure_after(
    calls: Mapping[str, tuple[Call, list[Inputs]]], size_bytes: int, samples: int, device: str, eager: bool = True
) -> dict[str, dict[str, list[float]]]:
    """Seconds a call adds to a step, by way ("graph", "eager") and name. One difference per round: [matmul, call] and
    [matmul] are neighbors in time."""
    before = Matmul(device)
    num_sets, num_calls = plan_calls(max(len(sets) for _, sets in calls.values()), size_bytes)
    every = {ALONE: (nothing, [()]), **calls}
    found = {}
    for way in ("graph", "eager") if eager else ("graph",):
        replays: dict[str, Callable[[], float]] = {}
        for name, (call, sets) in every.items():  # the same number of steps: the start of a replay cancels out
            if way == "graph":
                replays[name] = timing.Replay(call, sets[:num_sets], num_calls, device, before)
            else:
                num_steps = min(num_calls, EAGER_CALLS) if device == "cuda" else 2
                replays[name] = EagerReplay(call, sets[:num_sets], num_steps, device, before)
        seconds = timing.interleave(replays, samples, min(timing.WARM_S, WARM_S))
        del replays
        found[way] = {
            name: [both - alone for both, alone in zip(seconds[name], seconds[ALONE], strict=True)]
            for name in calls
        } | {ALONE: seconds[ALONE]}  # fmt: skip
    return found


def medians_us(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: harness.median(s) * 1e6 for name, s in seconds.items()}
