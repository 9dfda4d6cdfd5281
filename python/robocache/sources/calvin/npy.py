"""One array out of a .npy file: the header is checked against the file's size before memory is taken."""

from __future__ import annotations

import ast
import struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ..reading.budget import Budget
from ..reading.paths import checked_shape, num_bytes

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 16


def read_npy_header(
    file: IO[bytes], size_bytes: int, where: str, objects: bool = False
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """dtype, shape, whether in Fortran order, and the bytes that follow. ``objects``: do not refuse them."""
    head = file.read(8)
    if len(head) < 8 or not head.startswith(MAGIC) or head[6] not in (1, 2, 3):
        raise FormatError(f"{where} is not a .npy file")
    form = "<H" if head[6] == 1 else "<I"
    length_bytes = file.read(struct.calcsize(form))
    if len(length_bytes) < struct.calcsize(form):
        raise FormatError(f"{where} ends in its header")
    (length,) = struct.unpack(form, length_bytes)
    text = file.read(length) if length <= MAX_HEADER_BYTES else b""
    if len(text) != length:
        raise FormatError(f"{where} has a header of {length} bytes, which is too long")
    try:
        described = ast.literal_eval(text.decode("latin1").strip())
        dtype = np.dtype(described["descr"])
        fortran = bool(described["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise FormatError(f"{where} has a header that cannot be read: {error}") from error
    if dtype.hasobject and not objects:
        raise FormatError(f"{where} has pickled objects, which are not read: they could run code")
    shape = checked_shape(where, described.get("shape"))
    rest = size_bytes - 8 - len(length_bytes) - length
    if not dtype.hasobject and num_bytes(shape, dtype.itemsize) != rest:
        raise FormatError(f"{where} declares {dtype} {shape}, {num_bytes(shape, dtype.itemsize)} bytes, and has {rest}")
    return dtype, shape, fortran, rest


def read_npy(file: IO[bytes], size_bytes: int, where: str, budget: Budget) -> NDArray[Any]:
    """The array of a .npy file of that size."""
    dtype, shape, fortran, rest = read_npy_header(file, size_bytes, where)
    budget.check(where, rest)
    data = file.read(rest)
    if len(data) != rest:
        raise FormatError(f"{where} ends after {len(data)} of {rest} bytes")
    found = np.frombuffer(data, dtype)
    return found.reshape(shape[::-1]).T if fortran else found.reshape(shape)
