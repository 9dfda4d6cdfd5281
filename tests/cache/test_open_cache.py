"""A cache is a source like the dataset it was made of: every format, ingested and opened again."""

import copy
import json

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from cache_cases import MadeSource, digest
from robocache import sources as adapters


@pytest.fixture(params=datasets.CASES)
def pair(request, tmp_path, rng):
    """(the opened dataset, its cache opened by path)"""
    source = datasets.opened(request.param, tmp_path, rng)
    robocache.ingest(source, tmp_path / "cache")
    return source, robocache.open(tmp_path / "cache")


def test_a_cache_of_any_format_is_opened_with_everything_its_source_has(pair):
    source, cache = pair
    assert isinstance(cache, robocache.Cache)
    assert isinstance(cache, robocache.Source)
    assert (cache.format, len(cache), cache.specs) == ("robocache", len(source), source.specs)
    assert digest(cache) == digest(source)
    assert cache.metadata["source"]["format"] == source.format
    assert cache.metadata["source"]["metadata"] == json.loads(json.dumps(source.metadata))


def test_a_cache_travels_to_another_process_as_the_version_it_is(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache")
    assert digest(copy.deepcopy(cache)) == digest(cache)
    robocache.ingest(MadeSource(seed=1), tmp_path / "cache")
    with pytest.raises(robocache.FormatError, match=r"generation 1 is gone; another one, of generation 2"):
        copy.deepcopy(cache)


def test_a_cache_is_recognized_also_when_its_manifest_is_damaged(tmp_path):
    robocache.ingest(MadeSource(), tmp_path / "cache")
    assert adapters.detect(tmp_path / "cache") == "robocache"
    (tmp_path / "cache" / "manifest.json").write_bytes(b"\0" * 100)
    assert adapters.detect(tmp_path / "cache") == "robocache"
    with pytest.raises(robocache.FormatError, match=r"manifest\.json"):
        robocache.open(tmp_path / "cache")


def test_the_manifest_of_another_tool_is_no_cache(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "an extension"}')
    assert adapters.detect(tmp_path) is None


def test_a_cache_takes_no_options_and_has_no_episode_beyond_its_last(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache")
    with pytest.raises(ValueError, match="open: a cache takes no options, got rate_hz"):
        robocache.open(tmp_path / "cache", rate_hz=20)
    for index in (-1, 5):
        with pytest.raises(IndexError, match=rf"episode: index must be in \[0, 5\), got {index}"):
            cache.episode(index)


def test_the_rows_of_an_episode_go_into_align(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache")
    rows = cache.episode(0).streams["arm"]
    assert isinstance(rows, robocache.EpisodeStream)
    aligned = robocache.align(robocache.Stream(rows.values, rows.times), rows.times)
    np.testing.assert_array_equal(aligned.values[0], rows.values)
