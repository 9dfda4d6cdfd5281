"""``robocache formats``: the dataset formats that can be read, the packages that they need, and their options."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
from typing import Any

from ..sources import FORMATS, defaults

Commands = Any
"""What ``add_subparsers`` returns."""


def add_commands(commands: Commands) -> None:
    add = commands.add_parser("formats", help="list the dataset formats that can be read, and their options")
    add.add_argument("--json", action="store_true", help="print JSON")
    add.set_defaults(run=run_formats)


def packages_of(extra: str) -> dict[str, str | None]:
    """``{requirement: installed version, or None}`` of an extra of pyproject.toml; empty if there is no such extra."""
    found: dict[str, str | None] = {}
    for line in importlib.metadata.requires("robocache") or ():
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement)
        if name and re.search(rf"extra == [\"']{extra}[\"']", marker):
            try:
                found[requirement.strip()] = importlib.metadata.version(name[0])
            except importlib.metadata.PackageNotFoundError:
                found[requirement.strip()] = None
    return found


def run_formats(args: argparse.Namespace) -> int:
    formats = [
        {"format": name, "reads": reads, "packages": packages_of(name), "options": defaults(name)}
        for name, reads in FORMATS.items()
    ]
    print(json.dumps(formats, indent=1) if args.json else "\n".join(line for one in formats for line in lines_of(one)))
    return 0


def lines_of(one: dict[str, Any]) -> list[str]:
    lines = [f"{one['format']:10} {one['reads']}"]
    if one["packages"]:
        packages = ", ".join(f"{name} ({version or 'not installed'})" for name, version in one["packages"].items())
        install = f"; pip install 'robocache[{one['format']}]'" if None in one["packages"].values() else ""
        lines.append(f"{'':10} packages: {packages}{install}")
    if one["options"]:
        lines.append(f"{'':10} options: {', '.join(f'{name}={value}' for name, value in one['options'].items())}")
    return lines
