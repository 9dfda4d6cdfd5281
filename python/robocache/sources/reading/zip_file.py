"""Zip files, also .npz: opened only if the list of members is whole and agrees with what stands before each of them."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from ..._core import FormatError
from .budget import Budget
from .paths import open_regular

ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)
"""What the standard library raises for zip files that are damaged, encrypted or packed in another way."""
LOCAL_HEADER = struct.Struct("<4s2xH18xHH")
"""Before each member: magic, flags, lengths of its name and of extra fields."""
END = struct.Struct("<4s6xH10x")
"""At the end of the file: magic, number of members."""
MAX_COMMENT_BYTES = 1 << 16
UTF8_NAME = 0x800
MANY = 0xFFFF
"""In the place of a number of members that does not fit; the true one is in the record of zip64."""


@contextmanager
def opened_zip(path: Path, where: str, budget: Budget) -> Iterator[zipfile.ZipFile]:
    """The members of a zip with their sizes checked. A bit flipped in the list of members could hide some of them."""
    kind = path.suffix[1:] or "zip"
    with open_regular(path) as file:
        try:
            archive = zipfile.ZipFile(file)
            _check_members(file, archive, where, budget)
        except FormatError:
            raise
        except ERRORS as error:
            raise FormatError(f"{where} is not a readable {kind}: {error}") from error
        with archive:
            yield archive


def _check_members(file: IO[bytes], archive: zipfile.ZipFile, where: str, budget: Budget) -> None:
    members = archive.infolist()
    stated = _num_members(file)
    if stated is not None and stated != len(members):
        raise FormatError(f"{where} is not a readable zip: it lists {len(members)} of {stated} members")
    for member in members:
        budget.count(where)
        name = member.orig_filename
        if name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name or "\0" in name:
            raise FormatError(f"{where}: the member {name[:200]!r} points outside the archive")
        file.seek(member.header_offset)
        magic, flags, length, _ = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        own = file.read(length).decode("utf-8" if flags & UTF8_NAME else "cp437", "replace")
        if magic != b"PK\3\4" or own != name:
            raise FormatError(
                f"{where} is not a readable zip: the member {name[:200]!r} has a different name in its header"
            )
        budget.check(f"{where}: {name}", member.file_size, member.compress_size)


def _num_members(file: IO[bytes]) -> int | None:
    """The number of members in the end record; None without one."""
    size = file.seek(0, 2)
    file.seek(max(0, size - END.size - MAX_COMMENT_BYTES - 20))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        return None
    count = int(END.unpack_from(tail, at)[1])
    locator = tail[max(0, at - 20) : at]
    if count != MANY or not locator.startswith(b"PK\6\7"):
        return count
    file.seek(int.from_bytes(locator[8:16], "little"))
    record = file.read(56)
    return int.from_bytes(record[32:40], "little") if record.startswith(b"PK\6\6") else None
