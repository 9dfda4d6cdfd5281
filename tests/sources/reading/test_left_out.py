"""Nothing is left out in silence: the commands, ``--json`` and the manifest list it, with the reason and the option."""

import json

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource
from robocache import LeftOut
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cli import main

TEXT = LeftOut("caption", "text is not read", None)
VIDEO = LeftOut("wrist_cam", "a video", "video=True")


class Partial(MadeSource):
    """A source that does not read all it has."""

    left_out = (TEXT, VIDEO)


def write_calvin(folder, steps=4):
    folder.mkdir()
    for step in range(steps):
        np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64), robot_obs=np.full(3, step))
    np.save(folder / "ep_start_end_ids.npy", np.array([[step, step + 1] for step in range(0, steps, 2)]))
    return folder


@pytest.fixture
def partial(monkeypatch):
    """``robocache.open`` gives this source whatever the path is."""
    source = Partial()
    monkeypatch.setattr("robocache.sources.open", lambda path, format=None, **options: source)
    monkeypatch.setattr("robocache.sources.detect", lambda path: "made")
    return source


# ---- files and features of other tools ------------------------------------------------------------------------------


def test_files_of_calvin_that_are_not_read_are_listed(tmp_path):
    root = write_calvin(tmp_path / "task", steps=5)  # the last range ends after the last step
    robocache.ingest(root, root / "cache", episodes=[0, 1])
    np.save(root / "ep_start_end_ids.npy", np.array([[0, 1], [3, 3]]))
    (root / ".hydra").mkdir()
    (root / "lang_annotations").mkdir()
    for name in ("scene_info.npy", "statistics.yaml", "lang_annotations/embeddings.npy"):
        (root / name).write_bytes(b"x")
    assert {str(left) for left in robocache.open(root).left_out} == {
        ".hydra: neither a step nor an index",
        "scene_info.npy: neither a step nor an index",
        "statistics.yaml: neither a step nor an index",
        "lang_annotations/embeddings.npy: neither a step nor an index",
        "2 of 5 steps: in no range of an episode",
    }
    for i in range(30):
        (root / f"note_{i}.txt").write_bytes(b"x")
    left = [str(left) for left in robocache.open(root).left_out]
    assert left[20] == "13 more files and folders of task: neither steps nor indices"


def test_splits_and_annotations_of_calvin_that_are_not_selected_are_listed(tmp_path, rng):
    path = datasets.CASES["calvin"][0](tmp_path, rng).path
    (path / "README.md").write_text("x")
    found = {str(left) for left in robocache.open(path, split="training", language=False).left_out}
    assert found == {
        "README.md: neither a step nor an index",
        "training/lang_annotations: not selected; pass language=True to read it",
        "validation: not selected; pass split= to read it",
    }


def test_demos_that_a_mask_does_not_name_are_listed_and_missing_ones_refused(tmp_path, rng):
    h5py = pytest.importorskip("h5py")
    path = datasets.CASES["robomimic"][0](tmp_path, rng).path
    left = [str(entry) for entry in robocache.open(path, mask="train", next_obs=True).left_out]
    assert left == ["1 of 3 demos: not selected; pass mask= to read it"]
    with h5py.File(path, "a") as file:
        file["mask/valid"] = np.array([b"demo_2", b"demo_7"])
    with pytest.raises(robocache.FormatError, match="mask/valid names 'demo_7', which is not a demo"):
        robocache.open(path, mask="valid")


def test_splits_versions_and_files_of_rlds_that_are_not_read_are_listed(tmp_path, rng):
    path = datasets.CASES["rlds"][0](tmp_path, rng).path
    version = path / "0.1.0"
    for shard in version.glob("*.tfrecord-*"):
        (version / shard.name.replace("-train.", "-val.")).write_bytes(shard.read_bytes())
    (version / "notes.txt").write_text("x")
    (version / "features.json.labels.txt").write_text("x")
    info = json.loads((version / "dataset_info.json").read_text())
    info["splits"].append({"name": "test", "shardLengths": ["5"]})
    (version / "dataset_info.json").write_text(json.dumps(info))
    (path / "0.0.9").mkdir()
    assert {str(entry) for entry in robocache.open(path, split="train").left_out} == {
        "val: not selected; pass split= to read it",
        "test: 1 shards: missing from the folder",
        "notes.txt: neither a shard nor a description of the dataset",
        "0.0.9: version 0.1.0 is read; to read another one, open its folder",
    }


# ---- the manifest ----------------------------------------------------------------------------------------------------


def test_the_manifest_lists_what_the_source_and_the_caller_left_out(tmp_path):
    cache = robocache.ingest(Partial(), tmp_path / "cache", streams=["arm", "force"], episodes=[0, 1])
    others = [LeftOut(name, "not selected", "streams=") for name in ("camera/wrist", "/lidar", "depth")]
    expected = [TEXT, VIDEO, *others, LeftOut("3 of 5 episodes", "not selected", "episodes=")]
    assert robocache.Cache(tmp_path / "cache").left_out == cache.left_out == expected
    manifest = json.loads((tmp_path / "cache" / "manifest.json").read_text())
    assert manifest["metadata"]["left_out"] == [entry.to_json() for entry in expected]


def test_a_function_that_drops_episodes_is_counted(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", episodes=lambda episode: episode.index % 2 == 0)
    assert cache.left_out == [LeftOut("2 of 5 episodes", "not selected", "episodes=")]


def test_where_all_is_kept_nothing_is_listed(tmp_path):
    assert robocache.ingest(MadeSource(), tmp_path / "cache").left_out == []


def test_what_a_cache_left_out_stays_listed_when_it_is_ingested_or_exported_again(tmp_path):
    first = robocache.ingest(Partial({"arm": SPECS["arm"]}), tmp_path / "first")
    assert robocache.ingest(first, tmp_path / "second", episodes=[0]).left_out[:2] == [TEXT, VIDEO]
    pytest.importorskip("pyarrow")
    done = robocache.export(first, tmp_path / "out", fps=1e-2, skip_incomplete=True)
    assert done.left_out[:2] == [TEXT, VIDEO]


@pytest.mark.parametrize("told", [None, "text", 5, [3, "x", {}, {"name": "a"}], {"name": "a"}])
def test_a_manifest_of_another_program_does_not_have_to_be_right(told, tmp_path):
    writer = robocache.CacheWriter(tmp_path / "cache", {"arm": SPECS["arm"]})
    assert writer.commit({"left_out": told}).left_out == []


# ---- the commands ----------------------------------------------------------------------------------------------------


def test_ingest_and_info_print_what_was_left_out_with_the_option(partial, tmp_path, capsys):
    out = str(tmp_path / "cache")
    assert main.main(["ingest", str(tmp_path), out, "--streams", "arm", "--episodes", "0-2"]) == 0
    text = capsys.readouterr().out
    expected = [
        "left out:",
        "  caption: text is not read",
        "  wrist_cam: a video; pass --option video=True to read it",
        "  force: not selected; pass --streams to read it",
    ]
    assert "\n".join(expected) + "\n" in text
    assert text.endswith("  2 of 5 episodes: not selected; pass --episodes to read it\n")
    assert main.main(["info", out]) == 0
    assert "  wrist_cam: a video; pass --option video=True to read it\n" in capsys.readouterr().out
    for command in (["ingest", str(tmp_path), out, "--streams", "arm"], ["info", out], ["info", str(tmp_path)]):
        assert main.main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["left_out"][:2] == [TEXT.to_json(), VIDEO.to_json()]


def test_check_prints_what_was_not_looked_at(partial, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main.main(["check", str(tmp_path), "--streams", "arm", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "left out:\n  caption: text is not read\n  wrist_cam: a video; pass --option video=True to read it\n" in text
    assert "  /lidar: not selected; pass --streams to read it\n" in text
    assert "<li>caption: text is not read</li>" in page.read_text()
    assert main.main(["check", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == [TEXT.to_json(), VIDEO.to_json()]
    assert "  wrist_cam: a video; pass video=True to read it" in robocache.check(Partial()).text()


def test_export_prints_what_lerobot_does_not_get(partial, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    args = ["--streams", "force,/lidar", "--fps", "0.1", "--skip-incomplete", "--episodes", "0-3"]
    assert main.main(["export", str(tmp_path), str(tmp_path / "out"), *args]) == 0
    text = capsys.readouterr().out
    assert "left out:\n  caption: text is not read\n" in text
    assert "  /lidar: LeRobot has no point clouds\n" in text
    assert "  arm: not selected; pass --streams to read it\n" in text
    assert "  1 of 5 episodes: not selected; pass --episodes to read it\n" in text
    assert main.main(["export", str(tmp_path), str(tmp_path / "again"), *args, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"name": "/lidar", "reason": "LeRobot has no point clouds", "option": None} in told["left_out"]


@pytest.mark.parametrize("name", datasets.CASES)
def test_what_a_format_does_not_read_reaches_the_manifest_and_the_user(name, tmp_path, rng, capsys):
    source = datasets.opened(name, tmp_path, rng)
    cache = robocache.ingest(source, tmp_path / "cache")
    assert cache.left_out == source.left_out
    assert main.main(["info", str(cache.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == [entry.to_json() for entry in source.left_out]
    assert len(repr(source)) < 300
    if name in ("mcap", "robomimic"):  # they have topics and groups that are not read
        assert source.left_out
        assert main.main(["info", str(cache.path)]) == 0
        assert f"  {source.left_out[0].name}: {source.left_out[0].reason}" in capsys.readouterr().out


# ---- nothing at all --------------------------------------------------------------------------------------------------


def test_a_cache_of_zero_streams_is_an_error_that_says_why(tmp_path):
    source = Partial({})
    with pytest.raises(robocache.FormatError, match="made has no stream that can be read; left out:\n  caption: text"):
        robocache.ingest(source, tmp_path / "cache")
    with pytest.raises(robocache.FormatError, match="made has no stream that can be read"):
        robocache.export(source, tmp_path / "out")
    with pytest.raises(ValueError, match="ingest: streams must name at least one stream, got none"):
        robocache.ingest(MadeSource(), tmp_path / "cache", streams=[])
    with pytest.raises(ValueError, match="CacheWriter: specs must have at least one stream, got none"):
        robocache.CacheWriter(tmp_path / "cache", {})
    assert list(tmp_path.iterdir()) == []


def test_a_cache_of_zero_episodes_is_an_error_and_the_old_cache_stays(tmp_path):
    out = tmp_path / "cache"
    with pytest.raises(robocache.FormatError, match="ingest: made has no episodes"):
        robocache.ingest(MadeSource(episodes=0), out)
    old = robocache.ingest(MadeSource(), out)
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ValueError, match="ingest: episodes must keep at least one episode, got none of 5"):
        robocache.ingest(MadeSource(), out, episodes=lambda episode: False)
    assert len(robocache.Cache(out)) == len(old) == 5
    assert files.items() <= {path.name: path.read_bytes() for path in out.iterdir()}.items()


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("32x32", "no stream has images"),
        ("6x8", "'camera/wrist' is 6 x 8 already"),
        ("camera/wrist=6x8", "'camera/wrist' is 6 x 8 already"),
    ],
)
def test_an_image_size_that_changes_nothing_is_an_error(size, why, partial, tmp_path, capsys):
    names = ["arm", "force"] if size == "32x32" else ["arm", "camera/wrist"]
    partial.specs = {name: SPECS[name] for name in names}
    assert main.main(["ingest", str(tmp_path), str(tmp_path / "cache"), "--image-size", size]) == 2
    err = capsys.readouterr().err
    assert err.startswith("robocache ingest: --image-size must change at least one stream, got ")
    assert err.endswith(f"but {why}\n")
    assert not (tmp_path / "cache").exists()


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_with_escape_sequences_are_printed_escaped(tmp_path, capsys, monkeypatch):
    evil = "arm\x1b]0;owned\x07\n\u202efake"
    spec = StreamSpec(evil, "float32", (2,), rate_hz=10)
    rows = EpisodeStream(spec, np.zeros((3, 2), np.float32), np.arange(3) * 100_000_000)
    source = MadeSource({evil: spec}, episodes=1)
    source.episode = lambda index: Episode(index, {evil: rows})
    source.left_out = [LeftOut(f"{evil} text", "text \x9b31m", None)]
    monkeypatch.setattr("robocache.sources.open", lambda path, format=None, **options: source)
    monkeypatch.setattr("robocache.sources.detect", lambda path: "made")
    where = str(tmp_path)
    commands = [
        ["ingest", where, f"{where}/cache"],  # refused: a cache has printable names
        ["ingest", where, f"{where}/cache", "--streams", f"{evil}=arm"],
        ["info", f"{where}/cache"],
        ["info", where],
        ["check", where],
        ["export", where, f"{where}/out"],
        ["ingest", where, f"{where}/other", "--streams", "leg"],
        ["export", where, f"{where}/out2", "--streams", "leg"],
        ["check", where, "--streams", "leg"],
        ["info", where, "--json"],
    ]
    for command in commands:
        main.main(command)
        shown = capsys.readouterr()
        text = shown.out + shown.err
        assert "arm\\" in text, command
        assert not [c for c in text if not c.isprintable() and c != "\n"], command
        if command[0] in ("check", "export") and "leg" not in command:
            assert "arm\\x1b]0;owned\\x07\\n\\u202efake" in text, command


def test_argparse_prints_no_escape_sequences_either(capsys):
    with pytest.raises(SystemExit):
        main.main(["info", "x", "--b\x1b[31m"])
    assert "\x1b" not in capsys.readouterr().err
