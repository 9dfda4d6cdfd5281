"""What benchmarks on a GPU share: a case, its rivals compared and then timed in graphs, bars, the lines they print."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cuda_timing as timing
import harness
import torch
from cuda_timing import Call, Inputs
from harness import TOLERANCE
from torch import Tensor

Bars = dict[str, float]  # the most asked: "us" of our call, or a ratio: "floor", "addcmul", "float32 times"
COMPILE_BUDGET_S = 110.0  # of the run's four minutes; what is left over then is not compiled, and says so
NAMES = {"us": "us", "floor": "x floor", "addcmul": "x torch.addcmul", "float32 times": "x float32 times",
         "atomic mean": "x atomic mean"}  # fmt: skip


@dataclass
class CudaCase:
    """`ours` and every rival take the inputs and return the same tensor. `beside` is timed with them and not compared:
    {name: (call, inputs)}."""

    name: str
    axes: dict[str, str]
    inputs: Inputs
    ours: Call
    rivals: dict[str, Call]
    size_bytes: int
    bars: Bars = field(default_factory=dict)
    beside: dict[str, tuple[Call, Inputs]] = field(default_factory=dict)
    compiled: str | None = "gather"  # the rival that torch.compile gets, too
    reference: Call | None = None  # compared like a rival, and not timed: it cannot be in a graph


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
    for a, b in zip(rows(ours), rows(theirs), strict=True):
        error = (a.float() - b.float()).abs() / (TOLERANCE[dtype] * (1 + b.float().abs()))
        worst = torch.maximum(worst, error.nan_to_num(torch.inf).max())
    return float(worst)


def rows(x: Tensor) -> tuple[Tensor, ...]:
    """In parts: the largest outputs are gigabytes."""
    return (x.flatten(0, 1) if x.ndim > 1 else x).split(1 << 18)


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
    if case.reference and (error := largest_error(ours, case.reference(*case.inputs), case.axes["values"])) > 1:
        about["notes"]["reference"] = f"other values: {error:.3g} times the tolerance"
        about["agrees"] = False
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


def run_benchmark(
    name: str, bytes_formula: str, args: argparse.Namespace, device: str, measure_all: Callable[[dict[str, Any]], None]
) -> int:
    """Environment, everything that `measure_all` puts into the record, bars, the JSON file; the exit code."""
    if device == "cuda" and not torch.cuda.is_available():
        print(f"bench_{name}: --device cuda needs a GPU that PyTorch sees; torch.cuda.is_available() is False")
        return 2
    environment = harness.environment()
    environment["hardware"]["gpu"] = timing.gpu_facts(device)
    environment["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    record = {"benchmark": name, "device": device, "bytes": bytes_formula, "quick": args.quick, **environment}
    record |= {"cases": [], "eager": [], "sweep": []}
    try:
        measure_all(record)
    except Exception as error:  # what was measured until then is kept
        harness.write_json(args.out, record | {"aborted": first_line(error)})
        raise
    missed = print_results(record)
    harness.write_json(args.out, record)
    wrong = [r for r in record["cases"] + record["sweep"] if not r["agrees"]]
    return 1 if wrong or (args.strict and missed) else 0


def measure_limits(record: dict[str, Any], device: str, tiny: bool, samples: int) -> float:
    """The copy bandwidth in TB/s and an empty kernel; both go into the record."""
    record["copy"] = copy = timing.copy_bandwidth(device, copy_bytes(tiny), warm_s=0.0 if tiny else 1.0)
    record["empty_kernel"] = empty = timing.empty_kernel(device)
    low, high = timing.PLAUSIBLE_COPY_TBPS
    print(f"{record['hardware']['gpu'].get('name', device)}: copy {copy['tbps']:.3f} TB/s read + written, "
          f"{'inside' if copy['plausible'] else 'OUTSIDE'} {low}..{high} expected of an H200; "
          f"empty kernel {empty['us']:.2f} us; medians of {samples} replays", flush=True)  # fmt: skip
    if not tiny and "H200" in record["hardware"]["gpu"].get("name", "") and not copy["plausible"]:
        raise SystemExit("the copy bandwidth is not an H200's: every floor, and so every verdict, would be wrong")
    tbps: float = copy["tbps"]
    return tbps


def copy_bytes(tiny: bool) -> int:
    return 1 << 20 if tiny else timing.COPY_BYTES


def keep_result(
    record: dict[str, Any], where: str, what: str, result: dict[str, Any], compiler: Compiler, begin: float
) -> None:
    record[where].append(result)
    gc.collect()
    if record["device"] == "cuda":
        torch.cuda.empty_cache()
    new = {name: why for name, why in result["notes"].items() if why != compiler.missing}  # said at the start
    print(progress(what, result | {"notes": new}, time.perf_counter() - begin), flush=True)


def end_run(record: dict[str, Any], device: str, tiny: bool, compiler: Compiler, begin: float) -> None:
    record["copy_after_tbps"] = timing.copy_bandwidth(device, copy_bytes(tiny), warm_s=0.0)["tbps"]
    record |= {"compile_s": compiler.spent_s, "run_s": time.perf_counter() - begin}


def progress(what: str, r: dict[str, Any], elapsed_s: float) -> str:
    us = ", ".join(f"{name} {value:.2f}" for name, value in r["median_us"].items())
    floor = f" (floor {r['floor_us']:.2f}, x{r['x_floor']:.2f})" if "floor_us" in r else ""
    bars = " ".join("PASS" if bar["holds"] else "MISS" for bar in r["bars"].values())
    notes = "".join(f"\n      {name}: {why}" for name, why in r["notes"].items())
    return f"{elapsed_s:6.1f} s  {what}: {us} us{floor} {bars}{notes}"


def print_results(record: dict[str, Any]) -> int:
    """The bars, the missed ones first; returns how many were missed."""
    bars = [
        (bar["holds"], name, bar, r)
        for r in record["cases"] + record.get("eager", []) + record.get("index", [])
        for name, bar in r["bars"].items()
    ]
    print(f"\n{record['bytes']}; floor = bytes / {record['copy']['tbps']:.3f} TB/s (copied at the end: "
          f"{record['copy_after_tbps']:.3f}); run {record['run_s']:.0f} s, "
          f"of them {record['compile_s']:.0f} s torch.compile")  # fmt: skip
    for holds, name, bar, r in sorted(bars, key=lambda b: b[0]):
        what = " ".join([r["name"], *r["axes"].values()])
        print(f"  {'PASS' if holds else 'MISS'}  {bar['measured']:8.2f} <= {bar['at_most']:5.2f} "
              f"{NAMES[name]:16s} {what}")  # fmt: skip
    missed = sum(not holds for holds, *_ in bars)
    print(f"{len(bars) - missed} of {len(bars)} bars hold")
    return missed
