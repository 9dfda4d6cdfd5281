"""voxelize for autograd and for the compilers of PyTorch.

A gradient is an ``autograd.Function`` around ``_core``. While PyTorch is compiling or tracing, a call is one node,
``robocache::voxelize``, ``voxelize_sparse`` or ``voxelize_depth``. This module is imported only for these two; other
calls go straight to ``_core``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ... import _core
from ..backend import refuse_unseen
from ..methods import OF_FEATURES, gradient_needs
from ..torch_op import DTYPES, detached, is_traced, raise_refusal, refuse_second_order, register
from ..voxel_call import Box, Cloud, Dense, Images, Limits, Named, Settings, refusal_of, sizes

# ---- the face: from a call to an operator ----------------------------------------------------------------------------


def run_points(cloud: Cloud, box: Box, settings: Settings, info: bool, where: str) -> Dense:
    op = "voxelize_pointcloud"
    named = cloud.named()
    if is_traced([x for _, x in named]):
        refusal = refusal_of(op, named, differentiable=True)
        packed = (*plain_box(box), *plain_settings(settings), bool(info), refusal)
        return padded_with_none(torch.ops.robocache.voxelize(*cloud, *packed))
    refuse(op, named, where)
    made = DenseGradient.apply(cloud.features, cloud.points, cloud.offsets, box, settings, bool(info))  # type: ignore[no-untyped-call]
    return padded_with_none(made)


def run_depth(images: Images, box: Box, settings: Settings, info: bool, where: str) -> Dense:
    named = images.named()
    refusal = refusal_of("voxelize_depth", named, differentiable=False)
    if not is_traced([x for _, x in named]):
        raise NotImplementedError(refusal)
    scale, deepest = (None if x is None else float(x) for x in (images.depth_scale, images.max_depth))
    images = Images(*images[:4], bool(images.views), scale, deepest)
    packed = (*plain_box(box), *plain_settings(settings), bool(info), refusal)
    return padded_with_none(torch.ops.robocache.voxelize_depth(*images, *packed))


def run_sparse(cloud: Cloud, box: Box, settings: Settings, limits: Limits, where: str) -> tuple[Any, Tensor]:
    """(coordinates, features, counts, voxel, first_points), found."""
    op = "voxelize_sparse"
    named = cloud.named()
    if is_traced([x for _, x in named]):
        refusal = refusal_of(op, named, differentiable=True)
        packed = (*plain_box(box), *plain_settings(settings), *limits, refusal)
        made = torch.ops.robocache.voxelize_sparse(*cloud, *packed)
    else:
        refuse(op, named, where)
        made = SparseGradient.apply(cloud.features, cloud.points, cloud.offsets, box, settings, limits)  # type: ignore[no-untyped-call]
    reduced, rest = (None, made) if cloud.features is None else (made[0], made[1:])
    coordinates, counts, voxel, found, *first = rest
    return (coordinates, reduced, counts, voxel, first[0] if first else None), found


def refuse(op: str, named: Named, where: Any) -> None:
    if (refusal := refusal_of(op, named, differentiable=True)) is not None:
        raise NotImplementedError(refusal)
    refuse_unseen(op, named, where)


def plain_box(box: Box) -> Box:
    """Compilers trace this: wrong input is an error when the operator runs."""
    shape = None if box.grid_size is None else list(box.grid_size)
    return Box([float(x) for x in box.grid_min], sizes(box.voxel_size), shape)


def plain_settings(settings: Settings) -> Settings:
    mode, dtype, fill, deterministic, check = settings
    return Settings(mode, dtype, float(fill), bool(deterministic), bool(check))


def padded_with_none(made: Sequence[Tensor]) -> Dense:
    return (made[0], made[1], made[2]) if len(made) == 3 else (made[0], None, None)


# ---- arguments of the operators --------------------------------------------------------------------------------------


class DenseOutputs(NamedTuple):
    info: bool
    refusal: str | None  # what the call raises when it runs


class Refusal(NamedTuple):
    refusal: str | None


class DenseGrads(NamedTuple):
    """The gradient of a grid, and its values where the gradient reads them."""

    grad: Tensor
    values: Tensor | None


class GradientOf(NamedTuple):
    mode: str
    num_rows: int
    dtype: torch.dtype


CLOUD = "Tensor points, Tensor? offsets, Tensor? features"
BOX = "float[] grid_min, float[] voxel_size, SymInt[]? grid_size"
SETTINGS = "str mode, str? dtype, float fill, bool deterministic, bool check"
IMAGES = (
    "Tensor depth, Tensor intrinsics, Tensor? pose, Tensor? features, bool views, float? depth_scale, float? max_depth"
)

# ---- computing -------------------------------------------------------------------------------------------------------


def without_graph(cloud: Cloud) -> Cloud:
    return Cloud(detached(cloud.points), detached(cloud.offsets), detached(cloud.features))


def compute(cloud: Cloud, box: Box, settings: Settings, info: bool) -> list[Tensor]:
    """The grid, and with info counts and dropped."""
    made = _core.voxelize(*without_graph(cloud), *box, *settings, info)
    return [x for x in made if x is not None]


def compute_backward(grad: Tensor, values: Tensor | None, cloud: Cloud, box: Box, asked: GradientOf) -> Tensor:
    """The gradient of the features in their dtype. Features and values are None where it reads none."""
    points = cloud.points
    total = torch.empty((points.shape[0], grad.shape[-1]), dtype=torch.float32, device=points.device)
    grad = grad.resolve_neg().contiguous()
    _core.voxelize_backward(grad, values, total, *without_graph(cloud), *box, asked.mode)
    return total.to(asked.dtype)


def compute_sparse(cloud: Cloud, box: Box, settings: Settings, limits: Limits, filled: bool) -> list[Tensor]:
    """features if there are any, coordinates, counts, voxel, found, and first_points if requested."""
    made = _core.voxelize_sparse(*without_graph(cloud), *box, *settings, *limits, filled)
    coordinates, features, counts, voxel, first, found = made
    return [x for x in (features, coordinates, counts, voxel, found, first) if x is not None]


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
    def forward(ctx: Any, features: Tensor, points: Tensor, offsets: Any, box: Box, settings: Settings,
                info: bool) -> tuple[Tensor, ...]:  # fmt: skip
        cloud = Cloud(points, offsets, features)
        made = compute(cloud, box, settings, info)
        remember(ctx, cloud, box, settings.mode, made)
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
        *cloud, values = ctx.saved_tensors
        return (compute_backward(grads[0], values, Cloud(*cloud), ctx.box, ctx.asked), *(None,) * 5)


def remember(ctx: Any, cloud: Cloud, box: Box, mode: str, made: Sequence[Tensor]) -> None:
    """What a gradient needs."""
    features = cloud.features
    ctx.save_for_backward(*cloud[:2], *read_by_gradient(mode, features, made[0]))
    ctx.box, ctx.mode = box, mode
    # as many rows as features, not points: where they differ, the operator raises when it runs
    num_rows, dtype = (0, torch.float32) if features is None else (features.shape[0], features.dtype)
    ctx.asked = GradientOf(mode, num_rows, dtype)
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
    def forward(ctx: Any, features: Tensor, points: Tensor, offsets: Any, box: Box, settings: Settings,
                limits: Limits) -> tuple[Tensor, ...]:  # fmt: skip
        made = compute_sparse(Cloud(points, offsets, features), box, settings, limits, limits.padded)
        remember_sparse(ctx, features, settings.mode, made)
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


# ---- robocache::voxelize ---------------------------------------------------------------------------------------------


def run_dense(cloud: Cloud, box: Box, settings: Settings, outputs: DenseOutputs) -> list[Tensor]:
    raise_refusal(outputs.refusal)
    return compute(cloud, box, settings, outputs.info)


def fake_dense(cloud: Cloud, box: Box, settings: Settings, outputs: DenseOutputs) -> list[Tensor]:
    """Validation happens when the operator runs."""
    batch = [] if cloud.offsets is None else [cloud.offsets.shape[0] - 1]
    return empty_dense(cloud.points.device, batch, cloud.features, box, settings, outputs.info)


def empty_dense(
    device: torch.device, batch: list[int], features: Tensor | None, box: Box, settings: Settings, info: bool
) -> list[Tensor]:
    of_features = settings.mode in OF_FEATURES and features is not None
    channels = [features.shape[-1]] if of_features and features is not None else []
    cells = [*batch, *(box.grid_size or (0, 0, 0))]
    dtype = grid_dtype(features, settings.mode, settings.dtype)
    made = [torch.empty([*cells, *channels], dtype=dtype, device=device)]
    if info:
        made += [torch.empty(cells, dtype=torch.int32, device=device)]
        made += [torch.empty(batch, dtype=torch.int64, device=device)]
    return made


def grid_dtype(features: Tensor | None, mode: str, dtype: str | None = None) -> torch.dtype:
    if dtype is not None:
        return DTYPES[dtype]
    if mode not in OF_FEATURES:
        return torch.int32
    return torch.float32 if features is None or features.dtype == torch.uint8 else features.dtype


def remember_dense(ctx: Any, parts: tuple[Cloud, Box, Settings, DenseOutputs], output: list[Tensor]) -> None:
    cloud, box, settings, _ = parts
    remember(ctx, cloud, box, settings.mode, output)


def dense_gradient(ctx: Any, grads: list[Tensor | None]) -> dict[str, Any]:
    if grads[0] is None or not ctx.needs_input_grad[2]:
        return {}
    *cloud, values = ctx.saved_tensors
    return {"features": torch.ops.robocache.voxelize_backward(grads[0], values, *cloud, *ctx.box, *ctx.asked)}


register(
    f"voxelize({CLOUD}, {BOX}, {SETTINGS}, bool info, str? refusal) -> Tensor[]",
    (Cloud, Box, Settings, DenseOutputs),
    compute=run_dense,
    fake=fake_dense,
    remember=remember_dense,
    gradient=dense_gradient,
)


# ---- robocache::voxelize_backward ------------------------------------------------------------------------------------


def run_backward(grads: DenseGrads, cloud: Cloud, box: Box, asked: GradientOf) -> Tensor:
    return compute_backward(grads.grad, grads.values, cloud, box, asked)


def fake_backward(grads: DenseGrads, cloud: Cloud, box: Box, asked: GradientOf) -> Tensor:
    return torch.empty((asked.num_rows, grads.grad.shape[-1]), dtype=asked.dtype, device=cloud.points.device)


register(
    f"voxelize_backward(Tensor grad, Tensor? values, {CLOUD}, {BOX}, str mode, SymInt num_rows, ScalarType dtype) "
    "-> Tensor",
    (DenseGrads, Cloud, Box, GradientOf),
    compute=run_backward,
    fake=fake_backward,
    gradient=refuse_second_order("voxelize_pointcloud"),
)


# ---- robocache::voxelize_sparse --------------------------------------------------------------------------------------


def run_voxels(cloud: Cloud, box: Box, settings: Settings, limits: Limits, refusal: Refusal) -> list[Tensor]:
    raise_refusal(refusal.refusal)
    return compute_sparse(cloud, box, settings, limits, filled=True)


def fake_voxels(cloud: Cloud, box: Box, settings: Settings, limits: Limits, refusal: Refusal) -> list[Tensor]:
    points, offsets, features = cloud
    max_voxels, max_points, padded = limits
    num_points = points.shape[0]
    smaller: Any = torch.sym_min
    capacity = max_voxels if padded and max_voxels is not None else num_points
    if not padded:
        if box.grid_size is not None:
            x, y, z = box.grid_size
            cells = (1 if offsets is None else offsets.shape[0] - 1) * x * y * z
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


def remember_voxels(ctx: Any, parts: tuple[Cloud, Box, Settings, Limits, Refusal], output: list[Tensor]) -> None:
    remember_sparse(ctx, parts[0].features, parts[2].mode, output)


def voxels_gradient(ctx: Any, grads: list[Tensor | None]) -> dict[str, Any]:
    return {"features": sparse_gradient(ctx, grads)} if ctx.needs_input_grad[2] else {}


register(
    f"voxelize_sparse({CLOUD}, {BOX}, {SETTINGS}, SymInt? max_voxels, SymInt? max_points, bool padded, str? refusal) "
    "-> Tensor[]",
    (Cloud, Box, Settings, Limits, Refusal),
    compute=run_voxels,
    fake=fake_voxels,
    remember=remember_voxels,
    gradient=voxels_gradient,
)


# ---- robocache::voxelize_depth ---------------------------------------------------------------------------------------


def run_images(images: Images, box: Box, settings: Settings, outputs: DenseOutputs) -> list[Tensor]:
    raise_refusal(outputs.refusal)
    source = images._replace(features=detached(images.features))
    made = _core.voxelize_depth(*source, *box, *settings, outputs.info)
    return [x for x in made if x is not None]


def fake_images(images: Images, box: Box, settings: Settings, outputs: DenseOutputs) -> list[Tensor]:
    depth = images.depth
    batch = [depth.shape[0]] if depth.ndim == (4 if images.views else 3) else []
    return empty_dense(depth.device, batch, images.features, box, settings, outputs.info)


register(
    f"voxelize_depth({IMAGES}, {BOX}, {SETTINGS}, bool info, str? refusal) -> Tensor[]",
    (Images, Box, Settings, DenseOutputs),
    compute=run_images,
    fake=fake_images,
)
