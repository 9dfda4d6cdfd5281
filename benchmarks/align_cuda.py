"""bench_align --device cuda: measures every case, eager calls and the sweep in one run, and writes the JSON file.

Kernel time is a CUDA graph of calls over rotating buffers that exceed the L2 cache, replayed; the floor is the bytes
that must move over the copy bandwidth of the same run.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cuda_timing as timing
import harness
import torch
from align_cases import TOLERANCE
from align_cuda_cases import (
    FUSE,
    SMALL,
    CudaCase,
    all_cases,
    fuse,
    fused,
    resample,
    shrink,
    slashed,
    sweep_cases,
)
from torch import Tensor

BYTES = "bytes = different source rows touched + output + source times + target times, each once"
TINY = (4, 32, 16, 7)
COMPILE_BUDGET_S = 110.0  # of the run's four minutes; what is left over then is not compiled, and says so
NAMES = {"us": "us", "floor": "x floor", "addcmul": "x torch.addcmul", "float32 times": "x float32 times"}


class Compiler:
    """torch.compile of rivals, each function once, until the budget is spent. Everything that fails says why."""

    def __init__(self, wanted: bool, reason: str) -> None:
        self.missing = None if wanted else reason
        self.spent_s = 0.0
        self._compiled: dict[timing.Call, timing.Call] = {}
        if wanted:
            self.missing = self._why_not()

    def _why_not(self) -> str | None:
        if torch.cuda.is_available():
            try:
                import triton  # noqa: F401
            except ImportError as error:
                return f"torch.compile needs Triton: {error}"
        from torch._dynamo import config

        setattr(config, "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit", 64)
        return None

    def of(self, call: timing.Call, inputs: timing.Inputs) -> tuple[timing.Call | None, str | None]:
        """The compiled call, run once on such inputs, or why there is none."""
        if self.missing:
            return None, self.missing
        if self.spent_s > COMPILE_BUDGET_S:
            return None, f"not compiled: the {COMPILE_BUDGET_S:.0f} s for compiling were spent"
        compiled = self._compiled.setdefault(call, torch.compile(call, dynamic=False))
        begin = time.perf_counter()
        try:
            compiled(*inputs)
            return compiled, None
        except Exception as error:  # whatever Inductor throws, the run goes on
            return None, f"torch.compile failed: {first_line(error)}"
        finally:
            self.spent_s += time.perf_counter() - begin


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]


def largest_error(ours: Tensor, theirs: Tensor, dtype: str) -> float:
    """Largest |difference| / (tolerance * (1 + |theirs|)); at most 1 means the same work was done. NaN is infinite."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    worst = torch.zeros((), device=ours.device)
    for a, b in zip(ours.flatten(0, 1).split(1 << 18), theirs.flatten(0, 1).split(1 << 18), strict=True):
        error = (a.float() - b.float()).abs() / (TOLERANCE[dtype] * (1 + b.float().abs()))
        worst = torch.maximum(worst, error.nan_to_num(torch.inf).max())
    return float(worst)


def record_all(case: CudaCase, compiler: Compiler, device: str) -> tuple[dict[str, timing.Replay], dict[str, Any]]:
    """A replay of our call and of each rival that gives the same values; and how the buffers rotate, with notes."""
    num_sets, num_calls = timing.plan_rotation(case.size_bytes, timing.l2_bytes(device))
    sets = timing.rotate(case.inputs, num_sets)
    about: dict[str, Any] = {"num_sets": num_sets, "calls_per_replay": num_calls, "notes": {}, "agrees": True}
    calls = dict(case.rivals)
    if case.compiled:
        compiled, why = compiler.of(case.rivals[case.compiled], case.inputs)
        calls |= {"compiled": compiled} if compiled else {}
        about["notes"] |= {"compiled": why} if why else {}
    ours = case.ours(*case.inputs)
    for name in list(calls):
        error = largest_error(ours, calls[name](*case.inputs), case.axes["values"])
        if error > 1:
            about["notes"][name] = f"other values: {error:.3g} times the tolerance, not timed"
            about["agrees"] = about["agrees"] and name == "compiled"
            del calls[name]
    del ours
    replays = {"ours": timing.Replay(case.ours, sets, num_calls, device)}
    for name, (call, inputs) in case.beside.items():
        replays[name] = timing.Replay(call, timing.rotate(inputs, num_sets), num_calls, device)
    for name, call in calls.items():
        try:
            replays[name] = timing.Replay(call, sets, num_calls, device)
        except Exception as error:  # a rival that cannot be captured is no reason to lose the run
            about["notes"][name] = f"not timed in a graph: {first_line(error)}"
    return replays, about


def measure(case: CudaCase, compiler: Compiler, tbps: float, samples: int, device: str) -> dict[str, Any]:
    replays, about = record_all(case, compiler, device)
    seconds = timing.interleave(replays, samples)
    del replays
    median = {name: harness.median(s) * 1e6 for name, s in seconds.items()}
    floor_us = case.size_bytes / tbps / 1e6
    ratios = {name: us / median["ours"] for name, us in median.items() if name != "ours" and name not in case.beside}
    measured = {"us": median["ours"], "floor": median["ours"] / floor_us}
    measured |= {name: median["ours"] / median[name] for name in case.beside}
    return {
        "name": case.name, "axes": case.axes, "size_bytes": case.size_bytes, "floor_us": floor_us,
        "rotating_bytes": about["num_sets"] * case.size_bytes, **about, "median_us": median,
        "x_floor": measured["floor"], "ratios": ratios, "samples_us": microseconds(seconds),
        "bars": judge(case.bars, measured, about["agrees"]),
    }  # fmt: skip


def judge(bars: dict[str, float], measured: dict[str, float], agrees: bool = True) -> dict[str, Any]:
    """Each bar with what was measured. A case whose values differ from PyTorch's holds none."""
    return {name: {"at_most": most, "measured": measured[name], "holds": agrees and measured[name] <= most}
            for name, most in bars.items()}  # fmt: skip


def microseconds(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(s * 1e6, 4) for s in samples] for name, samples in seconds.items()}


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
    if device == "cuda" and not torch.cuda.is_available():
        print("bench_align: --device cuda needs a GPU that PyTorch sees; torch.cuda.is_available() is False")
        return 2
    environment = harness.environment()
    environment["hardware"]["gpu"] = timing.gpu_facts(device)
    environment["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    record = {"benchmark": "align", "device": device, "bytes": BYTES, "quick": args.quick, **environment}
    record |= {"cases": [], "eager": [], "sweep": []}
    try:
        measure_all(record, args, device, tiny)
    except Exception as error:  # what was measured until then is kept
        harness.write_json(args.out, record | {"aborted": first_line(error)})
        raise
    missed = print_results(record)
    harness.write_json(args.out, record)
    wrong = [r for r in record["cases"] + record["sweep"] if not r["agrees"]]
    return 1 if wrong or (args.strict and missed) else 0


def measure_all(record: dict[str, Any], args: argparse.Namespace, device: str, tiny: bool) -> None:
    """Fills the record in, with a line of progress per case."""
    begin = time.perf_counter()
    samples = 7 if args.quick else max(20, args.samples)
    copy_of = partial(timing.copy_bandwidth, device, 1 << 20 if tiny else timing.COPY_BYTES)
    record["copy"] = copy = copy_of(warm_s=0.0 if tiny else 1.0)
    record["empty_kernel"] = empty = timing.empty_kernel(device)
    low, high = timing.PLAUSIBLE_COPY_TBPS
    print(f"{record['hardware']['gpu'].get('name', device)}: copy {copy['tbps']:.3f} TB/s read + written, "
          f"{'inside' if copy['plausible'] else 'OUTSIDE'} {low}..{high} expected of an H200; "
          f"empty kernel {empty['us']:.2f} us; medians of {samples} replays", flush=True)  # fmt: skip
    if "H200" in record["hardware"]["gpu"].get("name", "") and not copy["plausible"]:
        raise SystemExit("the copy bandwidth is not an H200's: every floor, and so every verdict, would be wrong")
    compiler = Compiler(args.compile and not args.quick, "not asked for in this run")
    if compiler.missing:
        print(f"no compiled rivals: {compiler.missing}")

    def keep(where: str, what: str, result: dict[str, Any]) -> None:
        record[where].append(result)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        new = {name: why for name, why in result["notes"].items() if why != compiler.missing}  # said at the start
        print(progress(what, result | {"notes": new}, time.perf_counter() - begin), flush=True)

    for what, make in all_cases(device, tiny):
        if args.only in what:
            keep("cases", what, measure(make(), compiler, copy["tbps"], samples, device))
    for what, make_eager in eager_cases(compiler, device, tiny):
        if args.only in what:
            loops, num_calls = (7 if args.quick else 15), (10 if tiny else 400)
            keep("eager", what, measure_eager(*make_eager(), loops, num_calls, device))
    for what, make in sweep_cases(device, args.quick, tiny):
        if args.only in what:
            keep("sweep", what, measure(make(), compiler, copy["tbps"], samples, device))
    record["copy_after_tbps"] = copy_of(warm_s=0.0)["tbps"]
    record |= {"compile_s": compiler.spent_s, "run_s": time.perf_counter() - begin}


def progress(what: str, r: dict[str, Any], elapsed_s: float) -> str:
    us = ", ".join(f"{name} {value:.2f}" for name, value in r["median_us"].items())
    floor = f" (floor {r['floor_us']:.2f}, x{r['x_floor']:.2f})" if "floor_us" in r else ""
    bars = " ".join("PASS" if bar["holds"] else "MISS" for bar in r["bars"].values())
    notes = "".join(f"\n      {name}: {why}" for name, why in r["notes"].items())
    return f"{elapsed_s:6.1f} s  {what}: {us} us{floor} {bars}{notes}"


def print_results(record: dict[str, Any]) -> int:
    """The bars, the missed ones first; returns how many were missed."""
    bars = [(bar["holds"], name, bar, r) for r in record["cases"] + record["eager"] for name, bar in r["bars"].items()]
    print(f"\n{BYTES}; floor = bytes / {record['copy']['tbps']:.3f} TB/s (copied at the end: "
          f"{record['copy_after_tbps']:.3f}); run {record['run_s']:.0f} s, "
          f"of them {record['compile_s']:.0f} s torch.compile")  # fmt: skip
    for holds, name, bar, r in sorted(bars, key=lambda b: b[0]):
        what = " ".join([r["name"], *r["axes"].values()])
        print(f"  {'PASS' if holds else 'MISS'}  {bar['measured']:8.2f} <= {bar['at_most']:5.2f} "
              f"{NAMES[name]:16s} {what}")  # fmt: skip
    missed = sum(not holds for holds, *_ in bars)
    print(f"{len(bars) - missed} of {len(bars)} bars hold")
    return missed
