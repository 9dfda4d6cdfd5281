"""Run by a Python that has LeRobot 0.6: a dataset with language columns by LeRobot's own writer, and what LeRobot
resolves at each frame, as JSON.

    python tests/sources/text/lerobot_annotated.py <new folder>
"""

import json
import pathlib
import sys

import numpy as np
from lerobot.annotations.steerable_pipeline.executor import Executor
from lerobot.annotations.steerable_pipeline.reader import iter_episodes
from lerobot.annotations.steerable_pipeline.staging import EpisodeStaging
from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter, speech_atom
from lerobot.datasets.language_render import active_at, emitted_at
from lerobot.datasets.lerobot_dataset import LeRobotDataset

FPS, LENGTHS = 10, (12, 9, 7)
CAMERAS = ("observation.images.top", "observation.images.wrist")


def persistent(style, second, content, role="assistant"):
    return {"role": role, "content": content, "style": style, "timestamp": second, "camera": None, "tool_calls": None}


def staged(seconds):
    """Annotations of an episode; its times are exact, as the writer needs them."""
    plan = [persistent("subtask", seconds[2 * i], f"part {i} größer") for i in range(3)]
    plan += [persistent("plan", seconds[0], "1. reach\n2. grasp"), persistent("memory", seconds[5], "held the cup")]
    plan += [persistent("motion", seconds[1] + 0.025, "move left")]  # between two frames
    plan += [persistent("task_aug", seconds[0], f"task said in way {i}", "user") for i in range(3)]
    vqa = [
        {**persistent("vqa", seconds[4], f"{role} about {camera}", role), "camera": camera}
        for role in ("user", "assistant")
        for camera in CAMERAS
    ]
    said = [persistent("interjection", seconds[6], "stop", "user"), speech_atom(seconds[6], "I stop")]
    return {"plan": plan, "interjections": said, "vqa": vqa}


def main(root: pathlib.Path) -> None:
    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}}
    dataset = LeRobotDataset.create("local/annotated", fps=FPS, features=features, root=root, use_videos=False)
    for length in LENGTHS:
        for frame in range(length):
            dataset.add_frame({"action": np.full(2, frame, np.float32), "task": "pour"})
        dataset.save_episode()
    dataset.finalize()
    staging = root.with_name("staging")
    records = list(iter_episodes(root))
    for record in records[:-1]:  # the last one stays without annotations
        for module, rows in staged(record.frame_timestamps).items():
            EpisodeStaging(staging, record.episode_index).write(module, rows)
    LanguageColumnsWriter().write_all(records, staging, root)
    Executor._ensure_annotation_metadata_in_info(root)
    read = LeRobotDataset("local/annotated", root=root)
    resolved = []
    for item in map(read.__getitem__, range(len(read))):
        t, rows = float(item["timestamp"]), {"persistent": item["language_persistent"]}
        entry = {style: active_at(t, style=style, **rows) for style in ("subtask", "plan", "memory", "motion")}
        for style, role in (("vqa", "user"), ("vqa", "assistant"), ("interjection", "user")):
            for camera in CAMERAS if style == "vqa" else (None,):
                found = emitted_at(t, style=style, role=role, camera=camera, events=item["language_events"], **rows)
                entry["/".join(filter(None, (style, role if camera else None, camera)))] = found
        texts = {name: (found or {}).get("content") or "" for name, found in entry.items()}
        said = emitted_at(t, style=None, tool_name="say", events=item["language_events"], **rows)
        texts["say"] = said["tool_calls"][0]["function"]["arguments"]["text"] if said else ""
        texts["task_aug"] = [row["content"] for row in item["language_persistent"] if row["style"] == "task_aug"]
        resolved.append({"episode": int(item["episode_index"]), "frame": int(item["frame_index"]), **texts})
    print(json.dumps(resolved))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
