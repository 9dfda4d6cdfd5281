"""The Python API as pages of the site: one for each part of the package.

Its names are those of robocache.__all__ that come from it. A folder that robocache does not import, such as lerobot,
has those of its own __all__, or of the __all__ of its modules.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import griffe

TITLES = {
    "ops": "Ops",
    "cache": "Caches, episodes, streams",
    "sources": "Opening datasets",
    "convert": "Ingest, export, view",
    "loader": "Loader",
    "quality": "Check",
    "lerobot": "LeRobot",
    "datasets": "Datasets of other projects",
    "install": "Installation, threads, errors",
}
SAME_PAGE = {"_core": "install"}
NOT_CALLED = {"cli"}
"""Folders without names for users: the command line has a guide."""


def exported(module: Path) -> list[str] | None:
    """The __all__ of a module; None if it has none."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def names_below(folder: Path) -> list[str]:
    """The public names of a folder that robocache does not import. Raises ValueError for a module that lists none."""
    own = exported(folder / "__init__.py")
    if own is not None:
        return [f"robocache.{folder.name}.{name}" for name in own]
    found = []
    for module in sorted(folder.glob("[!_]*.py")):
        names = exported(module)
        if names is None:
            raise ValueError(f"{module}: must have __all__, or the folder's __init__.py")
        found += [f"robocache.{folder.name}.{module.stem}.{name}" for name in names]
    return found


def public_names(package: Path) -> dict[str, list[str]]:
    """All public names by the part of the package that they come from."""
    tree = ast.parse((package / "__init__.py").read_text())
    origin = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            part = node.module.split(".")[0]
            origin.update({alias.asname or alias.name: SAME_PAGE.get(part, part) for alias in node.names})
    names = defaultdict(list)
    for name in exported(package / "__init__.py") or []:
        if name != "__version__":
            names[origin[name]].append(f"robocache.{name}")
    for init in sorted(package.glob("*/__init__.py")):
        if init.parent.name not in {*names, *NOT_CALLED}:
            names[init.parent.name] = names_below(init.parent)
    return names


def pages(package: Path) -> dict[str, str]:
    """{file name: text} of the pages, in the order of TITLES."""
    names = public_names(package)
    if names.keys() != TITLES.keys():
        raise ValueError(f"tools/site/python_api.py: TITLES must name {sorted(names)}, got {sorted(TITLES)}")
    return {
        f"{part}.md": "\n\n".join([f"# {title}", *(f"::: {name}" for name in names[part])]) + "\n"
        for part, title in TITLES.items()
    }


class Examples(griffe.Extension):
    """Makes the examples (>>>) of docstrings code blocks; Markdown would read them as quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    return re.sub(r"(?m)^(>>> (?:.+\n?)+)", lambda match: f"```pycon\n{match[1].rstrip()}\n```\n", text)
