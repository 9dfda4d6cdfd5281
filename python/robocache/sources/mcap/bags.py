"""Folders of ROS 2 bags: which files make an episode, by the list in their metadata.yaml."""

from __future__ import annotations

import re
from pathlib import Path

from ..._core import FormatError
from ..reading.paths import Tree, read_file

METADATA = "metadata.yaml"
LISTED = "relative_file_paths"
MAX_YAML_BYTES = 16 << 20
SQLITE = b"SQLite format 3\0"
QUOTED = r"""(?:'(?P<single>(?:[^']|''){0,4096})'|"(?P<double>(?:[^"\\]|\\.){0,4096})")"""
ENTRY = re.compile(rf"\s*{QUOTED}\s*(?:#.*)?|(?P<plain>.*)", re.DOTALL)
"""A text of YAML on a line of its own, after the dash."""
INLINE = re.compile(rf"""\s*(?:{QUOTED}|(?P<plain>[^\s\],'"][^\],]*|))\s*[\],]""")
"""The next text of YAML in ``[a, 'b']``, and what ends it."""
ESCAPE = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(.))", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
"""In double quotes of YAML; all other characters stand for themselves."""


class SqliteBagError(FormatError):
    def __init__(self, path: Path) -> None:
        super().__init__(
            f"mcap: {path} is a SQLite bag; convert it to MCAP with 'ros2 bag convert' or, without ROS, with "
            "'rosbags-convert --dst-storage mcap' (pip install rosbags)"
        )


def names_files(metadata: Path) -> bool:
    """Whether it is a bag's, and not that of another program. Never raises: for ``detect``."""
    try:
        return LISTED.encode() in read_file(metadata, MAX_YAML_BYTES)
    except (OSError, FormatError):
        return False


def recordings_of(tree: Tree, path: Path) -> list[list[Path]]:
    """The files of each episode: a bag folder is one, every other MCAP file is one; also of folders of these."""
    if (path / METADATA).exists():
        return [_bag_files(tree, path)]
    found = [[file] for file in sorted(path.glob("*.mcap"))]
    found += [_bag_files(tree, bag.parent) for bag in sorted(path.glob(f"*/{METADATA}"))]
    for files in found:
        for file in files:
            tree.check(file)
    return found


def _bag_files(tree: Tree, bag: Path) -> list[Path]:
    """The files that metadata.yaml lists, in their order."""
    path = tree.file((bag / METADATA).relative_to(tree.root))
    names = _listed(read_file(path, MAX_YAML_BYTES).decode("utf-8", "replace"), f"mcap: {bag}/{METADATA}")
    if not names:
        raise FormatError(f"mcap: {bag}/{METADATA} lists no files under {LISTED}")
    if len(set(names)) < len(names):
        raise FormatError(f"mcap: {bag}/{METADATA} lists a file twice: {', '.join(names)[:200]}")
    if other := [name for name in names if not name.endswith(".mcap")]:
        if ".db3" in other[0]:  # .db3.zstd too
            raise SqliteBagError(bag / other[0])
        if ".mcap." in other[0]:
            fix = "unpack it with 'zstd -d' and list it without .zstd, or convert the bag with 'ros2 bag convert'"
            raise FormatError(f"mcap: {bag}: {other[0]} is compressed as a file (compression_mode FILE); {fix}")
        raise FormatError(f"mcap: {bag}: {other[0]} is not MCAP")
    return [Tree(bag, tree.follow_symlinks).file(name) for name in names]


def _listed(text: str, where: str) -> list[str]:
    """The names in metadata.yaml. Only that list is read, so no YAML reader is needed."""
    lines = iter(re.split(r"\r?\n", text))
    names = []
    for line in lines:
        key, _, rest = line.strip().partition(":")
        if key != LISTED:
            continue
        rest = rest.strip()
        if rest.startswith("["):
            return _inline("\n".join([rest, *lines]), where)
        if rest and not rest.startswith("#"):
            return []
        for entry in lines:
            plain = entry.strip()
            if plain.startswith("-"):
                found = ENTRY.fullmatch(plain[1:])
                names += [name] if found and (name := _scalar(found)) else []
            elif plain and not plain.startswith("#"):
                break
        break
    return names


def _inline(text: str, where: str) -> list[str]:
    names, at = [], 1
    while True:
        found = INLINE.match(text, at)
        if found is None:
            raise FormatError(f"{where}: the list under {LISTED} cannot be read: {text[at : at + 80]!r}")
        names += [name] if (name := _scalar(found)) else []
        at = found.end()
        if text[at - 1] == "]":
            return names


def _scalar(found: re.Match[str]) -> str:
    """A text of YAML: plain, in single quotes ('' is one of them), or in double quotes with escapes."""
    if (text := found["single"]) is not None:
        return text.replace("''", "'")
    if (text := found["double"]) is not None:
        return ESCAPE.sub(_unescaped, text)
    plain = found["plain"].strip()
    return "" if plain.startswith("#") else plain.partition(" #")[0].strip()


def _unescaped(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    return chr(int(number, 16)) if number else ESCAPED.get(found[4], found[4])
