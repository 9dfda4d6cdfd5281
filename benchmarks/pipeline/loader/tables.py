"""The table of the loader in docs/benchmarks.md; benchmarks/tables.py writes it."""

from __future__ import annotations

from measure.report import Result, grid, load, number, ran, worst_table
from measure.targets import rule, verdict

NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/pipeline/loader_cpu.json`."
OURS = ("robocache memory", "robocache mmap")


def of_cpu(case: Result) -> str:
    return "; ".join(
        f"{verdict(entry)}: {number(entry['measured'])}{name}, target {rule(entry):g}"
        for name, entry in case["targets"].items()
    )


def table(result: Result) -> str:
    hardware = result["hardware"]
    said = (
        f"Measured by `{ran(result)}` on {hardware['cpu']}, {hardware['cores']} cores, load "
        f"{hardware['load_average'][0]:.1f} at the start, torch {result['versions']['torch']}, commit "
        f"`{result['commit'][:10]}`{' with changes' if result['modified'] else ''}, {result['date'][:10]}."
        f"{' A quick run: a tenth of the data.' if result['quick'] else ''}"
    )
    rivals = list(dict.fromkeys(name for case in result["cases"] for name in case["ratios"] if name not in OURS))
    header = ["data", "batch", *(f"{name}, µs" for name in OURS), *(f"x {name}" for name in rivals),
              "CPU s for a million", "other programs, cores", "target"]  # fmt: skip
    rows = [
        [case["name"], f"{case['axes']['batch']:,}", *(number(case["median_batch_s"][name] * 1e6) for name in OURS),
         *(number(case["ratios"][name]) for name in rivals), number(case["cpu_s_per_million"]),
         number(case["others_cores"]), of_cpu(case)]
        for case in result["cases"]
    ]  # fmt: skip
    worst = worst_table(result)
    return "\n".join([said, "", *grid(header, rows), *(["", *worst] if worst else [])])


def of_gpu(case: Result) -> str:
    """The targets of a case on a GPU: at most so many microseconds or floors, at least such a share of a copy."""
    texts = []
    for name, entry in {**case["targets"], **case.get("at_least", {})}.items():
        if name == "share":
            texts.append(f"{verdict(entry)}: {entry['measured']:.2f} of a plain copy, target {rule(entry):g}")
        else:
            unit = " µs" if name == "us" else f" x {name}"
            texts.append(f"{verdict(entry)}: {number(entry['measured'])}{unit}, target {rule(entry):g}")
    return "; ".join(texts)


def cuda_table(result: Result) -> str:
    gpu = result["hardware"]["gpu"]
    pinned = (
        f", one from pinned memory {result['host_to_device']['gbps']:.1f} GB/s" if "host_to_device" in result else ""
    )
    said = (
        f"Measured by `{ran(result)}` on {gpu['name']}, driver {gpu['driver_version']}, torch "
        f"{result['versions']['torch']}, commit `{result['commit'][:10]}`"
        f"{' with changes' if result['modified'] else ''}, {result['date'][:10]}. A copy moved "
        f"{result['copy']['tbps']:.2f} TB/s read and written{pinned}; "
        f"floor: {result['bytes'].removeprefix('bytes = ')}."
    )
    rivals = ("plain", "compiled")
    header = ["what", "batch", "robocache, µs", *(f"{name} PyTorch, µs" for name in rivals), "floor, µs",
              "robocache after a matmul, µs", "compiled PyTorch after a matmul, µs", "target"]  # fmt: skip
    rows = [
        [", ".join([case["name"], *([case["axes"]["recording"]] if "recording" in case["axes"] else [])]),
         case["axes"]["batch"], number(case["median_us"]["ours"]),
         *(number(case["median_us"].get(name)) for name in rivals), number(case.get("floor_us")),
         *(number(case.get("after_us", {}).get(name)) for name in ("ours", "compiled")), of_gpu(case)]
        for case in result["cases"] + result["eager"] + result["tiers"]
    ]  # fmt: skip
    index_header = ["what", "batch", "without, µs", "with, µs", "more, µs", "target"]
    index_rows = [
        [case["name"], case["axes"]["batch"], *(number(case["median_us"][name]) for name in ("ours", "indexed")),
         number(case["more_us"]), of_gpu(case)]
        for case in result.get("index", [])
    ]  # fmt: skip
    worst = worst_table(result)
    lines = [said, "", *([*worst, ""] if worst else []), *grid(header, rows)]
    return "\n".join([*lines, *(["", *grid(index_header, index_rows)] if index_rows else [])])


def features_table(results: list[Result]) -> str:
    """A batch of features against the same bytes as plain windows, and the time of a loader's statistics."""
    said = "\n".join(
        f"Measured by `{ran(result)}` on {result['hardware']['cpu']}, {result['threads']} threads, commit "
        f"`{result['commit'][:10]}`{' with changes' if result['modified'] else ''}, {result['date'][:10]}."
        for result in results
    )
    header = ["what", "batch", "time", "x windows", "target"]
    rows = []
    for case in (case for result in results for case in result["features"]):
        target = "; ".join(
            f"{'met' if entry['met'] else 'MISSED'}: {number(entry['measured'])} {name}, target {entry['at_most']:g}"
            for name, entry in case["targets"].items()
        )
        for name, seconds in case["median_batch_s"].items():
            is_batch = case["name"] == "features"
            what = name if is_batch else f"statistics of {case['axes']['hours']:g} h at {case['axes']['rate_hz']} Hz"
            took = f"{number(seconds * 1e6)} µs" if is_batch else f"{number(seconds)} s"
            is_asked = not is_batch or name == "features, text, index"
            rows.append([what, f"{case['axes']['batch']:,}" if is_batch else "", took,
                         number(case["ratios"].get(name)), target if is_asked else ""])  # fmt: skip
    return "\n".join([said, "", *grid(header, rows)])


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    result, on_gpu = load("cpu", "loader"), load("cuda", "loader")
    features = [load("cpu", name) for name in ("loader_features", "loader_statistics")]
    return {
        "bench:loader": NOT_MEASURED if result is None else table(result),
        "bench:loader:features": features_table([result for result in features if result is not None]),
        "bench:loader_cuda": "Not measured yet." if on_gpu is None else cuda_table(on_gpu),
    }
