"""Real processes, really killed, while they write a cache; and the command line."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import robocache
from cache_cases import MadeSource, digest


def test_80_kills_at_random_moments_leave_old_or_new_nothing_else_and_files_of_others_alone(tmp_path):
    """1,000 of them: benchmarks/results/hostile/cache_kills.json."""
    program = Path(__file__).parent / "cache_kills.py"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "cache"), "--kills", "80"],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == 80
    assert counts["with_leftovers_of_a_kill"] > 10  # else the kills came too early or too late
    assert counts["completed_after_kills"] > 5


def command(*args, **options):
    line = [sys.executable, "-m", "robocache", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A cache, which is a dataset that the command line can open."""
    path = tmp_path_factory.mktemp("source") / "source"
    robocache.ingest(MadeSource(episodes=60, messages=200), path)
    return path


def test_a_killed_command_is_continued_with_resume(source, tmp_path):
    out = tmp_path / "out"
    random.seed(3)
    args = [sys.executable, "-m", "robocache", "ingest", str(source), str(out), "--shard-mib", "0.01"]
    killed = 0
    for _ in range(6):
        process = subprocess.Popen([*args, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        shards = len(list(out.glob("shard-*"))) if out.exists() else 0
        while process.poll() is None and time.monotonic() < deadline:
            if out.exists() and len(list(out.glob("shard-*"))) > shards + random.randrange(6):
                break
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed > 0
    done = command("ingest", source, out, "--shard-mib", "0.01", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 60
    cache = robocache.Cache(out)
    assert digest(cache) == digest(robocache.Cache(source))
    assert {p.name for p in out.iterdir()} == {p.name for p in cache.files}
    robocache.ingest(source, tmp_path / "whole", shard_bytes=int(0.01 * 2**20))
    assert (out / "manifest.json").read_bytes() == (tmp_path / "whole" / "manifest.json").read_bytes()


# ---- the command line ------------------------------------------------------------------------------------------------


def test_ingest_info_and_check_from_the_command_line(source, tmp_path):
    out = tmp_path / "out"
    args = ("--streams", "arm,/lidar=cloud", "--dtype", "bfloat16", "--episodes", "0-2,7")
    done = command("ingest", source, out, *args)
    assert done.returncode == 0, done.stderr
    assert "4 episodes, 2 streams" in done.stdout
    info = json.loads(command("info", out, "--json").stdout)
    assert (info["format"], info["episodes"], list(info["streams"])) == ("robocache", 4, ["arm", "cloud"])
    assert info["streams"]["arm"]["dtype"] == "bfloat16"
    assert info["streams"]["arm"]["declared_hz"] == 500.0
    cache = robocache.Cache(out)
    assert info["streams"]["arm"]["messages"] == sum(len(e.streams["arm"]) for e in cache)
    assert [e.index for e in cache] == [0, 1, 2, 7]
    assert "measured Hz" in command("info", out).stdout
    good = command("check", out, "--checksums-only")
    assert (good.returncode, good.stdout.split(": ")[-1]) == (0, "all checksums match\n")
    told = json.loads(command("check", out, "--checksums-only", "--json").stdout)
    assert told == {"path": str(out), "ok": True, "problems": []}


def test_check_of_a_damaged_cache_ends_with_code_1_and_names_the_file(source, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(source, out)
    shard = next(out.glob("shard-*"))
    shard.chmod(0o644)
    with open(shard, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    done = command("check", out)
    assert done.returncode == 1
    assert str(shard) in done.stderr
    assert json.loads(command("check", out, "--json").stdout)["ok"] is False
    (out / "manifest.json").write_text("{}")
    assert command("check", out).returncode == 1
    assert command("info", out).returncode == 1
    assert command("ingest", source, out).returncode == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("check", "nowhere"), "nowhere"),
        (("info", "nowhere"), "nowhere does not exist"),
        (("info", "nowhere", "--option", "rate"), "NAME=VALUE"),
        (("ingest", "nowhere", "out"), "nowhere does not exist"),
        (("ingest", "a", "b", "--episodes", "1-"), "like 0-3,7"),
        (("ingest", "a", "b", "--streams", "a,,b"), "NAME=NEW"),
        (("ingest", "a", "b", "--shard-mib", "-1"), "positive number of MiB"),
        (("ingest", "a", "b", "--option", "x"), "NAME=VALUE"),
    ],
)
def test_bad_usage_ends_with_code_2(args, message, tmp_path):
    done = command(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_streams_end_with_code_2_and_leave_nothing(source, tmp_path):
    done = command("ingest", source, tmp_path / "out", "--streams", "leg", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["type"] == "ValueError"
    assert not (tmp_path / "out").exists()
