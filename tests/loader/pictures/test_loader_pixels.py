"""An ``Image`` of pictures that are stored as pixels: the bits of the same pictures stored as PNG, JPEG or video."""

import pickle

import adapter_datasets
import numpy as np
import pytest
import robocache
import torch
from picture_cases import CAMERAS, HEIGHT, WIDTH
from picture_cases import encoded as encode
from robocache import CenterCrop, ColorJitter, Feature, Image, Loader, Mixture, RandomCrop, Window
from robocache.loader.batches.store import STAGED_BYTES
from video_cases import FILMS, FilmSource

NAMES = ("front", "gray", "flat", "alpha", *FILMS)
IMAGES = {
    "as they are": Image(),
    "size": Image(size=(17, 23)),
    "area": Image(size=(64, 60), filter="area"),
    "center": Image(crop=CenterCrop(0.5), layout="CHW"),
    "crop": Image(crop=RandomCrop(0.6), flip=0.5),
    "color": Image(color=ColorJitter(0.3, 0.2, 0.4), dtype="float16"),
    "normalized": Image(size=(8, 12), layout="CHW", dtype="bfloat16", normalize=((0.4, 0.5, 0.6), (0.2, 0.1, 0.3))),
    "all": Image(
        (24, 24), RandomCrop(0.6), 0.5, ColorJitter(0.3, 0.2, 0.4), "CHW", "float32", normalize="imagenet"
    ),
}  # fmt: skip
TIERS = ("memory", "mmap")


class Late(FilmSource):
    """The first episode has no pictures of ``gray``."""

    def episode(self, index):
        episode = super().episode(index)
        if index == 0:
            del episode.streams["gray"]
        return episode


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """The same dataset encoded and as pixels, in several shards."""
    folder = tmp_path_factory.mktemp("caches")
    source = Late(CAMERAS | FILMS)
    return {i: robocache.ingest(source, folder / i, images=i, shard_bytes=1) for i in ("keep", "raw")}


def windows(image, names=NAMES, **moments):
    moments = moments or {"past": 0.2, "future": 0.1, "rate_hz": 10}
    return {"arm": Window(), **{name: Window(image=image, **moments) for name in names}}


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype, key
        assert torch.equal(a[key], b[key]), key


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("case", IMAGES)
def test_pixels_give_the_bits_of_encoded_pictures(caches, tier, case):
    made = [Loader(caches[i], 7, windows(IMAGES[case]), seed=3, tier=tier, drop_last=False) for i in ("keep", "raw")]
    padded = 0
    for epoch in (0, 1):
        for step in range(len(made[0])):
            encoded, pixels = (loader.batch(step, epoch) for loader in made)
            same(pixels, encoded)
            assert pixels["alpha"].shape[2:] == IMAGES[case].shape((HEIGHT, WIDTH, 3))
            padded += int(pixels["front_is_pad"].sum())
    assert padded > 0


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "options",
    [
        {"episodes": [1, 3], "return_index": True},
        {"verify": "load", "anchor_hz": 20.0},
        {"edges": "inside", "skip_anchors": (1, 2)},
        {"split": ("train", 0.5), "shuffle": False},
        {"weights": {0: 2.0, 2: 0.5}},
    ],
)
def test_which_samples_there_are_changes_nothing(caches, tier, options):
    made = [Loader(caches[i], 5, windows(IMAGES["all"]), seed=3, tier=tier, **options) for i in ("keep", "raw")]
    for encoded, pixels in zip(*made, strict=True):
        same(pixels, encoded)


@pytest.mark.parametrize("method", ["previous", "next", "nearest"])
@pytest.mark.parametrize("more", [{}, {"max_gap": 0.05, "latency": 0.03}, {"outside_valid": True}])
def test_rows_are_chosen_as_those_of_encoded_pictures(caches, method, more):
    moments = {"deltas": [-0.33, -0.04, 0.0, 0.07], "method": method, **more}
    made = [Loader(caches[i], 5, windows(Image(), **moments), seed=1) for i in ("keep", "raw")]
    for encoded, pixels in zip(*made, strict=True):
        same(pixels, encoded)


def test_a_picture_is_the_row_that_a_window_without_an_image_reads(caches):
    plain, edited = (
        Loader(caches["raw"], 5, windows(image, ("front", "gray", "flat")), seed=2, tier="mmap").batch(1)
        for image in (None, Image())
    )
    same(edited, plain)


@pytest.mark.parametrize("tier", TIERS)
def test_ranks_resume_and_pickle_read_the_same_batches(caches, tier):
    def loader(**options):
        return Loader(caches["raw"], windows=windows(IMAGES["all"], ("flat",)), seed=7, tier=tier, **options)

    one = loader(batch_size=8)
    ranks = [loader(batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    expected = [*one]
    for step, parts in enumerate(zip(*ranks, strict=True)):
        same({key: torch.cat([part[key] for part in parts]) for key in parts[0]}, expected[step])
    first = loader(batch_size=8)
    _ = [batch for _, batch in zip(range(2), first, strict=False)]
    again = loader(batch_size=8)
    again.load_state_dict(first.state_dict())
    same(next(iter(again)), expected[2])
    same(pickle.loads(pickle.dumps(again)).batch(0, 0), expected[0])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("case", ["as they are", "all"])
def test_numpy_gives_the_bits_of_torch(caches, tier, case):
    chosen = windows(IMAGES[case], ("flat", "alpha", "gray"))
    expected = Loader(caches["raw"], 5, chosen, seed=3, tier=tier).batch(1)
    found = Loader(caches["raw"], 5, chosen, seed=3, tier=tier, framework="numpy").batch(1)
    for key, values in expected.items():
        assert isinstance(found[key], np.ndarray)
        np.testing.assert_array_equal(found[key], values.numpy(), key, strict=True)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("case", ["as they are", "all"])
def test_a_mixture_reads_caches_that_store_a_stream_in_different_ways(tmp_path, tier, case):
    cameras = {name: (CAMERAS | FILMS)[name] for name in ("front", "flat", *FILMS)}
    kept, other, raw = (
        robocache.ingest(FilmSource(cameras, seed=seed), tmp_path / f"{images}{seed}", images=images)
        for seed, images in ((0, "keep"), (1, "keep"), (1, "raw"))
    )
    chosen = windows(IMAGES[case], (*cameras,))
    mixed, alike = (
        Loader(Mixture([(kept, 1.0), (second, 2.0)]), 8, chosen, seed=4, tier=tier) for second in (raw, other)
    )
    for a, b in zip(mixed, alike, strict=True):
        same(a, b)
    assert mixed.video_decoders == alike.video_decoders
    with pytest.raises(ValueError, match=r"must have codec jpeg .* read it with image=robocache.Image\(\)"):
        Loader(Mixture([(kept, 1.0), (raw, 1.0)]), 8, {"front": Window()})


@pytest.mark.parametrize("tier", TIERS)
def test_a_stream_is_read_with_and_without_an_image(caches, tier):
    """What another feature of the stream is stays what it would be alone."""
    small = Image(size=(8, 8), layout="CHW")
    features = {
        "small": Feature("alpha", steps=[-1, 0], rate_hz=10, image=small),
        "whole": Feature("alpha"),
        "unit": Feature("alpha", normalize="unit", dtype="float16"),
        "floats": Feature("alpha", dtype="float32"),
        "arm": Feature("arm"),
    }
    together = Loader(caches["raw"], 5, features=features, seed=3, tier=tier).batch(0)
    for name, feature in features.items():
        alone = Loader(caches["raw"], 5, features={name: feature, "arm": features["arm"]}, seed=3, tier=tier).batch(0)
        assert torch.equal(together[name], alone[name]), name
    assert together["whole"].shape == (5, HEIGHT, WIDTH, 4)
    same(together, Loader(caches["keep"], 5, features=features, seed=3, tier=tier).batch(0))


@pytest.mark.parametrize("images", ["raw", "keep"])
def test_several_keys_of_a_stream_share_its_memory(caches, images):
    sizes = {}
    for count in (1, 3):
        features = {f"at {i}": Feature("flat", image=Image(size=(8 + i, 8))) for i in range(count)}
        made = Loader(caches[images], 5, features=features, anchors="arm", tier="memory")
        sizes[count] = made.size_bytes
        assert len({pictures.parts[0].data_ptr() for pictures in made._ragged}) == 1
        assert [made.batch(0)[name].shape[1] for name in features] == [8 + i for i in range(count)]
    assert sizes[1] == sizes[3]


def test_several_keys_of_a_mixture_have_their_own_edits(caches):
    features = {"a": Feature("flat", image=Image(size=(8, 9))), "b": Feature("flat", image=Image(layout="CHW"))}
    mixed, alike = (
        Loader(Mixture([(caches["keep"], 1.0), (caches[i], 1.0)]), 8, features=features, anchors="arm", seed=1)
        for i in ("raw", "keep")
    )
    for step in range(3):
        same(mixed.batch(step), alike.batch(step))


@pytest.mark.parametrize("normalize", ["imagenet", ((0.4, 0.5, 0.6), (0.2, 0.1, 0.3)), None])
def test_normalize_and_dtype_of_a_feature_are_those_of_its_image(caches, normalize):
    feature = Feature("flat", normalize=normalize, dtype="float32", image=Image(size=(8, 8)))
    found, encoded = (Loader(caches[i], 5, features={"x": feature}, seed=3).batch(0) for i in ("raw", "keep"))
    same(found, encoded)
    assert found["x"].dtype == torch.float32


def test_a_resident_tier_counts_and_holds_the_pixels_once(caches):
    made = Loader(caches["raw"], 5, windows(Image(), ("flat",)), tier="memory")
    rows = sum(len(episode.streams["flat"].times) for episode in caches["raw"])
    assert rows * HEIGHT * WIDTH * 3 < made.size_bytes < rows * (HEIGHT * WIDTH * 3 + 100) + 20_000
    (pictures,) = made._ragged
    assert pictures.parts[0].numel() == rows * HEIGHT * WIDTH * 3 < STAGED_BYTES
    with pytest.raises(MemoryError, match="needs"):
        Loader(caches["raw"], 5, windows(Image(), ("flat",)), tier="memory", budget_bytes=rows * HEIGHT * WIDTH)


@pytest.mark.parametrize("method", ["linear", "mean", [(0, 3, "previous")]])
@pytest.mark.parametrize("images", ["raw", "keep"])
def test_pictures_are_not_interpolated(caches, images, method):
    message = "method of 'flat' must be previous, next or nearest, because pictures are not interpolated, got"
    with pytest.raises(ValueError, match=message):
        Loader(caches[images], 5, windows(Image(), ("flat",), method=method))
    features = {"small": Feature("flat", image=Image()), "whole": Feature("flat", method=method)}
    with pytest.raises(ValueError, match="method of 'whole' must be previous"):
        Loader(caches[images], 5, features=features)


@pytest.mark.parametrize(
    ("dtype", "shape", "kind", "message"),
    [
        ("float32", (4, 5, 3), "vector", r"got float32 vector \(4, 5, 3\); ingest with dtype=\{'x': 'uint8'\}"),
        ("uint8", (4, 5, 3), "vector", r"got uint8 vector \(4, 5, 3\); store it as uint8 of kind 'image'"),
        ("uint8", (4, 5, 6), "image", r"got uint8 image \(4, 5, 6\)$"),
        ("uint16", (4, 5), "depth", r"got uint16 depth \(4, 5\)$"),
        ("float32", (3,), "vector", r"got float32 vector \(3,\)$"),
    ],
)
def test_other_streams_have_no_image(tmp_path, dtype, shape, kind, message):
    spec = robocache.StreamSpec("x", dtype, shape, kind)
    writer = robocache.CacheWriter(tmp_path / "c", {"x": spec})
    rows = robocache.EpisodeStream(spec, np.zeros((4, *shape), dtype), np.arange(4) * 10**7)
    writer.add(robocache.Episode(0, {"x": rows}))
    with pytest.raises(ValueError, match=rf"'x' has an image, which is for uint8 images .*, {message}"):
        Loader(writer.commit(), 2, {"x": Window(image=Image())})


@pytest.mark.parametrize("dataset", ["robomimic", "calvin", "zarr_v2_with_times", "zarr_zip"])
def test_datasets_whose_pictures_are_arrays_take_an_image(dataset, tmp_path, rng):
    """By ``decode_images`` of PNG of the pixels that the source returns."""
    for package in ("h5py", "zarr", "PIL"):
        pytest.importorskip(package)
    written = getattr(adapter_datasets, dataset)(tmp_path, rng)
    cache = robocache.ingest(written.path, tmp_path / "cache", **written.options)
    (name, spec), *_ = [(name, spec) for name, spec in cache.specs.items() if spec.kind == "image"]
    edits = {"size": (7, 9), "layout": "CHW", "dtype": "float32", "normalize": "imagenet"}
    rows = cache.episode(0).streams[name]
    window = Window(image=Image(crop=CenterCrop(1.0), **edits))
    made = Loader(cache, len(rows.times), {name: window}, anchors=name, shuffle=False, framework="numpy")
    pictures = [encode(pixels, "PNG") for pixels in rows.values]
    wanted = robocache.decode_images(pictures, channels=min(3, spec.shape[2]), **edits)
    np.testing.assert_array_equal(made.batch(0)[name][:, 0], wanted)


@pytest.mark.parametrize("tier", TIERS)
def test_a_flipped_bit_is_found_where_pixels_are_verified(tmp_path, tier):
    cache = robocache.ingest(FilmSource({"flat": CAMERAS["flat"]}), tmp_path / "cache", images="raw")
    (shard,) = [file for file in cache.files if file.suffix == ".safetensors"]
    bad = bytearray(shard.read_bytes())
    bad[-2000] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(bad)
    with pytest.raises(robocache.FormatError, match="checksum is wrong"):
        [*Loader(robocache.Cache(tmp_path / "cache"), 4, {"flat": Window(image=Image())}, tier=tier, verify="load")]
