"""Dirty data: strict by default, with file, stream, row and value in the message; named repairs and their counts."""

import fractions
import json
import warnings

import adapter_datasets as datasets
import adapter_logs as logs
import numpy as np
import pytest
import robocache
from robocache import FormatError
from robocache.adapters import _repair, _times

NAN, INF = float("nan"), float("inf")
DAY_S = 24 * 3600.0

# Name, times in seconds, the message of a strict read, then for each repair: the rows that are left and the count.
DIRT = [
    ("sorted", [0.0, 0.1, 0.2], None, {}),
    ("empty", [], None, {}),
    ("one sample", [7.5], None, {}),
    ("gap", [0.0, 0.1, 500.0], None, {}),
    ("jitter", [0.0, 0.13, 0.19, 0.31], None, {}),
    ("past 2^53 ns", [1.8e9, 1.8e9 + 0.001], None, {}),
    (
        "duplicate",
        [0.0, 0.1, 0.1, 0.2],
        None,
        {("duplicate", "last"): ([0, 2, 3], 1), ("duplicate", "first"): ([0, 1, 3], 1)},
    ),
    ("three times", [0.1, 0.1, 0.1], None, {("duplicate", "last"): ([2], 2), ("duplicate", "first"): ([0], 2)}),
    (
        *("swapped", [0.0, 0.2, 0.1, 0.3], "row 2: time goes back from 200000000 to 100000000 ns"),
        {("unsorted", "sort"): ([0, 2, 1, 3], 1), ("unsorted", "drop"): ([0, 1, 3], 1)},
    ),
    (
        *("reversed", [0.3, 0.2, 0.1], "row 1: time goes back from 300000000 to 200000000 ns"),
        {("unsorted", "sort"): ([2, 1, 0], 2), ("unsorted", "drop"): ([0], 2)},
    ),
    (
        *("restart", [0.0, 5.0, 0.0, 5.0], "row 2: time goes back from 5000000000 to 0 ns"),
        {("unsorted", "sort"): ([0, 2, 1, 3], 1), ("unsorted", "drop"): ([0, 1, 3], 1)},
    ),
    (
        *("negative", [-0.5, 0.0, 0.5], "row 0: the time is negative, -500000000 ns"),
        {("negative", "drop"): ([1, 2], 1), ("negative", "keep"): ([0, 1, 2], 0)},
    ),
    ("all negative", [-2.0, -1.0], "row 0: the time is negative", {("negative", "drop"): ([], 2)}),
    (
        *("clock set", [0.0, 0.1, 1.7e9, 1.7e9 + 0.1, 1.7e9 + 0.2], "row 2: the clock jumps from 100000000 to 17000"),
        {("clock_jump", "drop"): ([2, 3, 4], 2), ("clock_jump", "keep"): ([0, 1, 2, 3, 4], 0)},
    ),
    (
        *("jump at the end", [0.0, 0.1, 2 * DAY_S], "row 2: the clock jumps"),
        {("clock_jump", "drop"): ([0, 1], 1)},
    ),
    ("almost a day", [0.0, DAY_S - 1], None, {}),
]
FLOATS = [
    ("nan", [0.0, NAN, 0.2], "row 1: the time is nan", {("nan_time", "drop"): ([0, 2], 1)}),
    ("all nan", [NAN, NAN], "row 0: the time is nan", {("nan_time", "drop"): ([], 2)}),
    ("inf", [0.0, 0.1, INF], "row 2: the time is inf", {("nan_time", "drop"): ([0, 1], 1)}),
    ("minus inf", [-INF, 0.1], "row 0: the time is -inf", {("nan_time", "drop"): ([1], 1)}),
    ("out of range", [0.0, 1e300], "row 1: the time is 1e\\+300", {("nan_time", "drop"): ([0], 1)}),
]


def exact_ns(time_s):
    return round(fractions.Fraction(time_s) * 10**9)


def write_zarr(path, times, values):
    zarr = pytest.importorskip("zarr", minversion="3", reason="zarr datasets are written with zarr")
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    root.create_array("data/state", data=values, chunks=(4, 2))
    root.create_array("data/timestamp", data=np.array(times, np.float64), chunks=(4,))
    root.create_array("meta/episode_ends", data=np.array([len(times)]))
    return path, {}, "state"


def write_mcap(path, times, values):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    log = logs.Log(path.with_suffix(".mcap"))
    for time_s, row in zip(times, values, strict=True):
        time_ns = exact_ns(time_s)
        message = {
            "header": logs.stamp(time_ns),
            "twist": {"linear": logs.xyz([*row, 0]), "angular": logs.xyz([0] * 3)},
        }
        log.write("/state", "geometry_msgs/msg/TwistStamped", message, abs(time_ns))
    log.close()
    return path.with_suffix(".mcap"), {"clock": "header.stamp"}, "/state/linear"


WRITERS = {"zarr": write_zarr, "mcap": write_mcap}
TABLE = [("zarr", *row) for row in DIRT + FLOATS] + [("mcap", *row) for row in DIRT if row[1]]


def written(tmp_path, name, times):
    values = np.arange(2 * len(times), dtype=np.float64).reshape(-1, 2)
    return *WRITERS[name](tmp_path / "dirty", times, values), values


@pytest.mark.parametrize(
    ("name", "dirt", "times", "message", "repairs"), TABLE, ids=lambda x: x if isinstance(x, str) else ""
)
def test_strict_by_default(tmp_path, name, dirt, times, message, repairs):
    path, options, stream, values = written(tmp_path, name, times)
    source = robocache.open(path, **options)
    if message is None:
        episode = source.episode(0)
        np.testing.assert_array_equal(episode.streams[stream].values[:, :2], values)
        assert "repairs" not in episode.meta
        return
    with pytest.raises(FormatError, match=message) as error:
        source.episode(0)
    said = str(error.value)
    assert str(path) in said
    assert f"stream {stream}" in said
    assert "repair={'" in said


REPAIRS = [
    (name, dirt, times, repair, left) for name, dirt, times, _, all_of in TABLE for repair, left in all_of.items()
]


@pytest.mark.parametrize(
    ("name", "dirt", "times", "repair", "left"), REPAIRS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_named_repair_leaves_these_rows_and_counts_the_others(tmp_path, name, dirt, times, repair, left):
    path, options, stream, values = written(tmp_path, name, times)
    rows, count = left
    episode = robocache.open(path, repair=dict([repair]), **options).episode(0)
    found = episode.streams[stream]
    np.testing.assert_array_equal(found.values[:, :2], values[rows])
    np.testing.assert_array_equal(found.times, [exact_ns(times[row]) for row in rows])
    assert (np.diff(found.times) >= 0).all()
    counts = episode.meta.get("repairs", {}).get(stream, {})
    assert counts == ({repair[0]: count} if count else {})


def test_several_repairs_at_once(tmp_path):
    times = [-1.0, 0.2, NAN, 0.1, 0.1, 0.3]
    path, options, stream, values = written(tmp_path, "zarr", times)
    repair = {"negative": "drop", "nan_time": "drop", "unsorted": "sort", "duplicate": "last"}
    episode = robocache.open(path, repair=repair, **options).episode(0)
    np.testing.assert_array_equal(episode.streams[stream].values, values[[4, 1, 5]])
    assert episode.meta["repairs"] == {stream: {"nan_time": 1, "negative": 1, "unsorted": 2, "duplicate": 1}}


def test_duplicates_can_be_an_error(tmp_path):
    path, options, _, _ = written(tmp_path, "zarr", [0.0, 0.1, 0.1])
    with pytest.raises(FormatError, match="row 2: the time 100000000 ns again"):
        robocache.open(path, repair={"duplicate": "error"}, **options).episode(0)


def test_nan_values_are_kept_dropped_or_an_error(tmp_path):
    values = np.array([[1.0, 2.0], [NAN, 3.0], [4.0, 5.0]])
    path, options, stream = write_zarr(tmp_path / "x", [0.0, 0.1, 0.2], values)
    np.testing.assert_array_equal(robocache.open(path).episode(0).streams[stream].values, values)
    episode = robocache.open(path, repair={"nan_value": "drop"}).episode(0)
    np.testing.assert_array_equal(episode.streams[stream].values, values[[0, 2]])
    assert episode.meta["repairs"] == {stream: {"nan_value": 1}}
    with pytest.raises(FormatError, match="row 1: a value is NaN"):
        robocache.open(path, repair={"nan_value": "error"}, **options).episode(0)


def test_another_unit_of_time_than_the_declared_rate_is_noticed(tmp_path):
    milliseconds = [0.0, 33.3, 66.7, 100.0]
    path, _, stream, values = written(tmp_path, "zarr", milliseconds)
    with pytest.raises(FormatError, match=r"rows are 33\d+ ns apart where 30 Hz are declared: another unit of time"):
        robocache.open(path, rate_hz=30).episode(0)
    found = robocache.open(path, rate_hz=30, time_unit="ms").episode(0).streams[stream]
    np.testing.assert_array_equal(found.times, [0, 33_300_000, 66_700_000, 100_000_000])
    kept = robocache.open(path, rate_hz=30, repair={"time_unit": "keep"}).episode(0).streams[stream]
    np.testing.assert_array_equal(kept.values, values)


@pytest.mark.parametrize(
    ("repair", "message"),
    [
        ({"holes": "fill"}, "open: repair must have keys among nan_time, .*, got 'holes'"),
        ({"unsorted": "maybe"}, r"open: repair\['unsorted'\] must be one of error, sort, drop, got 'maybe'"),
    ],
)
def test_a_repair_that_is_not_known_is_a_value_error(tmp_path, repair, message):
    path, options, _, _ = written(tmp_path, "zarr", [0.0])
    with pytest.raises(ValueError, match=message):
        robocache.open(path, repair=repair, **options)


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


def test_seconds_become_the_nanoseconds_that_the_float_says():
    times = np.array([1.7e9 + 0.1, -0.25, 0.0, 1e-9])
    np.testing.assert_array_equal(_times.seconds_to_ns(times), [1700000000099999905, -250_000_000, 0, 1])


# --- lengths and frames that are missing


def dataset(name, tmp_path, rng):
    make, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package, reason=f"{name} datasets are written with {package}")
    return make(tmp_path, rng)


def test_streams_of_other_lengths_in_robomimic(tmp_path, rng):
    written = dataset("robomimic", tmp_path, rng)
    import h5py

    with h5py.File(written.path, "a") as file:
        del file["data/demo_0/rewards"]
        file["data/demo_0/rewards"] = np.arange(3.0)
    with pytest.raises(FormatError, match=r"episode 0 \(demo_0\), stream rewards, row 3: it has 3 rows, the episode 5"):
        robocache.open(written.path).episode(0)
    episode = robocache.open(written.path, repair={"length": "trim"}).episode(0)
    assert {len(stream) for stream in episode.streams.values()} == {3}
    assert episode.meta["repairs"]["actions"] == {"length": 2}


def test_a_rate_must_be_known_and_can_be_overridden(tmp_path, rng):
    written = dataset("robomimic", tmp_path, rng)
    import h5py

    with h5py.File(written.path, "a") as file:
        file["data"].attrs["env_args"] = "{}"
    with pytest.raises(ValueError, match=r"open: rate_hz must be given for .*robomimic files have no times"):
        robocache.open(written.path)
    for bad in (0, -1, NAN, INF, "20", True):
        with pytest.raises(ValueError, match="open: rate_hz must be a rate in Hz above 0"):
            robocache.open(written.path, rate_hz=bad)
    times = robocache.open(written.path, rate_hz=100, mask="train").episode(1).streams["actions"].times
    np.testing.assert_array_equal(times, [0])


def test_steps_that_are_missing_in_calvin(tmp_path, rng):
    written = dataset("calvin", tmp_path, rng)
    (written.path / "training/episode_0000102.npz").unlink()
    with pytest.raises(FormatError, match=r"row 2: training/episode_0000102.npz is missing"):
        robocache.open(written.path).episode(0)
    episode = robocache.open(written.path, repair={"missing": "drop"}).episode(0)
    np.testing.assert_array_equal(episode.streams["robot_obs"].times, datasets.times_of([0, 1, 3, 4], 30))
    assert episode.meta["repairs"]["robot_obs"] == {"missing": 1}


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


def test_frames_that_a_table_lacks(tmp_path, rng):
    written = dataset("lerobot v2.1", tmp_path, rng)
    import pyarrow.parquet as pq

    path = written.path / "data/chunk-000/episode_000000.parquet"
    pq.write_table(pq.read_table(path).slice(0, 4), path)
    with pytest.raises(FormatError, match=r"row 4: .* has 4 frames, meta/episodes 5"):
        robocache.open(written.path).episode(0)
    episode = robocache.open(written.path, repair={"missing": "drop"}).episode(0)
    assert len(episode.streams["action"]) == 4


def test_timestamps_that_say_more_than_the_rate_are_kept(tmp_path, rng):
    written = dataset("lerobot v2.1", tmp_path, rng)
    import pyarrow.parquet as pq

    seconds = np.array([0.0, 0.031, 0.07, 0.1, 0.131], np.float32)
    table, _ = datasets.lerobot_table(rng, 0, 5, 0, seconds)
    pq.write_table(table, written.path / "data/chunk-000/episode_000000.parquet")
    times = robocache.open(written.path, video=False).episode(0).streams["action"].times
    np.testing.assert_array_equal(times, np.rint(seconds.astype(np.float64) * 1e9).astype(np.int64))
    again = robocache.open(written.path, video=False, rate_hz=50).episode(0).streams["action"].times
    np.testing.assert_array_equal(again, datasets.times_of(range(5), 50))


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
    ({"colour": "red"}, "the key 'colour' is not known"),
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


def test_streams_of_other_lengths_in_rlds(tmp_path, rng):
    written = dataset("rlds", tmp_path, rng)
    root = written.path / "0.1.0"
    features = logs.tree(
        steps={"sequence": {"feature": logs.tree(a=logs.tensor("float32", 2), b=logs.tensor("int64"))}}
    )
    (root / "features.json").write_text(json.dumps(features))
    data = {"steps/a": np.arange(10, dtype=np.float32), "steps/b": np.arange(3)}
    record = logs.tfrecord(logs.make_example(data))
    for shard, count in zip(sorted(root.glob("*.tfrecord-*")), (2, 1), strict=True):
        shard.write_bytes(record * count)
    with pytest.raises(FormatError, match="stream a, row 3: it has 5 rows, another stream 3"):
        robocache.open(written.path).episode(0)
    episode = robocache.open(written.path, repair={"length": "trim"}).episode(0)
    np.testing.assert_array_equal(episode.streams["a"].values, np.arange(6, dtype=np.float32).reshape(3, 2))
    assert episode.meta["repairs"] == {"a": {"length": 2}}


def test_the_table_of_open_x_can_be_overridden(tmp_path, rng):
    written = dataset("rlds", tmp_path, rng)
    source = robocache.open(written.path, rate_hz=30)
    assert source.specs["action"].rate_hz == 30
    assert source.metadata["rate_from"] == "user"
    info = written.path / "0.1.0/dataset_info.json"
    info.write_text(info.read_text().replace("asu_table_top_converted", "my_own"))
    with pytest.raises(ValueError, match="open: rate_hz must be given for my_own_externally_to_rlds"):
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


def test_a_clock_must_be_chosen_and_must_be_there(tmp_path, rng):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    messages, _ = logs.log_messages(rng)
    logs.write_log(tmp_path / "x.mcap", messages)
    with pytest.raises(ValueError, match=r"open: clock must be one of log_time, publish_time, header.stamp"):
        robocache.open(tmp_path / "x.mcap")
    with pytest.raises(FormatError, match=r"topic /command, message 0: the message has no header.stamp"):
        list(robocache.open(tmp_path / "x.mcap", clock="header.stamp"))
    with pytest.raises(ValueError, match=r"open: topics must be among .*, got '/nothing'"):
        robocache.open(tmp_path / "x.mcap", clock="log_time", topics=["/nothing"])


def test_joints_that_change_within_a_log_are_an_error(tmp_path):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    log = logs.Log(tmp_path / "x.mcap")
    for i, names in enumerate((["a", "b"], ["b", "a"])):
        message = {"header": logs.stamp(i), "name": names, "position": [1.0, 2.0], "velocity": [], "effort": []}
        log.write("/joints", "sensor_msgs/msg/JointState", message, i)
    log.close()
    with pytest.raises(FormatError, match=r"topic /joints, message 1: position .* of \('b', 'a'\), in the first"):
        list(robocache.open(tmp_path / "x.mcap", clock="log_time"))
