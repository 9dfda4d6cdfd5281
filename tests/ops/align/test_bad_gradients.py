"""Gradients, tangents and outputs that autograd could not follow: refused by name, never lost."""

import pytest
import robocache
import torch
import torch.autograd.forward_ad as forward_ad
from arrays import DEVICE, array_of
from cases import OUT_SHAPE, TARGETS, TIMES, VALUES


@pytest.mark.parametrize("values_too", [False, True])
@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("native", [None, "cpu"])
def test_a_gradient_of_times_or_targets_is_refused(place, native, values_too):
    tensors = [torch.from_numpy(x) for x in (VALUES, TIMES, TARGETS)]
    for i in (0, place) if values_too else (place,):
        tensors[i] = tensors[i].clone().requires_grad_()
    name = ("source_data", "source_times", "target_times")[place]
    with pytest.raises(
        NotImplementedError, match=rf"^resample_trajectories: {name} must .*grad.*, .*got requires_grad=True"
    ):
        robocache.resample_trajectories(*tensors, backend=native)
    with torch.no_grad():
        assert not robocache.resample_trajectories(*tensors, backend=native).requires_grad
    assert robocache.resample_trajectories(*(t.detach() for t in tensors), backend=native).shape == OUT_SHAPE


@pytest.mark.parametrize("method", ["slerp_xyzw", "slerp_wxyz", "angle", "min", "max"])
def test_a_method_without_a_native_gradient_is_refused_by_name_where_one_is_wanted(method):
    values = torch.ones(2, 5, 4, requires_grad=True)
    times, targets = torch.from_numpy(TIMES), torch.from_numpy(TARGETS)
    wanted = rf"^resample_trajectories: method must .*backend='torch'.*, got {method}$"
    with pytest.raises(NotImplementedError, match=wanted):
        robocache.resample_trajectories(values, times, targets, method=method)
    with pytest.raises(NotImplementedError, match=rf"^fuse_multimodal: streams\[1\]\.method must .*, got {method}$"):
        robocache.fuse_multimodal([(values, times), {"data": values, "times": times, "method": method}], targets)
    streams = [robocache.Stream(values, times), robocache.Stream(values.detach(), times, method=method)]
    assert robocache.align(streams, targets).values[0].requires_grad
    assert robocache.resample_trajectories(values, times, targets, method=method, backend="torch").requires_grad
    with torch.no_grad():
        assert not robocache.resample_trajectories(values, times, targets, method=method).requires_grad


def test_an_output_is_refused_where_a_gradient_is_wanted():
    values = torch.from_numpy(VALUES).clone().requires_grad_()
    stream = robocache.Stream(values, torch.from_numpy(TIMES))
    out = torch.zeros(OUT_SHAPE)
    with pytest.raises(NotImplementedError, match=r"^align: out must not be given where values require grad, got out"):
        robocache.align(stream, torch.from_numpy(TARGETS), out=out)
    with torch.no_grad():
        assert robocache.align(stream, torch.from_numpy(TARGETS), out=out).values is out


def test_an_output_that_requires_grad_is_refused_unless_grad_is_disabled(backend):
    values, times, targets = (array_of("torch", x, DEVICE[backend]) for x in (VALUES, TIMES, TARGETS))
    stream = robocache.Stream(values, times)
    leaf = torch.ones(OUT_SHAPE, device=targets.device, requires_grad=True)
    for out in (leaf, leaf * 1):
        with pytest.raises(
            NotImplementedError, match=r"^align: out\[0\] must not require grad, .*got requires_grad=True"
        ):
            robocache.align(stream, targets, out=out, backend=backend)
        assert (out == 1).all()
    with torch.no_grad():
        assert robocache.align(stream, targets, out=leaf, backend=backend).values is leaf
    assert (leaf == 0).all()


def test_an_output_with_a_lazy_negation_is_refused():
    stream, targets = robocache.Stream(torch.from_numpy(VALUES), torch.from_numpy(TIMES)), torch.from_numpy(TARGETS)
    out = torch.zeros(OUT_SHAPE, dtype=torch.complex64).conj().imag
    with pytest.raises(ValueError, match=r"^align: out\[0\] must be resolved in memory .*, got a lazy negation"):
        robocache.align(stream, targets, out=out)


def test_a_tangent_is_kept_or_refused_and_never_lost(backend):
    values, times, targets = (torch.from_numpy(x).to(DEVICE[backend]) for x in (VALUES, TIMES, TARGETS))
    points, features = torch.rand((10, 3), device=values.device), torch.rand((10, 2), device=values.device)
    where = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "grid_size": (2, 2, 2), "mode": "sum"}
    calls = [
        ("align", "streams[0].values", values,
         lambda x, **options: robocache.align(robocache.Stream(x, times), targets, **options).values),
        ("resample_trajectories", "source_data", values,
         lambda x, **options: robocache.resample_trajectories(x, times, targets, **options)),
        ("fuse_multimodal", "streams[0].values", values,
         lambda x, **options: robocache.fuse_multimodal([(x, times)], targets, **options)[0]),
        ("voxelize_pointcloud", "features", features,
         lambda x, **options: robocache.voxelize_pointcloud(points, x, **where, **options)),
        ("voxelize_sparse", "features", features,
         lambda x, **options: robocache.voxelize_sparse(points, x, **where, **options).features),
    ]  # fmt: skip
    for op, name, leaf, call in calls:
        expected = call(leaf, backend=backend)
        with forward_ad.dual_level():
            assert torch.equal(call(leaf, backend=backend), expected)
            dual = forward_ad.make_dual(leaf, torch.ones_like(leaf))
            if backend == "torch":
                got = forward_ad.unpack_dual(call(dual, backend=backend))
                assert torch.equal(got.primal, expected)
                assert torch.equal(got.tangent, call(torch.ones_like(leaf), backend=backend))
                continue
            for options in ({"backend": backend}, {}):
                with pytest.raises(NotImplementedError) as caught:
                    call(dual, **options)
                assert str(caught.value) == (
                    f"{op}: {name} must have no tangent, forward-mode differentiation needs backend='torch'; "
                    "got a dual tensor"
                )


def test_a_gradient_of_one_array_among_arrays_of_other_frameworks_is_refused():
    streams = [(VALUES, TIMES), (torch.from_numpy(VALUES).clone().requires_grad_(), torch.from_numpy(TIMES))]
    with pytest.raises(NotImplementedError, match=r"^fuse_multimodal: streams\[1\]\.values must not require grad"):
        robocache.fuse_multimodal(streams, TARGETS)


def test_bad_calls_say_the_same_where_a_gradient_is_wanted():
    values, times, targets = (torch.from_numpy(x).clone() for x in (VALUES, TIMES, TARGETS))
    for given, options in [
        ((values, times[:, :4], targets), {}),
        ((values, times, targets[None]), {}),
        ((values, times.flip(1), targets), {}),
        ((values, times, None), {}),
        ((values, times, [[0.0]]), {}),
        ((values, times, targets), {"method": "best"}),
        ((values, times, targets), {"latency": "long"}),
        ((values, times, targets), {"dtype": torch.int8}),
        ((values, times, targets), {"dtype": torch.complex64}),
        ((values, times, targets), {"backend": "best"}),
        ((values, times, targets + 100), {"outside": "error"}),
    ]:
        said = []
        for wanted in (False, True):
            with pytest.raises((ValueError, TypeError)) as caught:
                robocache.resample_trajectories(given[0].requires_grad_(wanted), *given[1:], **options)
            said.append((caught.type, str(caught.value)))
        assert said[0] == said[1]
