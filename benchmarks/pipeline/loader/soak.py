"""Reads a million batches and watches what the process holds: memory, GPU memory, file descriptors.

python benchmarks/bench_loader.py soak --tier mmap --batches 200000
python benchmarks/bench_loader.py soak --pictures --batches 100000 --batch-size 4
python benchmarks/bench_loader.py soak --tier gpu --device cuda --out benchmarks/results/soak/soak_cuda_gpu.json

After a warm-up, resident memory may grow by less than 1 MB, GPU memory and descriptors not at all. Every sample also
reads one batch again that was read at the beginning, and compares it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import robocache
import torch
from measure import harness
from measure.targets import verdict
from pixels.cameras import make_cache

RATE_HZ = 50
STREAMS = {"state": 8, "action": 7}
EPISODES, ROWS = 64, (100, 300)
SHARD_BYTES = 64 << 10
SAMPLES = 60
RESIDENT_BYTES = 1_000_000
Batch = dict[str, torch.Tensor]


PICTURE = (32, 48)


def make_pictures(folder: Path) -> robocache.Cache:
    """Two small cameras, encoded."""
    return make_cache(folder / "soak.cache", PICTURE, ["left", "right"], 16, 100)


def open_picture_loader(cache: robocache.Cache, tier: str, device: str, batch_size: int) -> robocache.Loader:
    image = robocache.Image(
        size=(24, 24), crop=robocache.RandomCrop(0.9), flip=0.5, color=robocache.ColorJitter(0.2), layout="CHW",
        dtype="float32", normalize="imagenet",
    )  # fmt: skip
    windows = {
        "left": robocache.Window(past=0.1, rate_hz=10, image=image),
        "right": robocache.Window(image=robocache.Image()),
        "action": robocache.Window(future=0.3, rate_hz=10, method="nearest"),
    }
    return robocache.Loader(cache, batch_size, windows, drop_last=False, tier=tier, device=device)


def make(folder: Path) -> robocache.Cache:
    """Some 13,000 rows of two streams in about ten shards."""
    rng = np.random.default_rng(0)
    specs = {name: robocache.StreamSpec(name, "float32", (n,), rate_hz=RATE_HZ) for name, n in STREAMS.items()}
    writer = robocache.CacheWriter(folder / "soak.cache", specs, shard_bytes=SHARD_BYTES)
    for e in range(EPISODES):
        count = int(rng.integers(*ROWS))
        times = np.arange(count, dtype=np.int64) * (10**9 // RATE_HZ)
        streams = {
            name: robocache.EpisodeStream(spec, rng.normal(size=(count, *spec.shape)).astype(np.float32), times)
            for name, spec in specs.items()
        }
        writer.add(robocache.Episode(e, streams))
    return writer.commit()


def open_loader(cache: robocache.Cache, tier: str, device: str, batch_size: int) -> robocache.Loader:
    windows = {
        "state": robocache.Window(past=0.1, rate_hz=2 * RATE_HZ),  # interpolated
        "action": robocache.Window(future=0.3, rate_hz=RATE_HZ, method="nearest"),
    }
    return robocache.Loader(
        cache, batch_size, windows, normalize={"state": "mean_std"}, drop_last=False, tier=tier, device=device
    )


def held(device: str) -> dict[str, int]:
    """What this process has now. ``smaps_rollup`` counts every page; ``VmRSS`` is off by some hundred kilobytes."""
    pages = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    found = {
        "resident_bytes": int(pages["Rss"].split()[0]) * 1024,
        "proportional_bytes": int(pages["Pss"].split()[0]) * 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    if device != "cpu":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(device)
        found |= {
            "gpu_allocated_bytes": torch.cuda.memory_allocated(device),
            "gpu_reserved_bytes": torch.cuda.memory_reserved(device),
            "gpu_used_bytes": total - free,
        }
    return found


def endless(loader: robocache.Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def soak(
    loader: robocache.Loader, num_batches: int, warm: int, use: Callable[[Batch], Any] = len, tell: bool = True
) -> list[dict[str, Any]]:
    """What was held after ``warm`` batches, and at even distances up to ``num_batches``, or a few batches later so that
    it is in the middle of an epoch. ``use`` gets each batch."""
    device = str(loader.device)
    first = loader.batch(0, 0)
    batches = endless(loader)
    begin = said = time.perf_counter()
    samples: list[dict[str, Any]] = []
    marks = sorted({warm + (num_batches - warm) * i // SAMPLES for i in range(SAMPLES + 1)})
    done = 0
    for mark in marks:
        while done < mark:
            use(next(batches))
            done += 1
            if tell and done % 256 == 0 and time.perf_counter() - said > 5:
                said = time.perf_counter()
                rate = done / (said - begin)
                left = (num_batches - done) / rate
                print(f"  {done:,} of {num_batches:,} batches, {rate:,.0f}/s, {left:.0f} s left", flush=True)
        while not 10 < loader.state_dict()["step"] < len(loader) - 10:
            use(next(batches))
            done += 1
        if device != "cpu":
            time.sleep(0.2)  # everything that is read ahead is there, as in every sample
        again = loader.batch(0, 0)
        assert all(torch.equal(again[name], x) for name, x in first.items()), f"another batch 0 after {done} batches"
        del again
        samples.append({"batches": done, "seconds": time.perf_counter() - begin, **held(device)})
    return samples


def targets_of(samples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The most that was held after the warm-up, less what was held right after it."""
    limits = {"resident_bytes": RESIDENT_BYTES - 1, "descriptors": 0}
    limits |= {name: 0 for name in samples[0] if name.startswith("gpu_")}
    targets = {}
    for name, limit in limits.items():
        grown = max(sample[name] for sample in samples) - samples[0][name]
        targets[name] = {"at_most": limit, "measured": grown, "met": grown <= limit}
    return targets


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--warm", type=int, default=20_000, help="batches before the first sample; a tenth at most")
    parser.add_argument("--tier", default=None, help="as Loader takes it")
    parser.add_argument("--pictures", action="store_true", help="batches of encoded pictures")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "soak_loader.json"), help="JSON file to write")
    args = parser.parse_args(arguments)
    environment = harness.environment()
    with tempfile.TemporaryDirectory() as folder:
        made, opened = (make_pictures, open_picture_loader) if args.pictures else (make, open_loader)
        loader = opened(made(Path(folder)), args.tier, args.device, args.batch_size)
        print(f"tier {loader.tier} on {loader.device}, {len(loader)} batches of {args.batch_size} an epoch", flush=True)
        samples = soak(loader, args.batches, min(args.warm, args.batches // 10))
    targets = targets_of(samples)
    for name, target in targets.items():
        print(f"  {verdict(target)} {name} grew by {target['measured']:,}, at most {target['at_most']:,}")
    record = environment | {
        "tier": loader.tier, "device": str(loader.device), "batches": args.batches, "batch_size": args.batch_size,
        "pictures": args.pictures, "epochs": loader.epoch, "targets": targets, "samples": samples,
    }  # fmt: skip
    if args.device == "cuda":
        record["gpu"] = torch.cuda.get_device_name()
    harness.write_json(args.out, record)
    return int(args.strict and not all(target["met"] for target in targets.values()))
