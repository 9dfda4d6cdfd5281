"""Datasets that bench_ingest.py reads: a robomimic file of low-dimensional data, a cache of many episodes."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import robocache
from robocache.cache.episode import EpisodeStream

ROWS = 150  # a demonstration of robomimic's "square" has 151 on average
OBS = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "robot0_gripper_qvel": 2,
       "robot0_joint_pos": 7, "robot0_joint_pos_cos": 7, "robot0_joint_pos_sin": 7, "robot0_joint_vel": 7,
       "object": 14}  # fmt: skip
RATE_HZ = 20.0


def demo_arrays(rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What a demonstration holds, in the shapes and dtypes that robomimic writes."""
    walk = rng.standard_normal((rows, 105)).cumsum(0) * 0.01
    arrays = {"actions": walk[:, :7], "states": walk[:, 7:52], "rewards": np.zeros(rows), "dones": np.zeros(rows, "i8")}
    column = 52
    for name, width in OBS.items():
        arrays[f"obs/{name}"] = walk[:, column : column + width]
        column += width
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def write_robomimic(path: Path, size_bytes: int, rows: int = ROWS) -> tuple[int, int]:
    """A file with `size_bytes` of data, about: contiguous datasets, as robomimic writes them. Returns bytes, demos."""
    rng = np.random.default_rng(0)
    kinds = [demo_arrays(rows, rng) for _ in range(32)]
    one = sum(array.nbytes for array in kinds[0].values())
    demos = max(1, round(size_bytes / one))
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = '{"env_name": "NutAssemblySquare", "env_kwargs": {"control_freq": 20}}'
        data.attrs["total"] = demos * rows
        for i in range(demos):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = rows
            for name, array in kinds[i % len(kinds)].items():
                demo[name] = array
    return demos * one, demos


def read_raw(path: Path) -> int:
    """Every dataset of the file into memory, and nothing else: the loop that people write. Returns the bytes."""
    total = 0
    with h5py.File(path, "r") as file:
        for demo in file["data"].values():
            for name in ("actions", "states", "rewards", "dones"):
                total += demo[name][:].nbytes
            for dataset in demo["obs"].values():
                total += dataset[:].nbytes
    return total


def write_many_episodes(path: Path, episodes: int, num_shards: int) -> robocache.Cache:
    """A cache of short episodes, cut into as many shards as long ones would fill."""
    arm = robocache.StreamSpec("arm", "float32", (7,), rate_hz=RATE_HZ)
    gripper = robocache.StreamSpec("gripper", "float32", (1,), rate_hz=RATE_HZ)
    rows = 20
    times = np.arange(rows) * 50_000_000
    streams = {
        spec.name: EpisodeStream(spec, np.ones((rows, *spec.shape), np.float32), times) for spec in (arm, gripper)
    }
    size = sum(s.values.nbytes + s.times.nbytes for s in streams.values())
    writer = robocache.CacheWriter(path, {"arm": arm, "gripper": gripper}, shard_bytes=size * episodes // num_shards)
    for i in range(episodes):
        writer.add(robocache.Episode(i, streams, task="pour", meta={"demo": f"demo_{i}"}))
    return writer.commit()
