"""Prints the newest release wheel below a folder that this Python can install; exit code 1 if there is none.

python tools/release/prebuilt.py FOLDER | --version      --version prints "robocache==<version of this checkout>"

Wheels of `make release` count; those of `make wheel` have the tag linux and do not. The wheel has the version of this
checkout; it may be of an older commit.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    if sys.argv[1] == "--version":
        print(f"robocache=={version()}")
        sys.exit(0)
    found = prebuilt(Path(sys.argv[1]))
    if found is None:
        sys.exit(1)
    print(found)
