"""Small recordings under the names that the pages use, in the working directory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import robocache
from export_cases import listed, times_at
from page_blocks import indented
from paths import ROOT
from picture_cases import encoded
from robocache import CacheWriter, Episode, EpisodeStream, StreamSpec

sys.path.insert(0, str(ROOT / "examples"))


def vectors(**channels):
    """``name=(channels, rate)``."""
    return {name: StreamSpec(name, "float32", (n,), rate_hz=hz) for name, (n, hz) in channels.items()}


def episode(number, specs, seconds):
    """Smooth motions with a little noise; pictures are random."""
    rng, streams = np.random.default_rng(number), {}
    for name, spec in specs.items():
        times = times_at(int(seconds * spec.rate_hz), spec.rate_hz)
        if spec.kind == "image":
            values = rng.integers(0, 256, (len(times), *spec.shape)).astype(np.uint8)
        else:
            values = np.sin(times[:, None] / 1e9 + np.arange(spec.shape[0]) + number)
            values = (values + rng.normal(scale=0.01, size=values.shape)).astype(spec.dtype)
        streams[name] = EpisodeStream(spec, values, times)
    return Episode(number, streams, task="reach")


def cache(path, specs, episodes=4, seconds=4):
    writer = CacheWriter(path, specs)
    for number in range(episodes):
        writer.add(episode(number, specs, seconds))
    return writer.commit()


def dataset(path, specs, episodes=4, seconds=4):
    """A LeRobot dataset."""
    robocache.export(listed(*(episode(i, specs, seconds) for i in range(episodes))), path)


def made_by_the_page(page):
    """What the page's own commands make: ``python examples/make_logs.py ...``."""
    (command,) = [line for line in indented(page) if line.startswith("python examples/make_logs.py")]
    subprocess.run([sys.executable, str(ROOT / command.split()[1]), *command.split()[2:]], check=True, timeout=200)


def camera_logs(folder, episodes=3, seconds=3):
    """MCAP files of ROS 2 messages: a wrist camera at 10 Hz, commands at 20 Hz."""
    from make_logs import HEADER, JOINTS
    from mcap_ros2.writer import Writer

    picture = "std_msgs/Header header\nstring format\nuint8[] data\n" + HEADER
    Path(folder).mkdir()
    for number in range(episodes):
        rng = np.random.default_rng(number)
        with Path(folder, f"run_{number}.mcap").open("wb") as file:
            writer = Writer(file)
            image = writer.register_msgdef("sensor_msgs/msg/CompressedImage", picture)
            joints = writer.register_msgdef("sensor_msgs/msg/JointState", JOINTS)
            for tick in range(20 * seconds):
                t_ns = 1_700_000_000 * 10**9 + tick * 50_000_000
                header = {"stamp": {"sec": t_ns // 10**9, "nanosec": t_ns % 10**9}, "frame_id": "base"}
                position = np.sin(np.arange(6) + tick / 20).tolist()
                names = [f"joint{i}" for i in range(6)]
                command = {"header": header, "name": names, "position": position, "velocity": [], "effort": []}
                writer.write_message("/arm/command", joints, command, log_time=t_ns, publish_time=t_ns)
                if tick % 2 == 0:
                    data = encoded(rng.integers(0, 256, (48, 64, 3)).astype(np.uint8))
                    seen = {"header": header, "format": "jpeg", "data": data}
                    writer.write_message("/wrist/image/compressed", image, seen, log_time=t_ns, publish_time=t_ns)
            writer.finish()
