"""The cache from Python: what goes in comes out, also through other readers; statistics; ingest and its options."""

import gc
import json
import subprocess
import sys

import numpy as np
import pytest
import robocache
from cache_cases import ALL, SPECS, MadeSource, digest
from robocache.cache import statistics as _statistics
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cache.statistics import Statistics, bfloat16_to_float32, float_to_bfloat16


@pytest.mark.parametrize("shard_bytes", [1, 3000, 1 << 30])
@pytest.mark.parametrize("specs", [SPECS, ALL], ids=["kinds", "dtypes"])
def test_what_was_ingested_comes_back_bit_for_bit(specs, shard_bytes, tmp_path):
    source = MadeSource(specs)
    cache = robocache.ingest(source, tmp_path / "cache", shard_bytes=shard_bytes)
    assert digest(cache) == digest(source)
    assert cache.specs == specs
    assert cache.verify() == []
    assert cache.metadata["source"]["metadata"] == source.metadata
    assert {p.name for p in (tmp_path / "cache").iterdir()} == {p.name for p in cache.files}
    assert isinstance(cache, robocache.Source)
    again = robocache.ingest(tmp_path / "cache", tmp_path / "again")  # a cache is a source
    assert digest(again) == digest(source)


@pytest.mark.parametrize("shard_bytes", [1, 1000, 1 << 30])
def test_arrays_may_change_once_add_has_returned(shard_bytes, tmp_path):
    """The last episode of a shard is written from the caller's memory, the others are copied. 1000: two in a shard."""
    arm = StreamSpec("arm", "float32", (16,))
    writer = robocache.CacheWriter(tmp_path / "cache", {"arm": arm}, shard_bytes=shard_bytes)
    rows = np.empty((8, 16), np.float32)
    for e in range(5):
        rows[:] = e
        writer.add(Episode(e, {"arm": EpisodeStream(arm, rows, np.arange(8))}))
        rows[:] = -1
    cache = writer.commit()
    assert cache.num_shards == {1: 5, 1000: 3, 1 << 30: 1}[shard_bytes]
    assert [np.unique(episode.streams["arm"].values).tolist() for episode in cache] == [[e] for e in range(5)]
    assert cache.verify() == []


def test_arrays_are_read_only_and_outlive_the_cache(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache")
    values = cache.episode(0).streams["arm"].values
    copy = values.copy()
    robocache.ingest(MadeSource(seed=1), tmp_path / "cache")  # removes the files that are mapped
    del cache
    gc.collect()
    np.testing.assert_array_equal(values, copy)
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 0


def test_an_open_cache_keeps_its_version(tmp_path):
    old = robocache.ingest(MadeSource(), tmp_path / "cache")
    new = robocache.ingest(MadeSource(seed=1), tmp_path / "cache")
    assert (old.generation, new.generation) == (1, 2)
    assert digest(old) == digest(MadeSource())
    assert digest(new) == digest(MadeSource(seed=1))


def test_the_safetensors_package_reads_the_shards(tmp_path):
    safe_open = pytest.importorskip("safetensors").safe_open
    source = MadeSource()
    cache = robocache.ingest(source, tmp_path / "cache", shard_bytes=1 << 30)
    (shard,) = (path for path in cache.files if path.suffix == ".safetensors")
    with safe_open(str(shard), "numpy") as file:
        assert file.metadata()["format"] == "robocache"
        for name in SPECS:
            offsets, times = file.get_tensor(f"{name}/offsets"), file.get_tensor(f"{name}/times")
            values = file.get_tensor(f"{name}/values")
            for i, episode in enumerate(source):
                if name in episode.streams:
                    part = slice(offsets[i], offsets[i + 1])
                    np.testing.assert_array_equal(times[part], episode.streams[name].times)
                    if SPECS[name].kind != "points":
                        np.testing.assert_array_equal(values[part], episode.streams[name].values)


def test_the_table_of_episodes_is_a_parquet_file(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", episodes=[3, 1])
    (path,) = (path for path in cache.files if path.suffix == ".parquet")
    table = parquet.read_table(path).to_pydict()
    assert table["index"] == [3, 1]
    assert table["task"] == ["task 1", "task 1"]
    assert table["messages/arm"] == [len(e.streams["arm"]) for e in cache]
    assert json.loads(table["meta"][0]) == {"operator": "ö", "speed": 0.75}


def test_without_pyarrow_there_is_no_table_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    cache = robocache.ingest(MadeSource(), tmp_path / "cache")
    assert not any(path.suffix == ".parquet" for path in cache.files)
    assert digest(cache) == digest(MadeSource())


def test_metadata_that_json_cannot_say_is_made_plain(tmp_path):
    source = MadeSource()
    source.metadata = {"path": "a\udcffb", "limit": float("inf"), 3: np.float32(0.5), "n": np.arange(2), "t": (1, None),
                       "id": 2**64 - 1, "hash": -(10**40)}  # fmt: skip
    cache = robocache.ingest(source, tmp_path / "cache")
    expected = {"path": "a?b", "limit": None, "3": 0.5, "n": [0, 1], "t": [1, None], "id": 2**64 - 1,
                "hash": -(10**40)}  # fmt: skip
    assert cache.metadata["source"]["metadata"] == expected


# ---- options of ingest -----------------------------------------------------------------------------------------------


def test_streams_are_chosen_and_renamed(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", streams={"/lidar": "cloud", "arm": "arm"})
    assert list(cache.specs) == ["arm", "cloud"]
    assert cache.specs["cloud"].name == "cloud"
    source = MadeSource().episode(0).streams["/lidar"]
    np.testing.assert_array_equal(cache.episode(0).streams["cloud"].values, source.values)
    assert digest(robocache.ingest(MadeSource(), tmp_path / "b", streams=["arm"])) == digest(MadeSource(), ["arm"])


def test_episodes_are_chosen_by_number_or_by_a_function(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", episodes=[4, 0])
    assert [episode.index for episode in cache] == [4, 0]
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", episodes=lambda e: e.task == "task 1")
    assert [episode.index for episode in cache] == [1, 3]


def test_floats_are_stored_as_asked_and_integers_stay(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", dtype="bfloat16")
    assert {n: s.dtype for n, s in cache.specs.items()} == {
        "arm": "bfloat16", "force": "bfloat16", "camera/wrist": "uint8", "/lidar": "bfloat16", "depth": "uint16",
    }  # fmt: skip
    stored = cache.episode(0).streams["arm"].values
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(stored, float_to_bfloat16(MadeSource().episode(0).streams["arm"].values))
    back = robocache.ingest(cache, tmp_path / "back", dtype={"arm": "float32"})
    np.testing.assert_array_equal(back.episode(0).streams["arm"].values, bfloat16_to_float32(stored))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": ["leg"]}, "the source has no stream 'leg', only arm"),
        ({"streams": "arm"}, "must be a list of names or a dict"),
        ({"streams": {"arm": "x", "force": "x"}}, "streams must give each stream a unique name"),
        ({"episodes": [5]}, "episodes must be from 0 to 4, got 5"),
        ({"episodes": range(10**12)}, "episodes must be from 0 to 4, got 5"),
        ({"episodes": [1, 1]}, "must not name an episode twice"),
        ({"episodes": []}, "episodes must name at least one episode, got none"),
        ({"dtype": "int8"}, "dtype of 'arm' must be one of float16, bfloat16, float32, float64, got 'int8'"),
        ({"dtype": {"depth": "float16"}}, "dtype of 'depth' must stay uint16, which is not a float, got"),
        ({"dtype": {"leg": "float16"}}, "dtype must name streams of the cache, got 'leg'"),
        ({"shard_bytes": 0}, "shard_bytes must be at least 1"),
        ({"format": "mcap"}, "a source that is already open"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        robocache.ingest(MadeSource(), tmp_path / "cache", **options)
    assert not (tmp_path / "cache").exists()


def test_a_stopped_ingest_resumes_where_it_was_and_gives_the_same_bytes(tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total):
        if done == 3:
            raise Stop

    whole = robocache.ingest(MadeSource(), tmp_path / "whole", shard_bytes=1)
    with pytest.raises(Stop):
        robocache.ingest(MadeSource(), tmp_path / "cache", shard_bytes=1, progress=stop)
    assert not (tmp_path / "cache" / "manifest.json").exists()
    source, seen = MadeSource(), []
    cache = robocache.ingest(source, tmp_path / "cache", shard_bytes=1, resume=True, progress=lambda *x: seen.append(x))
    assert source.asked == [3, 4]
    assert seen == [(4, 5), (5, 5)]
    assert [p.read_bytes() for p in cache.files] == [p.read_bytes() for p in whole.files]
    source = MadeSource()
    assert robocache.ingest(source, tmp_path / "cache", resume=True).generation == 1  # there was nothing left to do
    assert source.asked == []
    assert robocache.ingest(MadeSource(seed=9), tmp_path / "cache", resume=True).generation == 2


def test_an_episode_that_does_not_fit_is_an_error_and_the_old_cache_stays(tmp_path):
    robocache.ingest(MadeSource(), tmp_path / "cache")
    writer = robocache.CacheWriter(tmp_path / "cache", {"arm": SPECS["arm"]})
    with pytest.raises(ValueError, match="the cache has no stream 'force', only arm"):
        writer.add(MadeSource().episode(0))
    falling = EpisodeStream(SPECS["arm"], np.zeros((2, 7), np.float32), np.array([2, 1]))
    with pytest.raises(ValueError, match=r"arm\.times must not decrease, got 1 after 2 in row 1"):
        writer.add(Episode(0, {"arm": falling}))
    with pytest.raises(robocache.FormatError, match="another ingest is writing here"):
        robocache.CacheWriter(tmp_path / "cache", {"arm": SPECS["arm"]})
    del writer
    assert digest(robocache.Cache(tmp_path / "cache")) == digest(MadeSource())


def test_a_failed_ingest_unlocks_the_folder_while_its_error_is_still_held(tmp_path):
    """An error has its traceback, and that the frames with the writer: nothing else may keep the lock."""
    falling = EpisodeStream(SPECS["arm"], np.zeros((2, 7), np.float32), np.array([2, 1]))
    source = MadeSource({"arm": SPECS["arm"]})
    source.episode = lambda index: Episode(index, {"arm": falling})
    out, held = tmp_path / "cache", []
    for _ in range(2):
        with pytest.raises(ValueError, match="must not decrease") as error:
            robocache.ingest(source, out)
        held.append(error.value)
    assert len(robocache.ingest(MadeSource(), out)) == 5
    assert all(error.__traceback__ is not None for error in held)


def test_a_failed_resume_unlocks_the_folder_too(tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    with pytest.raises(Stop):
        robocache.ingest(MadeSource(), tmp_path / "cache", shard_bytes=1, progress=stop)
    with monkeypatch.context() as patch:
        patch.setattr(robocache.CacheWriter, "_count", stop)
        with pytest.raises(Stop) as error:
            robocache.ingest(MadeSource(), tmp_path / "cache", shard_bytes=1, resume=True)
    assert len(robocache.ingest(MadeSource(), tmp_path / "cache", resume=True)) == 5
    assert error.value.__traceback__ is not None


def test_memory_stays_bounded(tmp_path):
    """600 MB through a process that may hold little more than a shard and an episode."""
    code = """
import resource, sys
import numpy as np, robocache
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
spec = StreamSpec("arm", "float32", (32,))
writer = robocache.CacheWriter(sys.argv[1], {"arm": spec}, shard_bytes=16 << 20)
rows = 20_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for i in range(240):
    values = np.full((rows, 32), i, np.float32)
    writer.add(Episode(i, {"arm": EpisodeStream(spec, values, np.arange(rows))}))
cache = writer.commit()
assert cache.size_bytes > 600e6
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "cache")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150_000  # KiB


# ---- statistics ------------------------------------------------------------------------------------------------------


def statistics_of(spec, parts):
    statistics = Statistics(spec)
    for part in parts:
        statistics.add(part)
    return statistics.result()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint16", "uint8", "int8", "bool"])
def test_statistics_are_those_of_numpy(dtype, rng):
    values = (rng.normal(size=(5000, 3)) * 20 + 40).clip(0, 100).astype(dtype)
    result = statistics_of(StreamSpec("x", dtype, (3,)), np.array_split(values, 7))
    wide = values.astype(np.float64)
    np.testing.assert_allclose(result["mean"], wide.mean(0), rtol=1e-6)
    np.testing.assert_allclose(result["std"], wide.std(0), rtol=1e-6)
    np.testing.assert_array_equal(result["min"], wide.min(0))
    np.testing.assert_array_equal(result["max"], wide.max(0))
    method = "inverted_cdf" if dtype in ("uint8", "int8", "bool") else "linear"
    expected = np.quantile(wide, [0.01, 0.99], axis=0, method=method)
    np.testing.assert_allclose([result["q01"], result["q99"]], expected, rtol=1e-6)
    assert result["count"] == 5000


def test_quantiles_of_many_rows_come_from_a_bounded_sample(rng):
    statistics = Statistics(StreamSpec("x", "float32", (2,)))
    for _ in range(20):
        statistics.add(rng.random((50_001, 2), np.float32))
    result = statistics.result()
    assert len(statistics.sample.rows) == 2 * _statistics.SAMPLE
    assert statistics.sample.seen == 20 * 50_001
    np.testing.assert_allclose(result["q01"], 0.01, atol=0.003)
    np.testing.assert_allclose(result["q99"], 0.99, atol=0.003)


def test_a_sample_takes_one_row_of_each_stretch_whatever_the_parts():
    rows = np.arange(300_000).reshape(-1, 1)
    samples = []
    for parts in (1, 7, 1000):
        sample = _statistics.Sample(1)
        for part in np.array_split(rows, parts):
            sample.add(part)
        samples.append(sample.rows[: sample.count, 0])
        stretches = samples[-1] // sample.stride
        np.testing.assert_array_equal(stretches, np.arange(len(stretches)))
        assert len(stretches) >= 300_000 // sample.stride
    np.testing.assert_array_equal(samples[0], samples[1])
    np.testing.assert_array_equal(samples[0], samples[2])


def test_what_is_not_finite_is_counted_and_left_out():
    values = np.array([[1, np.nan], [np.inf, np.nan], [3, np.nan]], np.float32)
    result = statistics_of(StreamSpec("x", "float32", (2,)), [values])
    assert result["not_finite"] == 4
    assert (result["min"], result["max"], result["mean"]) == ([1, None], [3, None], [2, None])
    assert result["q99"] == [pytest.approx(2.98), None]
    assert statistics_of(StreamSpec("x", "float32", (2,)), [])["mean"] == [None, None]


def test_channels_of_images_depth_and_points(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache")
    lengths = {name: len(statistics["mean"]) for name, statistics in cache.statistics.items()}
    assert lengths == {"arm": 7, "force": 1, "camera/wrist": 3, "/lidar": 4, "depth": 1}


def test_bfloat16_is_the_nearest_one(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = rng.integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    values = np.concatenate([values, np.array([0, -0.0, np.inf, -np.inf, 1e-45, 3.4e38], np.float32)])
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    got = float_to_bfloat16(values).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    some = ~np.isnan(expected)
    np.testing.assert_array_equal(got[some].view(np.uint16), expected[some].view(np.uint16))
    # Just above the middle of two bfloat16: through float32 it would become the middle, and be rounded down.
    assert float_to_bfloat16(np.array([1 + 2**-8 + 2**-40, 1 + 2**-8, -1 - 2**-8 - 2**-40])).tolist() == [
        0x3F81, 0x3F80, 0xBF81,
    ]  # fmt: skip
