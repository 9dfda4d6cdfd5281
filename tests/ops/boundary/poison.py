"""Memory that is not zero by luck: allocators of NumPy, torch, CuPy and ``_core`` give memory full of one byte.

An output element that a call does not write keeps the byte, so two runs over different bytes differ there.
"""

import contextlib
import ctypes
from unittest import mock

import numpy as np
import torch
from arrays import bits, cupy, to_numpy
from robocache import _core

BYTES = (0x5A, 0xA5)


@contextlib.contextmanager
def memory_full_of(byte):
    """Inside, everything that ``empty`` and its kin make has ``byte`` in every place."""

    def of_numpy(make):
        def made(*args, **kwargs):
            array = make(*args, **kwargs)
            ctypes.memset(array.ctypes.data, byte, array.nbytes)
            return array

        return made

    def of_torch(make):
        def made(*args, **kwargs):
            tensor = make(*args, **kwargs)
            if tensor.is_contiguous() and tensor.numel() > 0:
                tensor.detach().view(-1).view(torch.uint8).fill_(byte)
            return tensor

        return made

    def of_cupy(make):
        def made(*args, **kwargs):
            array = make(*args, **kwargs)
            array.view(np.uint8).fill(byte)
            return array

        return made

    def of_core(shape, dtype, device):
        array = make_of_core(shape, dtype, device)
        if device is None:
            memory = np.from_dlpack(array) if dtype != "bfloat16" else None
            if memory is not None:
                ctypes.memset(memory.ctypes.data, byte, memory.nbytes)
        else:
            torch.from_dlpack(array).view(-1).view(torch.uint8).fill_(byte)
            torch.cuda.synchronize()
        return array

    make_of_core = _core.empty
    patches = [
        mock.patch.object(np, "empty", of_numpy(np.empty)),
        mock.patch.object(torch, "empty", of_torch(torch.empty)),
        mock.patch.object(torch.Tensor, "new_empty", of_torch(torch.Tensor.new_empty)),
        mock.patch.object(_core, "empty", of_core),
    ]
    if cupy is not None:
        patches.append(mock.patch.object(cupy, "empty", of_cupy(cupy.empty)))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def leaves(made):
    """The arrays in what a call returns: tuples, lists and dicts of them, and None."""
    if made is None or isinstance(made, (int, float, str)):
        return []
    if isinstance(made, dict):
        return [x for item in made.values() for x in leaves(item)]
    if isinstance(made, (tuple, list)):
        return [x for item in made for x in leaves(item)]
    return [made]


def assert_writes_everything(call, what=""):
    """``call()`` gives the same bits whatever its memory holds before."""
    runs = []
    for byte in BYTES:
        with memory_full_of(byte):
            made = leaves(call())
        runs.append([(x.shape, to_numpy(x).dtype, bits(x)) for x in made])
    first, second = runs
    assert len(first) == len(second), what
    for i, (mine, other) in enumerate(zip(first, second, strict=True)):
        assert mine[:2] == other[:2], f"{what}: output {i}"
        if mine[2] != other[2]:
            pair = np.frombuffer(mine[2], np.uint8), np.frombuffer(other[2], np.uint8)
            places = np.flatnonzero(pair[0] != pair[1])
            raise AssertionError(
                f"{what}: output {i} of {mine[:2]}: {len(places)} bytes not written, from {places[:4]}"
            )
