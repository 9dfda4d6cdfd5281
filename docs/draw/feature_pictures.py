"""Pictures of docs/features.md: rotations, normalization and edges, drawn from batches of a loader."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import robocache

RAW, OUT, BAD, TRUTH = "#30343b", "#0b6bcb", "#f4a261", "#2a9d5c"
RATE = 20


def batch_of(values: np.ndarray, features: dict[str, robocache.Feature], method: Any = None, **options: Any) -> Any:
    """All samples of one episode, in order."""
    spec = robocache.StreamSpec("x", "float64", values.shape[1:], rate_hz=RATE, method=method)
    times = np.arange(len(values)) * (10**9 // RATE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROBOCACHE_HOME"] = f"{folder}/home"
        writer = robocache.CacheWriter(f"{folder}/c", {"x": spec})
        writer.add(robocache.Episode(0, {"x": robocache.EpisodeStream(spec, values, times)}))
        options |= {"features": features, "shuffle": False, "drop_last": False, "return_index": True}
        loader = robocache.Loader(writer.commit(), len(values), tier="memory", framework="numpy", **options)
        return next(iter(loader))


def rotations() -> Any:
    """One motion in four forms: which of them jump."""
    t = np.linspace(0, 1, 121)
    half = np.pi * 1.15 * t  # about an axis that tilts: more than a whole turn
    axis = np.stack([0.35 + 0.2 * t, 0.85 - 0.3 * t, 0.2 + 0.6 * t], 1)
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    turns = np.concatenate([np.sin(half)[:, None] * axis, np.cos(half)[:, None]], 1)
    names = {"quaternion_xyzw": "jumps where w would be below 0", "euler": "jumps, and is steep near the pole",
             "rotvec": "jumps at half a turn", "6d": "continuous"}  # fmt: skip
    features = {name: robocache.Feature("x", rotation=name) for name in names}
    batch = batch_of(turns, features, "slerp_xyzw")
    figure, axes = plt.subplots(1, 4, figsize=(10.5, 2.4))
    for ax, (name, words) in zip(axes, names.items(), strict=True):
        for i, line in enumerate(batch[name].T):
            holes = np.flatnonzero(np.abs(np.diff(line)) > 0.7) + 1
            for k in holes:
                ax.axvline((t[k - 1] + t[k]) / 2, color=BAD, lw=1)
            shade = plt.get_cmap("Blues")(0.35 + 0.6 * i / (batch[name].shape[1] - 1))
            ax.plot(np.insert(t, holes, np.nan), np.insert(line, holes, np.nan), color=shade, lw=1.5)
        ax.set(title=f'rotation="{name}"', xlabel=words, xticks=[])
    return figure


def normalization() -> Any:
    """A channel with a few far values under three normalizations."""
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.normal(3, 1, 1960), rng.normal(3, 1, 40) * 3])
    rng.shuffle(values)
    ways = {"as it is": None, '"mean_std"': "mean_std", '"min_max"': "min_max", '"quantile"': "quantile"}
    batch = batch_of(values[:, None], {name: robocache.Feature("x", normalize=way) for name, way in ways.items()})
    figure, axes = plt.subplots(1, 4, figsize=(10.5, 2.2))
    for ax, (name, way) in zip(axes, ways.items(), strict=True):
        ax.hist(batch[name][:, 0], bins=80, color=RAW if way is None else OUT, log=True)
        marks = np.quantile(values, [0.01, 0.99]) if way is None else (-1, 1)
        for x in marks:
            ax.axvline(x, color=BAD, lw=1.2)
        ax.set(title=name if way is None else f"normalize={name}", yticks=[])
        ax.set_xlabel("1 % and 99 %" if way is None else "-1 and 1")
        ax.spines["left"].set_visible(False)
        ax.minorticks_off()
    return figure


def edges() -> Any:
    """Which anchors of an episode of twelve rows are samples, and which moments are padding."""
    window = {"steps": range(-1, 5), "rate_hz": RATE}
    settings: dict[str, dict[str, Any]] = {
        'edges="pad"': {},
        'edges="inside"': {"edges": "inside"},
        'edges=("diffusion_policy", 3)': {"edges": ("diffusion_policy", 3)},
        "drop_last_steps=3": {"drop_last_steps": 3},
    }
    figure, axes = plt.subplots(1, 4, figsize=(10.5, 2.9))
    for ax, (name, options) in zip(axes, settings.items(), strict=True):
        batch = batch_of(np.arange(12.0), {"x": robocache.Feature("x", **window)}, **options)
        ax.axvspan(-0.5, 11.5, color="#eef1f4")
        for anchor_ns, is_pad in zip(batch["anchor_ns"], batch["x_is_pad"], strict=True):
            row = round(int(anchor_ns) * RATE / 1e9)
            at = row + np.arange(-1, 5)
            ax.plot(at, np.full(6, -row), color="#c9ced6", lw=1, zorder=1)
            ax.scatter(at, np.full(6, -row), s=12, c=[BAD if pad else OUT for pad in is_pad], zorder=2)
            ax.plot(row, -row, "o", ms=5.5, mfc="none", mec=TRUTH, zorder=3)
        ax.set(title=name, xlim=(-2, 16), ylim=(-12, 1), xticks=[], yticks=[])
        ax.set_xlabel(f"{len(batch['x'])} samples")
        ax.spines["left"].set_visible(False)
    return figure


PICTURES = {"rotations": rotations, "normalization": normalization, "edges": edges}
