"""Agreement with the oracle: every method, values dtype, times dtype, layout and backend, and every option."""

import numpy as np
import pytest
import robocache
from arrays import BFLOAT16, FLOATS, INTEGERS, KIND, to_numpy, torch_dtype
from cases import EXTRAPOLATING, INTEGER_METHODS, LAYOUTS, METHODS, WINDOW, dense, one_episode, ragged, span_of
from tolerance import assert_agrees

CHANNELS = {"dense": (5,), "ragged": (3,), "one_episode": (), "transposed": (2, 3), "expanded": (1,), "anchored": (7,),
            "picked": (4,)}  # fmt: skip


def channels_for(layout, method):
    return (8,) if method.startswith("slerp") else CHANNELS[layout]


def option_sets(method, dtype, tdtype):
    """The default call, and calls that use every other option at least once."""
    yield {}
    yield {"latency": span_of(3, tdtype), "max_gap": span_of(4, tdtype), "outside_valid": True}
    yield {"latency": span_of(-4, tdtype), "max_gap": span_of(0, tdtype)}
    yield {"tolerance": span_of(1, tdtype), "max_gap": span_of(2, tdtype)}
    yield {"tolerance": span_of(3, tdtype), "latency": span_of(1, tdtype), "outside_valid": True}
    if dtype in FLOATS:
        yield {"outside": ("nan", "hold"), "outside_valid": True}
        yield {"outside": ("hold", "nan"), "max_gap": span_of(6, tdtype), "tolerance": span_of(2, tdtype)}
    if method in EXTRAPOLATING and dtype in FLOATS:
        yield {"outside": "linear", "outside_valid": True}
        yield {
            "outside": ("linear", "hold"),
            "latency": span_of(2, tdtype),
            "max_gap": span_of(5, tdtype),
            "outside_valid": True,
        }
        yield {"outside": ("nan", "linear")}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_floats_agree_with_the_oracle(method, dtype, tdtype, layout, backend, rng):
    case = LAYOUTS[layout](rng, dtype, tdtype, channels_for(layout, method), method)
    for options in option_sets(method, dtype, tdtype):
        got = case.align(backend, method=method, **options)
        assert to_numpy(got.values).dtype == dtype
        assert_agrees(got, case.expected(method=method, **options), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("method", INTEGER_METHODS)
def test_integers_and_bool_agree_with_the_oracle_exactly(method, dtype, tdtype, layout, backend, rng):
    case = LAYOUTS[layout](rng, dtype, tdtype, CHANNELS[layout])
    for options in option_sets(method, dtype, tdtype):
        got = case.align(backend, method=method, **options)
        assert to_numpy(got.values).dtype == dtype
        assert_agrees(got, case.expected(method=method, **options), dtype)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("method", METHODS)
def test_every_width_of_a_row_agrees(method, width, backend, rng):
    width = 4 * width if method.startswith("slerp") else width
    for dtype in FLOATS:
        case = dense(rng, dtype, np.dtype(np.int64), (width,), method, num_targets=5, num_episodes=2)
        assert_agrees(case.align(backend, method=method), case.expected(method=method), dtype)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in WINDOW])
def test_targets_may_come_in_any_order(method, tdtype, backend, rng):
    channels = channels_for("dense", method)
    case = dense(rng, np.dtype(np.float32), tdtype, channels, method, num_rows=200, num_targets=40, num_episodes=2)
    case.targets = rng.permuted(case.targets, axis=1)
    assert_agrees(case.align(backend, method=method), case.expected(method=method), case.values.dtype)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 31, 64, 65, 1000])
def test_every_number_of_rows_agrees(num_rows, tdtype, backend, rng):
    for method in METHODS:
        channels = (4,)
        case = one_episode(rng, np.dtype(np.float32), tdtype, channels, method, num_rows, num_targets=20)
        assert_agrees(case.align(backend, method=method), case.expected(method=method), case.values.dtype)


RANGES = {
    "all covered": [(0, 4, "slerp_wxyz"), (4, 7, "angle"), (7, 8, "nearest"), (8, 11, "cubic")],
    "holes": [(3, 7, "slerp_xyzw"), (9, 10, "previous")],
    "out of order": [(6, 11, "next"), (0, 2, "mean"), (2, 3, "max"), (3, 4, "min")],
    "one": [(0, 11, "cubic")],
    "none": [],
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("which", RANGES)
def test_channel_ranges_agree(which, dtype, tdtype, backend, rng):
    method = RANGES[which]
    for layout in (dense, ragged):
        case = layout(rng, dtype, tdtype, (11,))
        for options in [
            {},
            {"max_gap": span_of(4, tdtype), "outside_valid": True},
            {"outside": ("nan", "hold")},
            {"tolerance": span_of(1, tdtype), "max_gap": span_of(4, tdtype)},
        ]:
            assert_agrees(
                case.align(backend, method=method, **options),
                case.expected(method=method, **options),
                dtype,
            )


def test_channel_ranges_of_integers_agree(backend, tdtype, rng):
    case = ragged(rng, np.dtype(np.int16), tdtype, (5,))
    method = [(0, 2, "nearest"), (4, 5, "max")]
    assert_agrees(case.align(backend, method=method), case.expected(method=method), case.values.dtype)


@pytest.mark.parametrize("out_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_any_stream_can_come_out_as_any_float(dtype, out_dtype, backend, rng):
    for method in INTEGER_METHODS if dtype in INTEGERS else ("linear", "nearest", "cubic", "mean", "max", "rms"):
        case = dense(rng, dtype, np.dtype(np.float64), (3,))
        if dtype.itemsize > 1 and dtype in INTEGERS and out_dtype == np.float16:
            case.values = case.values % 30000  # float16 ends at 65,504
        wanted = torch_dtype(out_dtype) if KIND[backend] == "torch" else out_dtype
        for given in (wanted, out_dtype.name):
            got = case.align(backend, method=method, dtype=given)
            assert to_numpy(got.values).dtype == out_dtype
            assert_agrees(got, case.expected(method=method), dtype)


def test_integers_as_floats_may_be_nan_outside(backend, rng):
    case = dense(rng, np.dtype(np.int32), np.dtype(np.int64), (3,))
    got = case.align(backend, outside="nan", dtype="float64")
    want = case.expected()
    outside = (case.targets < case.times[:, :1]) | (case.targets > case.times[:, -1:])
    assert outside.any()
    assert not outside.all()
    np.testing.assert_array_equal(to_numpy(got.values), np.where(outside[..., None], np.nan, want.values))


def test_streams_of_one_call_agree_each_with_its_own_oracle(backend, rng):
    tdtype = np.dtype(np.int64)
    case = one_episode(rng, np.dtype(np.float32), tdtype, (3,))
    others = [
        (case, {"method": "cubic", "latency": span_of(2, tdtype)}),
        (one_episode(rng, BFLOAT16, tdtype, (8,), "slerp_wxyz", num_rows=30), {"method": "slerp_wxyz"}),
        (
            one_episode(rng, np.dtype(np.uint8), tdtype, (2, 2), num_rows=5),
            {"outside_valid": True, "max_gap": span_of(9, tdtype)},
        ),
        (one_episode(rng, np.dtype(bool), tdtype, (), num_rows=1), {}),
    ]
    streams = {str(i): c.stream(backend, **o) for i, (c, o) in enumerate(others)}
    query = case.query(backend)
    by_name = robocache.align(streams, **query, return_index=True, backend=backend)
    by_place = robocache.align(list(streams.values()), **query, return_index=True, backend=backend)
    for i, (other, options) in enumerate(others):
        other.targets = case.targets
        want = other.expected(**options)
        for got, key in ((by_name, str(i)), (by_place, i)):
            assert_agrees(robocache.Aligned(got.values[key], got.valid[key], got.index[key]), want, other.values.dtype)


def test_a_stream_with_one_episode_serves_every_row_next_to_streams_with_many(backend, rng):
    tdtype, dtype = np.dtype(np.int64), np.dtype(np.float32)
    cases = [dense(rng, dtype, tdtype, (3,)), ragged(rng, dtype, tdtype, (2,), lengths=(4, 0, 6)),
             one_episode(rng, dtype, tdtype, (5,)), dense(rng, dtype, tdtype, (4,), num_episodes=1)]  # fmt: skip
    streams = [case.stream(backend) for case in cases]
    got = robocache.align(streams, **cases[0].query(backend), backend=backend)
    for i, case in enumerate(cases):
        case.targets = cases[0].targets
        assert_agrees(robocache.Aligned(got.values[i], got.valid[i], None), case.expected(), dtype)


@pytest.mark.parametrize("method", WINDOW)
def test_windows_reach_past_the_ends_of_int64(method, backend, rng):
    """Where the mirrored edge has no int64, the rows up to the last of all times are in the window."""
    ends = np.array([2**63 - 1, 2**63 - 10, 2**63 - 11, 2**62, 2**62 - 1, 10, 0])
    case = dense(rng, np.dtype(np.float64), np.dtype(np.int64), (2,), num_episodes=200, num_rows=6, num_targets=3)
    for name in ("times", "targets"):
        shape = getattr(case, name).shape
        setattr(case, name, np.sort(rng.choice(np.concatenate([ends, -1 - ends]), shape), 1))
    assert_agrees(case.align(backend, method=method), case.expected(method=method), case.values.dtype)
