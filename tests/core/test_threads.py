"""Several Python threads at once: with the GIL, and in parallel where Python has none (3.13t and newer)."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import robocache

NUM_THREADS = 8
ms = 1_000_000


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """What work(0), work(1), ... return; all threads begin together."""
    start = threading.Barrier(NUM_THREADS)
    results: list[Any] = [None] * NUM_THREADS

    def run(i: int) -> None:
        start.wait()
        try:
            results[i] = work(i)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def in_new_process(code: str) -> str:
    """What a new Python prints; an error or 60 seconds without an end fail the test."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL")
def test_import_leaves_the_gil_off() -> None:
    assert in_new_process("import sys, robocache; print(sys._is_gil_enabled())") == "False"


FIRST_CALLS = r"""
import importlib.abc, sys, threading, time
import numpy as np
import robocache

class SlowImports(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        time.sleep(0.1)

sys.meta_path.insert(0, SlowImports())
stream = robocache.Stream(np.ones((5, 2), np.float32), np.arange(5) * 10)
start = threading.Barrier(4)

def first_call():
    start.wait()
    robocache.align({"arm": stream}, np.arange(3) * 10)
    sys.stdout.write("done\n")

threads = [threading.Thread(target=first_call) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_first_calls_of_several_threads_do_not_wait_for_each_other() -> None:
    """The first call imports modules, which lets the other threads run."""
    assert in_new_process(FIRST_CALLS).split() == ["done"] * 4


def test_aligning_in_threads_gives_the_results_of_one_thread() -> None:
    times = np.arange(500) * 2 * ms
    targets = np.arange(240) * 4 * ms
    values = np.sin(np.arange(3500, dtype=np.float64)).reshape(500, 7)
    # NumPy arrays have no exchange table: each subclass is looked up, and kept, as a type of its own.
    kinds = [type(f"Array{i}", (np.ndarray,), {}) for i in range(NUM_THREADS)]

    def work(i: int) -> list[np.ndarray]:
        made = []
        for repeat in range(50):
            dtype = (np.float32, np.float64, np.float16, np.int32)[(i + repeat) % 4]
            rows = (values * 100).astype(dtype).view(kinds[(i + repeat) % NUM_THREADS])
            stream = robocache.Stream(rows, times, method="previous")
            result, valid, _ = robocache.align({"arm": stream}, targets)
            assert valid["arm"].all()
            made.append(result["arm"])
        return made

    expected = [work(i) for i in range(NUM_THREADS)]
    for got, want in zip(at_once(work), expected, strict=True):
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)


def arm_cache(path: Path, num_episodes: int) -> robocache.Cache:
    arm = robocache.StreamSpec("arm", "float32", (3,))
    writer = robocache.CacheWriter(path, {"arm": arm})
    for i in range(num_episodes):
        rows = np.arange(600, dtype=np.float32).reshape(200, 3) + i
        writer.add(robocache.Episode(i, {"arm": robocache.EpisodeStream(arm, rows, np.arange(200) * 10 * ms)}))
    return writer.commit()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_threads_read_batches_of_one_loader(tmp_path: Path, framework: str) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    cache = arm_cache(tmp_path / "arm.cache", 5)
    windows = {"arm": robocache.Window(future=0.2, rate_hz=100)}
    loader = robocache.Loader(cache, 16, windows, framework=framework, return_index=True, verify="load", tier="mmap")
    last = len(loader) - 1  # shorter than the others

    def work(i: int) -> list[dict[str, Any]]:
        return [loader.batch(last if step % 3 == i % 3 else (i + step) % last, 0) for step in range(40)]

    expected = [work(i) for i in range(NUM_THREADS)]
    for got, want in zip(at_once(work), expected, strict=True):
        for one, other in zip(got, want, strict=True):
            assert one.keys() == other.keys()
            for key, value in one.items():
                np.testing.assert_array_equal(value, other[key])


def test_a_writer_takes_episodes_from_several_threads(tmp_path: Path) -> None:
    arm = robocache.StreamSpec("arm", "float32", (50,))
    writer = robocache.CacheWriter(tmp_path / "arm.cache", {"arm": arm}, shard_bytes=1 << 16)

    def work(i: int) -> None:
        for number in range(i * 20, i * 20 + 20):
            rows = np.full((100, 50), number, np.float32)
            stream = robocache.EpisodeStream(arm, rows, np.arange(100) * 10 * ms)
            writer.add(robocache.Episode(number, {"arm": stream}))

    at_once(work)
    cache = writer.commit()
    assert cache.verify() == []
    assert sorted(episode.index for episode in cache) == list(range(NUM_THREADS * 20))
    for episode in cache:
        assert (episode.streams["arm"].values == episode.index).all()
