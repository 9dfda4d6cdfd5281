"""The whole way: record the expert, ingest the logs, train, and compare the policy with the expert and with chance.

    python examples/train_policy/run.py --out build/train_policy              # the full version
    python examples/train_policy/run.py --out build/demo_policy --demo        # what `make demo` runs
    python examples/train_policy/run.py --out build/train_policy --small      # under a minute: does it work at all

Writes `result.json` beside logs, cache and policy, and (but for the small version) `page.html`, one page of plots. The
same seed gives the same result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import robocache
from record import DISTURBANCE_M, processes, record
from rollout import EXECUTED, rollout
from simulate import TASK
from terminal import checked, show
from train import train
from windows import CHUNK, CLOCK

Result = TypeVar("Result")
FULL = {"record_episodes": 150, "steps": 4000, "rollout_episodes": 100}
DEMO = {"record_episodes": 80, "steps": 2000, "rollout_episodes": 50}
SMALL = {"record_episodes": 16, "steps": 400, "rollout_episodes": 10}
WRITTEN = {
    "logs": "an MCAP file for each episode",
    "cache": "what robocache.ingest made of them",
    "policy.safetensors": "the weights",
    "result.json": "success rates, losses, seconds",
    "page.html": "plots of all of it, in one file",
}
PACKAGES = ("robocache", "mujoco", "gymnasium", "gymnasium-robotics", "torch", "numpy", "mcap", "mcap-ros2-support")


def run(out: Path, size: dict[str, int], seed: int, pool: Executor | None) -> dict[str, Any]:
    seconds: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Result]) -> Result:
        begin = time.perf_counter()
        result = call()
        seconds[name] = round(time.perf_counter() - begin, 2)
        return result

    shown = timed("record", lambda: record(out / "logs", size["record_episodes"], seed, pool))
    cache = timed("ingest", lambda: ingest(out))
    policy, told = timed("train", lambda: train(cache, size["steps"], seed=seed))
    weights = out / "policy.safetensors"
    policy.save(weights)
    who = {"expert": "expert", "policy": str(weights), "random": "random"}
    success = {
        name: timed(f"rollout_{name}", lambda actor=actor: rollout(actor, size["rollout_episodes"], pool=pool))
        for name, actor in who.items()
    }
    expert_rate = success["expert"]["success_rate"]
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "task": TASK,
        "seed": seed,
        **size,
        "disturbance_m": DISTURBANCE_M,
        "chunk": CHUNK,
        "executed": EXECUTED,
        "demonstrations_at_the_goal": sum(shown),
        "cache_bytes": cache.size_bytes,
        "success": success,
        "policy_over_expert": success["policy"]["success_rate"] / expert_rate if expert_rate else None,
        "training": told,
        "seconds": seconds | {"total": round(sum(seconds.values()), 2)},
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def commit() -> str:
    """Of this checkout, with `-dirty` where files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("ROBOCACHE_COMMIT", "unknown")


def ingest(out: Path) -> robocache.Cache:
    """By the time of arrival: see windows.py. float32 is what the policy computes in. Pictures stay encoded."""
    return robocache.ingest(
        out / "logs",
        out / "cache",
        dtype="float32",
        images="keep",
        clock=CLOCK,
        progress=lambda n, total: show(n, total, "ingest"),
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder without logs in it, or one to be made")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--demo", dest="size", action="store_const", const=DEMO, help=f"{DEMO} instead of {FULL}")
    sizes.add_argument("--small", dest="size", action="store_const", const=SMALL, help=f"{SMALL}, and no page")
    parser.set_defaults(size=FULL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes that simulate")
    return checked(parser, parser.parse_args(arguments), "workers")


def main() -> int:
    options = parse()
    size, out = options.size, options.out
    told = "{record_episodes} episodes of the expert, {steps} steps of training, {rollout_episodes} rollouts".format(
        **size
    )
    print(f"from a robot's log to a policy: {told}", flush=True)
    try:
        with processes(options.workers) as pool:
            result = run(out, size, options.seed, pool)
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 2
    result["cpu_seconds"] = round(sum(os.times()[:4]), 2)  # with those of the processes, which have ended
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if size is not SMALL:
        from page import write  # matplotlib is slow to import

        with processes(options.workers) as pool:
            write(out, result, pool)
    print()
    for name, x in result["success"].items():
        low, high = x["interval_95"]
        print(f"  {name:7} {x['successes']:4} of {x['episodes']} at the goal   95 % interval {low:.1%} to {high:.1%}")
    print(f"\n{result['seconds']['total']:.0f} s; all of it is in {out}:")
    for name, what in WRITTEN.items():
        if (out / name).exists():
            print(f"  {name:20} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
