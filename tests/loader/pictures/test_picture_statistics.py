"""Pictures that are normalized with statistics: those of the cache, or of a file that was saved beside the weights."""

import numpy as np
import pytest
import robocache
import torch
from picture_cases import CAMERAS, CameraSource
from robocache import Feature, Image, Loader, Mixture

NAMES = ("front", "gray", "flat", "alpha")
WAYS = {"mean_std": ("mean", "std"), "min_max": ("min", "max"), "quantile": ("q01", "q99")}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    return {
        (images, seed): robocache.ingest(CameraSource(CAMERAS, seed=seed), folder / f"{images}{seed}", images=images)
        for images in ("keep", "raw")
        for seed in (0, 1)
    }


def loader(cache, features, **options):
    return Loader(cache, 8, features=features, seed=3, anchors="arm", **options)


def expected(cache, name, way, pixels, channels):
    """By hand, from the numbers in the manifest."""
    told = cache.statistics[name]
    first, second = (np.array(told[which][:channels]) for which in WAYS[way])
    if way != "mean_std":
        first, second = (first + second) / 2, (second - first) / 2
    return (pixels[..., :channels].astype(np.float64) - first) / second


@pytest.mark.parametrize("images", ["keep", "raw"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tier", ["memory", "mmap"])
def test_pictures_are_normalized_with_the_statistics_of_the_cache(caches, images, way, tier):
    cache = caches[images, 0]
    with_image = {name: Feature(name, normalize=way, image=Image()) for name in NAMES}
    without = {f"{name} rows": Feature(name, normalize=way) for name in NAMES}
    pixels = {f"{name} pixels": Feature(name) for name in NAMES}
    batch = loader(cache, with_image | without | pixels, tier=tier).batch(0)
    for name in NAMES:
        shown, rows = batch[f"{name} pixels"].numpy(), batch[f"{name} rows"].numpy()
        assert batch[name].dtype == torch.float32
        for found, channels in ((batch[name].numpy(), min(3, shown.shape[-1])), (rows, shown.shape[-1])):
            wanted = expected(cache, name, way, shown, channels)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("image", [None, Image(size=(8, 8), layout="CHW", dtype="float16")])
def test_pixels_and_png_of_few_pictures_have_the_same_statistics(caches, image):
    features = {name: Feature(name, normalize="mean_std", image=image) for name in ("flat", "alpha")}
    found, encoded = (loader(caches[images, 0], features).batch(1) for images in ("raw", "keep"))
    for name in features:
        assert torch.equal(found[name], encoded[name])


def test_unit_with_an_image_is_from_0_to_1(caches):
    features = {"a": Feature("flat", normalize="unit", image=Image()), "b": Feature("flat", normalize="unit")}
    batch = loader(caches["keep", 0], features).batch(0)
    assert torch.equal(batch["a"], batch["b"])


def test_depth_is_normalized_with_its_statistics(caches):
    features = {"depth": Feature("depth", normalize="mean_std"), "pixels": Feature("depth")}
    for images in ("keep", "raw"):
        batch = loader(caches[images, 0], features).batch(0)
        told = caches[images, 0].statistics["depth"]
        wanted = (batch["pixels"].numpy().astype(np.float64) - told["mean"][0]) / told["std"][0]
        np.testing.assert_allclose(batch["depth"].numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("images", ["keep", "raw"])
@pytest.mark.parametrize("image", [None, Image(size=(8, 8))])
def test_saved_statistics_normalize_the_pictures_of_another_cache(caches, tmp_path, images, image):
    features = {"flat": Feature("flat", normalize="mean_std", image=image), "arm": Feature("arm")}
    train, other = caches[images, 0], caches[images, 1]
    made = loader(train, features)
    np.testing.assert_allclose(made.stats["flat"]["mean"], train.statistics["flat"]["mean"])
    made.save_stats(tmp_path / "stats.json")
    mean, std = (np.array(train.statistics["flat"][which]) / 255 for which in ("mean", "std"))
    given = {"flat": Feature("flat", normalize=(mean, std), image=image), "arm": Feature("arm")}
    found = loader(other, features, stats=tmp_path / "stats.json").batch(0)["flat"]
    torch.testing.assert_close(found, loader(other, given).batch(0)["flat"], rtol=0, atol=1e-5)
    assert not torch.allclose(found, loader(other, features).batch(0)["flat"], atol=1e-4)
    made = loader(train, {"arm": Feature("arm")})
    made.save_stats(tmp_path / "arm.json")
    with pytest.raises(ValueError, match="stats must have feature 'flat', got arm"):
        loader(other, features, stats=tmp_path / "arm.json")


def test_each_cache_of_a_mixture_has_its_own_and_an_image_has_one(caches):
    source = Mixture([(caches["raw", 0], 1.0), (caches["raw", 1], 1.0)])
    features = {"flat": Feature("flat", normalize="mean_std"), "pixels": Feature("flat")}
    batch = loader(source, features, return_index=True).batch(0)
    for i, number in enumerate(batch["source_index"].tolist()):
        wanted = expected(caches["raw", number], "flat", "mean_std", batch["pixels"][i].numpy(), 3)
        np.testing.assert_allclose(batch["flat"][i].numpy(), wanted, atol=1e-5)
    features = {"flat": Feature("flat", normalize="mean_std", image=Image())}
    with pytest.raises(ValueError, match=r"must be 'imagenet', 'unit' or \(mean, std\) for an Image and a Mixture"):
        loader(source, features)


def test_a_channel_that_never_changes_becomes_0(tmp_path):
    spec = robocache.StreamSpec("x", "uint8", (4, 5, 3), "image")
    writer = robocache.CacheWriter(tmp_path / "c", {"x": spec})
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 5, 3), dtype=np.uint8)
    pixels[..., 1] = 77
    writer.add(robocache.Episode(0, {"x": robocache.EpisodeStream(spec, pixels, np.arange(4) * 10**7)}))
    features = {"x": Feature("x", normalize="mean_std", image=Image())}
    batch = Loader(writer.commit(), 4, features=features).batch(0)["x"]
    np.testing.assert_allclose(batch[..., 1].numpy(), 0, atol=2e-5)
    assert abs(batch[..., 0].mean()) < 1e-4


def test_a_normalization_is_given_once(caches):
    image = Image(dtype="float32", normalize="imagenet")
    with pytest.raises(ValueError, match="normalize must be given once, got 'mean_std' and that of its Image"):
        loader(caches["keep", 0], {"flat": Feature("flat", normalize="mean_std", image=image)})
