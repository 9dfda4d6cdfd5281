"""bench_align --device cuda: measures every case, eager calls and the sweep in one run, and writes the JSON file.

Kernel time is a CUDA graph of calls over rotating buffers that exceed the L2 cache, replayed; the floor is the bytes
that must move over the copy bandwidth of the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cuda_timing as timing
import harness
import torch
from align_cuda_cases import (
    FUSE,
    SMALL,
    all_cases,
    fuse,
    fused,
    resample,
    shrink,
    slashed,
    sweep_cases,
)
from cuda_measure import (
    Compiler,
    CudaCase,
    end_run,
    judge,
    keep_result,
    measure,
    measure_limits,
    microseconds,
    run_benchmark,
)

BYTES = "bytes = different source rows touched + output + source times + target times, each once"
TINY = (4, 32, 16, 7)


Eager = tuple[dict[str, Any], dict[str, Callable[[], Any]]]  # ({name, axes, bars, notes}, {name: call})


def eager_cases(compiler: Compiler, device: str, tiny: bool) -> Iterator[tuple[str, Callable[[], Eager]]]:
    """(what it is, how to make it) of the calls whose time in Python is measured."""
    for shape in (shrink(SMALL, tiny), shrink(TINY, tiny)):
        make = partial(eager_case, "resample_trajectories", lambda s=shape: resample(
            s, "bfloat16", "float32", "ramp", {"addcmul": 1.6}, device), compiler)  # fmt: skip
        yield f"eager resample_trajectories {slashed(shape)}", make
    B, sizes, T, _ = FUSE[0]
    yield (
        f"eager fuse_multimodal {fused(B, sizes, T)}",
        partial(eager_case, "fuse_multimodal", lambda: fuse(B, sizes, T, "ramp", {}, device), compiler),
    )


def eager_case(name: str, make: Callable[[], CudaCase], compiler: Compiler) -> Eager:
    """Our call, PyTorch's, and addcmul with a result of the same size: about the least an eager op can cost."""
    case = make()
    like = case.ours(*case.inputs)
    calls = {"ours": partial(case.ours, *case.inputs), "gather": partial(case.rivals["gather"], *case.inputs),
             "addcmul": partial(torch.addcmul, *(torch.randn_like(like) for _ in range(3)))}  # fmt: skip
    compiled, why = compiler.of(case.rivals["gather"], case.inputs)
    calls |= {"compiled": partial(compiled, *case.inputs)} if compiled else {}
    return {"name": name, "axes": case.axes, "bars": case.bars, "notes": {"compiled": why} if why else {}}, calls


def measure_eager(about: dict[str, Any], calls: dict[str, Callable[[], Any]], loops: int, num_calls: int,
                  device: str) -> dict[str, Any]:  # fmt: skip
    seconds = timing.eager_loops(calls, num_calls, loops, device)
    median = {name: harness.median(s) * 1e6 for name, s in seconds.items()}
    measured = {"addcmul": median["ours"] / median["addcmul"]}
    return {
        **about, "calls_per_loop": num_calls, "median_us": median, "x_addcmul": measured["addcmul"],
        "ratios": {name: us / median["ours"] for name, us in median.items() if name != "ours"},
        "samples_us": microseconds(seconds), "bars": judge(about["bars"], measured),
    }  # fmt: skip


def run(args: argparse.Namespace, device: str = "cuda", tiny: bool = False) -> int:
    """The whole benchmark. `device="cpu"` with `tiny` shapes walks through it without a GPU; its times mean nothing."""
    return run_benchmark("align", BYTES, args, device, lambda record: measure_all(record, args, device, tiny))


def measure_all(record: dict[str, Any], args: argparse.Namespace, device: str, tiny: bool) -> None:
    """Fills the record in, with a line of progress per case."""
    begin = time.perf_counter()
    samples = 7 if args.quick else max(20, args.samples)
    tbps = measure_limits(record, device, tiny, samples)
    compiler = Compiler(args.compile and not args.quick, "not asked for in this run")
    if compiler.missing:
        print(f"no compiled rivals: {compiler.missing}")

    def keep(where: str, what: str, result: dict[str, Any]) -> None:
        keep_result(record, where, what, result, compiler, begin)

    for what, make in all_cases(device, tiny):
        if args.only in what:
            keep("cases", what, measure(make(), compiler, tbps, samples, device))
    for what, make_eager in eager_cases(compiler, device, tiny):
        if args.only in what:
            loops, num_calls = (7 if args.quick else 15), (10 if tiny else 400)
            keep("eager", what, measure_eager(*make_eager(), loops, num_calls, device))
    for what, make in sweep_cases(device, args.quick, tiny):
        if args.only in what:
            keep("sweep", what, measure(make(), compiler, tbps, samples, device))
    end_run(record, device, tiny, compiler, begin)
