"""The command `robocache` where something is wrong: values that cannot be, pipes, disks, signals, names."""

import json

import numpy as np
import pytest
import robocache
from cache_cases import MadeSource, digest
from robocache import _cli, _cli_cache


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
    name, found = _cli_cache.option(f"x={text}")
    assert (name, found, type(found)) == ("x", value, type(value))


def test_false_does_not_switch_on_what_it_names(steps, tmp_path, capsys):
    """A link out of the dataset stays refused when follow_symlinks=False is said."""
    outside = tmp_path / "outside.npz"
    (steps / "episode_0000003.npz").rename(outside)
    (steps / "episode_0000003.npz").symlink_to(outside)
    for value, code in (("False", 1), ("false", 1), ("True", 0), ("true", 0)):
        assert _cli.main(["info", str(steps), "--option", f"follow_symlinks={value}"]) == code, value
    assert "is a link out of the dataset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("follow_symlinks=no", "open: follow_symlinks must be True or False, got 'no'"),
        ("follow_symlinks=1", "open: follow_symlinks must be True or False, got 1"),
        ("language=None", "open: language must be True or False, got None"),
        ("video=off", "open: video must be True or False, got 'off'"),
        ("max_bytes=abc", "open: max_bytes must be a number of bytes from 0, got 'abc'"),
        ("max_bytes=true", "open: max_bytes must be a number of bytes from 0, got True"),
        ("max_bytes=-1", "open: max_bytes must be a number of bytes from 0, got -1"),
        ("repair=sort", "open: repair must be a dict like {'unsorted': 'sort'}, got 'sort'"),
        ("repair=5", "open: repair must be a dict like {'unsorted': 'sort'}, got 5"),
    ],
)
@pytest.mark.parametrize("command", ["info", "check", "ingest", "export"])
def test_options_of_a_wrong_type_are_bad_usage(command, text, message, steps, tmp_path, capsys):
    out = [str(tmp_path / "out")] if command in ("ingest", "export") else []
    assert _cli.main([command, str(steps), *out, "--option", text]) == 2
    assert capsys.readouterr().err == f"robocache {command}: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_range_that_goes_back_is_bad_usage_and_the_cache_stays(tmp_path, capsys):
    robocache.ingest(MadeSource(), tmp_path / "from")
    before = digest(robocache.ingest(MadeSource(), tmp_path / "to"))
    with pytest.raises(SystemExit, match="2"):
        _cli.main(["ingest", str(tmp_path / "from"), str(tmp_path / "to"), "--episodes", "0,4-3"])
    assert "argument --episodes: must be ranges that do not go back, got '4-3'" in capsys.readouterr().err
    for command, out in (("ingest", [str(tmp_path / "to")]), ("export", [str(tmp_path / "out")]), ("view", [])):
        args = [command, str(tmp_path / "from"), *out, "--episodes", "0-999999999999"]
        assert _cli.main([*args, *(["--fps", "5"] if command == "export" else [])]) == 2
        assert f"{command}: episodes must be from 0 to 4, got 5" in capsys.readouterr().err
    assert digest(robocache.Cache(tmp_path / "to")) == before
    assert _cli.main(["ingest", str(tmp_path / "from"), str(tmp_path / "to"), "--episodes", "3,0-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3
