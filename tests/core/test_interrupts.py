"""Ctrl-C during a long native call, in processes of their own. Each call would take many times as long as it may."""

import signal
import subprocess
import sys
import time

import pytest
import robocache
from loader_cases import make_cache

SETUP = """
import os, signal, sys, threading, time
import numpy as np
import robocache

def align():  # every target is the mean of a million rows
    rows = 1_000_000
    stream = robocache.Stream(np.zeros((1, rows, 1), np.float32), np.arange(rows)[None], method="mean")
    times = np.tile([[0, rows]], (20_000, 1))
    return robocache.align(stream, times, episode=np.zeros(len(times), np.int64))

ones = np.ones((1, 1), np.float32)
points, features = (np.broadcast_to(ones, (30_000_000, width)) for width in (3, 4096))

def voxelize():  # 10^11 values, all of one cell
    return robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (2, 2, 2), "sum")

def voxelize_sparse():
    return robocache.voxelize_sparse(points, features, 1.0, max_voxels=8)

def ready():
    print("ready", flush=True)
"""
LONGEST_S = 8.0
"""Until a call has ended after the signal, on a busy machine. To its own end it takes more than 20 s on a free core."""


def interrupted(code):
    """``(exit status, stderr, seconds until the end)`` of the code, sent SIGINT half a second after it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", SETUP + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            begin = time.monotonic()
            _, errors = process.communicate(timeout=60)
            return process.returncode, errors, time.monotonic() - begin
        finally:
            process.kill()


def test_ctrl_c_ends_a_long_call():
    status, errors, seconds = interrupted("robocache.set_num_threads(2); ready(); align()")
    assert status == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert seconds < LONGEST_S


def test_whatever_a_handler_raises_ends_the_call():
    """RuntimeError too, which the direct way of voxelize takes for a failed allocation when an allocator raises it."""
    code = """
def stop(*_): raise RuntimeError("enough")
signal.signal(signal.SIGALRM, stop)
for num_threads in (1, 2):
    robocache.set_num_threads(num_threads)
    for call in (align, voxelize, voxelize_sparse):
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        begin = time.monotonic()
        try:
            call()
        except RuntimeError as error:
            print(error, int(time.monotonic() - begin), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [word for word, _ in lines] == ["enough"] * 6
    assert max(int(seconds) for _, seconds in lines) < LONGEST_S


def test_ctrl_c_ends_a_long_call_in_a_forked_child():
    code = """
robocache.set_num_threads(2)
robocache.resample_trajectories(np.zeros((64, 500, 32)), np.tile(np.arange(500.0), (64, 1)), np.arange(499.0))
child = os.fork()
if child == 0:
    ready()
    align()
    os._exit(0)
signal.signal(signal.SIGINT, lambda *_: os.kill(child, signal.SIGINT))
_, status = os.waitpid(child, 0)
print(status, file=sys.stderr)
"""
    status, errors, seconds = interrupted(code)
    assert status == 0
    assert "KeyboardInterrupt" in errors
    assert seconds < LONGEST_S


def test_a_handler_that_raises_nothing_runs_during_the_call_and_changes_nothing():
    code = """
rows = 1_000_000
stream = robocache.Stream(np.ones((1, rows, 1), np.float32), np.arange(rows)[None], method="mean")
times = np.tile([[0, rows]], (100, 1))
seen = []
def note(*_):
    seen.append(robocache.voxelize_pointcloud(np.zeros((100_000, 3), np.float32), mode="count").sum())
signal.signal(signal.SIGINT, note)
ready()
while not seen:
    values = robocache.align(stream, times, episode=np.zeros(len(times), np.int64)).values
    assert (values == 1).all()
assert seen == [100_000]
"""
    status, errors, _ = interrupted(code)
    assert (status, errors) == (0, "")


def test_a_call_of_another_thread_is_not_interrupted():
    code = """
rows = 1_000_000
stream = robocache.Stream(np.ones((1, rows, 1), np.float32), np.arange(rows)[None], method="mean")
times = np.tile([[0, rows]], (100, 1))
results = []
def call():
    results.append(robocache.align(stream, times, episode=np.zeros(len(times), np.int64)).values)
thread = threading.Thread(target=call)
thread.start()
ready()
try:
    while True:
        time.sleep(10)
except KeyboardInterrupt:
    thread.join()
    assert (results[0] == 1).all()
"""
    status, errors, _ = interrupted(code)
    assert (status, errors) == (0, "")


def test_ctrl_c_during_an_ingest_leaves_the_folder_free(tmp_path):
    """While the traceback is still there, as in a notebook: the lock is gone, and so is every temporary file."""
    source = make_cache(tmp_path / "source", episodes=6)

    def interrupt(done, total):
        if done == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        robocache.ingest(source, tmp_path / "out", shard_bytes=4096, progress=interrupt)
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".tmp"]
    assert not (tmp_path / "out" / "manifest.json").exists()
    cache = robocache.ingest(source, tmp_path / "out", shard_bytes=4096, resume=True)
    assert caught.tb is not None
    assert (len(cache), cache.verify()) == (6, [])
