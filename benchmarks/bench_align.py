"""Measures `align` against PyTorch, NumPy and the copy bandwidth of this machine, in one run.

python benchmarks/bench_align.py --quick
python benchmarks/bench_align.py --threads 2 --out benchmarks/results/align_cpu.json
python benchmarks/bench_align.py --device cuda --out benchmarks/results/align_cuda.json    (align_cuda.py)
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import Any

import harness
import torch
from align_cases import Case, all_cases
from harness import TOLERANCE
from torch import Tensor

BYTES = "bytes = different source rows touched + output + source times + target times, each once"
WAYS = ("gather", "rows", "bag", "compiled")
LEGEND = """rivals, all checked to give the same values before they are timed:
  gather  PyTorch: searchsorted + gather with an expanded index + lerp (the bars are against this one)
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
    """Checks, then times. `copy` is the bandwidth known so far; a case with a bar on it measures its own."""
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
        "gbps": gbps, "copy_gbps": copy, "others_cores": others, "samples_s": seconds,
        "bars": {rival: {"at_least": bar, "measured": ratios[rival], "holds": ratios[rival] >= bar}
                 for rival, bar in case.bars.items()},
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
    verdict = " ".join("PASS" if bar["holds"] else "MISS" for bar in r["bars"].values())
    verdict += f" (busy {r['others_cores']:.1f})" if r["others_cores"] > harness.QUIET_CORES else ""
    cells += [ms("ours, after idle"), ms("gather, after idle"), x("gather, after idle")]
    return [*cells, ms("numpy"), ms("ours, 1 thread"), x("numpy"), verdict]


def print_results(results: list[dict[str, Any]]) -> None:
    header = ["case", "B/S/T/D", "values", "times", "order", "ours ms", "out ms", "MB", "GB/s", "of copy"]
    for way in WAYS:
        header += [f"{way} ms", "x"]
    header += ["ours idle", "gather idle", "x", "numpy ms", "ours@1 ms", "x", "bars"]
    rows = [row(r) for r in results]
    used = [i for i in range(len(header)) if i < 5 or any(cells[i] for cells in rows)]
    print()
    harness.print_table([header[i] for i in used], [[cells[i] for i in used] for cells in rows], left=5)
    print(f"\n{BYTES}\n{LEGEND}")


def print_bars(results: list[dict[str, Any]]) -> int:
    """Prints every bar with what was measured; returns how many were missed."""
    named = {"gather": "x PyTorch gather", "numpy": "x numpy.interp, one thread each", "copy": "of the copy bandwidth"}
    missed = 0
    print("\nbars")
    for r in results:
        for rival, bar in r["bars"].items():
            missed += not bar["holds"]
            what = " ".join(str(v) for v in r["axes"].values())
            print(f"  {'PASS' if bar['holds'] else 'MISS'}  {bar['measured']:6.2f} >= {bar['at_least']:4.1f} "
                  f"{named[rival]:32s} {r['name']} {what}")  # fmt: skip
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=harness.available_cores(), help="on the CPU")
    parser.add_argument("--samples", type=int, default=15, help="per call and case, at least 10 (cuda: 20)")
    parser.add_argument("--quick", action="store_true", help="fewer samples and shapes, no torch.compile")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None,
                        help="torch.compile as a rival too; needs a C++ compiler; on cuda by default")  # fmt: skip
    parser.add_argument("--only", default="", help="run the cases whose name or axes contain this")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_align.json"), help="JSON file to write")
    args = parser.parse_args()
    if args.device == "cuda":
        import align_cuda

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

    results, skipped = [], []
    for need_gb, make in all_cases(args.quick):
        if need_gb * 1e9 > harness.available_memory_bytes():
            skipped.append({"needs_gb": need_gb})
            print(f"  skipped: a case that needs {need_gb:.1f} GB of memory", flush=True)
            continue
        case = make()
        what = " ".join([case.name, *(str(v) for v in case.axes.values())])
        if args.only in what:
            if args.compile and "gather" in case.rivals:
                torch.compiler.reset()
                case.rivals["compiled"] = torch.compile(case.rivals.get("rows", case.rivals["gather"]), dynamic=False)
            r = measure(case, args.threads, 10 if need_gb > 2 else samples, copy)
            results.append(r)
            print(f"  {what}: {r['median_s']['ours'] * 1e3:.3f} ms", flush=True)
        del case
        gc.collect()

    print_results(results)
    missed = print_bars(results)
    record = {"benchmark": "align", "device": args.device, "threads": args.threads, "bytes": BYTES, **environment}
    record |= {"copy_gbps": copy, "load_average_after": list(os.getloadavg()), "cases": results, "skipped": skipped}
    harness.write_json(args.out, record)
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
