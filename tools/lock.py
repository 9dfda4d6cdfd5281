"""Writes tools/requirements.lock: every package that tools/requirements.txt needs, with the hash of its file.

python tools/lock.py [OPTION OF PIP ...]      `make lock` runs this

The lock is for the Python and the platform that run this. torch is left out, for the reason in requirements-torch.txt;
what it needs beside itself is in the lock. Nothing is installed: pip resolves in a dry run.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
LOCK = TOOLS / "requirements.lock"
APART = ("torch",)
HEAD = """\
# Every package that `make test` installs, with the hash of its file; `make lock` writes it from requirements.txt.
# for {here}
# torch is not here (tools/requirements-torch.txt says why); what it needs is.
"""


def resolve() -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", str(report), "-r", str(TOOLS / "requirements.txt"), *sys.argv[1:]]
        subprocess.run(command, check=True)
        installs: list[dict[str, object]] = json.loads(report.read_text())["install"]
        return installs


def main() -> None:
    lines = []
    for item in resolve():
        metadata, download = item["metadata"], item["download_info"]
        assert isinstance(metadata, dict)
        assert isinstance(download, dict)
        name = metadata["name"].lower().replace("_", "-").replace(".", "-")
        if name in APART:
            continue
        digest = download["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={metadata['version']} \\\n    --hash=sha256:{digest}\n")
    here = f"CPython {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
    LOCK.write_text(HEAD.format(here=here) + "".join(sorted(lines)))
    print(f"wrote {LOCK}: {len(lines)} packages for {here}")


if __name__ == "__main__":
    main()
