"""Aligned, shuffled, normalized batches from caches. The guide: docs/loader.md."""

from .loader import Loader
from .mixture import Mixture
from .voxels import Voxels
from .window import Window

__all__ = ["Loader", "Mixture", "Voxels", "Window"]
