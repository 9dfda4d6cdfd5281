"""The framework of a batch: torch tensors, NumPy arrays, or JAX arrays over the memory of NumPy arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _core
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
    """From an array of ``Arrays`` to one of the framework; None: it is one."""
    if framework != "jax":
        return None
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        raise ImportError("Loader: framework 'jax' needs JAX, which is not installed: pip install jax") from None

    def as_jax(array: Any) -> Any:
        # JAX would convert 64 bits to 32 without a warning, and times in nanoseconds do not fit into 32.
        is_narrowed = array.dtype.itemsize == 8 and not jax.config.jax_enable_x64
        return array if is_narrowed else jax.dlpack.from_dlpack(_core.Exported(np.ascontiguousarray(array)))

    return as_jax
