"""Faults on purpose: calls that compute-sanitizer must object to, so that its silence elsewhere means something.

compute-sanitizer --tool memcheck python tests/ops/cuda/planted_faults.py memcheck
"""

import sys

import robocache
import torch


class Stretched:
    """Two float32 numbers that claim to lie a megabyte apart; only the first one is ours."""

    def __init__(self, memory):
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (2,), "typestr": "<f4", "strides": (1 << 20,), "data": (memory.data_ptr(), False), "version": 3,
        }  # fmt: skip


def values_outside_of_memory():
    return torch.as_tensor(Stretched(torch.zeros(1).to("cuda")), device="cuda")


def values_that_nobody_wrote():
    return torch.empty(2, device="cuda")


values = {"memcheck": values_outside_of_memory, "initcheck": values_that_nobody_wrote}[sys.argv[1]]()
times = torch.arange(2).to("cuda")
robocache.resample_trajectories(values, times, times, method="previous")
torch.cuda.synchronize()
