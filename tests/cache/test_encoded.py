"""Encoded pictures in a cache: the same bytes, the same pixels, and nothing that is damaged."""

import json

import numpy as np
import pytest
import robocache
from picture_cases import CAMERAS, HEIGHT, WIDTH, CameraSource, decoded, encoded, pictures_of, scene
from robocache import _core
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cache.pictures import PictureBuffer, Pictures, PictureStatistics
from robocache.cli import main

FRONT = CAMERAS["front"]


def written(path, source=None, **options):
    source = source or CameraSource()
    writer = robocache.CacheWriter(path, source.specs, **options)
    for episode in source:
        writer.add(episode)
    return writer.commit()


def one_stream(path, spec, pictures):
    """A cache of one episode with these pictures."""
    writer = robocache.CacheWriter(path, {spec.name: spec})
    times = np.arange(len(pictures)) * 10**8
    writer.add(Episode(0, {spec.name: EpisodeStream(spec, pictures, times)}))
    return writer.commit()


def test_pictures_that_come_one_by_one_are_joined_in_their_order():
    parts = [b"", b"abc", bytearray(b"de"), memoryview(b"fghi")]
    buffer = PictureBuffer()
    assert len(buffer.pictures()) == 0
    buffer = PictureBuffer()
    for part in parts:
        buffer.add(part)
    joined = buffer.pictures()
    assert list(joined) == [bytes(part) for part in parts]
    assert not joined.data.flags.writeable
    assert list(Pictures.of(parts)) == list(joined)


@pytest.mark.parametrize("shard_bytes", [1, 30_000, 1 << 26])
def test_bytes_and_pixels_come_back(tmp_path, shard_bytes):
    source = CameraSource()
    cache = written(tmp_path / "cache", source, shard_bytes=shard_bytes)
    assert cache.verify() == []
    assert {name: spec.codec for name, spec in cache.specs.items()} == {
        name: spec.codec for name, spec in source.specs.items()
    }
    for i, episode in enumerate(source):
        for name in CAMERAS:
            stream, given = cache.episode(i).streams[name], episode.streams[name]
            assert [*stream.pictures] == [*given.pictures]
            data, splits = stream.encoded
            assert data[splits[1] : splits[2]].tobytes() == given.pictures.picture(1)
            expected = np.stack([decoded(picture) for picture in given.pictures]).reshape(
                len(stream), *given.spec.shape
            )
            np.testing.assert_array_equal(stream.values, expected)
            assert stream.times.tolist() == given.times.tolist()


def test_a_picture_with_other_channels_than_its_stream_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    for name, other, message in (("front", "gray", r"\(3\), got 1"), ("gray", "front", r"\(1\), got 3")):
        pictures = [*pictures_of(CAMERAS[name], rng, 2), *pictures_of(CAMERAS[other], rng, 1)]
        rule = rf"stream '{name}': picture 2 at 200000000 ns must have as many channels as the stream {message}"
        with pytest.raises(ValueError, match=rule):
            one_stream(tmp_path / name, CAMERAS[name], pictures)


def test_the_cache_is_as_large_as_the_pictures(tmp_path):
    rng = np.random.default_rng(0)
    spec = StreamSpec("cam", "uint8", (224, 224, 3), "image", codec="jpeg")
    pictures = [encoded(scene(rng, 224, 224), quality=95) for _ in range(20)]
    cache = one_stream(tmp_path / "cache", spec, pictures)
    assert cache.size_bytes <= 1.05 * sum(map(len, pictures)) + 8192


def test_arrays_and_lists_of_bytes_are_the_same(tmp_path):
    pictures = pictures_of(FRONT, np.random.default_rng(0), 3)
    splits = np.cumsum([0, *map(len, pictures)])
    data = np.frombuffer(b"".join(pictures), np.uint8)
    stream = EpisodeStream(FRONT, (data, splits), np.arange(3))
    assert [*stream.pictures] == pictures
    assert stream.offsets is None
    assert len(stream) == 3
    arm = EpisodeStream(StreamSpec("arm", "float32", (1,)), np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="arm must have a codec to have encoded pictures, got None"):
        arm.encoded  # noqa: B018


def test_an_encoded_stream_is_decoded_where_the_cache_has_pixels(tmp_path):
    pixels = StreamSpec("front", "uint8", (HEIGHT, WIDTH, 3), "image")
    stream = CameraSource({"front": FRONT}).episode(0).streams["front"]
    writer = robocache.CacheWriter(tmp_path / "cache", {"front": pixels})
    writer.add(Episode(0, {"front": stream}))
    np.testing.assert_array_equal(writer.commit().episode(0).streams["front"].values, stream.values)


@pytest.mark.parametrize(
    ("spec", "picture", "message"),
    [
        (FRONT, lambda p: p[:-40], r"stream 'front': picture 1 at 100000000 ns must"),
        (FRONT, lambda p: p[: len(p) // 2], r"picture 1 at 100000000 ns must"),
        (FRONT, lambda p: b"", r"picture 1 at 100000000 ns must"),
        (FRONT, lambda p: encoded(scene(np.random.default_rng(1), 8, 8)), "must be 40 x 56 as the stream, got 8 x 8"),
        (FRONT, lambda p: encoded(decoded(p), "PNG"), "picture 1 at 100000000 ns must begin with a JPEG marker"),
        (FRONT, lambda p: encoded(decoded(p), progressive=True), "picture 1 at 100000000 ns must .*progressive"),
        (CAMERAS["flat"], lambda p: p[:-1], "must be whole, got"),
        (CAMERAS["flat"], lambda p: p[:60] + bytes([p[60] ^ 1]) + p[61:], "wrong checksum of the part at byte"),
        (CAMERAS["flat"], lambda p: encoded(decoded(p)), "must be a PNG"),
        (CAMERAS["flat"], lambda p: encoded(scene(np.random.default_rng(1), 8, 8), "PNG"), "got 8 x 8"),
    ],
)
def test_a_picture_that_cannot_be_stored_is_refused_by_name(tmp_path, spec, picture, message):
    pictures = pictures_of(spec, np.random.default_rng(0), 3)
    pictures[1] = picture(pictures[1])
    with pytest.raises(ValueError, match=message):
        one_stream(tmp_path / "cache", spec, pictures)


@pytest.mark.parametrize("name", ["front", "gray", "flat", "depth"])
def test_what_is_stored_of_damaged_pictures_can_be_decoded(tmp_path, name, rng):
    """Flipped bits that are still a picture are a picture; all others are refused."""
    spec = CAMERAS[name]
    (good,) = pictures_of(spec, rng, 1)
    refused = 0
    for trial in range(60):
        bad = bytearray(good)
        for place in rng.integers(0, len(good), 1 + trial % 3):
            bad[place] ^= 1 << int(rng.integers(8))
        pictures = Pictures.of([bytes(bad)])
        if pictures.problems(spec):
            refused += 1
        else:
            assert pictures.decoded(spec).shape == (1, *spec.shape)
    assert refused > 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codec": "gif"}, "codec must be one of jpeg, png, h264, hevc, av1, vp9, mpeg4 or None, got 'gif'"),
        ({"codec": "jpeg", "dtype": "uint16"}, "codec 'jpeg' must be for uint8 images with 1 or 3 channels"),
        ({"codec": "jpeg", "shape": (4, 4, 4)}, r"got uint8 image of shape \(4, 4, 4\)"),
        ({"codec": "png", "kind": "vector", "shape": (3,)}, "codec 'png' must be for uint8 images with 1, 3 or 4"),
    ],
)
def test_a_codec_that_does_not_fit_the_stream_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        StreamSpec(**{"name": "cam", "dtype": "uint8", "shape": (4, 4, 3), "kind": "image", **change})


def test_flipped_bits_are_found(tmp_path):
    cache = written(tmp_path / "cache", CameraSource({"front": FRONT}))
    (shard,) = [file for file in cache.files if file.suffix == ".safetensors"]
    good = shard.read_bytes()
    shard.chmod(0o644)
    header = 8 + int.from_bytes(good[:8], "little")
    tensors = json.loads(good[8:header])
    for part in ("values", "splits", "index", "index_splits", "times"):
        begin, end = tensors[f"front/{part}"]["data_offsets"]
        for place in (begin, (begin + end) // 2, end - 1):
            bad = bytearray(good)
            bad[header + place] ^= 4
            shard.write_bytes(bad)
            assert robocache.Cache(tmp_path / "cache").verify(), (part, place)
    shard.write_bytes(good)
    assert robocache.Cache(tmp_path / "cache").verify() == []


def test_a_stopped_writer_resumes_to_the_same_cache(tmp_path):
    source = CameraSource(episodes=5)
    whole = written(tmp_path / "whole", source, shard_bytes=20_000, fingerprint="x")
    writer = robocache.CacheWriter(tmp_path / "cache", source.specs, fingerprint="x", shard_bytes=20_000)
    for i in range(3):
        writer.add(source.episode(i))
    del writer
    writer = robocache.CacheWriter(tmp_path / "cache", source.specs, fingerprint="x", shard_bytes=20_000, resume=True)
    assert len(writer) >= 2
    for i in range(len(writer), 5):
        writer.add(source.episode(i))
    cache = writer.commit()
    assert cache.verify() == []
    assert cache._reader.checksum == whole._reader.checksum
    assert cache.statistics == whole.statistics


def test_only_caches_with_encoded_pictures_have_the_new_version(tmp_path):
    """Version 1 is what earlier releases read; they refuse version 2 by that number."""
    encoded_manifest = written(tmp_path / "a", CameraSource({"front": FRONT})).path / "manifest.json"
    plain_manifest = written(tmp_path / "b", CameraSource({})).path / "manifest.json"
    assert json.loads(encoded_manifest.read_text())["version"] == 2
    assert json.loads(plain_manifest.read_text())["version"] == 1


def test_statistics_come_from_a_spread_sample(tmp_path):
    spec = StreamSpec("cam", "uint8", (8, 8, 3), "image", codec="png")
    levels = np.arange(3000) * 255 // 2999
    pictures = [encoded(np.full((8, 8, 3), level, np.uint8), "PNG") for level in levels]
    statistics = one_stream(tmp_path / "cache", spec, pictures).statistics["cam"]
    assert statistics["sampled"] == {"pictures": 375, "of": 3000}
    assert statistics["mean"] == pytest.approx([levels.mean()] * 3, abs=1)
    assert statistics["q99"] == pytest.approx([np.quantile(levels, 0.99)] * 3, abs=2)


def test_statistics_are_the_same_where_pictures_are_decoded_early(tmp_path, monkeypatch):
    expected = written(tmp_path / "late").statistics
    monkeypatch.setattr(PictureStatistics, "MOST_BYTES", 5000)
    assert written(tmp_path / "early").statistics == expected


def test_statistics_of_few_pictures_are_exact(tmp_path):
    source = CameraSource()
    statistics = written(tmp_path / "cache", source).statistics
    for name in CAMERAS:
        values = np.concatenate([episode.streams[name].values.reshape(-1, 1) for episode in source])
        if CAMERAS[name].dtype == "uint16" or name == "gray":
            assert statistics[name]["min"] == [values.min()]
            assert statistics[name]["max"] == [values.max()]
            assert statistics[name]["mean"] == pytest.approx([values.mean()])


def test_check_and_info_read_encoded_pictures(tmp_path, capsys):
    written(tmp_path / "cache")
    report = robocache.check(tmp_path / "cache")
    assert report.checksums == "right"
    assert not [f for f in report.findings if f.kind == "unreadable"]
    assert main.main(["info", str(tmp_path / "cache")]) == 0
    assert "uint8 jpeg" in capsys.readouterr().out
    assert main.main(["info", str(tmp_path / "cache"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"]["depth"]["codec"] == "png"


@pytest.mark.parametrize("rows", [0, 1, 1023, 1024, 5001])
@pytest.mark.parametrize("channels", [1, 3, 40])
def test_bytes_are_counted_as_numpy_counts_them(rows, channels):
    data = np.random.default_rng(0).integers(0, 256, (rows, channels)).astype(np.uint8)
    data[: rows // 2] = 7  # a value that follows itself
    counts = np.full((channels, 256), 5)
    _core.count_bytes(data, counts)
    expected = [5 + np.bincount(channel, minlength=256) for channel in data.T]
    np.testing.assert_array_equal(counts, expected)


def test_counts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="count_bytes: counts must have 256 numbers for each channel"):
        _core.count_bytes(np.zeros((5, 3), np.uint8), np.zeros((2, 256), np.int64))
