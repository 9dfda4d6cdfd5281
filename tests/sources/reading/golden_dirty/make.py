"""Writes the golden files of cases.py, each with its format's own library, and table.json, which says what they are.

    python tests/sources/reading/golden_dirty/make.py

The files are committed, so that what readers make of them cannot change with the writers' versions.
"""

import fractions
import json
import math
import pathlib
import shutil
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent))

import adapter_logs as logs  # noqa: E402
from golden_dirty import cases  # noqa: E402
from golden_dirty.case import RATE_HZ  # noqa: E402

FIRST_STEP = 100


def to_ns(time_s):
    return round(fractions.Fraction(time_s) * 10**9) if math.isfinite(time_s) and abs(time_s) < 9e9 else None


def values_of(case, count, scale=1.0):
    """Row i: 2 i, and 2 i + 1 or what is planted there."""
    values = np.arange(2.0 * count).reshape(count, 2) * scale
    for row, value in case.planted.items():
        values[row, 1] = value
    return values


def write_zarr(folder, case):
    import zarr

    path = folder / f"{case.name}.zarr.zip"
    count, whole = len(case.times_s), case.extra.get("integers")
    times = np.array([to_ns(t) for t in case.times_s], np.int64) if whole else np.array(case.times_s, np.float64)
    store = zarr.storage.ZipStore(str(path), mode="w")
    root = zarr.open_group(store, mode="w", zarr_format=2)
    root.create_array("data/state", data=values_of(case, count), chunks=(16, 2), compressors=None)
    root.create_array("data/timestamp", data=times, chunks=(16,), compressors=None)
    root.create_array("meta/episode_ends", data=np.array([count]), compressors=None)
    store.close()
    return path, case.times_s


def twist(values, time_ns):
    linear, angular = [*values, values[0] + 2], [values[0], -values[0], values[0] / 2]
    return {"header": logs.stamp(time_ns), "twist": {"linear": logs.xyz(linear), "angular": logs.xyz(angular)}}


def write_mcap_file(path, case, times_s, arm_s):
    log, values = logs.Log(path), values_of(case, len(times_s))
    log_times_s = case.extra.get("log_times_s", [abs(t) for t in times_s])
    for i, time_s in enumerate(times_s):
        kind, message = "geometry_msgs/msg/TwistStamped", twist(values[i], to_ns(time_s))
        if "joints" in case.extra:
            kind, header = "sensor_msgs/msg/JointState", logs.stamp(to_ns(time_s))
            names = case.extra["joints"][i]
            message = {"header": header, "name": names, "position": values[i].tolist(), "velocity": [], "effort": []}
        log.write("/state", kind, message, to_ns(log_times_s[i]))
    for i, time_s in enumerate(arm_s):
        message = twist([2.0 * i, 2.0 * i + 1], to_ns(time_s))
        log.write("/arm", "geometry_msgs/msg/TwistStamped", message, to_ns(time_s))
    log.close()


def write_mcap(folder, case):
    arm_s, files = case.extra.get("arm", []), case.extra.get("files")
    if files is None:
        path = folder / f"{case.name}.mcap"
        write_mcap_file(path, case, case.times_s, arm_s)
    else:
        path = folder / case.name
        path.mkdir()
        for i, times_s in enumerate(files):
            write_mcap_file(path / f"run_{i}.mcap", case, times_s, arm_s)
    late_s = fractions.Fraction(7, 1000)  # adapter_logs.Log logs 7 ms after the stamp
    return path, [fractions.Fraction(t) + late_s for t in case.extra.get("log_times_s", [])] or case.times_s


def write_robomimic(folder, case):
    import h5py

    path, count = folder / f"{case.name}.hdf5", len(case.times_s)
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": RATE_HZ}})
        for i, scale in enumerate(case.extra.get("scales", [1.0])):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = case.extra.get("num_samples", count)
            demo["actions"] = values_of(case, count, scale)
            demo["rewards"] = np.arange(float(case.extra.get("rewards", count)))
    return path, case.times_s


def write_lerobot(folder, case):
    import pyarrow as pa
    import pyarrow.parquet as pq

    root, count = folder / case.name, len(case.times_s)
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    frames = np.array(case.extra.get("frames", range(count)))
    rows = [None if i == case.extra.get("null") else row for i, row in enumerate(values_of(case, count))]
    columns = {
        "observation.state": pa.array(rows, pa.list_(pa.float32())),
        "timestamp": pa.array(np.array(case.times_s, np.float32)),
        "frame_index": pa.array(frames),
        "episode_index": pa.array(np.zeros(count, np.int64)),
        "task_index": pa.array(np.zeros(count, np.int64)),
    }
    pq.write_table(pa.table(columns), root / "data/chunk-000/episode_000000.parquet", compression="none")
    features = {"observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]}}
    info = {"codebase_version": "v2.1", "fps": case.extra.get("fps", 30), "features": features}
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "pour"}) + "\n")
    episode = {"episode_index": 0, "tasks": ["pour"], "length": case.extra.get("length", count)}
    (root / "meta/episodes.jsonl").write_text(json.dumps(episode) + "\n")
    if np.array_equal(np.array(case.times_s, np.float32), (frames / 30).astype(np.float32)):
        return root, [fractions.Fraction(int(i), 30) for i in frames]
    return root, [float(np.float32(t)) for t in case.times_s]


def write_calvin(folder, case):
    root, count = folder / case.name, len(case.times_s)
    root.mkdir()
    for i, row in enumerate(values_of(case, count)):
        if i not in case.extra.get("missing", ()):
            path = root / f"episode_{FIRST_STEP + i:07d}.npz"
            np.savez(path, robot_obs=np.append(row, 0.0) if i == case.extra.get("wide") else row)
            if i == case.extra.get("cut"):
                path.write_bytes(path.read_bytes()[:100])
    np.save(root / "ep_start_end_ids.npy", np.array([[FIRST_STEP, FIRST_STEP + count - 1]]))
    return root, [fractions.Fraction(i, 30) for i in range(count)]


def write_rlds(folder, case):
    root, count = folder / case.name, len(case.times_s)
    root.mkdir()
    step = logs.tree(observation=logs.tree(state=logs.tensor("float32", 2)), reward=logs.tensor("float32"))
    (root / "features.json").write_text(json.dumps(logs.tree(steps={"sequence": {"feature": step}})))
    state = values_of(case, count).astype(np.float32).ravel()[: case.extra.get("values")]
    rewards = case.extra.get("reward", count)
    stored = {"steps/observation/state": state}
    if rewards is not None:
        stored["steps/reward"] = np.arange(rewards, dtype=np.float32)
    record = logs.tfrecord(logs.make_example(stored))
    damaged = bytearray(record)
    if "flip" in case.extra:
        damaged[case.extra["flip"]] ^= 1
    (root / "golden-train.tfrecord-00000-of-00001").write_bytes(record * case.episode + damaged)
    return root, [fractions.Fraction(i, RATE_HZ) for i in range(count)]


WRITERS = {
    "zarr": write_zarr,
    "mcap": write_mcap,
    "robomimic": write_robomimic,
    "lerobot": write_lerobot,
    "calvin": write_calvin,
    "rlds": write_rlds,
}


def row_of_table(format, case, path, times_s):
    """A case as JSON: ``times_ns`` of every row, null where there is none."""
    stream = cases.STREAMS[format]
    rate_hz = 30 if format in ("lerobot", "calvin") else RATE_HZ
    repairs = []
    for repair, rows, counts, *options in case.repairs:
        times = [to_ns(fractions.Fraction(row, rate_hz)) for row in rows] if options else None
        repairs.append({"repair": repair, "options": dict(*options), "rows": rows, "counts": counts, "times_ns": times})
    findings = []
    for kind, row, count, *rest in case.findings:
        on, episode = (*rest, *(stream, case.episode)[len(rest) :])
        findings.append({"kind": kind, "stream": on, "episode": episode, "row": row, "count": count})
    return {
        "name": f"{format} {case.name}",
        "format": format,
        "path": str(path),
        "options": case.options,
        "episode": case.episode,
        "stream": stream,
        "times_ns": [to_ns(t) for t in times_s],
        "strict": case.strict,
        "repairs": repairs,
        "counted": case.extra.get("counted", stream),
        "refuses": [{"repair": repair, "message": message} for repair, message in case.refuses],
        "findings": findings,
    }


def make(out):
    """Writes everything below ``out``, and returns the table."""
    table = []
    for format, listed in cases.CASES.items():
        folder = out / format
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for case in listed:
            path, times_s = WRITERS[format](folder, case)
            table.append(row_of_table(format, case, path.relative_to(out), times_s))
    return table


if __name__ == "__main__":
    text = ",\n".join(json.dumps(row) for row in make(ROOT))
    (ROOT / "table.json").write_text(f"[\n{text}\n]\n")
