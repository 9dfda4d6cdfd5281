"""Runs a build, writes its output to a log, and shows one line of progress; on failure, the end of the log.

python tools/build_progress.py build/wheel.log COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
"""The start of a line of ninja."""
MESSAGE = re.compile(r"-- (robocache: .*)")
"""A CMake message about this build, for example its GPU architectures."""
EVERY_S = 15.0
"""Seconds between lines if stdout is not a terminal."""


class Progress:
    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.begin = self.shown = time.monotonic()
        self.open_line = False

    def line(self, text: str) -> None:
        if message := MESSAGE.search(text):
            self.print_line(message[1])
        if step := STEP.search(text):
            self.step(int(step[1]), int(step[2]))

    def step(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.terminal:
            filled = 40 * done // total
            bar = f"[{'#' * filled}{'.' * (40 - filled)}] {done}/{total} compiled, {now - self.begin:.0f} s"
            print(f"\r{bar}", end="", flush=True)
            self.open_line = True
        elif now - self.shown >= EVERY_S:
            self.shown = now
            self.print_line(f"  {done}/{total} compiled, {now - self.begin:.0f} s")

    def print_line(self, text: str) -> None:
        print("\n" * self.open_line + text, flush=True)
        self.open_line = False


def main() -> int:
    log, command = Path(sys.argv[1]), sys.argv[2:]
    log.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    progress.print_line(f"building the wheel (all output: {log})")
    with log.open("w") as kept:
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, text=True, errors="replace", **both)
        assert process.stdout is not None
        for text in process.stdout:
            kept.write(text)
            kept.flush()
            progress.line(text)
    code = process.wait()
    seconds = time.monotonic() - progress.begin
    if code:
        progress.print_line("".join(log.read_text(errors="replace").splitlines(keepends=True)[-60:]))
    progress.print_line(f"the build failed, see {log}" if code else f"built in {seconds:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
