"""Batches on CUDA: from every tier the same bits as on the CPU, whatever was asked for."""

import pytest
import torch
from cuda_tools import DEVICE, assert_same_bits, assert_same_values, needs_cuda
from loader_calls import CASES, MIXED, MORE, QUATERNION
from loader_cases import SPECS, make_cache
from robocache import Loader, Mixture, StreamSpec, Window
from robocache.loader.batches.store import TIERS

pytestmark = needs_cuda


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """In many shards, in one, and another one."""
    folder = tmp_path_factory.mktemp("cuda_loader")
    return [
        make_cache(folder / "many", specs=MORE),
        make_cache(folder / "one", specs=MORE, shard_bytes=1 << 24),
        make_cache(folder / "other", episodes=3, seed=9, specs=MORE),
    ]


def assert_same_batches(got, want, batches, methods=None):
    """``got`` on the GPU, ``want`` on the CPU; ``batches``: pairs of step and epoch."""
    assert len(got) == len(want)
    for step, epoch in batches:
        mine, its = got.batch(step, epoch), want.batch(step, epoch)
        assert mine.keys() == its.keys()
        for name in its:
            what = f"{name} of step {step} of epoch {epoch}"
            assert mine[name].dtype == its[name].dtype, what
            assert mine[name].device.type == DEVICE, what
            if methods is not None and name in methods:
                assert_same_values(mine[name], its[name], methods[name], what)
            else:
                assert_same_bits(mine[name], its[name], what)


def is_fused(options):
    """Whether a GPU reads such windows by itself: what `pinned` needs, and nothing else."""
    windows = options.get("windows", {})
    scaled = {name for name, way in options.get("normalize", {}).items() if way}
    scaled |= set(options["dtype"]) if isinstance(options.get("dtype"), dict) else set()
    return all(w.method in (None, "linear", "previous", "next", "nearest") for w in windows.values()) and all(
        MORE[name].dtype in ("float32", "float16", "bfloat16", "float64", "uint8", "uint16") for name in scaled
    )


def pairs_of(source, tier, options):
    options = {"drop_last": False, "seed": 11, **options}
    want = Loader(source, 7, tier="memory", **options)
    if tier == "pinned" and not is_fused(options):
        with pytest.raises(NotImplementedError, match="on CUDA"):
            Loader(source, 7, tier=tier, device=DEVICE, **options)
        tier = "gpu"
    got = Loader(source, 7, tier=tier, device=DEVICE, **options)
    assert (got.tier, want.tier) == (tier, "memory")
    return got, want


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("what", CASES)
def test_every_tier_gives_the_bits_of_the_cpu(caches, what, tier):
    options = CASES[what]
    methods = {"pose": QUATERNION} if what == "slerp" else None
    for cache in caches[:2]:
        got, want = pairs_of(cache, tier, options)
        assert_same_batches(got, want, [*((s, 0) for s in range(len(want))), (0, 5), (len(want) - 1, 5)], methods)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("what", ["several sets of moments", "mean_std as None", "LeRobot's windows", "with the index"])
def test_mixtures_too(caches, what, tier):
    mixture = Mixture([(caches[0], 1), (caches[2], 2.5), (caches[1], 0.7)], epoch_size=200)
    for source in (mixture, Mixture([(caches[0], 1)], epoch_size=200)):
        got, want = pairs_of(source, tier, CASES[what])
        assert_same_batches(got, want, [(s, e) for e in (0, 400) for s in range(len(want))])


@pytest.mark.parametrize("tier", TIERS)
def test_a_run_begun_on_the_cpu_goes_on_here(caches, tier):
    got, want = pairs_of(caches[0], tier, CASES["several sets of moments"])
    for _ in zip(range(3), want, strict=False):
        pass
    got.load_state_dict(want.state_dict())
    rest = list(got)
    assert len(rest) == len(want) - 3
    for step, batch in enumerate(rest, 3):
        for name, x in want.batch(step).items():
            assert_same_bits(batch[name], x, f"{name} of step {step}")


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("batch_size", [1, 256, 5000])
def test_batches_of_any_size(caches, batch_size, tier):
    options = {"windows": MIXED, "normalize": {"state": "min_max"}, "drop_last": False}
    mixture = Mixture([(caches[0], 1), (caches[1], 1)], epoch_size=6001)
    want = Loader(mixture, batch_size, **options, tier="memory")
    got = Loader(mixture, batch_size, **options, tier=tier, device=DEVICE)
    assert_same_batches(got, want, [(0, 0), (len(want) - 1, 0)])


@pytest.mark.parametrize("tier", ["gpu", "pinned"])
def test_batches_so_large_that_every_warp_has_samples_of_its_own(tmp_path, tier):
    """Windows on the rows, which are one copy each, at the edges of episodes and between rows."""
    specs = {name: SPECS[name] for name in ("state", "small")}
    cache = make_cache(tmp_path / "long", episodes=60, specs=specs, shard_bytes=1 << 26, seconds=(8, 12))
    window = Window(past=0.02, future=0.14, rate_hz=100)
    for windows in ({"state": window, "small": window}, {"small": Window(past=0.1, future=0.3, rate_hz=30)}):
        options = {"windows": windows, "seed": 4}
        want = Loader(cache, 50_000, tier="memory", **options)
        got = Loader(cache, 50_000, tier=tier, device=DEVICE, **options)
        assert_same_batches(got, want, [(0, 0), (0, 1)])


@pytest.mark.sanitize
@pytest.mark.parametrize("tier", ["gpu", "pinned"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wide_windows_that_are_copied_in_bulk_or_sorted_by_place(tmp_path, dtype, tier):
    specs = {"state": StreamSpec("state", dtype, (32,), rate_hz=100.0), "small": SPECS["small"]}
    cache = make_cache(tmp_path / "wide", episodes=90, specs=specs, shard_bytes=1 << 26, seconds=(0.1, 9))
    options = {"windows": {"state": Window(past=0.02, future=0.14, rate_hz=100)}, "seed": 4}
    want = Loader(cache, 33_000, tier="memory", **options)
    got = Loader(cache, 33_000, tier=tier, device=DEVICE, **options)
    assert_same_batches(got, want, [(0, 0), (0, 1)])


@pytest.mark.parametrize("tier", TIERS)
def test_an_empty_batch_has_the_dtypes_and_shapes_of_the_others(caches, tier):
    """The last step of an epoch has one sample for many ranks: not for the first of them."""
    count = Loader(caches[0], 1, {"state": Window()}).num_samples
    options = {"windows": MIXED, "rank": 0, "world_size": count - 1, "drop_last": False}
    loaders = [Loader(caches[0], 1, tier=t, device=d, **options) for t, d in ((tier, DEVICE), ("memory", "cpu"))]
    assert len(loaders[1]) == 2
    assert len(loaders[1].batch(1)["state"]) == 0
    assert_same_batches(*loaders, [(0, 0), (1, 0)])


@pytest.mark.sanitize
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "what", ["nearest", "several sets of moments", "quantile as bfloat16", "images between 0 and 1", "with the index"]
)
def test_a_few_batches_for_the_sanitizer(caches, what, tier):
    got, want = pairs_of(caches[0], tier, CASES[what])
    assert_same_batches(got, want, [(0, 0), (len(want) - 1, 1)])
    mixed = pairs_of(Mixture([(caches[0], 1), (caches[2], 1)], epoch_size=50), tier, CASES[what])
    assert_same_batches(*mixed, [(0, 0)])


def test_a_tier_that_does_not_fit_on_the_gpu_is_refused_with_the_bytes(caches):
    with pytest.raises(MemoryError, match=r"tier 'gpu' needs \d+ bytes, budget_bytes leaves 100"):
        Loader(caches[0], 4, MIXED, tier="gpu", device=DEVICE, budget_bytes=100)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("batch_size", [1, 127, 129, 5000])
def test_the_index_is_made_on_the_device_for_batches_of_any_size(caches, batch_size, tier):
    """Of one cache whose epochs are no passes, of several; by anchors that are rows and by a rate; in one launch and
    step by step (means); read one by one and ahead. The last batch has another size."""
    means = {"windows": {"state": Window(past=0.1, rate_hz=50, method="mean")}}
    cases = [{"windows": MIXED}, {"windows": MIXED, "anchor_hz": 37.0}, *([] if tier == "pinned" else [means])]
    for options in cases:
        for sources in ([caches[0]], [caches[1], caches[2]]):
            mixture = Mixture([(cache, 1 + i) for i, cache in enumerate(sources)], epoch_size=batch_size + 1500)
            told = {"seed": 3, "drop_last": False, "return_index": True, **options}
            want = Loader(mixture, batch_size, tier="memory", **told)
            got = Loader(mixture, batch_size, tier=tier, device=DEVICE, **told)
            assert_same_batches(got, want, [(0, 0), (len(want) - 1, 3)])
            for step, batch in zip(range(3), got, strict=False):
                for name in ("source_index", "episode_index", "anchor_ns"):
                    assert batch[name].device.type == DEVICE
                    assert_same_bits(batch[name], want.batch(step)[name], f"{name} of step {step}")


def test_the_index_never_waits_for_the_device(caches):
    loader = Loader(caches[0], 7, MIXED, tier="gpu", device=DEVICE, return_index=True)
    loader.batch(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [loader.batch(step) for step in range(len(loader))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    want = Loader(caches[0], 7, MIXED, tier="memory", return_index=True)
    for step, batch in enumerate(batches):
        assert_same_bits(batch["anchor_ns"], want.batch(step)["anchor_ns"], f"step {step}")


@pytest.mark.parametrize("return_index", [False, True])
@pytest.mark.parametrize("tier", ["gpu", "pinned"])
def test_a_graph_that_counts_its_steps_reads_batch_after_batch(caches, tier, return_index):
    """Through the end of an epoch, with nothing from the host but the replay."""
    mixtures = [Mixture([(caches[0], 1), (caches[2], 2)], epoch_size=70), Mixture([(caches[0], 1)], epoch_size=70)]
    for source in (caches[0], *mixtures):
        options = {"windows": MIXED, "seed": 5, "return_index": return_index}
        want = Loader(source, 7, tier="memory", **options)
        loader = Loader(source, 7, tier=tier, device=DEVICE, **options)
        step = torch.zeros((), dtype=torch.int64, device=DEVICE)
        loader.batch_at(step)  # memory for the graph's own pool comes later
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            batch = loader.batch_at(step)
            step += 1
        for n in range(2 * len(want) + 3):
            graph.replay()
            for name, x in want.batch(n % len(want), n // len(want)).items():
                assert_same_bits(batch[name], x, f"{name} of step {n}")


def test_the_index_in_a_graph_and_on_other_streams_has_memory_of_its_own(caches):
    """Tensors for the index are made for several batches at a time: never across streams, never for a graph."""
    names = ("source_index", "episode_index", "anchor_ns")
    loader = Loader(caches[0], 7, MIXED, tier="gpu", device=DEVICE, seed=5, return_index=True)
    want = Loader(caches[0], 7, MIXED, tier="memory", seed=5, return_index=True)
    kept = [loader.batch(0), loader.batch(1)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loader.batch(2)
    side = torch.cuda.Stream()
    for step in range(3, 8):
        with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
            kept.append(loader.batch(step))
    storages = {captured[names[0]].untyped_storage().data_ptr()}
    assert storages.isdisjoint(batch[names[0]].untyped_storage().data_ptr() for batch in kept)
    graph.replay()
    torch.cuda.synchronize()
    for step, batch in zip((0, 1, *range(3, 8), 2), (*kept, captured), strict=True):
        for name in names:
            assert_same_bits(batch[name], want.batch(step)[name], f"{name} of step {step}")


@pytest.mark.parametrize("tier", ["gpu", "pinned"])
def test_batches_in_a_graph(caches, tier):
    loader = Loader(caches[0], 7, MIXED, tier=tier, device=DEVICE, seed=5)
    want = Loader(caches[0], 7, MIXED, tier="memory", seed=5)
    loader.batch(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batches = [loader.batch(step) for step in range(len(loader))]
    for _ in range(3):
        graph.replay()
    for step, batch in enumerate(batches):
        for name, x in want.batch(step).items():
            assert_same_bits(batch[name], x, f"{name} of step {step}")
