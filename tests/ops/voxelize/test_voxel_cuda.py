"""Voxelization on CUDA gives what the CPU gives, bit for bit, in the stream of the caller and without waiting."""

import numpy as np
import pytest
import robocache
import torch
from cuda_tools import DEVICE, assert_same_bits, needs_cuda, tensor
from voxel_calls import CLOUDS, SHAPES, SIZES, WIDTHS, check, check_images, leaves, moved, some, some_call, uniform
from voxel_cases import (
    FEATURES,
    GRID_DTYPES,
    MODES,
    OF_FEATURES,
    features_of,
    images_of,
)

pytestmark = needs_cuda

SPIN = 400_000  # cycles
LONG_SPIN = 1_000_000_000  # half a second


# ---- the bits of the CPU ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", GRID_DTYPES)
def test_counts_have_the_bits_of_the_cpu(mode, shape, rng):
    for _ in range(12):
        given = some_call(rng, shape=shape)
        dtype = some(rng, (None, *GRID_DTYPES[mode]))
        check(robocache.voxelize_pointcloud, given, f"{dtype}", mode=mode, dtype=dtype, return_info=True)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_features_have_the_bits_of_the_cpu(mode, width, rng):
    for _ in range(8):
        given = some_call(rng, width=width, shape=some(rng, SHAPES[:5]))
        dtype = some(rng, (None, "float32"))
        check(robocache.voxelize_pointcloud, given, f"{dtype}", mode=mode, dtype=dtype, fill=1.5, return_info=True,
              deterministic=True)  # fmt: skip


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_a_million_points_have_the_bits_of_the_cpu(mode, cloud, rng):
    points = tensor(cloud(rng, 1_000_003).astype(np.float32))
    given = {"points": points, "grid_min": (0, 0, 0), "voxel_size": 1 / 128, "grid_size": (128,) * 3}
    if mode in OF_FEATURES:
        given["features"] = tensor(features_of(rng, len(points), 3, FEATURES[0]))
    check(robocache.voxelize_pointcloud, given, mode=mode, return_info=True, deterministic=True)


@pytest.mark.parametrize("num_cells", [128, 176], ids=["slots", "bins"])
@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", GRID_DTYPES)
def test_a_cloud_of_several_tiles_for_each_block_has_the_bits_of_the_cpu(mode, cloud, num_cells, rng):
    points = tensor(cloud(rng, 4_400_003).astype(np.float32))
    given = {"points": points, "grid_min": (0, 0, 0), "voxel_size": 1 / num_cells, "grid_size": (num_cells,) * 3}
    for dtype in (None, "uint8"):
        check(robocache.voxelize_pointcloud, given, mode=mode, dtype=dtype, return_info=True)


@pytest.mark.parametrize("size", [0.1, 0.05, 0.075, 1 / 3, 1.0, 7.7, 1e-15, 1e15, 1e-37, 1e37])
@pytest.mark.parametrize("origin", [0.0, -10.0, 54.3])
def test_points_on_and_beside_faces_have_the_cells_of_the_cpu(origin, size):
    """Where fixed point and the contract's division could differ: every face of an axis, some floats to each side."""
    shape = (1000, 3, 5)
    size, origin = np.float32(size), np.float32(origin)
    with np.errstate(over="ignore"):
        at = origin + np.arange(-3, 1005, dtype=np.float32) * size
        for _ in range(5):
            at = np.nextafter(at, np.float32(-np.inf))
        around = []
        for _ in range(11):
            around.append(at)
            at = np.nextafter(at, np.float32(np.inf))
    for axis in range(3):
        points = np.tile(origin + np.float32(0.5) * size, (11 * len(at), 3))
        points[:, axis] = np.concatenate(around)
        turned = shape[-axis:] + shape[:-axis]
        given = {"points": tensor(points), "grid_min": (float(origin),) * 3, "voxel_size": float(size),
                 "grid_size": turned}  # fmt: skip
        check(robocache.voxelize_pointcloud, given, mode="count", return_info=True)


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fdtype", FEATURES, ids=str)
def test_features_in_large_and_mostly_empty_grids_have_the_bits_of_the_cpu(fdtype, cloud, rng):
    """Bins with few points, with too many for one block's list, and with crowded cells; the last bin is not a whole."""
    for mode in OF_FEATURES:
        width, num_points = int(some(rng, WIDTHS[:10])), int(some(rng, (1, 3000, 200_001)))
        given = {"points": tensor(cloud(rng, num_points).astype(np.float32)), "grid_min": (0, 0, 0),
                 "features": tensor(features_of(rng, num_points, width, fdtype)),
                 "voxel_size": (1 / 101, 1 / 103, 1 / 107), "grid_size": (101, 103, 107)}  # fmt: skip
        dtype = some(rng, (None, "float32"))
        check(robocache.voxelize_pointcloud, given, f"{mode} {width} {num_points}", mode=mode, dtype=dtype, fill=1.5,
              return_info=True, deterministic=True)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_many_clouds_has_the_bits_of_the_cpu(mode, rng):
    lengths = rng.integers(0, 3000, 128)
    points = tensor(uniform(rng, lengths.sum()).astype(np.float32))
    given = {"points": points, "offsets": tensor(np.array([0, *np.cumsum(lengths)])), "grid_min": (0, 0, 0),
             "voxel_size": 1 / 32, "grid_size": (32,) * 3}  # fmt: skip
    if mode in OF_FEATURES:
        given["features"] = tensor(features_of(rng, len(points), 2, FEATURES[0]))
    for dtype in (None, "uint8") if mode not in OF_FEATURES else (None,):
        check(robocache.voxelize_pointcloud, given, mode=mode, dtype=dtype, return_info=True, deterministic=True)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sums_in_any_order_are_near_the_deterministic_ones(mode, rng):
    for width in (1, 3, 4, 16):
        given = moved(some_call(rng, FEATURES[0], width, 20_000, (16, 16, 16)))
        given["features"] = torch.nan_to_num(given["features"], 0.0, 1.0, -1.0)
        got, info = robocache.voxelize_pointcloud(**given, mode=mode, return_info=True)
        want = robocache.voxelize_pointcloud(**given, mode=mode, deterministic=True)
        given["features"] = given["features"].abs()
        total = robocache.voxelize_pointcloud(**given, mode=mode, deterministic=True)
        slack = (info.counts[..., None] + 2) * 2.0**-24 * total
        assert ((got - want).abs() <= slack).all()


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("mode", OF_FEATURES)
def test_voxels_have_the_bits_of_the_cpu(mode, bounded, rng):
    for num_points in SIZES:
        for _ in range(3):
            given = some_call(rng, width=some(rng, WIDTHS[:9]), num_points=num_points)
            if not bounded:
                given["grid_size"] = None
            options = {"max_points": some(rng, (None, 1, 5, 32)), "max_voxels": some(rng, (None, None, 1, 100, 10**6))}
            check(robocache.voxelize_sparse, given, f"{options}", mode=mode, deterministic=True, **options)


@pytest.mark.parametrize("shape", [(1440, 1440, 41), (2000, 2000, 2000), (2**20, 2**20, 2**20), None], ids=str)
def test_voxels_of_large_grids_have_the_bits_of_the_cpu(shape, rng):
    points = tensor((uniform(rng, 250_001) * [1440, 1440, 41]).astype(np.float32))
    features = tensor(features_of(rng, len(points), 4, FEATURES[0]))
    offsets = tensor(np.array([0, 100_000, 100_000, len(points)]))
    for cut in (None, offsets):
        given = {"points": points, "features": features, "offsets": cut, "voxel_size": 1.0, "grid_size": shape}
        check(robocache.voxelize_sparse, given, f"{cut}", deterministic=True, max_points=10)


@pytest.mark.parametrize("depth_dtype", [np.uint16, np.float32], ids=["uint16", "float32"])
@pytest.mark.parametrize("mode", MODES)
def test_depth_images_have_the_bits_of_the_cpu(mode, depth_dtype, rng):
    sets = ({}, {"leading": (3,), "each": True}, {"leading": (2, 3), "each": True, "views": True}, {"posed": False})
    for options in sets:
        for fdtype in FEATURES if mode in OF_FEATURES else (None,):
            images = images_of(rng, dtype=depth_dtype, fdtype=fdtype or np.uint8, **options)
            check_images(images, mode)


@pytest.mark.parametrize("turned", [False, True], ids=["quarter turns", "any turn"])
@pytest.mark.parametrize("width", [160, 93])
def test_pixels_on_and_beside_faces_have_the_cells_of_the_cpu(width, turned, rng):
    """Where a fused way to the cell and the contract's could differ."""
    views, height = 6, 50
    meters = rng.integers(1, 70, (views, height, width)).astype(np.float32) * np.float32(0.1)
    for _ in range(3):
        beside = np.nextafter(meters, rng.choice(np.array([0, 99], np.float32), meters.shape))
        meters = np.where(rng.random(meters.shape) < 0.4, beside, meters)
    camera = np.array([[80, 0, width / 2], [0, 80, height / 2], [0, 0, 1]], np.float32)
    pose = np.tile(np.eye(4, dtype=np.float32), (views, 1, 1))
    for i in range(views):
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0] if turned else np.eye(3)[rng.permutation(3)]
        pose[i, :3, :3], pose[i, :3, 3] = turn, rng.integers(-9, 9, 3) * np.float32(0.1)
    images = [tensor(x.astype(np.float32)) for x in (meters, camera, pose)]
    where = {"grid_min": (-3.2, -3.2, -3.2), "voxel_size": 0.1, "grid_size": (64, 64, 64)}
    found = []
    for device in ("cpu", DEVICE):
        here = [x.to(device) for x in images]
        found.append(robocache.voxelize_depth(*here, views=True, dtype="uint8", **where))
        found.append(robocache.voxelize_depth(*here, views=True, max_depth=4.0, **where))
    assert 0 < int(found[0].sum()) < found[0].numel()
    for got, want in zip(found[2:], found[:2], strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_gradients_have_the_bits_of_the_cpu(mode, rng):
    for width in WIDTHS[:12]:
        given = some_call(rng, FEATURES[rng.integers(3)], width, some(rng, SIZES), some(rng, SHAPES[:4]))
        found = []
        for device in ("cpu", DEVICE):
            here = moved(given, device)
            here["features"] = here["features"].detach().clone().requires_grad_()
            grid = robocache.voxelize_pointcloud(**here, mode=mode, deterministic=True)
            up = torch.sin(torch.arange(1.0, grid.numel() + 1)).reshape(grid.shape).to(grid)
            found += torch.autograd.grad(grid, here["features"], up)
        assert_same_bits(found[1], found[0], f"{width}")


# ---- streams ---------------------------------------------------------------------------------------------------------


class Feed:
    """Inputs that are written anew for every call: whoever reads one of them too early is wrong."""

    def __init__(self):
        self._points = torch.rand(500, 3, device=DEVICE) * 4
        self.points, self.features = torch.zeros_like(self._points), torch.zeros(500, 2, device=DEVICE)
        self.offsets = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        self.depth = torch.zeros(20, 30, device=DEVICE)
        self.camera = torch.tensor([[20.0, 0, 15], [0, 20, 10], [0, 0, 1]], device=DEVICE)

    def write(self, i):
        self.points.copy_(self._points).add_(i % 3)
        self.features.fill_(i)
        self.offsets.copy_(torch.tensor([0, 100 + i % 300, 500]).to(DEVICE))
        self.depth.fill_(1 + i % 4)


GRID = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (7, 7, 7)}


def dense_of(feed):
    return leaves(robocache.voxelize_pointcloud(feed.points, feed.features, mode="mean", offsets=feed.offsets,
                                                return_info=True, deterministic=True, **GRID))  # fmt: skip


def counted(feed):
    return [robocache.voxelize_pointcloud(feed.points, offsets=feed.offsets, mode="count", dtype="uint8", **GRID)]


def listed(feed):
    room = {"max_voxels": 600, "max_points": 2, "padded": True}
    return leaves(
        robocache.voxelize_sparse(feed.points, feed.features, mode="max", offsets=feed.offsets, **room, **GRID)
    )


def seen(feed):
    return [robocache.voxelize_depth(feed.depth, feed.camera, mode="count", **GRID)]


faces = pytest.mark.parametrize("face", [dense_of, counted, listed, seen], ids=lambda f: f.__name__)


@faces
def test_a_call_works_in_the_stream_of_the_caller(face):
    feed, side, late = Feed(), torch.cuda.Stream(), []
    for i in range(8):
        feed.write(i)
        late.append(face(feed))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for i in range(8):
            torch.cuda._sleep(SPIN)
            feed.write(i)
            got = face(feed)
            late[i] = [(a, b) for a, b in zip(got, late[i], strict=True)]
    torch.cuda.synchronize()
    for i, pairs in enumerate(late):
        for got, want in pairs:
            assert_same_bits(got, want, f"call {i}")


@faces
def test_a_call_returns_before_the_work_ahead_of_it_is_done(face):
    feed = Feed()
    feed.write(7)
    want = face(feed)
    face(feed)  # loads the kernels, and leaves memory for the next outputs in PyTorch's cache
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_SPIN)
    event = torch.cuda.Event()
    event.record()
    got = face(feed)
    assert not event.query(), "the call waited for the GPU"
    for mine, theirs in zip(got, want, strict=True):
        assert_same_bits(mine, theirs)


@pytest.mark.alone
def test_many_calls_take_no_memory_that_pytorch_does_not_know_of():
    feed = Feed()
    feed.write(1)
    for face in (dense_of, counted, listed, seen):
        for _ in range(10):
            face(feed)
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        for _ in range(300):
            face(feed)
        torch.cuda.synchronize()
        assert torch.cuda.mem_get_info()[0] >= free


@pytest.mark.parametrize("place", ["points", "features", "offsets"])
def test_tensors_on_the_cpu_and_on_the_gpu_do_not_mix(place):
    feed = Feed()
    feed.write(1)
    given = {"points": feed.points, "features": feed.features, "offsets": feed.offsets}
    given[place] = given[place].cpu()
    named = (
        "(features|offsets) must be on cpu, got cuda:0" if place == "points" else f"{place} must be on cuda:0, got cpu"
    )
    for function in (robocache.voxelize_pointcloud, robocache.voxelize_sparse):
        with pytest.raises(ValueError, match=named):
            function(**given, mode="mean", **GRID)


def test_a_grid_that_cannot_fit_on_the_gpu_is_a_memory_error():
    points = torch.zeros(5, 3, device=DEVICE)
    with pytest.raises(MemoryError, match=r"^voxelize_pointcloud: no memory for a grid of .*, \d+ bytes"):
        robocache.voxelize_pointcloud(points, grid_size=(10**4, 10**4, 10**4))
    assert int(robocache.voxelize_pointcloud(points).sum()) == 1


def test_offsets_are_checked_on_the_gpu_if_asked():
    points, offsets = torch.zeros(5, 3, device=DEVICE), torch.tensor([0, 4], device=DEVICE)
    with pytest.raises(ValueError, match="offsets must end with"):
        robocache.voxelize_pointcloud(points, offsets=offsets, check=True)
    robocache.voxelize_pointcloud(points, offsets=offsets)
