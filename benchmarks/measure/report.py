"""Markdown tables of committed results: what the tables of every benchmark share."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from measure.targets import rule, verdict

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
UNITS = {"us": "µs", "floor": "x floor", "addcmul": "x addcmul", "float32 times": "x float32 times",
         "atomic mean": "x atomic mean"}  # fmt: skip
"""How a table writes the name of a target; other names stay as they are."""

Result = dict[str, Any]


def load(device: str, benchmark: str = "align") -> Result | None:
    """benchmarks/results/<subject>/<benchmark>_<device>.json; None if there is no such file."""
    path = next(RESULTS.glob(f"*/{benchmark}_{device}.json"), None)
    return json.loads(path.read_text()) if path else None


def ran(result: Result) -> str:
    """The command of the measurement, without the file it wrote."""
    return re.sub(r" --out \S+", "", result["command"])


def grid(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; empty columns are left out."""
    table = [list(header), *(list(row) for row in rows)]
    used = [i for i in range(len(table[0])) if any(row[i] for row in table[1:])]
    lines = [f"| {' | '.join(row[i] for i in used)} |" for row in table]
    return [lines[0], "|" + "---|" * len(used), *lines[1:]]


def number(x: float | None) -> str:
    """Three digits: 4.83, 12.4, 401."""
    return "" if x is None else f"{x:.{2 if x < 9.995 else 1 if x < 99.95 else 0}f}"


def slashed(values: Iterable[str]) -> str:
    """ "4.8 / 5.1"; an empty text if all are empty."""
    texts = list(values)
    return " / ".join(text or "–" for text in texts) if any(texts) else ""


def cpu_source(result: Result) -> str:
    return (
        f"Measured by `{ran(result)}` on {result['hardware']['cpu']}, {result['threads']} threads, "
        f"commit `{result['commit'][:10]}`, {result['date'][:10]}."
    )


def cuda_source(result: Result) -> str:
    gpu, versions = result["hardware"]["gpu"], result["versions"]
    quick = " A quick run: few replays, few rivals." if result["quick"] else ""
    return (
        f"Measured by `{ran(result)}` on {gpu.get('name', 'no GPU')} (driver {gpu.get('driver_version', '?')}, "
        f"CUDA {versions['cuda']}, torch {versions['torch']}), commit `{result['commit'][:10]}`"
        f"{' with changes' if result['modified'] else ''}, {result['date'][:10]}. Copy bandwidth in this run "
        f"{result['copy']['tbps']:.2f} TB/s, an empty kernel {result['empty_kernel']['us']:.2f} µs.{quick}"
    )


def entry_text(name: str, entry: Result) -> str:
    on = f" on {entry['input']}" if "input" in entry else ""
    return f"{verdict(entry)}: {entry['measured']:.2f} {UNITS.get(name, name)}, target {rule(entry):g}{on}"


def verdicts(case: Result) -> str:
    """Every target of a case, then its notes."""
    texts = [entry_text(name, entry) for name, entry in case["targets"].items()]
    texts += [f"{name}: {why}" for name, why in case.get("notes", {}).items()]
    return "; ".join(texts).replace("|", "\\|")


def with_ratio(case: Result, name: str, us: str = "median_us", ratios: str = "ratios") -> str:
    """ "9.47 (x 2.00)": their time and their time / ours."""
    if name not in case.get(ratios, {}):
        return ""
    return f"{number(case[us][name])} (x {number(case[ratios][name])})"


def worst_table(result: Result) -> list[str]:
    """One row per case: its worst input, each input's figure with its ratio to the clean input, the targets. Empty for
    results from before the honest inputs."""
    rows = []
    for case in result.get("worst", []):
        unit = "ms" if "worst_ms" in case else "us"
        inputs = [
            f"{name} {number(x[unit])}" + (f" (x {x['x_clean']:.2f})" if x["x_clean"] not in (None, 1.0) else "")
            for name, x in case["inputs"].items()
        ]
        shown = "ms" if unit == "ms" else "µs"
        rows.append([case["name"], case["worst_input"], f"{number(case[f'worst_{unit}'])} {shown}", ", ".join(inputs),
                     verdicts(case)])  # fmt: skip
    if not rows:
        return []
    header = ["case", "worst input", "figure", "inputs (x the clean one)", "targets"]
    return ["The figure of a case is its worst input:", "", *grid(header, rows)]


def outcome(result: Result, named: Callable[[Result], str], rivals: tuple[str, ...], who: str) -> str:
    """How many targets are met, which are not, and where a rival is faster."""
    cases = result["cases"] + result.get("eager", [])
    judged = [(named(case), entry) for case in cases for entry in case["targets"].values()]
    judged += [(case["name"], entry) for case in result.get("worst", []) for entry in case["targets"].values()]
    missed = [f"{name} ({entry['measured']:.2f}, target {rule(entry):g})" for name, entry in judged if not entry["met"]]
    text = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    text += f"; missed: {'; '.join(missed)}." if missed else "."
    lost = [(c, name, c["ratios"][name]) for c in cases for name in rivals if c["ratios"].get(name, 1) < 1]
    lost += [(c, f"{name} after a matmul", x) for c in cases for name, x in c.get("after_ratios", {}).items()
             if name in rivals and x < 1]  # fmt: skip
    if lost:
        text += f" {who} faster in: " + "; ".join(f"{named(c)} ({name}, x {x:.2f})" for c, name, x in lost) + "."
    return text
