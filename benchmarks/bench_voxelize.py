"""Measures voxelize against PyTorch, small_gicp and the copy bandwidth of this machine, in one run.

python benchmarks/bench_voxelize.py --quick
python benchmarks/bench_voxelize.py --threads 2 --out benchmarks/results/voxelize_cpu.json
python benchmarks/bench_voxelize.py --device cuda --out benchmarks/results/voxelize_cuda.json
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from functools import partial
from typing import Any

import cuda_measure
import harness
from cuda_measure import Compiler, largest_error
from voxelize_cases import BYTES, Work, cpu_cases, cuda_cases, downsampled_alike, on_cuda

LEGEND = """rivals, all checked to give the same values before they are timed:
  scatter_reduce  PyTorch: cells by floor and division, then scatter_reduce of ones or features (the bars name it)
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
        "bars": {rival: {"at_least": bar, "measured": ratios[rival], "holds": ratios[rival] >= bar}
                 for rival, bar in work.bars.items()},
    }  # fmt: skip


def print_results(results: list[dict[str, Any]]) -> int:
    """The table and every bar; returns how many bars were missed."""
    names = list(dict.fromkeys(name for r in results for name in r["ratios"] if name != "copy"))
    header = ["case", "cloud", "points", "grid", "dtype", "in grid", "ours ms", "of copy"]
    rows = []
    for r in results:
        a = r["axes"]
        cells = [r["name"], a["cloud"], a["points"], a["grid"], a["values"], a["in grid"]]
        cells += [f"{r['median_s']['ours'] * 1e3:.2f}", f"{100 * r['ratios']['copy']:.0f} %"]
        cells += [f"x {r['ratios'][name]:.2f}" if name in r["ratios"] else "" for name in names]
        said = " ".join("PASS" if bar["holds"] else "MISS" for bar in r["bars"].values())
        busy = f" (busy {r['others_cores']:.1f})" if r["others_cores"] > harness.QUIET_CORES else ""
        rows.append([*cells, said + busy])
    print()
    harness.print_table([*header, *names, "bars"], rows, left=6)
    print(f"\n{BYTES}\n{LEGEND}\n")
    missed = 0
    for r in results:
        for rival, bar in r["bars"].items():
            missed += not bar["holds"]
            verdict = "PASS" if bar["holds"] else "MISS"
            print(f"  {verdict}  {bar['measured']:6.2f} >= {bar['at_least']:4.1f} x {rival:16s} {r['name']} "
                  f"{' '.join(r['axes'].values())}")  # fmt: skip
    return missed


def run_cpu(args: argparse.Namespace, tiny: bool = False) -> int:
    samples = 3 if tiny else 10 if args.quick else max(10, args.samples)
    environment = harness.environment()
    harness.set_num_threads(args.threads)
    copy = harness.copy_gbps(harness.interleave(harness.copy_calls(args.threads), samples).seconds)
    print(f"{environment['hardware']['cpu']}; {args.threads} threads, medians of {samples}, "
          f"copy {copy['best']:.1f} GB/s", flush=True)  # fmt: skip
    results = []
    for what, make in cpu_cases(args.quick, args.threads, tiny):
        if args.only not in what:
            continue
        results.append(measure(make(), samples, copy))
        print(f"  {what}: {results[-1]['median_s']['ours'] * 1e3:.3f} ms", flush=True)
        gc.collect()
    missed = print_results(results)
    record = {"benchmark": "voxelize", "device": "cpu", "threads": args.threads, "quick": args.quick, "bytes": BYTES}
    record |= {**environment, "copy_gbps": copy, "load_average_after": list(os.getloadavg()), "cases": results}
    harness.write_json(args.out, record)
    return 1 if args.strict and missed else 0


def run_cuda(args: argparse.Namespace, device: str = "cuda", tiny: bool = False) -> int:
    """`device="cpu"` with `tiny` sizes walks through it without a GPU; its times mean nothing."""

    def measure_all(record: dict[str, Any]) -> None:
        begin = time.perf_counter()
        samples = 7 if args.quick else max(20, args.samples)
        tbps = cuda_measure.measure_limits(record, device, tiny, samples)
        compiler = Compiler(args.compile and not args.quick, "not asked for in this run")
        if compiler.missing:
            print(f"no compiled rivals: {compiler.missing}")
        for what, make in cuda_cases(device, args.quick, tiny):
            if args.only in what:
                work = make()
                result = cuda_measure.measure(on_cuda(work), compiler, tbps, samples, device)
                num_points = len(work.inputs[0]) if work.inputs[0].ndim == 2 else work.inputs[0].numel()
                rate = num_points / result["median_us"]["ours"] / 1e3
                result |= {"in_grid": work.in_grid, "points_per_s": rate * 1e9}
                del work
                cuda_measure.keep_result(record, "cases", f"{what} ({rate:.1f} G points/s)", result, compiler, begin)
        cuda_measure.end_run(record, device, tiny, compiler, begin)

    return cuda_measure.run_benchmark("voxelize", BYTES, args, device, measure_all)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=harness.available_cores(), help="on the CPU")
    parser.add_argument("--samples", type=int, default=15, help="per call and case, at least 10 (cuda: 20)")
    parser.add_argument("--quick", action="store_true", help="fewer samples and clouds, no torch.compile")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile, on cuda")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_voxelize.json"), help="JSON file to write")
    args = parser.parse_args()
    return run_cuda(args) if args.device == "cuda" else run_cpu(args)


if __name__ == "__main__":
    sys.exit(main())
