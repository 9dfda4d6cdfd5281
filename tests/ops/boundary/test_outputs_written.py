"""Every element of every output is written, also by calls with nothing in them and by those that nobody checked.

Each call runs twice over memory with different contents (``poison.py``): what is not written differs. Workspaces come
from the same allocators, so a result that depends on what a workspace held before fails as well.
"""

import itertools

import numpy as np
import pytest
import robocache
import torch
from arrays import BACKENDS, BFLOAT16, CUDA, DEVICE, KIND, KINDS, array_of
from loader_cases import SPECS, make_cache
from poison import assert_writes_everything, memory_full_of
from robocache import _core
from voxel_cases import FEATURES, GRID_DTYPES, MODES, OF_FEATURES

GRID = {"grid_min": (0.0, 0.0, 0.0), "voxel_size": 0.25, "grid_size": (5, 3, 7)}
METHODS = ("linear", "previous", "next", "nearest", "cubic", "angle", "mean", "min", "max", "rms")
OFFSETS = {
    "no offsets": None,
    "no cloud": [0],
    "one cloud": [0, 40],
    "empty clouds": [0, 0, 17, 17, 40],
    "too short": [0, 3, 9],
    "too long": [0, 17, 90],
    "backwards": [0, 30, 10, 40],
    "negative": [-5, -3, 20],
    "not from 0": [7, 9, 40],
}
"""Of 40 points; those from "too short" on break the contract, which ``check=False`` does not look at."""

native = pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "torch"])
sizes = pytest.mark.parametrize("count", [0, 40], ids=["no points", "points"])
offsets_of = pytest.mark.parametrize("offsets", OFFSETS, ids=lambda name: name.replace(" ", "-"))


def test_the_check_finds_memory_that_is_not_written():
    """The test of the test, for each allocator."""
    for make in (
        lambda: np.empty(3),
        lambda: torch.empty(3),
        lambda: torch.zeros(1).new_empty((2, 2)),
        lambda: np.from_dlpack(_core.empty((3,), "float32", None)),
    ):
        with pytest.raises(AssertionError, match="not written"):
            assert_writes_everything(make)
    with memory_full_of(1):
        assert np.empty(2, np.uint8).tolist() == [1, 1]


def points_of(rng, count, dtype=np.float32):
    points = rng.uniform(-0.3, 1.6, (count, 3))
    points[rng.random(count) < 0.05] = np.nan
    return points.astype(dtype)


def features_of(rng, count, width, dtype):
    """Whole numbers: their sums are exact in any order."""
    return rng.integers(0, 9, (count, width)).astype(dtype)


def given(backend, *arrays, kinds=("numpy", "torch")):
    """The arrays for a backend, as tensors too for the CPU: torch takes another way through the bindings."""
    for kind in kinds if backend == "cpu" else (KIND[backend],):
        yield kind, [array_of(kind, x, DEVICE[backend]) for x in arrays]


def offsets_array(name):
    return None if OFFSETS[name] is None else np.array(OFFSETS[name], np.int64)


# ---- voxelize --------------------------------------------------------------------------------------------------------


@native
@sizes
@offsets_of
@pytest.mark.parametrize("mode", MODES)
def test_a_dense_grid_is_written_throughout(mode, offsets, count, backend, rng):
    widths = (0, 1, 3, 4) if mode in OF_FEATURES else (None,)
    dtypes = GRID_DTYPES.get(mode, (None,))
    for width, dtype in itertools.product(widths, dtypes):
        points = points_of(rng, count)
        features = None if width is None else features_of(rng, count, width, np.float32)
        for kind, (p, o, f) in given(backend, points, offsets_array(offsets), features):
            assert_writes_everything(
                lambda p=p, o=o, f=f, dtype=dtype: robocache.voxelize_pointcloud(
                    p, f, **GRID, mode=mode, offsets=o, dtype=dtype, check=False, return_info=True
                ),
                f"{kind} {width} {dtype}",
            )  # fmt: skip


@native
@sizes
@offsets_of
@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
def test_a_list_of_voxels_is_written_throughout(bounded, offsets, count, backend, rng):
    for mode, width, limits in itertools.product(
        ("mean", "max"),
        (None, 0, 1, 4),
        (
            {},
            {"max_voxels": 3},
            {"max_voxels": 60, "padded": True},
            {"max_voxels": 3, "padded": True, "max_points": 2},
            {"max_points": 3},
        ),
    ):
        points = points_of(rng, count)
        features = None if width is None else features_of(rng, count, width, np.float32)
        for kind, (p, o, f) in given(backend, points, offsets_array(offsets), features):
            grid = {**GRID, "grid_size": GRID["grid_size"] if bounded else None}
            assert_writes_everything(
                lambda p=p, o=o, f=f, grid=grid, mode=mode, limits=limits: robocache.voxelize_sparse(
                    p, f, **grid, mode=mode, offsets=o, check=False, **limits
                ),
                f"{kind} {mode} {width} {limits}",
            )  # fmt: skip


@native
def test_points_of_no_cloud_are_in_no_voxel(backend, rng):
    for grid_size in (GRID["grid_size"], None):
        for kind, (points, offsets) in given(backend, points_of(rng, 40), np.zeros(1, np.int64)):
            grid = {**GRID, "grid_size": grid_size}
            voxels = robocache.voxelize_sparse(points, **grid, offsets=offsets, max_points=2, check=False)
            assert np.asarray(voxels.voxel.cpu() if kind == "torch" else voxels.voxel).tolist() == [-1] * 40
            assert (voxels.num_voxels, voxels.dropped, voxels.overflow) == (0, 0, 0)


@native
@offsets_of
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_the_gradient_of_voxels_is_written_throughout(mode, offsets, backend, rng):
    device = DEVICE[backend]
    for width, dtype in itertools.product((0, 1, 4), FEATURES[:2]):
        points = torch.from_numpy(points_of(rng, 40)).to(device)
        features = torch.from_numpy(features_of(rng, 40, width, dtype)).to(device)
        cut = None if OFFSETS[offsets] is None else torch.tensor(OFFSETS[offsets], device=device)

        def call(points=points, features=features, cut=cut):
            leaf = features.clone().requires_grad_()
            grid = robocache.voxelize_pointcloud(points, leaf, **GRID, mode=mode, offsets=cut, check=False)
            grid.backward(torch.ones_like(grid))
            return leaf.grad

        assert_writes_everything(call, f"{width} {dtype}")


@native
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(0, 4), (6, 0), (6, 5), (0, 6, 5), (2, 0, 5), (3, 6, 5), (2, 6, 8)], ids=str)
def test_a_grid_of_depth_images_is_written_throughout(shape, mode, backend, rng):
    camera = np.array([[4, 0, 2], [0, 4, 3], [0, 0, 1]], np.float32)
    for dtype, width in itertools.product((np.uint16, np.float32), (0, 1, 4) if mode in OF_FEATURES else (None,)):
        depth = rng.integers(0, 3000, shape) if dtype == np.uint16 else rng.uniform(-0.2, 2.0, shape)
        features = None if width is None else rng.integers(0, 9, (*shape, width)).astype(np.float32)
        for kind, (d, k, f) in given(backend, depth.astype(dtype), camera, features):
            for grid_dtype in GRID_DTYPES.get(mode, (None,)):
                assert_writes_everything(
                    lambda d=d, k=k, f=f, grid_dtype=grid_dtype: robocache.voxelize_depth(
                        d, k, None, f, **GRID, mode=mode, dtype=grid_dtype, return_info=True
                    ),
                    f"{kind} {dtype} {width} {grid_dtype}",
                )  # fmt: skip


@native
def test_random_calls_of_voxelize_write_everything(backend, rng):
    for n in range(40):
        count = int(rng.choice([0, 1, 7, 300, 5000]))
        mode = str(rng.choice(MODES))
        dtype = FEATURES[rng.integers(len(FEATURES))]
        features = features_of(rng, count, int(rng.integers(0, 6)), dtype) if mode in OF_FEATURES else None
        clouds = int(rng.choice([0, 1, 3, 70]))
        broken = rng.random() < 0.5
        edges = rng.integers(-5, count + 6, clouds + 1) if broken else np.sort(rng.integers(0, count + 1, clouds + 1))
        if not broken:
            edges[0], edges[-1] = 0, count if clouds else 0
        offsets = edges.astype(np.int64) if rng.random() < 0.7 and (clouds or broken) else None
        shape = tuple(int(x) for x in rng.choice([1, 2, 5, 24], 3))
        grid = {**GRID, "grid_size": shape, "voxel_size": float(rng.choice([0.03, 0.25]))}
        options = {"check": False, "deterministic": bool(rng.integers(2)), "mode": mode}  # fmt: skip
        for kind, (p, o, f) in given(
            backend, points_of(rng, count), offsets, features, kinds=KINDS if n % 8 == 0 else KINDS[:2]
        ):
            what = f"{kind} {count} {options} {offsets} {shape} {None if f is None else (f.dtype, f.shape)}"
            assert_writes_everything(
                lambda p=p, o=o, f=f, grid=grid, options=options: robocache.voxelize_pointcloud(
                    p, f, **grid, offsets=o, return_info=True, **options
                ),
                what,
            )
            if mode in OF_FEATURES:
                limits = {"max_voxels": int(rng.integers(1, 50)), "padded": bool(rng.integers(2))}
                limits["max_points"] = None if rng.integers(2) else int(rng.integers(1, 4))
                assert_writes_everything(
                    lambda p=p, o=o, f=f, grid=grid, options=options, limits=limits: robocache.voxelize_sparse(
                        p, f, **grid, offsets=o, **limits, **options
                    ),
                    f"{what} {limits}",
                )


def test_depth_images_with_features_of_no_channels_give_a_grid_of_none(backend):
    """The torch backend could not tell how many rows such features have."""
    camera = np.eye(3, dtype=np.float32)
    depth, features = np.ones((2, 3), np.float32), np.ones((2, 3, 0), np.float32)
    ((_, arrays),) = given(backend, depth, camera, features, kinds=("numpy",))
    grid, info = robocache.voxelize_depth(
        *arrays[:2], None, arrays[2], **GRID, mode="sum", return_info=True, backend=backend
    )
    assert tuple(grid.shape) == (5, 3, 7, 0)
    assert int(info.counts.sum()) + int(info.dropped) == 6


# ---- align -----------------------------------------------------------------------------------------------------------

ROWS = {"no rows": [0, 0, 0, 0], "an empty episode": [0, 12, 12, 30], "one row each": [0, 1, 2, 3]}
BROKEN = {"too long": [0, 12, 12, 99], "backwards": [0, 20, 9, 30], "negative": [-4, 9, 12, 30], "no episode": [0]}


@native
@pytest.mark.parametrize("edges", [*ROWS, *BROKEN], ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("outside", ["hold", "nan", "linear"])
def test_aligned_values_are_written_throughout(outside, edges, backend, rng):
    offsets = np.array({**ROWS, **BROKEN}[edges], np.int64)
    rows = 30 if edges in BROKEN else int(offsets[-1])
    for method, dtype, width, targets in itertools.product(
        METHODS, (np.dtype(np.float32), BFLOAT16, np.dtype(np.int32)), ((), (0,), (3,), (2, 4)), (0, 1, 70)
    ):
        if dtype.kind == "i" and (method in ("linear", "cubic", "angle", "mean", "rms") or outside == "nan"):
            continue
        if outside == "linear" and method not in ("linear", "cubic"):
            continue
        values = rng.integers(0, 9, (rows, *width)).astype(dtype)
        times = np.sort(rng.integers(0, 1000, rows)).astype(np.int64)
        query = np.sort(rng.integers(-200, 1200, (5, targets)), axis=1).astype(np.int64)
        episode = rng.integers(0, max(len(offsets) - 1, 1), 5).astype(np.int64)
        if edges in BROKEN:
            episode[:2] = -3, 99
        for kind, (v, t, o, q, e) in given(backend, values, times, offsets, query, episode):
            stream = robocache.Stream(v, t, o, method=method, outside=outside)
            assert_writes_everything(
                lambda stream=stream, q=q, e=e: robocache.align(stream, q, episode=e, return_index=True, check=False),
                f"{kind} {method} {dtype} {width} {targets}",
            )


@native
def test_random_fused_calls_write_everything(backend, rng):
    for _ in range(40):
        batch, targets = (int(x) for x in rng.choice([0, 1, 3, 65], 2))
        method, outside = str(rng.choice(METHODS)), str(rng.choice(["hold", "nan"]))
        arrays = [np.sort(rng.uniform(-0.5, 1.5, (batch, targets)), axis=1)]
        for _ in range(int(rng.integers(1, 4))):
            rows = int(rng.choice([0, 1, 2, 40]))
            arrays.append(rng.integers(0, 9, (batch, rows, int(rng.integers(0, 5)))).astype(np.float32))
            arrays.append(np.sort(rng.uniform(0, 1, (batch, rows)), axis=1))
        for kind, made in given(backend, *arrays, kinds=KINDS):
            assert_writes_everything(
                lambda made=made, method=method, outside=outside: robocache.fuse_multimodal(
                    list(zip(made[1::2], made[2::2], strict=True)), made[0], method=method, outside=outside,
                    return_valid=True
                ),
                f"{kind} {batch} {targets} {method} {outside} {[x.shape for x in arrays]}",
            )  # fmt: skip


@native
@pytest.mark.parametrize("method", ["linear", "previous", "cubic", "mean", "rms"])
def test_the_gradient_of_align_is_written_throughout(method, backend, rng):
    device = DEVICE[backend]
    for rows, targets, dtype in itertools.product((0, 1, 20), (0, 1, 40), (torch.float32, torch.bfloat16)):
        values = torch.from_numpy(rng.integers(0, 9, (3, rows, 2))).to(device, dtype)
        times = torch.from_numpy(np.sort(rng.uniform(0, 1, (3, rows)), axis=1)).to(device)
        query = torch.from_numpy(np.sort(rng.uniform(-0.2, 1.2, (3, targets)), axis=1)).to(device)

        def call(values=values, times=times, query=query):
            leaf = values.clone().requires_grad_()
            made = robocache.resample_trajectories(leaf, times, query, method=method)
            made.backward(torch.ones_like(made))
            # CUDA sums by atomics, whose order changes the last bits. Of the two poisons one is above 1e3, one below.
            grad = leaf.grad if backend == "cpu" else (leaf.grad.abs() < 1e3)
            return made.detach(), grad

        assert_writes_everything(call, f"{rows} {targets} {dtype}")


# ---- the loader ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if CUDA else [])])
@pytest.mark.parametrize("tier", ["mmap", "memory", "gpu", "pinned"])
def test_batches_are_written_throughout(tier, device, tmp_path):
    if tier in ("gpu", "pinned") and device == "cpu":
        pytest.skip("a tier of the GPU")
    cache = make_cache(tmp_path / "cache", specs={name: SPECS[name] for name in SPECS if name != "cloud"})
    steps = [k / 100 for k in range(-15, 16, 2)]  # beyond one end or the other for most anchors
    windows = {name: steps for name in ("state", "force", "small", "gripper")} | {"camera": [-0.1, 0.0, 0.1]}

    def call(normalize):
        loader = robocache.Loader(
            cache, 7, delta_timestamps=windows, tier=tier, device=device, normalize=normalize, drop_last=False
        )
        return list(loader)

    for normalize in (None, {"state": "mean_std", "force": "min_max"}):
        assert_writes_everything(lambda normalize=normalize: call(normalize), f"{normalize}")
