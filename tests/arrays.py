"""Backends, and arrays of every kind and dtype: made from NumPy with the same strides, and read back as NumPy."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # int64 and float64 exist in JAX only with this

import warnings

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import robocache
import torch

REQUIRE_CUDA = (
    os.environ.get("ROBOCACHE_REQUIRE_CUDA") == "1"
)  # a GPU test that cannot run fails instead of being skipped
CUDA = torch.cuda.is_available() and bool(robocache.check_installation()["backends"]["cuda"])
BACKENDS = ("cpu", "torch", "cuda") if CUDA or REQUIRE_CUDA else ("cpu", "torch")
KIND = {"cpu": "numpy", "torch": "torch", "cuda": "torch"}  # the kind of array a backend is mostly tested with
DEVICE = {"cpu": "cpu", "torch": "cpu", "cuda": "cuda"}

KINDS = ("numpy", "torch", "jax")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64))
INTEGERS = tuple(np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"))
TIMES = tuple(np.dtype(t) for t in (np.int64, np.float64, np.float32))


def array_of(kind, x, device="cpu"):
    """``x`` as an array of the given kind. None stays None. Strides are kept (JAX has none)."""
    if x is None or kind == "numpy":
        return x
    if kind == "jax":
        return jnp.asarray(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory: broadcast arrays are
        if x.dtype == BFLOAT16:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)


def on(backend, x):
    """``x`` as the kind of array the backend is mostly tested with, where the backend computes."""
    return array_of(KIND[backend], x, DEVICE[backend])


def kind_of(x):
    if isinstance(x, np.ndarray):
        return "numpy"
    return "torch" if isinstance(x, torch.Tensor) else "jax"


def to_numpy(x):
    """Any of the arrays as NumPy, bfloat16 as ``ml_dtypes.bfloat16``."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu().contiguous()
        return x.view(torch.int16).numpy().view(BFLOAT16) if x.dtype == torch.bfloat16 else x.numpy()
    return np.asarray(x)


def bits(x):
    """The bytes of an array: equal bits, NaN and -0.0 included."""
    return np.ascontiguousarray(to_numpy(x)).tobytes()


def torch_dtype(dtype):
    return getattr(torch, np.dtype(dtype).name)
