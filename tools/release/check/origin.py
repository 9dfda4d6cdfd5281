"""Checks what the provenance of a release states: one commit, the expected one, and lock files that this commit has.

python tools/release/check/origin.py DIST [COMMIT]      COMMIT: the commit or tag that DIST must be of

The signatures are checked before, by cosign. Prints one line per fault; exit code 1 if there is one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def git(*words: str) -> bytes | None:
    """The output of git in this checkout; None if it fails, for example because this is no checkout."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True)
    return done.stdout if done.returncode == 0 else None


def definition(attestation: Path) -> dict[str, Any]:
    """The part of the provenance that says what was built, from what."""
    statement = json.loads(base64.b64decode(json.loads(attestation.read_text())["payload"]))
    found: dict[str, Any] = statement["predicate"]["buildDefinition"]
    return found


def faults_of_lock(name: str, digest: str, commit: str) -> list[str]:
    """Compares a lock with that of the commit; where the commit is not here, only looks whether the file is."""
    if git("cat-file", "-e", commit) is None:
        return [] if (ROOT / name).is_file() else [f"{name} is not in this checkout"]
    content = git("show", f"{commit}:{name}")
    if content is None:
        return [f"{name} is not in commit {commit}"]
    return [] if hashlib.sha256(content).hexdigest() == digest else [f"{name} has other contents in commit {commit}"]


def faults(built: dict[str, Any], expected: str | None) -> list[str]:
    commit = built["externalParameters"]["commit"]
    source, *locks = built["resolvedDependencies"]
    found = [] if source["digest"]["gitCommit"] == commit else [f"names two commits: {commit} and {source['digest']}"]
    if expected not in (None, commit):
        found.append(f"is of commit {commit}, expected {expected}")
    for lock in locks:
        found += faults_of_lock(lock["name"], lock["digest"]["sha256"], commit)
    return found


def main() -> int:
    expected = None
    if len(sys.argv) > 2:
        resolved = git("rev-parse", "--verify", "--quiet", f"{sys.argv[2]}^{{commit}}")
        expected = resolved.decode().strip() if resolved else sys.argv[2]
    attestations = sorted(Path(sys.argv[1]).glob("*.intoto.json"))
    found = [f"{path.name}: {fault}" for path in attestations for fault in faults(definition(path), expected)]
    commits = {definition(path)["externalParameters"]["commit"] for path in attestations}
    if len(commits) != 1:
        found.append(f"files of one release must be of one commit, got {sorted(commits)}")
    print("\n".join(found or [f"of commit {commits.pop()}"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
