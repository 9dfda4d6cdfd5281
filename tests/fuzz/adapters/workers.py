"""Processes that run cases, and a watchdog over each: a crash, a hang or an exhausted memory ends one case only."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import images

HERE = Path(__file__).resolve().parent
SECONDS = 10.0
"""A case that takes longer hangs: of processor time, or of the clock where it waits for something. Others may use the
same cores."""
WAITS_S = 0.5
"""Processor time below which a process that has run for ``SECONDS`` waits."""
CLOCK = 12
"""The most that the clock may run faster than processor time."""
QUIET = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "BLOSC_NTHREADS": "1"}
"""Few threads and arenas: each would take address space that the limit of a case counts."""


@dataclass(frozen=True)
class Case:
    """``kind``: mutated or flipped; the others then decide all that happens. Or found: ``format`` is the name of it."""

    kind: str
    format: str
    seed: int
    number: int

    def rng(self) -> random.Random:
        return random.Random(f"{self.kind}/{self.format}/{self.seed}/{self.number}")

    def command(self) -> str:
        option = "--flip" if self.kind == "flipped" else "--case"
        return f"python tests/fuzz/adapters/mutate.py --format {self.format} --seed {self.seed} {option} {self.number}"


class Runner:
    """In the worker: the datasets of all formats, made when a case first asks for one."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.images: dict[str, dict[str, Any]] = images.load_saved(work / "images.pickle")
        self.scratch = Path(tempfile.mkdtemp(dir=work))
        self.folders: dict[tuple[str, str], tuple[Any, Any]] = {}

    def folder(self, kind: str, name: str) -> tuple[Any, Any]:
        """The dataset in a folder and what is read from it as it is. Reading it also starts the threads it needs."""
        import reading

        if (kind, name) not in self.folders:
            image = self.images[kind][name]
            folder = reading.Folder(self.scratch / f"{kind}-{name}", image)
            before = reading.read(folder.path, image.options)
            assert not before.error, f"{name}: {before.error}"
            assert reading.ingest(folder.path, image.options, self.scratch / "first", before) is None
            shutil.rmtree(self.scratch / "first")
            self.folders[kind, name] = (folder, before)
        return self.folders[kind, name]

    def changes(self, case: Case) -> dict[str, Any]:
        import mutations

        image = self.images[case.kind][case.format]
        if case.kind == "flipped":
            return mutations.flip_one(case.rng(), image)
        return mutations.mutate(case.rng(), image, self.images["mutated"])

    def run(self, case: Case) -> dict[str, str]:
        import reading

        if case.kind == "found":
            return self.run_found(case.format, case.number)
        folder, before = self.folder(case.kind, case.format)
        if case.number < 0:
            return {"kind": "ok"}
        changed = self.changes(case)
        before = before if case.kind == "flipped" and folder.image.checked else None
        outcome = reading.run_case(folder, changed, self.scratch / "out", before)
        return outcome.to_json()


    def run_found(self, name: str, number: int) -> dict[str, str]:
        import found
        import reading

        dataset, change = found.FOUND[name]
        folder, before = self.folder("mutated", dataset)
        if number < 0:
            return {"kind": "ok"}
        changed = change(folder.image)
        assert any(folder.image.files.get(name) != content for name, content in changed.items())
        checked = all(name in folder.image.checked for name in changed)
        return reading.run_case(folder, changed, self.scratch / "out", before if checked else None).to_json()


def die_with_parent() -> None:
    """A process that hangs would outlive it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve(work: Path) -> None:
    """One case a line on stdin, one outcome a line on the pipe that stdout was; prints go to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    die_with_parent()
    runner = Runner(work)
    for count, line in enumerate(sys.stdin):
        outcome = runner.run(Case(**json.loads(line)))
        if count % 50 == 0:
            gc.collect()
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


def cpu_seconds(group: int) -> float:
    """What all processes of a session have used: readers may start some of their own."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == group:
                total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def hangs(cpu_s: float, clock_s: float, limit_s: float) -> bool:
    return cpu_s > limit_s or (clock_s > limit_s and cpu_s < WAITS_S) or clock_s > CLOCK * limit_s


def wait_for_answer(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """False where the process hangs."""
    assert process.stdout is not None
    if select.select([process.stdout], [], [], min(1.0, seconds / 2))[0]:
        return True
    used, begin = cpu_seconds(process.pid), time.monotonic()
    while not select.select([process.stdout], [], [], 0.5)[0]:
        spent, elapsed = cpu_seconds(process.pid) - used, time.monotonic() - begin
        if hangs(spent, elapsed, seconds):
            return False
    return True


class Worker:
    """In the parent: one process, started again after a crash or a hang."""

    def __init__(self, work: Path, seconds: float = SECONDS, command: Sequence[str] | None = None) -> None:
        self.work, self.seconds = work, seconds
        self.command = command or (sys.executable, str(HERE / "workers.py"), str(work))
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: set[tuple[str, str]] = set()

    def start(self) -> subprocess.Popen[bytes]:
        self.errors = tempfile.TemporaryFile(dir=self.work)
        self.ready = set()
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True,
            env=os.environ | QUIET,
        )  # fmt: skip
        return self.process

    def run(self, case: Case) -> dict[str, str]:
        """The dataset as it is comes first, without a limit: what that takes does not count."""
        if self.process is None:
            self.start()
        if (case.kind, case.format) not in self.ready:
            self.ready.add((case.kind, case.format))
            if (first := self.ask(Case(case.kind, case.format, 0, -1), 60))["kind"] != "ok":
                return first
        return self.ask(case, self.seconds)

    def ask(self, case: Case, seconds: float) -> dict[str, str]:
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(vars(case)).encode() + b"\n")
            process.stdin.flush()
        answered = wait_for_answer(process, seconds)
        line = process.stdout.readline() if answered else b""
        if line.endswith(b"\n"):
            return dict(json.loads(line))
        if not answered:
            process.send_signal(signal.SIGABRT)  # faulthandler writes where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
        return self.ended(hang=not answered)

    def ended(self, hang: bool) -> dict[str, str]:
        code = self.stop()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        self.errors.close()
        at = self.place(text)
        if hang:
            return {"kind": "hang", "place": f"hang at {at}", "message": f"more than {self.seconds:g} s"}
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        tail = [line for line in text.splitlines() if line.strip()][-1:] if code >= 0 else []
        return {"kind": "crash", "place": f"{name} at {at}", "message": "".join(tail)[:300]}

    @staticmethod
    def place(text: str) -> str:
        """The innermost line, and the innermost one of ours, of what faulthandler wrote."""
        line = r'File "([^"]+)", line (\d+) in (\S+)'
        frames = re.findall(line, text.rpartition("Current thread")[2]) or re.findall(line, text)
        ours = [f for f in frames if "/robocache/" in f[0] and "/fuzz/" not in f[0]] or frames[:1]
        places = dict.fromkeys((*frames[:1], *ours[:1]))
        return ", ".join(f"{Path(f).name}:{number} {name}" for f, number, name in places)

    def stop(self) -> int:
        """Ends the process and all that it started."""
        process, self.process = self.process, None
        if process is None:
            return 0
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code


if __name__ == "__main__":
    serve(Path(sys.argv[1]))


__all__ = ["SECONDS", "Case", "Runner", "Worker"]
