"""Bad input: the documented exception, a message with argument, rule and what was given, and nothing written."""

import re

import numpy as np
import pytest
import robocache
from arrays import on, to_numpy

VALUES, TIMES, TARGETS = (
    np.zeros((2, 5, 3), np.float32),
    np.tile(np.arange(5.0), (2, 1)),
    np.tile(np.arange(4.0), (2, 1)),
)
STREAM_FIELDS = (
    "values",
    "times",
    "offsets",
    "method",
    "latency",
    "max_gap",
    "outside",
    "outside_valid",
    "period",
    "dtype",
    "tolerance",
)
POISON = 123.0


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


INTS = {"values": VALUES.astype(np.int16)}
NANOSECONDS = {"times": TIMES.astype(np.int64), "query.times": TARGETS.astype(np.int64)}
RAGGED = {"values": VALUES.reshape(10, 3), "times": TIMES.reshape(10), "offsets": np.array([0, 5, 10])}
NO_ROWS = {**RAGGED, "times": np.arange(10.0), "offsets": np.array([0, 0, 10])}
ONE_RANGE = [(0, 1, "next")]
ANCHOR = {"query.times": None, "anchor": np.zeros(2)}
QUATERNIONS = {"values": np.zeros((2, 5, 8), np.float32)}

# what is wrong: (changes to a good call, the argument that is named, what was given)
BAD = {
    "values without the batch": ({"values": np.zeros(5, np.float32)}, "values", "(5,)"),
    "values without dimensions": ({"values": np.array(1, np.float32)}, "values", "()"),
    "times of another length": ({"times": TIMES[:, :4]}, "times", "(2, 4)"),
    "times of another batch": ({"times": TIMES[:1]}, "times", "(1, 5)"),
    "times with three dimensions": ({"times": TIMES[:, :, None]}, "times", "(2, 5, 1)"),
    "times without dimensions": ({"times": np.array(1.0)}, "times", "()"),
    "targets of another batch": ({"query.times": np.zeros((3, 4))}, "times", "(3, 4)"),
    "targets with three dimensions": ({"query.times": np.zeros((2, 4, 1))}, "times", "(2, 4, 1)"),
    "targets without dimensions": ({"query.times": np.array(1.0)}, "times", "()"),
    "complex values": ({"values": VALUES.astype(np.complex64)}, "values", "complex64"),
    "int32 times": ({"times": TIMES.astype(np.int32), "query.times": TARGETS.astype(np.int32)}, "times", "int32"),
    "float16 times": ({"times": TIMES.astype("f2"), "query.times": TARGETS.astype("f2")}, "times", "float16"),
    "uint64 times": ({"times": TIMES.astype(np.uint64), "query.times": TARGETS.astype(np.uint64)}, "times", "uint64"),
    "targets of another dtype": ({"query.times": TARGETS.astype(np.int64)}, "times", "int64"),
    "float32 times for float64 targets": ({"times": TIMES.astype(np.float32)}, "times", "float64"),
    "decreasing times": ({"times": changed(TIMES, (1, 3), 1.5)}, "times", "1.5 after 2"),
    "decreasing nanoseconds": (NANOSECONDS | {"times": changed(NANOSECONDS["times"], (1, 3), 1)}, "times", "1 after 2"),
    "a NaN time": ({"times": changed(TIMES, (1, 2), np.nan)}, "times", "nan"),
    "a last time that is NaN": ({"times": changed(TIMES, (0, 4), np.nan)}, "times", "nan"),
    "an infinite time": ({"times": changed(TIMES, (1, 4), np.inf)}, "times", "inf"),
    "a NaN target": ({"query.times": changed(TARGETS, (0, 3), np.nan)}, "times", "nan"),
    "a negative max_gap": ({"max_gap": -0.25}, "max_gap", "-0.25"),
    "a negative max_gap in nanoseconds": ({**NANOSECONDS, "max_gap": -3}, "max_gap", "-3"),
    "a NaN max_gap": ({"max_gap": np.nan}, "max_gap", "nan"),
    "half a nanosecond of max_gap": ({**NANOSECONDS, "max_gap": 0.5}, "max_gap", "0.5"),
    "half a nanosecond of latency": ({**NANOSECONDS, "latency": 0.5}, "latency", "0.5"),
    "a NaN latency": ({"latency": np.nan}, "latency", "nan"),
    "an infinite latency": ({"latency": np.inf}, "latency", "inf"),
    "an unknown method": ({"method": "quintic"}, "method", "quintic"),
    "a method that is a number": ({"method": 3}, "method", "3"),
    "a range without a name": ({"method": [(0, 1)]}, "method", "(0, 1)"),
    "a method in capitals": ({"method": "Linear"}, "method", "Linear"),
    "ranges that overlap": ({"method": [(0, 2, "linear"), (1, 3, "next")]}, "method", "1, 3"),
    "ranges that overlap out of order": ({"method": [(1, 3, "next"), (0, 2, "linear")]}, "method", "1"),
    "a range past the channels": ({"method": [(0, 4, "linear")]}, "method", "0, 4"),
    "a range before the channels": ({"method": [(-1, 2, "linear")]}, "method", "-1, 2"),
    "an empty range": ({"method": [(1, 1, "linear")]}, "method", "1, 1"),
    "a reversed range": ({"method": [(2, 1, "linear")]}, "method", "2, 1"),
    "an unknown method of a range": ({"method": [(0, 2, "spline")]}, "method", "spline"),
    "ranges over two channel dimensions": ({"values": VALUES[..., None], "method": ONE_RANGE}, "values", "5, 3, 1)"),
    "ranges over no channel dimension": ({"values": np.zeros((2, 5)), "method": ONE_RANGE}, "values", "(2, 5)"),
    "slerp of three channels": ({"method": "slerp_xyzw"}, "method", "3"),
    "slerp of a range of three": ({**QUATERNIONS, "method": [(0, 3, "slerp_wxyz")]}, "method", "3"),
    "an unknown outside": ({"outside": "clamp"}, "outside", "clamp"),
    "an unknown outside on one side": ({"outside": ("hold", "wrap")}, "outside", "wrap"),
    "no outside": ({"outside": None}, "outside", "None"),
    "three outsides": ({"outside": ("hold", "hold", "nan")}, "outside", "('hold', 'hold', 'nan')"),
    "nan outside integers": ({**INTS, "outside": "nan"}, "outside", "nan"),
    "nan after integers": ({**INTS, "outside": ("hold", "nan")}, "outside", "nan"),
    "linear integers": ({**INTS, "method": "linear"}, "method", "linear"),
    "cubic integers": ({**INTS, "method": "cubic"}, "method", "cubic"),
    "angles of integers": ({**INTS, "method": "angle"}, "method", "angle"),
    "the mean of integers": ({**INTS, "method": "mean"}, "method", "mean"),
    "integer quaternions": ({"values": np.zeros((2, 5, 4), np.int16), "method": "slerp_xyzw"}, "method", "slerp_xyzw"),
    "linear integers as floats": ({**INTS, "method": "linear", "dtype": "float32"}, "method", "linear"),
    "linear bool": ({"values": np.zeros((2, 5, 3), bool), "method": "linear"}, "method", "linear"),
    "linear integers in a range": ({**INTS, "method": [(0, 1, "linear")]}, "method", "linear"),
    "previous on along a line": ({"method": "previous", "outside": "linear"}, "outside", "linear"),
    "next on along a line": ({"method": "next", "outside": ("hold", "linear")}, "outside", "linear"),
    "nearest on along a line": ({"method": "nearest", "outside": ("linear", "hold")}, "outside", "linear"),
    "the mean on along a line": ({"method": "mean", "outside": "linear"}, "outside", "linear"),
    "a range on along a line": ({"method": [(1, 2, "previous")], "outside": "linear"}, "outside", "linear"),
    "integers on along a line": ({**INTS, "outside": "linear"}, "outside", "linear"),
    "a negative tolerance": ({"tolerance": -0.5}, "tolerance", "-0.5"),
    "an infinite tolerance": ({"tolerance": np.inf}, "tolerance", "inf"),
    "a NaN tolerance": ({"tolerance": np.nan}, "tolerance", "nan"),
    "a tolerance in words": ({"tolerance": "a while"}, "tolerance", "'a while'"),
    "a period of 0": ({"method": "angle", "period": 0.0}, "period", "0"),
    "a negative period": ({"method": "angle", "period": -1.0}, "period", "-1"),
    "a NaN period": ({"method": "angle", "period": np.nan}, "period", "nan"),
    "floats as integers": ({"dtype": "int32"}, "dtype", "int32"),
    "integers as other integers": ({**INTS, "dtype": "int32"}, "dtype", "int32"),
    "an unknown dtype": ({"dtype": "float8"}, "dtype", "float8"),
    "a complex output": ({"dtype": "complex64"}, "dtype", "complex64"),
    "decreasing targets of windows": ({"method": "mean", "query.times": TARGETS[:, ::-1].copy()}, "times", "2"),
    "offsets that begin late": ({**RAGGED, "offsets": np.array([1, 5, 10])}, "offsets", "1"),
    "offsets that end early": ({**RAGGED, "offsets": np.array([0, 5, 9])}, "offsets", "9"),
    "offsets that end late": ({**RAGGED, "offsets": np.array([0, 5, 11])}, "offsets", "11"),
    "offsets that decrease": ({**RAGGED, "offsets": np.array([0, 12, 10])}, "offsets", "10 after 12"),
    "int32 offsets": ({**RAGGED, "offsets": np.array([0, 5, 10], np.int32)}, "offsets", "int32"),
    "offsets with two dimensions": ({**RAGGED, "offsets": np.array([[0, 5, 10]])}, "offsets", "(1, 3)"),
    "no offsets at all": ({**RAGGED, "offsets": np.array([], np.int64)}, "offsets", "(0,)"),
    "offsets of a dense batch": ({"offsets": np.array([0, 5, 10])}, "times", "(2, 5)"),
    "an episode after the last": ({"episode": np.array([0, 2])}, "episode", "2"),
    "an episode before the first": ({"episode": np.array([0, -1])}, "episode", "-1"),
    "int32 episodes": ({"episode": np.array([0, 1], np.int32)}, "episode", "int32"),
    "episodes with two dimensions": ({"episode": np.array([[0, 1]])}, "episode", "(1, 2)"),
    "another number of episodes than targets": ({"episode": np.array([0, 1, 1])}, "times", "(2, 4)"),
    "no query": ({"query.times": None}, "times", "neither"),
    "two queries": ({"anchor": np.zeros(2), "deltas": np.zeros(4)}, "times", "both"),
    "an anchor without deltas": (ANCHOR, "deltas", "nothing"),
    "deltas without an anchor": ({"query.times": None, "deltas": np.zeros(4)}, "anchor", "nothing"),
    "anchors of another batch": ({"query.times": None, "anchor": np.zeros(3), "deltas": np.zeros(4)}, "anchor", "(3,)"),
    "deltas with two dimensions": ({**ANCHOR, "deltas": np.zeros((2, 4))}, "deltas", "(2, 4)"),
    "deltas of another dtype": ({**ANCHOR, "deltas": np.zeros(4, int)}, "deltas", "int64"),
    "a NaN anchor": ({"query.times": None, "anchor": np.array([0, np.nan]), "deltas": np.zeros(4)}, "anchor", "nan"),
    "a target before the rows": ({"outside": "error", "query.times": TARGETS - 0.5}, "times", "-0.5"),
    "a target after the rows": ({"outside": ("nan", "error"), "query.times": TARGETS + 1.5}, "times", "4.5"),
    "targets of an episode without rows": ({**NO_ROWS, "outside": "error"}, "times", "0"),
}  # fmt: skip


def call(changes, out, backend):
    changes = {"values": VALUES, "times": TIMES, "query.times": TARGETS, **changes}
    arrays = {k: on(backend, v) if isinstance(v, np.ndarray) else v for k, v in changes.items()}
    stream = robocache.Stream(**{k: v for k, v in arrays.items() if k in STREAM_FIELDS})
    query = {k: v for k, v in arrays.items() if k not in (*STREAM_FIELDS, "query.times")}
    return robocache.align(stream, arrays["query.times"], **query, out=out, check=True, backend=backend)


def poisoned(changes):
    """An output of the right shape and dtype, full of a number nobody writes."""
    values = changes.get("values", VALUES)
    channels = values.shape[2:] if "offsets" not in changes or values.ndim > 2 else values.shape[1:]
    return np.full((2, 4, *channels), POISON, values.dtype)


def test_the_good_call_that_the_bad_ones_change_is_good(backend):
    out = on(backend, poisoned({}))
    got = call({}, out, backend)
    assert bool(got.valid.all())
    assert not to_numpy(out).any()  # it is the output that was written


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_a_message_and_nothing_is_written(what, backend):
    changes, argument, given = BAD[what]
    out = on(backend, poisoned(changes))
    form = rf"^align: (streams\[0\]\.|the )?{re.escape(argument)}\b.* must .*, got .*{re.escape(given)}"
    with pytest.raises(ValueError, match=form):
        call(changes, None if "dtype" in changes else out, backend)
    np.testing.assert_array_equal(to_numpy(out), poisoned(changes))


def test_without_a_check_bad_times_give_wrong_numbers_but_no_error_and_no_fault(backend, rng):
    times = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0, 5.0, -3.0], size=(4, 50))
    values, targets = rng.normal(size=(4, 50, 3)), rng.choice([np.nan, np.inf, -np.inf, 0.0, 0.5, 3.0], size=(4, 40))
    given = [on(backend, x) for x in (values, times, targets)]
    for method in ("linear", "previous", "next", "nearest", "cubic", "angle", "mean", "min", "max", "rms"):
        got = robocache.resample_trajectories(*given, method=method, check=False, backend=backend)
        assert got.shape == (4, 40, 3)
    rows = on(backend, rng.integers(-(2**62), 2**62, (4, 50)))
    ask = on(backend, rng.integers(-(2**62), 2**62, (4, 40)))
    for method in ("linear", "nearest", "cubic", "mean"):
        assert robocache.resample_trajectories(
            given[0], rows, ask, method=method, check=False, backend=backend
        ).shape == (4, 40, 3)


@pytest.mark.parametrize("offsets", [[0, 5, 99], [-7, 5, 10], [0, 9, 4], [3, 3, 3], [2**62, -(2**62), 10]])
def test_without_a_check_bad_offsets_and_episodes_read_no_foreign_memory(offsets, backend):
    arrays = [on(backend, x) for x in (np.ones((10, 3)), np.arange(10.0), np.array(offsets))]
    episode = on(backend, np.array([0, 1, 2, -1, 2**62]))
    targets = on(backend, np.arange(4.0))
    got = robocache.align(robocache.Stream(*arrays), targets, episode=episode, check=False, backend=backend)
    assert set(np.unique(to_numpy(got.values))) <= {0.0, 1.0}
    assert not to_numpy(got.valid)[2:].any()  # episodes that do not exist: zeros, not valid
    assert not to_numpy(got.values)[2:].any()


def test_a_target_outside_found_late_leaves_a_large_output_untouched():
    times = np.arange(1000)
    targets = np.tile(np.arange(1000), (500, 1))
    targets[-1, -1] = 1000
    out = np.full((500, 1000, 2), POISON)
    with pytest.raises(ValueError, match=r"^align: times must .*, got 1000 at row 499, position 999"):
        robocache.align(robocache.Stream(np.zeros((1000, 2)), times, outside="error"), targets, out=out)
    assert (out == POISON).all()
