"""Every path through the CUDA kernels once, small, and right: what compute-sanitizer watches (make sanitize-gpu).

Inputs come from the host and outputs go back to it as they are, so that the only kernels that run are ours. Then
initcheck knows every byte that was written, and a byte of an output that no kernel wrote is an error of the copy back.
"""

import numpy as np
import pytest
import robocache
from arrays import FLOATS, INTEGERS
from cases import EXTRAPOLATING, LAYOUTS, METHODS, dense, one_episode, ragged, span_of, times_of
from cuda_tools import DEVICE, assert_same_bits, assert_same_results, copy_of, needs_cuda, tensor

pytestmark = [needs_cuda, pytest.mark.sanitize]

FLOAT32, FLOAT64, INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


def on(device, case, **options):
    given = (copy_of(tensor(x), device) for x in (case.values, case.times, case.offsets))
    return robocache.Stream(*given, **options)


def asked(device, case):
    query = {"times": case.targets[0] if case.shared else case.targets}
    if case.anchor is not None:
        query = {"anchor": case.anchor, "deltas": case.deltas}
    return {k: copy_of(tensor(x), device) for k, x in {**query, "episode": case.episode}.items()}


def check(cases, options, what=""):
    """One call with all the cases as streams and the query of the first, on the GPU and on the CPU."""
    results = []
    for device in (DEVICE, "cpu"):
        streams = [on(device, case, **o) for case, o in zip(cases, options, strict=True)]
        results.append(robocache.align(streams, **asked(device, cases[0]), return_index=True))
    assert_same_results(*results, streams, what)


# a row of so many elements is moved in accesses of 16, 8, 4, 2 and 1 bytes, as far as the dtype has them
ACCESSES = {"float32": (4, 2, 3), "float64": (2, 3), "float16": (8, 4, 2, 3), "bfloat16": (8, 4, 2, 3),
            "uint8": (16, 8, 4, 2, 3)}  # fmt: skip


@pytest.mark.parametrize("method", ["linear", "previous", "next", "nearest"])
def test_every_width_of_access_in_two_launches(method, tdtype, rng):
    dtypes = [d for d in FLOATS + INTEGERS if d.name in ACCESSES]
    cases = [dense(rng, d, tdtype, (width,), None, 33, 31) for d in dtypes for width in ACCESSES[d.name]]
    assert len(cases) > 16  # one launch takes 16 streams
    methods = ["previous" if method == "linear" and c.values.dtype in INTEGERS else method for c in cases]
    check(cases, [{"method": m, "max_gap": span_of(4, tdtype)} for m in methods])


@pytest.mark.parametrize("outside", ["nan", "linear"])
def test_what_lies_outside(outside, tdtype, rng):
    cases = [dense(rng, dtype, tdtype, (5,)) for dtype in FLOATS]
    check(cases, [{"outside": outside, "outside_valid": True}] * len(cases))


@pytest.mark.parametrize("shape", [(1, 1000, 65, 3), (2, 257, 33, 2100), (40, 5, 3, 2), (1, 2000, 4, 1)], ids=str)
def test_every_way_to_cut_the_work(shape, tdtype, rng):
    """Times that are searched in shared or in global memory, rows that several warps share, warps of several rows."""
    num_episodes, num_rows, num_targets, width = shape
    even = dense(rng, FLOAT32, tdtype, (width,), None, num_rows, num_targets, num_episodes)
    even.times = times_of(np.tile(100 + 6 * np.arange(num_rows), (num_episodes, 1)), tdtype)
    late = one_episode(rng, FLOAT32, tdtype, (width,), None, num_rows, num_targets)
    late.times[num_rows // 2 :] += np.asarray(span_of(3000, tdtype), tdtype)  # far from evenly spaced
    cubic = dense(rng, FLOAT32, tdtype, (width,), None, num_rows, num_targets, num_episodes)
    check([even, late, cubic], [{}, {"method": "nearest"}, {"method": "cubic"}])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_by_the_general_kernel(method, tdtype, rng):
    width = 8 if method.startswith("slerp") else 5
    cases = [dense(rng, dtype, tdtype, (width,), method) for dtype in FLOATS]
    cases += [ragged(rng, dtype, tdtype, (width,), method, (4, 0, 40)) for dtype in FLOATS]
    options = {"method": method, "outside": "linear" if method in EXTRAPOLATING else "hold", "dtype": "float32"}
    check(cases, [options] * len(cases), method)


def test_every_dtype_as_every_float(rng):
    cases = [dense(rng, dtype, INT64, (3,)) for dtype in FLOATS + INTEGERS for _ in FLOATS]
    check(cases, [{"method": "max", "dtype": out.name} for _ in FLOATS + INTEGERS for out in FLOATS])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout, tdtype, rng):
    case = LAYOUTS[layout](rng, FLOAT32, tdtype, (2, 3) if layout == "transposed" else (6,))
    check([case, case], [{"method": "linear"}, {"method": "cubic"}], layout)


def test_channel_ranges(tdtype, rng):
    ranges = [(0, 4, "slerp_wxyz"), (4, 7, "angle"), (7, 8, "nearest"), (8, 10, "mean")]
    check([dense(rng, FLOAT64, tdtype, (11,), None, 40, 33)], [{"method": ranges}])


def test_streams_side_by_side_in_one_output(tdtype, rng):
    cases = [dense(rng, FLOAT32, tdtype, (width,), None, 33, 31) for width in (3, 8, 1, 5)]
    results = []
    for device in (DEVICE, "cpu"):
        streams = [on(device, case, method=m) for case, m in zip(cases, ("linear", "next", "cubic", None), strict=True)]
        results.append(robocache.fuse_multimodal(streams, asked(device, cases[0])["times"], return_valid=True))
    for got, want in zip(*results, strict=True):
        assert_same_bits(got, want)
