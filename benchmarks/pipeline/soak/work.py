"""What the soak repeats: batches of every tier, fresh pictures, ingests of fresh logs. Each checks its own bits."""

from __future__ import annotations

import io
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np
import robocache
import torch
from PIL import Image
from pipeline.ingest.data import demo_arrays
from pipeline.loader import soak as loader_soak
from robocache import Feature

BATCH_SIZE = 16
BATCHES_PER_TURN = 25
TURNS_PER_LOADER = 8
PLACES = ((0, 0), (0, 7), (3, 5), (1000, 2))
"""(epoch, step) of the batches whose bits are compared."""
PICTURES_PER_TURN = 12
TIERS = {"cpu": ("memory", "mmap"), "cuda": ("gpu", "pinned", "memory", "mmap")}
Batch = dict[str, torch.Tensor]
Open = Callable[[str, str], robocache.Loader]


class WrongBits(AssertionError):
    """A result differs from its reference."""


class Work(Protocol):
    """One kind of work. ``turn`` does a share of it and returns how much that was, in ``unit``."""

    name: str
    unit: str

    def turn(self, number: int) -> int: ...


class Loading:
    """Batches of one kind on one tier; every few turns from a new loader."""

    unit = "batches"

    def __init__(self, name: str, open_loader: Open, tier: str, device: str, expected: list[Batch]) -> None:
        self.name = f"{name}, {tier}"
        self._open = lambda: open_loader(tier, device)
        self._expected = expected

    def turn(self, number: int) -> int:
        if number % TURNS_PER_LOADER == 0:
            self._loader = self._open()
            self._batches: Iterator[Batch] = itertools.chain.from_iterable(itertools.repeat(self._loader))
        for _ in range(BATCHES_PER_TURN):
            next(self._batches)
        epoch, step = PLACES[number % len(PLACES)]
        batch = self._loader.batch(step, epoch)
        for name, expected in self._expected[number % len(PLACES)].items():
            if not torch.equal(batch[name].cpu(), expected):
                raise WrongBits(f"{self.name}: {name} of batch {step} of epoch {epoch} in turn {number}")
        return BATCHES_PER_TURN + 1


class Decoding:
    """Pictures that were never decoded before, of random size, quality and sampling, compared with Pillow."""

    name, unit = "decode", "pictures"

    def __init__(self, device: str) -> None:
        self._device = device

    def turn(self, number: int) -> int:
        rng = np.random.default_rng(number)
        files = [self.picture(rng) for _ in range(PICTURES_PER_TURN)]
        decoded = robocache.decode_images(files, device=self._device)
        for file, pixels in zip(files, decoded, strict=True):
            expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
            if not np.array_equal(torch.as_tensor(pixels).cpu().numpy(), expected):
                raise WrongBits(f"decode: a picture of {expected.shape} in turn {number}")
        return PICTURES_PER_TURN

    def picture(self, rng: np.random.Generator) -> bytes:
        height, width = rng.integers(1, 160, 2)
        waves = np.add.outer(np.sin(np.arange(height) / 9), np.cos(np.arange(width) / 7))[..., None]
        pixels = 128 + 50 * waves + rng.normal(scale=rng.uniform(0, 30), size=(height, width, 3))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).convert(rng.choice(["RGB", "L"]))
        file = io.BytesIO()
        if rng.random() < 0.25:
            image.save(file, "PNG")
        else:
            image.save(file, "JPEG", quality=int(rng.integers(20, 98)), subsampling=int(rng.integers(0, 3)))
        return file.getvalue()


class Ingesting:
    """A robomimic file with new numbers, ingested, verified by its checksums, and compared row by row."""

    name, unit = "ingest", "logs"

    def __init__(self, folder: Path) -> None:
        self._log, self._cache = folder / "log.hdf5", folder / "log.cache"

    def turn(self, number: int) -> int:
        arrays = demo_arrays(100, np.random.default_rng(number))
        with h5py.File(self._log, "w") as file:
            demo = file.create_group("data").create_group("demo_0")
            file["data"].attrs["env_args"] = '{"env_kwargs": {"control_freq": 20}}'
            demo.attrs["num_samples"] = 100
            for name, array in arrays.items():
                demo[name] = array
        cache = robocache.ingest(self._log, self._cache)
        if cache.verify():
            raise WrongBits(f"ingest: the checksums of turn {number}: {cache.verify()}")
        streams = cache.episode(0).streams
        for name in ("actions", "obs/object"):
            if not np.array_equal(streams[name].values, arrays[name]):
                raise WrongBits(f"ingest: {name} of turn {number}")
        del cache, streams
        shutil.rmtree(self._cache)
        return 1


def open_features(cache: robocache.Cache, tier: str, device: str, batch_size: int) -> robocache.Loader:
    features = {
        "observation": Feature(["state"], past=0.1, rate_hz=loader_soak.RATE_HZ, normalize="mean_std"),
        "action": Feature("action", steps=range(16), rate_hz=loader_soak.RATE_HZ, relative_to="anchor"),
    }
    return robocache.Loader(cache, batch_size, features=features, tier=tier, device=device)


def everything(folder: Path, device: str) -> list[Work]:
    """All kinds of work; references come from the CPU, tier ``memory``."""
    (folder / "numbers").mkdir()
    (folder / "pictures").mkdir()
    numbers, pictures = loader_soak.make(folder / "numbers"), loader_soak.make_pictures(folder / "pictures")
    kinds: dict[str, Open] = {
        "windows": lambda tier, device: loader_soak.open_loader(numbers, tier, device, BATCH_SIZE),
        "features": lambda tier, device: open_features(numbers, tier, device, BATCH_SIZE),
        "pictures": lambda tier, device: loader_soak.open_picture_loader(pictures, tier, device, BATCH_SIZE),
    }
    works: list[Work] = [Decoding(device), Ingesting(folder)]
    for name, open_loader in kinds.items():
        reference = open_loader("memory", "cpu")
        expected = [reference.batch(step, epoch) for epoch, step in PLACES]
        works += [Loading(name, open_loader, tier, device, expected) for tier in TIERS[device]]
    return works
