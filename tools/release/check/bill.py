"""Checks a bill of materials: valid CycloneDX 1.6, a license for every part, and the hash of the module in the wheel.

python tools/release/check/bill.py BILL.json [WHEEL]      WHEEL: the wheel of the bill; needs locks/check.lock
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path


def without_license(bill: dict[str, object]) -> list[str]:
    components = bill["components"]
    assert isinstance(components, list)
    return [
        f"{part['name']} has no license" for part in components if part["type"] == "library" and not part["licenses"]
    ]


def faults_of_wheel(bill: dict[str, object], wheel: Path) -> list[str]:
    components = bill["components"]
    assert isinstance(components, list)
    found = []
    listed = {part["name"]: part["hashes"][0]["content"] for part in components if part["type"] == "file"}
    with zipfile.ZipFile(wheel) as archive:
        inside = {x: hashlib.sha256(archive.read(x)).hexdigest() for x in archive.namelist() if x.endswith(".so")}
        (name,) = [x for x in archive.namelist() if x.endswith(".dist-info/sboms/robocache.cdx.json")]
        if json.loads(archive.read(name)) != bill:
            found.append("the bill in the wheel is a different one")
    if listed != inside:
        found.append(f"lists {listed}, the wheel has {inside}")
    return found


def main() -> int:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = Path(sys.argv[1]).read_text()
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    found = ([f"not CycloneDX 1.6: {error}"] if error else []) + without_license(json.loads(text))
    for wheel in sys.argv[2:]:
        found += faults_of_wheel(json.loads(text), Path(wheel))
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
