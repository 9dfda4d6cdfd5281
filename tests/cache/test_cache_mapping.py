"""Mapped shards that are damaged or cut short under a reader: a FormatError, never a signal and never other numbers."""

import faulthandler
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource, digest
from robocache import _core
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # the children read caches, and use no thread of others

PAGE = resource.getpagesize()
ARM = StreamSpec("arm", "float32", (64,))
WINDOWS = {"arm": robocache.Window(past=0.02, future=0.02, rate_hz=100)}


def make(path, episodes=6, rows=400):
    """A shard an episode, of about 100 KiB; its description is at its end, after the values."""
    writer = robocache.CacheWriter(path, {"arm": ARM}, shard_bytes=1)
    for i in range(episodes):
        values = np.random.default_rng(i).normal(size=(rows, 64)).astype(np.float32)
        writer.add(Episode(i, {"arm": EpisodeStream(ARM, values, np.arange(rows) * 10**7)}))
    return writer.commit()


def shards_of(cache):
    return [path for path in cache.files if path.suffix == ".safetensors"]


def flip(path, byte):
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ 1]))


def cut(path, size):
    path.chmod(0o644)
    os.truncate(path, size)


def loader_of(cache, **options):
    return robocache.Loader(cache, 16, WINDOWS, **options)


def read(loader):
    return [loader.batch(step) for step in range(len(loader))]


# ---- checksums -------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_where_rows_are_copied(tmp_path):
    cache = make(tmp_path / "cache")
    size = shards_of(cache)[3].stat().st_size
    for byte in (size - 1, size // 2, size - 1000):
        flip(shards_of(cache)[3], byte)
        with pytest.raises(robocache.FormatError, match=rf"{shards_of(cache)[3].name}.* are damaged: their checksum"):
            loader_of(robocache.Cache(cache.path), tier="memory")
        for verify in (None, "none"):
            read(loader_of(robocache.Cache(cache.path), tier="memory", verify=verify))
        flip(shards_of(cache)[3], byte)
    read(loader_of(robocache.Cache(cache.path), tier="memory"))


def test_damage_in_streams_and_episodes_that_are_not_read_is_no_error(tmp_path):
    specs = {"arm": ARM, "camera": StreamSpec("camera", "uint8", (64, 64, 3), "image")}
    writer = robocache.CacheWriter(tmp_path / "cache", specs)
    for i in range(3):
        arm = EpisodeStream(ARM, np.ones((50, 64), np.float32), np.arange(50) * 10**7)
        camera = EpisodeStream(specs["camera"], np.ones((200, 64, 64, 3), np.uint8), np.arange(200) * 10**7)
        writer.add(Episode(i, {"arm": arm, "camera": camera}))
    cache = writer.commit()
    (shard,) = shards_of(cache)
    assert shard.stat().st_size > 7 << 20
    flip(shard, shard.stat().st_size - 1)  # the last picture, MiBs away from the arm
    assert cache.verify() != []
    for tier in ("memory", "mmap"):
        read(loader_of(robocache.Cache(cache.path), tier=tier, verify="load"))
    pictures = {"camera": robocache.Window(rate_hz=100)}
    for episodes in ([2], None):
        with pytest.raises(robocache.FormatError, match="are damaged"):
            robocache.Loader(robocache.Cache(cache.path), 4, pictures, tier="memory", episodes=episodes)
    robocache.Loader(robocache.Cache(cache.path), 4, pictures, tier="memory", episodes=[0])


def test_a_mapped_loader_checks_at_first_touch_where_that_is_asked_for(tmp_path):
    cache = make(tmp_path / "cache", episodes=8, rows=6000)
    bad = shards_of(cache)[5]
    assert bad.stat().st_size > 1 << 20
    flip(bad, bad.stat().st_size - 5000)  # not in the MiB of the times, which are read when the loader is made
    read(loader_of(robocache.Cache(cache.path), tier="mmap"))  # not asked for
    loader = loader_of(robocache.Cache(cache.path), tier="mmap", verify="load", shuffle=False, return_index=True)
    first_of_5 = 5 * 6000 // 16
    assert loader.batch(first_of_5 - 1)["episode_index"].max() == 4
    with pytest.raises(robocache.FormatError, match=bad.name):
        loader.batch(first_of_5)
    loader.batch(len(loader) - 1)  # what is not damaged is read
    whole = loader_of(make(tmp_path / "whole"), tier="mmap", verify="load")
    plain = loader_of(robocache.Cache(tmp_path / "whole"), tier="memory", verify=None)
    for a, b in zip(read(whole), read(plain), strict=True):
        assert torch.equal(a["arm"], b["arm"])


def test_damaged_times_are_found_by_every_tier_that_checks(tmp_path):
    cache = make(tmp_path / "cache", episodes=2)
    shard = shards_of(cache)[0]
    at = shard.read_bytes().find((np.arange(4) * 10**7).tobytes())
    assert at > 0
    flip(shard, at + 8 * 10)  # a nanosecond: still in order
    for tier in ("memory", "mmap"):
        with pytest.raises(robocache.FormatError, match="are damaged"):
            loader_of(robocache.Cache(cache.path), tier=tier, verify="load")


def test_a_copied_episode_is_checked_and_a_view_is_not(tmp_path):
    cache = make(tmp_path / "cache")
    flip(shards_of(cache)[1], shards_of(cache)[1].stat().st_size - 1000)
    cache = robocache.Cache(cache.path)
    cache.episode(1)
    with pytest.raises(robocache.FormatError, match="are damaged"):
        cache.episode(1, copy=True)
    copied = cache.episode(2, copy=True).streams["arm"].values
    np.testing.assert_array_equal(copied, cache.episode(2).streams["arm"].values)
    assert copied.flags.writeable


@pytest.mark.parametrize("verify", ["yes", True, 1])
def test_what_verify_may_be(verify, tmp_path):
    with pytest.raises(ValueError, match="Loader: verify must be one of auto, load, none or None, got"):
        loader_of(make(tmp_path / "cache"), verify=verify)


# ---- files cut short under a reader ----------------------------------------------------------------------------------

CUTS = [0, 100, PAGE, PAGE + 1, -1, -100, -PAGE, -PAGE - 1]


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("verify", ["none", "load"])
def test_a_shard_cut_short_under_a_live_mapped_loader_is_an_error_or_changes_nothing(size, verify, tmp_path):
    cache = make(tmp_path / "cache")
    loader = loader_of(cache, tier="mmap", verify=verify)
    expected = read(loader_of(robocache.Cache(cache.path), tier="memory"))
    assert torch.equal(loader.batch(0)["arm"], expected[0]["arm"])
    shard = shards_of(cache)[2]
    cut(shard, size if size >= 0 else shard.stat().st_size + size)
    with pytest.raises(robocache.FormatError, match=shard.name):
        read(loader)
    with pytest.raises(robocache.FormatError, match=shard.name):
        read(loader)  # and it stays one
    with pytest.raises(robocache.FormatError, match=shard.name):
        next(iter(loader))


def test_zeros_that_are_cut_off_a_shard_change_nothing(tmp_path):
    dark = StreamSpec("dark", "uint8", (PAGE,))
    writer = robocache.CacheWriter(tmp_path / "cache", {"dark": dark})
    writer.add(Episode(0, {"dark": EpisodeStream(dark, np.zeros((8, PAGE), np.uint8), np.arange(8) * 10**7)}))
    cache = writer.commit()
    loader = robocache.Loader(cache, 4, {"dark": robocache.Window(rate_hz=100)}, tier="mmap", shuffle=False)
    (shard,) = shards_of(cache)
    assert shard.stat().st_size % PAGE > 1
    cut(shard, shard.stat().st_size - 1)
    assert all(not batch["dark"].any() for batch in read(loader))
    cut(shard, shard.stat().st_size - 2 * PAGE)
    with pytest.raises(robocache.FormatError, match=shard.name):
        read(loader)


@pytest.mark.parametrize("size", CUTS)
def test_a_shard_cut_short_under_an_open_cache_is_an_error_for_its_episodes_only(size, tmp_path):
    cache = make(tmp_path / "cache")
    expected = digest([cache.episode(0)], ["arm"])
    shard = shards_of(cache)[2]
    cut(shard, size if size >= 0 else shard.stat().st_size + size)
    for copy in (False, True):
        with pytest.raises(robocache.FormatError, match=shard.name):
            cache.episode(2, copy=copy)
    for call in (cache.episode_info, cache._reader.episode_index):
        with pytest.raises(robocache.FormatError, match=shard.name):
            call(2)
    assert cache.verify() != []
    assert digest([cache.episode(0)], ["arm"]) == expected
    for tier in ("memory", "mmap"):
        with pytest.raises(robocache.FormatError, match=shard.name):
            loader_of(cache, tier=tier)


def test_clouds_cut_short_under_a_live_loader_are_an_error(tmp_path):
    spec = StreamSpec("/lidar", "float32", (3,), "points", names=("x", "y", "z"))
    writer = robocache.CacheWriter(tmp_path / "cache", {"/lidar": spec})
    points = np.random.default_rng(0).random((40 * 500, 3)).astype(np.float32)
    rows = EpisodeStream(spec, points, np.arange(40) * 10**7, np.arange(41) * 500)
    writer.add(Episode(0, {"/lidar": rows}))
    cache = writer.commit()
    voxels = robocache.Voxels((0, 0, 0), 0.1, (10, 10, 10))
    loader = robocache.Loader(cache, 4, {"/lidar": robocache.Window(rate_hz=100, voxels=voxels)}, tier="mmap")
    read(loader)
    (shard,) = shards_of(cache)
    cut(shard, 2 * PAGE)
    with pytest.raises(robocache.FormatError, match=shard.name):
        read(loader)


def in_child(work):
    """(exit code or minus the signal, what it wrote): in a forked process, whose handlers are its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        code = 1
        try:
            faulthandler.disable()  # pytest enables it
            work(lambda text: os.write(2, text.encode()))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


HANDLERS = {
    "none": lambda: None,
    "default": lambda: signal.signal(signal.SIGBUS, signal.SIG_DFL),
    "faulthandler": lambda: faulthandler.enable(file=2),
    "python": lambda: signal.signal(signal.SIGBUS, lambda *_: os.write(2, b"python handler")),
    "ignored": lambda: signal.signal(signal.SIGBUS, signal.SIG_IGN),
}


@pytest.mark.parametrize("install", HANDLERS.values(), ids=HANDLERS)
def test_other_handlers_of_the_signal_are_no_obstacle(install, tmp_path):
    cache = make(tmp_path / "cache")
    loader = loader_of(cache, tier="mmap")

    def work(say):
        install()
        cut(shards_of(cache)[2], 0)
        try:
            read(loader)
        except robocache.FormatError:
            say("FormatError")

    assert in_child(work) == (0, "FormatError")


@pytest.mark.parametrize("install", ["none", "faulthandler"])
def test_a_view_that_nobody_guards_still_ends_the_process(install, tmp_path):
    """Zeros that nobody asks about would be worse."""
    cache = make(tmp_path / "cache")
    view = cache.episode(2).streams["arm"].values

    def work(say):
        HANDLERS[install]()
        read(loader_of(cache, tier="mmap"))
        cut(shards_of(cache)[2], 0)
        say(f"{view.sum()}")

    code, said = in_child(work)
    assert code == -signal.SIGBUS
    assert ("Bus error" in said) == (install == "faulthandler")


def test_a_signal_that_is_sent_reaches_the_handler_that_was_there(tmp_path):
    cache = make(tmp_path / "cache")

    def work(say):
        HANDLERS["python"]()
        read(loader_of(cache, tier="mmap"))
        os.kill(os.getpid(), signal.SIGBUS)
        say(" ")  # Python runs its handlers between two instructions
        HANDLERS["default"]()
        read(loader_of(cache, tier="mmap"))
        say("alive")
        os.kill(os.getpid(), signal.SIGBUS)

    assert in_child(work) == (-signal.SIGBUS, "python handler alive")


# ---- more shards than can stay mapped --------------------------------------------------------------------------------


@pytest.fixture
def few_mapped():
    before = _core.set_max_mapped_shards(2)
    yield
    _core.set_max_mapped_shards(before)


def test_caches_of_more_shards_than_stay_mapped_are_read_by_every_tier(few_mapped, tmp_path):
    whole = robocache.ingest(MadeSource(SPECS, episodes=30), tmp_path / "made", shard_bytes=1)
    assert whole.num_shards == 30
    assert digest(whole) == digest(MadeSource(SPECS, episodes=30))
    assert whole.verify() == []
    cache = make(tmp_path / "cache", episodes=80, rows=40)
    a, b = (read(loader_of(cache, tier=tier, verify="load")) for tier in ("memory", "mmap"))
    assert all(torch.equal(x["arm"], y["arm"]) for x, y in zip(a, b, strict=True))
    held = cache.episode(70).streams["arm"].values
    before = held.copy()
    for i in range(80):
        cache.episode(i)
    np.testing.assert_array_equal(held, before)
    loader = loader_of(cache, tier="memory")
    held = cache.episode(79).streams["arm"].values
    make(cache.path, episodes=80, rows=30)
    assert len(read(loader)) == len(a)
    assert held.any()
    with pytest.raises(robocache.FormatError, match="generation 1 was replaced since it was opened"):
        cache.episode(5)


def test_a_copying_loader_keeps_no_mapping_of_the_others(few_mapped, tmp_path):
    cache = make(tmp_path / "cache", episodes=200, rows=5)
    loader = robocache.Loader(cache, 8, {"arm": robocache.Window(rate_hz=100)}, tier="memory")
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(cache.path) in line}
    assert len(mapped) < 100  # two, and the few that were read last
    assert len(read(loader)) > 0
