"""The table of ingest in docs/benchmarks.md; benchmarks/tables.py writes it."""

from __future__ import annotations

from measure.report import Result, grid, load, number, ran

NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/pipeline/ingest_cpu.json`."
NO_PICTURES = "Not measured yet: there is no `benchmarks/results/pipeline/ingest_pictures_cpu.json`."


def rate(case: Result, name: str) -> str:
    return f"{case['size_bytes'] / case['median_s'][name] / 1e6:.0f} MB/s" if name in case.get("median_s", {}) else ""


def measured(case: Result) -> str:
    """The figure of the case, whether or not something was asked of it."""
    if case["name"] == "ingest":
        return f"{100 * case['of_raw']:.0f} % of the raw read"
    if case["name"] == "pictures":
        return f"{100 * case['of_raw']:.0f} % of the raw read; the cache has {case['cache_share']:.3f} x the bytes"
    if case["name"] == "open":
        cpu = f", {number(case['cpu_s'] * 1e3)} of the CPU" if "cpu_s" in case else ""
        return f"{number(case['median_s']['open'] * 1e3)} ms{cpu}"
    return f"{case['peak_bytes']['peak'] / 1e6:.0f} MB, {case['peak_bytes']['imported'] / 1e6:.0f} of it before ingest"


def verdict(case: Result) -> str:
    return "; ".join(
        f"{'met' if target['met'] else 'MISSED'}, target "
        + (
            f"at least {100 * target['at_least']:.0f} %"
            if "at_least" in target
            else (
                f"at most {target['at_most']:g} x" if name == "cache size" else f"at most {target['at_most']:g} {name}"
            )
        )
        for name, target in case["targets"].items()
    )


def table(result: Result) -> str:
    hardware, versions = result["hardware"], result["versions"]
    said = (
        f"Measured by `{ran(result)}` on {hardware['cpu']}, {hardware['cores']} cores, load "
        f"{hardware['load_average'][0]:.1f} at the start, HDF5 {versions['hdf5']}, h5py {versions['h5py']}, commit "
        f"`{result['commit'][:10]}`{' with changes' if result['modified'] else ''}, {result['date'][:10]}."
        f"{' A quick run: a fiftieth of the sizes.' if result['quick'] else ''}"
        f"{' ' + result['note'] if 'note' in result else ''}"
    )
    header = ["case", "size", "what", "raw read", "ingest", "measured", "target"]
    rows = [
        [case["name"], f"{case['size_bytes'] / 1e9:.2f} GB",
         ", ".join(f"{value:,} {name}" for name, value in case["axes"].items()), rate(case, "raw"),
         rate(case, "ingest"), measured(case), verdict(case)]
        for case in result["cases"]
    ]  # fmt: skip
    return "\n".join([said, "", *grid(header, rows)])


def pictures_table(result: Result) -> str:
    said = (
        f"Measured by `{ran(result)}` on {result['hardware']['cpu']}, {result['hardware']['cores']} cores, load "
        f"{result['hardware']['load_average'][0]:.1f} at the start, commit `{result['commit'][:10]}`"
        f"{' with changes' if result['modified'] else ''}, {result['date'][:10]}. MB of the file per second."
    )
    columns = {
        "raw": "raw read", "cold": "from the disk", "messages": "by mcap", "index": "index alone",
        "write": "write and sync alone", "ingest": "ingest",
    }  # fmt: skip
    header = ["pictures", "size", *columns.values(), "of the raw read", "of the disk", "target"]
    rows = []
    for case in result["cases"]:
        axes, medians = case["axes"], case["median_s"]
        rows.append(
            [f"{axes['pictures']:,} of {axes['width']} x {axes['height']}", f"{case['size_bytes'] / 1e9:.2f} GB",
             *(rate(case, name).removesuffix(" MB/s") for name in columns), f"{100 * case['of_raw']:.1f} %",
             f"{100 * medians['cold'] / medians['ingest']:.0f} %", verdict(case)]
        )  # fmt: skip
    return "\n".join([said, "", *grid(header, rows)])


def blocks() -> dict[str, str]:
    """What is between the marks of docs/benchmarks.md."""
    result = load("cpu", "ingest")
    pictures = load("cpu", "ingest_pictures")
    return {
        "bench:ingest": NOT_MEASURED if result is None else table(result),
        "bench:ingest:pictures": NO_PICTURES if pictures is None else pictures_table(pictures),
    }
