"""Calls that are wrong as calls: devices, outputs, byte order, things that are no arrays."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import robocache
import torch
from arrays import DEVICE, array_of, on
from cases import OUT_SHAPE, TARGETS, TIMES, VALUES


def test_resampling_names_its_own_arguments():
    for bad, argument, given in [
        ((VALUES, TIMES[:, :4], TARGETS), "source_times", r"\(2, 4\)"),
        ((VALUES, TIMES, TARGETS[None]), "target_times", r"\(1, 2, 4\)"),
        ((VALUES.astype(np.complex128), TIMES, TARGETS), "source_data", "complex128"),
        ((VALUES, TIMES, TARGETS.astype(np.float32)), "target_times", "float32"),
        ((VALUES, TIMES[:, ::-1], TARGETS), "source_times", "3 after 4"),
    ]:
        with pytest.raises(ValueError, match=rf"^resample_trajectories: {argument} must .*, got .*{given}"):
            robocache.resample_trajectories(*bad)
    for option, value in [
        ("max_gap", -1.5),
        ("tolerance", -1.5),
        ("method", "best"),
        ("outside", "wrap"),
        ("period", -1.5),
        ("dtype", "int8"),
    ]:
        with pytest.raises(ValueError, match=rf"^resample_trajectories: {option} must .*, got .*{value}"):
            robocache.resample_trajectories(VALUES, TIMES, TARGETS, **{"method": "angle", option: value})


def test_without_targets_the_arguments_that_are_there_are_named():
    for call in (
        lambda: robocache.resample_trajectories(VALUES, TIMES, None),
        lambda: robocache.resample_trajectories(*map(torch.from_numpy, (VALUES, TIMES)), None),
        lambda: robocache.fuse_multimodal([(VALUES, TIMES)], None),
    ):
        with pytest.raises(ValueError, match=r"^\w+: target_times must be given, got nothing$"):
            call()
    with pytest.raises(
        ValueError, match=r"^align: times must be given, or anchor and deltas, and not both, got neither"
    ):
        robocache.align(robocache.Stream(VALUES, TIMES))


@pytest.mark.parametrize("check", [1, 0, "yes", np.True_])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_check_that_is_no_bool_is_refused(kind, check, backend):
    if kind == "numpy" and backend == "cuda":
        pytest.skip("NumPy arrays are never on a GPU")
    values, times, targets = (array_of(kind, x, DEVICE[backend]) for x in (VALUES, TIMES, TARGETS))
    for chosen in (backend, None):
        for call in (
            lambda **options: robocache.align(robocache.Stream(values, times), targets, **options),
            lambda **options: robocache.resample_trajectories(values, times, targets, **options),
            lambda **options: robocache.fuse_multimodal([(values, times)], targets, **options),
        ):
            with pytest.raises(ValueError) as caught:
                call(check=check, backend=chosen)
            assert str(caught.value).partition(": ")[2] == f"check must be True or False, got {check!r}"


@pytest.mark.parametrize("dtype", [3, 1.5], ids=repr)
def test_what_is_no_dtype_is_refused(dtype, backend):
    values, times, targets = (on(backend, x) for x in (VALUES, TIMES, TARGETS))
    for argument, call in (
        ("dtype", lambda: robocache.resample_trajectories(values, times, targets, dtype=dtype, backend=backend)),
        (r"streams\[0\]\.dtype", lambda: robocache.align(robocache.Stream(values, times, dtype=dtype), targets)),
        ("dtype", lambda: robocache.voxelize_pointcloud(values[0], dtype=dtype, backend=backend)),
    ):
        with pytest.raises(ValueError, match=rf"^\w+: {argument} must be float16, .* or bool, got {dtype!r}$"):
            call()


@pytest.mark.parametrize(
    ("given", "repair"),
    [
        (VALUES.tolist(), "np.asarray(x)"),
        (VALUES.astype(">f8"), "x.astype(x.dtype.newbyteorder('='))"),
        (TIMES.astype("int64").astype("datetime64[us]"), "x.astype('datetime64[ns]')"),
        (torch.zeros(5, 2).to_sparse(), "x.to_dense()"),
    ],
    ids=["list", "byte order", "unit", "sparse"],
)
def test_an_array_that_cannot_be_read_gets_one_line_with_what_makes_it_readable(given, repair):
    with pytest.raises(ValueError) as caught:
        robocache.resample_trajectories(given, TIMES, TARGETS)
    assert f"of a supported dtype ({repair}), got " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_small_number_in_a_message_is_not_rounded_to_zero():
    with pytest.raises(ValueError, match=r"max_gap must be at least 0, got -1e-09$"):
        robocache.resample_trajectories(VALUES, TIMES, TARGETS, max_gap=-1e-9)
    with pytest.raises(ValueError, match=r"got 0\.1 after 0\.3 at row 1"):
        robocache.resample_trajectories(VALUES[0, :2], np.array([0.3, 0.1]), TARGETS[0])


@pytest.mark.parametrize("name", ["source_data", "source_times", "target_times"])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_a_mask_is_refused_because_nothing_would_read_it(name, backend):
    arrays = {"source_data": VALUES, "source_times": TIMES, "target_times": TARGETS}
    arrays[name] = np.ma.masked_array(arrays[name], mask=arrays[name] == 0)
    said = rf"^resample_trajectories: {name} must be an array without a mask, .*, got .*MaskedArray"
    with pytest.raises(ValueError, match=said):
        robocache.resample_trajectories(**arrays, backend=backend)
    if name != "source_data":  # as a tensor it would lose the mask
        arrays["source_data"] = torch.zeros(VALUES.shape, requires_grad=True)
        with pytest.raises(ValueError, match=said):
            robocache.resample_trajectories(**arrays)


def test_the_message_of_the_design_is_word_for_word_what_is_raised():
    with pytest.raises(ValueError) as caught:
        robocache.resample_trajectories(np.zeros((8, 100, 7)), np.zeros((8, 99)), np.zeros((8, 10)))
    assert str(caught.value) == "resample_trajectories: source_times must have shape (8, 100), got (8, 99)"


def test_fusion_names_the_stream():
    good = (VALUES, TIMES)
    for bad, argument, given in [
        ([good, (VALUES, TIMES[:, :4])], r"streams\[1\]\.times", r"\(2, 4\)"),
        ([good, (np.zeros((3, 5, 1), "f4"), np.zeros((3, 5))), good], r"streams\[1\]", "3"),
        ([good, (VALUES[:, :, 0], TIMES)], r"streams\[1\]", "no channel"),
        ([good, VALUES], r"streams\[1\]", "ndarray"),
        ([good, {"data": VALUES}], r"streams\[1\]", "data"),
        ([good, {"data": VALUES, "times": TIMES, "methods": "next"}], r"streams\[1\]", "methods"),
        ([], "streams", "none"),
    ]:
        with pytest.raises(ValueError, match=rf"^fuse_multimodal: {argument}.* must .*, got .*{given}"):
            robocache.fuse_multimodal(bad, TARGETS)
    with pytest.raises(ValueError, match=r"^fuse_multimodal: times2 must .*, got \(2, 4\)"):
        robocache.fuse_multimodal(VALUES, TIMES, VALUES, TIMES[:, :4], VALUES, TIMES, TARGETS)
    with pytest.raises(ValueError, match=r"^fuse_multimodal: target_times must .*, got .*\(3, 4\)"):
        robocache.fuse_multimodal(VALUES, TIMES, VALUES, TIMES, VALUES, TIMES, np.zeros((3, 4)))


def test_fusion_with_arguments_missing_or_too_many_is_a_type_error():
    for args in ((), ([(VALUES, TIMES)],), (VALUES, TIMES, TARGETS), (VALUES, TIMES) * 4):
        with pytest.raises(TypeError, match=r"^fuse_multimodal: "):
            robocache.fuse_multimodal(*args)
    with pytest.raises(TypeError, match=r"^fuse_multimodal: .*color"):
        robocache.fuse_multimodal([(VALUES, TIMES)], TARGETS, color="red")


def test_streams_of_one_call_share_the_dtype_of_their_times():
    streams = [robocache.Stream(VALUES, TIMES), robocache.Stream(VALUES, TIMES.astype(np.int64))]
    with pytest.raises(ValueError, match=r"^align: streams\[1\]\.times must .*float64.*, got int64"):
        robocache.align(streams, TARGETS)


def test_streams_of_one_call_share_their_episodes():
    streams = [robocache.Stream(VALUES, TIMES), robocache.Stream(np.zeros((3, 5, 1)), np.zeros((3, 5)))]
    with pytest.raises(ValueError, match=r"^align: streams\[1\].* must .*, got .*3"):
        robocache.align(streams, TARGETS)


def test_an_episode_out_of_range_of_the_second_stream_is_found():
    streams = [robocache.Stream(np.zeros((3, 5, 1)), np.zeros((3, 5))), robocache.Stream(VALUES, TIMES)]
    with pytest.raises(ValueError, match=r"^align: episode must .*\b2\b.*, got 2 at row 1"):
        robocache.align(streams, TARGETS, episode=np.array([1, 2]))


def test_mixed_devices_are_refused():
    values, times, targets = (torch.from_numpy(x) for x in (VALUES, TIMES, TARGETS))
    with pytest.raises((ValueError, NotImplementedError), match=r"^resample_trajectories: source_times .*meta"):
        robocache.resample_trajectories(values, times.to("meta"), targets)
    with pytest.raises((ValueError, NotImplementedError), match=r"^resample_trajectories: .*meta"):
        robocache.resample_trajectories(values.to("meta"), times, targets)


def without_memory(kind, *shape, cut):
    """A fake tensor, or one that is zero without being written anywhere; with a cut a view of one."""
    shape = (shape[0], shape[1] + cut, *shape[2:])
    if kind == "zero":
        return torch._efficientzerotensor(shape, dtype=torch.float64)[:, cut:]
    with torch._subclasses.FakeTensorMode():
        return torch.zeros(shape, dtype=torch.float64)[:, cut:]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("kind", ["zero", "fake"])
def test_tensors_without_memory_are_refused(kind, cut):
    values, times, targets = (torch.from_numpy(x) for x in (VALUES.astype(np.float64), TIMES, TARGETS))
    said = r"must be in memory, got <class '.*Tensor'> without any"
    with pytest.raises(ValueError, match=rf"^resample_trajectories: source_times {said}"):
        robocache.resample_trajectories(values, without_memory(kind, 2, 5, cut=cut), targets)
    with pytest.raises(ValueError, match=rf"^resample_trajectories: target_times {said}"):
        robocache.resample_trajectories(values, times, without_memory(kind, 2, 4, cut=cut))
    with pytest.raises(ValueError, match=rf"^align: out\[0\] {said}"):
        robocache.align(robocache.Stream(values, times), targets, out=without_memory(kind, *OUT_SHAPE, cut=cut))
    if kind == "zero":  # with fake values a call is traced
        with pytest.raises(ValueError, match=rf"^resample_trajectories: source_data {said}"):
            robocache.resample_trajectories(without_memory(kind, 2, 5, 3, cut=cut), times, targets)
        with pytest.raises(ValueError, match=rf"^voxelize_pointcloud: points {said}"):
            robocache.voxelize_pointcloud(without_memory(kind, 5, 3, cut=cut))


def test_an_empty_tensor_needs_no_memory():
    empty = torch._efficientzerotensor((0, 3))
    assert not robocache.voxelize_pointcloud(empty, grid_size=(1, 1, 1)).any()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_another_byte_order_is_refused(place):
    arrays = [VALUES, TIMES, TARGETS]
    arrays[place] = arrays[place].astype(arrays[place].dtype.newbyteorder(">"))
    name = ("source_data", "source_times", "target_times")[place]
    with pytest.raises(ValueError, match=rf"^resample_trajectories: {name} must .*, got .*>f"):
        robocache.resample_trajectories(*arrays)


NO_ARRAYS = {
    "nothing": None,
    "a list": [[0.0]],
    "a number": 3.0,
    "a string": "abc",
    "a dict": {},
    "strings": np.array([["a"]]),
    "objects": np.array([[object()]]),
    "records": np.zeros((1, 1), [("a", "f4")]),
    "long doubles": np.zeros((1, 1), np.longdouble),
    "float8": np.zeros((1, 1), ml_dtypes.float8_e5m2),
    "torch float8": torch.zeros(1, 1).to(torch.float8_e5m2),
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a table": pd.DataFrame({"a": [0.0]}),
}


@pytest.mark.parametrize("thing", NO_ARRAYS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_array_of_numbers_is_refused(place, thing):
    arrays = [VALUES, TIMES, TARGETS]
    arrays[place] = NO_ARRAYS[thing]
    name = ("source_data", "source_times", "target_times")[place]
    with pytest.raises((ValueError, TypeError), match=rf"^resample_trajectories: {name} must .*, got "):
        robocache.resample_trajectories(*arrays)


@pytest.mark.parametrize(
    ("out", "given"),
    [
        (np.zeros((2, 4, 2), np.float32), r"\(2, 4, 2\)"),
        (np.zeros((2, 3, 3), np.float32), r"\(2, 3, 3\)"),
        (np.zeros((8, 3), np.float32), r"\(8, 3\)"),
        (np.zeros(OUT_SHAPE, np.int32), "int32"),
        (np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), OUT_SHAPE, (0, 0, 4)), "stride 0"),
    ],
    ids=["channels", "targets", "rank", "dtype", "overlap"],
)
def test_an_output_that_does_not_fit_is_refused(out, given, backend):
    stream, targets = robocache.Stream(on(backend, VALUES), on(backend, TIMES)), on(backend, TARGETS)
    target = on(backend, out)
    if backend == "cuda" and 0 in out.strides:  # a copy to the GPU does not keep the overlap
        target = target[:1, :1].expand(OUT_SHAPE)
    with pytest.raises(ValueError, match=rf"^align: out.* must .*, got .*{given}"):
        robocache.align(stream, targets, out=target, backend=backend)


def test_a_read_only_output_is_refused():
    out = np.full(OUT_SHAPE, 7.0, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^align: out.* must .*writ.*, got .*read-only"):
        robocache.align(robocache.Stream(VALUES, TIMES), TARGETS, out=out)
    assert (out == 7.0).all()


def test_an_output_of_jax_is_refused_because_jax_arrays_never_change():
    rows = jnp.arange(3.0)
    out = jnp.full((1, 3), 7.0, rows.dtype)
    with pytest.raises(ValueError, match=r"^align: out.* must .*, got "):
        robocache.align(robocache.Stream(rows, rows), rows, out=out)
    assert (np.asarray(out) == 7.0).all()


@pytest.mark.parametrize("num_outputs", [0, 1, 3])
def test_the_outputs_are_as_many_as_the_streams(num_outputs, backend):
    outs = [on(backend, np.zeros(OUT_SHAPE, np.float32)) for _ in range(num_outputs)]
    stream = robocache.Stream(on(backend, VALUES), on(backend, TIMES))
    with pytest.raises(ValueError, match=rf"^align: out must .*2.*, got .*{num_outputs}"):
        robocache.align([stream, stream], on(backend, TARGETS), out=outs, backend=backend)


def test_no_stream_or_something_else_is_refused():
    with pytest.raises(ValueError, match=r"^align: streams must have at least one stream, got none"):
        robocache.align([], TARGETS)
    with pytest.raises(ValueError, match=r"^align: streams\[1\] must be a Stream, got tuple"):
        robocache.align([robocache.Stream(VALUES, TIMES), (VALUES, TIMES)], TARGETS)


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_thread_is_refused(count):
    with pytest.raises(ValueError, match=rf"^set_num_threads: .* must .*, got {count}"):
        robocache.set_num_threads(count)


def test_a_time_that_is_no_time_is_refused():
    times = np.array(["2024-01-01", "NaT"], "datetime64[ns]")
    targets = np.array(["2024-01-01"], "datetime64[ns]")
    for rows in (times, times[::-1]):
        with pytest.raises(ValueError, match=r"^resample_trajectories: source_times must .*, got "):
            robocache.resample_trajectories(np.zeros((2, 1)), rows, targets)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_datetimes_in_other_units_than_nanoseconds_are_refused(unit):
    times = np.array(["2024-01-01", "2024-01-02"], f"datetime64[{unit}]")
    with pytest.raises(ValueError, match=rf"^resample_trajectories: source_times must .*, got .*datetime64\[{unit}\]"):
        robocache.resample_trajectories(np.zeros((2, 1)), times, times)
