"""A call of voxelize that is not direct: arrays of any framework, every backend, refusals in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .arrays import allocator, as_torch, finish, from_torch, is_traced_by_jax, kind_of, work_queue
from .backend import move_to, refuse_unseen, select_backend
from .types import Array, SparseVoxels

Named = list[tuple[str, Array]]
Dense = tuple[Array, Array | None, Array | None]

ITEM_BYTES = {"bool": 1, "uint8": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4}


# The arguments of a call, in the order in which ``_core`` and the operators of PyTorch take them.


class Cloud(NamedTuple):
    points: Array
    offsets: Array | None
    features: Array | None

    def named(self) -> Named:
        return _named(self._fields, self)

    def moved(self, op: str, device: Any) -> Cloud:
        return self if device is None else Cloud(*(move_to(op, x, device) for x in self))


class Images(NamedTuple):
    depth: Array
    intrinsics: Array
    pose: Array | None
    features: Array | None
    views: bool
    depth_scale: float | None
    max_depth: float | None

    def named(self) -> Named:
        return _named(self._fields[:4], self)

    def moved(self, op: str, device: Any) -> Images:
        """With matrices as arrays of the kind of ``depth``."""
        depth, intrinsics, pose, features = self[:4]
        if device is not None:
            depth, intrinsics, pose, features = (move_to(op, x, device) for x in self[:4])
        intrinsics = matrix(op, "intrinsics", intrinsics, depth)
        if pose is not None:
            pose = matrix(op, "pose", pose, depth)
        return self._replace(depth=depth, intrinsics=intrinsics, pose=pose, features=features)


class Box(NamedTuple):
    """The grid; without ``grid_size`` it has no bounds."""

    grid_min: Any
    voxel_size: Any
    grid_size: Any

    def plain(self) -> tuple[list[float], list[float], list[int] | None]:
        """Numbers, once C++ has validated them."""
        shape = None if self.grid_size is None else [int(x) for x in self.grid_size]
        return numbers(self.grid_min), sizes(self.voxel_size), shape


class Settings(NamedTuple):
    mode: str
    dtype: str | None
    fill: float
    deterministic: bool
    check: bool | None


class Limits(NamedTuple):
    max_voxels: int | None
    max_points: int | None
    padded: bool


def run_points(
    cloud: Cloud, box: Box, settings: Settings, info: bool, backend: str | None, device: Any
) -> Dense:  # fmt: skip
    op = "voxelize_pointcloud"
    if is_traced_by_jax(*cloud):
        from .jax_ops import voxelize as traced

        return traced.run_points(cloud, box, settings, info, backend, device)
    cloud = cloud.moved(op, device)
    named = cloud.named()
    if needs_op(named, backend):
        from .torch_ops import voxelize as operators

        return operators.run_points(cloud, box, settings, info, select_backend(op, backend, cloud.points))
    chosen = _begin(op, named, backend, differentiable=True)
    queue = work_queue(kind_of(cloud.points), cloud.points)
    if chosen == "torch":
        dtype = _core.check_voxelize(*cloud, *box, *settings, queue)

        def reference(torch: Any, module: Any, points: Any, offsets: Any, features: Any) -> Any:
            reducing = (settings.mode, getattr(torch, dtype), settings.fill, settings.deterministic)
            made = module.dense(points, features, offsets, *box.plain(), *reducing)
            return made if info else made[:1]

        return _dense(_run_reference(cloud, reference))
    made = _core.voxelize(*cloud, *box, *settings, bool(info), allocator(cloud.points), queue)
    return finish(made[0]), finish(made[1]), finish(made[2])


def run_depth(
    images: Images, box: Box, settings: Settings, info: bool, backend: str | None, device: Any
) -> Dense:  # fmt: skip
    op = "voxelize_depth"
    if is_traced_by_jax(*images):
        from .jax_ops import voxelize as traced

        return traced.run_depth(images, box, settings, info, backend, device)
    images = images.moved(op, device)
    named = images.named()
    if needs_op(named, backend):
        from .torch_ops import voxelize as operators

        return operators.run_depth(images, box, settings, info, select_backend(op, backend, images.depth))
    chosen = _begin(op, named, backend, differentiable=False)
    queue = work_queue(kind_of(images.depth), images.depth)
    if chosen == "torch":
        dtype = _core.check_voxelize_depth(*images, *box, *settings, queue)

        def reference(torch: Any, module: Any, *arrays: Any) -> Any:
            reducing = (settings.mode, getattr(torch, dtype), settings.fill, settings.deterministic)
            made = module.depth(*arrays, *images[4:], *box.plain(), *reducing)
            return made if info else made[:1]

        return _dense(_run_reference(images[:4], reference))
    made = _core.voxelize_depth(*images, *box, *settings, bool(info), allocator(images.depth), queue)
    return finish(made[0]), finish(made[1]), finish(made[2])


def run_sparse(
    cloud: Cloud, box: Box, settings: Settings, limits: Limits, backend: str | None, device: Any
) -> SparseVoxels:
    from .voxelize import finish_sparse

    op = "voxelize_sparse"
    if is_traced_by_jax(*cloud):
        from .jax_ops import voxelize as traced

        return traced.run_sparse(cloud, box, settings, limits, backend, device)
    max_voxels, max_points, padded = limits
    rows: Any
    found: Any
    cloud = cloud.moved(op, device)
    named = cloud.named()
    if needs_op(named, backend):
        from .torch_ops import voxelize as operators

        where = select_backend(op, backend, cloud.points)
        rows, found = operators.run_sparse(cloud, box, settings, limits, where)
        return finish_sparse(rows, found, padded)
    kind = kind_of(cloud.points)
    chosen = _begin(op, named, backend, differentiable=True)
    queue = work_queue(kind, cloud.points)
    if chosen == "torch":
        _core.check_voxelize_sparse(*cloud, *box, *settings, *limits, queue)

        def reference(torch: Any, module: Any, points: Any, offsets: Any, features: Any) -> Any:
            reducing = (settings.mode, max_points, settings.deterministic)
            made = module.sparse(points, features, offsets, *box.plain(), *reducing)
            return _fit(torch, made, max_voxels, padded)

        *rows, found = _run_reference(cloud, reference)
    else:
        made = _core.voxelize_sparse(*cloud, *box, *settings, *limits, padded, allocator(cloud.points), queue)
        *rows, found = (finish(array) for array in made)
        if padded and kind == "jax":
            rows = _padded_for_jax(rows, found)
    if kind == "jax" and not padded:
        found = np.asarray(found)
    return finish_sparse(tuple(rows), found, padded)


# ---- arguments -------------------------------------------------------------------------------------------------------


def numbers(x: Any) -> list[float]:
    """Three numbers, once C++ has seen that they are."""
    return [float(item) for item in x]


def sizes(x: Any) -> list[float]:
    """One number for all axes, or three. A number may be an array without dimensions."""
    one = isinstance(x, (int, float)) or not hasattr(x, "__len__") or getattr(x, "ndim", 1) == 0
    return [float(x)] * 3 if one else numbers(x)


def matrix(op: str, name: str, given: Any, like: Array) -> Array:
    """Intrinsics or pose in float32 and in the framework of ``like``: a tensor or an array where it is, a list or a
    NumPy array wherever ``like`` is. Anything else is for the contract to name."""
    kind = kind_of(like)
    if isinstance(given, (list, tuple)):
        try:
            given = np.asarray(given)
        except ValueError as error:
            raise ValueError(f"{op}: {name} must be rows of as many numbers each, got {given!r}") from error
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiu" and not isinstance(given, np.ma.MaskedArray):
        if kind == "torch":
            import torch

            return torch.as_tensor(given, dtype=torch.float32, device=like.device)
        if kind == "jax":
            import jax

            return jax.numpy.asarray(given, dtype="float32", device=next(iter(like.devices())))
        if kind == "cupy":
            import cupy

            with like.device:
                return cupy.asarray(given, dtype="float32")
        return given.astype(np.float32)
    if kind_of(given) == "torch":
        return given.float() if given.is_floating_point() else given
    if kind_of(given) in ("jax", "cupy") and given.dtype.kind == "f":
        return given.astype("float32")
    return given


def needs_op(named: Named, backend: str | None) -> bool:
    """Whether the call goes through PyTorch's operator: it is compiled or traced, or features require a gradient."""
    torch = sys.modules.get("torch")
    if torch is None or backend in ("torch", "pytorch"):
        return False
    if not all(isinstance(x, torch.Tensor) for _, x in named):
        return False
    if torch.compiler.is_compiling():
        return True
    if torch.is_grad_enabled() and any(x.requires_grad for name, x in named if name == "features"):
        return True
    return any(type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for _, x in named)


def refusal_of(op: str, named: Named, differentiable: bool) -> str | None:
    """The message about a tensor that requires a gradient and cannot have one; None if there is no such tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return None
    all_torch = all(isinstance(x, torch.Tensor) for _, x in named)
    for name, array in named:
        if not isinstance(array, torch.Tensor) or not array.requires_grad:
            continue
        if name != "features":
            why = "only features have a gradient"
        elif not all_torch:
            why = "not all arrays are torch tensors"
        elif differentiable:
            continue
        else:
            why = f"{op} has a gradient only with backend='torch'"
        return (
            f"{op}: {name} must not require grad, {why}: "
            "detach it, or call under torch.no_grad(); got requires_grad=True"
        )
    return None


def _named(names: Sequence[str], arrays: Sequence[Array]) -> Named:
    return [(name, array) for name, array in zip(names, arrays, strict=False) if array is not None]


def _begin(op: str, named: Named, backend: str | None, differentiable: bool) -> str:
    """The backend, once everything is refused that the contract cannot see."""
    chosen = select_backend(op, backend, named[0][1] if named else None)
    if chosen != "torch" and (refusal := refusal_of(op, named, differentiable)) is not None:
        raise NotImplementedError(refusal)
    refuse_unseen(op, named, chosen)
    return chosen


# ---- the torch backend -----------------------------------------------------------------------------------------------


def _run_reference(arrays: Sequence[Array | None], reference: Callable[..., Any]) -> list[Any]:
    """``reference(torch, module, *tensors)`` on arrays of any kind; its tensors as arrays of that kind."""
    import torch

    from .torch_backend import voxelize as in_torch

    kind = kind_of(arrays[0])
    tensors: list[Any] = [None if x is None else as_torch(x) for x in arrays]
    results = reference(torch, in_torch, *tensors)
    if kind == "jax" and tensors[0].is_cuda:  # JAX may reuse the inputs as soon as we return
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [None if x is None else from_torch(kind, x) for x in results]


def _dense(made: list[Any]) -> Dense:
    return made[0], made[1] if len(made) > 1 else None, made[2] if len(made) > 2 else None


def _fit(torch: Any, made: Sequence[Any], max_voxels: int | None, padded: bool) -> list[Any]:
    """All voxels of the torch backend as what fits into ``max_voxels``, with what ``_core`` calls found."""
    coordinates, features, counts, voxel, first, dropped = made
    num_found = len(coordinates)
    found = torch.stack([dropped.new_tensor(num_found), dropped])
    if max_voxels is None:
        return [coordinates, features, counts, voxel, first, found]
    voxel = torch.where(voxel < max_voxels, voxel, -1)
    rows = [(coordinates, -1), (features, 0), (counts, 0), (first, -1)]
    kept = [None if x is None else x[:max_voxels] for x, _ in rows]
    if padded and num_found < max_voxels:
        kept = [
            None if x is None else torch.cat([x, x.new_full((max_voxels - num_found, *x.shape[1:]), fill)])
            for x, (_, fill) in zip(kept, rows, strict=True)
        ]
    return [*kept[:3], voxel, kept[3], found]


def _padded_for_jax(rows: list[Any], found: Any) -> list[Any]:
    """What the other frameworks write before the call."""
    import jax.numpy as jnp

    coordinates, features, counts, voxel, first = rows
    used = jnp.arange(len(coordinates)) < found[0]

    def pad(x: Any, fill: int) -> Any:
        return None if x is None else jnp.where(used.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.asarray(fill, x.dtype))

    return [pad(coordinates, -1), pad(features, 0), pad(counts, 0), voxel, pad(first, -1)]
