"""The Python API as pages of the site: one for each part of the package, with its names in robocache.__all__."""

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
    "install": "Installation, threads, errors",
}
SAME_PAGE = {"_core": "install"}


def public_names(package: Path) -> dict[str, list[str]]:
    """The names of __all__ by the part of the package that they come from."""
    tree = ast.parse((package / "__init__.py").read_text())
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    )
    origin = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            part = node.module.split(".")[0]
            origin.update({alias.asname or alias.name: SAME_PAGE.get(part, part) for alias in node.names})
    names = defaultdict(list)
    for name in listed:
        if name != "__version__":
            names[origin[name]].append(f"robocache.{name}")
    names["lerobot"].append("robocache.lerobot.LeRobotDataset")
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
