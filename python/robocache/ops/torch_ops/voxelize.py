"""voxelize for autograd and for the compilers of PyTorch.

A gradient is an ``autograd.Function`` around ``_core``. While PyTorch is compiling or tracing, a call is one node,
``robocache::voxelize``, ``voxelize_sparse`` or ``voxelize_depth``. This module is imported only for these two; other
calls go straight to ``_core``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ... import _core
from ..backend import refuse_unseen
from ..methods import OF_FEATURES, gradient_needs
from ..voxel_call import DEPTH, POINTS, Dense, Grid, Named, Source, _allocator, refusal_of, sizes
from .gradient import DTYPES

# ---- the face: from a call to an operator ----------------------------------------------------------------------------


def run_points(source: Source, grid: Grid, options: Source, info: bool, where: str) -> Dense:
    op = "voxelize_pointcloud"
    points, offsets, features = source
    named = [(name, x) for name, x in zip(POINTS, source, strict=True) if x is not None]
    if is_traced(named):
        refusal = refusal_of(op, named, differentiable=True)
        packed = (*flat(grid, options), options[1], bool(info), refusal)
        return padded_with_none(torch.ops.robocache.voxelize(points, features, offsets, *packed))
    refuse(op, named, where)
    return padded_with_none(DenseGradient.apply(features, points, offsets, grid, options, bool(info)))  # type: ignore[no-untyped-call]


def run_depth(source: Source, grid: Grid, options: Source, info: bool, where: str) -> Dense:
    op = "voxelize_depth"
    depth, intrinsics, pose, features, views, depth_scale, max_depth = source
    named = [(name, x) for name, x in zip(DEPTH, source, strict=False) if x is not None]
    refusal = refusal_of(op, named, differentiable=False)
    if not is_traced(named):
        raise NotImplementedError(refusal)
    scale, deepest = (None if x is None else float(x) for x in (depth_scale, max_depth))
    packed = (*flat(grid, options), options[1], bool(info), bool(views), scale, deepest, refusal)
    return padded_with_none(torch.ops.robocache.voxelize_depth(depth, intrinsics, pose, features, *packed))


def run_sparse(source: Source, grid: Grid, options: Source, limits: Source, where: str) -> tuple[Any, Tensor]:
    """(coordinates, features, counts, voxel, first_points), found."""
    op = "voxelize_sparse"
    points, offsets, features = source
    named = [(name, x) for name, x in zip(POINTS, source, strict=True) if x is not None]
    if is_traced(named):
        refusal = refusal_of(op, named, differentiable=True)
        packed = (*flat(grid, options), *limits[:3], refusal)
        made = torch.ops.robocache.voxelize_sparse(points, features, offsets, *packed)
    else:
        refuse(op, named, where)
        made = SparseGradient.apply(features, points, offsets, grid, options, limits)  # type: ignore[no-untyped-call]
    reduced, rest = (None, made) if features is None else (made[0], made[1:])
    coordinates, counts, voxel, found, *first = rest
    return (coordinates, reduced, counts, voxel, first[0] if first else None), found


def is_traced(named: Named) -> bool:
    """Whether compilers are at work, or tensors without data of their own are passed around."""
    if torch.compiler.is_compiling():
        return True
    return any(type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ for _, x in named)


def refuse(op: str, named: Named, where: Any) -> None:
    if (refusal := refusal_of(op, named, differentiable=True)) is not None:
        raise NotImplementedError(refusal)
    refuse_unseen(op, named, where)


def flat(grid: Grid, options: Source) -> tuple[Any, ...]:
    """The grid and the options as an operator takes them. Compilers trace this: what is wrong is said when it runs."""
    mode, _, fill, deterministic, check = options
    origin, size = [float(x) for x in grid[0]], sizes(grid[1])
    shape = None if grid[2] is None else list(grid[2])
    return origin, size, shape, mode, float(fill), bool(deterministic), bool(check)


def padded_with_none(made: Sequence[Tensor]) -> Dense:
    return (made[0], made[1], made[2]) if len(made) == 3 else (made[0], None, None)


# ---- computing -------------------------------------------------------------------------------------------------------


def detached(x: Tensor | None) -> Tensor | None:
    return x.detach() if x is not None and x.requires_grad else x


def compute(source: Source, grid: Grid, options: Source, info: bool) -> list[Tensor]:
    """The grid, and with info counts and dropped."""
    op = "voxelize_pointcloud"
    made, allocate = _allocator(op, source[0])
    _core.voxelize(op, tuple(detached(x) for x in source), grid, options, info, allocate)
    return [made["a grid"], made["counts"], made["dropped"]] if info else [made["a grid"]]


def compute_backward(
    grad: Tensor, values: Tensor | None, source: Source, grid: Grid, options: Source, dtype: torch.dtype
) -> Tensor:
    """The gradient of the features in their ``dtype``. Features and values are None where it reads none."""
    op = "voxelize_pointcloud"
    points = source[0]
    total = torch.empty((points.shape[0], grad.shape[-1]), dtype=torch.float32, device=points.device)
    _, allocate = _allocator(op, points)
    given = (grad.resolve_neg().contiguous(), values, total)
    _core.voxelize_backward(op, tuple(detached(x) for x in source), grid, options, given, allocate)
    return total.to(dtype)


def compute_sparse(source: Source, grid: Grid, options: Source, limits: Source) -> list[Tensor]:
    """features if there are any, coordinates, counts, voxel, found, and first_points if they are asked for."""
    op = "voxelize_sparse"
    made, allocate = _allocator(op, source[0])
    _core.voxelize_sparse(op, tuple(detached(x) for x in source), grid, options, limits, allocate)
    names = ["features", "coordinates", "counts", "voxel", "found", "first_points"]
    return [made[name] for name in names if name in made]


def sparse_backward(
    grad: Tensor, voxel: Tensor, counts: Tensor, mode: str, features: Tensor | None, values: Tensor | None
) -> Tensor:
    """The gradient of the features of ``voxelize_sparse``, float32: a read of each point's row."""
    if grad.shape[0] == 0:
        return grad.new_zeros((voxel.shape[0], grad.shape[1]), dtype=torch.float32)
    row, inside = voxel.clamp(min=0), (voxel >= 0)[:, None]
    share = grad.float() / counts.clamp(min=1)[:, None] if mode == "mean" else grad.float()
    if mode == "std" and features is not None:
        return torch.where(inside, share[row] * deviation_slope(features, row, inside, counts), 0.0)
    if features is not None and values is not None:  # min, max: to the first point that has the value
        value = values[row]
        same = ((features == value) & (features.signbit() == value.signbit())) | (features.isnan() & value.isnan())
        number = torch.arange(voxel.shape[0], device=voxel.device)[:, None].expand(features.shape)
        number = torch.where(same & inside, number, voxel.shape[0])
        first = torch.full_like(grad, voxel.shape[0], dtype=torch.int64)
        first = first.scatter_reduce(0, row[:, None].expand(features.shape), number, "amin")
        inside = inside & (number == first[row])
    return torch.where(inside, share[row], 0.0)


def deviation_slope(features: Tensor, row: Tensor, inside: Tensor, counts: Tensor) -> Tensor:
    """``(x - mean) / (n std)`` of each point in its row, 0 where std is 0; float32, computed in float64."""
    n, x = counts.clamp(min=1)[:, None].double(), torch.where(inside, features.double(), 0.0)
    total = torch.zeros((counts.shape[0], x.shape[1]), dtype=torch.float64, device=x.device)
    away = torch.where(inside, x - (total.index_add(0, row, x) / n)[row], 0.0)
    deviation = (total.index_add(0, row, away.square()) / n).sqrt()
    slope = torch.where(deviation[row] == 0, 0.0, away / (n * deviation)[row])
    return slope.float()


# ---- autograd --------------------------------------------------------------------------------------------------------


class DenseGradient(torch.autograd.Function):
    """voxelize_pointcloud where nothing is traced."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, points: Tensor, offsets: Any, grid: Grid, options: Source,
                info: bool) -> tuple[Tensor, ...]:  # fmt: skip
        made = compute((points, offsets, features), grid, options, info)
        remember(ctx, points, features, offsets, options[0], made)
        ctx.call = grid, options
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        results: tuple[Tensor | None, ...] = DenseGradient.backward_once(ctx, grads, *differentiable(ctx, grads))
        return results

    @staticmethod
    @once_differentiable
    def backward_once(ctx: Any, grads: Sequence[Tensor | None], *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * 6
        points, offsets, features, values = ctx.saved_tensors
        grid, options = ctx.call
        result = compute_backward(grads[0], values, (points, offsets, features), grid, options, ctx.dtype)
        return (result, *(None,) * 5)


def remember(ctx: Any, points: Tensor, features: Any, offsets: Any, mode: str, made: Sequence[Tensor]) -> None:
    """What a gradient needs."""
    ctx.save_for_backward(points, offsets, *read_by_gradient(mode, features, made[0]))
    ctx.dtype = None if features is None else features.dtype
    ctx.mode = mode
    ctx.set_materialize_grads(False)


def read_by_gradient(mode: str, features: Tensor | None, values: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Features and values, None where the gradient of ``mode`` does not read them."""
    needs = gradient_needs(mode)
    return features if needs in ("features", "values") else None, values if needs == "values" else None


def differentiable(ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What a gradient is a smooth function of: a second derivative through any of these is refused. That of min and max
    depends on the features in steps."""
    return [*grads, ctx.saved_tensors[2] if gradient_needs(ctx.mode) == "features" else None]


class SparseGradient(torch.autograd.Function):
    """voxelize_sparse where nothing is traced."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, points: Tensor, offsets: Any, grid: Grid, options: Source,
                limits: Source) -> tuple[Tensor, ...]:  # fmt: skip
        made = compute_sparse((points, offsets, features), grid, options, limits)
        remember_sparse(ctx, features, options[0], made)
        ctx.mark_non_differentiable(*made[1:])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        results: tuple[Tensor | None, ...] = SparseGradient.backward_once(ctx, grads, *differentiable(ctx, grads))
        return results

    @staticmethod
    @once_differentiable
    def backward_once(ctx: Any, grads: Sequence[Tensor | None], *_: Tensor | None) -> tuple[Tensor | None, ...]:
        return (sparse_gradient(ctx, grads), *(None,) * 5)


def remember_sparse(ctx: Any, features: Any, mode: str, made: Sequence[Tensor]) -> None:
    counts, voxel = made[2:4] if features is not None else (None, None)
    kept = (None, None) if features is None else read_by_gradient(mode, features, made[0])
    ctx.save_for_backward(voxel, counts, *kept)
    ctx.dtype = None if features is None else features.dtype
    ctx.mode = mode
    ctx.set_materialize_grads(False)


def sparse_gradient(ctx: Any, grads: Sequence[Tensor | None]) -> Tensor | None:
    if ctx.dtype is None or grads[0] is None:
        return None
    voxel, counts, features, values = ctx.saved_tensors
    return sparse_backward(grads[0], voxel, counts, ctx.mode, features, values).to(ctx.dtype)


# ---- the operators ---------------------------------------------------------------------------------------------------


def voxelize(
    points: Tensor, features: Tensor | None, offsets: Tensor | None, origin: list[float], size: list[float],
    shape: list[int], mode: str, fill: float, deterministic: bool, check: bool, dtype: str | None, info: bool,
    refusal: str | None,
) -> list[Tensor]:  # fmt: skip
    raise_refusal(refusal)
    options = (mode, dtype, fill, deterministic, check)
    return compute((points, offsets, features), (origin, size, shape), options, info)


def voxelize_fake(
    points: Tensor, features: Tensor | None, offsets: Tensor | None, origin: list[float], size: list[float],
    shape: list[int], mode: str, fill: float, deterministic: bool, check: bool, dtype: str | None, info: bool,
    refusal: str | None,
) -> list[Tensor]:  # fmt: skip
    """The outputs without their data; sizes may be symbolic. Validation happens when the operator runs."""
    batch = [] if offsets is None else [offsets.shape[0] - 1]
    return empty_dense(points.device, batch, shape, features, mode, dtype, info)


def empty_dense(
    device: torch.device, batch: list[int], shape: Sequence[int], features: Tensor | None, mode: str,
    dtype: str | None, info: bool,
) -> list[Tensor]:  # fmt: skip
    of_features = mode in OF_FEATURES and features is not None
    channels = [features.shape[-1]] if of_features and features is not None else []
    made = [torch.empty([*batch, *shape, *channels], dtype=grid_dtype(features, mode, dtype), device=device)]
    if info:
        made += [torch.empty([*batch, *shape], dtype=torch.int32, device=device)]
        made += [torch.empty(batch, dtype=torch.int64, device=device)]
    return made


def grid_dtype(features: Tensor | None, mode: str, dtype: str | None = None) -> torch.dtype:
    if dtype is not None:
        chosen: torch.dtype = DTYPES[dtype]
        return chosen
    if mode not in OF_FEATURES:
        return torch.int32
    return torch.float32 if features is None or features.dtype == torch.uint8 else features.dtype


def raise_refusal(refusal: str | None) -> None:
    if refusal is not None:
        raise NotImplementedError(refusal)


def remember_operator(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    points, features, offsets, *ctx.grid, mode, _fill, _deterministic, _check, _dtype, _info, _refusal = inputs
    remember(ctx, points, features, offsets, mode, output)
    # not those of points: where they differ, the operator says so when it runs
    ctx.num_rows = 0 if features is None else features.shape[0]


def go_back(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    result = None
    if grads[0] is not None and ctx.needs_input_grad[1]:
        points, offsets, features, values = ctx.saved_tensors
        result = torch.ops.robocache.voxelize_backward(
            grads[0], values, points, features, offsets, *ctx.grid, ctx.mode, ctx.num_rows, ctx.dtype
        )
    return None, result, *(None,) * 11


def voxelize_backward(
    grad: Tensor, values: Tensor | None, points: Tensor, features: Tensor | None, offsets: Tensor | None,
    origin: list[float], size: list[float], shape: list[int], mode: str, num_rows: int, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    grid, options = (origin, size, shape), (mode, None, 0.0, False, False)
    return compute_backward(grad, values, (points, offsets, features), grid, options, dtype)


def voxelize_backward_fake(
    grad: Tensor, values: Tensor | None, points: Tensor, features: Tensor | None, offsets: Tensor | None,
    origin: list[float], size: list[float], shape: list[int], mode: str, num_rows: int, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return torch.empty((num_rows, grad.shape[-1]), dtype=dtype, device=points.device)


def refuse_second_order(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
    raise RuntimeError(
        "voxelize_pointcloud: the native gradient has no gradient of its own; pass backend='torch' for second "
        "derivatives"
    )


def voxelize_sparse(
    points: Tensor, features: Tensor | None, offsets: Tensor | None, origin: list[float], size: list[float],
    shape: list[int] | None, mode: str, fill: float, deterministic: bool, check: bool, max_voxels: int | None,
    max_points: int | None, padded: bool, refusal: str | None,
) -> list[Tensor]:  # fmt: skip
    raise_refusal(refusal)
    options = (mode, None, fill, deterministic, check)
    limits = (max_voxels, max_points, padded, True)
    return compute_sparse((points, offsets, features), (origin, size, shape), options, limits)


def voxelize_sparse_fake(
    points: Tensor, features: Tensor | None, offsets: Tensor | None, origin: list[float], size: list[float],
    shape: list[int] | None, mode: str, fill: float, deterministic: bool, check: bool, max_voxels: int | None,
    max_points: int | None, padded: bool, refusal: str | None,
) -> list[Tensor]:  # fmt: skip
    num_points = points.shape[0]
    smaller: Any = torch.sym_min
    capacity = max_voxels if padded and max_voxels is not None else num_points
    if not padded:
        if shape is not None:
            cells = (1 if offsets is None else offsets.shape[0] - 1) * shape[0] * shape[1] * shape[2]
            capacity = smaller(capacity, cells)
        capacity = capacity if max_voxels is None else smaller(capacity, max_voxels)

    def make(sizes: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(sizes), dtype=dtype, device=points.device)

    made = [] if features is None else [make((capacity, features.shape[-1]), grid_dtype(features, "mean"))]
    made += [make((capacity, 4), torch.int32), make((capacity,), torch.int32), make((num_points,), torch.int64)]
    made += [make((2,), torch.int64)]
    if max_points is not None:
        made += [make((capacity, max_points), torch.int64)]
    return made


def remember_sparse_operator(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    remember_sparse(ctx, inputs[1], inputs[6], output)


def go_back_sparse(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    return None, sparse_gradient(ctx, grads) if ctx.needs_input_grad[1] else None, *(None,) * 12


def voxelize_depth(
    depth: Tensor, intrinsics: Tensor, pose: Tensor | None, features: Tensor | None, origin: list[float],
    size: list[float], shape: list[int], mode: str, fill: float, deterministic: bool, check: bool, dtype: str | None,
    info: bool, views: bool, depth_scale: float | None, max_depth: float | None, refusal: str | None,
) -> list[Tensor]:  # fmt: skip
    raise_refusal(refusal)
    op = "voxelize_depth"
    made, allocate = _allocator(op, depth)
    source = (depth, intrinsics, pose, detached(features), views, depth_scale, max_depth)
    options = (mode, dtype, fill, deterministic, check)
    _core.voxelize_depth(op, source, (origin, size, shape), options, info, allocate)
    return [made["a grid"], made["counts"], made["dropped"]] if info else [made["a grid"]]


def voxelize_depth_fake(
    depth: Tensor, intrinsics: Tensor, pose: Tensor | None, features: Tensor | None, origin: list[float],
    size: list[float], shape: list[int], mode: str, fill: float, deterministic: bool, check: bool, dtype: str | None,
    info: bool, views: bool, depth_scale: float | None, max_depth: float | None, refusal: str | None,
) -> list[Tensor]:  # fmt: skip
    batch = [depth.shape[0]] if depth.ndim == (4 if views else 3) else []
    return empty_dense(depth.device, batch, shape, features, mode, dtype, info)


# ---- registration ----------------------------------------------------------------------------------------------------

OPTIONS = "float[] origin, float[] size, SymInt[] shape, str mode, float fill, bool deterministic, bool check"
UNBOUNDED = OPTIONS.replace("SymInt[] shape", "SymInt[]? shape")
CLOUD = "Tensor points, Tensor? features, Tensor? offsets"

library = torch.library.Library("robocache", "FRAGMENT")  # type: ignore[no-untyped-call]
for schema, call, fake in (
    (f"voxelize({CLOUD}, {OPTIONS}, str? dtype, bool info, str? refusal) -> Tensor[]", voxelize, voxelize_fake),
    (f"voxelize_backward(Tensor grad, Tensor? values, {CLOUD}, float[] origin, float[] size, SymInt[] shape, str mode, "
     "SymInt num_rows, ScalarType dtype) -> Tensor", voxelize_backward, voxelize_backward_fake),
    (f"voxelize_sparse({CLOUD}, {UNBOUNDED}, SymInt? max_voxels, SymInt? max_points, bool padded, str? refusal) "
     "-> Tensor[]", voxelize_sparse, voxelize_sparse_fake),
    (f"voxelize_depth(Tensor depth, Tensor intrinsics, Tensor? pose, Tensor? features, {OPTIONS}, str? dtype, "
     "bool info, bool views, float? depth_scale, float? max_depth, str? refusal) -> Tensor[]",
     voxelize_depth, voxelize_depth_fake),
):  # fmt: skip
    name = library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    for device in ("CPU", "CUDA"):
        library.impl(name, call, device)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"robocache::{name}", fake, lib=library)
torch.library.register_autograd("robocache::voxelize", go_back, setup_context=remember_operator, lib=library)
torch.library.register_autograd("robocache::voxelize_backward", refuse_second_order, lib=library)
torch.library.register_autograd(
    "robocache::voxelize_sparse", go_back_sparse, setup_context=remember_sparse_operator, lib=library
)
