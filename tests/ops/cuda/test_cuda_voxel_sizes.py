"""Voxelization of more than 2^31 points, and into more than 2^32 cells: every one of them is where it belongs."""

import numpy as np
import pytest
import robocache
import torch
from arrays import to_numpy
from cuda_tools import DEVICE, need_gpu_memory, needs_cuda

pytestmark = [needs_cuda, pytest.mark.huge, pytest.mark.usefixtures("memory")]

MANY = 2**31 + 7
CHUNK = 1 << 25
HUGE = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (61, 53, 47)}  # primes: no power of two repeats


@pytest.fixture
def memory():
    """Gives back what a test took, so that PyTorch does not keep it from the other tests."""
    yield
    torch.cuda.empty_cache()


def cells_of(i):
    """The cell of point i, and far outside for some of them."""
    cell = torch.stack([i * 7919 % 61, i % 53, (i >> 20) % 47], 1)
    cell[i % 1001 == 0, 1] = 1000
    return cell


def many_points():
    """2^31 + 7 points in float16, and how many are in each cell of HUGE; int32 cannot number the last ones."""
    points = torch.empty((MANY, 3), dtype=torch.float16, device=DEVICE)
    counts = torch.zeros(61 * 53 * 47, dtype=torch.int64, device=DEVICE)
    for begin in range(0, MANY, CHUNK):
        cell = cells_of(torch.arange(begin, min(begin + CHUNK, MANY), device=DEVICE))
        points[begin : begin + CHUNK] = cell + 0.5
        cell = cell[cell[:, 1] < 53]
        counts += torch.bincount((cell[:, 0] * 53 + cell[:, 1]) * 47 + cell[:, 2], minlength=counts.numel())
    return points, counts.reshape(61, 53, 47)


def test_more_than_2_to_the_31_points():
    need_gpu_memory(2 * 3 * MANY + (20 << 30))
    points, counts = many_points()
    for dtype in ("int32", "int64"):
        got, info = robocache.voxelize_pointcloud(points, mode="count", dtype=dtype, return_info=True, **HUGE)
        assert torch.equal(got.long(), counts)
        assert torch.equal(info.counts.long(), counts)
        assert int(info.dropped) == MANY - int(counts.sum())
    assert torch.equal(robocache.voxelize_pointcloud(points, dtype="bool", **HUGE), counts > 0)
    last = robocache.voxelize_pointcloud(points, offsets=torch.tensor([0, 2**31, MANY], device=DEVICE), **HUGE)
    assert torch.equal(last[1].nonzero(), cells_of(torch.arange(2**31, MANY, device=DEVICE)).unique(dim=0))


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_features_of_more_than_2_to_the_31_points(mode):
    need_gpu_memory(2 * 4 * MANY + (20 << 30))
    points, counts = many_points()
    features = torch.zeros((MANY, 1), dtype=torch.float16, device=DEVICE)
    features[-1] = 1  # of the last point alone
    got = robocache.voxelize_pointcloud(points, features, mode=mode, deterministic=True, **HUGE, dtype="float32")
    cell = tuple(cells_of(torch.tensor([MANY - 1], device=DEVICE))[0].tolist())
    want = 1.0 if mode == "max" else np.float32(1 / int(counts[cell]))
    assert float(got[cell]) == want
    assert int(torch.count_nonzero(got)) == 1


def test_voxels_of_more_than_2_to_the_31_points():
    need_gpu_memory(100 << 30)
    points, counts = many_points()
    got = robocache.voxelize_sparse(points, **HUGE)
    assert torch.equal(got.coordinates[:, 1:].long(), counts.nonzero())
    assert torch.equal(got.counts.long(), counts[counts > 0])
    assert int(got.dropped) == MANY - int(counts.sum())
    tail = got.coordinates[got.voxel[-1000:]][:, 1:].long()
    where = cells_of(torch.arange(MANY - 1000, MANY, device=DEVICE))
    inside = where[:, 1] < 53
    assert torch.equal(tail[inside], where[inside])
    assert (got.voxel[-1000:][~inside] == -1).all()


def test_one_cell_counts_past_2_to_the_31():
    points = torch.tensor([[1.5, 0.5, 2.5]], device=DEVICE).expand(MANY, 3)
    got = robocache.voxelize_pointcloud(points, mode="count", dtype="int64", **HUGE)
    assert int(got[1, 0, 2]) == int(got.sum()) == MANY
    features = torch.ones(1, 1, device=DEVICE).expand(MANY, 1)
    got = robocache.voxelize_pointcloud(points, features, mode="mean", deterministic=True, **HUGE)
    assert float(got[1, 0, 2]) == float(got.sum()) == 1.0


def test_a_grid_of_more_than_2_to_the_32_cells():
    shape = (1700, 1600, 1601)
    assert np.prod(shape, dtype=np.int64) > 2**32
    need_gpu_memory(6 * int(np.prod(shape, dtype=np.int64)))
    cells = torch.tensor(
        [[0, 0, 0], [1699, 1599, 1600], [838, 1400, 3], [1676, 1000, 5], [850, 0, 1600]], device=DEVICE
    )
    points = (cells + 0.5).repeat(3, 1)
    for mode, value in (("occupancy", 1), ("count", 3)):
        got = robocache.voxelize_pointcloud(points, None, (0, 0, 0), 1.0, shape, mode, dtype="uint8")
        assert (got[tuple(cells.unbind(1))] == value).all()
        assert sum(int(torch.count_nonzero(x)) for x in got) == len(cells)
        del got
    assert to_numpy(robocache.voxelize_sparse(points, None, 1.0, grid_size=shape).counts).tolist() == [3] * 5
