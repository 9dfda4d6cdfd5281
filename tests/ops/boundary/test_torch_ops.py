"""align as PyTorch sees it: operators that pass opcheck, one node under torch.compile, CUDA graphs, deferred errors."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import robocache
import torch
import torch.utils._triton
from arrays import BACKENDS, CUDA, DEVICE, REQUIRE_CUDA, bits
from cases import LAYOUTS, dense, ragged
from recorded_ops import recorded

NATIVE = [backend for backend in BACKENDS if backend != "torch"]
RANGES = [(0, 2, "cubic"), (3, 4, "nearest")]  # the rest is linear
OPTIONS = {
    "linear": {"outside": "linear"},
    "cubic": {"method": "cubic", "outside": ("linear", "hold"), "period": 7},
    "nan": {"outside": ("nan", "hold")},
    "next": {"method": "next", "outside_valid": True},
    "mean": {"method": "mean"},
    "rms": {"method": "rms"},
    "ranges": {"method": RANGES, "max_gap": 4000.0},
    "dtype": {"dtype": torch.float64, "latency": 0.5},
}

native = pytest.mark.parametrize("backend", NATIVE)
needs_cuda = pytest.mark.skipif(not (CUDA or REQUIRE_CUDA), reason="needs CUDA")


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()


def need_inductor(backend):
    if backend == "cuda" and not torch.utils._triton.has_triton():
        pytest.skip("inductor needs Triton for CUDA")
    if backend == "cpu" and not shutil.which("g++"):
        pytest.skip("inductor needs g++ for the CPU")


def sample(rng, layout, backend, dtype=np.float32, channels=(5,)):
    """A stream whose values want a gradient, and a query, as tensors where the backend computes."""
    case = LAYOUTS[layout](rng, np.dtype(dtype), np.dtype(np.float64), channels)
    stream, query = case.stream(backend, "torch"), case.query(backend, "torch")
    return stream.values.clone().requires_grad_(), stream.times, stream.offsets, query


def same(got, want):
    """The same structure with the same bits."""
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[k], want[k]) for k in want)
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(same(g, w) for g, w in zip(got, want, strict=True))
    if want is None:
        return got is None
    return got.dtype == want.dtype and got.shape == want.shape and bits(got) == bits(want)


def gradients(result, *tensors):
    """What a gradient of ones, twos, threes ... of the floating results is for the tensors."""
    results = [x for x in torch.utils._pytree.tree_leaves(result) if x is not None and x.requires_grad]
    ups = [torch.arange(1.0, x.numel() + 1, device=x.device).reshape(x.shape).sin().to(x.dtype) for x in results]
    return torch.autograd.grad(results, tensors, ups)


# ---- the operators ---------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "nan"])  # opcheck finds that NaN is not NaN
@pytest.mark.parametrize("layout", ["dense", "anchored", "picked", "expanded"])
def test_the_operators_pass_opcheck(layout, options, backend, rng):
    values, times, offsets, query = sample(rng, layout, backend)
    stream = robocache.Stream(values, times, offsets, **OPTIONS[options])
    calls = recorded(lambda: robocache.align(stream, **query, return_index=True))
    assert [function.name() for function, _ in calls] == ["robocache::align", "robocache::align_backward"]
    for function, args in calls:
        if function.name() == "robocache::align":
            args = ([values], *args[1:])
        else:
            args = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)  # no second derivative
        torch.library.opcheck(function, args)


@native
def test_the_operators_pass_opcheck_for_fused_streams(backend, rng):
    values, times, _, query = sample(rng, "dense", backend)
    other, other_times, _, _ = sample(rng, "dense", backend, channels=(2,))
    streams = [(values, times), {"data": other, "times": other_times, "method": "mean"}]
    calls = recorded(lambda: robocache.fuse_multimodal(streams, query["times"], return_valid=True))
    assert len(calls) == 2
    for function, args in calls:
        if function.name() == "robocache::align":
            args = ([values, other], *args[1:])
        torch.library.opcheck(function, args)


def test_operators_are_registered_only_when_they_are_needed():
    code = """
import sys, numpy as np, robocache
robocache.align(robocache.Stream(np.zeros(2), np.arange(2.0)), np.zeros(1))
assert "torch" not in sys.modules
import torch
values, times = torch.zeros(2), torch.arange(2.0)
robocache.align(robocache.Stream(values, times), times)
with torch.no_grad():
    robocache.align(robocache.Stream(values.clone().requires_grad_(), times), times)
assert "robocache.ops.torch_ops.align" not in sys.modules
robocache.align(robocache.Stream(values.requires_grad_(), times), times)
assert "robocache.ops.torch_ops.align" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_fake_tensor_is_not_read(rng):
    values, times, _, query = sample(rng, "dense", "cpu")
    with torch._subclasses.FakeTensorMode() as mode:
        values, times, targets = (mode.from_tensor(x) for x in (values, times, query["times"]))
        got, valid = robocache.resample_trajectories(values, times, targets, return_valid=True)
    assert type(got) is type(values)
    assert got.shape == (*targets.shape, values.shape[-1])
    assert (valid.shape, valid.dtype) == (targets.shape, torch.bool)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_align_compiles_to_the_same_bits_and_the_same_gradient(layout, options, backend, rng):
    values, times, offsets, query = sample(rng, layout, backend)
    cuts = {"offsets": offsets, **OPTIONS[options]}

    def call(values, query):
        streams = {"a": robocache.Stream(values, times, **cuts), "b": robocache.Stream(times, times, offsets)}
        return tuple(robocache.align(streams, **query, return_index=True))

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    got, want = compiled(values, query), call(values, query)
    assert same(got, want)
    assert got[0]["a"].requires_grad
    assert not got[0]["b"].requires_grad
    got, want = gradients(got, values), gradients(want, values)
    torch.testing.assert_close(got, want)
    assert backend == "cuda" or same(got, want)  # on CUDA the order of the sums is free


@native
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_the_three_functions_compile_between_other_code(compiler, backend, rng):
    if compiler == "inductor":
        need_inductor(backend)
    values, times, _, query = sample(rng, "dense", backend)
    targets = query["times"]

    def call(values, targets):
        values = values * 2 + 1
        one, valid = robocache.resample_trajectories(values, times, targets, method=RANGES, return_valid=True)
        flat = robocache.resample_trajectories(values[0], times[0], targets[0], dtype=torch.float64)
        pairs = robocache.fuse_multimodal([(values, times), {"data": one, "times": targets}], targets)
        seven = robocache.fuse_multimodal(values, times, values, times, values, times, targets, return_valid=True)
        streams = [robocache.Stream(values, times, max_gap=0.5), robocache.Stream(times, times)]
        many = robocache.align(streams, targets)
        return one.relu(), valid, flat, pairs.sum(-1), seven, many.values, many.valid

    compiled = torch.compile(call, fullgraph=True, backend=compiler)
    got, want = compiled(values, targets), call(values, targets)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradients(got, values), gradients(want, values))


@native
def test_all_streams_of_a_call_are_one_node_forward_and_one_backward(backend, rng):
    values, times, _, query = sample(rng, "dense", backend)
    targets = query["times"]

    def streams():
        return [robocache.Stream(values * i, times) for i in range(6)]

    assert len(recorded(lambda: robocache.align(streams(), targets).values)) == 2
    assert len(recorded(lambda: robocache.fuse_multimodal(streams(), targets))) == 2


@native
@torch._dynamo.config.patch(error_on_recompile=True)
def test_one_graph_serves_all_sizes(backend, rng):
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def compiled(values, times, targets):
        return robocache.resample_trajectories(values, times, targets, method="cubic", return_valid=True)

    for rows, targets, episodes, width in ((9, 8, 3, 4), (20, 5, 6, 7), (4, 30, 2, 3)):
        case = dense(rng, np.dtype("f4"), np.dtype("f8"), (width,), None, rows, targets, episodes)
        stream, query = case.stream(backend, "torch"), case.query(backend, "torch")["times"]
        values = stream.values.clone().requires_grad_()
        got = compiled(values, stream.times, query)
        want = robocache.resample_trajectories(values, stream.times, query, method="cubic", return_valid=True)
        assert same(got, want)
        torch.testing.assert_close(gradients(got, values), gradients(want, values))


@native
@torch._dynamo.config.patch(error_on_recompile=True)
def test_one_graph_serves_all_ragged_sizes_and_shared_targets(backend, rng):
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def compiled(values, times, offsets, targets):
        return robocache.align(robocache.Stream(values, times, offsets), targets).values

    for lengths in ((4, 0, 2, 7, 2), (3, 3, 9), (2, 5, 0, 2, 2, 2, 2)):
        case = ragged(rng, np.dtype("f4"), np.dtype("i8"), (4,), lengths=lengths)
        stream, targets = case.stream(backend, "torch"), case.query(backend, "torch")["times"][0]
        got = compiled(stream.values, stream.times, stream.offsets, targets)
        assert same(got, robocache.align(stream, targets).values)
        assert got.shape[0] == len(lengths)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_a_latency_that_changes_does_not_stop_the_compiler(dtype):
    values, times = torch.arange(10.0), torch.arange(0, 100, 10).to(dtype)
    numbers = (3, 5, 7, 9, 2**40) if dtype == torch.int64 else (3.5, 5.25, 7.0, 9.5, float("inf"))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(stream):
        return robocache.align(stream, times)[:2]

    for number in numbers:
        latency = 1.0 if number == float("inf") else number
        stream = robocache.Stream(values, times, latency=latency, max_gap=number)
        assert same(compiled(stream), robocache.align(stream, times)[:2])


@native
def test_an_output_can_be_given_to_a_compiled_call(backend, rng):
    values, times, _, query = sample(rng, "dense", backend)
    stream, targets = robocache.Stream(values.detach(), times), query["times"]
    want = robocache.align(stream, targets).values
    out = torch.zeros(*want.shape[:2], 9, device=want.device)
    torch.compile(lambda out: robocache.align(stream, targets, out=out[:, :, 2:7]), backend="aot_eager")(out)
    assert same(out[:, :, 2:7], want)
    assert not out[:, :, :2].any()
    assert not out[:, :, 7:].any()


@native
def test_an_output_that_requires_grad_is_refused_in_a_compiled_call(backend, rng):
    values, times, _, query = sample(rng, "dense", backend)
    stream, targets = robocache.Stream(values.detach(), times), query["times"]
    out = torch.zeros_like(robocache.align(stream, targets).values).requires_grad_()
    compiled = torch.compile(lambda out: robocache.align(stream, targets, out=out).values, backend="aot_eager")
    with pytest.raises(NotImplementedError, match=r"^align: out\[0\] must not require grad"):
        compiled(out)
    with torch.no_grad():
        compiled(out)
    assert out.any()


def test_align_can_be_exported(rng):
    values, times, _, query = sample(rng, "dense", "cpu")

    class Module(torch.nn.Module):
        def forward(self, values, times, targets):
            return robocache.resample_trajectories(values, times, targets, method="previous")

    given = (values.detach(), times, query["times"])
    program = torch.export.export(Module(), given)
    assert same(program.module()(*given), Module()(*given))
    assert "robocache.align" in program.graph_module.code


# ---- what is wrong is said when the graph runs -----------------------------------------------------------------------


def message(call, *args):
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        call(*args)
    return type(caught.value), str(caught.value)


BAD = {
    "shape": lambda v, t, q: robocache.resample_trajectories(v, t[:, :-1], q),
    "name": lambda v, t, q: robocache.resample_trajectories(v, t, q, method="best"),
    "ranges": lambda v, t, q: robocache.align(robocache.Stream(v, t, method=[(0, 9, "linear")]), q),
    "times": lambda v, t, q: robocache.resample_trajectories(v, t.flip(1), q, check=True),
    "outside": lambda v, t, q: robocache.resample_trajectories(v, t, q + 1e6, outside="error"),
    "no gradient": lambda v, t, q: robocache.fuse_multimodal([(v, t), {"data": v, "times": t, "method": "max"}], q),
    "no gradient in a range": lambda v, t, q: robocache.resample_trajectories(v, t, q, method=[(1, 5, "slerp_xyzw")]),
    "gradient of times": lambda v, t, q: robocache.resample_trajectories(v, v[..., 0].double(), q),
    "gradient of targets": lambda v, t, q: robocache.fuse_multimodal([(v, t)], v[..., 1].double()),
}


@native
@pytest.mark.parametrize("what", BAD)
def test_a_compiled_call_refuses_what_an_eager_call_refuses_in_the_same_words(what, backend, rng):
    values, times, _, query = sample(rng, "dense", backend)
    given = (values, times, query["times"])
    compiled = torch.compile(BAD[what], backend="aot_eager", fullgraph=True)
    kind, text = message(compiled, *given)
    assert (kind, text) == message(BAD[what], *given)
    if what.startswith("no gradient"):
        assert kind is NotImplementedError
        assert "backend='torch'" in text
        assert text.endswith(", got max") or text.endswith(", got slerp_xyzw")


ODD_OPTIONS = {
    "a float of NumPy": {"latency": np.float32(0.5)},
    "an integer of NumPy": {"latency": np.int64(1)},
    "no ranges": {"method": []},
    "a word for a number": {"latency": "x"},
    "a word for a period": {"period": "x"},
    "a number for a flag": {"outside_valid": 1},
    "a number for outside": {"outside": 5},
    "an unknown outside": {"outside": ("hold", "bad")},
    "a number for a method": {"method": 5},
    "a range without a name": {"method": [(0, 1)]},
    "an unknown dtype": {"dtype": "bad"},
    "an empty dtype": {"dtype": ""},
}


@native
@pytest.mark.parametrize("what", ODD_OPTIONS)
def test_options_of_any_type_mean_the_same_to_a_compiled_call(what, backend, rng):
    values, times, _, query = sample(rng, "dense", backend)

    def call(values):
        return robocache.resample_trajectories(values, times, query["times"], **ODD_OPTIONS[what])

    def outcome(function):
        try:
            return function(values.detach())
        except ValueError as error:
            return str(error)

    got, want = outcome(torch.compile(call, backend="aot_eager")), outcome(call)
    assert got == want if isinstance(want, str) else same(got, want)


@native
def test_a_compiled_call_checks_times_only_if_asked(backend, rng):
    values, times, _, query = sample(rng, "dense", backend)
    backwards = times.flip(1)
    for check, refused in ((None, False), (False, False), (True, True)):
        compiled = torch.compile(
            lambda v, t, q, check=check: robocache.resample_trajectories(v, t, q, check=check),
            backend="aot_eager",
            fullgraph=True,
        )
        compiled(values, times, query["times"])
        if refused:
            with pytest.raises(ValueError, match="source_times must not decrease"):
                compiled(values, backwards, query["times"])
        else:
            compiled(values, backwards, query["times"])


# ---- CUDA ------------------------------------------------------------------------------------------------------------


@needs_cuda
def test_a_cuda_graph_replays_an_eager_call_and_its_gradient(rng):
    values, times, _, query = sample(rng, "dense", "cuda")
    other, other_times, offsets, _ = sample(rng, "dense", "cuda", np.float16, (3,))
    targets, up = query["times"], torch.randn(*query["times"].shape, 5, device=DEVICE["cuda"])

    def call():
        streams = [robocache.Stream(values, times, method=RANGES), robocache.Stream(other, other_times, offsets)]
        result = robocache.align(streams, targets, return_index=True)
        return *result.values, *result.valid, *torch.autograd.grad(result.values[0], values, up)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    with torch.no_grad():
        values += 1.0
        other *= 2.0
        up *= -3.0
        targets += 0.0003
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, call(), equal_nan=True)


@needs_cuda
def test_reduce_overhead_gives_the_same_values_and_gradients(rng):
    need_inductor("cuda")
    values, times, _, query = sample(rng, "dense", "cuda")

    def call(values, targets):
        return robocache.fuse_multimodal([(values, times), (values * 2, times)], targets).sin()

    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for shift in range(4):  # warm up, record, replay, replay
        targets = query["times"] + 0.0002 * shift
        torch.compiler.cudagraph_mark_step_begin()
        got, want = compiled(values, targets), call(values, targets)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(gradients(got, values), gradients(want, values))


@needs_cuda
def test_the_gradient_on_cuda_says_that_it_is_not_deterministic(rng):
    values, times, _, query = sample(rng, "dense", "cuda")
    out = robocache.resample_trajectories(values, times, query["times"]).sum()
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            out.backward(retain_graph=True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
            out.backward()
    finally:
        torch.use_deterministic_algorithms(False)
