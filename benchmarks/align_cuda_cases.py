"""The cases of bench_align --device cuda: shapes, inputs, our call, the rivals' calls, the bytes, the bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import align_rivals as rivals
import robocache
import torch
from cuda_measure import Bars, CudaCase
from cuda_timing import Inputs
from robocache.cli.workload import (
    as_times,
    make_fractions,
    make_inputs,
    make_times,
    make_values,
    moved_bytes,
    size_of,
)
from torch import Tensor

Shape = tuple[int, int, int, int]

ORDERS = ("ramp", "random")
SMALL: Shape = (256, 500, 250, 32)
LARGE_SHORT: Shape = (4096, 512, 1024, 64)
RESAMPLE: list[tuple[Shape, Bars, Bars]] = [  # shape, bars for ramp, bars for random
    (SMALL, {"us": 5.0}, {"us": 5.0}),
    ((64, 4096, 1024, 32), {"us": 5.5}, {"us": 6.0}),
    ((32, 500, 256, 256), {"us": 5.5}, {"us": 5.5}),
    ((4096, 2048, 1024, 64), {"floor": 1.05}, {"floor": 1.20}),
    (LARGE_SHORT, {"floor": 1.20}, {"floor": 1.25}),
]
FUSE: list[tuple[int, list[tuple[int, int]], int, Bars]] = [
    (4, [(30, 512), (100, 64), (200, 12)], 50, {"us": 3.0}),
    (256, [(100, 512), (200, 128), (300, 64)], 128, {"floor": 1.4}),
    (4096, [(30, 512), (100, 64), (200, 16)], 50, {"floor": 1.2}),
]
LONG: Shape = (1, 1_000_000, 100_000, 14)
RAGGED: Shape = (65536, 128, 64, 7)  # episodes, mean rows of one, targets, channels
SWEEP = (1, 4, 16, 64, 256, 1024, 4096)
QUICK_SWEEP = (1, 64, 4096)


def axes(shape: str, values: str, times: str, order: str) -> dict[str, str]:
    return {"B/S/T/D": shape, "values": values, "times": times, "order": order}


def slashed(shape: Shape) -> str:
    return "/".join(map(str, shape))


def fused(B: int, sizes: list[tuple[int, int]], T: int) -> str:
    return f"{B} x ({' '.join(f'{S}x{D}' for S, D in sizes)})>{T}"


def resample(shape: Shape, dtype: str, times: str, order: str, bars: Bars, device: str, name: str = "resample",
             both_times: bool = False) -> CudaCase:  # fmt: skip
    """`both_times`: the same call with float32 times is timed beside it."""
    inputs = make_inputs(shape, dtype, times, order, device)
    case = CudaCase(
        name, axes(slashed(shape), dtype, times, order), inputs, robocache.resample_trajectories,
        {"gather": rivals.linear_gather, "rows": rivals.linear_rows}, sum(moved_bytes(*inputs)), bars,
    )  # fmt: skip
    if both_times:
        other = make_inputs(shape, dtype, "float32", order, device)
        case.beside["float32 times"] = (robocache.resample_trajectories, other)
        case.compiled = None  # the case with float32 times has it
    return case


def fuse_streams(flat: Inputs) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """(values, times, values, times, …, targets) as streams and targets."""
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat) - 1, 2)], flat[-1]


def fuse_ours(*flat: Tensor) -> Tensor:
    result: Tensor = robocache.fuse_multimodal(*fuse_streams(flat))
    return result


def fuse_gather(*flat: Tensor) -> Tensor:
    return rivals.fuse_gather(*fuse_streams(flat))


def fuse(B: int, sizes: list[tuple[int, int]], T: int, order: str, bars: Bars, device: str) -> CudaCase:
    torch.manual_seed(0)
    flat: list[Tensor] = []
    for S, D in sizes:
        flat += [make_values(B, S, D, "bfloat16", device), make_times(B, S, "float32", order, 1.0, device=device)]
    targets = make_times(B, T, "float32", order, 1.0, 0.05, device)
    return CudaCase(
        "fuse", axes(fused(B, sizes, T), "bfloat16", "float32", order),
        (*flat, targets), fuse_ours, {"gather": fuse_gather}, fuse_bytes((*flat, targets)), bars,
    )  # fmt: skip


def fuse_bytes(flat: Inputs) -> int:
    streams, targets = fuse_streams(flat)
    return sum(sum(moved_bytes(v, t, targets)) - size_of(targets) for v, t in streams) + size_of(targets)


def ragged_ours(values: Tensor, times: Tensor, offsets: Tensor, targets: Tensor) -> Tensor:
    """Writes the mask of valid targets as well, which the rivals do not and the bytes do not count."""
    result: Tensor = robocache.align(robocache.Stream(values, times, offsets), targets).values
    return result


def make_ragged(num_episodes: int, mean_rows: int, T: int, D: int, dtype: str, times_dtype: str, order: str,
                device: str) -> Inputs:  # fmt: skip
    """Episodes of 10:1 in length, shuffled, at 500 Hz on average: values, times, offsets, targets."""
    torch.manual_seed(0)
    shortest = 2 * mean_rows / 11
    lengths = torch.linspace(shortest, 10 * shortest, num_episodes, dtype=torch.float64).round().long()
    lengths = lengths[torch.randperm(num_episodes)].to(device)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    num_rows = int(offsets[-1])
    gaps = torch.ones(num_rows, dtype=torch.float64, device=device)
    if order == "random":
        gaps.exponential_().add_(1e-3)
    ticks = gaps.cumsum(0)
    start = (ticks - gaps)[offsets[:-1]]
    span = ticks[offsets[1:] - 1] - start + 1.0

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(lengths, output_size=num_rows)

    seconds = (ticks - spread(start)) / spread(span) * spread(lengths) / 500
    targets = (0.01 + 0.98 * make_fractions(num_episodes, T, order, device)) * lengths.unsqueeze(1) / 500
    values = torch.randn(num_rows, D, device=device).to(getattr(torch, dtype))
    return values, as_times(seconds, times_dtype), offsets, as_times(targets, times_dtype)


def ragged_bytes(values: Tensor, times: Tensor, offsets: Tensor, targets: Tensor) -> int:
    left = rivals.ragged_left(times, offsets, targets).view(-1)
    seen = torch.zeros(len(times), dtype=torch.bool, device=times.device)
    seen[left] = True
    seen[left + 1] = True
    row_bytes = values.shape[1] * values.element_size()
    return (int(seen.sum()) + targets.numel()) * row_bytes + size_of(times, offsets, targets)


def ragged(shape: tuple[int, int, int, int], dtype: str, order: str, bars: Bars, device: str) -> CudaCase:
    inputs = make_ragged(*shape, dtype, "float32", order, device)
    B, S, T, D = shape
    return CudaCase(
        "ragged 10:1", axes(f"{B}/~{S}/{T}/{D}", dtype, "float32", order), inputs, ragged_ours,
        {"rows": rivals.ragged_rows}, ragged_bytes(*inputs), bars, compiled="rows",
    )  # fmt: skip


def shrink(shape: Shape, tiny: bool) -> Shape:
    B, S, T, D = shape
    return (min(B, 3), min(S, 60), min(T, 20), D) if tiny else shape


def all_cases(device: str, tiny: bool = False) -> Iterator[tuple[str, Callable[[], CudaCase]]]:
    """(what it is, how to make it), made one at a time. `tiny` keeps the kinds and cuts the shapes: for the tests."""
    for shape, *bars in RESAMPLE:
        s = shrink(shape, tiny)
        for order, bar in zip(ORDERS, bars, strict=True):
            make = partial(resample, s, "bfloat16", "float32", order, bar, device)
            yield f"resample {slashed(s)} bfloat16 float32 {order}", make
    for shape in (SMALL, LARGE_SHORT):
        s = shrink(shape, tiny)
        for order in ORDERS:
            bar = {"float32 times": 1.1}
            make = partial(resample, s, "bfloat16", "int64", order, bar, device, "int64 times", both_times=True)
            yield f"int64 times {slashed(s)} bfloat16 int64 {order}", make
    for dtype in ("float32", "bfloat16"):
        for order in ORDERS:
            s = shrink(RAGGED, tiny)
            yield (
                f"ragged 10:1 {slashed(s)} {dtype} float32 {order}",
                partial(ragged, s, dtype, order, {"floor": 1.6}, device),
            )
    for order in ORDERS:
        s = shrink(LONG, tiny)
        make = partial(resample, s, "float32", "int64", order, {"floor": 1.6}, device)
        yield f"resample {slashed(s)} float32 int64 {order}", make
    for B, sizes, T, bar in FUSE:
        B, T = (min(B, 3), min(T, 20)) if tiny else (B, T)
        for order in ORDERS:
            make = partial(fuse, B, sizes, T, order, bar, device)
            yield f"fuse {fused(B, sizes, T)} bfloat16 float32 {order}", make


def sweep_cases(device: str, quick: bool, tiny: bool = False) -> Iterator[tuple[str, Callable[[], CudaCase]]]:
    """The small shape with more and more trajectories: from one launch to all of memory."""
    for B in (1, 4) if tiny else QUICK_SWEEP if quick else SWEEP:
        s = (B, *(shrink(SMALL, tiny)[1:]))
        yield f"sweep {slashed(s)}", partial(resample, s, "bfloat16", "float32", "ramp", {}, device, "sweep")
