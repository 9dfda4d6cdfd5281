"""Checks the layers of the design: no file uses a layer above its own, and no folder has more than 15 entries.

python tools/lint/check_layers.py      prints what is wrong; part of make lint
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_ENTRIES = 15

# Folders of src/, and the other ones that each may include. Public headers are open to all.
CPP = {
    "core": set(),
    "cache": {"core"},
    "ops/align": {"core"},
    "ops/voxelize": {"core"},
    "ops/decode": {"core"},
    "batch": {"core", "ops/align"},
}
# Modules and folders of python/robocache, from the bottom up: each may import those before it.
PYTHON = [
    "_core",
    "text",
    "ops",
    "cache",
    "sources",
    "convert",
    "loader",
    "quality",
    "install",
    "lerobot",
    "datasets",
    "cli",
    "__main__",
]


def tracked(*folders: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def layer_of(path: str) -> str | None:
    """The layer of a path below src/."""
    return next((layer for layer in CPP if path.startswith(f"{layer}/")), None)


def wrong_includes() -> Iterator[str]:
    for path in tracked("src"):
        inside = path.relative_to(ROOT / "src").as_posix()
        layer = layer_of(inside)
        if layer is None:
            yield f"src/{inside}: in no layer; layers are {', '.join(CPP)}"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            included = re.match(r'\s*#include "([^"]+)"', line)
            if included is None or included[1].startswith("robocache/"):
                continue
            used = layer_of(included[1])
            if used is None or (used != layer and used not in CPP[layer]):
                yield f"src/{inside}:{number}: {layer} must not include {included[1]}"


def imported(node: ast.AST, package: list[str]) -> Iterator[str]:
    """The modules below robocache that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (name.name.split(".", 1)[1] for name in node.names if name.name.startswith("robocache."))
    elif isinstance(node, ast.ImportFrom):
        if node.level == 0:
            if node.module != "robocache" and not (node.module or "").startswith("robocache."):
                return
            base = (node.module or "").split(".")[1:]
        else:
            base = package[: len(package) - (node.level - 1)] + (node.module.split(".") if node.module else [])
        yield from ([".".join(base)] if base else [name.name for name in node.names])


def wrong_imports() -> Iterator[str]:
    package = ROOT / "python/robocache"
    for path in tracked("python/robocache"):
        if path.suffix != ".py" or path == package / "__init__.py":
            continue
        parts = path.relative_to(package).with_suffix("").parts
        if parts[0] not in PYTHON:
            yield f"{path.relative_to(ROOT)}: in no layer; layers are {', '.join(PYTHON)}"
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for module in imported(node, list(parts[:-1])):
                used = module.split(".")[0]
                if used not in PYTHON or PYTHON.index(used) > PYTHON.index(parts[0]):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {parts[0]} must not import {module}"  # type: ignore[attr-defined]


def full_folders() -> Iterator[str]:
    entries: dict[Path, set[str]] = defaultdict(set)
    for path in tracked():
        for folder in path.relative_to(ROOT).parents:
            entries[folder].add(path.relative_to(ROOT / folder).parts[0])
    for folder, names in sorted(entries.items()):
        is_data = "golden_dirty" in folder.parts
        if len(names) > MAX_ENTRIES and folder != Path(".") and not is_data:  # tools look for files at the root
            yield f"{folder}: {len(names)} entries, at most {MAX_ENTRIES}; make folders"


def main() -> int:
    wrong = [*wrong_includes(), *wrong_imports(), *full_folders()]
    print("\n".join(wrong) or "layers: every include and import goes down")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
