"""A call of voxelize that is not direct: arrays of any framework, every backend, refusals in words."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import _core
from .arrays import as_torch, empty, finish, from_torch, kind_of, native, work_queue
from .backend import move_to, refuse_unseen, select_backend
from .types import Array, SparseVoxels

Source = tuple[Any, ...]
Grid = tuple[Any, Any, Any]
Named = list[tuple[str, Array]]
Dense = tuple[Array, Array | None, Array | None]

POINTS = ("points", "offsets", "features")
DEPTH = ("depth", "intrinsics", "pose", "features")
ITEM_BYTES = {"bool": 1, "uint8": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4}


def run_points(source: Source, grid: Grid, options: Source, info: bool, backend: str | None, device: Any) -> Dense:
    op = "voxelize_pointcloud"
    source = _moved(op, source, 3, device)
    named = _named(POINTS, source)
    if needs_op(named, backend):
        from .torch_ops import voxelize as operators

        return operators.run_points(source, grid, options, info, select_backend(op, backend, source[0]))
    chosen = _begin(op, named, backend, differentiable=True)
    queue = work_queue(kind_of(source[0]), source[0])
    if chosen == "torch":
        ((_, dtype), *_rest) = _core.check_voxelize(op, _native(source, 3), grid, options, info, queue)

        def reference(torch: Any, module: Any, points: Any, offsets: Any, features: Any) -> Any:
            mode, _, fill, deterministic, _ = options
            where = (numbers(grid[0]), sizes(grid[1]), whole(grid[2]))
            made = module.dense(points, features, offsets, *where, mode, getattr(torch, dtype), fill, deterministic)
            return made if info else made[:1]

        return _dense(_run_reference(source, 3, reference))
    made, allocate = _allocator(op, source[0])
    _core.voxelize(op, _native(source, 3), grid, options, info, allocate, queue)
    return finish(made["a grid"]), finish(made.get("counts")), finish(made.get("dropped"))


def run_depth(source: Source, grid: Grid, options: Source, info: bool, backend: str | None, device: Any) -> Dense:
    op = "voxelize_depth"
    depth, intrinsics, pose, *rest = _moved(op, source, 4, device)
    intrinsics = matrix(op, "intrinsics", intrinsics, depth)
    source = (depth, intrinsics, None if pose is None else matrix(op, "pose", pose, depth), *rest)
    named = _named(DEPTH, source)
    if needs_op(named, backend):
        from .torch_ops import voxelize as operators

        return operators.run_depth(source, grid, options, info, select_backend(op, backend, depth))
    chosen = _begin(op, named, backend, differentiable=False)
    queue = work_queue(kind_of(depth), depth)
    if chosen == "torch":
        ((_, dtype), *_rest) = _core.check_voxelize_depth(op, _native(source, 4), grid, options, info, queue)

        def reference(torch: Any, module: Any, *arrays: Any) -> Any:
            mode, _, fill, deterministic, _ = options
            where = (numbers(grid[0]), sizes(grid[1]), whole(grid[2]))
            made = module.depth(*arrays, *source[4:], *where, mode, getattr(torch, dtype), fill, deterministic)
            return made if info else made[:1]

        return _dense(_run_reference(source, 4, reference))
    made, allocate = _allocator(op, depth)
    _core.voxelize_depth(op, _native(source, 4), grid, options, info, allocate, queue)
    return finish(made["a grid"]), finish(made.get("counts")), finish(made.get("dropped"))


def run_sparse(
    source: Source, grid: Grid, options: Source, limits: Source, backend: str | None, device: Any
) -> SparseVoxels:
    from .voxelize import finish_sparse

    op = "voxelize_sparse"
    max_voxels, max_points, padded, _ = limits
    rows: Any
    found: Any
    source = _moved(op, source, 3, device)
    named = _named(POINTS, source)
    if needs_op(named, backend):
        from .torch_ops import voxelize as operators

        where = select_backend(op, backend, source[0])
        rows, found = operators.run_sparse(source, grid, options, limits, where)
        return finish_sparse(rows, found, padded)
    kind = kind_of(source[0])
    chosen = _begin(op, named, backend, differentiable=True)
    queue = work_queue(kind, source[0])
    if chosen == "torch":
        _core.check_voxelize_sparse(op, _native(source, 3), grid, options, limits, queue)

        def reference(torch: Any, module: Any, points: Any, offsets: Any, features: Any) -> Any:
            mode, _, _, deterministic, _ = options
            where = (numbers(grid[0]), sizes(grid[1]), None if grid[2] is None else whole(grid[2]))
            made = module.sparse(points, features, offsets, *where, mode, max_points, deterministic)
            return _fit(torch, made, max_voxels, padded)

        *rows, found = _run_reference(source, 3, reference)
    else:
        made, allocate = _allocator(op, source[0])
        _core.voxelize_sparse(op, _native(source, 3), grid, options, limits, allocate, queue)
        arrays = {name: finish(array) for name, array in made.items()}
        rows = [arrays.get(name) for name in ("coordinates", "features", "counts", "voxel", "first_points")]
        found = arrays["found"]
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


def whole(x: Any) -> list[int]:
    return [int(item) for item in x]


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
    """Whether the call is PyTorch's business: it is compiling or tracing, or a gradient of features is wanted."""
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
    """What to say of a tensor that wants a gradient and cannot have one; None if there is no such tensor."""
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


def _named(names: Sequence[str], source: Source) -> Named:
    return [(name, array) for name, array in zip(names, source, strict=False) if array is not None]


def _moved(op: str, source: Source, num_arrays: int, device: Any) -> Source:
    if device is None:
        return source
    return (*(move_to(op, x, device) for x in source[:num_arrays]), *source[num_arrays:])


def _native(source: Source, num_arrays: int) -> Source:
    """The source as C++ reads it."""
    return (*(None if x is None else native(x) for x in source[:num_arrays]), *source[num_arrays:])


def _begin(op: str, named: Named, backend: str | None, differentiable: bool) -> str:
    """The backend, once everything is refused that the contract cannot see."""
    chosen = select_backend(op, backend, named[0][1] if named else None)
    if chosen != "torch" and (refusal := refusal_of(op, named, differentiable)) is not None:
        raise NotImplementedError(refusal)
    refuse_unseen(op, named, chosen)
    return chosen


# ---- memory ----------------------------------------------------------------------------------------------------------


def _allocator(op: str, like: Array) -> tuple[dict[str, Array], Callable[..., Any]]:
    """What ``_core`` calls to have an array made, and the arrays it had made, by what they are."""
    made: dict[str, Array] = {}
    kind = kind_of(like)

    def allocate(what: str, shape: tuple[int, ...], dtype: str, fill: int | None) -> Any:
        try:
            array = empty(kind, shape, dtype, like)
        except (MemoryError, RuntimeError) as error:
            raise no_memory(op, what, shape, dtype, error) from error
        if fill is not None and kind != "jax":  # JAX has no memory that may be written twice
            (array.fill_ if kind == "torch" else array.fill)(fill)
        made[what] = array
        return native(array)

    return made, allocate


def no_memory(op: str, what: str, shape: Iterable[int], dtype: str, error: Exception) -> Exception:
    """The error to raise for one of an allocator: a MemoryError that names the bytes, unless it is about another thing.

    >>> no_memory("f", "a grid", (2, 3), "int32", MemoryError())
    MemoryError('f: no memory for a grid of (2, 3) int32, 24 bytes')
    """
    if not isinstance(error, MemoryError) and "memory" not in str(error):
        return error
    size = math.prod(shape) * ITEM_BYTES[dtype]
    return MemoryError(f"{op}: no memory for {what} of {tuple(shape)} {dtype}, {size} bytes")


# ---- the torch backend -----------------------------------------------------------------------------------------------


def _run_reference(source: Source, num_arrays: int, reference: Callable[..., Any]) -> list[Any]:
    """``reference(torch, module, *tensors)`` on arrays of any kind; its tensors as arrays of that kind."""
    import torch

    from .torch_backend import voxelize as in_torch

    kind = kind_of(source[0])
    tensors: list[Any] = [None if x is None else as_torch(x) for x in source[:num_arrays]]
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
