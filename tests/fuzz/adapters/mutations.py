"""Changes to a dataset, all decided by a random number generator: the same seed makes the same dataset."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edits import NAMES, edit_bytes
from images import Image


@dataclass(frozen=True)
class Odd:
    """Something other than a file with bytes. ``kind``: fifo, socket, folder, missing, sparse, link."""

    kind: str
    target: str = ""
    size: int = 0

    def put(self, path: Path) -> None:
        if self.kind == "fifo":
            os.mkfifo(path)
        elif self.kind == "folder":
            path.mkdir()
        elif self.kind == "sparse":
            with path.open("wb") as file:
                file.write(self.target.encode("latin-1"))
                file.truncate(self.size)
        elif self.kind == "link":
            path.symlink_to(self.target)
        elif self.kind == "socket" and len(os.fspath(path)) < 100:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(os.fspath(path))


LINKS = ("/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/proc/self/environ", "nowhere", ".", "..", "/")


def odd_file(rng: random.Random, name: str, image: Image, others: dict[str, Image]) -> bytes | Odd:
    """Something else where a file was."""
    own = Path(name).name
    kinds: list[Callable[[], bytes | Odd]] = [
        lambda: Odd("fifo"),
        lambda: Odd("socket"),
        lambda: Odd("folder"),
        lambda: Odd("missing"),
        lambda: b"",
        lambda: Odd("link", own),
        lambda: Odd("link", rng.choice(LINKS)),
        lambda: Odd(
            "sparse",
            image.files[name][: rng.choice((0, 16, 10**9))].decode("latin-1"),
            rng.choice((1 << 20, 1 << 33, 1 << 40)),
        ),
        lambda: rng.choice(list(image.files.values())),
        lambda: rng.choice(list(rng.choice(list(others.values())).files.values())),
    ]
    return rng.choice(kinds)()


def choose_file(rng: random.Random, names: list[str]) -> str:
    """A kind of file first: one of metadata is as likely as all of a hundred chunks."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        stem, _, end = name.rpartition("/")[2].rpartition(".")
        kind = end if stem and not end.isdigit() else f"{stem}.{end}"
        kinds.setdefault("".join(c for c in kind if not c.isdigit()), []).append(name)
    return rng.choice(kinds[rng.choice(sorted(kinds))])


def mutate(
    rng: random.Random, image: Image, others: dict[str, Image], before: dict[str, bytes | Odd] | None = None
) -> dict[str, bytes | Odd]:
    """What differs from the image: by file name, new bytes or something that is no file. ``before``: changes that are
    there already."""
    changed = dict(before or {})
    names = sorted(image.files)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        name = choose_file(rng, names)
        kind = rng.random()
        now = changed.get(name, image.files[name])
        if kind < 0.15:
            changed[name] = odd_file(rng, name, image, others)
        elif kind < 0.18:
            moved = name[: len(name) - len(Path(name).name)] + rng.choice(
                (*NAMES[5:6], "x", Path(name).name + "x", "y" * 200)
            )
            changed[moved], changed[name] = now, Odd("missing")
        elif isinstance(now, bytes):
            data = bytearray(now)
            edit_bytes(rng, name, data)
            changed[name] = bytes(data)
    return changed


def flip_one(rng: random.Random, image: Image) -> dict[str, bytes | Odd]:
    """One bit; every bit of the files with checksums is as likely, of all files where none has."""
    names = list(image.checked) or sorted(image.files)
    at = rng.randrange(sum(len(image.files[name]) for name in names))
    for name in names:
        if at < len(image.files[name]):
            data = bytearray(image.files[name])
            data[at] ^= 1 << rng.randrange(8)
            return {name: bytes(data)}
        at -= len(image.files[name])
    raise AssertionError("a place outside of all files")
