"""Point clouds in batches: each moment's cloud, voxelized, against one call of voxelize_pointcloud for each."""

import pickle

import numpy as np
import oracle
import pytest
import robocache
from cuda_tools import needs_cuda
from loader_cases import anchors_in
from robocache import (
    CacheWriter,
    Episode,
    EpisodeStream,
    Feature,
    FormatError,
    Loader,
    Mixture,
    StreamSpec,
    Voxels,
    Window,
)

torch = pytest.importorskip("torch")

GRID = {"grid_min": (-1.0, -1.0, -0.5), "voxel_size": (0.5, 0.25, 0.5), "grid_size": (4, 8, 2)}
NAMES = ("intensity", "x", "y", "z", "ring")
PLACES = [("memory", "cpu"), ("mmap", "cpu")] + [
    pytest.param(tier, "cuda", marks=needs_cuda) for tier in ("memory", "mmap", "pinned", "gpu")
]
WINDOW = {"past": 0.15, "future": 0.1, "rate_hz": 20}


def make(folder, seed=0, dtype="float32", names=NAMES, episodes=6):
    """Clouds of 0 to 60 points; episode 2 has none, and no message of episode 4 has a point."""
    specs = {
        "arm": StreamSpec("arm", "float32", (2,), rate_hz=50.0),
        "lidar": StreamSpec("lidar", dtype, (5,), "points", rate_hz=10.0, names=names),
        "camera": StreamSpec("camera", "uint8", (2, 2, 3), "image", rate_hz=30.0),
    }
    writer = CacheWriter(folder, specs, shard_bytes=6000, fingerprint=f"{seed}")
    for e in range(episodes):
        rng = np.random.default_rng([seed, e])
        seconds, begin = rng.uniform(0.5, 1.2), int(rng.integers(0, 10**15))
        streams = {}
        for name, spec in specs.items():
            times = begin + np.round(np.arange(int(seconds * spec.rate_hz)) * 1e9 / spec.rate_hz).astype(np.int64)
            if name != "lidar":
                values = rng.integers(0, 200, (len(times), *spec.shape)).astype(spec.dtype)
                streams[name] = EpisodeStream(spec, values, times)
            elif e != 2:
                counts = rng.integers(0, 1 if e == 4 else 60, len(times))
                points = rng.uniform(-1.3, 1.3, (int(counts.sum()), 5)).astype(dtype)
                points[::17, 2] = np.nan
                streams[name] = EpisodeStream(spec, points, times, np.concatenate([[0], np.cumsum(counts)]))
        writer.add(Episode(e, streams))
    return writer.commit()


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clouds")
    made = [make(folder / f"{i}", seed=i, episodes=6 - 2 * i) for i in range(2)]
    assert made[0].num_shards > 2
    return made


def cloud_at(rows, moment, **rules):
    """The points of the cloud that ``align`` would choose, were each cloud one number, and whether it is valid."""
    if len(rows.times) == 0:
        return rows.values, False
    numbers = np.arange(len(rows.times), dtype=np.int64)
    found = oracle.align(numbers, rows.times, np.array([[moment]]), **rules)
    chosen = int(found.values[0, 0])
    return rows.values[rows.offsets[chosen] : rows.offsets[chosen + 1]], bool(found.valid[0, 0])


def one_by_one(caches, batch, rules, columns=None, **call):
    """For every anchor and moment: its cloud, and a call of its own."""
    grids, pads = [], []
    for source, e, anchor in anchors_in(batch):
        rows = caches[source].episode(e).streams["lidar"]
        for delta in Window(**WINDOW).deltas_ns:
            points, valid = cloud_at(rows, anchor + delta, **rules)
            features = None if columns is None else np.ascontiguousarray(points[:, columns])
            xyz = np.ascontiguousarray(points[:, 1:4])
            grids.append(robocache.voxelize_pointcloud(xyz, features, **GRID, **call, deterministic=True))
            pads.append(not valid)
    shape = (len(batch["anchor_ns"]), len(Window(**WINDOW).deltas_ns))
    return np.array(grids).reshape(*shape, *grids[0].shape), np.array(pads).reshape(shape)


PREVIOUS = {"method": "previous"}
MODES = {
    "occupancy": ({}, None),
    "occupancy as bool": ({"dtype": "bool"}, None),
    "count": ({"mode": "count"}, None),
    "mean of all others": ({"mode": "mean"}, [0, 4]),
    "std of all others": ({"mode": "std"}, [0, 4]),
    "sum of one by name": ({"mode": "sum", "features": ["ring"]}, [4]),
    "max of two by number": ({"mode": "max", "features": [4, 1], "fill": -9.0}, [4, 1]),
}


@pytest.mark.parametrize(("tier", "device"), PLACES)
@pytest.mark.parametrize("what", MODES)
def test_a_batch_has_the_grid_of_each_moments_cloud(caches, what, tier, device):
    options, columns = MODES[what]
    windows = {
        "arm": Window(past=0.02, rate_hz=50),
        "lidar": Window(**WINDOW, voxels=Voxels(**GRID, **options)),
        "camera": Window(),
    }
    cache = caches[0]
    loader = Loader(cache, 7, windows, tier=tier, device=device, seed=3, return_index=True, drop_last=False)
    plain = {name: window for name, window in windows.items() if name != "lidar"}
    without = Loader(cache, 7, plain, seed=3, drop_last=False)
    assert loader.tier == tier
    seen = empty = 0
    call = {name: x for name, x in options.items() if name != "features"}
    for step, batch in enumerate(loader):
        grids, pads = one_by_one([cache], batch, PREVIOUS, columns=columns, **call)
        assert batch["lidar"].shape == (len(batch["arm"]), 6, *grids.shape[2:])
        assert batch["lidar"].device.type == device
        assert batch["lidar"].cpu().numpy().dtype == grids.dtype
        np.testing.assert_array_equal(batch["lidar"].cpu().numpy(), grids)
        np.testing.assert_array_equal(batch["lidar_is_pad"].cpu().numpy(), pads)
        for name, x in without.batch(step).items():  # the others are as they are without clouds
            assert torch.equal(batch[name].cpu(), x)
        seen += int((grids != call.get("fill", 0)).sum())
        empty += int(pads.all(axis=1).sum())
    assert seen > 1000
    assert empty > 0  # of the episode that has no clouds


@pytest.mark.parametrize(("tier", "device"), PLACES)
def test_clouds_are_chosen_by_method_latency_and_gap_as_other_streams_are(caches, tier, device):
    options = {"method": "nearest", "latency": 0.013, "max_gap": 0.02}
    windows = {"arm": Window(), "lidar": Window(**WINDOW, **options, voxels=Voxels(**GRID, mode="count"))}
    batch = Loader(caches[0], 40, windows, tier=tier, device=device, return_index=True).batch(0)
    rules = {"method": "nearest", "latency": 13_000_000, "max_gap": 20_000_000}
    grids, pads = one_by_one(caches, batch, rules, mode="count")
    np.testing.assert_array_equal(batch["lidar"].cpu().numpy(), grids)
    np.testing.assert_array_equal(batch["lidar_is_pad"].cpu().numpy(), pads)
    assert 0.3 < pads.mean() < 0.9  # clouds are 0.1 s apart


@pytest.mark.parametrize(("tier", "device"), PLACES)
def test_clouds_of_a_mixture_of_some_episodes_and_of_anchors_of_their_own(caches, tier, device):
    windows = {"lidar": Window(**WINDOW, voxels=Voxels(**GRID, mode="count"))}
    mixture = Mixture([(caches[0], 1), (caches[1], 2)], epoch_size=60)
    options = {"tier": tier, "device": device, "return_index": True, "seed": 1}
    calls = [
        (mixture, {"anchors": "arm", "episodes": lambda episode: episode.index != 1}),
        (caches[0], {"episodes": [5, 0, 3], "anchors": "lidar", "drop_last": False}),
        (caches[0], {"split": ("train", 0.7), "anchors": "camera"}),
    ]
    for source, more in calls:
        for batch in Loader(source, 10, windows, **options, **more):
            grids, pads = one_by_one(caches, batch, PREVIOUS, mode="count")
            np.testing.assert_array_equal(batch["lidar"].cpu().numpy(), grids)
            np.testing.assert_array_equal(batch["lidar_is_pad"].cpu().numpy(), pads)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_points_of_other_dtypes(tmp_path, dtype):
    cache = make(tmp_path / "c", dtype=dtype)
    windows = {"arm": Window(), "lidar": Window(**WINDOW, voxels=Voxels(**GRID, mode="mean"))}
    batch = Loader(cache, 30, windows, return_index=True).batch(0)
    if dtype == "float16":
        grids, _ = one_by_one([cache], batch, PREVIOUS, columns=[0, 4], mode="mean")
        np.testing.assert_array_equal(batch["lidar"].numpy(), grids)
    assert batch["lidar"].dtype == {"float16": torch.float16, "float64": torch.float32}[dtype]
    assert (batch["lidar"] != 0).sum() > 100


def test_without_names_a_point_begins_with_its_place(tmp_path):
    cache = make(tmp_path / "c", names=None)
    batch = Loader(cache, 20, {"arm": Window(), "lidar": Window(voxels=Voxels(**GRID, mode="count"))}, seed=2,
                   return_index=True).batch(0)  # fmt: skip
    for b, (_, e, anchor) in enumerate(anchors_in(batch)):
        points, _ = cloud_at(cache.episode(e).streams["lidar"], anchor, **PREVIOUS)
        grid = robocache.voxelize_pointcloud(np.ascontiguousarray(points[:, :3]), **GRID, mode="count")
        np.testing.assert_array_equal(batch["lidar"][b, 0].numpy(), grid)


def test_clouds_resume_and_travel_like_everything_else(caches):
    windows = {"arm": Window(), "lidar": Window(voxels=Voxels(**GRID))}
    loader = Loader(caches[0], 10, windows, drop_last=False, rank=1, world_size=2)
    loader.load_state_dict(loader.state_dict() | {"step": 2})
    other = pickle.loads(pickle.dumps(loader))
    for mine, its in zip(loader, other, strict=True):
        assert all(torch.equal(mine[name], its[name]) for name in mine)
    last = Loader(caches[0], 1, windows, rank=0, world_size=loader.num_samples - 1, drop_last=False).batch(1)
    assert last["lidar"].shape == (0, 1, *GRID["grid_size"])  # fewer samples than ranks


def test_points_count_for_the_tier(caches):
    windows = {"arm": Window(), "lidar": Window(voxels=Voxels(**GRID))}
    kept = [caches[0].episode(e).streams["lidar"].values.nbytes for e in (0, 1)]
    sizes = [Loader(caches[0], 4, w, episodes=[0, 1]).size_bytes for w in (windows, {"arm": Window()})]
    assert sizes[0] - sizes[1] > sum(kept) > 1000
    assert Loader(caches[0], 4, windows, episodes=[0, 1], budget_bytes=sizes[0] - 1).tier == "mmap"


@pytest.mark.parametrize("tier", ["memory", "mmap"])
def test_a_feature_of_clouds_is_the_window_of_that_stream_under_its_own_name(caches, tier):
    grid = Voxels(**GRID, mode="count")
    windows = {"arm": Window(), "lidar": Window(**WINDOW, voxels=grid)}
    features = {
        "points": Feature("lidar", **WINDOW, voxels=grid),
        "now": Feature("lidar", voxels=grid, transform=lambda x: x.sum((1, 2, 3))),
        "arm": Feature("arm"),
    }
    plain, made = (
        Loader(caches[0], 12, seed=3, tier=tier, anchors="arm", return_index=True, **given).batch(0)
        for given in ({"windows": windows}, {"features": features})
    )
    assert torch.equal(made["anchor_ns"], plain["anchor_ns"])
    assert torch.equal(made["points"], plain["lidar"])
    assert torch.equal(made["points_is_pad"], plain["lidar_is_pad"])
    assert torch.equal(made["now"], plain["lidar"][:, 3].sum((1, 2, 3)))  # after 3 moments of the past
    assert plain["lidar"].any()
    assert {"lidar", "lidar_is_pad"}.isdisjoint(made)


LIDAR = {"arm": Window(), "lidar": Window(voxels=Voxels(**GRID))}
BAD = {
    "no voxels": ({"windows": {"lidar": Window()}}, "stream 'lidar' is a point cloud: it needs Window(voxels="),
    "LeRobot's windows": ({"windows": None, "delta_timestamps": {"lidar": [0.0]}}, "stream 'lidar' is a point cloud"),
    "voxels of a vector": (
        {"windows": {"arm": Window(voxels=Voxels(**GRID))}},
        "voxels are for point clouds, and stream 'arm' is of kind vector",
    ),
    "a method that blends": (
        {"windows": {"lidar": Window(method="linear", voxels=Voxels(**GRID))}},
        "method must be previous, next or nearest, got 'linear'",
    ),
    "another outside": (
        {"windows": {"lidar": Window(outside="nan", voxels=Voxels(**GRID))}},
        "outside must be 'hold', got 'nan'",
    ),
    "normalized": ({"normalize": {"lidar": "mean_std"}}, "there is nothing to normalize"),
    "a dtype": ({"dtype": {"lidar": "float32"}}, "its dtype is that of its Voxels"),
    "a size of 0": (
        {"windows": {"lidar": Window(voxels=Voxels((0, 0, 0), 0, (4, 4, 4)))}},
        "voxel_size must be positive and finite, got 0",
    ),
    "an unknown mode": (
        {"windows": {"lidar": Window(voxels=Voxels(**GRID, mode="median"))}},
        "mode must be",
    ),
    "features that count nothing": (
        {"windows": {"lidar": Window(voxels=Voxels(**GRID, features=["ring"]))}},
        "mode 'occupancy' of its voxels takes no features",
    ),
    "a column that is not there": (
        {"windows": {"lidar": Window(voxels=Voxels(**GRID, mode="sum", features=["color"]))}},
        "features of its voxels must be columns of ['intensity', 'x', 'y', 'z', 'ring'], got 'color'",
    ),
    "a tier that is too small": ({"tier": "memory", "budget_bytes": 100}, "tier 'memory' needs"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused(caches, what):
    changes, message = BAD[what]
    with pytest.raises((ValueError, MemoryError)) as raised:
        Loader(**({"source": caches[0], "batch_size": 4, "windows": LIDAR} | changes))
    assert message in str(raised.value)


def test_columns_that_differ_in_a_mixture_are_refused(caches, tmp_path):
    other = make(tmp_path / "c", names=("x", "y", "z", "intensity", "ring"))
    with pytest.raises(ValueError, match=r"points of 'lidar' of sources\[1\] must have the columns of the first"):
        Loader(Mixture([(caches[0], 1), (other, 1)]), 4, LIDAR)


def test_clouds_that_overlap_in_the_file_are_a_format_error(caches, monkeypatch):
    reader = caches[0]._reader

    class Damaged:
        def __getattr__(self, name):
            return getattr(reader, name)

        def shard_rows(self, shard, stream):
            values, times, splits, offsets = reader.shard_rows(shard, stream)
            return values, times, splits if splits is None else splits[::-1], offsets

    monkeypatch.setattr(caches[0], "_reader", Damaged())
    with pytest.raises(FormatError, match="shard 0: splits of 'lidar' must rise from 0 to"):
        Loader(caches[0], 4, LIDAR)
