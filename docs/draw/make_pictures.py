"""Draws the pictures of the guides by calling RoboCache, so that they show what it does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import feature_pictures
import matplotlib.pyplot as plt
import numpy as np
import pixel_pictures
import robocache
import voxel_pictures

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
RAW, OUT, BAD, TRUTH = "#30343b", "#0b6bcb", "#f4a261", "#2a9d5c"
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
         "axes.titlesize": 10, "legend.frameon": False, "figure.constrained_layout.use": True,
         "figure.constrained_layout.w_pad": 0.1, "figure.constrained_layout.h_pad": 0.1}  # fmt: skip
TIMES = np.array([0.0, 0.9, 1.4, 3.0, 3.7, 5.2, 6.0])
VALUES = np.array([0.4, 1.6, 1.3, -0.9, -0.3, 1.4, 0.6])


def save(figure: Any, name: str, num_colors: int = 64) -> None:
    """With 64 colors: a third of the size, and no difference to see."""
    from PIL import Image  # comes with matplotlib

    FOLDER.mkdir(exist_ok=True)
    figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    image.quantize(num_colors, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)
    plt.close(figure)
    print(f"{name}.png  {(FOLDER / f'{name}.png').stat().st_size / 1e3:.0f} kB")


def rows(ax: Any, times: np.ndarray, values: np.ndarray, label: str | None = "rows") -> None:
    ax.plot(times, values, "o", ms=6, color=RAW, zorder=3, label=label)


def broken(ax: Any, t: np.ndarray, values: np.ndarray, jump: float, **style: Any) -> None:
    """A line with a hole wherever the values jump by more than `jump`."""
    holes = np.flatnonzero(np.abs(np.diff(values)) > jump) + 1
    ax.plot(np.insert(t, holes, np.nan), np.insert(values, holes, np.nan), color=OUT, lw=2, **style)


def methods() -> None:
    """Every method on irregular rows."""
    figure, axes = plt.subplots(2, 4, figsize=(10.5, 5.0))
    t = np.linspace(0, 6, 1201)
    for ax, method in zip(axes.flat, ("previous", "next", "nearest", "linear", "cubic"), strict=False):
        broken(ax, t, robocache.resample_trajectories(VALUES, TIMES, t, method=method), jump=0.1)
        rows(ax, TIMES, VALUES)
        ax.set(title=method, ylim=(-1.5, 2.1), yticks=[])
    angle(axes[1, 1])
    slerp(axes[1, 2])
    window(axes[1, 3])
    for ax in (*axes[0], *axes[1, [0, 1, 3]]):
        ax.set(xlabel="time", xticks=[])
    save(figure, "methods")


def angle(ax: Any) -> None:
    t = np.linspace(0, 6, 601)
    heading = np.array([100.0, 150.0, 175.0, -140.0, -160.0, 170.0, 120.0])
    values = robocache.resample_trajectories(heading, TIMES, t, method="angle", period=360.0)
    plain = robocache.resample_trajectories(heading, TIMES, t, method="linear")
    ax.plot(t, plain, color=BAD, lw=1, label="linear")
    broken(ax, t, values, jump=180, label="angle")
    rows(ax, TIMES, heading, None)
    ax.set(title="angle, period 360", yticks=[-180, 0, 180], ylim=(-200, 200))
    ax.legend(loc="center right", fontsize=8)


def slerp(ax: Any) -> None:
    """A turn of 160 degrees about z in ten even steps: the two parts of the quaternion that change."""
    t, times = np.linspace(0, 1, 11), np.array([0.0, 1.0])
    half = np.radians([10.0, 170.0]) / 2
    ends = np.stack([0 * half, 0 * half, np.sin(half), np.cos(half)], 1)
    circle = np.radians(np.linspace(-12, 102, 100))
    ax.plot(np.cos(circle), np.sin(circle), color="#c8ccd2", lw=0.8, zorder=0)
    for method, color in (("linear", BAD), ("slerp_xyzw", OUT)):
        q = robocache.resample_trajectories(ends, times, t, method=method)
        ax.plot(q[:, 3], q[:, 2], ".-", lw=1, ms=6, color=color, label=method)
    ax.plot(ends[:, 3], ends[:, 2], "o", ms=6, color=RAW, zorder=3)
    ax.set(title="slerp, in ten even steps", xlabel="$q_w$", ylabel="$q_z$", xticks=[0, 1], yticks=[0, 1])
    ax.set_aspect("equal")
    ax.legend(loc="lower left", fontsize=8)


def window(ax: Any) -> None:
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 6, 60))
    noisy = np.sin(times) + rng.normal(scale=0.45, size=times.shape)
    targets = np.arange(0.5, 6, 1.0)
    ax.plot(times, noisy, ".", ms=4, color=RAW)
    for method, marker, color in (("max", "^", BAD), ("mean", "o", OUT), ("min", "v", BAD)):
        values = robocache.resample_trajectories(noisy, times, targets, method=method)
        ax.plot(targets, values, marker, ms=6, color=color, label=method, mec="white", mew=0.6)
    for edge in np.arange(0, 7):
        ax.axvline(edge, color="#c8ccd2", lw=0.7, zorder=0)
    ax.set(title="mean, min, max over windows", yticks=[], ylim=(-2.9, 2.1))
    ax.legend(loc="lower center", fontsize=8, ncol=3, handletextpad=0.1, columnspacing=1)


def valid() -> None:
    """What comes out before, after and in a gap, and whether it is valid."""
    times = np.array([1.0, 1.5, 2.0, 2.4, 4.4, 4.9, 5.4])
    values = np.array([0.3, 0.8, 1.0, 0.9, -0.4, -0.2, 0.3])
    t = np.linspace(0.05, 6.35, 64)
    figure, axes = plt.subplots(3, 2, figsize=(10.5, 5.6), sharex=True, sharey=True)
    for line, outside in zip(axes, ("hold", "linear", "nan"), strict=True):
        for ax, max_gap in zip(line, (None, 1.0), strict=True):
            out, ok = robocache.resample_trajectories(
                values, times, t, outside=outside, max_gap=max_gap, return_valid=True
            )
            step = t[1] - t[0]
            for x in t[~ok]:
                ax.axvspan(x - step / 2, x + step / 2, color=BAD, alpha=0.25, lw=0, zorder=0)
            ax.plot(t[ok], out[ok], ".", ms=6, color=OUT, label="valid")
            ax.plot(t[~ok], out[~ok], "o", ms=3.6, mfc="white", mec=OUT, mew=0.9, label="not valid")
            rows(ax, times, values)
            ax.set_title(f'outside="{outside}", max_gap={max_gap}', family="monospace", fontsize=9)
            ax.set(xlim=(0, 6.4), ylim=(-1.1, 1.5), yticks=[])
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0.18, 0), ncol=3, fontsize=8)
    for ax in axes[-1]:
        ax.annotate("NaN", (0.5, 0.2), ha="center", fontsize=9)
        ax.annotate("NaN", (5.9, 0.2), ha="center", fontsize=9)
        ax.set_xlabel("time")
    axes[0, 1].annotate("rows further apart\nthan max_gap", (3.4, -0.75), ha="center", fontsize=8)
    save(figure, "valid")


def latency() -> None:
    """A camera that stamps its rows 120 ms after the moment they show."""
    late, t = 0.12, np.arange(0.3, 1.7, 0.02)
    moments = np.arange(0, 2, 1 / 15)
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 2.9), sharey=True)
    for ax, used in zip(axes, (0.0, late), strict=True):
        values = robocache.resample_trajectories(signal(moments), moments + late, t, latency=used)
        ax.plot(t, signal(t), color=TRUTH, lw=1.4, label="what happened")
        rows(ax, moments + late, signal(moments), "rows, at their stamps")
        ax.plot(t, values, ".", ms=5, color=OUT, label="aligned")
        ax.set(xlim=(0.3, 1.7), xlabel="seconds", yticks=[], ylim=(-2, 1.4))
        ax.set_title(f"latency={used:g}", family="monospace", fontsize=9)
    axes[0].legend(loc="lower left", fontsize=8, ncol=3, columnspacing=1)
    for moment in moments[9:15]:
        y = float(signal(moment))
        arrow = {"arrowstyle": "->", "color": RAW, "lw": 0.8, "shrinkB": 3}
        axes[1].annotate("", (moment, y), (moment + late, y), arrowprops=arrow)
    save(figure, "latency")


def signal(t: Any) -> Any:
    return np.sin(2 * np.pi * 1.1 * t) + 0.3 * np.sin(2 * np.pi * 2.3 * t)


def downsampling() -> None:
    """1 kHz with a 53 Hz vibration to 50 Hz: picking rows turns the vibration into a slow wave that never was."""
    times = np.arange(-0.05, 1.05, 0.001)
    slow = 0.8 * np.sin(2 * np.pi * 0.8 * times)
    values = slow + np.sin(2 * np.pi * 53 * times)
    t = np.arange(0, 1.0, 0.02)
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 2.9), sharey=True)
    for ax, method in zip(axes, ("linear", "mean"), strict=True):
        ax.plot(times, values, color="#c3c9d1", lw=0.8, label="recorded at 1 kHz")
        ax.plot(times, slow, color=TRUTH, lw=1.4, label="without the vibration")
        out = robocache.resample_trajectories(values, times, t, method=method)
        ax.plot(t, out, ".-", ms=5, lw=0.6, color=OUT, label="aligned to 50 Hz")
        ax.set(xlim=(0, 1), xlabel="seconds", yticks=[], ylim=(-2.7, 2))
        ax.set_title(f'method="{method}"', family="monospace", fontsize=9)
    axes[0].legend(loc="lower left", fontsize=8, ncol=3, columnspacing=1)
    save(figure, "downsampling")


def features() -> None:
    """Moments around an anchor, and a path before and after relative_to."""
    figure, (left, world, seen) = plt.subplots(1, 3, figsize=(10.5, 3.0), width_ratios=(1.3, 1, 1))
    for name, y in {"left arm": 3.0, "right arm": 2.0, "pose": 1.0}.items():
        left.plot(np.arange(0, 3.01, 0.1), np.full(31, y), "|", color=RAW, ms=8)
        left.text(-0.15, y, name, ha="right", va="center")
    left.axvline(1.0, color=TRUTH, lw=1.5)
    left.text(1.0, 3.5, "anchor", color=TRUTH, ha="center")
    for y in (3.0, 2.0):
        left.plot(1.0 + np.arange(-2, 1) * 0.2, np.full(3, y), "o", color=OUT)
    left.plot(1.0 + np.arange(8) * 0.2, np.full(8, 1.0), "o", color=BAD)
    left.set(title="state: two arms joined; action: steps=range(8)", xlim=(-1.2, 3.1), ylim=(0.5, 3.9))
    left.set(xticks=[], yticks=[])
    left.spines["left"].set_visible(False)
    turn = np.linspace(0, 1.8, 24)
    path = np.stack([2 + 2 * np.sin(turn), 1 + 2 * (1 - np.cos(turn))], 1)
    pose = robocache.StreamSpec("pose", "float64", (7,), rate_hz=10, method=[(3, 7, "slerp_xyzw")])
    zeros = np.zeros(len(turn))
    rows = np.stack([*path.T, zeros, zeros, zeros, np.sin(turn / 2), np.cos(turn / 2)], 1)
    with tempfile.TemporaryDirectory() as folder:
        writer = robocache.CacheWriter(f"{folder}/c", {"pose": pose})
        times = np.arange(len(turn)) * 10**8
        writer.add(robocache.Episode(0, {"pose": robocache.EpisodeStream(pose, rows, times)}))
        steps = range(-8, 16)
        action = robocache.Feature("pose", steps=steps, rate_hz=10, relative_to="anchor", rotation="euler")
        loader = robocache.Loader(writer.commit(), len(turn), features={"action": action}, shuffle=False)
        relative = loader.batch(0)["action"][8].numpy()
    for ax, points, angles, title in (
        (world, path, turn, "poses in the world"),
        (seen, relative[:, :2], relative[:, 5], 'relative_to="anchor"'),
    ):
        ax.plot(*points.T, color=RAW, lw=1)
        ax.quiver(*points[8:].T, np.cos(angles[8:]), np.sin(angles[8:]), color=BAD, scale=14, width=0.008)
        ax.plot(*points[8], "o", color=TRUTH)
        ax.set(title=title, aspect="equal")
    save(figure, "features")


if __name__ == "__main__":
    with plt.rc_context(STYLE):
        for draw in (methods, valid, latency, downsampling, features):
            draw()
        for name, make in feature_pictures.PICTURES.items():
            save(make(), name)
        for name, make in voxel_pictures.PICTURES.items():
            save(make(), name, num_colors=256)
        save(pixel_pictures.pipeline(), "pixels", num_colors=256)
