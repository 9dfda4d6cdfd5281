"""Calls that JAX traces: with and without its 64-bit mode, on the CPU or on a GPU."""

import jax
import numpy as np
import pytest
from arrays import REQUIRE_CUDA, missing_on_gpu
from oracle import align as oracle_align
from robocache import _core

needs_handlers = pytest.mark.skipif(_core.xla_ffi_version is None, reason="built without the headers of jaxlib")


def without_x64():
    """A context in which JAX has neither int64 nor float64, as it is without a setting."""
    return jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(False)


def gpu():
    """The GPU of JAX; the test is skipped where there is none, or fails if it must not be."""
    why = missing_on_gpu("jax")
    if why is not None:
        (pytest.fail if REQUIRE_CUDA else pytest.skip)(why)
    return jax.devices("gpu")[0]


def numpy_of(tree):
    return jax.tree_util.tree_map(np.asarray, tree)


def assert_same_bits(got, want):
    """Two trees of arrays; NaN equals NaN."""
    got, want = jax.tree_util.tree_leaves(numpy_of(got)), jax.tree_util.tree_leaves(numpy_of(want))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a.astype(np.float64) if a.dtype.kind == "V" else a, b)


def oracle_gradient(case, upstream, method=None):
    """The gradient of ``sum(upstream * align(values))`` in float64: by the oracle's weights, read from unit vectors as
    channels; of ``rms``, which is not linear in the values, by central differences."""
    query = {"offsets": case.offsets, "episode": case.episode, "method": method}
    lead = case.times.shape
    channels = case.values.shape[len(lead) :]
    if method != "rms":
        weights = oracle_align(np.eye(case.times.size).reshape(*lead, -1), case.times, case.targets, **query).values
        rows = np.einsum("btr,bt...->r...", weights, upstream)
        return rows.reshape(*lead, *channels)
    values, total, h = case.values.astype(np.float64), np.zeros(case.values.shape), 1e-5
    for place in np.ndindex(values.shape):
        sums = []
        for step in (h, -h):
            moved = values.copy()
            moved[place] += step
            made = oracle_align(moved, case.times, case.targets, **query)
            sums.append(float(np.sum(upstream * made.values)))
        total[place] = (sums[0] - sums[1]) / (2 * h)
    return total
