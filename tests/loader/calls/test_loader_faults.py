"""What happens under a loader: workers that are killed, files that are deleted, cut or replaced, no descriptors left.

Every fault is a typed error, or none at all, within ten seconds.
"""

import os
import resource

import pytest
from loader_cases import make_cache
from loader_processes import run
from robocache import Cache, FormatError, Loader, Mixture, Window

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}
within_ten_seconds = pytest.mark.timeout(10)
TIERS = ("memory", "mmap")


@pytest.fixture
def cache(tmp_path):
    made = make_cache(tmp_path / "cache", episodes=8)
    assert made.num_shards > 4
    return made


def loaders_of(cache, **options):
    return [Loader(cache, 8, STATE, tier=tier, **options) for tier in TIERS]


def shards_of(cache):
    return [path for path in cache.files if path.suffix == ".safetensors"]


def read(loader):
    return [loader.batch(step) for step in range(len(loader))]


def same(mine, its):
    return all(torch.equal(a[name], b[name]) for a, b in zip(mine, its, strict=True) for name in a)


# ---- processes ------------------------------------------------------------------------------------------------------


# Worker 1 dies, by itself at its start or by another's hand after the first batch. What a program then sees is printed.
WORKER_DIES = """
def die(worker):
    if EARLY and worker == 1:
        os.kill(os.getpid(), getattr(signal, HOW))
loader = Loader(Cache(PATH), 8, STATE)
options = {"num_workers": 2, "multiprocessing_context": "fork", "prefetch_factor": 2, "worker_init_fn": die}
data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, **options)
signal.signal(signal.SIGALRM, lambda *_: os._exit(77))  # a hang
signal.alarm(10)
said = "nothing"
try:
    try:
        batches = iter(data)
        next(batches)
        if not EARLY:
            os.kill(batches._workers[1].pid, getattr(signal, HOW))
        for batch in batches:
            pass
    except (OSError, EOFError) as error:
        said = [type(error).__name__, str(error)]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
except RuntimeError as error:  # PyTorch raises it wherever the program is when it hears of the death: above too
    said = ["RuntimeError", str(error)]
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print(json.dumps(said))
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV"])
def test_a_worker_that_dies_before_its_first_batch_is_named_within_ten_seconds(cache, how):
    kind, said = run(WORKER_DIES, PATH=str(cache.path), HOW=how, EARLY=True)
    assert kind == "RuntimeError"
    assert "DataLoader worker" in said
    assert "exited unexpectedly" in said or "killed by signal" in said


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV"])
def test_a_worker_that_is_killed_is_an_error_within_ten_seconds(cache, how):
    """At any moment: a batch of its that waits in the queue is asked of a process that is gone, which PyTorch passes
    on as the error of the connection where it comes before its own."""
    kind, said = run(WORKER_DIES, PATH=str(cache.path), HOW=how, EARLY=False)
    if kind == "RuntimeError":
        assert "DataLoader worker" in said
    else:
        assert kind in ("ConnectionResetError", "ConnectionRefusedError", "FileNotFoundError", "EOFError"), said


def test_an_error_in_a_worker_keeps_its_type(cache):
    """The cache is cut while the workers start: each opens it, and says which file is wrong."""
    code = """
def broken(worker):
    path = [p for p in loader.caches[0].files if p.suffix == ".safetensors"][0]
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)
    torch.utils.data.get_worker_info().dataset.loader = Loader(loader.caches[0], 8, STATE)
loader = Loader(Cache(PATH), 8, STATE)
data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=1, worker_init_fn=broken)
signal.signal(signal.SIGALRM, lambda *_: os._exit(77))
signal.alarm(10)
try:
    next(iter(data))
    print(json.dumps("nothing"))
except robocache.FormatError as error:
    print(json.dumps(str(error)))
"""
    assert str(shards_of(cache)[0]) in run(code, PATH=str(cache.path))


# ---- files ----------------------------------------------------------------------------------------------------------


@within_ten_seconds
def test_deleted_shards_stay_readable_for_who_has_them_and_are_an_error_for_others(cache):
    loaders = loaders_of(cache)
    before = [read(loader) for loader in loaders]
    gone = shards_of(cache)[2]
    gone.unlink()
    for loader, batches in zip(loaders, before, strict=True):
        assert same(read(loader), batches)
    for source in (lambda: Cache(cache.path), lambda: cache, lambda: Mixture([(cache, 1)])):
        for tier in TIERS:
            with pytest.raises(FormatError, match=str(gone)):
                Loader(source(), 8, STATE, tier=tier)


@within_ten_seconds
@pytest.mark.parametrize("size", [0, 100, -500, -1])
def test_a_shard_cut_short_is_an_error_for_every_new_loader(cache, size):
    memory = loaders_of(cache)[0]
    before = read(memory)
    path = shards_of(cache)[1]
    path.chmod(0o644)
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    assert same(read(memory), before)  # has its own copy
    for source in (lambda: Cache(cache.path), lambda: cache):
        for tier in TIERS:
            with pytest.raises(FormatError, match=str(path)):
                Loader(source(), 8, STATE, tier=tier)


@within_ten_seconds
def test_a_deleted_manifest_or_folder_is_named(cache):
    loaders = loaders_of(cache)
    before = [read(loader) for loader in loaders]
    for path in cache.files:
        path.unlink()
    assert [same(read(loader), batches) for loader, batches in zip(loaders, before, strict=True)] == [True, True]
    with pytest.raises(FormatError, match=str(cache.path)):
        Loader(cache, 8, STATE)
    with pytest.raises(FormatError, match=str(cache.path)):
        Cache(cache.path)


@within_ten_seconds
def test_a_replaced_cache_leaves_open_loaders_alone_and_refuses_their_state(cache):
    loaders = loaders_of(cache)
    before = [read(loader) for loader in loaders]
    state = loaders[0].state_dict()
    make_cache(cache.path, episodes=8, seed=1)
    for loader, batches in zip(loaders, before, strict=True):
        assert same(read(loader), batches)
        loader.load_state_dict(state)
        assert same([next(iter(loader))], batches[:1])
    for old in loaders_of(cache):  # the version that is held, made anew
        assert same(read(old), before[0])
    for new in loaders_of(Cache(cache.path)):
        assert not torch.equal(new.batch(0)["state"], before[0][0]["state"])
        with pytest.raises(ValueError, match="fingerprint"):
            new.load_state_dict(state)


@within_ten_seconds
def test_a_cache_replaced_while_a_loader_is_read_changes_nothing_in_it(cache):
    for tier in TIERS:
        loader = Loader(Cache(cache.path), 8, STATE, tier=tier, drop_last=False)
        expected, seen = read(loader), []
        for step, batch in enumerate(loader):
            seen.append(batch)
            if step % 4 == 0:
                make_cache(cache.path, episodes=8, seed=100 + step)
        assert same(seen, expected)


# ---- file descriptors -----------------------------------------------------------------------------------------------


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few_descriptors():
    """No more than eight above those that are open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@within_ten_seconds
def test_a_cache_of_many_shards_needs_few_descriptors_and_keeps_none(tmp_path, few_descriptors):
    many = make_cache(tmp_path / "many", episodes=60)
    assert many.num_shards > 30
    before = open_files()
    for loader in loaders_of(Cache(many.path)):
        read(loader)
    assert open_files() == before


@within_ten_seconds
def test_no_descriptors_left_is_a_typed_error_and_over_when_there_are_some_again(cache, few_descriptors):
    loaders = loaders_of(cache)
    before = read(loaders[0])
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        for loader in loaders:  # what is open needs none
            assert same(read(loader), before)
        with pytest.raises(FormatError, match="Too many open files"):
            Loader(cache, 8, STATE)
    finally:
        for descriptor in taken:
            os.close(descriptor)
    assert same(read(Loader(cache, 8, STATE)), before)
