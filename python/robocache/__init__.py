"""RoboCache: multi-rate robot logs to aligned training batches, at the speed of memory."""

from ._align import align, fuse_multimodal, resample_trajectories
from ._cache import Cache, CacheWriter
from ._core import FormatError, num_threads, set_num_threads
from ._core import version as _version
from ._episode import Episode, EpisodeStream, LeftOut, Source, StreamSpec
from ._export import Exported, export
from ._ingest import ingest
from ._install import check_installation, print_installation_info, self_test
from ._types import Aligned, SparseVoxels, Stream, VoxelInfo
from ._view import view
from ._voxelize import voxelize_depth, voxelize_pointcloud, voxelize_sparse
from .adapters import open
from .loader import Loader, Mixture, Voxels, Window
from .quality import Report, check

__version__: str = _version()

__all__ = [
    "Aligned",
    "Cache",
    "CacheWriter",
    "Episode",
    "EpisodeStream",
    "Exported",
    "FormatError",
    "LeftOut",
    "Loader",
    "Mixture",
    "Report",
    "Source",
    "SparseVoxels",
    "Stream",
    "StreamSpec",
    "VoxelInfo",
    "Voxels",
    "Window",
    "__version__",
    "align",
    "check",
    "check_installation",
    "export",
    "fuse_multimodal",
    "ingest",
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
