"""check: what holds for any data: counts by a plain loop, places of planted faults, order of episodes, bounds."""

import numpy as np
import robocache
from hypothesis import given
from hypothesis import strategies as st
from quality_cases import Listed, clean_episode, found, with_values
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

X = StreamSpec("x", "float64", ())
STEP = 10_000_000


def check_times(times, **options):
    stream = EpisodeStream(X, np.sin(np.arange(len(times)) * 0.7), np.asarray(times, np.int64))
    return robocache.check(Listed(Episode(0, {"x": stream}), specs={"x": X}), **options)


def counted(report):
    return {f.kind: (f.row, f.count) for f in report.findings}


def by_hand(times):
    """(first row, count) of each fault of order, in one pass over a list."""
    expected, seen, latest = {}, set(), None
    for row, time in enumerate(times):
        for kind, bad in (
            ("negative", time < 0),
            ("out_of_order", latest is not None and time < latest),
            ("duplicate", time in seen),
        ):
            if bad:
                first, count = expected.get(kind, (row, 0))
                expected[kind] = (first, count + 1)
        seen.add(time)
        latest = time if latest is None else max(latest, time)
    return expected


@given(st.lists(st.integers(-5, 40), min_size=2, max_size=40))
def test_faults_of_order_are_those_of_a_plain_loop(ticks):
    found_here = counted(check_times([STEP * tick for tick in ticks]))
    kinds = ("negative", "out_of_order", "duplicate")
    assert {kind: found_here[kind] for kind in kinds if kind in found_here} == by_hand(ticks)


@given(st.integers(20, 200), st.data())
def test_gaps_are_counted_and_the_first_is_where_the_first_rows_are_lost(rows, data):
    inner = list(range(5, rows - 5))
    lost = sorted(data.draw(st.sets(st.sampled_from(inner), min_size=1, max_size=rows // 4)))
    gaps = sum(1 for i in lost if i - 1 not in lost)
    report = check_times(np.delete(np.arange(rows) * STEP, lost))
    assert counted(report) == {"gap": (lost[0], gaps)}
    share = len(lost) / rows
    assert report.findings[0].share == share
    assert report.score == 100 - 30 * min(1, share / 0.2)


@given(st.integers(12, 300), st.data())
def test_nan_and_infinity_are_found_at_their_rows(rows, data):
    bad = data.draw(st.dictionaries(st.integers(0, rows - 1), st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1))
    values = np.sin(np.arange(rows) * 0.7)
    for row, value in bad.items():
        values[row] = value
    stream = EpisodeStream(X, values, np.arange(rows) * STEP)
    got = counted(robocache.check(Listed(Episode(0, {"x": stream}), specs={"x": X})))
    nans = sorted(row for row, value in bad.items() if np.isnan(value))
    infs = sorted(row for row, value in bad.items() if np.isinf(value))
    expected = {kind: (rows_of[0], len(rows_of)) for kind, rows_of in (("nan_value", nans), ("inf_value", infs))
                if rows_of}  # fmt: skip
    assert {kind: got[kind] for kind in got if kind.endswith("_value")} == expected


@given(st.integers(0, 60), st.integers(11, 60), st.booleans())
def test_a_run_at_a_limit_is_found_where_it_begins(begin, length, high):
    values = np.sin(np.arange(121) * 0.7)
    values[begin : begin + length] = 2.0 if high else -2.0
    stream = EpisodeStream(X, values, np.arange(121) * STEP)
    report = robocache.check(Listed(Episode(0, {"x": stream}), specs={"x": X}))
    assert counted(report) == ({"saturated": (begin, length)} if length >= 12.1 else {})


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_times_give_a_score_from_0_to_100_and_no_surprise(times):
    report = check_times(times)
    assert 0 <= report.score <= 100
    assert (report.score == 100) == (found(report) == [])
    report.text()
    report.html()


@given(st.permutations(range(4)))
def test_the_order_of_the_episodes_does_not_change_the_score(order):
    episodes = [clean_episode(i) for i in range(3)]
    episodes.append(with_values(clean_episode(3), "arm", lambda values: values.__setitem__(slice(20), np.nan)))
    plain, moved = robocache.check(Listed(*episodes)), robocache.check(Listed(*(episodes[i] for i in order)))
    assert moved.score == plain.score
    assert moved.findings[0].episode == order.index(3)
    assert [(g.kind, g.stream, g.count) for g in moved.groups] == [(g.kind, g.stream, g.count) for g in plain.groups]


@given(st.integers(0, 2), st.integers(1, 180))
def test_another_fault_never_raises_the_score(channel, rows):
    one = with_values(clean_episode(), "arm", lambda values: values.__setitem__((slice(5), 1), np.nan))
    two = with_values(one, "arm", lambda values: values.__setitem__((slice(rows), channel), np.nan))
    assert robocache.check(Listed(two)).score <= robocache.check(Listed(one)).score < 100
