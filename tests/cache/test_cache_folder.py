"""What an ingest may write to, delete and go on with: files of others, the source itself, identity, moved folders."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource, digest
from robocache.convert.new_folder import new_folder
from test_ingest_strict import write_calvin

ARM = {"arm": SPECS["arm"]}


class Stop(Exception):
    pass


def stop_after(count):
    def stop(done, total):
        if done == count:
            raise Stop

    return stop


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def names_of(cache):
    return {path.name for path in cache.files}


def stopped(source, out, after=2, **options):
    with pytest.raises(Stop):
        robocache.ingest(source, out, shard_bytes=1, progress=stop_after(after), **options)


# ---- files of others -------------------------------------------------------------------------------------------------


def test_a_log_is_not_deleted_by_an_ingest_into_its_own_folder(tmp_path, rng):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    (tmp_path / "logs").mkdir()
    logs.write_log(tmp_path / "logs" / "run-20240115.mcap", logs.log_messages(rng)[0])
    before = (tmp_path / "logs" / "run-20240115.mcap").read_bytes()
    line = [sys.executable, "-m", "robocache", "ingest", "logs/run-20240115.mcap", "logs"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2
    assert "ingest: out must not hold the source, got logs" in done.stderr
    assert (tmp_path / "logs" / "run-20240115.mcap").read_bytes() == before
    assert names_in(tmp_path / "logs") == {"run-20240115.mcap"}


@pytest.mark.parametrize("way", ["itself", "parent", "link", "relative", "linked source", "open"])
def test_the_source_and_the_folders_above_it_are_refused(way, tmp_path, monkeypatch):
    source = write_calvin(tmp_path / "calvin")
    before = names_in(source)
    out, given = tmp_path, source
    if way == "itself":
        out = source
    elif way == "link":
        out = tmp_path / "link"
        out.symlink_to(source)
    elif way == "relative":
        monkeypatch.chdir(source)
        out = "../calvin/../calvin"
    elif way == "linked source":
        (tmp_path / "elsewhere").mkdir()
        given = tmp_path / "elsewhere" / "calvin"
        given.symlink_to(source)
        out = tmp_path
    elif way == "open":
        given = robocache.open(source)
    with pytest.raises(ValueError, match=r"ingest: out must not (be|hold) the source, got"):
        robocache.ingest(given, out)
    assert names_in(source) == before


def test_a_folder_inside_the_source_is_fine(tmp_path):
    source = write_calvin(tmp_path / "calvin")
    cache = robocache.ingest(source, source / "cache")
    assert robocache.ingest(source, source / "cache", resume=True).generation == cache.generation == 1


def test_a_folder_with_files_of_others_and_no_manifest_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for call in (
        lambda: robocache.ingest(MadeSource(), tmp_path),
        lambda: robocache.CacheWriter(tmp_path, ARM),
    ):
        with pytest.raises(ValueError, match=r'must be new, empty or a cache, got .* which holds "notes.txt"'):
            call()
    assert names_in(tmp_path) == {"notes.txt"}
    (tmp_path / "manifest.json").write_text('{"name": "an extension"}')
    with pytest.raises(robocache.FormatError, match=r"manifest\.json"):
        robocache.ingest(MadeSource(), tmp_path)
    assert names_in(tmp_path) == {"notes.txt", "manifest.json"}


def test_files_of_others_in_a_cache_stay_whatever_their_names(tmp_path):
    out = tmp_path / "cache"
    robocache.ingest(MadeSource(), out)
    others = ["run-20240115.mcap", "shard-00000-00000001.safetensors.bak", "episodes-00000002.parquet",
              "shard-00000-00000003.safetensors", "manifest.json.tmp", "a-00000001.bin"]  # fmt: skip
    for name in others:
        (out / name).write_text(name)
    for seed in range(1, 5):
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            stopped(MadeSource(seed=seed + 10), out)
            cache = robocache.ingest(MadeSource(seed=seed), out)
        if cache.generation < 3:
            assert any("shard-00000-00000003.safetensors" in str(x.message) for x in noted)
        assert names_in(out) == names_of(cache) | set(others)
        assert [(out / name).read_text() for name in others] == others


def test_shards_that_a_stopped_ingest_of_the_first_release_left_are_named_and_left_alone(tmp_path):
    out = tmp_path / "cache"
    stopped(MadeSource(), out)
    (out / "manifest.json.next").unlink()  # which it did not write
    before = names_in(out)
    with pytest.raises(ValueError, match=r"shard-00000-00000001\.safetensors"):
        robocache.ingest(MadeSource(), out)
    assert names_in(out) == before


# ---- identity --------------------------------------------------------------------------------------------------------


class Nameless(MadeSource):
    def fingerprint(self):
        return ""


def test_a_source_without_a_fingerprint_is_never_resumed(tmp_path):
    out = tmp_path / "cache"
    a, b = Nameless(seed=0), Nameless(seed=1)
    robocache.ingest(a, out)
    with pytest.raises(ValueError, match="resume must have a source whose fingerprint"):
        robocache.ingest(b, out, resume=True)
    assert digest(robocache.ingest(b, out)) == digest(b)
    stopped(a, out)
    with pytest.raises(ValueError, match="give the source a fingerprint"):
        robocache.ingest(b, out, resume=True)
    cache = robocache.ingest(b, out)
    assert digest(cache) == digest(b)
    assert names_in(out) == names_of(cache)


def test_a_writer_without_a_fingerprint_is_never_resumed(tmp_path):
    with pytest.raises(ValueError, match="CacheWriter: resume needs a fingerprint, got none"):
        robocache.CacheWriter(tmp_path / "cache", ARM, resume=True)
    assert not (tmp_path / "cache").exists()


def test_a_stopped_ingest_is_not_continued_from_another_source(tmp_path):
    out = tmp_path / "cache"
    stopped(MadeSource(seed=0), out)
    cache = robocache.ingest(MadeSource(seed=1), out, shard_bytes=1, resume=True)
    assert digest(cache) == digest(MadeSource(seed=1))
    assert names_in(out) == names_of(cache)


def test_another_function_for_the_episodes_is_another_ingest(tmp_path):
    out = tmp_path / "cache"
    stopped(MadeSource(), out, episodes=lambda e: e.index > 0)
    with pytest.raises(ValueError, match="resume must have episodes as numbers"):
        robocache.ingest(MadeSource(), out, episodes=lambda e: e.index < 2, resume=True)


def test_caches_written_without_a_fingerprint_are_told_apart_by_their_rows(tmp_path):
    for seed in (0, 1):
        writer = robocache.CacheWriter(tmp_path / f"{seed}", SPECS)
        for i, episode in enumerate(MadeSource(seed=seed)):
            writer.add(episode, i)
        writer.commit()
    out = tmp_path / "cache"
    robocache.ingest(tmp_path / "0", out)
    assert digest(robocache.ingest(tmp_path / "1", out, resume=True)) == digest(MadeSource(seed=1))
    assert robocache.ingest(tmp_path / "1", out, resume=True).generation == 2


def test_calvin_steps_that_were_rewritten_in_place_are_another_source(tmp_path):
    path, out = write_calvin(tmp_path / "calvin"), tmp_path / "cache"
    robocache.ingest(path, out)
    assert robocache.ingest(path, out, resume=True).generation == 1
    with open(path / "episode_0000002.npz", "r+b") as file:
        np.savez(file, actions=np.full(7, 99, np.float64))
    cache = robocache.ingest(path, out, resume=True)
    assert cache.generation == 2
    assert cache.episode(1).streams["actions"].values[0, 0] == 99


def calvin_of(path, value):
    """As an archive that sets all times to 0 leaves it: value aside, all such datasets look the same."""
    path.mkdir(exist_ok=True)
    for step in range(4):
        np.savez(path / f"episode_{step:07d}.npz", actions=np.full(7, value, np.float64))
    np.save(path / "ep_start_end_ids.npy", np.array([[0, 1], [2, 3]]))
    for file in path.iterdir():
        os.utime(file, (0, 0))
    return path


@pytest.mark.parametrize("where", ["elsewhere", "in the same place"])
def test_a_source_of_the_same_names_sizes_and_times_is_not_taken_for_another(tmp_path, where):
    first, out = calvin_of(tmp_path / "a", 1.0), tmp_path / "cache"
    robocache.ingest(first, out)
    assert robocache.ingest(first, out, resume=True).generation == 1
    second = calvin_of(first if where == "in the same place" else tmp_path / "b", 2.0)
    reason = f"resume is not possible, starting at the first episode: {out} has a cache of {first}"
    with pytest.warns(RuntimeWarning, match=reason):
        cache = robocache.ingest(second, out, resume=True)
    assert cache.episode(0).streams["actions"].values[0, 0] == 2.0


def test_a_moved_source_and_other_options_begin_anew_with_the_reason(tmp_path):
    first, out = calvin_of(tmp_path / "a", 1.0), tmp_path / "cache"
    robocache.ingest(first, out)
    with pytest.warns(RuntimeWarning, match="has a cache of this source with other options"):
        assert robocache.ingest(first, out, resume=True, rate_hz=15).generation == 2
    first.rename(tmp_path / "b")
    with pytest.warns(RuntimeWarning, match=f"has a cache of {first}; its files .* have changed or were moved since"):
        assert robocache.ingest(tmp_path / "b", out, resume=True, rate_hz=15).generation == 3


def test_an_interrupted_ingest_of_another_source_is_not_continued(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    first, second = calvin_of(tmp_path / "a", 1.0), calvin_of(tmp_path / "b", 2.0)
    out = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        robocache.ingest(first, out, shard_bytes=1, progress=stop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            robocache.ingest(first, out, shard_bytes=1, progress=stop, resume=True)
    with pytest.warns(RuntimeWarning, match="has an interrupted ingest of another source"):
        cache = robocache.ingest(second, out, shard_bytes=1, resume=True)
    assert [episode.streams["actions"].values[0, 0] for episode in cache] == [2.0, 2.0]


@pytest.mark.parametrize("how", ["rewritten", "removed"])
def test_a_source_that_changes_during_the_ingest_is_noticed_and_nothing_is_committed(how, tmp_path):
    path, out = write_calvin(tmp_path / "calvin"), tmp_path / "cache"
    old = robocache.ingest(MadeSource(), out)

    def change(done, total):
        if done == 1 and how == "rewritten":
            np.savez(path / "episode_0000000.npz", actions=np.full(7, 99, np.float64))
        elif done == total and how == "removed":
            (path / "ep_start_end_ids.npy").unlink()

    with pytest.raises(robocache.FormatError, match=r"changed during the ingest, so nothing was committed"):
        robocache.ingest(path, out, shard_bytes=1, progress=change)
    assert digest(robocache.Cache(out)) == digest(old)
    assert names_in(out) == names_of(old)


# ---- kills, moves, links ---------------------------------------------------------------------------------------------


def test_resuming_a_finished_cache_removes_what_a_kill_after_the_commit_left(tmp_path, monkeypatch):
    out = tmp_path / "cache"
    old = robocache.ingest(MadeSource(seed=1), out, shard_bytes=1)
    kept = {path: path.read_bytes() for path in old.files if path.name != "manifest.json"}
    stopped(MadeSource(), out, after=5)  # every shard is there
    journal = out / "manifest.json.next"
    text = journal.read_text()
    new = robocache.ingest(MadeSource(), out, shard_bytes=1, resume=True)
    # As if the process had been killed after the manifest was renamed: the old files and the journal are still there.
    for path, data in kept.items():
        path.write_bytes(data)
    crc = int(text.splitlines()[-1][:8], 16)
    line = json.dumps({"replaces": [path.name for path in kept]}, separators=(",", ":"))
    crc = crc32c(line.encode(), crc)
    journal.write_text(text + f"{crc:08x} {line}\n")
    (out / "notes.txt").write_text("mine")
    again = robocache.ingest(MadeSource(), out, shard_bytes=1, resume=True)
    assert again.generation == new.generation
    assert names_in(out) == names_of(again) | {"notes.txt"}


def crc32c(data, crc):
    """Continues the checksum bit by bit: the module's own does not take one to continue from."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_resuming_a_finished_cache_removes_what_a_stopped_ingest_of_another_source_left(tmp_path):
    out = tmp_path / "cache"
    cache = robocache.ingest(MadeSource(), out)
    stopped(MadeSource(seed=1), out)
    assert names_in(out) > names_of(cache)
    assert robocache.ingest(MadeSource(), out, resume=True).generation == 1
    assert names_in(out) == names_of(cache)


def test_a_folder_that_is_moved_away_during_an_ingest_does_not_harm_the_one_in_its_place(tmp_path):
    out = tmp_path / "cache"
    robocache.ingest(MadeSource(seed=1), out)
    other = robocache.ingest(MadeSource(seed=2), tmp_path / "other")
    expected = digest(other)

    def move(done, total):
        if done == 2:
            out.rename(tmp_path / "moved")
            (tmp_path / "other").rename(out)

    with pytest.raises(robocache.FormatError, match="moved or replaced during the ingest; nothing was committed"):
        robocache.ingest(MadeSource(), out, shard_bytes=1, progress=move)
    assert digest(robocache.Cache(out)) == expected
    assert names_in(out) == names_of(robocache.Cache(out))
    assert digest(robocache.Cache(tmp_path / "moved")) == digest(MadeSource(seed=1))


def test_an_export_whose_folder_is_moved_away_does_not_harm_the_one_in_its_place(tmp_path):
    out = tmp_path / "out"
    hidden = tmp_path / ".out.robocache-tmp"

    def export():
        with new_folder(out, "export") as folder:
            (folder / "mine").write_text("1")
            hidden.rename(tmp_path / "moved")
            hidden.mkdir()
            (hidden / "precious").write_text("2")

    with pytest.raises(robocache.FormatError, match="moved or replaced"):
        export()
    assert (hidden / "precious").read_text() == "2"
    assert not out.exists()


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
    code = """
import os, sys
from pathlib import Path
from robocache.convert.new_folder import new_folder
with new_folder(Path(sys.argv[1]), "export") as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "half").write_text("1")
    os._exit(9)
"""
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", code, str(out)]).returncode == 9
    assert not out.exists()
    with new_folder(out, "export") as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").write_text("2")
    assert names_in(tmp_path) == {"out"}
    assert names_in(out) == {"whole"}


@pytest.mark.parametrize("call", ["ingest", "export"])
def test_a_file_system_that_cannot_sync_folders_works_with_a_note(call, tmp_path):
    """fsync of a folder fails with EINVAL: a preloaded library does that."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here")
    source = tmp_path / "no_fsync.c"
    source.write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
int fsync(int file) {
    struct stat info;
    if (fstat(file, &info) == 0 && S_ISDIR(info.st_mode)) { errno = EINVAL; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
""")
    library = tmp_path / "no_fsync.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    calvin = write_calvin(tmp_path / "calvin")
    code = {
        "ingest": "import sys; from robocache.cli.main import main; "
        f"sys.exit(main(['ingest', {str(calvin)!r}, 'cache']))",
        "export": "from pathlib import Path; from robocache.convert.new_folder import new_folder\n"
        "with new_folder(Path('cache'), 'export') as folder: (folder / 'x').write_text('x')",
    }[call]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env={**os.environ, "LD_PRELOAD": str(library)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot sync folders") == 1
    if call == "ingest":
        assert "robocache ingest: note: " in done.stderr
        assert robocache.Cache(tmp_path / "cache").verify() == []


# ---- paths -----------------------------------------------------------------------------------------------------------


def test_a_path_is_the_folder_that_it_names(tmp_path, monkeypatch):
    """Not the part before a NUL, not the current folder for an empty text, and ``..`` as the kernel follows it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "in")
    for path, rule in (("", "must not be empty"), ("a\0b", "must not have a NUL character")):
        for call in (lambda path=path: robocache.ingest(MadeSource(), path), lambda path=path: robocache.Cache(path)):
            with pytest.raises(ValueError, match=rf"path {rule}"):
                call()
    assert names_in(tmp_path) == {"far", "link"}
    assert len(robocache.ingest(MadeSource(ARM), "link/../cache")) == 5
    assert names_in(tmp_path / "far") == {"in", "cache"}


def test_a_source_of_a_relative_path_survives_chdir(tmp_path, monkeypatch):
    write_calvin(tmp_path / "calvin")
    monkeypatch.chdir(tmp_path)
    source = robocache.open("calvin")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(robocache.ingest(source, "cache")) == len(source) > 0


def test_relative_paths_survive_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = robocache.ingest(MadeSource(), "cache")
    opened = robocache.Cache(Path("cache"))
    writer = robocache.CacheWriter("second", ARM)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for each in (cache, opened):
        assert each.verify() == []
        assert digest(pickle.loads(pickle.dumps(each))) == digest(MadeSource())
        assert all(path.exists() for path in each.files)
    writer.add(MadeSource(ARM).episode(0))
    assert len(writer.commit()) == 1
    assert names_in(tmp_path) == {"cache", "second", "elsewhere"}


# ---- what could fail only at the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("unit", 5, "unit must be a text or None, got 5"),
        ("names", "ab", "names must be a tuple of texts or None, got 'ab'"),
        ("names", ("a", 1), "names must be a tuple of texts or None, got"),
        ("rate_hz", "50", "rate_hz must be a number or None, got '50'"),
    ],
)
def test_a_spec_that_no_reader_would_accept_is_refused_before_it_is_written(field, value, rule):
    """It replaced a good cache by one that cannot be opened."""
    with pytest.raises(ValueError, match=rf"StreamSpec: {rule}"):
        robocache.StreamSpec("arm", "float32", (2,), **{field: value})


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"task": 5}, "task of episode 0 must be UTF-8 text or None, got 5"),
        ({"task": "a\ud800"}, r"task of episode 0 must be UTF-8 text or None, got 'a\\ud800'"),
        ({"index": 1.5}, "index must be an integer of 64 bits, got 1.5"),
        ({"index": 2**63}, "index must be an integer of 64 bits, got 9223372036854775808"),
    ],
)
def test_an_episode_that_the_table_cannot_have_is_refused_when_it_is_added(tmp_path, given, rule):
    episode = MadeSource(ARM).episode(0)
    bad = robocache.Episode(**{"index": 0, "streams": episode.streams, "task": None, "meta": {}, **given})
    writer = robocache.CacheWriter(tmp_path / "cache", ARM)
    with pytest.raises(ValueError, match=rf"CacheWriter.add: {rule}"):
        writer.add(bad)
    writer.add(episode)
    assert len(writer.commit()) == 1
