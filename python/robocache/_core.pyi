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
