"""check as a page: it parses, stands alone, names the findings, and its pictures show what was measured."""

import html.parser
import json
import pathlib

import numpy as np
import robocache
from quality_cases import SPECS, Listed, clean_episode, set_values, with_times, with_values
from robocache.quality import RULES


class Page(html.parser.HTMLParser):
    """Fails where tags do not match; collects text, names of tags, and whatever refers to something outside."""

    VOID = ("meta",)

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.said, self.outside = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data)


def test_the_page_stands_alone_names_the_findings_and_draws(tmp_path):
    dirty = with_values(clean_episode(1), "arm", set_values([7, 8], np.nan, 0))
    dirty = with_values(dirty, "force", set_values(slice(None), 1.0))
    path = tmp_path / "report.html"
    robocache.check(Listed(clean_episode(), dirty)).save_html(path)
    text = path.read_text("utf-8")
    page = Page(text)
    said = " ".join(page.said)
    assert page.outside == []
    assert "script" not in page.tags
    assert "url(" not in text
    assert "http" not in text
    for kind in ("nan_value", "dead"):
        assert kind in said
        assert RULES[kind].do in said
    assert "episode 1, row 7: values that are NaN: 2" in said
    assert "gap_factor" in said
    assert page.tags.count("svg") == len(SPECS) + 2  # intervals of each stream, scores of episodes, the worst episode
    assert "episode 1: " in said
    assert "listed" in said


def test_the_picture_of_an_episode_has_where_streams_begin_end_and_have_gaps():
    clean = clean_episode()
    times = clean.streams["arm"].times
    cut = np.delete(times, [50, 51, 120])
    report = robocache.check(Listed(clean, with_times(clean, "arm", cut)))
    (timeline,) = report.timelines
    assert (timeline.episode, timeline.score) == (1, report.episodes[1].score)
    begin, end, gaps = timeline.streams["arm"]
    assert (begin, end) == (times[0], times[-1])
    assert gaps == [(times[49], times[52]), (times[119], times[121])]
    assert timeline.streams["force"][2] == []
    said = " ".join(Page(report.html()).said)
    assert "gap of 0.030 s" in said
    assert "gap of 0.020 s" in said


def test_the_histogram_of_intervals_counts_each_once():
    clean = clean_episode()
    report = robocache.check(Listed(clean, clean))
    for name, stream in report.streams.items():
        assert stream.histogram.sum() == 2 * (len(clean.streams[name]) - 1)
    (place,) = np.flatnonzero(robocache.check(Listed(even_arm())).streams["arm"].histogram)
    assert 10 ** (3 + place / 20) <= 10_000_000 < 10 ** (3 + (place + 1) / 20)


def even_arm():
    clean = clean_episode()
    return with_times(clean, "arm", clean.streams["arm"].times[0] + np.arange(200) * 10_000_000)


def test_names_from_files_are_text_on_the_page_and_not_markup():
    name = "<script>alert('x')</script>&\""
    spec = SPECS["arm"]
    stream = clean_episode().streams["arm"]
    renamed = type(spec)(name, spec.dtype, spec.shape)
    episode = type(clean_episode())(0, {name: type(stream)(renamed, stream.values[:1], stream.times[:1])})
    source = Listed(episode, specs={name: renamed})
    source.path = pathlib.Path("<b>\udcff")  # a byte of the file system that is no UTF-8
    report = robocache.check(source)
    page = Page(report.html())
    assert "script" not in page.tags
    assert any("<script>alert('x')</script>&\"" in text for text in page.said)
    assert any("<b>" in text for text in page.said)
    report.html().encode("utf-8")
    json.dumps(report.to_json()).encode("utf-8")


def test_the_page_of_many_episodes_stays_small():
    clean = clean_episode()
    bad = with_times(clean, "arm", clean.streams["arm"].times[::2])
    report = robocache.check(Listed(*[clean] * 900, *[bad] * 100), streams=["arm"])
    text = report.html()
    assert len(text) < 200_000
    assert Page(text).tags.count("svg") == 1 + 1 + 5
    assert "A bar for the worst of each 4" in text
    assert report.groups[0].episodes == 100
