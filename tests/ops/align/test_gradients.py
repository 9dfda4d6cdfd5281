"""Gradients with respect to the values: by finite differences, on every backend, and native against torch."""

import numpy as np
import pytest
import robocache
import torch
from arrays import BACKENDS, DEVICE
from cases import EXTRAPOLATING, LAYOUTS, METHODS, dense, ragged

NATIVE = [backend for backend in BACKENDS if backend != "torch"]
DIFFERENTIABLE = ("linear", "previous", "next", "nearest", "cubic", "mean", "rms")  # natively
RANGES = [(0, 1, "mean"), (1, 3, "cubic"), (3, 4, "next")]  # and the rest is linear
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}  # of sums of a few terms

native = pytest.mark.parametrize("backend", NATIVE)


def sampler(case, backend, **options):
    """A function of the values, and values that want a gradient."""
    stream, query = case.stream(backend, "torch"), case.query(backend, "torch")

    def sample(values, backend=backend):
        made = robocache.Stream(values, stream.times, stream.offsets, **options)
        return robocache.align(made, **query, backend=backend).values

    return sample, stream.values.clone().requires_grad_()


def outside_of(method):
    return ("linear", "linear") if method in EXTRAPOLATING else ("hold", "hold")


# ---- by finite differences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [dense, ragged], ids=["dense", "ragged"])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_the_torch_backend_are_right(method, layout, rng):
    case = layout(rng, np.dtype(np.float64), np.dtype(np.int64), (4,), method)
    sample, values = sampler(case, "torch", method=method, outside=outside_of(method))
    assert torch.autograd.gradcheck(sample, values)


@native
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_native_gradients_are_right(method, layout, tdtype, backend, rng):
    case = LAYOUTS[layout](rng, np.dtype(np.float64), tdtype, (3,), method)
    for outside in {outside_of(method), ("hold", "hold")}:
        sample, values = sampler(case, backend, method=method, outside=outside)
        assert torch.autograd.gradcheck(sample, values, nondet_tol=1e-12)


@native
@pytest.mark.parametrize("layout", LAYOUTS)
def test_native_gradients_of_channel_ranges_are_right(layout, backend, rng):
    case = LAYOUTS[layout](rng, np.dtype(np.float64), np.dtype(np.int64), (6,))
    sample, values = sampler(case, backend, method=RANGES, latency=700_000)
    assert torch.autograd.gradcheck(sample, values, nondet_tol=1e-12)


@native
@pytest.mark.parametrize("channels", [(), (1,), (2, 3), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("layout", ["dense", "ragged", "transposed"])
def test_native_gradients_of_any_channels_are_right(layout, channels, backend, rng):
    case = LAYOUTS[layout](rng, np.dtype(np.float64), np.dtype(np.float64), channels)
    sample, values = sampler(case, backend, method="cubic", outside="linear")
    assert torch.autograd.gradcheck(sample, values, nondet_tol=1e-12)
    # the gradient of the output comes back with strides in the other order, and those of the values are too
    turned = values.detach().permute(*reversed(range(values.ndim))).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sample(x.permute(*reversed(range(x.ndim)))).mT, turned, nondet_tol=1e-12)


@native
@pytest.mark.parametrize("channels", [(), (2, 3), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("layout", ["dense", "ragged", "transposed"])
def test_native_gradients_that_read_values_of_any_channels_are_right(layout, channels, backend, rng):
    case = LAYOUTS[layout](rng, np.dtype(np.float64), np.dtype(np.float64), channels)
    sample, values = sampler(case, backend, method="rms")
    turned = values.detach().permute(*reversed(range(values.ndim))).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sample(x.permute(*reversed(range(x.ndim)))).mT, turned, nondet_tol=1e-12)
    ranges = [(0, 1, "rms"), (1, 2, "linear")]
    if channels == (2, 3):  # a range of each group of channels, next to one whose gradient reads no values
        flat = values.detach().flatten(-2).clone().requires_grad_()
        sample, _ = sampler(case, backend, method=[*ranges, (2, 5, "rms")])
        assert torch.autograd.gradcheck(sample, flat, nondet_tol=1e-12)


def test_the_gradient_of_rms_is_zero_where_rms_is_zero_and_nan_where_it_is_nan(backend):
    values = torch.tensor([0.0, 0.0, 3.0, 4.0, float("nan"), 1.0], device=DEVICE[backend], requires_grad=True)
    times = torch.arange(6, device=DEVICE[backend])
    targets = torch.tensor([0, 2, 4], device=DEVICE[backend])
    out = robocache.resample_trajectories(values, times, targets, method="rms", backend=backend)
    out[:2].sum().backward(retain_graph=True)  # windows [-1, 1), [1, 3): 0 and 0, 3
    want = torch.tensor([0.0, 0.0, 3 / (2 * 4.5**0.5)])
    torch.testing.assert_close(values.grad.cpu()[:3], want)
    values.grad = None
    out[2].backward()  # [3, 5): 4 and NaN
    assert torch.isnan(values.grad[3:5]).all()
    assert values.grad[[0, 1, 2, 5]].tolist() == [0.0] * 4


@native
def test_values_that_a_gradient_reads_must_not_change_before_it(backend):
    times, targets = (torch.arange(n, device=DEVICE[backend]) for n in (4, 2))
    for method, kept in (("mean", False), ("rms", True)):
        leaf = torch.ones(4, device=DEVICE[backend], requires_grad=True)
        values = leaf * 2
        out = robocache.resample_trajectories(values, times, targets, method=method, backend=backend)
        values.zero_()
        if kept:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                out.sum().backward()
        else:
            out.sum().backward()


@native
def test_native_gradients_of_fused_streams_are_right(backend, rng):
    cases = [dense(rng, np.dtype(np.float64), np.dtype(np.float64), (width,)) for width in (2, 3, 1)]
    streams = [case.stream(backend, "torch") for case in cases]
    targets = cases[0].query(backend, "torch")["times"]

    def fuse(a, b):
        fixed = {"data": streams[1].values, "times": streams[1].times, "method": "max"}  # no gradient, and none wanted
        given = [(a, streams[0].times), fixed, (b, streams[2].times)]
        return robocache.fuse_multimodal(given, targets, method="cubic", backend=backend)

    a, b = (streams[i].values.clone().requires_grad_() for i in (0, 2))
    assert torch.autograd.gradcheck(fuse, (a, b), nondet_tol=1e-12)


# ---- native against torch --------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_native_and_torch_gradients_agree(method, layout, dtype, backend, rng):
    case = LAYOUTS[layout](rng, np.dtype(np.float32), np.dtype(np.int64), (33,), method)
    for outside in {outside_of(method), ("nan", "hold")}:
        sample, values = sampler(case, backend, method=method, outside=outside)
        values = values.detach().to(dtype).requires_grad_()
        out = sample(values)
        up = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out)
        (got,) = torch.autograd.grad(out, values, up)
        wide = values.detach().double().requires_grad_()
        (want,) = torch.autograd.grad(sample(wide, "torch"), wide, up.double())
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=RELATIVE[dtype], atol=RELATIVE[dtype])


@native
def test_sixteen_bits_are_summed_in_float32_and_rounded_once(backend):
    num_targets = 1000  # one by one, bfloat16 would stop at 256
    values = torch.zeros(1, 1, dtype=torch.bfloat16, device=DEVICE[backend], requires_grad=True)
    times = torch.zeros(1, dtype=torch.int64, device=DEVICE[backend])
    targets = torch.zeros(num_targets, dtype=torch.int64, device=DEVICE[backend])
    robocache.resample_trajectories(values, times, targets).sum().backward()
    assert values.grad.item() == torch.tensor(float(num_targets)).to(torch.bfloat16).item()


@native
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_output_may_have_another_dtype_than_the_values(dtype, backend):
    values = torch.tensor([10.0, 20.0, 40.0], device=DEVICE[backend], requires_grad=True)
    times, targets = (torch.tensor(x, device=DEVICE[backend]) for x in ([0.0, 1.0, 2.0], [0.25, 1.0, 5.0]))
    robocache.resample_trajectories(values, times, targets, dtype=dtype).sum().backward()
    assert values.grad.tolist() == [0.75, 0.25 + 1.0, 1.0]


# ---- what a gradient is ----------------------------------------------------------------------------------------------


def test_the_gradient_of_linear_is_its_weights(backend):
    values = torch.tensor([10.0, 20.0, 40.0], device=DEVICE[backend], requires_grad=True)
    times, targets = (torch.tensor(x, device=DEVICE[backend]) for x in ([0.0, 1.0, 2.0], [0.25, 1.0, 5.0]))
    robocache.resample_trajectories(values, times, targets, backend=backend).sum().backward()
    assert values.grad.tolist() == [0.75, 0.25 + 1.0, 1.0]


def test_rows_that_are_not_read_get_no_gradient_even_if_they_are_not_finite(backend):
    device = DEVICE[backend]
    values = torch.tensor([1.0, 2.0, float("nan"), float("inf")], device=device, requires_grad=True)
    times, targets = torch.arange(4.0, device=device), torch.tensor([0.0, 0.5, 1.0], device=device)
    for method in ("linear", "nearest", *(("angle",) if backend == "torch" else ("cubic",))):
        if method == "cubic":  # reads one row more on each side
            targets = torch.tensor([0.0, 1.0], device=device)
        values.grad = None
        robocache.resample_trajectories(values, times, targets, method=method, backend=backend).sum().backward()
        assert torch.isfinite(values.grad).all()
        assert values.grad[2:].tolist() == [0.0, 0.0]


def test_targets_without_a_value_bring_no_gradient_back(backend):
    device = DEVICE[backend]
    values = torch.ones(3, 1, device=device, requires_grad=True)
    times = torch.tensor([0.0, 1.0, 0.0], device=device)
    offsets = torch.tensor([0, 2, 2, 3], device=device)  # the episode in the middle is empty
    targets = torch.tensor([-1.0, 0.5, 7.0], device=device)
    stream = robocache.Stream(values, times, offsets, outside="nan")
    result = robocache.align(stream, targets, backend=backend).values
    result.backward(torch.full_like(result, 3.0))
    assert values.grad[:, 0].tolist() == [1.5, 1.5, 0.0]


@native
@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_query_rows_that_read_one_episode_add_up(method, backend, rng):
    """Many rows, wide and narrow, so that threads and blocks meet at the same rows."""
    device = DEVICE[backend]
    for width, num_rows, num_targets in ((3, 300, 40), (200, 64, 30)):
        times = torch.from_numpy(np.sort(rng.random((4, 20)), 1)).to(device)
        targets = torch.from_numpy(np.sort(rng.random((num_rows, num_targets)) * 1.2 - 0.1, 1)).to(device)
        episode = torch.from_numpy(rng.integers(0, 4, num_rows)).to(device)
        values = torch.randn(4, 20, width, dtype=torch.float64, device=device, requires_grad=True)
        up = torch.randn(num_rows, num_targets, width, dtype=torch.float64, device=device)
        for query in ({"times": targets, "episode": episode}, {"times": targets[:4]}):
            results = [
                robocache.align(robocache.Stream(values, times, method=method), **query, backend=which).values
                for which in (backend, "torch")
            ]
            got, want = (torch.autograd.grad(x, values, up[: len(x)])[0] for x in results)
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_the_gradient_on_the_cpu_does_not_depend_on_the_threads(rng):
    times, targets = (torch.from_numpy(np.sort(rng.random(n))) for n in (50, 3000))
    values, up = torch.randn(50, 130, requires_grad=True), torch.randn(3000, 130)
    before, found = robocache.num_threads(), []
    try:
        for count in (1, 2, 5):
            robocache.set_num_threads(count)
            found += torch.autograd.grad(robocache.resample_trajectories(values, times, targets), values, up)
    finally:
        robocache.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


@native
def test_values_are_not_kept_for_the_gradient(backend, rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.int64), (3,))
    sample, leaf = sampler(case, backend)
    values = leaf * 2
    out = sample(values)
    values.zero_()  # would be refused if autograd still needed them
    (got,) = torch.autograd.grad(out.sum(), leaf)
    (want,) = torch.autograd.grad(sample(leaf * 2).sum(), leaf)
    torch.testing.assert_close(got, want)


@native
def test_times_that_changed_are_noticed(backend, rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.int64), (3,))
    stream, query = case.stream(backend, "torch"), case.query(backend, "torch")
    values = stream.values.clone().requires_grad_()
    out = robocache.align(robocache.Stream(values, stream.times), **query).values
    stream.times.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@native
def test_a_second_derivative_is_refused(backend, rng):
    case = dense(rng, np.dtype(np.float64), np.dtype(np.int64), (3,))
    sample, values = sampler(case, backend)
    (first,) = torch.autograd.grad((sample(values) ** 2).sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
    sample, values = sampler(case, backend, method="rms")  # the gradient of a sum does not require grad, the values do
    (first,) = torch.autograd.grad(sample(values).sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@native
def test_numpy_times_serve_a_tensor_that_wants_a_gradient(backend, rng):
    if backend == "cuda":
        pytest.skip("NumPy is on the CPU")
    case = ragged(rng, np.dtype(np.float64), np.dtype(np.int64), (2,))
    values = torch.from_numpy(case.values).requires_grad_()
    result = robocache.align(robocache.Stream(values, case.times, case.offsets), case.targets).values
    sample, leaf = sampler(case, backend)
    assert torch.equal(torch.autograd.grad(result.sum(), values)[0], torch.autograd.grad(sample(leaf).sum(), leaf)[0])
