"""Memory and cores that a process may use: cgroups v1 and v2, nested ones, and the other ranks of the machine."""

import math
import os
import subprocess
import sys

import pytest
from loader_cases import make_cache
from robocache import Loader, Window, _core
from robocache.loader.batches import store

GB = 1 << 30
UNLIMITED = 9223372036854771712  # what v1 says where there is no limit


def tree(root, files):
    """A machine with 64 GB free and these files."""
    for name, text in {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {64 * GB // 1024} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return _core.process_limits(str(root))


def v2(path="/", mounted="/", at="/sys/fs/cgroup"):
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": f"31 23 0:28 {mounted} {at} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    }


def v1(path="/", mounted="/"):
    mount = "{} 23 0:28 {} /sys/fs/cgroup/{} rw,relatime - cgroup cgroup rw,{}\n"
    return {
        "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:{path}\n",
        "proc/self/mountinfo": mount.format(1, mounted, "memory", "memory")
        + mount.format(2, mounted, "cpu,cpuacct", "cpu,cpuacct"),
    }


def test_without_cgroups_the_machine_limits(tmp_path):
    limits = tree(tmp_path, {})
    assert limits["free_memory_bytes"] == 64 * GB
    assert limits["most_memory_bytes"] == 2**63 - 1
    assert limits["quota_cores"] == math.inf


def test_this_machine_has_memory_and_cores():
    limits = _core.process_limits()
    assert 0 < limits["free_memory_bytes"] <= limits["most_memory_bytes"]
    assert limits["affinity_cores"] == len(os.sched_getaffinity(0))


CASES = {
    "v2": (
        v2(),
        {
            "memory.max": f"{8 * GB}\n",
            "memory.current": f"{3 * GB}\n",
            "memory.stat": f"anon 5\nactive_file {GB // 2}\ninactive_file {GB // 2}\n",
            "cpu.max": "150000 100000\n",
        },
        6 * GB,
        1.5,
    ),
    "v2 without limits": (v2(), {"memory.max": "max\n", "memory.high": "max\n", "cpu.max": "max 100000\n"}, None, None),
    "v2 that throttles": (v2(), {"memory.max": "max\n", "memory.high": f"{GB}\n", "memory.current": "0"}, GB, None),
    "v2 that is full": (v2(), {"memory.max": f"{GB}\n", "memory.current": f"{2 * GB}\n"}, 0, None),
    "v2 nested, the parent is smaller": (
        v2("/job/step"),
        {
            "job/step/memory.max": f"{32 * GB}\n",
            "job/memory.max": f"{4 * GB}\n",
            "job/memory.current": f"{GB}\n",
            "job/step/cpu.max": "max 100000\n",
            "job/cpu.max": "400000 100000\n",
        },
        3 * GB,
        4.0,
    ),
    "v2 nested, the child is smaller": (
        v2("/job/step"),
        {"job/step/memory.max": f"{2 * GB}\n", "job/memory.max": f"{4 * GB}\n", "job/step/cpu.max": "50000 100000\n",
         "job/cpu.max": "400000 100000\n"},
        2 * GB,
        0.5,
    ),
    "v2 in a container that sees the path of the host": (
        v2("/docker/abc", "/docker/abc"), {"memory.max": f"{5 * GB}\n"}, 5 * GB, None
    ),
    "v2, a process outside of what is mounted": (v2("/../other", "/"), {"memory.max": f"{5 * GB}\n"}, 5 * GB, None),
    "v2, a folder whose name begins alike": (
        v2("/jobs/step", "/job"), {"memory.max": f"{5 * GB}\n", "s/step/memory.max": "1\n"}, 5 * GB, None
    ),
    "v1": (
        v1("/job"),
        {
            "memory/job/memory.limit_in_bytes": f"{8 * GB}\n",
            "memory/job/memory.usage_in_bytes": f"{3 * GB}\n",
            "memory/job/memory.stat": f"cache 5\ntotal_inactive_file {GB}\ntotal_active_file 0\n",
            "memory/memory.limit_in_bytes": f"{UNLIMITED}\n",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        6 * GB,
        2.5,
    ),
    "v1 without limits": (
        v1(), {"memory/memory.limit_in_bytes": f"{UNLIMITED}\n", "cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, None, None
    ),
    "v1 in a container": (
        v1("/docker/abc", "/docker/abc"), {"memory/memory.limit_in_bytes": f"{GB}\n"}, GB, None
    ),
    "v1, the parent is smaller": (
        v1("/a/b/c"),
        {"memory/a/b/c/memory.limit_in_bytes": f"{9 * GB}\n", "memory/a/memory.limit_in_bytes": f"{7 * GB}\n"},
        7 * GB,
        None,
    ),
    "files that are no numbers": (
        v2(), {"memory.max": "many\n", "memory.stat": "inactive_file\n", "cpu.max": "a b c\n"}, None, None
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_the_smallest_limit_of_all_cgroups_above_counts(tmp_path, what):
    proc, files, free, quota = CASES[what]
    limits = tree(tmp_path, {**proc, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}})
    assert limits["free_memory_bytes"] == (64 * GB if free is None else free)
    assert limits["quota_cores"] == (math.inf if quota is None else quota)


def test_a_mount_point_with_a_space_is_found(tmp_path):
    limits = tree(tmp_path, {**v2(at=r"/my\040groups"), "my groups/memory.max": f"{GB}\n"})
    assert limits["free_memory_bytes"] == GB
    assert limits["most_memory_bytes"] == GB


def test_a_process_that_may_not_run_on_all_cores_of_its_cgroup_is_bound(tmp_path):
    cores = len(os.sched_getaffinity(0))
    for name, listed in (("more", f"0-{cores - 1},{cores + 4}"), ("same", f"0-{cores - 1}")):
        root = tmp_path / name
        limits = tree(root, {**v2(), "sys/fs/cgroup/cpuset.cpus.effective": f"{listed}\n"})
        assert limits["is_bound"] == (name == "more")


RANKS = {
    "torchrun": ({"LOCAL_WORLD_SIZE": "4"}, 4),
    "Open MPI": ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
    "Intel MPI": ({"MPI_LOCALNRANKS": "2"}, 2),
    "srun": ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),8"}, 8),
    "a batch script, which is one process": ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_TASKS_PER_NODE": "8"}, 1),
    "no number": ({"LOCAL_WORLD_SIZE": "many"}, 1),
    "none": ({"LOCAL_WORLD_SIZE": "0"}, 1),
}


@pytest.mark.parametrize("what", RANKS)
def test_the_launcher_tells_how_many_ranks_share_the_machine(what):
    environment, ranks = RANKS[what]
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "MPI_", "LOCAL_", "ROBOCACHE_NUM"))
    }
    code = "from robocache import _core; print(_core.local_ranks(), _core.num_threads())"
    done = subprocess.run([sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True)
    found, threads = map(int, done.stdout.split())
    assert found == ranks, done.stderr
    limits = _core.process_limits()
    cores = limits["affinity_cores"] if limits["is_bound"] else limits["affinity_cores"] // ranks
    assert threads == max(1, min(cores, math.ceil(min(limits["quota_cores"] / ranks, 2**20))))


def test_the_tier_is_chosen_within_the_limit_and_the_share_of_the_rank(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    cache = make_cache(tmp_path / "cache")
    windows = {"state": Window()}
    needed = Loader(cache, 4, windows, tier="memory").size_bytes
    free = {"free_memory_bytes": 2 * needed}
    monkeypatch.setattr(store, "process_limits", lambda: free)
    assert Loader(cache, 4, windows).tier == "memory"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # 80 % of half of it
    assert Loader(cache, 4, windows).tier == "mmap"
    with pytest.raises(MemoryError, match=f"needs {needed} bytes, 80% of the free memory for each of 2 ranks leaves"):
        Loader(cache, 4, windows, tier="memory")
    assert Loader(cache, 4, windows, budget_bytes=needed).tier == "memory"
