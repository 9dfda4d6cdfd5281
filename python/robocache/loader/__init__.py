"""Aligned, shuffled, normalized batches from caches. The guide: docs/loader.md."""

from .loader import Loader
from .mixture import Mixture
from .options import Order, What, Where
from .voxels import Voxels
from .window import Window

__all__ = ["Loader", "Mixture", "Order", "Voxels", "What", "Where", "Window"]
