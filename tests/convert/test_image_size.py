"""``image_size`` of ingest: images are means of areas, depth is the nearest pixel, and the manifest says so."""

import json

import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource, digest
from robocache.cache.episode import StreamSpec
from robocache.cli import main
from robocache.convert.resize import nearest, resize

pytest.importorskip("PIL")


def area_mean(picture, height, width):
    """The mean of the area that a new pixel covers, in exact fractions of old ones: (H, W) float64."""

    def weights(have, want):
        table = np.zeros((want, have))
        for i in range(want):
            low, high = i * have / want, (i + 1) * have / want
            for j in range(have):
                table[i, j] = max(0.0, min(high, j + 1) - max(low, j)) * want / have
        return table

    return weights(picture.shape[0], height) @ picture @ weights(picture.shape[1], width).T


def test_an_image_by_hand():
    values = np.array([[[0, 2, 10, 10], [4, 6, 10, 10]]], np.uint8)[..., None]
    assert resize(values, StreamSpec("x", "uint8", (1, 2, 1), "image")).ravel().tolist() == [3, 10]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(12, 16), (8, 32), (24, 16), (6, 4), (1, 1), (24, 32)])
def test_smaller_images_are_means_of_areas(channels, size, rng):
    values = rng.integers(0, 256, (2, 24, 32, channels), np.uint8)
    got = resize(values, StreamSpec("x", "uint8", (*size, channels), "image"))
    assert got.shape == (2, *size, channels)
    for row in range(2):
        for c in range(channels):  # also beside an alpha of 0: no channel weighs another
            expected = area_mean(values[row, :, :, c].astype(np.float64), *size)
            np.testing.assert_allclose(got[row, :, :, c], expected, atol=1.01)  # Pillow rounds after each axis


def test_sizes_that_do_not_divide_are_near_the_mean_of_the_area(rng):
    """Pillow takes a pixel where its middle is in the area, and not a part of it: near, on smooth pictures."""
    y, x = np.mgrid[0:240, 0:320]
    picture = (128 + 60 * np.sin(x / 40) + 60 * np.cos(y / 30)).astype(np.uint8)
    got = resize(picture[None, :, :, None], StreamSpec("x", "uint8", (100, 130, 1), "image"))[0, :, :, 0]
    np.testing.assert_allclose(got, area_mean(picture.astype(np.float64), 100, 130), atol=3)


def test_larger_images_repeat_pixels():
    values = np.array([[[1, 9]]], np.uint8)[..., None]
    got = resize(values, StreamSpec("x", "uint8", (2, 4, 1), "image"))[0, :, :, 0]
    assert got.tolist() == [[1, 1, 9, 9], [1, 1, 9, 9]]


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_depth_has_only_values_that_were_there(dtype, rng):
    values = rng.integers(0, 60_000, (3, 30, 40)).astype(dtype)
    got = resize(values, StreamSpec("x", dtype, (12, 20), "depth"))
    for i in range(12):
        for j in range(20):
            np.testing.assert_array_equal(got[:, i, j], values[:, int((i + 0.5) * 30 / 12), int((j + 0.5) * 2)])
    assert nearest(4, 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_cache_has_pictures_of_the_size_and_says_what_they_were(tmp_path):
    cache = robocache.ingest(MadeSource(), tmp_path / "cache", image_size=(3, 4))
    assert cache.specs["camera/wrist"].shape == (3, 4, 3)
    assert cache.specs["camera/wrist"].meta == {"resized": {"from": [6, 8], "filter": "box"}}
    assert cache.specs["depth"] == SPECS["depth"]  # it had that size
    assert digest(cache, ["arm", "force", "/lidar", "depth"]) == digest(
        MadeSource(), ["arm", "force", "/lidar", "depth"]
    )
    for episode, source in zip(cache, MadeSource(), strict=True):
        if "camera/wrist" in source.streams:
            expected = resize(source.streams["camera/wrist"].values, cache.specs["camera/wrist"])
            np.testing.assert_array_equal(episode.streams["camera/wrist"].values, expected)
    manifest = json.loads((tmp_path / "cache/manifest.json").read_text())
    told = {stream["name"]: stream for stream in manifest["streams"]}
    assert told["camera/wrist"]["shape"] == [3, 4, 3]
    assert told["camera/wrist"]["details"]["meta"]["resized"] == {"from": [6, 8], "filter": "box"}
    again = robocache.ingest(cache, tmp_path / "depth", image_size={"depth": (2, 2)})
    assert (again.specs["depth"].shape, again.specs["camera/wrist"].shape) == ((2, 2), (3, 4, 3))


def test_another_size_is_another_cache_for_resume(tmp_path):
    first = robocache.ingest(MadeSource(), tmp_path / "cache", image_size=(3, 4))
    assert robocache.ingest(MadeSource(), tmp_path / "cache", image_size=(3, 4), resume=True).generation == 1
    other = robocache.ingest(MadeSource(), tmp_path / "cache", image_size=(2, 4), resume=True)
    assert other.generation == 2
    assert other.fingerprint() != first.fingerprint()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (224, r"ingest: image_size must be \(height, width\), whole numbers from 1 to 65536, got 224"),
        ((0, 4), r"whole numbers from 1 to 65536, got \(0, 4\)"),
        ((2.5, 4), r"whole numbers from 1 to 65536, got \(2\.5, 4\)"),
        ({"leg": (2, 2)}, "ingest: image_size must name streams of the cache, got 'leg'"),
        ({"arm": (2, 2)}, "ingest: image_size must name image or depth streams, got 'arm' of kind vector"),
    ],
)
def test_bad_sizes_are_refused_before_anything_is_written(size, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        robocache.ingest(MadeSource(), tmp_path / "cache", image_size=size)
    assert not (tmp_path / "cache").exists()


def test_the_command_takes_height_x_width(tmp_path, capsys):
    robocache.ingest(MadeSource(), tmp_path / "cache")
    args = ["ingest", str(tmp_path / "cache"), str(tmp_path / "small"), "--image-size", "3x4", "--json"]
    assert main.main(args) == 0
    assert json.loads(capsys.readouterr().out)["streams"]["camera/wrist"]["shape"] == [3, 4, 3]
    for bad in ("3", "0x4", "3x4x3", "axb"):
        with pytest.raises(SystemExit):
            main.main(["ingest", "a", "b", "--image-size", bad])
        assert f"must be HEIGHTxWIDTH, like 224x320, got '{bad}'" in capsys.readouterr().err


def test_without_pillow_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"image_size needs the package pillow: pip install 'robocache\[images\]'"):
        robocache.ingest(MadeSource(), tmp_path / "cache", image_size=(3, 4))
