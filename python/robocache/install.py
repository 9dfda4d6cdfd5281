"""Describes the installation and tests its backends."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _core


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvdec(cuda: dict[str, Any]) -> dict[str, Any]:
    """Whether the first GPU decodes video of 640 x 480, and why not."""
    if not cuda["available"]:
        return {"codecs": [], "reason": cuda["reason"]}
    reasons = {codec: _core.why_no_gpu_video(codec, 640, 480, 0) for codec in ("h264", "hevc")}
    return {"codecs": [codec for codec, reason in reasons.items() if not reason], "reason": reasons["h264"]}


def check_installation() -> dict[str, Any]:
    """Versions, CPU and CUDA state, and available backends, as plain data. Imports no framework; works without a GPU.

    >>> import robocache
    >>> info = robocache.check_installation()
    >>> info["version"] == robocache.__version__, info["backends"]["cpu"]
    (True, True)
    """
    cuda = _core.cuda_status()
    torch = _version_of("torch")
    ffi = _core.xla_ffi_version
    return {
        "version": _core.version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "native_module": _core.__file__,
        "cpu": {"instruction_set": _core.cpu_instruction_set(), "num_threads": _core.num_threads()},
        "cuda": cuda,
        "video": {"nvdec": _nvdec(cuda), "av": _version_of("av")},
        "jax_handlers": {"compiled": ffi is not None, "xla_ffi": None if ffi is None else f"{ffi[0]}.{ffi[1]}"},
        "backends": {"cpu": True, "cuda": cuda["available"], "torch": torch is not None},
        "packages": {"numpy": np.__version__, "torch": torch, "jax": _version_of("jax")},
    }


def print_installation_info() -> None:
    """Prints ``check_installation()`` as text.

    >>> import robocache
    >>> robocache.print_installation_info()  # doctest: +ELLIPSIS
    RoboCache ...
    """
    info = check_installation()
    cuda = info["cuda"]
    found = f"{', '.join(cuda['devices'])} (driver {cuda['driver_version']})" if cuda["available"] else cuda["reason"]
    compiled = f"compiled for CUDA {cuda['runtime_version']}" if cuda["compiled"] else "not compiled"
    print(f"RoboCache {info['version']}, Python {info['python']}, {info['platform']}")
    print(f"  native module  {info['native_module']}")
    print(f"  cpu            {info['cpu']['instruction_set']}, {info['cpu']['num_threads']} threads")
    print(f"  cuda           {compiled}; {found}")
    nvdec, av = info["video"]["nvdec"], info["video"]["av"]
    by_gpu = f"NVDEC for {', '.join(nvdec['codecs'])}" if nvdec["codecs"] else f"no NVDEC: {nvdec['reason']}"
    print(f"  video          {by_gpu}; PyAV {av or 'not installed'}")
    handlers = info["jax_handlers"]
    with_ffi = f"compiled with XLA FFI {handlers['xla_ffi']}"
    absent = "not compiled: no jaxlib headers when this was built (docs/guides/jax.md)"
    print(f"  jax.jit        {with_ffi if handlers['compiled'] else absent}")
    print(f"  backends       {', '.join(name for name, on in info['backends'].items() if on)}")
    print(f"  packages       {', '.join(k + ' ' + (v or 'not installed') for k, v in info['packages'].items())}")


def self_test() -> dict[str, str]:
    """Runs every available backend on a small problem with a known answer; raises RuntimeError if one is wrong.

    "cuda" is tested with arrays of PyTorch, CuPy or JAX; without one that supports the GPU, it is "not tested".

    >>> import robocache
    >>> robocache.self_test()["cpu"]
    'ok'
    """
    from .ops.align import resample_trajectories
    from .ops.voxelize import voxelize_pointcloud

    def count(points: Any, backend: str) -> Any:
        return voxelize_pointcloud(points, None, (0, 0, 0), 0.1, (2, 1, 3), "count", backend)

    def resample(data: Any, times: Any, targets: Any, backend: str) -> Any:
        return resample_trajectories(data, times, targets, backend=backend)

    data = np.array([[[0.0, 5.0], [1.0, 5.0], [3.0, -5.0]]], np.float32)
    times = np.array([[0, 10, 30]], np.int64)
    targets = np.array([[-5, 0, 5, 10, 20, 40]], np.int64)
    resampled = np.array([[[0, 5], [0, 5], [0.5, 5], [1, 5], [2, 0], [3, -5]]], np.float32)
    points = np.array([[0.15, 0.05, 0.25], [0.1, 0, 0.2], [0, 0, 0.1], [0.2, 0, 0], [0, np.nan, 0]], np.float32)
    counted = np.array([[[0, 1, 0]], [[0, 0, 2]]], np.int32)
    problems: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
        (resample, (data, times, targets), resampled),
        (count, (points,), counted),
    ]
    results: dict[str, str] = {}
    for backend, available in check_installation()["backends"].items():
        if not available:
            results[backend] = "not available"
            continue
        results[backend] = "ok"
        for solve, inputs, expected in problems:
            try:
                got = _on_gpu(solve, inputs) if backend == "cuda" else solve(*inputs, backend=backend)
            except ImportError as error:
                results[backend] = f"not tested: {error}"
                break
            if not np.array_equal(got, expected):
                raise RuntimeError(
                    f"self_test: backend '{backend}' returned {got.tolist()}, expected {expected.tolist()}"
                )
    return results


def _on_gpu(solve: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Solves with the first array library that supports the GPU; ImportError if there is none."""
    for move, back in filter(None, (find() for find in (_torch_on_gpu, _cupy_on_gpu, _jax_on_gpu))):
        return back(solve(*(move(x) for x in inputs), backend="cuda"))
    raise ImportError("no PyTorch, CuPy or JAX with GPU support is installed")


Moves = tuple[Callable[[Any], Any], Callable[[Any], Any]] | None
"""Functions that copy a NumPy array to the GPU and back; None if the library has no GPU support."""


def _torch_on_gpu() -> Moves:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return lambda x: torch.from_numpy(x).cuda(), lambda x: x.cpu().numpy()


def _cupy_on_gpu() -> Moves:
    try:
        import cupy
    except ImportError:
        return None
    return cupy.asarray, cupy.asnumpy


def _jax_on_gpu() -> Moves:
    try:
        import jax
    except ImportError:
        return None
    gpus = [device for device in jax.devices() if device.platform == "gpu"]
    if not gpus:
        return None
    # Without its 64-bit mode JAX has no int64; the problem is exact in float32 too.
    return lambda x: jax.device_put(x.astype(np.float32), gpus[0]), np.asarray
