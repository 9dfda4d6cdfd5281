"""What the tests of the CUDA backend share: when they run, the same view on another device, guards, equal bits."""

import numpy as np
import pytest
import torch
from arrays import BFLOAT16, CUDA, REQUIRE_CUDA, array_of, to_numpy
from tolerance import slerp_limit

needs_cuda = pytest.mark.skipif(
    not CUDA and not REQUIRE_CUDA, reason="no CUDA backend here; ROBOCACHE_REQUIRE_CUDA=1 makes this a failure"
)

DEVICE = "cuda"
GUARD = 64  # elements on each side: a multiple of every access width, so that guards change no alignment
POISON = 0xA5  # every byte of a guard


def need_gpu_memory(size_bytes):
    """Skips the test where the GPU is too small for it, or too full."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < size_bytes:
        pytest.skip(f"needs {size_bytes / 2**30:.1f} GiB of free GPU memory, got {free / 2**30:.1f}")


def copy_of(x, device):
    """The same view (offset, strides, stride 0 too) of a copy of the same memory; one plain copy of bytes."""
    if x is None:
        return None
    size = x.untyped_storage().nbytes() // x.element_size()
    memory = torch.as_strided(x, (size,), (1,), 0).to(device, copy=True)
    return torch.as_strided(memory, x.shape, x.stride(), x.storage_offset())


class Guarded:
    """While it is active, new memory of torch is a slice from the middle of poisoned memory, which is remembered.

    The outputs of a call are made with ``new_empty`` (the direct way) or ``torch.empty``, so this puts guards around
    values, valid and index alike. The poison comes from the host: initcheck counts only memory that a copy or one of
    our kernels wrote.
    """

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._memories = []

    def __enter__(self):
        self._patch = self._monkeypatch.context()
        patch = self._patch.__enter__()
        patch.setattr(torch, "empty", self._empty)
        patch.setattr(torch.Tensor, "new_empty", lambda like, shape, dtype=None: self._empty_like(like, shape, dtype))
        return self

    def __exit__(self, *error):
        self._patch.__exit__(*error)

    def _empty(self, shape, *, dtype, device):
        item = torch.zeros((), dtype=dtype).element_size()
        size = int(np.prod(shape, dtype=np.int64))
        poison = np.full((size + 2 * GUARD) * item, POISON, np.uint8)
        memory = torch.from_numpy(poison).to(device, copy=True)
        self._memories.append((memory, GUARD * item))
        return memory.view(dtype)[GUARD : GUARD + size].view(shape)

    def _empty_like(self, like, shape, dtype):
        return self._empty(shape, dtype=like.dtype if dtype is None else dtype, device=like.device)

    def assert_untouched(self, num_outputs):
        assert len(self._memories) == num_outputs, "outputs are made in another way now: guard what makes them"
        for memory, guard in self._memories:
            seen = memory.cpu().numpy()
            assert (seen[:guard] == POISON).all(), "something was written before an output"
            assert (seen[-guard:] == POISON).all(), "something was written after an output"


def is_slerp(method, width):
    """Which of the channels are quaternions: their sines may differ in the last place."""
    if method is None or isinstance(method, str):
        return np.full(width, (method or "").startswith("slerp"))
    mask = np.zeros(width, bool)
    for begin, end, name in method:
        mask[begin:end] = name.startswith("slerp")
    return mask


def different_bits(got, want):
    """Where two arrays differ in a bit. NaN equals NaN: the payload is nobody's promise."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    unsigned = f"u{got.dtype.itemsize}"
    different = got.view(unsigned) != want.view(unsigned)
    if got.dtype == BFLOAT16 or got.dtype.kind == "f":
        different &= ~(np.isnan(got) & np.isnan(want))
    return different


def assert_same_bits(got, want, what=""):
    """Two arrays of any kind are equal bit for bit, but for the payload of a NaN."""
    got, want = to_numpy(got), to_numpy(want)
    different = different_bits(got, want)
    assert not different.any(), (
        f"{what}: {different.sum()} of {different.size} differ, "
        f"first at {np.argwhere(different)[0].tolist()}: {got[different][0]!r}, not {want[different][0]!r}"
    )


def assert_same_values(got, want, method, what=""):
    """The values of a stream as CPU and CUDA promise each other: the same bits, slerp within ``slerp_limit``."""
    got, want = to_numpy(got), to_numpy(want)
    quaternion = is_slerp(method, got.shape[-1])
    assert_same_bits(got[..., ~quaternion], want[..., ~quaternion], what)
    if not quaternion.any():
        return
    name = got.dtype.name
    got, want = got[..., quaternion].astype(np.float64), want[..., quaternion].astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
    far = np.abs(got - want) > slerp_limit(want, name)
    assert not far.any(), f"{what}: {far.sum()} of {far.size} too far, first {got[far][0]!r}, not {want[far][0]!r}"


def assert_same_results(got, want, streams, what=""):
    """Two ``Aligned`` of the same list of streams: values as promised, valid and index exactly."""
    for i, stream in enumerate(streams):
        where = f"{what} stream {i} ({stream.method}, {stream.values.dtype}, {tuple(stream.values.shape)})"
        assert_same_values(got.values[i], want.values[i], stream.method, where)
        assert_same_bits(got.valid[i], want.valid[i], where + " valid")
        assert_same_bits(got.index[i], want.index[i], where + " index")


# ---- views of values, times and outputs that memory can be read and written through ---------------------------------


def plain(x):
    return x.contiguous()


def from_an_odd_element(x):
    memory = torch.zeros(x.numel() + 3, dtype=x.dtype)
    view = memory[1 : 1 + x.numel()].view(x.shape)
    view.copy_(x)
    return view


def columns_of_a_wider_array(x):
    memory = torch.zeros(*x.shape[:-1], x.shape[-1] + 5, dtype=x.dtype)
    view = memory[..., 1 : 1 + x.shape[-1]]
    view.copy_(x)
    return view


def every_other_row(x):
    memory = torch.zeros(*x.shape[:-2], 2 * x.shape[-2], x.shape[-1], dtype=x.dtype)
    view = memory[..., ::2, :]
    view.copy_(x)
    return view


def channels_first(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


VIEWS = (plain, from_an_odd_element, columns_of_a_wider_array, every_other_row, channels_first)
TIME_VIEWS = (plain, from_an_odd_element, columns_of_a_wider_array)


def tensor(x):
    """A NumPy array of ``cases.py`` as a CPU tensor of its own memory."""
    return None if x is None else array_of("torch", x).clone()
