"""RoboCache's own caches: a dataset like any other, so that what works on logs works on a cache too."""

from __future__ import annotations

from pathlib import Path

from .._core import FormatError
from ..cache.cache import Cache
from .reading.paths import open_regular

MANIFEST = "manifest.json"


def detect(path: Path) -> bool:
    """Other tools write manifests too. A damaged one with shards beside it is a cache, and opening it says so."""
    try:
        if not (path / MANIFEST).is_file():
            return False
        with open_regular(path / MANIFEST) as file:
            return b'"robocache"' in file.read(64) or any(path.glob("shard-*.safetensors"))
    except (OSError, FormatError):
        return False


def open(path: Path) -> Cache:
    """No options: what an ingest was asked for is in the files, and arrays are views of them."""
    return Cache(path)
