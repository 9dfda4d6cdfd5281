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


def most(case: Result) -> str:
    """The bars of a case on a GPU: at most so many microseconds or floors, at least such a share of a copy."""
    said = []
    for name, bar in case["bars"].items():
        unit = " µs" if name == "us" else f" x {name}"
        verdict = "holds" if bar["holds"] else "MISSED"
        said.append(f"{verdict}: {number(bar['measured'])}{unit}, asked {bar['at_most']:g}")
    for bar in case.get("at_least", {}).values():
        verdict = "holds" if bar["holds"] else "MISSED"
        said.append(f"{verdict}: {bar['measured']:.2f} of a plain copy, asked {bar['at_least']:g}")
    return "; ".join(said)


def cuda_table(result: Result) -> str:
    gpu = result["hardware"]["gpu"]
    said = (
        f"Measured by `{result['command']}` on {gpu['name']}, driver {gpu['driver_version']}, torch "
        f"{result['versions']['torch']}, commit `{result['commit'][:10]}`"
        f"{' with changes' if result['modified'] else ''}, {result['date'][:10]}. A copy moved "
        f"{result['copy']['tbps']:.2f} TB/s read and written, one from pinned memory "
        f"{result['host_to_device']['gbps']:.1f} GB/s; floor: {result['bytes'].removeprefix('bytes = ')}."
    )
    rivals = ("plain", "compiled")
    header = ["what", "batch", "robocache, µs", *(f"{name} PyTorch, µs" for name in rivals), "floor, µs", "bar"]
    rows = [
        [case["name"], case["axes"]["batch"], number(case["median_us"]["ours"]),
         *(number(case["median_us"].get(name)) for name in rivals), number(case.get("floor_us")), most(case)]
        for case in result["cases"] + result["eager"] + result["tiers"]
    ]  # fmt: skip
    index_header = ["what", "batch", "without, µs", "with, µs", "more, µs", "bar"]
    index_rows = [
        [case["name"], case["axes"]["batch"], *(number(case["median_us"][name]) for name in ("ours", "indexed")),
         number(case["more_us"]), most(case)]
        for case in result.get("index", [])
    ]  # fmt: skip
    return "\n".join([said, "", *grid(header, rows), *(["", *grid(index_header, index_rows)] if index_rows else [])])


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    result, on_gpu = load("cpu", "loader"), load("cuda", "loader")
    return {
        "bench:loader": NOT_MEASURED if result is None else table(result),
        "bench:loader_cuda": "Not measured yet." if on_gpu is None else cuda_table(on_gpu),
    }
