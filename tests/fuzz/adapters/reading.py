"""Reads a changed dataset the way a user does, and says how that ended."""

from __future__ import annotations

import os
import re
import resource
import shutil
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import robocache
from images import Image
from mutations import Odd

EXTRA_BYTES = 1 << 30
"""What a dataset may take on top of the memory that the process has."""
MAX_EPISODES = 64
"""A changed dataset may declare billions. Ingest sees all of them."""
OPTION = re.compile(r"open: (options of \w+ must be among|a cache takes no options)")
"""The changed dataset has become one of another format, which does not take the options that the call gives; the error
names them. Counted as ``option``."""
FAILURES = ("exception", "memory", "crash", "hang", "silent")


@dataclass
class Outcome:
    """``kind``: ok, FormatError, option, or one of FAILURES. ``place``: what tells one defect from another."""

    kind: str
    place: str = ""
    message: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


class Folder:
    """The dataset of an image in a folder; a case changes a few files of it, which are put back afterwards."""

    def __init__(self, root: Path, image: Image) -> None:
        self.root, self.image = root, image
        self.path = root / image.path
        for name in image.files:
            self.write(name, image.files[name])

    def write(self, name: str, content: bytes | Odd) -> None:
        """Always a new file: the old one may still be mapped."""
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.put(path)

    def change(self, changed: dict[str, bytes | Odd]) -> None:
        for name, content in changed.items():
            self.write(name, content)

    def restore(self, changed: dict[str, bytes | Odd]) -> None:
        for name in changed:
            self.write(name, self.image.files.get(name, Odd("missing")))


Rows = dict[str, tuple[Any, ...]]
PARTS = ("dtype", "shape", "kind", "rate_hz", "names", "values", "times", "offsets")
"""What ``Rows`` has of a stream."""


def rows_of(episode: Any) -> Rows:
    """All that a training run would see of an episode, as values that compare bit by bit."""
    found: Rows = {"": (episode.index, episode.task)}
    for name, stream in episode.streams.items():
        spec = stream.spec
        offsets = None if stream.offsets is None else stream.offsets.tobytes()
        found[name] = (
            *(spec.dtype, spec.shape, spec.kind, spec.rate_hz, spec.names),
            *(stream.values.tobytes(), stream.times.tobytes(), offsets),
        )
    return found


@dataclass
class Read:
    """``episodes``: None for one that raised FormatError."""

    names: list[str]
    episodes: list[Rows | None]
    error: str = ""


def read(path: Path, options: dict[str, Any]) -> Read:
    try:
        source = robocache.open(path, **options)
        if source.format == "robocache" and (problems := source.verify()):
            raise robocache.FormatError(problems[0])
        found = Read(sorted(source.specs), [])
    except robocache.FormatError as error:
        return Read([], [], str(error) or "FormatError without a message")
    for index in range(min(len(source), MAX_EPISODES)):
        try:
            found.episodes.append(rows_of(source.episode(index)))
        except robocache.FormatError as error:
            found.episodes.append(None)
            found.error = str(error) or "FormatError without a message"
    return found


def ingest(path: Path, options: dict[str, Any], out: Path, found: Read) -> Outcome | None:
    """None where the cache holds what the episodes gave."""
    cache = robocache.ingest(path, out, **options)
    for index, expected in enumerate(found.episodes):
        if expected is None:
            return Outcome("silent", "ingest: an episode that cannot be read is in the cache", found.error)
        got = rows_of(cache.episode(index))
        for name, rows in expected.items():
            if name and rows[5] and got.get(name, ())[5:] != rows[5:]:
                return Outcome(
                    "silent", "ingest: the cache has other rows than the episode", f"episode {index}: {name}"
                )
    return None


def compare(before: Read, after: Read) -> Outcome | None:
    """None where everything that could be read is what it was."""
    if after.error and not after.names:
        return None
    if lost := [name for name in before.names if name not in after.names]:
        return Outcome("silent", "a stream is lost", lost[0])
    if before.names != after.names:
        return Outcome("silent", "there is another stream", str(set(after.names) - set(before.names)))
    if len(before.episodes) != len(after.episodes):
        return Outcome("silent", "another number of episodes", f"{len(before.episodes)}, now {len(after.episodes)}")
    for index, (old, new) in enumerate(zip(before.episodes, after.episodes, strict=True)):
        if old is not None and new is not None and old != new:
            name = next((name for name in old if old[name] != new.get(name)), "another stream")
            return Outcome(
                "silent", f"other {differing(old.get(name, ()), new.get(name, ()))}", f"episode {index}: {name}"
            )
    return None


def differing(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    if len(old) != len(PARTS) or len(new) != len(PARTS):
        return "task or streams"
    return ", ".join(part for part, a, b in zip(PARTS, old, new, strict=True) if a != b)


def innermost(error: BaseException) -> str:
    """The exception's type and the last line of ours on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/robocache/" in f.filename.replace("\\", "/")] or frames[-1:]
    at = ours[-1]
    last = frames[-1]
    below = (
        "" if last is at else f" (raised in {Path(last.filename).parent.name}/{Path(last.filename).name} {last.name})"
    )
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.name}: {(at.line or '').strip()[:90]}{below}"


def limit_memory(extra: int = EXTRA_BYTES) -> None:
    """From here on this process may take that much more address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + extra, hard))


def run_case(folder: Folder, changed: dict[str, bytes | Odd], out: Path, before: Read | None = None) -> Outcome:
    """Opens the changed dataset, reads every episode, ingests it; compares with ``before`` where it is given."""
    folder.change(changed)
    stage = "open"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            limit_memory()
            options = folder.image.options
            stage = "read"
            found = read(folder.path, options)
            if before is not None and (different := compare(before, found)) is not None:
                return different
            if before is None and not (found.error and not found.names):
                stage = "ingest"
                if (different := ingest(folder.path, options, out, found)) is not None:
                    return different
        return Outcome("FormatError", "", found.error) if found.error else Outcome("ok")
    except robocache.FormatError as error:
        return Outcome("FormatError", "", str(error))
    except FileNotFoundError as error:
        if not folder.path.exists():  # the dataset itself is gone
            return Outcome("FormatError", "", str(error))
        return Outcome("exception", f"{stage}: {innermost(error)}", str(error)[:300])
    except ValueError as error:
        if OPTION.match(str(error)):
            return Outcome("option", "", str(error))
        return Outcome("exception", f"{stage}: {innermost(error)}", str(error)[:300])
    except MemoryError as error:
        return Outcome("memory", f"{stage}: {innermost(error)}", str(error)[:300])
    except Exception as error:
        return Outcome("exception", f"{stage}: {innermost(error)}", str(error)[:300])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        shutil.rmtree(out, ignore_errors=True)
        folder.restore(changed)
