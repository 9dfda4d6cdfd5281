"""The tables of decode and video in docs/benchmarks.md; benchmarks/tables.py writes them."""

from __future__ import annotations

from measure.report import Result, grid, load, number, ran

NOT_MEASURED = "Not measured yet: there is no `benchmarks/results/pixels/pixels_cuda.json`."
NO_VIDEO = "Not measured yet: there is no `benchmarks/results/pixels/video_cpu.json`."
NO_DECODERS = "Not measured yet: there is no `benchmarks/results/pixels/pixels_decoders_cpu.json`."
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
        f"Measured by `{ran(result)}` on {result['gpu']['name']}, torch {result['versions']['torch']}, commit "
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


def ratio_of(ratio: float, entry: Result) -> str:
    return f"{number(ratio)} ({'met' if entry['met'] else 'MISSED'}, target {entry['at_least']:g})"


def video_table(result: Result) -> str:
    rival = next((case["lerobot"] for case in result["cases"] if case["lerobot"]), None)
    named = f" LeRobot {rival['lerobot']}, {rival['backend']} {rival['backends'][rival['backend']]}." if rival else ""
    rounds = len(result["cases"][0]["samples_per_s"]["packets"])
    said = (
        f"Measured by `{ran(result)}` on {result['threads']} CPU cores, commit `{result['commit'][:10]}`, "
        f"{result['date'][:10]}.{named} Samples per second, median of {rounds} "
        f"rounds that alternate; load {result['hardware']['load_average'][0]:.1f} at the start. Only ratios count."
    )
    header = [
        "dataset",
        "LeRobot",
        "from packets",
        "from JPEG",
        "x packets",
        "x JPEG",
        "cache / videos",
        "JPEG / videos",
    ]
    rows = []
    for case in result["cases"]:
        rates, targets = case["median_samples_per_s"], case["targets"]
        x = [ratio_of(case["ratios"][name], targets[name]) if name in targets else "-" for name in ("packets", "jpeg")]
        shown = [number(rates.get(name)) for name in ("LeRobot", "packets", "jpeg")]
        rows.append([case["name"], *shown, *x, f"{case['cache_of_video']:.3f}", f"{case['jpeg_of_video']:.2f}"])
    return "\n".join([said, "", *grid(header, rows)])


def decoders_table(result: Result) -> str:
    """One core: pictures per second, and how much longer each rival takes."""
    names = list(result["cases"][0]["pictures_per_s"])
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in names if name in result["versions"])
    said = (
        f"Measured by `{ran(result)}` on one core of {result['hardware']['cpu']}, commit "
        f"`{result['commit'][:10]}`, {result['date'][:10]}; {versions}. Pictures per second, full size, uint8 RGB, the "
        "same bytes from all; in parentheses how many times longer than ours it takes."
    )
    rows = [
        [case["name"], case["input"], f"{case['bytes_per_picture']:,.0f}",
         *(f"{rate:,.0f}" + (f" ({number(case['ratios'][name])})" if name in case["ratios"] else "")
           for name, rate in case["pictures_per_s"].items())]
        for case in result["cases"]
    ]  # fmt: skip
    return "\n".join([said, "", *grid(["pictures", "input", "bytes of one", *names], rows)])


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
    result, video = load("cuda", "pixels"), load("cpu", "video")
    decoders = load("cpu", "pixels_decoders")
    return {
        "bench:pixels:decoders": NO_DECODERS if decoders is None else decoders_table(decoders),
        "bench:pixels:cuda": NOT_MEASURED if result is None else table(result),
        "bench:video:cpu": NO_VIDEO if video is None else video_table(video),
    }
