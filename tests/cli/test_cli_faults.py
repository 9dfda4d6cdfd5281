"""The command `robocache` where something is wrong: values that cannot be, pipes, disks, signals, names."""

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import robocache
from cache_cases import MadeSource, digest
from export_cases import listed
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cli import ingest, main


@pytest.fixture
def steps(tmp_path):
    """CALVIN, two episodes of five steps."""
    folder = tmp_path / "calvin"
    folder.mkdir()
    for step in range(10):
        np.savez(folder / f"episode_{step:07d}.npz", actions=np.array([step, 2.0 * step]))
    np.save(folder / "ep_start_end_ids.npy", np.array([[0, 4], [5, 9]]))
    return folder


# ---- values that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", True), ("False", False), ("None", None), ("true", True), ("null", None), ("5", 5), ('"False"', "False"),
     ("log_time", "log_time"), ("falsehood", "falsehood")],
)  # fmt: skip
def test_the_value_of_an_option_is_json_or_a_word_of_python_or_text(text, value):
    name, found = ingest.option(f"x={text}")
    assert (name, found, type(found)) == ("x", value, type(value))


def test_false_does_not_switch_on_what_it_names(steps, tmp_path, capsys):
    """A link out of the dataset stays refused when follow_symlinks=False is said."""
    outside = tmp_path / "outside.npz"
    (steps / "episode_0000003.npz").rename(outside)
    (steps / "episode_0000003.npz").symlink_to(outside)
    for value, code in (("False", 1), ("false", 1), ("True", 0), ("true", 0)):
        assert main.main(["info", str(steps), "--option", f"follow_symlinks={value}"]) == code, value
    assert "is a link out of the dataset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("follow_symlinks=no", "open: --option follow_symlinks must be True or False, got 'no'"),
        ("follow_symlinks=1", "open: --option follow_symlinks must be True or False, got 1"),
        ("language=None", "open: --option language must be True or False, got None"),
        ("video=off", "open: --option video must be True or False, got 'off'"),
        ("max_bytes=abc", "open: --option max_bytes must be a number of bytes of at least 0, got 'abc'"),
        ("max_bytes=true", "open: --option max_bytes must be a number of bytes of at least 0, got True"),
        ("max_bytes=-1", "open: --option max_bytes must be a number of bytes of at least 0, got -1"),
        ("repair=sort", "open: --option repair must be a dict like {'unsorted': 'sort'}, got 'sort'"),
        ("repair=5", "open: --option repair must be a dict like {'unsorted': 'sort'}, got 5"),
    ],
)
@pytest.mark.parametrize("command", ["info", "check", "ingest", "export"])
def test_options_of_a_wrong_type_are_bad_usage(command, text, message, steps, tmp_path, capsys):
    out = [str(tmp_path / "out")] if command in ("ingest", "export") else []
    assert main.main([command, str(steps), *out, "--option", text]) == 2
    assert capsys.readouterr().err == f"robocache {command}: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_range_that_goes_back_is_bad_usage_and_the_cache_stays(tmp_path, capsys):
    robocache.ingest(MadeSource(), tmp_path / "from")
    before = digest(robocache.ingest(MadeSource(), tmp_path / "to"))
    with pytest.raises(SystemExit, match="2"):
        main.main(["ingest", str(tmp_path / "from"), str(tmp_path / "to"), "--episodes", "0,4-3"])
    assert "argument --episodes: must be increasing ranges, got '4-3'" in capsys.readouterr().err
    for command, out in (("ingest", [str(tmp_path / "to")]), ("export", [str(tmp_path / "out")]), ("view", [])):
        args = [command, str(tmp_path / "from"), *out, "--episodes", "0-999999999999"]
        assert main.main([*args, *(["--fps", "5"] if command == "export" else [])]) == 2
        assert f"{command}: --episodes must be from 0 to 4, got 5" in capsys.readouterr().err
    assert digest(robocache.Cache(tmp_path / "to")) == before
    assert main.main(["ingest", str(tmp_path / "from"), str(tmp_path / "to"), "--episodes", "3,0-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3


def test_rates_and_gaps_at_the_ends_of_what_numbers_can_say(steps, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    args = ["export", str(steps), str(tmp_path / "out"), "--fps"]
    assert main.main([*args, "1e-7"]) == 2
    assert capsys.readouterr().err == "robocache export: episode 0: --fps must be at least 1e-06, got 1e-07\n"
    assert main.main([*args, "30", "--max-gap-s", "nan"]) == 2
    assert "--max-gap-s must be above 0, got nan" in capsys.readouterr().err
    for number, gap in enumerate(("inf", "1e300", "1e-12")):
        args[2] = str(tmp_path / str(number))
        assert main.main([*args, "45", "--max-gap-s", gap]) == 0
        assert ("are held or in gaps" in capsys.readouterr().out) == (gap == "1e-12"), gap


def test_an_episode_from_one_end_of_int64_to_the_other_is_refused_by_export(tmp_path):
    spec, ends = StreamSpec("a", "float64", (1,)), np.iinfo(np.int64)
    rows = EpisodeStream(spec, np.ones((2, 1)), np.array([ends.min, ends.max]))
    with pytest.raises(robocache.FormatError, match=r"episode 0 lasts 18446744074 s, .* too many"):
        robocache.export(listed(Episode(0, {"a": rows})), tmp_path / "out", fps=1e-6)


# ---- pipes, disks, signals, names ------------------------------------------------------------------------------------


def command(*args, env=None, **options):
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    started = [sys.executable, "-m", "robocache", *map(os.fsencode, args)]
    return subprocess.Popen(started, stderr=subprocess.PIPE, env=plain | (env or {}), **options)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_ends_the_command_quietly(unbuffered, steps):
    reading, writing = os.pipe()
    os.close(reading)
    done = command("info", steps, stdout=writing, env={"PYTHONUNBUFFERED": unbuffered})
    os.close(writing)
    assert (done.communicate()[1], done.returncode) == (b"", 128 + signal.SIGPIPE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_one_line(unbuffered, steps):
    with open("/dev/full", "wb") as full:
        done = command("check", steps, stdout=full, env={"PYTHONUNBUFFERED": unbuffered})
    message = f"robocache: cannot write the output: {os.strerror(errno.ENOSPC)}\n"
    assert (done.communicate()[1].decode(), done.returncode) == (message, 1)


WAITS = """
import signal, sys, time
from robocache.cli import main
from robocache.convert import export as _export
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
_export.times_of = lambda *_: (print("ready", flush=True), time.sleep(60))
sys.exit(main.main(sys.argv[1:]))
"""


def test_an_interrupt_is_one_line_and_leaves_nothing(steps, tmp_path):
    pytest.importorskip("pyarrow")
    args = ["export", str(steps), str(tmp_path / "out"), "--fps", "5"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WAITS, *args], **pipes) as done:
        assert done.stdout.readline() == b"ready\n"
        done.send_signal(signal.SIGINT)
        assert done.communicate(timeout=30)[1] == b"robocache: interrupted\n"
    assert done.returncode == 130
    assert {path.name for path in tmp_path.iterdir()} == {"calvin"}


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_names_that_the_terminal_does_not_know_are_escaped(env, tmp_path):
    spec = StreamSpec("\u540d", "float64", (1,))
    rows = EpisodeStream(spec, np.ones((2, 1)), np.array([0, 1]))
    robocache.ingest(listed(Episode(0, {spec.name: rows})), tmp_path / "cache")
    done = command("info", tmp_path / "cache", stdout=subprocess.PIPE, env=env)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, b"")
    assert b"\\u540d" in out


def test_a_path_that_is_not_utf8_is_named(steps, tmp_path, capsys):
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/x\xff")
    assert main.main(["ingest", str(steps), strange]) == 2
    assert capsys.readouterr().err.endswith("/x\\udcff'\n")
    assert not os.path.exists(strange)
    os.rename(steps, strange)
    assert main.main(["check", strange, "--html", str(tmp_path / "x.html")]) == 0
    robocache.ingest(strange, tmp_path / "cache")
    os.rename(tmp_path / "cache", strange + "c")
    for args in (["info"], ["check"], ["check", "--checksums-only"]):
        assert main.main([*args, strange + "c"]) == 2
        assert "Cache: path must be UTF-8, got '" in capsys.readouterr().err


def test_an_export_to_a_full_disk_names_its_folder(steps, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main.main(["export", str(steps), str(tmp_path / "out"), "--fps", "5"]) == 1
    told = capsys.readouterr().err
    assert told == f"robocache export: {os.strerror(errno.ENOSPC)}: {tmp_path / 'out'}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"calvin"}
