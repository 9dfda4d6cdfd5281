"""Images in batches, several moments of each: bytes as they were recorded, or floats between 0 and 1. By NumPy."""

import numpy as np
import pytest
from cuda_tools import needs_cuda
from loader_cases import anchors_in
from robocache import CacheWriter, Episode, EpisodeStream, Loader, StreamSpec, Window

torch = pytest.importorskip("torch")

SPECS = {
    "arm": StreamSpec("arm", "float32", (2,), rate_hz=50.0),
    "camera": StreamSpec("camera", "uint8", (5, 7, 3), "image", rate_hz=30.0),
    "depth": StreamSpec("depth", "uint16", (4, 6), "depth", rate_hz=15.0),
}
LARGEST = {"camera": 255, "depth": 65535}
PLACES = [("memory", "cpu"), ("mmap", "cpu")] + [
    pytest.param(tier, "cuda", marks=needs_cuda) for tier in ("memory", "mmap", "pinned", "gpu")
]
WINDOW = {"past": 0.15, "future": 0.1, "rate_hz": 20}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    rng = np.random.default_rng(5)
    writer = CacheWriter(tmp_path_factory.mktemp("images") / "c", SPECS, shard_bytes=20_000)
    for e in range(4):
        seconds, begin = rng.uniform(0.5, 1.0), int(rng.integers(0, 10**15))
        streams = {}
        for name, spec in SPECS.items():
            count = int(seconds * spec.rate_hz)
            times = begin + np.round(np.arange(count) * 1e9 / spec.rate_hz).astype(np.int64)
            values = (
                rng.normal(size=(count, 2))
                if name == "arm"
                else rng.integers(0, LARGEST[name] + 1, (count, *spec.shape))
            )
            values = values.astype(spec.dtype)
            if name != "arm":
                values[0].flat[:2] = 0, LARGEST[name]  # both ends are there
            streams[name] = EpisodeStream(spec, values, times)
        writer.add(Episode(e, streams))
    return writer.commit()


def expected(cache, batch, name, method):
    """For every anchor and moment: the image before it, or nearest to it, and whether the moment is outside."""
    images, outside = [], []
    for _, e, anchor in anchors_in(batch):
        rows = cache.episode(e).streams[name]
        for moment in (anchor + np.array(Window(**WINDOW).deltas_ns)).tolist():
            times = rows.times.tolist()
            outside.append(not times[0] <= moment <= times[-1])
            if method == "nearest":
                chosen = min(range(len(times)), key=lambda i: (abs(times[i] - moment), i))
            else:
                chosen = max((i for i in range(len(times)) if times[i] <= moment), default=0)
            images.append(rows.values[chosen])
    shape = (len(batch["anchor_ns"]), len(Window(**WINDOW).deltas_ns))
    return np.array(images).reshape(*shape, *SPECS[name].shape), np.array(outside).reshape(shape)


@pytest.mark.parametrize("method", ["previous", "nearest", None])
@pytest.mark.parametrize(("tier", "device"), PLACES)
@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16", "float64"])
def test_images_of_several_moments(recorded, tier, device, dtype, method):
    """``dtype`` None: as they are; else normalized to [0, 1], in float32, and rounded once to the dtype."""
    window = Window(**WINDOW, method=method)
    unit = (
        {} if dtype is None else {"normalize": dict.fromkeys(LARGEST, "unit"), "dtype": dict.fromkeys(LARGEST, dtype)}
    )
    windows = {"arm": Window(), **dict.fromkeys(LARGEST, window)}
    loader = Loader(recorded, 9, windows, tier=tier, device=device, seed=3, return_index=True, **unit)
    for step in (0, len(loader) - 1):
        batch = loader.batch(step)
        for name, largest in LARGEST.items():
            images, outside = expected(recorded, batch, name, method or "previous")
            assert images.shape[1] == 6
            assert outside.any()
            assert not outside.all()
            np.testing.assert_array_equal(batch[f"{name}_is_pad"].cpu().numpy(), outside)
            if dtype is None:
                assert batch[name].dtype == getattr(torch, SPECS[name].dtype)
                np.testing.assert_array_equal(batch[name].cpu().numpy(), images)
                continue
            scaled = images.astype(np.float32) * np.float32(1 / largest)
            wanted = torch.from_numpy(scaled).to(getattr(torch, dtype))
            assert batch[name].dtype == wanted.dtype
            assert torch.equal(batch[name].cpu(), wanted)


def test_the_ends_of_the_range_become_0_and_1(recorded):
    unit, windows = dict.fromkeys(LARGEST, "unit"), dict.fromkeys(LARGEST, Window())
    loader = Loader(recorded, 9, windows, anchors="camera", normalize=unit, drop_last=False)
    for name in LARGEST:
        values = torch.cat([batch[name].flatten() for batch in loader])
        assert (values.min().item(), values.max().item()) == (0.0, 1.0)
