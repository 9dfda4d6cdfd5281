"""Prints the SLSA provenance (v1) of a release as a predicate; `cosign attest-blob` makes the in-toto statement of it.

SOURCE_DATE_EPOCH=... python tools/release/provenance.py COMMIT VARIANT

Builder and signer are the same machine, so this is SLSA build level 1: it states how the files were made, and does not
protect against the builder.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import sys
from pathlib import Path

from parts import gcc_version, toolkit_version

HERE = Path(__file__).resolve().parent
LOCKS = tuple(sorted(path.name for path in (HERE / "locks").glob("*.lock")))


def predicate(commit: str, variant: str, epoch: int) -> dict[str, object]:
    time = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    locks = [
        {
            "name": f"tools/release/locks/{name}",
            "digest": {"sha256": hashlib.sha256((HERE / "locks" / name).read_bytes()).hexdigest()},
        }
        for name in LOCKS
    ]
    compilers = {"gcc": gcc_version()} | ({"nvcc": toolkit_version()} if variant.startswith("cuda") else {})
    return {
        "buildDefinition": {
            "buildType": "urn:robocache:make-release:1",
            "externalParameters": {"commit": commit, "variant": variant},
            "internalParameters": {"compilers": compilers, "python": platform.python_version()},
            "resolvedDependencies": [{"name": "robocache", "digest": {"gitCommit": commit}}, *locks],
        },
        "runDetails": {
            "builder": {"id": "urn:robocache:builder:self-signed:slsa-build-level-1"},
            "metadata": {"invocationId": f"{commit}-{variant}", "startedOn": time},
        },
    }


if __name__ == "__main__":
    print(json.dumps(predicate(sys.argv[1], sys.argv[2], int(os.environ["SOURCE_DATE_EPOCH"])), indent=1))
