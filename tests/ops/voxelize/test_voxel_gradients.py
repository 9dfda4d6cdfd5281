"""Gradients of voxelization with respect to the features: against the oracle, and native against torch."""

import numpy as np
import pytest
import robocache
import torch
import voxel_oracle
from arrays import BACKENDS, DEVICE, bits, to_numpy, torch_dtype
from voxel_cases import FEATURES, LAYOUTS, OF_FEATURES, POINTS, images_of, one_cloud, ragged, sample, up_of

native = pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "torch"])
of_features = pytest.mark.parametrize("mode", OF_FEATURES)


@of_features
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fdtype", FEATURES[:3], ids=str)
def test_gradients_of_features_agree_with_the_oracle(fdtype, layout, mode, backend, rng):
    for dtype in POINTS if layout == "ragged" else POINTS[:1]:
        case = LAYOUTS[layout](rng, dtype, fdtype)
        given = sample(case, backend)
        for options in ({}, {"deterministic": True}, {"dtype": torch.float32, "fill": 3.0}):
            grid = robocache.voxelize_pointcloud(**given, mode=mode, **options)
            up = up_of(grid)
            (got,) = torch.autograd.grad(grid, given["features"], up)
            want = voxel_oracle.gradient(
                case.points, case.features, case.offsets, case.origin, case.size, case.shape, mode,
                to_numpy(up).astype(np.float32),
            )  # fmt: skip
            assert got.dtype == torch_dtype(fdtype)
            if mode == "std":  # the oracle is not in whole numbers
                rtol = 1e-5 if fdtype == np.float32 else 2.0**-7
                np.testing.assert_allclose(to_numpy(got).astype("f4"), want, rtol=rtol, atol=1e-5)
            elif mode == "mean" and fdtype != np.float32:  # a share may be rounded to 16 bits in one step or in two
                np.testing.assert_allclose(to_numpy(got).astype("f4"), want, rtol=2.0**-7)
            else:
                np.testing.assert_array_equal(to_numpy(got), want.astype(fdtype))


@of_features
@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
def test_gradients_of_the_features_of_voxels(mode, bounded, backend, rng):
    """The same as that of the cells of a dense grid."""
    case = ragged(rng, POINTS[0])
    given = sample(case, backend)
    grid, info = robocache.voxelize_pointcloud(**given, mode=mode, return_info=True)
    up = up_of(grid)
    (want,) = torch.autograd.grad(grid, given["features"], up)
    given["grid_size"] = case.shape if bounded else None
    voxels = robocache.voxelize_sparse(**given, mode=mode)
    places = tuple(voxels.coordinates.long().unbind(1))
    inside = torch.tensor(case.shape, device=up.device)
    kept = ((voxels.coordinates[:, 1:] >= 0) & (voxels.coordinates[:, 1:] < inside)).all(1)
    rows = torch.zeros_like(voxels.features)
    rows[kept] = up[tuple(x[kept] for x in places)]
    (got,) = torch.autograd.grad(voxels.features, given["features"], rows)
    if mode == "std":  # not in whole numbers
        np.testing.assert_allclose(to_numpy(got), to_numpy(want), rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(to_numpy(got), to_numpy(want))
    assert int(info.counts.sum()) > 10


@native
@of_features
def test_native_and_torch_gradients_agree(mode, backend, rng):
    """Many points and channels, so that threads and blocks meet at the same cells."""
    for width in (1, 3, 4, 16, 33):
        case = ragged(rng, POINTS[0], FEATURES[0], width, (900, 0, 1100))
        given, found = sample(case, backend), []
        for which in (backend, "torch"):
            grid = robocache.voxelize_pointcloud(**{**given, "backend": which}, mode=mode, deterministic=True)
            found += torch.autograd.grad(grid, given["features"], up_of(grid))
        if mode == "std":  # torch derives the formula
            torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
        else:
            assert bits(found[0]) == bits(found[1])


@native
def test_the_gradient_of_a_deviation_is_right_also_for_large_values_that_are_nearly_the_same(backend, rng):
    points = torch.full((50, 3), 0.5, device=DEVICE[backend])
    features = torch.from_numpy((1000 + rng.normal(size=(50, 2)) * 1e-2).astype(np.float32)).to(points.device)
    features.requires_grad_()
    wide = features.detach().double().requires_grad_()
    grid = robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (1, 1, 1), "std", backend)
    want = wide.std(0, correction=0)
    torch.testing.assert_close(grid[0, 0, 0].double(), want, rtol=1e-6, atol=0)
    grid.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(features.grad.double(), wide.grad, rtol=1e-5, atol=1e-7)
    (first,) = torch.autograd.grad(
        robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (1, 1, 1), "std", backend).sum(),
        features, create_graph=True,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
    voxels = robocache.voxelize_sparse(points, features, grid_min=(0, 0, 0), voxel_size=1.0, mode="std")
    (got,) = torch.autograd.grad(voxels.features.sum(), features, create_graph=True)
    torch.testing.assert_close(got.detach().double(), wide.grad, rtol=1e-5, atol=1e-7)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        got.sum().backward()


def test_the_gradient_of_a_deviation_is_zero_where_it_is_zero_and_nan_where_it_is_nan(backend):
    points = torch.tensor([[0.5] * 3] * 2 + [[1.5] * 3] * 3 + [[0.5, 0.5, 1.5]], device=DEVICE[backend])
    features = torch.tensor([7.0, 7.0, 1.0, float("nan"), 2.0, 3.0], device=DEVICE[backend])[:, None].requires_grad_()
    grid = robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (2, 2, 2), "std", backend, fill=9.0)
    assert (grid[0, 0, 0].item(), grid[0, 0, 1].item(), grid[1, 0, 0].item()) == (0.0, 0.0, 9.0)
    assert grid[1, 1, 1].isnan()
    grid.sum().backward()
    assert features.grad[[0, 1, 5], 0].tolist() == [0.0] * 3
    assert features.grad[2:5].isnan().all()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_equal_points_the_first_gets_the_gradient(mode, backend):
    device = DEVICE[backend]
    points = torch.tensor([[0.5] * 3] * 4 + [[9.0] * 3] + [[1.5] * 3] * 2, device=device)
    features = torch.tensor([[1.0, 0.0, 2], [1, -0.0, 2], [1, 0, 2], [1, -0.0, 3], [1, 0, 9], [7, 7, 7], [7, 7, 7]])
    features = features.to(device).requires_grad_()
    grid = robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (2, 2, 2), mode, backend)
    grid.sum().backward()
    best = [0, 1, 0] if mode == "min" else [0, 0, 3]  # -0.0 < +0.0
    want = torch.zeros(7, 3)
    want[best, [0, 1, 2]] = 1
    want[5] = 1
    assert features.grad.cpu().tolist() == want.tolist()


def test_dropped_points_and_empty_cells_bring_no_gradient_back(backend):
    device = DEVICE[backend]
    points = torch.tensor([[0.5] * 3, [float("nan")] * 3, [5.0] * 3, [-1.0] * 3], device=device)
    for mode in OF_FEATURES:
        features = torch.tensor([[1.0], [float("nan")], [float("inf")], [2]], device=device).requires_grad_()
        grid = robocache.voxelize_pointcloud(points, features, (0, 0, 0), 1.0, (2, 2, 2), mode, backend, fill=9.0)
        grid.backward(torch.full_like(grid, 3.0))
        assert features.grad.cpu().tolist() == [[0.0 if mode == "std" else 3.0], [0.0], [0.0], [0.0]]


def test_a_gradient_that_is_not_contiguous_is_read_where_it_is(backend, rng):
    case = one_cloud(rng, POINTS[0], width=3)
    given = sample(case, backend)
    grid = robocache.voxelize_pointcloud(**given, mode="sum")
    up = up_of(grid.permute(3, 2, 1, 0)).permute(3, 2, 1, 0)
    (got,) = torch.autograd.grad(grid, given["features"], up, retain_graph=True)
    (want,) = torch.autograd.grad(grid, given["features"], up.contiguous(), retain_graph=True)
    assert bits(got) == bits(want)
    (got,) = torch.autograd.grad(grid, given["features"], torch.ones((), device=up.device).expand(grid.shape))
    assert to_numpy(got).sum() == 3 * case.expected("count").counts.sum()


def test_no_points_have_an_empty_gradient(backend):
    device = DEVICE[backend]
    for mode in OF_FEATURES:
        features = torch.zeros(0, 3, device=device, requires_grad=True)
        grid = robocache.voxelize_pointcloud(torch.zeros(0, 3, device=device), features, mode=mode, backend=backend,
                                             grid_size=(2, 2, 2))  # fmt: skip
        grid.sum().backward()
        assert features.grad.shape == (0, 3)


@native
def test_features_are_kept_only_where_the_gradient_reads_them(backend, rng):
    for mode in OF_FEATURES:
        given = sample(one_cloud(rng, POINTS[0]), backend)
        leaf = given["features"]
        given["features"] = leaf * 2
        grid = robocache.voxelize_pointcloud(**given, mode=mode)
        given["features"].zero_()
        if mode in ("min", "max", "std"):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                grid.sum().backward()
        else:
            grid.sum().backward()
            assert leaf.grad.any()


@native
def test_points_that_changed_are_noticed(backend, rng):
    given = sample(one_cloud(rng, POINTS[0]), backend)
    given["points"] = given["points"].clone()
    grid = robocache.voxelize_pointcloud(**given, mode="sum")
    given["points"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grid.sum().backward()


@native
def test_a_second_derivative_is_refused(backend, rng):
    given = sample(one_cloud(rng, POINTS[0]), backend)
    grid = robocache.voxelize_pointcloud(**given, mode="sum")
    (first,) = torch.autograd.grad((grid**2).sum(), given["features"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_features_of_depth_images_have_a_gradient_with_torch_alone(rng):
    images = images_of(rng, (2,), np.float32, FEATURES[0])
    depth, intrinsics, pose, features = (
        torch.from_numpy(x) for x in (images.depth, images.intrinsics, images.pose, images.features)
    )
    features.requires_grad_()
    given = (depth, intrinsics, pose, features, images.origin, images.size, images.shape, "sum")
    grid, info = robocache.voxelize_depth(*given, "torch", return_info=True)
    grid.sum().backward()
    assert features.grad.sum() == 3 * info.counts.sum()
    with pytest.raises(NotImplementedError, match="features must not require grad"):
        robocache.voxelize_depth(*given)


def test_counts_and_dropped_have_no_gradient(backend, rng):
    given = sample(one_cloud(rng, POINTS[0]), backend)
    grid, info = robocache.voxelize_pointcloud(**given, mode="mean", return_info=True)
    assert grid.requires_grad
    assert not any(x.requires_grad for x in info)
    with torch.no_grad():
        assert not robocache.voxelize_pointcloud(**given, mode="mean").requires_grad
