"""Coverage-guided fuzzing of the adapters: changes that reach new lines of an adapter are changed further.

python tests/fuzz/adapters/guided.py --seconds 60 --jobs 2 [--adapter mcap ...] [--out FILE]
python tests/fuzz/adapters/guided.py --replay FILE ...      inputs that were found, again

What is found stays in build/fuzz_adapters. A crash or a hang ends the process of an adapter, not the run.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import faulthandler
import hashlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import images
import mutations
import reading
from facts import ROOT, facts
from tracing import Coverage, counted_by_readers, trace_readers
from workers import CLOCK, QUIET, SECONDS, Worker, cpu_seconds, die_with_parent, hangs

ADAPTERS = {
    "lerobot": ("lerobot21", "lerobot30", "lerobot30-kept", "lerobot06"),
    "robomimic": ("robomimic",),
    "zarr": ("zarr2", "zarr3", "zarrzip"),
    "mcap": ("mcap", "mcap-coded", "mcap-kept", "ros2bag"),
    "calvin": ("calvin",),
    "rlds": ("rlds",),
    "robocache": ("robocache",),
}
MAX_BYTES = 1 << 20
TRACED = 5
"""How many times as long a case may take while its lines are counted."""


@dataclass(frozen=True)
class Input:
    image: str
    changed: dict[str, bytes | mutations.Odd] = field(default_factory=dict)

    def to_json(self) -> str:
        packed = {
            name: base64.b64encode(zlib.compress(c, 9)).decode() if isinstance(c, bytes) else [c.kind, c.target, c.size]
            for name, c in self.changed.items()
        }
        return json.dumps({"image": self.image, "changed": packed}, indent=1)

    @staticmethod
    def from_json(text: str) -> Input:
        read = json.loads(text)
        changed = {
            name: zlib.decompress(base64.b64decode(c)) if isinstance(c, str) else mutations.Odd(*c)
            for name, c in read["changed"].items()
        }
        return Input(read["image"], changed)


class Corpus:
    """The inputs that reached something new. The newest are changed most often."""

    def __init__(self, folder: Path, seeds: list[Input]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        self.inputs = [*seeds, *(Input.from_json(path.read_text()) for path in kept)]

    def add(self, found: Input) -> None:
        self.inputs.append(found)
        text = found.to_json()
        (self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json").write_text(text)

    def choose(self, rng: random.Random) -> Input:
        recent = self.inputs[-20:] if rng.random() < 0.5 else self.inputs
        return rng.choice(recent)


def next_input(rng: random.Random, corpus: Corpus, all_images: dict[str, images.Image]) -> Input:
    """A change on top of an input of the corpus; now and then two of them together."""
    base = corpus.choose(rng)
    changed = dict(base.changed)
    if rng.random() < 0.1:
        other = corpus.choose(rng)
        if other.image == base.image:
            changed.update(other.changed)
    changed = mutations.mutate(rng, all_images[base.image], all_images, changed)
    if sum(len(c) for c in changed.values() if isinstance(c, bytes)) > MAX_BYTES:
        changed = mutations.mutate(rng, all_images[base.image], all_images)
    return Input(base.image, changed)


class Child:
    """The process that runs inputs of one adapter. ``current.json`` is the input that runs now."""

    def __init__(self, adapter: str, work: Path, kept: Path, seed: int) -> None:
        self.adapter, self.work, self.kept = adapter, work, kept
        self.rng = random.Random(f"{adapter}/{seed}/{os.getpid() if seed < 0 else 0}")
        self.images: dict[str, images.Image] = images.load_saved(work / "images.pickle")["mutated"]
        self.folders: dict[str, reading.Folder] = {}
        self.counted = work / f"{adapter}-{os.getpid()}.counted"
        trace_readers(self.counted)
        for name in ADAPTERS[adapter]:
            folder = self.folders[name] = reading.Folder(work / f"{adapter}-{os.getpid()}" / name, self.images[name])
            assert reading.run_case(folder, {}, work / f"{adapter}-out").kind == "ok", name
        self.coverage = Coverage()
        self.corpus = Corpus(work / f"corpus-{adapter}", [Input(name) for name in ADAPTERS[adapter]])
        self.state: dict[str, Any] = {"executions": 0, "findings": {}, "slowest_s": 0.0}
        if (told := work / f"{adapter}.state").exists():
            self.state = json.loads(told.read_text())

    def execute(self, found: Input) -> reading.Outcome:
        current = self.work / f"{self.adapter}.current"
        current.write_text(found.to_json())
        begin = time.monotonic()
        with self.coverage:
            outcome = reading.run_case(self.folders[found.image], found.changed, self.work / f"{self.adapter}-out")
        self.coverage.add(counted_by_readers(self.counted))
        self.state["slowest_s"] = max(self.state["slowest_s"], round(time.monotonic() - begin, 3))
        self.state["executions"] += 1
        return outcome

    def run(self, until: float) -> None:
        for found in list(self.corpus.inputs):  # after a crash: what had been reached before
            self.execute(found)
            self.coverage.take()
        told = 0.0
        while time.monotonic() < until:
            found = next_input(self.rng, self.corpus, self.images)
            outcome = self.execute(found)
            if outcome.kind in reading.FAILURES:
                keep_finding(self.kept, self.adapter, found, outcome, self.state["findings"])
            if self.coverage.take():
                self.corpus.add(found)
            if time.monotonic() - told > 1:
                told = time.monotonic()
                self.tell()
        self.tell()

    def tell(self) -> None:
        self.state["edges"], self.state["features"] = self.coverage.num_edges, len(self.coverage.features)
        self.state["corpus"] = len(self.corpus.inputs)
        self.state["peak_rss_mb"] = peak_rss_mb()
        partial = self.work / f"{self.adapter}.state.new"
        partial.write_text(json.dumps(self.state))
        partial.replace(self.work / f"{self.adapter}.state")


def peak_rss_mb() -> int:
    """Of this process: getrusage gives that of its parent where it was larger."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) >> 10 if found else 0


def keep_finding(
    kept: Path, adapter: str, found: Input, outcome: reading.Outcome, findings: dict[str, dict[str, Any]]
) -> None:
    """The first input of every place; the others are counted."""
    at = findings.setdefault(f"{outcome.kind}: {outcome.place}", {"count": 0, "message": outcome.message})
    at["count"] += 1
    if at["count"] == 1:
        name = f"{adapter}-{hashlib.sha256(outcome.place.encode()).hexdigest()[:8]}.json"
        kept.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text(found.to_json())
        at["input"] = name
        print(
            f"guided: {adapter}: {outcome.kind}: {outcome.place}\n    {outcome.message[:200]}\n    {name}", flush=True
        )


def fuzz(adapter: str, seconds: float, work: Path, kept: Path, seed: int) -> dict[str, Any]:
    """In the parent: keeps a child running for that long, and takes up what ended one."""
    until = time.monotonic() + seconds
    state_file, current = work / f"{adapter}.state", work / f"{adapter}.current"
    restarts = 0
    while (left := until - time.monotonic()) > 0.5:
        command = [sys.executable, __file__, "--child", adapter, "--work", str(work), "--kept", str(kept)]
        command += ["--seconds", str(left), "--seed", str(seed + restarts)]
        with tempfile.TemporaryFile(dir=work) as errors:
            child = subprocess.Popen(command, stderr=errors, start_new_session=True, env=os.environ | QUIET)
            hang = watch(child, current, until)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            errors.seek(0)
            text = errors.read().decode(errors="replace")
        if code == 0:
            break
        restarts += 1
        if not current.exists():
            raise RuntimeError(f"guided: {adapter} did not start:\n{text[-2000:]}")
        at = Worker.place(text)
        if hang:
            outcome = reading.Outcome("hang", f"hang at {at}", f"more than {SECONDS:g} s")
        else:
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            outcome = reading.Outcome("crash", f"{name} at {at}", text.strip().rpartition("\n")[2][:300])
        empty = {"executions": 0, "findings": {}, "slowest_s": 0.0}
        state = json.loads(state_file.read_text()) if state_file.exists() else empty
        keep_finding(kept, adapter, Input.from_json(current.read_text()), outcome, state["findings"])
        state_file.write_text(json.dumps(state))
    state = json.loads(state_file.read_text())
    return {"seconds": round(seconds), "restarts": restarts, **state}


def watch(child: subprocess.Popen[bytes], current: Path, until: float) -> bool:
    """Waits for the child; True where one input took too long, and the child was ended."""
    current.unlink(missing_ok=True)
    now, begin, used = 0, time.monotonic(), 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
            return False
        written = current.stat().st_mtime_ns if current.exists() else 0
        if written != now:
            now, begin, used = written, time.monotonic(), cpu_seconds(child.pid)
        hang = now != 0 and hangs(cpu_seconds(child.pid) - used, time.monotonic() - begin, TRACED * SECONDS)
        if hang or time.monotonic() > until + CLOCK * TRACED * SECONDS:
            child.send_signal(signal.SIGABRT)  # faulthandler writes where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(3)
            return hang


def fuzz_all(adapters: list[str], seconds: float, jobs: int, seed: int, kept: Path) -> dict[str, Any]:
    work = images.work_folder()
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    found: dict[str, Any] = {}
    for adapter in adapters:
        waiting.put(adapter)

    def work_off() -> None:
        while True:
            try:
                adapter = waiting.get_nowait()
            except queue.Empty:
                return
            found[adapter] = fuzz(adapter, seconds, work, kept, seed)
            told = {key: value for key, value in found[adapter].items() if key != "findings"}
            print(f"guided: {adapter}: {len(found[adapter]['findings'])} findings; {json.dumps(told)}", flush=True)

    try:
        images.save(work / "images.pickle", list(images.MUTATED), [])
        threads = [threading.Thread(target=work_off) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {adapter: found[adapter] for adapter in adapters}


def replay(paths: list[Path]) -> int:
    """Runs inputs in this process, after a dataset as it is."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            found = Input.from_json(path.read_text())
            at = reading.Folder(Path(folder) / path.stem, images.make(found.image))
            outcome = reading.run_case(at, found.changed, Path(folder) / "out")
            counts[outcome.kind] += 1
            print(f"{path.name}: {outcome.kind}: {outcome.place} {outcome.message}")
    return int(any(counts[kind] for kind in reading.FAILURES))


def record(path: Path, args: argparse.Namespace, targets: dict[str, Any]) -> None:
    """Adds the targets of this run to the file; each has the command and the commit of its own run."""
    command = f"python tests/fuzz/adapters/guided.py --seconds {args.seconds:g} --jobs {args.jobs}"
    kept = json.loads(path.read_text()) if path.exists() else {}
    ran = {name: {"command": f"{command} --adapter {name}", **facts(), **found} for name, found in targets.items()}
    path.write_text(json.dumps({**kept, **ran}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", action="append", choices=list(ADAPTERS))
    parser.add_argument("--seconds", type=float, default=60, help="for each adapter")
    parser.add_argument("--jobs", type=int, default=2, help="adapters at a time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--kept", type=Path, default=ROOT / "build/fuzz_adapters")
    parser.add_argument("--out", type=Path, help="JSON, added to what it has of other adapters")
    parser.add_argument("--replay", type=Path, nargs="+")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        faulthandler.enable()
        die_with_parent()
        until = time.monotonic() + args.seconds
        Child(args.child, args.work, args.kept, args.seed).run(until)
        return 0
    if args.replay:
        return replay(args.replay)
    targets = fuzz_all(args.adapter or list(ADAPTERS), args.seconds, args.jobs, args.seed, args.kept)
    if args.out:
        record(args.out, args, targets)
    num_findings = sum(len(found["findings"]) for found in targets.values())
    print(f"guided: {num_findings} findings in {len(targets)} adapters")
    return int(bool(num_findings))


if __name__ == "__main__":
    sys.exit(main())
