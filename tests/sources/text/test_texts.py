"""Text per moment from every source that has it: ingest, loader, export, and hostile texts."""

import json

import adapter_datasets as datasets
import adapter_logs as logs
import numpy as np
import pytest
import robocache
from robocache import Feature, LeftOut, Loader
from robocache.sources.mcap.definitions import parse_definition
from robocache.sources.reading.budget import BUDGET

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def calvin(root, annotations, steps=10):
    """One episode of steps 100 to 100 + steps; annotations: (first step, last step, text)."""
    (root / "lang_annotations").mkdir(parents=True)
    for step in range(steps):
        np.savez(root / f"episode_{100 + step:07d}.npz", actions=np.full(7, step, np.float64))
    np.save(root / "ep_start_end_ids.npy", np.array([[100, 99 + steps]]))
    language = {
        "language": {"ann": [text for *_, text in annotations], "task": ["t"] * len(annotations)},
        "info": {"episodes": [], "indx": [(begin, end) for begin, end, _ in annotations]},
    }
    np.save(root / "lang_annotations/auto_lang_ann.npy", language)
    return root, {}, "language", "actions", 30


def rlds(root, texts, shape=()):
    pytest.importorskip("google_crc32c")
    root.mkdir(parents=True)
    steps = logs.tree(action=logs.tensor("float32", 1), observation=logs.tree(said=logs.tensor("string", *shape)))
    described = logs.tree(steps={"sequence": {"feature": steps, "length": "-1"}})
    rows = len(texts) // int(np.prod(shape, dtype=int))
    stored = {"steps/action": np.arange(rows, dtype=np.float32), "steps/observation/said": texts}
    (root / "made-train.tfrecord-00000-of-00001").write_bytes(logs.tfrecord(logs.make_example(stored)))
    (root / "features.json").write_text(json.dumps(described))
    return root, {"rate_hz": 10}, "observation/said", "action", 10


def mcap(path, texts):
    pytest.importorskip("mcap_ros2")
    path.parent.mkdir(parents=True)
    log = logs.Log(path)
    for i, text in enumerate(texts):
        log.write("/say", "std_msgs/msg/String", {"data": text}, i * 10**8)
        values = {"layout": {"dim": [], "data_offset": 0}, "data": [float(i)]}
        log.write("/command", "std_msgs/msg/Float64MultiArray", values, i * 10**8)
    log.close()
    return path, {"clock": "log_time"}, "/say", "/command", 10


def lerobot(root, column, feature=None):
    rows = len(column)
    for name in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / name).mkdir(parents=True)
    frames = np.arange(rows)
    numbers = {"frame_index": frames, "episode_index": 0 * frames, "index": frames, "task_index": 0 * frames}
    table = pa.table({
        "action": pa.array(frames.astype(np.float32)), "said": column,
        "timestamp": pa.array((frames / 10).astype(np.float32)), **{k: pa.array(v) for k, v in numbers.items()},
    })  # fmt: skip
    pq.write_table(table, root / "data/chunk-000/file-000.parquet")
    place = {"data/chunk_index": 0, "data/file_index": 0}
    episode = {"episode_index": 0, "tasks": ["push"], "length": rows, **place}
    pq.write_table(pa.Table.from_pylist([episode]), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": ["push"]}), root / "meta/tasks.parquet")
    features = {
        "action": {"dtype": "float32", "shape": [1], "names": None},
        "said": feature or {"dtype": "string", "shape": [1], "names": None},
    }
    info = {**datasets.lerobot_info("v3.0", features, fps=10), "total_episodes": 1}
    (root / "meta/info.json").write_text(json.dumps(info))
    return root, {}, "said", "action", 10


TEXTS = ["reach", "reach", "größer 杯", "größer 杯", "", "reach"]
SOURCES = {
    "calvin": lambda root: calvin(root, [(100, 101, "reach"), (102, 103, "größer 杯"), (105, 105, "reach")], steps=6),
    "rlds": lambda root: rlds(root, [text.encode() for text in TEXTS]),
    "mcap": lambda root: mcap(root / "x.mcap", TEXTS),
    "lerobot": lambda root: lerobot(root, pa.array(TEXTS)),
}


@pytest.mark.parametrize("format", SOURCES)
def test_the_text_of_every_moment_reaches_the_batch(tmp_path, format):
    pytest.importorskip("torch")
    path, options, stream, numbers, rate = SOURCES[format](tmp_path / "source")
    cache = robocache.ingest(path, tmp_path / "cache", **options)
    assert cache.specs[stream].kind == "text"
    assert cache.left_out == []
    features = {"text": Feature(stream), "row": Feature(numbers), "soon": Feature(stream, steps=[0, 1], rate_hz=rate)}
    batch = Loader(cache, len(TEXTS), features=features, anchors=numbers, shuffle=False, device="cpu").batch(0)
    assert batch["text"] == TEXTS
    assert batch["soon"] == [[a, b] for a, b in zip(TEXTS, [*TEXTS[1:], TEXTS[-1]], strict=True)]


@pytest.mark.parametrize("format", SOURCES)
def test_an_export_names_the_text_and_check_has_nothing_against_it(tmp_path, format):
    path, options, stream, _, rate = SOURCES[format](tmp_path / "source")
    exported = robocache.export(path, tmp_path / "out", fps=rate, **options)
    assert [left.name for left in exported.left_out] == [stream]
    assert not [finding for finding in robocache.check(path, **options).findings if finding.stream == stream]


def test_a_text_is_stored_where_it_changes(tmp_path):
    path, options, stream, _, _ = SOURCES["rlds"](tmp_path / "source")
    found = robocache.open(path, **options).episode(0).streams[stream]
    assert found.texts == ["reach", "größer 杯", "", "reach"]
    assert found.times.tolist() == [0, 200_000_000, 400_000_000, 500_000_000]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(100, 109, "a"), (103, 105, "b")], "aaabbbaaaa"),
        ([(103, 105, "b"), (100, 109, "a")], "aaabbbaaaa"),
        ([(100, 104, "a"), (100, 102, "b")], "bbbaa....."),
        ([(90, 101, "a"), (108, 200, "b")], "aa......bb"),
        ([(0, 5, "a"), (300, 301, "b")], ".........."),
    ],
)
def test_of_overlapping_ranges_the_one_that_begins_last_counts(tmp_path, ranges, expected):
    path, *_ = calvin(tmp_path / "x", ranges)
    found = robocache.open(path).episode(0).streams["language"]
    rows = np.searchsorted(found.times, np.arange(10) * 10**9 // 30 + 1, "right") - 1
    assert "".join(found.texts[row] or "." for row in rows) == expected


def test_an_episode_of_a_language_range_has_its_text(tmp_path):
    path, *_ = calvin(tmp_path / "x", [(100, 105, "a"), (102, 104, "b")])
    episodes = [*robocache.open(path, episodes="language")]
    assert [episode.streams["language"].texts for episode in episodes] == [["a"], ["b"]]


def test_without_language_there_is_no_stream_of_text(tmp_path):
    path, *_ = calvin(tmp_path / "x", [(100, 105, "a")])
    assert "language" not in robocache.open(path, language=False).specs


def test_arrays_of_texts_are_left_out_by_name(tmp_path):
    path, options, stream, *_ = rlds(tmp_path / "x", [b"a", b"b"] * 3, shape=(2,))
    source = robocache.open(path, **options)
    assert [left.name for left in source.left_out] == [stream]
    assert list(source.episode(0).streams) == ["action"]
    path, _, stream, *_ = lerobot(tmp_path / "y", pa.array(["a"] * 3), {"dtype": "language", "shape": [1]})
    assert [left.name for left in robocache.open(path).left_out] == [stream]


def test_texts_without_header_stamp_are_left_out_by_that_clock(tmp_path):
    path, *_ = mcap(tmp_path / "x" / "x.mcap", ["a"])
    left = robocache.open(path, clock="header.stamp", topics=["/say"]).left_out
    assert [str(one) for one in left] == [
        "/say: its messages have no header.stamp; pass clock='log_time' or 'publish_time' to read it",
        "/command: not selected; pass topics= to read it",
    ]


def test_bytes_that_are_not_utf8_are_refused_with_stream_and_row(tmp_path):
    path, options, *_ = rlds(tmp_path / "x", [b"fine", b"\xff\xfe", b"fine"])
    source = robocache.open(path, **options)
    with pytest.raises(robocache.FormatError, match="stream observation/said, row 1: the text must be UTF-8"):
        source.episode(0)
    assert len(source.episode(0, streams=["action"]).streams["action"]) == 3
    raw = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"], pa.binary()).buffers())
    path, *_ = lerobot(tmp_path / "y", raw)
    with pytest.raises(robocache.FormatError, match="stream said, row 1: the text must be UTF-8"):
        robocache.open(path).episode(0)
    path, *_ = calvin(tmp_path / "z", [(100, 101, "\ud800")])
    with pytest.raises(robocache.FormatError):
        robocache.open(path).episode(0)
    message = b"\0\1\0\0" + (3).to_bytes(4, "little") + b"\xff\xfe\0"
    with pytest.raises(ValueError, match="utf-8"):  # which the source reports with file, topic and message
        parse_definition("std_msgs/msg/String", b"string data", BUDGET).read(memoryview(message))


def test_a_null_and_a_column_of_another_type_are_refused(tmp_path):
    for name, column, why in [
        ("null", pa.array(["a", None, "b"]), "stream said: a text is null"),
        ("number", pa.array([1, 2]), "a column of int64 where string is declared"),
    ]:
        path, *_ = lerobot(tmp_path / name, column)
        with pytest.raises(robocache.FormatError, match=why):
            robocache.open(path).episode(0)


def test_a_long_text_that_a_dictionary_repeats_is_refused_before_it_is_expanded(tmp_path):
    words = ["x" * 100_000, "y" * 100_000]
    path, *_ = lerobot(tmp_path / "x", pa.array([words[i % 2] for i in range(2000)]))
    with pytest.raises(robocache.FormatError, match="max_bytes="):
        robocache.open(path, max_bytes=50_000_000).episode(0)
    path, *_ = lerobot(tmp_path / "same", pa.array([words[0]] * 2000))
    assert robocache.open(path, max_bytes=50_000_000).episode(0).streams["said"].texts == words[:1]


def test_texts_over_the_limits_are_refused(tmp_path):
    path, options, *_ = mcap(tmp_path / "m" / "x.mcap", ["a" * 60_000] * 3)
    with pytest.raises(robocache.FormatError, match="raise it with max_bytes="):
        robocache.open(path, max_bytes=150_000, **options).episode(0)
    path, options, *_ = rlds(tmp_path / "r", [b"%d" % i for i in range(5000)])
    with pytest.raises(robocache.FormatError, match="raise it with max_items="):
        robocache.open(path, max_items=4000, **options).episode(0)
    assert len(robocache.open(path, **options).episode(0).streams["observation/said"]) == 5000


def test_annotations_of_steps_that_no_episode_has_are_told(tmp_path):
    path, *_ = calvin(tmp_path / "x", [(90, 101, "a"), (300, 301, "b"), (110, 112, "c")])
    assert robocache.open(path).left_out == [LeftOut("2 of 3 annotations", "their steps are in no episode")]
