"""voxelize_pointcloud, voxelize_depth and voxelize_sparse in functions that JAX traces."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ... import _core
from ..methods import gradient_needs
from ..types import SparseVoxels
from ..voxel_call import Box, Cloud, Dense, Images, Limits, Settings
from ..voxelize import finish_sparse
from .call import (
    Array,
    Result,
    abstract,
    call,
    index_operand,
    is_zero,
    jax,
    jnp,
    offset_by,
    one_by_one,
    operand,
    refuse_choices,
    refuse_perturbed,
    require_handlers,
    shape_of,
)

POINTS, DEPTH, SPARSE = "voxelize_pointcloud", "voxelize_depth", "voxelize_sparse"
FEATURES_ONLY = "only features have a gradient"


class Call(NamedTuple):
    """Everything about a call but its arrays. ``check=None`` checks nothing, as in a graph of PyTorch."""

    box: tuple[Any, Any, Any]
    settings: tuple[Any, ...]
    info: bool = False

    @property
    def waits(self) -> bool:
        return bool(self.settings[4])

    @property
    def mode(self) -> str:
        return str(self.settings[0])


def call_of(box: Box, settings: Settings, info: bool = False) -> Call:
    check = False if settings.check is None else settings.check
    return Call((box.grid_min, box.voxel_size, box.grid_size), tuple(settings._replace(check=check)), bool(info))


def read_cloud(op: str, cloud: Cloud, backend: str | None, device: Any) -> Cloud:
    require_handlers(op)
    refuse_choices(op, backend, device)
    return Cloud(
        operand(op, "points", cloud.points),
        index_operand(op, "offsets", cloud.offsets),
        None if cloud.features is None else operand(op, "features", cloud.features),
    )


def abstract_cloud(op: str, cloud: Cloud, cuda: bool) -> tuple[Any, ...]:
    return (
        abstract(op, "points", cloud.points, cuda),
        abstract(op, "offsets", cloud.offsets, cuda, wide=True),
        abstract(op, "features", cloud.features, cuda),
    )


def present(*arrays: Array | None) -> list[Array]:
    return [x for x in arrays if x is not None]


def dense_results(found: Any) -> list[Result]:
    """Grid, counts and dropped as of the plan."""
    return [Result(shape, dtype, wide=i == 2) for i, (shape, dtype) in enumerate(found)]


def padded(made: tuple[Array, ...]) -> Dense:
    return (made[0], made[1], made[2]) if len(made) == 3 else (made[0], None, None)


# ---- points to a dense grid ------------------------------------------------------------------------------------------


def run_points(
    cloud: Cloud, box: Box, settings: Settings, info: bool, backend: str | None, device: Any
) -> Dense:  # fmt: skip
    cloud = read_cloud(POINTS, cloud, backend, device)
    made = call_of(box, settings, info)
    plan_points(made, cloud, False)  # the call of one element: refused here, and not as a part of a folded one
    return padded(differentiable_points(made, cloud))


def plan_points(made: Call, cloud: Cloud, cuda: bool) -> Any:
    return _core.trace_voxelize(POINTS, abstract_cloud(POINTS, cloud, cuda), made.box, made.settings, made.info)


def points(made: Call, cloud: Cloud) -> tuple[Array, ...]:
    compute = jax.custom_batching.custom_vmap(partial(points_one, made))
    compute.def_vmap(partial(points_mapped, made))
    return compute(cloud)  # type: ignore[no-any-return]


def points_one(made: Call, cloud: Cloud) -> tuple[Array, ...]:
    results = dense_results(plan_points(made, cloud, False)[0])
    return tuple(
        call("robocache_voxelize", partial(plan_points, made, cloud), results, present(*cloud), waits=made.waits)
    )


def points_mapped(made: Call, n: int, batched: Any, cloud: Cloud) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
    flags: Cloud = batched[0]
    if cloud.offsets is not None and shape_of(cloud.offsets)[-1] < 2:  # no cloud has the points
        return one_by_one(partial(points, made), batched, (cloud,))
    found = points(made, folded_cloud(n, cloud, flags))
    outputs = tuple(unfolded(x, n, cloud) for x in found)
    return outputs, (True,) * len(outputs)


def folded_cloud(n: int, cloud: Cloud, flags: Cloud) -> Cloud:
    """The clouds of all elements as the clouds of one call."""

    def together(x: Array | None, flag: Any) -> Array | None:
        if x is None:
            return None
        x = x if flag else jnp.broadcast_to(x, (n, *x.shape))
        return x.reshape(n * x.shape[1], *x.shape[2:])

    num_points = cloud.points.shape[1 if flags.points else 0]
    total = n * num_points
    if cloud.offsets is None:
        offsets = index_operand(POINTS, "offsets", np.arange(n + 1, dtype=np.int64) * num_points)
    else:
        begin = cloud.offsets if flags.offsets else jnp.broadcast_to(cloud.offsets, (n, *cloud.offsets.shape))
        begin = offset_by(POINTS, begin[:, :-1], (jnp.arange(n) * num_points)[:, None], total)
        end = index_operand(POINTS, "offsets", np.asarray([total], np.int64))
        offsets = jnp.concatenate([begin.reshape(begin.shape[0] * begin.shape[1], *begin.shape[2:]), end])
    return Cloud(together(cloud.points, flags.points), offsets, together(cloud.features, flags.features))


def unfolded(x: Array, n: int, cloud: Cloud) -> Array:
    """(n * clouds, ...) as (n, clouds, ...), without clouds where there are no offsets."""
    return x if cloud.offsets is None else x.reshape(n, x.shape[0] // n if n else 0, *x.shape[1:])


def differentiable_points(made: Call, cloud: Cloud) -> tuple[Array, ...]:
    """``points``, with the gradient of the features."""
    if cloud.features is None:
        found: tuple[Array, ...] = without_gradient(POINTS, FEATURES_ONLY, partial(points, made), cloud)
        return found
    dtype = cloud.features.dtype
    num_channels = cloud.features.shape[-1]
    needs = gradient_needs(made.mode)

    def primal(features: Array, rest: tuple[Array, Array | None]) -> tuple[Array, ...]:
        return points(made, Cloud(*rest, features))

    def forward_pass(features: Any, rest: tuple[Any, Any]) -> tuple[Any, Any]:
        refuse_perturbed(POINTS, [("points", rest[0])], FEATURES_ONLY)
        plain = (rest[0].value, None if rest[1] is None else rest[1].value)
        outputs = points(made, Cloud(*plain, features.value))
        read = features.value if needs in ("features", "values") else None
        return outputs, (plain, read, outputs[0] if needs == "values" else None)

    def backward_pass(kept: Any, grads: tuple[Any, ...]) -> tuple[Any, None]:
        plain, read, values = kept
        if is_zero(grads[0]):
            return None, None
        total = points_backward(made, num_channels, Cloud(plain[0], plain[1], read), grads[0], values)
        return total.astype(dtype), None

    compute = jax.custom_vjp(primal)
    compute.defvjp(forward_pass, backward_pass, symbolic_zeros=True)
    return compute(cloud.features, (cloud.points, cloud.offsets))  # type: ignore[no-any-return]


def points_backward(made: Call, num_channels: int, cloud: Cloud, grad: Array, values: Array | None) -> Array:
    """The gradient of the features, float32. ``cloud.features`` and ``values``: None where it does not read them."""
    compute = jax.custom_batching.custom_vmap(partial(points_backward_one, made, num_channels))
    compute.def_vmap(partial(points_backward_mapped, made, num_channels))
    return compute(cloud, grad, values)


def points_backward_one(made: Call, num_channels: int, cloud: Cloud, grad: Array, values: Array | None) -> Array:
    settings = (made.mode, None, 0.0, False, False)

    def plan(cuda: bool) -> Any:
        of = abstract_cloud(POINTS, cloud, cuda)
        return _core.trace_voxelize_backward(POINTS, of, made.box, settings, num_channels, values)

    results = [Result(*plan(False)[0][0])]
    return call("robocache_voxelize_backward", plan, results, [*present(*cloud), grad, *present(values)])[0]


def points_backward_mapped(
    made: Call, num_channels: int, n: int, batched: Any, cloud: Cloud, grad: Array, values: Array | None
) -> tuple[Array, bool]:
    flags: Cloud = batched[0]
    if cloud.offsets is not None and shape_of(cloud.offsets)[-1] < 2:
        function = partial(points_backward, made, num_channels)
        return one_by_one(function, batched, (cloud, grad, values))

    def together(x: Array | None, flag: Any) -> Array | None:
        if x is None:
            return None
        x = x if flag else jnp.broadcast_to(x, (n, *x.shape))
        return x if cloud.offsets is None else x.reshape(n * x.shape[1], *x.shape[2:])

    folded = folded_cloud(n, cloud, flags)
    total = points_backward(made, num_channels, folded, together(grad, batched[1]), together(values, batched[2]))
    return total.reshape(n, total.shape[0] // n, num_channels), True


def without_gradient(op: str, why: str, compute: Any, arguments: Any) -> Any:
    """A call whose arrays must not be differentiated."""
    wrapped = jax.custom_vjp(compute)

    def forward_pass(arguments: Any) -> tuple[Any, None]:
        refuse_perturbed(op, list(zip(arguments._fields, arguments, strict=True)), why)
        return compute(jax.tree_util.tree_map(lambda x: x.value, arguments)), None

    wrapped.defvjp(forward_pass, lambda _, grads: (None,), symbolic_zeros=True)
    return wrapped(arguments)


# ---- depth images to a dense grid ------------------------------------------------------------------------------------


class DepthArrays(NamedTuple):
    depth: Array
    intrinsics: Array
    pose: Array | None
    features: Array | None


def run_depth(
    images: Images, box: Box, settings: Settings, info: bool, backend: str | None, device: Any
) -> Dense:  # fmt: skip
    require_handlers(DEPTH)
    refuse_choices(DEPTH, backend, device)
    arrays = DepthArrays(
        operand(DEPTH, "depth", images.depth),
        matrix("intrinsics", images.intrinsics),
        None if images.pose is None else matrix("pose", images.pose),
        None if images.features is None else operand(DEPTH, "features", images.features),
    )
    made = call_of(box, settings, info)
    rest = (images.views, images.depth_scale, images.max_depth)
    plan_depth(made, rest, arrays, False)
    why = "voxelize_depth has no native gradient"
    return padded(without_gradient(DEPTH, why, partial(depth, made, rest), arrays))


def matrix(name: str, given: Any) -> Array:
    """In float32, as in an eager call."""
    if isinstance(given, (list, tuple)):
        given = np.asarray(given)
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiu":
        given = given.astype(np.float32)
    given = operand(DEPTH, name, given)
    return given.astype(np.float32) if given.dtype.kind == "f" else given


def plan_depth(made: Call, rest: tuple[Any, ...], arrays: DepthArrays, cuda: bool) -> Any:
    of = [abstract(DEPTH, name, x, cuda) for name, x in zip(DepthArrays._fields, arrays, strict=True)]
    return _core.trace_voxelize_depth(DEPTH, (*of, *rest), made.box, made.settings, made.info)


def depth(made: Call, rest: tuple[Any, ...], arrays: DepthArrays) -> tuple[Array, ...]:
    compute = jax.custom_batching.custom_vmap(partial(depth_one, made, rest))
    compute.def_vmap(partial(depth_mapped, made, rest))
    return compute(arrays)  # type: ignore[no-any-return]


def depth_one(made: Call, rest: tuple[Any, ...], arrays: DepthArrays) -> tuple[Array, ...]:
    results = dense_results(plan_depth(made, rest, arrays, False)[0])
    return tuple(call("robocache_voxelize_depth", partial(plan_depth, made, rest, arrays), results, present(*arrays)))


def depth_mapped(
    made: Call, rest: tuple[Any, ...], n: int, batched: Any, arrays: DepthArrays
) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
    """Images of one cloud become a batch, a batch becomes a larger one."""
    flags: DepthArrays = batched[0]
    lead = arrays.depth.shape[bool(flags.depth) : arrays.depth.ndim - 2]
    is_batch = len(lead) == (2 if rest[0] else 1)

    def together(x: Array | None, flag: Any) -> Array | None:
        if x is None:
            return None
        x = x if flag else jnp.broadcast_to(x, (n, *x.shape))
        return x.reshape(n * x.shape[1], *x.shape[2:]) if is_batch else x

    def matrices(x: Array | None, flag: Any) -> Array | None:
        """One for all images of all elements stays one; one for the images of an element becomes one for each."""
        if x is None or x.ndim - bool(flag) > 2:
            return together(x, flag)
        if not flag:
            return x
        one_each = jnp.broadcast_to(x.reshape(n, *[1] * len(lead), *x.shape[1:]), (n, *lead, *x.shape[1:]))
        return together(one_each, True)

    found = depth(made, rest, DepthArrays(
        together(arrays.depth, flags.depth), matrices(arrays.intrinsics, flags.intrinsics),
        matrices(arrays.pose, flags.pose), together(arrays.features, flags.features),
    ))  # fmt: skip
    outputs = tuple(x.reshape(n, x.shape[0] // n if n else 0, *x.shape[1:]) if is_batch else x for x in found)
    return outputs, (True,) * len(outputs)


# ---- points to a list of cells ---------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """What a call computes; ``features`` and ``first_points`` may be absent."""

    coordinates: Array
    features: Array | None
    counts: Array
    first_points: Array | None
    voxel: Array
    found: Array


def run_sparse(
    cloud: Cloud, box: Box, settings: Settings, limits: Limits, backend: str | None, device: Any
) -> SparseVoxels:
    if not limits.padded:
        raise NotImplementedError(
            f"{SPARSE}: padded must be True in a traced call, because shapes must not depend on data: pass padded=True "
            "and max_voxels; got False"
        )
    cloud = read_cloud(SPARSE, cloud, backend, device)
    made = call_of(box, settings)
    plan_sparse(made, limits, cloud, False)
    rows = differentiable_sparse(made, limits, cloud)
    return finish_sparse(
        (rows.coordinates, rows.features, rows.counts, rows.voxel, rows.first_points), rows.found, True
    )


def plan_sparse(made: Call, limits: Limits, cloud: Cloud, cuda: bool) -> Any:
    of = abstract_cloud(SPARSE, cloud, cuda)
    return _core.trace_voxelize_sparse(SPARSE, of, made.box, made.settings, limits.max_voxels, limits.max_points)


def sparse(made: Call, limits: Limits, cloud: Cloud) -> Rows:
    compute = jax.custom_batching.custom_vmap(partial(sparse_one, made, limits))
    # The rows of all clouds of a call are one list, so elements do not fold into clouds.
    compute.def_vmap(lambda n, batched, cloud: one_by_one(partial(sparse, made, limits), batched, (cloud,)))
    return compute(cloud)  # type: ignore[no-any-return]


def sparse_one(made: Call, limits: Limits, cloud: Cloud) -> Rows:
    shapes = plan_sparse(made, limits, cloud, False)[0]
    has_features, has_first = cloud.features is not None, limits.max_points is not None
    fills = [-1, *([0] if has_features else []), 0, *([-1] if has_first else [])]
    results = [Result(shape, dtype, wide=dtype == "int64") for shape, dtype in shapes]
    operands = present(*cloud)
    aliases = {}
    for i, (fill, result) in enumerate(zip(fills, results, strict=False)):
        aliases[len(operands)] = i
        operands.append(filled(result, fill))
    flat = call(
        "robocache_voxelize_sparse", partial(plan_sparse, made, limits, cloud), results, operands, waits=made.waits,
        aliases=aliases,
    )  # fmt: skip
    rest = iter(flat)
    return Rows(
        next(rest), next(rest) if has_features else None, next(rest), next(rest) if has_first else None,
        next(rest), next(rest),
    )  # fmt: skip


def filled(result: Result, fill: int) -> Array:
    """What unused rows of a result contain, in the form of that result."""
    if not result.wide or jnp.asarray(np.int64(0)).dtype == np.int64:
        return jnp.full(tuple(result.shape), fill, jnp.dtype(result.dtype))
    return jnp.full((*result.shape, 2), fill, np.int32)  # both halves: 0 or -1


def differentiable_sparse(made: Call, limits: Limits, cloud: Cloud) -> Rows:
    """``sparse``, with the gradient of the features: a read of each point's row."""
    if cloud.features is None:
        found: Rows = without_gradient(SPARSE, FEATURES_ONLY, partial(sparse, made, limits), cloud)
        return found
    dtype = cloud.features.dtype

    def primal(features: Array, rest: tuple[Array, Array | None]) -> Rows:
        return sparse(made, limits, Cloud(*rest, features))

    def forward_pass(features: Any, rest: tuple[Any, Any]) -> tuple[Rows, Any]:
        refuse_perturbed(SPARSE, [("points", rest[0])], FEATURES_ONLY)
        plain = (rest[0].value, None if rest[1] is None else rest[1].value)
        rows = sparse(made, limits, Cloud(*plain, features.value))
        needs = gradient_needs(made.mode)
        read = features.value if needs in ("features", "values") else None
        return rows, (rows.voxel, rows.counts, read, rows.features if needs == "values" else None)

    def backward_pass(kept: Any, grads: Rows) -> tuple[Any, None]:
        if is_zero(grads.features):
            return None, None
        return sparse_gradient(made.mode, grads.features, *kept).astype(dtype), None

    compute = jax.custom_vjp(primal)
    compute.defvjp(forward_pass, backward_pass, symbolic_zeros=True)
    return compute(cloud.features, (cloud.points, cloud.offsets))  # type: ignore[no-any-return]


def sparse_gradient(
    mode: str, grad: Array, voxel: Array, counts: Array, features: Array | None, values: Array | None
) -> Array:
    """float32 (N, F), as ``sparse_backward`` of the operators of PyTorch. There are rows: max_voxels is 1 or more."""
    num_points = voxel.shape[0]
    row, inside = jnp.maximum(voxel, 0), (voxel >= 0)[:, None]
    share = grad.astype(np.float32)
    n = jnp.maximum(counts, 1)[:, None].astype(np.float32)
    if mode == "mean":
        share = share / n
    if mode == "std" and features is not None:
        x = jnp.where(inside, features.astype(np.float32), 0)
        total = jnp.zeros((counts.shape[0], x.shape[1]), np.float32)
        away = jnp.where(inside, x - (total.at[row].add(x) / n)[row], 0)
        deviation = jnp.sqrt(total.at[row].add(away * away) / n)
        slope = jnp.where(deviation[row] == 0, 0, away / (n * deviation)[row])
        return jnp.where(inside, share[row] * slope, 0)
    if features is not None and values is not None:  # min, max: to the first point that has the value
        value = values[row]
        is_same = (features == value) & (jnp.signbit(features) == jnp.signbit(value))
        is_same = (is_same | (jnp.isnan(features) & jnp.isnan(value))) & inside
        number = jnp.where(is_same, jnp.arange(num_points)[:, None], num_points)
        first = jnp.full(grad.shape, num_points, number.dtype).at[row].min(number)
        inside = inside & (number == first[row]) & is_same
    return jnp.where(inside, share[row], 0)
