"""Frames of video on CUDA: from every tier the same bits as on the CPU. A stand-in for PyAV, which a machine with a GPU
may not have, makes the planes of a frame from the bytes of its packets."""

import numpy as np
import pytest
import robocache
from cuda_tools import DEVICE, assert_same_bits, needs_cuda
from picture_cases import CameraSource
from robocache import ColorJitter, EpisodeStream, Image, Loader, RandomCrop, Window
from robocache.cache import video as videos
from robocache.cache.video import Video, VideoIndex
from robocache.loader.batches.store import TIERS
from robocache.ops.decode.video import Track
from video_cases import spec_of

RANDOM = Image(
    size=(24, 24), crop=RandomCrop(0.6), flip=0.5, color=ColorJitter(0.3, 0.2, 0.4), layout="CHW", dtype="bfloat16",
    normalize="imagenet",
)  # fmt: skip
SPEC = spec_of("h264", 40, 58)


def stand_in(gops):
    """A frame depends on all packets from the entry point on; formats alternate."""
    made = []
    for gop in gops:
        assert gop.track.is_planar
        for number, out in gop.wanted.items():
            seed = [int(byte) for packet in gop.packets[: number + 1] for byte in packet]
            out[:] = np.random.default_rng(seed).integers(0, 256, len(out), dtype=np.uint8)
        made.append({number: 1 + number % 10 for number in gop.wanted})
    return made


class Source(CameraSource):
    def __init__(self):
        super().__init__({"film": SPEC})

    def episode(self, index):
        self.specs = {"arm": self.specs["arm"]}
        episode = super().episode(index)
        self.specs = {**self.specs, "film": SPEC}
        count = self.messages - 2 * index
        rng = np.random.default_rng(index)
        sizes = rng.integers(1, 5, count)
        data = rng.integers(0, 256, sizes.sum(), dtype=np.uint8)
        track = Track("h264", 58, 40, "yuv420p", 2, 0)
        rows = np.arange(count)
        video = Video(data, VideoIndex(track, (1, 10), sizes, rows, rows % 4 == 0, rows))
        episode.streams["film"] = EpisodeStream(SPEC, video, rows * 100_000_000)
        return episode


def loaders(folder, devices, tier, image=RANDOM):
    writer = robocache.CacheWriter(folder / "cache", Source().specs, shard_bytes=1)
    for episode in Source():
        writer.add(episode)
    windows = {"arm": Window(), "film": Window(past=0.2, rate_hz=10, image=image)}
    cache = writer.commit()
    return [Loader(cache, 6, windows, seed=5, device=d, tier=t) for d, t in zip(devices, ("memory", tier), strict=True)]


@needs_cuda
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("image", [RANDOM, None])
@pytest.mark.parametrize("most_bytes", [None, 1])
def test_every_tier_gives_the_bits_of_the_cpu(tmp_path, monkeypatch, tier, image, most_bytes):
    monkeypatch.setattr(videos, "decode_gops", stand_in)
    monkeypatch.setattr("robocache.ops.decode.nvdec.why_not", lambda track, device: "its packets are random bytes")
    if most_bytes is not None:
        monkeypatch.setattr("robocache.loader.batches.video.DECODED_BYTES", most_bytes)
    want, got = loaders(tmp_path, ("cpu", DEVICE), tier, image)
    for step in (0, len(want) - 1):
        mine, its = got.batch(step), want.batch(step)
        assert mine["film"].device.type == DEVICE
        assert_same_bits(mine["film"], its["film"], f"step {step}")


@pytest.mark.parametrize("tier", ["memory", "mmap"])
def test_the_stand_in_decodes_each_gop_once(tmp_path, monkeypatch, tier):
    calls = []
    monkeypatch.setattr(videos, "decode_gops", lambda gops: calls.append(gops) or stand_in(gops))
    _, made = loaders(tmp_path, ("cpu", "cpu"), tier)
    calls.clear()
    made.batch(0)
    (gops,) = calls
    packets = [bytes(np.concatenate(gop.packets)) for gop in gops]
    assert len({packet[:8] for packet in packets}) == len(packets)
    assert all(max(gop.wanted) == len(gop.packets) - 1 for gop in gops)
