"""Records episodes of the scripted expert as MCAP logs of ROS 2 messages, one file each:

python examples/train_policy/record.py --episodes 150 --seed 0 --out build/train_policy/logs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import expert
import numpy as np
from mcap_ros2.writer import Writer
from simulate import EPISODE_COMMANDS, TASK, Arm, Message
from terminal import bar, checked

DISTURBANCE_M = 0.006
"""The arm is pushed while the expert shows what to do: so a policy learns to come back (DART, Laskey et al. 2017)."""
PUBLISH_DELAY = 0.3  # of the way from the stamp to the arrival


def definition(text: str, *parts: str) -> str:
    """A message definition and those of its parts, as MCAP wants them: `name: fields` after a line of `=`."""
    lines = [text.replace(", ", "\n")]
    for part in parts:
        name, _, fields = part.partition(": ")
        lines.append("=" * 80 + f"\nMSG: {name}\n" + fields.replace(", ", "\n"))
    return "\n".join(lines) + "\n"


TIME = "builtin_interfaces/Time: int32 sec, uint32 nanosec"
HEADER = ("std_msgs/Header: builtin_interfaces/Time stamp, string frame_id", TIME)
XYZ = "float64 x, float64 y, float64 z"
SCHEMAS = {
    "joints": (
        "sensor_msgs/msg/JointState",
        "std_msgs/Header header, string[] name, float64[] position, float64[] velocity, float64[] effort",
        *HEADER,
    ),
    "wrench": (
        "geometry_msgs/msg/WrenchStamped",
        "std_msgs/Header header, geometry_msgs/Wrench wrench",
        "geometry_msgs/Wrench: geometry_msgs/Vector3 force, geometry_msgs/Vector3 torque",
        f"geometry_msgs/Vector3: {XYZ}",
        *HEADER,
    ),
    "pose": (
        "geometry_msgs/msg/PoseStamped",
        "std_msgs/Header header, geometry_msgs/Pose pose",
        "geometry_msgs/Pose: geometry_msgs/Point position, geometry_msgs/Quaternion orientation",
        f"geometry_msgs/Point: {XYZ}",
        f"geometry_msgs/Quaternion: {XYZ}, float64 w",
        *HEADER,
    ),
    "depth": (
        "sensor_msgs/msg/Image",
        "std_msgs/Header header, uint32 height, uint32 width, string encoding, uint8 is_bigendian, uint32 step, "
        "uint8[] data",
        *HEADER,
    ),
    "picture": ("sensor_msgs/msg/CompressedImage", "std_msgs/Header header, string format, uint8[] data", *HEADER),
    "task": ("std_msgs/msg/String", "string data"),
}
"""Kind of message: its name, its fields, and those of its parts."""


def ros_message(message: Message) -> dict[str, Any]:
    stamp = {"sec": message.stamp_ns // 10**9, "nanosec": message.stamp_ns % 10**9}
    header = {"header": {"stamp": stamp, "frame_id": "base"}}
    parts = message.parts
    if message.kind == "joints":
        values = {name: parts[name].tolist() if name in parts else [] for name in ("position", "velocity", "effort")}
        return {**header, "name": list(message.names), **values}
    if message.kind == "depth":
        depth = parts[""]
        size = {"height": depth.shape[0], "width": depth.shape[1], "step": 2 * depth.shape[1]}
        return {**header, **size, "encoding": "16UC1", "is_bigendian": 0, "data": depth.astype("<u2").tobytes()}
    if message.kind == "picture":
        return {**header, "format": "jpeg", "data": parts[""].tobytes()}
    return {**header, message.kind: {name: dict(zip("xyzw", x.tolist(), strict=False)) for name, x in parts.items()}}


def write_log(path: Path, messages: Sequence[Message]) -> None:
    """In the order of arrival, as a recorder hears them."""
    with path.open("wb") as file:
        writer = Writer(file)
        schemas = {kind: writer.register_msgdef(name, definition(*x)) for kind, (name, *x) in SCHEMAS.items()}
        ordered = sorted(messages, key=lambda message: message.log_ns)
        start_ns = ordered[0].log_ns
        writer.write_message("/task", schemas["task"], {"data": TASK}, log_time=start_ns, publish_time=start_ns)
        for message in ordered:
            publish_ns = message.stamp_ns + int(PUBLISH_DELAY * (message.log_ns - message.stamp_ns))
            times = {"log_time": message.log_ns, "publish_time": publish_ns}
            writer.write_message(message.topic, schemas[message.kind], ros_message(message), **times)
        writer.finish()


@cache
def arm() -> Arm:
    """One for each process: to load the model takes longer than to reset it."""
    return Arm()


def record_episode(seed: int, path: Path, disturbance_m: float = DISTURBANCE_M) -> bool:
    robot = arm()
    robot.reset(seed, disturbance_m)
    for _ in range(EPISODE_COMMANDS):
        robot.command(*expert.act(robot.state))
    write_log(path, robot.messages)
    return robot.success


def record(out: Path, episodes: int, seed: int, pool: Executor | None = None) -> list[bool]:
    """Episode i has the seed `seed + i`, whoever records it. Returns which of them reached the goal."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise FileExistsError(f"record: out must be an empty folder, got {out}")
    jobs = [(seed + i, out / f"episode_{i:05}.mcap") for i in range(episodes)]
    return list(bar(spread(record_episode, jobs, pool), episodes, "record"))


def processes(workers: int) -> AbstractContextManager[Executor | None]:
    """Started afresh, as PyTorch and MuJoCo have threads. Keep them: to import both takes longer than an episode."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers > 1 else nullcontext()


def spread(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], pool: Executor | None) -> Iterator[Any]:
    """Results in the order of the jobs, from the processes of the pool, or from this one."""
    return (pool.map if pool else map)(function, *zip(*jobs, strict=True))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder, or one to be made")
    parser.add_argument("--workers", type=int, default=2)
    return checked(parser, parser.parse_args(arguments), "episodes", "workers")


def main() -> int:
    options = parse()
    try:
        with processes(options.workers) as pool:
            reached = record(options.out, options.episodes, options.seed, pool)
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 2
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{options.out}: {len(reached)} episodes, {int(np.sum(reached))} at the goal, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
