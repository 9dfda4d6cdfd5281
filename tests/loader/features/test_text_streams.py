"""Streams of text: written, read, checked, copied, and named where an export leaves them out."""

import numpy as np
import pytest
import robocache

SPECS = {
    "arm": robocache.StreamSpec("arm", "float32", (2,), rate_hz=50),
    "say": robocache.StreamSpec("say", "uint8", (), "text"),
}
TEXTS = ["reach", "größer 杯", ""]


@pytest.fixture
def spoken(tmp_path):
    writer = robocache.CacheWriter(tmp_path / "spoken", SPECS)
    times = np.arange(50) * 20_000_000
    streams = {
        "arm": robocache.EpisodeStream(SPECS["arm"], np.zeros((50, 2), np.float32), times),
        "say": robocache.EpisodeStream(SPECS["say"], TEXTS, times[[0, 20, 30]]),
    }
    writer.add(robocache.Episode(0, streams, "t"))
    return writer.commit()


def test_texts_come_back_as_they_were_written(spoken, tmp_path):
    assert spoken.episode(0).streams["say"].texts == TEXTS
    assert spoken.verify() == []
    again = robocache.ingest(spoken.path, tmp_path / "again")
    assert again.episode(0).streams["say"].texts == TEXTS
    assert repr(again.episode(0).streams["say"]).startswith("EpisodeStream('say', uint8 (), 3 rows of")


def test_an_export_names_the_text_that_lerobot_has_no_place_for(spoken, tmp_path):
    exported = robocache.export(spoken, tmp_path / "out")
    assert any(left.name == "say" and "no text" in left.reason for left in exported.left_out)


def test_bad_texts_get_one_clear_line(spoken):
    with pytest.raises(ValueError, match=r"text must be uint8 of shape \(\), got float32"):
        robocache.StreamSpec("say", "float32", (), "text")
    with pytest.raises(ValueError, match="arm must be of kind text to have texts, got vector"):
        spoken.episode(0).streams["arm"].texts  # noqa: B018
    with pytest.raises(robocache.FormatError, match="must have UTF-8 text"):
        robocache.EpisodeStream(SPECS["say"], np.array([255], np.uint8), np.zeros(1, np.int64), np.array([0, 1])).texts  # noqa: B018
