"""Datasets for the tests of export and view: everything LeRobot can say, as a source that is in memory."""

from dataclasses import replace

import adapter_datasets as datasets
import numpy as np
from quality_cases import Listed
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DTYPES = ("bool", *INTEGERS, "float16", "float32", "float64")


def listed(*episodes):
    """A source of these episodes; the first has all streams."""
    return Listed(*episodes, specs={name: stream.spec for name, stream in episodes[0].streams.items()})


def times_at(rows, rate_hz):
    return datasets.times_of(range(rows), rate_hz)


def random_rows(spec, rng, rows):
    raw = rng.integers(0, 256, (rows, *spec.shape, np.dtype(spec.dtype).itemsize), np.uint8)
    if spec.dtype == "bool":
        return raw[..., 0] > 127
    values = raw.view(spec.dtype)[..., 0]
    if spec.dtype.startswith("float") and not spec.name.startswith(("x.", "one.")):  # those keep NaN and infinity
        return np.where(np.isfinite(values), values, 0).astype(spec.dtype)
    return values


def expressible(rng, fps=30):
    """Everything LeRobot can say: every dtype, shapes, names, pictures of each kind, tasks, lengths."""
    specs = [StreamSpec(f"x.{d}", d, (3,), rate_hz=fps, names=("a", "b", "ö")) for d in DTYPES]
    specs += [StreamSpec(f"one.{d}", d, (1,), rate_hz=fps) for d in DTYPES]
    specs += [StreamSpec("matrix", "float32", (2, 3), rate_hz=fps), StreamSpec("cube", "int16", (2, 3, 4), rate_hz=fps)]
    specs += [StreamSpec(f"rgb{c}", "uint8", (6, 9, c), "image", fps, meta={"stored": "image"}) for c in (1, 3, 4)]
    specs += [StreamSpec("depth", "uint16", (5, 4), "depth", fps, meta={"stored": "image"})]
    episodes = []
    for i, rows in enumerate((7, 1, 40)):
        streams = {s.name: EpisodeStream(s, random_rows(s, rng, rows), times_at(rows, fps)) for s in specs}
        episodes.append(Episode(i, streams, ("pour", "pick up the cup", "pour")[i]))
    return listed(*episodes)


def same(a, b):
    """The same streams: specs but for codecs, values bit for bit, times; and tasks and bounds of the episodes."""
    decoded = [{name: replace(spec, codec=None) for name, spec in x.specs.items()} for x in (a, b)]
    assert decoded[0] == decoded[1]
    assert [e.task for e in a] == [e.task for e in b]
    for x, y in zip(a, b, strict=True):
        assert x.streams.keys() == y.streams.keys()
        for name in x.streams:
            np.testing.assert_array_equal(x.streams[name].times, y.streams[name].times, name)
            assert x.streams[name].values.tobytes() == y.streams[name].values.tobytes(), name
