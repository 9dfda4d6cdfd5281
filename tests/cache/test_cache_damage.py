"""Damage to every file of a cache as `robocache check` sees it; the C++ tests do it to every bit of the headers."""

import contextlib
import json
import os
import random

import pytest
import robocache
from cache_cases import MadeSource, digest
from robocache.cli import main


@pytest.fixture
def cache(tmp_path):
    out = tmp_path / "cache"
    for file in robocache.ingest(MadeSource(episodes=6, messages=120), out, shard_bytes=50_000).files:
        file.chmod(0o644)  # finished files are read-only
    return out


def check(path, capsys):
    """The exit code of the command, and what it reports."""
    code = main.main(["check", str(path), "--json"])
    return code, json.loads(capsys.readouterr().out)


def refuses_or_stays_inside(path):
    """Opening and reading without a check: an error of ours, or some numbers."""
    with contextlib.suppress(robocache.FormatError):
        digest(robocache.Cache(path))


def test_every_file_cut_at_every_4_kib_and_near_its_end_is_found(cache, capsys):
    cuts = 0
    for file in robocache.Cache(cache).files:
        good = file.read_bytes()
        for size in {*range(0, len(good), 4096), len(good) - 1, len(good) // 2}:
            file.write_bytes(good[:size])
            assert check(cache, capsys)[0] == 1, (file.name, size)
            if file.suffix != ".parquet":  # which opening does not read
                with pytest.raises(robocache.FormatError):
                    robocache.Cache(cache)
            cuts += 1
            file.unlink()
            file.write_bytes(good)
    assert cuts > 30
    assert check(cache, capsys)[0] == 0


def test_a_flipped_bit_anywhere_is_found_and_the_file_is_named(cache, capsys):
    chance = random.Random(11)
    for file in robocache.Cache(cache).files:
        size = file.stat().st_size
        for _ in range(25):
            bit = chance.randrange(size * 8)
            with open(file, "r+b") as handle:
                handle.seek(bit // 8)
                byte = handle.read(1)[0]
                handle.seek(bit // 8)
                handle.write(bytes([byte ^ 1 << bit % 8]))
            code, report = check(cache, capsys)
            assert code == 1, (file.name, bit)
            assert file.name in json.dumps(report), (file.name, bit)
            refuses_or_stays_inside(cache)
            with open(file, "r+b") as handle:
                handle.seek(bit // 8)
                handle.write(bytes([byte]))
    assert check(cache, capsys)[0] == 0


def test_files_that_are_exchanged_lost_or_longer_are_found(cache, capsys):
    shards = sorted(cache.glob("shard-*"))
    assert len(shards) > 1
    shards[0].rename(cache / "kept")
    assert check(cache, capsys)[0] == 1
    os.link(shards[1], shards[0])
    assert check(cache, capsys)[0] == 1
    shards[0].unlink()
    (cache / "kept").rename(shards[0])
    for file in robocache.Cache(cache).files:
        with open(file, "ab") as handle:
            handle.write(b"\0")
        assert check(cache, capsys)[0] == 1, file.name
        os.truncate(file, file.stat().st_size - 1)
    assert check(cache, capsys)[0] == 0
