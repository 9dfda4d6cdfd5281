"""The cases of bench_align: shapes, data, our call, the rivals' calls, and the bytes that must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import align_rivals as rivals
import robocache
import torch
from robocache.cli.workload import READS, WINDOWS, make_times, make_values, size_of, touched_rows
from torch import Tensor


@dataclass
class Case:
    """`ours` and every rival return the same tensor. `bars` are the least ratios asked: {rival or "copy": ratio}."""

    name: str
    axes: dict[str, Any]
    ours: Callable[[], Tensor]
    rivals: dict[str, Callable[[], Tensor]]
    size_bytes: int
    numpy: Callable[[], Any] | None = None
    bars: dict[str, float] = field(default_factory=dict)
    compare: Callable[[Tensor], Tensor] = lambda x: x
    ours_out: Callable[[], Any] | None = None  # into a given output, for the share of the copy bandwidth


def resample(shape: str, dtype: str, times_dtype: str, order: str, *, inset: float = 0.01, numpy: bool = False,
             bars: dict[str, float] | None = None, name: str = "resample", out: bool = False) -> Case:  # fmt: skip
    B, S, T, D = (int(float(n)) for n in shape.split("/"))
    values = make_values(B, S, D, dtype)
    times = make_times(B, S, times_dtype, order, S / 500)
    targets = make_times(B, T, times_dtype, "ramp" if order == "jitter" else order, S / 500, inset)
    row_bytes = D * values.element_size()
    ways: dict[str, Callable[..., Tensor]] = {"gather": rivals.linear_gather, "rows": rivals.linear_rows}
    if dtype == "float32":
        ways["bag"] = rivals.linear_bag
    arrays = (values.float().numpy(), times.numpy(), targets.numpy()) if numpy else ()  # NumPy has no bfloat16
    given = torch.zeros(B, T, D, dtype=values.dtype) if out else None
    stream = robocache.Stream(values, times)
    return Case(
        name,
        {"B/S/T/D": shape, "values": dtype, "times": times_dtype, "order": order},
        lambda: robocache.resample_trajectories(values, times, targets),
        {way: lambda call=call: call(values, times, targets) for way, call in ways.items()},
        (touched_rows(times, targets) + B * T) * row_bytes + size_of(times, targets),
        numpy=(lambda: rivals.numpy_interp(*arrays)) if numpy else None,
        bars=bars or {},
        ours_out=(lambda: robocache.align(stream, targets, out=given).values) if out else None,
    )


def one_gigabyte(order: str, bars: dict[str, float] | None = None) -> Case:
    """Source and output 1 GB together (ramp: every row is touched), with the copy bandwidth in the same rounds."""
    return resample("4096/500/250/80", "float32", "int64", order, bars=bars, name="1 GB", out=True)


def fuse(B: int, sizes: list[tuple[int, int]], T: int, dtype: str = "float32", bar: float | None = None) -> Case:
    streams = [(make_values(B, S, D, dtype), make_times(B, S, "int64", "ramp", 1.0)) for S, D in sizes]
    targets = make_times(B, T, "int64", "ramp", 1.0, 0.05)
    width = sum(D for _, D in sizes)
    item = streams[0][0].element_size()
    moved = sum(touched_rows(t, targets) * v.shape[2] * item + size_of(t) for v, t in streams)
    ways = {"gather": lambda: rivals.fuse_gather(streams, targets)}
    if dtype == "float32":
        ways["rows"] = lambda: rivals.fuse_rows(streams, targets)
    label = " ".join(f"{S}x{D}" for S, D in sizes) if len(sizes) <= 3 else f"{len(sizes)} streams"
    return Case(
        "fuse",
        {"B/S/T/D": f"{B} x ({label})>{T}", "values": dtype, "times": "int64", "order": "ramp"},
        lambda: robocache.fuse_multimodal(streams, targets),
        ways,
        moved + B * T * width * item + size_of(targets),
        bars={"gather": bar} if bar else {},
    )


def other_method(method: str) -> Case:
    """One shape per method; targets well inside, values the method means (quaternions, angles)."""
    B, S, T, D = (256, 500, 50 if method == "mean" else 250, 32)
    times = make_times(B, S, "int64", "jitter", 1.0)
    targets = make_times(B, T, "int64", "ramp", 1.0, 0.05)
    values = make_values(B, S, D, "float32")
    compare: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
    if method == "slerp_xyzw":
        values = values.view(B, S, D // 4, 4).mul_(0.2).add_(0.5)
        values = torch.nn.functional.normalize(values, dim=-1).view(B, S, D)
    elif method == "angle":
        values = rivals.wrap(values.clamp_(-2.5, 2.5).cumsum(1))
        compare = lambda x: torch.stack([x.sin(), x.cos()])  # noqa: E731  -π and π are the same
    rows = B * S if method in WINDOWS else touched_rows(times, targets, *READS.get(method, (0, 1)))
    call, way = {
        "previous": (rivals.previous_rows, "rows"), "nearest": (rivals.nearest_rows, "rows"),
        "cubic": (rivals.cubic_bag, "bag"), "slerp_xyzw": (rivals.slerp_rows, "rows"),
        "angle": (rivals.angle_rows, "rows"), "mean": (rivals.mean_bag, "bag"),
    }[method]  # fmt: skip
    return Case(
        method,
        {"B/S/T/D": f"{B}/{S}/{T}/{D}", "values": "float32", "times": "int64", "order": "jitter"},
        lambda: robocache.resample_trajectories(values, times, targets, method=method),
        {way: lambda: call(values, times, targets)},
        (rows + B * T) * D * 4 + size_of(times, targets),
        compare=compare,
    )


def ragged(B: int = 256, T: int = 250, D: int = 32) -> Case:
    """Episodes of 100 to 1000 rows."""
    lengths = torch.linspace(100, 1000, B).long()[torch.randperm(B)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    episodes = [make_times(1, int(n), "int64", "jitter", int(n) / 500)[0] for n in lengths]
    targets = torch.cat([make_times(1, T, "int64", "ramp", int(n) / 500, 0.01) for n in lengths])
    times = torch.cat(episodes)
    values = make_values(1, len(times), D, "float32")[0]
    rows = sum(touched_rows(t[None], q[None]) for t, q in zip(episodes, targets, strict=True))
    stream = robocache.Stream(values, times, offsets)
    return Case(
        "ragged 10:1",
        {"B/S/T/D": f"{B}/100-1000/{T}/{D}", "values": "float32", "times": "int64", "order": "jitter"},
        lambda: robocache.align(stream, targets).values,
        {"rows": lambda: rivals.ragged_rows(values, times, offsets, targets)},
        (rows + B * T) * D * 4 + size_of(times, targets, offsets),
    )


FUSE_LARGE, FUSE_SMALL = [(100, 512), (200, 128), (300, 64)], [(30, 512), (100, 64), (200, 12)]
FUSE_EIGHT = [(50, 64), (100, 32), (150, 7), (200, 3), (250, 16), (300, 1), (350, 6), (400, 33)]


def all_cases(quick: bool) -> Iterator[tuple[float, Callable[[], Case]]]:
    """(memory needed in GB, how to make the case): made one at a time, so that one case is in memory."""
    for order in ("ramp", "random"):
        for dtype in ("float32", "bfloat16"):
            for times in ("int64", "float32"):
                bars = {"gather": 5.0, "numpy": 20.0}
                yield 0.3, lambda a=(dtype, times, order), b=bars: resample("256/500/250/32", *a, numpy=True, bars=b)
    yield 4.5, lambda: one_gigabyte("ramp", bars={"copy": 0.6})
    yield 0.6, lambda: fuse(256, FUSE_LARGE, 128, bar=5.0)
    yield 0.1, lambda: fuse(4, FUSE_SMALL, 50, bar=5.0)
    if not quick:
        yield 4.5, lambda: one_gigabyte("random")
        yield 0.6, lambda: fuse(256, FUSE_LARGE, 128, "bfloat16")
        yield 0.3, lambda: fuse(256, FUSE_SMALL, 50)
        yield 4.0, lambda: fuse(4096, FUSE_SMALL, 50)
        yield 0.5, lambda: fuse(256, FUSE_EIGHT, 64)
    shapes = ["32/500/256/256", "64/4096/1024/32", "4096/64/16/7", "1/1e6/1e5/14"]
    for shape in shapes if quick else [*shapes, "256/100/1000/32", "256/4096/2048/256", "4096/2048/1024/64"]:
        B, S, T, D = (float(n) for n in shape.split("/"))
        yield B * D * (S + 4 * T) * 4.4e-9 + 0.1, lambda s=shape: resample(s, "float32", "int64", "ramp")
    yield 0.3, lambda: resample("256/500/250/32", "float32", "int64", "jitter", name="jittered")
    yield 0.3, lambda: resample("256/500/250/32", "float32", "int64", "ramp", inset=-0.25, name="1/3 outside")
    for method in ("previous", "nearest", "cubic", "slerp_xyzw", "angle", "mean"):
        yield 0.4, lambda m=method: other_method(m)
    yield 0.3, ragged
