"""Types of the native module."""

from collections.abc import Callable, Sequence
from typing import Any

Queue = tuple[int, type | None]
"""A CUDA stream, and the type of the arrays whose memory is reused in its order."""

Allocate = Callable[[str, tuple[int, ...], str, int | None], Any]
"""Makes an array: what it is for, its shape, its dtype, and what it is filled with or None."""

class FormatError(RuntimeError): ...

def crc32c(data: bytes) -> int: ...
def count_bytes(rows: Any, counts: Any) -> None: ...

class CacheStream:
    def __init__(
        self, name: str, dtype: str, shape: list[int], kind: str, ragged: bool, details: str, codec: str = ""
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def kind(self) -> str: ...
    @property
    def ragged(self) -> bool: ...
    @property
    def details(self) -> str: ...
    @property
    def codec(self) -> str: ...

class CacheRows:
    def __init__(
        self, values: Any, times: Any, splits: Any = None, is_bfloat16: bool = False, index: Any = None
    ) -> None: ...

class CacheReader:
    def __init__(self, folder: str) -> None: ...
    @property
    def generation(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def checksum(self) -> int: ...
    @property
    def metadata(self) -> str: ...
    @property
    def streams(self) -> list[CacheStream]: ...
    @property
    def num_episodes(self) -> int: ...
    @property
    def num_shards(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def files(self) -> list[str]: ...
    def rows(self, episode: int, stream: int) -> tuple[Any, Any, Any, Any]: ...
    def index(self, episode: int, stream: int) -> Any: ...
    def shard_rows(self, shard: int, stream: int) -> tuple[Any, Any, Any, Any]: ...
    def copy_values(self, shard: int, stream: int, begin: int, end: int, into: int, check: bool) -> None: ...
    def check_rows(self, episode: int, stream: int) -> None: ...
    def check_times(self, shard: int, stream: int) -> None: ...
    def stays_mapped(self, shard: int) -> bool: ...
    def require_readable(self) -> None: ...
    def require_whole(self, episode: int = ...) -> None: ...
    def first_episode(self, shard: int) -> int: ...
    def episode_index(self, episode: int) -> int: ...
    def episode_json(self, episode: int) -> bytes: ...
    def verify(self) -> list[str]: ...

class MappingGuard:
    def __init__(self) -> None: ...

def remove_leftovers(folder: str) -> None: ...
def set_max_mapped_shards(limit: int) -> int: ...

class CacheWriter:
    def __init__(
        self,
        folder: str,
        streams: Sequence[CacheStream],
        shard_bytes: int,
        fingerprint: str,
        resume: bool,
    ) -> None: ...
    @property
    def generation(self) -> int: ...
    @property
    def num_episodes(self) -> int: ...
    @property
    def notes(self) -> list[str]: ...
    def finished(self) -> CacheReader | None: ...
    def add(self, index: int, rows: Sequence[CacheRows | None], json: str) -> None: ...
    def attach(self, stem: str, extension: str, bytes: bytes) -> None: ...
    def set_details(self, stream: int, json: str) -> None: ...
    def commit(self, metadata: str) -> None: ...

def version() -> str: ...
def cpu_instruction_set() -> str: ...
def cuda_status() -> dict[str, Any]: ...
def process_limits(root: str = "") -> dict[str, Any]: ...
def local_ranks() -> int: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def empty(shape: Sequence[int], dtype: str, gpu: int | None = None) -> Any: ...
def empty_like(like: Any, shape: Sequence[int]) -> Any: ...
def are_plain_tensors(a: Any, b: Any, c: Any, d: Any = None, streams: list[Stream] | None = None) -> bool: ...

class HostMemory: ...

class Exported:
    def __init__(self, array: Any) -> None: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class AlignNames:
    def __init__(self, op: str, query_times: str, values: Sequence[str] = ..., times: Sequence[str] = ...) -> None: ...

class Stream:
    def __init__(
        self,
        values: Any,
        times: Any,
        offsets: Any,
        method: Any,
        latency: Any,
        max_gap: Any,
        outside: Any,
        outside_valid: Any,
        period: Any,
        dtype: Any,
        tolerance: Any,
    ) -> None: ...

def align_methods() -> list[tuple[str, str, bool, str]]: ...
def align(
    names: AlignNames,
    streams: list[Stream],
    times: Any,
    episode: Any,
    anchor: Any,
    deltas: Any,
    valid: bool,
    index: bool,
    check: Any,
    out: Sequence[Any] | None = None,
    gradient: Sequence[bool] | None = None,
    allocate: Allocate | None = None,
    queue: Queue | None = None,
) -> list[tuple[Any, Any, Any]]: ...
def resample(
    names: AlignNames,
    values: Any,
    times: Any,
    target_times: Any,
    method: Any,
    latency: Any,
    max_gap: Any,
    outside: Any,
    outside_valid: Any,
    period: Any,
    dtype: Any,
    tolerance: Any,
    valid: bool,
    check: Any,
) -> tuple[Any, Any, Any]: ...
def fuse(
    names: AlignNames,
    streams: list[Stream],
    times: Any,
    valid: bool,
    batched: bool,
    check: Any,
    gradient: Sequence[bool] | None = None,
    allocate: Allocate | None = None,
    queue: Queue | None = None,
) -> tuple[Any, Any]: ...
def check_align(
    names: AlignNames,
    streams: list[Stream],
    times: Any,
    episode: Any,
    anchor: Any,
    deltas: Any,
    check: Any,
    out: Sequence[Any] | None = None,
    queue: Queue | None = None,
) -> list[str]: ...
def align_backward(
    names: AlignNames,
    streams: list[Stream],
    times: Any,
    episode: Any,
    anchor: Any,
    deltas: Any,
    grads: list[Any],
    sums: list[Any],
) -> None: ...

class PictureIndex:
    @staticmethod
    def from_bytes(bytes: Any) -> PictureIndex: ...
    @staticmethod
    def join(parts: list[PictureIndex], rows: Any = None) -> PictureIndex: ...
    @property
    def num_pictures(self) -> int: ...
    @property
    def num_entry_points(self) -> int: ...
    def shapes_of(self, rows: Any = None) -> Any: ...
    @property
    def bytes(self) -> Any: ...

def index_pictures(
    op: str,
    bytes: Any,
    offsets: Any,
    every: int,
    entry_points: bool,
    max_pixels: int,
    pixels: Any = None,
    rows: Any = None,
) -> PictureIndex: ...
def unfilter_png(filtered: Any, height: int, pixel_bytes: int, out: Any) -> None: ...
def jpeg_bits(op: str, bytes: Any) -> int: ...
def jpeg_shape(op: str, bytes: Any) -> tuple[int, int, int] | None: ...
def picture_kinds(op: str, bytes: Any, offsets: Any, rows: Any = None) -> bytes: ...
def decode(
    bytes: Any,
    offsets: Any,
    index: PictureIndex,
    device_index: Any,
    rows: Any,
    crops: Any,
    flips: Any,
    colors: Any,
    size: tuple[int, int] | None,
    filter: str,
    layout: str,
    dtype: str,
    normalize: tuple[Sequence[float], Sequence[float]] | None,
    channels: int,
    allocate: Allocate | None = None,
    queue: Queue | None = None,
) -> Any: ...
def why_no_gpu_video(codec: str, width: int, height: int, device: int) -> str: ...
def decode_video(
    tracks: list[tuple[str, int, int, bytes]],
    gops: list[tuple[int, Any, Any, Any, Any, Any]],
    out: Any,
    queue: Queue | None = None,
) -> tuple[list[tuple[int, bool]], tuple[int, int, str] | None]: ...
def release_video_decoders() -> None: ...
def voxel_reductions() -> list[tuple[str, bool, bool, str]]: ...
def voxelize(
    points: Any,
    offsets: Any,
    features: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
    dtype: Any,
    fill: Any,
    deterministic: Any,
    check: Any,
    info: Any,
    allocate: Allocate | None = None,
    queue: Queue | None = None,
) -> tuple[Any, Any, Any]: ...
def check_voxelize(
    points: Any,
    offsets: Any,
    features: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
    dtype: Any,
    fill: Any,
    deterministic: Any,
    check: Any,
    queue: Queue | None = None,
) -> str: ...
def voxelize_depth(
    depth: Any,
    intrinsics: Any,
    pose: Any,
    features: Any,
    views: Any,
    depth_scale: Any,
    max_depth: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
    dtype: Any,
    fill: Any,
    deterministic: Any,
    check: Any,
    info: Any,
    allocate: Allocate | None = None,
    queue: Queue | None = None,
) -> tuple[Any, Any, Any]: ...
def check_voxelize_depth(
    depth: Any,
    intrinsics: Any,
    pose: Any,
    features: Any,
    views: Any,
    depth_scale: Any,
    max_depth: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
    dtype: Any,
    fill: Any,
    deterministic: Any,
    check: Any,
    queue: Queue | None = None,
) -> str: ...
def voxelize_sparse(
    points: Any,
    offsets: Any,
    features: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
    dtype: Any,
    fill: Any,
    deterministic: Any,
    check: Any,
    max_voxels: Any,
    max_points: Any,
    padded: Any,
    filled: Any,
    allocate: Allocate | None = None,
    queue: Queue | None = None,
) -> tuple[Any, Any, Any, Any, Any, Any]: ...
def check_voxelize_sparse(
    points: Any,
    offsets: Any,
    features: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
    dtype: Any,
    fill: Any,
    deterministic: Any,
    check: Any,
    max_voxels: Any,
    max_points: Any,
    padded: Any,
    queue: Queue | None = None,
) -> None: ...
def voxelize_backward(
    grad: Any,
    values: Any,
    total: Any,
    points: Any,
    offsets: Any,
    features: Any,
    grid_min: Any,
    voxel_size: Any,
    grid_size: Any,
    mode: Any,
) -> None: ...

class SampleOrder:
    def __init__(self, seed: int, epoch: int, epoch_size: int, shuffle: bool, numbers: Any = None) -> None: ...

class AnchorTable:
    def __init__(
        self, prefix: Any, times: Any, num_anchors: int, period_ns: float, quota: int, slots: Any = None
    ) -> None: ...
    @property
    def prefix(self) -> Any: ...
    @property
    def times(self) -> Any: ...
    @property
    def num_anchors(self) -> int: ...
    @property
    def period_ns(self) -> float: ...
    @property
    def quota(self) -> int: ...
    @property
    def slots(self) -> Any: ...

def make_alias_table(weights: Any, slots: Any) -> None: ...
def sample_anchors(
    tables: list[AnchorTable],
    order: SampleOrder,
    first_position: int,
    episode: Any,
    anchor: Any,
) -> None: ...
def gather_bytes(parts: list[Any], ranges: Any, out: Any) -> None: ...
def normalize(values: Any, offset: Any, scale: Any, out: Any) -> None: ...

class BatchColumn:
    def __init__(
        self,
        deltas: Sequence[int],
        dtype: str,
        scaled: bool,
        values_like: Any,
        padding_like: Any,
        hidden: bool = False,
    ) -> None: ...

class BatchRows:
    def __init__(self, stream: Stream, offset: Any = None, scale: Any = None) -> None: ...

class EpisodeNames:
    def __init__(self, source: Any, episode: Any, index_like: Any) -> None: ...

class PendingBatch:
    def result(self) -> None: ...

class BatchReader:
    def __init__(
        self,
        tables: list[AnchorTable],
        part: Any,
        local: Any,
        columns: list[BatchColumn],
        rows: list[BatchRows],
        episodes: EpisodeNames | None = None,
        features: Sequence[FeatureRows] = (),
    ) -> None: ...
    def read(self, order: SampleOrder, first_position: int, batch_size: int) -> list[Any]: ...
    def read_ahead(self, order: SampleOrder, first_position: int, outputs: list[Any]) -> PendingBatch: ...
    def read_step(
        self, order: SampleOrder, step: Any, num_steps: int, stride: int, first: int, batch_size: int
    ) -> list[Any]: ...

class FeaturePart:
    def __init__(
        self,
        math: str,
        num_channels: int = 0,
        period: float = 0.0,
        stored: str = "quaternion_xyzw",
        form: str = "quaternion_xyzw",
        values: Sequence[int] | None = None,
        turn: Sequence[int] | None = None,
        from_values: Sequence[int] | None = None,
        from_turn: Sequence[int] | None = None,
    ) -> None: ...

class FeatureRows:
    def __init__(
        self,
        parts: Sequence[FeaturePart],
        paddings: Sequence[tuple[int, int]],
        dtype: str,
        row: Sequence[int],
        num_moments: int,
        offset: Any,
        scale: Any,
        values_like: Any,
        padding_like: Any,
    ) -> None: ...

class Composer:
    def __init__(self, features: Sequence[FeatureRows]) -> None: ...
    def compose(self, columns: list[Any], source: Any = None) -> list[Any]: ...

def texts_of(numbers: Any, texts: list[str]) -> list[Any]: ...
def tokens_of(numbers: Any, index: Any, ids: Any, mask: Any) -> list[Any]: ...
def accumulate_moments(values: Any, padding: Any, moments: Any) -> None: ...

class Tails:
    def __init__(self, brackets: Any, dtype: str) -> None: ...
    def add(self, values: Any, padding: Any) -> None: ...
    def values_at(self, ranks: Any, values: Any) -> None: ...

# ---- JAX: None and absent where the module was built without the headers of jaxlib -----------------------------------

xla_ffi_version: tuple[int, int] | None
Traced = tuple[list[tuple[tuple[int, ...], str]], int, str, list[int], list[float]]
"""(shape, dtype) of each result, bytes of workspace, and the attributes names, integers and reals."""

class AbstractArray:
    @staticmethod
    def make(shape: Sequence[int], dtype: str, cuda: bool, op: str, argument: str) -> AbstractArray: ...

def xla_handlers() -> list[tuple[str, str, Any]]: ...
def trace_align(
    names: AlignNames,
    streams: list[Stream],
    times: Any,
    episode: Any,
    anchor: Any,
    deltas: Any,
    valid: bool,
    index: bool,
    fused: bool,
    check: bool,
    gradient: list[bool] | None,
) -> Traced: ...
def trace_voxelize(
    op: str, cloud: tuple[Any, ...], box: tuple[Any, ...], settings: tuple[Any, ...], info: bool
) -> Traced: ...
def trace_voxelize_depth(
    op: str, images: tuple[Any, ...], box: tuple[Any, ...], settings: tuple[Any, ...], info: bool
) -> Traced: ...
def trace_voxelize_backward(
    op: str, cloud: tuple[Any, ...], box: tuple[Any, ...], settings: tuple[Any, ...], num_channels: int, values: Any
) -> Traced: ...
def trace_voxelize_sparse(
    op: str, cloud: tuple[Any, ...], box: tuple[Any, ...], settings: tuple[Any, ...], max_voxels: Any, max_points: Any
) -> Traced: ...
def trace_decode(
    key: str,
    bytes: Any,
    offsets: Any,
    index: PictureIndex,
    device_index: Any,
    rows: Any,
    crops: Any,
    flips: Any,
    colors: Any,
    size: tuple[int, int] | None,
    filter: str,
    layout: str,
    dtype: str,
    normalize: Any,
    channels: int,
) -> Traced: ...
