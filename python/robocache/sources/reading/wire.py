"""Messages between a process and its reader process: JSON, arrays by shared memory.

    message: uint64 length of the JSON, JSON                        a length of 0: the reader is alive
    arrays:  those under LARGE bytes follow the JSON that lists them, as one block; for each larger one a byte with the
             descriptor of an anonymous file that holds it

Nothing is unpickled, because a malicious file may control the reader process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTH = struct.Struct("<Q")
MAX_JSON = 1 << 30
LARGE = 1 << 20
"""Mapped instead of copied. A process may have 65,530 mappings, so small arrays must not be one each."""


class Broken(Exception):
    """The other process is gone, or what it sends is no message."""


def encoded(message: Any) -> bytes:
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


def send(connection: socket.socket, message: Any) -> None:
    connection.sendall(encoded(message))


def send_alive(connection: socket.socket) -> None:
    connection.sendall(LENGTH.pack(0))


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message, an object; TimeoutError where the other side neither sends one nor a sign of life."""
    while True:
        (length,) = LENGTH.unpack(_bytes(connection, LENGTH.size))
        if length > MAX_JSON:
            raise Broken(f"a message of {length} bytes")
        if length:
            try:
                message = json.loads(_bytes(connection, length))
            except (ValueError, RecursionError) as error:
                raise Broken(str(error)) from error
            if not isinstance(message, dict):
                raise Broken("a message that is no object")
            return message


def layout(arrays: Sequence[NDArray[Any]]) -> list[Any]:
    return [[array.dtype.str, list(array.shape)] for array in arrays]


def send_arrays(connection: socket.socket, arrays: list[NDArray[Any]]) -> None:
    """Empties the list: an array is freed as soon as it is sent."""
    connection.sendall(b"".join(array.tobytes() for array in arrays if array.nbytes < LARGE))
    arrays.reverse()
    while arrays:
        array = arrays.pop()
        if array.nbytes >= LARGE:
            _send_large(connection, array)


def _send_large(connection: socket.socket, array: NDArray[Any]) -> None:
    fd = anonymous_file()
    try:
        os.ftruncate(fd, array.nbytes)
        with mmap.mmap(fd, array.nbytes) as memory:
            shared = np.frombuffer(memory, array.dtype).reshape(array.shape)
            shared[...] = array
            del shared
        socket.send_fds(connection, [b"\1"], [fd])
    finally:
        os.close(fd)


def receive_arrays(connection: socket.socket, layouts: Any) -> list[NDArray[Any]]:
    """Receives the arrays that ``layout`` describes. Large arrays are private writable mappings of this process."""
    try:
        described = [(np.dtype(dtype), tuple(int(n) for n in shape)) for dtype, shape in layouts]
    except (TypeError, ValueError) as error:
        raise Broken(str(error)) from error
    if any(dtype.kind not in "biuf" or min(shape, default=0) < 0 for dtype, shape in described):
        raise Broken("an array that is not of numbers")
    sizes = [dtype.itemsize * int(np.prod(shape, dtype=object)) for dtype, shape in described]
    block = bytearray(_bytes(connection, sum(size for size in sizes if size < LARGE)))
    arrays, at = [], 0
    for (dtype, shape), size in zip(described, sizes, strict=True):
        if size < LARGE:
            array = np.frombuffer(block, dtype, size // dtype.itemsize, at).copy()
            at += size
        else:
            array = np.frombuffer(_receive_large(connection, size), dtype)
        arrays.append(array.reshape(shape))
    return arrays


def _receive_large(connection: socket.socket, size: int) -> mmap.mmap:
    _, fds, _, _ = socket.recv_fds(connection, 1, 1)
    if len(fds) != 1:
        raise Broken("an array without its file")
    try:
        _keep_size(fds[0])
        if os.fstat(fds[0]).st_size < size:
            raise Broken("an array that is shorter than declared")
        return mmap.mmap(fds[0], size, access=mmap.ACCESS_COPY)
    finally:
        os.close(fds[0])


def anonymous_file() -> int:
    """A new file without a name. In memory, so that no folder for temporary files is needed."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("robocache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _keep_size(fd: int) -> None:
    """A file that is cut while it is mapped would end this process with SIGBUS."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # a temporary file has no seals
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def _bytes(connection: socket.socket, length: int) -> bytes | bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise Broken("the connection is closed")
        view = view[received:]
    return data
