"""A loader in other processes: programs that tests start, each with a limit of time."""

import json
import subprocess
import sys

from paths import TESTS

SETUP = """
import json, os, signal, sys, time
import numpy as np
import torch
import robocache
from loader_cases import anchors_in, make_cache
from robocache import Cache, Loader, Window
STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}
def anchors(batch): return [list(a) for a in anchors_in(batch)]
"""

REPORT = """
def report(rank, found):
    with open(f"{FOLDER}/rank{rank}.json", "w") as file:
        json.dump(found, file)
"""

# The ranks are forked by a program that has imported everything once; rank r of WORLD runs `work(rank)`.
RANKS = """
import torch.distributed as dist
def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/{KEY}", rank=rank, world_size=WORLD)
    found = [None] * WORLD
    dist.all_gather_object(found, work(rank))
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()
children = []
for rank in range(WORLD):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            main(rank)
            sys.stdout.flush()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


def program_of(code, names):
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    tests = f"sys.path.insert(0, {str(TESTS)!r})\nimport paths\n"
    return "import sys\n" + tests + SETUP + given + code


def run(code, timeout=120, **names):
    """What a program printed as JSON. ``names`` are its variables."""
    program = program_of(code, names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_script(folder, code, timeout=240, **names):
    """What the ranks of a program wrote with ``report(rank, found)``. A file, for launchers that run it again."""
    script = folder / "program.py"
    script.write_text(program_of(REPORT + code, {**names, "FOLDER": str(folder)}))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=timeout, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def run_ranks(world, folder, code, key="ranks", **names):
    """What ``work(rank)`` returned in each of ``world`` processes of a gloo group."""
    return run(code + RANKS, WORLD=world, FOLDER=str(folder), KEY=key, **names)
