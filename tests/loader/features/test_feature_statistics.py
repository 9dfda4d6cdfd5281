"""Statistics of features against NumPy over the same samples, their files, and the way back to commands."""

import json
import math

import numpy as np
import pytest
import robocache
import torch
from feature_cases import RATE, make_cache, rows_of, windows_of
from robocache import Feature, Loader
from robocache.loader.features import statistics
from scipy.spatial.transform import Rotation

STEPS = range(-2, 14)
FEATURES = {
    "state": Feature(["left", "right", "grip"], steps=STEPS, rate_hz=RATE),
    "action": Feature("tcp", steps=STEPS, rate_hz=RATE, relative_to="anchor", rotation="6d"),
    "plain": Feature("count", steps=STEPS, rate_hz=RATE),
}


def normalized(way):
    return {name: Feature(f.streams, steps=STEPS, rate_hz=RATE, relative_to=f.relative_to, rotation=f.rotation,
                          normalize=way) for name, f in FEATURES.items()}  # fmt: skip


def all_samples(cache, **options):
    """Every sample, without padding: ``{name: (N, C)}``."""
    loader = Loader(cache, 50, features=FEATURES, drop_last=False, shuffle=False, anchors="left", **options)
    batches = [*loader]
    found = {}
    for name in FEATURES:
        kept = [b[name][~b[f"{name}_is_pad"]].to(torch.float64).numpy() for b in batches]
        found[name] = np.concatenate(kept)
    return loader, found


@pytest.mark.parametrize("options", [{}, {"episodes": [0, 3]}, {"split": ("train", 0.5)}, {"skip_anchors": (3, 4)}])
def test_statistics_are_those_of_numpy_over_the_kept_samples(cache, options):
    loader, found = all_samples(cache, **options)
    for name, x in found.items():
        stats = loader.stats[name]
        assert stats["count"].tolist() == [len(x)] * x.shape[1]
        for which, want in {
            "mean": x.mean(0), "std": x.std(0), "min": x.min(0), "max": x.max(0),
            "q01": np.quantile(x, 0.01, axis=0), "q99": np.quantile(x, 0.99, axis=0),
        }.items():  # fmt: skip
            np.testing.assert_allclose(stats[which], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", ["mean_std", "min_max", "quantile"])
def test_normalized_features_are_scaled_by_their_own_statistics(cache, way):
    plain, found = all_samples(cache, episodes=[1, 2])
    loader = Loader(
        cache, 50, features=normalized(way), drop_last=False, shuffle=False, anchors="left", episodes=[1, 2]
    )
    for name, x in found.items():
        got = np.concatenate([b[name][~b[f"{name}_is_pad"]].to(torch.float64).numpy() for b in loader])
        if way == "mean_std":
            offset, width = x.mean(0), x.std(0)
        else:
            low, high = (x.min(0), x.max(0)) if way == "min_max" else np.quantile(x, [0.01, 0.99], axis=0)
            offset, width = (low + high) / 2, (high - low) / 2
        changes = x.max(0) > x.min(0)
        np.testing.assert_allclose(got[:, changes], ((x - offset) / np.where(changes, width, 1))[:, changes], atol=2e-6)
    assert plain.stats.keys() == loader.stats.keys()


def test_given_numbers_and_pictures(cache):
    features = {
        "x": Feature(["left", "right"], normalize=(1.5, [2.0] * 14)),
        "cam": Feature("cam", normalize="imagenet"),
        "gray": Feature("cam", normalize=(0.5, 0.25), dtype="float64"),
        "unit": Feature("cam", normalize="unit"),
    }
    batch = Loader(cache, 16, features=features, return_index=True, anchors="left").batch(0)
    rows = np.concatenate([windows_of(batch, name, [0])[0][:, 0] for name in ("left", "right")], -1)
    np.testing.assert_allclose(batch["x"], (rows - 1.5) / 2, rtol=1e-6)
    pixels = windows_of(batch, "cam", [0])[0][:, 0] / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(batch["cam"], (pixels - mean) / std, atol=2e-6)
    np.testing.assert_allclose(batch["gray"], (pixels - 0.5) / 0.25, atol=1e-6)
    np.testing.assert_allclose(batch["unit"], pixels, atol=1e-6)


def test_statistics_are_computed_once_and_found_again(cache, home, monkeypatch):
    first = Loader(cache, 8, features=normalized("mean_std"), anchors="left")
    stored = sorted((home / "statistics").iterdir())
    assert len(stored) == len(FEATURES)

    class Never:
        def __init__(self, *_):
            raise AssertionError("computed again")

    monkeypatch.setattr(statistics, "StatisticsPass", Never)
    again = Loader(cache, 8, features=normalized("mean_std"), anchors="left")
    for name in FEATURES:
        assert torch.equal(first.batch(0)[name], again.batch(0)[name])
    with pytest.raises(AssertionError, match="computed again"):  # other episodes, other statistics
        Loader(cache, 8, features=normalized("mean_std"), anchors="left", episodes=[0, 1])
    monkeypatch.undo()
    monkeypatch.setenv("ROBOCACHE_HOME", str(home))
    stored[0].write_text('{"mean": "no"}')
    assert Loader(cache, 8, features=normalized("mean_std"), anchors="left").stats.keys() == first.stats.keys()


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_pass(cache, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROBOCACHE_HOME", str(tmp_path / "file" / "below"))
    Loader(cache, 8, features=normalized("mean_std"), anchors="left").batch(0)


def test_saved_statistics_normalize_another_loader(cache, tmp_path):
    train = Loader(cache, 8, features=normalized("min_max"), anchors="left", episodes=[0, 1])
    train.save_stats(tmp_path / "stats.json")
    saved = json.loads((tmp_path / "stats.json").read_text())
    assert saved["features"]["action"]["rotation"] == "6d"
    other = Loader(cache, 8, features=normalized("min_max"), anchors="left", stats=tmp_path / "stats.json")
    for name in FEATURES:
        for a, b in zip(train.scale_of(name), other.scale_of(name), strict=True):
            assert torch.equal(a, b)
    own = Loader(cache, 8, features=normalized("min_max"), anchors="left")
    assert not torch.equal(own.scale_of("state")[0], other.scale_of("state")[0])
    missing = {"features": {}, "robocache_statistics": 1}
    with pytest.raises(ValueError, match="stats must have feature 'state'"):
        Loader(cache, 8, features=normalized("min_max"), anchors="left", stats=missing)
    with pytest.raises(ValueError, match=r"must be a file of Loader\.save_stats of version 1"):
        Loader(cache, 8, features=normalized("min_max"), anchors="left", stats={})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"streams": ["right"]}, r"streams=\['right'\] like this one, got \['left'\]; give it another name"),
        ({"relative_to": "anchor"}, "relative_to='anchor' like this one, got None"),
        ({"relative_to": "now"}, "relative_to='now' like this one, got None"),
        ({"streams": "tcp"}, r"streams=\['tcp'\] like this one, got \['left'\]"),
    ],
)
def test_statistics_of_another_feature_are_refused(cache, tmp_path, other, words):
    """All of these have seven numbers."""
    saved = {"x": Feature("left", normalize="mean_std"), "now": Feature("left")}
    Loader(cache, 8, features=saved, anchors="left").save_stats(tmp_path / "stats.json")
    given = {"streams": "left", "normalize": "mean_std"} | other
    features = saved | {"x": Feature(given.pop("streams"), **given)}
    with pytest.raises(ValueError, match=f"stats of 'x' must be of a feature with {words}"):
        Loader(cache, 8, features=features, anchors="left", stats=tmp_path / "stats.json")


def test_statistics_of_other_rotations_and_channels_are_refused(cache, tmp_path):
    def feature(**options):
        return {"x": Feature("tcp", normalize="mean_std", **options)}

    def with_statistics(first, then):
        Loader(cache, 8, features=first, anchors="left").save_stats(tmp_path / "stats.json")
        return Loader(cache, 8, features=then, anchors="left", stats=tmp_path / "stats.json")

    marks = {"method": [(0, 4, "slerp_xyzw")], "rotation": "6d"}
    with pytest.raises(ValueError, match=r"rotation='6d_columns' like this one, got '6d'"):
        with_statistics(feature(rotation="6d"), feature(rotation="6d_columns"))
    with pytest.raises(ValueError, match=r"angles and numbers, got \['pose'\] for \['rotation', 'values'\]"):
        with_statistics(feature(rotation="6d"), feature(**marks))
    same = with_statistics(feature(rotation="6d"), feature(rotation="6d", dtype="float64"))
    assert same.stats["x"]["mean"].shape == (9,)


def test_moments_are_the_same_for_any_number_of_threads(cache, home):
    import robocache

    before = robocache.num_threads()
    found = []
    for i, count in enumerate((1, 3)):
        robocache.set_num_threads(count)
        import os

        os.environ["ROBOCACHE_HOME"] = str(home / str(i))
        found.append(Loader(cache, 8, features=FEATURES, anchors="left").stats)
    robocache.set_num_threads(before)
    for name in FEATURES:
        for which, x in found[0][name].items():
            np.testing.assert_array_equal(x, found[1][name][which])


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory):
    """More rows than the sample that quantiles begin with: heavy tails, ties, constants, trends, no numbers."""
    rng = np.random.default_rng(12)
    n = 150_000
    x = np.stack([
        rng.standard_cauchy(n), rng.normal(size=n), rng.normal(size=n).round(1), rng.uniform(size=n) < 0.3,
        rng.uniform(size=n) < 0.002, np.full(n, 2.5), np.arange(n) / 7, np.exp(rng.normal(0, 6, n)),
        rng.integers(0, 3, n) * 1e9 + rng.normal(size=n), np.full(n, np.nan),
    ], 1)  # fmt: skip
    x[rng.integers(0, n, 500), 1] = np.nan
    x[rng.integers(0, n, 3000), 7] = np.inf
    x[rng.integers(0, n, 3000), 2] = -np.inf
    x[100:, 9][::50_000] = 1.0, 2.0, 4.0
    specs = {name: robocache.StreamSpec(name, dtype, (10,), rate_hz=RATE, method="previous")
             for name, dtype in (("wide", "float64"), ("single", "float32"))}  # fmt: skip
    specs["whole"] = robocache.StreamSpec("whole", "int16", (), rate_hz=RATE)
    with np.errstate(over="ignore"):
        rows = {"wide": x, "single": x.astype(np.float32), "whole": rng.integers(-500, 501, n).astype(np.int16)}
    writer = robocache.CacheWriter(tmp_path_factory.mktemp("long") / "c", specs)
    for e, (begin, end) in enumerate(((0, 90_000), (90_000, n))):
        times = np.arange(end - begin) * 10**9 // RATE
        streams = {k: robocache.EpisodeStream(specs[k], v[begin:end], times) for k, v in rows.items()}
        writer.add(robocache.Episode(e, streams))
    return writer.commit(), rows


@pytest.mark.parametrize(("samples", "deviations"), [(1 << 16, 4), (1000, 4), (3000, 0.01)])
def test_quantiles_of_many_samples_are_those_of_numpy(long_rows, monkeypatch, samples, deviations):
    """Exactly. A sample that is small, or is believed too much, takes more passes."""
    cache, rows = long_rows
    monkeypatch.setattr(statistics, "SAMPLES", samples)
    monkeypatch.setattr(statistics, "DEVIATIONS", deviations)
    features = {name: Feature(name) for name in rows}
    features["joined"] = Feature(["wide", "whole"], steps=[0, 1], rate_hz=RATE)
    stats = Loader(cache, 8, features=features, anchors="wide").stats
    twice = np.concatenate([rows["wide"], rows["whole"][:, None]], 1)
    twice = np.concatenate([twice, twice[1:90_000], twice[90_001:]])  # the first row of an episode is in one sample
    for name, x in [*rows.items(), ("joined", twice)]:
        for c, channel in enumerate(x.reshape(len(x), -1).T.astype(np.float64)):
            finite = channel[np.isfinite(channel)]
            assert stats[name]["count"][c] == len(finite)
            assert stats[name]["min"][c] == finite.min()
            for which, q in (("q01", 0.01), ("q99", 0.99)):
                assert stats[name][which][c] == np.quantile(finite, q), (name, c, which)


def test_tails_of_other_rows_are_refused():
    brackets = np.zeros((2, 2, 3))
    tails = robocache._core.Tails(brackets, "float32")
    with pytest.raises(ValueError, match=r"Tails: values must have the channels of brackets, got shape \(4, 2\)"):
        tails.add(np.zeros((4, 2), np.float32), np.zeros(4, bool))
    with pytest.raises(ValueError, match="Tails: values must have dtype float32"):
        tails.add(np.zeros((4, 3)), np.zeros(4, bool))
    with pytest.raises(ValueError, match=r"Tails: padding must have shape \(4,\), got \(5,\)"):
        tails.add(np.zeros((4, 3), np.float32), np.zeros(5, bool))
    with pytest.raises(ValueError, match=r"Tails: brackets must have shape \(2, 2, C\)"):
        robocache._core.Tails(np.zeros((2, 3, 3)), "float32")
    with pytest.raises(ValueError, match="Tails: dtype must be float32 or float64, got int64"):
        robocache._core.Tails(brackets, "int64")


# ---- back to commands ------------------------------------------------------------------------------------------------

FORMS = ["quaternion_xyzw", "quaternion_wxyz", "6d", "6d_columns", "matrix", "rotvec", "euler"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relative", [None, "anchor"])
@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_inverse_returns_the_commands(cache, form, relative, array):
    features = {
        "action": Feature(["tcp", "grip"], steps=STEPS, rate_hz=RATE, relative_to=relative, rotation=form,
                          normalize="mean_std", dtype="float64"),
    }  # fmt: skip
    loader = Loader(cache, 32, features=features, return_index=True, anchors="left")
    batch = loader.batch(0)
    rows = [windows_of(batch, name, STEPS)[0].astype(np.float64).reshape(32, 16, -1) for name in ("tcp", "grip")]
    want = np.concatenate(rows, -1)
    anchor = None if relative is None else array(want[:, 2])
    got = np.asarray(loader.inverse("action")(array(batch["action"].numpy()), anchor))
    turned = Rotation.from_quat(want[..., 3:7].reshape(-1, 4)).inv() * Rotation.from_quat(got[..., 3:7].reshape(-1, 4))
    assert turned.magnitude().max() < 1e-6
    np.testing.assert_allclose(np.delete(got, range(3, 7), -1), np.delete(want, range(3, 7), -1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_the_saved_inverse_is_that_of_the_loader(cache, tmp_path, framework):
    """On the robot, without the cache."""
    relative = {"steps": STEPS, "rate_hz": RATE, "relative_to": "anchor"}
    features = {
        **{form: Feature(["heading", "tcp", "grip"], rotation=form, normalize="min_max", **relative) for form in FORMS},
        "turn": Feature("turn", normalize="quantile", rotation="rotvec"),
        "grip": Feature("grip", normalize=(0.5, 2.0), **relative),
        "plain": Feature(["left", "count"]),
        "task": Feature("task"),
        "cam": Feature("cam", normalize="imagenet"),
    }
    mixture = robocache.Mixture([(cache, 1.0), (make_cache(tmp_path / "other", seed=7), 1.0)])
    for source in (cache, mixture):
        loader = Loader(source, 16, features=features, anchors="left", framework=framework)
        loader.save_stats(tmp_path / "stats.json")
        batch = loader.batch(0)
        for name in (*FORMS, "turn", "grip", "plain"):
            values = np.asarray(batch[name], np.float64)
            for number in range(1 + (source is mixture)):
                own = loader.inverse(name, number)
                saved = robocache.load_inverse(tmp_path / "stats.json", name, number)
                shape = () if name == "grip" else (own.stored_width,)
                anchor = np.random.default_rng(1).normal(size=(16, *shape)) if own.is_relative else None
                np.testing.assert_array_equal(saved(values, anchor), own(values, anchor))
                assert repr(saved) == repr(own)
                if number:
                    first = robocache.load_inverse(tmp_path / "stats.json", name)
                    assert (first(values, anchor) == own(values, anchor)).all() == (name in ("grip", "plain"))


def test_a_file_without_an_inverse_gets_one_clear_line(cache, tmp_path):
    Loader(cache, 8, features=FEATURES, anchors="left").save_stats(tmp_path / "stats.json")
    saved = json.loads((tmp_path / "stats.json").read_text())
    with pytest.raises(ValueError, match=r"name must be a feature of the file, .*, got 'acton'; did you mean 'action'"):
        robocache.load_inverse(saved, "acton")
    with pytest.raises(ValueError, match="source must be from 0 to 0, got 1"):
        robocache.load_inverse(saved, "action", 1)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match=r"path must be a file of Loader\.save_stats of version 1, got \[\]"):
        robocache.load_inverse(tmp_path / "list.json", "action")
    told = saved["features"]["action"]["inverse"]
    for change in (None, {}, {**told, "parts": [{}]}, {**told, "scales": [["a", "b"]]}):
        saved["features"]["action"]["inverse"] = change
        with pytest.raises(ValueError, match=r"with the inverse of 'action', got .*; save it again"):
            robocache.load_inverse(saved, "action")


PLAIN = ("features", "plain")
DAMAGE = {  # where, what is written there, what of it is an error
    "a scale of another width": ((*PLAIN, "inverse", "scales", 0, 1), [1.0], ("inverse",)),
    "a scale of 0": ((*PLAIN, "inverse", "scales", 0, 1), [0.0, 1.0], ("inverse",)),
    "a scale that is not finite": ((*PLAIN, "inverse", "scales", 0, 0), [float("nan"), 1.0], ("inverse",)),
    "a row of another size": ((*PLAIN, "inverse", "row"), [7], ("inverse",)),
    "lows of another width": ((*PLAIN, "inverse", "lows"), [None], ("inverse",)),
    "a number of channels in words": ((*PLAIN, "inverse", "parts", 0, "num_channels"), "2", ("inverse", "loader")),
    "no part": ((*PLAIN, "inverse", "parts", 0), None, ("inverse", "loader")),
    "parts that are a number": ((*PLAIN, "inverse", "parts"), 3, ("inverse", "loader")),
    "an inverse that is a list": ((*PLAIN, "inverse"), [1], ("inverse", "loader")),
    "a count that is infinite": ((*PLAIN, "sources", 0, "count", 0), float("inf"), ("loader",)),
    "a count that is too large": ((*PLAIN, "sources", 0, "not_finite", 0), 2**70, ("loader",)),
    "numbers of another width": ((*PLAIN, "sources", 0, "max"), [1.0], ("loader",)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_of_statistics_gets_one_clear_line(cache, tmp_path, damage):
    """A file beside the weights, which people edit."""
    loader = Loader(cache, 8, features=normalized("min_max"), anchors="left")
    loader.save_stats(tmp_path / "stats.json")
    saved = json.loads((tmp_path / "stats.json").read_text())
    place, value, wrong = DAMAGE[damage]
    at = saved
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    calls = {
        "inverse": lambda: robocache.load_inverse(saved, "plain"),
        "loader": lambda: Loader(cache, 8, features=normalized("min_max"), anchors="left", stats=saved),
    }
    for name in wrong:
        with pytest.raises(
            ValueError, match=r"^(load_inverse: path must be a file|Loader: stats of 'plain' must) [^\n]*$"
        ):
            calls[name]()


def test_inverse_of_a_plain_feature_and_its_bad_input(cache):
    loader = Loader(cache, 8, features=normalized("min_max") | {"task": Feature("task")}, anchors="left")
    rows = rows_of(0)[0]["count"][:5]
    offset, scale = (x.numpy() for x in loader.scale_of("plain"))
    np.testing.assert_allclose(loader.inverse("plain")((rows - offset) * scale), rows, atol=1e-9)
    with pytest.raises(ValueError, match=r"name must be a feature of vectors, .*; did you mean 'action'"):
        loader.inverse("acton")
    with pytest.raises(ValueError, match="anchor of 'action' must be given, because the feature is relative"):
        loader.inverse("action")(np.zeros(9))
    with pytest.raises(ValueError, match="values of 'action' must have 9 numbers in the last dimension"):
        loader.inverse("action")(np.zeros(7), np.zeros(7))
    with pytest.raises(ValueError, match=r"anchor of 'action' must be a row, or one for each .*, got shape \(5, 7\)"):
        loader.inverse("action")(np.zeros((2, 3, 9)), np.zeros((5, 7)).tolist())
    with pytest.raises(ValueError, match=r"name must be a feature of vectors, .*, got \['action'\]"):
        loader.inverse(["action"])
    with pytest.raises(TypeError, match="step must be a whole number, got 1"):
        loader.batch(1.5)
    with pytest.raises(ValueError, match="the loader must have features, got windows"):
        Loader(cache, 8, {"left": __import__("robocache").Window()}).inverse("left")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relative", [None, "anchor"])
def test_inverse_of_float32_batches_is_as_exact_as_these(cache, form, relative):
    """Values and anchors as a policy and a robot have them; the inverse computes in float64, with gradients."""
    feature = Feature(["tcp", "heading", "grip"], steps=STEPS, rate_hz=RATE, relative_to=relative, rotation=form,
                      normalize="min_max", dtype="float32")  # fmt: skip
    loader = Loader(cache, 32, features={"x": feature}, return_index=True, anchors="left")
    batch = loader.batch(0)
    names = ("tcp", "heading", "grip")
    rows = [windows_of(batch, name, STEPS)[0].astype(np.float32).reshape(32, 16, -1) for name in names]
    want = np.concatenate(rows, -1).astype(np.float64)
    values = batch["x"].requires_grad_()
    assert values.dtype == torch.float32
    got = loader.inverse("x")(values, None if relative is None else torch.from_numpy(want[:, 2]).float())
    assert got.dtype == torch.float64
    turned = Rotation.from_quat(want[..., 3:7].reshape(-1, 4)).inv()
    turned *= Rotation.from_quat(got.detach().numpy()[..., 3:7].reshape(-1, 4))
    # At half a turn a rotation vector and a quaternion have two forms, next to which float32 is coarse.
    assert turned.magnitude().max() < (2e-3 if form in ("euler", "rotvec") else 5e-6)
    plain = [0, 1, 2, 7, 8, 9]
    np.testing.assert_allclose(got.detach().numpy()[..., plain], want[..., plain], rtol=1e-5, atol=2e-5)
    got.sum().backward()
    assert torch.isfinite(values.grad).all()


@pytest.mark.parametrize(
    ("begin", "period", "turns"), [(-math.pi, 2 * math.pi, 1), (0, 2 * math.pi, 1), (-180, 360, 1), (-180, 360, 3)]
)
@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_inverse_of_relative_angles_has_the_period_of_the_stream(tmp_path, begin, period, turns, array):
    """``turns``: rows that count turns are not wrapped, since nothing says which one is meant."""
    specs = {
        "arm": robocache.StreamSpec("arm", "float64", (2,), rate_hz=RATE),
        "yaw": robocache.StreamSpec("yaw", "float32", (3,), rate_hz=RATE, method="angle", period=period),
    }
    rng = np.random.default_rng(8)
    rows = {"arm": rng.normal(0, 20, (300, 2)), "yaw": rng.uniform(begin, begin + turns * period, (300, 3))}
    rows = {name: x.astype(specs[name].dtype) for name, x in rows.items()}
    writer = robocache.CacheWriter(tmp_path / "c", specs)
    times = np.arange(300) * 10**9 // RATE
    writer.add(robocache.Episode(0, {n: robocache.EpisodeStream(specs[n], x, times) for n, x in rows.items()}))
    feature = Feature(["arm", "yaw"], steps=range(8), rate_hz=RATE, relative_to="anchor", normalize="mean_std")
    loader = Loader(writer.commit(), 290, features={"x": feature}, shuffle=False)
    joined = np.concatenate([rows["arm"], rows["yaw"].astype(np.float64)], -1)
    want = joined[np.arange(290)[:, None] + np.arange(8)]
    got = np.asarray(loader.inverse("x")(array(loader.batch(0)["x"].numpy()), array(want[:, 0])))
    np.testing.assert_allclose(got[..., :2], want[..., :2], atol=1e-9)
    off = (got - want)[..., 2:] / period
    np.testing.assert_allclose(off, np.rint(off), atol=1e-9)
    assert (np.rint(off) == 0).all() or turns > 1


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("relative", [None, "anchor"])
@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_inverse_takes_and_returns_rows_of_the_shape_of_a_stream(tmp_path, shape, relative, array):
    spec = robocache.StreamSpec("x", "float64", shape, rate_hz=RATE)
    rows = np.random.default_rng(3).normal(2, 3, (20, *shape))
    writer = robocache.CacheWriter(tmp_path / "c", {"x": spec})
    writer.add(robocache.Episode(0, {"x": robocache.EpisodeStream(spec, rows, np.arange(20) * 10**9 // RATE)}))
    features = {"x": Feature("x", steps=range(4), rate_hz=RATE, relative_to=relative, normalize="mean_std"),
                "now": Feature("x", normalize="mean_std", relative_to=relative)}  # fmt: skip
    loader = Loader(writer.commit(), 20, features=features, shuffle=False)
    batch = loader.batch(0)
    want = rows[np.minimum(np.arange(20)[:, None] + np.arange(4), 19)]
    for name, expected in (("x", want), ("now", want[:, 0])):
        inverse, values = loader.inverse(name), array(batch[name].numpy())
        anchor = None if relative is None else array(want[:, 0])
        np.testing.assert_allclose(inverse(values, anchor), expected, atol=1e-12)
        flat = values.reshape(*expected.shape[: expected.ndim - len(shape)], -1)  # as rows of numbers, too
        anchor = None if relative is None else array(want[:, 0].reshape(20, -1))
        np.testing.assert_allclose(inverse(flat, anchor).reshape(expected.shape), expected, atol=1e-12)
    if len(shape) == 2:
        with pytest.raises(ValueError, match=r"numbers in the last dimension, or rows of shape \(2, 3\), got"):
            inverse(np.zeros((5, 3)), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_channels", [1, 3, 14, 18, 33, 64, 70])
@pytest.mark.parametrize("is_finite", [True, False])
def test_moments_of_rows_of_any_width(num_channels, dtype, is_finite):
    """Padding alone, in runs and at the end of a chunk; numbers that are not finite in a few rows."""
    rng = np.random.default_rng(num_channels)
    values = torch.from_numpy(rng.normal(5, 2, (1500, num_channels))).to(dtype)
    padding = torch.from_numpy(rng.uniform(size=1500) < 0.05)
    padding[500:520] = True
    values[padding] = math.nan  # is not read
    if not is_finite:
        values[[3, 700, 1499], 0] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    moments = torch.zeros((6, num_channels), dtype=torch.float64)
    moments[3], moments[4] = math.inf, -math.inf
    robocache._core.accumulate_moments(values, padding, moments)
    for c in range(num_channels):
        kept = values[~padding, c].double().numpy()
        good = kept[np.isfinite(kept)]
        expected = [len(good), good.mean(), good.var() * len(good), good.min(), good.max(), len(kept) - len(good)]
        np.testing.assert_allclose(moments[:, c], expected, rtol=1e-12)
