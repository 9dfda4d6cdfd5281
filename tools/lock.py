"""Writes a lock file: every package that a file of requirements needs, with the hash of its file.

python tools/lock.py [NAME [OPTION OF PIP ...]]      `make lock` runs this

NAME.lock is written from NAME.txt in this folder; NAME is "requirements" unless given. A lock is for the Python and the
platform that run this. torch is left out, for the reason in requirements-torch.txt; what it needs beside itself is in
the lock. Nothing is installed: pip resolves in a dry run.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
APART = ("torch",)
HEAD = {
    "requirements": """\
# Every package that `make test` installs, with the hash of its file; `make lock` writes it from requirements.txt.
# for {here}
# torch is not here (tools/requirements-torch.txt says why); what it needs is.
"""
}
OTHER_HEAD = """\
# Every package that {name}.txt needs, with the hash of its file; `tools/lock.py {name}` writes it.
# for {here}
"""


def resolve(requirements: Path, options: list[str]) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", str(report), "-r", str(requirements), *options]
        subprocess.run(command, check=True)
        installs: list[dict[str, object]] = json.loads(report.read_text())["install"]
        return installs


def main() -> None:
    name, options = (sys.argv[1], sys.argv[2:]) if sys.argv[1:] else ("requirements", [])
    lines = []
    for item in resolve(TOOLS / f"{name}.txt", options):
        metadata, download = item["metadata"], item["download_info"]
        assert isinstance(metadata, dict)
        assert isinstance(download, dict)
        package = metadata["name"].lower().replace("_", "-").replace(".", "-")
        if package in APART:
            continue
        digest = download["archive_info"]["hashes"]["sha256"]
        lines.append(f"{package}=={metadata['version']} \\\n    --hash=sha256:{digest}\n")
    here = f"CPython {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
    lock = TOOLS / f"{name}.lock"
    lock.write_text(HEAD.get(name, OTHER_HEAD).format(name=name, here=here) + "".join(sorted(lines)))
    print(f"wrote {lock}: {len(lines)} packages for {here}")


if __name__ == "__main__":
    main()
