"""RoboCache caches as a dataset format, so that all commands and functions accept a cache."""

from __future__ import annotations

from pathlib import Path

from .._core import FormatError
from ..cache.cache import Cache
from .reading.paths import open_regular

MANIFEST = "manifest.json"


def detect(path: Path) -> bool:
    """True for a manifest of RoboCache, and for a damaged one with shards beside it: opening reports the damage."""
    try:
        if not (path / MANIFEST).is_file():
            return False
        with open_regular(path / MANIFEST) as file:
            return b'"robocache"' in file.read(64) or any(path.glob("shard-*.safetensors"))
    except (OSError, FormatError):
        return False


def open(path: Path) -> Cache:
    """Opens the cache. There are no options, because arrays are views of the files."""
    return Cache(path)
