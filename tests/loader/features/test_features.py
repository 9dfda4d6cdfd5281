"""Features: names, joins, moments, relative values and rotations, against NumPy and SciPy."""

import collections
import pickle

import numpy as np
import pytest
import robocache
import torch
from feature_cases import RATE, SPECS, STEP_NS, TEXTS, make_cache, rows_of, windows_of
from robocache import Feature, Loader
from scipy.spatial.transform import Rotation

STEPS = range(-2, 14)
TIERS = ["memory", "mmap"]


def batch_of(cache, features, size=32, **options):
    return Loader(cache, size, features=features, return_index=True, anchors="left", **options).batch(1)


def moments(**options):
    return {"steps": STEPS, "rate_hz": RATE, **options}


def quaternions(rows, order):
    return Rotation.from_quat(rows if order == "xyzw" else np.roll(rows, -1, axis=-1))


def as_form(turns, form):
    if form == "quaternion_xyzw":
        return turns.as_quat(canonical=True)
    if form == "quaternion_wxyz":
        return np.roll(turns.as_quat(canonical=True), 1, axis=-1)
    if form in ("6d", "6d_columns", "matrix"):
        m = turns.as_matrix()
        m = m if form == "matrix" else m[..., :2, :] if form == "6d" else np.swapaxes(m[..., :, :2], -1, -2)
        return m.reshape(*m.shape[:-2], -1)
    return turns.as_rotvec() if form == "rotvec" else turns.as_euler("xyz")


FORMS = {"quaternion_xyzw": 4, "quaternion_wxyz": 4, "6d": 6, "6d_columns": 6, "matrix": 9, "rotvec": 3, "euler": 3}


def close(got, want, eps=1e-12):
    np.testing.assert_allclose(np.asarray(got), want, rtol=eps, atol=eps)


# ---- names, moments, joins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
def test_one_stream_in_several_features_under_names_of_the_user(cache, tier):
    features = {
        "observation.state": Feature("left", past=0.04, rate_hz=RATE),
        "action": Feature("left", steps=range(8), rate_hz=RATE),
        "now": Feature("left"),
        "one": Feature("left", deltas=[0.0]),
    }
    batch = batch_of(cache, features, tier=tier)
    pads = {f"{name}_is_pad" for name in features}
    assert set(batch) == {*features, *pads, "source_index", "episode_index", "anchor_ns"}
    for name, steps in {"observation.state": range(-2, 1), "action": range(8), "one": [0]}.items():
        values, outside = windows_of(batch, "left", steps)
        np.testing.assert_array_equal(batch[name], values)
        np.testing.assert_array_equal(batch[f"{name}_is_pad"], outside)
    assert batch["now"].shape == (32, 7)
    assert batch["now_is_pad"].shape == (32,)
    np.testing.assert_array_equal(batch["now"], windows_of(batch, "left", [0])[0][:, 0])


@pytest.mark.parametrize("tier", TIERS)
def test_joined_streams_are_side_by_side(cache, tier):
    batch = batch_of(cache, {"arms": Feature(["left", "right"], **moments())}, tier=tier)
    parts = [windows_of(batch, name, STEPS) for name in ("left", "right")]
    np.testing.assert_array_equal(batch["arms"], np.concatenate([x for x, _ in parts], -1))
    np.testing.assert_array_equal(batch["arms_is_pad"], parts[0][1] | parts[1][1])
    assert batch["arms"].dtype == torch.float32


@pytest.mark.parametrize(
    ("streams", "dtype"),
    [
        (["left", "grip"], "float64"),
        (["left", "count"], "float32"),
        (["count", "count"], "int16"),
        (["left", "right"], "float32"),
    ],
)
def test_dtypes_of_a_join_are_equal_or_wide_enough(cache, streams, dtype):
    batch = batch_of(cache, {"x": Feature(streams, **moments())})
    assert batch["x"].dtype == getattr(torch, dtype)
    parts = [windows_of(batch, name, STEPS)[0] for name in streams]
    parts = [x[..., None] if x.ndim == 2 else x for x in parts]
    np.testing.assert_array_equal(batch["x"], np.concatenate([x.astype(dtype) for x in parts], -1))


@pytest.mark.parametrize(("dtype", "first"), [("int64", 2**53), ("int64", -(2**62)), ("uint64", 2**63 + 2**40)])
def test_integers_above_2_to_the_53_are_the_nearest_float64(tmp_path, dtype, first):
    """Nanoseconds since 1970, for example: of a join and of a difference as of the stream alone."""
    spec = robocache.StreamSpec("stamp", dtype, (2,), rate_hz=RATE)
    rows = np.array([first + 50 * i for i in range(24)], dtype).reshape(12, 2)
    writer = robocache.CacheWriter(tmp_path / "c", {"stamp": spec})
    writer.add(robocache.Episode(0, {"stamp": robocache.EpisodeStream(spec, rows, np.arange(12) * STEP_NS)}))
    features = {
        "alone": Feature("stamp", dtype="float64"),
        "scaled": Feature("stamp", dtype="float64", normalize=(float(first), 0.5)),
        "joined": Feature(["stamp", "stamp"], dtype="float64"),
        "relative": Feature("stamp", steps=[0, 3], rate_hz=RATE, relative_to="anchor"),
    }
    loader = Loader(writer.commit(), 9, features=features, shuffle=False, drop_last_steps=3)
    batch, wide = loader.batch(0), rows.astype(np.float64)
    np.testing.assert_array_equal(batch["alone"], wide[:9])
    np.testing.assert_array_equal(batch["scaled"], (wide[:9] - float(first)) * 2)
    np.testing.assert_array_equal(batch["joined"], np.concatenate([wide, wide], 1)[:9])
    np.testing.assert_array_equal(batch["relative"][:, 1], wide[3:12] - wide[:9])
    np.testing.assert_array_equal(loader.stats["joined"]["max"], np.tile(wide[8], 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_dtype_is_one_rounding(cache, dtype):
    batch = batch_of(cache, {"x": Feature(["left", "grip"], dtype=dtype, relative_to="anchor", **moments())})
    rows = [windows_of(batch, name, STEPS)[0].astype(np.float64).reshape(32, 16, -1) for name in ("left", "grip")]
    whole = np.concatenate(rows, -1)
    want = torch.from_numpy(whole - whole[:, 2:3]).to(getattr(torch, dtype))
    assert torch.equal(batch["x"], want)


def test_rates_of_a_join_need_rate_hz(cache):
    with pytest.raises(ValueError, match=r"several rates: rate_hz must be given, got None for left 50 Hz, fast 200 Hz"):
        batch_of(cache, {"x": Feature(["left", "fast"], deltas=[0.0])})
    batch = batch_of(cache, {"x": Feature(["left", "fast"], steps=[0, 1], rate_hz=RATE)})
    assert batch["x"].shape == (32, 2, 10)


def test_a_transform_gets_the_finished_entry(cache):
    plain = batch_of(cache, {"x": Feature("left", **moments())})
    made = batch_of(cache, {"x": Feature("left", transform=lambda x: x.flatten(1) * 2, **moments())})
    assert torch.equal(made["x"], plain["x"].flatten(1) * 2)


def test_samples_by_number_have_the_rows_of_what_a_transform_returns(cache):
    """Dicts, tuples and named tuples of entries; a list is one of rows, as of texts."""
    pair = collections.namedtuple("pair", "first last")
    features = {
        "dict": Feature("left", transform=lambda x: {"x": x, "sum": {"all": x.sum(-1)}}, **moments()),
        "tuple": Feature("left", transform=lambda x: (x, pair(x[:, 0], x[:, -1])), **moments()),
        "texts": Feature("task", transform=lambda texts: [text.upper() for text in texts]),
    }
    loader = Loader(cache, 32, features=features, shuffle=False, anchors="left")
    batch, rows = loader.dataset[[3, 50, 7]], loader.dataset.__getitems__([3, 50, 7])
    assert torch.equal(loader.dataset[50]["dict"]["x"], rows[1]["dict"]["x"])
    for i, row in enumerate(rows):
        x = batch["dict"]["x"][i]
        assert torch.equal(row["dict"]["x"], x)
        assert torch.equal(row["dict"]["sum"]["all"], x.sum(-1))
        assert torch.equal(row["tuple"][0], x)
        assert isinstance(row["tuple"][1], pair)
        assert torch.equal(row["tuple"][1].last, x[-1])
        assert row["texts"] == batch["texts"][i] == batch["texts"][i].upper()
    collated = next(iter(torch.utils.data.DataLoader(loader.dataset, 8)))
    assert collated["dict"]["sum"]["all"].shape == (8, 16)


@pytest.mark.parametrize("transform", [lambda x: x.sum(), lambda x: x.flatten(0, 1), lambda x: {"a": x, "b": x[:1]}])
def test_samples_by_number_need_a_row_for_each_of_them_from_a_transform(cache, transform):
    loader = Loader(cache, 8, features={"x": Feature("left", transform=transform, **moments())}, anchors="left")
    with pytest.raises(ValueError, match=r"transform of features\['x'\] must return a row for each of 3 samples, got"):
        loader.dataset.__getitems__([0, 1, 2])


@pytest.mark.parametrize("of", [tuple, iter, np.array, torch.tensor])
def test_deltas_of_any_kind_can_be_read_again(of):
    for made in (Feature("x", deltas=of([-0.5, 0.0, 0.25])).window, robocache.Window(deltas=of([-0.5, 0.0, 0.25]))):
        assert made.deltas_ns == made.deltas_ns == (-500_000_000, 0, 250_000_000)


def test_a_gap_longer_than_max_gap_is_padding_of_every_feature(tmp_path):
    specs = {name: robocache.StreamSpec(name, "float64", (2,), rate_hz=RATE) for name in ("arm", "hand")}
    rows = np.random.default_rng(1).normal(size=(40, 2))
    there = np.delete(np.arange(40), range(15, 23))  # 0.18 s without rows
    writer = robocache.CacheWriter(tmp_path / "c", specs)
    times = np.arange(40) * STEP_NS
    streams = {"arm": robocache.EpisodeStream(specs["arm"], rows, times),
               "hand": robocache.EpisodeStream(specs["hand"], rows[there], times[there])}  # fmt: skip
    writer.add(robocache.Episode(0, streams))
    gap = {"steps": range(3), "rate_hz": RATE, "max_gap": 0.1}
    features = {
        "alone": Feature("hand", **gap),
        "joined": Feature(["arm", "hand"], **gap),
        "relative": Feature("hand", relative_to="anchor", **gap),
        "filled": Feature("hand", steps=range(3), rate_hz=RATE),
    }
    batch = Loader(writer.commit(), 38, features=features, anchors="arm", shuffle=False, drop_last_steps=2).batch(0)
    moments = np.arange(38)[:, None] + np.arange(3)
    missing = (moments >= 15) & (moments < 23)
    np.testing.assert_array_equal(batch["alone_is_pad"], missing)
    np.testing.assert_array_equal(batch["joined_is_pad"], missing)
    np.testing.assert_array_equal(batch["relative_is_pad"], missing | missing[:, :1])  # or its anchor
    assert not batch["filled_is_pad"].any()
    np.testing.assert_array_equal(batch["joined"][..., :2], rows[moments])
    np.testing.assert_array_equal(batch["alone"].numpy()[~missing], rows[moments][~missing])


# ---- relative -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("steps", [STEPS, range(1, 9)], ids=["with the anchor", "without it"])
def test_numbers_are_relative_by_difference(cache, tier, steps):
    features = {"x": Feature(["left", "grip"], steps=steps, rate_hz=RATE, relative_to="anchor")}
    batch = batch_of(cache, features, tier=tier)
    for name, channels in (("left", slice(0, 7)), ("grip", slice(7, 8))):
        rows = windows_of(batch, name, steps)[0].astype(np.float64).reshape(32, len(steps), -1)
        now = windows_of(batch, name, [0])[0].astype(np.float64).reshape(32, 1, -1)
        np.testing.assert_array_equal(batch["x"][..., channels], rows - now)


def test_angles_are_relative_the_short_way_round(cache):
    batch = batch_of(cache, {"x": Feature("heading", relative_to="anchor", dtype="float64", **moments())})
    rows = windows_of(batch, "heading", STEPS)[0].astype(np.float64)
    way = rows - rows[:, 2:3]
    close(batch["x"], (way + np.pi) % (2 * np.pi) - np.pi, 1e-9)
    assert batch["x"].abs().max() <= np.pi + 1e-9


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relative", [None, "anchor"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_pose_of_one_stream(cache, form, relative, tier):
    options = moments(rotation=form, relative_to=relative, dtype="float64")
    batch = batch_of(cache, {"x": Feature("tcp", **options)}, tier=tier)
    rows = windows_of(batch, "tcp", STEPS)[0].astype(np.float64)
    check_pose(batch["x"], rows[..., :3], quaternions(rows[..., 3:], "xyzw"), form, relative)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relative", [None, "anchor"])
def test_a_pose_of_two_streams(cache, form, relative):
    batch = batch_of(cache, {"x": Feature(["place", "turn"], **moments(rotation=form, relative_to=relative))})
    place, turn = (windows_of(batch, name, STEPS)[0] for name in ("place", "turn"))
    check_pose(batch["x"], place, quaternions(turn, "wxyz"), form, relative)


@pytest.mark.parametrize("relative", [None, "anchor", "state"])
@pytest.mark.parametrize("steps", [STEPS, range(1, 9)], ids=["with the anchor", "without it"])
def test_ranges_of_a_method_are_those_of_the_joined_row(tmp_path, relative, steps):
    """An unmarked pose between a flag and a gripper, and a stream that says itself how it is read."""
    specs = {
        "flag": robocache.StreamSpec("flag", "float64", (), rate_hz=RATE),
        "tcp": robocache.StreamSpec("tcp", "float32", (7,), rate_hz=RATE),
        "grip": robocache.StreamSpec("grip", "float64", (2,), rate_hz=RATE),
        "yaw": robocache.StreamSpec("yaw", "float64", (1,), rate_hz=RATE, method="angle"),
    }
    rng = np.random.default_rng(4)
    turns = Rotation.random(60, rng=rng).as_quat()
    rows = {"flag": rng.normal(size=60), "tcp": np.concatenate([rng.normal(0, 2, (60, 3)), turns], -1),
            "grip": rng.normal(size=(60, 2)), "yaw": rng.uniform(-np.pi, np.pi, (60, 1))}  # fmt: skip
    rows = {name: x.astype(specs[name].dtype) for name, x in rows.items()}
    times = np.arange(60) * 10**9 // RATE
    writer = robocache.CacheWriter(tmp_path / "c", specs)
    writer.add(robocache.Episode(0, {n: robocache.EpisodeStream(specs[n], x, times) for n, x in rows.items()}))
    marks = [(0, 1, "previous"), (4, 8, "slerp_xyzw")]
    names = ["flag", "tcp", "grip", "yaw"]
    options = {"method": marks, "relative_to": relative, "rotation": "rotvec", "dtype": "float64"}
    features = {
        "x": Feature(names, steps=steps, rate_hz=RATE, **options),
        "state": Feature(names, method=marks),
        "between": Feature(names, deltas=[0.51 / RATE], rate_hz=RATE, method=marks),
        "whole": Feature(["tcp", "tcp"], method=[(3, 7, "slerp_xyzw"), (10, 14, "slerp_xyzw")], rotation="6d"),
    }
    batch = Loader(writer.commit(), 30, features=features, shuffle=False, skip_anchors=(2, 14)).batch(0)
    joined = np.concatenate([rows[n].reshape(60, -1).astype(np.float64) for n in names], -1)
    windows, now = joined[np.arange(2, 32)[:, None] + np.array(steps)], joined[2:32, None]
    turned, start = Rotation.from_quat(windows[..., 4:8]), np.broadcast_to(now, windows.shape)
    if relative:
        back = Rotation.from_quat(start[..., 4:8]).inv()
        turned, way = back * turned, windows - now
        moved = Rotation.from_quat(back.as_quat().reshape(-1, 4)).apply(way[..., 1:4].reshape(-1, 3))
        way[..., 1:4] = moved.reshape(*way.shape[:2], 3)
        way[..., -1] = (way[..., -1] + np.pi) % (2 * np.pi) - np.pi
        windows = way
    want = np.concatenate([windows[..., :4], turned.as_rotvec(), windows[..., 8:]], -1)
    close(batch["x"], want, 1e-9)
    np.testing.assert_array_equal(batch["between"][:, 0, 0], rows["flag"][2:32])  # previous, the others are blended
    close(np.linalg.norm(batch["between"][:, 0, 4:8], axis=-1), 1, 1e-6)
    close(batch["between"][:, 0, 8:10], 0.49 * rows["grip"][2:32] + 0.51 * rows["grip"][3:33], 1e-6)
    assert batch["whole"].shape == (30, 18)


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
@pytest.mark.parametrize("form", [None, "6d"])
def test_a_stream_of_several_quaternions_is_rotated_one_by_one(tmp_path, shape, form):
    spec = robocache.StreamSpec("turns", "float64", shape, rate_hz=RATE, method="slerp_xyzw")
    rows = Rotation.random(40, rng=np.random.default_rng(2)).as_quat().reshape(20, 2, 4)
    writer = robocache.CacheWriter(tmp_path / "c", {"turns": spec})
    times = np.arange(20) * 10**9 // RATE
    writer.add(robocache.Episode(0, {"turns": robocache.EpisodeStream(spec, rows.reshape(20, *shape), times)}))
    feature = Feature("turns", steps=range(3), rate_hz=RATE, relative_to="anchor", rotation=form)
    loader = Loader(writer.commit(), 18, features={"x": feature}, shuffle=False)
    batch = loader.batch(0)
    windows = rows[np.arange(18)[:, None] + np.arange(3)]
    for k in range(2):
        there = Rotation.from_quat(windows[:, :, k])
        anchors = Rotation.from_quat(np.broadcast_to(windows[:, :1, k], windows[:, :, k].shape))
        want = as_form(anchors.inv() * there, form or "quaternion_xyzw")
        close(batch["x"].reshape(18, 3, 2, -1)[:, :, k], want, 1e-9)
    assert batch["x"].shape == (18, 3, *((12,) if form else shape))
    back = loader.inverse("x")(batch["x"].numpy(), windows[:, 0].reshape(18, *(shape if form is None else (8,))))
    close(np.abs((back.reshape(18, 3, 2, 4) * windows).sum(-1)), 1, 1e-9)


def check_pose(got, places, turns, form, relative):
    """``T_anchor^-1 T``, with SciPy; the anchor is moment 2."""
    if relative is not None:
        inverse = Rotation.from_quat(turns.as_quat()[:, 2:3]).inv()
        inverse = Rotation.from_quat(np.broadcast_to(inverse.as_quat(), turns.as_quat().shape))
        way = places - places[:, 2:3]
        flat = Rotation.from_quat(inverse.as_quat().reshape(-1, 4))
        places = flat.apply(way.reshape(-1, 3)).reshape(way.shape)
        turns = inverse * turns
    assert got.shape == (32, 16, 3 + FORMS[form])
    close(got[..., :3], places, 1e-10)
    close(got[..., 3:], as_form(turns, form), 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalize", [None, "mean_std"])
def test_bits_of_a_moment_do_not_depend_on_how_many_are_computed_side_by_side(cache, form, normalize):
    stats = Loader(cache, 32, features={"x": Feature("tcp", relative_to="anchor", rotation=form, **moments())}).stats
    scale = None if normalize is None else (stats["x"]["mean"], stats["x"]["std"] + 1)

    def actions(number, **options):
        feature = Feature("tcp", steps=range(number), rate_hz=RATE, relative_to="anchor", rotation=form,
                          normalize=scale, **options)  # fmt: skip
        return np.asarray(batch_of(cache, {"x": feature})["x"])

    whole = actions(40)  # a block of 32 and a rest
    for number in range(1, 10):
        np.testing.assert_array_equal(actions(number), whole[:, :number])
    wide = actions(40, dtype="float64").astype(np.float32)
    np.testing.assert_array_equal(whole, wide)


@pytest.mark.parametrize("streams", [["left", "right"], ["heading", "left"], ["count", "count"], ["grip", "grip"]])
def test_joins_of_rows_of_any_size_are_copies(cache, streams):
    batch = batch_of(cache, {"x": Feature(streams, **moments())})
    wanted = [windows_of(batch, name, STEPS)[0].reshape(32, len(STEPS), -1) for name in streams]
    np.testing.assert_array_equal(np.asarray(batch["x"]), np.concatenate(wanted, axis=-1))


def test_euler_angles_at_the_pole_are_a_rotation_all_the_same(tmp_path):
    spec = robocache.StreamSpec("turn", "float64", (4,), rate_hz=RATE, method="slerp_xyzw")
    turns = Rotation.from_euler("xyz", [[0.3, np.pi / 2, 0.8], [1.1, -np.pi / 2, 0.2], [0, 0, 0], [np.pi, 0, 0]])
    rows = np.concatenate([turns.as_quat(), np.zeros((1, 4))])
    writer = robocache.CacheWriter(tmp_path / "c", {"turn": spec})
    writer.add(robocache.Episode(0, {"turn": robocache.EpisodeStream(spec, rows, np.arange(5) * 10**7)}))
    cache = writer.commit()
    loader = Loader(cache, 5, features={"x": Feature("turn", rotation="euler")}, shuffle=False)
    got = next(iter(loader))["x"].numpy()
    assert np.isfinite(got).all()
    assert (got[4] == 0).all()
    again = Rotation.from_euler("xyz", got[:4])
    assert (turns.inv() * again).magnitude().max() < 1e-7
    vectors = next(iter(Loader(cache, 5, features={"x": Feature("turn", rotation="rotvec")}, shuffle=False)))["x"]
    close(vectors[:4], turns.as_rotvec(), 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relative", [None, "anchor"])
def test_a_rotation_that_is_not_known_is_nan_in_every_form(tmp_path, form, relative):
    """It must not look like a rotation: Euler angles were 0. Zeros are no rotation."""
    spec = robocache.StreamSpec("turn", "float64", (4,), rate_hz=RATE, method="slerp_xyzw")
    rows = np.tile([0, 0, 0.6, 0.8], (6, 1))
    rows[1:4] = [0.1, np.nan, 0.2, 0.3], [np.nan] * 4, [0, 0, 0, 0]
    writer = robocache.CacheWriter(tmp_path / "c", {"turn": spec})
    writer.add(robocache.Episode(0, {"turn": robocache.EpisodeStream(spec, rows, np.arange(6) * STEP_NS)}))
    feature = Feature("turn", steps=[0, 1], rate_hz=RATE, rotation=form, relative_to=relative)
    loader = Loader(writer.commit(), 6, features={"x": feature}, shuffle=False)
    found = np.isnan(loader.batch(0)["x"].numpy())
    assert found[:, 0].all(1).tolist() == [False, True, True, False, False, False]
    assert found[:, 0].any(1).tolist() == [False, True, True, False, False, False]
    back = loader.inverse("x")(np.full((1, FORMS[form]), np.nan), None if relative is None else rows[0])
    assert np.isnan(back).all()


def test_relative_to_another_feature_or_stream(cache):
    features = {
        "state": Feature("left"),
        "action": Feature("right", relative_to="state", **moments()),
        "other": Feature("right", relative_to="left", **moments()),
    }
    batch = batch_of(cache, features)
    rows, state = (windows_of(batch, name, s)[0].astype(np.float64) for name, s in (("right", STEPS), ("left", [0])))
    np.testing.assert_array_equal(batch["action"], (rows - state).astype(np.float32))
    assert torch.equal(batch["action"], batch["other"])


def test_padding_of_a_relative_feature_has_that_of_its_anchor(cache):
    early = {"x": Feature("left", relative_to="anchor", steps=[1], rate_hz=RATE, latency=-0.1)}
    batch = batch_of(cache, early, size=200, drop_last=False, shuffle=False)
    now = windows_of(batch, "left", [-5])[1]
    then = windows_of(batch, "left", [-4])[1]
    np.testing.assert_array_equal(batch["x_is_pad"], now | then)
    assert now.any()


# ---- the same everywhere --------------------------------------------------------------------------------------------

EVERYTHING = {
    "state": Feature(["left", "right", "grip"], past=0.1, rate_hz=20, normalize="mean_std"),
    "action": Feature("tcp", relative_to="anchor", rotation="6d", normalize="min_max", **moments()),
    "far": Feature(
        ["place", "turn"], relative_to="tcp64", rotation="rotvec", normalize="quantile", future=0.2, rate_hz=30
    ),
    "tcp64": Feature(["place", "turn"]),
    "left": Feature("left", normalize="mean_std", dtype="bfloat16", **moments()),
    "cam": Feature("cam", normalize="imagenet"),
    "task": Feature("task"),
    "say": Feature("say", steps=[-5, 0], rate_hz=RATE),
    "ids": Feature("say", tokenizer=lambda texts: [[len(text), ord(text[0])] if text else [0, 0] for text in texts]),
}


def same(a, b):
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert torch.equal(x, b[name]) if torch.is_tensor(x) else x == b[name], name


def test_every_tier_and_every_number_of_ranks_gives_the_same_batches(cache):
    whole = [*Loader(cache, 24, features=EVERYTHING, tier="memory", return_index=True, seed=5)]
    for a, b in zip(whole, Loader(cache, 24, features=EVERYTHING, tier="mmap", return_index=True, seed=5), strict=True):
        same(a, b)
    ranks = [
        Loader(cache, 8, features=EVERYTHING, return_index=True, seed=5, rank=rank, world_size=3) for rank in range(3)
    ]
    for a, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        joined = {
            name: torch.cat([p[name] for p in parts]) if torch.is_tensor(x) else [y for p in parts for y in p[name]]
            for name, x in a.items()
        }
        same(a, joined)


def test_a_resumed_loader_goes_on_with_the_same_batches(cache):
    loader = Loader(cache, 16, features=EVERYTHING, seed=2)
    read = iter(loader)
    for _ in range(3):
        next(read)
    state = loader.state_dict()
    again = Loader(cache, 16, features=EVERYTHING, seed=2)
    again.load_state_dict(state)
    for a, b in zip(read, again, strict=True):
        same(a, b)


@pytest.mark.parametrize("drop_last", [True, False])
def test_augmented_weighted_batches_at_edges_are_the_same_everywhere_and_after_a_resume(cache, tmp_path, drop_last):
    """All at once: random edits, weights, edges, over tiers, ranks and a resume on another number of ranks."""
    jpeg = robocache.ingest(cache.path, tmp_path / "jpeg", images="jpeg")
    image = robocache.Image(
        size=(3, 4), crop=robocache.RandomCrop(0.8), flip=0.5, color=robocache.ColorJitter(0.2, 0.2, 0.2), layout="CHW",
        dtype="float32", normalize="imagenet",
    )  # fmt: skip
    features = EVERYTHING | {"cam": Feature("cam", steps=[-1, 0], rate_hz=RATE, image=image)}
    options = {"features": features, "weights": {1: 3.0, 2: 0.25}, "edges": (2, 9), "drop_last": drop_last, "seed": 11,
               "return_index": True, "anchors": "left"}  # fmt: skip
    loader = Loader(jpeg, 24, **options)
    whole = [batch for _ in range(2) for batch in loader]
    assert not torch.equal(whole[0]["cam"], whole[len(loader)]["cam"])
    episodes = torch.cat([batch["episode_index"] for batch in whole]).bincount(minlength=5)
    assert episodes[1] > 2 * episodes[2] > 0
    for batch in whole:  # at most 2 moments before and 9 after an episode, of each window
        assert batch["action_is_pad"][:, :2].sum(1).max() <= 2
        assert batch["action_is_pad"].sum(1).max() <= 9

    def of_ranks(world_size, state=None, tier=None):
        """Batches of all ranks, joined."""
        ranks = [Loader(jpeg, 24 // world_size, tier=tier, rank=rank, world_size=world_size, **options)
                 for rank in range(world_size)]  # fmt: skip
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(state)
        for parts in zip(
            *([b for _ in range(2 - (state or {"epoch": 0})["epoch"]) for b in r] for r in ranks), strict=True
        ):
            yield {
                name: torch.cat([p[name] for p in parts]) if torch.is_tensor(x) else [y for p in parts for y in p[name]]
                for name, x in parts[0].items()
            }

    for world_size, tier in ((1, "memory"), (1, "mmap"), (3, "mmap"), (2, "memory")):
        for a, b in zip(whole, of_ranks(world_size, tier=tier), strict=True):
            same(a, b)
    for done in (1, len(loader), len(loader) + 2):
        loader = Loader(jpeg, 24, **options)
        read = (batch for _ in range(2) for batch in loader)
        for _ in range(done):
            next(read)
        if done == len(loader):
            assert next(read, None) is not None  # the next epoch has begun
            done += 1
        state = loader.state_dict() | {"batch_size": 8, "world_size": 3}
        for a, b in zip(whole[done:], of_ranks(3, state, "mmap"), strict=True):
            same(a, b)


def test_a_pickled_loader_gives_the_same_batches(cache):
    features = {name: feature for name, feature in EVERYTHING.items() if name != "ids"}  # a lambda is not picklable
    loader = Loader(cache, 16, features=features)
    same(pickle.loads(pickle.dumps(loader)).batch(2), loader.batch(2))


def test_a_mixture_scales_each_cache_with_its_own_statistics(cache, tmp_path):
    other = make_cache(tmp_path / "other", seed=9)
    features = {"x": Feature(["left", "right"], normalize="mean_std", relative_to="anchor", **moments())}
    mixed = Loader(
        robocache.Mixture([(cache, 1), (other, 1)]), 64, features=features, return_index=True, anchors="left"
    )
    batch = mixed.batch(0)
    for source, seed in enumerate((0, 9)):
        chosen = {name: x[batch["source_index"] == source] for name, x in batch.items()}
        rows = np.concatenate([windows_of(chosen, n, STEPS, seed)[0].astype(np.float64) for n in ("left", "right")], -1)
        stats = mixed.stats[source]["x"]
        close(chosen["x"], (rows - rows[:, 2:3] - stats["mean"]) / stats["std"], 1e-6)
    assert "source_index" not in Loader(mixed._source, 8, features=features, anchors="left").batch(0)


# ---- text -----------------------------------------------------------------------------------------------------------


def test_the_task_of_the_episode_and_the_text_of_the_moment(cache):
    features = {"task": Feature("task"), "say": Feature("say"), "soon": Feature("say", steps=[0, 8], rate_hz=RATE)}
    batch = batch_of(cache, features, size=64)
    for i, (e, t) in enumerate(zip(batch["episode_index"].tolist(), batch["anchor_ns"].tolist(), strict=True)):
        row = (t - (e + 1) * 10**12) * RATE // 10**9
        at = [TEXTS[(r >= 10) + (r >= 25)] for r in (row, row + 8)]
        assert batch["task"][i] == ("" if e == 2 else f"task {e % 2}")
        assert batch["say"][i] == at[0]
        assert batch["soon"][i] == at
    assert all(type(text) is str for text in batch["task"])


def test_tasks_of_a_mixture_are_those_of_its_kept_episodes(cache, tmp_path):
    """Episodes are left out, and the caches number theirs alike."""
    writer = robocache.CacheWriter(tmp_path / "other", {"left": SPECS["left"]})
    for e in range(4):
        rows, begin = rows_of(e)
        times = begin + np.arange(len(rows["left"])) * STEP_NS
        streams = {"left": robocache.EpisodeStream(SPECS["left"], rows["left"], times)}
        writer.add(robocache.Episode(e, streams, f"other {e}"))
    mixture = robocache.Mixture([(cache, 1.0), (writer.commit(), 1.0)])
    features = {
        "left": Feature("left"),
        "task": Feature("task"),
        "ids": Feature("task", tokenizer=lambda texts: [[len(text)] for text in texts]),
    }
    loader = Loader(mixture, 64, features=features, episodes=lambda e: e.index != 1, return_index=True)
    batch = loader.batch(0)
    found = [*zip(batch["source_index"].tolist(), batch["episode_index"].tolist(), strict=True)]
    expected = [f"other {e}" if s else "" if e == 2 else f"task {e % 2}" for s, e in found]
    assert {s for s, _ in found} == {0, 1}
    assert 1 not in {e for _, e in found}
    assert batch["task"] == expected
    assert batch["ids"][:, 0].tolist() == [len(text) for text in expected]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_tasks_that_change_within_an_episode_of_lerobot(tmp_path, shape):
    """The stream task_index has their numbers, the metadata of the dataset their texts."""
    spec = robocache.StreamSpec("task_index", "int64", shape, rate_hz=RATE)
    writer = robocache.CacheWriter(tmp_path / "c", {"task_index": spec})
    numbers = np.array([0, 0, 2, 2, 1, 7])
    rows = robocache.EpisodeStream(spec, numbers.reshape(-1, *shape), np.arange(6) * 10**9 // RATE)
    writer.add(robocache.Episode(0, {"task_index": rows}))
    cache = writer.commit({"source": {"metadata": {"tasks": {"0": "reach", "1": "lift", "2": "grasp"}}}})
    features = {
        "task": Feature("task"),
        "next": Feature("task", steps=[0, 1], rate_hz=RATE),
        "ids": Feature("task", tokenizer=lambda texts: [[len(text)] for text in texts]),
    }
    batch = Loader(cache, 6, features=features, shuffle=False).batch(0)
    texts = ["reach", "reach", "grasp", "grasp", "lift", ""]  # number 7 has no text
    assert batch["task"] == texts
    assert batch["next"] == [[a, b] for a, b in zip(texts, [*texts[1:], ""], strict=True)]
    assert batch["ids"][:, 0].tolist() == [len(text) for text in texts]


@pytest.mark.parametrize("tier", TIERS)
def test_tasks_of_moments_are_those_of_their_cache_in_a_mixture(tmp_path, tier):
    """The caches number their tasks differently, and one has fewer of them."""
    spec = robocache.StreamSpec("task_index", "int64", (), rate_hz=RATE)
    tasks = [{"0": "reach", "1": "lift", "3": "wave"}, {"0": "pour", "1": "shake"}]
    numbers = [[0, 1, 3, 2, 0, 1], [1, 0, 3, 1, -1, 0]]
    caches = []
    for number, texts in enumerate(tasks):
        writer = robocache.CacheWriter(tmp_path / f"{number}", {"task_index": spec}, fingerprint=f"{number}")
        rows = robocache.EpisodeStream(spec, np.array(numbers[number]), np.arange(6) * 10**9 // RATE)
        writer.add(robocache.Episode(0, {"task_index": rows}, "of the episode"))
        caches.append(writer.commit({"source": {"metadata": {"tasks": texts}}}))
    features = {
        "task": Feature("task"),
        "next": Feature("task", steps=[0, 1], rate_hz=RATE),
        "ids": Feature("task", tokenizer=lambda texts: [[*map(ord, text.ljust(5))] for text in texts]),
        "number": Feature("task_index"),
    }
    loader = Loader(robocache.Mixture(caches, [1, 2]), 12, features=features, tier=tier, return_index=True)
    seen = set()
    for batch in (*loader, loader.dataset[[*range(12)]]):
        rows = (batch["anchor_ns"] * RATE // 10**9).tolist()
        for i, (source, row) in enumerate(zip(batch["source_index"].tolist(), rows, strict=True)):
            at = [tasks[source].get(str(numbers[source][min(k, 5)]), "") for k in (row, row + 1)]
            assert (batch["task"][i], batch["next"][i], batch["number"][i]) == (at[0], at, numbers[source][row])
            assert batch["ids"][i].tolist() == ([*map(ord, at[0].ljust(5))] if at[0] else [0] * 5)
            seen.add((source, row))
    assert seen == {(source, row) for source in (0, 1) for row in range(6)}
    ids = Loader(robocache.Mixture(caches, [1, 2]), 12, features={"ids": features["ids"]}, tier=tier)
    assert torch.equal(ids.batch_at(torch.tensor(0))["ids"], ids.batch(0)["ids"])


def test_a_text_is_tokenized_once(cache):
    calls = []

    def tokenizer(texts):
        calls.append(texts)
        return {"input_ids": [[len(t), 7, 7] for t in texts], "attention_mask": [[1, 1, 0]] * len(texts)}

    loader = Loader(cache, 32, features={"say": Feature("say", tokenizer=tokenizer), "text": Feature("say")})
    for batch in loader:
        assert batch["say"].dtype == torch.int64
        assert batch["say_mask"].dtype == torch.bool
        assert batch["say"][:, 0].tolist() == [len(t) for t in batch["text"]]
        assert batch["say_mask"].tolist() == [[True, True, False]] * 32
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0]))


def test_features_of_one_tokenizer_share_its_ids(cache):
    calls = []

    def tokenizer(texts):
        calls.append(texts)
        return [[*map(ord, text.ljust(20))] for text in texts]

    features = {"say": Feature("say", tokenizer=tokenizer), "task": Feature("task", tokenizer=tokenizer),
                "soon": Feature("say", steps=[0, 5], rate_hz=RATE, tokenizer=tokenizer),
                "other": Feature("say", tokenizer=lambda texts: [[len(text)] for text in texts]),
                "text": Feature("say"), "name": Feature("task")}  # fmt: skip
    batch = batch_of(cache, features)
    assert sorted(calls[0]) == sorted({*TEXTS, "task 0", "task 1"})
    assert len(calls) == 1
    for ids, texts in (("say", "text"), ("task", "name")):
        assert batch[ids].tolist() == [[*map(ord, t.ljust(20))] if t else [0] * 20 for t in batch[texts]]
        assert batch[f"{ids}_mask"].any(1).tolist() == [bool(t) for t in batch[texts]]
    assert torch.equal(batch["soon"][:, 0], batch["say"])
    assert batch["other"][:, 0].tolist() == [len(t) for t in batch["text"]]


def test_a_tokenizer_with_pad_is_told_to_pad(cache):
    class Tokenizer:
        def pad(self):
            raise NotImplementedError

        def __call__(self, texts, padding=False):
            ids = [[1] * len(t) for t in texts]
            longest = max(map(len, ids))
            return {"input_ids": [x + [0] * (longest - len(x)) for x in ids] if padding else ids}

    batch = Loader(cache, 8, features={"say": Feature("say", tokenizer=Tokenizer())}).batch(0)
    assert batch["say"].shape == (8, max(map(len, TEXTS)))


# ---- bad input ------------------------------------------------------------------------------------------------------

WRONG = {
    "an unknown stream": ({"x": Feature("lefft")}, "the cache has no stream 'lefft', only .*; did you mean 'left'"),
    "not a feature": ({"x": robocache.Window()}, r"features\['x'\] must be a Feature, got Window"),
    "none at all": ({}, "features must name at least one feature, got none"),
    "relative to nothing": (
        {"x": Feature("left", relative_to="rihgt")},
        "relative_to must be 'anchor', a feature or a stream, got 'rihgt'; did you mean 'right'",
    ),
    "relative to another width": (
        {"x": Feature("left", relative_to="place")},
        r"relative_to must have the same channels, left \(7,\), got 'place' with place \(3,\)",
    ),
    "a rotation of numbers": (
        {"x": Feature("left", rotation="6d")},
        r"rotation='6d' must have a quaternion of 4 channels, got none in left \(7,\); mark it, as in method=",
    ),
    "a quaternion of the wrong width": (
        {"x": Feature("left", rotation="6d", method=[(3, 6, "slerp_xyzw")])},
        "a quaternion must have 4 channels, got 3 of stream 'left'",
    ),
    "a range across streams": (
        {"x": Feature(["place", "left"], rotation="6d", method=[(2, 6, "slerp_xyzw")])},
        r"a quaternion must be in one stream, got \(2, 6, 'slerp_xyzw'\) for the row place \(3,\), left \(7,\)",
    ),
    "a range outside of the row": (
        {"x": Feature(["place", "left"], method=[(8, 12, "slerp_xyzw")])},
        r"method must have ranges \(begin, end, name\) within 10 channels, got \(8, 12, 'slerp_xyzw'\)",
    ),
    "text in a numeric feature": ({"x": Feature(["left", "say"])}, "stream 'say' is text, which cannot be joined"),
    "text that is normalized": ({"x": Feature("say", normalize="mean_std")}, "is text, which takes no normalize"),
    "a picture in a join": ({"x": Feature(["left", "cam"])}, "must be made of vectors, got stream 'cam' of kind image"),
    "a tokenizer of numbers": (
        {"x": Feature("left", tokenizer=len)},
        "tokenizer is for text, got a stream of kind vec",
    ),
    "ragged ids": (
        {"x": Feature("say", tokenizer=lambda texts: [[1] * len(t) for t in texts])},
        "must return the same number of ids for every text, got 8 to 17; pad them",
    ),
    "ids that are no numbers": ({"x": Feature("say", tokenizer=lambda texts: [["a"] for _ in texts])}, "whole numbers"),
    "a mask of floats": (
        {"x": Feature("say", tokenizer=lambda t: {"input_ids": [[1]] * len(t), "attention_mask": [[1.0]] * len(t)})},
        r"^Loader: attention_mask of the tokenizer of features\['x'\] must return a row of whole numbers for each",
    ),
    "unit of a vector": ({"x": Feature("left", normalize="unit")}, "must be one of mean_std, min_max, quantile or"),
    "numbers of another width": ({"x": Feature("left", normalize=([0, 0], 1))}, "must be 1 or 7 numbers, got 2"),
    "two things of one name": ({"x": Feature("left"), "x_is_pad": Feature("left")}, "has the name that the padding of"),
    "a name that is a number": ({3: Feature("left"), "3": Feature("right")}, "names of type str, got 3"),
    "a method of one of several": (
        {"a": Feature("left"), "x": Feature(["left", "grip"], method="slerp_xyzw")},
        r"^Loader: features\['x'\]: method must have channels in groups of four for slerp_xyzw, got 7 channels",
    ),
    "the mean at one moment": (
        {"a": Feature("left"), "x": Feature("fast", method="mean")},
        r"^Loader: features\['x'\]: method 'mean' must have several moments, .*, got one, where all would be padding",
    ),
    "relative to a mean at the anchor": (
        {"x": Feature("fast", steps=[1, 2], rate_hz=RATE, method="mean", relative_to="anchor")},
        r"features\['x'\]: relative_to must be read at the anchor by a method of single moments, got 'mean' of 'fast'",
    ),
    "relative to a feature of means": (
        {"x": Feature("left", relative_to="o"), "o": Feature("left", steps=[0, 1], rate_hz=RATE, method="rms")},
        r"features\['x'\]: relative_to must be read at the anchor by a method of single moments, got 'rms' of 'left'",
    ),
    "a rule for outside": (
        {"a": Feature("left"), "x": Feature("count", outside="nan")},
        r"^Loader: features\['x'\]: outside must be hold or error for an output that has no NaN",
    ),
    "a moment that is outside": (
        {"a": Feature("left"), "x": Feature("left", steps=[-400], rate_hz=RATE, outside="error")},
        r"must lie inside the rows of stream 'left' \(features\['x'\]\) where outside is error",
    ),
    "a tokenizer without a result": (
        {"x": Feature("say", tokenizer=lambda _: None)},
        "tokenizer of features\\['x'\\] must return a row of ids for each of 3 texts, got None",
    ),
    "ids of 64 bits": ({"x": Feature("say", tokenizer=lambda texts: [[2**63]] * len(texts))}, "ids below 2.*63, got 9"),
    "a transform without a result": ({"x": Feature("left", transform=lambda _: None)}, "entry of the batch, got None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_features_get_one_clear_line(cache, case):
    features, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as error:
        batch_of(cache, features)
    assert "\n" not in str(error.value)


ALONE = {
    "no stream": (lambda: Feature([]), "streams must be a name or a list of names"),
    "steps without a rate": (lambda: Feature("x", steps=range(3)), "rate_hz must be given with steps"),
    "steps and deltas": (lambda: Feature("x", steps=[0], deltas=[0.0], rate_hz=5), "steps take the place of"),
    "steps that are no numbers": (
        lambda: Feature("x", steps=[0.5], rate_hz=5),
        "steps must be a whole number, got 0.5",
    ),
    "a rotation": (lambda: Feature("x", rotation="rotvek"), "rotation must be one of .*; did you mean 'rotvec'"),
    "a normalization": (lambda: Feature("x", normalize="minmax"), "normalize must be .*; did you mean 'min_max'"),
    "a list of rotations": (lambda: Feature("x", rotation=["6d"]), r"rotation must be one of .*, got \['6d'\]"),
    "a mean of NaN": (lambda: Feature("x", normalize=(float("nan"), 1)), "mean of normalize must be finite, got nan"),
    "a std of 0": (lambda: Feature("x", normalize=(0.0, 0.0)), "std of normalize must be above 0 and finite"),
    "a dtype": (lambda: Feature("x", dtype="int8"), "dtype must be one of float16"),
    "a transform": (lambda: Feature("x", transform=3), "transform must be a function, got 3"),
    "a window": (lambda: Feature("x", past=1.0), "Feature: rate_hz must be given with past=1.0"),
    "features and windows": (
        lambda: robocache.What(windows={}, features={"x": Feature("x")}),
        "features take the place of windows, got both",
    ),
    "features and normalize": (
        lambda: robocache.What(features={"x": Feature("x")}, normalize="min_max"),
        "normalize must be a field of a Feature",
    ),
}


@pytest.mark.parametrize("case", ALONE)
def test_bad_fields_of_a_feature_get_one_clear_line(case):
    make, message = ALONE[case]
    with pytest.raises(ValueError, match=message):
        make()
