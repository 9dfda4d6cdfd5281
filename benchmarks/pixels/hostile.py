"""Decodes pictures with flipped bits, wrong entry points and wrong bytes; records what became of each.

python benchmarks/bench_pixels.py hostile --out benchmarks/results/pixels/pixels_hostile_cpu.json

Each must be refused by name, or decoded; pixels that are decoded must be those of libjpeg-turbo (Pillow) where it reads
the same size. A crash or a hang ends the run without a result. `make fuzz` does the same under ASan and UBSan.
"""

from __future__ import annotations

import argparse
import collections
import io
import time
from typing import Any

import numpy as np
import robocache
from measure import harness
from PIL import Image
from pixels.batches import photo


def seeds() -> list[bytes]:
    rng, made = np.random.default_rng(0), []
    for sampling, restart in (("4:2:0", 0), ("4:2:2", 2), ("4:4:4", 0), ("gray", 3)):
        pixels = photo(rng, 40, 56, 6)
        options: dict[str, Any] = {"quality": 85} | ({"restart_marker_blocks": restart} if restart else {})
        if sampling != "gray":
            options["subsampling"] = sampling
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if sampling == "gray" else pixels).save(file, "JPEG", **options)
        made.append(file.getvalue())
    return made


def flipped(rng: np.random.Generator, data: bytes) -> bytes:
    made = bytearray(data)
    for at in rng.integers(2, len(data), rng.integers(1, 5)):
        made[at] ^= 1 << int(rng.integers(8))
    return bytes(made)


def by_pillow(data: bytes) -> np.ndarray[Any, Any] | None:
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def flip_bits(count: int, rng: np.random.Generator) -> tuple[dict[str, int], list[int]]:
    """What became of each, and the numbers of those that differ from libjpeg-turbo."""
    pictures, outcomes, different = seeds(), collections.Counter[str](), []
    for i in range(count):
        data = flipped(rng, pictures[i % len(pictures)])
        try:
            pixels = robocache.decode_images([data], max_pixels=1 << 22)
        except robocache.FormatError:
            outcomes["refused: FormatError"] += 1
            continue
        except NotImplementedError:
            outcomes["refused: of another kind"] += 1
            continue
        expected = by_pillow(data) if pixels.shape[1] * pixels.shape[2] <= 4096 else None
        if expected is None:
            outcomes["decoded, not compared"] += 1
        elif expected.shape == pixels.shape[1:] and np.array_equal(expected, pixels[0]):
            outcomes["decoded as libjpeg-turbo does"] += 1
        else:
            outcomes["decoded otherwise"] += 1
            different.append(i)
    return dict(outcomes), different


def mismatch(count: int, rng: np.random.Generator) -> dict[str, int]:
    """Pictures that were corrupted after their index was made, and indexes with wrong entry points."""
    pictures, outcomes = seeds(), collections.Counter[str]()
    good = robocache.index_pictures(pictures, every=2).to_bytes()
    for i in range(count):
        given, index = pictures, good
        if i % 2 == 0:
            given = [flipped(rng, data) for data in pictures]
        else:
            index = good.copy()
            index[rng.integers(len(index) // 2, len(index), 8)] = rng.integers(0, 256, 8)
        try:
            robocache.decode_images(given, index=robocache.PictureIndex.from_bytes(index), size=(24, 24))
            outcomes["decoded"] += 1
        except (robocache.FormatError, ValueError) as error:
            outcomes[f"refused: {type(error).__name__}"] += 1
    return dict(outcomes)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "pixels_hostile.json"), help="JSON file to write")
    args = parser.parse_args(arguments)
    environment = harness.environment()
    rng = np.random.default_rng(args.seed)
    begin = time.perf_counter()
    flips, different = flip_bits(args.count, rng)
    wrong = mismatch(args.count // 10, rng)
    seconds = time.perf_counter() - begin
    print(f"  {args.count} pictures with flipped bits: {flips}; wrong index or bytes: {wrong}; {seconds:.0f} s")
    record = {"benchmark": "pixels_hostile", "device": "cpu", "seed": args.seed, "count": args.count, **environment}
    harness.write_json(
        args.out, record | {"flips": flips, "different": different, "mismatch": wrong, "seconds": seconds}
    )
    return 1 if different else 0
