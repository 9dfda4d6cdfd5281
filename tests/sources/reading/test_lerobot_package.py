"""LeRobot's own package opens what export writes, and what it writes is read here.

It wants more than a machine for tests has, so these are skipped where it is missing: pip install lerobot
"""

import numpy as np
import pytest
import robocache
from export_cases import expressible

pytest.importorskip("lerobot")
pytest.importorskip("av")
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from test_export_video import source_of

FPS = 25
LENGTHS = (20, 27, 34)
PICTURE = (96, 128, 3)


def as_lerobot_gives_it(row, kind):
    """A row of a stream as an item of LeRobotDataset: floats are float32 there, pictures channels first from 0 to 1,
    and pictures of 16 bits have a sign."""
    if kind == "image":
        return row.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    if kind == "depth":
        return row.astype(np.int16)
    with np.errstate(over="ignore"):
        return row.astype(np.float32) if row.dtype.kind == "f" else row


def test_it_opens_what_export_wrote(tmp_path, rng, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = expressible(rng, FPS)
    # its tensors cannot hold these
    kept = [name for name, s in source.specs.items() if s.dtype != "uint64"]
    robocache.export(source, tmp_path / "out", fps=FPS, streams=kept)
    dataset = LeRobotDataset("local/exported", root=tmp_path / "out")
    episodes = [source.episode(i) for i in range(len(source))]
    assert (dataset.num_episodes, dataset.fps) == (len(episodes), FPS)
    assert len(dataset) == sum(len(e.streams["matrix"].values) for e in episodes)
    for item in map(dataset.__getitem__, range(len(dataset))):
        episode, frame = episodes[int(item["episode_index"])], int(item["frame_index"])
        assert item["task"] == episode.task
        assert float(item["timestamp"]) == np.float32(frame / FPS)
        for name in kept:
            expected = as_lerobot_gives_it(episode.streams[name].values[frame], source.specs[name].kind)
            got = item[name].numpy()
            np.testing.assert_array_equal(got.reshape(expected.shape), expected, name)
    windows = LeRobotDataset(
        "local/exported", root=tmp_path / "out", delta_timestamps={"matrix": [-1 / FPS, 0, 1 / FPS]}
    )
    assert windows[0]["matrix"].shape == (3, 2, 3)
    assert windows[0]["matrix_is_pad"].tolist() == [True, False, False]


@pytest.mark.parametrize("video", ["av1", "h264"])
def test_it_reads_the_same_frames_of_exported_videos(tmp_path, rng, monkeypatch, video):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    robocache.export(source_of(rng), tmp_path / "out", video_codec=video)
    back = [*robocache.open(tmp_path / "out")]
    dataset = LeRobotDataset("local/exported", root=tmp_path / "out", video_backend="pyav")
    assert (len(dataset), dataset.num_episodes) == (sum(len(e.streams["arm"]) for e in back), len(back))
    for item in map(dataset.__getitem__, range(len(dataset))):
        streams, frame = back[int(item["episode_index"])].streams, int(item["frame_index"])
        for name in ("wrist", "front"):
            pixels = (item[name].numpy() * 255).round().transpose(1, 2, 0)
            np.testing.assert_array_equal(pixels, streams[name].values[frame])


@pytest.mark.parametrize("stored", ["image", "video"])
def test_what_it_wrote_is_read(stored, tmp_path, rng):
    features = {
        "observation.state": {"dtype": "float32", "shape": (6,), "names": [f"joint{i}" for i in range(6)]},
        "reward": {"dtype": "float64", "shape": (1,), "names": None},
        "done": {"dtype": "bool", "shape": (1,), "names": None},
        "ticks": {"dtype": "int64", "shape": (1,), "names": None},
        "observation.images.cam": {"dtype": stored, "shape": PICTURE, "names": ["height", "width", "channels"]},
    }
    written = LeRobotDataset.create("local/made", FPS, features, tmp_path / "made", "so101", stored == "video")
    rows = np.arange(PICTURE[0])[:, None]
    columns = np.arange(PICTURE[1])[None, :]
    expected = []
    for e, length in enumerate(LENGTHS):
        frames = [
            {
                "observation.state": rng.normal(size=6).astype(np.float32),
                "reward": rng.normal(size=1),
                "done": np.array([t == length - 1]),
                "ticks": np.array([t * 10**12 + e]),
                "observation.images.cam": np.stack(
                    np.broadcast_arrays(2 * rows + 3 * t, columns + 40 * e, 9 * t), axis=-1
                ).astype(np.uint8),
            }
            for t in range(length)
        ]
        for frame in frames:
            written.add_frame(frame | {"task": f"task {e % 2}"})
        written.save_episode()
        expected.append({name: np.stack([frame[name] for frame in frames]) for name in features})
    written.finalize()

    source = robocache.open(tmp_path / "made")
    assert source.metadata["problems"] == []
    assert source.specs.keys() == features.keys()
    for e, (length, values) in enumerate(zip(LENGTHS, expected, strict=True)):
        episode = source.episode(e)
        assert episode.task == f"task {e % 2}"
        for name, stream in episode.streams.items():
            assert stream.times.tolist() == [t * 10**9 // FPS for t in range(length)]
            assert stream.values.dtype == values[name].dtype
            if stored == "video" and name.startswith("observation.images"):
                away = np.abs(stream.values.astype(np.int16) - values[name].astype(np.int16))
                assert away.mean() < 4, "another frame, or another video"
            else:
                np.testing.assert_array_equal(stream.values, values[name], name)
