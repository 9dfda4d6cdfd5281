"""Writes small recordings for the tutorials, so that they run without a download.

python examples/make_logs.py lerobot my_dataset     a LeRobot v3.0 dataset: 12 episodes, 20 Hz, with a camera
python examples/make_logs.py mcap my_bags           4 MCAP files of ROS 2 messages: joints, force, commands
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import robocache
from robocache import Episode, EpisodeStream, StreamSpec

SECONDS = 4
HEADER = (
    "=" * 80 + "\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
    "" + "=" * 80 + "\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
)
JOINTS = "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n" + HEADER
WRENCH = (
    "std_msgs/Header header\ngeometry_msgs/Wrench wrench\n" + HEADER + "=" * 80 + "\nMSG: geometry_msgs/Wrench\n"
    "geometry_msgs/Vector3 force\ngeometry_msgs/Vector3 torque\n" + "=" * 80 + "\nMSG: geometry_msgs/Vector3\n"
    "float64 x\nfloat64 y\nfloat64 z\n"
)


def reach(rng: np.random.Generator, times_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Six joints on a smooth way to a random goal, (rows, 6)."""
    goal = rng.uniform(-1, 1, 6)
    return goal * (1 - np.cos(np.pi * times_s[:, None] / SECONDS)) / 2


def lerobot(out: Path) -> None:
    rate_hz, specs = 20, {}
    for name in ("observation.state", "action"):
        specs[name] = StreamSpec(name, "float32", (6,), rate_hz=rate_hz)
    specs["observation.images.wrist"] = StreamSpec(
        "observation.images.wrist", "uint8", (48, 64, 3), "image", rate_hz=rate_hz
    )

    class Recordings:
        format, path, metadata = "recordings", Path("recordings"), {}

        def __init__(self) -> None:
            self.specs = specs

        def __len__(self) -> int:
            return 12

        def __iter__(self) -> Any:
            return (self.episode(i) for i in range(len(self)))

        def episode(self, index: int) -> Episode:
            rng = np.random.default_rng(index)
            times = np.arange(SECONDS * rate_hz) * (10**9 // rate_hz)
            state = reach(rng, times / 1e9)
            rows = {
                "observation.state": (state + rng.normal(scale=0.002, size=state.shape)).astype(np.float32),
                "action": np.vstack([state[1:], state[-1:]]).astype(np.float32),
                "observation.images.wrist": rng.integers(0, 256, (len(times), 48, 64, 3)).astype(np.uint8),
            }
            streams = {name: EpisodeStream(specs[name], values, times) for name, values in rows.items()}
            return Episode(index, streams, task="reach the goal")

        def fingerprint(self) -> str:
            return "recordings, seed 0"

    print(robocache.export(Recordings(), out))


def mcap(out: Path) -> None:
    from mcap_ros2.writer import Writer

    out.mkdir(parents=True)
    for number in range(4):
        rng = np.random.default_rng(number)
        with (out / f"run_{number}.mcap").open("wb") as file:
            writer = Writer(file)
            joints = writer.register_msgdef("sensor_msgs/msg/JointState", JOINTS)
            wrench = writer.register_msgdef("geometry_msgs/msg/WrenchStamped", WRENCH)
            messages = []
            for topic, rate_hz, schema in (("/joints", 250, joints), ("/force", 500, wrench), ("/command", 20, joints)):
                stamps = np.arange(SECONDS * rate_hz) * (10**9 // rate_hz) + 1_700_000_000 * 10**9
                ways = reach(np.random.default_rng(number), (stamps - stamps[0]) / 1e9)
                late_ns = rng.integers(1_000_000, 3_000_000, len(stamps))
                rows = zip(stamps, late_ns, ways, strict=True)
                messages += [(int(t), int(t + late), topic, schema, row) for t, late, row in rows]
            for stamp_ns, log_ns, topic, schema, row in sorted(messages, key=lambda message: message[1]):
                stamp = {"sec": stamp_ns // 10**9, "nanosec": stamp_ns % 10**9}
                header = {"header": {"stamp": stamp, "frame_id": "base"}}
                if schema is wrench:
                    parts = (dict(zip("xyz", row[i : i + 3].tolist(), strict=True)) for i in (0, 3))
                    body: dict[str, Any] = {"wrench": dict(zip(("force", "torque"), parts, strict=True))}
                else:
                    names = [f"joint{i}" for i in range(6)]
                    body = {"name": names, "position": row.tolist(), "velocity": [], "effort": []}
                writer.write_message(topic, schema, {**header, **body}, log_time=log_ns, publish_time=stamp_ns)
            writer.finish()
    print(f"wrote {out}: 4 files")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes small recordings for the tutorials.")
    parser.add_argument("kind", choices=["lerobot", "mcap"])
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    {"lerobot": lerobot, "mcap": mcap}[given.kind](given.out)
