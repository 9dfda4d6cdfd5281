"""check: planted faults are found at their stream and row with their count, and clean data has none."""

import json

import numpy as np
import pytest
import robocache
from quality_cases import (
    POINTS,
    ROWS,
    SPECS,
    START_NS,
    Listed,
    clean_episode,
    found,
    set_values,
    with_times,
    with_values,
)
from robocache import FormatError
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.quality import values as _values

S = 10**9
STEP = {name: 2 * S // rows for name, rows in ROWS.items()}


@pytest.mark.parametrize("seed", range(3))
def test_clean_data_of_every_kind_has_no_findings_and_100_points(seed):
    report = robocache.check(Listed(*(clean_episode(seed + i) for i in range(5))))
    assert found(report) == []
    assert report.score == 100.0
    assert (report.stream_scores == 100).all()
    assert [e.score for e in report.episodes] == [100.0] * 5
    assert report.counts == {"error": 0, "warning": 0, "note": 0}
    assert report.timelines == []


def swap(times, row):
    times = times.copy()
    times[row - 1], times[row] = times[row], times[row - 1]
    return times


def late(times, row, by_ns):
    return np.concatenate([times[:row], times[row:] + by_ns])


APART = [("start_offset", None, 1), ("end_offset", None, 1), ("coverage", None, 1)]
TIMES = {
    "empty": (lambda t, n: t[:0], [("empty", None, 0)]),
    "one row": (lambda t, n: t[:1], [("single", 0, 1)]),
    "two rows swapped": (lambda t, n: swap(t, 7), [("out_of_order", 7, 1)]),
    "two pairs swapped": (lambda t, n: swap(swap(t, 7), 15), [("out_of_order", 7, 2)]),
    "a row twice": (lambda t, n: np.insert(t, 9, t[9]), [("duplicate", 10, 1)]),
    "a row three times": (lambda t, n: np.insert(t, 9, [t[9]] * 2), [("duplicate", 10, 2)]),
    "a row lost": (lambda t, n: np.delete(t, 6), [("gap", 6, 1)]),
    "three rows lost": (lambda t, n: np.delete(t, [6, 7, 12]), [("gap", 6, 2)]),
    "clock set": (lambda t, n: late(t, 8, 90000 * S), [("clock_jump", 8, 1), *APART]),
    "clock set back": (lambda t, n: late(t, 10, -4 * S), [("out_of_order", 10, "rest"), ("gap", 0, 1), *APART]),
    "negative": (lambda t, n: t - t[3], [("negative", 0, 3), *APART]),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("fault", TIMES)
def test_faulty_times_are_found_in_any_kind_of_stream(name, fault):
    plant, expected = TIMES[fault]
    clean, rows = clean_episode(), ROWS[name]
    dirty = with_times(clean, name, plant(clean.streams[name].times, rows))
    report = robocache.check(Listed(clean, dirty))
    expected = [(kind, row, rows - 10 if count == "rest" else count) for kind, row, count in expected]
    assert sorted(found(report), key=str) == sorted(((k, name, r, c) for k, r, c in expected), key=str)
    assert {f.episode for f in report.findings} == {1}
    assert report.episodes[0].score == 100 > report.episodes[1].score
    others = [i for i, other in enumerate(SPECS) if other != name]
    assert (report.stream_scores[1, others] == 100).all()
    assert report.stream_scores[1, list(SPECS).index(name)] < 100


def test_jitter_and_rate_are_measured():
    clean = clean_episode()
    step = STEP["arm"]
    uneven = START_NS + np.arange(200) * step + np.where(np.arange(200) % 2, step // 2, 0)
    report = robocache.check(Listed(with_times(clean, "arm", uneven)))
    assert found(report) == [("jitter", "arm", None, 199)]
    assert report.streams["arm"].jitter == pytest.approx(0.5, rel=0.02)
    half = with_times(clean, "arm", START_NS + np.arange(100) * 2 * step)
    report = robocache.check(Listed(half))
    assert found(report) == [("rate", "arm", None, 100)]
    assert report.streams["arm"].measured_hz == pytest.approx(50)
    assert report.streams["arm"].declared_hz == 100
    assert report.findings[0].text == "50 Hz measured, 100 Hz declared"
    report = robocache.check(Listed(with_times(clean, "arm", START_NS + np.arange(200) * step * 1000)), streams=["arm"])
    assert found(report) == [("time_unit", "arm", None, 200)]


VALUES = {
    "NaN in a vector": ("arm", set_values([5, 90], np.nan, 1), ("nan_value", "warning", 5, 2)),
    "NaN in a scalar": ("force", set_values([399], np.nan), ("nan_value", "warning", 399, 1)),
    "infinity": ("arm", set_values([0, 7, 8], -np.inf, 2), ("inf_value", "warning", 0, 3)),
    "NaN in a cloud": ("lidar", set_values([3 * POINTS, 3 * POINTS + 1], np.nan, 0), ("nan_value", "note", 3, 1)),
    "a dead channel": ("arm", set_values(slice(None), 0.25, 1), ("dead", "warning", 0, 1)),
    "two dead channels": ("arm", set_values(slice(None), 0.25, slice(2)), ("dead", "warning", 0, 2)),
    "a dead scalar": ("force", set_values(slice(None), -1.0), ("dead", "warning", 0, 1)),
    "a dead label": ("label", set_values(slice(None), 7, 0), ("dead", "note", 0, 1)),
    "a dead field of points": ("lidar", set_values(slice(None), 0, 3), ("dead", "note", 0, 1)),
    "black pictures": ("camera", set_values([4, 5, 30], 0), ("dead", "warning", 4, 3)),
    "a camera that is covered": ("camera", set_values(slice(None), 17), ("dead", "warning", 0, 60)),
    "blank depth": ("depth", set_values([59], 0), ("dead", "warning", 59, 1)),
    "an overexposed camera": ("camera", set_values(slice(None), 255, slice(None, None, 5)), None),
    "half of the pixels white": (
        *("camera", set_values(slice(None), 255, slice(3))),
        ("saturated", "warning", 0, 60),
    ),
    "single rows at the limit": ("arm", set_values(slice(0, 200, 4), 9.0, 0), None),
    "a run at the upper limit": (
        *("arm", set_values(slice(40, 90), 9.0, 0)),
        ("saturated", "warning", 40, 50),
    ),
    "a run at the lower limit": (
        *("force", set_values(slice(300, 400), -9.0)),
        ("saturated", "warning", 300, 100),
    ),
    "two runs at the limit": (
        *("arm", set_values([*range(40, 90), *range(120, 140)], 9.0, 0)),
        ("saturated", "warning", 40, 70),
    ),
    "a short run": ("arm", set_values(slice(40, 55), 9.0, 0), None),
    "a run inside the range": ("arm", set_values(slice(40, 90), 0.0, 0), None),
    "a switch": ("arm", lambda v: v.__setitem__((slice(None), 0), np.sign(v[:, 0])), None),
}


@pytest.mark.parametrize("chunk", [_values.CHUNK, 7, 100])
@pytest.mark.parametrize("fault", VALUES)
def test_faulty_values_are_found_however_rows_are_cut_into_chunks(fault, chunk, monkeypatch):
    monkeypatch.setattr(_values, "CHUNK", chunk)
    name, change, expected = VALUES[fault]
    report = robocache.check(Listed(clean_episode(1), with_values(clean_episode(), name, change)))
    assert [(f.kind, f.severity, f.row, f.count) for f in report.findings] == ([expected] if expected else [])
    assert all((f.episode, f.stream) == (1, name) for f in report.findings)
    notes = expected is None or expected[1] == "note"
    assert (report.score == 100) == notes


def test_channels_are_named_and_a_few_only():
    report = robocache.check(Listed(with_values(clean_episode(), "arm", set_values(slice(None), 0.25, [0, 2]))))
    assert report.findings[0].text == "2 of 3 channels never change: a, c"
    wide = StreamSpec("wide", "float32", (100,))
    stream = EpisodeStream(wide, np.zeros((20, 100), np.float32), np.arange(20) * 10**8)
    report = robocache.check(Listed(Episode(0, {"wide": stream}), specs={"wide": wide}))
    assert report.findings[0].text == "100 of 100 channels never change: 0, 1, 2, 3, 4, 5, 6, 7, ..."


@pytest.mark.parametrize(("rows", "dead"), [(9, 0), (10, 1)])
def test_a_channel_is_dead_from_ten_rows_on(rows, dead):
    spec = StreamSpec("x", "float32", (2,))
    values = np.stack([np.arange(rows), np.ones(rows)], 1).astype(np.float32)
    report = robocache.check(
        Listed(Episode(0, {"x": EpisodeStream(spec, values, np.arange(rows) * S)}), specs={"x": spec})
    )
    assert [f.kind for f in report.findings] == ["dead"] * dead


def test_bfloat16_is_read_as_numbers_and_not_as_bits():
    spec = StreamSpec("x", "bfloat16", (1,))
    values = (np.arange(1.0, 31.0, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)[:, None]
    values[4] = 0x7FC0  # NaN
    report = robocache.check(
        Listed(Episode(0, {"x": EpisodeStream(spec, values, np.arange(30) * 10**8)}), specs={"x": spec})
    )
    assert found(report) == [("nan_value", "x", 4, 1)]


def test_streams_that_begin_late_end_early_or_cover_little():
    clean = clean_episode()
    times = clean.streams["arm"].times
    late_one = robocache.check(Listed(with_times(clean, "arm", times[30:])))
    assert found(late_one) == [("start_offset", "arm", None, 1)]
    assert late_one.findings[0].text.startswith("begins 300")
    assert late_one.findings[0].text.endswith("ms after the others")
    early = robocache.check(Listed(with_times(clean, "arm", times[:80])))
    assert sorted(found(early)) == [("coverage", "arm", None, 1), ("end_offset", "arm", None, 1)]
    shifted = robocache.check(Listed(with_times(clean, "arm", times + 100 * S)))
    assert {f.kind for f in shifted.findings} == {"coverage", "start_offset", "end_offset"}
    assert any("another clock" in f.text for f in shifted.findings)
    assert found(robocache.check(Listed(with_times(clean, "arm", times + S // 20)))) == []  # 50 ms, of 100 allowed


def test_a_stream_that_an_episode_lacks_is_empty_there():
    clean = clean_episode()
    without = Episode(1, {name: s for name, s in clean.streams.items() if name != "force"})
    report = robocache.check(Listed(clean, without))
    assert found(report) == [("empty", "force", None, 0)]
    assert report.streams["force"].score == 50
    assert report.episodes[1].score == pytest.approx((600 / 7 + 0) / 2)


def test_values_of_another_unit_than_in_other_episodes():
    episodes = [clean_episode(i) for i in range(5)]
    episodes[3] = with_values(episodes[3], "arm", lambda values: np.multiply(values, 57.3, out=values))
    report = robocache.check(Listed(*episodes))
    assert [(f.kind, f.stream, f.episode) for f in report.findings] == [("scale", "arm", 3)]
    assert report.episodes[3].findings == 1
    assert report.stream_scores[3].min() == 80
    assert robocache.check(Listed(*episodes[:4]), thresholds={"scale_factor": 100}).score == 100
    assert robocache.check(Listed(*episodes[2:4])).score == 100  # of two nobody knows which is right
    episodes[3] = with_times(clean_episode(3), "arm", START_NS + np.arange(10_000) * STEP["arm"])
    longer = robocache.check(Listed(*episodes), streams=["arm"])
    assert found(longer) == []  # an episode that is fifty times longer is no other unit


def test_an_episode_that_cannot_be_read_is_a_finding_and_the_others_are_checked():
    report = robocache.check(Listed(clean_episode(), FormatError("run_1.mcap: cut short"), clean_episode(2)))
    (only,) = report.findings
    assert (only.kind, only.severity, only.episode, only.text) == ("unreadable", "error", 1, "run_1.mcap: cut short")
    assert [e.score for e in report.episodes] == [100, 0, 100]
    assert np.isnan(report.stream_scores[1]).all()
    assert report.score == pytest.approx(200 / 3)
    json.dumps(report.to_json(), allow_nan=False)


def test_a_dataset_without_episodes_scores_nothing():
    report = robocache.check(Listed())
    assert (report.score, found(report)) == (0.0, [("empty", None, None, 0)])
    assert "0 episodes" in report.text()
    assert "no episodes" in report.html()


def test_times_at_the_ends_of_int64_are_no_surprise():
    spec = StreamSpec("x", "float64", ())
    times = np.array([-(2**63), 0, 2**63 - 1], np.int64)
    stream = EpisodeStream(spec, np.arange(3.0), times)
    report = robocache.check(Listed(Episode(0, {"x": stream}), specs={"x": spec}))
    assert found(report) == [("clock_jump", "x", 1, 2), ("negative", "x", 0, 1)]


@pytest.mark.parametrize("meta", [{"repairs": [1]}, {"repairs": {"arm": 3}}, {"repairs": {"arm": {"x": "many"}}}])
def test_repairs_that_are_told_in_another_form_are_not_believed(meta):
    clean = clean_episode()
    assert found(robocache.check(Listed(Episode(0, clean.streams, None, meta)))) == []


def test_repairs_that_were_made_before_are_notes():
    meta = {"repairs": {"arm": {"unsorted": 2}}, "repairs_at": {"arm": {"unsorted": "row 7: time goes back"}}}
    report = robocache.check(Listed(Episode(0, clean_episode().streams, None, meta)))
    assert [(f.kind, f.severity, f.stream, f.row, f.count, f.text) for f in report.findings] == [
        ("repaired", "note", "arm", 7, 2, "unsorted: time goes back")
    ]
    assert report.score == 100
    assert robocache.check(Listed(Episode(0, clean_episode().streams, None, meta)), streams=["force"]).findings == []
