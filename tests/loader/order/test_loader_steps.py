"""`batch_at`: the step is told by a tensor, and counts through the epochs."""

import pytest
from loader_cases import make_cache
from robocache import Loader, Mixture, Window

torch = pytest.importorskip("torch")

WINDOWS = {"state": Window(past=0.02, future=0.03, rate_hz=100), "camera": Window(past=0.1, rate_hz=20)}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    return [make_cache(folder / "one"), make_cache(folder / "two", episodes=3, seed=5)]


def loaders_of(caches, **options):
    """Of one cache, of a mixture, of one rank of three."""
    yield Loader(caches[0], 7, WINDOWS, seed=3, normalize={"state": "mean_std"}, **options)
    mixture = Mixture([(caches[0], 1), (caches[1], 2)], epoch_size=70)
    yield Loader(mixture, 7, WINDOWS, seed=3, **options)
    yield Loader(caches[0], 4, WINDOWS, rank=2, world_size=3, shuffle=False, **options)


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name in want:
        assert torch.equal(got[name].cpu(), want[name].cpu()), name


@pytest.mark.parametrize("return_index", [False, True])
@pytest.mark.parametrize("tier", ["memory", "mmap"])
def test_a_told_step_is_the_batch_of_its_epoch(caches, tier, return_index):
    for loader in loaders_of(caches, tier=tier, return_index=return_index):
        count = len(loader)
        for step in (0, 1, count - 1, count, 2 * count + 3, 1000 * count):
            assert_same(loader.batch_at(torch.tensor(step)), loader.batch(step % count, step // count))


def test_what_cannot_be_told_by_a_step_says_so(caches):
    with pytest.raises(ValueError, match="drop_last must be True"):
        Loader(caches[0], 7, WINDOWS, drop_last=False).batch_at(torch.tensor(0))
    loader = Loader(caches[0], 7, WINDOWS)
    with pytest.raises(ValueError, match="step must have dtype int64, got int32"):
        loader.batch_at(torch.tensor(0, dtype=torch.int32))
    with pytest.raises(ValueError, match="step must have 0 dimensions, got shape"):
        loader.batch_at(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="step must be 0 or above, got -1"):
        loader.batch_at(torch.tensor(-1))
    outside = {"state": Window(outside="error")}
    with pytest.raises(NotImplementedError, match="is read by the host"):
        Loader(caches[0], 7, outside).batch_at(torch.tensor(0))
