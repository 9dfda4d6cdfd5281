"""Arrays: the same kind, dtype and device back, read in place whatever their strides, and written where asked."""

import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robocache
import torch
from arrays import (
    BFLOAT16,
    DEVICE,
    FLOATS,
    INTEGERS,
    array_of,
    bits,
    kind_of,
    on,
    to_numpy,
)
from cases import METHODS, dense, ragged


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_array_in_same_kind_and_same_bits_out(kind, dtype, rng):
    case = dense(rng, dtype, np.dtype(np.int64), (3,))
    got, want = case.align(kind=kind), case.align()
    for mine, numpys, expected in zip(got, want, (dtype, np.dtype(bool), np.dtype(np.int64)), strict=True):
        assert kind_of(mine) == kind
        assert to_numpy(mine).dtype == expected
        assert bits(mine) == bits(numpys)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_every_backend_takes_every_kind(kind, backend, rng):
    for dtype in (np.dtype(np.float32), BFLOAT16, np.dtype(np.int32), np.dtype(bool)):
        case = ragged(rng, dtype, np.dtype(np.int64), (4,))
        got = case.align(backend, kind)
        assert [kind_of(x) for x in got] == [kind] * 3
        assert bits(got.values) == bits(case.align(backend).values)


def test_the_device_stays_the_same(backend, rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.int64), (3,))
    got = case.align(backend, "torch")
    assert {x.device.type for x in got} == {DEVICE[backend]}
    assert next(iter(case.align(kind="jax").values.devices())) == jax.devices("cpu")[0]


def test_device_says_where_to_compute():
    times = np.arange(4.0)
    assert robocache.resample_trajectories(times, times, times, device="cpu").tolist() == times.tolist()
    tensor = torch.arange(4.0)
    assert torch.equal(robocache.resample_trajectories(tensor, tensor, tensor, device="cpu"), tensor)
    with pytest.raises((ValueError, NotImplementedError), match=r"^resample_trajectories: device .*mars"):
        robocache.resample_trajectories(times, times, times, device="mars")


@pytest.mark.parametrize("spelling", ["name", "numpy", "torch", "jax"])
def test_the_output_dtype_may_be_spelled_in_any_framework(spelling, kind):
    dtype = {"name": "bfloat16", "numpy": BFLOAT16, "torch": torch.bfloat16, "jax": jnp.bfloat16}[spelling]
    times = array_of(kind, np.arange(4.0))
    got = robocache.resample_trajectories(times, times, times, dtype=dtype)
    assert kind_of(got) == kind
    assert to_numpy(got).dtype == BFLOAT16


def test_bfloat16_arrays_of_ml_dtypes_work(rng):
    rows = rng.normal(size=(6, 3)).astype(BFLOAT16)
    got = robocache.resample_trajectories(rows, np.arange(6.0), np.arange(5) + 0.5)
    assert got.dtype == BFLOAT16
    np.testing.assert_array_equal(got, ((rows[:-1].astype("f4") + rows[1:].astype("f4")) / 2).astype(BFLOAT16))


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_datetimes_count_as_nanoseconds(backend):
    times = np.array(["2024-01-01T00:00:00", "2024-01-01T00:00:01"], "datetime64[ns]")
    targets = times[:1] + np.array([1, 250_000_000, 10**9], "timedelta64[ns]")
    options = {"max_gap": 10**9, "return_valid": True, "backend": backend}
    values, valid = robocache.resample_trajectories(np.array([0.0, 1.0]), times, targets, **options)
    assert (values.tolist(), valid.all()) == ([1e-9, 0.25, 1.0], True)
    values, _ = robocache.resample_trajectories(np.array([0.0, 1.0]), times.astype(np.int64), targets, **options)
    assert values.tolist() == [1e-9, 0.25, 1.0]
    stream = robocache.Stream(np.array([0.0, 1.0]), times)
    deltas = np.array([0, 5 * 10**8], "timedelta64[ns]")
    assert robocache.align(stream, anchor=times[:1], deltas=deltas, backend=backend).values.tolist() == [[0.0, 0.5]]


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_read_only_inputs_work(backend):
    rows, times = np.arange(4.0), np.arange(4.0)
    rows.flags.writeable = times.flags.writeable = False
    assert robocache.resample_trajectories(rows, times, times, backend=backend).tolist() == [0, 1, 2, 3]


def test_inputs_are_never_changed(backend, rng):
    for method in METHODS:
        case = dense(rng, np.dtype(np.float32), np.dtype(np.int64), (4,), method)
        before = [bits(x) for x in (case.values, case.times, case.targets)]
        case.align(backend, method=method)
        assert [bits(x) for x in (case.values, case.times, case.targets)] == before


STRIDED = {
    "reversed rows": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "reversed channels": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
    "a slice of channels": lambda x: np.concatenate([x, x], axis=2)[:, :, : x.shape[2]],
    "every other channel": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
    "time before batch": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "channels first": lambda x: np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0),
    "at an odd address": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("how", STRIDED)
@pytest.mark.parametrize("method", METHODS)
def test_any_strides_are_read_in_place(how, method, rng):
    for dtype in FLOATS:
        case = dense(rng, dtype, np.dtype(np.int64), (8,), method)
        want = case.align(method=method)
        case.values = STRIDED[how](case.values)
        assert bits(case.align(method=method).values) == bits(want.values)


def test_reversed_times_and_targets_are_read_in_place(rng):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.int64), (3,))
    want = bits(case.align().values)
    case.times, case.targets = (np.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in (case.times, case.targets))
    assert bits(case.align().values) == want


@pytest.mark.parametrize("place", [1, 2])
def test_times_at_an_odd_address_are_read(place, rng, tdtype):
    case = dense(rng, np.dtype(np.float32), tdtype, (3,))
    want = bits(case.align().values)
    name = ("values", "times", "targets")[place]
    setattr(case, name, STRIDED["at an odd address"](getattr(case, name)))
    assert bits(case.align().values) == want


@pytest.mark.parametrize("method", METHODS)
def test_outputs_may_be_column_slices_of_one_array(method, backend, rng):
    cases = [dense(rng, np.dtype(np.float32), np.dtype(np.int64), (width,), method) for width in (4, 8)]
    out = np.full((3, 8, 16), 77.0, np.float32)
    whole = on(backend, out)
    streams = {name: case.stream(backend, method=method) for name, case in zip("ab", cases, strict=True)}
    outs = {"a": whole[:, :, 1:5], "b": whole[:, :, 6:14]}
    got = robocache.align(streams, **cases[0].query(backend), out=outs, backend=backend)
    cases[1].targets = cases[0].targets
    filled = to_numpy(whole)
    assert bits(filled[:, :, 1:5]) == bits(cases[0].align(backend, method=method).values) == bits(got.values["a"])
    assert bits(filled[:, :, 6:14]) == bits(cases[1].align(backend, method=method).values)
    assert (filled[:, :, [0, 5, 14, 15]] == 77.0).all()


def test_outputs_of_a_dict_are_found_by_name(backend):
    times = on(backend, np.arange(3.0))
    streams = {"a": robocache.Stream(times, times), "b": robocache.Stream(times + 10, times)}
    outs = {name: on(backend, np.zeros((1, 3))) for name in "ba"}
    robocache.align(streams, times, out=outs, backend=backend)
    assert to_numpy(outs["a"]).tolist() == [[0, 1, 2]]
    assert to_numpy(outs["b"]).tolist() == [[10, 11, 12]]


def test_an_output_in_another_float_dtype_is_written_with_one_rounding(backend, rng):
    case = dense(rng, np.dtype(np.float64), np.dtype(np.int64), (3,))
    out = on(backend, np.zeros((3, 8, 3), np.float32))
    robocache.align(case.stream(backend), **case.query(backend), out=out, backend=backend)
    assert bits(out) == bits(case.align(backend, dtype="float32").values)


def test_an_output_of_16_bits_is_rounded_once(backend):
    """Between 1 and the next float16, above the middle by less than a float32 can tell."""
    rows = on(backend, np.full((2, 1), 1 + 2**-11 + 2**-40))
    out = on(backend, np.zeros((1, 1, 1), np.float16))
    times = on(backend, np.array([0.0, 1.0]))
    robocache.align(robocache.Stream(rows, times), times[:1] + 0.5, out=out, backend=backend)
    assert to_numpy(out).item() == 1 + 2**-10


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, BFLOAT16, np.int64], ids=lambda d: np.dtype(d).name)
def test_outputs_of_numpy_may_run_backwards(backend, dtype):
    whole = np.full((1, 5, 4), 7, dtype)
    times = np.arange(3.0)
    rows = np.arange(6).reshape(3, 2).astype(dtype)
    got = robocache.align(robocache.Stream(rows, times), times, out=whole[:, 3:0:-1, ::-2], backend=backend)
    assert got.values.tolist() == rows[None].tolist()
    want = np.full((5, 4), 7, dtype)
    want[3:0:-1, ::-2] = rows
    assert whole[0].tolist() == want.tolist()


def test_autograd_notices_that_an_output_was_written(backend):
    """What a gradient still needs of the old values cannot be had."""
    times = array_of("torch", np.arange(3.0), DEVICE[backend])
    out = array_of("torch", np.full((1, 3), 7.0), DEVICE[backend])
    factor = torch.ones_like(out, requires_grad=True)
    loss = (factor * out).sum()
    robocache.align(robocache.Stream(times, times), times, out=out, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_output_made_in_inference_mode_is_written():
    times = torch.arange(3.0)
    with torch.inference_mode():
        out = torch.zeros(1, 3)
        robocache.align(robocache.Stream(times, times), times, out=out)
    robocache.align(robocache.Stream(times + 1, times), times, out=out)
    assert out.tolist() == [[1, 2, 3]]


def test_jax_without_64_bits_still_works():
    code = """
import jax.numpy as jnp, numpy as np, robocache
rows = jnp.arange(4.0)
values, valid = robocache.resample_trajectories(rows, rows, rows[:-1] + 0.5, return_valid=True)
assert values.dtype == jnp.float32 and values.tolist() == [0.5, 1.5, 2.5] and valid.all(), values
got = robocache.align(robocache.Stream(rows, rows), rows, return_index=True)
assert np.asarray(got.index).tolist() == [[0, 1, 2, 3]], got.index
print('ok')
"""
    environment = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "ok\n", done.stderr


# ---- the direct way of plain torch tensors --------------------------------------------------------------------------


def both_ways(monkeypatch, call):
    """What a call gives the direct way, where the general one is closed, and the general way, which a backend opens."""
    module = importlib.import_module("robocache.ops.align")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_run", None)
        direct = call(None)
    return direct, call("cpu")


OPTIONS = (
    {},
    {"method": "nearest", "latency": 0.1, "max_gap": 1.0, "outside": ("nan", "hold"), "outside_valid": True},
    {"dtype": "float64", "outside": "linear"},
    {"method": [(0, 1, "angle"), (1, 3, "next")], "period": 3.0, "dtype": torch.float16},
    {"check": False},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_torch_tensors_go_a_direct_way_to_the_same_results(options, batched, rng, monkeypatch):
    case = dense(rng, np.dtype(np.float32), np.dtype(np.float64), (3,))
    arrays = [torch.from_numpy(x if batched else x[0]) for x in (case.values, case.times, case.targets)]

    def resampled(backend):
        return robocache.resample_trajectories(*arrays, return_valid=True, backend=backend, **options)

    def fused(backend):
        pairs = [arrays[:2], (arrays[0] + 1, arrays[1])]
        return robocache.fuse_multimodal(pairs, arrays[2], return_valid=True, backend=backend, **options)

    def aligned(backend):
        fields = {name: value for name, value in options.items() if name != "check"}
        streams = {"a": robocache.Stream(arrays[0], arrays[1], **fields), "b": robocache.Stream(*arrays[:2])}
        got = robocache.align(streams, arrays[2], return_index=True, check=options.get("check"), backend=backend)
        return [x[name] for x in got for name in "ab"]

    for call in (resampled, fused, aligned):
        direct, general = both_ways(monkeypatch, call)
        assert [x.dtype for x in direct] == [x.dtype for x in general]
        assert [x.shape for x in direct] == [x.shape for x in general]
        assert [bits(x) for x in direct] == [bits(x) for x in general]


def test_tensors_that_are_more_than_memory_do_not_go_the_direct_way():
    times = torch.arange(4.0)
    subclass = torch.nn.Parameter(times)
    with torch.no_grad():
        assert robocache.resample_trajectories(subclass, times, times).tolist() == [0, 1, 2, 3]
    negative = torch.complex(times, times).conj().imag
    with pytest.raises(
        ValueError, match=r"^resample_trajectories: source_data must be resolved .*, got a lazy negation"
    ):
        robocache.resample_trajectories(negative, times, times)
    assert robocache.resample_trajectories(negative.resolve_neg(), times, times).tolist() == [0, -1, -2, -3]


def test_bfloat16_of_numpy_without_ml_dtypes_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    values, times = np.zeros((1, 4, 2), np.float32), np.arange(4.0)[None]
    points, features = np.zeros((5, 3), np.float32), np.ones((5, 1), np.float32)
    grid = {"mode": "sum", "grid_size": (2, 2, 2), "dtype": "bfloat16"}
    calls = (
        lambda: robocache.resample_trajectories(values, times, times, dtype="bfloat16"),
        lambda: robocache.fuse_multimodal([(values, times)], times, dtype="bfloat16"),
        lambda: robocache.align(robocache.Stream(values, times, dtype="bfloat16"), times),
        lambda: robocache.resample_trajectories(values, times, times, dtype="bfloat16", backend="torch"),
    )
    for call in calls:
        with pytest.raises(ImportError, match=r"^robocache: dtype 'bfloat16' .* pip install ml_dtypes") as error:
            call()
        assert error.value.name == "ml_dtypes"
    with pytest.raises(ValueError, match="dtype"):  # features of float32 are not rounded to it
        robocache.voxelize_pointcloud(points, features, **grid)
    tensors = [torch.from_numpy(x) for x in (values, times, times)]
    assert robocache.resample_trajectories(*tensors, dtype="bfloat16").dtype == torch.bfloat16
