"""The tables of voxelize in README.md and docs/benchmarks.md; benchmarks/tables.py writes them."""

from __future__ import annotations

from measure import report
from measure.report import Result, cpu_source, cuda_source, grid, load, number, verdicts, with_ratio, worst_table

CUDA_RIVALS = ("scatter", "scatter_reduce", "index_add", "compiled")
CPU_RIVALS = ("scatter", "scatter_reduce", "index_add", "small_gicp")


def not_measured(device: str) -> str:
    return f"Not measured yet: there is no `benchmarks/results/ops/voxelize_{device}.json`."


def label(case: Result) -> list[str]:
    axes = case["axes"]
    return [f"{case['name']}, {axes['values']}", f"{axes['points']} {axes['cloud']}", axes["grid"], axes["in grid"]]


LABELS = ["case", "points", "grid", "in grid"]


def cpu_full(result: Result) -> str:
    def ratio(case: Result, name: str) -> str:
        return number(case["ratios"].get(name))

    rows = [
        [*label(c), f"{c['median_s']['ours'] * 1e3:.2f}", *(ratio(c, name) for name in CPU_RIVALS),
         f"{100 * c['ratios']['copy']:.0f} %", verdicts(c)]
        for c in result["cases"]
    ]  # fmt: skip
    header = [*LABELS, "ours, ms", *(f"x {name}" for name in CPU_RIVALS), "of copy", "targets"]
    worst = worst_table(result)
    return "\n".join([cpu_source(result), "", *([*worst, ""] if worst else []), *grid(header, rows), "",
                      outcome(result, CPU_RIVALS)])  # fmt: skip


def cuda_full(result: Result) -> str:
    rows = [
        [*label(c), number(c["floor_us"]), number(c["median_us"]["ours"]), f"{c['x_floor']:.2f}",
         number(c["points_per_s"] / 1e9), *(with_ratio(c, name) for name in CUDA_RIVALS),
         number(c.get("after_us", {}).get("ours")), number(c.get("after_eager_us", {}).get("ours")), verdicts(c)]
        for c in result["cases"]
    ]  # fmt: skip
    header = [*LABELS, "floor, µs", "ours, µs", "x floor", "G points/s",
              *(f"{name}, µs" for name in (*CUDA_RIVALS[:-1], "torch.compile")), "ours after a matmul, µs",
              "ours eager after a matmul, µs", "targets and notes"]  # fmt: skip
    said = "Kernel time in a graph, the clear of the grid included; x = their time / ours, below 1 we lose:"
    worst = worst_table(result)
    return "\n".join([cuda_source(result), "", *([*worst, ""] if worst else []), said, "", *grid(header, rows), "",
                      outcome(result, CUDA_RIVALS)])  # fmt: skip


def named(case: Result) -> str:
    return ", ".join(label(case)[:3])


def outcome(result: Result, rivals: tuple[str, ...]) -> str:
    return report.outcome(result, named, rivals, "A rival is")


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    cpu, cuda = load("cpu", "voxelize"), load("cuda", "voxelize")
    return {
        "bench:voxelize:cuda": not_measured("cuda") if cuda is None else cuda_full(cuda),
        "bench:voxelize:cpu": not_measured("cpu") if cpu is None else cpu_full(cpu),
    }
