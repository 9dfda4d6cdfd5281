"""Datasets that LeRobot itself records, with every kind of feature, for lerobot_oracle.py."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import shutil
from typing import Any

import numpy as np

HEIGHT, WIDTH = 64, 96
TASKS = ("pick up the cup", "pour", "put it back")
DEPTH = {"is_depth_map": True}
OLD = importlib.metadata.version("lerobot").startswith("0.3.")
"""It writes v2.1, has no depth, and takes the task as an argument."""
AXES = ["height", "width", "channels"]


def features(videos: bool, pictures: bool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "observation.state": {"dtype": "float32", "shape": (6,), "names": [f"joint{i}" for i in range(6)]},
        "action": {"dtype": "float32", "shape": (4,), "names": ["x", "y", "z", "gripper"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "effort": {"dtype": "float64", "shape": (3,), "names": None},
        "load": {"dtype": "float64", "shape": (1,), "names": None},
        "buttons": {"dtype": "int32", "shape": (2,), "names": None},
        "mode": {"dtype": "uint8", "shape": (1,), "names": None},
        "jacobian": {"dtype": "float32", "shape": (2, 3), "names": None},
        "volume": {"dtype": "float32", "shape": (2, 2, 2), "names": None},
        "note": {"dtype": "string", "shape": (1,), "names": None},
    }
    if pictures:
        found["observation.images.wrist"] = {"dtype": "image", "shape": (HEIGHT, WIDTH, 3), "names": AXES}
        for name in () if OLD else ("near", "far"):  # near: meters, far: millimeters
            shape = (HEIGHT, WIDTH, 1)
            found[f"observation.depth.{name}"] = {"dtype": "image", "shape": shape, "names": AXES, "info": dict(DEPTH)}
    if videos:
        found["observation.images.top"] = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": AXES}
        found["observation.images.side"] = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": AXES}
    if videos and not OLD:
        shape = (HEIGHT, WIDTH, 1)
        found["observation.depth.top"] = {"dtype": "video", "shape": shape, "names": AXES, "info": dict(DEPTH)}
    return found


def frame(rng: np.random.Generator, step: int, keys: dict[str, Any]) -> dict[str, Any]:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([(x * 2 + step * 5) % 256, (y * 3 + step * 7) % 256, (x + y + step * 11) % 256], -1)
    noise = rng.integers(0, 20, picture.shape)
    values: dict[str, Any] = {
        "observation.state": rng.standard_normal(6).astype(np.float32),
        "action": rng.standard_normal(4).astype(np.float32),
        "next.reward": rng.standard_normal(1).astype(np.float32),
        "next.done": np.array([step % 7 == 6]),
        "effort": rng.standard_normal(3),
        "load": rng.standard_normal(1),
        "buttons": rng.integers(-9, 9, 2).astype(np.int32),
        "mode": rng.integers(0, 255, 1).astype(np.uint8),
        "jacobian": rng.standard_normal((2, 3)).astype(np.float32),
        "volume": rng.standard_normal((2, 2, 2)).astype(np.float32),
        "note": f"step {step}",
        "observation.images.wrist": rng.integers(0, 256, picture.shape, dtype=np.uint8),
        "observation.images.top": np.minimum(picture + noise, 255).astype(np.uint8),
        "observation.images.side": np.minimum(picture[::-1] + noise, 255).astype(np.uint8),
        "observation.depth.near": (rng.random((HEIGHT, WIDTH, 1)) * 5).astype(np.float32),
        "observation.depth.far": rng.integers(0, 60000, (HEIGHT, WIDTH, 1)).astype(np.uint16),
        "observation.depth.top": (500 + 10 * x + 3 * y + step).astype(np.uint16)[..., None],
    }
    return {key: values[key] for key in keys}


def record(root: pathlib.Path, fps: int, lengths: tuple[int, ...], videos: bool = True, pictures: bool = True) -> None:
    """Every episode has several tasks."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shutil.rmtree(root, ignore_errors=True)
    keys = features(videos, pictures)
    dataset = LeRobotDataset.create(
        f"local/{root.name}", fps=fps, features=keys, root=root, robot_type="so100", use_videos=videos
    )
    rng = np.random.default_rng(fps)
    for episode, length in enumerate(lengths):
        for step in range(length):
            task = TASKS[(episode + step // 10) % len(TASKS)]
            values = frame(rng, step + 100 * episode, keys)
            if OLD:
                dataset.add_frame(values, task=task)
            else:
                dataset.add_frame({**values, "task": task})
        dataset.save_episode()
    if not OLD:
        dataset.finalize()


def stored(kind: Any) -> Any:
    """The type with text in the place of JSON: pyarrow makes arrays of the latter only by a cast."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_list(kind):
        return pa.list_(stored(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, stored(field.type), field.nullable) for field in kind])
    return kind


def annotate(root: pathlib.Path) -> None:
    """Adds language columns, as LeRobot's annotation pipeline stores them."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from lerobot.datasets import language

    info = json.loads((root / "meta/info.json").read_text())
    for path in sorted((root / "data").glob("*/*.parquet")):
        table = pq.read_table(path)
        persistent, events = [], []
        for row, second in enumerate(table.column("timestamp").to_pylist()):
            said = {"role": "assistant", "content": f"part {row // 5}", "style": "subtask", "timestamp": second}
            persistent.append([{**said, "camera": None, "tool_calls": None}])
            call = json.dumps({"type": "function", "function": {"name": "say", "arguments": {"text": f"row {row}"}}})
            event = {"role": "user", "content": None, "style": "vqa", "camera": "observation.images.top"}
            events.append([{**event, "tool_calls": [call]}] if row % 4 == 0 else [])
        for name, rows, kind in (
            ("language_persistent", persistent, language.language_persistent_arrow_type()),
            ("language_events", events, language.language_events_arrow_type()),
        ):
            table = table.append_column(name, pa.array(rows, stored(kind)).cast(kind))
        pq.write_table(table.replace_schema_metadata(None), path)
    for name, entry in language.language_feature_info().items():
        info["features"][name] = {**entry, "shape": list(entry["shape"])}
    (root / "meta/info.json").write_text(json.dumps(info))
