#!/usr/bin/env python3
"""Prints the CycloneDX bill of a container: Debian packages and Python packages, with versions and licenses.

python tools/release/container/bill.py ROOT IMAGE_VERSION EPOCH      ROOT: the unpacked root file system

What the wheels say about parts linked into them (``.dist-info/sboms``) is in the bill as well.
"""

from __future__ import annotations

import datetime
import email.parser
import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = "opt/robocache/lib/python3.*/site-packages"


def named(licenses: list[str]) -> list[dict[str, Any]]:
    return [{"license": {"name": name}} for name in licenses]


def debian_licenses(copyright_file: Path) -> list[str]:
    """The short names of a machine-readable file; of another one, where it is."""
    text = copyright_file.read_text(errors="replace")
    names = set(re.findall(r"^License:[ \t]*(\S[^\n]*)$", text, re.M)) if text.startswith("Format:") else set()
    return sorted(names) or [f"in /usr/share/doc/{copyright_file.parent.name}/copyright"]


def debian_packages(root: Path) -> Iterator[dict[str, Any]]:
    suite = re.search(r"^VERSION_CODENAME=(\w+)", (root / "etc/os-release").read_text(), re.M)
    assert suite is not None
    for stanza in (root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        package = email.parser.HeaderParser().parsestr(stanza)
        if package["Status"] != "install ok installed":
            continue
        name, version = package["Package"], package["Version"]
        yield {
            "type": "library",
            "bom-ref": f"deb:{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch={package['Architecture']}"
            f"&distro={suite[1]}",
            "licenses": named(debian_licenses(root / "usr/share/doc" / name / "copyright")),
        }


def python_licenses(metadata: Any) -> list[dict[str, Any]]:
    if metadata["License-Expression"]:
        return [{"expression": metadata["License-Expression"]}]
    classified = [
        x.rsplit("::", 1)[1].strip() for x in metadata.get_all("Classifier", []) if x.startswith("License ::")
    ]
    return named(classified or [metadata["License"]])


def python_packages(root: Path) -> Iterator[dict[str, Any]]:
    for info in sorted(root.glob(f"{PACKAGES}/*.dist-info")):
        metadata = email.parser.HeaderParser().parsestr((info / "METADATA").read_text())
        name = metadata["Name"].lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{metadata['Version']}"
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": metadata["Version"],
            "purl": purl,
        }
        inside = [
            {key: part[key] for key in ("type", "name", "version", "purl", "hashes", "licenses") if key in part}
            | {"bom-ref": f"{name}:{path.stem}:{part['name']}"}
            for path in sorted(info.glob("sboms/*.json"))
            for part in json.loads(path.read_text())["components"]
        ]
        unique = {part["bom-ref"]: part for part in inside if part["name"] != name}
        yield (
            component | {"licenses": python_licenses(metadata)} | ({"components": [*unique.values()]} if unique else {})
        )


def bill(root: Path, version: str, epoch: int) -> dict[str, Any]:
    components = [*debian_packages(root), *python_packages(root)]
    listed = json.dumps([component["purl"] for component in components])
    time = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    image = f"robocache:{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image + listed)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "bom-ref": image, "name": "robocache", "version": version},
        },
        "components": components,
        "dependencies": [{"ref": image, "dependsOn": [component["bom-ref"] for component in components]}],
    }


if __name__ == "__main__":
    made = bill(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    print(json.dumps(made, indent=1, sort_keys=True))
