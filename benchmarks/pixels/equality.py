"""Compares every byte of 2,000 generated pictures with libjpeg-turbo, as Pillow, OpenCV and simplejpeg have it.

python benchmarks/bench_pixels.py equal --out benchmarks/results/pixels/pixels_equal_cpu.json
python benchmarks/bench_pixels.py equal --device cuda --out benchmarks/results/pixels/pixels_equal_cuda.json

1 x 1 to 4K, qualities 1 to 100, 4:4:4, 4:2:2, 4:2:0, gray (and 4:4:0, 4:1:1 where OpenCV writes them), restart
intervals, optimized tables, noise, and Motion JPEG without Huffman tables. Every picture also with a crop, which must
be the crop of the whole picture. A peer that is not installed is recorded as absent.
"""

from __future__ import annotations

import argparse
import collections
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import robocache
from measure import harness
from PIL import Image
from pixels.batches import photo

Pixels = np.ndarray[Any, Any]
LARGE = ((480, 640), (720, 1280), (1080, 1920), (2160, 3840))
SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "gray")
OPENCV_SAMPLINGS = {"4:4:0": 0x121111, "4:1:1": 0x411111}


def without_tables(data: bytes) -> bytes:
    """Without its Huffman tables, as a UVC camera sends it."""
    at, kept = 2, [data[:2]]
    while True:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != 0xC4:
            kept.append(data[at:end])
        if data[at + 1] == 0xDA:
            return b"".join(kept) + data[end:]
        at = end


def pixels_of(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Pixels:
    if kind == "noise":
        return rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    return photo(rng, *shape, float(rng.uniform(0, 20)))


def pictures(count: int, seed: int) -> Iterator[tuple[dict[str, Any], bytes, bytes]]:
    """What it is; the picture; and one with the same pixels that every peer reads."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        if i % 200 == 199:
            shape = LARGE[(i // 200) % len(LARGE)]
        elif i < 100:
            shape = (1 + i // 10, 1 + i % 10)
        else:
            shape = (int(rng.integers(1, 300)), int(rng.integers(1, 300)))
        quality = 1 + i % 100
        sampling = SAMPLINGS[int(rng.integers(len(SAMPLINGS)))]
        kind = "noise" if rng.random() < 0.2 else "photo"
        pixels = pixels_of(rng, shape, kind)
        options: dict[str, Any] = {"quality": quality, "optimize": bool(rng.random() < 0.3)}
        restart = int(rng.choice([0, 0, 1, 2, 7, 50]))
        if restart:
            options["restart_marker_blocks"] = restart
        if sampling != "gray":
            options["subsampling"] = sampling
        image = Image.fromarray(pixels[..., 0] if sampling == "gray" else pixels)
        file = io.BytesIO()
        try:
            image.save(file, "JPEG", **options)
        except OSError:  # some versions of Pillow have too small a buffer for optimized noise
            options["optimize"] = False
            file = io.BytesIO()
            image.save(file, "JPEG", **options)
        data = whole = file.getvalue()
        bare = not options["optimize"] and rng.random() < 0.2
        if bare:
            data = without_tables(whole)
        what = {"shape": shape, "sampling": sampling, "kind": kind, "no tables": bare, "restart": restart > 0}
        yield what | {"quality": quality, "optimized": options["optimize"]}, data, whole


def opencv_pictures(seed: int) -> Iterator[tuple[dict[str, Any], bytes, bytes]]:
    import cv2

    rng = np.random.default_rng(seed)
    for name, factors in OPENCV_SAMPLINGS.items():
        for quality in range(1, 101, 3):
            shape = (int(rng.integers(1, 200)), int(rng.integers(1, 200)))
            given = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors]
            _, made = cv2.imencode(".jpg", pixels_of(rng, shape, "photo"), given)
            what = {"shape": shape, "sampling": name, "kind": "photo", "no tables": False, "restart": False}
            yield what | {"quality": quality, "optimized": False}, made.tobytes(), made.tobytes()


def peers() -> tuple[dict[str, Callable[[bytes], Pixels]], dict[str, str]]:
    found: dict[str, Callable[[bytes], Pixels]] = {
        "Pillow": lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    }
    absent = {}
    try:
        import cv2

        found["OpenCV"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except ImportError as error:
        absent["OpenCV"] = str(error)
    try:
        import simplejpeg

        found["simplejpeg"] = lambda data: simplejpeg.decode_jpeg(data, colorspace="RGB")
    except ImportError as error:
        absent["simplejpeg"] = str(error)
    return found, absent


def on_host(pixels: Any) -> Pixels:
    return np.asarray(pixels.cpu() if hasattr(pixels, "cpu") else pixels)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "pixels_equal.json"), help="JSON file to write")
    args = parser.parse_args(arguments)
    device = None if args.device == "cpu" else "cuda"
    environment = harness.environment()
    found, absent = peers()
    counts: collections.Counter[str] = collections.Counter()
    different: list[dict[str, Any]] = []
    compared = dict.fromkeys(found, 0)
    crops = total = 0
    rng = np.random.default_rng(args.seed + 1)
    made = [pictures(args.count, args.seed)] + ([] if "OpenCV" in absent else [opencv_pictures(args.seed)])
    for what, data, whole in (item for part in made for item in part):
        total += 1
        counts.update([what["sampling"], what["kind"], *(k for k in ("no tables", "restart", "optimized") if what[k])])
        ours = on_host(robocache.decode_images([data], device=device))[0]
        for name, decode in found.items():
            theirs = decode(whole)
            compared[name] += 1
            if theirs.shape != ours.shape or not np.array_equal(theirs, ours):
                different.append(what | {"peer": name})
        height, width = what["shape"]
        x0, y0 = int(rng.integers(0, width)), int(rng.integers(0, height))
        x1, y1 = int(rng.integers(x0, width)) + 1, int(rng.integers(y0, height)) + 1
        index = robocache.index_pictures([data])
        part = on_host(robocache.decode_images([data], index=index, crop=(x0, y0, x1, y1), device=device))[0]
        crops += 1
        if not np.array_equal(part, ours[y0:y1, x0:x1]):
            different.append(what | {"peer": "crop", "box": [x0, y0, x1, y1]})
    print(f"  {total} pictures: {len(different)} differ; compared {compared}, absent {absent or 'none'}", flush=True)
    record = {"benchmark": "pixels_equal", "device": args.device, "pictures": total, "seed": args.seed, **environment}
    record |= {"compared": compared, "crops": crops, "absent": absent, "kinds": dict(counts), "different": different}
    harness.write_json(args.out, record)
    return 1 if different else 0
