"""The table of training steps in docs/benchmarks.md; benchmarks/tables.py writes it."""

from __future__ import annotations

from measure.report import Result, grid, load, number, ran

NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/pipeline/training_cuda.json`."


def verdict(targets: Result) -> str:
    return "; ".join(
        f"{'met' if target['met'] else 'MISSED'}: {target['measured']:.3f} {name}, target {target['at_most']:g}"
        for name, target in targets.items()
    )


def row(case: Result, name: str) -> list[str]:
    idle, cores = case["idle_share"].get(name), case["cores"].get(name)
    return [
        case["name"], f"{case['axes']['batch']:,}", f"{case['axes']['parameters'] / 1e6:.1f} M", name,
        number(case["median_step_s"][name] * 1e3), f"{case['ratios'][name]:.4f}",
        "" if idle is None else f"{100 * idle:.1f} %", number(case["cpu_s_per_million"].get(name)),
        "" if cores is None else f"{cores:.3f}", verdict(case["targets"].get(name, {})),
    ]  # fmt: skip


def table(result: Result) -> str:
    hardware, versions = result["hardware"], result["versions"]
    machine = [x for x in (hardware["gpu"].get("name"), hardware["cpu"], f"{hardware['cores']} cores") if x]
    said = (
        f"Measured by `{ran(result)}` on {', '.join(machine)}, load "
        f"{hardware['load_average'][0]:.1f} at the start, torch {versions['torch']}, commit "
        f"`{result['commit'][:10]}`{' with changes' if result['modified'] else ''}, {result['date'][:10]}."
        f"{' A quick run: little data, few samples.' if result['quick'] else ''}"
    )
    header = ["step", "batch", "parameters", "batches from", "step, ms", "x cached", "GPU idle", "CPU s for a million",
              "cores", "targets"]  # fmt: skip
    rows = [row(case, name) for case in result["cases"] for name in case["median_step_s"]]
    lines = [said, "", *grid(header, rows)]
    if result["skipped"]:
        lines += ["", f"Not there: {'; '.join(f'*{tier}*' for tier in result['skipped'])}."]
    return "\n".join(lines)


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    results = [load(device, "training") for device in ("cuda", "cpu")]
    return {"bench:training": "\n\n".join(table(r) for r in results if r is not None) or NOT_MEASURED}
