"""The figures of page.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import ticker
from simulate import CONTROL_HZ
from windows import BLOCK, FINGERS, GOAL, GRIPPER, OPENING, SETPOINT, WINDOWS, WRIST

RAW, SEEN, DONE, RANDOM = "#a9b4c0", "#0b5cad", "#2a9d5c", "#c8553d"
JOINTS, FORCE, DEPTH = "/arm/joint_states/position", "/arm/wrench/force", "/camera/depth"
SHOWN = (JOINTS, GRIPPER, FORCE, FINGERS, BLOCK, WRIST, SETPOINT, DEPTH, GOAL)  # OPENING comes with SETPOINT
SHOWN_S = (1.0, 1.5)  # of the episode: the rows of each stream
WINDOW_MS = (-130, 330)
WHO = {"expert": RAW, "policy": SEEN, "random": RANDOM}
close = plt.close
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10})

Streams = Mapping[str, Any]


def seconds(streams: Streams, name: str) -> np.ndarray:
    """Since the first message of the episode."""
    start_ns = min(int(streams[other].times[0]) for other in SHOWN)
    return (streams[name].times - start_ns) / 1e9


def topic(name: str) -> str:
    return name if name in (WRIST, DEPTH) else name.rsplit("/", 1)[0]


def streams(streams: Streams) -> Any:
    """Left: every row of every stream. Right: what some of them say, over the whole episode."""
    figure = plt.figure(figsize=(11, 4.4), layout="constrained")
    grid = figure.add_gridspec(3, 2, width_ratios=[1.25, 1])
    raster(figure.add_subplot(grid[:, 0]), streams)
    panels = [figure.add_subplot(grid[i, 1]) for i in range(3)]
    for name, label, color in ((GRIPPER, "gripper", SEEN), (BLOCK, "block", "#e8731a"), (GOAL, "goal", RANDOM)):
        panels[0].plot(seconds(streams, name), streams[name].values[:, 2], color=color, lw=1.4, label=label)
    panels[0].set(ylabel="height, m")
    panels[0].legend(frameon=False, ncol=3, loc="lower left", bbox_to_anchor=(0, 0.98), fontsize=8, borderaxespad=0)
    panels[1].plot(
        seconds(streams, FINGERS), 1e3 * streams[FINGERS].values.sum(1), color=SEEN, lw=1.4, label="measured"
    )
    panels[1].plot(seconds(streams, OPENING), 1e3 * streams[OPENING].values[:, 0], ".", color=DONE, ms=4, label="asked")
    panels[1].set(ylabel="fingers, mm apart")
    panels[1].legend(frameon=False, fontsize=8)
    force = np.linalg.norm(streams[FORCE].values, axis=1)
    panels[2].plot(seconds(streams, FORCE), force, color=SEEN, lw=0.9)
    panels[2].set(ylabel="force at the wrist, N", xlabel="seconds since the first message")
    end_s = seconds(streams, JOINTS)[-1]
    for ax in panels:
        ax.axvspan(*SHOWN_S, color="#eef2f6", zorder=0)
        ax.set_xlim(0, end_s)
        ax.tick_params(labelbottom=ax is panels[-1])
    figure.align_ylabels(panels)
    return figure


def raster(ax: Any, streams: Streams) -> None:
    for row, name in enumerate(SHOWN):
        t = seconds(streams, name)
        rate_hz = 1 / np.median(np.diff(t))
        t = t[(t >= SHOWN_S[0]) & (t <= SHOWN_S[1])]
        color = DONE if name == SETPOINT else SEEN
        ax.vlines(t, row - 0.33, row + 0.33, color=color, lw=1.1)
        ax.text(SHOWN_S[1] + 0.012, row, f"{rate_hz:.0f} Hz", va="center", color=color, fontweight="bold")
    labels = [topic(name) + (", /gripper/command" if name == SETPOINT else "") for name in SHOWN]
    ax.set(yticks=range(len(SHOWN)), yticklabels=labels, ylim=(len(SHOWN) - 0.5, -0.6), xlim=SHOWN_S)
    ax.set_xlabel("seconds since the first message")
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)


def window(streams: Streams, batch: Mapping[str, np.ndarray], sample: int) -> Any:
    """The rows of the log around one anchor, and the moments that the loader reads for it."""
    anchor_ns = int(batch["anchor_ns"][sample])
    figure, axes = plt.subplots(2, 3, figsize=(11, 4.8), layout="constrained")
    height = {"ylabel": "height, m", "channel": 2}
    read(axes[0, 0], streams, batch, sample, GRIPPER, "gripper, 125 Hz", **height)
    read(axes[0, 1], streams, batch, sample, BLOCK, "block, 30 Hz: a label in training", **height)
    read(axes[0, 2], streams, batch, sample, FINGERS, "finger, 50 Hz", ylabel="m", channel=0)
    read(axes[1, 0], streams, batch, sample, SETPOINT, "setpoints: the chunk to predict", **height)
    read(axes[1, 1], streams, batch, sample, OPENING, "opening: the chunk to predict", ylabel="m", channel=0)
    for ax in axes.flat[:5]:
        ax.axvline(0, color="#1d2733", lw=0.8, ls=":")
        ax.set(xlim=WINDOW_MS, xlabel="ms from now" if ax in axes[1] or ax is axes[0, 2] else "")
    axes[1, 2].imshow(batch[WRIST][sample, 0].transpose(1, 2, 0), interpolation="nearest")
    age_ms = (anchor_ns - streams[WRIST].times[streams[WRIST].times <= anchor_ns][-1]) / 1e6
    axes[1, 2].set(xticks=[], yticks=[], title=f"wrist camera, 25 Hz: arrived {age_ms:.0f} ms ago")
    return figure


def read(
    ax: Any, streams: Streams, batch: Mapping[str, np.ndarray], sample: int, name: str, title: str, ylabel: str,
    channel: int,
) -> None:  # fmt: skip
    t_ms = (streams[name].times - int(batch["anchor_ns"][sample])) / 1e6
    near = (t_ms >= WINDOW_MS[0]) & (t_ms <= WINDOW_MS[1])
    ax.plot(t_ms[near], streams[name].values[near, channel], ".", color=RAW, ms=5)
    moments = np.array(WINDOWS[name].deltas_ns) / 1e6
    kept = ~batch[f"{name}_is_pad"][sample]
    color = DONE if name in (SETPOINT, OPENING) else SEEN
    values = batch[name][sample, :, channel]
    ax.plot(moments[kept], values[kept], "o", color=color, ms=7, mfc="none", mew=1.8)
    ax.set(title=title, ylabel=ylabel)
    low, high = ax.get_ylim()
    if high - low < 0.01:  # a still block is not noise of full height
        ax.set_ylim((low + high) / 2 - 0.005, (low + high) / 2 + 0.005)


def outcome(curve: Sequence[Mapping[str, float]], success: Mapping[str, Mapping[str, Any]]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained", width_ratios=[1.15, 1])
    steps = [point["step"] for point in curve]
    for kind, color in (("training", RAW), ("validation", SEEN)):
        losses = [point[f"{kind}_loss"] for point in curve]
        left.plot(steps, losses, "o-", color=color, ms=3.5, lw=1.6)
        left.annotate(kind, (steps[-1], losses[-1]), (6, 0), textcoords="offset points", va="center", color=color)
    left.set(xlabel="step", ylabel="mean absolute error, in deviations", yscale="log", xlim=(0, 1.16 * steps[-1]))
    left.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    left.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    left.yaxis.set_minor_locator(ticker.NullLocator())
    for row, (name, color) in enumerate(WHO.items()):
        found = success[name]
        low, high = found["interval_95"]
        rate = found["success_rate"]
        right.barh(row, rate, color=color, height=0.55)
        right.errorbar(rate, row, xerr=[[rate - low], [high - rate]], color="#1d2733", capsize=4, lw=1.3)
        right.text(1.06, row, f"{found['successes']} of {found['episodes']}", va="center")
    right.set(yticks=range(len(WHO)), yticklabels=WHO, xlim=(0, 1.2), xlabel="at the goal", ylim=(2.6, -0.6))
    right.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    right.tick_params(axis="y", length=0)
    return figure


def strips(films: Mapping[str, Sequence[np.ndarray]], frames: Sequence[int]) -> Any:
    figure, axes = plt.subplots(len(films), len(frames), figsize=(11, 4.3), layout="constrained", squeeze=False)
    for row, (name, film) in zip(axes, films.items(), strict=True):
        for ax, frame, given in zip(row, film, frames, strict=True):
            ax.imshow(frame)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            if ax in axes[0]:
                ax.set_title(f"{given / CONTROL_HZ:.2f} s")
        row[0].set_ylabel(name, fontsize=11, color=WHO[name], fontweight="bold")
    return figure


def pictures(seen: Mapping[str, np.ndarray], titles: Sequence[str]) -> Any:
    """Rows of pictures (n, 3, height, width) from 0 to 1, by name."""
    figure, axes = plt.subplots(
        len(seen), len(titles), figsize=(11, 1.45 * len(seen)), layout="constrained", squeeze=False
    )
    for row, (name, shown) in zip(axes, seen.items(), strict=True):
        for ax, picture, title in zip(row, shown, titles, strict=True):
            ax.imshow(np.clip(picture.transpose(1, 2, 0), 0, 1), interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            if ax in axes[0]:
                ax.set_title(title)
        row[0].set_ylabel(name, fontsize=10)
    return figure
