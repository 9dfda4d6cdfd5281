"""Encoded pictures in batches: the bits of a cache of pixels on every tier; edits that depend on the position alone."""

import io
import pickle

import numpy as np
import pytest
import robocache
import torch
from picture_cases import CAMERAS, HEIGHT, WIDTH
from PIL import Image as Pillow
from robocache import CenterCrop, ColorJitter, Image, Loader, Order, RandomCrop, Window
from robocache.loader.batches import video
from robocache.loader.batches.arrays import arrays_of
from robocache.loader.samples import Samples
from video_cases import FILMS, FilmSource

NAMES = ("front", "gray", "flat", "alpha", "depth", *FILMS)
WINDOWS = {"arm": Window(), **{name: Window(past=0.2, rate_hz=10) for name in NAMES}}
RANDOM = Image(
    size=(24, 24), crop=RandomCrop(0.6), flip=0.5, color=ColorJitter(0.3, 0.2, 0.4), layout="CHW", dtype="float32"
)
TIERS = ("memory", "mmap")


class Late(FilmSource):
    """The first episode has no pictures of ``gray``, the others begin late."""

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


def equal(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype, key
        assert torch.equal(*(x.view(torch.int16) if x.dtype == torch.uint16 else x for x in (a[key], b[key]))), key


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": "unit"},
        {"normalize": {"front": "unit", "depth": "unit"}, "dtype": "float16"},
        {"dtype": {"front": "float32"}, "return_index": True},
        {"episodes": [1, 3], "drop_last": False, "split": None},
        {"verify": "load"},
    ],
)
def test_batches_are_those_of_a_cache_of_pixels(caches, tier, options):
    encoded, pixels = (Loader(caches[images], 5, WINDOWS, seed=3, tier=tier, **options) for images in ("keep", "raw"))
    assert len(encoded) == len(pixels)
    for a, b in zip(encoded, pixels, strict=True):
        equal(a, b)


@pytest.mark.parametrize("tier", TIERS)
def test_delta_timestamps_read_encoded_pictures(caches, tier):
    deltas = {"front": [-0.1, 0.0], "arm": [0.0]}
    for a, b in zip(
        *(Loader(caches[images], 4, delta_timestamps=deltas, tier=tier) for images in ("keep", "raw")), strict=True
    ):
        equal(a, b)


def test_a_resident_tier_holds_bytes(caches):
    encoded, pixels = (Loader(caches[images], 4, WINDOWS, tier="memory") for images in ("keep", "raw"))
    assert encoded.size_bytes < pixels.size_bytes
    with pytest.raises(MemoryError, match="needs"):
        Loader(caches["keep"], 4, WINDOWS, tier="memory", budget_bytes=1000)


def loader(cache, image=RANDOM, **options):
    cameras = ("front", *FILMS)
    windows = {"arm": Window(), **{name: Window(past=0.1, rate_hz=10, image=image) for name in cameras}}
    return Loader(cache, options.pop("batch_size", 4), windows, **{"seed": 7, "tier": "mmap", **options})


def epoch_of(loaders):
    """The batches of an epoch with the parts of all ranks put together."""
    steps = zip(*loaders, strict=True)
    return [{key: torch.cat([part[key] for part in parts]) for key in parts[0]} for parts in steps]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("tier", TIERS)
def test_edits_are_the_same_for_any_number_of_ranks(caches, ranks, tier):
    one = epoch_of([loader(caches["keep"], batch_size=8)])
    many = epoch_of(
        [loader(caches["keep"], batch_size=8 // ranks, rank=r, world_size=ranks, tier=tier) for r in range(ranks)]
    )
    for a, b in zip(one, many, strict=True):
        equal(a, b)


def test_edits_are_the_same_after_resuming(caches):
    first = loader(caches["keep"])
    batches = [batch for _, batch in zip(range(3), first, strict=False)]
    state = first.state_dict()
    again = loader(caches["keep"])
    again.load_state_dict(state)
    equal(next(iter(again)), loader(caches["keep"]).batch(len(batches), 0))
    equal(pickle.loads(pickle.dumps(again)).batch(1), batches[1])


def test_edits_do_not_depend_on_threads_or_other_streams(caches):
    expected = loader(caches["keep"]).batch(0)
    before = robocache.num_threads()
    try:
        robocache.set_num_threads(1)
        equal(loader(caches["keep"]).batch(0), expected)
    finally:
        robocache.set_num_threads(before)
    windows = {"flat": Window(image=RANDOM), "arm": Window(), "front": Window(past=0.1, rate_hz=10, image=RANDOM)}
    batch = Loader(caches["keep"], 4, windows, seed=7, anchors="arm").batch(0)
    assert torch.equal(batch["front"], expected["front"])


def test_edits_differ_between_epochs_seeds_and_samples_but_not_moments(caches):
    same = Image(crop=RandomCrop(0.5), flip=0.5)
    windows = {"front": Window(deltas=[0.0, 0.0, 0.0], image=same)}
    made = Loader(caches["keep"], 8, windows, seed=1, shuffle=False, drop_last=False)
    batch = made.batch(0)["front"]
    assert torch.equal(batch[:, 0], batch[:, 1])
    assert torch.equal(batch[:, 0], batch[:, 2])
    assert not torch.equal(batch, made.batch(0, epoch=1)["front"])
    other = Loader(caches["keep"], 8, windows, seed=2, shuffle=False, drop_last=False)
    assert not torch.equal(batch, other.batch(0)["front"])


def test_a_center_crop_and_a_resize_are_those_of_decode_images(caches):
    image = Image(size=(16, 20), crop=CenterCrop(0.5), dtype="float32", normalize="imagenet", layout="CHW")
    windows = {"front": Window(image=image)}
    batch = Loader(caches["keep"], 4, windows, shuffle=False, anchors="front").batch(0)["front"]
    stream = caches["keep"].episode(0).streams["front"]
    top, left = HEIGHT // 4, WIDTH // 4
    expected = robocache.decode_images(
        [*stream.pictures][:4], size=(16, 20), crop=(left, top, left + WIDTH // 2, top + HEIGHT // 2),
        dtype="float32", normalize="imagenet", layout="CHW",
    )  # fmt: skip
    np.testing.assert_array_equal(batch[:, 0].numpy(), expected)


def test_random_crops_lie_in_the_picture_and_reach_its_edges():
    from robocache.loader.order.draws import draws

    drawn = draws(0, 0, "cam", np.arange(10_000), 6)
    assert drawn.shape == (10_000, 6)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_array_equal(drawn[5000:5010], draws(0, 0, "cam", np.arange(5000, 5010), 6))
    assert not np.array_equal(drawn, draws(0, 0, "cam2", np.arange(10_000), 6))


def test_an_episode_without_pictures_gives_black_ones(caches):
    image = Image(dtype="float32", normalize="imagenet", layout="CHW")
    windows = {"front": Window(image=image), "gray": Window(image=Image(layout="CHW")), "arm": Window()}
    batch = Loader(caches["keep"], 4, windows, shuffle=False).batch(0)
    assert batch["gray_is_pad"].all()
    assert batch["gray"].shape == (4, 1, 1, HEIGHT, WIDTH)
    assert not batch["gray"].any()
    assert not batch["front_is_pad"].any()


def test_a_missing_picture_has_the_bits_of_a_black_one(caches):
    edits = {"dtype": "float32", "normalize": ((0.2, 0.5, 0.4), (0.6, 0.7, 0.1)), "layout": "CHW"}
    batch = Loader(caches["keep"], 4, {"gray": Window(image=Image(**edits)), "arm": Window()}, shuffle=False).batch(0)
    file = io.BytesIO()
    Pillow.new("L", (WIDTH, HEIGHT)).save(file, "PNG")
    black = robocache.decode_images([file.getvalue()], channels=1, **edits)
    np.testing.assert_array_equal(batch["gray"][0, 0].numpy(), black[0])


@pytest.mark.skipif(not FILMS, reason="no PyAV")
@pytest.mark.parametrize("most_bytes", [1, 30_000])
def test_frames_are_decoded_in_parts_where_memory_is_short(caches, monkeypatch, most_bytes):
    expected = loader(caches["keep"]).batch(1)
    monkeypatch.setattr(video, "DECODED_BYTES", most_bytes)
    equal(loader(caches["keep"]).batch(1), expected)


def test_a_mixture_reads_encoded_pictures(tmp_path):
    cameras = {"front": CAMERAS["front"], **FILMS}
    sources = [FilmSource(cameras, seed=seed) for seed in (0, 1)]
    mixtures = {}
    for images in ("keep", "raw"):
        made = [robocache.ingest(s, tmp_path / f"{images}{i}", images=images) for i, s in enumerate(sources)]
        mixtures[images] = robocache.Mixture([(cache, 1.0) for cache in made])
    windows = {**{name: Window(past=0.1, rate_hz=10) for name in cameras}, "arm": Window()}
    for options in ({}, {"normalize": dict.fromkeys(cameras, "mean_std")}):
        for tier in TIERS:
            loaders = [Loader(mixtures[i], 8, windows, tier=tier, **options) for i in ("keep", "raw")]
            for a, b in zip(*loaders, strict=True):
                equal(a, b)
    mixed = robocache.Mixture([(tmp_path / "keep0", 1.0), (tmp_path / "raw1", 1.0)])
    with pytest.raises(ValueError, match=r"stream 'front' of sources\[1\] must have codec jpeg like that of the first"):
        Loader(mixed, 8, windows)


def test_numbers_that_are_read_on_the_host_are_those_of_the_reader(caches):
    """The gpu and pinned tiers need them there, to decode without waiting for the device."""
    what, order = robocache.What(WINDOWS), Order(seed=3, episodes=[0, 2, 3])
    made = Loader(caches["keep"], 5, what=what, order=order, tier="memory")
    host = Samples(caches["keep"], what, order, arrays_of("torch", "cpu")).open_numbers("gpu")
    at = made._order(2)
    read, numbers = made._reader.read(at, 4, 9), host.read(at, 4, 9)
    places = {pictures.name: pictures.place for pictures in made._ragged}
    assert [c.key.name for c in host.columns] == [*places]
    for i, place in enumerate(places.values()):
        assert torch.equal(numbers[2 * i], read[place])
    assert made._numbers is None


def test_workers_read_the_same_batches(caches):
    expected = [*loader(caches["keep"])]
    data = torch.utils.data.DataLoader(loader(caches["keep"]).as_dataset(), batch_size=None, num_workers=2)
    for a, b in zip(data, expected, strict=True):
        equal(a, b)


def test_one_picture_is_what_pillow_decodes(caches):
    batch = Loader(caches["keep"], 1, {"front": Window()}, order=Order(shuffle=False)).batch(0)
    picture = caches["keep"].episode(0).streams["front"].pictures.picture(0)
    np.testing.assert_array_equal(batch["front"][0, 0].numpy(), np.asarray(Pillow.open(io.BytesIO(picture))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image(size=(0, 4)), r"Image: size must be \(height, width\) of at least 1 pixel, got \(0, 4\)"),
        (lambda: Image(size=(65536, 4)), r"Image: size must be from 1 to 65535 pixels, got \(65536, 4\)"),
        (lambda: Image(dtype="float32", normalize=(0.5, 0)), "Image: normalize must have positive deviations, got 0"),
        (lambda: Image(size=224), r"Image: size must be \(height, width\) in whole pixels, got 224"),
        (lambda: Image(flip=2), "Image: flip must be a probability from 0 to 1, got 2"),
        (lambda: Image(crop=0.9), r"Image: crop must be CenterCrop\(scale\), RandomCrop\(scale\) or None, got 0.9"),
        (lambda: Image(color=0.2), r"Image: color must be ColorJitter\(...\) or None, got 0.2"),
        (lambda: Image(layout="NHWC"), "Image: layout must be one of HWC, CHW, got 'NHWC'"),
        (lambda: Image(filter="cubic"), "Image: filter must be one of bilinear, area, got 'cubic'"),
        (lambda: Image(dtype="int32"), "Image: dtype must be one of uint8, float16, bfloat16, float32, got 'int32'"),
        (lambda: Image(normalize="imagenet"), "Image: normalize must have a floating dtype, got dtype 'uint8'"),
        (lambda: Image(dtype="float32", normalize="coco"), "Image: normalize must be 'imagenet' or"),
        (lambda: RandomCrop(0), "RandomCrop: scale must be above 0 and at most 1, got 0"),
        (lambda: CenterCrop(1.5), "CenterCrop: scale must be above 0 and at most 1, got 1.5"),
        (lambda: ColorJitter(brightness=-1), "ColorJitter: brightness must be from 0 to 100, got -1"),
        (lambda: Window(image=(4, 4)), r"Window: image must be robocache.Image\(...\) or None, got \(4, 4\)"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("images", "windows", "options", "message"),
    [
        ("keep", {"arm": Window(image=Image())}, {}, "is for uint8 images .* got float32 vector"),
        ("keep", {"depth": Window(image=Image())}, {}, "is for uint8 images .* got uint16 depth"),
        (
            "keep",
            {"front": Window(image=Image())},
            {"normalize": "unit"},
            "normalize of 'front' must be a field of its",
        ),
        ("keep", {"front": Window(method="linear")}, {}, "method"),
    ],
)
def test_windows_that_do_not_fit_the_stream_are_refused(caches, images, windows, options, message):
    with pytest.raises(ValueError, match=message):
        Loader(caches[images], 4, windows, **options)


def test_a_step_on_the_device_is_refused(caches):
    with pytest.raises(NotImplementedError, match="is read by the host"):
        loader(caches["keep"]).batch_at(torch.zeros((), dtype=torch.int64))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["front", *FILMS])
def test_a_flipped_bit_is_found_where_pictures_are_verified(tmp_path, tier, name):
    cameras = {name: (CAMERAS | FILMS)[name]}
    cache = robocache.ingest(FilmSource(cameras), tmp_path / "cache", images="keep")
    (shard,) = [file for file in cache.files if file.suffix == ".safetensors"]
    bad = bytearray(shard.read_bytes())
    bad[-2000] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(bad)
    with pytest.raises(robocache.FormatError, match="checksum is wrong"):
        [*Loader(robocache.Cache(tmp_path / "cache"), 4, {name: Window()}, tier=tier, verify="load")]
