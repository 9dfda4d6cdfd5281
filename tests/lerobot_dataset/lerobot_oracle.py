"""Compares robocache.lerobot.LeRobotDataset with LeRobot's own class, item by item, and trains with both.

    python tests/lerobot_dataset/lerobot_oracle.py --out benchmarks/results/oracles/lerobot_oracle.json         # items
    python tests/lerobot_dataset/lerobot_oracle.py --train --out benchmarks/results/oracles/lerobot_train.json  # losses

Needs the package lerobot: 0.6, or 0.3.3 for datasets of v2.1; --train needs 0.6 and diffusers. Every key of every item
must be equal: value, shape and dtype; and so must the set of keys. The exit status is 1 if something differs.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
OLD = importlib.metadata.version("lerobot").startswith("0.3.")
FPS = (10, 15, 30, 50)
LENGTHS = (41, 7, 2, 52)
VIDEO_LENGTHS = (41, 7, 12, 52)
"""LeRobot 0.6.1 fails to record an episode of one frame after others, and with videos an episode of two."""
KINDS = {
    "numbers": {"videos": False, "pictures": False},
    "pictures": {"videos": False, "pictures": True},
    "videos": {"videos": True, "pictures": True},
}


def windows(fps: int, kind: str) -> list[dict[str, Any] | None]:
    """Several delta_timestamps: none, single moments, past and future, beyond the ends, out of order, pictures."""
    found: list[dict[str, Any] | None] = [
        None,
        {"action": [i / fps for i in range(16)], "observation.state": [-1 / fps, 0.0]},
        {
            "action": [0.0],
            "next.reward": [i / fps for i in range(-3, 4)],
            "effort": [60 / fps, -60 / fps],
            "jacobian": [0, 1 / fps],
            "mode": [-1 / fps, 0],
            "load": [2 / fps],
            "next.done": [0, 2 / fps],
            "index": [-2 / fps, 0, 3 / fps],
            "volume": [1 / fps, 0],
        },
    ]
    if kind != "numbers":
        found.append({"observation.images.wrist": [-2 / fps, -1 / fps, 0]} | depth("far", [0, 1 / fps]))
    if kind == "videos":
        found += [
            {"observation.images.top": [-1 / fps, 0], "action": [0]} | depth("top", [0, 3 / fps]),
            {"observation.images.side": [0.0], "observation.images.top": [5 / fps, -5 / fps, 0]},
        ]
    return found


def depth(name: str, deltas: list[float]) -> dict[str, list[float]]:
    return {} if OLD else {f"observation.depth.{name}": deltas}


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What differs between two items, key by key."""
    if list(ours) != list(theirs):
        return [f"keys {sorted(set(ours) ^ set(theirs)) or 'in another order'}"]
    found = []
    for key, expected in theirs.items():
        got = ours[key]
        if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
            if (got.shape, got.dtype) != (expected.shape, expected.dtype):
                found.append(f"{key}: {got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}")
            elif not torch.equal(got, expected):
                found.append(f"{key}: largest error {(got.double() - expected.double()).abs().max():g}")
        elif type(got) is not type(expected) or got != expected:
            found.append(f"{key}: {got!r}, not {expected!r}")
    return found


def compare(root: pathlib.Path, options: dict[str, Any], stride: int) -> dict[str, Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs
    from robocache.lerobot import LeRobotDataset as Ours

    began = time.perf_counter()
    ours = Ours(f"local/{root.name}", root=root, **options)
    opened_s = time.perf_counter() - began
    theirs = Theirs(f"local/{root.name}", root=root, **options)
    wrong = collections.Counter[str]()
    if len(ours) != len(theirs) or (not OLD and repr(ours) != repr(theirs)):
        wrong[f"length or repr: {ours!r}, not {theirs!r}"] += 1
    wrong.update(metadata_differences(ours, theirs))
    seconds = {"ours": 0.0, "theirs": 0.0}
    numbers = [*range(0, len(theirs), stride), *([] if OLD else [-1])]  # windows of 0.3 do not count from the end
    keys = 0
    for number in numbers:
        items = {}
        for name, dataset in (("ours", ours), ("theirs", theirs)):
            began = time.perf_counter()
            items[name] = dataset[number]
            seconds[name] += time.perf_counter() - began
        keys += len(items["theirs"])
        wrong.update(differences(items["ours"], items["theirs"]))
    shown = {k: v for k, v in options.items() if k != "episode_filter"}
    return {
        "dataset": root.name, "options": shown, "items": len(numbers), "keys": keys, "opened_s": round(opened_s, 3),
        "item_ms": {name: round(1e3 * s / len(numbers), 3) for name, s in seconds.items()}, "wrong": dict(wrong),
    }  # fmt: skip


def metadata_differences(ours: Any, theirs: Any) -> list[str]:
    """Of what samplers, processors and scripts read. ``meta`` has the form of 0.6."""
    found = []
    if OLD:
        if any(not torch.equal(ours.episode_data_index[end], theirs.episode_data_index[end]) for end in ("from", "to")):
            found.append("episode_data_index")
        return found if ours.hf_features == theirs.hf_features else [*found, "hf_features"]
    lists = ("camera_keys", "video_keys", "image_keys", "depth_keys", "names", "shapes", "features", "tools")
    sizes = (
        "fps",
        "robot_type",
        "total_frames",
        "total_episodes",
        "total_tasks",
        "has_language_columns",
        "chunks_size",
    )
    names = (*lists, *sizes)
    for name in names:
        if getattr(ours.meta, name) != getattr(theirs.meta, name):
            found.append(f"meta.{name}: {getattr(ours.meta, name)!r}, not {getattr(theirs.meta, name)!r}")
    if not ours.meta.tasks.equals(theirs.meta.tasks) or ours.meta.info.to_dict() != theirs.meta.info.to_dict():
        found.append("meta.tasks or meta.info")
    for name in theirs.meta.episodes.column_names:
        if list(ours.meta.episodes[name]) != list(theirs.meta.episodes[name]):
            found.append(f"meta.episodes[{name!r}]")
    for key, stats in theirs.meta.stats.items():
        for statistic, value in stats.items():
            if not np.array_equal(ours.meta.stats[key][statistic], value):
                found.append(f"meta.stats[{key!r}][{statistic!r}]")
    if (ours.num_episodes, ours.absolute_to_relative_idx) != (theirs.num_episodes, theirs.absolute_to_relative_idx):
        found.append("num_episodes or absolute_to_relative_idx")
    if ours.hf_features != theirs.hf_dataset.features:
        found.append(f"hf_features: {ours.hf_features}, not {theirs.hf_dataset.features}")
    found += [f"hf_dataset[0]: {x}" for x in differences(ours.hf_dataset[0], theirs.hf_dataset[0])]
    return found


def compare_all(folder: pathlib.Path, rates: list[int], every: int) -> list[dict[str, Any]]:
    from lerobot_recordings import annotate, record

    runs = []

    def run(root: pathlib.Path, stride: int = 1, **options: Any) -> None:
        runs.append(compare(root, options, max(stride, every)))
        print(json.dumps(runs[-1], default=str), flush=True)

    for fps in rates:
        for kind, content in KINDS.items():
            if kind == "videos" and OLD and not torchvision_reads_videos():
                print("videos: not compared, because torchvision has no VideoReader, which lerobot 0.3 uses")
                continue
            root = folder / f"{kind}{fps}"
            record(root, fps, VIDEO_LENGTHS if content["videos"] else LENGTHS, **content)
            for deltas in windows(fps, kind):
                run(root, delta_timestamps=deltas, video_backend="pyav")
            if kind == "videos":
                deltas = {"observation.images.top": [-1 / fps, 0], "action": [0, 1 / fps]}
                run(root, 3, episodes=[3, 0], delta_timestamps=deltas, video_backend="pyav")
                run(root, 3, image_transforms=torch.nn.AvgPool2d(2), delta_timestamps=deltas, video_backend="pyav")
            if kind == "videos" and not OLD:
                run(root, 3, episode_filter=lambda row: row["length"] > 5, episodes=[1, 2, 3], video_backend="pyav")
                run(root, 3, depth_output_unit="m", return_uint8=True, video_backend="pyav")
                run(root, 3)  # the backend that LeRobot chooses
                if torchcodec_loads():
                    run(root, 3, video_backend="torchcodec", delta_timestamps=deltas)
    if OLD:
        return runs
    root = folder / "language10"
    record(root, 10, LENGTHS, videos=False, pictures=False)
    annotate(root)
    run(root)
    run(root, delta_timestamps={"action": [0, 0.1]})
    return runs


def torchcodec_loads() -> bool:
    try:
        importlib.import_module("torchcodec")
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def torchvision_reads_videos() -> bool:
    return hasattr(importlib.import_module("torchvision.io"), "VideoReader")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("robocache", "lerobot", "torch", "torchcodec", "av", "datasets", "pyarrow", "diffusers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    if not torchcodec_loads() and found["torchcodec"] != "not installed":
        found["torchcodec"] += ", which cannot be loaded: no FFmpeg libraries"
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "items": sum(run["items"] for run in runs),
        "keys": sum(run["keys"] for run in runs),
        "runs_that_differ": sum(bool(run["wrong"]) for run in runs),
        "runs": runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON of the result")
    parser.add_argument("--data", type=pathlib.Path, help="folder for the datasets; default: a temporary one")
    parser.add_argument(
        "--fps", type=int, nargs="*", default=list(FPS), help="rates of the datasets; none: language only"
    )
    parser.add_argument("--every", type=int, default=1, help="compare every n-th item")
    parser.add_argument("--train", action="store_true", help="train ACT and Diffusion Policy instead")
    parser.add_argument("--steps", type=int, default=100, help="of --train")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ.setdefault("ROBOCACHE_HOME", f"{temporary}/robocache")
        os.environ.setdefault("HF_DATASETS_CACHE", f"{temporary}/datasets")
        folder = args.data or pathlib.Path(temporary)
        result: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "versions": versions()}
        if args.train:
            from lerobot_training import train_all

            result["training"] = train_all(folder, args.steps)
            wrong = sum(not run["equal"] for run in result["training"])
        else:
            runs = compare_all(folder, args.fps, args.every)
            wrong = sum(bool(run["wrong"]) for run in runs)
            result |= summary(runs)
    if args.out:  # results of several calls are kept side by side
        parts = json.loads(args.out.read_text()) if args.out.exists() else []
        args.out.write_text(json.dumps([*parts, result], indent=1, default=str) + "\n")
    print("items", result.get("items"), "runs that differ", wrong)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    sys.exit(main())
