"""Caches with cameras, for measurements of the loader: encoded pictures, a state, actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import robocache
from pixels.batches import encoded, photo
from robocache.cache.episode import EpisodeStream

RATE_HZ = 10.0
STATE, ACTION = 14, 7


def make_cache(
    path: Path, shape: tuple[int, int], cameras: list[str], episodes: int, frames: int, distinct: int = 32
) -> robocache.Cache:
    """Pictures of ``shape`` (height, width), quality 90. ``distinct`` of them are encoded and repeated as bytes of
    their own."""
    rng = np.random.default_rng(0)
    pictures = [encoded(photo(rng, *shape, 6), 90) for _ in range(distinct)]
    specs = {
        name: robocache.StreamSpec(name, "uint8", (*shape, 3), "image", codec="jpeg", rate_hz=RATE_HZ)
        for name in cameras
    }
    specs["state"] = robocache.StreamSpec("state", "float32", (STATE,), rate_hz=RATE_HZ)
    specs["action"] = robocache.StreamSpec("action", "float32", (ACTION,), rate_hz=RATE_HZ)
    times = np.arange(frames, dtype=np.int64) * round(1e9 / RATE_HZ)
    writer = robocache.CacheWriter(path, specs)
    for e in range(episodes):
        streams = {}
        for name, spec in specs.items():
            if name in cameras:
                values = [pictures[i] for i in rng.integers(0, distinct, frames)]
            else:
                values = rng.normal(size=(frames, *spec.shape)).astype(np.float32)
            streams[name] = EpisodeStream(spec, values, times)
        writer.add(robocache.Episode(e, streams))
    return writer.commit()
