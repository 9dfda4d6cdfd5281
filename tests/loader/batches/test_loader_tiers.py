"""Every tier on the CPU gives the same bits, whatever was asked for. On CUDA: test_cuda_loader.py."""

import numpy as np
import pytest
from loader_calls import CASES, MORE
from loader_cases import make_cache
from robocache import Loader, Mixture

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """In many shards, in one, and another one."""
    folder = tmp_path_factory.mktemp("tiers")
    return [
        make_cache(folder / "many", specs=MORE),
        make_cache(folder / "one", specs=MORE, shard_bytes=1 << 24),
        make_cache(folder / "other", episodes=3, seed=9, specs=MORE),
    ]


def bytes_of(x):
    return torch.empty(x.shape, dtype=x.dtype).copy_(x).view(torch.uint8)


def assert_same_batches(source, options):
    options = {"drop_last": False, "seed": 11, **options}
    want, got = (Loader(source, 7, tier=tier, **options) for tier in ("memory", "mmap"))
    for step in range(len(want)):
        mine, its = got.batch(step), want.batch(step)
        assert mine.keys() == its.keys()
        for name in its:
            assert mine[name].dtype == its[name].dtype, name
            assert mine[name].shape == its[name].shape, name
            assert torch.equal(bytes_of(mine[name]), bytes_of(its[name])), name


@pytest.mark.parametrize("what", CASES)
def test_mmap_gives_the_bits_of_memory(caches, what):
    assert (caches[0].num_shards > 3, caches[1].num_shards) == (True, 1)
    for cache in caches[:2]:
        assert_same_batches(cache, CASES[what])


@pytest.mark.parametrize("what", ["nearest", "mean_std as None", "LeRobot's windows", "with the index"])
def test_mixtures_too(caches, what):
    assert_same_batches(Mixture([(caches[0], 1), (caches[2], 2.5), (caches[1], 0.7)], epoch_size=100), CASES[what])


def test_the_cases_are_not_trivial(caches):
    """What would make all of the above pass: batches that are empty, all padding, or all the same."""
    for what, options in CASES.items():
        loader = Loader(caches[0], 7, **{"drop_last": False, "seed": 11, **options})
        batch = loader.batch(0)
        assert len(loader) > 1 or "world_size" in options, what
        for name in [n for n in batch if f"{n}_is_pad" in batch]:
            assert not bool(batch[f"{name}_is_pad"].all()), (what, name)
            values = batch[name].double().flatten()
            assert np.unique(values[~values.isnan()].numpy()).size > 1, (what, name)
