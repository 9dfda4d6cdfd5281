"""The framework of a batch: its tensors as NumPy or JAX arrays over the same memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ...ops.arrays import from_torch
from ...text import did_you_mean

FRAMEWORKS = ("torch", "numpy", "jax")


def check_framework(framework: Any, device: Any) -> str:
    """Raises ValueError where no batch of this framework can be on this device."""
    if framework not in FRAMEWORKS:
        raise ValueError(
            f"Loader: framework must be one of {', '.join(FRAMEWORKS)}, got {framework!r}"
            f"{did_you_mean(str(framework), FRAMEWORKS)}"
        )
    if framework != "torch" and str(device).partition(":")[0] != "cpu":
        fix = " and jax.dlpack.from_dlpack of its tensors" if framework == "jax" else ""
        raise ValueError(
            f"Loader: device must be 'cpu' for framework {framework!r}, got {str(device)!r}; take framework='torch'"
            f"{fix}"
        )
    return str(framework)


def conversion(framework: str) -> Callable[[Any], Any] | None:
    """From a tensor on the host to an array of the framework; None: tensors stay."""
    if framework == "torch":
        return None
    if framework == "numpy":
        return lambda tensor: from_torch("numpy", tensor)
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        raise ImportError("Loader: framework 'jax' needs JAX, which is not installed: pip install jax") from None

    def as_jax(tensor: Any) -> Any:
        # JAX would convert 64 bits to 32 without a warning, and times in nanoseconds do not fit into 32.
        is_narrowed = tensor.dtype.itemsize == 8 and not jax.config.jax_enable_x64
        return from_torch("numpy" if is_narrowed else "jax", tensor)

    return as_jax
