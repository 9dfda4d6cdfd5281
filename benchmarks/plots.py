"""Draws docs/pictures/align_cuda.png from benchmarks/results/ops/align_cuda.json: time against problem size."""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from typing import Any

from tables import DOCS, PICTURE, load

SOURCE = "robocache-source"  # in the file: which results it shows
LINES = {
    "ours": ("RoboCache", "#0b6bcb", "o-"),
    "compiled": ("torch.compile", "#2a9d5c", "s-"),
    "gather": ("PyTorch, gather", "#f4a261", "^-"),
    "rows": ("PyTorch, index_select", "#c9772f", "v-"),
}


def fingerprint(result: dict[str, Any]) -> str:
    """Which results a picture shows."""
    shown = [result["sweep"], result["copy"], result["empty_kernel"]]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sweep = result["sweep"]
    batch = [int(case["axes"]["B/S/T/D"].split("/")[0]) for case in sweep]
    figure, ax = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    for name, (label, color, style) in reversed(LINES.items()):
        points = [(b, c["median_us"][name]) for b, c in zip(batch, sweep, strict=True) if name in c["median_us"]]
        if points:
            ax.loglog(*zip(*points, strict=True), style, color=color, ms=5, label=label)
    empty = result["empty_kernel"]["us"]
    ax.loglog(batch, [c["floor_us"] for c in sweep], "--", color="#30343b", lw=1.2,
              label=f"limit: bytes / {result['copy']['tbps']:.2f} TB/s (measured copy)")  # fmt: skip
    ax.axhline(empty, color="#30343b", lw=1.2, ls=":", label=f"limit: an empty kernel, {empty:.2f} µs")
    _, *rest = sweep[0]["axes"]["B/S/T/D"].split("/")
    gpu = result["hardware"]["gpu"].get("name", result["device"])
    ax.set(xlabel=f"trajectories in a call (each {rest[0]} rows to {rest[1]}, {rest[2]} channels bfloat16)",
           ylabel="µs per call, in a CUDA graph", title=f"resample_trajectories on {gpu}")  # fmt: skip
    ax.set_xticks(batch, [str(b) for b in batch], minor=False)
    ax.minorticks_off()
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={SOURCE: fingerprint(result)})
    pyplot.close(figure)


def main() -> int:
    result = load("cuda")
    if result is None or not result["sweep"]:
        print("plots.py: no sweep in benchmarks/results/ops/align_cuda.json: run bench_align.py --device cuda first")
        return 1
    path = DOCS.parent / PICTURE
    draw(result, path)
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
