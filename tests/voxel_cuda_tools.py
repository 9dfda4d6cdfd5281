"""What the tests of voxelization on CUDA share: the same call on both devices, equal bits in all that comes back."""

import robocache
import torch
from cuda_tools import DEVICE, assert_same_bits, copy_of, tensor
from voxel_cases import OF_FEATURES


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
