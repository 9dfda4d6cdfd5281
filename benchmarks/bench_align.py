"""Measures `align` against PyTorch, NumPy and the copy bandwidth of this machine, in one run.

python benchmarks/bench_align.py --quick
python benchmarks/bench_align.py --threads 2 --out benchmarks/results/ops/align_cpu.json
python benchmarks/bench_align.py --device cuda --out benchmarks/results/ops/align_cuda.json
python benchmarks/bench_align.py --device cuda --quick --only "resample 256/500,fuse 4 x"

A case is measured on the honest inputs of align/stamps.py; its figure is the worst of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import Any

import torch
from align.cases import Case, Honest, all_cases
from align.stamps import CLEAN
from measure import harness
from measure.harness import TOLERANCE
from measure.targets import X_CLEAN, Figure, Limit, judge_inputs, judge_least, rule, verdict
from torch import Tensor

BYTES = "bytes = different source rows touched + output + source times + target times, each once"
WAYS = ("gather", "rows", "bag", "compiled")
LEGEND = """rivals, all checked to give the same values before they are timed:
  gather  PyTorch: searchsorted + gather with an expanded index + lerp (the targets name this one)
  rows    PyTorch: the same with index_select of whole rows; for other methods their arithmetic instead of lerp
  bag     PyTorch: one embedding_bag over weighted rows
  compiled  torch.compile of rows (of gather where there is no rows); only with --compile
  numpy   numpy.interp per row and channel, one thread; its ratio is against ours at one thread. It has no bfloat16:
          there it is given the same values as float32 and not charged for the conversion
  idle    one call after a pause of 20 ms instead of one in a loop of calls: threads have gone to sleep
  copy    the best of torch copy_ and numpy copyto (split over the threads) on 512 MiB buffers, read + written bytes
  out     ours into a given output, as the copy has one; ours and PyTorch otherwise allocate their result
x = their time / our time; below 1 we lose. "busy": other programs used that many cores meanwhile, which hurts PyTorch
most; such a row is not to be quoted."""


def largest_error(ours: Tensor, theirs: Tensor, case: Case) -> float:
    """Largest |difference| / (tolerance * (1 + |theirs|)); at most 1 means the same work was done."""
    tolerance = TOLERANCE[case.axes["values"]]
    worst = 0.0
    for a, b in zip(ours.split(256), theirs.split(256), strict=True):  # in parts: the largest outputs are 1 GB
        a, b = case.compare(a.float()), case.compare(b.float())
        worst = max(worst, float(((a - b).abs() / (tolerance * (1 + b.abs()))).max()))
    return worst


def check(case: Case) -> None:
    ours = case.ours()
    answers = dict(case.rivals)
    if case.numpy:
        answers["numpy"] = lambda: torch.from_numpy(case.numpy())
    if case.ours_out:
        answers["out"] = case.ours_out
    for name, call in answers.items():
        theirs = call()
        assert theirs.shape == ours.shape, f"{case.name}: {name} has shape {theirs.shape}, ours {ours.shape}"
        error = largest_error(ours, theirs, case)
        assert error <= 1, f"{case.name} {case.axes}: {name} differs, {error:.3g} times the tolerance"


def measure(case: Case, num_threads: int, samples: int, copy: dict[str, float]) -> dict[str, Any]:
    """Checks, then times. `copy` is the bandwidth known so far; a case with a given output measures its own."""
    harness.set_num_threads(num_threads)
    check(case)
    calls = {"ours": case.ours, **case.rivals}
    if case.ours_out:
        calls |= {"out": case.ours_out, **harness.copy_calls(num_threads)}
    timings = harness.interleave(calls, samples)
    seconds, others = timings.seconds, timings.others_cores
    del calls
    if case.ours_out:
        copy = harness.copy_gbps(seconds)
    if case.numpy:
        idle = harness.after_idle({"ours": case.ours, "gather": case.rivals["gather"]}, samples)
        seconds |= {f"{name}, after idle": s for name, s in idle.items()}
        harness.set_num_threads(1)
        single = harness.interleave({"ours, 1 thread": case.ours, "numpy": case.numpy}, max(samples, 10))
        seconds, others = seconds | single.seconds, max(others, single.others_cores)
        harness.set_num_threads(num_threads)
    medians = {name: harness.median(s) for name, s in seconds.items()}
    ratios = {way: medians[way] / medians["ours"] for way in WAYS if way in medians}
    if case.numpy:
        ratios["numpy"] = medians["numpy"] / medians["ours, 1 thread"]
        ratios["numpy, our threads"] = medians["numpy"] / medians["ours"]
        ratios["gather, after idle"] = medians["gather, after idle"] / medians["ours, after idle"]
    gbps = case.size_bytes / medians["out" if case.ours_out else "ours"] / 1e9
    ratios["copy"] = gbps / copy["best"]
    return {
        "name": case.name, "axes": case.axes, "size_bytes": case.size_bytes, "median_s": medians, "ratios": ratios,
        "gbps": gbps, "copy_gbps": copy, "others_cores": others, "samples_s": seconds, "targets": {},
    }  # fmt: skip


def summarize(case: Honest, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The worst input of a case, the figure of each with its ratio to the clean one, and the targets."""
    ms = {kind: r["median_s"]["ours"] * 1e3 for kind, r in results.items()}
    figures = [
        Figure(kind, CLEAN[kind], ms[kind] * 1e3, r["size_bytes"] / r["copy_gbps"]["best"] / 1e3, {})
        for kind, r in results.items()
    ]
    worst = max(ms, key=lambda kind: ms[kind])
    limits = (Limit("x clean", X_CLEAN),) if len(results) > 1 else ()
    return {
        "name": case.what, "figure": "ms",
        "inputs": {kind: {"ms": ms[kind], "clean": CLEAN[kind], "x_clean": ms[kind] / ms[CLEAN[kind]]
                          if CLEAN[kind] in ms else None, "ratios": r["ratios"]} for kind, r in results.items()},
        "worst_input": worst, "worst_ms": ms[worst],
        "targets": judge_least(case.least, {kind: r["ratios"] for kind, r in results.items()})
        | judge_inputs(limits, figures),
    }  # fmt: skip


def row(r: dict[str, Any]) -> list[str]:
    def ms(name: str) -> str:
        return f"{r['median_s'][name] * 1e3:.3f}" if name in r["median_s"] else ""

    def x(name: str) -> str:
        return f"{r['ratios'][name]:.1f}" if name in r["ratios"] else ""

    axes = r["axes"]
    cells = [r["name"], axes["B/S/T/D"], axes["values"], axes["times"], axes["order"]]
    cells += [ms("ours"), ms("out"), f"{r['size_bytes'] / 1e6:.1f}", f"{r['gbps']:.1f}"]
    cells += [f"{100 * r['ratios']['copy']:.0f} %"]
    for way in WAYS:
        cells += [ms(way), x(way)]
    busy = f"busy {r['others_cores']:.1f}" if r["others_cores"] > harness.QUIET_CORES else ""
    cells += [ms("ours, after idle"), ms("gather, after idle"), x("gather, after idle")]
    return [*cells, ms("numpy"), ms("ours, 1 thread"), x("numpy"), busy]


def print_results(results: list[dict[str, Any]]) -> None:
    header = ["case", "B/S/T/D", "values", "times", "input", "ours ms", "out ms", "MB", "GB/s", "of copy"]
    for way in WAYS:
        header += [f"{way} ms", "x"]
    header += ["ours idle", "gather idle", "x", "numpy ms", "ours@1 ms", "x", "others"]
    rows = [row(r) for r in results]
    used = [i for i in range(len(header)) if i < 5 or any(cells[i] for cells in rows)]
    print()
    harness.print_table([header[i] for i in used], [[cells[i] for i in used] for cells in rows], left=5)
    print(f"\n{BYTES}\n{LEGEND}")


def print_targets(worst: list[dict[str, Any]]) -> int:
    """Every case with its worst input, every target with what was measured; returns how many were missed."""
    named = {"gather": "x PyTorch gather", "numpy": "x numpy.interp, one thread each", "copy": "of the copy bandwidth",
             "x clean, worst": "x the clean input"}  # fmt: skip
    print("\nworst inputs")
    for r in worst:
        print(f"  {r['worst_ms']:9.3f} ms  {r['name']} ({r['worst_input']})")
    print("\ntargets")
    for r in worst:
        for name, entry in r["targets"].items():
            sign = ">=" if "at_least" in entry else "<="
            print(f"  {verdict(entry):6s} {entry['measured']:6.2f} {sign} {rule(entry):4.1f} {named[name]:32s} "
                  f"{r['name']} ({entry['input']})")  # fmt: skip
    return sum(not entry["met"] for r in worst for entry in r["targets"].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=harness.available_cores(), help="on the CPU")
    parser.add_argument("--samples", type=int, default=15, help="per call and case, at least 10 (cuda: 20)")
    parser.add_argument("--quick", action="store_true", help="fewer samples and shapes; cuda: about 100 s")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None,
                        help="torch.compile as a rival too; needs a C++ compiler; on cuda by default")  # fmt: skip
    parser.add_argument(
        "--only", default="", help="run the inputs whose name contains this, or one of these, separated by commas"
    )
    parser.add_argument("--no-foreign", dest="foreign", action="store_false", help="cuda: only alone, no matmul before")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_align.json"), help="JSON file to write")
    args = parser.parse_args()
    if args.device == "cuda":
        from align import cuda as align_cuda

        args.compile = args.compile is not False
        return align_cuda.run(args)
    samples = 10 if args.quick else max(10, args.samples)
    torch.manual_seed(0)

    environment = harness.environment()
    hardware = environment["hardware"]
    print(f"{hardware['cpu']}, {hardware['cores']} cores, {' '.join(hardware['isa'])}; {args.threads} threads, "
          f"medians of {samples}; load {hardware['load_average'][0]:.2f}")  # fmt: skip
    harness.set_num_threads(args.threads)
    copy = harness.copy_gbps(harness.interleave(harness.copy_calls(args.threads), samples).seconds)
    print(", ".join(f"{name} {rate:.1f} GB/s" for name, rate in copy.items()), flush=True)

    results, worst, skipped = [], [], []
    for honest in all_cases(args.quick):
        if honest.need_gb * 1e9 > harness.available_memory_bytes():
            skipped.append({"name": honest.what, "needs_gb": honest.need_gb})
            print(f"  skipped: {honest.what} needs {honest.need_gb:.1f} GB of memory", flush=True)
            continue
        found = {}
        for kind in honest.kinds:
            what = f"{honest.what} {kind}"
            if not any(part.strip() in what for part in args.only.split(",")):
                continue
            case = honest.make(kind)
            if args.compile and "gather" in case.rivals:
                torch.compiler.reset()
                case.rivals["compiled"] = torch.compile(case.rivals.get("rows", case.rivals["gather"]), dynamic=False)
            found[kind] = r = measure(case, args.threads, 10 if honest.need_gb > 2 else samples, copy)
            print(f"  {what}: {r['median_s']['ours'] * 1e3:.3f} ms", flush=True)
            del case
            gc.collect()
        if found:
            results += found.values()
            worst.append(summarize(honest, found))

    print_results(results)
    missed = print_targets(worst)
    record = {"benchmark": "align", "device": args.device, "threads": args.threads, "bytes": BYTES, **environment}
    record |= {"copy_gbps": copy, "load_average_after": list(os.getloadavg()), "cases": results, "worst": worst}
    record |= {"quick": args.quick, "skipped": skipped}
    harness.write_json(args.out, record)
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
