"""Features against the same bytes as plain windows, and statistics of features; for bench_loader on CPU and GPU.

The batch of a policy with two arms: their joints joined into one state, their poses as 6D actions relative to the
anchor, the task as text, and the index. Beside it: windows of one stream as wide as the state and one as wide as the
action, without text and index.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import robocache
import torch
from measure import harness
from measure.targets import target

RATE_HZ = 50
ARMS = ("left", "right")
PAST, ACTIONS = 2, 16  # moments
BATCHES = (256, 4096)
TARGET = 1.3  # of the same bytes as plain windows
STATISTICS_TARGET_S = 10.0
ROWS = 5000  # of an episode
HOURS = 100.0

SPECS = {
    **{f"{arm}/joints": robocache.StreamSpec(f"{arm}/joints", "float32", (7,), rate_hz=RATE_HZ) for arm in ARMS},
    **{f"{arm}/pose": robocache.StreamSpec(f"{arm}/pose", "float32", (7,), rate_hz=RATE_HZ,
                                           method=[(3, 7, "slerp_xyzw")]) for arm in ARMS},
    "state": robocache.StreamSpec("state", "float32", (14,), rate_hz=RATE_HZ),
    "action": robocache.StreamSpec("action", "float32", (18,), rate_hz=RATE_HZ),
}  # fmt: skip


def make_cache(path: Path, num_episodes: int, names: list[str]) -> robocache.Cache:
    """Episodes take their rows from one recording, at different places of it."""
    rng = np.random.default_rng(0)
    specs = {name: SPECS[name] for name in names}
    noise = {}
    for name, spec in specs.items():
        rows = rng.normal(size=(2 * ROWS, *spec.shape)).astype(np.float32)
        if name.endswith("pose"):
            rows[:, 3:] /= np.linalg.norm(rows[:, 3:], axis=1, keepdims=True)
        noise[name] = rows
    times = np.arange(ROWS, dtype=np.int64) * (10**9 // RATE_HZ)
    writer = robocache.CacheWriter(path, specs)
    for e in range(num_episodes):
        first = 7 * e % ROWS
        made = {n: robocache.EpisodeStream(specs[n], noise[n][first : first + ROWS], times) for n in names}
        writer.add(robocache.Episode(e, made, f"task {e % 8}"))
    return writer.commit()


def features(**options: Any) -> dict[str, robocache.Feature]:
    return {
        "state": robocache.Feature([f"{arm}/joints" for arm in ARMS], steps=range(1 - PAST, 1), rate_hz=RATE_HZ),
        "action": robocache.Feature(
            [f"{arm}/pose" for arm in ARMS], steps=range(ACTIONS), rate_hz=RATE_HZ, relative_to="anchor",
            rotation="6d", **options,
        ),
    }  # fmt: skip


def loaders(cache: robocache.Cache, batch: int, device: str) -> dict[str, robocache.Loader]:
    where = {"device": device, "tier": "gpu" if device == "cuda" else "memory", "seed": 1}
    windows = {
        "state": robocache.Window(past=(PAST - 1) / RATE_HZ, rate_hz=RATE_HZ),
        "action": robocache.Window(future=(ACTIONS - 1) / RATE_HZ, rate_hz=RATE_HZ),
    }
    text = {"task": robocache.Feature("task")}
    ids = {"task": robocache.Feature("task", tokenizer=lambda texts: [[len(x), 1] for x in texts])}
    return {
        "windows": robocache.Loader(cache, batch, windows, **where),
        "features": robocache.Loader(cache, batch, features=features(), **where),
        "features, text, index": robocache.Loader(
            cache, batch, features=features() | text, return_index=True, **where
        ),
        "features, ids, index": robocache.Loader(cache, batch, features=features() | ids, return_index=True, **where),
    }  # fmt: skip


def measure(batch: int, num_episodes: int, samples: int, device: str = "cpu") -> dict[str, Any]:
    """A batch of each, in turns; on a GPU what a Python loop waits for one."""
    with tempfile.TemporaryDirectory() as folder:
        cache = make_cache(Path(folder) / "arms.cache", num_episodes, list(SPECS))
        made = loaders(cache, batch, device)
        for name in ("state", "action"):
            shapes = {key: loader.batch(0)[name].shape for key, loader in made.items()}
            assert len(set(shapes.values())) == 1, shapes
        turns = {key: itertools.cycle(range(len(loader))) for key, loader in made.items()}

        def reading(key: str) -> Callable[[], Any]:
            return lambda: made[key].batch(next(turns[key]))

        calls = {key: reading(key) for key in made}
        if device == "cuda":
            timings = harness.Timings(on_gpu(calls, samples), 0.0)
        else:
            timings = harness.interleave(calls, samples)
    medians = {key: harness.median(seconds) for key, seconds in timings.seconds.items()}
    plain = timings.seconds["windows"]
    ratios = {
        key: harness.median(a / b for a, b in zip(seconds, plain, strict=True))
        for key, seconds in timings.seconds.items()
    }
    return {
        "name": "features", "axes": {"batch": batch}, "samples_s": timings.seconds, "median_batch_s": medians,
        "ratios": ratios, "others_cores": timings.others_cores,
        "targets": {"x windows": target(ratios["features, text, index"], at_most=TARGET)},
    }  # fmt: skip


def on_gpu(calls: dict[str, Callable[[], Any]], samples: int, repeats: int = 50) -> dict[str, list[float]]:
    """Seconds of a call in a loop that waits for the GPU at its end."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            for _ in range(5):
                call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - begin) / repeats)
    return seconds


def measure_statistics(hours: float, samples: int) -> dict[str, Any]:
    """Statistics of both features over all samples, as a new loader computes them."""
    names = [name for name in SPECS if "/" in name]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        num_episodes = max(1, round(hours * 3600 * RATE_HZ / ROWS))
        cache = make_cache(Path(folder) / "arms.cache", num_episodes, names)
        for i in range(samples):
            os.environ["ROBOCACHE_HOME"] = f"{folder}/home{i}"  # nothing is found there
            loader = robocache.Loader(cache, 256, features=features(), tier="mmap")
            begin = time.perf_counter()
            found = loader.stats
            seconds.append(time.perf_counter() - begin)
        os.environ.pop("ROBOCACHE_HOME")
        assert found["state"]["count"][0] > num_episodes * ROWS
    took = harness.median(seconds)
    return {
        "name": "statistics", "axes": {"batch": 0, "hours": hours, "rate_hz": RATE_HZ, "rows": num_episodes * ROWS},
        "samples_s": {"statistics": seconds}, "median_batch_s": {"statistics": took}, "ratios": {},
        "targets": {"s": target(took, at_most=STATISTICS_TARGET_S)} if hours == HOURS else {},
    }  # fmt: skip
