"""``robocache profile``: runs an op under Nsight Compute and compares its DRAM traffic with the minimum."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from .. import _core
from ..ops.methods import OF_FEATURES

METRICS = {
    "time_s": "gpu__time_duration.sum",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "occupancy_limit_pct": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
    "instructions": "sm__inst_issued.sum",
    "issue_pct": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "grid": "launch__grid_size",
    "block": "launch__block_size",
}
UNITS = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0,
    "byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12,
    "inst": 1.0, "kinst": 1e3, "minst": 1e6, "ginst": 1e9,
}  # fmt: skip
COLUMNS = (
    "kernel", "launches", "µs", "DRAM %", "read MB", "written MB", "of formula", "L2 hit %", "occupancy %",
    "of at most", "registers", "issue %",
)  # fmt: skip
NOTE = (
    "Medians over the launches; ncu flushes the caches before each launch. Formula: {formula}, each counted once. If "
    "the output fits in the L2 cache, part of it is written to DRAM after the kernel ends and is not counted."
)


NSIGHT = Path("/opt/nvidia/nsight-compute")


class ProfileError(Exception):
    """The op cannot be profiled; the message is for the user."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """One call of ``resample_trajectories``, profiled ``calls`` times. ``case``: (B, S, T, D)."""

    case: tuple[int, int, int, int]
    dtype: str
    times_dtype: str
    method: str
    order: str
    calls: int = 5

    op: ClassVar[str] = "align"
    kernels: ClassVar[str] = "^align_"
    formula: ClassVar[str] = "different rows read, all times and targets, the output"

    def __str__(self) -> str:
        shape = ",".join(map(str, self.case))
        return f"{shape} {self.dtype} values, {self.times_dtype} times, {self.method}, {self.order}"


@dataclasses.dataclass(frozen=True)
class VoxelSpec:
    """One call of ``voxelize_pointcloud``, profiled ``calls`` times. ``num_channels``: of features."""

    cloud: str
    num_points: int
    num_cells: int
    mode: str
    dtype: str
    num_channels: int
    deterministic: bool
    calls: int = 5

    op: ClassVar[str] = "voxelize"
    kernels: ClassVar[str] = "."  # all kernels, including those of libraries
    formula: ClassVar[str] = "points and features, the grid"

    def __str__(self) -> str:
        features = f" x {self.num_channels} features" if self.mode in OF_FEATURES else ""
        mode = f"deterministic {self.mode}" if self.deterministic else self.mode
        return f"{self.num_points} {self.cloud} points{features} to {self.num_cells}^3, {mode}, {self.dtype}"


def find_ncu() -> str:
    """Path of ncu: on the PATH, in CUDA_HOME, or in a Nsight Compute installation."""
    found = shutil.which("ncu")
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "ncu"]
    places += sorted(NSIGHT.glob("*/ncu"), reverse=True)
    for place in places if found is None else []:
        if os.access(place, os.X_OK):
            return str(place)
    if found is None:
        raise ProfileError(f"needs Nsight Compute: ncu is not on the PATH, in $CUDA_HOME/bin or under {NSIGHT}")
    return found


def require_tools() -> str:
    """Path of ncu. Raises ProfileError if ncu, a GPU or PyTorch is missing."""
    cuda = _core.cuda_status()
    if not cuda["available"]:
        raise ProfileError(f"needs a GPU: {cuda['reason']}")
    ncu = find_ncu()
    if importlib.util.find_spec("torch") is None:
        raise ProfileError("needs PyTorch with CUDA to put data on the GPU: pip install torch")
    return ncu


def profile(spec: Spec | VoxelSpec, folder: Path) -> dict[str, Any]:
    """Runs ncu on the case and writes ``<op>.json``, ``<op>.txt``, ``<op>.png`` and ncu's own ``<op>.csv``."""
    ncu = require_tools()
    folder.mkdir(parents=True, exist_ok=True)
    op = spec.op
    log, facts = folder / f"{op}.csv", folder / f"{op}.case.json"
    facts.unlink(missing_ok=True)
    child = [
        sys.executable,
        "-m",
        "robocache.cli.workload",
        json.dumps(dataclasses.asdict(spec) | {"op": op}),
        str(facts),
    ]
    command = [
        ncu, "--clock-control", "none", "--target-processes", "all", "--profile-from-start", "off",
        "--kernel-name", f"regex:{spec.kernels}",
        "--metrics", ",".join(METRICS.values()), "--csv", "--page", "raw", "--print-units", "base",
        "--log-file", str(log), *child,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = log.read_text() if log.exists() else ""
    if done.returncode != 0 or not facts.exists():
        raise ProfileError(f"ncu exited with code {done.returncode}:\n{last_lines(text, done.stdout, done.stderr)}")
    launches = parse_ncu(text)
    if not launches:
        raise ProfileError(
            f"ncu profiled no kernel that matches {spec.kernels}:\n{last_lines(text, done.stdout, done.stderr)}"
        )
    moved = json.loads(facts.read_text())
    facts.unlink()
    result = summarize(launches, moved, spec.formula)
    result |= {"case": dataclasses.asdict(spec), "command": shlex.join(command)}
    (folder / f"{op}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{op}.txt").write_text(f"{spec}, {moved['device']}\n\n{table(result)}\n")
    result["files"] = [str(folder / f"{op}.{kind}") for kind in ("txt", "json", "csv")]
    picture = draw(result, str(spec), folder / f"{op}.png")
    result["files" if picture is None else "notes"] += [str(folder / f"{op}.png") if picture is None else picture]
    return result


def last_lines(*texts: str) -> str:
    """The error lines of ncu; without errors, the last lines."""
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line]
    return "\n".join("  " + line.strip() for line in (errors or lines)[-6:]) or "  (no output)"


# ---- ncu's table -----------------------------------------------------------------------------------------------------


def parse_ncu(text: str) -> list[dict[str, Any]]:
    """Parses the output of ``ncu --csv --page raw`` into launches: {"kernel": name, "time_s": …, …}, in base units.

    Lines of ncu (``==PROF== …``) and of the program precede the table; a row of units follows its header. Numbers may
    have thousands separators. A counter that the GPU lacks is ``n/a`` and becomes None.
    """
    rows = csv.reader(line for line in text.splitlines() if line.startswith('"'))
    header: list[str] = next((row for row in rows if "Kernel Name" in row), [])
    units: dict[str, str] = {}
    launches = []
    for cells in rows:
        if len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        if not row["Kernel Name"]:
            units = row
            continue
        launch: dict[str, Any] = {"kernel": short_name(row["Kernel Name"])}
        for key, metric in METRICS.items():
            launch[key] = number(row.get(metric, ""), units.get(metric, ""))
        launches.append(launch)
    return launches


def number(text: str, unit: str = "") -> float | None:
    """
    >>> number("1,234.5", "usecond"), number("n/a"), number("12", "%")
    (0.0012345, None, 12.0)
    """
    try:
        value = float(text.replace(",", "").replace("\N{NO-BREAK SPACE}", ""))
    except ValueError:
        return None
    return value * UNITS.get(unit.lower(), 1.0)


def short_name(name: str) -> str:
    """
    >>> short_name("void robocache::align_detail::align_rows<float, (int)4>(robocache::DeviceTable<(int)4>)")
    'align_rows<float, 4>'
    """
    depth = 0
    for i, char in enumerate(name):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0:
            name = name[:i]
            break
    head, angle, arguments = name.partition("<")
    return re.split(r"::|\s", head)[-1] + angle + re.sub(r"\(\w+\)", "", arguments)


def summarize(launches: Iterable[dict[str, Any]], moved: dict[str, Any], what: str = Spec.formula) -> dict[str, Any]:
    """Medians per kernel, and the ratio of their DRAM bytes to the minimum."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for launch in launches:
        by_name.setdefault(launch["kernel"], []).append(launch)
    formula = moved["read_bytes"] + moved["written_bytes"]
    kernels = []
    for name, group in by_name.items():
        kernel: dict[str, Any] = {"kernel": name, "launches": len(group)}
        for key in METRICS:
            counted = [launch[key] for launch in group if launch[key] is not None]
            kernel[key] = statistics.median(counted) if counted else None
        dram = [kernel["dram_read_bytes"], kernel["dram_written_bytes"]]
        kernel["of_formula"] = None if None in dram else sum(dram) / formula
        kernels.append(kernel)
    return {**moved, "formula_bytes": formula, "kernels": kernels, "notes": [NOTE.format(formula=what)]}


def table(result: dict[str, Any]) -> str:
    """The kernels as a table, followed by the minimum traffic."""

    def cell(x: float | None, scale: float = 1.0, digits: int = 1) -> str:
        return "n/a" if x is None else f"{x * scale:.{digits}f}"

    rows = [list(COLUMNS)]
    for k in result["kernels"]:
        rows.append([
            k["kernel"], str(k["launches"]), cell(k["time_s"], 1e6, 2), cell(k["dram_pct"]),
            cell(k["dram_read_bytes"], 1e-6, 2), cell(k["dram_written_bytes"], 1e-6, 2), cell(k["of_formula"], 1, 2),
            cell(k["l2_hit_pct"]), cell(k["occupancy_pct"]), cell(k["occupancy_limit_pct"]), cell(k["registers"], 1, 0),
            cell(k["issue_pct"]),
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
             for row in rows]  # fmt: skip
    must = f"minimum traffic: {result['read_bytes'] / 1e6:.2f} MB read, {result['written_bytes'] / 1e6:.2f} MB written"
    return "\n".join([*lines, "", must, *result["notes"]])


def draw(result: dict[str, Any], title: str, path: Path) -> str | None:
    """Draws an instruction roofline: these kernels do little arithmetic, so the instruction issue rate is the other
    limit besides memory bandwidth. Returns the reason if there is no plot, else None."""
    try:
        import matplotlib
    except ImportError:
        return "no roofline plot: matplotlib is not installed"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [p for p in (roofline(k) for k in result["kernels"]) if p is not None]
    if not points:
        return "no roofline plot: ncu did not report the required counters"
    bandwidth, issue = (max(p[key] for p in points) for key in ("peak_bytes_per_s", "peak_inst_per_s"))
    knee = issue / bandwidth
    figure, ax = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    x = [knee / 50, knee, knee * 10]
    ax.loglog(x, [min(issue, bandwidth * i) / 1e9 for i in x], color="#30343b", lw=1.5)
    ax.annotate(f"DRAM, {bandwidth / 1e12:.2f} TB/s", (knee / 9, bandwidth * knee / 13 / 1e9))
    ax.annotate(f"issue, {issue / 1e9:.0f} G/s", (knee * 1.2, issue * 1.12 / 1e9))
    for p in points:
        reached = f"{p['dram_pct']:.0f} % of DRAM, {p['issue_pct']:.0f} % of issue"
        ax.plot(p["inst_per_byte"], p["inst_per_s"] / 1e9, "o", ms=8, label=f"{p['kernel']}: {reached}")
    ax.set_ylim(top=issue * 3 / 1e9)
    ax.set(xlabel="warp instructions per byte of DRAM traffic", ylabel="G warp instructions / s", title=title)
    ax.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return None


def roofline(kernel: dict[str, Any]) -> dict[str, Any] | None:
    """A kernel's point, and the two peaks that its percentages imply; None if a counter is missing."""
    needed = ("time_s", "dram_pct", "dram_read_bytes", "dram_written_bytes", "instructions", "issue_pct")
    if any(not kernel[key] for key in needed if key != "dram_written_bytes") or kernel["dram_written_bytes"] is None:
        return None
    moved = kernel["dram_read_bytes"] + kernel["dram_written_bytes"]
    inst_per_s = kernel["instructions"] / kernel["time_s"]
    return {
        **{key: kernel[key] for key in ("kernel", "dram_pct", "issue_pct")},
        "inst_per_byte": kernel["instructions"] / moved, "inst_per_s": inst_per_s,
        "peak_inst_per_s": inst_per_s / kernel["issue_pct"] * 100,
        "peak_bytes_per_s": moved / kernel["time_s"] / kernel["dram_pct"] * 100,
    }  # fmt: skip
