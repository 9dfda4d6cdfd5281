"""The tables of voxelize in README.md and docs/benchmarks.md; benchmarks/tables.py writes them."""

from __future__ import annotations

from measure import report
from measure.report import Result, cpu_source, cuda_source, grid, load, number, verdicts, with_ratio, worst_table

CUDA_RIVALS = ("scatter", "scatter_reduce", "index_add", "compiled")
CPU_RIVALS = ("scatter", "scatter_reduce", "index_add", "small_gicp")


def not_measured(device: str) -> str:
    return f"Not measured yet: there is no `benchmarks/results/voxelize_{device}.json`."


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


def judged(result: Result) -> list[Result]:
    """The cases with targets; of a run over several clouds, those on the first and on the slowest cloud."""
    if not result.get("worst"):
        return [c for c in result["cases"] if c["targets"]]
    shown = {name for case in result["worst"] if case["targets"]
             for name in (next(iter(case["inputs"])), case["worst_input"])}  # fmt: skip
    return [c for c in result["cases"] if c["axes"]["cloud"] in shown]


def readme(cpu: Result | None, cuda: Result | None) -> str:
    """The cases with targets, on both devices."""
    lines = ["Voxelization on CUDA, the clear of the grid included.", ""]
    if cuda is None:
        lines += [not_measured("cuda")]
    else:
        rows = [
            [*label(c)[:3], number(c["median_us"]["ours"]), number(c["floor_us"]),
             number(min((c["ratios"][n] for n in CUDA_RIVALS[:-1] if n in c["ratios"]), default=None)),
             number(c["ratios"].get("compiled"))]
            for c in judged(cuda)
        ]  # fmt: skip
        header = [*LABELS[:3], "ours, µs", "floor, µs", "x PyTorch, best eager", "x torch.compile"]
        lines += [cuda_source(cuda), "", *grid(header, rows), "", outcome(cuda, CUDA_RIVALS)]
    if cpu is None:
        return "\n".join([*lines, "", "On the CPU. " + not_measured("cpu")])
    rows = [
        [*label(c)[:3], f"{c['median_s']['ours'] * 1e3:.2f}",
         *(number(c["ratios"].get(n)) for n in ("scatter_reduce", "index_add", "small_gicp"))]
        for c in judged(cpu)
    ]  # fmt: skip
    header = [*LABELS[:3], "ours, ms", "x scatter_reduce", "x index_add", "x small_gicp"]
    return "\n".join([*lines, "", f"On the CPU. {cpu_source(cpu)}", "", *grid(header, rows), "",
                      outcome(cpu, CPU_RIVALS)])  # fmt: skip


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    cpu, cuda = load("cpu", "voxelize"), load("cuda", "voxelize")
    return {
        "bench:voxelize:cuda": not_measured("cuda") if cuda is None else cuda_full(cuda),
        "bench:voxelize:cpu": not_measured("cpu") if cpu is None else cpu_full(cpu),
    }


def committed_readme() -> str:
    return readme(load("cpu", "voxelize"), load("cuda", "voxelize"))
