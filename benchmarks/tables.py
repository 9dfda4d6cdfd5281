"""Writes the table of the README from a committed result: python benchmarks/tables.py [--check]"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "align_cpu.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def row(case: dict[str, Any]) -> str:
    axes, ratios = case["axes"], case["ratios"]
    shape = f"{case['name']} {axes['B/S/T/D']}"
    kinds = f"{axes['values']}, {axes['times']}, {axes['order']}"
    gather = f"{ratios['gather']:.1f}" if "gather" in ratios else ""
    idle = f"{ratios['gather, after idle']:.1f}" if "gather, after idle" in ratios else ""
    torch = [ratios[name] for name in ("gather", "rows", "bag", "compiled") if name in ratios]
    best = f"{min(torch):.1f}" if torch else ""
    numpy = f"{ratios['numpy']:.1f}" if "numpy" in ratios else ""
    bars = "; ".join(
        f"{'holds' if bar['holds'] else 'MISSED'}: {name} {bar['measured']:.2f}, asked {bar['at_least']:g}"
        for name, bar in case["bars"].items()
    )
    ours = case["median_s"]["ours"] * 1e3
    cells = [shape, kinds, f"{ours:.2f}", gather, idle, best, numpy, f"{100 * ratios['copy']:.0f} %", bars]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    result = json.loads(RESULT.read_text())
    lines = [
        f"Measured by `{result['command']}` on {result['hardware']['cpu']}, {result['threads']} threads, "
        f"commit `{result['commit'][:10]}`, {result['date'][:10]}. x = their time / ours; below 1 we lose. "
        "numpy.interp has one thread, and ours has one where they are compared. The bars are against gather, the way "
        "most people write it; the best PyTorch we found (index_select of rows, embedding_bag) is nearer.",
        "",
        "| case (B/S/T/D) | values, times, order | ours, ms | x PyTorch gather "
        "| the same, after 20 ms idle | x best PyTorch | x numpy.interp | of copy | bars |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row(case) for case in result["cases"]),
    ]
    return "\n".join(lines)


def main() -> int:
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    new = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if "--check" in sys.argv:
        if new != text:
            print("README.md differs from benchmarks/results: run python benchmarks/tables.py")
        return int(new != text)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
