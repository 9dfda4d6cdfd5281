"""decode_images on every device that is here, with NumPy out."""

import numpy as np
import pytest
import robocache
from arrays import CUDA, REQUIRE_CUDA, to_numpy

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.skipif(not (CUDA or REQUIRE_CUDA), reason="no CUDA here")))


def decode(pictures, device="cpu", **options):
    """An array, or a list of arrays where sizes differ. CUDA: without an index given, it is made on the CPU first."""
    made = robocache.decode_images(pictures, device=None if device == "cpu" else device, **options)
    return [to_numpy(x) for x in made] if isinstance(made, list) else to_numpy(made)


def equal(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
