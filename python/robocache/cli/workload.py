"""Synthetic inputs for the profiler and the benchmarks, and the minimum memory traffic of a call on them.

``python -m robocache.cli.workload SPEC RESULT`` is the process that ``robocache profile`` runs under ncu.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..ops.methods import OF_FEATURES, WINDOW

UNIX_NS = 1_700_000_000_000_000_000
READS = {"previous": (0, 0), "nearest": (0, 0), "next": (-1, 1), "cubic": (1, 2)}
"""Rows that a method reads, as (before, after) the left row; other interpolating methods read (0, 1)."""
WARM_CALLS = 20


def make_fractions(num_rows: int, num_times: int, order: str, device: str = "cpu") -> Tensor:
    """(B, N) float64 increasing in (0, 1). ramp: evenly spaced; random: sorted uniform; jitter: even ±30 %."""
    gaps = torch.ones(num_rows, num_times + 1, dtype=torch.float64, device=device)
    if order == "random":
        gaps.exponential_().add_(1e-3)
    ticks = gaps.cumsum(1)
    ticks = ticks[:, :-1] / ticks[:, -1:] if order == "random" else (ticks[:, :-1] - 0.5) / num_times
    if order == "jitter":
        ticks += (torch.rand_like(ticks) - 0.5) * (0.6 / num_times)
    return ticks


def as_times(seconds: Tensor, dtype: str) -> Tensor:
    """float64 seconds as timestamps of a log: int64 Unix nanoseconds, or float seconds."""
    return (seconds * 1e9).long() + UNIX_NS if dtype == "int64" else seconds.to(getattr(torch, dtype))


def make_times(num_rows: int, num_times: int, dtype: str, order: str, span_s: float, inset: float = 0.0,
               device: str = "cpu") -> Tensor:  # fmt: skip
    """(B, N) increasing times over [inset, 1 - inset] of the span."""
    fractions = make_fractions(num_rows, num_times, order, device)
    return as_times((inset + fractions * (1 - 2 * inset)) * span_s, dtype)


def make_values(num_rows: int, num_samples: int, num_channels: int, dtype: str, device: str = "cpu") -> Tensor:
    block = torch.randn(min(num_rows, 64), num_samples, num_channels, device=device).to(getattr(torch, dtype))
    return block.repeat(math.ceil(num_rows / len(block)), 1, 1)[:num_rows]


def make_inputs(shape: tuple[int, int, int, int], dtype: str, times_dtype: str, order: str,
                device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """values (B, S, D), times (B, S) at 500 Hz, targets (B, T) just inside them; the same for every times dtype."""
    num_rows, num_samples, num_targets, num_channels = shape
    torch.manual_seed(0)
    values = make_values(num_rows, num_samples, num_channels, dtype, device)
    times = make_times(num_rows, num_samples, times_dtype, order, num_samples / 500, device=device)
    targets = make_times(num_rows, num_targets, times_dtype, order, num_samples / 500, 0.01, device)
    return values, times, targets


def touched_rows(times: Tensor, targets: Tensor, before: int = 0, after: int = 1) -> int:
    """Number of distinct source rows that the targets need: left - before … left + after."""
    left = torch.searchsorted(times, targets, right=True).sub_(1)
    seen = torch.zeros(times.shape, dtype=torch.bool, device=times.device)
    for step in range(-before, after + 1):
        seen.scatter_(1, (left + step).clamp_(0, times.shape[1] - 1), True)
    return int(seen.sum())


def size_of(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def moved_bytes(values: Tensor, times: Tensor, targets: Tensor, method: str = "linear") -> tuple[int, int]:
    """Minimum bytes (read, written): distinct rows that the method needs, all times, all targets; the output."""
    row_bytes = values.shape[2] * values.element_size()
    rows = times.numel() if method in WINDOW else touched_rows(times, targets, *READS.get(method, (0, 1)))
    return rows * row_bytes + size_of(times, targets), targets.numel() * row_bytes


def run_voxelize(spec: dict[str, Any], device: str) -> dict[str, Any]:
    """Same as ``run``, for ``voxelize_pointcloud``."""
    import robocache

    from .clouds import grid_of, make_cloud

    torch.manual_seed(0)
    points = make_cloud(spec["cloud"], spec["num_points"], device)
    of_features = spec["mode"] in OF_FEATURES
    num_channels = spec["num_channels"] if of_features else 1
    features = torch.randn(len(points), num_channels, device=device) if of_features else None
    options = {"mode": spec["mode"], "dtype": spec["dtype"], "deterministic": spec["deterministic"]}
    where = grid_of(spec["num_cells"])

    def call() -> None:
        robocache.voxelize_pointcloud(points, features, **where, **options)

    read = size_of(points) + (0 if features is None else size_of(features))
    written = spec["num_cells"] ** 3 * num_channels * getattr(torch, spec["dtype"]).itemsize
    return _watched(call, spec["calls"], device, read, written)


def run(spec: dict[str, Any], device: str) -> dict[str, Any]:
    """Calls the op of ``spec`` ``spec["calls"]`` times inside a profiler range; returns the minimum traffic."""
    import robocache

    values, times, targets = make_inputs(spec["case"], spec["dtype"], spec["times_dtype"], spec["order"], device)
    read, written = moved_bytes(values, times, targets, spec["method"])

    def call() -> None:
        robocache.resample_trajectories(values, times, targets, method=spec["method"])

    return _watched(call, spec["calls"], device, read, written)


def _watched(call: Callable[[], None], num_calls: int, device: str, read: int, written: int) -> dict[str, Any]:
    for _ in range(WARM_CALLS):
        call()
    _profiled(call, num_calls, device)
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return {"read_bytes": read, "written_bytes": written, "device": name, "torch": torch.__version__}


def _profiled(call: Callable[[], None], num_calls: int, device: str) -> None:
    profiler: Any = torch.cuda.profiler  # untyped
    if device == "cuda":
        torch.cuda.synchronize()
        profiler.start()
    for _ in range(num_calls):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
        profiler.stop()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    op = run_voxelize if given.get("op") == "voxelize" else run
    Path(sys.argv[2]).write_text(json.dumps(op(given, "cuda")))
