"""Types of the native module."""

from collections.abc import Callable, Sequence
from typing import Any

class FormatError(RuntimeError): ...

def version() -> str: ...
def cpu_instruction_set() -> str: ...
def cuda_status() -> dict[str, Any]: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def empty(shape: Sequence[int], dtype: str, gpu: int | None = None) -> Any: ...
def prefer_huge_pages(address: int, bytes: int) -> None: ...
def align(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    allocate: Callable[[Any], Any],
    check: bool,
    queue: tuple[int, type | None] | None = None,
) -> None: ...
def check_align(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    outputs: Sequence[tuple[Any, ...]] | None,
    check: bool,
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
) -> list[tuple[Any, Any, Any]] | None: ...
def fuse_tensors(
    names: tuple[Any, ...],
    streams: Sequence[tuple[Any, ...]],
    query: tuple[Any, ...],
    valid: bool,
    check: bool | None,
) -> tuple[Any, Any] | None: ...
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
) -> tuple[Any, Any, Any] | None: ...
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
) -> tuple[Any, Any, Any] | None: ...
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
) -> tuple[Any, ...] | None: ...
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
def check_offsets(op: str, offsets: Any, num_points: int) -> None: ...
