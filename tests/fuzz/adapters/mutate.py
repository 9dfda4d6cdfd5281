"""Changed datasets of every format: each must be read, or refused with FormatError, in 10 s and 1 GB.

python tests/fuzz/adapters/mutate.py --cases 20000 --flips 20000 --seed 7 --out FILE
python tests/fuzz/adapters/mutate.py --format mcap --seed 7 --case 1234        one case again, with its traceback
python tests/fuzz/adapters/mutate.py --format mcap --seed 7 --flip 1234 --keep FOLDER
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import images
from facts import facts
from reading import FAILURES
from workers import Case, Runner, Worker

REQUIRED = ("mcap", "parquet", "hdf5", "zarr")
"""What --flips means: the four formats of the issue, each in a form that has checksums."""


def shares(kind: str, formats: list[str], count: int, seed: int) -> list[Case]:
    """The same number of cases for each format; one format after the other."""
    sizes = {name: count // len(formats) + (i < count % len(formats)) for i, name in enumerate(formats)}
    return [Case(kind, name, seed, number) for name, size in sizes.items() for number in range(size)]


class Totals:
    def __init__(self, total: int) -> None:
        self.total, self.done, self.begin, self.told = total, 0, time.monotonic(), 0.0
        self.counts: dict[tuple[str, str], Counter[str]] = {}
        self.failures: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def add(self, case: Case, outcome: dict[str, str]) -> None:
        with self.lock:
            self.done += 1
            self.counts.setdefault((case.kind, case.format), Counter())[outcome["kind"]] += 1
            if outcome["kind"] in FAILURES:
                self.failures.append({"command": case.command(), "format": case.format, **outcome})
                print(
                    f"\n{case.command()}\n    {outcome['kind']}: {outcome['place']}\n    {outcome['message'][:200]}",
                    flush=True,
                )
            now = time.monotonic()
            if now - self.told > 5 or self.done == self.total:
                self.told = now
                rate = self.done / (now - self.begin)
                print(
                    f"mutate: {self.done}/{self.total} cases, {rate:.0f}/s, {len(self.failures)} failures", flush=True
                )


def run_all(cases: list[Case], work: Path, jobs: int) -> Totals:
    """A failure is run again in a fresh process, so that what is reported is reproducible."""
    totals = Totals(len(cases))
    hangs: set[str] = set()
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)

    def work_off() -> None:
        worker = Worker(work)
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                break
            outcome = worker.run(case)
            known = outcome["kind"] == "hang" and outcome["place"] in hangs
            if outcome["kind"] in FAILURES and not known:
                worker.stop()
                again = worker.run(case)
                if again["kind"] == "hang":
                    hangs.add(again["place"])
                if again["kind"] != outcome["kind"]:
                    outcome = {**again, "first": f"{outcome['kind']}: {outcome['place']}: {outcome['message']}"}
            totals.add(case, outcome)
        worker.stop()

    threads = [threading.Thread(target=work_off) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals


def record(args: argparse.Namespace, totals: Totals) -> dict[str, Any]:
    given = "".join(f" --format {name}" for name in args.format or ())
    given += f" --cases {args.cases} --flips {args.flips} --seed {args.seed} --jobs {args.jobs}"
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for (kind, name), classes in sorted(totals.counts.items()):
        counts.setdefault(kind, {})[name] = dict(sorted(classes.items()))
    classes = Counter({"cases": totals.done})
    for counted in totals.counts.values():
        classes.update(counted)
    return {
        "command": f"python tests/fuzz/adapters/mutate.py{given}",
        **facts(),
        "limits": {"seconds": 10, "extra_bytes": 1 << 30},
        "seconds": round(time.monotonic() - totals.begin),
        "findings": len(totals.failures),
        "total": dict(classes),
        "counts": counts,
        "failures": [{**failure, "message": hide_paths(failure["message"])} for failure in totals.failures],
    }


def hide_paths(text: str) -> str:
    return " ".join("<path>" if "/dev/shm/" in word or "/tmp/" in word else word for word in text.split(" "))


def reproduce(case: Case, work: Path, keep: Path | None) -> int:
    """In this process, so that a debugger can be used."""
    runner = Runner(work)
    changed = runner.changes(case)
    for name, content in changed.items():
        print(f"changed: {name}: {len(content) if isinstance(content, bytes) else content}")
    if keep is not None:
        folder, _ = runner.folder(case.kind, case.format)
        folder.change(changed)
        shutil.copytree(folder.root, keep, symlinks=True, ignore=only_files, dirs_exist_ok=True)
        folder.restore(changed)
        print(f"kept: {keep / folder.image.path}, options {folder.image.options}")
    outcome = Worker(work).run(case)
    print(json.dumps(outcome, indent=1))
    return int(outcome["kind"] in FAILURES)


def only_files(folder: str, names: list[str]) -> list[str]:
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if not (path.is_file() or path.is_dir() or path.is_symlink())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="append", choices=sorted({*images.MUTATED, *images.FLIPPED}))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cases", type=int, default=0, help="mutated datasets, over all formats or those given")
    parser.add_argument("--flips", type=int, default=0, help="single-bit flips, over mcap, parquet, hdf5 and zarr")
    parser.add_argument("--case", type=int, help="run this mutated dataset only")
    parser.add_argument("--flip", type=int, help="run this flip only")
    parser.add_argument("--keep", type=Path, help="a folder for the changed dataset of --case or --flip")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    formats = args.format or list(images.MUTATED)
    flipped = args.format or list(REQUIRED)
    work = images.work_folder()
    try:
        mutated = [name for name in formats if name in images.MUTATED]
        flips = [name for name in flipped if name in images.FLIPPED]
        # Files are swapped between formats: a mutated dataset needs the images of all.
        everything = list(images.MUTATED) if args.cases or args.case is not None else []
        images.save(work / "images.pickle", everything, flips if args.flips or args.flip is not None else [])
        for kind, number in (("mutated", args.case), ("flipped", args.flip)):
            if number is not None:
                return reproduce(Case(kind, formats[0], args.seed, number), work, args.keep)
        cases = list(
            itertools.chain(
                shares("mutated", mutated, args.cases, args.seed) if args.cases else (),
                shares("flipped", flips, args.flips, args.seed) if args.flips else (),
            )
        )
        totals = run_all(cases, work, args.jobs)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    found = record(args, totals)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    places = Counter(f"{f['format']}: {f['kind']}: {f['place']}" for f in totals.failures)
    for place, count in places.most_common():
        print(f"{count:6} {place}")
    print(f"mutate: {json.dumps(found['total'])} in {found['seconds']} s")
    return int(bool(totals.failures))


if __name__ == "__main__":
    sys.exit(main())
