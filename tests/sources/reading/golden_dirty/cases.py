"""The golden files of all formats: what is wrong with each, written down by hand, row by row (case.py, make.py)."""

from golden_dirty.case import (
    ALL,
    BACK,
    BELOW,
    EVEN,
    JUMP,
    NAN,
    RATE_HZ,
    ROWS,
    SET,
    SET_BACK,
    SORTED,
    SWAPPED,
    TWICE,
    UNIT,
    Case,
    but,
)
from golden_dirty.zarr_cases import ZARR

TWO = ("/state/linear", "/state/angular")
BOTH = ("/arm/linear", "/arm/angular")


def both(*findings, streams=TWO):
    """Two streams come of a message: what is wrong with its time is wrong with both."""
    return [(kind, row, count, stream) for kind, row, count in findings for stream in streams]


STAMP = {"clock": "header.stamp"}
LATE = [t + 0.6 for t in EVEN[:6]]
MCAP = [
    Case("clean", EVEN, options=STAMP),
    Case(
        *("swapped", SWAPPED, BACK),
        [({"unsorted": "sort"}, SORTED, {"unsorted": 1}), ({"unsorted": "drop"}, but(6), {"unsorted": 1})],
        findings=both(("out_of_order", 6, 1)),
        options=STAMP,
    ),
    Case(
        *("duplicate", TWICE, None),
        [({"duplicate": "last"}, but(3, rows=13), {"duplicate": 1})],
        [({"duplicate": "error"}, "row 4: duplicate time 300000000 ns")],
        both(("duplicate", 4, 1)),
        STAMP,
    ),
    Case(
        *("negative_stamp", BELOW, "row 0: the time is negative, -300000000 ns"),
        [({"negative": "drop"}, but(0, 1, 2), {"negative": 3})],
        findings=both(("negative", 0, 3)),
        options=STAMP,
    ),
    Case(
        *("clock_set", SET, JUMP),
        [({"clock_jump": "drop"}, but(0, 1, 2, 3), {"clock_jump": 4})],
        findings=both(("clock_jump", 4, 1)),
        options=STAMP,
    ),
    Case(
        *("clock_back", SET_BACK, "row 6: time decreases from 1700000000"),
        [({"unsorted": "drop"}, [0, 1, 2, 3, 4, 5], {"unsorted": 6})],
        findings=both(("out_of_order", 6, 6), ("gap", 0, 1)),
        options=STAMP,
    ),
    Case("log_time_of_swapped_stamps", SWAPPED, options={"clock": "log_time"}, extra={"log_times_s": EVEN}),
    Case("lost_messages", [t for t in EVEN if t not in (0.4, 0.5)], findings=both(("gap", 4, 1)), options=STAMP),
    Case("one_message", [7.5], findings=both(("single", 0, 1)), options=STAMP),
    Case(
        *("topic_missing", [], None),
        findings=[(*finding, 1) for finding in both(("empty", None, 0))],
        options=STAMP,
        extra={"files": [EVEN, []], "arm": EVEN},
        episode=1,
    ),
    Case(
        *("late_start", EVEN, None),
        findings=both(("start_offset", None, 1), ("coverage", None, 1), streams=BOTH),
        options=STAMP,
        extra={"arm": LATE},
    ),
    Case(
        *("died_early", EVEN, None),
        findings=both(("end_offset", None, 1), ("coverage", None, 1), streams=BOTH),
        options=STAMP,
        extra={"arm": EVEN[:5]},
    ),
    Case(
        *("another_clock", EVEN, None),
        findings=[  # two streams against two: nobody knows whose clock is right
            *both(("start_offset", None, 1), ("coverage", None, 1), streams=BOTH),
            *both(("end_offset", None, 1), ("coverage", None, 1)),
        ],
        options=STAMP,
        extra={"arm": [t + 1000 for t in EVEN]},
    ),
    Case(
        *("joints_change", EVEN[:2], "topic /state, message 1: position"),
        findings=[("unreadable", None, 1, None)],
        options=STAMP,
        extra={"joints": [["a", "b"], ["b", "a"]]},
    ),
]

ROBOMIMIC = [
    Case("clean", EVEN),
    Case(
        *("short_stream", EVEN, "stream rewards, row 9: it has 9 rows, the episode 12"),
        [({"length": "trim"}, list(range(9)), {"length": 3})],
        findings=[("length", None, 3), ("length", 9, 0, "rewards")],
        extra={"rewards": 9},
    ),
    Case(
        *("fewer_declared", EVEN, "row 10: it has 12 rows, the episode 10"),
        [({"length": "trim"}, list(range(10)), {"length": 2})],
        findings=[("length", 10, 2), ("length", None, 2, "rewards")],
        extra={"num_samples": 10},
    ),
    Case(
        *("nan_value", EVEN, None),
        [({"nan_value": "drop"}, but(3), {"nan_value": 1})],
        [({"nan_value": "error"}, "row 3: a value is NaN")],
        [("nan_value", 3, 1)],
        planted={3: NAN},
    ),
    Case("dead_channel", EVEN, findings=[("dead", 0, 1)], planted=dict.fromkeys(ALL, 0.0)),
    Case("empty_demo", [], findings=[("empty", None, 0), ("empty", None, 0, "rewards")]),
    Case("one_row", [0.0], findings=[("single", 0, 1), ("single", 0, 1, "rewards")]),
    Case(
        *("mixed_units_of_values", EVEN, None),
        findings=[("scale", None, 1, "actions", 3)],
        extra={"scales": [1.0, 1.0, 1.0, 57.3, 1.0]},
    ),
]

THIRTIETH = [i / 30 for i in range(ROWS)]
SWAPPED_30 = [*THIRTIETH[:5], THIRTIETH[6], THIRTIETH[5], *THIRTIETH[7:]]
LEROBOT = [
    Case("clean", THIRTIETH),
    Case(
        *("swapped", SWAPPED_30, "row 6: time decreases from 200000003 to 166666672 ns"),
        [({"unsorted": "sort"}, SORTED, {"unsorted": 1}), ({"unsorted": "drop"}, but(6), {"unsorted": 1})],
        findings=[("out_of_order", 6, 1)],
    ),
    Case(
        *("duplicate", [*THIRTIETH[:4], THIRTIETH[3], *THIRTIETH[4:-1]], None),
        [({"duplicate": "last"}, but(3), {"duplicate": 1}), ({"duplicate": "first"}, but(4), {"duplicate": 1})],
        findings=[("duplicate", 4, 1)],
    ),
    Case(
        *("negative", [t - 0.5 for t in THIRTIETH], "row 0: the time is negative, -500000000 ns"),
        [({"negative": "keep"}, ALL, {}), ({"negative": "drop"}, [], {"negative": 12})],
        findings=[("negative", 0, 12)],
    ),
    Case(
        *("nan_timestamp", [*THIRTIETH[:-1], NAN], "row 11: the time is nan"),
        [({"nan_time": "drop"}, but(11), {"nan_time": 1})],
        findings=[("nan_time", 11, 1)],
    ),
    Case(
        *("milliseconds", [1000 * t for t in THIRTIETH], UNIT),
        [({"time_unit": "keep"}, ALL, {}), ({}, ALL, {}, {"rate_hz": 30})],
        findings=[("time_unit", None, 12)],
    ),
    Case("another_rate", [i / 15 for i in range(ROWS)], findings=[("rate", None, 12)]),
    Case(
        *("lost_frames", [t for i, t in enumerate([*THIRTIETH, 12 / 30, 13 / 30]) if i not in (5, 6)], None),
        findings=[("gap", 5, 1)],
        extra={"frames": but(5, 6, rows=14)},
    ),
    Case(
        *("table_too_short", THIRTIETH[:9], "row 9: data/chunk-000/episode_000000.parquet has 9 frames"),
        [({"missing": "drop"}, list(range(9)), {"missing": 3})],
        findings=[("missing", 9, 3, "timestamp")],
        extra={"length": 12, "counted": "timestamp"},
    ),
    Case("one_frame", [0.0], findings=[("single", 0, 1)]),
    Case("null_value", THIRTIETH, "row 2: the value is null", findings=[("unreadable", None, 1, None)],
         extra={"null": 2}),
    Case("fps_as_text", THIRTIETH, findings=[("metadata", None, 1, None, None)], extra={"fps": "30"}),
]  # fmt: skip

STEP_4 = "row 4: episode_0000104.npz is missing"
CALVIN = [
    Case("clean", THIRTIETH),
    Case(
        *("step_missing", THIRTIETH, STEP_4),
        [({"missing": "drop"}, but(4), {"missing": 1})],
        findings=[("missing", 4, 1), ("gap", 4, 1)],
        extra={"missing": [4]},
    ),
    Case(
        *("last_steps_missing", THIRTIETH, "row 9: episode_0000109.npz is missing"),
        [({"missing": "drop"}, but(9, 10, 11), {"missing": 3})],
        findings=[("missing", 9, 3)],
        extra={"missing": [9, 10, 11]},
    ),
    Case("one_step", [0.0], findings=[("single", 0, 1)]),
    Case("nan_value", THIRTIETH, None, [({"nan_value": "drop"}, but(0), {"nan_value": 1})],
         [({"nan_value": "error"}, "row 0: a value is NaN")], [("nan_value", 0, 1)], planted={0: NAN}),
    Case("another_shape", THIRTIETH, "but float64 (2,) in the first step", findings=[("unreadable", None, 1, None)],
         extra={"wide": 7}),
    Case("cut_short", THIRTIETH, "is not a readable npz", findings=[("unreadable", None, 1, None)], extra={"cut": 7}),
]  # fmt: skip

AT_RATE = {"rate_hz": RATE_HZ}
BROKEN = [("unreadable", None, 1, None)]
RLDS = [
    Case("clean", EVEN, options=AT_RATE),
    Case(
        *("short_stream", EVEN, "stream observation/state, row 9: it has 12 rows, another stream 9"),
        [({"length": "trim"}, list(range(9)), {"length": 3})],
        findings=[("length", 9, 3)],
        options=AT_RATE,
        extra={"reward": 9},
    ),
    Case("empty", [], findings=[("empty", None, 0), ("empty", None, 0, "reward")], options=AT_RATE),
    Case("one_step", [0.0], findings=[("single", 0, 1), ("single", 0, 1, "reward")], options=AT_RATE),
    Case("nan_value", EVEN, None, [({"nan_value": "drop"}, but(2), {"nan_value": 1})],
         [({"nan_value": "error"}, "row 2: a value is NaN")], [("nan_value", 2, 1)], AT_RATE, {2: NAN}),
    Case("half_a_row", EVEN, "stream observation/state: 23 values, 2 to a row", findings=BROKEN, options=AT_RATE,
         extra={"values": 23}),
    Case("feature_missing", EVEN, "there is no steps/reward, which features.json declares", findings=BROKEN,
         options=AT_RATE, extra={"reward": None}),
    Case("flipped_bit", EVEN, "record 1: the data has a wrong checksum", findings=[(*BROKEN[0], 1)],
         options=AT_RATE, extra={"flip": 40}, episode=1),
]  # fmt: skip

CASES = {"zarr": ZARR, "mcap": MCAP, "robomimic": ROBOMIMIC, "lerobot": LEROBOT, "calvin": CALVIN, "rlds": RLDS}
STREAMS = {
    "zarr": "state",
    "mcap": "/state/linear",
    "robomimic": "actions",
    "lerobot": "observation.state",
    "calvin": "robot_obs",
    "rlds": "observation/state",
}
