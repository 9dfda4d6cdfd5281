"""Types of the native module."""

from collections.abc import Callable, Sequence
from typing import Any

class FormatError(RuntimeError): ...

def crc32c(data: bytes) -> int: ...

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
    def streams(self) -> list[tuple[str, str, list[int], str, bool, str]]: ...
    @property
    def num_episodes(self) -> int: ...
    @property
    def num_shards(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def files(self) -> list[str]: ...
    def rows(self, episode: int, stream: int) -> tuple[Any, Any, Any, Any]: ...
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
        streams: Sequence[tuple[str, str, list[int], str, bool, str]],
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
    def add(self, index: int, rows: list[tuple[Any, Any, Any] | None], json: str) -> None: ...
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
def are_plain_tensors(arrays: tuple[Any, ...], streams: Sequence[tuple[Any, ...]] = ...) -> bool: ...
def prefer_huge_pages(address: int, bytes: int) -> None: ...
def align(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    allocate: Callable[[Any], Any],
    check: bool | None,
    queue: tuple[int, type | None] | None = None,
) -> None: ...
def check_align(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    outputs: Sequence[tuple[Any, ...]] | None,
    check: bool | None,
    queue: tuple[int, type | None] | None = None,
) -> list[tuple[tuple[int, ...], str]]: ...
def align_backward(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    gradients: Sequence[tuple[Any, Any] | None],
) -> None: ...
def require_align_gradient(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    wanted: Sequence[bool],
) -> None: ...
def align_tensors(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    valid: bool,
    index: bool,
    batched: bool,
    check: bool | None,
) -> list[tuple[Any, Any, Any]]: ...
def fuse_tensors(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    valid: bool,
    check: bool | None,
) -> tuple[Any, Any]: ...
def voxelize(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    info: bool,
    allocate: Callable[..., Any],
    queue: tuple[int, type | None] | None = None,
) -> None: ...
def voxelize_tensors(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    info: bool,
) -> tuple[Any, Any, Any]: ...
def check_voxelize(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    info: bool,
    queue: tuple[int, type | None] | None = None,
) -> list[tuple[tuple[int, ...], str]]: ...
def voxelize_depth(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    info: bool,
    allocate: Callable[..., Any],
    queue: tuple[int, type | None] | None = None,
) -> None: ...
def voxelize_depth_tensors(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    info: bool,
) -> tuple[Any, Any, Any]: ...
def check_voxelize_depth(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    info: bool,
    queue: tuple[int, type | None] | None = None,
) -> list[tuple[tuple[int, ...], str]]: ...
def voxelize_sparse(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    limits: tuple[Any, Any, bool, bool],
    allocate: Callable[..., Any],
    queue: tuple[int, type | None] | None = None,
) -> None: ...
def voxelize_sparse_tensors(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    limits: tuple[Any, Any, bool, bool],
) -> tuple[Any, ...]: ...
def check_voxelize_sparse(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    limits: tuple[Any, Any, bool, bool],
    queue: tuple[int, type | None] | None = None,
) -> None: ...
def voxelize_backward(
    op: str,
    source: tuple[Any, ...],
    grid: tuple[Any, Any, Any],
    options: tuple[Any, ...],
    gradient: tuple[Any, Any, Any],
    allocate: Callable[..., Any],
) -> None: ...
def sample_anchors(
    tables: Sequence[tuple[Any, Any, int, float, int]],
    order: tuple[int, int, int, bool],
    first_position: int,
    episode: Any,
    anchor: Any,
) -> None: ...
def normalize(values: Any, offset: Any, scale: Any, out: Any) -> None: ...

class PendingBatch:
    def result(self) -> None: ...

class BatchReader:
    def __init__(
        self,
        tables: list[tuple[Any, Any, int, float, int]],
        part: Any,
        local: Any,
        columns: list[tuple[list[int], str, bool, Any, Any]],
        rows: list[tuple[tuple[Any, ...], Any, Any]],
        episodes: tuple[Any, Any, Any] | None = None,
    ) -> None: ...
    def read(self, order: tuple[int, int, int, bool], first_position: int, batch_size: int) -> list[Any]: ...
    def read_ahead(
        self, order: tuple[int, int, int, bool], first_position: int, outputs: list[Any]
    ) -> PendingBatch: ...
    def read_step(
        self, order: tuple[int, int, int, bool], steps: tuple[Any, int, int, int], batch_size: int
    ) -> list[Any]: ...
