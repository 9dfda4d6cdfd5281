"""Draws the picture of docs/pixels.md: a camera picture from the log to the batch, by calling RoboCache."""

from __future__ import annotations

import io
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import robocache
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

SIZE = (240, 320)
INK, BLUE, PALE = "#30343b", "#0b6bcb", "#eaf2fb"
BOXES = {
    "log": "CompressedImage\nJPEG, PNG, video\nas recorded",
    "ingest": "checks every scan,\nnotes entry points:\nthe picture index",
    "cache": "bytes | splits | index\nin checksummed\nshards",
    "batch": "which picture at which\nmoment: align;\nits bytes are gathered",
    "decode_images": "only MCUs under the crop:\nentropy code, DCT, color,\nresize, flip, jitter",
    "tensor": "(B, T, 3, 224, 224)\nbfloat16, normalized,\non the GPU",
}  # fmt: skip


def scene() -> np.ndarray:
    """(240, 320, 3) uint8: a table with a block and a gripper over it."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    shade = (0.75 + 0.25 * np.cos(x / 150) * np.sin(y / 130 + 0.6))[..., None]
    picture = np.where((y > 78)[..., None], [205, 190, 165], [225, 232, 240]) * shade
    grain = 6 * np.sin(y / 2.3 + 3 * np.sin(x / 47))
    picture = picture + np.where(y > 78, grain, 0)[..., None]

    def paint(inside: np.ndarray, color: tuple[int, int, int]) -> None:
        picture[inside] = np.array(color) * shade[inside]

    paint((abs(x - 196) < 26) & (abs(y - 168) < 24), (216, 104, 32))
    paint((abs(x - 196 - (168 - y) * 0.25) < 26) & (y <= 146) & (y > 132), (244, 150, 84))
    for side in (-40, 40):
        paint((abs(x - 196 - side) < 7) & (y > 60) & (y < 150), (70, 76, 86))
    paint((abs(x - 196) < 52) & (y > 30) & (y < 72), (120, 130, 145))
    paint((x - 70) ** 2 + (y - 170) ** 2 < 24**2, (46, 120, 190))
    return np.clip(picture + np.random.default_rng(0).normal(0, 3, picture.shape), 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def flow(ax: Any) -> None:
    """The stations, from left to right."""
    ax.set(xlim=(0, 6), ylim=(0, 1))
    ax.axis("off")
    for i, (title, text) in enumerate(BOXES.items()):
        ax.add_patch(FancyBboxPatch((i + 0.06, 0.12), 0.8, 0.76, "round,pad=0.02", fc=PALE, ec=BLUE, lw=1.2))
        ax.text(i + 0.46, 0.74, title, ha="center", va="center", color=BLUE, weight="bold", fontsize=8.5)
        ax.text(i + 0.46, 0.37, text, ha="center", va="center", color=INK, fontsize=7.3, linespacing=1.25)
        if i:
            ax.annotate("", (i + 0.03, 0.5), (i - 0.1, 0.5), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2})


def recorded(ax: Any, jpeg: bytes, box: tuple[int, int, int, int]) -> None:
    """The picture, and the crop of one sample."""
    pixels = robocache.decode_images([jpeg])[0]
    ax.imshow(pixels)
    x0, y0, x1, y1 = box
    ax.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, ec=BLUE, lw=2))
    ax.set_title(f"recorded: {len(jpeg) / 1e3:.0f} kB; pixels: {pixels.nbytes / 1e3:.0f} kB", fontsize=8.5)


def pipeline() -> Any:
    jpeg, rng = encoded(scene()), np.random.default_rng(3)
    figure = plt.figure(figsize=(10.5, 4.1))
    grid = figure.add_gridspec(2, 5, height_ratios=[1, 1.35], width_ratios=[1.42, 1, 1, 1, 1])
    flow(figure.add_subplot(grid[0, :]))
    side = round(0.9 * SIZE[0]), round(0.9 * SIZE[1])
    axes = [figure.add_subplot(grid[1, i]) for i in range(5)]
    for i, ax in enumerate(axes):
        top, left = (int(rng.integers(0, whole - part + 1)) for whole, part in zip(SIZE, side, strict=True))
        box = (left, top, left + side[1], top + side[0])
        if i == 0:
            recorded(ax, jpeg, box)
        else:
            color = rng.uniform(0.7, 1.3, 3).astype(np.float32)
            flip = bool(i % 2)
            ax.imshow(robocache.decode_images([jpeg], crop=box, size=(224, 224), flip=flip, color=color[None])[0])
            ax.set_title(f"epoch {i - 1} of a sample", fontsize=8.5)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    return figure
