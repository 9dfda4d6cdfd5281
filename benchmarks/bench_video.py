"""Measures batches of LeRobot-shaped video: from packets, from a cache ingested as JPEG, and by LeRobot's own loader.

python benchmarks/bench_video.py --quick
python benchmarks/bench_video.py --lerobot-python PYTHON --out benchmarks/results/pixels/video_cpu.json

AV1 as LeRobot 0.6 writes it (libsvtav1, g=2, crf 30, yuv420p). A sample has 8 consecutive frames of every camera, a
batch 32 samples, shuffled over all frames; uint8, CHW. LeRobot: LeRobotDataset with return_uint8 in torch's DataLoader,
as many workers as we have threads, under PYTHON (lerobot needs 3.12), decoding with torchcodec if PYTHON has it, else
with PyAV. A round is a number of batches, a multiple of LeRobot's workers so that none of them idles at its end; rounds
alternate.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import robocache
from measure import harness
from measure.targets import target, verdict
from pixels.films import SHAPES, Shape, write_dataset

BATCH, FRAMES = 32, 8
LEAST = {"packets": 1.5, "jpeg": 5.0}  # times LeRobot's samples per second


class Rival:
    """LeRobot in a process of its own; None where no Python with it was given."""

    def __init__(self, python: str, root: Path, workers: int) -> None:
        program = Path(__file__).parent / "pixels" / "lerobot_rounds.py"
        self.process = subprocess.Popen(
            [python, str(program), str(root), str(workers), str(BATCH), str(FRAMES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.facts = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"bench_video: LeRobot ended with code {self.process.wait()}")

    def round(self, batches: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"go {batches}\n")
        self.process.stdin.flush()
        return float(self.answer()["seconds"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Ours:
    """Our loader over one cache; a round continues where the one before it ended."""

    def __init__(self, cache: robocache.Cache, shape: Shape) -> None:
        image = robocache.Image(layout="CHW")
        deltas = [(i - FRAMES + 1) / shape.fps for i in range(FRAMES)]
        windows = {name: robocache.Window(deltas=deltas, image=image) for name in shape.camera_names}
        self.loader = robocache.Loader(cache, BATCH, windows, seed=0, tier="memory")
        self.step = 0

    def round(self, batches: int) -> float:
        begin = time.perf_counter()
        for _ in range(batches):
            self.loader.batch(self.step % len(self.loader))
            self.step += 1
        return time.perf_counter() - begin


def difference(cache: robocache.Cache, shape: Shape, facts: dict[str, Any]) -> float:
    """Of the mean of the first sample's pixels, from 0 to 255: LeRobot's and ours."""
    frame = facts["frame"]
    rows = [max(0, frame - FRAMES + 1 + i) for i in range(FRAMES)]
    worst = 0.0
    for name in shape.camera_names:
        stream = cache.episode(facts["episode"]).streams[name]
        assert stream.video is not None
        ours = stream.video.decoded(stream.spec, rows)
        worst = max(worst, abs(facts["sum"][name] / ours.size - float(ours.mean())))
    return worst


def measure(shape: Shape, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    root = folder / shape.name
    write_dataset(root, shape)
    video_bytes = sum(file.stat().st_size for file in root.rglob("*.mp4"))
    seconds_of: dict[str, float] = {}
    caches = {}
    for kind, images in (("packets", "keep"), ("jpeg", "jpeg")):
        begin = time.perf_counter()
        caches[kind] = robocache.ingest(root, folder / f"{shape.name}.{kind}", images=images)
        seconds_of[kind] = time.perf_counter() - begin
    cameras = shape.camera_names
    packets = sum(s.video.nbytes + len(s.video.index.to_bytes()) + 16 * len(s) for e in caches["packets"]
                  for n, s in e.streams.items() if n in cameras)  # fmt: skip
    calls: dict[str, Any] = {kind: Ours(cache, shape) for kind, cache in caches.items()}
    facts = None
    if args.lerobot_python:
        calls["LeRobot"] = Rival(args.lerobot_python, root, args.threads)
        facts = calls["LeRobot"].facts
        facts["mean_difference"] = difference(caches["packets"], shape, facts)
    for call in calls.values():
        call.round(1 if call is not calls.get("LeRobot") else args.threads)
    batches = {name: args.batches * (2 if name == "jpeg" else 1) for name in calls}
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.samples):
        for name, call in calls.items():
            rates[name].append(batches[name] * BATCH / call.round(batches[name]))
    if "LeRobot" in calls:
        calls["LeRobot"].end()
    medians = {name: harness.median(values) for name, values in rates.items()}
    ratios = {name: harness.median(a / b for a, b in zip(rates[name], rates["LeRobot"], strict=True))
              for name in LEAST if "LeRobot" in rates}  # fmt: skip
    frames_per_sample = FRAMES * shape.cameras
    return {
        "name": shape.name,
        "axes": dataclasses.asdict(shape) | {"batch": BATCH, "frames_per_sample": frames_per_sample},
        "samples_per_s": rates, "median_samples_per_s": medians, "ratios": ratios,
        "frames_per_s": {name: rate * frames_per_sample for name, rate in medians.items()},
        "video_bytes": video_bytes, "cache_of_video": packets / video_bytes,
        "jpeg_of_video": sum(s.pictures.nbytes for e in caches["jpeg"] for s in e.streams.values() if s.pictures) /
                         video_bytes,
        "ingest_s": seconds_of, "lerobot": facts,
        "targets": {name: target(ratio, at_least=LEAST[name]) for name, ratio in ratios.items()} |
                   {"cache of video": target(packets / video_bytes, at_most=1.05)},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=harness.available_cores())
    parser.add_argument("--samples", type=int, default=3, help="rounds")
    parser.add_argument("--batches", type=int, default=4, help="of a round, at least; a multiple of the threads")
    parser.add_argument("--quick", action="store_true", help="small datasets, two rounds of two batches")
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    parser.add_argument("--lerobot-python", default="", help="a Python with lerobot; else it is not measured")
    parser.add_argument("--folder", default=None, help="where datasets are made; removed afterwards")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_video.json"), help="JSON file to write")
    args = parser.parse_args()
    environment = harness.environment()
    harness.set_num_threads(args.threads)
    shapes = [shape for shape in SHAPES if args.only in shape.name]
    if args.quick:
        args.samples = args.batches = 2
        shapes = [dataclasses.replace(s, frames=40, episodes=max(2, s.episodes // 10)) for s in shapes]
    args.batches = -(-args.batches // args.threads) * args.threads
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    cases = []
    try:
        for shape in shapes:
            case = measure(shape, folder, args)
            cases.append(case)
            rates = ", ".join(f"{name} {rate:,.1f}" for name, rate in case["median_samples_per_s"].items())
            print(f"  {shape.name}: samples/s: {rates}; cache {case['cache_of_video']:.3f} x the videos", flush=True)
            for name, entry in case["targets"].items():
                print(f"    {name}: {entry['measured']:.3f} {verdict(entry)}", flush=True)
            for path in folder.iterdir():
                shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)
    record = {"benchmark": "video", "device": "cpu", "threads": args.threads, "quick": args.quick, **environment}
    harness.write_json(args.out, record | {"cases": cases})
    missed = sum(not entry["met"] for case in cases for entry in case["targets"].values())
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
