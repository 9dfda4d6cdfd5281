"""Hostile packets and indexes: FormatError or pixels, never a crash, a hang or memory without bound."""

import resource

import numpy as np
import pytest
import robocache
from robocache import FormatError, Loader, Window
from robocache.cache.video import Video, VideoIndex
from robocache.ops.decode.video import Track
from video_cases import ENCODERS, FILMS, FilmSource, film, mp4, spec_of, video_of

pytest.importorskip("av")
CODECS = list(ENCODERS)
FLIPS = 60
"""Per codec."""


def copied(video, data=None, **change):
    index = video.index
    facts = {"track": index.track, "time_base": index.time_base, "rows": index.rows}
    facts |= {"sizes": index.sizes, "times": index.times, "keys": index.keys} | change
    return Video(video.data if data is None else data, VideoIndex(**facts))


def decodes(video, spec):
    """Frames, or the message of a FormatError."""
    try:
        pixels = video.decoded(spec)
    except FormatError as error:
        return str(error)
    assert pixels.shape == (len(video), *spec.shape)
    return pixels


@pytest.fixture(scope="module")
def videos():
    rng = np.random.default_rng(3)
    return {codec: video_of(mp4(film(rng, 8), codec, 4), codec) for codec in CODECS}


@pytest.mark.parametrize("codec", CODECS)
def test_flipped_bits_give_pixels_or_an_error_that_names_the_frame(codec, videos):
    video, spec = videos[codec], spec_of(codec)
    rng = np.random.default_rng(11)
    refused = 0
    for _ in range(FLIPS):
        bad = video.data.copy()
        for at in rng.integers(0, 8 * len(bad), int(rng.integers(1, 6))):
            bad[at // 8] ^= np.uint8(1 << at % 8)
        found = decodes(copied(video, bad), spec)
        if isinstance(found, str):
            refused += 1
            assert found.startswith("stream 'film': "), found
            assert "frame " in found or "packet " in found, found
    assert refused
    np.testing.assert_array_equal(decodes(video, spec), decodes(copied(video), spec))  # decoders are not left damaged


@pytest.mark.parametrize("codec", CODECS)
def test_pixels_of_damaged_packets_do_not_depend_on_the_memory_behind_them(codec, videos):
    """FFmpeg reads on past the end of a packet that lies about its content."""
    video, spec = videos[codec], spec_of(codec)
    last = int(video.index.offsets[-2])
    rng = np.random.default_rng(13)
    for _ in range(FLIPS // 2):
        bad = video.data.copy()
        at = int(rng.integers(8 * last, 8 * len(bad)))
        bad[at // 8] ^= np.uint8(1 << at % 8)
        found = []
        for tail in (0, 0xFF, 0x55):
            placed = np.append(bad, np.full(64, tail, np.uint8))[: len(bad)]
            found.append(decodes(copied(video, placed), spec))
        assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_packets_are_refused_or_decoded(codec, videos):
    video, spec = videos[codec], spec_of(codec)
    for keep in (1, 2, 7, 40):
        parts, sizes = [], []
        for begin, end in zip(video.index.offsets[:-1], video.index.offsets[1:], strict=True):
            parts.append(video.data[begin : min(end, begin + keep)].tobytes())
            sizes.append(len(parts[-1]))
        found = decodes(copied(video, np.frombuffer(b"".join(parts), np.uint8), sizes=sizes), spec)
        assert isinstance(found, str), keep
        assert "cannot be decoded" in found or "must decode to a frame" in found or "is damaged" in found


@pytest.mark.parametrize("codec", CODECS)
def test_packets_in_another_order_are_refused_or_decoded(codec, videos):
    video, spec = videos[codec], spec_of(codec)
    rng = np.random.default_rng(2)
    offsets = video.index.offsets
    for _ in range(10):
        order = rng.permutation(len(video.index.sizes))
        data = np.concatenate([video.data[offsets[i] : offsets[i + 1]] for i in order])
        decodes(copied(video, data, sizes=video.index.sizes[order]), spec)
    decodes(copied(video, keys=np.ones(len(offsets) - 1, bool)), spec)  # entry points that are none


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_are_refused(codec, videos):
    rng = np.random.default_rng(4)
    spec = spec_of(codec)
    for _ in range(20):
        found = decodes(copied(videos[codec], rng.integers(0, 256, len(videos[codec].data), dtype=np.uint8)), spec)
        assert isinstance(found, str)


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
def test_missing_extradata_is_an_error(codec, videos):
    track = videos[codec].index.track
    bare = Track(codec, track.width, track.height, track.pixel_format, track.matrix, track.color_range)
    found = decodes(copied(videos[codec], track=bare), spec_of(codec))
    if codec != "mpeg4":  # whose packets are decoded with what a decoder assumes
        assert isinstance(found, str)


@pytest.mark.parametrize("codec", CODECS)
def test_frames_of_another_size_than_declared_are_refused(codec, videos):
    """Also where the index declares more than the packets have, or fewer pixels than a decoder would allocate."""
    track = videos[codec].index.track
    for height, width in ((20, 56), (40, 58), (400, 560)):
        other = Track(codec, width, height, "yuv420p", 2, 0, track.extradata)
        found = decodes(copied(videos[codec], track=other), spec_of(codec, height, width))
        assert isinstance(found, str)
        assert f"must be {height} x {width}, got 40 x 56" in found


def test_other_pixels_than_declared_are_refused(videos):
    track = videos["h264"].index.track
    other = Track("h264", track.width, track.height, "yuv444p", 2, 0, track.extradata)
    found = decodes(copied(videos["h264"], track=other), spec_of("h264"))
    assert "must have pixels of yuv444p, got yuv420p" in found


def test_a_large_video_in_a_small_stream_takes_no_memory_for_its_frames():
    """Packets of 2,048 x 2,048, declared as 16 x 16: the decoder refuses them before it allocates."""
    large = video_of(mp4(np.zeros((2, 2048, 2048, 3), np.uint8), "h264"), "h264")
    track = Track("h264", 16, 16, "yuv420p", 2, 0, large.index.track.extradata)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = decodes(copied(large, track=track), spec_of("h264", 16, 16))
    assert isinstance(found, str)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB


@pytest.mark.parametrize("tier", ["memory", "mmap"])
def test_a_loader_names_stream_episode_and_frame(tmp_path, tier):
    class Damaged(FilmSource):
        def episode(self, index):
            episode = super().episode(index)
            stream = episode.streams["film_h264"]
            if index == 2:
                noise = np.random.default_rng(0).integers(0, 256, stream.video.nbytes, dtype=np.uint8)
                bad = copied(stream.video, noise)
                episode.streams["film_h264"] = robocache.EpisodeStream(stream.spec, bad, stream.times)
            return episode

    def black(video, spec, rows):
        return np.zeros((len(rows), *spec.shape), np.uint8)

    writer = robocache.CacheWriter(tmp_path / "cache", Damaged(FILMS).specs, _decode_video=black)
    for episode in Damaged(FILMS):
        writer.add(episode)
    loader = Loader(writer.commit(), 4, {"film_h264": Window()}, tier=tier, shuffle=False)
    loader.batch(0)
    with pytest.raises(FormatError, match=r"Loader: stream 'film_h264': episode 2, frame \d+ cannot be decoded"):
        list(loader)
    loader.batch(0)


def test_ingest_names_damaged_packets_that_it_decodes(tmp_path):
    """Those of the samples for statistics, and all of them for JPEG; decoded in the reader process."""

    class Noise(FilmSource):
        def episode(self, index):
            episode = super().episode(index)
            stream = episode.streams["film_av1"]
            noise = np.random.default_rng(0).integers(0, 256, stream.video.nbytes, dtype=np.uint8)
            if index == 1:
                bad = copied(stream.video, noise)
                episode.streams["film_av1"] = robocache.EpisodeStream(stream.spec, bad, stream.times)
            return episode

    names = {
        "keep": "^stream 'film_av1': episode 1, frame 0 cannot be decoded: ",
        "jpeg": "^ingest: episode 1: stream 'film_av1': frame 0 cannot be decoded: ",
        "raw": "stream 'film_av1': frame 0 cannot be decoded: ",
    }
    for images, message in names.items():
        with pytest.raises(FormatError, match=message):
            robocache.ingest(Noise(FILMS), tmp_path / images, images=images)
