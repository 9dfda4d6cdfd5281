"""Values, rows and times that do not fit what a file declares: an error, or told, never another value in silence."""

import json

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from robocache import FormatError
from robocache.sources.reading.declared import as_declared

NAN, INF = float("nan"), float("inf")


# ---- a dtype that is declared ----------------------------------------------------------------------------------------

I64, U64 = 2**63 - 1, 2**64 - 1
FITS = [
    ("int64", [0, 255], "uint8"),
    ("uint64", [0, I64], "int64"),
    ("int64", [0, I64], "uint64"),
    ("float64", [-(2.0**63), 2.0**62], "int64"),
    ("float32", [0, 255], "uint8"),
    ("float64", [NAN, INF, 0.1, 3e38], "float32"),
    ("int64", [2**24, -(2**24), 2**60], "float32"),
    ("int64", [0, 1], "bool"),
    ("bool", [0, 1], "float32"),
    ("bool", [0, 1], "int8"),
    ("float16", [-128, 127], "int8"),
    ("float64", [], "int8"),
]
DOES_NOT = [
    ("int64", [1, 256], "uint8"),
    ("int64", [1, -1], "uint64"),
    ("uint64", [1, I64 + 1], "int64"),
    ("int32", [1, 128], "int8"),
    ("float64", [1, 1.5], "int64"),
    ("float64", [1, NAN], "int64"),
    ("float64", [1, INF], "int64"),
    ("float64", [1, 2.0**63], "int64"),
    ("float32", [1, 2.0**64], "uint64"),
    ("float64", [1, -1], "uint8"),
    ("float64", [1, -1e300], "float32"),
    ("int64", [1, 2**24 + 1], "float32"),
    ("int64", [1, I64], "float64"),
    ("uint64", [1, U64], "float64"),
    ("int64", [1, 65520], "float16"),
    ("float64", [1, 0.5], "bool"),
    ("float64", [1, NAN], "bool"),
    ("uint8", [1, 2], "bool"),
]


@pytest.mark.parametrize(("have", "values", "want"), FITS)
def test_values_that_fit_what_is_declared_stay(have, values, want):
    given = np.array(values, have)
    found = as_declared(given, want, "x")
    assert found.dtype == want
    np.testing.assert_array_equal(found, given.astype(want))


@pytest.mark.parametrize(("have", "values", "want"), DOES_NOT)
def test_a_value_that_does_not_fit_is_named_with_its_row(have, values, want):
    with pytest.raises(FormatError, match=rf"^x, row 1: the value is .* where {want} is declared$"):
        as_declared(np.array(values, have), want, "x")


# ---- LeRobot ---------------------------------------------------------------------------------------------------------


def lerobot(root, dtype, shape, column):
    """One episode with the stream a, of a Parquet column as it is given."""
    pa = pytest.importorskip("pyarrow", reason="Parquet is written with pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (root / "meta").mkdir()
    (root / "data/chunk-000").mkdir(parents=True)
    frame = np.arange(len(column))
    table = {
        "a": column,
        "timestamp": (frame / 10).astype(np.float32),
        "frame_index": frame,
        "episode_index": 0 * frame,
    }
    parquet.write_table(pa.table(table), root / "data/chunk-000/episode_000000.parquet")
    features = {"a": {"dtype": dtype, "shape": shape}}
    info = {"codebase_version": "v2.1", "fps": 10, "features": features, "total_episodes": 1, "chunks_size": 1000}
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "t"}\n')
    (root / "meta/episodes.jsonl").write_text(json.dumps({"episode_index": 0, "tasks": ["t"], "length": len(column)}))
    return robocache.open(root)


LEROBOT = [
    ("uint8", [1], [1, 300, -1], "row 1: the value is 300 where uint8 is declared"),
    ("int64", [1], [1.0, 2.0, 2.5], "row 2: the value is 2.5 where int64 is declared"),
    ("float32", [1], [1.0, 1e300], r"row 1: the value is 1e\+300 where float32 is declared"),
    ("bool", [1], [0.0, 0.5], "row 1: the value is 0.5 where bool is declared"),
    ("int64", [2], [[1, 2], [3, None]], "row 1: the value is null"),
    ("float32", [2], [[1.0, 2.0], [3.0, None]], "row 1: the value is null"),
    ("float32", [2, 2], [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], None]], "row 1: the value is null"),
    ("float32", [2], [[1.0, 2.0, 3.0], [4.0]], "row 1: a list of length 1, but row 0 has length 3"),
    (
        "float32",
        [2, 2],
        [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0, 3.0], [4.0]]],
        "row 1: a list of length 3, but row 0 has length 2",
    ),
    ("float32", [2, 2], [[[1.0], [2.0]], [[1.0], [2.0]]], r"4 values for 2 rows of shape \(2, 2\)"),
    ("float32", [3, 2], [[[1, 2, 3], [4, 5, 6]]] * 2, r"rows of shape \(2, 3\) where \(3, 2\) is declared"),
]


@pytest.mark.parametrize(("dtype", "shape", "column", "message"), LEROBOT)
def test_a_lerobot_column_that_is_not_what_info_declares(tmp_path, dtype, shape, column, message):
    with pytest.raises(FormatError, match=rf"episode_000000\.parquet, stream a[,:] {message}"):
        lerobot(tmp_path, dtype, shape, column).episode(0)


@pytest.mark.parametrize(
    ("shape", "column"),
    [((1,), [1, 2]), ((2, 2), [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]), ((2, 2), [[1, 2, 3, 4], [5, 6, 7, 8]])],
)
def test_a_lerobot_column_of_another_dtype_with_the_same_values_is_read(tmp_path, shape, column):
    values = lerobot(tmp_path, "float32", list(shape), column).episode(0).streams["a"].values
    np.testing.assert_array_equal(values, np.array(column, np.float32).reshape(2, *shape))


# ---- RLDS ------------------------------------------------------------------------------------------------------------


def rlds(root, example, outside=None, **step):
    """One episode; ``step``: features of its steps, ``outside``: those beside them."""
    for package in ("google.protobuf", "google_crc32c"):
        pytest.importorskip(package, reason=f"TFRecords are written with {package}")
    features = logs.tree(steps={"sequence": {"feature": logs.tree(**step)}}, **(outside or {}))
    (root / "features.json").write_text(json.dumps(features))
    (root / "x-train.tfrecord-00000-of-00001").write_bytes(logs.tfrecord(logs.make_example(example)))
    return robocache.open(root, rate_hz=5)


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("uint8", np.array([1, 300]), "row 1: the value is 300 where uint8 is declared"),
        ("int32", np.array([2**40, 1]), "row 0: the value is 1099511627776 where int32 is declared"),
        ("int64", np.array([1, 2.5], np.float32), "row 1: the value is 2.5 where int64 is declared"),
        ("bool", np.array([1, 2]), "row 1: the value is 2 where bool is declared"),
    ],
)
def test_rlds_values_that_are_not_of_the_declared_dtype(tmp_path, dtype, values, message):
    with pytest.raises(FormatError, match=rf"episode 0, stream a, {message}"):
        rlds(tmp_path, {"steps/a": values}, a=logs.tensor(dtype)).episode(0)


def test_a_feature_of_the_episode_does_not_replace_the_stream_of_its_name(tmp_path):
    example = {"steps/reward": np.array([1, 2, 3], np.float32), "reward": np.array([9], np.float32)}
    reward = logs.tensor("float32")
    episode = rlds(tmp_path, example, {"reward": reward}, reward=reward).episode(0)
    np.testing.assert_array_equal(episode.streams["reward"].values, [1, 2, 3])
    assert episode.meta["reward"] == 9


def test_pictures_of_a_size_that_the_first_episode_cannot_tell_are_listed(tmp_path):
    image = {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}}
    source = rlds(tmp_path, {"steps/a": np.empty(0)}, a=logs.tensor("float32"), camera=image)
    assert (list(source.specs), source.metadata["left_out"]) == (["a"], ["camera"])


def test_features_that_are_not_declared_are_listed(tmp_path):
    rows = np.arange(2, dtype=np.float32)
    ragged = {"sequence": {"feature": logs.tensor("float32"), "length": "-1"}}
    first = {"steps/a": rows, "steps/force": rows, "steps/hits/ragged_row_lengths_0": rows, "site": [b"Kyoto"]}
    rlds(tmp_path, first, a=logs.tensor("float32"), hits=ragged)
    second = logs.tfrecord(logs.make_example({**first, "steps/glove": rows}))
    shard = tmp_path / "x-train.tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes() + second)
    source = robocache.open(tmp_path, rate_hz=5)
    assert source.metadata["left_out"] == ["hits", "site", "steps/force"]
    assert str(source.left_out[1]) == "site: features.json does not declare it"
    left = [episode.meta.get("left_out") for episode in source]
    assert left == [None, ["feature steps/glove: features.json does not declare it"]]


# ---- CALVIN ----------------------------------------------------------------------------------------------------------


def test_an_array_that_only_a_later_step_has_is_an_error(tmp_path):
    for step in range(3):
        more = {"extra": np.ones(3)} if step == 2 else {}
        np.savez(tmp_path / f"episode_{step:07d}.npz", actions=np.zeros(7), **more)
    np.save(tmp_path / "ep_start_end_ids.npy", np.array([[0, 1], [2, 2]]))
    source = robocache.open(tmp_path)
    assert len(source.episode(0).streams["actions"]) == 2
    with pytest.raises(FormatError, match=r"calvin: .*episode_0000002\.npz: extra is not in the first step"):
        source.episode(1)


def test_a_folder_without_an_index_of_episodes_is_not_calvin(tmp_path):
    """It was a dataset of zero episodes, also with a split that is not there."""
    (tmp_path / "training").mkdir()
    np.save(tmp_path / "training/ep_start_end_ids.npy", np.zeros((0, 2), np.int64))
    assert len(robocache.open(tmp_path)) == 0
    with pytest.raises(FormatError, match=r"calvin: .* has no ep_start_end_ids\.npy in validation"):
        robocache.open(tmp_path, split="validation")


@pytest.mark.parametrize("dtype", ["bool", "int8", ">f4", ">u8"])
def test_a_step_may_have_single_numbers_of_any_byte_order(tmp_path, dtype):
    for step in range(3):
        np.savez(tmp_path / f"episode_{step:07d}.npz", one=np.array(step % 2, dtype), two=np.full(2, step, dtype))
    np.save(tmp_path / "ep_start_end_ids.npy", np.array([[0, 2]]))
    streams = robocache.open(tmp_path).episode(0).streams
    assert streams["one"].values.tolist() == [0, 1, 0]
    assert streams["two"].values.tolist() == np.arange(3).astype(dtype)[:, None].repeat(2, 1).tolist()


# ---- zarr ------------------------------------------------------------------------------------------------------------


def zarr(root, ends=(4,), **arrays):
    package = pytest.importorskip("zarr", minversion="3", reason="zarr arrays are written with zarr")
    group = package.open_group(str(root / "x.zarr"), mode="w", zarr_format=2)
    for name, array in {"state": np.arange(4.0).reshape(4, 1), **arrays}.items():
        group.create_array(f"data/{name}", data=np.asarray(array))
    group.create_array("meta/episode_ends", data=np.array(ends))
    return root / "x.zarr"


@pytest.mark.parametrize(
    ("dtype", "times", "unit"),
    [
        ("int64", [1, 2, 1_700_000_000_000_000, 4], "s"),
        ("int64", [1, 2, 9_223_372_037, 4], "s"),
        ("int64", [1, 2, -9_223_372_037, 4], "s"),
        ("uint64", [1, 2, 2**63, 4], "ns"),
        ("uint64", [1, 2, 2**64 - 1, 4], "us"),
    ],
)
def test_an_integer_time_beyond_int64_nanoseconds_is_a_nan_time(tmp_path, dtype, times, unit):
    path = zarr(tmp_path, timestamp=np.array(times, dtype))
    message = rf"stream state, row 2: the time is {times[2]}, outside the int64 nanosecond range; to continue, pass re"
    with pytest.raises(FormatError, match=message):
        robocache.open(path, time_unit=unit).episode(0)
    episode = robocache.open(path, time_unit=unit, repair={"nan_time": "drop"}).episode(0)
    np.testing.assert_array_equal(episode.streams["state"].values[:, 0], [0, 1, 3])
    unit_ns = {"s": 10**9, "us": 1000, "ns": 1}[unit]
    np.testing.assert_array_equal(episode.streams["state"].times, [unit_ns, 2 * unit_ns, 4 * unit_ns])
    assert episode.meta["repairs"] == {"state": {"nan_time": 1}}


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "uint64"])
def test_integer_times_to_the_last_nanosecond(tmp_path, dtype):
    last = min(np.iinfo(dtype).max, 2**63 - 1)
    path = zarr(tmp_path, timestamp=np.array([0, 1, 2, last], dtype))
    found = robocache.open(path, time_unit="ns", repair={"clock_jump": "keep"}).episode(0).streams["state"]
    assert found.times.tolist() == [0, 1, 2, last]


def test_a_timestamp_that_is_not_there_is_an_error_also_with_a_rate(tmp_path):
    path = zarr(tmp_path, robot_time=[0.0, 5.0, 6.0, 7.0])
    for name in ("robot_tme", "timestamp"):
        with pytest.raises(ValueError, match=rf"open: timestamp must be one of .*robot_time.* of .*, got '{name}'"):
            robocache.open(path, rate_hz=10, timestamp=name)
    assert robocache.open(path, timestamp="robot_time").episode(0).streams["state"].times[1] == 5 * 10**9
    assert robocache.open(path, rate_hz=10).episode(0).streams["state"].times[1] == 10**8
    assert robocache.open(path, rate_hz=10, timestamp=None).metadata["times_from"] is None


def test_rows_after_the_last_episode_are_listed(tmp_path):
    source = robocache.open(zarr(tmp_path, ends=[1, 3], long=np.zeros((9, 2))), rate_hz=10)
    assert [len(episode.streams["state"]) for episode in source] == [1, 2]
    assert sorted(source.metadata["left_out"]) == ["long[3:9]", "state[3:4]"]
