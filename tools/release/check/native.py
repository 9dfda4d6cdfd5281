"""Checks the native module of wheels: hardening, needed libraries, and symbols that no manylinux system lacks.

python tools/release/check/native.py WHEEL ...      exit code 1 and one line per fault
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NEEDED = ("libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")
NEWEST_GLIBC = (2, 28)
MAX_WHEEL_BYTES = 40_000_000
ENDBR64 = b"\xf3\x0f\x1e\xfa"


def tool(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def faults_of_module(path: Path) -> list[str]:
    dynamic, segments = tool("readelf", "-dW", str(path)), tool("readelf", "-lW", str(path))
    versions, symbols = tool("readelf", "-VW", str(path)), tool("nm", "-D", "--undefined-only", str(path))
    header = tool("readelf", "-h", str(path))
    faults = []
    if "BIND_NOW" not in dynamic or "GNU_RELRO" not in segments:
        faults.append("tables of addresses are writable: link with -z relro -z now")
    if re.search(r"GNU_STACK .* RWE ", segments):
        faults.append("the stack is executable")
    if "__stack_chk_fail" not in symbols:
        faults.append("no stack protector")
    if not re.search(r"__\w*(mem|str|print)\w*_chk", symbols):
        faults.append("no _FORTIFY_SOURCE")
    if "X86-64" in header and path.read_bytes().count(ENDBR64) < 500:
        faults.append("no landing pads: compile with -fcf-protection=full")
    if "RUNPATH" in dynamic or "RPATH" in dynamic:
        faults.append("has a search path of libraries")
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not name.startswith(NEEDED):
            faults.append(f"needs {name}")
    newest = max(tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([0-9.]+)", versions + " GLIBC_2.0"))
    if newest > NEWEST_GLIBC:
        faults.append(f"needs glibc {'.'.join(map(str, newest))}, newer than manylinux_2_28 has")
    for kind, name in re.findall(r"^ +([A-Za-z]) (\S+)$", symbols, re.M):
        if kind == "U" and "@" not in name and not name.startswith(("Py", "_Py")):
            faults.append(f"symbol {name} is in no library that the module needs")
    exported = [line.split()[-1] for line in tool("nm", "-D", "--defined-only", str(path)).splitlines()]
    if others := [name for name in exported if not name.startswith("PyInit_")]:
        faults.append(f"exports {', '.join(others[:5])}, which are not the entry of a module")
    if ".debug_info" in tool("readelf", "-SW", str(path)):
        faults.append("has debug information")
    return faults


def faults_of_wheel(wheel: Path) -> list[str]:
    faults = []
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        faults.append(f"is {wheel.stat().st_size / 1e6:.1f} MB, must be at most {MAX_WHEEL_BYTES / 1e6:.0f} MB")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        if not modules:
            faults.append("has no native module")
        for name in modules:
            faults += [f"{name}: {fault}" for fault in faults_of_module(Path(archive.extract(name, folder)))]
        if not [name for name in archive.namelist() if name.endswith(".dist-info/sboms/robocache.cdx.json")]:
            faults.append("has no bill of materials")
    return faults


def main() -> int:
    code = 0
    for text in sys.argv[1:]:
        faults = faults_of_wheel(Path(text))
        print("\n".join(f"{Path(text).name}: {fault}" for fault in faults or ["hardened, glibc 2.28 is enough"]))
        code |= bool(faults)
    return code


if __name__ == "__main__":
    sys.exit(main())
