"""The cases of bench_align --device cuda: shapes, our call, the rivals' calls, the bytes, the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import robocache
import torch
from align import rivals, stamps
from measure.cuda import CudaCase
from measure.run import Honest
from measure.targets import CLEAN, Limit
from measure.timing import Inputs
from robocache.cli.workload import moved_bytes, size_of
from torch import Tensor

Shape = tuple[int, int, int, int]
Limits = tuple[Limit, ...]

COMPILED = Limit("x compiled", 1.0)
SMALL_CALL = (Limit("us", 9.0), Limit("us", 7.5, CLEAN))
SMALL: Shape = (256, 500, 250, 32)
LARGE_SHORT: Shape = (4096, 512, 1024, 64)
RESAMPLE: list[tuple[Shape, Limits]] = [
    (SMALL, SMALL_CALL),
    ((64, 4096, 1024, 32), SMALL_CALL),
    ((32, 500, 256, 256), SMALL_CALL),
    ((4, 50, 20, 14), SMALL_CALL),
    ((4096, 2048, 1024, 64), (Limit("x floor", 1.03, "ramp"), Limit("x floor", 1.20, "random"))),
    (LARGE_SHORT, (Limit("x floor", 1.20, "ramp"), Limit("x floor", 1.25, "random"))),
]
FUSE: list[tuple[int, list[tuple[int, int]], int, Limits]] = [
    (4, [(30, 512), (100, 64), (200, 12)], 50, SMALL_CALL),
    (256, [(100, 512), (200, 128), (300, 64)], 128, (Limit("x floor", 1.4, CLEAN),)),
    (4096, [(30, 512), (100, 64), (200, 16)], 50, (Limit("x floor", 1.25),)),
]
LONG: Shape = (1, 1_000_000, 100_000, 14)
RAGGED: Shape = (65536, 128, 64, 7)  # episodes, mean rows of one, targets, channels
CLEAN_FLOOR = (Limit("x floor", 1.6, CLEAN),)
SWEEP = (1, 4, 16, 64, 256, 1024, 4096)


def axes(shape: str, values: str, times: str, kind: str) -> dict[str, str]:
    return {"B/S/T/D": shape, "values": values, "times": times, "order": kind}


def slashed(shape: Iterable[int]) -> str:
    return "/".join(map(str, shape))


def fused(B: int, sizes: list[tuple[int, int]], T: int) -> str:
    return f"{B} x ({' '.join(f'{S}x{D}' for S, D in sizes)})>{T}"


def resample(shape: Shape, dtype: str, times: str, kind: str, device: str, name: str = "resample",
             both_times: bool = False) -> CudaCase:  # fmt: skip
    """`both_times`: the same call with float32 times is timed beside it."""
    inputs = stamps.make_inputs(shape, dtype, times, kind, device)
    case = CudaCase(
        name, axes(slashed(shape), dtype, times, kind), inputs, robocache.resample_trajectories,
        {"gather": rivals.linear_gather, "rows": rivals.linear_rows}, sum(moved_bytes(*inputs)), kind,
        stamps.CLEAN[kind],
    )  # fmt: skip
    if both_times:
        other = stamps.make_inputs(shape, dtype, "float32", kind, device)
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


def fuse(B: int, sizes: list[tuple[int, int]], T: int, kind: str, device: str) -> CudaCase:
    streams, targets = stamps.make_streams(B, sizes, T, "bfloat16", "float32", kind, device)
    flat = (*(x for stream in streams for x in stream), targets)
    return CudaCase(
        "fuse", axes(fused(B, sizes, T), "bfloat16", "float32", kind), flat, fuse_ours, {"gather": fuse_gather},
        fuse_bytes(flat), kind, stamps.CLEAN[kind],
    )  # fmt: skip


def fuse_bytes(flat: Inputs) -> int:
    streams, targets = fuse_streams(flat)
    return sum(sum(moved_bytes(v, t, targets)) - size_of(targets) for v, t in streams) + size_of(targets)


def ragged_ours(values: Tensor, times: Tensor, offsets: Tensor, targets: Tensor) -> Tensor:
    """Also writes the mask of valid targets, which the rivals do not write and the bytes do not count."""
    result: Tensor = robocache.align(robocache.Stream(values, times, offsets), targets).values
    return result


def ragged_bytes(values: Tensor, times: Tensor, offsets: Tensor, targets: Tensor) -> int:
    left = rivals.ragged_left(times, offsets, targets).view(-1)
    seen = torch.zeros(len(times), dtype=torch.bool, device=times.device)
    seen[left] = True
    seen[left + 1] = True
    row_bytes = values.shape[1] * values.element_size()
    return (int(seen.sum()) + targets.numel()) * row_bytes + size_of(times, offsets, targets)


def ragged(shape: Shape, dtype: str, kind: str, device: str) -> CudaCase:
    inputs = stamps.make_ragged(*shape, dtype, "float32", kind, device)
    B, S, T, D = shape
    return CudaCase(
        "ragged 10:1", axes(f"{B}/~{S}/{T}/{D}", dtype, "float32", kind), inputs, ragged_ours,
        {"rows": rivals.ragged_rows}, ragged_bytes(*inputs), kind, stamps.CLEAN[kind], compiled="rows",
    )  # fmt: skip


def shrink(shape: Shape, tiny: bool) -> Shape:
    B, S, T, D = shape
    return (min(B, 3), min(S, 60), min(T, 20), D) if tiny else shape


def over_kinds(what: str, make: Callable[[str], CudaCase], limits: Limits) -> Honest:
    return Honest(what, {kind: partial(make, kind) for kind in stamps.KINDS}, limits)


def all_cases(device: str, quick: bool = False, tiny: bool = False) -> Iterator[Honest]:
    """Every case over the honest inputs. `quick` leaves out variants of dtype; `tiny` cuts the shapes for the tests."""
    for shape, limits in RESAMPLE:
        s = shrink(shape, tiny)
        make = partial(lambda s, kind: resample(s, "bfloat16", "float32", kind, device), s)
        yield over_kinds(f"resample {slashed(s)} bfloat16 float32", make, (COMPILED, *limits))
    for B, sizes, T, limits in FUSE:
        B, T = (min(B, 3), min(T, 20)) if tiny else (B, T)
        make = partial(lambda B, sizes, T, kind: fuse(B, sizes, T, kind, device), B, sizes, T)
        yield over_kinds(f"fuse {fused(B, sizes, T)} bfloat16 float32", make, (COMPILED, *limits))
    for dtype in ("float32",) if quick else ("float32", "bfloat16"):
        s = shrink(RAGGED, tiny)
        make = partial(lambda s, dtype, kind: ragged(s, dtype, kind, device), s, dtype)
        yield over_kinds(f"ragged 10:1 {slashed(s)} {dtype} float32", make, (COMPILED, *CLEAN_FLOOR))
    s = shrink(LONG, tiny)
    make = partial(lambda s, kind: resample(s, "float32", "int64", kind, device), s)
    yield over_kinds(f"resample {slashed(s)} float32 int64", make, (COMPILED, *CLEAN_FLOOR))
    for shape in (SMALL,) if quick else (SMALL, LARGE_SHORT):
        s = shrink(shape, tiny)
        make = partial(lambda s, kind: resample(s, "bfloat16", "int64", kind, device, "int64 times", True), s)
        yield over_kinds(f"int64 times {slashed(s)} bfloat16 int64", make, (Limit("x float32 times", 1.1),))


def sweep_cases(device: str, tiny: bool = False) -> Iterator[tuple[str, Callable[[], CudaCase]]]:
    """The small shape with more and more trajectories, on the clean input: for the picture."""
    for B in (1, 4) if tiny else SWEEP:
        s = (B, *(shrink(SMALL, tiny)[1:]))
        yield f"sweep {slashed(s)}", partial(resample, s, "bfloat16", "float32", "ramp", device, "sweep")
