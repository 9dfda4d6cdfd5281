"""The cases of bench_align on the CPU: shapes, inputs, our call, the rivals' calls, and the bytes that must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import robocache
import torch
from align import rivals, stamps
from robocache.cli.workload import READS, moved_bytes, size_of, touched_rows
from robocache.ops.methods import WINDOW
from torch import Tensor

CLEAN_KINDS = ("ramp", "random")


@dataclass
class Case:
    """One input of a case. `ours` and every rival return the same tensor. Without rivals, only our time is taken."""

    name: str
    axes: dict[str, Any]
    ours: Callable[[], Tensor]
    rivals: dict[str, Callable[[], Tensor]]
    size_bytes: int
    numpy: Callable[[], Any] | None = None
    compare: Callable[[Tensor], Tensor] = lambda x: x
    ours_out: Callable[[], Any] | None = None  # into a given output, for the share of the copy bandwidth


@dataclass(frozen=True)
class Honest:
    """A case over inputs, made one at a time, so that one of them is in memory. `least`: ratios required of every
    input, {rival or "copy": at least}."""

    what: str
    need_gb: float
    make: Callable[[str], Case]
    kinds: tuple[str, ...] = stamps.KINDS
    least: dict[str, float] = field(default_factory=dict)


def resample(shape: str, dtype: str, times_dtype: str, kind: str, name: str = "resample", *, numpy: bool = False,
             out: bool = False) -> Case:  # fmt: skip
    """`numpy`: numpy.interp is timed on the clean inputs. `out`: also into a given output."""
    B, S, T, D = (int(float(n)) for n in shape.split("/"))
    values, times, targets = stamps.make_inputs((B, S, T, D), dtype, times_dtype, kind)
    ways: dict[str, Callable[..., Tensor]] = {"gather": rivals.linear_gather, "rows": rivals.linear_rows}
    if dtype == "float32":
        ways["bag"] = rivals.linear_bag
    numpy = numpy and kind in CLEAN_KINDS
    arrays = (values.float().numpy(), times.numpy(), targets.numpy()) if numpy else ()  # NumPy has no bfloat16
    given = torch.zeros(B, T, D, dtype=values.dtype) if out else None
    stream = robocache.Stream(values, times)
    return Case(
        name,
        {"B/S/T/D": shape, "values": dtype, "times": times_dtype, "order": kind},
        lambda: robocache.resample_trajectories(values, times, targets),
        {way: lambda call=call: call(values, times, targets) for way, call in ways.items()},
        sum(moved_bytes(values, times, targets)),
        numpy=(lambda: rivals.numpy_interp(*arrays)) if numpy else None,
        ours_out=(lambda: robocache.align(stream, targets, out=given).values) if out else None,
    )


def fuse(B: int, sizes: list[tuple[int, int]], T: int, dtype: str, kind: str) -> Case:
    streams, targets = stamps.make_streams(B, sizes, T, dtype, "int64", kind)
    width = sum(D for _, D in sizes)
    item = streams[0][0].element_size()
    moved = sum(touched_rows(t, targets) * v.shape[2] * item + size_of(t) for v, t in streams)
    ways = {"gather": lambda: rivals.fuse_gather(streams, targets)}
    if dtype == "float32":
        ways["rows"] = lambda: rivals.fuse_rows(streams, targets)
    return Case(
        "fuse",
        {"B/S/T/D": fused(B, sizes, T), "values": dtype, "times": "int64", "order": kind},
        lambda: robocache.fuse_multimodal(streams, targets),
        ways,
        moved + B * T * width * item + size_of(targets),
    )


def fused(B: int, sizes: list[tuple[int, int]], T: int) -> str:
    label = " ".join(f"{S}x{D}" for S, D in sizes) if len(sizes) <= 3 else f"{len(sizes)} streams"
    return f"{B} x ({label})>{T}"


METHODS: dict[str, tuple[Callable[..., Tensor], str, tuple[str, ...]]] = {
    "previous": (rivals.previous_rows, "rows", stamps.KINDS), "nearest": (rivals.nearest_rows, "rows", stamps.KINDS),
    "cubic": (rivals.cubic_bag, "bag", ("ramp", "jitter")), "slerp_xyzw": (rivals.slerp_rows, "rows", stamps.KINDS),
    "angle": (rivals.angle_rows, "rows", stamps.KINDS), "mean": (rivals.mean_bag, "bag", ("ramp", "jitter")),
}  # fmt: skip
"""The rival of each method, its name, and the inputs it is defined on: the cubic one divides by the gaps between
stamps, the mean needs a sample in every window."""


def other_method(method: str, kind: str, shape: tuple[int, int, int, int] = (256, 500, 250, 32)) -> Case:
    """One shape per method; targets well inside, values the method means (quaternions, angles)."""
    B, S, T, D = shape
    T = T // 5 if method == "mean" else T
    ((values, times),), targets = stamps.make_streams(B, [(S, D)], T, "float32", "int64", kind)
    compare: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
    if method == "slerp_xyzw":
        values = values.view(B, S, D // 4, 4).mul_(0.2).add_(0.5)
        values = torch.nn.functional.normalize(values, dim=-1).view(B, S, D)
    elif method == "angle":
        values = stamps.repeat_values(rivals.wrap(values.clamp_(-2.5, 2.5).cumsum(1)), times, kind)
        compare = lambda x: torch.stack([x.sin(), x.cos()])  # noqa: E731  -π and π are the same
    rows = B * S if method in WINDOW else touched_rows(times, targets, *READS.get(method, (0, 1)))
    call, way, kinds = METHODS[method]
    return Case(
        method,
        {"B/S/T/D": f"{B}/{S}/{T}/{D}", "values": "float32", "times": "int64", "order": kind},
        lambda: robocache.resample_trajectories(values, times, targets, method=method),
        {way: lambda: call(values, times, targets)} if kind in kinds else {},
        (rows + B * T) * D * 4 + size_of(times, targets),
        compare=compare,
    )


def ragged(kind: str, B: int = 256, S: int = 550, T: int = 250, D: int = 32) -> Case:
    """Episodes of 10:1 in length."""
    values, times, offsets, targets = stamps.make_ragged(B, S, T, D, "float32", "int64", kind)
    left = rivals.ragged_left(times, offsets, targets)
    rows = len(torch.unique(torch.cat([left.view(-1), left.view(-1) + 1])))
    stream = robocache.Stream(values, times, offsets)
    return Case(
        "ragged 10:1",
        {"B/S/T/D": f"{B}/~{S}/{T}/{D}", "values": "float32", "times": "int64", "order": kind},
        lambda: robocache.align(stream, targets).values,
        {"rows": lambda: rivals.ragged_rows(values, times, offsets, targets)},
        (rows + B * T) * D * 4 + size_of(times, targets, offsets),
    )


FUSE_LARGE, FUSE_SMALL = [(100, 512), (200, 128), (300, 64)], [(30, 512), (100, 64), (200, 12)]
FUSE_EIGHT = [(50, 64), (100, 32), (150, 7), (200, 3), (250, 16), (300, 1), (350, 6), (400, 33)]
SHAPES = ("32/500/256/256", "64/4096/1024/32", "4096/64/16/7", "1/1e6/1e5/14")
MORE_SHAPES = ("256/100/1000/32", "256/4096/2048/256", "4096/2048/1024/64")


def of_resample(shape: str, dtype: str, times: str, kinds: tuple[str, ...],
                least: dict[str, float] | None = None, numpy: bool = False) -> Honest:  # fmt: skip
    B, S, T, D = (float(n) for n in shape.split("/"))
    make = lambda kind: resample(shape, dtype, times, kind, numpy=numpy)  # noqa: E731
    return Honest(f"resample {shape} {dtype} {times}", B * D * (S + 4 * T) * 4.4e-9 + 0.1, make, kinds, least or {})


def of_fuse(need_gb: float, B: int, sizes: list[tuple[int, int]], T: int, dtype: str, kinds: tuple[str, ...],
            least: dict[str, float] | None = None) -> Honest:  # fmt: skip
    make = lambda kind: fuse(B, sizes, T, dtype, kind)  # noqa: E731
    return Honest(f"fuse {fused(B, sizes, T)} {dtype} int64", need_gb, make, kinds, least or {})


def all_cases(quick: bool) -> Iterator[Honest]:
    """`quick`: every input for the first case of each op, the clean inputs for the others."""
    few, every = (CLEAN_KINDS if quick else stamps.KINDS), stamps.KINDS
    for dtype, times in (("float32", "int64"), ("float32", "float32"), ("bfloat16", "int64"), ("bfloat16", "float32")):
        kinds = every if (dtype, times) == ("float32", "int64") else few
        yield of_resample("256/500/250/32", dtype, times, kinds, {"gather": 5.0, "numpy": 20.0}, numpy=True)
    one_gb = lambda kind: resample("4096/500/250/80", "float32", "int64", kind, "1 GB", out=True)  # noqa: E731
    yield Honest("1 GB 4096/500/250/80 float32 int64", 4.5, one_gb, CLEAN_KINDS[: 1 if quick else 2], {"copy": 0.6})
    yield of_fuse(0.6, 256, FUSE_LARGE, 128, "float32", few, {"gather": 5.0})
    yield of_fuse(0.1, 4, FUSE_SMALL, 50, "float32", every, {"gather": 5.0})
    if not quick:
        yield of_fuse(0.6, 256, FUSE_LARGE, 128, "bfloat16", few)
        yield of_fuse(0.3, 256, FUSE_SMALL, 50, "float32", few)
        yield of_fuse(4.0, 4096, FUSE_SMALL, 50, "float32", CLEAN_KINDS)
        yield of_fuse(0.5, 256, FUSE_EIGHT, 64, "float32", few)
    for shape in SHAPES if quick else (*SHAPES, *MORE_SHAPES):
        yield of_resample(shape, "float32", "int64", few)
    for method in METHODS:
        kinds = ("ramp", "jitter") if quick else stamps.KINDS
        yield Honest(f"{method} 256/500/250/32 float32 int64", 0.4, partial(other_method, method), kinds)
    yield Honest("ragged 10:1 256/~550/250/32 float32 int64", 0.3, ragged, few)
