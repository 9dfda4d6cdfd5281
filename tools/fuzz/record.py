"""Writes what libFuzzer's logs say as JSON: the record of a long run (tools/fuzz/run.sh 3600).

python tools/fuzz/record.py --commit COMMIT --command COMMAND [--note TEXT] --out FILE manifest=LOG[,LOG] shard=LOG ...
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from pathlib import Path
from typing import Any

STATS = ("number_of_executed_units", "average_exec_per_sec", "slowest_unit_time_sec", "peak_rss_mb")


def read_log(path: Path) -> dict[str, Any]:
    """One run: why it ended, its final statistics, and the last coverage it reported."""
    text = path.read_text(errors="replace")
    stats = {name: int(found[-1]) for name in STATS if (found := re.findall(rf"stat::{name}:\s+(\d+)", text))}
    cover = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)/", text)[-1]
    errors = re.findall(r"SUMMARY: (.*)", text)
    done = re.findall(r"Done (\d+) runs in (\d+) second", text)
    seconds = int(done[-1][1]) if done else stats["number_of_executed_units"] // max(1, stats["average_exec_per_sec"])
    executions = int(done[-1][0]) if done else stats["number_of_executed_units"]
    return {
        "seconds": seconds,
        "executions": executions,
        **dict(zip(("edges", "features", "corpus"), map(int, cover), strict=True)),
        **{name: stats[name] for name in STATS[2:] if name in stats},
        "ended_by": errors[-1] if errors else "max_total_time",
    }


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="TARGET=LOG[,LOG]")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--note", action="append", default=[])
    parser.add_argument("--findings", type=int, required=True, help="inputs that are findings when they are run again")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    targets = {}
    for given in args.targets:
        name, _, logs = given.partition("=")
        runs = [read_log(Path(log)) for log in logs.split(",")]
        total = {key: sum(run[key] for run in runs) for key in ("seconds", "executions")}
        targets[name] = total | {"edges": runs[-1]["edges"], "runs": runs}
    record = {"command": args.command, "date": args.date, "commit": args.commit, "compiler": args.compiler,
              "hardware": {"cpu": cpu()}, "findings": args.findings, "notes": args.note,
              "targets": targets}  # fmt: skip
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
