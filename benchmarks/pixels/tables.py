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


PIXELS = {"640 to 224": 640 * 480 * 3, "224 to 224": 224 * 224 * 3}
"""Bytes of a decoded picture."""


def short_table(result: Result) -> str:
    """For docs/pixels.md: size and speed by case and batch, with the worst input of each."""
    said = (
        f"JPEG in GPU memory to 224 x 224, normalized, bfloat16, on {result['gpu']['name']} (commit "
        f"`{result['commit'][:10]}`, {result['date'][:10]}). Bytes: photos at quality 90. Speed and ratio: "
        f"the worst of {len({case['input'] for case in result['cases']})} kinds of pictures."
    )
    rows = []
    for name, batch in dict.fromkeys((case["name"], case["batch"]) for case in result["cases"]):
        cases = [case for case in result["cases"] if (case["name"], case["batch"]) == (name, batch)]
        photo = next(case for case in cases if case["input"] == "photos")
        size, speed = photo["bytes_per_picture"], min(case["pictures_per_s"] for case in cases)
        ratio = min(case["ratios"][RIVAL] for case in cases if RIVAL in case["ratios"])
        rows.append(
            [name, f"{batch:,}", f"{PIXELS[name]:,}", f"{size:,.0f}", f"{PIXELS[name] / size:.1f}",
             f"{100 * photo['index_share']:.1f} %", f"{speed:,.0f}", number(ratio)]
        )  # fmt: skip
    header = ["case", "batch", "bytes of pixels", "of JPEG", "ratio", "index", "pictures/s", f"x {RIVAL}"]
    return "\n".join([said, "", *grid(header, rows)])


def guide() -> dict[str, str]:
    """Blocks of docs/pixels.md."""
    result = load("cuda", "pixels")
    return {"bench:pixels:short": NOT_MEASURED if result is None else short_table(result)}


def blocks() -> dict[str, str]:
    result = load("cuda", "pixels")
    return {"bench:pixels:cuda": NOT_MEASURED if result is None else table(result)}
