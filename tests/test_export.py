"""``export`` to LeRobot v3.0: the identity on what LeRobot can say, ``align`` on what it cannot, and all or nothing."""

import json
import subprocess
import sys

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource, digest
from robocache._episode import Episode, EpisodeStream, StreamSpec

pytest.importorskip("pyarrow")
pytest.importorskip("PIL")

DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)


class Listed:
    """A source of episodes that are there."""

    format, metadata = "listed", {}

    def __init__(self, path, specs, episodes):
        self.path, self.specs, self.episodes = path, {s.name: s for s in specs}, episodes

    def __len__(self):
        return len(self.episodes)

    def __iter__(self):
        return iter(self.episodes)

    def episode(self, index):
        return self.episodes[index]

    def fingerprint(self):
        return "listed"


def times_at(rows, rate_hz):
    return datasets.times_of(range(rows), rate_hz)


def random_rows(spec, rng, rows):
    raw = rng.integers(0, 256, (rows, *spec.shape, np.dtype(spec.dtype).itemsize), np.uint8)
    if spec.dtype == "bool":
        return raw[..., 0] > 127
    values = raw.view(spec.dtype)[..., 0]
    if spec.dtype.startswith("float") and not spec.name.startswith(("x.", "one.")):  # those keep NaN and infinity
        return np.where(np.isfinite(values), values, 0).astype(spec.dtype)
    return values


def expressible(path, rng, fps=30):
    """Everything LeRobot can say: every dtype, shapes, names, pictures of each kind, tasks, lengths."""
    specs = [StreamSpec(f"x.{d}", d, (3,), rate_hz=fps, names=("a", "b", "ö")) for d in DTYPES]
    specs += [StreamSpec(f"one.{d}", d, (1,), rate_hz=fps) for d in DTYPES]
    specs += [StreamSpec("matrix", "float32", (2, 3), rate_hz=fps), StreamSpec("cube", "int16", (2, 3, 4), rate_hz=fps)]
    specs += [StreamSpec(f"rgb{c}", "uint8", (6, 9, c), "image", fps, meta={"stored": "image"}) for c in (1, 3, 4)]
    specs += [StreamSpec("depth", "uint16", (5, 4), "depth", fps, meta={"stored": "image"})]
    episodes = []
    for i, rows in enumerate((7, 1, 40)):
        streams = {s.name: EpisodeStream(s, random_rows(s, rng, rows), times_at(rows, fps)) for s in specs}
        episodes.append(Episode(i, streams, ("pour", "pick up the cup", "pour")[i]))
    return Listed(path, specs, episodes)


def same(a, b):
    """The same streams: specs, values bit for bit, times; and tasks and bounds of the episodes."""
    assert a.specs == b.specs
    assert [e.task for e in a] == [e.task for e in b]
    for x, y in zip(a, b, strict=True):
        assert x.streams.keys() == y.streams.keys()
        for name in x.streams:
            np.testing.assert_array_equal(x.streams[name].times, y.streams[name].times, name)
            assert x.streams[name].values.tobytes() == y.streams[name].values.tobytes(), name


@pytest.mark.parametrize("fps", [30, 50, 12.5, 29.97, 1000])
def test_what_lerobot_can_say_comes_back_bit_for_bit(fps, tmp_path, rng):
    source = expressible(tmp_path, rng, fps)
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
    assert done.lost == ["meta of 3 episodes", "metadata of the dataset"]


def digest_of(source):
    class Bare:
        specs = source.specs

        def __iter__(self):
            return (Episode(e.index, e.streams, e.task, {}) for e in source)

    return digest(Bare())


def multirate(path, rng):
    """Joints at 500 Hz, a quaternion at 100, a camera at 30, a flag at 7, all with jitter and from the Unix time on."""
    begin, specs, streams = 1_700_000_000_000_000_000, [], {}
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
        specs.append(spec)
        streams[spec.name] = EpisodeStream(
            spec, values & 0x3FFF if spec.dtype == "bfloat16" else values, times, offsets
        )
    return Listed(path, specs, [Episode(0, streams, None)])


def test_streams_of_several_rates_are_what_align_says(tmp_path, rng):
    source = multirate(tmp_path, rng)
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
    write, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package, minversion="3" if package == "zarr" else None)
    (tmp_path / "source").mkdir()
    written = write(tmp_path / "source", rng)
    source = robocache.open(written.path, **written.options)
    robocache.ingest(source, tmp_path / "cache")
    done = robocache.export(tmp_path / "cache", tmp_path / "out", fps=17, span="all", skip_incomplete=True)
    back = robocache.open(tmp_path / "out")
    kept = [e for e in source if all(len(e.streams.get(old, ())) for old in done.features)]
    assert len(back) == len(kept) == done.episodes > 0
    assert [e.task or "" for e in kept] == [e.task for e in back]
    left_out = {line.split(":")[0] for line in done.lost if "left out" in line}
    assert (
        {n for n, s in source.specs.items() if s.kind == "points"} == left_out == set(source.specs) - set(done.features)
    )
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
    lost = robocache.export(multirate(tmp_path, rng), tmp_path / "out", fps=25, max_gap_s=0.05).lost
    for line in (
        "half: float32, LeRobot has no bfloat16; the values are the same",
        "/imu/orientation: named imu.orientation, LeRobot's names have no slash",
        "grip: rows of shape (1,), not ()",
        "/lidar: left out, point clouds have no place in LeRobot",
        "1 episodes have no task; LeRobot needs one, and has an empty text",
        "1 episodes do not begin at 0; LeRobot's do, when they began is lost",
        "/imu/orientation: its own times in 1 episodes; read at 25 Hz by slerp_xyzw",
    ):
        assert line in lost, line
    assert any(
        line.startswith("grip: ") and line.endswith("held or in gaps, LeRobot cannot mark them") for line in lost
    )
    assert not any(line.startswith("joints: ") and "gaps" in line for line in lost)


def test_the_span_is_where_all_streams_have_rows_or_all_of_it(tmp_path):
    specs = [StreamSpec("a", "int64", (1,)), StreamSpec("b", "int64", (1,))]
    second = 10**9
    rows = {
        "a": EpisodeStream(specs[0], np.array([[1], [2], [3]]), np.array([0, second, 2 * second])),
        "b": EpisodeStream(specs[1], np.array([[7], [8]]), np.array([second, 4 * second])),
    }
    source = Listed(tmp_path, specs, [Episode(0, rows, "t")])
    robocache.export(source, tmp_path / "overlap", fps=1)
    robocache.export(source, tmp_path / "all", fps=1, span="all")
    overlap, whole = (robocache.open(tmp_path / name).episode(0).streams for name in ("overlap", "all"))
    assert (overlap["a"].values.tolist(), overlap["b"].values.tolist()) == ([[2], [3]], [[7], [7]])
    assert whole["a"].values.ravel().tolist() == [1, 2, 3, 3, 3]
    assert whole["b"].values.ravel().tolist() == [7, 7, 7, 7, 8]


def test_the_files_are_laid_out_as_lerobot_v30(tmp_path, rng):
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = expressible(tmp_path, rng)
    robocache.export(source, tmp_path / "out", robot_type="so100")
    files = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == {
        "meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
    }  # fmt: skip
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    features = info.pop("features")
    assert info == {
        "codebase_version": "v3.0", "robot_type": "so100", "total_episodes": 3, "total_frames": 48, "total_tasks": 2,
        "chunks_size": 1000, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "fps": 30,
        "splits": {"train": "0:3"}, "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
    }  # fmt: skip
    assert features["x.float32"] == {"dtype": "float32", "shape": [3], "names": ["a", "b", "ö"]}
    assert features["rgb3"] == {"dtype": "image", "shape": [6, 9, 3], "names": ["height", "width", "channels"]}
    assert features["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    tasks = pandas.read_parquet(tmp_path / "out/meta/tasks.parquet")
    assert (list(tasks.index), tasks["task_index"].tolist()) == (["pour", "pick up the cup"], [0, 1])
    meta = parquet.read_table(tmp_path / "out/meta/episodes").to_pydict()
    assert meta["length"] == [7, 1, 40]
    assert (meta["dataset_from_index"], meta["dataset_to_index"]) == ([0, 7, 8], [7, 8, 48])
    assert meta["tasks"] == [["pour"], ["pick up the cup"], ["pour"]]
    file = parquet.ParquetFile(tmp_path / "out/data/chunk-000/file-000.parquet")
    assert file.metadata.num_row_groups == 3  # one for each episode
    rows = file.read(["timestamp", "frame_index", "episode_index", "index", "task_index"]).to_pydict()
    assert rows["index"] == list(range(48))
    assert rows["episode_index"] == [0] * 7 + [1] + [2] * 40
    assert rows["task_index"] == [0] * 7 + [1] + [0] * 40
    np.testing.assert_array_equal(rows["timestamp"], (np.array(rows["frame_index"]) / 30).astype(np.float32))


def test_statistics_are_those_of_the_frames(tmp_path, rng):
    source = expressible(tmp_path, rng)
    robocache.export(source, tmp_path / "out")
    back = robocache.open(tmp_path / "out")
    for name, scale, axes, shape in (
        ("x.int16", 1, 0, (3,)),
        ("rgb3", 255, (0, 1, 2), (3, 1, 1)),
        ("matrix", 1, 0, (2, 3)),
    ):
        everything = np.concatenate([e.streams[name].values for e in source]).astype(np.float64) / scale
        for part, stats in ((everything, back.metadata["stats"]), (None, back.episode(2).meta["stats"])):
            values = source.episodes[2].streams[name].values / scale if part is None else part
            told = stats[name]
            assert told["count"] == [len(values)]
            for key, function in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
                expected = function(values.astype(np.float64), axis=axes).reshape(shape)
                np.testing.assert_allclose(told[key], expected, rtol=1e-5, err_msg=f"{name} {key}")
            if name != "rgb3":
                expected = np.quantile(values.astype(np.float64), 0.9, axis=0)
                np.testing.assert_allclose(told["q90"], expected, rtol=1e-5)


def test_the_datasets_package_reads_it_with_the_features_lerobot_gives_it(tmp_path, rng):
    hf = pytest.importorskip("datasets")
    source = expressible(tmp_path, rng)
    robocache.export(source, tmp_path / "out")
    features = {}
    for name, feature in json.loads((tmp_path / "out/meta/info.json").read_text())["features"].items():
        shape, dtype = tuple(feature["shape"]), feature["dtype"]
        value = hf.Value("bool" if dtype == "bool" else dtype) if dtype != "image" else hf.Image()
        if dtype != "image" and shape != (1,):
            many = {1: lambda s, d: hf.Sequence(hf.Value(d), length=s[0]), 2: hf.Array2D, 3: hf.Array3D}[len(shape)]
            value = many(shape, dtype)
        features[name] = value
    files = [str(path) for path in sorted((tmp_path / "out/data").glob("*/*.parquet"))]
    table = hf.Dataset.from_parquet(files, features=hf.Features(features), cache_dir=str(tmp_path / "hf"))
    last = source.episodes[2].streams
    row = table[8 + 5]
    assert (row["episode_index"], row["frame_index"]) == (2, 5)
    np.testing.assert_array_equal(np.array(row["rgb3"]), last["rgb3"].values[5])
    np.testing.assert_array_equal(np.array(row["depth"]), last["depth"].values[5])
    np.testing.assert_array_equal(row["cube"], last["cube"].values[5])
    np.testing.assert_array_equal(np.float32(row["x.float32"]), last["x.float32"].values[5])


def test_the_lerobot_reader_of_rerun_reads_it(tmp_path, rng):
    reader = getattr(pytest.importorskip("rerun.experimental"), "LeRobotReader", None)
    if reader is None:
        pytest.skip("this rerun-sdk has no reader of LeRobot datasets")
    source = expressible(tmp_path, rng)
    robocache.export(source, tmp_path / "out", streams={"x.float32": "action", "rgb3": "camera"})
    opened = reader(tmp_path / "out")
    assert (opened.version, opened.episodes()) == ("v3", [0, 1, 2])
    found = {c.entity_path.strip("/"): c.to_record_batch() for c in opened.stream(2).to_chunks() if not c.is_static}
    numbers = next(v for k, v in found.items() if k.endswith("action"))
    column = numbers.column(next(n for n in numbers.schema.names if "scalars" in n)).to_pylist()
    np.testing.assert_array_equal(np.float32(column), source.episodes[2].streams["x.float32"].values)
    assert next(v for k, v in found.items() if k.endswith("camera")).num_rows == 40


def test_large_episodes_go_into_several_row_groups_and_many_into_several_files(tmp_path, rng, monkeypatch):
    from robocache.adapters import _lerobot_write

    monkeypatch.setattr(_lerobot_write, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(_lerobot_write, "FILE_BYTES", 4_000)
    monkeypatch.setattr(_lerobot_write, "CHUNK_FILES", 2)
    monkeypatch.setattr(_lerobot_write, "META_ROWS", 2)
    source = expressible(tmp_path, rng)
    robocache.export(source, tmp_path / "out")
    same(robocache.open(tmp_path / "out"), source)
    names = sorted(str(p.relative_to(tmp_path / "out/data")) for p in (tmp_path / "out/data").glob("*/*"))
    assert names == ["chunk-000/file-000.parquet", "chunk-000/file-001.parquet", "chunk-001/file-000.parquet"]
    import pyarrow.parquet

    assert pyarrow.parquet.ParquetFile(tmp_path / "out/data/chunk-001/file-000.parquet").metadata.num_row_groups > 1


def test_memory_stays_bounded_by_an_episode(tmp_path):
    """250 MB through a process that may hold little more than an episode and a row group."""
    code = """
import resource, sys
import numpy as np, pyarrow.parquet, robocache
from robocache._episode import Episode, EpisodeStream, StreamSpec

class Made:
    format, metadata, path = "made", {}, "made"
    specs = {"arm": StreamSpec("arm", "float32", (32,), rate_hz=1000.0)}
    def __len__(self): return 100
    def __iter__(self): return (self.episode(i) for i in range(100))
    def fingerprint(self): return ""
    def episode(self, i):
        values = np.random.default_rng(i).random((20_000, 32), np.float32)
        return Episode(i, {"arm": EpisodeStream(self.specs["arm"], values, np.arange(20_000) * 1_000_000)}, "t")

robocache.export(Made(), sys.argv[1] + "/warm", episodes=range(5))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = robocache.export(Made(), sys.argv[1] + "/out")
assert done.size_bytes > 250e6, done
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60_000  # KiB


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "export: fps must be given where streams have no rate or several, got none, 30, 500"),
        ({"fps": 0}, ValueError, "export: fps must be a rate in Hz above 0, got 0"),
        ({"fps": "30"}, ValueError, "export: fps must be a rate in Hz above 0, got '30'"),
        ({"fps": 30, "span": "both"}, ValueError, "export: span must be one of overlap, all, got 'both'"),
        ({"fps": 30, "streams": ["leg"]}, ValueError, "export: the source has no stream 'leg'"),
        ({"fps": 30, "streams": {"arm": "index"}}, ValueError, "feature of 'arm' must not be named 'index'"),
        (
            {"fps": 30, "streams": {"arm": "a/b", "force": "a.b"}},
            ValueError,
            "'arm' and 'force' would both be named 'a.b'",
        ),
        ({"fps": 30, "streams": ["/lidar"]}, ValueError, "export: there is no stream that LeRobot can hold"),
        ({"fps": 30, "methods": {"leg": "linear"}}, ValueError, "export: methods names 'leg', which is none of"),
        (
            {"fps": 30, "methods": {"camera/wrist": "linear"}},
            ValueError,
            "since pictures are never blended, got 'linear'",
        ),
        ({"fps": 30, "max_gap_s": 0}, ValueError, "export: max_gap_s must be above 0, got 0"),
        ({"fps": 30, "episodes": [9]}, ValueError, "export: episodes must be from 0 to 4, got 9"),
        ({"fps": 30, "format": "mcap"}, ValueError, "export: format and options are for paths"),
        ({"fps": 30}, robocache.FormatError, "export: episode 2: stream 'arm' has no rows; streams= or episodes="),
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
    assert "1 episodes without a frame were skipped: [2]" in done.lost
    assert [e.task for e in robocache.open(tmp_path / "out")] == ["task 0", "task 1", "task 1", "task 0"]
