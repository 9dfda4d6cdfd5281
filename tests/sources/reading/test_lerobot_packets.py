"""LeRobot videos whose packets stay as they are: their frames are those that ingest decodes, in less room."""

import json
import shutil

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from robocache import FormatError
from video_cases import ENCODERS, film, mp4

pytest.importorskip("av")
STREAM = "observation.video"
FORMATS = {"v2.1": datasets.lerobot_v21, "v3.0": datasets.lerobot_v30}


def dataset(folder, rng, version, codec="h264", gop=5, height=64, width=80, **options):
    """A dataset whose videos are of another codec; v3.0 has all episodes in one file."""
    written = FORMATS[version](folder, rng)
    info = json.loads((written.path / "meta/info.json").read_text())
    info["features"][STREAM]["shape"] = [height, width, 3]
    (written.path / "meta/info.json").write_text(json.dumps(info))
    lengths = [len(streams["action"][1]) for streams in written.streams]
    paths = sorted(written.path.rglob("*.mp4"))
    counts = lengths if len(paths) > 1 else [sum(lengths)]
    for path, count in zip(paths, counts, strict=True):
        path.unlink()
        mp4(film(rng, count, height, width), codec, gop, rate=30, path=path, **options)
    return written.path


@pytest.mark.parametrize("codec", [*ENCODERS])
@pytest.mark.parametrize("version", [*FORMATS])
def test_kept_frames_are_those_that_ingest_decodes(tmp_path, rng, version, codec):
    path = dataset(tmp_path, rng, version, codec)
    kept = robocache.ingest(path, tmp_path / "keep")
    raw = robocache.ingest(path, tmp_path / "raw", images="raw")
    assert kept.specs[STREAM].codec == codec
    assert raw.specs[STREAM].codec is None
    assert kept.verify() == []
    for a, b in zip(kept, raw, strict=True):
        np.testing.assert_array_equal(a.streams[STREAM].times, b.streams[STREAM].times)
        np.testing.assert_array_equal(a.streams[STREAM].values, b.streams[STREAM].values)


def test_an_episode_inside_of_a_gop_keeps_the_packets_from_its_entry_point(tmp_path, rng):
    path = dataset(tmp_path, rng, "v3.0", gop=1000)
    kept = robocache.ingest(path, tmp_path / "keep")
    first = [len(episode.streams[STREAM].video.index.sizes) - len(episode.streams[STREAM]) for episode in kept]
    assert first[0] <= 2  # what comes before the last frame in decode order
    assert min(first[1:]) > first[0]
    raw = robocache.ingest(path, tmp_path / "raw", images="raw")
    for a, b in zip(kept, raw, strict=True):
        np.testing.assert_array_equal(a.streams[STREAM].values, b.streams[STREAM].values)


@pytest.mark.parametrize(("gop", "b_frames"), [(4, 2), (9, 3)])
def test_open_gops_at_the_begin_of_an_episode(tmp_path, rng, gop, b_frames):
    """With three B-frames, the pictures after a recovery point release references of the GOP before it."""
    path = dataset(tmp_path, rng, "v3.0", gop=gop, bf=str(b_frames), **{"x264-params": "open-gop=1:scenecut=0"})
    kept, raw = (robocache.ingest(path, tmp_path / images, images=images) for images in ("keep", "raw"))
    for a, b in zip(kept, raw, strict=True):
        np.testing.assert_array_equal(a.streams[STREAM].values, b.streams[STREAM].values)


@pytest.mark.parametrize("muxer", [{"use_editlist": "0"}, {"movflags": "frag_keyframe+empty_moov"}])
@pytest.mark.parametrize(("codec", "gop"), [("mpeg4", 1), ("mpeg4", 2), ("h264", 2)])
def test_the_first_frame_of_a_video_with_b_frames_is_found_without_an_edit_list(tmp_path, rng, codec, gop, muxer):
    """It is shown later than it is decoded, so that its packet was before the place that was searched from."""
    path = dataset(tmp_path, rng, "v2.1", codec, gop=gop, muxer=muxer)
    kept, raw = (robocache.ingest(path, tmp_path / images, images=images) for images in ("keep", "raw"))
    for a, b in zip(kept, raw, strict=True):
        np.testing.assert_array_equal(a.streams[STREAM].values, b.streams[STREAM].values)


def test_a_keyframe_of_a_gradual_refresh_is_no_entry_point(tmp_path, rng):
    """Pictures are whole only frames after it: decoded from there, the first ones were missing or wrong."""
    path = dataset(tmp_path, rng, "v3.0", gop=8, bf="0", **{"x264-params": "intra-refresh=1:ref=4"})
    kept, raw = (robocache.ingest(path, tmp_path / images, images=images) for images in ("keep", "raw"))
    for a, b in zip(kept, raw, strict=True):
        np.testing.assert_array_equal(a.streams[STREAM].values, b.streams[STREAM].values)
        assert len(a.streams[STREAM].video.index.entries) == 1


def test_a_cache_is_as_large_as_the_videos(tmp_path, rng):
    path = dataset(tmp_path, rng, "v2.1", height=240, width=320)
    kept = robocache.ingest(path, tmp_path / "keep", streams=[STREAM])
    packets = sum(episode.streams[STREAM].video.nbytes for episode in kept)
    indexes = sum(len(episode.streams[STREAM].video.index.to_bytes()) for episode in kept)
    files = sum(file.stat().st_size for file in path.rglob("*.mp4"))
    assert packets + indexes <= 1.05 * files


def test_another_codec_in_a_later_file_is_named(tmp_path, rng):
    path = dataset(tmp_path, rng, "v2.1")
    other = dataset(tmp_path / "other", rng, "v2.1", "vp9")
    file = sorted(path.rglob("*.mp4"))[1]
    shutil.copy(sorted(other.rglob("*.mp4"))[1], file)
    with pytest.raises(FormatError, match=rf"{file.name}: the video is vp9, but the first of its stream is h264"):
        robocache.ingest(path, tmp_path / "keep")
    assert robocache.ingest(path, tmp_path / "raw", images="raw").specs[STREAM].codec is None


def test_rows_without_a_frame_are_repaired_as_for_pixels(tmp_path, rng):
    path = dataset(tmp_path, rng, "v2.1")
    file = sorted(path.rglob("*.mp4"))[2]
    rows = datasets.LENGTHS[2]
    file.unlink()
    mp4(film(rng, rows - 2, 64, 80), "h264", rate=30, path=file)
    with pytest.raises(FormatError, match="has no frame at"):
        robocache.ingest(path, tmp_path / "keep")
    options = {"repair": {"missing": "drop"}}
    kept, raw = (robocache.ingest(path, tmp_path / images, images=images, **options) for images in ("keep", "raw"))
    assert len(kept.episode(2).streams[STREAM]) == rows - 2
    assert kept.episode(2).meta["repairs"] == raw.episode(2).meta["repairs"]
    np.testing.assert_array_equal(kept.episode(2).streams[STREAM].values, raw.episode(2).streams[STREAM].values)
