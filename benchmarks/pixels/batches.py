"""Batches of encoded pictures: smooth ones like photographs, noisy ones, mixed qualities and sizes, random crops."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

DISTINCT = 64  # pictures that are encoded; a batch repeats them as bytes of its own
CLEAN = "photos"


@dataclass
class Batch:
    """`pictures` encoded, and the boxes that are cut out of them (None: whole pictures)."""

    name: str
    pictures: list[bytes]
    crops: np.ndarray[Any, Any] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.pictures))


def photo(rng: np.random.Generator, height: int, width: int, grain: float) -> np.ndarray[Any, Any]:
    """Waves at several scales, edges of rectangles, and grain."""
    y, x = np.mgrid[0:height, 0:width] / 640
    pixels = np.full((height, width, 3), 110.0)
    for scale in (3, 11, 37):
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        wave = np.sin(2 * np.pi * scale * (np.cos(angle) * x + np.sin(angle) * y) + phase)
        pixels += wave[..., None] * rng.uniform(-40, 40, 3) / scale**0.3
    for _ in range(12):
        top, left = rng.integers(0, height), rng.integers(0, width)
        pixels[top : top + height // 5, left : left + width // 5] += rng.uniform(-50, 50, 3)
    return np.clip(pixels + rng.normal(0, grain, pixels.shape), 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray[Any, Any], quality: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def make_batches(height: int, width: int, count: int, distinct: int = DISTINCT) -> list[Batch]:
    rng = np.random.default_rng(0)
    shapes = [(height, width)] * distinct
    photos = [encoded(photo(rng, *shape, 6), 90) for shape in shapes]
    noisy = [encoded(photo(rng, *shape, 25), 90) for shape in shapes[: max(1, distinct // 4)]]
    qualities = [encoded(photo(rng, *shape, 6), int(rng.integers(60, 98))) for shape in shapes]
    sizes = [encoded(photo(rng, int(height * s), int(width * s), 6), 90) for s in rng.uniform(0.7, 1.2, distinct)]
    crops = np.zeros((count, 4), np.int32)
    crops[:, 0], crops[:, 1] = rng.integers(0, width // 8 + 1, count), rng.integers(0, height // 8 + 1, count)
    crops[:, 2], crops[:, 3] = crops[:, 0] + width * 7 // 8, crops[:, 1] + height * 7 // 8

    def repeated(pictures: list[bytes]) -> list[bytes]:
        return [pictures[i % len(pictures)] for i in range(count)]

    return [
        Batch(CLEAN, repeated(photos)),
        Batch("noisy", repeated(noisy)),
        Batch("mixed qualities", repeated(qualities)),
        Batch("mixed sizes", repeated(sizes)),
        Batch("random crops", repeated(photos), crops),
    ]
