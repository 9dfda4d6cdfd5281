"""Compares robocache.datasets.robomimic.SequenceDataset with robomimic's own class, item by item.

    python tests/loader/robomimic_oracle.py --out benchmarks/results/oracles/robomimic_oracle.json

Needs the package robomimic (0.3, with torch, h5py, tqdm and termcolor). Every key of every item must be equal: value,
shape and dtype; and so must the set of keys and the statistics of observations, these to 1e-5. The exit status is 1 if
something differs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

RATES = (10, 15, 20, 24, 30, 60)
LENGTHS = (41, 5, 1, 23, 60, 12, 7, 34, 2, 18, 9)
MASKS = {"train": (0, 3, 4, 10), "valid": (1, 7)}
OBSERVATIONS = {
    "eef_pos": ("float64", (3,)),
    "quat": ("float32", (4,)),
    "mode": ("int64", (2,)),
    "cam": ("uint8", (6, 5, 3)),
}
DATASET_KEYS = ("actions", "rewards", "dones", "states")
WINDOWS = [
    {"frame_stack": stack, "seq_length": length, "pad_frame_stack": before, "pad_seq_length": after}
    for stack, length in ((1, 1), (1, 10), (3, 1), (2, 16), (4, 6), (10, 80))
    for before, after in ((True, True), (False, True), (True, False), (False, False))
]


def write(path: pathlib.Path, rate: int) -> None:
    import h5py

    rng = np.random.default_rng(rate)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": rate}})
        for number, count in enumerate(LENGTHS):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = count
            demo["actions"] = rng.normal(size=(count, 7))
            demo["rewards"], demo["dones"] = rng.uniform(size=count), (np.arange(count) == count - 1).astype(np.int64)
            demo["states"] = rng.normal(size=(count, 11)).astype(np.float32)
            for key, (dtype, shape) in OBSERVATIONS.items():
                rows = rng.normal(100, 50, (count + 1, *shape)).clip(0, 255).astype(dtype)
                demo[f"obs/{key}"], demo[f"next_obs/{key}"] = rows[:-1], rows[1:]
        for name, demos in MASKS.items():
            file[f"mask/{name}"] = np.array([f"demo_{number}".encode() for number in demos])


def settings() -> list[dict[str, Any]]:
    """Windows under each of the other options, and these options under one window."""
    found = []
    for window, filter_key in itertools.product(WINDOWS, (None, *MASKS)):
        kept = LENGTHS if filter_key is None else [LENGTHS[i] for i in MASKS[filter_key]]
        needed = 0 if window["pad_frame_stack"] else window["frame_stack"] - 1
        needed += 0 if window["pad_seq_length"] else window["seq_length"] - 1
        if min(kept) > needed:  # robomimic asserts it, or fails at the item
            found.append({**window, "filter_by_attribute": filter_key})
    plain = {"frame_stack": 2, "seq_length": 8}
    both = itertools.product((False, True), repeat=2)
    found += [{**plain, "get_pad_mask": mask, "load_next_obs": after} for mask, after in both]
    found += [{**plain, "hdf5_cache_mode": mode} for mode in ("all", "low_dim")]
    found += [{"hdf5_normalize_obs": True, "hdf5_cache_mode": mode} for mode in ("all", "low_dim")]
    return found


def differences(ours: Any, theirs: Any, where: str, close: bool) -> list[str]:
    """What differs, key by key. ``close``: numbers of observations may be rounded differently."""
    if isinstance(theirs, dict):
        if set(ours) != set(theirs):
            return [f"{where}: keys {sorted(set(ours) ^ set(theirs))}"]
        return [line for key in theirs for line in differences(ours[key], theirs[key], f"{where}/{key}", close)]
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return [f"{where}: {ours.dtype} {ours.shape}, expected {theirs.dtype} {theirs.shape}"]
    loose = close and "obs" in where
    equal = np.allclose(ours, theirs, rtol=1e-5, atol=1e-5) if loose else np.array_equal(ours, theirs)
    return [] if equal else [f"{where}: values"]


def compare(source: pathlib.Path, cache: Any, rate: int, options: dict[str, Any]) -> dict[str, Any]:
    from robocache.datasets.robomimic import SequenceDataset as Ours
    from robomimic.utils.dataset import SequenceDataset as Theirs

    normalized = bool(options.get("hdf5_normalize_obs"))
    keys = [key for key, (_, shape) in OBSERVATIONS.items() if len(shape) == 1 or not normalized]
    given = {"obs_keys": keys, "dataset_keys": DATASET_KEYS, "hdf5_cache_mode": "low_dim", **options}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        theirs = Theirs(hdf5_path=str(source), hdf5_use_swmr=False, **given)
    ours = Ours(hdf5_path=cache, hdf5_use_swmr=False, **given)
    wrong = [] if len(ours) == len(theirs) else [f"{len(ours)} items, expected {len(theirs)}"]
    if normalized:
        wrong += differences(ours.get_obs_normalization_stats(), theirs.get_obs_normalization_stats(), "obs", True)
    assert ours.get_dataset_sampler() is theirs.get_dataset_sampler() is None
    for i in range(len(theirs)):
        wrong += differences(ours[i], theirs[i], f"item {i}", normalized)
    return {"rate_hz": rate, "options": options, "items": len(theirs), "wrong": wrong[:5]}


def versions() -> dict[str, str]:
    import robomimic

    found = {"python": platform.python_version(), "machine": platform.machine(), "robomimic": robomimic.__version__}
    return found | {name: importlib.metadata.version(name) for name in ("robocache", "torch", "h5py", "numpy")}


def commit() -> dict[str, Any]:
    def git(*words: str) -> str:
        folder = pathlib.Path(__file__).parent
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False).stdout.strip()

    return {"commit": git("rev-parse", "HEAD") or "unknown", "modified": bool(git("status", "--porcelain", "-uno"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON of the result")
    args = parser.parse_args()
    import robocache
    import robomimic.utils.obs_utils as obs_utils

    low_dim = [key for key in OBSERVATIONS if key != "cam"]
    runs = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.environ.setdefault("ROBOCACHE_HOME", f"{folder}/home")
        obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": low_dim, "rgb": ["cam"]}})
        for rate in RATES:
            source = pathlib.Path(folder) / f"{rate}.hdf5"
            write(source, rate)
            cache = robocache.ingest(source, f"{folder}/{rate}.cache", next_obs=True)
            runs += [compare(source, cache, rate, options) for options in settings()]
    wrong = [run for run in runs if run["wrong"]]
    result = {"command": " ".join(["python", *sys.argv]), **commit(), "versions": versions()}
    result |= {"items": sum(run["items"] for run in runs), "runs_that_differ": len(wrong)}
    if args.out:
        lines = ",\n".join("  " + json.dumps(run) for run in runs)
        args.out.write_text(json.dumps(result, indent=1)[:-2] + f',\n "runs": [\n{lines}\n ]\n}}\n')
    for run in wrong:
        print(run)
    print("items", result["items"], "of", len(runs), "runs; that differ:", len(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
