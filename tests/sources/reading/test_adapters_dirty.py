"""Dirty data that golden_dirty has no files of: edges of the rules, videos, malformed metadata, rates and clocks."""

import contextlib
import fractions
import json
import sqlite3
import warnings

import adapter_datasets as datasets
import adapter_logs as logs
import numpy as np
import pytest
import robocache
from robocache import FormatError
from robocache.sources.reading import repair as _repair
from robocache.sources.reading import times as _times

NAN, INF = float("nan"), float("inf")
DAY_NS = 24 * 3600 * 10**9


def finished(times_ns, repair=None):
    """Rows of the times, numbered from 0, after the repairs; and what was counted."""
    spec = robocache.StreamSpec("state", "int64", (1,))
    repairer = _repair.Repairer(_repair.checked_policies(repair), "x")
    stream = repairer.finish(spec, np.arange(len(times_ns))[:, None], np.array(times_ns))
    np.testing.assert_array_equal(stream.times, np.array(times_ns)[stream.values[:, 0]])
    return stream.values[:, 0].tolist(), repairer.counts


def test_a_day_between_two_rows_is_a_pause_and_more_is_a_clock_that_was_set():
    assert finished([0, DAY_NS]) == ([0, 1], {})
    with pytest.raises(FormatError, match=f"row 1: the clock jumps from 0 to {DAY_NS + 1} ns"):
        finished([0, DAY_NS + 1])


@pytest.mark.parametrize(("dtype", "first"), [(np.float32, 1.7e9), (np.float32, 40_000.0), (np.float16, 1000.0)])
def test_times_that_a_narrow_float_cannot_tell_apart_are_an_error(dtype, first):
    """They were kept as duplicates: all rows of two minutes at one time."""
    times = (first + np.arange(20) * 1e-3).astype(dtype)
    message = f"times are {np.dtype(dtype)}, which has steps of .* s at {first:.0f}: most rows have the time of another"
    with pytest.raises(FormatError, match=message):
        finished(times)
    repairer = _repair.Repairer(_repair.checked_policies({"time_unit": "keep"}), "x")
    stream = repairer.finish(robocache.StreamSpec("state", "int64", ()), np.arange(20), times)
    assert len(stream) == 20


@pytest.mark.parametrize(
    "times",
    [
        (1.7e9 + np.arange(20) * 1e-3).astype(np.float64),
        (40_000 + np.arange(20) / 30).astype(np.float32),
        np.repeat(np.arange(10, dtype=np.float32), 2),  # duplicates that were recorded
        np.float32([1.7e9, 1.7e9]),
    ],
)
def test_times_that_their_float_tells_apart_are_no_error(times):
    spec = robocache.StreamSpec("state", "int64", ())
    stream = _repair.Repairer(_repair.checked_policies(None), "x").finish(spec, np.arange(len(times)), times)
    assert len(stream) == len(times)


def test_times_further_apart_than_int64_holds_are_a_jump_and_not_a_step_back():
    times = [-9 * 10**18, 9 * 10**18, 9 * 10**18]
    with pytest.raises(FormatError, match=f"row 1: the clock jumps from {times[0]} to {times[1]} ns"):
        finished(times, {"negative": "keep"})
    assert finished(times, {"negative": "keep", "clock_jump": "drop"}) == ([1, 2], {"state": {"clock_jump": 1}})


@pytest.mark.parametrize(
    ("times_ns", "left"),
    [
        ([0, 10**8, 2 * DAY_NS], [0, 1]),
        ([0, 2 * DAY_NS, 2 * DAY_NS + 10**8], [1, 2]),
        ([0, 2 * DAY_NS, 2 * DAY_NS + 1, 5 * DAY_NS], [1, 2]),
    ],
)
def test_of_the_parts_between_two_jumps_the_longest_is_kept(times_ns, left):
    dropped = len(times_ns) - len(left)
    assert finished(times_ns, {"clock_jump": "drop"}) == (left, {"state": {"clock_jump": dropped}})


@pytest.mark.parametrize(
    ("repair", "message"),
    [
        ({"holes": "fill"}, "open: repair must have keys among nan_time, .*, got 'holes'"),
        ({"unsorted": "maybe"}, r"open: repair\['unsorted'\] must be one of error, sort, drop, got 'maybe'"),
    ],
)
def test_a_repair_that_is_not_known_is_a_value_error(tmp_path, repair, message):
    with pytest.raises(ValueError, match=message):
        robocache.open(tmp_path, repair=repair, format="robomimic", rate_hz=10)


def test_ragged_points_stay_with_their_messages():
    spec = robocache.StreamSpec("cloud", "float32", (3,), "points")
    points = np.arange(18, dtype=np.float32).reshape(6, 3)
    repairer = _repair.Repairer(_repair.checked_policies({"unsorted": "sort", "duplicate": "last"}), "x")
    offsets = np.array([0, 2, 2, 5, 6])
    stream = repairer.finish(spec, points, np.array([30, 10, 20, 20]), offsets)
    np.testing.assert_array_equal(stream.times, [10, 20, 30])
    np.testing.assert_array_equal(stream.offsets, [0, 0, 1, 3])
    np.testing.assert_array_equal(stream.values, points[[5, 0, 1]])


def test_times_at_a_rate_are_exact_after_a_year():
    rows = 30 * 3600 * 24 * 365
    assert _times.index_to_ns(np.array([rows]), 30)[0] == 3600 * 24 * 365 * 10**9
    np.testing.assert_array_equal(_times.times_at_rate(4, 66.6), [0, 15015015, 30030030, 45045045])
    np.testing.assert_array_equal(_times.times_at_rate(4, 12.5), [0, 80_000_000, 160_000_000, 240_000_000])


def test_times_at_an_odd_rate_do_not_overflow():
    """The sum of 1e12 for each row was a product beyond int64 after ten million rows."""
    row, rate = 20_000_000, fractions.Fraction("987654.321012")
    assert _times.index_to_ns(np.array([row]), float(rate))[0] == round(row * 10**9 / rate)
    with pytest.raises(OverflowError):
        _times.index_to_ns(np.array([2**62]), 30)
    with pytest.raises(ValueError, match="open: rate_hz must be a rate in Hz of at least 1e-06, got 1e-07"):
        _times.checked_rate("rate_hz", 1e-7)


def test_seconds_become_the_nanoseconds_that_the_float_says():
    times = np.array([1.7e9 + 0.1, -0.25, 0.0, 1e-9])
    np.testing.assert_array_equal(_times.seconds_to_ns(times), [1700000000099999905, -250_000_000, 0, 1])


def dataset(name, tmp_path, rng):
    make, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package, reason=f"{name} datasets are written with {package}")
    return make(tmp_path, rng)


def test_a_rate_must_be_known_and_can_be_overridden(tmp_path, rng):
    written = dataset("robomimic", tmp_path, rng)
    import h5py

    with h5py.File(written.path, "a") as file:
        file["data"].attrs["env_args"] = "{}"
    with pytest.raises(ValueError, match=r"open: rate_hz is required for .*robomimic files have no timestamps"):
        robocache.open(written.path)
    for bad in (0, -1, NAN, INF, "20", True):
        with pytest.raises(ValueError, match="open: rate_hz must be a rate in Hz above 0"):
            robocache.open(written.path, rate_hz=bad)
    times = robocache.open(written.path, rate_hz=100, mask="train").episode(1).streams["actions"].times
    np.testing.assert_array_equal(times, [0])


def test_calvin_by_its_language(tmp_path, rng):
    written = dataset("calvin", tmp_path, rng)
    source = robocache.open(written.path, episodes="language")
    assert len(source) == 1
    episode = source.episode(0)
    assert episode.task == "open the drawer"
    np.testing.assert_array_equal(episode.streams["robot_obs"].values, written.streams[0]["robot_obs"][0][1:4])


def test_frames_that_a_video_lacks(tmp_path, rng):
    written = dataset("lerobot v2.1", tmp_path, rng)
    path = written.path / "videos/chunk-000/observation.video/episode_000002.mp4"
    frames = written.streams[2]["observation.video"][0]
    datasets.write_video(path, frames[:9])
    with pytest.raises(FormatError, match=r"stream observation.video, row 9: .* has no frame at 0.3000 s"):
        robocache.open(written.path).episode(2)
    episode = robocache.open(written.path, repair={"missing": "drop"}).episode(2)
    np.testing.assert_array_equal(episode.streams["observation.video"].values, frames[:9])
    assert len(episode.streams["action"]) == 12
    assert episode.meta["repairs"] == {"observation.video": {"missing": 3}}


def test_videos_can_be_left_out(tmp_path, rng):
    written = dataset("lerobot v3.0", tmp_path, rng)
    assert "observation.video" not in robocache.open(written.path, video=False).episode(0).streams


def test_a_wrong_rate_does_not_move_the_frames_of_a_video(tmp_path, rng):
    written = dataset("lerobot v3.0", tmp_path, rng)
    episode = robocache.open(written.path, rate_hz=7).episode(2)
    np.testing.assert_array_equal(
        episode.streams["observation.video"].values, written.streams[2]["observation.video"][0]
    )
    np.testing.assert_array_equal(episode.streams["observation.video"].times, datasets.times_of(range(12), 7))


def test_the_size_of_a_picture_is_that_of_the_picture(tmp_path, rng):
    written = dataset("lerobot v3.0", tmp_path, rng)
    path = written.path / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.image"].update(shape=[480, 640, 3], names=None)
    path.write_text(json.dumps(info))
    assert robocache.open(written.path).specs["observation.image"].shape == (16, 24, 3)


INFO = [
    ({"fps": "30"}, "fps is the text '30'"),
    ({"fps": None}, "fps is missing"),
    ({"codebase_version": "v3.0"}, "laid out as v2.1"),
    ({"codebase_version": None}, "laid out as v2.1"),
    ({"data_path": 7}, "data_path is '7'"),
    ({"data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"}, "which is not of v2.1"),
    ({"video_path": "nowhere"}, "video_path is 'nowhere'"),
    ({"color": "red"}, "the key 'color' is not known"),
    ({"chunks_size": "many"}, None),
    ({"fps": 30.0}, None),
    ({"total_episodes": 99}, None),
]


@pytest.mark.parametrize(("change", "message"), INFO, ids=lambda x: str(x)[:40])
def test_a_malformed_info_is_read_with_a_warning(tmp_path, rng, change, message):
    written = dataset("lerobot v2.1", tmp_path, rng)
    path = written.path / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["action"]["fps"] = 30
    path.write_text(json.dumps({**info, **change}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = robocache.open(written.path)
    said = [str(warning.message) for warning in caught]
    assert [message in text for text in said] == ([True] if message else [])
    assert len(source.metadata["problems"]) == len(said)
    values, times = written.streams[2]["action"]
    np.testing.assert_array_equal(source.episode(2).streams["action"].values, values)
    np.testing.assert_array_equal(source.episode(2).streams["action"].times, times)


def test_the_table_of_open_x_can_be_overridden(tmp_path, rng):
    written = dataset("rlds", tmp_path, rng)
    source = robocache.open(written.path, rate_hz=30)
    assert source.specs["action"].rate_hz == 30
    assert source.metadata["rate_from"] == "user"
    info = written.path / "0.1.0/dataset_info.json"
    info.write_text(info.read_text().replace("asu_table_top_converted", "my_own"))
    with pytest.raises(ValueError, match="open: rate_hz is required for my_own_externally_to_rlds"):
        robocache.open(written.path)


# --- clocks of MCAP


@pytest.mark.parametrize(
    ("clock", "late_ns"), [("log_time", 7_000_000), ("publish_time", 2_000_000), ("header.stamp", 0)]
)
def test_the_clock_is_the_one_that_was_chosen(tmp_path, rng, clock, late_ns):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    messages, streams = logs.log_messages(rng)
    logs.write_log(tmp_path / "x.mcap", messages)
    source = robocache.open(tmp_path / "x.mcap", clock=clock, topics=["/imu", "/joint_states"])
    for name in ("/imu/orientation", "/joint_states/velocity"):
        np.testing.assert_array_equal(source.episode(0).streams[name].times, streams[name][1] + late_ns)


@pytest.mark.parametrize("listed", ["bag_0.db3", "bag_0.db3.zstd"])
def test_a_bag_of_sqlite_says_how_to_convert_it(tmp_path, listed):
    bag = tmp_path / "bags" / "one"
    bag.mkdir(parents=True)
    (bag / "metadata.yaml").write_text(f"rosbag2_bagfile_information:\n  relative_file_paths:\n    - {listed}\n")
    with contextlib.closing(sqlite3.connect(bag / "bag_0.db3")) as database:
        database.execute("CREATE TABLE messages (id INTEGER)")
        database.commit()
    for path, named in ((bag, bag / listed), (bag.parent, bag / listed), (bag / "bag_0.db3", bag / "bag_0.db3")):
        with pytest.raises(FormatError) as caught:
            robocache.open(path)
        assert str(caught.value) == (
            f"mcap: {named} is a SQLite bag; convert it to MCAP with 'ros2 bag convert' or, without ROS, with "
            "'rosbags-convert --dst-storage mcap' (pip install rosbags)"
        )
    (bag / "bag_0.db3").rename(tmp_path / "other.sqlite")
    with pytest.raises(FormatError, match="unrecognized dataset format"):
        robocache.open(tmp_path / "other.sqlite")


def test_a_clock_must_be_chosen_and_must_be_there(tmp_path, rng):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    messages, _ = logs.log_messages(rng)
    logs.write_log(tmp_path / "x.mcap", messages)
    needed = r"open: clock is required for .*x\.mcap; it must be one of log_time, publish_time, header\.stamp"
    with pytest.raises(ValueError, match=needed):
        robocache.open(tmp_path / "x.mcap")
    with pytest.raises(ValueError, match=r"open: clock must be one of log_time, .*, got 'wall'"):
        robocache.open(tmp_path / "x.mcap", clock="wall")
    with pytest.raises(FormatError, match=r"topic /command, message 0: the message has no header.stamp"):
        list(robocache.open(tmp_path / "x.mcap", clock="header.stamp"))
    with pytest.raises(ValueError, match=r"open: topics must be among .*, got '/nothing'"):
        robocache.open(tmp_path / "x.mcap", clock="log_time", topics=["/nothing"])
