"""foxglove_msgs/CompressedVideo in MCAP: packets stay as they are, frames are those of PyAV at the messages' times."""

import adapter_logs
import numpy as np
import pytest
import robocache
from hostile import refused
from robocache import FormatError
from robocache.sources.reading import isolated
from video_cases import film, packets_of

av = pytest.importorskip("av")
pytest.importorskip("mcap_ros2")
KIND, TOPIC = "foxglove_msgs/msg/CompressedVideo", "/wrist/video"
FORMATS = {"h264": "h264", "hevc": "h265", "vp9": "vp9", "av1": "av1"}
START_NS, STEP_NS = adapter_logs.START_NS, 33_333_333


def frames_of(packets, codec):
    """By PyAV, in the order they are shown."""
    decoder = av.CodecContext.create({"av1": "libdav1d"}.get(codec, codec), "r")
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet))]
    return np.stack([frame.to_ndarray(format="rgb24") for frame in [*frames, *decoder.decode(None)]])


def log(path, packets, format, topic=TOPIC):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = adapter_logs.Log(path)
    for i, data in enumerate(packets):
        at = START_NS + i * STEP_NS
        message = {"timestamp": adapter_logs.stamp(at)["stamp"], "frame_id": "", "data": data, "format": format}
        file.write(topic, KIND, message, at)
    file.close()
    return path


def ingested(path, images="keep", clock="header.stamp", **options):
    return robocache.ingest(path, path.parent / images, clock=clock, images=images, **options)


@pytest.mark.parametrize("size", [(48, 64), (90, 150)])
@pytest.mark.parametrize("codec", [*FORMATS])
def test_frames_are_those_of_pyav_at_the_times_of_the_messages(tmp_path, rng, codec, size):
    packets = packets_of(film(rng, 12, *size), codec)
    expected = frames_of(packets, codec)
    cache = ingested(log(tmp_path / "a.mcap", packets, FORMATS[codec]))
    stream = cache.episode(0).streams[TOPIC]
    assert (stream.spec.codec, stream.spec.shape) == (codec, (*size, 3))
    assert stream.video.data.tobytes() == b"".join(packets)
    np.testing.assert_array_equal(stream.times, START_NS + np.arange(12) * STEP_NS)
    np.testing.assert_array_equal(stream.values, expected)
    assert cache.verify() == []


@pytest.mark.parametrize("codec", [*FORMATS])
def test_a_frame_is_decoded_from_its_own_key_frame(tmp_path, rng, codec):
    packets = packets_of(film(rng, 12), codec)
    index = ingested(log(tmp_path / "a.mcap", packets, FORMATS[codec])).episode(0).streams[TOPIC].video.index
    np.testing.assert_array_equal(index.entries, [0, 5, 10])
    np.testing.assert_array_equal(index.rows, np.arange(12))


def test_pixels_are_those_of_the_packets(tmp_path, rng):
    path = log(tmp_path / "a.mcap", packets_of(film(rng, 12), "h264"), "h264")
    kept, raw = (ingested(path, images).episode(0).streams[TOPIC] for images in ("keep", "raw"))
    assert raw.spec.codec is None
    np.testing.assert_array_equal(raw.values, kept.values)


def test_frames_of_one_key_frame_are_decoded_in_few_parts(tmp_path, rng, monkeypatch):
    from robocache.sources.mcap import video

    parts = []

    def decode_video(packets, spec, rows):
        parts.append(list(rows))
        return isolated.decode_video(packets, spec, rows)

    monkeypatch.setattr(video, "DECODED_BYTES", 1)
    monkeypatch.setattr(video, "decode_video", decode_video)
    packets = packets_of(film(rng, 24), "h264", gop=24)
    path = log(tmp_path / "a.mcap", packets, "h264")
    values = robocache.open(path, clock="log_time").episode(0).streams[TOPIC].values
    assert [len(rows) for rows in parts] == [6, 6, 6, 6]
    np.testing.assert_array_equal(values, frames_of(packets, "h264"))


def test_pixels_of_far_more_bytes_than_the_file_stores_are_refused(tmp_path):
    key, still = packets_of(np.zeros((2, 1080, 1920, 3), np.uint8), "vp9")
    path = log(tmp_path / "a.mcap", [key, *[still] * 200], "vp9")
    assert path.stat().st_size < 20_000
    match = f"stream {TOPIC} declares 1250380800 bytes, more than 20000 times its [0-9]+ stored bytes"
    refused(path, match, clock="log_time")
    assert len(robocache.open(path, clock="log_time", encoded=True).episode(0).streams[TOPIC].times) == 201


def test_frames_become_jpeg(tmp_path, rng):
    cache = ingested(log(tmp_path / "a.mcap", packets_of(film(rng, 6), "h264"), "h264"), "jpeg")
    assert cache.specs[TOPIC].codec == "jpeg"


CLOCKS = {"log_time": 7_000_000, "publish_time": 2_000_000, "header.stamp": 0}


@pytest.mark.parametrize(("clock", "late_ns"), CLOCKS.items())
def test_times_are_those_of_the_chosen_clock(tmp_path, rng, clock, late_ns):
    path = log(tmp_path / "a.mcap", packets_of(film(rng, 3), "h264"), "h264")
    times = robocache.open(path, clock=clock, encoded=True).episode(0).streams[TOPIC].times
    np.testing.assert_array_equal(times, START_NS + late_ns + np.arange(3) * STEP_NS)


def without_sets(packet):
    """An Annex B packet of H.264 without its parameter sets."""
    units = packet.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]
    return b"".join(b"\0\0\0\1" + unit for unit in units if unit[0] & 31 not in (7, 8))


def test_parameter_sets_that_come_once_serve_all_key_frames(tmp_path, rng):
    packets = packets_of(film(rng, 12), "h264")
    expected = frames_of(packets, "h264")
    packets = [packets[0], *map(without_sets, packets[1:])]
    stream = ingested(log(tmp_path / "a.mcap", packets, "h264")).episode(0).streams[TOPIC]
    np.testing.assert_array_equal(stream.video.index.entries, [0, 5, 10])
    np.testing.assert_array_equal(stream.video.decoded(stream.spec, [11]), expected[11:])
    np.testing.assert_array_equal(stream.values, expected)


def test_messages_before_the_first_key_frame_are_an_error_that_can_be_repaired(tmp_path, rng):
    packets = packets_of(film(rng, 12), "h264")
    path = log(tmp_path / "a.mcap", packets[2:], "h264")
    with pytest.raises(FormatError, match=r"3 messages before the first keyframe.*repair=\{'missing': 'drop'\}"):
        ingested(path)
    episode = ingested(path, repair={"missing": "drop"}).episode(0)
    assert episode.meta["repairs"] == {TOPIC: {"missing": 3}}
    np.testing.assert_array_equal(episode.streams[TOPIC].values, frames_of(packets, "h264")[5:])
    np.testing.assert_array_equal(episode.streams[TOPIC].times, START_NS + np.arange(3, 10) * STEP_NS)


def test_a_video_without_a_key_frame_is_left_out_with_the_reason(tmp_path, rng):
    packets = packets_of(film(rng, 5), "h264")
    file = log(tmp_path / "a.mcap", packets[1:], "h264")
    source = robocache.open(file, clock="log_time", encoded=True)
    assert TOPIC not in source.specs
    [left] = source.left_out
    assert left.name == TOPIC
    assert "no keyframe" in left.reason


def test_an_episode_without_a_key_frame_has_no_rows(tmp_path, rng):
    packets = packets_of(film(rng, 5), "h264")
    log(tmp_path / "logs/a.mcap", packets, "h264")
    log(tmp_path / "logs/b.mcap", packets[1:], "h264")
    cache = ingested(tmp_path / "logs", repair={"missing": "drop"})
    assert [len(episode.streams[TOPIC]) for episode in cache] == [5, 0]


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_b_frames_are_refused(tmp_path, rng, codec):
    b_frames = {"bf": "2", "x265-params": "log-level=none:ctu=16:bframes=2:b-adapt=0:repeat-headers=1"}
    packets = packets_of(film(rng, 12), codec, 12, **b_frames)
    with pytest.raises(FormatError, match=r"message 2: the video has B-frames.*encode without B-frames"):
        ingested(log(tmp_path / "a.mcap", packets, FORMATS[codec]))


@pytest.mark.parametrize(
    ("data", "format", "message"),
    [
        (b"abc", "mjpeg", "format of a video must be one of h264, h265, vp9, av1, got 'mjpeg'; to leave the topic out"),
        (b"", "h264", "message 0: the h264 packet cannot be used: .* must be Annex B"),
        (b"\0\0\0\x09abc", "h265", "must be Annex B"),
        (b"\0\0\0\1\x67", "h264", "a header ends too early"),
        (b"\0\0\0\1\x09\xf0", "h264", "a message must have one picture, got 0"),
        (b"", "vp9", "a header ends too early"),
        (b"\0", "vp9", "must begin with its marker"),
        (b"\x12\0", "av1", "one frame that is shown, got 0"),
        (b"\x0a\xff", "av1", "the size of an AV1 unit"),
    ],
)
def test_bad_packets_are_named(tmp_path, data, format, message):
    with pytest.raises(FormatError, match=message):
        ingested(log(tmp_path / "a.mcap", [data], format))


@pytest.mark.parametrize(("unit", "format"), [(b"\x12\0", "av1"), (b"\0\0\1\x06", "h264"), (b"\0\0\1\x40\1\1", "h265")])
def test_a_message_of_a_million_units_is_refused_with_little_memory(tmp_path, unit, format):
    data = unit * (1 << 20)
    path = log(tmp_path / "a.mcap", [data], format)
    match = f"the {format} packet cannot be used: a message must have at most 8192 units"
    refused(path, match, peak_bytes=6 * len(data), clock="log_time", encoded=True)


def test_the_time_is_checked_before_each_unit(tmp_path):
    path = log(tmp_path / "a.mcap", [b"\0\0\1\x06" * 3], "h264")
    with pytest.raises(FormatError, match=f"topic {TOPIC}, message 0: reading took more than 0 s of processor time"):
        robocache.open(path, clock="log_time", max_seconds=1e-9)


def test_two_pictures_in_a_message_are_refused(tmp_path, rng):
    first, second = packets_of(film(rng, 2), "h264")
    with pytest.raises(FormatError, match="one picture, got 2"):
        ingested(log(tmp_path / "a.mcap", [first + second], "h264"))


def test_another_size_in_the_video_is_refused(tmp_path, rng):
    small, large = (packets_of(film(rng, 2, *size), "h264") for size in ((48, 64), (64, 64)))
    with pytest.raises(FormatError, match="message 2: the video is 64 x 64 yuv420p, its first keyframe 48 x 64"):
        ingested(log(tmp_path / "a.mcap", small + large, "h264"))


def test_another_codec_in_a_later_file_is_named(tmp_path, rng):
    for name, codec in (("a", "h264"), ("b", "hevc")):
        log(tmp_path / f"logs/{name}.mcap", packets_of(film(rng, 3), codec), FORMATS[codec])
    with pytest.raises(FormatError, match="the picture is hevc, but the first of its stream is h264"):
        ingested(tmp_path / "logs")


@pytest.mark.parametrize("codec", [*FORMATS])
def test_damaged_packets_are_a_format_error_or_frames(tmp_path, rng, codec):
    packets = packets_of(film(rng, 6), codec)
    for case in range(60):
        data = bytearray(packets[case % 2])
        data[int(rng.integers(min(64, len(data))))] ^= 1 << int(rng.integers(8))
        path = log(tmp_path / f"{case}.mcap", [packets[0], bytes(data)][case % 2 == 0 :], FORMATS[codec])
        try:
            robocache.open(path, clock="log_time", encoded=True).episode(0)
        except FormatError:
            continue


@pytest.mark.parametrize(("codec", "pixels"), [("h264", "yuv422p"), ("h264", "yuv444p"), ("hevc", "yuv420p10le")])
def test_other_pixels_are_converted_as_pyav_does(tmp_path, rng, codec, pixels):
    packets = packets_of(film(rng, 4), codec, pixels=pixels)
    stream = ingested(log(tmp_path / "a.mcap", packets, FORMATS[codec])).episode(0).streams[TOPIC]
    assert stream.video.index.track.pixel_format == pixels
    np.testing.assert_array_equal(stream.values, frames_of(packets, codec))


def test_a_loader_reads_the_frames(tmp_path, rng):
    pytest.importorskip("torch")
    packets = packets_of(film(rng, 8), "h264")
    cache = ingested(log(tmp_path / "a.mcap", packets, "h264"))
    windows = {TOPIC: robocache.Window(image=robocache.Image())}
    loader = robocache.Loader(cache, 8, windows, shuffle=False)
    batch = next(iter(loader))[TOPIC].numpy()
    np.testing.assert_array_equal(batch.reshape(8, *cache.specs[TOPIC].shape), frames_of(packets, "h264"))
