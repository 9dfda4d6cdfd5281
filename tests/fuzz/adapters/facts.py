"""What a recorded run is of: the commit, the packages that read the files, the machine."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("robocache", "numpy", "pyarrow", "h5py", "zarr", "numcodecs", "mcap", "mcap-ros2-support", "av", "pillow")


def facts() -> dict[str, Any]:
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": git("rev-parse", "HEAD"),
        "modified": bool(git("status", "--porcelain", "--untracked-files=no", "python", "src", "tests")),
        "python": platform.python_version(),
        "versions": versions(),
        "hardware": {"cpu": cpu[0].partition(": ")[2] if cpu else platform.machine(), "cores": os.cpu_count()},
    }


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
