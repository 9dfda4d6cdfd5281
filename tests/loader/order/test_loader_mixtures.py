"""Mixtures of caches, and which episodes of a cache are read."""

import loader_oracle as truth
import numpy as np
import pytest
from loader_cases import SPECS, anchors_in, make_cache
from robocache import Loader, Mixture, Window

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("chosen") / "cache", episodes=4)


def samples(loader, epoch=0):
    return [a for step in range(len(loader)) for a in anchors_in(loader.batch(step, epoch))]


# ---- mixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    return [make_cache(folder / f"{i}", episodes=n, seed=20 + i) for i, n in enumerate((1, 3, 2))]


def test_a_mixture_is_drawn_as_the_oracle_says(caches):
    weights = [0.5, 0.2, 0.3]
    mixture = Mixture(list(zip(caches, weights, strict=True)), epoch_size=1000)
    for tier in ("memory", "mmap"):
        loader = Loader(mixture, 50, STATE, seed=6, tier=tier, return_index=True)
        anchors = [truth.anchors_of(i, c, range(len(c)), "state") for i, c in enumerate(caches)]
        for epoch in (0, 70):
            expected = truth.mixture_order(anchors, truth.quotas_of(weights), 6, epoch, 1000)
            assert samples(loader, epoch) == expected


def test_rows_of_a_mixture_are_normalized_by_the_statistics_of_their_cache(caches):
    loader = Loader(Mixture(caches, [1, 1, 1]), 64, STATE, normalize={"state": "mean_std"}, return_index=True)
    batch = loader.batch(0)
    assert len({a.source for a in anchors_in(batch)}) == 3
    deltas = STATE["state"].deltas_ns
    for b, anchor in enumerate(anchors_in(batch)):
        values, _ = truth.values_of(caches, [anchor], "state", deltas)
        statistics = caches[anchor.source].statistics["state"]
        expected = (values[0] - statistics["mean"]) / statistics["std"]
        np.testing.assert_allclose(batch["state"][b].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_shares_of_a_mixture_are_its_weights(caches):
    """Exactly, over a block; and every cache is gone through evenly, however small."""
    weights = [3, 1, 4]
    loader = Loader(Mixture(caches, weights, epoch_size=65536), 8192, {"state": Window()}, return_index=True)
    drawn = samples(loader)
    counts = np.bincount([a.source for a in drawn])
    assert counts.tolist() == [24576, 8192, 32768]
    for i, cache in enumerate(caches):
        anchors = truth.anchors_of(i, cache, range(len(cache)), "state")
        times = [drawn.count(a) for a in anchors]
        assert max(times) - min(times) <= 1


def test_tiny_weights_are_drawn_too_and_quotas_fill_a_block(caches):
    for weights in ([1.0, 1e-9], [1.0] * 64, [1e-12, 1e12, 1.0], [0.1] * 3, [5, 2, 3, 1e-6, 1e-6]):
        quotas = Mixture([caches[0]] * len(weights), weights).quotas()
        assert quotas == truth.quotas_of(weights)
        assert sum(quotas) == 65536
        assert min(quotas) >= 1
        for quota, weight in zip(quotas, weights, strict=True):
            assert abs(quota - max(1, weight / sum(weights) * 65536)) <= len(weights)


def test_all_ranks_of_a_mixture_together_give_one_order(caches):
    mixture = Mixture(caches, [1, 2, 3])
    one = samples(Loader(mixture, 8, STATE, return_index=True))
    ranks = [Loader(mixture, 2, STATE, return_index=True, rank=r, world_size=4) for r in range(4)]
    assert [a for step in range(len(ranks[0])) for loader in ranks for a in anchors_in(loader.batch(step))] == one


# ---- episodes -------------------------------------------------------------------------------------------------------


def test_only_chosen_episodes_are_read(cache):
    for episodes in ([2, 0], lambda episode: episode.task == "task 0"):
        for tier in ("memory", "mmap"):
            loader = Loader(cache, 3, STATE, episodes=episodes, tier=tier, drop_last=False, return_index=True)
            assert sorted(samples(loader)) == truth.anchors_of(0, cache, [0, 2], "state")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    specs = {"state": SPECS["state"]}
    folder = tmp_path_factory.mktemp("many")
    return [make_cache(folder / f"{n}", n, 3, specs, 1 << 20, (0.02, 0.05), first=10) for n in (300, 400)]


def test_splits_share_nothing_leave_nothing_out_and_stay_when_episodes_are_added(many):
    def kept(cache, split):
        loader = Loader(cache, 1, {"state": Window()}, split=split, return_index=True, shuffle=False)
        return {a.episode for a in samples(loader)}

    before, after = many
    for share in (0.9, 0.5, 0.1):
        train, rest = kept(after, ("train", share)), kept(after, ("validation", 1 - share))
        assert not train & rest
        assert len(train | rest) == 400
        assert abs(len(train) - 400 * share) < 4 * (400 * share * (1 - share)) ** 0.5
        assert {e for e in train if e < 300} == kept(before, ("train", share))
    assert kept(after, ("train", 0.5)) < kept(after, ("train", 0.8))
