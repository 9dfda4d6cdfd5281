"""RoboCache: multi-rate robot logs to aligned training batches, at the speed of memory."""

from ._core import FormatError, num_threads, set_num_threads
from ._core import version as _version
from .cache.cache import Cache, CacheWriter
from .cache.episode import Episode, EpisodeStream, LeftOut, Source, StreamSpec
from .convert.export import Exported, export
from .convert.ingest import ingest
from .convert.view import view
from .install import check_installation, print_installation_info, self_test
from .loader import (
    CenterCrop,
    ColorJitter,
    Feature,
    Image,
    Loader,
    Mixture,
    Order,
    RandomCrop,
    Voxels,
    What,
    Where,
    Window,
    load_inverse,
)
from .ops.align import align, fuse_multimodal, resample_trajectories
from .ops.decode import PictureIndex, decode_images, index_pictures
from .ops.types import Aligned, SparseVoxels, Stream, VoxelInfo
from .ops.voxelize import voxelize_depth, voxelize_pointcloud, voxelize_sparse
from .quality import Report, check
from .sources import open

__version__: str = _version()

__all__ = [
    "Aligned",
    "Cache",
    "CacheWriter",
    "CenterCrop",
    "ColorJitter",
    "Episode",
    "EpisodeStream",
    "Exported",
    "Feature",
    "FormatError",
    "Image",
    "LeftOut",
    "Loader",
    "Mixture",
    "Order",
    "PictureIndex",
    "RandomCrop",
    "Report",
    "Source",
    "SparseVoxels",
    "Stream",
    "StreamSpec",
    "VoxelInfo",
    "Voxels",
    "What",
    "Where",
    "Window",
    "__version__",
    "align",
    "check",
    "check_installation",
    "decode_images",
    "export",
    "fuse_multimodal",
    "index_pictures",
    "ingest",
    "load_inverse",
    "num_threads",
    "open",
    "print_installation_info",
    "resample_trajectories",
    "self_test",
    "set_num_threads",
    "view",
    "voxelize_depth",
    "voxelize_pointcloud",
    "voxelize_sparse",
]
