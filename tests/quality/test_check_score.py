"""check: the points of each finding, what is kept, how it is called, and that docs/check.md says the same."""

import numpy as np
import pytest
import robocache
from paths import ROOT
from quality_cases import START_NS, Listed, clean_episode, found, set_values, with_times, with_values
from robocache.quality import RULES, Finding, Thresholds

# --- the score


def test_points_are_those_of_the_formula():
    clean = clean_episode()
    times = clean.streams["arm"].times
    dirty = with_times(clean, "arm", np.insert(times, 9, times[9]))
    dirty = with_values(dirty, "arm", set_values(slice(0, 12), np.nan, 0))
    report = robocache.check(Listed(clean, dirty))
    duplicate, nan = 20 * (1 / 201) / 0.1, 30 * (12 / 201) / 0.1
    score = 100 - duplicate - nan
    assert report.stream_scores[1, 0] == pytest.approx(score)
    episode = ((score + 600) / 7 + score) / 2
    assert report.episodes[1].score == pytest.approx(episode)
    assert report.score == pytest.approx((100 + episode) / 2)
    assert report.streams["arm"].score == pytest.approx((100 + score) / 2)
    assert {f.kind: f.points for f in report.findings} == pytest.approx({"duplicate": duplicate, "nan_value": nan})


@pytest.mark.parametrize("kind", RULES)
def test_a_finding_takes_at_most_its_weight_and_a_note_nothing(kind):
    rule = RULES[kind]
    for share, part in ((0.0, 0.0), (rule.full / 2, 0.5), (rule.full, 1.0), (50.0, 1.0)):
        assert Finding(kind, "", share=share).points == pytest.approx(rule.weight * part)
    assert Finding(kind, "", severity="note").points == 0


def test_a_score_is_never_below_zero():
    clean = clean_episode()
    times = np.random.default_rng(0).permutation(clean.streams["arm"].times) - START_NS * 2
    dirty = with_values(with_times(clean, "arm", times), "arm", set_values(slice(None), np.nan))
    report = robocache.check(Listed(dirty))
    assert report.stream_scores.min() == 0
    assert report.score >= 0


# --- what is kept, and how it is called


def test_findings_are_counted_where_they_are_not_kept():
    dirty = with_values(clean_episode(), "arm", set_values([5, 6], np.nan, 1))
    report = robocache.check(Listed(*[dirty] * 7), keep=3)
    assert (len(report.findings), report.findings_not_kept) == (3, 4)
    (group,) = report.groups
    assert (group.kind, group.stream, group.episodes, group.count) == ("nan_value", "arm", 7, 14)
    assert len(report.timelines) == 5
    assert [e.findings for e in report.episodes] == [1] * 7


def test_groups_are_sorted_by_severity_and_then_by_points():
    clean = clean_episode()
    dirty = with_times(clean, "camera", clean.streams["camera"].times[:0])
    dirty = with_values(dirty, "arm", set_values(slice(100), np.nan, 1))
    dirty = with_values(dirty, "force", set_values([1], np.nan))
    dirty = with_values(dirty, "label", set_values(slice(None), 7, 0))
    report = robocache.check(Listed(dirty))
    assert [(g.severity, g.kind, g.stream) for g in report.groups] == [
        ("error", "empty", "camera"),
        ("warning", "nan_value", "arm"),
        ("warning", "nan_value", "force"),
        ("note", "dead", "label"),
    ]
    lines = report.text().splitlines()
    places = [next(i for i, line in enumerate(lines) if line.startswith(g.severity) and g.kind in line)
              for g in report.groups[:2]]  # fmt: skip
    assert places == sorted(places)
    assert "1 error, 2 warnings, 1 note" in lines[1]


def test_only_the_streams_that_are_asked_for_are_checked():
    dirty = with_values(clean_episode(), "arm", set_values([5], np.nan, 1))
    report = robocache.check(Listed(dirty), streams=["force", "camera"])
    assert list(report.streams) == ["force", "camera"]
    assert report.score == 100
    assert found(robocache.check(Listed(dirty), streams=["arm"])) == [("nan_value", "arm", 5, 1)]


def test_thresholds_decide():
    clean = clean_episode()
    dirty = Listed(with_times(clean, "arm", np.delete(clean.streams["arm"].times, 6)))
    assert found(robocache.check(dirty, thresholds={"gap_factor": 3})) == []
    assert len(robocache.check(dirty, thresholds=Thresholds(gap_factor=1.5)).findings) == 1
    assert robocache.check(dirty, thresholds={"jitter": 0.001}).counts["warning"] > 1


def test_progress_is_told_after_each_episode():
    told = []
    robocache.check(Listed(*[clean_episode()] * 3), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": ["leg"]}, "check: the source has no stream 'leg', only arm, force"),
        ({"streams": "arm"}, "check: streams must be a list of names, got 'arm'"),
        ({"streams": []}, "check: streams must name at least one stream, got none"),
        ({"thresholds": {"gaps": 1}}, "check: thresholds must have keys among gap_factor, .*, got 'gaps'"),
        ({"thresholds": {"jitter": 0}}, r"check: thresholds\['jitter'\] must be a number above 0, got 0"),
        ({"thresholds": {"jitter": "x"}}, r"check: thresholds\['jitter'\] must be a number above 0, got 'x'"),
        ({"thresholds": {"rate": True}}, r"check: thresholds\['rate'\] must be a number above 0, got True"),
        ({"thresholds": {"rate": float("nan")}}, r"check: thresholds\['rate'\] must be a number above 0, got nan"),
        ({"keep": 0}, "check: keep must be an integer of at least 1, got 0"),
        ({"format": "mcap"}, "check: format and options must not be given for a source that is already open"),
        ({"rate_hz": 5}, "check: format and options must not be given for a source that is already open"),
    ],
)
def test_a_bad_call_is_a_value_error_that_names_argument_rule_and_value(options, message):
    with pytest.raises(ValueError, match=message):
        robocache.check(Listed(clean_episode()), **options)


def test_every_kind_stands_in_the_document_with_its_numbers():
    text = (ROOT / "docs/check.md").read_text()
    for kind, rule in RULES.items():
        assert f"| `{kind}` | {rule.severity} | {rule.weight:g} | {rule.full:g} |" in text, kind
    for name, value in vars(Thresholds()).items():
        assert f"| `{name}` | {value:g} |" in text, name
