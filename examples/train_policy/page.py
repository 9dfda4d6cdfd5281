"""One page of plots of a run: what was recorded, what a batch holds, how training went, who reaches the goal, and how.

python examples/train_policy/page.py build/train_policy       # writes page.html into that folder
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import html
import io
import json
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import robocache
from drawing import figures
from drawing.picture import picture
from record import arm as recording_arm
from record import spread
from rollout import run_episode
from simulate import CONTROL_HZ, EPISODE_COMMANDS, Arm
from terminal import bar
from windows import GOAL, OPENING, SEEN, SETPOINT, SHAKEN, WINDOWS, WRIST

FRAMES = (0, 9, 18, 27, EPISODE_COMMANDS)  # commands given before each picture
IN_THE_AIR_M = (0.5, 0.7)  # above the table, which ends at 0.4, and inside the picture
LOOKED_AT = 60  # seeds
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 1080px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; margin-bottom: 0; } h2 { font-size: 1.15em; margin: 2em 0 0.2em; } p { margin: 0.3em 0 0.8em; }
img { width: 100%; height: auto; } .quiet { color: #66727f; } code { background: #f1f4f7; padding: 0 0.25em; }
.tiles { display: flex; flex-wrap: wrap; gap: 0.8em; margin: 1.2em 0; }
.tiles div { flex: 1 1 9em; border: 1px solid #d9e0e7; border-radius: 6px; padding: 0.6em 0.9em; }
.tiles b { display: block; font-size: 1.5em; color: #0b5cad; }
"""


def film(who: str, seed: int) -> list[np.ndarray]:
    """Pictures of an episode at FRAMES."""
    frames: list[np.ndarray] = []

    def watch(robot: Arm, given: int) -> None:
        if given in FRAMES:
            frames.append(picture(robot))

    run_episode(who, seed, watch)
    return frames


def telling_seed(success: dict[str, Any]) -> int:
    """Of an episode in which the policy reached a goal in the air and chance did not; else the first of all."""
    first = success["policy"]["first_seed"]
    seeds = range(first, first + min(LOOKED_AT, success["policy"]["episodes"]))
    told = [s for s in seeds if s not in success["policy"]["failed_seeds"] and s in success["random"]["failed_seeds"]]
    robot = recording_arm()
    for seed in told:
        robot.reset(seed)
        if IN_THE_AIR_M[0] < robot.env.goal[2] < IN_THE_AIR_M[1]:
            return seed
    return told[0] if told else first


def highest(cache: robocache.Cache) -> int:
    """The episode with the highest goal: there is most to see."""
    return max(range(len(cache)), key=lambda i: float(cache.episode(i).streams[GOAL].values[0, 2]))


def samples(cache: robocache.Cache, episode: int) -> dict[str, np.ndarray]:
    """Every sample of an episode, in order and in the units of the log."""
    options = {"anchors": SETPOINT, "episodes": [episode], "shuffle": False, "drop_last": False, "return_index": True}
    (batch,) = robocache.Loader(cache, EPISODE_COMMANDS, WINDOWS, **options)
    return {name: x.numpy() for name, x in batch.items()}


def seen_pictures(cache: robocache.Cache, episode: int) -> dict[str, np.ndarray]:
    """What the policy sees at FRAMES: in validation and on the robot, and in three epochs of training."""
    options = {"anchors": SETPOINT, "episodes": [episode], "shuffle": False, "drop_last": False}
    at = [min(frame, EPISODE_COMMANDS - 1) for frame in FRAMES]

    def rows(image: robocache.Image, epoch: int) -> np.ndarray:
        windows = {SETPOINT: WINDOWS[SETPOINT], WRIST: dataclasses.replace(SEEN, image=image)}
        loader = robocache.Loader(cache, EPISODE_COMMANDS, windows, **options)
        return loader.batch(0, epoch)[WRIST][at, 0].numpy()

    training = {f"training, epoch {i}": rows(SHAKEN, i) for i in range(3)}
    return {"validation, robot": rows(SEEN.image, 0), **training}


def grasp(batch: dict[str, np.ndarray]) -> int:
    """The sample in whose chunk the gripper closes; the middle one where it never does."""
    closes = np.flatnonzero(batch[OPENING][:, 0, 0] - batch[OPENING][:, 4, 0] > 0.02)
    return int(closes[0]) if len(closes) else len(batch[OPENING]) // 2


def image(figure: Any, says: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    figures.close(figure)
    return f'<img alt="{html.escape(says)}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def write(out: Path, result: dict[str, Any], pool: Executor | None = None) -> Path:
    """Makes the page of a result and of what is beside it in the folder."""
    cache, success = robocache.Cache(out / "cache"), result["success"]
    number = highest(cache)
    streams, batch = cache.episode(number).streams, samples(cache, number)
    seed = telling_seed(success)
    who = {"policy": str(out / "policy.safetensors"), "random": "random"}
    made = bar(spread(film, [(name, seed) for name in who.values()], pool), len(who), "draw")
    films = dict(zip(who, made, strict=True))
    size_mib = sum(file.stat().st_size for file in (out / "logs").iterdir()) / 2**20
    training, last = result["training"], result["training"]["curve"][-1]
    tiles = {
        f"{result['record_episodes']} episodes": f"recorded in {result['seconds']['record']:.0f} s, {size_mib:.0f} MiB",
        f"{training['training_samples']:,} samples": f"of {len(WINDOWS)} streams at six rates, in one batch",
        f"{training['steps']:,} steps": f"of {training['batch_size']} samples in {result['seconds']['train']:.0f} s",
        f"{success['policy']['success_rate']:.0%} at the goal": f"expert {success['expert']['success_rate']:.0%}, "
        f"random {success['random']['success_rate']:.0%}",
        f"{result['seconds']['total']:.0f} s in all": f"on {result['machine']['cores']} cores",
    }
    sections = [
        ("What was recorded", "Each message when it arrived, in the middle of an episode; and some of what they say.",
         image(figures.streams(streams), "rows of each stream over time, and signals")),
        ("What a batch holds", "One sample, as <code>robocache.Loader</code> reads it: what the policy feels and sees "
         "(blue) had arrived by then, what it is to do (green) comes after. Grey: the rows of the log.",
         image(figures.window(streams, batch, grasp(batch)), "rows of the log and the moments read")),
        ("What the policy sees", "JPEG of the wrist camera, kept as recorded, decoded in the batch: the middle of the "
         "picture on the robot; in training, cut elsewhere and in other light each time (<code>RandomCrop</code>, "
         "<code>ColorJitter</code>). Nothing else tells it where the block is.",
         image(figures.pictures(seen_pictures(cache, number), [f"{x / CONTROL_HZ:.2f} s" for x in FRAMES]),
               "pictures of the wrist camera, as recorded and with random edits")),
        ("Training, and who reaches the goal", f"Loss on held-out episodes at the end {last['validation_loss']:.3f}. "
         f"Success on {success['policy']['episodes']} blocks and goals that nobody has seen, 95 % intervals.",
         image(figures.outcome(training["curve"], success), "losses by step, success rates with intervals")),
        ("A rollout", f"The same block and goal (red ball), seed {seed}: the trained policy above, chance below.",
         image(figures.strips(films, FRAMES), "five pictures of an episode of the policy, and of the random policy")),
    ]  # fmt: skip
    body = "".join(f"<h2>{title}</h2><p>{text}</p>{shown}" for title, text, shown in sections)
    boxes = "".join(f"<div><b>{html.escape(a)}</b>{html.escape(b)}</div>" for a, b in tiles.items())
    about = html.escape(f"{result['command']}, commit {result['commit'][:10]}, seed {result['seed']}")
    page = out / "page.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>From a log to a policy</title>'
        f"<style>{STYLE}</style><h1>From a robot's log to a policy</h1>"
        f'<p class="quiet">A simulated arm: {html.escape(result["task"])}.</p>'
        f'<div class="tiles">{boxes}</div>{body}<p class="quiet">{about}</p></html>\n'
    )
    return page


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that run.py wrote")
    options = parser.parse_args(arguments)
    if not (options.out / "result.json").is_file():
        parser.error(f"out must be a folder that run.py wrote, got {options.out}")
    return options


def main() -> int:
    out = parse().out
    print(write(out, json.loads((out / "result.json").read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
