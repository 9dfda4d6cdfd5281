"""Measures decode_images against libjpeg-turbo (Pillow, OpenCV) on the CPU and against nvJPEG (torchvision) on CUDA.

python benchmarks/bench_pixels.py --quick
python benchmarks/bench_pixels.py --threads 2 --out benchmarks/results/pixels/pixels_cpu.json
python benchmarks/bench_pixels.py --device cuda --out benchmarks/results/pixels/pixels_cuda.json
python benchmarks/bench_pixels.py loader        batches of the loader against DataLoader (pixels/loading.py)
python benchmarks/bench_pixels.py decoders      one core against simplejpeg, OpenCV, Pillow (pixels/decoders.py)
python benchmarks/bench_pixels.py equal         2,000 pictures against Pillow, OpenCV, simplejpeg (pixels/equality.py)
python benchmarks/bench_pixels.py hostile       100,000 pictures with flipped bits (pixels/hostile.py)

Encoded bytes in memory (CUDA: of the GPU, with their index) to 224 x 224, normalized, CHW; float32 on the CPU, bfloat16
on CUDA. The figure of a case is its slowest batch. CUDA: alone, and after a matmul as in a training step.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import robocache
import torch
from measure import harness
from measure.foreign import EagerReplay, Matmul
from measure.timing import gpu_facts
from pixels import decoders, equality, hostile, loading
from pixels.batches import CLEAN, Batch, make_batches
from pixels.rivals import cpu_rivals, cuda_rivals

SIZE = (224, 224)
TARGETS = {(640, 1024): 200_000, (224, 1024): 500_000, (640, 256): 100_000, (224, 256): 250_000}  # pictures/s, CUDA
LEAST_RATIO = 8.0  # of nvJPEG + torch, 1,024 pictures


def ours(batch: Batch, device: str) -> Any:
    """A call without arguments: bytes, offsets and index are where they stay during training."""
    data = np.frombuffer(b"".join(batch.pictures), np.uint8)
    offsets = np.cumsum([0, *map(len, batch.pictures)])
    index = robocache.index_pictures((data, offsets))
    pictures: Any = (data, offsets)
    dtype = "float32"
    if device == "cuda":
        pictures = tuple(torch.from_numpy(x.copy()).to(device) for x in pictures)
        dtype = "bfloat16"

    def call() -> Any:
        return robocache.decode_images(
            pictures, size=SIZE, crop=batch.crops, index=index, layout="CHW", dtype=dtype, normalize="imagenet"
        )

    return call, index.size_bytes / batch.num_bytes


def measure_cpu(batch: Batch, samples: int, threads: int) -> dict[str, Any]:
    call, share = ours(batch, "cpu")
    timed = harness.interleave({"ours": call, **cpu_rivals(batch, SIZE, threads)}, samples)
    return {"seconds": timed.seconds, "index_share": share, "others_cores": timed.others_cores, "notes": {}}


def measure_cuda(batch: Batch, samples: int) -> dict[str, Any]:
    call, share = ours(batch, "cuda")
    rivals, notes = cuda_rivals(batch, SIZE, "cuda")
    matmul = Matmul("cuda")
    repeats = {"ours": 10, **dict.fromkeys(rivals, 2)}
    alone = {n: EagerReplay(c, [()], repeats[n], "cuda", lambda: None) for n, c in {"ours": call, **rivals}.items()}
    after = EagerReplay(call, [()], 10, "cuda", matmul)
    only = EagerReplay(lambda: None, [()], 10, "cuda", matmul)
    for replay in (*alone.values(), after, only):
        replay()
    seconds: dict[str, list[float]] = {name: [] for name in (*alone, "ours after a matmul")}
    for _ in range(samples):
        for name, replay in alone.items():
            seconds[name].append(replay())
        seconds["ours after a matmul"].append(after() - only())
    return {"seconds": seconds, "index_share": share, "notes": notes}


def case_of(batch: Batch, width: int, result: dict[str, Any]) -> dict[str, Any]:
    medians = {name: harness.median(s) for name, s in result["seconds"].items()}
    count = len(batch.pictures)
    slowest = max(medians["ours"], medians.get("ours after a matmul", 0.0))
    beside = {name: s for name, s in medians.items() if not name.startswith("ours")}
    return {
        "name": f"{width} to {SIZE[1]}", "batch": count, "input": batch.name,
        "bytes_per_picture": batch.num_bytes / count, "pictures_per_s": count / slowest,
        "median_s": medians, "ratios": {name: s / medians["ours"] for name, s in beside.items()}, **result,
    }  # fmt: skip


def judge(cases: list[dict[str, Any]], width: int, count: int) -> dict[str, Any]:
    """The slowest input of a case, against the targets."""
    worst = min(cases, key=lambda case: float(case["pictures_per_s"]))
    clean = next(case for case in cases if case["input"] == CLEAN)
    judged = {
        "name": worst["name"], "batch": count, "worst_input": worst["input"],
        "worst_pictures_per_s": worst["pictures_per_s"], "clean_pictures_per_s": clean["pictures_per_s"], "targets": {},
    }  # fmt: skip
    target = TARGETS.get((width, count))
    if target is not None:
        measured = clean["pictures_per_s"]
        judged["targets"]["pictures per s"] = {"at_least": target, "measured": measured, "met": measured >= target}
    for name, ratio in clean["ratios"].items():
        if name.startswith("nvJPEG") and count == 1024:
            met = ratio >= LEAST_RATIO
            judged["targets"][name] = {"at_least": LEAST_RATIO, "measured": ratio, "met": met}
    return judged


OTHERS = {"loader": loading.main, "decoders": decoders.main, "equal": equality.main, "hostile": hostile.main}


def main() -> int:
    if (other := OTHERS.get(sys.argv[1] if len(sys.argv) > 1 else "")) is not None:
        return other(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=harness.available_cores(), help="on the CPU")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="fewer samples, smaller batches")
    parser.add_argument("--only", default="", help="run the inputs whose name contains this")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed (CUDA)")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_pixels.json"), help="JSON file to write")
    args = parser.parse_args()
    environment = harness.environment()
    harness.set_num_threads(args.threads)
    on_cpu = args.device == "cpu"
    samples = 3 if args.quick else args.samples
    counts = ([32] if args.quick else [256]) if on_cpu else ([256] if args.quick else [256, 1024])
    cases, worst = [], []
    for height, width in ((480, 640), (224, 224)):
        for count in counts:
            found = []
            for batch in make_batches(height, width, count, 8 if args.quick else 64):
                if args.only not in batch.name:
                    continue
                result = measure_cpu(batch, samples, args.threads) if on_cpu else measure_cuda(batch, samples)
                found.append(case_of(batch, width, result))
                shown = ", ".join(f"{n} x {r:.2f}" for n, r in found[-1]["ratios"].items())
                rate, share = found[-1]["pictures_per_s"], 100 * found[-1]["index_share"]
                print(f"  {width} to {SIZE[1]}, batch {count}, {batch.name}: {rate:,.0f} pictures/s,", end=" ")
                print(f"index {share:.1f} %, {shown or 'no rival'}", flush=True)
            cases += found
            if any(case["input"] == CLEAN for case in found):
                worst.append(judge(found, width, count))
    for judged in worst:
        print(f"worst: {judged['name']}, batch {judged['batch']}: {judged['worst_pictures_per_s']:,.0f} pictures/s "
              f"({judged['worst_input']}) {judged['targets'] or ''}")  # fmt: skip
    record = {"benchmark": "pixels", "device": args.device, "threads": args.threads, "quick": args.quick, **environment}
    record |= {} if on_cpu else {"gpu": gpu_facts("cuda")}
    harness.write_json(args.out, record | {"cases": cases, "worst": worst})
    missed = sum(not entry["met"] for judged in worst for entry in judged["targets"].values())
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
