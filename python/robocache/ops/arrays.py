"""Arrays of every framework: which kind they are, how to read them, how to make new ones."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from .. import _core
from .types import Array

LEGACY_DEFAULT_STREAM = 1
"""As DLPack and CUDA number it."""

Kind = Literal["numpy", "torch", "jax", "cupy"]


def kind_of(array: Array) -> Kind:
    """The framework an array belongs to. Frameworks that were never imported are not imported here either."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return "cupy"
    return "numpy"


def device_type(array: Array) -> str:
    """``"cpu"``, ``"cuda"``, ``"mps"`` ...: where an array lives."""
    kind = kind_of(array)
    if kind == "torch":
        return str(array.device.type)
    if kind == "jax":
        platform = str(next(iter(array.devices())).platform)
        return "cuda" if platform == "gpu" else platform
    return "cuda" if kind == "cupy" else "cpu"


def work_queue(kind: Kind, array: Array) -> tuple[int, type | None] | None:
    """The CUDA stream to compute on, and the type of the arrays whose memory is reused in the order of that stream.

    None: nothing to say. Torch is asked by ``_core``, and the CPU has no stream. JAX has none it would name, and reuses
    memory in an order of its own; so ``_core`` waits for the work before it gives the arrays back.
    """
    if kind == "cupy":
        import cupy

        with array.device:
            return int(cupy.cuda.get_current_stream().ptr), cupy.ndarray
    if kind == "jax" and device_type(array) == "cuda":
        return LEGACY_DEFAULT_STREAM, None
    return None


def is_traced_by_jax(*arrays: Array) -> bool:
    """Whether an array has no data yet, because JAX traces the function it is in (jit, grad, vmap)."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(array, jax.core.Tracer) for array in arrays)


def int32_times_refusal(op: str, name: str, times: Array) -> str | None:
    """The message about int32 times of JAX, which converts int64 to int32 unless its 64-bit mode is on."""
    if kind_of(times) != "jax" or times.dtype != np.int32:
        return None
    return (
        f"{op}: {name} must be int64 nanoseconds, float64 or float32 seconds, got int32, to which JAX silently "
        "converts int64: set jax.config.update('jax_enable_x64', True) before the array is made, or pass a NumPy "
        "array of int64, or float32 seconds from the start of the episode"
    )


def dtype_name(dtype: Any) -> str | None:
    """``torch.float32``, ``np.float32``, ``jnp.float32``, ``"float32"`` -> ``"float32"``. What is no dtype is named as
    it is, for the contract to refuse."""
    if dtype is None:
        return None
    if isinstance(dtype, str):
        return dtype
    if type(dtype).__module__.split(".")[0] == "torch":
        return str(dtype).removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        return repr(dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; bfloat16 is that of ``ml_dtypes``, which may not be installed."""
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                "robocache: dtype 'bfloat16' of NumPy and CuPy arrays needs the package ml_dtypes: pip install "
                "ml_dtypes; or pass torch tensors, which have this dtype themselves",
                name="ml_dtypes",
            ) from error
        name = ml_dtypes.bfloat16
    return np.dtype(name)


def empty(kind: Kind, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    """Uninitialized memory in the framework of ``like`` and on its device, written by ``_core``."""
    if kind == "jax":
        return _core.empty(shape, dtype, like.__dlpack_device__()[1] if device_type(like) == "cuda" else None)
    if kind == "cupy":
        import cupy

        with like.device:
            return cupy.empty(shape, numpy_dtype(dtype))
    return np.empty(shape, numpy_dtype(dtype))


def allocator(like: Array) -> _core.Allocate | None:
    """What ``_core`` calls to have an array made in the framework of ``like``. None: it makes torch tensors itself, and
    NumPy arrays where ``like`` is one that it made."""
    kind = kind_of(like)
    if kind == "torch" or isinstance(getattr(like, "base", None), _core.HostMemory):
        return None

    def allocate(what: str, shape: tuple[int, ...], dtype: str, fill: int | None) -> Array:
        array = empty(kind, shape, dtype, like)
        if fill is not None and kind != "jax":  # JAX has no memory that may be written twice
            array.fill(fill)
        return array

    return allocate


def finish(array: Array | None) -> Array | None:
    """A JAX array over the memory that ``empty`` made for JAX; anything else unchanged."""
    if array is None or hasattr(array, "shape"):
        return array
    import jax

    return jax.dlpack.from_dlpack(array)


def as_torch(array: Array) -> Array:
    """The array as a torch tensor: the same memory wherever torch can read it."""
    import torch

    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array")
    if isinstance(array, np.ndarray) or kind_of(array) == "cupy":
        if array.dtype.name == "bfloat16":
            return as_torch(array.view(np.uint16)).view(torch.bfloat16)
        if array.dtype.kind in "mM" and np.datetime_data(array.dtype) == ("ns", 1) and array.dtype.isnative:
            return as_torch(array.view(np.int64))
    if isinstance(array, np.ndarray):
        # torch takes neither read-only arrays nor negative strides.
        plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return torch.from_numpy(array if plain else array.copy())
    return torch.utils.dlpack.from_dlpack(array)


def from_torch(kind: Kind, tensor: Array) -> Array:
    """The same memory as an array of ``kind``."""
    if kind == "jax":
        import jax

        return jax.dlpack.from_dlpack(tensor.contiguous())
    if kind == "cupy":
        import cupy

        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            return cupy.from_dlpack(tensor.view(torch.int16)).view(numpy_dtype("bfloat16"))
        return cupy.from_dlpack(tensor)
    if kind == "numpy":
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            return tensor.view(torch.uint16).numpy().view(numpy_dtype("bfloat16"))
        return tensor.numpy()
    return tensor
