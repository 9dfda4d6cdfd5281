"""The arrays of a loader: of NumPy on the host, or of PyTorch on the host and on a GPU.

Chosen once, by ``framework``. Numbers that only the host computes with (which sample, which part) are NumPy arrays in
both cases, since native calls read arrays of any framework.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...ops.arrays import numpy_dtype


class Arrays(Protocol):
    """What a loader does with arrays that NumPy and PyTorch do differently. ``place``: ``device`` or ``host``.
    ``dtype`` is a name."""

    xp: Any
    """The module, for functions that both have."""
    device: Any
    """Of the batches."""
    host: Any
    on_gpu: bool
    """Whether ``device`` is one."""

    def empty(self, shape: tuple[int, ...], dtype: str, place: Any, pinned: bool = False) -> Any:
        """Memory that is not initialized. ``pinned``: that a GPU can read."""

    def of(self, array: NDArray[Any], dtype: str | None = None) -> Any:
        """The memory of a NumPy array on the host, read-only or not. The loader never writes to it. ``dtype``: of the
        stream, which is bfloat16 where the array has uint16."""

    def to(self, array: Any, place: Any, wait: bool = True) -> Any:
        """The array itself if it is there already."""

    def is_on_host(self, array: Any) -> bool: ...

    def as_numpy(self, array: Any) -> NDArray[Any]:
        """On the host."""

    def cast(self, array: Any, dtype: str) -> Any: ...

    def take(self, array: Any, rows: Any) -> Any:
        """``array[rows]`` of two or more dimensions and any dtype."""

    def put(self, array: Any, rows: Any, values: Any) -> None:
        """``array[rows] = values`` of the same dtype, as ``take``."""

    def copy(self, into: Any, array: Any) -> None:
        """From the host to anywhere."""

    def repeated(self, array: Any, count: int) -> Any:
        """``(count, ...)`` in memory of its own."""

    def equal(self, a: Any, b: Any) -> bool: ...

    def address(self, array: Any) -> int: ...


class NumpyArrays:
    """For the frameworks "numpy" and "jax". New memory is what JAX needs to take an array without a copy."""

    xp: Any = np
    device: Any = "cpu"
    host: Any = "cpu"
    on_gpu: bool = False

    def empty(self, shape: tuple[int, ...], dtype: str, place: Any, pinned: bool = False) -> Any:
        return _core.empty_like(np.empty(0, dtype_of(dtype)), shape)

    def of(self, array: NDArray[Any], dtype: str | None = None) -> Any:
        return array.view(dtype_of(dtype)) if dtype == "bfloat16" else array

    def to(self, array: Any, place: Any, wait: bool = True) -> Any:
        return array

    def is_on_host(self, array: Any) -> bool:
        return True

    def as_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def cast(self, array: Any, dtype: str) -> Any:
        with np.errstate(over="ignore"):  # infinity, as in PyTorch
            return array.astype(dtype_of(dtype), copy=False)

    def take(self, array: Any, rows: Any) -> Any:
        return array[rows]

    def put(self, array: Any, rows: Any, values: Any) -> None:
        array[rows] = values

    def copy(self, into: Any, array: Any) -> None:
        into[...] = array

    def repeated(self, array: Any, count: int) -> Any:
        made = self.empty((count, *array.shape), array.dtype.name, self.host)
        made[...] = array
        return made

    def equal(self, a: Any, b: Any) -> bool:
        return np.array_equal(a, b)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)


def dtype_of(name: str) -> np.dtype[Any]:
    try:
        return numpy_dtype(name)
    except ImportError as error:
        raise ImportError(
            f"Loader: dtype {name!r} of NumPy arrays needs the package ml_dtypes: pip install ml_dtypes; or take "
            "framework='torch', which has this dtype itself",
            name=error.name,
        ) from None


class TorchArrays:
    """Tensors. ``torch``: the module."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.xp = torch
        self.device, self.host = device, torch.device("cpu")
        self.on_gpu = device.type == "cuda"
        self._not_indexed = (torch.uint16, torch.uint32, torch.uint64)
        """Of which torch takes and puts no rows: bytes are taken instead."""

    def empty(self, shape: tuple[int, ...], dtype: str, place: Any, pinned: bool = False) -> Any:
        return self.xp.empty(shape, dtype=getattr(self.xp, dtype), device=place, pin_memory=pinned)

    def of(self, array: NDArray[Any], dtype: str | None = None) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            # Not `ulonglong`, which is the same but unknown to PyTorch.
            tensor = self.xp.from_numpy(array.view(np.uint64) if array.dtype == np.uint64 else array)
        return tensor.view(self.xp.bfloat16) if dtype == "bfloat16" else tensor

    def to(self, array: Any, place: Any, wait: bool = True) -> Any:
        return array.to(place, non_blocking=not wait)

    def is_on_host(self, array: Any) -> bool:
        return bool(array.device.type == "cpu")

    def as_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array.cpu().numpy())

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(self.xp, dtype))

    def take(self, array: Any, rows: Any) -> Any:
        if array.dtype in self._not_indexed:
            return array.view(self.xp.uint8)[rows].view(array.dtype)
        return array[rows]

    def put(self, array: Any, rows: Any, values: Any) -> None:
        if array.dtype in self._not_indexed:
            array, values = array.view(self.xp.uint8), values.view(self.xp.uint8)
        array.index_copy_(0, rows, values)

    def copy(self, into: Any, array: Any) -> None:
        into.copy_(array)

    def repeated(self, array: Any, count: int) -> Any:
        return array.expand(count, *array.shape).clone()

    def equal(self, a: Any, b: Any) -> bool:
        return bool(self.xp.equal(a, b))

    def address(self, array: Any) -> int:
        return int(array.data_ptr())


def arrays_of(framework: str, device: Any) -> Arrays:
    """For batches of a framework on a device, which ``check_framework`` has seen."""
    if framework != "torch":
        return NumpyArrays()
    torch = import_torch()
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"Loader: device must be 'cpu', 'cuda', 'cuda:1', ... or a torch.device, got {device!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"Loader: device {str(device)!r} needs a GPU that PyTorch sees (torch.cuda.is_available() is False); take "
            "device='cpu', or see robocache.print_installation_info()"
        )
    # There is one "cpu", whatever its number.
    return TorchArrays(torch, torch.device("cpu") if found.type == "cpu" else found)


def import_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError(
            "Loader: framework 'torch' needs PyTorch, which is not installed: take framework='numpy' (or 'jax'), or "
            "pip install 'robocache[torch]'"
        ) from None
    return torch
