"""Batches of the loader: what is in them, against the oracle, from every tier."""

import loader_oracle as truth
import numpy as np
import pytest
import robocache
from loader_cases import SPECS, anchors_in, make_cache
from robocache import Loader, Window

torch = pytest.importorskip("torch")

WINDOWS = {
    "state": Window(past=0.03, future=0.05, rate_hz=100),
    "force": Window(past=0.03, future=0.05, rate_hz=100, latency=0.001),
    "small": Window(deltas=[-0.015, 0, 0.02], method="cubic"),
    "gripper": Window(past=0.02, rate_hz=50),
    "camera": Window(past=0.1, rate_hz=20, max_gap=0.03),
}
TIERS = [
    "memory",
    "mmap",
    pytest.param("gpu", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("loader") / "cache")


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("loader") / "cache", shard_bytes=1 << 20)


def as_numpy(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def options_of(window):
    gap = None if window.max_gap is None else round(window.max_gap * 1e9)
    return {"method": window.method, "latency": round(window.latency * 1e9), "max_gap": gap}


@pytest.mark.parametrize("tier", TIERS)
def test_batches_are_what_align_reads_around_the_anchors(cache, tier):
    assert cache.num_shards > 3
    device = "cuda" if tier == "gpu" else "cpu"
    loader = Loader(cache, 16, WINDOWS, seed=5, tier=tier, device=device, drop_last=False, return_index=True)
    assert loader.tier == tier
    anchors = truth.order(truth.anchors_of(0, cache, range(len(cache)), "state"), 5, 0)
    seen = []
    for batch in loader:
        expected = anchors[len(seen) : len(seen) + 16]
        assert anchors_in(batch) == expected
        seen += expected
        for name, window in WINDOWS.items():
            values, pad = truth.values_of([cache], expected, name, window.deltas_ns, **options_of(window))
            assert batch[name].dtype == getattr(torch, SPECS[name].dtype)
            np.testing.assert_array_equal(as_numpy(batch[f"{name}_is_pad"]), pad)
            rounded = 2**-8 if name == "small" else 1e-6
            np.testing.assert_allclose(as_numpy(batch[name]), values, rtol=rounded, atol=rounded)
    assert len(seen) == len(anchors)


@pytest.mark.parametrize("tier", TIERS)
def test_the_index_of_a_batch_is_the_callers(cache, tier):
    """Indices of several batches lie in one allocation: writing into one changes no other, earlier or later."""
    device = "cuda" if tier == "gpu" else "cpu"
    names = ("source_index", "episode_index", "anchor_ns")
    loader, other = (
        Loader(cache, 5, WINDOWS, seed=5, tier=tier, device=device, drop_last=False, return_index=True)
        for _ in range(2)
    )
    want = [{name: as_numpy(batch[name]).copy() for name in names} for batch in other]
    got = []
    for batch in loader:
        got.append({name: as_numpy(batch[name]).copy() for name in names})
        for name in names:
            batch[name].fill_(-7)
    assert len(got) > 20
    for step, (mine, its) in enumerate(zip(got, want, strict=True)):
        for name in names:
            np.testing.assert_array_equal(mine[name], its[name], f"{name} of step {step}")


def test_an_index_that_its_owner_moves_to_shared_memory_leaves_the_others_right(cache):
    options = {"seed": 5, "tier": "memory", "return_index": True}
    loader, other = (Loader(cache, 5, WINDOWS, **options) for _ in range(2))
    for step in range(2 * 16 + 3):
        batch, want = loader.batch(step % len(loader)), other.batch(step % len(loader))
        for name in ("source_index", "episode_index", "anchor_ns"):
            np.testing.assert_array_equal(batch[name], want[name], f"{name} of step {step}")
        if step % 7 == 3:
            batch["anchor_ns"].share_memory_()


@pytest.mark.parametrize("tier", TIERS[1:])
def test_every_tier_gives_the_same_bits(cache, one_shard, tier):
    device = "cuda" if tier == "gpu" else "cpu"
    options = {"normalize": {"state": "mean_std", "camera": "unit"}, "drop_last": False, "seed": 3}
    expected = Loader(cache, 7, WINDOWS, tier="memory", **options)
    for other in (cache, one_shard):
        loader = Loader(other, 7, WINDOWS, tier=tier, device=device, **options)
        expected.set_epoch(0)
        for mine, its in zip(expected, loader, strict=True):
            assert mine.keys() == its.keys()
            for name in mine:
                assert mine[name].dtype == its[name].dtype
                assert torch.equal(mine[name], its[name].cpu()), name


@pytest.mark.parametrize("way", ["mean_std", "min_max", "quantile"])
def test_the_way_back_from_a_normalized_batch(cache, way):
    plain = Loader(cache, 9, WINDOWS, seed=2)
    loader = Loader(cache, 9, WINDOWS, seed=2, normalize={"state": way}, dtype={"state": "float64"})
    offset, scale = loader.scale_of("state")
    assert offset.dtype == scale.dtype == torch.float64
    again = loader.batch(1)["state"] / scale + offset
    torch.testing.assert_close(again, plain.batch(1)["state"].double(), atol=1e-5, rtol=1e-5)
    offset += 1  # a copy
    assert not torch.equal(loader.scale_of("state")[0], offset)
    with pytest.raises(ValueError, match=r"stream must be one that is normalized, state, got 'camera'"):
        loader.scale_of("camera")
    with pytest.raises(ValueError, match="source must be from 0 to 0, got 1"):
        loader.scale_of("state", 1)


def test_the_order_of_a_hand_made_cache_without_shuffling(tmp_path):
    spec = robocache.StreamSpec("arm", "float32", (1,))
    writer = robocache.CacheWriter(tmp_path / "c", {"arm": spec})
    for e, values in enumerate([[0, 1, 2], [], [10, 11]]):
        rows = np.array(values, np.float32)[:, None]
        times = np.arange(len(values), dtype=np.int64) * 10**8
        writer.add(robocache.Episode(e, {"arm": robocache.EpisodeStream(spec, rows, times)}))
    loader = Loader(
        writer.commit(), 5, {"arm": Window(past=0.1, future=0.1, rate_hz=10)}, shuffle=False, return_index=True
    )
    (batch,) = loader
    assert batch["arm"][..., 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 2], [10, 10, 11], [10, 11, 11]]
    assert batch["arm_is_pad"].int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert batch["episode_index"].tolist() == [0, 0, 0, 2, 2]


def test_an_episode_without_rows_of_a_stream_is_padded(cache):
    loader = Loader(
        cache, 8, {"state": WINDOWS["state"]}, anchors="gripper", drop_last=False, return_index=True, seed=1
    )
    seen = 0
    for batch in loader:
        without = batch["episode_index"] == 3
        assert bool(batch["state_is_pad"][without].all())
        assert not bool(batch["state"][without].any())
        seen += int(without.sum())
    assert seen == len(cache.episode(3).streams["gripper"].times)


@pytest.mark.parametrize("hz", [30.0, 7.3, 1000.0])
def test_anchors_at_a_rate(cache, hz):
    loader = Loader(
        cache, 4, {"state": Window()}, anchors="force", anchor_hz=hz, drop_last=False, return_index=True, seed=2
    )
    anchors = truth.order(truth.anchors_of(0, cache, range(len(cache)), "force", hz), 2, 0)
    assert [a for batch in loader for a in anchors_in(batch)] == anchors


def test_lerobots_delta_timestamps_give_its_keys_and_its_padding(tmp_path):
    """LeRobot counts rows: delta * fps, rounded; beyond the episode the last row, and is_pad."""
    fps = 30
    specs = {
        "observation.state": robocache.StreamSpec("observation.state", "float32", (2,), rate_hz=fps),
        "observation.image": robocache.StreamSpec("observation.image", "uint8", (2, 2, 3), "image", rate_hz=fps),
        "action": robocache.StreamSpec("action", "float32", (1,), rate_hz=fps),
        "next.done": robocache.StreamSpec("next.done", "bool", (), rate_hz=fps),
    }
    writer = robocache.CacheWriter(tmp_path / "c", specs)
    lengths, rng, data = [40, 25], np.random.default_rng(0), []
    for e, n in enumerate(lengths):
        times = np.array([round(i / fps * 1e9) for i in range(n)])  # 33333333, 66666667: no row is a whole step apart
        values = {name: rng.integers(0, 2 if s.dtype == "bool" else 200, (n, *s.shape)) for name, s in specs.items()}
        values = {name: v.astype(specs[name].dtype) for name, v in values.items()}
        data.append(values)
        streams = {name: robocache.EpisodeStream(specs[name], values[name], times) for name in specs}
        writer.add(robocache.Episode(e, streams))
    delta_timestamps = {
        "observation.image": [-2 / fps, -1 / fps, 0.0],
        "action": [i / fps for i in range(-1, 16)],
    }
    loader = Loader(writer.commit(), 9, delta_timestamps=delta_timestamps, drop_last=False, return_index=True, seed=8)
    for batch in loader:
        assert set(batch) == {
            *specs,
            "observation.image_is_pad",
            "action_is_pad",
            "source_index",
            "episode_index",
            "anchor_ns",
        }
        for b, (_, e, t) in enumerate(anchors_in(batch)):
            row = round(t / 1e9 * fps)
            for name in specs:
                deltas = [round(d * fps) for d in delta_timestamps.get(name, [0.0])]
                wanted = [row + d for d in deltas]
                clamped = [min(max(i, 0), lengths[e] - 1) for i in wanted]
                expected = data[e][name][clamped]
                expected = expected[:, 0] if specs[name].shape == (1,) else expected  # LeRobot's are numbers
                if name in delta_timestamps:
                    assert batch[f"{name}_is_pad"][b].tolist() == [i != j for i, j in zip(wanted, clamped, strict=True)]
                else:
                    expected = expected[0]
                np.testing.assert_array_equal(batch[name][b].numpy(), expected)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float64"])
@pytest.mark.parametrize("way", ["mean_std", "min_max", "quantile"])
def test_normalized_values_are_exact(cache, way, dtype, tier):
    """(x - offset) * scale in float32 (float64 for float64 and wide integers), rounded once."""
    names = ["state", "small", "camera", "force", "gripper"]
    windows = {name: Window(deltas=[0.0, 0.01], method="previous") for name in names}
    device = "cuda" if tier == "gpu" else "cpu"
    dtypes = None if dtype is None else dict.fromkeys(names, dtype)
    loader = Loader(
        cache,
        6,
        windows,
        normalize=dict.fromkeys(names, way),
        dtype=dtypes,
        tier=tier,
        device=device,
        return_index=True,
    )
    batch = loader.batch(0)
    for name in names:
        spec = SPECS[name]
        rows, _ = truth.values_of([cache], anchors_in(batch), name, [0, 10**7], method="previous")
        channels = 3 if name == "camera" else int(np.prod(spec.shape))
        compute = np.float64 if spec.dtype in ("float64", "int64") else np.float32
        pairs = [truth.scale_of(cache.statistics[name], way, c) for c in range(channels)]
        offset, scale = (np.array(x).astype(compute) for x in zip(*pairs, strict=True))
        flat = rows.reshape(-1, channels).astype(compute)
        expected = torch.from_numpy((flat - offset) * scale).reshape(rows.shape)
        own = spec.dtype if spec.dtype in ("float32", "bfloat16", "float64") else "float32"
        expected = expected.to(getattr(torch, dtype or own))
        assert torch.equal(batch[name].cpu(), expected), name


def test_normalized_by_the_statistics_of_all_rows_the_mean_is_0_and_the_deviation_1(cache):
    loader = Loader(cache, 10**4, {"state": Window()}, normalize={"state": "mean_std"}, drop_last=False)
    (batch,) = loader
    values = batch["state"].double().reshape(-1, 3)
    assert torch.allclose(values.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(values.std(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5)


def test_a_channel_that_never_changes_becomes_0(tmp_path):
    spec = robocache.StreamSpec("arm", "float32", (2,))
    writer = robocache.CacheWriter(tmp_path / "c", {"arm": spec})
    rows = np.array([[7.3, 0], [7.3, 1]], np.float32)
    writer.add(robocache.Episode(0, {"arm": robocache.EpisodeStream(spec, rows, np.array([0, 10]))}))
    cache = writer.commit()
    for way in ("min_max", "quantile"):
        (batch,) = Loader(cache, 2, {"arm": Window()}, normalize={"arm": way}, shuffle=False)
        assert batch["arm"][:, 0, 0].abs().max() < 1e-6
        assert batch["arm"][:, 0, 1].tolist() == pytest.approx([-1, 1] if way == "min_max" else [-1.02, 1.02], abs=0.01)


def test_dtype_is_for_floating_streams_and_images_stay_bytes(cache):
    batch = Loader(cache, 4, WINDOWS, dtype=torch.float16).batch(0)
    dtypes = {name: str(batch[name].dtype).removeprefix("torch.") for name in WINDOWS}
    assert dtypes == {"state": "float16", "force": "float16", "small": "float16", "gripper": "int64", "camera": "uint8"}


def test_images_between_0_and_1(cache):
    batch = Loader(cache, 4, {"state": Window(), "camera": Window()}, normalize={"camera": "unit"}).batch(0)
    plain = Loader(cache, 4, {"state": Window(), "camera": Window()}).batch(0)
    assert batch["camera"].dtype == torch.float32
    assert torch.allclose(batch["camera"] * 255, plain["camera"].float(), rtol=1e-6)


def test_the_tier_is_chosen_by_size_and_named(cache):
    windows = {"state": Window()}
    roomy = Loader(cache, 4, windows)
    assert (roomy.tier, roomy.size_bytes > 0) == ("memory", True)
    fitting = Loader(cache, 4, windows, budget_bytes=roomy.size_bytes)
    assert fitting.tier == "memory"
    tight = Loader(cache, 4, windows, budget_bytes=roomy.size_bytes - 1)
    assert (tight.tier, tight.size_bytes) == ("mmap", 0)
    assert torch.equal(roomy.batch(0)["state"], tight.batch(0)["state"])


def test_a_loader_keeps_its_version_when_the_cache_is_replaced(tmp_path):
    cache = make_cache(tmp_path / "c", seed=1)
    loaders = [Loader(cache, 8, WINDOWS, tier=tier) for tier in ("memory", "mmap")]
    before = [loader.batch(0) for loader in loaders]
    make_cache(tmp_path / "c", seed=2)
    for loader, batch in zip(loaders, before, strict=True):
        again = loader.batch(0)
        assert all(torch.equal(again[name], batch[name]) for name in batch)
