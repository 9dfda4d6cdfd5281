"""Processes and threads: forked workers, forks of one's own, Python threads; all after the pool has been used."""

import os
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest
import robocache

SETUP = """
import os, sys, threading
import numpy as np
import robocache
rows = np.random.default_rng(0).normal(size=(64, 500, 32)).astype(np.float32)
times = np.tile(np.arange(500), (64, 1))
targets = np.tile(np.arange(0, 499 * 2) // 2, (64, 1))
def work(): return robocache.resample_trajectories(rows, times, targets)
robocache.set_num_threads(4)
expected = work().tobytes()  # the pool is running
"""


def run(code, timeout=120):
    """The code in a process of its own, so that a hang is a failure of one test."""
    done = subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_forked_dataloader_finishes(num_workers):
    pytest.importorskip("torch")
    code = f"""
import torch
torch.multiprocessing.set_start_method("fork")
class Windows(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, i):
        return robocache.resample_trajectories(*map(torch.from_numpy, (rows, times, targets)))[i], os.getpid()
reference = np.frombuffer(expected, np.float32).reshape(64, -1, 32)
pids = set()
for epoch in range(2):
    seen = 0
    for batch, pid in torch.utils.data.DataLoader(Windows(), batch_size=4, num_workers={num_workers}):
        assert np.array_equal(batch.numpy(), reference[seen:seen + 4])
        seen += 4
        pids |= set(pid.tolist())
    assert seen == 24
assert work().tobytes() == expected
print(len(pids), os.getpid() in pids)
"""
    assert run(code) == {0: "1 True\n", 2: "4 False\n"}[num_workers]


def test_a_fork_works_in_child_and_parent_and_the_child_has_one_thread():
    code = """
children = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        ok = robocache.num_threads() == 1 and work().tobytes() == expected
        robocache.set_num_threads(3)  # a child may have a pool of its own
        ok = ok and work().tobytes() == expected and len(os.listdir("/proc/self/task")) == 3
        os._exit(0 if ok else 1)
    children.append(pid)
    assert work().tobytes() == expected
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 5
assert robocache.num_threads() == 4
print("ok")
"""
    assert run(code) == "ok\n"


def test_a_fork_while_other_threads_are_working_does_not_hang():
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("a child of free-threaded Python waits for locks of dicts that threads of the parent held (3.13.5)")
    code = """
stop = threading.Event()
def busy():
    while not stop.is_set(): work()
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        robocache.set_num_threads(2)
        os._exit(0 if work().tobytes() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
stop.set()
for thread in threads: thread.join()
print("ok")
"""
    assert run(code) == "ok\n"


def test_the_pool_ends_with_the_process():
    assert run("print(threading.active_count())") == "1\n"  # and the process came to its end


@pytest.mark.parametrize(("value", "threads"), [("1", 1), ("3", 3)])
def test_the_environment_sets_the_number_of_threads(value, threads):
    code = "import robocache; print(robocache.num_threads())"
    environment = {**os.environ, "ROBOCACHE_NUM_THREADS": value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == f"{threads}\n", done.stderr


@pytest.mark.parametrize("value", ["0", "-2", "many"])
def test_a_bad_number_of_threads_in_the_environment_is_named(value):
    code = "import numpy as np, robocache; t = np.arange(1e6); robocache.resample_trajectories(t, t, t)"
    environment = {**os.environ, "ROBOCACHE_NUM_THREADS": value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert f"ValueError: ROBOCACHE_NUM_THREADS must be an integer from 1 to 4096, got '{value}'" in done.stderr


def test_an_empty_number_of_threads_in_the_environment_is_no_number():
    code = "import robocache; print(robocache.num_threads() >= 1)"
    environment = {**os.environ, "ROBOCACHE_NUM_THREADS": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == "True\n", done.stderr


def test_a_child_forked_right_after_import_has_one_thread():
    code = """
import os, robocache
child = os.fork()
if child == 0:
    os._exit(0 if robocache.num_threads() == 1 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr


def test_more_threads_than_the_system_gives_still_work():
    code = """
import resource, numpy as np, robocache
with open("/proc/self/statm") as f:
    used = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), -1))
robocache.set_num_threads(1000)
t = np.arange(1e5)
print(np.array_equal(robocache.resample_trajectories(t, t, t), t))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", (done.returncode, done.stderr)


def test_an_output_too_large_to_count_is_an_error_for_jax_too():
    pytest.importorskip("jax")
    code = """
import numpy as np, jax.numpy as jnp, robocache
stream = robocache.Stream(jnp.zeros((3, 4), jnp.float32), jnp.zeros(3, jnp.float32))
many = np.broadcast_to(np.float32(0), (2**32,))
try:
    robocache.align(stream, anchor=many, deltas=many, check=False)
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "no memory for values of (4294967296, 4294967296, 4)" in done.stdout, (done.returncode, done.stderr)


def test_threads_of_python_get_their_own_results(rng):
    problems = []
    for i in range(8):
        times = np.sort(rng.integers(0, 10**6, (20, 300)), axis=1)
        problems.append((rng.normal(size=(20, 300, 16)), times, rng.integers(0, 10**6, (20, 400)), i % 3))
    methods = ("linear", "nearest", "cubic")
    alone = [robocache.resample_trajectories(*p[:3], method=methods[p[3]]).tobytes() for p in problems]
    wrong, barrier = [], threading.Barrier(8)

    def work(which):
        barrier.wait()
        for _ in range(10):
            values, times, targets, method = problems[which]
            if (
                robocache.resample_trajectories(values, times, targets, method=methods[method]).tobytes()
                != alone[which]
            ):
                wrong.append(which)
        for bad in range(5):
            with pytest.raises(ValueError, match="source_times"):
                robocache.resample_trajectories(
                    problems[which][0], problems[which][1][:, : bad + 1], problems[which][2]
                )

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("count", [0, 4097, 2**31, 2**63, 1.5, "2", None], ids=repr)
def test_what_is_no_number_of_threads_is_refused_in_one_line(count):
    before = robocache.num_threads()
    with pytest.raises(ValueError, match=rf"^set_num_threads: count must be .*from 1 to 4096, got {count!r}$"):
        robocache.set_num_threads(count)
    assert robocache.num_threads() == before
