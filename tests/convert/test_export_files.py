"""The files that ``export`` writes: LeRobot's layout, statistics, what other readers make of them, bounded memory."""

import gc
import json
import resource
import subprocess
import sys

import numpy as np
import pytest
import robocache
from cache_cases import MadeSource
from export_cases import expressible, same
from robocache import FormatError
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

pytest.importorskip("pyarrow")
pytest.importorskip("PIL")


def test_the_files_are_laid_out_as_lerobot_v30(tmp_path, rng):
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = expressible(rng)
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
    source = expressible(rng)
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
    source = expressible(rng)
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
    source = expressible(rng)
    robocache.export(source, tmp_path / "out", streams={"x.float32": "action", "rgb3": "camera"})
    opened = reader(tmp_path / "out")
    assert (opened.version, opened.episodes()) == ("v3", [0, 1, 2])
    found = {c.entity_path.strip("/"): c.to_record_batch() for c in opened.stream(2).to_chunks() if not c.is_static}
    numbers = next(v for k, v in found.items() if k.endswith("action"))
    column = numbers.column(next(n for n in numbers.schema.names if "scalars" in n)).to_pylist()
    np.testing.assert_array_equal(np.float32(column), source.episodes[2].streams["x.float32"].values)
    assert next(v for k, v in found.items() if k.endswith("camera")).num_rows == 40


def test_large_episodes_go_into_several_row_groups_and_many_into_several_files(tmp_path, rng, monkeypatch):
    from robocache.sources.lerobot import write

    monkeypatch.setattr(write, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(write, "FILE_BYTES", 4_000)
    monkeypatch.setattr(write, "CHUNK_FILES", 2)
    monkeypatch.setattr(write, "META_ROWS", 2)
    source = expressible(rng)
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
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

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


def test_an_export_that_fails_writes_no_more(tmp_path, monkeypatch):
    """pyarrow ends a file when its writer is deleted; on a full disk it printed the error of that."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: printed.append(told.exc_value))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    names = [f"arm {i}" for i in range(150)]  # a footer that no buffer holds
    source = MadeSource({name: StreamSpec(name, "float64", (3,), rate_hz=10.0) for name in names}, 2)
    times = np.arange(5) * 10**8

    def episode(index):
        if index == 0:
            rows = {name: EpisodeStream(spec, np.zeros((5, 3)), times) for name, spec in source.specs.items()}
            return Episode(0, rows, None, {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
        raise FormatError("the second episode is damaged")

    monkeypatch.setattr(source, "episode", episode)
    try:
        with pytest.raises(FormatError, match="the second episode is damaged"):
            robocache.export(source, tmp_path / "out", fps=10)
        gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert printed == []
    assert list(tmp_path.iterdir()) == []
