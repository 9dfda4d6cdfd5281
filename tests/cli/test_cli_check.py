"""The command `robocache check`: its report as text, JSON and HTML, its exit codes, and caches as well as datasets."""

import json
import os
import re
import sys

import numpy as np
import pytest
import robocache
from paths import GOLDEN_DIRTY
from quality_cases import SPECS, Listed, clean_episode, set_values, with_values
from robocache.cli import main


def run(capsys, *args):
    code = main.main(["check", *map(str, args)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def cache(tmp_path):
    """Two episodes, of which the second has NaN and a dead channel."""
    dirty = with_values(clean_episode(1), "arm", set_values([7, 8], np.nan, 0))
    dirty = with_values(dirty, "force", set_values(slice(None), 1.0))
    return robocache.ingest(Listed(clean_episode(), dirty), tmp_path / "cache").path


@pytest.fixture
def steps(tmp_path):
    """CALVIN, of which a step is missing."""
    folder = tmp_path / "calvin"
    folder.mkdir()
    for step in (0, 1, 2, 4, 5):
        np.savez(folder / f"episode_{step:07d}.npz", actions=np.array([step, 2.0 * step]))
    np.save(folder / "ep_start_end_ids.npy", np.array([[0, 5]]))
    return folder


def damage(cache):
    shard = next(cache.glob("shard-*"))
    os.chmod(shard, 0o644)
    with open(shard, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    return shard


def test_a_cache_is_verified_and_its_data_checked(cache, capsys):
    code, out, err = run(capsys, cache)
    assert (code, err) == (0, "")
    assert "all checksums match" in out
    assert re.search(r"^warning +nan_value +arm +1 +2 +episode 1, row 7: values that are NaN: 2", out, re.M)
    assert re.search(r"^warning +dead +force +1 +1 +episode 1, row 0: 1 of 1 channels never change", out, re.M)
    assert re.search(r"^camera +100 +120 +30\.00 +(29|30)\.\d\d ", out, re.M)
    assert "worst episodes: 1 (" in out


def test_json_has_everything_and_can_be_read_strictly(cache, capsys):
    code, out, _ = run(capsys, cache, "--json")
    told = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert (code, told["ok"], told["problems"], told["checksums"]) == (0, True, [], "right")
    report = robocache.check(cache)
    assert told == report.to_json()
    assert told["score"] == report.score < 100
    assert [(f["kind"], f["stream"], f["episode"], f["row"], f["count"]) for f in told["findings"]] == [
        ("dead", "force", 1, 0, 1),
        ("nan_value", "arm", 1, 7, 2),
    ]
    assert list(told["streams"]) == list(SPECS)
    assert len(told["episodes"]) == len(told["stream_scores"]) == 2


def test_below_the_asked_score_ends_with_code_1(cache, capsys):
    score = robocache.check(cache).score
    assert run(capsys, cache, "--fail-below", score - 0.01)[0] == 0
    code, out, err = run(capsys, cache, "--fail-below", score + 0.01)
    assert code == 1
    assert "score" in out
    assert f"the score is {score:.2f}, below" in err
    assert run(capsys, cache, "--fail-below", 100, "--streams", "camera")[0] == 0
    assert run(capsys, cache, "--fail-below", 100, "--json")[0] == 1


def test_a_damaged_cache_always_fails_and_names_the_file(cache, tmp_path, capsys):
    shard = damage(cache)
    for options in ((), ("--json",), ("--fail-below", 0), ("--checksums-only",), ("--html", tmp_path / "x.html")):
        code, out, err = run(capsys, cache, *options)
        assert code == 1, options
        assert shard.name in out + err, options
    assert "checksums are wrong" in (tmp_path / "x.html").read_text()
    told = json.loads(run(capsys, cache, "--json")[1])
    assert (told["ok"], told["score"], told["checksums"], told["episodes"]) == (False, 0, "wrong", [])
    (cache / "manifest.json").write_text("{}")
    for options in ((), ("--json",), ("--checksums-only",), ("--checksums-only", "--json")):
        code, out, err = run(capsys, cache, *options)
        assert code == 1
        assert "manifest.json" in err
        assert not out or json.loads(out)["ok"] is False


def test_checksums_alone(cache, capsys):
    code, out, _ = run(capsys, cache, "--checksums-only")
    assert (code, out.split(": ")[-1]) == (0, "all checksums match\n")
    told = json.loads(run(capsys, cache, "--checksums-only", "--json")[1])
    assert told == {"path": str(cache), "ok": True, "problems": []}


def test_a_dataset_in_another_format_is_opened_with_its_dirt(steps, capsys):
    code, out, err = run(capsys, steps)
    assert (code, err) == (0, "")
    assert "calvin, 1 episodes" in out
    assert re.search(r"^error +missing +actions +1 +1 +episode 0, row 3: .*0000003.npz is missing", out, re.M)
    assert re.search(r"^warning +gap +actions ", out, re.M)
    with pytest.raises(robocache.FormatError):
        robocache.open(steps).episode(0)


def test_what_a_repair_changed_is_a_note(steps, tmp_path, capsys):
    code, out, _ = run(capsys, steps, "--option", 'repair={"missing": "drop"}')
    assert code == 0
    assert re.search(r"^note +repaired +actions +1 +1 +episode 0, row 3: missing: ", out, re.M)
    assert "error  " not in out
    cache = robocache.ingest(steps, tmp_path / "out", repair={"missing": "drop"})
    assert re.search(r"^note +repaired +actions ", robocache.check(cache).text(), re.M)


def test_thresholds_and_options_are_given_by_name(steps, capsys):
    _, out, _ = run(capsys, steps, "--threshold", "gap_factor=3", "--option", "rate_hz=10", "--format", "calvin")
    assert "gap" not in out
    assert " 10.00 " in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("nowhere", "--checksums-only"), "path must be the folder of a cache, got nowhere"),
        (("cache", "--threshold", "gaps=1"), "--threshold must have keys among gap_factor"),
        (("cache", "--threshold", "gap_factor=-1"), "must be a number above 0, got -1"),
        (("cache", "--streams", "leg"), "has no stream 'leg'"),
        (("cache", "--option", "rate_hz=3"), "a cache takes no options, got rate_hz"),
        (
            ("cache", "--checksums-only", "--fail-below", "5"),
            "--checksums-only cannot be combined with options other than --json",
        ),
        (("cache", "--html", "nowhere/x.html"), "nowhere/x.html"),
        (("calvin", "--option", "split=test"), "split must be one of"),
    ],
)
def test_bad_usage_ends_with_code_2(args, message, cache, steps, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *args)
    assert code == 2
    assert err.startswith("robocache check: ")
    assert message in err


@pytest.mark.parametrize("args", [("--fail-below", "101"), ("--fail-below", "x"), ("--threshold", "3"), ()])
def test_arguments_that_cannot_be_read_end_with_code_2(args, capsys):
    with pytest.raises(SystemExit) as end:
        run(capsys, *args, *(["x"] if args else []))
    assert end.value.code == 2


def test_a_path_in_no_known_format_ends_with_code_1(tmp_path, capsys):
    code, _, err = run(capsys, tmp_path)
    assert code == 1
    assert "unrecognized dataset format" in err
    assert json.loads(run(capsys, tmp_path, "--json")[1])["ok"] is False


def test_the_progress_bar_goes_to_the_terminal_and_not_into_the_report(cache, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _, out, err = run(capsys, cache)
    assert "2/2 episodes" in err
    assert "episodes]" not in out
    assert run(capsys, cache, "--json")[2] == ""


def test_a_dataset_without_episodes_or_streams_is_empty_and_no_failure(tmp_path, capsys):
    writer = robocache.CacheWriter(tmp_path / "no_episodes", Listed().specs)
    writer.commit()
    code, out, err = run(capsys, tmp_path / "no_episodes", "--html", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert "score 0 of 100; 1 error, 0 warnings" in out
    assert re.search(r"^error +empty .* the dataset has no episodes$", out, re.M)
    assert run(capsys, tmp_path / "no_episodes", "--json")[0] == 0
    bare = robocache.check(Listed(clean_episode(specs={}), specs={}))
    assert bare.stream_scores.shape == (1, 0)
    assert "the dataset has no streams" in bare.text()


def test_the_manifest_of_another_tool_does_not_make_a_dataset_a_cache(steps, capsys):
    (steps / "manifest.json").write_text('{"tool": "dvc"}')
    code, out, err = run(capsys, steps)
    assert (code, err) == (0, "")
    assert "calvin, 1 episodes" in out


def test_a_clean_dataset_says_none_and_100(tmp_path, capsys):
    robocache.ingest(Listed(clean_episode()), tmp_path / "clean")
    code, out, _ = run(capsys, tmp_path / "clean", "--html", tmp_path / "x.html", "--fail-below", 100)
    assert code == 0
    assert "score 100 of 100; 0 errors, 0 warnings, 0 notes; all checksums match" in out
    assert "worst" not in out
    page = (tmp_path / "x.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "None." in page


def test_mcap_asks_for_its_clock(capsys):
    pytest.importorskip("mcap_ros2", reason="MCAP is read with mcap-ros2-support")
    path = GOLDEN_DIRTY / "mcap/swapped.mcap"
    code, _, err = run(capsys, path)
    assert code == 2
    assert "clock is required for " in err
    assert "; it must be one of log_time, publish_time, header.stamp" in err
    code, out, _ = run(capsys, path, "--option", "clock=header.stamp")
    assert code == 0
    assert re.search(r"^error +out_of_order +/state/linear ", out, re.M)
