"""``export(video_codec=...)``: LeRobot v3.0 with videos, read back frame by frame."""

import json
import os
from fractions import Fraction

import numpy as np
import pytest
import robocache
from export_cases import listed, times_at
from picture_cases import encoded
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cli import main
from robocache.sources.lerobot import write_video

av = pytest.importorskip("av")
pq = pytest.importorskip("pyarrow.parquet")

FPS, LENGTHS, SIZE = 30, (7, 12, 1), (48, 64)


def frames(rng, rows, size=SIZE, channels=3):
    """A smooth scene that moves and changes color, so that each frame differs from its neighbors."""
    y, x = np.mgrid[: size[0], : size[1]]
    phase = rng.uniform(0, 6)
    colors = [
        [120 + 90 * np.sin(x / 9 + 0.4 * row + c + phase) * np.cos(y / 11 - 0.2 * row) for c in range(channels)]
        for row in range(rows)
    ]
    return np.array(colors).transpose(0, 2, 3, 1).astype(np.uint8)


def source_of(rng, fps=FPS, codec=None, **cameras):
    specs = {
        name: StreamSpec(name, "uint8", (*size, channels), "image", fps, codec=codec)
        for name, (size, channels) in (cameras or {"wrist": (SIZE, 3), "front": ((32, 40), 3)}).items()
    }
    arm = StreamSpec("arm", "float32", (2,), rate_hz=fps)
    episodes = []
    for i, rows in enumerate(LENGTHS):
        streams = {"arm": EpisodeStream(arm, rng.normal(size=(rows, 2)).astype(np.float32), times_at(rows, fps))}
        for name, spec in specs.items():
            pixels = frames(rng, rows, spec.shape[:2], spec.shape[2])
            values = pixels if codec is None else [encoded(p, codec.upper()) for p in pixels]
            streams[name] = EpisodeStream(spec, values, times_at(rows, fps))
        episodes.append(Episode(i, streams, f"task {i % 2}"))
    return listed(*episodes)


def decoded(path):
    with av.open(str(path)) as container:
        return [(f.pts * f.time_base, f.to_ndarray(format="rgb24"), f.key_frame) for f in container.decode(video=0)]


def close(given, found):
    """Each frame is the given one, up to what the codec loses, and nearer to it than to any other frame."""
    assert given.shape == found.shape
    away = np.abs(given[:, None].astype(int) - found[None]).mean((2, 3, 4))
    assert np.diag(away).max() < 7
    np.testing.assert_array_equal(away.argmin(0), np.arange(len(given)))


@pytest.mark.parametrize("codec", [None, "jpeg"])
@pytest.mark.parametrize("video", ["av1", "h264"])
def test_videos_have_the_frames_times_and_pixels_of_the_source(tmp_path, rng, video, codec):
    source = source_of(rng, codec=codec)
    done = robocache.export(source, tmp_path / "out", video_codec=video)
    back = robocache.open(tmp_path / "out")
    assert back.metadata["problems"] == []
    assert (len(back), done.frames) == (len(LENGTHS), sum(LENGTHS))
    for name in ("wrist", "front"):
        assert any(line.startswith(f"{name}: encoded as {video}") for line in done.lost)
        in_file = decoded(tmp_path / f"out/videos/{name}/chunk-000/file-000.mp4")
        assert [t for t, _, _ in in_file] == [Fraction(i, FPS) for i in range(sum(LENGTHS))]
        begin = 0
        for given, found in zip(source, back, strict=True):
            a, b = given.streams[name], found.streams[name]
            np.testing.assert_array_equal(a.times, b.times)
            close(a.values, b.values)
            assert in_file[begin][2], "an episode must begin with a key frame"
            for row in range(len(b)):  # the frame itself, not a neighbor
                np.testing.assert_array_equal(b.values[row], in_file[begin + row][1])
            begin += len(b)
        np.testing.assert_array_equal(source.episode(0).streams["arm"].values, back.episode(0).streams["arm"].values)


def test_an_encoder_leaves_no_thread_in_real_time(tmp_path, rng, monkeypatch):
    """As root, SVT-AV1 schedules the thread that opens it in real time, and processes started later inherit it."""
    seen = []
    opened = write_video.VideoFiles._open

    def checked(self, path):
        opened(self, path)
        seen.extend(filter(write_video.is_real_time, os.listdir(write_video.TASKS)))

    monkeypatch.setattr(write_video.VideoFiles, "_open", checked)
    robocache.export(source_of(rng), tmp_path / "out", video_codec="av1")
    assert seen == []
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize("video", ["av1", "h264"])
def test_meta_is_what_lerobot_writes(tmp_path, rng, video):
    robocache.export(source_of(rng), tmp_path / "out", video_codec=video)
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    feature = info["features"]["wrist"]
    assert (feature["dtype"], feature["shape"], feature["names"]) == (
        "video",
        [48, 64, 3],
        ["height", "width", "channels"],
    )
    expected = {"codec": video, "pix_fmt": "yuv420p", "fps": FPS, "height": 48, "width": 64, "channels": 3}
    expected |= {"g": 2, "crf": 30, "preset": {"av1": 12, "h264": None}[video]}
    assert {key: feature["info"][f"video.{key}"] for key in expected} == expected
    assert (feature["info"]["has_audio"], feature["info"]["is_depth_map"]) == (False, False)
    table = pq.read_table(tmp_path / "out/meta/episodes")
    ends = np.cumsum(LENGTHS) / FPS
    np.testing.assert_allclose(table["videos/wrist/to_timestamp"].to_numpy(), ends, rtol=1e-12)
    np.testing.assert_allclose(table["videos/wrist/from_timestamp"].to_numpy(), [0, *ends[:-1]], rtol=1e-12)
    assert "wrist" not in pq.read_table(tmp_path / "out/data").column_names
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["wrist"]
    assert np.shape(stats["mean"]) == (3, 1, 1)
    assert 0.2 < stats["mean"][0][0][0] < 0.8
    with av.open(str(tmp_path / "out/videos/wrist/chunk-000/file-000.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec.canonical_name, stream.pix_fmt, stream.base_rate) == (video, "yuv420p", FPS)
        keys = [packet.is_keyframe for packet in container.demux(stream) if packet.size]
    assert sum(keys) >= len(keys) // 2, "every second frame is a key frame"


@pytest.mark.parametrize("fps", [10, 29.97, 12.5])
def test_rates_that_are_not_whole_are_read_back(tmp_path, rng, fps):
    source = source_of(rng, fps)
    robocache.export(source, tmp_path / "out", fps=fps, video_codec="h264")
    for given, found in zip(source, robocache.open(tmp_path / "out"), strict=True):
        a, b = given.streams["wrist"].values, found.streams["wrist"].values
        close(a, b)


def test_a_full_file_is_followed_by_the_next(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(write_video, "FILE_BYTES", 1)
    source = source_of(rng, wrist=(SIZE, 3))
    robocache.export(source, tmp_path / "out", video_codec="h264")
    files = sorted((tmp_path / "out/videos/wrist/chunk-000").glob("*.mp4"))
    assert len(files) > 1
    for given, found in zip(source, robocache.open(tmp_path / "out"), strict=True):
        close(given.streams["wrist"].values, found.streams["wrist"].values)


def test_images_that_are_no_videos_stay_images_and_are_named(tmp_path, rng):
    source = source_of(rng, gray=(SIZE, 1), alpha=(SIZE, 4), odd=((33, 25), 3), wrist=(SIZE, 3))
    done = robocache.export(source, tmp_path / "out", video_codec="h264")
    lost = {line.partition(":")[0]: line for line in done.lost}
    assert "stored as images: videos have 3 channels" in lost["gray"]
    assert "stored as images: videos have 3 channels" in lost["alpha"]
    assert "h264 needs an even height and width, not 33 x 25" in lost["odd"]
    back = robocache.open(tmp_path / "out")
    for name in ("gray", "alpha", "odd"):
        np.testing.assert_array_equal(back.episode(1).streams[name].values, source.episode(1).streams[name].values)
    robocache.export(source, tmp_path / "av1", video_codec="av1", streams=["odd"])
    assert robocache.open(tmp_path / "av1").episode(0).streams["odd"].values.shape == (7, 33, 25, 3)


def test_bad_choices_are_named(tmp_path, rng, capsys):
    with pytest.raises(ValueError, match="export: video_codec must be one of av1, h264 or None, got 'vp9'"):
        robocache.export(source_of(rng), tmp_path / "out", video_codec="vp9")
    assert not (tmp_path / "out").exists()
    robocache.ingest(source_of(rng), tmp_path / "cache")
    assert main.main(["export", str(tmp_path / "cache"), str(tmp_path / "out"), "--video", "h264", "--json"]) == 0
    assert any("encoded as h264" in line for line in json.loads(capsys.readouterr().out)["lost"])
    assert (tmp_path / "out/videos/wrist/chunk-000/file-000.mp4").is_file()


def test_an_encoder_that_is_missing_is_named(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(av, "codecs_available", {"libx264"})
    with pytest.raises(NotImplementedError, match="video_codec='av1' needs the encoder libsvtav1"):
        robocache.export(source_of(rng), tmp_path / "out", video_codec="av1")
    assert not (tmp_path / "out").exists()
