"""Prints the newest release wheel below a folder that this Python can install; exit code 1 if there is none.

python tools/release/prebuilt.py FOLDER | --version | --is-installed WHEEL
    --version         prints "robocache==<version of this checkout>"
    --is-installed    exit code 0 if pip installed this very file last, 1 if another one or none

Wheels of `make release` count; those of `make wheel` have the tag linux and do not. The wheel has the version of this
checkout; it may be of an older commit.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path

from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]


def version() -> str:
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found is not None
    return found[1]


def prebuilt(folder: Path) -> Path | None:
    supported = {tag for tag in sys_tags() if "manylinux" in tag.platform}
    wheels = sorted(folder.rglob("robocache-*.whl"), key=lambda path: path.stat().st_mtime, reverse=True)
    for wheel in wheels:
        _, of, _, tags = parse_wheel_filename(wheel.name)
        if str(of) == version() and tags & supported:
            return wheel
    return None


def is_installed(wheel: Path) -> bool:
    """Whether the installed package is of this file: pip writes down the hash of a local file that it installs."""
    try:
        text = importlib.metadata.distribution("robocache").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return False
    written = json.loads(text or "{}").get("archive_info", {}).get("hash")
    return bool(written == "sha256=" + hashlib.sha256(wheel.read_bytes()).hexdigest())


if __name__ == "__main__":
    if sys.argv[1] == "--version":
        print(f"robocache=={version()}")
        sys.exit(0)
    if sys.argv[1] == "--is-installed":
        sys.exit(not is_installed(Path(sys.argv[2])))
    found = prebuilt(Path(sys.argv[1]))
    if found is None:
        sys.exit(1)
    print(found)
