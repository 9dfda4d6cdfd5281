"""Samples drawn by weight: as often as the weights say, the same on any number of ranks, and resumed exactly."""

import json
import pickle

import loader_oracle as truth
import numpy as np
import pytest
from arrays import CUDA, REQUIRE_CUDA
from loader_cases import anchors_in, make_cache
from robocache import Loader, Mixture, Window, _core

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, rate_hz=100)}
DEVICES = ["cpu", *(["cuda"] if CUDA or REQUIRE_CUDA else [])]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("weights") / "cache", episodes=5)


def slots_of(weights):
    slots = np.empty(len(weights), np.int64)
    _core.make_alias_table(np.array(weights, np.float64), slots)
    return slots


def loader_of(cache, weights, batch_size=8, **options):
    return Loader(cache, batch_size, STATE, weights=weights, **{"return_index": True, "seed": 3, **options})


def drawn(loader, epoch=0):
    """The anchors of an epoch, in their order."""
    return [a for step in range(len(loader)) for a in anchors_in(loader.batch(step, epoch))]


# ---- the table ------------------------------------------------------------------------------------------------------

TABLES = {
    "one": [3.0],
    "equal": [1.0] * 7,
    "different": [1, 2, 3, 4, 0.5],
    "some that are never drawn": [0, 1, 0, 0, 5, 0],
    "a single one of many": [0] * 50 + [1e-300] + [0] * 50,
    "huge": [1e308, 1e308, 5e307],
    "tiny": [5e-324, 1e-323, 5e-324],
    "one that outweighs all": [1e300] + [1.0] * 99,
    "many": np.random.default_rng(0).uniform(0, 1, 5000) ** 4,
}


@pytest.mark.parametrize("name", TABLES)
def test_each_number_has_its_share_of_the_table(name):
    weights = np.array(TABLES[name], np.float64)
    parts = truth.alias_parts(slots_of(weights).tolist())
    unit = len(weights) * 2**32
    assert sum(parts) == unit
    shares = weights / weights.max()
    shares = shares / np.sum(shares)
    for part, share, weight in zip(parts, shares, weights, strict=True):
        assert (part > 0) == (weight > 0)
        # A rounding, and what others that are rounded up to 1 take away.
        assert abs(part - share * unit) <= max(2 + len(weights), share * unit * 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_draws_are_those_of_the_oracle(device):
    slots = slots_of(TABLES["different"])
    prefix, times = torch.tensor([0, 2, 5]), torch.arange(5)
    table = _core.AnchorTable(*(x.to(device) for x in (prefix, times)), 5, 0.0, 1, torch.from_numpy(slots).to(device))
    out = torch.empty((2, 5), dtype=torch.int64, device=device)
    for seed, epoch in ((0, 0), (2**64 - 1, 7), (5, 2**40)):
        _core.sample_anchors([table], _core.SampleOrder(seed, epoch, 0, True), 0, out[0], out[1])
        key = truth.key_of(seed, epoch, 1)
        assert out[1].tolist() == [truth.draw_weighted(slots.tolist(), key, p) for p in range(5)]


def test_frequencies_pass_a_chi_square_test():
    weights = np.array([0.0, 1, 2, 4, 8, 0.25, 3, 0])
    slots = slots_of(weights).tolist()
    key = truth.key_of(1, 2, 1)
    seen = np.bincount([truth.draw_weighted(slots, key, p) for p in range(40000)], minlength=len(weights))
    assert seen[0] == seen[-1] == 0
    expected = 40000 * weights / weights.sum()
    some = weights > 0
    assert ((seen - expected)[some] ** 2 / expected[some]).sum() < 20.5  # p = 0.001 with 5 degrees of freedom


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1.0], r"weights\[1\] must be finite and 0 or above, got -1"),
        ([float("nan")], r"weights\[0\] must be finite"),
        ([0.0, 0.0], "weights must have one that is above 0, got none"),
        ([], "weights must be 1 to 2147483647 numbers, got 0"),
    ],
)
def test_the_native_table_refuses_what_are_no_weights(weights, words):
    with pytest.raises(ValueError, match=f"make_alias_table: {words}"):
        slots_of(weights)


# ---- the loader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_batches_have_the_samples_that_are_drawn(cache, device):
    everything = truth.anchors_of(0, cache, [0, 1, 2, 4], "state")
    count = len(everything)
    weights = np.random.default_rng(1).uniform(0, 1, count)
    slots = slots_of(weights).tolist()
    for tier in ("memory", "mmap") if device == "cpu" else ("gpu", "pinned", "memory"):
        loader = loader_of(cache, weights, episodes=[0, 1, 2, 4], drop_last=False, tier=tier, device=device)
        assert loader.num_samples == loader.num_anchors == count
        for epoch in (0, 1, 5):
            key = truth.key_of(3, epoch, 1)
            assert drawn(loader, epoch) == [everything[truth.draw_weighted(slots, key, p)] for p in range(count)]
        plain = Loader(cache, count, STATE, episodes=[0, 1, 2, 4], shuffle=False, tier=tier, device=device).batch(0)
        got = torch.cat([loader.batch(step, 1)["state"] for step in range(len(loader))])
        numbers = [truth.draw_weighted(slots, truth.key_of(3, 1, 1), p) for p in range(count)]
        assert torch.equal(got, plain["state"][numbers])


def test_a_dict_and_a_function_weigh_the_samples_of_episodes(cache):
    counts = [len(cache.episode(e).streams["state"].times) if e != 3 else 0 for e in range(5)]
    given = {0: 2.0, 2: 0.0}
    each = np.repeat([2.0, 1.0, 0.0, 1.0, 1.0], counts)
    expected = drawn(loader_of(cache, each))
    assert drawn(loader_of(cache, given)) == expected
    assert drawn(loader_of(cache, lambda episode: given.get(episode.index, 1.0))) == expected
    assert {a.episode for a in expected} == {0, 1, 4}


def test_any_number_of_ranks_reads_the_same_order(cache):
    whole = loader_of(cache, {0: 5.0}, 8)
    for world in (2, 4):
        parts = [loader_of(cache, {0: 5.0}, 8 // world, rank=r, world_size=world) for r in range(world)]
        for step in range(len(whole)):
            assert [a for p in parts for a in anchors_in(p.batch(step))] == anchors_in(whole.batch(step))


def test_a_resumed_epoch_goes_on_where_it_stopped(cache):
    loader = loader_of(cache, {1: 3.0})
    batches = [anchors_in(b) for b in loader] + [anchors_in(b) for b in loader]
    again = loader_of(cache, {1: 3.0})
    iterator = iter(again)
    for _ in range(2):
        next(iterator)
    state = json.loads(json.dumps(again.state_dict()))
    resumed = loader_of(cache, {1: 3.0})
    resumed.load_state_dict(state)
    assert [anchors_in(b) for b in resumed] + [anchors_in(b) for b in resumed] == batches[2:]
    for other in (None, {1: 4.0}):
        with pytest.raises(ValueError, match=r"fingerprint .*weights"):
            loader_of(cache, other).load_state_dict(state)


def test_a_copy_has_the_weights_of_a_function(cache):
    loader = loader_of(cache, lambda episode: 1.0 + episode.index)
    assert drawn(pickle.loads(pickle.dumps(loader))) == drawn(loader)


def test_caches_of_a_mixture_are_drawn_from_by_weight(tmp_path):
    caches = [make_cache(tmp_path / str(i), episodes=3, seed=i) for i in range(2)]
    mixture = Mixture([(caches[0], 1.0), (caches[1], 3.0)], epoch_size=2000)
    loader = loader_of(mixture, lambda episode: float(episode.index == 1), 100)
    for epoch in (0, 1):
        found = drawn(loader, epoch)
        assert {(a.source, a.episode) for a in found} == {(0, 1), (1, 1)}
        share = sum(a.source for a in found) / len(found)
        assert abs(share - 0.75) < 0.05
    assert drawn(loader, 0) != drawn(loader, 1)


def test_a_step_on_the_device_draws_the_same(cache):
    loader = loader_of(cache, {0: 4.0})
    for number in (0, 2, len(loader) + 1):
        got = loader.batch_at(torch.tensor(number))
        expected = loader.batch(number % len(loader), number // len(loader))
        assert torch.equal(got["state"], expected["state"])


def test_statistics_do_not_depend_on_weights(cache):
    from robocache import Feature

    features = {"action": Feature("state", normalize="mean_std")}
    stats = [Loader(cache, 8, features=features, weights=w).stats["action"]["mean"] for w in (None, {0: 100.0})]
    np.testing.assert_array_equal(*stats)


@pytest.mark.parametrize(
    ("weights", "options", "words"),
    [
        ({0: 1.0}, {"shuffle": False}, "shuffle must be True where samples have weights"),
        ({9: 1.0}, {}, "an episode of weights must be from 0 to 4, got 9"),
        ({0: "much"}, {}, "the weight of episode 0 must be a number, got 'much'"),
        ({0: -1.0}, {}, "weights must be finite and 0 or above, got -1.0 for sample 0"),
        (lambda episode: 0.0, {}, "weights must be above 0 for at least one sample, got 0 for all"),
        ([1.0, 2.0], {}, r"weights must have one number for each of \d+ samples, got shape \(2,\)"),
        ("often", {}, "weights must be a dict of episodes, a function of an Episode, or an array, got 'often'"),
    ],
)
def test_weights_that_mean_nothing_are_refused(cache, weights, options, words):
    with pytest.raises(ValueError, match=f"Loader: {words}"):
        loader_of(cache, weights, **options)


def test_weights_of_a_mixture_are_a_function(tmp_path):
    caches = [make_cache(tmp_path / str(i), episodes=2, seed=i) for i in range(2)]
    with pytest.raises(ValueError, match="weights of a Mixture must be a function, got dict"):
        loader_of(Mixture([(c, 1.0) for c in caches]), {0: 1.0})
