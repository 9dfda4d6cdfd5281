"""The tables of voxelize in docs/benchmarks.md; benchmarks/tables.py writes them."""

from __future__ import annotations

from tables import Result, cpu_source, cpu_verdict, cuda_source, cuda_verdict, grid, load, number, with_ratio

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
         f"{100 * c['ratios']['copy']:.0f} %", cpu_verdict(c)]
        for c in result["cases"]
    ]  # fmt: skip
    header = [*LABELS, "ours, ms", *(f"x {name}" for name in CPU_RIVALS), "of copy", "bars"]
    return "\n".join([cpu_source(result), "", *grid(header, rows), "", outcome(result, CPU_RIVALS)])


def cuda_full(result: Result) -> str:
    rows = [
        [*label(c), number(c["floor_us"]), number(c["median_us"]["ours"]), f"{c['x_floor']:.2f}",
         number(c["points_per_s"] / 1e9), *(with_ratio(c, name) for name in CUDA_RIVALS), cuda_verdict(c)]
        for c in result["cases"]
    ]  # fmt: skip
    header = [*LABELS, "floor, µs", "ours, µs", "x floor", "G points/s",
              *(f"{name}, µs" for name in (*CUDA_RIVALS[:-1], "torch.compile")), "bars and notes"]  # fmt: skip
    said = "Kernel time in a graph, the clear of the grid included; x = their time / ours, below 1 we lose:"
    return "\n".join([cuda_source(result), "", said, "", *grid(header, rows), "", outcome(result, CUDA_RIVALS)])


def outcome(result: Result, rivals: tuple[str, ...]) -> str:
    """How many bars hold, which do not, and where a rival is faster."""
    cases = result["cases"]
    bars = [(case, bar) for case in cases for bar in case["bars"].values()]
    missed = [f"{', '.join(label(c)[:3])} ({bar['measured']:.2f}, asked {bar.get('at_most', bar.get('at_least')):g})"
              for c, bar in bars if not bar["holds"]]  # fmt: skip
    text = f"{len(bars) - len(missed)} of {len(bars)} bars hold"
    text += f"; missed: {'; '.join(missed)}." if missed else "."
    lost = [f"{', '.join(label(c)[:3])} ({name}, x {c['ratios'][name]:.2f})"
            for c in cases for name in rivals if c["ratios"].get(name, 1) < 1]  # fmt: skip
    return text + (f" A rival is faster in: {'; '.join(lost)}." if lost else "")


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    cpu, cuda = load("cpu", "voxelize"), load("cuda", "voxelize")
    return {
        "bench:voxelize:cuda": not_measured("cuda") if cuda is None else cuda_full(cuda),
        "bench:voxelize:cpu": not_measured("cpu") if cpu is None else cpu_full(cpu),
    }
