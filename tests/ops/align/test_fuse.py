"""fuse_multimodal: align with several streams that write into column slices of one output."""

import numpy as np
import pytest
import robocache
from arrays import BFLOAT16, FLOATS, array_of, bits, kind_of, on, to_numpy
from cases import dense, span_of
from tolerance import assert_values_agree

VISION = np.array([[[1.0, 2.0], [3.0, 4.0]]])  # (1, 2, 2)
TOUCH = np.array([[[10.0], [20.0], [40.0]]])  # (1, 3, 1)
ARM = np.array([[[0.0, 0.0, 5.0], [8.0, 8.0, 5.0]]])  # (1, 2, 3)
TIMES = [np.array([[0.0, 1.0]]), np.array([[0.0, 0.5, 1.0]]), np.array([[0.0, 2.0]])]
FUSED = [[[1.5, 2.5, 15.0, 1.0, 1.0, 5.0], [3.0, 4.0, 40.0, 4.0, 4.0, 5.0]]]  # at 0.25 and 1


def given(backend, *arrays):
    return [on(backend, x) for x in arrays]


def test_three_streams_of_the_seven_argument_call_lie_side_by_side(backend):
    arrays = given(backend, VISION, TIMES[0], TOUCH, TIMES[1], ARM, TIMES[2], np.array([[0.25, 1.0]]))
    assert to_numpy(robocache.fuse_multimodal(*arrays, backend=backend)).tolist() == FUSED


def test_seven_arguments_may_be_named(backend):
    arrays = given(backend, VISION, TIMES[0], TOUCH, TIMES[1], ARM, TIMES[2], np.array([[0.25, 1.0]]))
    names = ("data1", "times1", "data2", "times2", "data3", "times3", "target_times")
    got = robocache.fuse_multimodal(**dict(zip(names, arrays, strict=True)), backend=backend)
    assert to_numpy(got).tolist() == FUSED


def test_streams_may_be_pairs_dicts_or_streams(backend):
    v, tv, f, tf, a, ta, targets = given(
        backend, VISION, TIMES[0], TOUCH, TIMES[1], ARM, TIMES[2], np.array([[0.25, 1.0]])
    )
    for streams in (
        [(v, tv), (f, tf), (a, ta)],
        [{"data": v, "times": tv}, {"data": f, "times": tf}, {"data": a, "times": ta}],
        [robocache.Stream(v, tv), robocache.Stream(f, tf), robocache.Stream(a, ta)],
        [(v, tv), {"data": f, "times": tf}, robocache.Stream(a, ta)],
    ):
        assert to_numpy(robocache.fuse_multimodal(streams, targets, backend=backend)).tolist() == FUSED


def test_each_stream_keeps_its_own_options(backend):
    v, tv, f, tf, targets = given(backend, VISION, TIMES[0], TOUCH, TIMES[1], np.array([[0.25, 1.5]]))
    streams = [
        {"data": v, "times": tv, "method": "previous", "latency": 0.5},
        {"data": f, "times": tf, "method": "next", "outside_valid": True},
        robocache.Stream(v, tv, method=[(1, 2, "nearest")], max_gap=0.5),
    ]
    values, valid = robocache.fuse_multimodal(streams, targets, return_valid=True, backend=backend)
    assert to_numpy(values).tolist() == [[[1.0, 2.0, 20.0, 1.5, 2.0], [3.0, 4.0, 40.0, 3.0, 4.0]]]
    assert to_numpy(valid).tolist() == [[[True, True, False], [False, True, False]]]


def test_keywords_of_the_call_are_for_every_stream(backend):
    v, tv, f, tf, targets = given(backend, VISION, TIMES[0], TOUCH, TIMES[1], np.array([[-1.0, 0.25]]))
    got = robocache.fuse_multimodal([(v, tv), (f, tf)], targets, method="previous", outside="nan", backend=backend)
    np.testing.assert_array_equal(to_numpy(got), [[[np.nan] * 3, [1.0, 2.0, 10.0]]])
    got = robocache.fuse_multimodal([(v, tv), (f, tf)], targets, latency=0.25, backend=backend)
    assert to_numpy(got).tolist() == [[[1.0, 2.0, 10.0], [2.0, 3.0, 20.0]]]
    got = robocache.fuse_multimodal([(v, tv), (f, tf)], targets, method="angle", period=40.0, backend=backend)
    assert to_numpy(got).tolist() == [[[1.0, 2.0, 10.0], [1.5, 2.5, 15.0]]]


def test_unbatched_streams_give_an_unbatched_output(backend):
    v, tv, f, tf, targets = given(backend, VISION[0], TIMES[0][0], TOUCH[0], TIMES[1][0], np.array([0.25, 1.0]))
    values, valid = robocache.fuse_multimodal([(v, tv), (f, tf)], targets, return_valid=True, backend=backend)
    assert to_numpy(values).tolist() == [[1.5, 2.5, 15.0], [3.0, 4.0, 40.0]]
    assert to_numpy(valid).tolist() == [[True, True]] * 2


@pytest.mark.parametrize("num_episodes", [1, 2])
def test_ragged_streams_keep_their_episodes_where_the_targets_are_shared(kind, num_episodes):
    """The direct way into C++ once made room for the first episode and wrote all of them."""
    rows, cuts = 3 * num_episodes, 3 * np.arange(num_episodes + 1)
    ragged = robocache.Stream(*(array_of(kind, x) for x in (np.arange(2.0 * rows).reshape(-1, 2),
                                                            np.tile([0.0, 1.0, 2.0], num_episodes), cuts)))  # fmt: skip
    single = tuple(array_of(kind, x) for x in (np.array([[7.0], [9.0]]), np.array([0.0, 2.0])))
    targets = array_of(kind, np.array([0.5, 1.5]))
    episodes = [[[1.0, 2.0], [3.0, 4.0]], [[7.0, 8.0], [9.0, 10.0]]][:num_episodes]
    both = [[[*row, x] for row, x in zip(e, (7.5, 8.5), strict=True)] for e in episodes]
    for backend in (None, "torch"):
        options = {"return_valid": True, "backend": backend}
        values, valid = robocache.fuse_multimodal([ragged], targets, **options)
        assert to_numpy(values).tolist() == episodes
        assert valid.shape == (num_episodes, 2, 1)
        for streams in ([ragged, single], [single, ragged]):
            values, valid = robocache.fuse_multimodal(streams, targets, **options)
            want = both if streams[0] is ragged else [[[x, *row] for *row, x in e] for e in both]
            assert to_numpy(values).tolist() == want
            assert to_numpy(valid).all()


def test_one_stream_is_a_resampling(backend, rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.int64), (5,))
    v, t, targets = given(backend, case.values, case.times, case.targets)
    fused = robocache.fuse_multimodal([(v, t)], targets, backend=backend)
    assert bits(fused) == bits(robocache.resample_trajectories(v, t, targets, backend=backend))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fusion_is_each_stream_aligned_and_put_side_by_side(dtype, tdtype, backend, rng):
    shapes = [(2, "linear"), (8, "slerp_wxyz"), (1, "nearest"), (33, "cubic"), (7, "mean")]
    cases = [dense(rng, dtype, tdtype, (width,), method, num_rows=5 + 3 * width) for width, method in shapes]
    options = [{"method": method, "latency": span_of(i, tdtype)} for i, (_, method) in enumerate(shapes)]
    for case in cases:
        case.targets = cases[0].targets
    streams = [c.stream(backend, **o) for c, o in zip(cases, options, strict=True)]
    values, valid = robocache.fuse_multimodal(
        streams, *given(backend, cases[0].targets), return_valid=True, backend=backend
    )
    want = [case.expected(**o) for case, o in zip(cases, options, strict=True)]
    assert to_numpy(values).dtype == dtype
    assert_values_agree(
        values, np.concatenate([w.values for w in want], 2), np.concatenate([w.scale for w in want], 2), dtype
    )
    np.testing.assert_array_equal(to_numpy(valid), np.stack([w.valid for w in want], 2))


def test_streams_of_several_dtypes_need_the_dtype_of_the_output(backend, rng):
    dtypes = (np.dtype(np.float16), BFLOAT16, np.dtype(np.int16), np.dtype(np.float64))
    cases = [dense(rng, d, np.dtype(np.float64), (3,)) for d in dtypes]
    for case in cases:
        case.targets = cases[0].targets
    streams = [c.stream(backend) for c in cases]
    targets = given(backend, cases[0].targets)[0]
    with pytest.raises(ValueError, match=r"fuse_multimodal: .*dtype"):
        robocache.fuse_multimodal(streams, targets, backend=backend)
    got = to_numpy(robocache.fuse_multimodal(streams, targets, dtype="float32", backend=backend))
    assert got.dtype == np.float32
    for i, (case, dtype) in enumerate(zip(cases, dtypes, strict=True)):
        want = case.expected()
        assert_values_agree(got[:, :, 3 * i : 3 * i + 3], want.values, want.scale, dtype)


def test_all_kinds_of_arrays_fuse_to_the_same_bits(kind, rng):
    cases = [dense(rng, np.dtype(np.float32), np.dtype(np.int64), (w,)) for w in (3, 5)]
    targets = cases[0].targets
    numpy = robocache.fuse_multimodal([(c.values, c.times) for c in cases], targets)
    arrays = [tuple(array_of(kind, x) for x in (c.values, c.times)) for c in cases]
    values, valid = robocache.fuse_multimodal(arrays, array_of(kind, targets), return_valid=True)
    assert kind_of(values) == kind_of(valid) == kind
    assert bits(values) == bits(numpy)
