"""Which rows of LeRobot's tables an episode has, at which times; none is taken from elsewhere or lost in silence."""

import json

import numpy as np
import pytest
import robocache
from robocache import FormatError, LeftOut

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROWS, EPISODES = 6, 2
NUMBER = {"dtype": "float32", "shape": [1], "names": None}


def dataset(root, version="v3.0", columns=(), lengths=(ROWS,) * EPISODES, **info):
    """Two episodes of one stream; ``columns`` replace those of the tables of frames."""
    frames = {
        "timestamp": pa.array([i / 10 for i in range(ROWS)] * EPISODES, pa.float32()),
        "frame_index": pa.array([*range(ROWS)] * EPISODES),
        "episode_index": pa.array(np.repeat(range(EPISODES), ROWS)),
        "value": pa.array(np.arange(ROWS * EPISODES, dtype=np.float32)),
        **dict(columns),
    }
    table = pa.table(frames)
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    described = {"codebase_version": version, "fps": 10, "features": {"value": NUMBER}, **info}
    (root / "meta/info.json").write_text(json.dumps(described))
    if version == "v3.0":
        pq.write_table(table, root / "data/chunk-000/file-000.parquet")
        rows = {"episode_index": [*range(len(lengths))], "length": lengths, "tasks": [["pick"]] * len(lengths)}
        (root / "meta/episodes").mkdir()
        pq.write_table(pa.table(rows), root / "meta/episodes/file-000.parquet")
        return root
    for episode in range(EPISODES):
        pq.write_table(table.slice(episode * ROWS, ROWS), root / f"data/chunk-000/episode_{episode:06d}.parquet")
    lines = [{"episode_index": i, **({} if n is None else {"length": n})} for i, n in enumerate(lengths)]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def times_of(root):
    return robocache.open(root).episode(1).streams["value"].times.tolist()


@pytest.mark.parametrize("first", [0, 100_000])
def test_float64_timestamps_below_the_step_of_float32_are_kept(tmp_path, first):
    """10,000 s into a recording a float32 has steps of 1 ms."""
    index = np.arange(first, first + ROWS)
    jitter = np.tile([0, 3e-6], ROWS // 2)
    stored = np.tile(index / 10 + jitter, EPISODES)
    columns = {"frame_index": pa.array(np.tile(index, EPISODES)), "timestamp": pa.array(stored)}
    expected = [round(1e9 * (i / 10)) + (3000 if i % 2 else 0) for i in index]
    assert times_of(dataset(tmp_path / "x", columns=columns)) == expected


@pytest.mark.parametrize("how", [lambda i: i / 30, lambda i: i * (1 / 30), lambda i: np.float32(i / 30).astype(float)])
def test_float64_timestamps_that_are_a_rate_give_its_exact_times(tmp_path, how):
    index = np.arange(90_001, 90_001 + ROWS)
    columns = {"frame_index": pa.array(np.tile(index, EPISODES)), "timestamp": pa.array(np.tile(how(index), EPISODES))}
    times = times_of(dataset(tmp_path / "x", columns=columns, fps=30))
    assert times == [(int(i) * 10**9 + 15) // 30 for i in index]


@pytest.mark.parametrize(("name", "options"), [("timestamp", {}), ("frame_index", {"rate_hz": 20})])
def test_declared_times_that_a_table_lacks_are_an_error(tmp_path, name, options):
    number = {"dtype": "float32", "shape": [1], "names": None}
    columns = {f"x{name}": pa.array(np.zeros(ROWS * EPISODES))}
    for declared in (True, False):
        features = {"value": NUMBER, **({name: number} if declared else {})}
        root = dataset(tmp_path / str(declared), columns=columns, features=features)
        path = root / "data/chunk-000/file-000.parquet"
        pq.write_table(pq.read_table(path).drop_columns([name]), path)
        source = robocache.open(root, **options)
        if not declared:
            assert source.episode(0).streams["value"].times[:2].tolist() == [0, 50_000_000 if options else 100_000_000]
            continue
        with pytest.raises(FormatError, match=f"column {name} is missing, but meta/info.json declares it"):
            source.episode(0)


@pytest.mark.parametrize("lengths", [(ROWS, 4), (None, None)])
def test_rows_of_other_episodes_in_the_file_of_an_episode_are_an_error(tmp_path, lengths):
    number = np.repeat([0, 1], ROWS)
    number[-2:] = 7
    root = dataset(tmp_path / "x", "v2.1", {"episode_index": pa.array(number)}, lengths)
    source = robocache.open(root)
    assert len(source.episode(0).streams["value"]) == ROWS
    with pytest.raises(FormatError, match=r"episode_000001.parquet has 2 frames of other episodes \(episode_index\)"):
        source.episode(1)
    episode = robocache.open(root, repair={"missing": "drop"}).episode(1)
    assert episode.streams["value"].values.ravel().tolist() == [6, 7, 8, 9]
    assert episode.meta["repairs"] == {"timestamp": {"missing": 2}}


def test_frames_of_episodes_that_are_not_listed_are_told(tmp_path):
    source = robocache.open(dataset(tmp_path / "x", lengths=(ROWS,)))
    reason = "no episode of meta/episodes has them"
    assert source.left_out == [LeftOut("data/chunk-000/file-000.parquet: 6 of 12 frames", reason)]
    assert not robocache.open(dataset(tmp_path / "y")).left_out


@pytest.mark.parametrize("place", [None, float("nan"), "absent"])
def test_a_video_without_its_place_in_the_file_is_an_error(tmp_path, place):
    """It would begin at the first frame of the file, which is that of another episode."""
    video = {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]}
    root = dataset(tmp_path / "x", features={"value": NUMBER, "cam": video})
    rows = {"episode_index": [0, 1], "length": [ROWS, ROWS], "tasks": [["pick"]] * 2}
    rows |= {"videos/cam/chunk_index": [0, 0], "videos/cam/file_index": [0, 0]}
    if place != "absent":
        rows["videos/cam/from_timestamp"] = pa.array([0.0, place], pa.float64())
    pq.write_table(pa.table(rows), root / "meta/episodes/file-000.parquet")
    with pytest.raises(FormatError, match=r"row [01]: from_timestamp of cam must be a number, got (None|nan)"):
        robocache.open(root)
