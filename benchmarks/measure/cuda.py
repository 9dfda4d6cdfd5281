"""A case on a GPU: its rivals are compared with ours, then all are timed alone and after a foreign kernel."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from measure import foreign, timing
from measure.harness import TOLERANCE
from measure.targets import Figure
from measure.timing import Call, Inputs
from torch import Tensor

COMPILE_BUDGET_S = 110.0  # once spent, the remaining rivals are not compiled, and the result notes it


@dataclass
class CudaCase:
    """One input of a case. `ours` and every rival take `inputs` and return the same tensor. `beside` is timed with them
    and not compared: {name: (call, inputs)}. `clean`: the input this one is compared with, itself if it is clean."""

    name: str
    axes: dict[str, str]
    inputs: Inputs
    ours: Call
    rivals: dict[str, Call]
    size_bytes: int
    input: str
    clean: str
    beside: dict[str, tuple[Call, Inputs]] = field(default_factory=dict)
    compiled: str | None = "gather"  # the rival that is also measured with torch.compile
    reference: Call | None = None  # compared like a rival, and not timed: a graph cannot hold it
    required: tuple[str, ...] = ()  # rivals that a quick run also times on every input: targets name them
    facts: dict[str, Any] = field(default_factory=dict)  # goes into the result


@dataclass(frozen=True)
class Effort:
    """How much is measured. `quick`: of the rivals only torch.compile, and the first one on the clean input."""

    samples: int
    quick: bool = False
    after: bool = True  # also after a foreign kernel


class Compiler:
    """torch.compile of rivals, each function once, until the budget is spent. Every failure is noted in the result."""

    def __init__(self, wanted: bool, reason: str = "not requested in this run") -> None:
        self.missing = None if wanted else reason
        self.spent_s = 0.0
        self._compiled: dict[Call, Call] = {}
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

    def of(self, call: Call, inputs: Inputs) -> tuple[Call | None, str | None]:
        """The compiled call, run once on such inputs, or the reason why there is none."""
        if self.missing:
            return None, self.missing
        if self.spent_s > COMPILE_BUDGET_S:
            return None, f"not compiled: the {COMPILE_BUDGET_S:.0f} s for compiling were spent"
        compiled = self._compiled.setdefault(call, torch.compile(call, dynamic=False))
        begin = time.perf_counter()
        try:
            compiled(*inputs)
            return compiled, None
        except Exception as error:  # the run continues after any failure of Inductor
            return None, f"torch.compile failed: {first_line(error)}"
        finally:
            self.spent_s += time.perf_counter() - begin


def first_line(error: BaseException) -> str:
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


def agreeing_rivals(case: CudaCase, compiler: Compiler) -> tuple[dict[str, Call], dict[str, Any]]:
    """The rivals that return our values, torch.compile included, and notes on the others."""
    about: dict[str, Any] = {"notes": {}, "agrees": True}
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
    return calls, about


def timed_rivals(case: CudaCase, calls: dict[str, Call], quick: bool) -> dict[str, Call]:
    """A quick run times torch.compile; the first eager rival only on the clean input, or where nothing is compiled."""
    if not quick:
        return calls
    eager = [name for name in calls if name != "compiled"][:1]
    keep = {"compiled", *case.required, *(eager if case.input == case.clean or "compiled" not in calls else [])}
    return {name: call for name, call in calls.items() if name in keep}


def record_alone(
    calls: dict[str, tuple[Call, list[Inputs]]], num_calls: int, device: str, notes: dict[str, str]
) -> dict[str, timing.Replay]:
    """A graph of each call. A rival that cannot be captured is removed from `calls` and noted; the run continues."""
    replays = {}
    for name, (call, sets) in list(calls.items()):
        try:
            replays[name] = timing.Replay(call, sets, num_calls, device)
        except Exception as error:
            if name == "ours":
                raise
            notes[name] = f"not timed in a graph: {first_line(error)}"
            del calls[name]
    return replays


def measure(case: CudaCase, compiler: Compiler, tbps: float, effort: Effort, device: str) -> dict[str, Any]:
    """One input: rivals compared, then everything timed."""
    num_sets, num_calls = timing.plan_rotation(case.size_bytes, timing.l2_bytes(device))
    sets = timing.rotate(case.inputs, num_sets)
    rivals, about = agreeing_rivals(case, compiler)
    calls = {"ours": (case.ours, sets)}
    calls |= {name: (call, timing.rotate(inputs, num_sets)) for name, (call, inputs) in case.beside.items()}
    calls |= {name: (call, sets) for name, call in timed_rivals(case, rivals, effort.quick).items()}
    result = {"name": case.name, "axes": case.axes, "input": case.input, "clean": case.clean, **case.facts, **about}
    timed = time_calls(calls, case.size_bytes, num_calls, effort, device, about["notes"], tuple(case.beside))
    return result | on_floor(case.size_bytes, tbps, timed)


def time_calls(
    calls: dict[str, tuple[Call, list[Inputs]]], size_bytes: int, num_calls: int, effort: Effort, device: str,
    notes: dict[str, str], beside: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """`median_us`: in a graph of such calls. `after_us` and `after_eager_us`: what the call adds to a matmul before it,
    in a graph and as eager calls. `ratios`, `after_ratios`: their time / ours."""
    replays = record_alone(calls, num_calls, device, notes)
    seconds = timing.interleave(replays, effort.samples)
    del replays
    median = foreign.medians_us(seconds)
    result = {
        "calls_per_replay": num_calls, "num_sets": len(calls["ours"][1]), "median_us": median,
        "ratios": ratios_of(median, beside), "samples_us": microseconds(seconds), "targets": {},
    }  # fmt: skip
    if not effort.after:
        return result
    found = foreign.measure_after(calls, size_bytes, effort.samples, device)
    graph, eager = (foreign.medians_us(found[way]) for way in ("graph", "eager"))
    return result | {
        "matmul_us": {"graph": graph.pop(foreign.ALONE), "eager": eager.pop(foreign.ALONE)},
        "after_us": graph, "after_eager_us": eager, "after_ratios": ratios_of(graph, beside),
        "after_samples_us": {way: microseconds(seconds) for way, seconds in found.items()},
    }  # fmt: skip


def on_floor(size_bytes: int, tbps: float, timed: dict[str, Any]) -> dict[str, Any]:
    floor_us = size_bytes / tbps / 1e6
    return timed | {
        "size_bytes": size_bytes, "floor_us": floor_us, "rotating_bytes": timed["num_sets"] * size_bytes,
        "x_floor": timed["median_us"]["ours"] / floor_us,
    }  # fmt: skip


def ratios_of(median: dict[str, float], beside: tuple[str, ...]) -> dict[str, float]:
    """Their time / ours; calls of our own beside it are not rivals."""
    return {name: us / median["ours"] for name, us in median.items() if name != "ours" and name not in beside}


def figure_of(result: dict[str, Any]) -> Figure:
    """After a matmul in a graph, where that was measured."""
    us = result.get("after_us", result["median_us"])
    others = {name: x for name, x in us.items() if name != "ours"}
    return Figure(result["input"], result["clean"], us["ours"], result["floor_us"], others, result["agrees"])


def microseconds(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(s * 1e6, 4) for s in samples] for name, samples in seconds.items()}
