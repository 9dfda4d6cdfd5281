"""A small cache with what features are made of: two arms, a pose, a gripper, angles, an instruction that changes."""

import numpy as np
import robocache
from scipy.spatial.transform import Rotation

RATE = 50
STEP_NS = 10**9 // RATE
SPECS = {
    "left": robocache.StreamSpec("left", "float32", (7,), rate_hz=RATE),
    "right": robocache.StreamSpec("right", "float32", (7,), rate_hz=RATE),
    "grip": robocache.StreamSpec("grip", "float64", (), rate_hz=RATE),
    "count": robocache.StreamSpec("count", "int16", (2,), rate_hz=RATE),
    "tcp": robocache.StreamSpec("tcp", "float32", (7,), rate_hz=RATE, method=[(3, 7, "slerp_xyzw")]),
    "place": robocache.StreamSpec("place", "float64", (3,), rate_hz=RATE),
    "turn": robocache.StreamSpec("turn", "float64", (4,), rate_hz=RATE, method="slerp_wxyz"),
    "heading": robocache.StreamSpec("heading", "float32", (2,), rate_hz=RATE, method="angle"),
    "fast": robocache.StreamSpec("fast", "float32", (3,), rate_hz=4 * RATE),
    "say": robocache.StreamSpec("say", "uint8", (), "text"),
    "cam": robocache.StreamSpec("cam", "uint8", (4, 5, 3), "image", rate_hz=RATE),
}
TEXTS = ["reach for the cup", "grasp it", "größer 杯"]


def rows_of(episode, seed=0):
    """All arrays of an episode by name, and its first time."""
    rng = np.random.default_rng([seed, episode])
    n = 40 + 9 * episode
    turns = Rotation.random(n, rng=rng).as_quat()
    rows = {
        "left": rng.normal(3, 2, (n, 7)), "right": rng.normal(-1, 5, (n, 7)), "grip": rng.uniform(0, 1, n),
        "count": rng.integers(-500, 500, (n, 2)), "tcp": np.concatenate([rng.normal(0, 2, (n, 3)), turns * 1.7], 1),
        "place": rng.normal(0, 3, (n, 3)), "turn": np.roll(Rotation.random(n, rng=rng).as_quat(), 1, axis=1),
        "heading": rng.uniform(-np.pi, np.pi, (n, 2)), "fast": rng.normal(0, 1, (4 * n, 3)),
        "cam": rng.integers(0, 256, (n, 4, 5, 3)),
    }  # fmt: skip
    return {name: x.astype(SPECS[name].dtype) for name, x in rows.items()}, (episode + 1) * 10**12


def make_cache(folder, episodes=5, seed=0, **options):
    writer = robocache.CacheWriter(folder, SPECS, fingerprint=f"features {seed} {episodes}", **options)
    for e in range(episodes):
        rows, begin = rows_of(e, seed)
        streams = {}
        for name, values in rows.items():
            times = begin + np.arange(len(values)) * (STEP_NS // 4 if name == "fast" else STEP_NS)
            streams[name] = robocache.EpisodeStream(SPECS[name], values, times)
        said = begin + np.array([0, 10, 25]) * STEP_NS
        streams["say"] = robocache.EpisodeStream(SPECS["say"], TEXTS, said)
        writer.add(robocache.Episode(e, streams, f"task {e % 2}" if e != 2 else None))
    return writer.commit()


def windows_of(batch, name, steps, seed=0):
    """Rows of a stream at ``steps`` from the anchors of a batch, ``(B, T, ...)``, the edge repeated; and what is
    outside, ``(B, T)``."""
    values, outside = [], []
    for episode, anchor in zip(batch["episode_index"].tolist(), batch["anchor_ns"].tolist(), strict=True):
        rows, begin = rows_of(episode, seed)
        wanted = (anchor - begin) // STEP_NS + np.array(steps)
        inside = np.clip(wanted, 0, len(rows[name]) - 1)
        values.append(rows[name][inside])
        outside.append(wanted != inside)
    return np.array(values), np.array(outside)
