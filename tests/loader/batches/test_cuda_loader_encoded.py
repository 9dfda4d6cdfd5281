"""Pictures on CUDA, encoded or stored as pixels: from every tier the same bits as on the CPU, decoded there or here."""

import pytest
import robocache
import torch
from cuda_tools import DEVICE, assert_same_bits, needs_cuda
from picture_cases import CAMERAS, CameraSource
from robocache import ColorJitter, Feature, Image, Loader, Mixture, RandomCrop, Window
from robocache.loader.batches.ring import one_ahead
from robocache.loader.batches.store import TIERS
from video_cases import FILMS, FilmSource

pytestmark = needs_cuda

NAMES = ("front", "gray", "flat", "alpha", "depth", *FILMS)
RANDOM = Image(
    size=(24, 24), crop=RandomCrop(0.6), flip=0.5, color=ColorJitter(0.3, 0.2, 0.4), layout="CHW", dtype="bfloat16",
    normalize="imagenet",
)  # fmt: skip
CASES = {
    "pixels": {name: Window(past=0.2, rate_hz=10) for name in NAMES},
    "edits": {name: Window(past=0.1, rate_hz=10, image=RANDOM) for name in ("front", "gray", "flat", "alpha", *FILMS)},
    "crop alone": {"front": Window(image=Image(crop=RandomCrop(0.5))), "arm": Window()},
}


class Source(FilmSource):
    """The second episode has no pictures of ``front``."""

    def episode(self, index):
        episode = super().episode(index)
        if index == 1:
            del episode.streams["front"]
        return episode


def ingested(folder, images, seed=0):
    """In one shard for each episode."""
    return robocache.ingest(Source(CAMERAS | FILMS, seed=seed), folder / images, images=images, shard_bytes=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return ingested(tmp_path_factory.mktemp("encoded"), "keep")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    return ingested(tmp_path_factory.mktemp("pixels"), "raw", seed=1)


def assert_same_batches(want, got):
    for step, epoch in ((0, 0), (len(want) - 1, 0), (1, 3)):
        mine, its = got.batch(step, epoch), want.batch(step, epoch)
        assert mine.keys() == its.keys()
        for name in its:
            assert mine[name].device.type == DEVICE
            assert mine[name].dtype == its[name].dtype
            assert_same_bits(mine[name], its[name], f"{name} of step {step} of epoch {epoch}")


@pytest.mark.sanitize
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{}, {"episodes": [0, 2, 3], "drop_last": False, "return_index": True}])
@pytest.mark.parametrize("stored", ["cache", "pixels"])
def test_every_tier_gives_the_bits_of_the_cpu(request, stored, tier, case, options):
    windows = {"arm": Window(), **CASES[case]}
    source = request.getfixturevalue(stored)
    want = Loader(source, 6, windows, seed=5, tier="memory", **options)
    assert_same_batches(want, Loader(source, 6, windows, seed=5, device=DEVICE, tier=tier, **options))


@pytest.mark.parametrize("tier", TIERS)
def test_a_mixture_of_encoded_pictures_and_pixels_has_the_bits_of_the_cpu(cache, pixels, tier):
    windows = {"arm": Window(), **CASES["edits"]}
    source = Mixture([(cache, 1.0), (pixels, 2.0)])
    want = Loader(source, 6, windows, seed=5, tier="memory")
    assert_same_batches(want, Loader(source, 6, windows, seed=5, device=DEVICE, tier=tier))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["flat", "alpha", "gray"])
def test_a_stream_of_pixels_with_and_without_an_image_has_the_bits_of_the_cpu(pixels, tier, name):
    features = {
        "small": Feature(name, steps=[-1, 0], rate_hz=10, image=RANDOM),
        "whole": Feature(name),
        "unit": Feature(name, normalize="unit", dtype="float16"),
    }
    want = Loader(pixels, 6, features=features, seed=5, tier="memory")
    assert_same_batches(want, Loader(pixels, 6, features=features, seed=5, device=DEVICE, tier=tier))


@pytest.mark.parametrize("tier", TIERS)
def test_normalized_pictures_have_the_bits_of_the_cpu(cache, tier):
    windows = {"front": Window(), "depth": Window(), "arm": Window()}
    options = {"normalize": "unit", "seed": 5}
    want = Loader(cache, 6, windows, tier="memory", **options).batch(0)
    got = Loader(cache, 6, windows, device=DEVICE, tier=tier, **options).batch(0)
    for name in want:
        assert_same_bits(got[name], want[name], name)


def test_the_gpu_tier_holds_bytes_on_the_gpu(cache):
    loader = Loader(cache, 6, {"front": Window()}, device=DEVICE, tier="gpu")
    (pictures,) = loader._ragged
    assert pictures.parts[0].device.type == DEVICE
    kept = sum(episode.streams["front"].pictures.nbytes for episode in cache)
    assert pictures.parts[0].numel() == kept


def test_the_gpu_tier_holds_pixels_on_the_gpu_once(pixels):
    loader = Loader(pixels, 6, {"flat": Window(image=RANDOM)}, device=DEVICE, tier="gpu")
    (pictures,) = loader._ragged
    assert pictures.parts[0].device.type == DEVICE
    assert pictures.parts[0].numel() == sum(episode.streams["flat"].values.nbytes for episode in pixels)


@pytest.mark.parametrize("stored", ["cache", "pixels"])
@pytest.mark.parametrize("tier", ["gpu", "pinned"])
def test_memory_stays_the_same_over_many_batches(request, stored, tier):
    loader = Loader(request.getfixturevalue(stored), 6, {"front": Window(image=RANDOM)}, device=DEVICE, tier=tier)
    loader.batch(0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for step in range(200):
        loader.batch(step % len(loader), step)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("stored", ["cache", "pixels"])
def test_a_batch_stays_as_it_is_while_the_next_one_is_made(request, stored, tier):
    """The consumer's work on a batch is still waiting when the next batch is computed on the loader's own stream."""
    loader = Loader(
        request.getfixturevalue(stored), 6, {"front": Window(image=RANDOM), "arm": Window()}, device=DEVICE, tier=tier
    )
    read = []
    for batch in loader:
        torch.cuda._sleep(20_000_000)
        read.append({name: x.clone() for name, x in batch.items()})
        del batch
    for step, got in enumerate(read):
        for name, want in loader.batch(step, 0).items():
            assert_same_bits(got[name], want, f"{name} of step {step}")


def test_an_error_is_raised_where_its_batch_is_taken():
    def batches():
        yield from ({"x": torch.full((3,), i, device=DEVICE)} for i in range(2))
        raise ValueError("the third")

    ahead = one_ahead(batches(), torch, torch.device(DEVICE))
    assert [next(ahead)["x"].tolist(), next(ahead)["x"].tolist()] == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(ValueError, match="the third"):
        next(ahead)


def test_a_cache_in_one_shard_of_one_stream_is_read(tmp_path):
    source = CameraSource({"front": CAMERAS["front"]})
    cache = robocache.ingest(source, tmp_path / "cache", images="keep")
    batches = [*Loader(cache, 4, {"front": Window()}, device=DEVICE)]
    expected = [*Loader(cache, 4, {"front": Window()}, tier="memory")]
    for got, want in zip(batches, expected, strict=True):
        assert_same_bits(got["front"], want["front"], "front")
