"""A benchmark run on a GPU: environment, limits of the machine, cases over their inputs, the JSON file."""

from __future__ import annotations

import argparse
import gc
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from measure import harness, targets, timing
from measure.cuda import Compiler, CudaCase, Effort, figure_of, first_line, measure
from measure.targets import X_CLEAN, Figure, Limit

Record = dict[str, Any]


@dataclass(frozen=True)
class Honest:
    """A case over the honest inputs: how to make each of them, one at a time, and the limits over all."""

    what: str
    inputs: dict[str, Callable[[], CudaCase]]
    limits: tuple[Limit, ...] = ()
    x_clean: float | None = X_CLEAN

    def all_limits(self) -> tuple[Limit, ...]:
        return self.limits + ((Limit("x clean", self.x_clean),) if self.x_clean else ())


@dataclass
class Run:
    """What the parts of one run share."""

    record: Record
    args: argparse.Namespace
    device: str
    tiny: bool
    compiler: Compiler
    effort: Effort
    tbps: float
    begin: float

    def wants(self, what: str) -> bool:
        """`--only`: substrings, separated by commas; one of them must occur."""
        return any(part.strip() in what for part in self.args.only.split(","))

    def keep(self, where: str, what: str, result: Record) -> None:
        self.record[where].append(result)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        new = {name: why for name, why in result["notes"].items() if why != self.compiler.missing}  # printed once
        print(progress(what, result | {"notes": new}, time.perf_counter() - self.begin), flush=True)

    def measure_inputs(self, case: Honest, where: str = "cases") -> list[Record]:
        """Every chosen input of the case, then its worst input with the targets."""
        results = []
        for name, make in case.inputs.items():
            what = f"{case.what} {name}"
            if self.wants(what):
                results.append(measure(make(), self.compiler, self.tbps, self.effort, self.device))
                self.keep(where, what, results[-1])
        if results:
            self.conclude(case, results)
        return results

    def conclude(self, case: Honest, results: list[Record]) -> None:
        summary = summarize(case.what, results, case.all_limits())
        self.record["worst"].append(summary)
        print(f"        worst: {summary['worst_input']}, {summary['worst_us']:.2f} us; {told(summary)}", flush=True)


def summarize(what: str, results: list[Record], limits: tuple[Limit, ...]) -> Record:
    """The worst input of a case, the figure of each input with its ratio to the clean one, and the targets."""
    figures = [figure_of(r) for r in results]
    by_name = {figure.input: figure for figure in figures}
    worst = max(figures, key=lambda figure: figure.ours_us)
    after = all("after_us" in r for r in results)
    return {
        "name": what, "figure": "us after a matmul, in a graph" if after else "us in a graph",
        "inputs": {f.input: describe(f, by_name.get(f.clean), r) for f, r in zip(figures, results, strict=True)},
        "worst_input": worst.input, "worst_us": worst.ours_us, "targets": targets.judge_inputs(limits, figures),
    }  # fmt: skip


def describe(figure: Figure, clean: Figure | None, result: Record) -> Record:
    """`x_clean` is None where the clean input was not run."""
    return {
        "us": figure.ours_us, "alone_us": result["median_us"]["ours"],
        "eager_us": result.get("after_eager_us", {}).get("ours"),
        "x_floor": figure.ours_us / figure.floor_us, "clean": figure.clean,
        "x_clean": None if clean is None else figure.ours_us / clean.ours_us, "others_us": figure.others_us,
    }  # fmt: skip


def told(summary: Record) -> str:
    return "; ".join(
        f"{targets.verdict(entry)} {name}: {entry['measured']:.2f}, target {targets.rule(entry):g} ({entry['input']})"
        for name, entry in summary["targets"].items()
    )


def samples_of(args: argparse.Namespace) -> int:
    return 7 if args.quick else max(20, args.samples)


def run_benchmark(
    name: str, bytes_formula: str, args: argparse.Namespace, device: str, tiny: bool, measure_all: Callable[[Run], None]
) -> int:
    """Environment, everything that `measure_all` puts into the record, targets, the JSON file; the exit code."""
    if device == "cuda" and not torch.cuda.is_available():
        print(f"bench_{name}: --device cuda needs a GPU that PyTorch sees; torch.cuda.is_available() is False")
        return 2
    environment = harness.environment()
    environment["hardware"]["gpu"] = timing.gpu_facts(device)
    environment["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    record = {"benchmark": name, "device": device, "bytes": bytes_formula, "quick": args.quick, **environment}
    record |= {"cases": [], "worst": [], "eager": [], "sweep": []}
    before = signal.signal(signal.SIGTERM, stop)
    try:
        run = start(record, args, device, tiny)
        measure_all(run)
        record["copy_after_tbps"] = timing.copy_bandwidth(device, copy_bytes(tiny), warm_s=0.0)["tbps"]
        record |= {"compile_s": run.compiler.spent_s, "run_s": time.perf_counter() - run.begin}
    except (Exception, KeyboardInterrupt, Stopped) as error:  # what was measured until then is kept
        harness.write_json(args.out, record | {"aborted": first_line(error)})
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    missed = print_results(record)
    harness.write_json(args.out, record)
    wrong = [r for r in record["cases"] + record["sweep"] if not r["agrees"]]
    return 1 if wrong or (args.strict and missed) else 0


class Stopped(SystemExit):
    """SIGTERM arrived; `timeout` sends it when its seconds are over."""


def stop(_number: int, _frame: Any) -> None:
    raise Stopped("by SIGTERM")


def start(record: Record, args: argparse.Namespace, device: str, tiny: bool) -> Run:
    begin = time.perf_counter()
    effort = Effort(3 if tiny else samples_of(args), args.quick, getattr(args, "foreign", True))
    compiler = Compiler(args.compile)
    tbps = measure_limits(record, device, tiny, effort.samples)
    if compiler.missing:
        print(f"no compiled rivals: {compiler.missing}")
    return Run(record, args, device, tiny, compiler, effort, tbps, begin)


def measure_limits(record: Record, device: str, tiny: bool, samples: int) -> float:
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


def progress(what: str, r: Record, elapsed_s: float) -> str:
    us = ", ".join(f"{name} {value:.2f}" for name, value in r["median_us"].items())
    floor = f" (floor {r['floor_us']:.2f}, x{r['x_floor']:.2f})" if "floor_us" in r else ""
    after = ", ".join(f"{name} {value:.2f}" for name, value in r.get("after_us", {}).items())
    after = f"; after a matmul {after}, eager {r['after_eager_us']['ours']:.2f}" if after else ""
    verdicts = " ".join(targets.verdict(entry) for entry in r["targets"].values())
    notes = "".join(f"\n      {name}: {why}" for name, why in r["notes"].items())
    return f"{elapsed_s:6.1f} s  {what}: {us} us{floor}{after} {verdicts}{notes}"


def judged(record: Record) -> list[tuple[str, str, Record]]:
    """(case, figure, target) of everything in a record."""
    results: Iterable[Record] = (
        record["cases"] + record["worst"] + record["eager"] + record.get("index", []) + record.get("tiers", [])
    )
    return [
        (" ".join([r["name"], *map(str, r.get("axes", {}).values())]), name, entry)
        for r in results
        for name, entry in r["targets"].items()
    ]


def print_results(record: Record) -> int:
    """The targets, the missed ones first; returns how many were missed."""
    found = judged(record)
    print(f"\n{record['bytes']}; floor = bytes / {record['copy']['tbps']:.3f} TB/s (copied at the end: "
          f"{record['copy_after_tbps']:.3f}); run {record['run_s']:.0f} s, "
          f"of them {record['compile_s']:.0f} s torch.compile")  # fmt: skip
    for what, name, entry in sorted(found, key=lambda x: x[2]["met"]):
        sign = "<=" if "at_most" in entry else ">="
        on = f" ({entry['input']})" if "input" in entry else ""
        print(f"  {targets.verdict(entry):6s} {entry['measured']:8.2f} {sign} {targets.rule(entry):6.2f} {name:24s} "
              f"{what}{on}")  # fmt: skip
    missed = sum(not entry["met"] for *_, entry in found)
    print(f"{len(found) - missed} of {len(found)} targets met")
    return missed
