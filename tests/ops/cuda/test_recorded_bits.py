"""Every op gives the bits that were recorded before its code was reorganized (recorded_bits.json).

The first groups of calls only: ``python tests/ops/cuda/recorded_bits.py [--device cuda]`` runs all of them.
"""

import json

import pytest
import recorded_bits
from arrays import CUDA
from cuda_tools import needs_cuda


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_every_op_gives_the_recorded_bits(device):
    assert device == "cpu" or CUDA
    recorded = json.loads(recorded_bits.FILE.read_text())
    found = recorded_bits.digests(device, num_groups=2)
    assert found.keys() == recorded.keys()
    different = recorded_bits.differences(found, recorded)
    if any("inputs" in line for line in different):
        pytest.skip("the random generators of this NumPy make other inputs")
    assert different == []
