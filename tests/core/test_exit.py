"""What a process prints when it ends: nothing, whatever is still alive. ``ROBOCACHE_LEAK_WARNINGS=1`` makes nanobind
list the objects that outlive Python, so that one that is ours to let go is found here."""

import importlib.util
import os
import subprocess
import sys
import sysconfig

import pytest
from loader_cases import SPECS, make_cache

SETUP = """
import gc, importlib.util, sys, threading, time, weakref
import numpy as np
import robocache

def make(framework="torch" if importlib.util.find_spec("torch") else "numpy", **options):
    windows = {"state": robocache.Window(future=0.05, rate_hz=100)}
    return robocache.Loader(robocache.Cache(sys.argv[1]), 4, windows, framework=framework, **options)
"""


@pytest.fixture
def run(tmp_path):
    """``(exit status, stdout, stderr)`` of code in a process of its own, which finds a cache in ``sys.argv[1]``."""
    make_cache(tmp_path / "cache", specs={"state": SPECS["state"]})

    def call(code, warnings=True):
        (tmp_path / "program.py").write_text(SETUP + code)  # a file: workers that are spawned import it
        environment = {**os.environ, "ROBOCACHE_LEAK_WARNINGS": "1" if warnings else ""}
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py", tmp_path / "cache"],
            capture_output=True, text=True, timeout=300, env=environment,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return call


def test_nothing_that_lives_to_the_end_is_listed(run):
    """Iterators half way, a reference cycle, a traceback that holds frames, a writer; then sys.exit in an iteration."""
    if importlib.util.find_spec("torch") is None:
        pytest.xfail("rows of a loader of NumPy arrays, in memory, are let go after nanobind has looked")
    code = """
mapped = make(tier="mmap")
live = iter(mapped)
batch = next(live)
episode = robocache.Cache(sys.argv[1]).episode(0)
writer = robocache.CacheWriter(sys.argv[1] + "2", {"arm": robocache.StreamSpec("arm", "float32", (1,))})
knot = make(tier="memory")
knot.me, knot.live = knot, iter(knot)
next(knot.live)
try:
    for batch in make():
        raise ValueError
except ValueError as error:
    kept = error
del knot
for batch in make():
    sys.exit(3)
"""
    assert run(code) == (3, "", "")


def test_a_cycle_through_a_bound_object_is_collected(run):
    pytest.importorskip("torch")  # whose arrays the parts are made with
    code = """
loader = make()
made = loader._reader
tables, rows = list(made.tables), []
for part in made.store.parts:
    from robocache.loader.batches.reader import native_stream, stream_of
    rows += [robocache._core.BatchRows(native_stream(stream_of(part, c))) for c in made.columns]
like = made.arrays.xp.empty(0)
padding = like.new_empty(0, dtype=made.arrays.xp.bool)
columns = [robocache._core.BatchColumn([0], "float32", False, like, padding)]
reader = robocache._core.BatchReader(tables, made.store.part, made.store.local, columns, rows)
assert len(reader.read(robocache._core.SampleOrder(0, 0, 4, False), 0, 2)) == 2
class Mark: pass
mark = Mark()
tables += [reader, mark]  # the reader keeps the list alive
gone = weakref.ref(mark)
del tables, reader, mark
gc.collect()
print(gone() is None)
"""
    assert run(code) == (0, "True\n", "")


def test_jax_may_drop_arrays_on_its_own_threads_while_python_shuts_down(run):
    """A deleter that takes the GIL is ended there by an unwinding of its stack, which std::terminate answers."""
    pytest.importorskip("jax")
    code = """
import jax
kept = [b for b in make(framework="jax")]
for size in (10, 1000, 10_000_000):
    kept += [jax.dlpack.from_dlpack(robocache._core.Exported(np.zeros(size, np.float32))) for _ in range(5)]
print(len(kept) > 15, float(kept[-1].sum()))
"""
    assert run(code, warnings=False) == (0, "True 0.0\n", "")


@pytest.mark.parametrize("warnings", [True, False], ids=["asked-for", "not"])
def test_what_python_leaves_itself_is_listed_where_that_is_asked_for(warnings, run):
    """The control of this file: frames of a daemon thread outlive Python. Users see nothing of it."""
    if warnings and sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("nanobind lists nothing in free-threaded Python, which never frees types and functions")
    code = """
there = threading.Event()
def read():
    live = iter(make())
    next(live)
    there.set()
    time.sleep(1000)
threading.Thread(target=read, daemon=True).start()
there.wait()
"""
    status, _, errors = run(code, warnings)
    assert status == 0
    assert ("nanobind: leaked" in errors) == warnings
    if not warnings:
        assert errors == ""


def test_a_daemon_thread_in_a_native_call_does_not_abort_the_process(run):
    """Up to Python 3.13 it is ended by an unwinding of its stack, which std::terminate answers. Without torch: that
    library aborts by itself."""
    code = """
rows = 1_000_000
stream = robocache.Stream(np.zeros((1, rows, 1), np.float32), np.arange(rows)[None], method="mean")
times, episode = np.tile([[0, rows]], (20, 1)), np.zeros(20, np.int64)
there = threading.Event()
def work():
    while True:
        robocache.align(stream, times, episode=episode)
        there.set()
threading.Thread(target=work, daemon=True).start()
there.wait()
time.sleep(0.05)
"""
    assert run(code, warnings=False) == (0, "", "")


def test_spawned_workers_print_nothing(run):
    """Stopped half way, with an iterator and a loader of their own alive."""
    pytest.importorskip("torch")
    code = """
import torch

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        make().as_dataset(), batch_size=None, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
    )
    live = iter(loader)
    next(live)
"""
    status, output, errors = run(code)
    assert (status, output) == (0, "")
    assert "nanobind" not in errors
