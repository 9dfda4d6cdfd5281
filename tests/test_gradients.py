"""The torch backend is differentiable in the values; the native ones say that they are not (test_bad_calls.py)."""

import numpy as np
import pytest
import robocache
import torch
from cases import METHODS, dense, ragged


@pytest.mark.parametrize("layout", [dense, ragged], ids=["dense", "ragged"])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_with_respect_to_the_values_are_right(method, layout, rng):
    case = layout(rng, np.dtype(np.float64), np.dtype(np.int64), (4,), method)
    stream, query = case.stream("torch"), case.query("torch")
    outside = "linear" if method not in ("previous", "next", "nearest", "mean", "min", "max") else "hold"

    def sample(values):
        options = {"offsets": stream.offsets, "method": method, "outside": outside}
        return robocache.align(robocache.Stream(values, stream.times, **options), **query, backend="torch").values

    assert torch.autograd.gradcheck(sample, stream.values.clone().requires_grad_())


def test_the_gradient_of_linear_is_its_weights():
    values = torch.tensor([10.0, 20.0, 40.0], requires_grad=True)
    times, targets = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.25, 1.0, 5.0])
    robocache.resample_trajectories(values, times, targets, backend="torch").sum().backward()
    assert values.grad.tolist() == [0.75, 0.25 + 1.0, 1.0]


def test_rows_that_are_not_read_get_no_gradient_even_if_they_are_not_finite():
    values = torch.tensor([1.0, 2.0, float("nan"), float("inf")], requires_grad=True)
    times, targets = torch.arange(4.0), torch.tensor([0.0, 0.5, 1.0])
    for method in ("linear", "angle", "nearest"):
        values.grad = None
        robocache.resample_trajectories(values, times, targets, method=method, backend="torch").sum().backward()
        assert torch.isfinite(values.grad).all()
        assert values.grad[2:].tolist() == [0.0, 0.0]
