"""What every benchmark shares: facts about the machine, threads, interleaved timing, the copy floor, the JSON file."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import robocache
import torch

ROOT = Path(__file__).resolve().parents[2]
ISA_FLAGS = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16",
             "asimd", "sve", "sve2", "bf16")  # fmt: skip
WARM_S = 0.03  # by then the rival's OpenMP threads sleep, and ours are spread over the cores
IDLE_S = 0.02
QUIET_CORES, ATTEMPTS, PATIENCE_S = 0.15, 3, 120.0
_waited_s = 0.0
TOLERANCE = {  # absolute + relative; values are of order 1, whole numbers are equal
    "float32": 2e-5, "bfloat16": 2**-7, "float16": 2**-10, **dict.fromkeys(("uint8", "int32", "int64", "bool"), 1e-6)
}  # fmt: skip
COPY_BYTES = 512 << 20  # one copy buffer: far larger than any cache, so that the figure is one of memory


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory_bytes() -> int:
    return int(_proc("/proc/meminfo").get("MemAvailable", "0 kB").split()[0]) * 1024


def set_num_threads(num_threads: int) -> None:
    """The same number of threads for RoboCache and for PyTorch. NumPy has one."""
    torch.set_num_threads(num_threads)
    robocache.set_num_threads(num_threads)


def command(argv: list[str]) -> str:
    """The command line without paths of this machine: others have the repository, and a folder of their own.

    >>> command(["benchmarks/bench_loader.py", "--folder", "/fast", "--out", "/elsewhere/loader_cpu.json"])
    'python benchmarks/bench_loader.py --folder FOLDER --out loader_cpu.json'
    """
    shown = [argv[0]]
    for before, word in itertools.pairwise(argv):
        shown.append("FOLDER" if before == "--folder" else Path(word).name if Path(word).is_absolute() else word)
    return shlex.join(["python", *shown])


def environment() -> dict[str, Any]:
    """Everything that a reader needs to run the same thing again."""
    cpu = _proc("/proc/cpuinfo")
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    installed = robocache.check_installation()
    installed["native_module"] = Path(installed["native_module"]).name  # no paths of this machine
    return {
        "command": shlex.join(["python", *(_without_folder(arg) for arg in sys.argv)]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **revision(),
        "hardware": {
            "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
            "cpu_family_model_stepping": [cpu.get(k) for k in ("cpu family", "model", "stepping")],
            "cores": available_cores(),
            "isa": [f for f in ISA_FLAGS if f in flags],
            "caches": _caches(),
            "memory_bytes": int(_proc("/proc/meminfo").get("MemTotal", "0 kB").split()[0]) * 1024,
            "load_average": list(os.getloadavg()),
        },
        "versions": {
            "python": platform.python_version(),
            "os": platform.platform(),
            **{name: importlib.metadata.version(name) for name in ("numpy", "torch")},
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "robocache": robocache.__version__,
        },
        "robocache": json.loads(json.dumps(installed, default=str)),
    }


def revision() -> dict[str, Any]:
    """The commit, and whether files differ from it. ROBOCACHE_COMMIT names it where the tree came without its history,
    as on a lent GPU machine; `git describe --always --abbrev=40 --dirty --exclude '*'` writes such a name."""
    given = os.environ.get("ROBOCACHE_COMMIT")
    if given:
        return {"commit": given.removesuffix("-dirty"), "modified": given.endswith("-dirty")}
    modified = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return {"commit": _git("rev-parse", "HEAD") or "unknown", "modified": modified}


@dataclass
class Timings:
    seconds: dict[str, list[float]]  # per call, by name
    others_cores: float  # cores that other programs used meanwhile, on average


def interleave(calls: dict[str, Callable[[], Any]], samples: int, min_sample_s: float = 4e-3) -> Timings:
    """`samples` timings of each call. Rounds go over all calls in turn, so that a noisy moment hits every rival.

    A call shorter than `min_sample_s` is repeated inside a sample; the order rotates from round to round. A sample
    begins with untimed calls for WARM_S: it is what a loop of such calls costs. If other programs took a noticeable
    share of the machine, waits and measures again, and keeps the quietest of the attempts.
    """
    first = {}
    for name, call in calls.items():
        call()
        first[name] = max(_seconds(call, 1), 1e-7)
    names = list(calls)
    best: Timings | None = None
    for _ in range(ATTEMPTS):
        patient = wait_until_quiet()
        begin = _others_core_seconds(), time.perf_counter()
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for i in range(samples):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                if first[name] < 5 * WARM_S:  # longer calls are their own warm-up
                    _warm(calls[name])
                seconds[name].append(_seconds(calls[name], max(1, math.ceil(min_sample_s / first[name]))))
        took_s = time.perf_counter() - begin[1]
        others = (_others_core_seconds() - begin[0]) / took_s
        if best is None or others < best.others_cores:
            best = Timings(seconds, others)
        if others < QUIET_CORES or not patient or took_s > 20:
            break
    assert best is not None
    return best


def after_idle(calls: dict[str, Callable[[], Any]], samples: int) -> dict[str, list[float]]:
    """Seconds of one call after a pause, as in a training step: sleeping threads and cold caches included."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            time.sleep(IDLE_S)
            seconds[name].append(_seconds(call, 1))
    return seconds


def wait_until_quiet() -> bool:
    """Waits until other programs are quiet for a moment; false once this run has waited PATIENCE_S in all.

    Two threads that wait for each other at every step, as PyTorch's do, take many times longer when one of them does
    not get its core: a ratio measured on a busy machine would flatter us.
    """
    global _waited_s
    while True:
        begin = _others_core_seconds()
        time.sleep(0.3)
        if (_others_core_seconds() - begin) / 0.3 < QUIET_CORES:
            return True
        _waited_s += 0.3
        if _waited_s > PATIENCE_S:
            return False


def copy_calls(num_threads: int) -> dict[str, Callable[[], Any]]:
    """Ways to copy COPY_BYTES; each moves twice that (read + written). The best of them is the floor."""
    src = torch.ones(COPY_BYTES // 4)
    dst = torch.zeros_like(src)
    parts = list(zip(np.array_split(dst.numpy(), num_threads), np.array_split(src.numpy(), num_threads), strict=True))
    pool = ThreadPoolExecutor(num_threads)
    return {
        "copy torch": lambda: dst.copy_(src),
        "copy numpy": lambda: list(pool.map(lambda part: np.copyto(*part), parts)),  # releases the GIL: N threads
    }


def copy_gbps(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Copy bandwidth in GB/s by way of copying, from what `interleave(copy_calls())` measured, and the best."""
    rates = {name: 2 * COPY_BYTES / median(s) / 1e9 for name, s in seconds.items() if name.startswith("copy ")}
    return {**rates, "best": max(rates.values())}


def median(samples: Iterable[float]) -> float:
    return statistics.median(samples)


def print_table(header: list[str], rows: list[list[str]], left: int = 1) -> None:
    """The first `left` columns are text, the others numbers."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    table.insert(1, ["-" * w for w in widths])
    for row in table:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


def write_json(path: str | Path, record: dict[str, Any]) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {path}")


def _others_core_seconds() -> float:
    """Core seconds that anything but this process has used since boot, stolen time included; 0 where it is unknown."""
    try:
        user, nice, system, _idle, _wait, *rest = (int(x) for x in Path("/proc/stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def _warm(call: Callable[[], Any]) -> None:
    end = time.perf_counter() + WARM_S
    while time.perf_counter() < end:
        call()


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def _proc(path: str) -> dict[str, str]:
    """`key : value` lines of a file in /proc, the first of each key; empty where there is no such file."""
    pairs: dict[str, str] = {}
    try:
        for line in Path(path).read_text().splitlines():
            key, colon, value = line.partition(":")
            if colon:
                pairs.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return pairs


def _caches() -> dict[str, str]:
    """Size of each cache as the first core sees it: {"L1d": "32K", "L2": "512K", "L3": "32768K"}."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = {"Data": "d", "Instruction": "i"}.get((index / "type").read_text().strip(), "")
        sizes[f"L{(index / 'level').read_text().strip()}{kind}"] = (index / "size").read_text().strip()
    return sizes


def _without_folder(arg: str) -> str:
    """Absolute paths by their last part: results name no folders of this machine."""
    if Path(arg).is_absolute() and Path(arg).is_relative_to(ROOT):
        return str(Path(arg).relative_to(ROOT))
    return Path(arg).name if Path(arg).is_absolute() else arg


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
