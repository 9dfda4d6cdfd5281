"""Measures `ingest` against reading the same HDF5 file with h5py, how long a cache takes to open, and peak memory.

python benchmarks/bench_ingest.py --quick
python benchmarks/bench_ingest.py --folder bench_ingest --out benchmarks/results/pipeline/ingest_cpu.json
python benchmarks/bench_ingest.py --only pictures --out benchmarks/results/pipeline/ingest_pictures_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import robocache
from measure import harness
from measure.targets import target, verdict
from pipeline.ingest import data as ingest_data
from pipeline.ingest.pictures import measure_pictures

SPEED = "bytes of all arrays over the wall time; ours is read, checked, summed up, written, synced and opened"
MEMORY = "VmHWM of a process that only ingests: anonymous and mapped pages, the interpreter and its modules included"
LARGE_ROWS = 480  # a demonstration of robomimic's "tool hang"
LONG_ROWS = 2000  # no demonstration is that long: opening datasets is no longer what takes the time, the disk is
CHILD = """
import json, pathlib, sys, robocache
def high_water():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
before = high_water()
import h5py, pyarrow.parquet  # what ingest imports of this source
imported = high_water()
cache = robocache.ingest(sys.argv[1], sys.argv[2])
print(json.dumps({"robocache_imported": before, "imported": imported, "peak": high_water(), "episodes": len(cache)}))
"""


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def agrees(source: Path, out: Path) -> bool:
    """Every array of the first, a middle and the last demo, as h5py reads it."""
    cache = robocache.Cache(out)
    with h5py.File(source, "r") as file:
        for i in (0, len(cache) // 2, len(cache) - 1):
            demo = file["data"][f"demo_{i}"]
            for name, stream in cache.episode(i).streams.items():
                if stream.values.tobytes() != demo[name][:].tobytes():
                    return False
    return cache.verify() == []


def measure_speed(folder: Path, size_bytes: int, rows: int, samples: int, at_least: float | None) -> dict[str, Any]:
    """Reading and ingesting in turns; both find the file in the page cache."""
    source, out = folder / "source.hdf5", folder / "cache"
    size, demos = ingest_data.write_robomimic(source, size_bytes, rows)
    seconds: dict[str, list[float]] = {"raw": [], "ingest": []}
    ingest_data.read_raw(source)
    for _ in range(samples):
        seconds["raw"].append(timed(lambda: ingest_data.read_raw(source)))
        shutil.rmtree(out, ignore_errors=True)
        seconds["ingest"].append(timed(lambda: robocache.ingest(source, out)))
    assert agrees(source, out), "the cache is not what the file is"
    source.unlink()
    shutil.rmtree(out)
    medians = {name: harness.median(s) for name, s in seconds.items()}
    share = harness.median(r / i for r, i in zip(seconds["raw"], seconds["ingest"], strict=True))
    return {
        "name": "ingest", "axes": {"demos": demos, "rows": rows, "streams": 4 + len(ingest_data.OBS)},
        "size_bytes": size, "samples_s": seconds, "median_s": medians, "of_raw": share,
        "targets": {} if at_least is None else {"of raw read": target(share, at_least=at_least)},
    }  # fmt: skip


def measure_open(folder: Path, episodes: int, num_shards: int, samples: int) -> dict[str, Any]:
    """Opening, and the arrays of one episode from the middle; at a quiet moment where there is one, and in CPU time."""
    out = folder / "many"
    cache = ingest_data.write_many_episodes(out, episodes, num_shards)
    assert len(cache) == episodes
    axes = {"episodes": episodes, "shards": cache.num_shards, "streams": len(cache.specs)}
    size = cache.size_bytes
    del cache
    calls = {
        "open": lambda: robocache.Cache(out),
        "open and read one": lambda: robocache.Cache(out).episode(episodes // 2),
    }
    timings = harness.interleave(calls, samples)
    seconds = timings.seconds
    begin = time.process_time()
    robocache.Cache(out)
    cpu_s = time.process_time() - begin
    shutil.rmtree(out)
    medians = {name: harness.median(s) for name, s in seconds.items()}
    return {
        "name": "open", "axes": axes, "size_bytes": size, "samples_s": seconds, "median_s": medians, "cpu_s": cpu_s,
        "others_cores": timings.others_cores,
        "targets": {"ms": target(medians["open"] * 1e3, at_most=100.0)},
    }  # fmt: skip


def measure_memory(folder: Path, size_bytes: int) -> dict[str, Any]:
    source, out = folder / "large.hdf5", folder / "large"
    size, demos = ingest_data.write_robomimic(source, size_bytes, LARGE_ROWS)
    done = subprocess.run([sys.executable, "-c", CHILD, source, out], check=True, capture_output=True, text=True)
    peaks = json.loads(done.stdout)
    assert peaks.pop("episodes") == demos
    source.unlink()
    shutil.rmtree(out)
    return {
        "name": "memory", "axes": {"demos": demos, "rows": LARGE_ROWS, "streams": 4 + len(ingest_data.OBS)},
        "size_bytes": size, "peak_bytes": peaks,
        "targets": {"MB": target(peaks["peak"] / 1e6, at_most=500.0)},
    }  # fmt: skip


def describe(case: dict[str, Any]) -> str:
    what = ", ".join(f"{value} {name}" for name, value in case["axes"].items())
    said = [f"{verdict(b)} {b['measured']:.3g} {name}" for name, b in case["targets"].items()]
    said = said or [f"{case['of_raw']:.2f} of raw read"]
    return f"  {case['name']}, {case['size_bytes'] / 1e6:.0f} MB, {what}: {'; '.join(said)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5, help="of reading and of ingesting, in turns")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the sizes: to see that it runs")
    parser.add_argument("--folder", default=None, help="where the files are made (15 GB); removed afterwards")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_ingest.json"), help="JSON file to write")
    args = parser.parse_args()
    part = 50 if args.quick else 1
    environment = harness.environment()
    environment["versions"] |= {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}
    cases = []
    if args.folder is not None:
        Path(args.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder = Path(made)
        for name, measure in (
            ("ingest", lambda: measure_speed(folder, 10**9 // part, ingest_data.ROWS, args.samples, 0.4)),
            ("ingest", lambda: measure_speed(folder, 10**9 // part, LONG_ROWS, args.samples, None)),
            ("pictures", lambda: measure_pictures(folder, (480, 640), 10**9 // part, args.samples)),
            ("pictures", lambda: measure_pictures(folder, (224, 224), 10**9 // part, args.samples)),
            ("open", lambda: measure_open(folder, 100_000 // part, 240, max(10, args.samples))),
            ("memory", lambda: measure_memory(folder, 4 * 10**9 // part)),
        ):
            if args.only in name:
                load = list(os.getloadavg())
                cases.append(measure() | {"load_average": load})
                print(describe(cases[-1]), flush=True)
    record = {"benchmark": "ingest", "device": "cpu", "quick": args.quick, "speed": SPEED, "memory": MEMORY}
    harness.write_json(args.out, record | environment | {"cases": cases})
    missed = sum(not b["met"] for case in cases for b in case["targets"].values())
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
