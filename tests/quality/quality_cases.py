"""Clean episodes in memory for the tests of check, and a source that holds them."""

import pathlib

import numpy as np
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

ROWS = {"arm": 200, "force": 400, "camera": 60, "lidar": 20, "depth": 60, "done": 200, "label": 200}
SPECS = {
    "arm": StreamSpec("arm", "float32", (3,), rate_hz=100.0, names=("a", "b", "c")),
    "force": StreamSpec("force", "float64", (), rate_hz=200.0),
    "camera": StreamSpec("camera", "uint8", (6, 8, 3), "image", rate_hz=30.0),
    "lidar": StreamSpec("lidar", "float32", (4,), "points"),
    "depth": StreamSpec("depth", "uint16", (3, 4), "depth", rate_hz=30.0),
    "done": StreamSpec("done", "bool", (1,), rate_hz=100.0),
    "label": StreamSpec("label", "int64", (2,), rate_hz=100.0),
}
START_NS = 1_700_000_000_000_000_000
POINTS = 5


def clean_stream(spec, rng, rows):
    """Two seconds, even times with a little jitter; values that vary and sit at no limit."""
    step = 2 * 10**9 // rows
    times = START_NS + np.arange(rows) * step + rng.integers(0, step // 20, rows)
    count = POINTS * rows if spec.kind == "points" else rows
    shape = (count, *spec.shape)
    if spec.dtype == "bool":
        values = np.zeros(shape, bool)  # a flag that is never set is no fault
    elif spec.dtype.startswith("float"):
        values = rng.normal(size=shape).astype(spec.dtype)
    else:
        values = rng.integers(0, 200, shape).astype(spec.dtype)
    offsets = np.arange(rows + 1) * POINTS if spec.kind == "points" else None
    return EpisodeStream(spec, values, times.astype(np.int64), offsets)


def clean_episode(seed=0, specs=SPECS):
    rng = np.random.default_rng(seed)
    return Episode(seed, {name: clean_stream(spec, rng, ROWS[name]) for name, spec in specs.items()}, "pour")


class Listed:
    """A source of given episodes; one that is an exception is raised."""

    format = "listed"
    path = pathlib.Path("listed")

    def __init__(self, *episodes, specs=SPECS):
        self.episodes, self.specs, self.metadata = episodes, specs, {}

    def __len__(self):
        return len(self.episodes)

    def __iter__(self):
        return (self.episode(i) for i in range(len(self)))

    def episode(self, index):
        found = self.episodes[index]
        if isinstance(found, Exception):
            raise found
        return found

    def fingerprint(self):
        return "listed"


def with_times(episode, name, times):
    """The same episode, with other times of one stream, and as many rows."""
    old = episode.streams[name]
    times = np.asarray(times, np.int64)
    rows = len(times)
    count = POINTS * rows if old.offsets is not None else rows
    values = np.resize(old.values, (count, *old.values.shape[1:]))
    offsets = None if old.offsets is None else np.arange(rows + 1) * POINTS
    new = EpisodeStream(old.spec, values, times, offsets)
    return Episode(episode.index, {**episode.streams, name: new}, episode.task, episode.meta)


def with_values(episode, name, change):
    """The same episode; ``change`` is called with a copy of the values of one stream."""
    old = episode.streams[name]
    values = old.values.copy()
    change(values)
    new = EpisodeStream(old.spec, values, old.times, old.offsets)
    return Episode(episode.index, {**episode.streams, name: new}, episode.task, episode.meta)


def set_values(rows, value, *columns):
    """A change for ``with_values``."""

    def change(values):
        values[(rows, *columns)] = value

    return change


def found(report):
    return [(f.kind, f.stream, f.row, f.count) for f in report.findings]
