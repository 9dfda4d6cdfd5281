"""Writes the table of README.md and those of docs/benchmarks.md from the committed results.

python benchmarks/tables.py            writes
python benchmarks/tables.py --check    ends with code 1 if they differ
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README, DOCS = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
PICTURE = "pictures/align_cuda.png"
NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/align_cuda.json`."
TORCH = ("gather", "rows", "bag", "compiled")
BAR_NAMES = {"us": "µs", "floor": "x floor", "addcmul": "x addcmul", "float32 times": "x float32 times",
             "atomic mean": "x atomic mean"}  # fmt: skip

Result = dict[str, Any]


def load(device: str, benchmark: str = "align") -> Result | None:
    path = RESULTS / f"{benchmark}_{device}.json"
    return json.loads(path.read_text()) if path.exists() else None


def grid(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; columns without anything are left out."""
    table = [list(header), *(list(row) for row in rows)]
    used = [i for i in range(len(table[0])) if any(row[i] for row in table[1:])]
    lines = [f"| {' | '.join(row[i] for i in used)} |" for row in table]
    return [lines[0], "|" + "---|" * len(used), *lines[1:]]


def number(x: float | None) -> str:
    """Three digits: 4.83, 12.4, 401."""
    return "" if x is None else f"{x:.{2 if x < 9.995 else 1 if x < 99.95 else 0}f}"


def kinds(case: Result) -> str:
    axes = case["axes"]
    return f"{axes['values']}, {axes['times']}"


# ---- CPU -------------------------------------------------------------------------------------------------------------


def cpu_source(result: Result) -> str:
    return (
        f"Measured by `{result['command']}` on {result['hardware']['cpu']}, {result['threads']} threads, "
        f"commit `{result['commit'][:10]}`, {result['date'][:10]}."
    )


def cpu_verdict(case: Result) -> str:
    return "; ".join(
        f"{'holds' if bar['holds'] else 'MISSED'}: {name} {bar['measured']:.2f}, asked {bar['at_least']:g}"
        for name, bar in case["bars"].items()
    )


def cpu_full(result: Result) -> str:
    def ratio(case: Result, name: str) -> str:
        return f"{case['ratios'][name]:.1f}" if name in case["ratios"] else ""

    header = ["case (B/S/T/D)", "values, times, order", "ours, ms", *(f"x {name}" for name in TORCH),
              "x gather, after 20 ms idle", "x numpy.interp", "of copy", "bars"]  # fmt: skip
    rows = [
        [f"{c['name']} {c['axes']['B/S/T/D']}", f"{kinds(c)}, {c['axes']['order']}",
         f"{c['median_s']['ours'] * 1e3:.2f}", *(ratio(c, name) for name in TORCH), ratio(c, "gather, after idle"),
         ratio(c, "numpy"), f"{100 * c['ratios']['copy']:.0f} %", cpu_verdict(c)]
        for c in result["cases"]
    ]  # fmt: skip
    return "\n".join([cpu_source(result), "", *grid(header, rows)])


# ---- CUDA ------------------------------------------------------------------------------------------------------------


def cuda_source(result: Result) -> str:
    gpu, versions = result["hardware"]["gpu"], result["versions"]
    quick = " A quick run: few replays, no torch.compile." if result["quick"] else ""
    return (
        f"Measured by `{result['command']}` on {gpu.get('name', 'no GPU')} (driver {gpu.get('driver_version', '?')}, "
        f"CUDA {versions['cuda']}, torch {versions['torch']}), commit `{result['commit'][:10]}`"
        f"{' with changes' if result['modified'] else ''}, {result['date'][:10]}. Copy bandwidth in this run "
        f"{result['copy']['tbps']:.2f} TB/s, an empty kernel {result['empty_kernel']['us']:.2f} µs.{quick}"
    )


def cuda_verdict(case: Result) -> str:
    said = [
        f"{'holds' if bar['holds'] else 'MISSED'}: {bar['measured']:.2f} {BAR_NAMES[name]}, asked {bar['at_most']:g}"
        for name, bar in case["bars"].items()
    ]
    said += [f"{name}: {why}" for name, why in case["notes"].items()]
    return "; ".join(said).replace("|", "\\|")


def with_ratio(case: Result, name: str) -> str:
    if name not in case["ratios"]:
        return ""
    return f"{number(case['median_us'][name])} (x {number(case['ratios'][name])})"


def cuda_full(result: Result) -> str:
    header = ["case (B/S/T/D)", "values, times, order", "floor, µs", "ours, µs", "x floor", "PyTorch gather, µs",
              "PyTorch rows, µs", "torch.compile, µs", "bars and notes"]  # fmt: skip
    rows = [
        [f"{c['name']} {c['axes']['B/S/T/D']}", f"{kinds(c)}, {c['axes']['order']}", number(c["floor_us"]),
         number(c["median_us"]["ours"]), f"{c['x_floor']:.2f}", with_ratio(c, "gather"), with_ratio(c, "rows"),
         with_ratio(c, "compiled"), cuda_verdict(c)]
        for c in result["cases"]
    ]  # fmt: skip
    eager_header = ["eager call", "ours, µs", "torch.addcmul, µs", "PyTorch gather, µs", "torch.compile, µs",
                    "bars and notes"]  # fmt: skip
    eager = [
        [f"{c['name']} {c['axes']['B/S/T/D']} {c['axes']['values']}", number(c["median_us"]["ours"]),
         number(c["median_us"]["addcmul"]), with_ratio(c, "gather"), with_ratio(c, "compiled"), cuda_verdict(c)]
        for c in result["eager"]
    ]  # fmt: skip
    lines = [cuda_source(result), "", "Kernel time in a graph; x = their time / ours, below 1 we lose:", ""]
    lines += [*grid(header, rows), "", "What a call costs the thread that makes it:", "", *grid(eager_header, eager)]
    if result["sweep"]:
        lines += ["", f"![Time of one call against the number of trajectories, with the limit]({PICTURE})"]
    return "\n".join([*lines, "", outcome(result)])


# ---- both ------------------------------------------------------------------------------------------------------------


def outcome(result: Result) -> str:
    """How many bars hold, which do not, and where a rival is faster."""
    cases = result["cases"] + result.get("eager", [])

    def named(case: Result) -> str:
        return f"{case['name']} {case['axes']['B/S/T/D']} {kinds(case)}, {case['axes']['order']}"

    bars = [(case, name, bar) for case in cases for name, bar in case["bars"].items()]
    missed = [f"{named(c)} ({bar['measured']:.2f}, asked {bar.get('at_most', bar.get('at_least')):g})"
              for c, _, bar in bars if not bar["holds"]]  # fmt: skip
    text = f"{len(bars) - len(missed)} of {len(bars)} bars hold"
    text += f"; missed: {'; '.join(missed)}." if missed else "."
    lost = [(c, name, c["ratios"][name]) for c in cases for name in TORCH if c["ratios"].get(name, 1) < 1]
    if lost:
        text += " PyTorch is faster in: " + "; ".join(f"{named(c)} ({name}, x {x:.2f})" for c, name, x in lost) + "."
    return text


def fill(text: str, block: str, content: str) -> str:
    """The text with what is between the marks of the block replaced."""
    begin, end = f"<!-- {block}:begin -->", f"<!-- {block}:end -->"
    head, rest = text.split(begin)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def documents(cpu: Result, cuda: Result | None) -> dict[pathlib.Path, str]:
    """What each document should be."""
    docs = fill(DOCS.read_text(), "bench:cuda", NOT_MEASURED if cuda is None else cuda_full(cuda))
    docs = fill(docs, "bench:cpu", f"{cpu_full(cpu)}\n\n{outcome(cpu)}")
    import ingest_tables  # these are made of the functions above
    import loader_tables
    import readme_table
    import training_tables
    import voxelize_tables

    blocks = voxelize_tables.blocks() | ingest_tables.blocks() | loader_tables.blocks() | training_tables.blocks()
    for block, content in blocks.items():
        docs = fill(docs, block, content)
    return {README: fill(README.read_text(), "bench", readme_table.table()), DOCS: docs}


def main() -> int:
    cpu = load("cpu")
    assert cpu is not None, "benchmarks/results/align_cpu.json is committed"
    differ = {path: text for path, text in documents(cpu, load("cuda")).items() if text != path.read_text()}
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path.relative_to(ROOT)} differs from benchmarks/results: run python benchmarks/tables.py")
        return int(bool(differ))
    for path, text in differ.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
