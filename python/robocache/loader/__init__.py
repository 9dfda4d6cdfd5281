"""Aligned, shuffled, normalised batches from caches. The guide: docs/loader.md."""

from ._loader import Loader
from ._mixture import Mixture
from ._voxels import Voxels
from ._window import Window

__all__ = ["Loader", "Mixture", "Voxels", "Window"]
