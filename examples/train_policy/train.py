"""Trains the action-chunk policy on a cache by behavior cloning:

python examples/train_policy/train.py build/train_policy/cache --out build/train_policy/policy.safetensors
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import robocache
import torch
from policy import Policy
from terminal import checked, show
from windows import SETPOINT, Batch, epochs, load

AVERAGE = 0.998
"""How much of the averaged weights stays at each step: the average acts more steadily than the last step's weights."""
SEEING = 0.5
"""Weight of the error in where the block is: the tracker is a label of the pictures, not an observation."""
VALIDATION = 0.1
"""Share of the episodes that is held out."""


def loss_of(policy: Policy, batch: Batch) -> torch.Tensor:
    """Mean absolute error of what is not padding: the middle of the demonstrations, not their mean. And of where the
    policy sees the block."""
    done, seen = policy(batch)
    error = (done - policy.targets(batch)).abs().mean(-1)
    return error[~batch[f"{SETPOINT}_is_pad"]].mean() + SEEING * (seen - policy.places(batch)).abs().mean()


@torch.no_grad()
def validate(policy: Policy, held: Iterable[Batch]) -> float:
    return float(torch.stack([loss_of(policy, batch) for batch in held]).mean())


def fit(
    policy: Policy, training: Iterable[Batch], validation: Iterable[Batch], steps: int
) -> tuple[Policy, list[dict[str, float]]]:
    """Takes a step for each of the first `steps` batches. Returns the averaged policy, and the losses on the way."""
    average = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    warm_up = max(1, min(100, steps // 10))

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warm_up) * (0.02 + 0.98 * math.cos(math.pi / 2 * step / steps) ** 2)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    curve, losses = [], []
    for step, batch in enumerate(itertools.islice(training, steps), 1):
        loss = loss_of(policy, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            keep = min(AVERAGE, step / (step + 10))
            for slow, fast in zip(average.parameters(), policy.parameters(), strict=True):
                slow.lerp_(fast, 1 - keep)
        losses.append(float(loss.detach()))
        show(step, steps, "train", f"loss {losses[-1]:.3f}")
        if step % max(1, steps // 20) == 0 or step == steps:
            held = validate(average, validation)
            curve.append({"step": step, "training_loss": sum(losses) / len(losses), "validation_loss": held})
            losses = []
    return average, curve


def train(
    cache: robocache.Cache, steps: int, batch_size: int = 128, seed: int = 0, validation: float = VALIDATION
) -> tuple[Policy, dict[str, Any]]:
    """The policy, and what is to be told of its training. The seed decides it, on one machine."""
    torch.set_num_threads(1)  # so small a network gains little from a second, and loses much on a busy machine
    torch.manual_seed(seed)
    training = load(cache, "train", 1 - validation, batch_size, seed)
    held = load(cache, "validation", validation, batch_size)
    policy, curve = fit(Policy.for_loader(training), epochs(training), held, steps)
    told = {"steps": steps, "batch_size": batch_size, "seed": seed, "tier": training.tier}
    told |= {"training_samples": training.num_samples, "validation_samples": held.num_samples, "curve": curve}
    return policy, told


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a safetensors file; a JSON with the losses beside it")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    return checked(parser, parser.parse_args(arguments), "steps", "batch_size")


def main() -> int:
    options = parse()
    begin = time.perf_counter()
    policy, told = train(robocache.Cache(options.cache), options.steps, options.batch_size, options.seed)
    policy.save(options.out)
    told["seconds"] = round(time.perf_counter() - begin, 1)
    options.out.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    last = told["curve"][-1]
    print(f"{options.out}: loss {last['training_loss']:.4f}, on held-out episodes {last['validation_loss']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
