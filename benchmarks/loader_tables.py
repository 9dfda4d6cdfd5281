"""The table of the loader in docs/benchmarks.md; benchmarks/tables.py writes it."""

from __future__ import annotations

from tables import Result, grid, load, number

NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/loader_cpu.json`."
OURS = ("robocache memory", "robocache mmap")


def verdict(case: Result) -> str:
    return "; ".join(
        f"{'holds' if bar['holds'] else 'MISSED'}: {number(bar['measured'])}{name}, asked {bar['at_least']:g}"
        for name, bar in case["bars"].items()
    )


def table(result: Result) -> str:
    hardware = result["hardware"]
    said = (
        f"Measured by `{result['command']}` on {hardware['cpu']}, {hardware['cores']} cores, load "
        f"{hardware['load_average'][0]:.1f} at the start, torch {result['versions']['torch']}, commit "
        f"`{result['commit'][:10]}`{' with changes' if result['modified'] else ''}, {result['date'][:10]}."
        f"{' A quick run: a tenth of the data.' if result['quick'] else ''}"
    )
    rivals = list(dict.fromkeys(name for case in result["cases"] for name in case["ratios"] if name not in OURS))
    header = ["data", "batch", *(f"{name}, µs" for name in OURS), *(f"x {name}" for name in rivals),
              "CPU s for a million", "other programs, cores", "bar"]  # fmt: skip
    rows = [
        [case["name"], f"{case['axes']['batch']:,}", *(number(case["median_batch_s"][name] * 1e6) for name in OURS),
         *(number(case["ratios"][name]) for name in rivals), number(case["cpu_s_per_million"]),
         number(case["others_cores"]), verdict(case)]
        for case in result["cases"]
    ]  # fmt: skip
    return "\n".join([said, "", *grid(header, rows)])


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    result = load("cpu", "loader")
    return {"bench:loader": NOT_MEASURED if result is None else table(result)}
