"""Small datasets of every format, written with that format's own library, and what must come back from them."""

import dataclasses
import fractions
import json
import pathlib
from typing import Any

import adapter_logs
import numpy as np
import pytest
import robocache

LENGTHS = (5, 1, 12)
TASKS = ("pick up the cup", "pour", "pick up the cup")


@dataclasses.dataclass
class Written:
    """``streams``: per episode, {name: (values, times) or (values, times, offsets)}."""

    path: pathlib.Path
    options: dict[str, Any]
    streams: list[dict[str, tuple]]
    tasks: list[str | None]
    metadata: dict[str, Any]
    meta: list[dict[str, Any]]
    specs: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


def times_of(rows, rate_hz):
    """Row i at i / rate seconds, in exact arithmetic."""
    return np.array([round(fractions.Fraction(i * 10**9) / fractions.Fraction(str(rate_hz))) for i in rows], np.int64)


def arm(rng, rows):
    return {
        "state": rng.standard_normal((rows, 4)).astype(np.float32),
        "action": rng.standard_normal((rows, 3)).astype(np.float32),
    }


def pictures(rng, rows, height=16, width=24):
    return rng.integers(0, 256, (rows, height, width, 3), dtype=np.uint8)


def robomimic(folder, rng):
    import h5py

    path = folder / "low_dim.hdf5"
    streams = []
    env_args = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
    order = (0, 10, 2)  # demos come back by number, not by name
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(LENGTHS)
        data.attrs["env_args"] = json.dumps(env_args)
        by_number = {}
        for number, rows in zip(order, LENGTHS, strict=True):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = rows
            demo.attrs["model_file"] = "<mujoco/>"
            values = {
                "actions": rng.standard_normal((rows, 7)),
                "rewards": rng.standard_normal(rows),
                "dones": np.arange(rows) == rows - 1,
                "obs/eef_pos": rng.standard_normal((rows, 3)),
                "obs/agentview_image": pictures(rng, rows),
            }
            values["dones"] = values["dones"].astype(np.int64)
            for name, array in values.items():
                demo.create_dataset(name, data=array, compression="gzip")
                if name.startswith("obs/"):
                    demo.create_dataset(f"next_{name}", data=array)
            by_number[number] = {name: (array, times_of(range(rows), 20)) for name, array in values.items()}
        streams = [by_number[number] for number in sorted(order)]
        file.create_dataset("mask/train", data=np.array([b"demo_0", b"demo_10"]))
    metadata = {"env_args": env_args, "masks": {"train": ["demo_0", "demo_10"]}, "total": sum(LENGTHS)}
    meta = [
        {"demo": "demo_0", "masks": ["train"], "model_file": "<mujoco/>"},
        {"demo": "demo_2", "masks": []},
        {"demo": "demo_10", "masks": ["train"]},
    ]
    specs = {"obs/agentview_image": {"kind": "image", "shape": (16, 24, 3), "rate_hz": 20.0}}
    return Written(path, {}, streams, ["Lift"] * 3, metadata, meta, specs)


def lerobot_info(version, features, fps=30):
    return {
        "codebase_version": version,
        "fps": fps,
        "features": features,
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 2,
        "chunks_size": 1000,
        "robot_type": "so100",
        "splits": {"train": f"0:{len(LENGTHS)}"},
    }


FEATURES = {
    "observation.state": {"dtype": "float32", "shape": [4], "names": {"motors": ["a", "b", "c", "d"]}},
    "action": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "observation.image": {"dtype": "image", "shape": [3, 16, 24], "names": ["channels", "height", "width"]},
    "observation.video": {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{n: {"dtype": "int64", "shape": [1]} for n in ("frame_index", "episode_index", "index", "task_index")},
}


def png(picture):
    import io

    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def write_video(path, frames, fps=30):
    """Lossless, so that the frames come back exactly."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=fps, options={"crf": "0", "g": "4", "bf": "0"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "rgb24"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def lerobot_table(rng, episode, rows, first, seconds=None):
    """The Parquet table of an episode and the streams in it."""
    import pyarrow as pa

    values = arm(rng, rows)
    images, done = pictures(rng, rows), np.arange(rows) == rows - 1
    frame = np.arange(rows)
    table = pa.table(
        {
            "observation.state": pa.array(list(values["state"]), pa.list_(pa.float32())),
            "action": pa.array(list(values["action"]), pa.list_(pa.float32(), 3)),
            "observation.image": pa.array([{"bytes": png(picture), "path": None} for picture in images]),
            "next.done": pa.array(done),
            "timestamp": pa.array((frame / 30 if seconds is None else seconds).astype(np.float32)),
            "frame_index": pa.array(frame),
            "episode_index": pa.array(np.full(rows, episode)),
            "index": pa.array(frame + first),
            "task_index": pa.array(np.full(rows, episode % 2)),
        }
    )
    times = times_of(range(rows), 30)
    streams = {
        "observation.state": (values["state"], times),
        "action": (values["action"], times),
        "observation.image": (images, times),
        "next.done": (done[:, None], times),
    }
    return table, streams


LEROBOT_SPECS = {
    "observation.state": {"names": ("a", "b", "c", "d"), "rate_hz": 30.0, "dtype": "float32"},
    "observation.image": {"kind": "image", "shape": (16, 24, 3)},
    "observation.video": {"kind": "image", "shape": (32, 48, 3)},
}


def lerobot_v21(folder, rng):
    import pyarrow.parquet as pq

    root = folder / "v21"
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    streams, first = [], 0
    for episode, rows in enumerate(LENGTHS):
        table, found = lerobot_table(rng, episode, rows, first)
        pq.write_table(table, root / f"data/chunk-000/episode_{episode:06d}.parquet")
        frames = pictures(rng, rows, 32, 48)
        write_video(root / f"videos/chunk-000/observation.video/episode_{episode:06d}.mp4", frames)
        found["observation.video"] = (frames, found["action"][1])
        streams.append(found)
        first += rows
    (root / "meta/info.json").write_text(json.dumps(lerobot_info("v2.1", FEATURES)))
    lines = {
        "tasks.jsonl": [{"task_index": i, "task": TASKS[i]} for i in (0, 1)],
        "episodes.jsonl": [{"episode_index": i, "tasks": [TASKS[i]], "length": rows} for i, rows in enumerate(LENGTHS)],
        "episodes_stats.jsonl": [{"episode_index": i, "stats": {"action": {"min": [i]}}} for i in range(3)],
    }
    for name, rows in lines.items():
        (root / "meta" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    meta = [{"episode_index": i, "tasks": [TASKS[i]], "stats": {"action": {"min": [i]}}} for i in range(3)]
    return Written(root, {}, streams, list(TASKS), {"tasks": {"0": TASKS[0], "1": TASKS[1]}}, meta, LEROBOT_SPECS)


def lerobot_v30(folder, rng):
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = folder / "v30"
    for name in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / name).mkdir(parents=True)
    tables, streams, frames, rows_of_meta, first = [], [], [], [], 0
    for episode, rows in enumerate(LENGTHS):
        table, found = lerobot_table(rng, episode, rows, first)
        film = pictures(rng, rows, 32, 48)
        found["observation.video"] = (film, found["action"][1])
        tables.append(table)
        streams.append(found)
        frames.append(film)
        key = "videos/observation.video"
        rows_of_meta.append(
            {
                "episode_index": episode,
                "tasks": [TASKS[episode]],
                "length": rows,
                **{"data/chunk_index": 0, "data/file_index": 0, f"{key}/chunk_index": 0, f"{key}/file_index": 0},
                **{f"{key}/from_timestamp": first / 30, f"{key}/to_timestamp": (first + rows) / 30},
                "stats/action/min": [float(episode)],
            }
        )
        first += rows
    with pq.ParquetWriter(root / "data/chunk-000/file-000.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)  # one row group per episode
    write_video(root / "videos/observation.video/chunk-000/file-000.mp4", np.concatenate(frames))
    pq.write_table(pa.Table.from_pylist(rows_of_meta), root / "meta/episodes/chunk-000/file-000.parquet")
    pd.DataFrame({"task_index": [0, 1]}, index=[TASKS[0], TASKS[1]]).to_parquet(root / "meta/tasks.parquet")
    (root / "meta/info.json").write_text(json.dumps(lerobot_info("v3.0", FEATURES)))
    (root / "meta/stats.json").write_text(json.dumps({"action": {"mean": [0.5]}}))
    meta = [{"episode_index": i, "stats": {"action": {"min": [float(i)]}}} for i in range(3)]
    metadata = {"stats": {"action": {"mean": [0.5]}}, "tasks": {"0": TASKS[0], "1": TASKS[1]}}
    return Written(root, {}, streams, list(TASKS), metadata, meta, LEROBOT_SPECS)


def zarr_arrays(rng, timestamps):
    total = sum(LENGTHS)
    arrays = {**arm(rng, total), "img": pictures(rng, total)}
    if timestamps:
        arrays["timestamp"] = 1.7e9 + np.cumsum(rng.uniform(0.01, 0.2, total))
    return arrays


def zarr_expected(path, arrays, options):
    ends = np.cumsum(LENGTHS)
    streams = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        if "timestamp" in arrays:
            times = np.array([round(fractions.Fraction(t) * 10**9) for t in arrays["timestamp"][begin:end]], np.int64)
        else:
            times = times_of(range(end - begin), options["rate_hz"])
        streams.append({k: (v[begin:end], times) for k, v in arrays.items() if k != "timestamp"})
    meta = [{"begin": int(b), "end": int(e)} for b, e in zip([0, *ends[:-1]], ends, strict=True)]
    metadata = {"num_steps": int(ends[-1]), "attributes": {"robot": "ur5"}}
    return Written(path, options, streams, [None] * 3, metadata, meta, {"img": {"kind": "image"}})


def write_zarr(store, arrays, zarr_format):
    import zarr

    root = zarr.open_group(store, mode="w", zarr_format=zarr_format, attributes={"robot": "ur5"})
    for name, array in arrays.items():
        root.create_array(f"data/{name}", data=array, chunks=(4, *array.shape[1:]))
    root.create_array("meta/episode_ends", data=np.cumsum(LENGTHS).astype(np.int64))


def zarr_v2_with_times(folder, rng):
    path, arrays = folder / "replay.zarr", zarr_arrays(rng, True)
    write_zarr(str(path), arrays, 2)
    return zarr_expected(path, arrays, {})


def zarr_v3_at_a_rate(folder, rng):
    path, arrays = folder / "replay3.zarr", zarr_arrays(rng, False)
    write_zarr(str(path), arrays, 3)
    return zarr_expected(path, arrays, {"rate_hz": 12.5})


def zarr_zip(folder, rng):
    import zarr

    path, arrays = folder / "replay.zarr.zip", zarr_arrays(rng, False)
    store = zarr.storage.ZipStore(str(path), mode="w")
    write_zarr(store, arrays, 2)
    store.close()
    return zarr_expected(path, arrays, {"rate_hz": 10})


def calvin(folder, rng):
    root = folder / "task_D_D"
    begins = (100, 300, 305)
    streams, meta = [], []
    for split, chosen in (("training", (0, 1)), ("validation", (2,))):
        (root / split / "lang_annotations").mkdir(parents=True)
        ranges = []
        for i in chosen:
            rows, begin = LENGTHS[i], begins[i]
            values = {
                "rgb_static": pictures(rng, rows),
                "depth_static": rng.random((rows, 16, 24)).astype(np.float32),
                "robot_obs": rng.standard_normal((rows, 15)),
                "rel_actions": rng.standard_normal((rows, 7)),
            }
            for row in range(rows):
                step = {name: array[row] for name, array in values.items()}
                (np.savez_compressed if row % 2 else np.savez)(root / split / f"episode_{begin + row:07d}.npz", **step)
            ranges.append((begin, begin + rows - 1))
            streams.append({name: (array, times_of(range(rows), 30)) for name, array in values.items()})
        np.save(root / split / "ep_start_end_ids.npy", np.array(ranges))
        if split == "training":
            language = {
                "language": {"ann": ["open the drawer"], "task": ["open_drawer"], "emb": rng.random((1, 1, 384))},
                "info": {"episodes": [], "indx": [(101, 103)]},
            }
            np.save(root / split / "lang_annotations/auto_lang_ann.npy", language)
    said = [{"begin": 1, "end": 4, "text": "open the drawer", "task": "open_drawer"}]
    for i, texts in enumerate((["", "open the drawer", ""], [""], [""])):
        rows = [0, 1, 4][: len(texts)]
        streams[i]["language"] = adapter_logs.spoken(texts, times_of(rows, 30))
    meta = [
        {"split": "training", "first_step": 100, "last_step": 104, "language": said},
        {"split": "training", "first_step": 300, "language": []},
        {"split": "validation", "first_step": 305, "last_step": 316},
    ]
    specs = {"rgb_static": {"kind": "image"}, "depth_static": {"kind": "depth"}, "robot_obs": {"rate_hz": 30.0}}
    specs["language"] = {"kind": "text"}
    tasks = ["open the drawer", None, None]
    return Written(root, {}, streams, tasks, {"splits": ["training", "validation"]}, meta, specs)


def rlds(folder, rng):
    return Written(*adapter_logs.rlds(folder, rng, LENGTHS, TASKS, times_of, png))


def mcap(folder, rng):
    return Written(*adapter_logs.mcap_folder(folder, rng))


def ros2_bag(folder, rng):
    return Written(*adapter_logs.ros2_bag(folder, rng))


CASES = {
    "robomimic": (robomimic, "robomimic", ("h5py",)),
    "lerobot v2.1": (lerobot_v21, "lerobot", ("pyarrow", "av", "PIL")),
    "lerobot v3.0": (lerobot_v30, "lerobot", ("pyarrow", "av", "PIL", "pandas")),
    "zarr v2": (zarr_v2_with_times, "zarr", ("zarr",)),
    "zarr v3": (zarr_v3_at_a_rate, "zarr", ("zarr",)),
    "zarr zip": (zarr_zip, "zarr", ("zarr",)),
    "mcap": (mcap, "mcap", ("mcap", "mcap_ros2", "PIL")),
    "ros2 bag": (ros2_bag, "mcap", ("mcap", "mcap_ros2", "PIL")),
    "calvin": (calvin, "calvin", ()),
    "rlds": (rlds, "rlds", ("google.protobuf", "google_crc32c", "PIL")),
}
"""Name: who writes it, the format it must be recognized as, the packages that takes."""


def opened(name, folder, rng):
    """The dataset of a case, written into the folder and opened; skips the test where its packages are missing."""
    write, _, packages = CASES[name]
    for package in packages:
        pytest.importorskip(package, minversion="3" if package == "zarr" else None)
    (folder / "source").mkdir()
    written = write(folder / "source", rng)
    return robocache.open(written.path, **written.options)
