"""First impressions of the command line: its version, near names for misspelled ones, errors in its own words."""

import importlib.metadata
import json

import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource
from robocache.cli import main
from robocache.sources import FORMATS, option_names
from robocache.text import did_you_mean


@pytest.fixture
def steps(tmp_path):
    folder = tmp_path / "calvin"
    folder.mkdir()
    for step in range(4):
        np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64))
    np.save(folder / "ep_start_end_ids.npy", np.array([[0, 3]]))
    return folder


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"robocache {robocache.__version__}\n"


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (["ingst", "a", "b"], "'ingest'"),
        (["ingest", "a", "b", "--image_size", "3x4"], "'--image-size'"),
        (["ingest", "a", "b", "--strems=arm"], "'--streams'"),
        (["check", "a", "--treshold", "gap_factor=3"], "'--threshold'"),
        (["export", "a", "b", "--span", "overlp"], "'overlap'"),
    ],
)
def test_a_misspelled_command_option_or_choice_has_a_suggestion(args, near, capsys):
    with pytest.raises(SystemExit) as end:
        main.main(args)
    assert end.value.code == 2
    assert f"; did you mean {near}?\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("ingest", ["--streams", "action"], "has no stream 'action', only actions; did you mean 'actions'?"),
        ("ingest", ["--dtype", "action=float32"], "--dtype must name streams of the cache, got 'action'; did you"),
        ("export", ["--streams", "action"], "has no stream 'action', only actions; did you mean 'actions'?"),
        ("export", ["--method", "action=mean"], "--method must name streams among actions, got 'action'; did"),
        ("check", ["--streams", "action"], "has no stream 'action', only actions; did you mean 'actions'?"),
        ("check", ["--threshold", "gap_facter=3"], "got 'gap_facter'; did you mean 'gap_factor'?"),
        ("info", ["--format", "calvn"], "open: --format must be one of"),
        ("info", ["--format", "calvn"], "got 'calvn'; did you mean 'calvin'?"),
        ("info", ["--option", "rate=3"], "got 'rate'"),
        ("info", ["--option", "rate_hs=3"], "got 'rate_hs'; did you mean 'rate_hz'?"),
        ("info", ["--option", "rate_hz=0"], "open: --option rate_hz must be a rate in Hz above 0, got 0"),
        (
            "ingest",
            ["--image-size", "8x8"],
            "--image-size must change at least one stream, got (8, 8), but no stream has images",
        ),
        (
            "ingest",
            ["--image-size", "actions=8x8"],
            "--image-size must name image or depth streams, got 'actions' of kind vector",
        ),
        ("export", ["--max-gap-s", "-1"], "--max-gap-s must be above 0, got -1.0"),
    ],
)
def test_errors_name_the_option_the_stream_and_the_nearest_name(command, options, message, steps, tmp_path, capsys):
    out = [str(tmp_path / "out")] if command in ("ingest", "export") else []
    assert main.main([command, str(steps), *out, *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"robocache {command}: ")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_an_option_that_a_format_does_not_have_is_a_value_error(steps):
    with pytest.raises(ValueError, match=r"open: options of calvin must be among .*rate_hz, .*, got 'vidio'$"):
        robocache.open(steps, vidio=True)


def test_a_suggestion_ignores_case_and_is_only_made_where_a_name_is_near():
    assert did_you_mean("ACTION", ["action"]) == "; did you mean 'action'?"
    assert did_you_mean("xyz", ["action"]) == ""
    assert did_you_mean("", []) == ""


# ---- formats ---------------------------------------------------------------------------------------------------------


def test_formats_lists_every_format_and_every_option_with_its_default(capsys):
    assert main.main(["formats", "--json"]) == 0
    listed = {one["format"]: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["reads"] for name, one in listed.items()} == FORMATS
    assert set().union(*(one["options"] for one in listed.values())) == option_names()
    assert listed["calvin"]["options"]["rate_hz"] == 30
    assert (listed["robocache"]["options"], listed["calvin"]["packages"]) == ({}, {})
    assert [name.partition(">")[0] for name in listed["lerobot"]["packages"]] == ["pyarrow", "av", "pillow"]
    assert main.main(["formats"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}={value}" in printed for one in listed.values() for name, value in one["options"].items())


def test_formats_names_packages_that_are_missing_and_how_to_install_them(monkeypatch, capsys):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert main.main(["formats"]) == 0
    assert "h5py>=3.16 (not installed); pip install 'robocache[robomimic]'\n" in capsys.readouterr().out


# ---- reprs -----------------------------------------------------------------------------------------------------------


def test_reprs_are_one_short_line_and_print_no_arrays(tmp_path):
    source = MadeSource(messages=2000)
    episode = source.episode(0)
    spec = robocache.StreamSpec("arm", "float32", (7,), rate_hz=500, names=("x",) * 7, meta={"long": "x" * 10_000})
    shown = {
        "episode": repr(episode),
        "points": repr(episode.streams["/lidar"]),
        "spec": repr(spec),
        "stream": repr(robocache.Stream(np.zeros((1000, 3)), np.arange(1000), max_gap=5)),
        "report": repr(robocache.check(source)),
        "cache": repr(robocache.ingest(source, tmp_path / "cache")),
    }
    for name, text in shown.items():
        assert len(text) < 300, name
        assert "\n" not in text, name
        assert "array" not in text, name
    assert shown["spec"] == "StreamSpec('arm', 'float32', (7,), 'vector', rate_hz=500)"
    assert shown["stream"] == "Stream(values float64 (1000, 3), times int64 (1000,), max_gap=5)"
    arm = len(episode.streams["arm"])
    assert shown["episode"].startswith(f"Episode(0, {{'arm': {arm} rows, 'force': ")
    assert repr(robocache.EpisodeStream(SPECS["force"], np.zeros(2), np.array([3, 5]))) == (
        "EpisodeStream('force', float64 (), 2 rows, from 3 to 5 ns)"
    )
    assert shown["report"].startswith("Report('made', made, score ")
