"""The order of samples: a shuffle that is one, the same on any number of ranks, and resumed exactly."""

import json

import loader_oracle as truth
import numpy as np
import pytest
from loader_cases import anchors_in, make_cache
from robocache import Loader, Window, _core

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("order") / "cache", episodes=4)


def draw(count, seed=0, epoch=0, first=0, size=None, shuffle=True):
    """The numbers of anchors at positions ``[first, first + size)``: times are their own numbers."""
    size = count - first if size is None else size
    table = _core.AnchorTable(torch.tensor([0, count]), torch.arange(count), count, 0.0, 1)
    out = torch.empty((2, size), dtype=torch.int64)
    _core.sample_anchors([table], _core.SampleOrder(seed, epoch, 0, shuffle), first, out[0], out[1])
    return out[1]


# ---- the shuffle ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(1, 70), 100, 127, 128, 129, 1000, 4095, 4097])
def test_every_number_is_drawn_exactly_once_as_the_oracle_says(count):
    for seed, epoch in ((0, 0), (2**64 - 1, 7), (12345, 2**40)):
        drawn = draw(count, seed, epoch).tolist()
        assert sorted(drawn) == list(range(count))
        key = truth.key_of(seed, epoch, 1)
        assert drawn == [truth.permute(p, count, key) for p in range(count)]


@pytest.mark.parametrize("count", [2**31 - 1, 2**40 + 3, 2**62 + 12345])
def test_huge_orders_need_no_memory(count):
    table = _core.AnchorTable(torch.tensor([0, 5, count]), torch.tensor([1000, 2000]), count, 3.0, 1)
    for first in (0, count // 3, count - 9):
        out = torch.empty((2, 9), dtype=torch.int64)
        _core.sample_anchors([table], _core.SampleOrder(1, 2, 0, True), first, out[0], out[1])
        numbers = [truth.permute(first + i, count, truth.key_of(1, 2, 1)) for i in range(9)]
        assert out[0].tolist() == [int(n >= 5) for n in numbers]
        if count < 2**50:  # beyond, periods are not exact in float64
            assert out[1].tolist() == [2000 + 3 * (n - 5) if n >= 5 else 1000 + 3 * n for n in numbers]


@pytest.mark.parametrize("count", [5, 12, 100, 1000])
def test_the_shuffle_passes_a_chi_square_test(count):
    """Which part of the data is at which part of the order, over 100 seeds: even, and so is each single seed's step."""
    bins = min(count, 20)
    table = np.zeros((bins, bins))
    place = np.arange(count) * bins // count
    for seed in range(100):
        np.add.at(table, (place, place[draw(count, seed).numpy()]), 1)
    expected = np.outer(np.bincount(place), np.bincount(place)) / count * 100
    # Rows and columns have fixed sums; drawing without replacement makes the statistic larger, by count / (count - 1).
    chi_square = ((table - expected) ** 2 / expected).sum() * (count - 1) / count
    freedom = (bins - 1) ** 2
    z = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    assert abs(z) < 3.29, (chi_square, freedom)  # p > 0.001 on both sides


def test_neighbors_in_the_order_have_nothing_to_do_with_each_other():
    """Differences of consecutive numbers, modulo the count, are even over 100 seeds."""
    count, bins = 4096, 64
    seen = np.zeros(bins)
    for seed in range(100):
        seen += np.bincount(np.diff(draw(count, seed).numpy()) % count * bins // count, minlength=bins)
    expected = seen.sum() / bins
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 3.29 * (2 * 63) ** 0.5


def test_epochs_and_seeds_are_different_orders():
    orders = {tuple(draw(50, seed, epoch).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_not_shuffled_is_ascending():
    assert draw(77, shuffle=False).tolist() == list(range(77))


def test_any_stretch_of_the_order_is_that_stretch():
    whole = draw(1000, 3).tolist()
    for first, size in ((0, 1), (999, 1), (500, 0), (123, 456)):
        assert draw(1000, 3, first=first, size=size).tolist() == whole[first : first + size]


def test_episodes_without_anchors_are_never_drawn():
    prefix = torch.tensor([0, 0, 0, 3, 3, 4, 4])
    out = torch.empty((2, 4), dtype=torch.int64)
    table = _core.AnchorTable(prefix, torch.arange(4), 4, 0.0, 1)
    _core.sample_anchors([table], _core.SampleOrder(0, 0, 0, False), 0, out[0], out[1])
    assert out[0].tolist() == [2, 2, 2, 4]


BAD_TABLES = {
    "no table": ([], 0, "tables must be 1 to 64, got 0"),
    "a prefix that does not fit": (
        [(torch.tensor([0, 3]), torch.arange(4), 4, 0.0, 1)],
        0,
        "prefix must rise from 0 to 4, got 0 to 3",
    ),
    "times that do not fit": (
        [(torch.tensor([0, 4]), torch.arange(3), 4, 0.0, 1)],
        0,
        "times must have shape (4,), got (3,)",
    ),
    "no anchors": ([(torch.tensor([0, 0]), torch.arange(0), 0, 0.0, 1)], 0, "num_anchors must be at least 1, got 0"),
    "a negative period": (
        [(torch.tensor([0, 4]), torch.arange(1), 4, -1.0, 1)],
        0,
        "period_ns must be 0 or above, got -1",
    ),
    "int32 times": (
        [(torch.tensor([0, 4]), torch.arange(4, dtype=torch.int32), 4, 0.0, 1)],
        0,
        "times must have dtype int64, got int32",
    ),
    "a position after the end": (
        [(torch.tensor([0, 4]), torch.arange(4), 4, 0.0, 1)],
        3,
        "first_position must leave 2 of 4 anchors, got 3",
    ),
    "a negative position": (
        [(torch.tensor([0, 4]), torch.arange(4), 4, 0.0, 1)],
        -1,
        "first_position must be 0 or above, got -1",
    ),
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_tables_are_refused(what):
    tables, first, message = BAD_TABLES[what]
    tables = [_core.AnchorTable(*table) for table in tables]
    out = torch.full((2, 2), -7)
    with pytest.raises(ValueError) as raised:
        _core.sample_anchors(tables, _core.SampleOrder(0, 0, 0, True), first, out[0], out[1])
    assert str(raised.value).startswith("sample_anchors: ")
    assert message in str(raised.value)
    assert out.tolist() == [[-7, -7], [-7, -7]]


# ---- ranks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [True, False])
def test_all_ranks_together_give_one_order_whatever_their_number(cache, drop_last):
    anchors = truth.order(truth.anchors_of(0, cache, range(len(cache)), "force"), 4, 3)
    for world in (1, 2, 4, 8):
        ranks = [
            Loader(
                cache,
                8 // world,
                STATE,
                anchors="force",
                seed=4,
                drop_last=drop_last,
                return_index=True,
                rank=r,
                world_size=world,
            )
            for r in range(world)
        ]
        steps = truth.steps_of(len(anchors), world, 8 // world, drop_last)
        assert {len(loader) for loader in ranks} == {len(steps)}
        seen = []
        for step, parts in enumerate(steps):
            for loader, (begin, end) in zip(ranks, parts, strict=True):
                found = anchors_in(loader.batch(step, 3))
                assert found == anchors[begin:end]
                seen += found
        assert seen == anchors[: len(seen)]
        assert len(seen) == (len(anchors) // 8 * 8 if drop_last else len(anchors))


def test_every_anchor_is_read_once_in_every_epoch(cache):
    loader = Loader(cache, 7, STATE, drop_last=False, return_index=True)
    for _ in range(3):
        seen = [a for batch in loader for a in anchors_in(batch)]
        assert sorted(seen) == truth.anchors_of(0, cache, [0, 1, 2], "state")
    assert loader.epoch == 3


# ---- state ----------------------------------------------------------------------------------------------------------


def batches_equal(mine, its):
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_run_stopped_at_any_step_goes_on_as_if_it_had_not(cache, drop_last):
    """Stopped at every step of two epochs, and once more after the resume."""

    def new():
        return Loader(cache, 6, STATE, seed=9, drop_last=drop_last, return_index=True)

    whole, states = [], []
    loader = new()
    for _ in range(2):
        for batch in loader:
            whole.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
    for stopped, state in enumerate(states):
        resumed = new()
        resumed.load_state_dict(state)
        rest, again = [], None
        while len(rest) < len(whole) - stopped - 1:
            for batch in resumed:
                rest.append(batch)
                if again is None:  # a second stop, one step later
                    again = resumed.state_dict()
                    resumed = new()
                    resumed.load_state_dict(again)
                    break
        assert all(batches_equal(a, b) for a, b in zip(rest, whole[stopped + 1 :], strict=True))


def test_the_state_is_small_json_and_goes_on_with_another_world_size(cache):
    one = Loader(cache, 8, STATE, seed=2, return_index=True)
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    assert len(json.dumps(state)) < 1024
    expected = anchors_in(next(iterator))
    seen = []
    for rank in (0, 1):
        half = Loader(cache, 4, STATE, seed=2, return_index=True, rank=rank, world_size=2)
        half.load_state_dict(state)
        seen += anchors_in(next(iter(half)))
    assert seen == expected


def test_an_iteration_left_early_begins_anew(cache):
    loader = Loader(cache, 4, STATE, return_index=True)
    first = next(iter(loader))
    assert loader.state_dict()["step"] == 1
    assert batches_equal(next(iter(loader)), first)


def test_set_epoch_is_another_order_but_leaves_a_resumed_epoch_alone(cache):
    loader = Loader(cache, 4, STATE, return_index=True)
    expected = [loader.batch(step, 5) for step in range(len(loader))]
    loader.set_epoch(5)
    assert all(batches_equal(a, b) for a, b in zip(loader, expected, strict=True))
    state = loader.state_dict() | {"epoch": 5, "step": 2}
    loader.load_state_dict(state)
    loader.set_epoch(5)
    assert all(batches_equal(a, b) for a, b in zip(loader, expected[2:], strict=True))


BAD_STATES = {
    "another seed": ({"seed": 1}, "seed (seed) must be that of this loader, 0, got 1"),
    "another cache": (
        {"fingerprint": "x"},
        "fingerprint (cache, episodes, anchors, weights and shuffle) must be that of this loader",
    ),
    "another batch": ({"batch_size": 5}, "batch_size * world_size must be 4 * 1 = 4, got 5 * 1 = 5"),
    "a later version": ({"version": 2}, "version (the version of the state) must be that of this loader, 1, got 2"),
    "a step after the end": ({"step": 10**6}, "step must be from 0 to"),
    "a negative epoch": ({"epoch": -1}, "epoch must be from 0 to 4611686018427387904, got -1"),
    "an epoch that is no int64": (
        {"epoch": 2**63},
        "epoch must be from 0 to 4611686018427387904, got 922337",
    ),
    "a step that is no int64": ({"step": 2**64}, "step must be from 0 to"),
    "a batch that is no int64": ({"batch_size": 2**63, "world_size": 4}, "batch_size must be from 1 to 2147483647"),
    "negative ranks": ({"batch_size": -4, "world_size": -1}, "batch_size must be from 1 to 2147483647, got -4"),
    "a step that is no number": ({"step": "3"}, "step must be a whole number, got '3'"),
}


@pytest.mark.parametrize("what", BAD_STATES)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(cache, what):
    changes, message = BAD_STATES[what]
    loader = Loader(cache, 4, STATE)
    before = loader.state_dict()
    with pytest.raises(ValueError) as raised:
        loader.load_state_dict(before | changes)
    assert message in str(raised.value)
    assert loader.state_dict() == before


def test_the_state_of_other_episodes_or_anchors_does_not_fit(cache):
    state = Loader(cache, 4, STATE).state_dict()
    for options in ({"episodes": [0, 1]}, {"anchors": "force"}, {"shuffle": False}, {"anchor_hz": 20}):
        with pytest.raises(ValueError, match="fingerprint"):
            Loader(cache, 4, STATE, **options).load_state_dict(state)


def test_a_state_lacking_a_number_is_refused(cache):
    loader = Loader(cache, 4, STATE)
    state = loader.state_dict()
    del state["epoch"]
    with pytest.raises(ValueError, match=r"state must have .*, got none of 'epoch'"):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match="state must be a dict, got list"):
        loader.load_state_dict([])
