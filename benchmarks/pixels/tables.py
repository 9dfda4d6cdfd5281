"""The table of decode in docs/benchmarks.md; benchmarks/tables.py writes it."""

from __future__ import annotations

from measure.report import Result, grid, load, number

NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/pixels_cuda.json`."
RIVAL = "nvJPEG + torch"


def target_of(result: Result, case: Result) -> str:
    """The targets are those of the clean input, photos; the worst input is in the table like all others."""
    worst = next(w for w in result["worst"] if (w["name"], w["batch"]) == (case["name"], case["batch"]))
    if case["input"] != "photos":
        return ""
    return "; ".join(
        f"{'met' if target['met'] else 'MISSED'}, target {target['at_least']:,g} {name}"
        for name, target in worst["targets"].items()
    )


def table(result: Result) -> str:
    said = (
        f"Measured by `{result['command']}` on {result['gpu']['name']}, torch {result['versions']['torch']}, commit "
        f"`{result['commit'][:10]}`, {result['date'][:10]}. Encoded bytes and index in GPU memory to 224 x 224, "
        "normalized, bfloat16, CHW; eager calls after a matmul, host included."
    )
    header = ["case", "batch", "pictures", "bytes of one", "index", "pictures/s", f"x {RIVAL}", "targets"]
    rows = [
        [case["name"], f"{case['batch']:,}", case["input"], f"{case['bytes_per_picture']:,.0f}",
         f"{100 * case['index_share']:.1f} %", f"{case['pictures_per_s']:,.0f}", number(case["ratios"].get(RIVAL)),
         target_of(result, case)]
        for case in result["cases"]
    ]  # fmt: skip
    return "\n".join([said, "", *grid(header, rows)])


def blocks() -> dict[str, str]:
    result = load("cuda", "pixels")
    return {"bench:pixels:cuda": NOT_MEASURED if result is None else table(result)}
