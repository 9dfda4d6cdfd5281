"""Measures what the loader costs a training step: the step on batches of `Loader` against the same step on one batch
that is always there, for every tier of the device, in turns.

python benchmarks/bench_training.py --device cpu --quick
python benchmarks/bench_training.py --device cuda --out benchmarks/results/pipeline/training_cuda.json
python benchmarks/bench_training.py pictures        two cameras into a ResNet-18 (pipeline/training/camera.py)
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import robocache
import torch
from measure import harness, timing
from measure.targets import target, verdict
from pipeline.training import camera
from pipeline.training.policy import ACTION, OBSERVED, Batch, GraphStep, Step
from robocache.loader.batches.ring import COPIED, DEPTH

TIERS = ("gpu", "pinned", "mmap", "memory")
TARGETS = {"gpu": 1.01, "pinned": 1.03}
"""At most this many times the step on a cached batch, at batch 256 on a GPU."""
MOST_CORES = 1.0
CACHED, CONTROL = "cached", "cached again"
"""The same thing twice: how far they are apart is what the measurement cannot tell."""
BATCH = 256
WARM_STEPS = DEPTH[1] + COPIED + 1
"""Before each sample: more than a loader reads ahead while the others run."""
STREAMS = {"state": (32, 100), "force": (6, 500), "action": (14, 50)}  # channels, Hz
WINDOWS = {
    "state": robocache.Window(past=0.1, rate_hz=20),
    "force": robocache.Window(past=0.1, rate_hz=50),
    "action": robocache.Window(future=0.98, rate_hz=50, method="nearest"),
}
NORMALIZE = {"state": "mean_std", "force": "mean_std", "action": "min_max"}


@dataclass(frozen=True)
class Size:
    episodes: int
    seconds: float  # of an episode
    width: int
    layers: int
    steps: int  # of a sample
    samples: int
    loader_batches: int  # of the loop without a step


SIZES = {
    "cuda": Size(300, 20.0, 384, 6, 10, 30, 1000),
    "cpu": Size(100, 20.0, 64, 1, 4, 9, 400),
    "cuda quick": Size(50, 20.0, 384, 6, 10, 5, 200),
    "cpu quick": Size(4, 4.0, 32, 1, 1, 3, 6),
}


def make(folder: Path, size: Size) -> robocache.Cache:
    """An arm: smooth signals with noise at three rates; the clock of the force sensor jitters."""
    rng = np.random.default_rng(0)
    specs = {name: robocache.StreamSpec(name, "float32", (n,), rate_hz=hz) for name, (n, hz) in STREAMS.items()}
    writer = robocache.CacheWriter(folder / "arm.cache", specs)
    for e in range(size.episodes):
        streams = {}
        for name, (channels, hz) in STREAMS.items():
            count = int(size.seconds * hz)
            times = np.round(np.arange(count) * 1e9 / hz).astype(np.int64)
            if name == "force":
                times[1:] += rng.integers(-(10**5), 10**5, count - 1)
            phase = rng.uniform(0, 2 * np.pi, channels)
            values = np.sin(times[:, None] / 1e9 * (1 + np.arange(channels) % 5) + phase)
            values += rng.standard_normal(values.shape, np.float32) * 0.05
            streams[name] = robocache.EpisodeStream(specs[name], values.astype(np.float32), times)
        writer.add(robocache.Episode(e, streams))
    return writer.commit()


def open_tiers(cache: robocache.Cache, device: str, batch_size: int) -> tuple[dict[str, robocache.Loader], dict]:
    """A loader for each tier that there is, and why there is none for the others."""
    loaders, skipped = {}, {}
    for tier in TIERS:
        try:
            loaders[tier] = robocache.Loader(
                cache, batch_size, WINDOWS, normalize=NORMALIZE, anchors=ACTION, seed=1, device=device, tier=tier
            )
        except (ValueError, NotImplementedError, MemoryError) as error:
            skipped[tier] = str(error)
            print(f"  {tier}: skipped: {error}", flush=True)
    return loaders, skipped


def require_equal(loaders: dict[str, robocache.Loader], count: int) -> int:
    """The first batches of an epoch and its last, byte by byte, from every tier."""
    first, *others = loaders
    steps = sorted({*range(min(count, len(loaders[first]))), len(loaders[first]) - 1})
    for step in steps:
        batch = loaders[first].batch(step, 0)
        for tier in others:
            other = loaders[tier].batch(step, 0)
            assert other.keys() == batch.keys(), (tier, [*other])
            for key, x in batch.items():
                assert other[key].dtype == x.dtype, (tier, key)
                assert torch.equal(other[key], x), f"{tier} gives another {key} in batch {step}"
    return len(steps)


def endless(loader: robocache.Loader) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from loader


class Loop:
    """A training loop over batches. Called: the seconds of a step, of `steps` in a row that nobody interrupts."""

    def __init__(self, step: Callable[[Batch], None], batches: Iterator[Batch], steps: int, device: str) -> None:
        self.step, self.batches, self.steps, self.device = step, batches, steps, device

    def run(self, steps: int) -> None:
        for batch in itertools.islice(self.batches, steps):
            self.step(batch)

    def __call__(self) -> float:
        timing.synchronize(self.device)
        self.run(WARM_STEPS if self.device == "cuda" else 1)
        if self.device != "cuda":
            begin = time.perf_counter()
            self.run(self.steps)
            return (time.perf_counter() - begin) / self.steps
        # Between two events on the GPU's own timeline: no wait in between, in which a loader could catch up.
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        self.run(self.steps)
        events[1].record()
        events[1].synchronize()
        return events[0].elapsed_time(events[1]) * 1e-3 / self.steps


def union_s(trace: Iterable[dict[str, Any]]) -> float | None:
    """Seconds in which at least one kernel, copy or fill ran, of the events of a Chrome trace; None without any."""
    busy = [(x["ts"], x["ts"] + x["dur"]) for x in trace if x.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    total, until = 0.0, float("-inf")
    for begin, end in sorted(busy):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total * 1e-6 if busy else None


def busy_s(loop: Loop, steps: int = 10) -> float | None:
    """Seconds of a step in which the GPU has something to do. The profiler slows the host down, not the kernels."""
    if loop.device != "cuda":
        return None
    loop.run(WARM_STEPS)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        loop.run(steps)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(f"{folder}/trace.json")
        found = union_s(json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"])
    return None if found is None else found / steps


def loader_cpu_s(batches: Iterator[Batch], count: int, device: str) -> float:
    """CPU seconds of a batch, of all threads of this process, in a loop that does nothing but load."""
    for batch in itertools.islice(batches, 10):
        del batch
    timing.synchronize(device)
    begin = time.process_time()
    for batch in itertools.islice(batches, count):
        del batch
    spent = time.process_time() - begin
    timing.synchronize(device)
    return spent / count


def targets_of(tier: str, ratio: float, cores: float, asked: bool) -> dict[str, Any]:
    """`asked`: the targets of the issue are for batch 256; that of the step is for a GPU."""
    targets = {}
    if asked and tier in TARGETS:
        targets["x cached step"] = target(ratio, at_most=TARGETS[tier])
    if asked:
        targets["cores"] = {"at_most": MOST_CORES, "measured": cores, "met": cores < MOST_CORES}
    return targets


def measure(kind: str, cached: Batch, loaded: dict[str, Iterator[Batch]], size: Size, device: str) -> dict[str, Any]:
    """`loaded`: the batches of each tier."""
    batch_size = len(cached[ACTION])
    shapes = {name: tuple(cached[name].shape[1:]) for name in (*OBSERVED, ACTION)}
    step: Step | GraphStep = Step(shapes, size.width, size.layers, device)
    if kind == "graph":
        step = GraphStep(step, cached)
    sources = {CACHED: itertools.repeat(cached), CONTROL: itertools.repeat(cached), **loaded}
    loops = {name: Loop(step, batches, size.steps, device) for name, batches in sources.items()}
    seconds = timing.interleave(loops, size.samples)
    medians = {name: harness.median(s) for name, s in seconds.items()}
    ratios = {
        name: harness.median(a / b for a, b in zip(s, seconds[CACHED], strict=True)) for name, s in seconds.items()
    }
    busy = {name: busy_s(loop) for name, loop in loops.items() if name != CONTROL}
    cpu = {tier: loader_cpu_s(batches, size.loader_batches, device) for tier, batches in loaded.items()}
    cores = {tier: spent / medians[tier] for tier, spent in cpu.items()}
    assert torch.isfinite(step.loss).all(), "the loss is not a number"
    return {
        "name": kind,
        "axes": {"batch": batch_size, "parameters": step.policy.num_parameters, "width": size.width,
                 "layers": size.layers, **{name: list(shape) for name, shape in shapes.items()}},
        "samples_s": seconds, "median_step_s": medians, "ratios": ratios, "busy_s": busy,
        "idle_share": {name: None if b is None else max(0.0, 1 - b / medians[name]) for name, b in busy.items()},
        "cpu_s_per_million": {tier: spent / batch_size * 1e6 for tier, spent in cpu.items()}, "cores": cores,
        "targets": {tier: targets_of(tier, ratios[tier], cores[tier], batch_size == BATCH) for tier in loaded},
    }  # fmt: skip


def describe(case: dict[str, Any]) -> str:
    axes = case["axes"]
    lines = [f"  {case['name']} step, batch {axes['batch']}, {axes['parameters'] / 1e6:.1f} M parameters"]
    for name, s in case["median_step_s"].items():
        told = f"    {name:12} {s * 1e3:8.3f} ms  {case['ratios'][name]:.4f} x cached"
        if case["idle_share"].get(name) is not None:
            told += f"  GPU idle {case['idle_share'][name]:.1%}"
        if name in case["cores"]:
            told += f"  CPU {case['cpu_s_per_million'][name]:.2f} s a million, {case['cores'][name]:.3f} cores"
        targets = case["targets"].get(name, {}).items()
        told += "".join(f"  {verdict(b)} {b['at_most']:g} {what}" for what, b in targets)
        lines.append(told)
    return "\n".join(lines)


def run(device: str, size: Size, batch_size: int, folder: Path, record: dict[str, Any]) -> None:
    """Puts what it measures into the record, case by case."""
    cache = make(folder, size)
    print(f"  {len(cache)} episodes, {cache.size_bytes / 2**20:.0f} MiB", flush=True)
    loaders, record["skipped"] = open_tiers(cache, device, batch_size)
    record["batches_compared"] = require_equal(loaders, 20)
    cached = {name: x.clone() for name, x in next(iter(loaders.values())).batch(0, 0).items()}
    loaded = {tier: endless(loader) for tier, loader in loaders.items()}
    for kind in ("eager", "graph") if device == "cuda" else ("eager",):
        record["cases"].append(measure(kind, cached, loaded, size, device))
        print(describe(record["cases"][-1]), flush=True)


def main() -> int:
    if sys.argv[1:2] == ["pictures"]:
        return camera.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="little data, few samples: to see that it runs")
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--folder", help="where the data is written for the time of the run")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_training.json"), help="JSON file to write")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("bench_training: --device cuda needs a GPU that PyTorch sees; torch.cuda.is_available() is False")
        return 2
    harness.set_num_threads(harness.available_cores())
    environment = harness.environment()
    environment["hardware"]["gpu"] = timing.gpu_facts(args.device)
    environment["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    size = SIZES[f"{args.device} quick" if args.quick else args.device]
    record = {"benchmark": "training", "device": args.device, "quick": args.quick, **environment}
    record |= {"threads": harness.available_cores(), "size": asdict(size), "streams": STREAMS, "cases": []}
    try:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            run(args.device, size, args.batch_size, Path(folder), record)
    except Exception as error:  # what was measured until then is kept
        harness.write_json(args.out, record | {"aborted": f"{type(error).__name__}: {error}"[:300]})
        raise
    harness.write_json(args.out, record)
    targets = [b for case in record["cases"] for tier in case["targets"].values() for b in tier.values()]
    return int(args.strict and not all(b["met"] for b in targets))


if __name__ == "__main__":
    raise SystemExit(main())
