"""Voxelization as PyTorch sees it: operators, fake tensors, one node under torch.compile, CUDA graphs."""

import shutil
import subprocess
import sys

import pytest
import robocache
import torch
from arrays import BACKENDS, CUDA, DEVICE, REQUIRE_CUDA, bits
from recorded_ops import recorded
from voxel_cases import FEATURES, LAYOUTS, MODES, OF_FEATURES, POINTS, images_of, one_cloud, ragged, sample, up_of

NATIVE = [backend for backend in BACKENDS if backend != "torch"]
native = pytest.mark.parametrize("backend", NATIVE)
needs_cuda = pytest.mark.skipif(not (CUDA or REQUIRE_CUDA), reason="needs CUDA")


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()


def same(got, want):
    """The same structure with the same bits."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(same(g, w) for g, w in zip(got, want, strict=True))
    if want is None or isinstance(want, int):
        return got == want
    return got.dtype == want.dtype and got.shape == want.shape and bits(got) == bits(want)


# ---- the operators ---------------------------------------------------------------------------------------------------


def own(args):
    """The arguments as leaves, where opcheck may look for gradients."""
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in args)


@native
@pytest.mark.parametrize("layout", ["one_cloud", "ragged"])
@pytest.mark.parametrize("mode", MODES)
def test_the_operators_pass_opcheck(mode, layout, backend, rng):
    given = sample(LAYOUTS[layout](rng, POINTS[0]).of(mode), backend)
    options = {"return_info": True, "fill": 2.0, "deterministic": True} if layout == "ragged" else {}
    calls = recorded(lambda: robocache.voxelize_pointcloud(**given, mode=mode, **options))
    names = ["robocache::voxelize", "robocache::voxelize_backward"][: 2 if mode in OF_FEATURES else 1]
    assert [function.name() for function, _ in calls] == names
    torch.library.opcheck(calls[0][0], own(calls[0][1]))
    for function, args in calls[1:]:
        with torch.no_grad():
            torch.library.opcheck(function, tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args))


@native
@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
def test_the_operator_of_voxels_passes_opcheck(bounded, backend, rng):
    given = sample(ragged(rng, POINTS[0]), backend)
    given["grid_size"] = given["grid_size"] if bounded else None
    options = {"max_voxels": 30, "max_points": 2, "padded": True, "mode": "max"}
    for features in (given["features"], given["features"].detach()):
        given["features"] = features
        (function, args), *more = recorded(lambda: tuple(robocache.voxelize_sparse(**given, **options)))
        assert function.name() == "robocache::voxelize_sparse"
        assert not more
        checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
        if not features.requires_grad:  # opcheck adds outputs up, and cannot add floats to the integers that come first
            checks.append("test_aot_dispatch_dynamic")
        torch.library.opcheck(function, own(args), test_utils=checks)


@native
@pytest.mark.parametrize("mode", ["occupancy", "mean"])
def test_the_operator_of_depth_images_passes_opcheck(mode, backend, rng):
    images = images_of(rng, (2, 2), each=True, views=True)
    call = depth_call(images, backend, mode)
    for function, args in recorded(call):
        assert function.name() == "robocache::voxelize_depth"
        torch.library.opcheck(function, args)


def depth_call(images, backend, mode, **options):
    features = images.features if mode in OF_FEATURES else None
    given = [None if x is None else torch.from_numpy(x).to(DEVICE[backend])
             for x in (images.depth, images.intrinsics, images.pose, features)]  # fmt: skip
    return lambda: robocache.voxelize_depth(*given, images.origin, images.size, images.shape, mode, views=images.views,
                                            return_info=True, **options)  # fmt: skip


def test_operators_are_registered_only_when_they_are_needed():
    code = """
import sys, numpy as np, robocache
robocache.voxelize_pointcloud(np.zeros((2, 3), np.float32))
robocache.voxelize_sparse(np.zeros((2, 3), np.float32))
assert "torch" not in sys.modules
import torch
points, features = torch.zeros(2, 3), torch.zeros(2, 3)
robocache.voxelize_pointcloud(points, features, mode="mean")
robocache.voxelize_depth(torch.ones(4, 4), torch.eye(3))
assert "robocache.ops.torch_ops.voxelize" not in sys.modules
robocache.voxelize_pointcloud(points, features.requires_grad_(), mode="mean")
assert "robocache.ops.torch_ops.voxelize" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_fake_tensor_is_not_read(rng):
    case = ragged(rng, POINTS[0], FEATURES[1])
    with torch._subclasses.FakeTensorMode() as mode:
        points, features, offsets = (
            mode.from_tensor(torch.from_numpy(x)) for x in (case.points, case.features, case.offsets)
        )
        grid, info = robocache.voxelize_pointcloud(points, features, mode="max", offsets=offsets, return_info=True)
        counts = robocache.voxelize_pointcloud(points, mode="count", dtype="uint8", grid_size=(2, 3, 4))
        voxels = robocache.voxelize_sparse(points, features, offsets=offsets, max_voxels=9, padded=True, max_points=2)
        depth = robocache.voxelize_depth(torch.ones(4, 5, 6), torch.eye(3), grid_size=(2, 3, 4))
    assert type(grid) is type(points)
    assert (grid.shape, grid.dtype) == ((5, 128, 128, 128, 3), torch.float16)
    assert (info.counts.shape, info.counts.dtype) == (grid.shape[:4], torch.int32)
    assert (info.dropped.shape, info.dropped.dtype) == ((5,), torch.int64)
    assert (counts.shape, counts.dtype) == ((2, 3, 4), torch.uint8)
    assert [tuple(x.shape) for x in voxels[:5]] == [(9, 4), (9, 3), (9,), (len(case.points),), (9, 2)]
    assert depth.shape == (4, 2, 3, 4)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("layout", ["one_cloud", "strided"])
@pytest.mark.parametrize("mode", MODES)
def test_voxelize_compiles_to_the_same_bits_and_the_same_gradient(mode, layout, backend, rng):
    given = sample(LAYOUTS[layout](rng, POINTS[0]).of(mode), backend)

    def call(points, features):
        arrays = {**given, "points": points, "features": features}
        return robocache.voxelize_pointcloud(**arrays, mode=mode, deterministic=True, fill=2.0, return_info=True)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    got, want = (f(given["points"], given["features"]) for f in (compiled, call))
    assert same(got[0], want[0])
    assert same(tuple(got[1]), tuple(want[1]))
    if mode in OF_FEATURES:
        grads = [torch.autograd.grad(x[0], given["features"], up_of(x[0])) for x in (got, want)]
        assert same(*grads)


@native
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_the_three_functions_compile_between_other_code(compiler, backend, rng):
    if compiler == "inductor" and not (shutil.which("g++") if backend == "cpu" else torch.utils._triton.has_triton()):
        pytest.skip("inductor has no compiler here")
    given = sample(ragged(rng, POINTS[0]), backend)
    images = depth_call(images_of(rng, (2,)), backend, "mean", deterministic=True)

    def call(points, features):
        arrays = {**given, "points": points * 1, "features": features * 2 + 1}
        grid = robocache.voxelize_pointcloud(**arrays, mode="mean", deterministic=True).relu()
        voxels = robocache.voxelize_sparse(**arrays, mode="max", max_voxels=20, max_points=3, padded=True)
        return grid, voxels.features.sin(), voxels.coordinates + 1, voxels.num_voxels, voxels.overflow, images()[0]

    compiled = torch.compile(call, fullgraph=True, backend=compiler)
    got, want = (f(given["points"], given["features"]) for f in (compiled, call))
    torch.testing.assert_close(got, want)
    ups = [torch.autograd.grad(x[:2], given["features"], [up_of(y) for y in x[:2]]) for x in (got, want)]
    torch.testing.assert_close(*ups)


@native
@torch._dynamo.config.patch(error_on_recompile=True)
def test_one_graph_serves_all_sizes(backend, rng):
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def compiled(points, features, offsets):
        return robocache.voxelize_pointcloud(points, features, offsets=offsets, mode="max", grid_size=(4, 5, 6))

    for lengths, width in (((30, 9, 4, 4, 1), 4), ((5, 0, 7, 50), 7), ((2, 2, 90, 1, 1, 1, 2, 2), 5)):
        given = sample(ragged(rng, POINTS[0], FEATURES[0], width, lengths), backend)
        points, features, offsets = given["points"], given["features"], given["offsets"]
        got = compiled(points, features, offsets)
        want = robocache.voxelize_pointcloud(points, features, offsets=offsets, mode="max", grid_size=(4, 5, 6))
        assert same(got, want)
        grads = [torch.autograd.grad(x, features, up_of(x)) for x in (got, want)]
        assert same(*grads)


def test_voxelize_can_be_exported(rng):
    class Module(torch.nn.Module):
        def forward(self, points, features):
            return robocache.voxelize_pointcloud(points, features, mode="max", grid_size=(4, 5, 6), grid_min=(0, 0, 0))

    given = (torch.rand(50, 3), torch.randn(50, 4))
    program = torch.export.export(Module(), given)
    assert same(program.module()(*given), Module()(*given))
    assert "robocache.voxelize" in program.graph_module.code


BAD = {
    "shape": lambda p, f: robocache.voxelize_pointcloud(p[:, :2], f, mode="mean"),
    "size": lambda p, f: robocache.voxelize_pointcloud(p, f, mode="mean", voxel_size=-0.5),
    "mode": lambda p, f: robocache.voxelize_pointcloud(p, f, mode="median"),
    "features": lambda p, f: robocache.voxelize_pointcloud(p, f[1:], mode="max"),
    "no gradient of points": lambda p, f: robocache.voxelize_pointcloud(f[:, :3], f, mode="max"),
    "capacity": lambda p, f: robocache.voxelize_sparse(p, f, max_voxels=0, padded=True),
    "no cells": lambda p, f: robocache.voxelize_sparse(p, f, grid_size=(0, 0, 0), max_voxels=9, padded=True),
    "offsets": lambda p, f: robocache.voxelize_pointcloud(p, offsets=p.new_zeros(2, dtype=torch.int64), check=True),
}


@native
@pytest.mark.parametrize("what", BAD)
def test_a_compiled_call_refuses_what_an_eager_call_refuses_in_the_same_words(what, backend, rng):
    given = sample(one_cloud(rng, POINTS[0]), backend)
    said = []
    for call in (torch.compile(BAD[what], backend="aot_eager", fullgraph=True), BAD[what]):
        with pytest.raises((ValueError, NotImplementedError)) as caught:
            call(given["points"], given["features"])
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


# ---- CUDA ------------------------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("mode", MODES)
def test_a_cuda_graph_replays_an_eager_call_and_its_gradient(mode, rng):
    case = ragged(rng, POINTS[0], lengths=(300, 0, 200)).of(mode)
    given = sample(case, "cuda")
    images = depth_call(images_of(rng, (2,)), "cuda", mode, deterministic=True)

    def call():
        grid, info = robocache.voxelize_pointcloud(**given, mode=mode, deterministic=True, return_info=True)
        listed = robocache.voxelize_sparse(
            **{**given, "features": None}, max_voxels=100, max_points=3, padded=True, check=False
        )
        found = [grid, *info, *(x for x in listed if x is not None), images()[0]]
        if mode in OF_FEATURES:
            found += torch.autograd.grad(grid, given["features"], up_of(grid))
        return found

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    with torch.no_grad():
        given["points"].add_(0.07)
        if mode in OF_FEATURES:
            given["features"].mul_(-3.0)
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, call(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
