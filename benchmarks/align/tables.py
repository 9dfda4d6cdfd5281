"""The tables of align in README.md and docs/benchmarks.md; benchmarks/tables.py writes them."""

from __future__ import annotations

from measure import report
from measure.report import (
    Result,
    cpu_source,
    cuda_source,
    grid,
    load,
    number,
    verdicts,
    with_ratio,
    worst_table,
)
from measure.targets import rule, verdict

PICTURE = "pictures/align_cuda.png"
NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/ops/align_cuda.json`."
TORCH = ("gather", "rows", "bag", "compiled")


def kinds(case: Result) -> str:
    axes = case["axes"]
    return f"{axes['values']}, {axes['times']}"


# ---- CPU -------------------------------------------------------------------------------------------------------------


def cpu_verdicts(case: Result) -> str:
    return "; ".join(
        f"{verdict(entry)}: {name} {entry['measured']:.2f}, target {rule(entry):g}"
        for name, entry in case["targets"].items()
    )


def cpu_full(result: Result) -> str:
    def ratio(case: Result, name: str) -> str:
        return f"{case['ratios'][name]:.1f}" if name in case["ratios"] else ""

    header = ["case (B/S/T/D)", "values, times, input", "ours, ms", *(f"x {name}" for name in TORCH),
              "x gather, after 20 ms idle", "x numpy.interp", "of copy", "targets"]  # fmt: skip
    rows = [
        [f"{c['name']} {c['axes']['B/S/T/D']}", f"{kinds(c)}, {c['axes']['order']}",
         f"{c['median_s']['ours'] * 1e3:.2f}", *(ratio(c, name) for name in TORCH), ratio(c, "gather, after idle"),
         ratio(c, "numpy"), f"{100 * c['ratios']['copy']:.0f} %", cpu_verdicts(c)]
        for c in result["cases"]
    ]  # fmt: skip
    lines = [cpu_source(result), "", *grid(header, rows)]
    worst = worst_table(result)
    return "\n".join([*lines, *(["", *worst] if worst else [])])


# ---- CUDA ------------------------------------------------------------------------------------------------------------


def cuda_full(result: Result) -> str:
    header = ["case (B/S/T/D)", "values, times, input", "floor, µs", "ours, µs", "x floor", "PyTorch gather, µs",
              "PyTorch rows, µs", "torch.compile, µs", "ours after a matmul, µs", "torch.compile after a matmul, µs",
              "ours eager after a matmul, µs", "targets and notes"]  # fmt: skip
    rows = [
        [f"{c['name']} {c['axes']['B/S/T/D']}", f"{kinds(c)}, {c['axes']['order']}", number(c["floor_us"]),
         number(c["median_us"]["ours"]), f"{c['x_floor']:.2f}", with_ratio(c, "gather"), with_ratio(c, "rows"),
         with_ratio(c, "compiled"), number(c.get("after_us", {}).get("ours")),
         with_ratio(c, "compiled", "after_us", "after_ratios"), number(c.get("after_eager_us", {}).get("ours")),
         verdicts(c)]
        for c in result["cases"]
    ]  # fmt: skip
    eager_header = ["eager call", "ours, µs", "torch.addcmul, µs", "PyTorch gather, µs", "torch.compile, µs",
                    "targets and notes"]  # fmt: skip
    eager = [
        [f"{c['name']} {c['axes']['B/S/T/D']} {c['axes']['values']}", number(c["median_us"]["ours"]),
         number(c["median_us"]["addcmul"]), with_ratio(c, "gather"), with_ratio(c, "compiled"), verdicts(c)]
        for c in result["eager"]
    ]  # fmt: skip
    worst = worst_table(result)
    lines = [cuda_source(result), "", *([*worst, ""] if worst else [])]
    lines += ["Kernel time in a graph; x = their time / ours, below 1 we lose:", ""]
    lines += [*grid(header, rows), "", "What a call costs the thread that makes it:", "", *grid(eager_header, eager)]
    if result["sweep"]:
        lines += ["", f"![Time of one call against the number of trajectories, with the limit]({PICTURE})"]
    return "\n".join([*lines, "", outcome(result)])


# ---- both ------------------------------------------------------------------------------------------------------------


def named(case: Result) -> str:
    return f"{case['name']} {case['axes']['B/S/T/D']} {kinds(case)}, {case['axes']['order']}"


def outcome(result: Result) -> str:
    return report.outcome(result, named, TORCH, "PyTorch is")


def blocks(cpu: Result, cuda: Result | None) -> dict[str, str]:
    """The text between the marks of docs/benchmarks.md."""
    return {
        "bench:cuda": NOT_MEASURED if cuda is None else cuda_full(cuda),
        "bench:cpu": f"{cpu_full(cpu)}\n\n{outcome(cpu)}",
    }


def honest_blocks() -> dict[str, str]:
    """The same for the small shapes on honest inputs, after a matmul."""
    result = load("cuda_quick")
    if result is None:
        return {"bench:cuda:honest": NOT_MEASURED.replace("align_cuda", "align_cuda_quick")}
    return {"bench:cuda:honest": "\n".join([cuda_source(result), "", *worst_table(result), "", outcome(result)])}


def committed() -> tuple[Result, Result | None]:
    cpu = load("cpu")
    assert cpu is not None, "benchmarks/results/ops/align_cpu.json is committed"
    return cpu, load("cuda")
