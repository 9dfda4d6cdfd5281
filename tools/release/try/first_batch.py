"""Ingests a small dataset, checks the cache and reads one batch: what an installed wheel must be able to do.

python first_batch.py FOLDER      needs NumPy only; with PyTorch the loader gives tensors too
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import robocache

NUM_STEPS, RATE_HZ = 60, 30


def write_dataset(root: Path) -> np.ndarray:
    """Writes one episode in the format of CALVIN, which needs no packages; returns its states."""
    root.mkdir(parents=True)
    states = np.random.default_rng(0).normal(size=(NUM_STEPS, 15))
    for step, state in enumerate(states):
        np.savez(root / f"episode_{step:07d}.npz", robot_obs=state, rel_actions=state[:7] / 2)
    np.save(root / "ep_start_end_ids.npy", np.array([[0, NUM_STEPS - 1]]))
    return states


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "robocache", *words], check=True, stdout=subprocess.DEVNULL)


folder = Path(sys.argv[1])
states = write_dataset(folder / "calvin")
command("ingest", str(folder / "calvin"), str(folder / "run.cache"), "--json")
command("check", str(folder / "run.cache"))

cache = robocache.Cache(folder / "run.cache")
stream = cache.episode(0).streams["robot_obs"]
times_ns = np.asarray(stream.times)
middles_ns = (times_ns[:-1] + times_ns[1:]) // 2  # between two rows: the mean of both, to the rounding of the times
aligned = robocache.align(robocache.Stream(np.asarray(stream.values), times_ns), middles_ns)
expected = (states[:-1] + states[1:]) / 2
if not aligned.valid.all() or not np.allclose(aligned.values.reshape(expected.shape), expected, rtol=0, atol=1e-6):
    raise SystemExit("first_batch: the aligned batch differs from the mean of neighboring rows")
print(f"first_batch: ingest, check and a batch of {len(middles_ns)} aligned rows are right")

for framework in ("numpy",) if importlib.util.find_spec("torch") is None else ("numpy", "torch"):
    windows = {"robot_obs": robocache.Window(deltas=[0.0])}
    loader = robocache.Loader(cache, 8, windows, anchors="robot_obs", shuffle=False, framework=framework)
    rows = np.asarray(next(iter(loader))["robot_obs"]).reshape(8, -1)
    if not np.allclose(rows, states[:8], rtol=0, atol=1e-6):
        raise SystemExit(f"first_batch: the batch of the loader ({framework}) differs from the recorded rows")
    print(f"first_batch: a batch of the loader ({framework}) is right")
