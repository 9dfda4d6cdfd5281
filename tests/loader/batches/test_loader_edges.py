"""Loaders at the edges: mixtures of one, workers that live on, constant channels, rates that do not divide a second."""

import pickle

import numpy as np
import pytest
from loader_processes import run
from robocache import CacheWriter, Episode, EpisodeStream, Feature, FormatError, Loader, Mixture, StreamSpec, Window

torch = pytest.importorskip("torch")

ARM = {"arm": Window()}
TIERS = ("memory", "mmap")


def cache_of(folder, values, times=None, dtype="float32"):
    values = np.asarray(values, dtype).reshape(len(values), -1)
    spec = StreamSpec("arm", dtype, values.shape[1:])
    writer = CacheWriter(folder, {"arm": spec})
    times = np.arange(len(values)) * 10**7 if times is None else np.asarray(times)
    writer.add(Episode(0, {"arm": EpisodeStream(spec, values, times)}))
    return writer.commit()


def numbers(batches):
    return [int(x) for batch in batches for x in batch["arm"].flatten()]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("epoch_size", [1, 5, 7, 9, 10, 20, 23])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_mixture_of_one_goes_on_where_the_last_epoch_ended(tmp_path, epoch_size, shuffle, tier):
    cache = cache_of(tmp_path / "c", np.arange(10))
    options = {"shuffle": shuffle, "tier": tier, "drop_last": False}
    loader = Loader(Mixture([(cache, 1)], epoch_size=epoch_size), 4, ARM, **options)
    drawn = [x for _ in range(20) for x in numbers(loader)]
    assert len(drawn) == 20 * epoch_size
    passes = [drawn[i : i + 10] for i in range(0, len(drawn) - 9, 10)]
    assert all(sorted(one) == [*range(10)] for one in passes)
    if shuffle and len(passes) > 1:
        assert passes[0] != passes[1]
    if not shuffle:
        assert all(one == [*range(10)] for one in passes)


def test_a_mixture_of_one_whose_epoch_is_a_pass_reads_as_its_cache(tmp_path):
    cache = cache_of(tmp_path / "c", np.arange(10))
    alone, mixed = (Loader(source, 5, ARM, seed=3) for source in (cache, Mixture([(cache, 2.5)])))
    for _ in range(3):
        assert numbers(alone) == numbers(mixed)


def test_steps_in_a_tensor_count_through_the_epochs_of_a_mixture_of_one(tmp_path):
    loader = Loader(Mixture([(cache_of(tmp_path / "c", np.arange(10)), 1)], epoch_size=14), 7, ARM)
    told = [numbers([loader.batch_at(torch.tensor(step))]) for step in range(6)]
    assert told == [numbers([loader.batch(step % 2, step // 2)]) for step in range(6)]


@pytest.mark.parametrize("steps_read", [1, 3, 5])
def test_workers_that_live_on_go_to_the_next_epoch_together(tmp_path, steps_read):
    """However far each of them had come when a loop was left."""
    code = """
loader = Loader(Cache(PATH), 4, {"arm": Window()})
def numbers(batches): return [int(x) for batch in batches for x in batch["arm"].flatten()]
data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=2, persistent_workers=True)
batches = iter(data)
for _ in range(STEPS_READ):
    next(batches)
del batches
read = [numbers(data) for epoch in (1, 2)]
print(json.dumps([read, [numbers(loader.batch(step, epoch) for step in range(7)) for epoch in (1, 2)]]))
"""
    cache = cache_of(tmp_path / "c", np.arange(28))
    read, expected = run(code, PATH=str(cache.path), STEPS_READ=steps_read)
    assert read == expected


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
@pytest.mark.parametrize("way", ["mean_std", "min_max", "quantile"])
@pytest.mark.parametrize("constant", [0.1, 1e-30, 3.3e5])
def test_a_channel_that_never_changes_is_only_shifted(tmp_path, dtype, way, constant):
    if dtype == "float16" and constant > 1e4:
        pytest.skip("not a float16")
    for count in (3, 7, 10):
        loader = Loader(
            cache_of(tmp_path / f"{count}", [constant] * count, None, dtype), count, ARM, normalize={"arm": way}
        )
        assert loader.batch(0)["arm"].abs().max() == 0
        assert loader.scale_of("arm")[1].tolist() == [1.0]


@pytest.mark.parametrize("tier", TIERS)
def test_every_integer_of_64_bits_is_read(tmp_path, tier):
    values = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    batch = Loader(cache_of(tmp_path / "c", values, None, "uint64"), 4, ARM, shuffle=False, tier=tier).batch(0)
    assert batch["arm"].dtype == torch.uint64
    assert batch["arm"].flatten().tolist() == values.tolist()


def test_one_dtype_for_all_is_that_of_normalized_integers_too(tmp_path):
    cache = cache_of(tmp_path / "c", np.arange(8), None, "int32")
    for dtype in (torch.float64, torch.float16):
        assert Loader(cache, 2, ARM, normalize={"arm": "min_max"}, dtype=dtype).batch(0)["arm"].dtype == dtype
    assert Loader(cache, 2, ARM, dtype=torch.float64).batch(0)["arm"].dtype == torch.int32


def test_the_processor_has_one_number_only(tmp_path):
    cache = cache_of(tmp_path / "c", np.arange(8))
    assert sorted(numbers(Loader(cache, 2, ARM, device="cpu:0"))) == [*range(8)]


@pytest.mark.parametrize("hz", [7, 13, 26, 28, 30, 45, 50, 90, 180, 1000 / 3, 29.97])
def test_moments_at_a_rate_reach_the_last_row(tmp_path, hz):
    for k in (1, 9, 63, 810):
        last = round(k * 1e9 / hz)
        for end, expected in ((last, k + 1), (last - 1000, k + 1), (last - 1001, k), (last + 1, k + 1)):
            cache = cache_of(tmp_path / f"{k}-{end}", [0, 1], [5, 5 + end])
            assert Loader(cache, 1, ARM, anchor_hz=hz).num_anchors == expected


def test_the_state_of_other_rows_is_refused_where_no_fingerprint_tells(tmp_path):
    state = Loader(cache_of(tmp_path / "c", np.full(8, 1.0)), 2, ARM).state_dict()
    Loader(cache_of(tmp_path / "same", np.full(8, 1.0)), 2, ARM).load_state_dict(state)
    other = Loader(cache_of(tmp_path / "c", np.full(8, 2.0)), 2, ARM)
    with pytest.raises(ValueError, match="fingerprint"):
        other.load_state_dict(state)


def test_a_cache_that_was_deleted_and_made_anew_is_not_the_one_that_was_pickled(tmp_path):
    cache = cache_of(tmp_path / "c", np.full(8, 1.0))
    kept = pickle.dumps(Loader(cache, 2, ARM))
    for path in sorted((tmp_path / "c").iterdir()):
        path.unlink()
    (tmp_path / "c").rmdir()
    assert cache_of(tmp_path / "c", np.full(8, 2.0)).generation == cache.generation  # which does not tell them apart
    with pytest.raises(FormatError, match="is gone"):
        pickle.loads(kept)


def test_a_dict_that_changes_later_changes_no_copy(tmp_path):
    windows = dict(ARM)
    loader = Loader(cache_of(tmp_path / "c", np.arange(8)), 2, windows)
    windows["other"] = Window()
    assert [*pickle.loads(pickle.dumps(loader)).batch(0)] == [*loader.batch(0)]


def test_weights_are_numbers_of_any_kind(tmp_path):
    caches = [cache_of(tmp_path / name, np.arange(8)) for name in "ab"]
    for weights in (np.array([1, 3]), torch.tensor([0.25, 0.75]), [np.float32(1), np.int64(3)], [5e307, 1.5e308]):
        assert Mixture(caches, weights).quotas() == [16384, 49152]


@pytest.mark.parametrize("tier", TIERS)
def test_a_window_longer_than_every_episode_repeats_the_edge(tmp_path, tier):
    cache = cache_of(tmp_path / "c", np.arange(5))
    for given in ({"windows": {"arm": Window(past=0.02, future=0.97, rate_hz=100)}},
                  {"features": {"arm": Feature("arm", steps=range(-2, 98), rate_hz=100)}},
                  {"delta_timestamps": {"arm": [k / 100 for k in range(-2, 98)]}}):  # fmt: skip
        batch = next(iter(Loader(cache, 5, shuffle=False, tier=tier, **given)))
        rows = np.arange(5)[:, None] + np.arange(-2, 98)
        np.testing.assert_array_equal(batch["arm"].reshape(5, 100), rows.clip(0, 4))
        np.testing.assert_array_equal(batch["arm_is_pad"], (rows < 0) | (rows > 4))


def test_the_time_between_episodes_is_no_time_between_rows(tmp_path):
    """Episodes of one and of two rows, of a rate that no source declares."""
    specs = {"arm": StreamSpec("arm", "float32", (1,)), "hand": StreamSpec("hand", "float32", (1,), rate_hz=10)}
    writer = CacheWriter(tmp_path / "c", specs)
    for e in range(6):
        times = e * 10**13 + np.arange(1 + (e < 2)) * 10**8
        rows = np.full((len(times), 1), e, np.float32)
        writer.add(Episode(e, {name: EpisodeStream(spec, rows, times) for name, spec in specs.items()}))
    cache = writer.commit()
    batch = Loader(cache, 8, delta_timestamps={"arm": [0.0, 0.1]}, shuffle=False).batch(0)
    assert batch["arm_is_pad"][:, 1].tolist() == [False, True, False, True, *[True] * 4]
    joined = Loader(cache, 8, features={"x": Feature(["arm", "hand"])})  # of one rate
    assert joined.batch(0)["x"].shape == (8, 2)
