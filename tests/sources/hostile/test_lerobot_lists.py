"""LeRobot's lists of episodes and tasks that contradict the tables of frames: nothing is lost, doubled or made up."""

import json

import numpy as np
import pytest
import robocache
from hostile import edit_json, refused, write

JSONL = "meta/episodes.jsonl"
PARQUET = "meta/episodes/chunk-000/file-000.parquet"


def rewrite(path, change):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(change(parquet.read_table(path)), path)


def replaced(name, values):
    return lambda table: table.set_column(table.column_names.index(name), name, [values])


def left_out(path, **options):
    return [str(left) for left in robocache.open(path, video=False, **options).left_out]


def test_an_episode_that_is_listed_twice_is_refused(tmp_path, rng):
    path = write("lerobot v2.1", tmp_path, rng).path
    lines = (path / JSONL).read_text()
    (path / JSONL).write_text(lines + lines.splitlines()[1] + "\n")
    refused(path, "meta/episodes.jsonl lists episode 1 twice")


def test_an_episode_of_two_tables_of_episodes_is_refused(tmp_path, rng):
    path = write("lerobot v3.0", tmp_path, rng).path
    (path / PARQUET).with_name("file-001.parquet").write_bytes((path / PARQUET).read_bytes())
    refused(path, "meta/episodes lists episode 0 twice")


def test_episodes_that_are_counted_but_not_listed_are_left_out_by_name(tmp_path, rng):
    old = write("lerobot v2.1", tmp_path, rng).path
    (old / JSONL).write_text((old / JSONL).read_text().splitlines()[0] + "\n")
    assert [entry for entry in left_out(old) if "video" not in entry] == [
        "2 of 3 episodes: meta/info.json counts them, but meta/episodes.jsonl does not list them",
        "data/chunk-000/episode_000001.parquet: no episode of meta/episodes.jsonl is in this file",
        "data/chunk-000/episode_000002.parquet: no episode of meta/episodes.jsonl is in this file",
    ]


def test_a_column_that_only_a_later_table_has_is_in_the_meta_of_its_episode(tmp_path, rng):
    path = write("lerobot v2.1", tmp_path, rng).path
    table = path / "data/chunk-000/episode_000002.parquet"
    rewrite(table, lambda rows: rows.append_column("force", [np.arange(len(rows), dtype=np.float32)]))
    assert robocache.open(path).episode(2).meta["left_out"] == ["column force: meta/info.json does not declare it"]
    assert "left_out" not in robocache.open(path).episode(0).meta


@pytest.mark.parametrize("tasks", ["", '{"task_index": 7, "task": "dance"}\n'])
def test_a_task_without_a_text_is_never_its_number(tmp_path, rng, tasks):
    written = write("lerobot v2.1", tmp_path, rng)
    (written.path / "meta/tasks.jsonl").write_text(tasks)
    assert [episode.task for episode in robocache.open(written.path)] == written.tasks  # as meta/episodes.jsonl says
    lines = [json.loads(line) | {"tasks": []} for line in (written.path / JSONL).read_text().splitlines()]
    (written.path / JSONL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [episode.task for episode in robocache.open(written.path)] == [None] * 3


def test_a_task_with_two_texts_is_refused(tmp_path, rng):
    path = write("lerobot v2.1", tmp_path, rng).path
    (path / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "a"}\n{"task_index": 0, "task": "b"}\n')
    refused(path, "tasks.jsonl: task 0 has two texts, 'a' and 'b'")
    (path / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": null}\n')
    refused(path, "tasks.jsonl: a task must be a text, got None")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("episode_index", [0.0, 1.0, 2.0], None),
        ("episode_index", [0.0, 1.5, 2.0], "row 1: episode_index must be a whole number, got '1.5'"),
        ("episode_index", [0, None, 2], "row 1: episode_index must be a whole number, got 'None'"),
        ("data/file_index", [0, 0, None], "row 2: data/file_index must be a whole number, got 'None'"),
        ("length", [5.0, 1.0, 12.5], "row 2: length must be a whole number, got '12.5'"),
        ("tasks", ["pick up the cup", "pour", "pick up the cup"], None),
        ("tasks", [["pour"], [None], ["pour"]], "row 1: tasks must be a list of texts, got \\[None\\]"),
    ],
)
def test_columns_of_the_table_of_episodes_are_checked_by_row(tmp_path, rng, column, values, message):
    written = write("lerobot v3.0", tmp_path, rng)
    rewrite(written.path / PARQUET, replaced(column, values))
    if message is None:
        assert [episode.task for episode in robocache.open(written.path)] == written.tasks
    else:
        refused(written.path, message)


def test_a_shared_table_without_the_numbers_of_its_episodes_is_refused(tmp_path, rng):
    path = write("lerobot v3.0", tmp_path, rng).path
    for table in (path / "data").glob("**/*.parquet"):
        rewrite(table, lambda rows: rows.drop(["episode_index"]))
    refused(path, "data/chunk-000/file-000.parquet must have a column episode_index", repair={"missing": "drop"})


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([None, 1, 2, 3, 4], "column frame_index, row 0: the value is null"),
        ([0.0, 1.5, 2.0, 3.0, 4.0], "column frame_index, row 1: the value is 1.5 where int64 is declared"),
        ([2**62 + i for i in range(5)], f"column frame_index, row 0: frame {2**62} is outside the int64 nanosecond"),
        (["0", "1", "2", "3", "4"], "column frame_index must have one number for each row, got object"),
    ],
)
def test_frame_numbers_that_give_no_time_are_refused(tmp_path, rng, frames, message):
    path = write("lerobot v2.1", tmp_path, rng).path
    rewrite(path / "data/chunk-000/episode_000000.parquet", replaced("frame_index", frames))
    refused(path, message, rate_hz=30)


@pytest.mark.parametrize(
    "stamps", [["0", "1", "2", "3", "4"], [[0.0], [0.1], [0.2], [0.3], [0.4]], np.zeros(5, "M8[s]")]
)
def test_timestamps_that_are_not_numbers_are_refused(tmp_path, rng, stamps):
    path = write("lerobot v2.1", tmp_path, rng).path
    rewrite(path / "data/chunk-000/episode_000000.parquet", replaced("timestamp", stamps))
    refused(path, "column timestamp must have one number for each row, got ")


def test_frame_numbers_may_be_whole_floats(tmp_path, rng):
    path = write("lerobot v2.1", tmp_path, rng).path
    rewrite(path / "data/chunk-000/episode_000000.parquet", replaced("frame_index", [0.0, 1.0, 2.0, 3.0, 4.0]))
    edit_json(path / "meta/info.json", lambda info: info.update(fps=10))
    assert robocache.open(path, rate_hz=10).episode(0).streams["action"].times[-1] == 400_000_000
