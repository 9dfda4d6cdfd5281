"""The options of the loader: as three groups or as keywords, with the same batches."""

import copy
import inspect
import pickle
import re
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from loader_calls import CASES, MORE
from loader_cases import make_cache
from robocache import Loader, Mixture, Order, What, Where, Window
from robocache.loader.options import GROUPS, Options

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("groups") / "runs.cache", specs=MORE)


def in_groups(options):
    return {
        name: kind(**{field.name: options[field.name] for field in fields(kind) if field.name in options})
        for name, kind in GROUPS.items()
    }


def require_same_batches(one, other):
    assert len(one) == len(other)
    for step in range(len(one)):
        a, b = one.batch(step, 1), other.batch(step, 1)
        assert [*a] == [*b]
        for name, x in a.items():
            assert x.dtype == b[name].dtype
            assert torch.equal(x.view(torch.uint8), b[name].view(torch.uint8)) if x.ndim else x == b[name], name


@pytest.mark.parametrize("case", CASES)
def test_groups_and_keywords_give_the_same_batches(cache, case):
    options = {"tier": "mmap", "verify": "load", "seed": 7, "drop_last": False, **CASES[case]}
    flat, grouped = Loader(cache, 5, **options), Loader(cache, 5, **in_groups(options))
    assert (flat.what, flat.order, flat.where) == (grouped.what, grouped.order, grouped.where)
    require_same_batches(flat, grouped)


def test_one_group_may_be_given_and_the_others_as_keywords(cache):
    flat = Loader(cache, 4, STATE, seed=3, tier="mmap")
    require_same_batches(flat, Loader(cache, 4, STATE, order=Order(seed=3), tier="mmap"))
    require_same_batches(flat, Loader(cache, 4, what=What(STATE), seed=3, where=Where(tier="mmap")))


def test_no_options_are_the_defaults_of_the_groups(cache):
    loader = Loader(cache, 4, STATE)
    assert (loader.what, loader.order, loader.where) == (What(STATE), Order(), Where())
    assert (loader.seed, loader.shuffle, loader.drop_last) == (0, True, True)
    assert (loader.return_index, loader.verify) == (False, "auto")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": Order(seed=3), "seed": 3}, "seed must be a field of order, .* got seed=3 and order=Order(seed=3)"),
        ({"order": Order(seed=3), "shuffle": False}, "shuffle must be a field of order, or a keyword without order"),
        ({"where": Where(), "tier": None}, "tier must be a field of where, .* got tier=None and where=Where()"),
        ({"what": What(STATE)}, "windows must be a field of what, or a keyword without what, got windows="),
        ({"order": Where()}, "order must be of type robocache.Order, got Where"),
        ({"where": "cuda"}, "where must be of type robocache.Where, got str"),
    ],
)
def test_a_group_and_a_keyword_of_it_are_an_error(cache, options, message):
    with pytest.raises(ValueError, match="^Loader: " + re.escape(message).replace(r"\.\*", ".*")):
        Loader(cache, 4, STATE, **options)


@pytest.mark.parametrize(
    ("name", "near"), [("shufle", "shuffle"), ("window", "windows"), ("Tier", "tier"), ("orders", "order")]
)
def test_an_unknown_keyword_is_a_type_error_with_the_nearest_name(cache, name, near):
    message = f"Loader.__init__() got an unexpected keyword argument {name!r}; did you mean {near!r}?"
    with pytest.raises(TypeError) as raised:
        Loader(cache, 4, STATE, **{name: None})
    assert str(raised.value) == message
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'zzz'$"):
        Loader(cache, 4, STATE, zzz=1)


def test_groups_check_their_fields_without_a_cache():
    for make, message in (
        (lambda: Order(seed=-1), "seed must be from 0 to 18446744073709551615, got -1"),
        (lambda: Order(rank=1), "rank and world_size belong together, got 1 and None"),
        (lambda: Order(anchor_hz=0), "anchor_hz must be above 0, got 0"),
        (lambda: Order(skip_anchors=3), "skip_anchors must be (first, last), two whole numbers, got 3"),
        (lambda: Where(verify="yes"), "verify must be one of auto, load, none or None, got 'yes'"),
        (lambda: Where(budget_bytes=0.5), "budget_bytes must be a whole number, got 0.5"),
        (lambda: What(["state"]), "windows must be a dict of streams, got ['state']"),
    ):
        with pytest.raises(ValueError) as raised:
            make()
        assert str(raised.value) == f"Loader: {message}"


def test_groups_cannot_change(cache):
    windows = dict(STATE)
    what, order = What(windows), Order(episodes=iter([4, 1]))
    with pytest.raises(FrozenInstanceError):
        order.seed = 3
    windows.clear()
    assert [*Loader(cache, 4, what=what, order=order).batch(0)] == ["state", "state_is_pad"]
    require_same_batches(*(Loader(cache, 4, what=what, order=order) for _ in range(2)))  # the iterator is read once


def test_reprs_have_what_differs_from_the_defaults():
    assert [repr(group()) for group in GROUPS.values()] == ["What()", "Order()", "Where()"]
    assert repr(Where(tier="mmap", verify=None)) == "Where(tier='mmap', verify='none')"
    assert repr(Order(episodes=np.arange(2), skip_anchors=[0, 0])) == "Order(episodes=array([0, 1]))"
    assert repr(Window(deltas=np.zeros(1))) == "Window(deltas=array([0.]))"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_the_groups(cache, duplicate):
    order = Order(episodes=lambda e: e.index != 2, seed=5, drop_last=False)
    where = Where(verify="load", budget_bytes=0)
    loader = Loader(cache, 4, STATE, order=order, where=where, normalize="mean_std")
    made = duplicate(loader)
    assert made.what == loader.what
    assert made.where == Where(tier="mmap", verify="load", budget_bytes=0)
    assert made.order == Order(episodes=[0, 1, 3, 4], seed=5, drop_last=False)
    require_same_batches(loader, made)


def test_a_state_continues_in_a_loader_of_groups(cache):
    mixture = Mixture([(cache, 1), (cache, 2)], epoch_size=40)
    flat = Loader(mixture, 4, STATE, seed=2)
    rest = iter(flat)
    next(rest)
    resumed = Loader(mixture, 4, what=What(STATE), order=Order(seed=2))
    resumed.load_state_dict(flat.state_dict())
    for a, b in zip(rest, resumed, strict=True):
        assert torch.equal(a["state"], b["state"])


# ---- what editors, type checkers and help() show ---------------------------------------------------------------------


def test_the_typed_keywords_are_the_fields_of_the_groups():
    declared = {f.name: f.type for kind in GROUPS.values() for f in fields(kind)}
    typed = {name: hint.__forward_arg__ for name, hint in Options.__annotations__.items()}
    assert typed == {name: hint for name, hint in declared.items() if name != "windows"}
    assert not Options.__required_keys__


def test_no_field_is_in_two_groups_and_help_names_each_in_its_group():
    parts = re.split(r"^(\w+)=\w+\(\.\.\.\)", inspect.getdoc(Loader).partition("\n\n``help(")[0], flags=re.M)
    shown = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name, kind in GROUPS.items():
        own = [field.name for field in fields(kind)]
        assert shown[name].partition(":")[2].replace(",", " ").split() == own
        documented = re.findall(r"^([a-z][a-z_, ]*):", inspect.getdoc(kind), flags=re.M)
        assert [x for line in documented for x in line.split(", ")] == own
    names = [field.name for kind in GROUPS.values() for field in fields(kind)]
    assert len(set(names)) == len(names)
