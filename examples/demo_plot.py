"""The picture of the demo: what was recorded, what came out, and where the output is not valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

RAW, OUT, BAD, TRUTH = "#a9b4c0", "#0b5cad", "#f4a261", "#2a9d5c"
SHOWN = {"joints": [1], "wrist force": [2], "camera": [5], "pose": [0, 6]}  # channels drawn
LABELS = {"joints": "joint 2 (rad)", "wrist force": "force z (N)", "camera": "feature 5", "pose": "x (m) and $q_w$"}


def stretches(flags: np.ndarray) -> list[tuple[int, int]]:
    """[begin, end) of every run of true: [F, T, T, F] -> [(1, 3)]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def draw(log: dict[str, Any], t: np.ndarray, aligned: Any, start_ns: int, zoom: tuple[float, float], out: Path) -> None:
    """One strip with the validity of the whole log, then a panel per stream over `zoom` (seconds)."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(
        len(log) + 1, 1, figsize=(11, 10), height_ratios=[0.55] + [1] * len(log), layout="constrained"
    )
    overview(axes[0], t, aligned, zoom)
    for ax, (name, recording) in zip(axes[1:], log.items(), strict=True):
        panel(ax, name, recording, t, aligned, start_ns, zoom)
        ax.tick_params(labelbottom=ax is axes[-1])
    axes[-1].set_xlabel("seconds since the start of the log")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=4, frameon=False, markerscale=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    plt.close(figure)


def overview(ax: Any, t: np.ndarray, aligned: Any, zoom: tuple[float, float]) -> None:
    for row, valid in enumerate(aligned.valid.values()):
        valid = valid.reshape(-1).numpy()
        bad = [(t[b], max(t[e - 1] - t[b], 0.5)) for b, e in stretches(~valid)]  # at least wide enough to be seen
        ax.broken_barh([(t[0], t[-1] - t[0])], (row - 0.32, 0.64), color=OUT, alpha=0.5, lw=0)
        ax.broken_barh(bad, (row - 0.32, 0.64), color=BAD, lw=0)
    num_rows = len(aligned.valid)
    ax.add_patch(plt.Rectangle((zoom[0], -0.55), zoom[1] - zoom[0], num_rows + 0.1, fill=False, lw=1.2, clip_on=False))
    ax.set(yticks=range(num_rows), yticklabels=aligned.valid, xlim=(t[0], t[-1]), ylim=(num_rows - 0.4, -0.6))
    ax.set_title(
        "valid (blue) and not valid (orange) over the whole log; the box is shown below", loc="left", fontsize=10
    )
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(axis="y", length=0)


def panel(
    ax: Any, name: str, recording: Any, t: np.ndarray, aligned: Any, start_ns: int, zoom: tuple[float, float]
) -> None:
    stamps = (recording.stream.times.numpy() - start_ns) / 1e9
    raw = (stamps >= zoom[0]) & (stamps <= zoom[1])
    shown = (t >= zoom[0]) & (t <= zoom[1])
    t, valid = t[shown], aligned.valid[name].reshape(-1).numpy()[shown]
    values = aligned.values[name].reshape(len(shown), -1).numpy()[shown]
    truth = recording.sensor.truth(t)
    for channel in SHOWN[name]:
        recorded = recording.stream.values[:, channel].numpy()[raw]
        ax.scatter(stamps[raw], recorded, s=16, color=RAW, lw=0, label="recorded samples, at their stamps")
        ax.plot(t, truth[:, channel], color=TRUTH, lw=1.2, label="truth")
        ax.plot(t, values[:, channel], ".", ms=3.5, color=OUT, label=f"aligned to {1 / (t[1] - t[0]):.0f} Hz")
    half = (t[1] - t[0]) / 2
    for begin, end in stretches(~valid):
        ax.axvspan(t[begin] - half, t[end - 1] + half, color=BAD, lw=0, alpha=0.3, zorder=0, label="not valid")
    ax.set(xlim=zoom, ylabel=LABELS[name])
    ax.set_title(caption(name, recording), loc="left", fontsize=10)


def caption(name: str, recording: Any) -> str:
    stream, late_ms = recording.stream, recording.sensor.late_ms
    method = stream.method if isinstance(stream.method, str) else " + ".join(m for _, _, m in stream.method)
    clock = f"stamped {abs(late_ms)} ms too {'late' if late_ms > 0 else 'early'} (corrected), " if late_ms else ""
    return f"{name}: {recording.rate_hz:.0f} Hz, {clock}{method}, max_gap {stream.max_gap / 1e6:.0f} ms"
