"""Makes a compiled wheel ready for release: debug information split off, tag, bill of materials, fixed order and times.

SOURCE_DATE_EPOCH=... python tools/release/finish_wheel.py RAW.whl OUT [--tag TAG] [--cuda]

OUT/debug receives the debug information of the native module. The same input gives the same bytes: entries are sorted,
and have the time SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

from parts import bill_of_materials, parts


def split_debug(module: bytes, name: str, out: Path, prefix: str) -> bytes:
    """The module without symbols; OUT/debug/NAME.debug has them, and gdb finds it by the link in the module."""
    with tempfile.TemporaryDirectory() as folder:
        path, debug = Path(folder) / name, Path(folder) / f"{name}.debug"
        path.write_bytes(module)
        subprocess.run([f"{prefix}objcopy", "--only-keep-debug", "--compress-debug-sections", path, debug], check=True)
        subprocess.run([f"{prefix}strip", "--strip-unneeded", path], check=True)
        subprocess.run([f"{prefix}objcopy", f"--add-gnu-debuglink={debug}", path], check=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / debug.name).write_bytes(debug.read_bytes())
        return path.read_bytes()


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_zip(path: Path, files: dict[str, bytes], epoch: int) -> None:
    moment = time.gmtime(max(epoch, 315532800))[:6]  # the earliest time of a zip file is 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda x: (".dist-info/" in x, x.endswith("/RECORD"), x)):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, files[name])


def finish(raw: Path, out: Path, tag: str, cuda: bool, epoch: int) -> Path:
    with zipfile.ZipFile(raw) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    (module,) = [name for name in files if re.fullmatch(r"robocache/_core\..*so", name)]
    data = files.pop(module)
    package, version, python, abi, _ = raw.stem.split("-")
    name = f"{package}-{version}-{python}-{abi}-{tag}.whl"
    prefix = "aarch64-linux-gnu-" if tag.endswith("aarch64") else ""
    files[module] = split_debug(data, f"{Path(name).stem}.so", out / "debug", prefix)
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    wheel = files[f"{info}/WHEEL"].decode()
    files[f"{info}/WHEEL"] = re.sub(r"^Tag: .*$", f"Tag: {python}-{abi}-{tag}", wheel, flags=re.M).encode()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name.endswith(".so")}
    bill = bill_of_materials(package, version, digests, parts(cuda), epoch)
    files[f"{info}/sboms/robocache.cdx.json"] = bill.encode()
    files.pop(f"{info}/RECORD")
    lines = [record_line(name, files[name]) for name in sorted(files)]
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    write_zip(out / name, files, epoch)
    (out / f"{name}.cdx.json").write_text(bill)
    return out / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tag", default="manylinux_2_28_x86_64")
    parser.add_argument("--cuda", action="store_true", help="the module has CUDA code")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    done = finish(args.raw, args.out, args.tag, args.cuda, int(os.environ["SOURCE_DATE_EPOCH"]))
    print(f"{done}: {done.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
