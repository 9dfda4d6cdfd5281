"""Lets the expert, a random policy or a trained one run the robot, and counts how often the block ends at the goal:

python examples/train_policy/rollout.py expert --episodes 100
python examples/train_policy/rollout.py build/train_policy/policy.safetensors --episodes 100 --json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from typing import Any

import expert
import numpy as np
import torch
from policy import Policy
from record import processes, spread
from simulate import EPISODE_COMMANDS, OPEN_M, REACH_M, Arm
from terminal import bar, checked
from windows import OBSERVED, WRIST, Live

FIRST_SEED = 1_000_000
"""Far from the seeds of recordings: every block and goal is new to the policy."""
EXECUTED = 4
"""Commands of a chunk that are carried out before the policy looks again: 160 ms."""

PRIVILEGED = ("expert", "random")
"""These know the true state, or need none."""

Act = Callable[[Arm], tuple[np.ndarray, float]]


@cache
def arm(listening: bool) -> Arm:
    """One for each process, with the sensors that the policy reads, or with none."""
    return Arm(topics={WRIST, *(name.rsplit("/", 1)[0] for name in OBSERVED)} if listening else ())


@cache
def trained(path: Path, written_ns: int) -> Policy:
    """Read again where the file was written anew."""
    torch.set_num_threads(1)
    return Policy.load(path)


def random_actor(seed: int) -> Act:
    rng = np.random.default_rng([seed, 99])
    return lambda robot: (robot.state.gripper + rng.uniform(-REACH_M, REACH_M, 3), float(rng.uniform(0, OPEN_M)))


def policy_actor(policy: Policy) -> Act:
    live, chunk = Live(), []

    def act(robot: Arm) -> tuple[np.ndarray, float]:
        if not chunk:
            seen = live.observe(robot.messages, robot.anchor_ns)
            chunk.extend(policy.act(seen)[0, :EXECUTED].double().numpy())
        command = chunk.pop(0)
        return command[:3], float(command[3])

    return act


def actor(who: str, seed: int) -> Act:
    if who == "expert":
        return lambda robot: expert.act(robot.state)
    if who == "random":
        return random_actor(seed)
    return policy_actor(trained(Path(who), Path(who).stat().st_mtime_ns))


def run_episode(who: str, seed: int, watch: Callable[[Arm, int], None] = lambda robot, given: None) -> bool:
    """`watch` is called before each command and after the last, with the number of those given."""
    robot, act = arm(who not in PRIVILEGED), actor(who, seed)
    robot.reset(seed)
    for given in range(EPISODE_COMMANDS):
        watch(robot, given)
        robot.command(*act(robot))
    watch(robot, EPISODE_COMMANDS)
    return robot.success


def wilson(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval that holds the true rate in 95 of 100 cases (Wilson 1927)."""
    rate, extra = successes / count, z * z / count
    center, half = rate + extra / 2, z * math.sqrt(rate * (1 - rate) / count + extra / (4 * count))
    return max(0.0, (center - half) / (1 + extra)), min(1.0, (center + half) / (1 + extra))


def rollout(who: str, episodes: int, seed: int = FIRST_SEED, pool: Executor | None = None) -> dict[str, Any]:
    """`who`: expert, random, or the file of a policy. All of them meet the same blocks and goals."""
    jobs = [(who, seed + i) for i in range(episodes)]
    label = who if who in PRIVILEGED else "policy"
    reached = list(bar(spread(run_episode, jobs, pool), episodes, label))
    low, high = wilson(sum(reached), episodes)
    failed = [seed + i for i, ok in enumerate(reached) if not ok]
    return {
        "episodes": episodes,
        "first_seed": seed,
        "successes": sum(reached),
        "success_rate": sum(reached) / episodes,
        "interval_95": [round(low, 4), round(high, 4)],
        "failed_seeds": failed,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", help="expert, random, or the safetensors file of a policy")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = checked(parser, parser.parse_args(arguments), "episodes", "workers")
    if options.who not in PRIVILEGED and not Path(options.who).is_file():
        parser.error(f"who must be expert, random or a file, got {options.who!r}")
    return options


def main() -> int:
    options = parse()
    with processes(options.workers) as pool:
        result = rollout(options.who, options.episodes, options.seed, pool)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        low, high = result["interval_95"]
        told = f"{result['successes']} of {result['episodes']} at the goal, 95 % interval {low:.1%} to {high:.1%}"
        print(f"{options.who}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
