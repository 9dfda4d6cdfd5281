"""Measures camera batches on the CPU: `Loader` against torch's DataLoader that decodes with OpenCV or Pillow.

python benchmarks/bench_pixels.py loader --out benchmarks/results/pixels/pixels_loader_cpu.json

Random access to single frames, to 224 x 224, normalized float32 CHW, collated. DataLoader has as many processes as
there are cores, and the encoded pictures in memory; `Loader` has as many threads. In turns, in one run; after a
DataLoader there is a pause until its processes have made their batches ahead, so that they do not slow the next one.
"""

from __future__ import annotations

import argparse
import io
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
from measure.targets import target, verdict
from PIL import Image
from pixels.cameras import make_cache
from pixels.rivals import MEAN, STD
from torch.utils.data import DataLoader, Dataset

SIZE = (224, 224)
TARGETS = {(480, 640): 1.5, (224, 224): 3.0}
"""At least this many times the speed of the faster DataLoader."""
SETTLE = 1.5
"""Times the batches that a DataLoader makes ahead: a pause after each of its samples."""


class Frames(Dataset[torch.Tensor]):
    def __init__(self, pictures: list[bytes], decode: Callable[[bytes], np.ndarray[Any, Any]]) -> None:
        self.pictures, self.decode = pictures, decode
        self.mean, self.std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> torch.Tensor:
        pixels = torch.from_numpy(self.decode(self.pictures[i]))
        return pixels.permute(2, 0, 1).float().div_(255).sub_(self.mean).div_(self.std)


def by_pillow(data: bytes) -> np.ndarray[Any, Any]:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if image.size != SIZE[::-1]:
        image = image.resize(SIZE[::-1], Image.Resampling.BILINEAR)
    return np.array(image)


def by_opencv(data: bytes) -> np.ndarray[Any, Any]:
    import cv2

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    return cv2.resize(pixels, SIZE[::-1], interpolation=cv2.INTER_AREA) if pixels.shape[:2] != SIZE else pixels


def decoders() -> dict[str, Callable[[bytes], np.ndarray[Any, Any]]]:
    found = {"DataLoader, Pillow": by_pillow}
    try:
        import cv2
    except ImportError:
        return found
    cv2.setNumThreads(1)
    return {"DataLoader, OpenCV": by_opencv, **found}


def one_thread(_: int) -> None:
    torch.set_num_threads(1)
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(1)


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def measure(shape: tuple[int, int], batch_size: int, batches: int, samples: int, folder: Path) -> dict[str, Any]:
    cores = harness.available_cores()
    cache = make_cache(folder / "cameras.cache", shape, ["camera"], 8, 128)
    pictures = [x for e in range(len(cache)) for x in cache.episode(e).streams["camera"].pictures]
    image = robocache.Image(size=SIZE, layout="CHW", dtype="float32", normalize="imagenet")
    loaders: dict[str, Any] = {
        f"Loader, {tier}": robocache.Loader(
            cache, batch_size, {"camera": robocache.Window(image=image)}, tier=tier, seed=1
        )
        for tier in ("memory", "mmap")
    }
    for name, decode in decoders().items():
        loaders[name] = DataLoader(
            Frames(pictures, decode), batch_size, shuffle=True, num_workers=cores, drop_last=True,
            persistent_workers=True, worker_init_fn=one_thread,
        )  # fmt: skip
    streams = {name: endless(loader) for name, loader in loaders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in streams}
    for sample in range(samples + 1):
        for name, stream in streams.items():
            # As many batches as a DataLoader has ready, so that none of the measured ones was made before.
            for _ in range(2 * cores if name.startswith("DataLoader") else 1):
                next(stream)
            begin = time.perf_counter()
            for _ in range(batches):
                next(stream)
            per_batch = (time.perf_counter() - begin) / batches
            if sample > 0:
                seconds[name].append(per_batch)
            if name.startswith("DataLoader"):  # its processes make batches ahead: not on the cores of the next one
                time.sleep(SETTLE * 2 * cores * per_batch)
    medians = {name: harness.median(s) for name, s in seconds.items()}
    rivals = [name for name in seconds if name.startswith("DataLoader")]
    ratios = {
        name: min(harness.median(b / a for a, b in zip(s, seconds[rival], strict=True)) for rival in rivals)
        for name, s in seconds.items()
        if name not in rivals
    }
    at_least = TARGETS[shape]
    return {
        "name": f"{shape[1]} x {shape[0]} to {SIZE[1]}", "axes": {"batch": batch_size, "processes": cores},
        "bytes_per_picture": sum(map(len, pictures)) / len(pictures), "samples_s": seconds, "median_batch_s": medians,
        "pictures_per_s": {name: batch_size / s for name, s in medians.items()}, "ratios": ratios,
        "targets": {"x the faster DataLoader": target(ratios["Loader, memory"], at_least=at_least)},
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_pixels_loader.json"))
    args = parser.parse_args(arguments)
    harness.set_num_threads(harness.available_cores())
    environment = harness.environment()
    cases = []
    for shape in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            load = list(os.getloadavg())
            samples, batches = (2, 2) if args.quick else (args.samples, 4 if shape == (480, 640) else 12)
            cases.append(measure(shape, args.batch_size, batches, samples, Path(folder)) | {"load_average": load})
        case = cases[-1]
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in case["pictures_per_s"].items())
        (goal,) = case["targets"].values()
        print(f"  {case['name']}: pictures/s: {rates}; {verdict(goal)} {goal['measured']:.2f} x DataLoader", flush=True)
    record = {"benchmark": "pixels_loader", "device": "cpu", "quick": args.quick, **environment, "cases": cases}
    harness.write_json(args.out, record)
    return int(args.strict and not all(b["met"] for case in cases for b in case["targets"].values()))
