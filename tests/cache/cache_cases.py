"""Small datasets for the tests of the cache: a source that needs no files, and what a cache holds as plain bytes."""

import hashlib
from pathlib import Path

import numpy as np
from robocache.cache.episode import DTYPES, Episode, EpisodeStream, StreamSpec


def make_stream(spec, rng, messages):
    times = np.sort(rng.integers(0, 10**12, messages)).astype(np.int64)
    counts = rng.integers(0, 5, messages) if spec.kind == "points" else np.ones(messages, np.int64)
    shape = (int(counts.sum()), *spec.shape)
    if spec.dtype == "bool":
        values = rng.integers(0, 2, shape).astype(bool)
    elif spec.dtype in ("float32", "float64", "float16"):
        values = rng.normal(size=shape).astype(spec.dtype)
    else:
        values = rng.integers(0, 256, (*shape, spec.numpy_dtype.itemsize), np.uint8).view(spec.numpy_dtype)[..., 0]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) if spec.kind == "points" else None
    return EpisodeStream(spec, values, times, offsets)


SPECS = {
    "arm": StreamSpec(
        "arm", "float32", (7,), rate_hz=500.0, unit="rad", names=tuple("abcdefg"), meta={"frame": "base"}
    ),
    "force": StreamSpec("force", "float64", ()),
    "camera/wrist": StreamSpec("camera/wrist", "uint8", (6, 8, 3), "image", rate_hz=30.0),
    "/lidar": StreamSpec("/lidar", "float32", (4,), "points"),
    "depth": StreamSpec("depth", "uint16", (3, 4), "depth"),
}
ALL = {f"{d}": StreamSpec(f"{d}", d, (3,)) for d in DTYPES} | {
    f"points {d}": StreamSpec(f"points {d}", d, (2,), "points") for d in DTYPES
}


class MadeSource:
    """Episodes from a seed; the same whenever they are asked for."""

    format = "made"
    path = Path("made")

    def __init__(self, specs=SPECS, episodes=5, seed=0, messages=30):
        self.specs, self.count, self.seed, self.messages = specs, episodes, seed, messages
        self.metadata = {"seed": seed, "robot": "ärm"}
        self.asked = []

    def __len__(self):
        return self.count

    def __iter__(self):
        return (self.episode(i) for i in range(self.count))

    def episode(self, index):
        self.asked.append(index)
        rng = np.random.default_rng([self.seed, index])
        streams = {n: make_stream(s, rng, int(rng.integers(0, self.messages))) for n, s in self.specs.items()}
        if index % 3 == 2:
            del streams[next(iter(streams))]  # a stream that an episode does not have
        return Episode(index, streams, f"task {index % 2}", {"operator": "ö", "speed": index / 4})

    def fingerprint(self):
        return f"{self.seed} {self.count} {self.messages}"


def digest(source, names=None):
    """A hash of everything in a source: streams without rows count as absent ones."""
    h = hashlib.sha256()
    for episode in source:
        h.update(f"{episode.index} {episode.task} {sorted(episode.meta.items())}".encode())
        for name in names or source.specs:
            stream = episode.streams.get(name)
            if stream is None or len(stream.times) == 0:
                continue
            h.update(f"{name} {stream.values.dtype} {stream.values.shape}".encode())
            for array in (stream.values, stream.times, stream.offsets):
                h.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return h.hexdigest()
