"""Random irregular streams in every layout, and queries that hit rows, gaps, ties and both outsides.

All times are whole multiples of a step that every time dtype holds exactly, so that ties are ties in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import oracle
import robocache
from arrays import DEVICE, KIND, array_of

METHODS = (
    "linear", "previous", "next", "nearest", "cubic", "slerp_xyzw", "slerp_wxyz", "angle", "mean", "min", "max", "rms",
)  # fmt: skip
INTEGER_METHODS = ("previous", "next", "nearest", "min", "max")
EXTRAPOLATING = ("linear", "cubic", "slerp_xyzw", "slerp_wxyz", "angle")
WINDOW = ("mean", "min", "max", "rms")

START = {"int64": 1_700_000_000_000_000_000, "float64": 1.7e9, "float32": 0.0}  # Unix time, where the dtype can hold it
STEP = {"int64": 501_237, "float64": 2.0**-11, "float32": 2.0**-11}  # about half a millisecond

# A small call that is right, to make wrong ones of: resample_trajectories(VALUES, TIMES, TARGETS) has OUT_SHAPE.
VALUES, TIMES, TARGETS = (
    np.zeros((2, 5, 3), np.float32),
    np.tile(np.arange(5.0), (2, 1)),
    np.tile(np.arange(4.0), (2, 1)),
)
OUT_SHAPE = (2, 4, 3)


def times_of(steps, dtype):
    """Whole numbers of steps as times of the given dtype, exactly."""
    return (START[dtype.name] + np.asarray(steps) * STEP[dtype.name]).astype(dtype)


def span_of(steps, dtype):
    """Whole numbers of steps as a difference of times (latency, max_gap, deltas)."""
    return int(steps) * STEP[dtype.name]


def irregular(rng, num_rows, start=100):
    """Row times in steps: jitter, gaps, duplicates; even, so that odd steps are between rows or ties."""
    return start + 2 * np.cumsum(rng.choice([0, 1, 1, 2, 2, 3, 9], size=num_rows))


def wanted(rng, steps, num_targets):
    """Target times in steps around the given row times: exact ones, between ones, outside ones, repeated ones."""
    low, high = (steps[0], steps[-1]) if len(steps) else (100, 120)
    any_time = rng.integers(low - 9, high + 10, size=num_targets)
    some_row = rng.choice(steps, size=num_targets) if len(steps) else any_time
    return np.sort(np.where(rng.random(num_targets) < 0.3, some_row, any_time))


def values_of(rng, shape, dtype, method=None):
    """Random values that make sense for the method (unit quaternions, angles) and fill the range of integers."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, size=shape, dtype=dtype, endpoint=True)
    if method and method.startswith("slerp"):
        q = rng.normal(size=shape).reshape(-1, 4)
        return (q / np.linalg.norm(q, axis=1, keepdims=True)).reshape(shape).astype(dtype)
    if method == "angle":
        low, high = [(-3.0, 3.0), (0.2, 6.0), (-20.0, 20.0)][rng.integers(3)]
        return rng.uniform(low, high, size=shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


@dataclass
class Case:
    """A stream and a query, as NumPy. ``targets (B, T)`` are always there; ``anchor`` or ``shared`` say how to ask."""

    values: np.ndarray
    times: np.ndarray
    targets: np.ndarray
    offsets: np.ndarray | None = None
    episode: np.ndarray | None = None
    anchor: np.ndarray | None = None
    deltas: np.ndarray | None = None
    shared: bool = False

    def stream(self, backend="cpu", kind=None, **options):
        given = (self.values, self.times, self.offsets)
        return robocache.Stream(*(array_of(kind or KIND[backend], x, DEVICE[backend]) for x in given), **options)

    def query(self, backend="cpu", kind=None):
        asked = {"times": self.targets[0] if self.shared else self.targets}
        if self.anchor is not None:
            asked = {"anchor": self.anchor, "deltas": self.deltas}
        asked["episode"] = self.episode
        return {name: array_of(kind or KIND[backend], x, DEVICE[backend]) for name, x in asked.items()}

    def align(self, backend="cpu", kind=None, **options):
        stream, query = self.stream(backend, kind, **options), self.query(backend, kind)
        return robocache.align(stream, **query, return_index=True, check=True, backend=backend)

    def expected(self, **options):
        options.pop("dtype", None)
        return oracle.align(
            self.values, self.times, self.targets, offsets=self.offsets, episode=self.episode, **options
        )


def dense(rng, dtype, tdtype, channels, method=None, num_rows=9, num_targets=8, num_episodes=3):
    steps = [irregular(rng, num_rows) for _ in range(num_episodes)]
    targets = [wanted(rng, s, num_targets) for s in steps]
    values = values_of(rng, (num_episodes, num_rows, *channels), dtype, method)
    return Case(values, times_of(steps, tdtype).reshape(num_episodes, num_rows), times_of(targets, tdtype))


def ragged(rng, dtype, tdtype, channels, method=None, lengths=(4, 0, 1, 7, 2), num_targets=8):
    steps = [irregular(rng, n, start=100 * e) for e, n in enumerate(lengths)]
    targets = [wanted(rng, s, num_targets) for s in steps]
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    values = values_of(rng, (offsets[-1], *channels), dtype, method)
    return Case(values, times_of(np.concatenate(steps), tdtype), times_of(targets, tdtype), offsets)


def one_episode(rng, dtype, tdtype, channels, method=None, num_rows=11, num_targets=8):
    steps = irregular(rng, num_rows)
    targets = [wanted(rng, steps, num_targets) for _ in range(3)]
    return Case(
        values_of(rng, (num_rows, *channels), dtype, method), times_of(steps, tdtype), times_of(targets, tdtype)
    )


def transposed(rng, dtype, tdtype, channels, method=None):
    """Nothing contiguous: values in reversed axis order and every other row, times and targets in Fortran order."""
    case = dense(rng, dtype, tdtype, channels, method, num_rows=14)
    case.values = np.ascontiguousarray(case.values.T).T[:, ::2]
    case.times = np.asfortranarray(case.times)[:, ::2]
    case.targets = np.asfortranarray(case.targets)
    return case


def expanded(rng, dtype, tdtype, channels, method=None):
    """One row of times, and one of targets, seen by every episode through a stride of 0."""
    case = dense(rng, dtype, tdtype, channels, method)
    case.times = np.broadcast_to(case.times[0], case.times.shape)
    case.targets = np.broadcast_to(case.targets[0], case.targets.shape)
    return case


def anchored(rng, dtype, tdtype, channels, method=None):
    """Windows of a ragged stream: anchor + deltas of any episode, as a training batch asks."""
    case = ragged(rng, dtype, tdtype, channels, method)
    case.episode = np.array([3, 0, 3, 4, 1, 2, 0])
    steps = [irregular(rng, 3, start=100 * e)[-1] for e in case.episode]
    deltas = np.arange(-4, 5) * 3
    case.anchor = times_of(steps, tdtype)
    case.deltas = np.array([span_of(d, tdtype) for d in deltas], tdtype)
    case.targets = case.anchor[:, None] + case.deltas[None, :]
    return case


def picked(rng, dtype, tdtype, channels, method=None):
    """Dense episodes in any order, some twice, some never, all asked for the same times."""
    case = dense(rng, dtype, tdtype, channels, method, num_episodes=4)
    case.episode = np.array([2, 0, 2, 3, 2])
    case.targets = np.broadcast_to(case.targets[2], (5, case.targets.shape[1]))
    case.shared = True
    return case


LAYOUTS = {f.__name__: f for f in (dense, ragged, one_episode, transposed, expanded, anchored, picked)}
