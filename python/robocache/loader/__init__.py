"""Aligned, shuffled, normalized batches from caches. The guide: docs/loader.md."""

from .features.feature import Feature
from .features.saved import load_inverse
from .image import CenterCrop, ColorJitter, Image, RandomCrop
from .loader import Loader
from .mixture import Mixture
from .options import Order, What, Where
from .voxels import Voxels
from .window import Window

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Feature",
    "Image",
    "Loader",
    "Mixture",
    "Order",
    "RandomCrop",
    "Voxels",
    "What",
    "Where",
    "Window",
    "load_inverse",
]
