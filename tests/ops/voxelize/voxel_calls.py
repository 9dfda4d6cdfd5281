"""Random calls of voxelization, larger and wilder than ``voxel_cases.py``, for comparing one backend with another."""

import numpy as np
import robocache
import torch
from arrays import FLOATS
from cuda_tools import DEVICE, VIEWS, assert_same_bits, copy_of, tensor
from voxel_cases import FEATURES, OF_FEATURES, POINTS, features_of

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 64, 100)
SIZES = (1, 2, 31, 32, 33, 255, 256, 257, 1023, 1025, 20_000)
SHAPES = ((1, 1, 1), (2, 3, 5), (7, 33, 1), (16, 16, 16), (64, 64, 64), (128, 128, 128), (40, 1, 300))


# ---- clouds in a box of 1 x 1 x 1, whose neighbors in memory are neighbors in space, or are not --------------------


def uniform(rng, num_points):
    return rng.uniform(-0.02, 1.02, (num_points, 3))


def in_one_cell(rng, num_points):
    return rng.uniform(0.5, 0.501, (num_points, 3))


def on_a_sphere(rng, num_points):
    x = rng.normal(size=(num_points, 3))
    return 0.5 + 0.4 * x / np.linalg.norm(x, axis=1, keepdims=True)


def in_scan_order(rng, num_points):
    turn = np.linspace(0, 40 * np.pi, num_points)
    return 0.5 + 0.45 * np.stack([np.cos(turn), np.sin(turn), np.sin(turn / 7)], 1)


def in_few_cells(rng, num_points):
    return rng.choice([0.1, 0.30001, 0.75, np.nan], (num_points, 3), p=[0.4, 0.3, 0.29, 0.01])


CLOUDS = (uniform, in_one_cell, on_a_sphere, in_scan_order, in_few_cells)


def some(rng, choices):
    return choices[rng.integers(len(choices))]


def some_call(rng, fdtype=None, width=None, num_points=None, shape=None):
    """The arguments of a random call as CPU tensors: any cloud, cut or not, seen through any view of memory."""
    num_points = num_points or some(rng, SIZES)
    points = some(rng, CLOUDS)(rng, num_points).astype(some(rng, POINTS))
    shape = shape or some(rng, SHAPES)
    given = {"points": tensor(points), "grid_min": (0, 0, 0), "grid_size": shape}
    given["voxel_size"] = tuple(1 / n for n in shape)
    if width is not None:
        features = features_of(rng, num_points, width, fdtype or some(rng, FEATURES))
        if features.dtype in FLOATS and rng.random() < 0.2:
            features[rng.random(features.shape) < 0.01] = rng.choice([np.nan, np.inf, -np.inf])
        given["features"] = tensor(features)
    for name in ("points", "features"):
        if name in given:
            given[name] = some(rng, VIEWS)(given[name])
    if rng.random() < 0.5:
        num_clouds = some(rng, (1, 2, 5, 70) if np.prod(shape) < 5000 else (1, 2, 3))
        inner = np.sort(rng.integers(0, num_points + 1, num_clouds - 1))
        given["offsets"] = tensor(np.array([0, *inner, num_points]))
    return given


# ---- the same call on both devices -----------------------------------------------------------------------------------


def moved(given, device=DEVICE):
    return {name: copy_of(x, device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}


def check(function, given, what="", **options):
    """The same bits on the GPU and on the CPU in everything that comes back."""
    got, want = function(**moved(given), **options), function(**given, **options)
    for i, (mine, theirs) in enumerate(zip(leaves(got), leaves(want), strict=True)):
        if isinstance(theirs, torch.Tensor):
            assert mine.is_cuda
            assert_same_bits(mine, theirs, f"{what} output {i}")
        else:
            assert mine == theirs, f"{what} output {i}"


def leaves(result):
    return torch.utils._pytree.tree_leaves(result)


def check_images(images, mode):
    given = {"depth": tensor(images.depth), "intrinsics": tensor(images.intrinsics), "pose": tensor(images.pose)}
    given["features"] = tensor(images.features) if mode in OF_FEATURES else None
    grid = {"grid_min": images.origin, "voxel_size": images.size, "grid_size": images.shape}
    check(robocache.voxelize_depth, {**given, **grid}, mode=mode, views=images.views, return_info=True, max_depth=3.0,
          deterministic=True)  # fmt: skip
