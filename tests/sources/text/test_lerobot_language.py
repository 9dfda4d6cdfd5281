"""Language columns of LeRobot 0.6: streams of text per style, and what is left out."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import robocache
from robocache import Feature, Loader
from robocache.cli import main
from test_texts import lerobot

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROWS = 6
LEROBOT_PYTHON = os.environ.get("ROBOCACHE_LEROBOT_PYTHON", "")
SAY = {"type": "function", "function": {"name": "say", "arguments": {"text": "ok"}}}


def entry(style, content=None, role="assistant", camera=None, calls=None, **timestamp):
    return {
        **{"role": role, "content": content, "style": style},
        **timestamp,
        **{"camera": camera, "tool_calls": calls},
    }


def dataset(root, **columns):
    """Columns by name: an Arrow array, or a list of entries for each of the six frames, stored as LeRobot's writer does
    (with the types that Arrow infers)."""
    path, *_ = lerobot(root, pa.array(["a"] * ROWS))
    file = path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file).drop(["said"])
    info = json.loads((path / "meta/info.json").read_text())
    del info["features"]["said"]
    for name, column in columns.items():
        table = table.append_column(name, column if isinstance(column, pa.Array) else pa.array(column))
        info["features"][name] = {"dtype": "language", "shape": [1], "names": None}
    pq.write_table(table, file)
    (path / "meta/info.json").write_text(json.dumps(info))
    return path


def texts(path, name, **options):
    stream = robocache.open(path, **options).episode(0).streams[name]
    return list(zip(stream.times.tolist(), stream.texts, strict=True))


def names(path):
    return [name for name in robocache.open(path).specs if name != "action"]


def test_persistent_entries_are_active_from_their_timestamps_on(tmp_path):
    rows = [entry("subtask", text, timestamp=t) for t, text in ((0.2, "reach"), (0.35, "größer"))]
    path = dataset(tmp_path / "x", language_persistent=[rows] * ROWS)
    assert texts(path, "language_persistent/subtask") == [(0, ""), (200_000_000, "reach"), (350_000_000, "größer")]
    spec = robocache.open(path).specs["language_persistent/subtask"]
    assert spec.kind == "text"
    assert spec.meta == {"column": "language_persistent", "style": "subtask", "role": "assistant"}


def test_a_given_rate_moves_annotations_with_their_frames(tmp_path):
    rows = [entry("subtask", "a", timestamp=0.2), entry("subtask", "b", timestamp=0.35)]
    path = dataset(tmp_path / "x", language_persistent=[rows] * ROWS)
    found = texts(path, "language_persistent/subtask", rate_hz=20)
    assert found == [(0, ""), (100_000_000, "a"), (175_000_000, "b")]


def test_an_event_is_a_text_of_its_frame_only(tmp_path):
    events = [[] for _ in range(ROWS)]
    events[2] = [entry("interjection", "stop", "user")]
    events[5] = [entry("interjection", "go", "user")]
    path = dataset(tmp_path / "x", language_events=events)
    expected = [(0, ""), (200_000_000, "stop"), (300_000_000, ""), (500_000_000, "go")]
    assert texts(path, "language_events/interjection") == expected


def test_roles_cameras_and_calls_of_tools_have_streams_of_their_own(tmp_path):
    asked = [entry("vqa", f"{role} {camera}", role, camera) for role in ("user", "assistant") for camera in "ab"]
    events = [[*asked, entry(None, calls=[SAY]), entry("trace", "x", camera="a")]] + [[]] * (ROWS - 1)
    path = dataset(tmp_path / "x", language_events=events)
    expected = {f"language_events/vqa/{role}/{camera}" for role in ("user", "assistant") for camera in "ab"}
    assert set(names(path)) == expected | {"language_events/tool_calls", "language_events/trace/a"}
    assert texts(path, "language_events/vqa/user/b")[0] == (0, "user b")
    assert json.loads(texts(path, "language_events/tool_calls")[0][1]) == [SAY]


def test_calls_that_are_stored_as_json_are_read_alike(tmp_path):
    events = [[entry(None, calls=[json.dumps(SAY)])]] + [[]] * (ROWS - 1)
    path = dataset(tmp_path / "x", language_events=events)
    assert json.loads(texts(path, "language_events/tool_calls")[0][1]) == [SAY]
    kind = pa.struct([(name, pa.string()) for name in ("role", "content", "style", "camera")])
    kind = pa.struct([*kind, ("tool_calls", pa.list_(pa.json_()))])
    column = pa.array(events).cast(pa.list_(kind))
    path = dataset(tmp_path / "y", language_events=column)
    assert json.loads(texts(path, "language_events/tool_calls")[0][1]) == [SAY]


def test_entries_of_the_same_time_are_numbered_and_replaced_together(tmp_path):
    rows = [entry("task_aug", text, "user", timestamp=t) for t, text in ((0.0, "a"), (0.0, "b"), (0.3, "c"))]
    path = dataset(tmp_path / "x", language_persistent=[rows] * ROWS)
    assert names(path) == ["language_persistent/task_aug/0", "language_persistent/task_aug/1"]
    assert texts(path, "language_persistent/task_aug/0") == [(0, "a"), (300_000_000, "c")]
    assert texts(path, "language_persistent/task_aug/1") == [(0, "b"), (300_000_000, "")]


def test_persistent_entries_that_only_some_frames_have_are_read_once(tmp_path):
    rows = [entry("memory", f"step {i // 2}", timestamp=i // 2 * 0.2) for i in range(ROWS)]
    path = dataset(tmp_path / "x", language_persistent=[[row] for row in rows])
    expected = [(0, "step 0"), (200_000_000, "step 1"), (400_000_000, "step 2")]
    assert texts(path, "language_persistent/memory") == expected
    assert names(path) == ["language_persistent/memory"]


def test_a_column_without_entries_is_left_out_with_that_reason(tmp_path):
    path = dataset(tmp_path / "x", language_events=[[]] * ROWS)
    assert [str(one) for one in robocache.open(path).left_out] == ["language_events: no frame has an entry"]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (["text"] * ROWS, "of type string; known: a list of structs with role, content and style"),
        ([["text"]] * ROWS, "a list of structs with role, content and style"),
        ([[{"role": "user", "content": "a"}]] * ROWS, "a list of structs with role, content and style"),
        ([[entry("plan", 3)]] * ROWS, "a list of structs with role, content and style"),
        ([[entry("plan", "a", calls="b", timestamp=0.0)]] * ROWS, "a list of structs with role, content and style"),
        ([[entry("plan", "a")]] * ROWS, "and a timestamp of type float"),
        ([[entry(f"s{i}", "a", timestamp=0.0) for i in range(300)]] * ROWS, "more than 256 streams"),
        ([[entry("a/b", "x", timestamp=0.0), entry("a", "y", camera="b", timestamp=0.0)]] * ROWS, "named"),
    ],
)
def test_columns_of_an_unknown_shape_are_left_out_with_the_reason(tmp_path, column, why):
    path = dataset(tmp_path / "x", language_persistent=column)
    (left,) = robocache.open(path).left_out
    assert left.name == "language_persistent"
    assert why in str(left)
    assert list(robocache.open(path).episode(0).streams) == ["action"]


def test_a_language_feature_of_another_name_is_left_out(tmp_path):
    path = dataset(tmp_path / "x", remarks=[[entry("plan", "a", timestamp=0.0)]] * ROWS)
    assert [left.name for left in robocache.open(path).left_out] == ["remarks"]


@pytest.mark.parametrize("timestamp", [np.nan, np.inf, None])
def test_an_entry_without_a_time_is_refused_with_its_frame(tmp_path, timestamp):
    rows = [entry("plan", "a", timestamp=0.0), entry("plan", "b", timestamp=timestamp)]
    path = dataset(tmp_path / "x", language_persistent=[rows] * ROWS)
    with pytest.raises(robocache.FormatError, match="frame 0: the timestamp of an entry must be a finite number"):
        robocache.open(path)


def test_a_text_that_a_dictionary_repeats_is_refused_before_it_is_expanded(tmp_path):
    events = [[entry("trace", "x" * 100_000, camera="a")] * 1000] * ROWS
    path = dataset(tmp_path / "x", language_events=events)
    with pytest.raises(robocache.FormatError, match="max_bytes="):
        robocache.open(path, max_bytes=50_000_000)


def test_annotations_reach_the_batch_of_their_frame_and_check_finds_no_fault(tmp_path):
    pytest.importorskip("torch")
    rows = [entry("subtask", text, timestamp=t) for t, text in ((0.2, "reach"), (0.4, "grasp"))]
    events = [[] for _ in range(ROWS)]
    events[3] = [entry("interjection", "stop", "user")]
    path = dataset(tmp_path / "x", language_persistent=[rows] * ROWS, language_events=events)
    cache = robocache.ingest(path, tmp_path / "cache")
    assert cache.left_out == []
    features = {"subtask": Feature("language_persistent/subtask"), "heard": Feature("language_events/interjection")}
    batch = Loader(cache, ROWS, features=features, anchors="action", shuffle=False, device="cpu").batch(0)
    assert batch["subtask"] == ["", "", "reach", "reach", "grasp", "grasp"]
    assert batch["heard"] == ["", "", "", "stop", "", ""]
    assert not [finding for finding in robocache.check(path).findings if finding.stream.startswith("language")]


@pytest.mark.skipif(not LEROBOT_PYTHON, reason="ROBOCACHE_LEROBOT_PYTHON names no Python with LeRobot 0.6")
def test_every_frame_has_the_texts_that_lerobot_resolves(tmp_path):
    program = os.path.join(os.path.dirname(__file__), "lerobot_annotated.py")
    called = [LEROBOT_PYTHON, program, str(tmp_path / "made")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(called, stdout=subprocess.PIPE, stderr=sys.stderr, check=True, env=environment)
    resolved = json.loads(done.stdout.splitlines()[-1])
    source = robocache.open(tmp_path / "made")
    assert source.left_out == []
    episodes = [episode.streams for episode in source]
    for frame in resolved:
        streams, now = episodes[frame.pop("episode")], frame.pop("frame") * 10**8
        at = {n: s.texts[np.searchsorted(s.times, now, "right") - 1] for n, s in streams.items() if n != "action"}
        rephrased = [at.pop(f"language_persistent/task_aug/{i}") for i in range(3)]
        assert [text for text in rephrased if text] == frame.pop("task_aug")
        calls = at.pop("language_events/tool_calls")
        assert (json.loads(calls)[0]["function"]["arguments"]["text"] if calls else "") == frame.pop("say")
        assert {name.split("/", 1)[1]: text for name, text in at.items()} == frame
    assert len(resolved) == 28


@pytest.mark.parametrize("ingested", [False, True])
def test_export_names_every_language_stream_that_it_leaves_out(tmp_path, capsys, ingested):
    column = [[entry("subtask", "reach", timestamp=0.0), entry("plan", "1. reach", timestamp=0.0)]] * ROWS
    path = dataset(tmp_path, language_persistent=column)
    left = {"language_persistent/subtask", "language_persistent/plan"}
    assert left == {name for name, spec in robocache.open(path).specs.items() if spec.kind == "text"}
    if ingested:
        path = robocache.ingest(path, tmp_path / "cache").path
    reason = "export writes no text but the tasks of episodes and frames"
    assert main.main(["export", str(path), str(tmp_path / "a"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["left_out"]
    assert {one["name"] for one in told if one["reason"] == reason} == left
    assert main.main(["export", str(path), str(tmp_path / "b")]) == 0
    text = capsys.readouterr().out.partition("left out:\n")[2]
    assert all(f"  {name}: {reason}" in text for name in left)
    assert left.isdisjoint(robocache.open(tmp_path / "a").specs)


def test_export_of_text_alone_is_an_error_with_the_reason(tmp_path):
    path = dataset(tmp_path, language_persistent=[[entry("subtask", "reach", timestamp=0.0)]] * ROWS)
    with pytest.raises(ValueError, match="language_persistent/subtask: export writes no text but the tasks"):
        robocache.export(path, tmp_path / "out", streams=["language_persistent/subtask"], fps=10)
