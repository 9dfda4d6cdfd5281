"""features.json of TFDS: a tree of feature descriptions, flattened to the names that Examples use."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import DTYPES
from ..reading.budget import Budget
from ..reading.json_file import load_json
from ..reading.paths import checked_shape

STEPS = "steps"
MAX_DEPTH = 32


@dataclass(frozen=True)
class Leaf:
    """A feature with values. ``name``: the stream's, without ``steps/``. ``key``: that of the Example."""

    name: str
    key: str
    kind: str
    """tensor, image, text or other."""
    dtype: str
    shape: tuple[int | None, ...]
    in_steps: bool
    encoded: str = ""
    """bytes or zlib where rows of a tensor are stored as bytes."""

    def decode(self, data: bytes, size_bytes: int, where: str) -> NDArray[Any]:
        if self.encoded == "zlib":
            unpacker = zlib.decompressobj()
            try:
                data = unpacker.decompress(data, size_bytes + 1)
                if len(data) <= size_bytes and not unpacker.eof:  # what is left is the checksum
                    data += unpacker.decompress(unpacker.unconsumed_tail, 1)
            except zlib.error as error:
                raise FormatError(f"{where}: {error}") from error
            if len(data) <= size_bytes and (not unpacker.eof or unpacker.unused_data):
                raise FormatError(f"{where}: zlib data that is cut off, or has more bytes behind its end")
        if len(data) != size_bytes:
            raise FormatError(f"{where}: {len(data)} bytes or more where {size_bytes} are declared")
        return np.frombuffer(data, self.dtype)


def read_features(path: Path, budget: Budget) -> list[Leaf]:
    described = load_json(path, budget)
    leaves = list(_walk(described, (), False, str(path), 0))
    if not any(leaf.in_steps for leaf in leaves):
        raise FormatError(f"rlds: {path} has no steps")
    return leaves


def _walk(node: Any, names: tuple[str, ...], in_steps: bool, path: str, depth: int) -> Iterator[Leaf]:
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        raise FormatError(f"rlds: {path}: {'/'.join(names)} is not a description of a feature")
    if isinstance(children := (node.get("featuresDict") or {}).get("features"), dict):
        for name, child in children.items():
            yield from _walk(child, (*names, name), in_steps, path, depth + 1)
    elif isinstance(node.get("sequence"), dict) and names == (STEPS,):
        yield from _walk(node["sequence"].get("feature"), names, True, path, depth + 1)
    else:
        yield _leaf(node, names, in_steps, path)


def _leaf(node: dict[str, Any], names: tuple[str, ...], in_steps: bool, path: str) -> Leaf:
    key = "/".join(names)
    name = "/".join(names[1:]) if in_steps else key
    where = f"rlds: {path}: {key}"
    if "image" in node:
        image = node["image"] or {}
        return Leaf(name, key, "image", str(image.get("dtype", "uint8")), _shape(image, where), in_steps)
    if "text" in node:
        return Leaf(name, key, "text", "", (), in_steps)
    if "classLabel" in node:
        return Leaf(name, key, "tensor", "int64", (), in_steps)
    if "tensor" in node:
        tensor = node["tensor"] or {}
        dtype = str(tensor.get("dtype"))
        encoded = str(tensor.get("encoding", "none")).lower()
        if dtype in ("string", "object"):
            return Leaf(name, key, "text", "", _shape(tensor, where), in_steps)
        if dtype in DTYPES and dtype != "bfloat16" and encoded in ("none", "bytes", "zlib"):
            shape = _shape(tensor, where)
            return Leaf(name, key, "tensor", dtype, shape, in_steps, "" if encoded == "none" else encoded)
    return Leaf(name, key, "other", "", (), in_steps)


def _shape(node: dict[str, Any], where: str) -> tuple[int | None, ...]:
    """Sizes are texts in JSON of protobuf; -1 is a size left open."""
    dimensions = (node.get("shape") or {}).get("dimensions", [])
    known = checked_shape(where, [0 if str(size) == "-1" else size for size in dimensions])
    return tuple(None if str(size) == "-1" else value for size, value in zip(dimensions, known, strict=True))
