"""Measures what encoded pictures cost a training step: two cameras with two frames each into a ResNet-18 policy.

python benchmarks/bench_training.py pictures --out benchmarks/results/pipeline/training_pictures_cuda.json

Batch 256: 1,024 pictures of 224 x 224 a step, decoded on the device, a state and a chunk of 16 actions; bfloat16. The
step on batches of `Loader` against the same step on one batch that is always there, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import robocache
import torch
from measure import harness, timing
from measure.targets import target, verdict
from pixels.cameras import ACTION, RATE_HZ, STATE, make_cache
from torch import Tensor, nn

CAMERAS = ["left", "right"]
CHUNK = 16
AT_MOST, MOST_CORES = 1.02, 0.1
Batch = dict[str, Tensor]


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.short(x))


class CameraPolicy(nn.Module):
    """ResNet-18 for each picture, shared by the cameras; features and state to a chunk of actions."""

    def __init__(self, num_pictures: int) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        blocks = [
            Block(before if i == 0 else after, after, stride if i == 0 else 1)
            for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
            for i in range(2)
        ]
        self.eye = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(512 * num_pictures + STATE, 512), nn.ReLU(inplace=True), nn.Linear(512, CHUNK * ACTION)
        )

    def forward(self, batch: Batch) -> Tensor:
        pictures = torch.cat([batch[name].flatten(0, 1) for name in CAMERAS])
        seen = self.eye(pictures.contiguous(memory_format=torch.channels_last))
        count = len(batch["state"])
        features = [x.reshape(count, -1) for x in seen.chunk(len(CAMERAS))]
        return self.head(torch.cat([*features, batch["state"][:, 0]], 1)).view(count, CHUNK, ACTION)


class Step:
    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.policy = CameraPolicy(2 * len(CAMERAS)).to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-4, fused=device == "cuda")
        self.loss = torch.zeros((), device=device)

    def __call__(self, batch: Batch) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16):
            loss = (self.policy(batch) - batch["action"]).abs().mean()
        loss.backward()
        self.optimizer.step()
        self.loss = loss.detach()


def open_loader(cache: robocache.Cache, batch_size: int, size: int, device: str, tier: str | None) -> robocache.Loader:
    period = 1 / RATE_HZ
    image = robocache.Image(size=(size, size), layout="CHW", dtype="bfloat16", normalize="imagenet")
    windows = {name: robocache.Window(past=period, rate_hz=RATE_HZ, image=image) for name in CAMERAS}
    windows["state"] = robocache.Window()
    windows["action"] = robocache.Window(future=(CHUNK - 1) * period, rate_hz=RATE_HZ, method="nearest")
    return robocache.Loader(cache, batch_size, windows, anchors="action", seed=1, device=device, tier=tier)


def endless(loader: robocache.Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def seconds_of(step: Step, batches: Iterator[Batch], steps: int) -> float:
    """Of a step; on a GPU between two events."""
    for batch in itertools.islice(batches, 2):
        step(batch)
    timing.synchronize(step.device)
    if step.device != "cuda":
        begin = time.perf_counter()
        for batch in itertools.islice(batches, steps):
            step(batch)
        return (time.perf_counter() - begin) / steps
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for batch in itertools.islice(batches, steps):
        step(batch)
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) * 1e-3 / steps


def cpu_seconds_of(batches: Iterator[Batch], count: int, device: str) -> float:
    """CPU seconds of a batch, of all threads of this process, in a loop that only loads."""
    next(batches)
    timing.synchronize(device)
    begin = time.process_time()
    for batch in itertools.islice(batches, count):
        del batch
    spent = time.process_time() - begin
    timing.synchronize(device)
    return spent / count


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="height and width of the pictures")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_training_pictures.json"))
    args = parser.parse_args(arguments)
    environment = harness.environment()
    environment["hardware"]["gpu"] = timing.gpu_facts(args.device)
    environment["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory() as folder:
        cache = make_cache(Path(folder) / "arm.cache", (args.size, args.size), CAMERAS, args.episodes, 64)
        tiers = ("gpu", "pinned") if args.device == "cuda" else ("memory",)
        loaders = {t: open_loader(cache, args.batch_size, args.size, args.device, t) for t in tiers}
        cached = {name: x.clone() for name, x in loaders[tiers[0]].batch(0, 0).items()}
        step = Step(args.device)
        sources = {"cached": itertools.repeat(cached), "cached again": itertools.repeat(cached)}
        sources |= {tier: endless(loader) for tier, loader in loaders.items()}
        seconds: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(args.samples):
            for name, batches in sources.items():
                seconds[name].append(seconds_of(step, batches, args.steps))
        medians = {name: harness.median(s) for name, s in seconds.items()}
        ratios = {
            name: harness.median(a / b for a, b in zip(s, seconds["cached"], strict=True))
            for name, s in seconds.items()
        }
        cores = {t: cpu_seconds_of(sources[t], 5 * args.steps, args.device) / medians[t] for t in tiers}
        assert torch.isfinite(step.loss).all(), "the loss is not a number"
    targets: dict[str, Any] = {}
    if args.device == "cuda":
        targets = {
            "x cached step": target(ratios["gpu"], at_most=AT_MOST), "cores": target(cores["gpu"], at_most=MOST_CORES)
        }  # fmt: skip
    for name, s in medians.items():
        used = f", {cores[name]:.3f} cores" if name in cores else ""
        print(f"  {name:13} {s * 1e3:8.2f} ms  {ratios[name]:.4f} x cached{used}", flush=True)
    for name, goal in targets.items():
        print(f"  {verdict(goal)} {goal['measured']:.4f} {name}, at most {goal['at_most']}")
    record = {"benchmark": "training_pictures", "device": args.device, **environment}
    record |= {"batch_size": args.batch_size, "size": args.size}
    record |= {"shapes": {name: list(x.shape) for name, x in cached.items()}}
    record |= {"samples_s": seconds, "median_step_s": medians, "ratios": ratios, "cores": cores, "targets": targets}
    harness.write_json(args.out, record)
    return int(args.strict and not all(goal["met"] for goal in targets.values()))
