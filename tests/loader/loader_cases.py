"""Small caches for the tests of the loader: streams at several rates, episodes of several lengths, several shards."""

import loader_oracle as truth
import numpy as np
from robocache import CacheWriter, Episode, EpisodeStream, StreamSpec

SPECS = {
    "state": StreamSpec("state", "float32", (3,), rate_hz=100.0),
    "force": StreamSpec("force", "float64", (), rate_hz=250.0),
    "small": StreamSpec("small", "bfloat16", (2,)),
    "gripper": StreamSpec("gripper", "int64", (1,)),
    "camera": StreamSpec("camera", "uint8", (8, 10, 3), "image", rate_hz=30.0),
    "cloud": StreamSpec("cloud", "float32", (4,), "points"),
}
RATES = {"state": 100.0, "force": 250.0, "small": 100.0, "gripper": 50.0, "camera": 30.0, "cloud": 10.0}


def make_rows(spec, rng, seconds, begin_ns):
    rate = RATES.get(spec.name, 100.0)
    count = int(seconds * rate)
    times = begin_ns + np.round(np.arange(count) * 1e9 / rate).astype(np.int64)
    if spec.name == "force":
        times = np.sort(times + rng.integers(-(10**6), 10**6, count))  # a clock with jitter
    shape = (count, *spec.shape)
    if spec.dtype.startswith("float"):
        values = rng.normal(5, 2, shape).astype(spec.dtype)
    elif spec.dtype == "bfloat16":
        values = (rng.normal(-1, 3, shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        values = rng.integers(0, 2 if spec.dtype == "bool" else 200, shape).astype(spec.dtype)
    return EpisodeStream(spec, values, times, np.arange(count + 1) if spec.kind == "points" else None)


def make_cache(folder, episodes=5, seed=0, specs=SPECS, shard_bytes=4096, seconds=(0.1, 0.4), fingerprint="", first=0):
    """Episode 3 has no ``state``; ``shard_bytes`` of 4096 makes about one shard of each."""
    writer = CacheWriter(folder, specs, shard_bytes=shard_bytes, fingerprint=fingerprint or f"made {seed} {episodes}")
    for e in range(first, first + episodes):
        rng = np.random.default_rng([seed, e])
        length, begin = rng.uniform(*seconds), int(rng.integers(0, 10**15))
        streams = {name: make_rows(spec, rng, length, begin) for name, spec in specs.items()}
        if e == 3:
            del streams["state"]
        writer.add(Episode(e, streams, f"task {e % 2}"))
    return writer.commit()


def anchors_in(batch):
    """The anchors of a batch as the oracle writes them."""
    names = ("source_index", "episode_index", "anchor_ns")
    return [truth.Anchor(*row) for row in zip(*(batch[name].tolist() for name in names), strict=True)]
