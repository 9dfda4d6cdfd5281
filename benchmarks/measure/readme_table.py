"""The small table of README.md: one row for each thing a user waits for. benchmarks/tables.py writes it."""

from __future__ import annotations

from collections.abc import Iterator

from measure.report import Result, grid, load, number

HEADER = ["what", "on", "RoboCache", "compared with"]
RIVALS = {"compiled": "torch.compile", "gather": "PyTorch", "rows": "PyTorch", "plain": "PyTorch"}
LISTS = ("cases", "eager", "tiers", "index")


def cases(device: str, benchmark: str, name: str, **axes: object) -> list[Result]:
    """The committed cases with this name and these axes; none if there is no committed result."""
    result = load(device, benchmark) or {"cases": []}
    return [c for c in result["cases"] if c["name"] == name and axes.items() <= c["axes"].items()]


def machine(device: str, benchmark: str) -> str:
    result = load(device, benchmark)
    assert result is not None, "called for committed cases only"
    hardware = result["hardware"]
    return hardware["gpu"]["name"] if device == "cuda" else f"{hardware['cores']} CPU cores"


def fastest_rival(case: Result) -> tuple[float, str]:
    return min((ratio, name) for name, ratio in case["ratios"].items() if name != "ours")


def kernel(what: str, found: list[Result], benchmark: str) -> Iterator[list[str]]:
    """Of cases that differ in their input only, the one with the smallest ratio."""
    if found:
        worst = min(found, key=fastest_rival)
        ratio, name = fastest_rival(worst)
        yield [what, machine("cuda", benchmark), f"{number(worst['median_us']['ours'])} µs",
               f"{number(ratio)} x {RIVALS.get(name, f'`{name}`')}"]  # fmt: skip


def training() -> Iterator[list[str]]:
    for case in cases("cuda", "training", "graph"):
        samples_per_s = case["axes"]["batch"] / case["median_step_s"]["gpu"]
        yield [f"Training step with `Loader`, policy of {case['axes']['parameters'] / 1e6:.1f} M parameters",
               machine("cuda", "training"), f"{samples_per_s:,.0f} samples/s",
               f"{1 / case['ratios']['gpu']:.3f} x the step on one cached batch"]  # fmt: skip


def loader_on_cpu() -> Iterator[list[str]]:
    for case in cases("cpu", "loader", "push-t", batch=256):
        loader = min(x for name, x in case["ratios"].items() if name.startswith("DataLoader"))
        gather = case["ratios"]["plain torch"]
        yield ["`Loader`, batch of 256 windows (Push-T)", machine("cpu", "loader"),
               f"{number(case['median_batch_s']['robocache memory'] * 1e6)} µs",
               f"{number(loader)} x torch's `DataLoader`, {number(gather)} x one gather"]  # fmt: skip


def ingest() -> Iterator[list[str]]:
    for case in cases("cpu", "ingest", "ingest"):
        if case["targets"]:
            mbps = case["size_bytes"] / case["median_s"]["ingest"] / 1e6
            yield [f"`ingest` of {case['size_bytes'] / 1e9:.0f} GB of robomimic", machine("cpu", "ingest"),
                   f"{mbps:.0f} MB/s", f"{case['of_raw']:.2f} x reading the file with h5py"]  # fmt: skip


def rows() -> Iterator[list[str]]:
    windows = cases("cuda", "loader", "windows of 17 x 32 bf16 in a graph", batch="4,096")
    resample = cases("cuda", "align", "resample", **{"B/S/T/D": "4096/2048/1024/64"})
    count = cases("cuda", "voxelize", "count", points="1M", cloud="uniform")
    mean = cases("cuda", "voxelize", "mean", points="1M x 4", cloud="lidar")
    yield from training()
    yield from kernel("`Loader`, batch of 4,096 windows, 17 x 32 bfloat16", windows, "loader")
    yield from loader_on_cpu()
    yield from kernel("`resample_trajectories`, 4,096 x 2,048 to 1,024 rows, 64 bfloat16", resample, "align")
    yield from kernel("`voxelize_pointcloud`, count, 1M uniform points", count, "voxelize")
    yield from kernel("`voxelize_pointcloud`, mean of 4 features, 1M LiDAR points", mean, "voxelize")
    yield from ingest()


def targets() -> str:
    """How many of the targets that were set in advance are met, on CUDA."""
    results = [load("cuda", name) or {} for name in ("align", "voxelize", "loader")]
    found = [case for result in results for kind in LISTS for case in result.get(kind, [])]
    entries = [entry for case in found for entry in (*case["targets"].values(), *case.get("at_least", {}).values())]
    return f"{sum(entry['met'] for entry in entries)} of {len(entries)} performance targets on CUDA are met."


def table() -> str:
    said = (
        "x = their time / ours; below 1 RoboCache is slower. If a case was measured on several inputs, the row has the "
        "worst. "
        f"{targets()} [docs/benchmarks.md](docs/benchmarks.md) has the method, every case, every missed target and the "
        "cases in which others are faster."
    )
    return "\n".join([*grid(HEADER, rows()), "", said])
