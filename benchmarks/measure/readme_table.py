"""The small table of README.md: one row for each thing a user waits for. benchmarks/tables.py writes it."""

from __future__ import annotations

from collections.abc import Iterator

from measure.report import Result, grid, load, number

HEADER = ["what", "on", "RoboCache", "compared with", "measured"]
RIVALS = {"compiled": "torch.compile", "gather": "PyTorch", "rows": "PyTorch", "plain": "PyTorch"}
LISTS = ("cases", "eager", "tiers", "index", "worst")


def cases(device: str, benchmark: str, name: str, **axes: object) -> list[Result]:
    """The committed cases with this name and these axes; none if there is no committed result."""
    result = load(device, benchmark) or {"cases": []}
    return [c for c in result["cases"] if c["name"] == name and axes.items() <= c["axes"].items()]


def machine(device: str, benchmark: str) -> str:
    result = load(device, benchmark)
    assert result is not None, "called for committed cases only"
    hardware = result["hardware"]
    if not device.startswith("cuda"):
        return f"{hardware['cores']} CPU cores"
    return str((hardware if "gpu" in hardware else result)["gpu"]["name"])


def fastest_rival(case: Result) -> tuple[float, str]:
    return min((ratio, name) for name, ratio in case["ratios"].items() if name != "ours")


def measured(device: str, benchmark: str) -> str:
    result = load(device, benchmark)
    assert result is not None, "called for committed results only"
    return str(result["date"][:10])


def kernel(what: str, found: list[Result], benchmark: str) -> Iterator[list[str]]:
    """Of cases that differ in their input only, the one with the smallest ratio."""
    if found:
        worst = min(found, key=fastest_rival)
        ratio, name = fastest_rival(worst)
        yield [what, machine("cuda", benchmark), f"{number(worst['median_us']['ours'])} µs",
               f"{number(ratio)} x {RIVALS.get(name, f'`{name}`')}", measured("cuda", benchmark)]  # fmt: skip


def small_align() -> Iterator[list[str]]:
    """A shape of a training step, after a matmul: the input with the smallest ratio."""
    found = cases("cuda_quick", "align", "resample", **{"B/S/T/D": "256/500/250/32"})
    if found:
        worst = min(found, key=lambda case: case["after_ratios"]["compiled"])
        yield ["`resample_trajectories`, 256 x 500 to 250 rows, 32 bfloat16, after a matmul",
               machine("cuda_quick", "align"), f"{number(worst['after_us']['ours'])} µs",
               f"{number(worst['after_ratios']['compiled'])} x torch.compile",
               measured("cuda_quick", "align")]  # fmt: skip


def pictures() -> Iterator[list[str]]:
    all_cases = (load("cuda", "pixels") or {"cases": []})["cases"]
    found = [case for case in all_cases if (case["name"], case["batch"]) == ("640 to 224", 1024)]
    if found:
        slowest = min(case["pictures_per_s"] for case in found)
        ratio = min(case["ratios"]["nvJPEG + torch"] for case in found)
        yield ["`decode_images`, JPEG of 640 x 480 to 224 x 224, normalized bfloat16", machine("cuda", "pixels"),
               f"{slowest:,.0f} pictures/s", f"{number(ratio)} x nvJPEG + torch",
               measured("cuda", "pixels")]  # fmt: skip


def cameras() -> Iterator[list[str]]:
    result = load("cuda", "training_pictures")
    if result is not None:
        samples_per_s = result["batch_size"] / result["median_step_s"]["gpu"]
        yield ["Training step with two cameras, JPEG decoded in the batch, ResNet-18",
               machine("cuda", "training_pictures"), f"{samples_per_s:,.0f} samples/s",
               f"{1 / result['ratios']['gpu']:.3f} x the step on one cached batch",
               measured("cuda", "training_pictures")]  # fmt: skip
    for case in cases("cpu", "pixels_loader", "640 x 480 to 224"):
        slower = min("Loader, memory", "Loader, mmap", key=lambda name: case["pictures_per_s"][name])
        yield ["`Loader` with JPEG of 640 x 480 to 224 x 224", machine("cpu", "pixels_loader"),
               f"{case['pictures_per_s'][slower]:,.0f} pictures/s",
               f"{number(case['ratios'][slower])} x torch's `DataLoader` with OpenCV",
               measured("cpu", "pixels_loader")]  # fmt: skip


def training() -> Iterator[list[str]]:
    for case in cases("cuda", "training", "graph"):
        samples_per_s = case["axes"]["batch"] / case["median_step_s"]["gpu"]
        yield [f"Training step with `Loader`, policy of {case['axes']['parameters'] / 1e6:.1f} M parameters",
               machine("cuda", "training"), f"{samples_per_s:,.0f} samples/s",
               f"{1 / case['ratios']['gpu']:.3f} x the step on one cached batch",
               measured("cuda", "training")]  # fmt: skip


def loader_on_cpu() -> Iterator[list[str]]:
    for case in cases("cpu", "loader", "push-t", batch=256):
        loader = min(x for name, x in case["ratios"].items() if name.startswith("DataLoader"))
        gather = case["ratios"]["plain torch"]
        yield ["`Loader`, batch of 256 windows (Push-T)", machine("cpu", "loader"),
               f"{number(case['median_batch_s']['robocache memory'] * 1e6)} µs",
               f"{number(loader)} x torch's `DataLoader`, {number(gather)} x one gather",
               measured("cpu", "loader")]  # fmt: skip


def ingest() -> Iterator[list[str]]:
    for case in cases("cpu", "ingest", "ingest"):
        if case["targets"]:
            mbps = case["size_bytes"] / case["median_s"]["ingest"] / 1e6
            yield [f"`ingest` of {case['size_bytes'] / 1e9:.0f} GB of robomimic", machine("cpu", "ingest"),
                   f"{mbps:.0f} MB/s", f"{case['of_raw']:.2f} x reading the file with h5py",
                   measured("cpu", "ingest")]  # fmt: skip


def rows() -> Iterator[list[str]]:
    windows = cases("cuda", "loader", "windows of 17 x 32 bf16 in a graph", batch="4,096")
    resample = cases("cuda", "align", "resample", **{"B/S/T/D": "4096/2048/1024/64"})
    count = cases("cuda", "voxelize", "count", points="1M", cloud="uniform")
    mean = cases("cuda", "voxelize", "mean", points="1M x 4", cloud="lidar")
    yield from cameras()
    yield from training()
    yield from pictures()
    yield from small_align()
    yield from kernel("`Loader`, batch of 4,096 windows, 17 x 32 bfloat16", windows, "loader")
    yield from loader_on_cpu()
    yield from kernel("`resample_trajectories`, 4,096 x 2,048 to 1,024 rows, 64 bfloat16", resample, "align")
    yield from kernel("`voxelize_pointcloud`, count, 1M uniform points", count, "voxelize")
    yield from kernel("`voxelize_pointcloud`, mean of 4 features, 1M LiDAR points", mean, "voxelize")
    yield from ingest()


def targets() -> str:
    """How many of the targets that were set in advance are met, on CUDA."""
    measured_in = [("cuda", "align"), ("cuda_quick", "align"), ("cuda", "voxelize"), ("cuda", "loader")]
    results = [load(device, name) or {} for device, name in measured_in]
    found = [case for result in results for kind in LISTS for case in result.get(kind, [])]
    entries = [
        entry for case in found for entry in (*case.get("targets", {}).values(), *case.get("at_least", {}).values())
    ]
    return f"{sum(entry['met'] for entry in entries)} of {len(entries)} performance targets on CUDA are met."


def table() -> str:
    said = (
        "x = their time / ours; below 1 RoboCache is slower. If a case was measured on several inputs, the row has the "
        "worst. GPU rows from before 2026-11-18 are older than the kernels, and were not measured again: the present "
        "kernels are faster after other work and slower when calls of one kind follow each other. "
        f"{targets()} [docs/benchmarks.md](docs/benchmarks.md) has the method, every case, every missed target and the "
        "cases in which others are faster."
    )
    return "\n".join([*grid(HEADER, rows()), "", said])
