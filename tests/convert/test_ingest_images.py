"""``ingest(images=...)``: pictures stay the bytes they were, and a cache of them reads like one of pixels."""

import dataclasses
import io
import json
import signal
import struct
import subprocess
import sys
import zlib

import adapter_datasets as datasets
import adapter_logs as logs
import numpy as np
import pytest
import robocache
from picture_cases import CAMERAS, HEIGHT, WIDTH, CameraSource, encoded, scene
from PIL import Image
from robocache.cache.episode import Episode, EpisodeStream
from robocache.cli import main

pytest.importorskip("mcap_ros2")
pytest.importorskip("pyarrow")
FRAMES = 4
JPEG, PNG, DEPTH = "/front/compressed", "/flat/compressed", "/depth/compressed"
RAW, RAW_DEPTH, RAW_FLOAT = "/raw", "/raw_depth", "/raw_float"


def image(rows, encoding):
    size = {"height": rows.shape[0], "width": rows.shape[1]}
    step = rows[0].nbytes
    return {**size, "encoding": encoding, "is_bigendian": 0, "step": step, "data": rows.tobytes()}


def write_mcap(path, change=None, **jpeg_options):
    """One log with encoded and raw cameras. ``change(topic, i, picture)``: other bytes of an encoded picture."""
    rng = np.random.default_rng(0)
    messages = []
    for i in range(FRAMES):
        at = logs.START_NS + i * 10**8
        color, depth = scene(rng), scene(rng, channels=1, dtype=np.uint16)[:, :, 0]
        pictures = {
            JPEG: encoded(color, **jpeg_options),
            PNG: encoded(color, "PNG"),
            DEPTH: encoded(depth, "PNG"),
        }
        for topic, picture in pictures.items():
            data = picture if change is None else change(topic, i, picture)
            message = {"header": logs.stamp(at), "format": "x", "data": data}
            messages.append((topic, "sensor_msgs/msg/CompressedImage", message, at))
        raws = {RAW: image(color, "rgb8"), RAW_DEPTH: image(depth, "16UC1"), RAW_FLOAT: image(depth / 1e3, "32FC1")}
        raws[RAW_FLOAT] = image((depth / 1e3).astype(np.float32), "32FC1")
        for topic, message in raws.items():
            messages.append((topic, "sensor_msgs/msg/Image", {"header": logs.stamp(at), **message}, at))
    logs.write_log(path, messages)
    return path


def ingested(path, out, **options):
    return robocache.ingest(path, out, clock="log_time", **options)


def same_rows(a, b):
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.streams.keys() == right.streams.keys()
        for name in left.streams:
            np.testing.assert_array_equal(left.streams[name].values, right.streams[name].values)
            np.testing.assert_array_equal(left.streams[name].times, right.streams[name].times)


def test_keep_stores_bytes_and_reads_the_same_pixels(tmp_path):
    log = write_mcap(tmp_path / "log.mcap")
    keep, raw = (ingested(log, tmp_path / images, images=images) for images in ("keep", "raw"))
    assert {name: spec.codec for name, spec in keep.specs.items()} == {
        JPEG: "jpeg", PNG: "png", DEPTH: "png", RAW: "png", RAW_DEPTH: "png", RAW_FLOAT: None, "/chatter": None,
    }  # fmt: skip
    assert not any(spec.codec for spec in raw.specs.values())
    assert raw.notes == []
    same_rows(keep, raw)
    assert keep.verify() == []
    assert keep.size_bytes < raw.size_bytes
    assert f"{RAW}: raw camera messages, encoded as PNG, which is lossless" in keep.notes
    assert any(note.startswith(f"{RAW_FLOAT}: raw camera messages: PNG cannot hold float32") for note in keep.notes)
    given = robocache.open(log, clock="log_time", encoded=True).episode(0).streams[JPEG]
    assert [*keep.episode(0).streams[JPEG].pictures] == [*given.pictures]


@pytest.mark.parametrize("name", datasets.CASES)
def test_keep_reads_like_raw_in_every_format(name, tmp_path, rng):
    write, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package)
    written = write(tmp_path, rng)
    keep, raw = (
        robocache.ingest(written.path, tmp_path / f"cache {images}", images=images, **written.options)
        for images in ("keep", "raw")
    )
    same_rows(keep, raw)
    has_encoded = name.startswith(("lerobot", "mcap", "ros2", "rlds"))
    assert any(spec.codec for spec in keep.specs.values()) == has_encoded


def test_jpeg_transcodes_what_is_8_bit_and_keeps_the_rest(tmp_path):
    log = write_mcap(tmp_path / "log.mcap")
    cache = ingested(log, tmp_path / "cache", images="jpeg", quality=80)
    assert {name: spec.codec for name, spec in cache.specs.items()} == {
        JPEG: "jpeg", PNG: "jpeg", DEPTH: "png", RAW: "jpeg", RAW_DEPTH: "png", RAW_FLOAT: None, "/chatter": None,
    }  # fmt: skip
    raw = ingested(log, tmp_path / "raw", images="raw")
    pixels = raw.episode(0).streams[PNG].values
    assert [*cache.episode(0).streams[PNG].pictures] == [encoded(p, quality=80, subsampling="4:2:0") for p in pixels]
    assert cache.specs[PNG].meta["encoded"] == {"from": "png", "quality": 80, "subsampling": "4:2:0"}
    assert f"{PNG}: png, encoded as JPEG of quality 80" in cache.notes
    assert any(note.startswith(f"{DEPTH}: uint16 depth of shape") for note in cache.notes)
    np.testing.assert_array_equal(cache.episode(0).streams[JPEG].values, raw.episode(0).streams[JPEG].values)


@pytest.mark.parametrize("name", ["lerobot v3.0", "robomimic"])
def test_jpeg_encodes_videos_and_arrays(name, tmp_path, rng):
    write, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package)
    written = write(tmp_path, rng)
    cache = robocache.ingest(written.path, tmp_path / "cache", images="jpeg", **written.options)
    images = {n: spec for n, spec in cache.specs.items() if spec.kind == "image"}
    assert images
    assert {spec.codec for spec in images.values()} == {"jpeg"}
    assert cache.verify() == []
    was = {n: spec.meta["encoded"]["from"] for n, spec in images.items()}
    assert was in ({"observation.image": "png", "observation.video": "h264"}, {"obs/agentview_image": "pixels"})


def test_image_size_decodes_resizes_and_encodes_again(tmp_path):
    log = write_mcap(tmp_path / "log.mcap")
    keep, raw = (ingested(log, tmp_path / i, images=i, image_size=(20, 28)) for i in ("keep", "raw"))
    for name in (PNG, DEPTH, RAW, RAW_DEPTH, RAW_FLOAT):
        np.testing.assert_array_equal(keep.episode(0).streams[name].values, raw.episode(0).streams[name].values)
    assert keep.specs[JPEG].shape == (20, 28, 3)
    assert keep.specs[JPEG].codec == "jpeg"
    assert keep.specs[JPEG].meta["resized"]["from"] == [HEIGHT, WIDTH]
    assert f"{JPEG}: decoded, resized and encoded again as JPEG of quality 95" in keep.notes
    difference = keep.episode(0).streams[JPEG].values.astype(int) - raw.episode(0).streams[JPEG].values
    assert np.abs(difference).mean() < 4


def test_progressive_jpeg_is_stored_as_png(tmp_path):
    log = write_mcap(tmp_path / "log.mcap", progressive=True)
    keep, raw = (ingested(log, tmp_path / images, images=images) for images in ("keep", "raw"))
    assert keep.specs[JPEG].codec == "png"
    assert any(note.startswith(f"{JPEG}: pictures that are stored decoded (progressive") for note in keep.notes)
    same_rows(keep, raw)


def wide_png(pixels):
    """A PNG of 16 bits per channel in color, which Pillow reads but does not write."""
    rows = (pixels.astype(">u2") * 257).view(np.uint8).reshape(len(pixels), -1)
    filtered = np.pad(rows, ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(filtered)), (b"IEND", b""))
    made = [struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


@pytest.mark.parametrize("images", ["keep", "jpeg", "raw"])
def test_color_of_16_bits_is_decoded_to_8_and_listed(tmp_path, images):
    wide = wide_png(scene(np.random.default_rng(2)))
    log = write_mcap(tmp_path / "log.mcap", lambda topic, i, p: wide if topic == PNG else p)
    cache = ingested(log, tmp_path / "cache", images=images)
    assert cache.specs[PNG].codec == {"keep": "png", "jpeg": "jpeg", "raw": None}[images]
    (note,) = [note for note in cache.notes if note.startswith(PNG)]
    assert note.startswith(f"{PNG}: PNG of 16 bits per channel in color, decoded to 8 bits: the lower 8 are lost")
    if images != "jpeg":
        expected = np.asarray(Image.open(io.BytesIO(wide)))
        np.testing.assert_array_equal(cache.episode(0).streams[PNG].values[0], expected)


def test_color_of_16_bits_is_not_stored_as_8_bits(tmp_path):
    wide, spec = wide_png(scene(np.random.default_rng(2))), CAMERAS["flat"]
    writer = robocache.CacheWriter(tmp_path / "cache", {"flat": spec})
    with pytest.raises(ValueError, match="picture 0 at 0 ns must have 8 bits per channel as the stream, got 16"):
        writer.add(Episode(0, {"flat": EpisodeStream(spec, [wide], np.zeros(1, np.int64))}))
    log = write_mcap(tmp_path / "log.mcap", lambda topic, i, p: wide if (topic, i) == (PNG, 2) else p)
    with pytest.raises(robocache.FormatError, match=r"message 2: the picture is of another kind \(.*color PNG of 16"):
        ingested(log, tmp_path / "keep", images="keep")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[:-60], rf"episode 0, stream {JPEG}, picture 2 at \d+ ns must .*; to leave such pictures"),
        (lambda p: encoded(scene(np.random.default_rng(1), 8, 8)), "message 2: rows uint8 .8, 8, 3. .*in the first"),
        (lambda p: encoded(scene(np.random.default_rng(1)), progressive=True), 'message 2: .*pass images="raw"'),
        (lambda p: encoded(scene(np.random.default_rng(1)), "PNG"), "message 2: the picture is PNG, but the first of"),
    ],
)
def test_a_picture_that_cannot_be_kept_is_refused_by_name(tmp_path, change, message):
    log = write_mcap(tmp_path / "log.mcap", lambda topic, i, p: change(p) if (topic, i) == (JPEG, 2) else p)
    with pytest.raises(robocache.FormatError, match=message):
        ingested(log, tmp_path / "cache", images="keep")


@pytest.mark.parametrize(("topic", "message"), [(JPEG, "at most 64 coefficients"), (PNG, "a wrong checksum at byte")])
def test_raw_refuses_pictures_with_flipped_bits(tmp_path, topic, message):
    """Pillow decodes them to other pixels, without an error."""

    def flipped(of, i, picture):
        if (of, i) != (topic, 2):
            return picture
        at = picture.index(b"IDAT") + 30 if of == PNG else picture.index(b"\xff\xda") + 40
        return picture[:at] + (b"\xfe" * 8 if of == JPEG else b"\xff") + picture[at + (8 if of == JPEG else 1) :]

    path = write_mcap(tmp_path / "log.mcap", flipped)
    with pytest.raises(robocache.FormatError, match=rf"{topic}, message 2: the image .*{message}"):
        ingested(path, tmp_path / "cache", images="raw", streams=[topic])


def test_damaged_pictures_are_dropped_where_that_is_asked_for(tmp_path):
    log = write_mcap(tmp_path / "log.mcap", lambda topic, i, p: p[:-30] if i == 2 and topic in (JPEG, PNG) else p)
    cache = ingested(log, tmp_path / "cache", images="keep", repair={"missing": "drop"})
    episode = cache.episode(0)
    assert [len(episode.streams[name]) for name in (JPEG, PNG, DEPTH)] == [3, 3, 4]
    assert episode.meta["repairs"] == {JPEG: {"missing": 1}, PNG: {"missing": 1}}
    assert episode.meta["repairs_at"][JPEG]["missing"].startswith("row 2: picture 2 at")


@pytest.mark.parametrize("images", ["keep", "jpeg", "raw"])
def test_a_stream_that_changes_its_codec_is_refused(tmp_path, images):
    class Changes(CameraSource):
        def episode(self, index):
            episode = super().episode(index)
            if index == 2:
                pixels = dataclasses.replace(CAMERAS["front"], codec=None)
                stream = episode.streams["front"]
                episode.streams["front"] = EpisodeStream(pixels, stream.values, stream.times)
            return episode

    with pytest.raises(robocache.FormatError, match="stream 'front' must have codec jpeg, as in the source's specs"):
        robocache.ingest(Changes({"front": CAMERAS["front"]}), tmp_path / "cache", images=images)


def test_a_cache_of_encoded_pictures_can_be_ingested_again(tmp_path):
    source = CameraSource()
    first = robocache.ingest(source, tmp_path / "first", images="keep")
    again = robocache.ingest(first, tmp_path / "again", images="keep", streams={"front": "cam", "arm": "arm"})
    pixels = robocache.ingest(first, tmp_path / "pixels", images="raw")
    assert again.specs["cam"].codec == "jpeg"
    assert [*again.episode(1).streams["cam"].pictures] == [*source.episode(1).streams["front"].pictures]
    assert not any(spec.codec for spec in pixels.specs.values())
    same_rows(pixels, first)


KILLED = """
import os, signal, sys, robocache
def stop(done, total):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
robocache.ingest(sys.argv[1], sys.argv[2], images="keep", shard_bytes=1, progress=stop)
"""


def test_a_killed_ingest_resumes_with_encoded_pictures(tmp_path):
    robocache.ingest(CameraSource(CAMERAS, episodes=5), tmp_path / "source", images="keep")
    out = tmp_path / "cache"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "source"), str(out)])
    assert killed.returncode == -signal.SIGKILL
    assert len([*out.glob("shard-*")]) >= 2
    done = []
    options = {"images": "keep", "shard_bytes": 1}
    cache = robocache.ingest(tmp_path / "source", out, resume=True, progress=lambda n, _: done.append(n), **options)
    assert done[0] > 1
    assert cache.verify() == []
    expected = robocache.ingest(tmp_path / "source", tmp_path / "expected", **options)
    assert cache._reader.checksum == expected._reader.checksum
    assert cache.statistics == expected.statistics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": "webp"}, "ingest: images must be one of keep, jpeg, raw, got 'webp'"),
        ({"images": "jpeg", "quality": 0}, "ingest: quality must be a whole number from 1 to 100, got 0"),
        ({"images": "jpeg", "quality": 9.5}, "ingest: quality must be a whole number from 1 to 100, got 9.5"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        robocache.ingest(CameraSource(), tmp_path / "cache", **options)


def test_the_command_line_prints_what_was_encoded(tmp_path, capsys):
    log = write_mcap(tmp_path / "log.mcap")
    arguments = ["ingest", str(log), str(tmp_path / "cache"), "--option", "clock=log_time", "--images", "jpeg"]
    assert main.main([*arguments, "--quality", "70"]) == 0
    out = capsys.readouterr().out
    assert "notes:" in out
    assert "encoded as JPEG of quality 70" in out
    assert main.main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 5
    with pytest.raises(SystemExit):
        main.main([*arguments[:-1], "webp"])
