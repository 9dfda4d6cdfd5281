"""Runs clang-tidy on the C++ files of a build's compile_commands.json, in parallel, except where nothing has changed.

python tools/lint/tidy.py build/tidy      `make tidy` configures that folder and runs this

A file that passed is not read again until it, its command, a header, .clang-tidy or clang-tidy itself changes: the
folder has a stamp for each such state.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "python/bindings")
QUIET = [
    f"--extra-arg=-Wno-{name}" for name in ("unknown-warning-option", "unknown-pragmas", "deprecated-declarations")
]
"""GCC's own options and pragmas; deprecated parts of its C++ library that the library itself uses."""


def entries(build: Path) -> dict[Path, str]:
    """``{file: command}`` of our files, the slowest first: those that include nanobind."""
    listed = json.loads((build / "compile_commands.json").read_text())
    commands = {Path(entry["file"]): str(entry["command"]) for entry in listed}
    ours = [file for file in commands if any((ROOT / folder) in file.parents for folder in FOLDERS)]
    return {file: commands[file] for file in sorted(ours, key=lambda file: "bindings" not in file.parts)}


def shared_state() -> bytes:
    """What concerns every file."""
    state = hashlib.sha256(subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout)
    headers = [path for folder in (*FOLDERS, "include") for path in (ROOT / folder).rglob("*.hpp")]
    for path in [ROOT / ".clang-tidy", *sorted(headers)]:
        state.update(str(path).encode() + path.read_bytes())
    return state.digest()


def main() -> int:
    build = Path(sys.argv[1])
    stamps = build / "passed"
    stamps.mkdir(exist_ok=True)
    shared, found = shared_state(), entries(build)

    def check(file: Path) -> str | None:
        """None: nothing to do. Else what clang-tidy has printed."""
        stamp = stamps / hashlib.sha256(shared + found[file].encode() + file.read_bytes()).hexdigest()
        if stamp.exists():
            return None
        command = ["clang-tidy", "--quiet", "-p", str(build), *QUIET, str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            stamp.touch()
            return ""
        return done.stdout or done.stderr

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(check, found))
    printed = [result for result in results if result]
    print("".join(printed), end="")
    print(f"tidy: {len(found)} files, {results.count(None)} unchanged, {len(printed)} with findings")
    return int(bool(printed) or not found)


if __name__ == "__main__":
    sys.exit(main())
