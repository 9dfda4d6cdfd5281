"""check of every format, on datasets that the format's own library wrote, and of what a file makes hard to read."""

import sys
import tracemalloc

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from quality_cases import Listed, found
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec


def write(name, folder, rng):
    make, format, packages = datasets.CASES[name]
    for package in packages:
        version = "3" if package == "zarr" else None
        pytest.importorskip(package, minversion=version, reason=f"{name} datasets are written with {package}")
    return make(folder, rng), format


@pytest.mark.parametrize("name", datasets.CASES)
def test_every_row_of_every_format_is_seen(name, tmp_path, rng):
    written, format = write(name, tmp_path, rng)
    report = robocache.check(written.path, **written.options)
    assert (report.format, len(report.episodes)) == (format, len(written.streams))
    for stream, of_stream in report.streams.items():
        rows = [len(episode[stream][1]) for episode in written.streams if stream in episode]
        assert of_stream.messages == sum(rows), stream
        assert of_stream.episodes == sum(count > 0 for count in rows)
    kinds = {stream: of_stream.kind for stream, of_stream in report.streams.items()}
    lasting = [rows for episode in written.streams for name, rows in episode.items() if kinds[name] != "text"]
    singles = sum(len(rows[1]) == 1 for rows in lasting)
    assert sum(f.kind == "single" for f in report.findings) == singles
    wrong = {"unreadable", "empty", "missing", "length", "nan_time", "out_of_order", "duplicate", "time_unit", "rate"}
    assert not wrong & {f.kind for f in report.findings}


def test_the_cache_of_a_dataset_scores_as_the_dataset(tmp_path, rng):
    written, _ = write("mcap", tmp_path, rng)
    cache = robocache.ingest(written.path, tmp_path / "cache", **written.options)
    of_source, of_cache = robocache.check(written.path, **written.options), robocache.check(cache)
    assert found(of_cache) == found(of_source)
    np.testing.assert_array_equal(of_cache.stream_scores, of_source.stream_scores)
    assert (of_source.checksums, of_cache.checksums) == ("none", "right")
    assert robocache.check(cache.path, checksums=False).checksums == "not checked"


def test_frames_of_a_video_go_to_their_rows_also_where_rows_are_swapped(tmp_path, rng):
    written, _ = write("lerobot v2.1", tmp_path, rng)
    import pyarrow.parquet as pq

    path = written.path / "data/chunk-000/episode_000002.parquet"
    seconds = np.arange(12) / 30
    seconds[[5, 6]] = seconds[[6, 5]]
    table, _ = datasets.lerobot_table(rng, 2, 12, 6, seconds)
    pq.write_table(table, path)
    report = robocache.check(written.path)
    swapped = [f for f in report.findings if f.episode == 2]
    assert {(f.kind, f.row, f.count) for f in swapped} == {("out_of_order", 6, 1)}
    assert {f.stream for f in swapped} == set(report.streams)
    frames = written.streams[2]["observation.video"][0]
    sorted_rows = robocache.open(written.path, repair={"unsorted": "sort"}).episode(2).streams["observation.video"]
    np.testing.assert_array_equal(sorted_rows.values, frames)


def test_rows_with_the_same_time_take_the_same_frame_of_a_video(tmp_path, rng):
    written, _ = write("lerobot v2.1", tmp_path, rng)
    import pyarrow.parquet as pq

    rows = [0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9]
    table, _ = datasets.lerobot_table(rng, 2, 12, 6, np.array(rows) / 30)
    pq.write_table(table, written.path / "data/chunk-000/episode_000002.parquet")
    video = robocache.open(written.path).episode(2).streams["observation.video"]
    np.testing.assert_array_equal(video.values, written.streams[2]["observation.video"][0][rows])
    here = [f for f in robocache.check(written.path).findings if f.episode == 2]
    assert {(f.kind, f.row, f.count) for f in here} == {("duplicate", 4, 2)}


def test_a_time_that_is_nan_costs_its_frame_and_not_the_episode(tmp_path, rng):
    written, _ = write("lerobot v2.1", tmp_path, rng)
    import pyarrow.parquet as pq

    seconds = np.arange(12) / 30
    seconds[0] = np.nan
    table, _ = datasets.lerobot_table(rng, 2, 12, 6, seconds)
    pq.write_table(table, written.path / "data/chunk-000/episode_000002.parquet")
    here = [f for f in robocache.check(written.path).findings if f.episode == 2]
    kinds = {(f.stream == "observation.video", f.kind, f.row, f.count) for f in here}
    assert kinds == {(True, "missing", 0, 1), (False, "nan_time", 0, 1)}


def test_order_cannot_be_kept_but_by_check(tmp_path, rng):
    written, _ = write("calvin", tmp_path, rng)
    with pytest.raises(ValueError, match=r"repair\['unsorted'\] must be one of error, sort, drop, got 'keep'"):
        robocache.open(written.path, repair={"unsorted": "keep"})
    with pytest.raises(ValueError, match=r"repair\['missing'\] must be one of"):
        robocache.check(written.path, repair={"missing": "ignore"})


class Long(Listed):
    """Episodes of 4 MB that are made when asked for."""

    def __init__(self, episodes):
        super().__init__(specs={"x": StreamSpec("x", "float32", (8,), rate_hz=100.0)})
        self.count = episodes

    def __len__(self):
        return self.count

    def episode(self, index):
        values = np.random.default_rng(index).normal(size=(1 << 17, 8)).astype(np.float32)
        values[3, 1] = np.nan
        return Episode(index, {"x": EpisodeStream(self.specs["x"], values, np.arange(1 << 17) * 10**7)})


def test_memory_is_that_of_an_episode(request):
    if sys.gettrace() is not None:
        pytest.skip("a tracer is at work")
    tracemalloc.start()
    request.addfinalizer(tracemalloc.stop)
    report = robocache.check(Long(30), keep=5)
    _, peak = tracemalloc.get_traced_memory()
    assert (len(report.findings), report.findings_not_kept) == (5, 25)
    assert peak < 60 << 20  # all episodes: 120 MB and their times
    del report
    few = tracemalloc.get_traced_memory()[0]
    assert few < 4 << 20
