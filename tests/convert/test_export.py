"""``export`` to LeRobot v3.0: the identity on what LeRobot can say, ``align`` on what it cannot, and all or nothing."""

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource, digest
from export_cases import expressible, listed, random_rows, same, times_at
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

pytest.importorskip("pyarrow")
pytest.importorskip("PIL")


@pytest.mark.parametrize("fps", [30, 50, 12.5, 29.97, 1000])
def test_what_lerobot_can_say_comes_back_bit_for_bit(fps, tmp_path, rng):
    source = expressible(rng, fps)
    done = robocache.export(source, tmp_path / "out")
    assert done.lost == []
    assert (done.fps, done.episodes, done.frames) == (fps, 3, 48)
    same(robocache.open(tmp_path / "out"), source)
    cache = robocache.ingest(tmp_path / "out", tmp_path / "cache")
    same(cache, source)
    again = robocache.export(tmp_path / "cache", tmp_path / "again", fps=fps)
    assert again.features == {name: name for name in source.specs}
    same(robocache.open(tmp_path / "again"), source)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes(), path


@pytest.mark.parametrize("version", ["lerobot v2.1", "lerobot v3.0"])
def test_a_lerobot_dataset_through_a_cache_and_back_is_itself(version, tmp_path, rng):
    write, _, packages = datasets.CASES[version]
    for package in packages:
        pytest.importorskip(package)
    (tmp_path / "source").mkdir()
    source = robocache.open(write(tmp_path / "source", rng).path)
    robocache.ingest(source, tmp_path / "cache")
    done = robocache.export(tmp_path / "cache", tmp_path / "out")
    back = robocache.open(tmp_path / "out")
    assert back.metadata["problems"] == []
    assert back.metadata["info"]["robot_type"] == "so100"
    assert [s.names for s in back.specs.values()] == [s.names for s in source.specs.values()]
    assert digest_of(back) == digest_of(source)
    assert done.lost == ["meta of 3 episodes is not stored", "metadata of the dataset is not stored"]


def digest_of(source):
    class Bare:
        specs = source.specs

        def __iter__(self):
            return (Episode(e.index, e.streams, e.task, {}) for e in source)

    return digest(Bare())


def multirate(rng):
    """Joints at 500 Hz, a quaternion at 100, a camera at 30, a flag at 7, all with jitter and from the Unix time on."""
    begin, streams = 1_700_000_000_000_000_000, {}
    for spec, rate in (
        (StreamSpec("joints", "float32", (7,), rate_hz=500.0), 500),
        (StreamSpec("half", "bfloat16", (2,), rate_hz=200.0), 200),
        (StreamSpec("/imu/orientation", "float64", (4,), rate_hz=100.0, meta={"method": "slerp_xyzw"}), 100),
        (StreamSpec("pose", "float64", (6,), meta={"angles": [3, 4, 5]}), 90),
        (StreamSpec("camera", "uint8", (4, 6, 3), "image", 30.0), 30),
        (StreamSpec("grip", "bool", ()), 7),
        (StreamSpec("/lidar", "float32", (3,), "points"), 10),
    ):
        rows = 2 * rate
        times = begin + np.sort(times_at(rows, rate) + rng.integers(0, 10**9 // (3 * rate), rows))
        kind = spec.kind == "points"
        values = random_rows(
            StreamSpec("x", "uint16" if spec.dtype == "bfloat16" else spec.dtype, spec.shape), rng, rows
        )
        if spec.dtype.startswith("float"):
            values = rng.uniform(-3, 3, values.shape).astype(spec.dtype)
        offsets = np.arange(rows + 1) if kind else None
        streams[spec.name] = EpisodeStream(
            spec, values & 0x3FFF if spec.dtype == "bfloat16" else values, times, offsets
        )
    return listed(Episode(0, streams, None))


def test_streams_of_several_rates_are_what_align_says(tmp_path, rng):
    source = multirate(rng)
    methods = {"joints": "cubic", "camera": "nearest"}
    done = robocache.export(source, tmp_path / "out", fps=25, methods=methods)
    back = robocache.open(tmp_path / "out").episode(0).streams
    rows = source.episodes[0].streams
    used = [stream for name, stream in rows.items() if name != "/lidar"]
    begin, end = max(s.times[0] for s in used), min(s.times[-1] for s in used)
    grid = begin + np.arange(0, end - begin + 1, 40_000_000)
    for name, feature in done.features.items():
        spec, values = rows[name].spec, rows[name].values
        if spec.dtype == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        method = methods.get(name, spec.meta.get("method"))
        if name == "pose":
            method = [(3, 6, "angle")]
        expected = robocache.align(robocache.Stream(values, rows[name].times, method=method), grid[None]).values[0]
        np.testing.assert_array_equal(back[feature].times, np.arange(len(grid)) * 40_000_000)
        np.testing.assert_array_equal(back[feature].values.reshape(expected.shape), expected, name)
        assert back[feature].values.dtype == expected.dtype
    assert set(back) == {"joints", "half", "imu.orientation", "pose", "camera", "grip"}


@pytest.mark.parametrize("name", datasets.CASES)
def test_every_format_is_exported_as_align_says(name, tmp_path, rng):
    source = datasets.opened(name, tmp_path, rng)
    robocache.ingest(source, tmp_path / "cache")
    done = robocache.export(tmp_path / "cache", tmp_path / "out", fps=17, span="all", skip_incomplete=True)
    back = robocache.open(tmp_path / "out")
    kept = [e for e in source if all(len(e.streams.get(old, ())) for old in done.features)]
    assert len(back) == len(kept) == done.episodes > 0
    assert [e.task or "" for e in kept] == [e.task for e in back]
    reasons = ("LeRobot has no point clouds", "export writes no text but the tasks of episodes and frames")
    left_out = {entry.name for entry in done.left_out if entry.reason in reasons}
    ragged = {name for name, spec in source.specs.items() if spec.kind in ("points", "text")}
    assert ragged == left_out == set(source.specs) - set(done.features)
    for episode, exported in zip(kept, back, strict=True):
        used = [episode.streams[old] for old in done.features]
        begin, end = min(s.times[0] for s in used), max(s.times[-1] for s in used)
        grid = np.array([begin + t for t in times_at(10_000, 17) if begin + t <= end])
        for old, new in done.features.items():
            stream = episode.streams[old]
            method = "previous" if stream.spec.kind != "vector" else stream.spec.meta.get("method")
            if "angles" in stream.spec.meta:
                method = [(c, c + 1, "angle") for c in stream.spec.meta["angles"]]
            expected = robocache.align(robocache.Stream(stream.values, stream.times, method=method), grid[None]).values[
                0
            ]
            np.testing.assert_array_equal(exported.streams[new].times, grid - begin)
            np.testing.assert_array_equal(exported.streams[new].values.reshape(expected.shape), expected, old)


def test_what_is_lost_is_told(tmp_path, rng):
    lost = robocache.export(multirate(rng), tmp_path / "out", fps=25, max_gap_s=0.05).lost
    for line in (
        "half: stored as float32: LeRobot has no bfloat16; the values are unchanged",
        "/imu/orientation: renamed to imu.orientation: LeRobot names cannot contain slashes",
        "grip: stored with rows of shape (1,) instead of ()",
        "1 episodes have no task; stored with an empty one, which LeRobot requires",
        "1 episodes do not start at time 0; the start time is not stored",
        "/imu/orientation: resampled in 1 episodes, at 25 Hz by slerp_xyzw",
    ):
        assert line in lost, line
    assert any(
        line.startswith("grip: ") and line.endswith("held or in gaps; LeRobot cannot mark them") for line in lost
    )
    assert not any(line.startswith("joints: ") and "gaps" in line for line in lost)


def test_the_span_is_where_all_streams_have_rows_or_all_of_it(tmp_path):
    specs = [StreamSpec("a", "int64", (1,)), StreamSpec("b", "int64", (1,))]
    second = 10**9
    rows = {
        "a": EpisodeStream(specs[0], np.array([[1], [2], [3]]), np.array([0, second, 2 * second])),
        "b": EpisodeStream(specs[1], np.array([[7], [8]]), np.array([second, 4 * second])),
    }
    source = listed(Episode(0, rows, "t"))
    robocache.export(source, tmp_path / "overlap", fps=1)
    robocache.export(source, tmp_path / "all", fps=1, span="all")
    overlap, whole = (robocache.open(tmp_path / name).episode(0).streams for name in ("overlap", "all"))
    assert (overlap["a"].values.tolist(), overlap["b"].values.tolist()) == ([[2], [3]], [[7], [7]])
    assert whole["a"].values.ravel().tolist() == [1, 2, 3, 3, 3]
    assert whole["b"].values.ravel().tolist() == [7, 7, 7, 7, 8]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "export: fps is required if streams have no rate or different rates, got rates none, 30, 500"),
        ({"fps": 0}, ValueError, "export: fps must be a rate in Hz above 0, got 0"),
        ({"fps": "30"}, ValueError, "export: fps must be a rate in Hz above 0, got '30'"),
        ({"fps": 1e-7, "streams": ["arm"]}, ValueError, "export: episode 0: fps must be at least 1e-06, got 1e-07"),
        ({"fps": 30, "span": "both"}, ValueError, "export: span must be one of overlap, all, got 'both'"),
        ({"fps": 30, "streams": ["leg"]}, ValueError, "export: the source has no stream 'leg'"),
        ({"fps": 30, "streams": {"arm": "index"}}, ValueError, "feature of 'arm' must not be named 'index'"),
        (
            {"fps": 30, "streams": {"arm": "a/b", "force": "a.b"}},
            ValueError,
            "'arm' and 'force' would both be named 'a.b'",
        ),
        ({"fps": 30, "streams": ["/lidar"]}, ValueError, "export: no stream can be a LeRobot feature"),
        (
            {"fps": 30, "methods": {"leg": "linear"}},
            ValueError,
            "export: methods must name streams among .*, got 'leg'",
        ),
        (
            {"fps": 30, "methods": {"camera/wrist": "linear"}},
            ValueError,
            "because images are never interpolated, got 'linear'",
        ),
        (
            {"fps": 30, "methods": {"arm": "slerp"}},
            ValueError,
            "^export: method of 'arm' must be linear, .*, got 'slerp'",
        ),
        (
            {"fps": 30, "methods": {"arm": [(0, 99, "angle")]}},
            ValueError,
            r"^export: method of 'arm' must have channel ranges",
        ),
        ({"fps": 30, "max_gap_s": 0}, ValueError, "export: max_gap_s must be above 0, got 0"),
        ({"fps": 30, "episodes": [9]}, ValueError, "export: episodes must be from 0 to 4, got 9"),
        (
            {"fps": 30, "format": "mcap"},
            ValueError,
            "export: format and options must not be given for a source that is already open, got format",
        ),
        (
            {"fps": 30},
            robocache.FormatError,
            "export: episode 2: stream 'arm' has no rows; leave it out with streams= or episodes=",
        ),
        ({"fps": 1e5, "streams": ["arm"]}, robocache.FormatError, "frames at 100000 Hz: too many"),
    ],
)
def test_bad_calls_are_refused_and_leave_nothing(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        robocache.export(MadeSource(SPECS), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_episodes_without_a_frame_are_skipped_where_that_is_asked(tmp_path):
    done = robocache.export(MadeSource(SPECS), tmp_path / "out", fps=0.1, streams=["arm"], skip_incomplete=True)
    assert done.episodes == 4
    assert robocache.LeftOut("1 episodes", "without a frame: 2") in done.left_out
    assert [e.task for e in robocache.open(tmp_path / "out")] == ["task 0", "task 1", "task 1", "task 0"]
