"""The golden zarr files: every fault of times, and those of values."""

from golden_dirty.case import (
    ALL,
    BACK,
    BELOW,
    EVEN,
    INF,
    JUMP,
    MIXED,
    NAN,
    PAUSE,
    RATE_HZ,
    RESTART,
    ROWS,
    SET,
    SET_BACK,
    SORTED,
    SWAPPED,
    TWICE,
    UNEVEN,
    UNIT,
    Case,
    but,
)

ZARR = [
    Case("clean", EVEN),
    Case(
        *("swapped", SWAPPED, BACK),
        [({"unsorted": "sort"}, SORTED, {"unsorted": 1}), ({"unsorted": "drop"}, but(6), {"unsorted": 1})],
        findings=[("out_of_order", 6, 1)],
    ),
    Case(
        *("reversed", EVEN[::-1], "row 1: time decreases from 1100000000 to 1000000000 ns"),
        [({"unsorted": "sort"}, ALL[::-1], {"unsorted": 11}), ({"unsorted": "drop"}, [0], {"unsorted": 11})],
        findings=[("out_of_order", 1, 11)],
    ),
    Case(
        *("restart", RESTART, "row 6: time decreases from 500000000 to 0 ns"),
        [
            ({"unsorted": "sort"}, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11], {"unsorted": 5}),
            ({"unsorted": "drop", "duplicate": "first"}, [0, 1, 2, 3, 4, 5], {"unsorted": 5, "duplicate": 1}),
        ],
        findings=[("out_of_order", 6, 5), ("duplicate", 6, 6)],
    ),
    Case(
        *("clock_back", SET_BACK, "row 6: time decreases from 1700000000"),
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
        [({"duplicate": "error"}, "row 4: duplicate time 300000000 ns")],
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
