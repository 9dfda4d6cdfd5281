"""What others do for the same batch: decode, crop, resize with antialias, normalize to CHW."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image
from pixels.batches import Batch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Call = Callable[[], Any]


def box_of(batch: Batch, i: int) -> tuple[int, ...] | None:
    return None if batch.crops is None else tuple(batch.crops[i].tolist())


def cpu_rivals(batch: Batch, size: tuple[int, int], num_threads: int) -> dict[str, Call]:
    """libjpeg-turbo through Pillow and OpenCV, one picture per thread; both release the GIL."""
    pool = ThreadPoolExecutor(num_threads)
    mean, std = np.float32(MEAN), np.float32(STD)
    out = np.empty((len(batch.pictures), 3, *size), np.float32)

    def finish(i: int, pixels: np.ndarray[Any, Any]) -> None:
        out[i] = ((pixels.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1)

    def pillow(i: int) -> None:
        image = Image.open(io.BytesIO(batch.pictures[i])).convert("RGB")
        finish(i, np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box_of(batch, i))))

    calls: dict[str, Call] = {"Pillow": lambda: list(pool.map(pillow, range(len(batch.pictures))))}
    try:
        import cv2
    except ImportError:
        return calls
    cv2.setNumThreads(1)

    def opencv(i: int) -> None:
        pixels = cv2.imdecode(np.frombuffer(batch.pictures[i], np.uint8), cv2.IMREAD_COLOR_RGB)
        if (box := box_of(batch, i)) is not None:
            pixels = pixels[box[1] : box[3], box[0] : box[2]]
        finish(i, cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA))

    return calls | {"OpenCV": lambda: list(pool.map(opencv, range(len(batch.pictures))))}


def cuda_rivals(batch: Batch, size: tuple[int, int], device: str) -> tuple[dict[str, Call], dict[str, str]]:
    """torchvision's decode_jpeg on CUDA (nvJPEG), then PyTorch; and notes on what cannot run here."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        return {}, {"torchvision": f"not installed: {error}"}
    host = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in batch.pictures]
    mean, std = (torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (MEAN, STD))

    def resize(pixels: Any) -> Any:
        return torch.nn.functional.interpolate(
            pixels.float() / 255, size=size, mode="bilinear", antialias=True, align_corners=False
        )

    def nvjpeg() -> Any:
        decoded = decode_jpeg(host, mode=ImageReadMode.RGB, device=device)
        if batch.crops is not None:
            boxes = batch.crops.tolist()
            decoded = [x[:, b[1] : b[3], b[0] : b[2]] for x, b in zip(decoded, boxes, strict=True)]
        if len({x.shape for x in decoded}) == 1:
            pixels = resize(torch.stack(decoded))
        else:
            pixels = torch.cat([resize(x[None]) for x in decoded])
        return ((pixels - mean) / std).bfloat16()

    return {"nvJPEG + torch": nvjpeg}, {}
