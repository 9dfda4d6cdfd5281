"""Kills ingests at random moments, in a folder that also holds files of others under names like those of a cache.

    python tests/cache/cache_kills.py FOLDER --kills 1000 --json benchmarks/results/hostile/cache_kills.json

After every kill: the old version or the new one, every checksum right, no file of others changed. Every few kills an
ingest runs to its end (resumed, or from the start): then nothing but the cache and the files of others is there.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import robocache
from cache_cases import MadeSource, digest

FOREIGN = (
    "run-20240115.mcap", "shard-00000-00000001.safetensors.bak", "episodes-00000002.parquet", "manifest.json.tmp",
    "shard-00000-00000007.safetensors", "shard-00001-00000003.safetensors.tmp", "manifest-00000005.json", "notes.txt",
    "manifest.json.next.tmp", "calibration-deadbeef.yaml",
)  # fmt: skip
"""``shard-00000-00000007.safetensors`` is what a stopped ingest of the first release leaves: nothing proves it."""
EPISODES, SHARD_BYTES = 8, 20_000


def source_of(seed):
    return MadeSource(seed=seed, episodes=EPISODES)


def run(out, seed, resume):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about the shard that nobody lists
        robocache.ingest(source_of(seed), out, shard_bytes=SHARD_BYTES, resume=resume)


def foreign_state(out):
    """Bytes, inode and time of change of each."""
    states = {name: (out / name).stat() for name in FOREIGN}
    return {name: ((out / name).read_bytes(), s.st_ino, s.st_mtime_ns, s.st_mode) for name, s in states.items()}


def leftovers(out):
    return {p.name for p in out.iterdir()} - {p.name for p in robocache.Cache(out).files} - set(FOREIGN)


def killed_run(out, seed, resume, seconds):
    """Whether the ingest was killed: it may have been quicker."""
    child = os.fork()
    if child == 0:
        run(out, seed, resume)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def kill_loop(out, kills, seed=7):
    """Counts of what happened; an assertion fails where something is wrong."""
    chance = random.Random(seed)
    whole = {number: digest(source_of(number)) for number in (0, 1)}
    run(out, 1, False)  # imports what there is to import
    for name in FOREIGN:
        (out / name).write_text(f"{name}: not of a cache\n" * 50)
    foreign = foreign_state(out)
    begin = time.perf_counter()
    run(out, 0, False)
    seconds = 3 * (time.perf_counter() - begin)  # some ingests are slower; some kills must come after the commit
    counts = {"kills": 0, "finished_before_the_kill": 0, "killed_after_the_commit": 0, "completed_after_kills": 0,
              "completed_by_resume": 0, "with_leftovers_of_a_kill": 0}  # fmt: skip
    number = 1  # never the one of the cache that is there: there is always something to do
    while counts["kills"] < kills:
        before = digest(robocache.Cache(out))
        killed = killed_run(out, number, chance.random() < 0.5, chance.random() * seconds)
        counts["kills" if killed else "finished_before_the_kill"] += 1
        cache = robocache.Cache(out)  # there was one before, so there is one now
        assert cache.verify() == [], cache.verify()
        found = digest(cache)
        assert found in (before, whole[number]) if killed else found == whole[number]
        assert foreign_state(out) == foreign
        counts["with_leftovers_of_a_kill"] += bool(leftovers(out))
        committed = found == whole[number]
        counts["killed_after_the_commit"] += killed and committed
        if not killed:
            assert leftovers(out) == set()
        elif chance.random() < 0.3:
            resume = chance.random() < 0.5
            run(out, number, resume)
            committed = True
            counts["completed_after_kills"] += 1
            counts["completed_by_resume"] += resume
            assert digest(robocache.Cache(out)) == whole[number]
            assert leftovers(out) == set(), leftovers(out)
            assert foreign_state(out) == foreign
        if committed:
            number = 1 - number
    run(out, number, True)
    assert leftovers(out) == set()
    assert foreign_state(out) == foreign
    return counts


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder for the cache")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="where the counts go; to the output unless given")
    args = parser.parse_args()
    begin = time.perf_counter()
    counts = kill_loop(args.folder, args.kills)
    result = {
        "command": f"python tests/cache/cache_kills.py FOLDER --kills {args.kills} --json FILE",
        "date": time.strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "HEAD"),
        "modified": git("status", "--porcelain", "--untracked-files=no") != "",
        "foreign_files": len(FOREIGN),
        "foreign_files_changed": 0,
        "leftovers": 0,
        "neither_old_nor_new": 0,
        **counts,
        "seconds": round(time.perf_counter() - begin, 1),
        "file_system": os.popen(f"df --output=fstype '{args.folder}'").read().split()[-1],
        "versions": {"robocache": robocache.__version__, "python": platform.python_version(), "numpy": np.__version__,
                     "linux": platform.release().split("-")[0]},
    }  # fmt: skip
    text = json.dumps(result, indent=1) + "\n"
    if args.json is None:
        sys.stdout.write(text)
    else:
        args.json.write_text(text)


if __name__ == "__main__":
    main()
