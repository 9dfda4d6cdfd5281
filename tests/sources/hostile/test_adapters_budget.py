"""One budget for every reader: bytes, items and seconds; only regular files; only FormatError leaves."""

import json
import os
import socket
import threading

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from hostile import refused, write
from robocache import FormatError
from robocache.sources import open_here
from robocache.sources.reading import budget as _budget
from robocache.sources.reading import guard, json_file, paths
from robocache.sources.reading.budget import Budget
from robocache.text import escaped


def test_a_call_counts_its_items():
    budget = Budget(max_items=10)
    with budget.call():
        budget.count("x", 10)
        with pytest.raises(FormatError, match="x: 11 items, more than the limit of 10; raise it with max_items="):
            budget.count("x")
    with budget.call():
        budget.count("x", 10)


def test_items_need_bytes_that_hold_them():
    budget = Budget()
    with budget.call() as meter:
        budget.count("x", _budget.FREE_ITEMS)
        with pytest.raises(FormatError, match="x: 262145 items in 0 stored bytes, rejected as a decompression bomb"):
            budget.count("x")
        meter.stored_bytes = 1 << 20
        budget.count("x")


def test_a_call_that_takes_too_long_is_ended(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_budget.time, "thread_time", lambda: now[0])
    with Budget().call() as meter:
        meter.began_s = 0.0
        now[0] = _budget.BASE_SECONDS
        _budget.BUDGET.check_time("x")
        now[0] += 1
        with pytest.raises(
            FormatError, match=r"x: reading took more than 8 s of processor time; raise it with max_seconds="
        ):
            _budget.BUDGET.count("x", _budget.LOOK_EVERY)
        meter.stored_bytes = 1 << 20  # a larger file may take longer
        _budget.BUDGET.check_time("x")
        with pytest.raises(FormatError, match="more than 2 s"):
            Budget(max_seconds=2.0).check_time("x")


def test_threads_share_a_budget_and_not_a_meter():
    budget, found = Budget(max_items=10), []
    ready = threading.Barrier(4)

    def work():
        with budget.call() as meter:
            ready.wait(10)
            for _ in range(10):
                budget.count("x")
            ready.wait(10)
            found.append(meter.items)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [10, 10, 10, 10]


@pytest.mark.parametrize("name", list(datasets.CASES))
@pytest.mark.parametrize("limit", [{"max_bytes": 0}, {"max_items": 0}, {"max_seconds": 0}])
def test_every_format_obeys_every_limit(tmp_path, rng, name, limit):
    written = write(name, tmp_path, rng)
    refused(written.path, f"raise it with {next(iter(limit))}=", **limit, **written.options)


@pytest.mark.parametrize("value", ["many", True, -1, None, float("nan")])
@pytest.mark.parametrize("name", ["max_bytes", "max_items", "max_seconds"])
def test_limits_of_a_wrong_type_are_bad_usage(tmp_path, rng, name, value):
    written = write("calvin", tmp_path, rng)
    with pytest.raises(ValueError, match=f"open: {name} must be a number of {name[4:]} of at least 0"):
        robocache.open(written.path, **{name: value})


def test_an_unknown_option_is_bad_usage_that_names_the_known(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    with pytest.raises(
        ValueError, match=r"options of calvin must be among .*rate_hz.* got 'rate'; did you mean 'rate_hz'\?"
    ):
        robocache.open(written.path, rate=30)


# --- only regular files


def test_nothing_but_a_regular_file_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    for name, kind in (("pipe", "pipe"), ("socket", "socket|No such device"), (".", "folder")):
        with pytest.raises(FormatError, match=kind):
            paths.open_regular(tmp_path / name)
        with pytest.raises(FormatError, match="must be a regular file, got a"):
            paths.regular(tmp_path / name)
    with pytest.raises(FormatError, match="got a device"):
        paths.open_regular(paths.Path("/dev/zero"))
    with pytest.raises(FormatError, match="is missing or not a file"):
        paths.open_regular(tmp_path / "nothing")


def every_file(name, tmp_path, rng):
    written = write(name, tmp_path, rng)
    files = [written.path] if written.path.is_file() else sorted(p for p in written.path.rglob("*") if p.is_file())
    return written, files


@pytest.mark.parametrize("name", list(datasets.CASES))
def test_a_pipe_in_the_place_of_any_file_does_not_block(tmp_path, rng, name):
    written, files = every_file(name, tmp_path, rng)
    for path in files:
        kept = path.with_name(path.name + ".kept")
        path.rename(kept)
        os.mkfifo(path)
        try:
            list(robocache.open(written.path, **written.options))
        except (FormatError, ValueError):  # a rate that stood in the file is asked for
            pass
        finally:
            path.unlink()
            kept.rename(path)
    assert len(list(robocache.open(written.path, **written.options))) == len(written.streams)


# --- JSON


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"0," * 5_000_000 + b"0]",
        b"[" + b"[]," * 5_000_000 + b"[]]",
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"0" + b"}" * 65,
        b"[" * 100_000,
        b'"\xff"',
        b"9" * 5000,
    ],
)
def test_json_that_takes_too_much_is_refused(data):
    with pytest.raises(FormatError, match=r"x (must be JSON of|is not readable JSON|is JSON nested)"):
        json_file.parse_json(data, "x", Budget())


def test_json_of_a_sane_size_is_read():
    value = {"a": [[1, 2.5, None]] * 1000, "b": {"[[": "{" * 100}}
    assert json_file.parse_json(json.dumps(value).encode(), "x", Budget()) == value


def test_a_sparse_json_file_is_refused_before_it_is_read(tmp_path, rng):
    written = write("rlds", tmp_path, rng)
    os.truncate(written.path / "0.1.0/features.json", 1 << 40)
    refused(written.path, "features.json must have at most 67108864 bytes", peak_bytes=1 << 20)


# --- errors


class Strange(Exception):
    pass


@pytest.mark.parametrize(
    "error", [Strange("x"), KeyError("x"), OverflowError("x"), AssertionError(), RecursionError(), UnicodeError("x")]
)
def test_whatever_a_reader_raises_is_a_format_error(tmp_path, rng, monkeypatch, error):
    written = write("calvin", tmp_path, rng)
    source = robocache.open(written.path)

    def fail(*_):
        raise error

    monkeypatch.setattr(type(source), "read", fail)
    with pytest.raises(FormatError, match=type(error).__name__) as raised:
        source.episode(0)
    assert raised.value.__cause__ is error
    monkeypatch.setattr(type(source), "_add_specs", fail)
    with pytest.raises(FormatError, match=type(error).__name__):
        robocache.open(written.path)


def test_lack_of_memory_is_the_fault_of_small_files_only():
    for stored, kind in ((100, FormatError), (1 << 30, MemoryError)):
        with pytest.raises(kind), guard.guarded("x", _budget.Meter(stored_bytes=stored)):
            raise MemoryError


def test_names_are_escaped_in_errors(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    np.savez(written.path / "training/episode_0000100.npz", **{"a\x1b[2J\u202e\n": np.array({"a": 1}, object)})
    with pytest.raises(FormatError) as raised:
        robocache.open(written.path)
    assert r"a\x1b[2J\u202e\n" in str(raised.value)
    assert str(raised.value).isprintable()


def test_long_names_are_cut():
    assert len(escaped("x" * 10**6)) < 2100
    assert escaped("x" * 2000) == "x" * 2000


@pytest.mark.parametrize(("name", "file"), [("lerobot v2.1", "episodes.jsonl"), ("lerobot v3.0", "meta/episodes/")])
def test_every_episode_that_is_placed_is_a_step_of_the_budget(name, file, tmp_path):
    """The reader process is ended after 5 s of processor time without a step; 400,000 episodes take longer."""
    seen = []

    class Noted(Budget):
        def count(self, where, items=1):
            seen.append(where)
            super().count(where, items)

    written = write(name, tmp_path, np.random.default_rng(0))
    open_here(written.path, "lerobot", Noted(), {})
    read = 3 if name == "lerobot v2.1" else 1  # lines, or one table
    assert sum(file in where for where in seen) >= read + len(datasets.LENGTHS)
