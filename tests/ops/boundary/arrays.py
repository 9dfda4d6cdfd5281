"""Backends, and arrays of every kind and dtype: made from NumPy with the same strides, and read back as NumPy."""

import importlib
import os
import warnings

import numpy as np
import robocache

MISSING = frozenset(os.environ.get("ROBOCACHE_MISSING", "").split())
"""Packages that the suite runs without: tests that need them are skipped. A package that is not named must be there."""


def package(name):
    return None if name in MISSING else importlib.import_module(name)


ml_dtypes, torch = package("ml_dtypes"), package("torch")
REQUIRE_CUDA = (
    os.environ.get("ROBOCACHE_REQUIRE_CUDA") == "1"
)  # a GPU test that cannot run fails instead of being skipped
CUDA = bool(torch and torch.cuda.is_available() and robocache.check_installation()["backends"]["cuda"])
BACKENDS = ("cpu", *(("torch",) if torch else ()), *(("cuda",) if CUDA or REQUIRE_CUDA else ()))
KIND = {"cpu": "numpy", "torch": "torch", "cuda": "torch"}  # the kind of array a backend is mostly tested with
DEVICE = {"cpu": "cpu", "torch": "cpu", "cuda": "cuda"}

os.environ.setdefault("JAX_ENABLE_X64", "1")  # int64 and float64 exist in JAX only with this
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory
if not CUDA:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

jax = package("jax")
if jax:
    os.environ["JAX_PLATFORMS"] = "cpu"  # read by now: this is for the programs that tests start
    JAX_CPU = jax.devices("cpu")[0]
    jax.config.update("jax_default_device", JAX_CPU)  # on the GPU only where a test asks for it

try:
    import cupy
except ImportError:
    cupy = None

KINDS = tuple(kind for kind in ("numpy", "torch", "jax") if kind not in MISSING)
GPU_KINDS = ("torch", "jax", "cupy")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16) if ml_dtypes else None
FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float16, BFLOAT16, np.float64) if t is not None)
INTEGERS = tuple(np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"))
TIMES = tuple(np.dtype(t) for t in (np.int64, np.float64, np.float32))


def missing_on_gpu(kind):
    """Why arrays of a kind cannot be tested on a GPU here; None if they can."""
    if not CUDA:
        return "no CUDA backend here"
    if kind == "jax":
        try:
            jax.devices("gpu")
        except RuntimeError as error:
            return f"JAX sees no GPU here: {error}"
    if kind == "cupy" and cupy is None:
        return "CuPy is not installed here"
    return None


def array_of(kind, x, device="cpu"):
    """``x`` as an array of the given kind. None stays None. Strides are kept (JAX has none)."""
    if x is None or kind == "numpy":
        return x
    if kind == "jax":
        return jax.device_put(x, JAX_CPU if device == "cpu" else jax.devices("gpu")[0])
    if kind == "cupy":
        return cupy.asarray(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory: broadcast arrays are
        if BFLOAT16 is not None and x.dtype == BFLOAT16:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)


def on(backend, x):
    """``x`` as the kind of array the backend is mostly tested with, where the backend computes."""
    return array_of(KIND[backend], x, DEVICE[backend])


def kind_of(x):
    if isinstance(x, np.ndarray):
        return "numpy"
    if cupy is not None and isinstance(x, cupy.ndarray):
        return "cupy"
    return "torch" if torch and isinstance(x, torch.Tensor) else "jax"


def is_on_gpu(x):
    return x.__dlpack_device__()[0] == 2


def to_numpy(x):
    """Any of the arrays as NumPy, bfloat16 as ``ml_dtypes.bfloat16``."""
    if torch and isinstance(x, torch.Tensor):
        x = x.detach().cpu().contiguous()
        return x.view(torch.int16).numpy().view(BFLOAT16) if x.dtype == torch.bfloat16 else x.numpy()
    return cupy.asnumpy(x) if kind_of(x) == "cupy" else np.asarray(x)


def bits(x):
    """The bytes of an array: equal bits, NaN and -0.0 included."""
    return np.ascontiguousarray(to_numpy(x)).tobytes()


def torch_dtype(dtype):
    return getattr(torch, np.dtype(dtype).name)
