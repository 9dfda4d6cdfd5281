"""Batches of every tier, align, voxelize and decode on one device, as digests that are equal on every device."""

import hashlib

import numpy as np
import robocache
import torch
from loader_cases import SPECS
from pictures import jpeg, photo
from robocache import Loader, Window
from robocache.loader.batches.store import TIERS

WINDOWS = {name: Window(past=0.05, rate_hz=100) for name in SPECS if SPECS[name].kind == "vector"}


def digest(tensors):
    found = hashlib.sha256()
    for x in tensors:
        found.update(torch.as_tensor(x).contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def loader_on(device, cache, tier=None, **options):
    return Loader(cache, 8, WINDOWS, device=device, tier=tier, **{"seed": 3, **options})


def work(device, cache):
    """``{name: digest}``. All tiers of the device have the same batches."""
    tiers = TIERS if device != "cpu" else ("memory", "mmap")
    batches = {tier: digest(x for batch in loader_on(device, cache, tier) for x in batch.values()) for tier in tiers}
    assert len(set(batches.values())) == 1, batches
    rng = np.random.default_rng(0)
    values, times = rng.normal(size=(64, 500, 9)).astype(np.float32), np.tile(np.arange(500) * 2_000_000, (64, 1))
    arrays = [torch.from_numpy(x).to(device) for x in (values, times, np.arange(99) * 10_000_000)]
    points = torch.from_numpy(rng.normal(size=(100_000, 3)).astype(np.float32)).to(device)
    grid = {"grid_min": (-3, -3, -3), "voxel_size": 0.1, "grid_size": (60, 60, 60)}
    return {
        "batches": batches["memory"],
        "align": digest([robocache.resample_trajectories(*arrays)]),
        "voxelize": digest([robocache.voxelize_pointcloud(points, mode="count", **grid)]),
        "decode": digest([robocache.decode_images([jpeg(photo(48, 64))] * 8, size=(24, 32), device=device)]),
    }
