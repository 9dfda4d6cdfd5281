"""Packets of video in a cache: their index, entry points, rows, and the frames that they decode to."""

import numpy as np
import pytest
import robocache
from robocache import Cache, CacheWriter, Episode, EpisodeStream, FormatError
from robocache.cache.video import Video, VideoIndex, entry_points
from robocache.ops.decode.video import Track
from video_cases import ENCODERS, FILMS, FilmSource, film, frames_of, mp4, spec_of, video_of

CODECS = list(ENCODERS)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("gop", [1, 2, 7])
def test_frames_are_those_of_the_file(codec, gop, rng):
    file = mp4(film(rng, 15), codec, gop)
    video, spec = video_of(file, codec), spec_of(codec)
    expected = frames_of(file)
    np.testing.assert_array_equal(video.decoded(spec), expected)
    rows = [13, 2, 2, 7]
    np.testing.assert_array_equal(video.decoded(spec, rows), [expected[i] for i in rows])
    some = video[np.array(rows)]
    assert some.nbytes <= video.nbytes
    np.testing.assert_array_equal(some.decoded(spec), [expected[i] for i in rows])


@pytest.mark.parametrize(
    ("codec", "pixels", "height", "width"),
    [
        ("h264", "yuv444p", 40, 56),
        ("h264", "yuv420p10le", 40, 56),
        ("h264", "yuvj420p", 40, 56),
        ("vp9", "yuv420p", 41, 56),
        ("vp9", "yuv420p", 40, 57),
        ("mpeg4", "yuv420p", 34, 35),
        ("av1", "yuv420p10le", 64, 66),
    ],
)
def test_other_pixel_formats_and_odd_sizes_are_those_of_pyav(codec, pixels, height, width, rng):
    file = mp4(film(rng, 4, height, width), codec, pixels=pixels)
    np.testing.assert_array_equal(video_of(file, codec).decoded(spec_of(codec, height, width)), frames_of(file))


def test_an_entry_point_is_a_keyframe_that_nothing_earlier_follows():
    keys = np.array([1, 0, 0, 1, 0, 1, 0, 1], bool)
    times = np.array([0, 2, 1, 4, 3, 5, 6, 7])  # packet 3 is shown after packet 4: an open GOP
    assert entry_points(times, keys).tolist() == [0, 5, 7]
    assert entry_points(times[:0], keys[:0]).tolist() == []


def test_open_gops_are_decoded_with_the_one_before(rng):
    file = mp4(film(rng, 20), "h264", 4, **{"x264-params": "open-gop=1:scenecut=0"})
    video = video_of(file, "h264")
    assert len(video.index.entries) < video.index.keys.sum()
    np.testing.assert_array_equal(video.decoded(spec_of("h264"), [9]), frames_of(file)[9:10])


@pytest.mark.parametrize("codec", CODECS)
def test_an_index_is_stored_and_read(codec, rng):
    video = video_of(mp4(film(rng, 12), codec), codec)
    index = video.index
    stored = index.to_bytes()
    again = VideoIndex.from_bytes(stored, codec, video.nbytes)
    assert again.track == index.track
    assert again.time_base == index.time_base
    for name in ("sizes", "times", "keys", "rows", "entries", "offsets"):
        np.testing.assert_array_equal(getattr(again, name), getattr(index, name))
    assert len(stored) < 12 * 16 + len(index.track.extradata) + 64


def made(**change):
    facts = {
        "track": Track("h264", 16, 16, "yuv420p", 2, 0), "time_base": (1, 10), "sizes": [4, 4, 4], "times": [0, 1, 2],
        "keys": [1, 0, 0], "rows": [0, 1, 2],
    }  # fmt: skip
    return VideoIndex(**{**facts, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"track": Track("h264", 65535, 65535, "yuv420p", 2, 0)}, "at most 100000000 pixels, got 65535 x 65535"),
        ({"track": Track("h264", 0, 16, "yuv420p", 2, 0)}, "at most 100000000 pixels, got 16 x 0"),
        ({"times": [0, 1]}, "one time and one flag for each packet"),
        ({"sizes": [4, 0, 4]}, r"packets of 1 to 2\^31 bytes, got 0 to 4"),
        ({"time_base": (0, 10)}, "a time base above 0, got 0 / 10"),
        ({"keys": [0, 0, 0]}, "begin with a keyframe"),
        ({"times": [2, 1, 0]}, "begin with an entry point"),
        ({"rows": [0, 3]}, "rows of its 3 packets, got 0 to 3"),
        ({"rows": [-1]}, "rows of its 3 packets, got -1 to -1"),
    ],
)
def test_an_index_that_cannot_be_is_refused(change, message):
    with pytest.raises(FormatError, match=message):
        made(**change)


def test_stored_indexes_are_checked_before_they_are_used():
    stored = made().to_bytes()
    assert len(VideoIndex.from_bytes(stored, "h264", 12)) == 3
    for bad, message in [
        (stored[:20], "begin as one of a video"),
        (np.zeros(100, np.uint8), "begin as one of a video"),
        (stored[:-3], "exactly 49 bytes of tables"),
    ]:
        with pytest.raises(FormatError, match=message):
            VideoIndex.from_bytes(bad, "h264", 12)
    newer = stored.copy()
    newer[4] = 2
    with pytest.raises(FormatError, match="version 1, got 2: written by a newer RoboCache"):
        VideoIndex.from_bytes(newer, "h264", 12)
    with pytest.raises(FormatError, match="packets of 13 bytes together, got 12"):
        VideoIndex.from_bytes(stored, "h264", 13)
    bomb = stored.copy()
    bomb[40:48] = 255  # the number of packets or rows
    with pytest.raises(FormatError):
        VideoIndex.from_bytes(bomb, "h264", 12)


def test_every_bit_of_a_stored_index_is_survived():
    stored = made().to_bytes()
    for bit in range(8 * len(stored)):
        bad = stored.copy()
        bad[bit // 8] ^= 1 << bit % 8
        try:
            index = VideoIndex.from_bytes(bad, "h264", 12)
        except FormatError:
            continue
        assert len(index.sizes) == 3


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return robocache.ingest(FilmSource(FILMS), tmp_path_factory.mktemp("films") / "cache", shard_bytes=1)


def test_a_cache_keeps_packets(cache):
    source = FilmSource(FILMS)
    assert b'"version":3' in (cache.path / "manifest.json").read_bytes()
    assert cache.verify() == []
    again = Cache(cache.path)
    for i in range(len(source)):
        for copy in (False, True):
            stored, given = again.episode(i, copy=copy), source.episode(i)
            for name in FILMS:
                assert bytes(stored.streams[name].video.data) == bytes(given.streams[name].video.data)
                np.testing.assert_array_equal(stored.streams[name].values, given.streams[name].values)
                with pytest.raises(ValueError, match="is a video: its packets are video"):
                    _ = stored.streams[name].encoded
    statistics = again.statistics["film_av1"]
    frames = np.concatenate([e.streams["film_av1"].values for e in again])
    assert statistics["sampled"] == {"pictures": len(frames), "of": len(frames)}
    np.testing.assert_allclose(statistics["mean"], frames.reshape(-1, 3).mean(axis=0), rtol=1e-6)


def test_pixels_and_jpeg_are_made_of_the_same_frames(cache, tmp_path):
    source = FilmSource(FILMS)
    raw = robocache.ingest(source, tmp_path / "raw", images="raw")
    jpeg = robocache.ingest(source, tmp_path / "jpeg", images="jpeg", quality=100)
    small = robocache.ingest(source, tmp_path / "small", image_size=(20, 28))
    for name, spec in FILMS.items():
        kept = cache.episode(1).streams[name].values
        np.testing.assert_array_equal(raw.episode(1).streams[name].values, kept)
        assert jpeg.specs[name].codec == small.specs[name].codec == "jpeg"
        assert np.abs(jpeg.episode(1).streams[name].values.astype(int) - kept).mean() < 4
        assert small.episode(1).streams[name].values.shape[1:] == (20, 28, 3)
        assert jpeg.specs[name].meta["encoded"]["from"] == spec.codec
    assert any("film_av1: av1, encoded as JPEG of quality 100" in note for note in jpeg.notes)


def test_a_stream_refuses_other_videos(tmp_path, rng):
    video = video_of(mp4(film(rng, 4), "h264"), "h264")
    spec = spec_of("h264")
    with pytest.raises(ValueError, match="one for each picture"):
        EpisodeStream(spec, video, np.arange(3))
    with pytest.raises(ValueError, match=r"must be a Video or \(bytes, index\), got list"):
        EpisodeStream(spec, [b""], np.arange(1))
    writer = CacheWriter(tmp_path / "cache", {"film": spec_of("h264", 20)})
    with pytest.raises(ValueError, match="must be h264 20 x 56 as the stream, got h264 40 x 56"):
        writer.add(Episode(0, {"film": EpisodeStream(spec_of("h264", 20), video, np.arange(4))}))
    hevc = video_of(mp4(film(rng, 4, 20), "hevc"), "hevc")
    with pytest.raises(ValueError, match="must be encoded as h264, got codec hevc"):
        writer.add(Episode(0, {"film": EpisodeStream(spec_of("hevc", 20), hevc, np.arange(4))}))
    writer.add(Episode(0, {"film": EpisodeStream(spec_of("h264", 20), Video.join([], empty()), np.arange(0))}))
    assert len(writer.commit().episode(0).streams["film"].values) == 0


def empty():
    return VideoIndex(Track("h264", 56, 20, "yuv420p", 2, 0), (1, 1), [], [], [], [])
