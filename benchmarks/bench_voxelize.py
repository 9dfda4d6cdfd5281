"""Measures voxelize against PyTorch, small_gicp and the copy bandwidth of this machine, in one run.

python benchmarks/bench_voxelize.py --quick
python benchmarks/bench_voxelize.py --threads 2 --out benchmarks/results/ops/voxelize_cpu.json
python benchmarks/bench_voxelize.py --device cuda --out benchmarks/results/ops/voxelize_cuda.json

A case is measured on the clouds of voxelize/clouds.py; its figure is the slowest of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from functools import partial
from typing import Any

from measure import harness
from measure.cuda import largest_error
from measure.run import Run, run_benchmark
from measure.targets import SPREAD, Figure, Limit, judge_inputs, judge_least, rule, verdict
from voxelize.cases import BYTES, OnCpu, Work, cpu_cases, cuda_cases, downsampled_alike
from voxelize.clouds import CLEAN, HONEST

LEGEND = """rivals, all checked to give the same values before they are timed:
  scatter_reduce  PyTorch: cells by floor and division, then scatter_reduce of ones or features (the targets name it)
  index_add       PyTorch: the same with index_add; for mean also of ones, then a division
  scatter         PyTorch: scatter of 1, which is all that occupancy needs
  small_gicp      voxelgrid_sampling with the same number of threads; it returns means only
  atomic mean     our own mean without deterministic=True; on the CPU there are no atomics, the name is that of CUDA
x = their time / our time; below 1 we lose. "busy": other programs used that many cores meanwhile; do not quote it."""


def check(work: Work) -> None:
    ours = work.ours(*work.inputs)
    for name, call in {**work.rivals, **({"reference": work.reference} if work.reference else {})}.items():
        theirs = call(*work.inputs)
        if name == "small_gicp":
            alike = downsampled_alike(ours, theirs, len(work.inputs[0]))
            assert alike, f"{work.name} {work.axes}: {name} differs"
            continue
        error = largest_error(ours, theirs, work.axes["values"])
        assert error <= 1, f"{work.name} {work.axes}: {name} differs, {error:.3g} times the tolerance"


def measure(work: Work, samples: int, copy: dict[str, float]) -> dict[str, Any]:
    check(work)
    calls = {"ours": partial(work.ours, *work.inputs)}
    calls |= {name: partial(call, *work.inputs) for name, call in work.rivals.items()}
    calls |= {name: partial(call, *inputs) for name, (call, inputs) in work.beside.items()}
    timings = harness.interleave(calls, samples)
    medians = {name: harness.median(s) for name, s in timings.seconds.items()}
    ratios = {name: s / medians["ours"] for name, s in medians.items() if name != "ours"}
    gbps = work.size_bytes / medians["ours"] / 1e9
    ratios["copy"] = gbps / copy["best"]
    return {
        "name": work.name, "axes": work.axes, "in_grid": work.in_grid, "size_bytes": work.size_bytes,
        "median_s": medians, "ratios": ratios, "gbps": gbps, "copy_gbps": copy, "others_cores": timings.others_cores,
        "samples_s": timings.seconds,
        "targets": {},
    }  # fmt: skip


def summarize(case: OnCpu, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The slowest cloud of a case, the figure of each, and the targets. Clouds that are not HONEST do not count."""
    ms = {cloud: r["median_s"]["ours"] * 1e3 for cloud, r in results.items()}
    counted = [cloud for cloud in ms if cloud in HONEST] or list(ms)
    worst = max(counted, key=lambda cloud: ms[cloud])
    figures = [Figure(cloud, CLEAN, ms[cloud] * 1e3, 1.0, {}) for cloud in counted]
    limits = (Limit(SPREAD, case.spread),) if case.spread else ()
    return {
        "name": " ".join([case.what, *(next(iter(results.values()))["axes"][k] for k in ("points", "grid", "values"))]),
        "figure": "ms", "inputs": {cloud: {"ms": x, "clean": CLEAN, "x_clean": x / ms[CLEAN] if CLEAN in ms else None,
                                           "ratios": results[cloud]["ratios"]} for cloud, x in ms.items()},
        "worst_input": worst, "worst_ms": ms[worst],
        "targets": judge_least(case.least, {c: r["ratios"] for c, r in results.items() if c in case.judged})
        | judge_inputs(limits, figures),
    }  # fmt: skip


def print_results(results: list[dict[str, Any]], worst: list[dict[str, Any]]) -> int:
    """The table, the worst clouds and every target; returns how many targets were missed."""
    names = list(dict.fromkeys(name for r in results for name in r["ratios"] if name != "copy"))
    header = ["case", "cloud", "points", "grid", "dtype", "in grid", "ours ms", "of copy"]
    rows = []
    for r in results:
        a = r["axes"]
        cells = [r["name"], a["cloud"], a["points"], a["grid"], a["values"], a["in grid"]]
        cells += [f"{r['median_s']['ours'] * 1e3:.2f}", f"{100 * r['ratios']['copy']:.0f} %"]
        cells += [f"x {r['ratios'][name]:.2f}" if name in r["ratios"] else "" for name in names]
        rows.append([*cells, f"busy {r['others_cores']:.1f}" if r["others_cores"] > harness.QUIET_CORES else ""])
    print()
    harness.print_table([*header, *names, "others"], rows, left=6)
    print(f"\n{BYTES}\n{LEGEND}\n")
    for r in worst:
        print(f"  worst: {r['worst_ms']:9.3f} ms  {r['name']} ({r['worst_input']})")
        for name, entry in r["targets"].items():
            sign = ">=" if "at_least" in entry else "<="
            print(f"    {verdict(entry):6s} {entry['measured']:6.2f} {sign} {rule(entry):4.1f} {name} "
                  f"({entry['input']})")  # fmt: skip
    return sum(not entry["met"] for r in worst for entry in r["targets"].values())


def run_cpu(args: argparse.Namespace, tiny: bool = False) -> int:
    samples = 3 if tiny else 10 if args.quick else max(10, args.samples)
    environment = harness.environment()
    harness.set_num_threads(args.threads)
    copy = harness.copy_gbps(harness.interleave(harness.copy_calls(args.threads), samples).seconds)
    print(f"{environment['hardware']['cpu']}; {args.threads} threads, medians of {samples}, "
          f"copy {copy['best']:.1f} GB/s", flush=True)  # fmt: skip
    results, worst = [], []
    for case in cpu_cases(args.quick, args.threads, tiny):
        found = {}
        for cloud in case.clouds:
            what = f"{case.what} {cloud}"
            if any(part.strip() in what for part in args.only.split(",")):
                found[cloud] = measure(case.make(cloud), samples, copy)
                print(f"  {what}: {found[cloud]['median_s']['ours'] * 1e3:.3f} ms", flush=True)
                gc.collect()
        if found:
            results += found.values()
            worst.append(summarize(case, found))
    missed = print_results(results, worst)
    record = {"benchmark": "voxelize", "device": "cpu", "threads": args.threads, "quick": args.quick, "bytes": BYTES}
    record |= {**environment, "copy_gbps": copy, "load_average_after": list(os.getloadavg())}
    harness.write_json(args.out, record | {"cases": results, "worst": worst})
    return 1 if args.strict and missed else 0


def run_cuda(args: argparse.Namespace, device: str = "cuda", tiny: bool = False) -> int:
    """`device="cpu"` with `tiny` sizes runs every path without a GPU; its times mean nothing."""

    def measure_all(run: Run) -> None:
        for case in cuda_cases(device, args.quick and not tiny, tiny):
            for result in run.measure_inputs(case):
                result["points_per_s"] = result["num_points"] / result["median_us"]["ours"] * 1e6

    return run_benchmark("voxelize", BYTES, args, device, tiny, measure_all)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=harness.available_cores(), help="on the CPU")
    parser.add_argument("--samples", type=int, default=15, help="per call and case, at least 10 (cuda: 20)")
    parser.add_argument("--quick", action="store_true", help="fewer samples and clouds; cuda: about 60 s")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile, on cuda")
    parser.add_argument("--only", default="", help="run the inputs whose name contains this, or one of a,b,c")
    parser.add_argument("--no-foreign", dest="foreign", action="store_false", help="cuda: only alone, no matmul before")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_voxelize.json"), help="JSON file to write")
    args = parser.parse_args()
    return run_cuda(args) if args.device == "cuda" else run_cpu(args)


if __name__ == "__main__":
    sys.exit(main())
