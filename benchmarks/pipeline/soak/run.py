"""Loads, decodes and ingests for hours; ends with 1 at the first wrong bit, or if the process holds more than before.

make soak HOURS=0.05                                          this program, on the CPU
python benchmarks/pipeline/soak/run.py --hours 24 --device cuda --json soak.json

Kinds of work take turns. Batches are compared with reference batches of the CPU, pictures with Pillow, ingested rows
with what was written; checksums are verified. After a warm-up (a fifth of the time), the process may hold no more file
descriptors, threads and child processes than before, and the median of its resident memory may grow by `--limit-mib`,
from the first to the last quarter of the samples. On a GPU the same limit holds for the memory that torch has
allocated and reserved, and for the memory that is in use on the whole GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow
from measure import harness
from measure.targets import verdict
from pipeline.loader.soak import held
from pipeline.soak.work import Work, WrongBits, everything

WARM, SAMPLES, LEAST_ROUNDS = 0.2, 120, 6
LIMIT_MIB = 8
EXACT = ("descriptors", "threads", "children")
"""What may not grow at all."""


def holdings(device: str) -> dict[str, int]:
    """What the process holds when everything that can be given back has been."""
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    tasks = list(Path("/proc/self/task").iterdir())
    children = sum(len((task / "children").read_text().split()) for task in tasks if (task / "children").exists())
    return {**held(device), "threads": len(tasks), "children": children}


def growth(samples: Sequence[dict[str, Any]], name: str) -> int:
    """Counts: the most, less the first. Bytes: the median of the last quarter, less that of the first."""
    values = [sample[name] for sample in samples]
    if name in EXACT:
        return max(values) - values[0]
    quarter = max(1, len(values) // 4)
    return round(statistics.median(values[-quarter:]) - statistics.median(values[:quarter]))


def targets_of(samples: Sequence[dict[str, Any]], limit_bytes: int) -> dict[str, dict[str, Any]]:
    limits = {"resident_bytes": limit_bytes, **dict.fromkeys(EXACT, 0)}
    limits |= {name: limit_bytes for name in samples[0] if name.startswith("gpu_")}
    grown = {name: growth(samples, name) for name in limits}
    return {
        name: {"at_most": limits[name], "measured": size, "met": size <= limits[name]} for name, size in grown.items()
    }


def soak(works: Sequence[Work], seconds: float, device: str = "cpu", limit_mib: float = LIMIT_MIB) -> dict[str, Any]:
    """Takes turns until the time is over, or a bit is wrong. Says on stderr how far it is."""
    begin = said = sampled = time.monotonic()
    done = {work.name: 0 for work in works}
    samples: list[dict[str, Any]] = []
    wrong, number = None, 0
    while wrong is None and (time.monotonic() - begin < seconds or number < LEAST_ROUNDS):
        for work in works:
            try:
                done[work.name] += work.turn(number)
            except WrongBits as error:
                wrong = str(error)
                break
        number += 1
        now = time.monotonic()
        warm = now - begin >= WARM * seconds and number >= LEAST_ROUNDS // 2
        if warm and now - sampled >= seconds / SAMPLES:
            sampled = now
            samples.append({"seconds": round(now - begin, 1), "round": number, **holdings(device)})
        if now - said > 10:
            said = now
            memory = f", {samples[-1]['resident_bytes'] / 2**20:.0f} MiB" if samples else ", warming up"
            print(f"  {now - begin:,.0f} of {seconds:,.0f} s, round {number:,}{memory}", file=sys.stderr, flush=True)
    return {
        "seconds": round(time.monotonic() - begin, 1), "rounds": number, "wrong": wrong,
        "done": {work.name: {work.unit: done[work.name]} for work in works},
        "targets": targets_of(samples, round(limit_mib * 2**20)) if samples else {}, "samples": samples,
    }  # fmt: skip


def failed(found: dict[str, Any]) -> bool:
    return found["wrong"] is not None or not all(target["met"] for target in found["targets"].values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.05)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit-mib", type=float, default=LIMIT_MIB, help="growth of memory after the warm-up")
    parser.add_argument("--json", metavar="FILE", help="write what was done and held")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROBOCACHE_HOME"] = f"{folder}/home"
        found = soak(everything(Path(folder), args.device), 3600 * args.hours, args.device, args.limit_mib)
    for name, counts in found["done"].items():
        print(f"  {name}: " + ", ".join(f"{count:,} {unit}" for unit, count in counts.items()))
    for name, target in found["targets"].items():
        print(f"  {verdict(target)} {name} grew by {target['measured']:,}, at most {target['at_most']:,}")
    print(
        f"  {found['rounds']:,} rounds in {found['seconds']:,} s, "
        + (f"WRONG: {found['wrong']}" if found["wrong"] else "no wrong bit")
    )
    if args.json:
        record = harness.environment() | {"hours": args.hours, "device": args.device, **found}
        Path(args.json).write_text(json.dumps(record, indent=1) + "\n")
    return int(failed(found))


if __name__ == "__main__":
    sys.exit(main())
