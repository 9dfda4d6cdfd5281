"""The tables of align in README.md and docs/benchmarks.md; benchmarks/tables.py writes them."""

from __future__ import annotations

from measure import report
from measure.report import (
    Result,
    best_of,
    cpu_source,
    cuda_source,
    grid,
    load,
    number,
    slashed,
    verdicts,
    with_ratio,
    worst_table,
)
from measure.targets import rule, verdict

PICTURE = "pictures/align_cuda.png"
NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/align_cuda.json`."
TORCH = ("gather", "rows", "bag", "compiled")


def kinds(case: Result) -> str:
    axes = case["axes"]
    return f"{axes['values']}, {axes['times']}"


def by_order(cases: list[Result]) -> list[list[Result]]:
    """Cases that differ only in their input, together."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for case in cases:
        groups.setdefault((case["name"], case["axes"]["B/S/T/D"], kinds(case)), []).append(case)
    return list(groups.values())


def clean(cases: list[Result]) -> list[Result]:
    return [case for case in cases if case["axes"]["order"] in ("ramp", "random")]


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


def cpu_short(result: Result) -> list[str]:
    """The cases with targets, on the clean inputs; the inputs in one row."""
    judged = {case["name"] for case in result.get("worst", []) if {"gather", "copy"} & case["targets"].keys()}
    shown = [c for c in result["cases"] if c["targets"] or f"{c['name']} {c['axes']['B/S/T/D']} "
             f"{c['axes']['values']} {c['axes']['times']}" in judged]  # fmt: skip
    rows = []
    for group in by_order(clean(shown)):
        first = group[0]
        rows.append([
            f"{first['name']} {first['axes']['B/S/T/D']}", kinds(first),
            slashed(f"{c['median_s']['ours'] * 1e3:.2f}" for c in group),
            slashed(number(c["ratios"].get("gather")) for c in group),
            slashed(number(best_of(c, TORCH)) for c in group),
            slashed(number(c["ratios"].get("numpy")) for c in group),
            slashed(f"{100 * c['ratios']['copy']:.0f} %" for c in group),
        ])  # fmt: skip
    header = ["case (B/S/T/D)", "values, times", "ours, ms", "x PyTorch gather", "x best PyTorch", "x numpy.interp",
              "of copy"]  # fmt: skip
    return grid(header, rows)


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


def cuda_short(result: Result) -> list[str]:
    """The clean inputs, and the worst input after a matmul."""
    worst = {case["name"]: case for case in result.get("worst", [])}
    rows = []
    for group in by_order(clean(result["cases"])):
        first = group[0]
        found = worst.get(f"{first['name']} {first['axes']['B/S/T/D'].replace('~', '')} "
                          f"{first['axes']['values']} {first['axes']['times']}")  # fmt: skip
        rows.append([
            f"{first['name']} {first['axes']['B/S/T/D']}", kinds(first),
            slashed(number(c["median_us"]["ours"]) for c in group), slashed(number(c["floor_us"]) for c in group),
            slashed(number(best_of(c, ("gather", "rows"))) for c in group),
            slashed(number(c["ratios"].get("compiled")) for c in group),
            f"{number(found['worst_us'])} ({found['worst_input']})" if found else "",
        ])  # fmt: skip
    header = ["case (B/S/T/D)", "values, times", "ours, µs", "floor, µs", "x PyTorch, best eager", "x torch.compile",
              "worst input after a matmul, µs"]  # fmt: skip
    return grid(header, rows)


# ---- both ------------------------------------------------------------------------------------------------------------


def named(case: Result) -> str:
    return f"{case['name']} {case['axes']['B/S/T/D']} {kinds(case)}, {case['axes']['order']}"


def outcome(result: Result) -> str:
    return report.outcome(result, named, TORCH, "PyTorch is")


def readme(cpu: Result, cuda: Result | None) -> str:
    lines = ["On CUDA, kernel time in a graph over buffers larger than the L2 cache; evenly spaced / random times. "
             "The floor is the bytes that must move over the copy bandwidth of the same run.", ""]  # fmt: skip
    if cuda is None:
        lines += [NOT_MEASURED]
    else:
        lines += [cuda_source(cuda), "", *cuda_short(cuda), "", outcome(cuda)]
        eager = (f"`{c['name']}` {c['axes']['B/S/T/D']}: {number(c['median_us']['ours'])} µs (torch.addcmul with a "
                 f"result of that size: {number(c['median_us']['addcmul'])})" for c in cuda["eager"])  # fmt: skip
        lines += ["", f"Eager calls: {'; '.join(eager)}."]
    lines += ["", f"On the CPU. {cpu_source(cpu)}", "", *cpu_short(cpu), "", outcome(cpu)]
    lines += ["", "x = their time / ours; below 1 we lose. Every case, every rival and the method are in "
              "[docs/benchmarks.md](docs/benchmarks.md)."]  # fmt: skip
    return "\n".join(lines)


def blocks(cpu: Result, cuda: Result | None) -> dict[str, str]:
    """The text between the marks of docs/benchmarks.md."""
    return {
        "bench:cuda": NOT_MEASURED if cuda is None else cuda_full(cuda),
        "bench:cpu": f"{cpu_full(cpu)}\n\n{outcome(cpu)}",
    }


def committed() -> tuple[Result, Result | None]:
    cpu = load("cpu")
    assert cpu is not None, "benchmarks/results/align_cpu.json is committed"
    return cpu, load("cuda")
