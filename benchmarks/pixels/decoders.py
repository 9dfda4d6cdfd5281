"""Measures our JPEG decoder against libjpeg-turbo on one core: simplejpeg, OpenCV and Pillow.

python benchmarks/bench_pixels.py decoders --out benchmarks/results/pixels/pixels_decoders_cpu.json

Encoded bytes in memory to uint8 RGB pixels of full size, one thread each. OpenCV and simplejpeg are called picture by
picture, as they are used; ours once per batch, with the index that a cache has, and without one. The pixels of all are
the same bytes, which is checked. A rival that is not installed is recorded as absent.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import robocache
from measure import harness
from PIL import Image
from pixels.batches import Batch, make_batches

OURS, WITHOUT = "ours", "ours without an index"
INPUTS = ("photos", "noisy", "mixed qualities")
Decode = Callable[[bytes], np.ndarray[Any, Any]]


def rivals() -> tuple[dict[str, Decode], dict[str, str]]:
    """Functions of one picture, and the versions of their libraries."""
    import PIL.features

    def pillow(data: bytes) -> np.ndarray[Any, Any]:
        return np.asarray(Image.open(io.BytesIO(data)))

    found: dict[str, Decode] = {"Pillow": pillow}
    versions = {"Pillow": f"{PIL.__version__}, libjpeg-turbo {PIL.features.version_feature('libjpeg_turbo')}"}
    try:
        import cv2

        cv2.setNumThreads(1)
        found["OpenCV"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        versions["OpenCV"] = cv2.__version__
    except ImportError:
        versions["OpenCV"] = "absent"
    try:
        import simplejpeg

        found["simplejpeg"] = simplejpeg.decode_jpeg  # fancy upsampling and the accurate IDCT are its defaults
        versions["simplejpeg"] = simplejpeg.__version__
    except ImportError:
        versions["simplejpeg"] = "absent"
    return found, versions


def measure(batch: Batch, samples: int) -> dict[str, Any]:
    data = np.frombuffer(b"".join(batch.pictures), np.uint8)
    offsets = np.cumsum([0, *map(len, batch.pictures)])
    index = robocache.index_pictures((data, offsets))
    decoders, _ = rivals()
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: robocache.decode_images((data, offsets), index=index),
        WITHOUT: lambda: robocache.decode_images((data, offsets)),
    }
    pixels = calls[OURS]()
    assert np.array_equal(pixels, calls[WITHOUT]())
    for name, decode in decoders.items():
        assert all(np.array_equal(decode(x), y) for x, y in zip(batch.pictures, pixels, strict=True)), name
        calls[name] = lambda decode=decode: [decode(picture) for picture in batch.pictures]
    timed = harness.interleave(calls, samples)
    medians = {name: harness.median(s) for name, s in timed.seconds.items()}
    return {
        "seconds": timed.seconds, "others_cores": timed.others_cores,
        "pictures_per_s": {name: len(batch.pictures) / s for name, s in medians.items()},
        "ratios": {name: harness.median(b / a for a, b in zip(timed.seconds[OURS], s, strict=True))
                   for name, s in timed.seconds.items() if name != OURS},
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_pixels_decoders.json"))
    args = parser.parse_args(arguments)
    environment = harness.environment()
    environment["versions"] |= rivals()[1]
    harness.set_num_threads(1)
    cases = []
    for height, width in ((480, 640), (224, 224)):
        for batch in make_batches(height, width, 8 if args.quick else 32, 8 if args.quick else 32):
            if batch.name not in INPUTS:
                continue
            result = measure(batch, 2 if args.quick else args.samples)
            axes = {"batch": len(batch.pictures), "bytes_per_picture": batch.num_bytes / len(batch.pictures)}
            cases.append({"name": f"{width} x {height}", "input": batch.name, **axes, **result})
            rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in result["pictures_per_s"].items())
            ratios = ", ".join(f"{ratio:.2f} x {name}" for name, ratio in result["ratios"].items())
            print(f"  {width} x {height}, {batch.name}: pictures/s: {rates}; {ratios}", flush=True)
    record = {"benchmark": "pixels_decoders", "device": "cpu", "threads": 1, "quick": args.quick, **environment}
    harness.write_json(args.out, record | {"cases": cases})
    return 0
