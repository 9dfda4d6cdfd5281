"""Loaders in several processes: ranks of torch.distributed, workers of torch's DataLoader, copies by pickle."""

import copy
import pickle
import resource

import pytest
from loader_cases import anchors_in, make_cache
from loader_processes import run, run_ranks
from robocache import FormatError, Loader, Mixture, Window
from robocache.loader.order.epochs import Epochs, Position

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("processes") / "cache", episodes=8)


def steps_of(loader, epoch=0):
    return [[list(a) for a in anchors_in(loader.batch(s, epoch))] for s in range(len(loader))]


# ---- torch.distributed ----------------------------------------------------------------------------------------------

READ = """
def work(rank):
    loader = Loader(Cache(PATH), 8 // WORLD, STATE, seed=4, drop_last=DROP_LAST, return_index=True)
    assert (loader.rank, loader.world_size) == (rank, WORLD)
    return [anchors(batch) for epoch in range(2) for batch in loader]
"""


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_of_a_process_group_read_what_one_process_reads(cache, tmp_path, world, drop_last):
    one = Loader(cache, 8, STATE, seed=4, drop_last=drop_last, return_index=True)
    expected = steps_of(one, 0) + steps_of(one, 1)
    ranks = run_ranks(world, tmp_path, READ, PATH=str(cache.path), DROP_LAST=drop_last)
    assert {len(steps) for steps in ranks} == {len(expected)}
    for step, whole in enumerate(expected):
        assert [a for steps in ranks for a in steps[step]] == whole


def test_a_run_goes_on_with_another_number_of_ranks(cache, tmp_path):
    """Two ranks stop after three steps, four go on, and then one."""
    begin = """
def work(rank):
    loader = Loader(Cache(PATH), 8 // WORLD, STATE, seed=4, return_index=True)
    if STATE_DICT:
        loader.load_state_dict(STATE_DICT)
    read = [anchors(batch) for _, batch in zip(range(3), loader)]
    return read, loader.state_dict()
"""
    one = Loader(cache, 8, STATE, seed=4, return_index=True)
    expected, seen, state = steps_of(one), [], None
    for world in (2, 4):
        ranks = run_ranks(world, tmp_path, begin, f"{world}", PATH=str(cache.path), STATE_DICT=state)
        seen += [[a for read, _ in ranks for a in read[step]] for step in range(3)]
        assert len({tuple((k, v) for k, v in s.items()) for _, s in ranks}) == 1  # any rank's state is the state
        state = ranks[0][1]
    one.load_state_dict(state)
    assert seen + [[list(a) for a in anchors_in(batch)] for batch in one] == expected


# ---- workers of a DataLoader ----------------------------------------------------------------------------------------

WORKERS = """
def read(context, persistent):
    loader = Loader(Cache(PATH), 10, STATE, seed=4, tier=TIER, return_index=True, drop_last=False)
    options = {"multiprocessing_context": context, "persistent_workers": persistent}
    data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=WORKERS, **options)
    assert len(data) == len(loader)
    found = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        found.append([anchors(batch) for batch in data])
    return found
if __name__ == "__main__":
    print(json.dumps(read("fork", False)))
"""


@pytest.mark.parametrize(("workers", "tier"), [(1, "mmap"), (2, "memory"), (3, "mmap")])
def test_workers_together_read_each_batch_once_and_in_order(cache, workers, tier):
    one = Loader(cache, 10, STATE, seed=4, return_index=True, drop_last=False)
    assert len(one) % 6 == 5  # so that two workers do not end together, nor three
    found = run(WORKERS, PATH=str(cache.path), TIER=tier, WORKERS=workers)
    assert found == [steps_of(one, epoch) for epoch in range(3)]


def test_workers_that_stay_count_the_epochs_themselves(cache):
    one = Loader(cache, 10, STATE, seed=4, return_index=True, drop_last=False)
    code = WORKERS.replace('read("fork", False)', 'read("fork", True)')
    found = run(code, PATH=str(cache.path), TIER="memory", WORKERS=2)
    assert found == [steps_of(one, epoch) for epoch in range(3)]


def test_spawned_workers_open_the_cache_themselves(cache):
    """Through pickle, in this process: what the workers give back is what this loader reads."""
    loader = Loader(cache, 10, STATE, episodes=lambda e: e.index != 1, seed=4, drop_last=False)
    data = torch.utils.data.DataLoader(
        loader.as_dataset(), batch_size=None, num_workers=2, multiprocessing_context="spawn"
    )
    count = 0
    for step, batch in enumerate(data):
        assert all(torch.equal(batch[name], x) for name, x in loader.batch(step).items())
        count += 1
    assert count == len(loader)


def test_a_worker_goes_on_from_the_state_its_loader_had(cache):
    code = """
loader = Loader(Cache(PATH), 10, STATE, seed=4, return_index=True)
loader.load_state_dict(loader.state_dict() | {"epoch": 2, "step": 3})
data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=2)
print(json.dumps([anchors(batch) for batch in data]))
"""
    one = Loader(cache, 10, STATE, seed=4, return_index=True)
    assert run(code, PATH=str(cache.path)) == steps_of(one, 2)[3:]


# ---- pickle ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["memory", "mmap"])
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy], ids=["pickle", "copy"])
def test_a_copy_goes_on_like_the_original(cache, tier, copied):
    options = {"seed": 4, "tier": tier, "normalize": {"state": "mean_std"}, "rank": 1, "world_size": 2}
    loader = Loader(cache, 4, STATE, episodes=lambda e: e.index != 1, split=("train", 0.8), **options)
    loader.load_state_dict(loader.state_dict() | {"epoch": 1, "step": 2})
    other = copied(loader)
    assert (other.tier, other.rank, other.world_size, other.epoch) == (tier, 1, 2, 1)
    assert other.state_dict() == loader.state_dict()
    for mine, its in zip(loader, other, strict=True):
        assert all(torch.equal(mine[name], its[name]) for name in mine)


def test_a_mixture_is_copied_too_and_the_bytes_hold_no_rows(cache):
    loader = Loader(Mixture([(cache, 1), (cache, 2)]), 8, STATE, return_index=True)
    data = pickle.dumps(loader)
    assert len(data) < 3000 < loader.size_bytes
    assert steps_of(pickle.loads(data)) == steps_of(loader)


def test_a_copy_of_a_cache_that_was_replaced_is_an_error(tmp_path):
    loader = Loader(make_cache(tmp_path / "c"), 4, STATE)
    data = pickle.dumps(loader)
    make_cache(tmp_path / "c", seed=1)
    with pytest.raises(FormatError, match="generation 1 is gone; another one, of generation 2"):
        pickle.loads(data)


def test_a_worker_that_cannot_write_the_progress_does_not_harm_the_others(tmp_path):
    """As on a full disk, or in a worker that is killed while it writes: a part of the bytes is written."""
    epochs, position = Epochs(str(tmp_path / "progress")), Position(0, 5, 0)
    assert epochs.begin("first", 0, position) == (5, 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        with pytest.raises(OSError):
            epochs.begin("second", 1, position)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert epochs.begin("first", 1, position) == (5, 0)
    assert epochs.begin("second", 1, position) == (6, 0)
