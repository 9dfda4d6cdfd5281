"""A multi-rate robot log aligned to 50 Hz, and a room voxelized: what was done, how well, how fast, with pictures.
`make demo` runs this.

The log is made here, so the true signal is known: jittered stamps, two clocks that are off, streams that drop out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_voxels
import numpy as np
import robocache
import torch
from demo_rivals import numpy_align, torch_align

START_NS = 1_760_000_000_000_000_000  # Unix time of the first target
MS, S = 1_000_000, 1_000_000_000
TARGET_HZ = 50
ZOOM_S = (61.0, 65.0)  # what the picture shows; the dropouts are there
Signal = Callable[[np.ndarray], np.ndarray]


@dataclass
class Sensor:
    """What a stream measures, and how its logger gets it wrong."""

    truth: Signal  # seconds (N,) -> values (N, channels)
    unit: str
    rate_hz: float
    noise: float
    method: str | list[tuple[int, int, str]]
    max_gap_ms: int
    dropouts_s: list[tuple[float, float]]
    late_ms: int = 0  # stamps minus the moment measured: a transport delay, or a clock that is off
    begin_s: float = -0.1


@dataclass
class Recording:
    sensor: Sensor
    stream: robocache.Stream
    rate_hz: float  # measured from the stamps


def smooth(num_channels: int, max_hz: float, scale: float, rng: np.random.Generator) -> Signal:
    """Sums of a few slow sines, one sum per channel."""
    hz, phase = rng.uniform(0.05, max_hz, (4, num_channels)), rng.uniform(0, 2 * np.pi, (4, num_channels))
    return lambda t: scale * np.sin(2 * np.pi * hz * t[:, None, None] + phase).mean(1)


def pose_signal(rng: np.random.Generator) -> Signal:
    """xyz in meters, then a unit quaternion xyzw."""
    position, turn = smooth(3, 0.4, 0.8, rng), smooth(3, 0.5, 2.5, rng)

    def signal(t: np.ndarray) -> np.ndarray:
        half = turn(t) / 2  # rotation vector / 2
        angle = np.linalg.norm(half, axis=1, keepdims=True)
        return np.concatenate([position(t), half * np.sinc(angle / np.pi), np.cos(angle)], 1)

    return signal


def camera_signal(rng: np.random.Generator) -> Signal:
    """512 features of what an encoder would see of eight slow causes."""
    causes, mix = smooth(8, 0.8, 1.5, rng), rng.normal(size=(8, 512))
    return lambda t: np.tanh(causes(t) @ mix)


def make_sensors(rng: np.random.Generator) -> dict[str, Sensor]:
    return {
        "joints": Sensor(
            smooth(7, 1.2, 1.6, rng), "rad", 500, 3e-4, "linear", 20, dropouts_s=[(63.9, 64.05), (120.0, 120.1)]
        ),
        "wrist force": Sensor(
            smooth(6, 1.5, 12.0, rng), "N", 1000, 0.4, "mean", 20, dropouts_s=[(62.2, 62.6)], late_ms=-15
        ),
        "camera": Sensor(
            camera_signal(rng), "1", 30, 1e-3, "linear", 100, dropouts_s=[(63.0, 63.8), (140.0, 142.5)], late_ms=42,
            begin_s=0.8,
        ),
        "pose": Sensor(
            pose_signal(rng), "m, 1", 100, 1e-4, [(0, 3, "linear"), (3, 7, "slerp_xyzw")], 50,
            dropouts_s=[(61.8, 62.9), (90.0, 95.0)],
        ),
    }  # fmt: skip


def record(sensor: Sensor, duration_s: float, rng: np.random.Generator) -> Recording:
    """Samples the truth at jittered times, with noise; leaves the dropouts out; stamps the rows `late_ms` too late."""
    t = np.arange(sensor.begin_s, duration_s + 0.1, 1 / sensor.rate_hz)
    t += np.clip(rng.normal(scale=0.1, size=t.shape), -0.4, 0.4) / sensor.rate_hz
    for begin, end in sensor.dropouts_s:
        t = t[(t < begin) | (t >= end)]
    values = sensor.truth(t)
    values += rng.normal(scale=sensor.noise, size=values.shape)
    if isinstance(sensor.method, list):
        values[:, 3:7] /= np.linalg.norm(values[:, 3:7], axis=1, keepdims=True)  # trackers send unit quaternions
    stamps = START_NS + np.round(t * S).astype(np.int64) + sensor.late_ms * MS
    stream = robocache.Stream(
        torch.from_numpy(values.astype(np.float32)),
        torch.from_numpy(stamps),
        method=sensor.method,
        latency=sensor.late_ms * MS,
        max_gap=sensor.max_gap_ms * MS,
    )
    return Recording(sensor, stream, rate_hz=1e9 / float(np.median(np.diff(stamps))))


def synthesize(duration_s: float) -> dict[str, Recording]:
    rng = np.random.default_rng(7)
    return {name: record(sensor, duration_s, rng) for name, sensor in make_sensors(rng).items()}


def rms(values: torch.Tensor, truth: np.ndarray, valid: np.ndarray) -> float:
    return float(np.sqrt(np.mean((values.reshape(truth.shape).numpy()[valid] - truth[valid]) ** 2)))


def describe(log: dict[str, Recording], targets: torch.Tensor, aligned: robocache.Aligned) -> dict[str, Any]:
    """Per stream: what was asked, and how far the result is from the truth where it is valid."""
    t = (targets.numpy() - START_NS) / S
    rows = {}
    for name, r in log.items():
        truth, valid = r.sensor.truth(t), aligned.valid[name].reshape(-1).numpy()
        uncorrected = robocache.Stream(r.stream.values, r.stream.times, method=r.stream.method)
        rows[name] = {
            "rate_hz": r.rate_hz,
            "samples": len(r.stream.times),
            "channels": truth.shape[1],
            "method": r.stream.method,
            "latency_ms": r.stream.latency / MS,
            "max_gap_ms": r.stream.max_gap / MS,
            "valid": float(valid.mean()),
            "rms_error": rms(aligned.values[name], truth, valid),
            "rms_error_latency_ignored": rms(robocache.align(uncorrected, targets).values, truth, valid),
            "unit": r.sensor.unit,
        }
    return rows


def check_same(aligned: robocache.Aligned, rival: dict[str, tuple[Any, Any]], who: str) -> None:
    """Values of different size are compared on their own scale: 1e-5 of the largest."""
    for name, (values, valid) in rival.items():
        ours, theirs = aligned.values[name].reshape(values.shape).numpy(), np.asarray(values)
        assert np.allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max()), f"{who} differs on {name}"
        assert np.array_equal(aligned.valid[name].reshape(-1).numpy(), np.asarray(valid)), f"{who}: valid of {name}"


def best_ms(calls: dict[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """The best of interleaved calls: other programs on the machine slow PyTorch's threads down most of all."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if i:  # the first round warms up
                samples[name].append((time.perf_counter() - begin) * 1e3)
    return {name: min(s) for name, s in samples.items()}


def measure(streams: dict[str, robocache.Stream], targets: torch.Tensor, num_threads: int) -> list[dict[str, Any]]:
    """Our time beside a rival's, both with the rival's number of threads."""
    rivals = {"PyTorch": (num_threads, torch_align), "NumPy": (1, numpy_align)}
    aligned = robocache.align(streams, targets)
    rows = []
    for name, (threads, rival) in rivals.items():
        check_same(aligned, rival(streams, targets), name)
        torch.set_num_threads(threads)
        robocache.set_num_threads(threads)
        ms = best_ms({"ours": lambda: robocache.align(streams, targets), "theirs": lambda f=rival: f(streams, targets)})
        rows.append({"rival": name, "threads": threads, **{f"{k}_ms": v for k, v in ms.items()}})
        rows[-1]["times_faster"] = ms["theirs"] / ms["ours"]
    torch.set_num_threads(num_threads)
    robocache.set_num_threads(num_threads)
    return rows


def print_table(header: str, rows: list[list[str]]) -> None:
    table = [header.split("|"), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  " + "  ".join(cells))


def print_results(result: dict[str, Any]) -> None:
    def method(m: Any) -> str:
        return m if isinstance(m, str) else " + ".join(name for _, _, name in m)

    print(f"\n{result['targets']} targets at {TARGET_HZ} Hz, {result['duration_s']:.0f} s:")
    print_table(
        "stream|rate Hz|samples|channels|method|latency ms|max_gap ms|valid|rms error|if latency ignored|unit",
        [[name, f"{r['rate_hz']:.1f}", str(r["samples"]), str(r["channels"]), method(r["method"]),
          f"{r['latency_ms']:.0f}", f"{r['max_gap_ms']:.0f}", f"{100 * r['valid']:.1f} %", f"{r['rms_error']:.2g}",
          f"{r['rms_error_latency_ignored']:.2g}", r["unit"]] for name, r in result["streams"].items()],
    )  # fmt: skip
    print("\nthe same work (values and valid checked to be equal), best of 15 calls:")
    print_table(
        "rival|threads each|RoboCache ms|rival ms|times faster",
        [[r["rival"], str(r["threads"]), f"{r['ours_ms']:.2f}", f"{r['theirs_ms']:.2f}", f"{r['times_faster']:.1f}"]
         for r in result["speed"]],
    )  # fmt: skip
    print("\na room in cells of 10 cm, counted (checked to be equal to PyTorch's), best of 15 calls:")
    print_table(
        "cloud|points|in the grid|occupied cells|RoboCache ms|PyTorch ms|times faster",
        [[r["cloud"], str(r["points"]), str(r["in_grid"]), str(r["occupied"]), f"{r['ours_ms']:.2f}",
          f"{r['theirs_ms']:.2f}", f"{r['times_faster']:.1f}"] for r in result["voxels"]],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "build" / "demo.png")
    parser.add_argument("--seconds", type=float, default=180, help="length of the log, at least 150")
    parser.add_argument("--points", type=int, default=500_000, help="of the LiDAR scan")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="print the results as JSON, progress on stderr")
    args = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    torch.set_num_threads(args.threads)
    robocache.set_num_threads(args.threads)
    say(f"RoboCache {robocache.__version__}, {args.threads} threads")
    say(f"making a log of {args.seconds:.0f} s ...")
    log = synthesize(args.seconds)
    streams = {name: r.stream for name, r in log.items()}
    targets = START_NS + torch.arange(int(args.seconds * TARGET_HZ)) * (S // TARGET_HZ)
    say("aligning ...")
    aligned = robocache.align(streams, targets)
    result = {"version": robocache.__version__, "duration_s": args.seconds, "targets": len(targets)}
    result["streams"] = describe(log, targets, aligned)
    say("measuring against PyTorch and NumPy ...")
    result["speed"] = measure(streams, targets, args.threads)
    say("drawing ...")
    from demo_plot import draw  # matplotlib is slow to import

    draw(log, (targets.numpy() - START_NS) / S, aligned, START_NS, ZOOM_S, args.out)
    result["picture"] = str(args.out)
    say("voxelizing a room ...")
    voxels = args.out.with_name(f"{args.out.stem}_voxels{args.out.suffix}")
    result["voxels"] = demo_voxels.run(args.points, voxels, best_ms)
    result["voxels_picture"] = str(voxels)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        print_results(result)
        print(f"\nraw samples, aligned values and invalid stretches: {args.out}")
        print(f"a scan, depth images and their voxels: {voxels}")


if __name__ == "__main__":
    main()
