"""Sizes around 2**31 and past 2**32: every element of outputs, sources, masks and indices is where it belongs.

Row r, channel d of a source holds a number made of r and d, and the targets ask for rows in an order that repeats only
after more than any power of two, so an element that was written or read 2**31 or 2**32 places away is a wrong one.
All numbers are small and whole and all weights are one half: the answer is exact in uint8 and in bfloat16.
"""

import pytest
import robocache
import torch
from cuda_tools import DEVICE, need_gpu_memory, needs_cuda

pytestmark = [needs_cuda, pytest.mark.huge]

NUM_ROWS = 65_521  # targets ask for rows below this prime; one more row is the right neighbor of the last
CHUNK = 1 << 25  # elements that are made or compared at a time, in int64
SCRATCH = 1 << 31  # bytes that takes
SIZES = {"2^31-1": 2**31 - 1, "2^31": 2**31, "2^31+1": 2**31 + 1, "2^32+7": 2**32 + 7}
METHODS = {"previous": torch.uint8, "linear": torch.bfloat16}


@pytest.fixture(autouse=True)
def memory():
    """Gives back what a test of this file took, so that PyTorch does not keep it from the other tests."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def value(row, channel, method):
    """What row and channel of a source hold; even for linear, so that the middle of two rows is whole."""
    return 2 * ((row + 3 * channel) % 100) if method == "linear" else (row + 3 * channel) % 251


def sampled(row, channel, method):
    """What a target half way between ``row`` and the next row gets."""
    if method == "linear":
        return (value(row, channel, method) + value(row + 1, channel, method)) // 2
    return value(row, channel, method)


def source(num_rows, width, method):
    """``(num_rows, width)`` values at times 0, 1, 2, ... Made in parts: integers of the whole would not fit."""
    values = torch.empty((num_rows, width), dtype=METHODS[method], device=DEVICE)
    channel = torch.arange(width, device=DEVICE)
    step = max(1, CHUNK // width)
    for begin in range(0, num_rows, step):
        row = torch.arange(begin, min(begin + step, num_rows), device=DEVICE)
        values[begin : begin + step] = value(row[:, None], channel, method).to(values.dtype)
    return values


def asked_row(j):
    """The row that target j asks for."""
    return j * 7919 % NUM_ROWS


def targets(count, time=lambda j: asked_row(j) + 0.5):
    """``count`` float32 target times; if not said otherwise, half way behind the row they ask for."""
    times = torch.empty(count, dtype=torch.float32, device=DEVICE)
    for begin in range(0, count, CHUNK):
        j = torch.arange(begin, min(begin + CHUNK, count), device=DEVICE)
        times[begin : begin + CHUNK] = time(j)
    return times


def wrong_elements(out, expected):
    """How many elements of ``out`` are not ``expected(flat index)``; all of them are looked at."""
    flat = out.reshape(-1)
    assert flat.data_ptr() == out.data_ptr()
    wrong = torch.zeros((), dtype=torch.int64, device=out.device)
    for begin in range(0, flat.numel(), CHUNK):
        element = torch.arange(begin, min(begin + CHUNK, flat.numel()), device=out.device)
        wrong += torch.count_nonzero(flat[begin : begin + CHUNK] != expected(element).to(out.dtype))
    return int(wrong)


def row_times(num_rows, dtype=torch.float32):
    return torch.arange(num_rows, device=DEVICE).to(dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", SIZES)
def test_one_row_of_targets(size, method):
    count = SIZES[size]
    need_gpu_memory(count * (4 + METHODS[method].itemsize) + SCRATCH)  # target times are float32
    got = robocache.resample_trajectories(
        source(NUM_ROWS + 1, 1, method), row_times(NUM_ROWS + 1), targets(count), method=method
    )
    assert got.shape == (count, 1)
    assert wrong_elements(got, lambda e: sampled(asked_row(e), 0, method)) == 0


@pytest.mark.parametrize("size", ["2^31-1", "2^31+1"])
def test_as_many_rows_of_one_target(size):
    count = SIZES[size]
    need_gpu_memory(6 * count + SCRATCH)
    stream = robocache.Stream(source(NUM_ROWS + 1, 1, "previous"), row_times(NUM_ROWS + 1), method="previous")
    got = robocache.align(stream, targets(count)[:, None]).values  # one episode serves every row
    assert got.shape == (count, 1, 1)
    assert wrong_elements(got, lambda e: sampled(asked_row(e), 0, "previous")) == 0


SHAPES = {
    "2^31": (2**9, 2**9, 2**13),
    "2^31, long rows": (2, 2**10, 2**20),
    "2^31+1": (3, 715_827_883, 1),
    "2^32+7": (11, 6323, 61_751),
    "2^32+7, narrow rows": (6323, 61_751, 11),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_rows_times_targets_times_channels(name, method):
    num_queries, num_targets, width = SHAPES[name]
    num_rows = min(NUM_ROWS, 2**31 // (4 * width))
    size = METHODS[method].itemsize
    need_gpu_memory((size * width + 1) * num_queries * num_targets + 16 * num_targets + 2 * SCRATCH)
    reach = num_rows // 2  # row asked for: one below `reach` by the anchor, one below `reach` by the delta
    anchor = torch.arange(num_queries, device=DEVICE) * 7919 % reach
    delta = torch.arange(num_targets, device=DEVICE).mul_(104_729).remainder_(reach)
    stream = robocache.Stream(source(num_rows, width, method), 2 * row_times(num_rows, torch.int64), method=method)
    out = torch.empty((num_queries, num_targets, width), dtype=METHODS[method], device=DEVICE)
    robocache.align(stream, anchor=2 * anchor, deltas=(2 * delta).add_(1), out=out)

    def expected(element):
        target = element // width
        return sampled(anchor[target // num_targets] + delta[target % num_targets], element % width, method)

    assert wrong_elements(out, expected) == 0


def test_a_source_of_more_than_2_to_the_32_elements():
    num_rows, width = 2**20 + 3, 4099  # odd rows: every address in turn
    need_gpu_memory(num_rows * width + 2**32)
    values = source(num_rows, width, "previous")
    assert values.numel() > 2**32
    asked = torch.cat([torch.arange(40), num_rows // 2 + torch.arange(40), num_rows - 1 - torch.arange(40)]).to(DEVICE)
    for method, dtype in (("previous", None), ("nearest", None), ("previous", "float32")):  # both kernels
        got = robocache.resample_trajectories(
            values, row_times(num_rows, torch.float64), asked.double() + 0.25, method=method, dtype=dtype
        )
        assert wrong_elements(got, lambda e: value(asked[e // width], e % width, "previous")) == 0


def test_ragged_rows_behind_2_to_the_31():
    num_rows, width = 2**30 + 5, 3
    need_gpu_memory(num_rows * (width + 8) + 2**33)
    stream = robocache.Stream(
        source(num_rows, width, "previous"),
        torch.arange(num_rows, device=DEVICE),
        torch.tensor([0, 7, 2**30 - 3, num_rows], device=DEVICE),
    )
    times = torch.tensor([[0, 6, 9], [7, 2**29, 2**30 - 4], [2**30 - 4, 2**30, 2**30 + 4]], device=DEVICE)
    rows = torch.tensor([[0, 6, 6], [7, 2**29, 2**30 - 4], [2**30 - 3, 2**30, 2**30 + 4]], device=DEVICE)
    got = robocache.align(stream, times, return_index=True)
    assert wrong_elements(got.values, lambda e: value(rows.view(-1)[e // width], e % width, "previous")) == 0
    rows[2, 0] = -1  # before the first row of its episode
    assert torch.equal(got.index, rows)


def test_more_than_2_to_the_31_targets_over_all_streams():
    num_streams, count = 3, 2**30 + 1
    need_gpu_memory(count * (4 + 2 * num_streams) + SCRATCH)
    streams = [(source(NUM_ROWS + 1, 1, "previous") + i, row_times(NUM_ROWS + 1)) for i in range(num_streams)]
    values, valid = robocache.fuse_multimodal(streams, targets(count), return_valid=True)
    assert values.shape == valid.shape == (count, num_streams)
    assert values.numel() > 2**31
    assert wrong_elements(values, lambda e: sampled(asked_row(e // num_streams), 0, "previous") + e % num_streams) == 0
    assert wrong_elements(valid, lambda e: e >= 0) == 0


def test_masks_and_indices_of_more_than_2_to_the_31_targets():
    num_queries, num_targets = 2**15 + 1, 2**16
    total = num_queries * num_targets
    need_gpu_memory(10 * total + SCRATCH)
    anchor = torch.arange(num_queries, device=DEVICE) * 7919 % 30_011
    delta = torch.arange(num_targets, device=DEVICE) * 104_729 % 35_000
    times = 2 * row_times(60_000, torch.int64)  # the last 5,000 rows that are asked for do not exist
    stream = robocache.Stream(source(60_000, 1, "previous"), times)
    got = robocache.align(stream, anchor=2 * anchor, deltas=2 * delta + 1, return_index=True)

    def asked(element):
        return anchor[element // num_targets] + delta[element % num_targets]

    assert got.index.numel() == total > 2**31
    assert wrong_elements(got.index, lambda e: asked(e).clamp(max=59_999)) == 0
    assert wrong_elements(got.valid, lambda e: asked(e) < 59_999) == 0
    assert wrong_elements(got.values, lambda e: value(asked(e).clamp(max=59_999), 0, "previous")) == 0


@pytest.mark.parametrize("method", ["nearest", "max"])
def test_the_general_kernel(method):
    """Another dtype out, or a window: element by element, in blocks of targets."""
    count = SIZES["2^31+1"]
    need_gpu_memory(7 * count + SCRATCH)
    values, out = source(NUM_ROWS + 1, 1, "previous"), torch.empty((1, count, 1), dtype=torch.float16, device=DEVICE)

    def in_order(j):  # windows need that; each window holds the row of its target, or nothing, which is the same
        return j * NUM_ROWS // count

    row = asked_row if method == "nearest" else in_order
    stream = robocache.Stream(values, row_times(NUM_ROWS + 1), method=method)
    robocache.align(stream, targets(count, row), out=out)
    assert wrong_elements(out, lambda e: value(row(e), 0, "previous")) == 0
