"""What is wrong with each golden file, and what must be said of it: written down by hand, row by row.

Row i of the stream that is looked at begins with 2 i, so that rows are known by their values. ``times_s``: seconds as
the file has them. ``repairs``: (policies, rows that are left, counts), and the options where it takes others.
``findings``: all that ``check`` finds, as (kind, row, count); then the stream and the episode where they are others.
"""

import dataclasses
from typing import Any

NAN, INF = float("nan"), float("inf")
RATE_HZ = 10
ROWS = 12
EVEN = [i / RATE_HZ for i in range(ROWS)]
ALL = list(range(ROWS))


def but(*left_out, rows=ROWS):
    return [i for i in range(rows) if i not in left_out]


@dataclasses.dataclass
class Case:
    name: str
    times_s: list[float] | None = None
    strict: str | None = None
    repairs: list[tuple] = dataclasses.field(default_factory=list)
    refuses: list[tuple] = dataclasses.field(default_factory=list)
    findings: list[tuple] = dataclasses.field(default_factory=list)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    planted: dict[int, float] = dataclasses.field(default_factory=dict)
    """Second values of rows that are not 2 i + 1."""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What only the writer of this format knows."""
    episode: int = 0


SWAPPED = [*EVEN[:5], 0.6, 0.5, *EVEN[7:]]
TWICE = sorted([*EVEN, 0.3])
RESTART = EVEN[:6] * 2
SET_S = 1.7e9
SET = [*EVEN[:4], *(SET_S + t for t in EVEN[4:])]
SET_BACK = [*(SET_S + t for t in EVEN[:6]), *(SET_S - 3600 + t for t in EVEN[6:])]
BELOW = [(i - 3) / RATE_HZ for i in range(ROWS)]
UNEVEN = [t + (0.04 if i % 2 else 0) for i, t in enumerate(EVEN)]
PAUSE = [*EVEN[:6], *(t + 10 for t in EVEN[6:])]
MIXED = [*EVEN[:6], *(1000 * t for t in EVEN[6:])]
UNIT = "another unit of time"
JUMP = "row 4: the clock jumps from 300000000 to 17000"
BACK = "row 6: time goes back from 600000000 to 500000000 ns"
SORTED = [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11]

ZARR = [
    Case("clean", EVEN),
    Case(
        *("swapped", SWAPPED, BACK),
        [({"unsorted": "sort"}, SORTED, {"unsorted": 1}), ({"unsorted": "drop"}, but(6), {"unsorted": 1})],
        findings=[("out_of_order", 6, 1)],
    ),
    Case(
        *("reversed", EVEN[::-1], "row 1: time goes back from 1100000000 to 1000000000 ns"),
        [({"unsorted": "sort"}, ALL[::-1], {"unsorted": 11}), ({"unsorted": "drop"}, [0], {"unsorted": 11})],
        findings=[("out_of_order", 1, 11)],
    ),
    Case(
        *("restart", RESTART, "row 6: time goes back from 500000000 to 0 ns"),
        [
            ({"unsorted": "sort"}, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11], {"unsorted": 5}),
            ({"unsorted": "drop", "duplicate": "first"}, [0, 1, 2, 3, 4, 5], {"unsorted": 5, "duplicate": 1}),
        ],
        findings=[("out_of_order", 6, 5), ("duplicate", 6, 6)],
    ),
    Case(
        *("clock_back", SET_BACK, "row 6: time goes back from 1700000000"),
        [
            ({"unsorted": "sort"}, [*range(6, 12), *range(6)], {"unsorted": 6}),
            ({"unsorted": "drop"}, [0, 1, 2, 3, 4, 5], {"unsorted": 6}),
        ],
        findings=[("out_of_order", 6, 6), ("gap", 0, 1)],
    ),
    Case(
        *("duplicate", TWICE, None),
        [
            ({}, list(range(13)), {}),
            ({"duplicate": "last"}, but(3, rows=13), {"duplicate": 1}),
            ({"duplicate": "first"}, but(4, rows=13), {"duplicate": 1}),
        ],
        [({"duplicate": "error"}, "row 4: the time 300000000 ns again")],
        [("duplicate", 4, 1)],
    ),
    Case(
        *("duplicate_thrice", sorted([*EVEN, 0.3, 0.3, 0.8]), None),
        [({"duplicate": "last"}, but(3, 4, 10, rows=15), {"duplicate": 3})],
        findings=[("duplicate", 4, 3)],
    ),
    Case(
        *("all_at_once", [0.5] * 6, None),
        [({"duplicate": "last"}, [5], {"duplicate": 5}), ({"duplicate": "first"}, [0], {"duplicate": 5})],
        findings=[("duplicate", 1, 5)],
    ),
    Case(
        *("negative", BELOW, "row 0: the time is negative, -300000000 ns"),
        [({"negative": "drop"}, but(0, 1, 2), {"negative": 3}), ({"negative": "keep"}, ALL, {})],
        findings=[("negative", 0, 3)],
    ),
    Case(
        *("all_negative", [t - 20 for t in EVEN], "row 0: the time is negative, -20000000000 ns"),
        [({"negative": "drop"}, [], {"negative": 12}), ({"negative": "keep"}, ALL, {})],
        findings=[("negative", 0, 12)],
    ),
    Case(
        *("nan_time", [NAN if i == 4 else t for i, t in enumerate(EVEN)], "row 4: the time is nan"),
        [({"nan_time": "drop"}, but(4), {"nan_time": 1})],
        findings=[("nan_time", 4, 1), ("gap", 4, 1)],
    ),
    Case(
        *("all_nan", [NAN] * ROWS, "row 0: the time is nan"),
        [({"nan_time": "drop"}, [], {"nan_time": 12})],
        findings=[("nan_time", 0, 12), ("empty", None, 0)],
    ),
    Case(
        *("infinite_time", [*EVEN[:-1], INF], "row 11: the time is inf"),
        [({"nan_time": "drop"}, but(11), {"nan_time": 1})],
        findings=[("nan_time", 11, 1)],
    ),
    Case(
        *("minus_infinite_time", [-INF, *EVEN[1:]], "row 0: the time is -inf"),
        [({"nan_time": "drop"}, but(0), {"nan_time": 1})],
        findings=[("nan_time", 0, 1)],
    ),
    Case(
        *("beyond_int64", [*EVEN[:-1], 1e300], "row 11: the time is 1e+300"),
        [({"nan_time": "drop"}, but(11), {"nan_time": 1})],
        findings=[("nan_time", 11, 1)],
    ),
    Case(
        *("clock_set", SET, JUMP),
        [({"clock_jump": "drop"}, but(0, 1, 2, 3), {"clock_jump": 4}), ({"clock_jump": "keep"}, ALL, {})],
        findings=[("clock_jump", 4, 1)],
    ),
    Case("lost_row", [t for i, t in enumerate([*EVEN, 1.2]) if i != 5], findings=[("gap", 5, 1)]),
    Case("pause", PAUSE, findings=[("gap", 6, 1)]),
    Case("two_pauses", [*EVEN[:4], *(t + 1 for t in EVEN[4:8]), *(t + 5 for t in EVEN[8:])], findings=[("gap", 4, 2)]),
    Case("jitter", UNEVEN, findings=[("jitter", None, 11)]),
    Case(
        *("milliseconds", [1000 * t for t in EVEN], UNIT),
        [({"time_unit": "keep"}, ALL, {}), ({}, ALL, {}, {"time_unit": "ms"})],
        findings=[("time_unit", None, 12)],
        options={"rate_hz": RATE_HZ},
    ),
    Case(
        *("mixed_units_of_time", MIXED, UNIT),
        [({"time_unit": "keep"}, ALL, {})],
        findings=[("gap", 6, 1), ("jitter", None, 10), ("time_unit", None, 12)],
        options={"rate_hz": RATE_HZ},
    ),
    Case("another_rate", EVEN, findings=[("rate", None, 12)], options={"rate_hz": 2 * RATE_HZ}),
    Case(
        *("nanoseconds_swapped", SWAPPED, BACK),
        [({"unsorted": "sort"}, SORTED, {"unsorted": 1})],
        findings=[("out_of_order", 6, 1)],
        options={"time_unit": "ns"},
        extra={"integers": True},
    ),
    Case("empty", [], findings=[("empty", None, 0)]),
    Case("one_row", [7.5], findings=[("single", 0, 1)]),
    Case(
        *("nan_value", EVEN, None),
        [({}, ALL, {}), ({"nan_value": "drop"}, but(5, 8), {"nan_value": 2})],
        [({"nan_value": "error"}, "row 5: a value is NaN")],
        [("nan_value", 5, 2)],
        planted={5: NAN, 8: NAN},
    ),
    Case("infinite_value", EVEN, findings=[("inf_value", 7, 1)], planted={7: -INF}),
    Case("dead_channel", EVEN, findings=[("dead", 0, 1)], planted=dict.fromkeys(ALL, 3.5)),
    Case(
        "saturated_channel",
        [i / RATE_HZ for i in range(40)],
        findings=[("saturated", 20, 20)],
        planted={i: min(i, 20.0) for i in range(40)},
    ),
    Case(
        *("everything", [-1.0, 0.2, NAN, 0.1, 0.1, 0.3, 0.4, 0.5], "row 2: the time is nan"),
        [
            (
                {"nan_time": "drop", "negative": "drop", "unsorted": "sort", "duplicate": "last"},
                [4, 1, 5, 6, 7],
                {"nan_time": 1, "negative": 1, "unsorted": 2, "duplicate": 1},
            )
        ],
        findings=[("nan_time", 2, 1), ("negative", 0, 1), ("out_of_order", 2, 2), ("duplicate", 3, 1), ("gap", 2, 1)],
    ),
]

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
        [({"duplicate": "error"}, "row 4: the time 300000000 ns again")],
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
        *("clock_back", SET_BACK, "row 6: time goes back from 1700000000"),
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
        *("swapped", SWAPPED_30, "row 6: time goes back from 200000003 to 166666672 ns"),
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
    Case("another_shape", THIRTIETH, "in the first step float64 (2,)", findings=[("unreadable", None, 1, None)],
         extra={"wide": 7}),
    Case("cut_short", THIRTIETH, "is not a readable npz", findings=[("unreadable", None, 1, None)], extra={"cut": 7}),
]  # fmt: skip

CASES = {"zarr": ZARR, "mcap": MCAP, "robomimic": ROBOMIMIC, "lerobot": LEROBOT, "calvin": CALVIN}
STREAMS = {
    "zarr": "state",
    "mcap": "/state/linear",
    "robomimic": "actions",
    "lerobot": "observation.state",
    "calvin": "robot_obs",
}
