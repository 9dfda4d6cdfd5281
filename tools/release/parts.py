"""The parts of other projects in a native module, with versions and licenses, and their CycloneDX bill of materials.

THIRD_PARTY_NOTICES.md has the texts of the licenses; a test compares the two lists.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    name: str
    version: str
    license: str  # SPDX expression, or the name of a license without one
    how: str


def locked(lock: str, package: str) -> str:
    """The version of a package in a lock file of a release."""
    found = re.search(rf"^{package}==(\S+)", (HERE / "locks" / lock).read_text(), re.M)
    assert found is not None, f"{package} is not in {lock}"
    return found[1]


def glibc_version() -> str:
    found = re.search(r"libc6-dev_([0-9.]+)", (HERE / "locks" / "packages.lock").read_text())
    assert found is not None
    return found[1]


def gcc_version() -> str:
    return subprocess.run(["g++-12", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


def toolkit_version() -> str:
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    assert found is not None, text
    return found[1]


def parts(cuda: bool, python: bool = True) -> list[Part]:
    """What is compiled into ``_core`` (``python``) or into a program of the C++ library, with CUDA code or without."""
    exception = "GPL-3.0-or-later WITH GCC-exception-3.1"
    found = [
        Part("libstdc++", gcc_version(), exception, "linked statically"),
        Part("libgcc", gcc_version(), exception, "linked statically"),
        Part("glibc", glibc_version(), "LGPL-2.1-or-later", "start files and libc_nonshared; libc.so is the system's"),
    ]
    if python:
        found += [
            Part("nanobind", locked("build.lock", "nanobind"), "BSD-3-Clause", "linked statically"),
            Part("robin-map", f"in nanobind {locked('build.lock', 'nanobind')}", "MIT", "headers, through nanobind"),
            Part("XLA", f"jaxlib {locked('jax_headers.lock', 'jaxlib')}", "Apache-2.0", "headers of xla/ffi/api"),
        ]
    if cuda:
        toolkit = f"CUDA Toolkit {toolkit_version()}"
        found += [
            Part("CUB", toolkit, "BSD-3-Clause", "headers"),
            Part("Thrust", toolkit, "Apache-2.0", "headers"),
            Part("libcu++", toolkit, "Apache-2.0 WITH LLVM-exception", "headers"),
            Part("CUDA runtime", toolkit, "NVIDIA CUDA Toolkit End User License Agreement", "linked statically"),
        ]
    return found


def license_of(text: str) -> list[dict[str, Any]]:
    if " WITH " in text:
        return [{"expression": text}]
    return [{"license": {"name": text} if " " in text else {"id": text}}]


def bill_of_materials(name: str, version: str, files: dict[str, str], listed: list[Part], epoch: int) -> str:
    """CycloneDX 1.6 as JSON: the package, its files ({name: SHA-256}), its parts. Same input, same text."""
    time = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    root = f"pkg:pypi/{name}@{version}"
    components = [
        {
            "type": "library",
            "bom-ref": f"part:{part.name}",
            "name": part.name,
            "version": part.version,
            "licenses": license_of(part.license),
            "properties": [{"name": "robocache:how", "value": part.how}],
        }
        for part in listed
    ]
    components += [
        {"type": "file", "bom-ref": f"file:{path}", "name": path, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for path, digest in sorted(files.items())
    ]
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([root, sorted(files.items())]))}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                **{"type": "library", "bom-ref": root, "name": name, "version": version, "purl": root},
                "licenses": license_of("Apache-2.0"),
            },
        },
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [str(component["bom-ref"]) for component in components]}],
    }
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"
