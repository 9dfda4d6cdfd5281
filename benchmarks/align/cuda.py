"""bench_align --device cuda: every case over the honest inputs, eager calls and the sweep in one run.

Kernel time is a CUDA graph of calls over rotating buffers that exceed the L2 cache, replayed; the floor is the bytes
that must move over the copy bandwidth of the same run. The figure of a case is its worst input after a matmul.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from align.cuda_cases import FUSE, SMALL, all_cases, fuse, fused, resample, shrink, slashed, sweep_cases
from measure import harness, timing
from measure.cuda import Compiler, CudaCase, Effort, measure, microseconds
from measure.run import Run, run_benchmark
from measure.targets import judge

BYTES = "bytes = different source rows touched + output + source times + target times, each once"
TINY = (4, 32, 16, 7)
X_ADDCMUL = 1.6


Eager = tuple[dict[str, Any], dict[str, Callable[[], Any]]]  # ({name, axes, limits, notes}, {name: call})


def eager_cases(compiler: Compiler, device: str, tiny: bool) -> Iterator[tuple[str, Callable[[], Eager]]]:
    """(what it is, how to make it) of the calls whose time in Python is measured."""
    limits = {"addcmul": X_ADDCMUL}
    for shape in (shrink(SMALL, tiny), shrink(TINY, tiny)):
        make = partial(resample, shape, "bfloat16", "float32", "ramp", device)
        yield (
            f"eager resample_trajectories {slashed(shape)}",
            partial(eager_case, "resample_trajectories", make, compiler, limits),
        )
    B, sizes, T, _ = FUSE[0]
    make = partial(fuse, B, sizes, T, "ramp", device)
    yield f"eager fuse_multimodal {fused(B, sizes, T)}", partial(eager_case, "fuse_multimodal", make, compiler, {})


def eager_case(name: str, make: Callable[[], CudaCase], compiler: Compiler, limits: dict[str, float]) -> Eager:
    """Our call, PyTorch's, and addcmul with a result of the same size: about the least an eager op can cost."""
    case = make()
    like = case.ours(*case.inputs)
    calls = {"ours": partial(case.ours, *case.inputs), "gather": partial(case.rivals["gather"], *case.inputs),
             "addcmul": partial(torch.addcmul, *(torch.randn_like(like) for _ in range(3)))}  # fmt: skip
    compiled, why = compiler.of(case.rivals["gather"], case.inputs)
    calls |= {"compiled": partial(compiled, *case.inputs)} if compiled else {}
    return {"name": name, "axes": case.axes, "limits": limits, "notes": {"compiled": why} if why else {}}, calls


def measure_eager(about: dict[str, Any], calls: dict[str, Callable[[], Any]], loops: int, num_calls: int,
                  device: str) -> dict[str, Any]:  # fmt: skip
    seconds = timing.eager_loops(calls, num_calls, loops, device)
    median = {name: harness.median(s) * 1e6 for name, s in seconds.items()}
    x_addcmul = median["ours"] / median["addcmul"]
    return {
        "name": about["name"], "axes": about["axes"], "notes": about["notes"], "calls_per_loop": num_calls,
        "median_us": median, "x_addcmul": x_addcmul,
        "ratios": {name: us / median["ours"] for name, us in median.items() if name != "ours"},
        "samples_us": microseconds(seconds), "targets": judge(about["limits"], {"addcmul": x_addcmul}),
    }  # fmt: skip


def run(args: argparse.Namespace, device: str = "cuda", tiny: bool = False) -> int:
    """The whole benchmark. `device="cpu"` with `tiny` shapes runs every path without a GPU; its times mean nothing."""
    return run_benchmark("align", BYTES, args, device, tiny, measure_all)


def measure_all(run: Run) -> None:
    """Fills the record in, with a line of progress per input."""
    device, tiny, quick = run.device, run.tiny, run.args.quick
    for case in all_cases(device, quick and not tiny, tiny):
        run.measure_inputs(case)
    for what, make_eager in eager_cases(run.compiler, device, tiny):
        if run.wants(what):
            loops, num_calls = (7 if quick else 15), (10 if tiny else 400)
            run.keep("eager", what, measure_eager(*make_eager(), loops, num_calls, device))
    alone = Effort(run.effort.samples, after=False)
    for what, make in sweep_cases(device, tiny) if tiny or not quick else ():
        if run.wants(what):
            run.keep("sweep", what, measure(make(), run.compiler, run.tbps, alone, device))
