"""``robocache export`` and ``info`` from the command line; exports that are killed, fail or meet each other."""

import errno
import json
import os
import subprocess
import sys

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource, digest
from export_cases import expressible, listed, same
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cli import main
from robocache.cli.facts import facts, spread
from robocache.convert.new_folder import new_folder

pytest.importorskip("pyarrow")
pytest.importorskip("PIL")


@pytest.fixture
def cache(tmp_path, rng):
    return robocache.ingest(expressible(rng), tmp_path / "cache")


def test_the_command_exports_a_cache_and_tells_what_is_lost(cache, tmp_path, capsys):
    out = tmp_path / "out"
    args = ["--streams", "x.float32=action,depth", "--episodes", "0,2", "--fps", "15", "--method", "action=nearest"]
    assert main.main(["export", str(cache.path), str(out), *args]) == 2  # methods go by the names of the source
    assert "--method must name streams among x.float32, depth, got 'action'" in capsys.readouterr().err
    args[-1] = "x.float32=nearest"
    assert main.main(["export", str(cache.path), str(out), *args, "--robot-type", "so100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["fps"], told["episodes"], told["frames"]) == (str(out), 15, 2, 4 + 20)
    assert told["features"] == {"x.float32": "action", "depth": "depth"}
    assert "x.float32: resampled in 2 episodes, at 15 Hz by nearest" in told["lost"]
    assert told["size_bytes"] == sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    back = robocache.open(out)
    assert [len(e.streams["action"]) for e in back] == [4, 20]
    assert back.metadata["info"]["robot_type"] == "so100"


def test_without_json_there_is_a_text(cache, tmp_path, capsys):
    assert main.main(["export", str(cache.path), str(tmp_path / "out"), "--streams", "x.uint8=a/b"]) == 0
    text = capsys.readouterr().out
    assert "LeRobot v3.0, 3 episodes, 48 frames at 30 Hz" in text
    assert "  x.uint8 -> a.b\nlost:\n  x.uint8: renamed to a.b: LeRobot names cannot contain slashes\n" in text


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_is_not_overwritten(there, cache, tmp_path, capsys):
    out = tmp_path / "out"
    {"folder": out.mkdir, "file": out.touch, "link": lambda: out.symlink_to("nowhere")}[there]()
    assert main.main(["export", str(cache.path), str(out), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["type"] == "FileExistsError"
    assert {p.name for p in tmp_path.iterdir()} == {"cache", "out"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere", "out"], "nowhere does not exist"),
        (["cache", "out", "--method", "x.float32=best"], "robocache export: --method of 'x.float32' must be linear"),
        (["cache", "out", "--option", "rate_hz=3"], "a cache takes no options, got rate_hz"),
    ],
)
def test_bad_usage_ends_with_code_2_and_leaves_nothing(args, message, cache, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["export", *args]) == 2
    assert message in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"cache"}
    with pytest.raises(SystemExit, match="2"):
        main.main(["export", "cache", "out", "--method", "arm"])
    assert "must be STREAM=METHOD, got 'arm'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main.main(["export", "cache", "out", "--method", "arm=[[0,3]]"])
    assert "must be STREAM=[[begin,end,METHOD],...], got 'arm=[[0,3]]'" in capsys.readouterr().err


def test_ranges_of_channels_have_methods_of_their_own(cache, tmp_path):
    ways = 'x.float64=[[0,1,"nearest"],[1,3,"previous"]]'
    args = ["export", str(cache.path), str(tmp_path / "out"), "--streams", "x.float64", "--fps", "13", "--method", ways]
    assert main.main(args) == 0
    rows, back = cache.episode(2).streams["x.float64"], robocache.open(tmp_path / "out").episode(2).streams["x.float64"]
    method = [(0, 1, "nearest"), (1, 3, "previous")]
    expected = robocache.align(robocache.Stream(rows.values, rows.times, method=method), back.times[None]).values[0]
    np.testing.assert_array_equal(back.values, expected)


# ---- all or nothing --------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_any_sync_or_rename_leaves_nothing(cache, tmp_path, monkeypatch):
    calls = {"count": 0, "fail": -1}

    def counted(function):
        def call(*args, **options):
            calls["count"] += 1
            if calls["count"] - 1 == calls["fail"]:
                raise OSError(errno.ENOSPC, "No space left on device", "disk")
            return function(*args, **options)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(os, "rename", counted(os.rename))
    robocache.export(cache, tmp_path / "whole", streams=["x.float32", "rgb3"])
    total, calls["count"] = calls["count"], 0
    assert total > 8  # five files, their folders, the folder around
    for calls["fail"] in range(total - 1):
        calls["count"] = 0
        with pytest.raises(OSError, match="No space left"):
            robocache.export(cache, tmp_path / "out", streams=["x.float32", "rgb3"])
        assert {p.name for p in tmp_path.iterdir()} == {"cache", "whole"}, calls["fail"]


KILLS = """
import os, pathlib, random, shutil, signal, sys, time
import pyarrow.parquet, PIL.Image, robocache
cache, out = map(pathlib.Path, sys.argv[1:])

def export_in_a_process(killed_after_s=None):
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        robocache.export(cache, out)
        os._exit(0)
    if killed_after_s is not None:
        time.sleep(killed_after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return time.monotonic() - begin, status

whole_s, status = export_in_a_process()
assert status == 0
complete = sorted((p.relative_to(out), p.read_bytes()) for p in out.rglob("*") if p.is_file())
seed, found = random.Random(1), []
for _ in range(12):
    shutil.rmtree(out, ignore_errors=True)
    export_in_a_process(whole_s * seed.uniform(0, 1.1))
    found.append(out.exists())
    if found[-1]:
        assert complete == sorted((p.relative_to(out), p.read_bytes()) for p in out.rglob("*") if p.is_file())
shutil.rmtree(out, ignore_errors=True)
assert export_in_a_process()[1] == 0
assert [p.name for p in out.parent.iterdir()] == [out.name]
print(found.count(False))
"""


def test_a_killed_export_leaves_nothing_or_all_and_the_next_one_cleans_up(cache, tmp_path):
    out = tmp_path / "new" / "out"
    done = subprocess.run([sys.executable, "-c", KILLS, str(cache.path), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # some were killed before they had come to their end
    same(robocache.open(out), cache)


def test_of_what_is_in_the_way_only_what_the_journal_names_is_removed(cache, tmp_path):
    left = tmp_path / ".out.robocache-tmp"
    made = left / f"new-{'0a' * 16}"
    (made / "data").mkdir(parents=True)
    (made / "data" / "old.parquet").write_text("half of it")
    (made / "link").symlink_to(cache.path)
    others = [left / "notes.txt", left / f"new-{'0b' * 16}" / "episode.parquet"]
    others[1].parent.mkdir()
    for other in others:
        other.write_text("of a user")
    (left / "journal.json").write_text(json.dumps({"format": "robocache export journal", "creates": made.name}))
    with pytest.warns(RuntimeWarning, match=f"{left} has {others[1].parent.name} and more, which no journal names"):
        robocache.export(cache, tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"data", "meta"}
    assert {p.name for p in left.iterdir()} == {"notes.txt", others[1].parent.name}
    assert [other.read_text() for other in others] == ["of a user"] * 2
    assert cache.verify() == []


@pytest.mark.parametrize("text", ["mine", "[]", '{"format": "robocache export journal", "creates": "../cache"}'])
def test_a_journal_of_another_program_is_refused_and_stays(cache, tmp_path, text):
    journal = tmp_path / ".out.robocache-tmp" / "journal.json"
    journal.parent.mkdir()
    journal.write_text(text)
    with pytest.raises(robocache.FormatError, match="must be the journal of an export, got another file; move it away"):
        robocache.export(cache, tmp_path / "out")
    assert journal.read_text() == text
    assert {p.name for p in tmp_path.iterdir()} == {"cache", journal.parent.name}
    assert cache.verify() == []


def test_two_exports_to_the_same_place_do_not_mix(cache, tmp_path):
    busy = pytest.raises(robocache.FormatError, match="another process is writing here")
    with new_folder(tmp_path / "out", "export"), busy:
        robocache.export(cache, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# ---- info and the options of ingest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", datasets.CASES)
def test_info_measures_a_dataset_as_it_measures_its_cache(name, tmp_path, rng):
    source = datasets.opened(name, tmp_path, rng)
    seen = []
    told = facts(source, progress=lambda *x: seen.append(x))
    assert seen[-1] == (len(source), len(source))
    of_cache = facts(robocache.ingest(source, tmp_path / "cache"))
    assert told["streams"] == of_cache["streams"]
    assert told["hours"] == of_cache["hours"] > 0
    assert told["bytes"] == sum(path.stat().st_size for path in source.files())
    for stream, x in told["streams"].items():
        assert x["messages"] == sum(len(e.streams[stream].times) for e in source)
    spans = [(min(t[0] for t in ts), max(t[-1] for t in ts)) for e in source if (ts := times_of(e))]
    assert told["hours"] * 3.6e12 == pytest.approx(sum(int(end - begin) for begin, end in spans), rel=1e-12)


def times_of(episode):
    return [s.times for s in episode.streams.values() if len(s.times)]


def test_the_measured_rate_is_of_the_times_and_not_of_what_is_declared(tmp_path, capsys):
    for step in range(40):
        np.savez(tmp_path / f"episode_{step:07d}.npz", actions=np.zeros(7))
    np.save(tmp_path / "ep_start_end_ids.npy", np.array([[0, 9], [10, 19], [20, 39]]))
    assert main.main(["info", str(tmp_path), "--option", "rate_hz=12.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["streams"]["actions"]["measured_hz"] == pytest.approx(12.5)
    assert told["hours"] == pytest.approx((9 + 9 + 19) / 12.5 / 3600)
    assert main.main(["info", str(tmp_path), "--measure", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["episodes"], told["measured_episodes"], told["streams"]["actions"]["messages"]) == (3, 1, 10)
    assert main.main(["info", str(tmp_path), "--measure", "0"]) == 0
    assert "0.000 h in 0 measured episodes" in capsys.readouterr().out
    assert (spread(10, 3), spread(3, None), spread(3, 9)) == ([1, 5, 8], [0, 1, 2], [0, 1, 2])


def test_times_from_one_end_of_int64_to_the_other_are_counted_right(tmp_path):
    spec = StreamSpec("a", "float64", (1,))
    ends = np.iinfo(np.int64)
    rows = EpisodeStream(spec, np.ones((2, 1)), np.array([ends.min, ends.max]))
    cache = robocache.ingest(listed(Episode(0, {"a": rows})), tmp_path / "cache")
    told = facts(cache)
    assert told["hours"] == (2**64 - 1) / 3.6e12
    assert told["streams"]["a"]["measured_hz"] == 1e9 / (2**64 - 1)


def test_every_option_of_ingest_is_on_the_command_line_too(tmp_path, capsys):
    robocache.ingest(MadeSource(SPECS, episodes=9), tmp_path / "cache")
    args = ["--streams", "arm=joints,camera/wrist,depth", "--dtype", "bfloat16", "--image-size", "2x3"]
    args += ["--episodes", "1-3,7", "--shard-mib", "0.001", "--resume", "--format", "robocache", "--json"]
    assert main.main(["ingest", str(tmp_path / "cache"), str(tmp_path / "a"), *args]) == 0
    told = json.loads(capsys.readouterr().out)
    streams = {"arm": "joints", "camera/wrist": "camera/wrist", "depth": "depth"}
    python = robocache.ingest(
        tmp_path / "cache", tmp_path / "b", streams=streams, dtype="bfloat16", image_size=(2, 3),
        episodes=[1, 2, 3, 7], shard_bytes=1048, resume=True, format="robocache",
    )  # fmt: skip
    assert [p.read_bytes() for p in robocache.Cache(tmp_path / "a").files] == [p.read_bytes() for p in python.files]
    assert digest(robocache.Cache(tmp_path / "a")) == digest(python)
    assert told["shards"] == python.num_shards > 1
    assert {name: x["shape"] for name, x in told["streams"].items()} == {
        "joints": [7], "camera/wrist": [2, 3, 3], "depth": [2, 3],
    }  # fmt: skip


def test_dtype_and_size_of_single_streams_are_on_the_command_line_too(tmp_path, capsys):
    robocache.ingest(MadeSource(SPECS), tmp_path / "cache")
    args = ["--streams", "arm=joints,force,camera/wrist,depth", "--json"]
    args += ["--dtype", "joints=bfloat16", "--image-size", "camera/wrist=2x3,depth=1x2"]
    assert main.main(["ingest", str(tmp_path / "cache"), str(tmp_path / "a"), *args]) == 0
    told = json.loads(capsys.readouterr().out)["streams"]
    assert (told["joints"]["dtype"], told["force"]["dtype"]) == ("bfloat16", SPECS["force"].dtype)
    assert (told["camera/wrist"]["shape"], told["depth"]["shape"]) == ([2, 3, 3], [1, 2])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dtype", "int8"], "must be one of float16, bfloat16, float32, float64, uint8, got 'int8'"),
        (["--dtype", "arm=int8"], "must be one of float16, bfloat16, float32, float64, uint8, got 'int8'"),
        (["--dtype", "=float32"], "must be VALUE, or NAME=VALUE with each NAME once, got '=float32'"),
        (["--dtype", "a=float16,float32"], "must be VALUE, or NAME=VALUE with each NAME once, got 'a=float16,float32'"),
        (["--image-size", "a=2x2,a=3x3"], "must be VALUE, or NAME=VALUE with each NAME once, got 'a=2x2,a=3x3'"),
        (["--image-size", "a=2"], "must be HEIGHTxWIDTH, like 224x320, got '2'"),
    ],
)
def test_bad_values_for_streams_are_bad_usage(args, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["ingest", "a", "b", *args])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
