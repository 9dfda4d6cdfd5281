"""align under jax.jit, jax.grad and jax.vmap: the oracle's values, the bits of the eager call, the same refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robocache
from arrays import FLOATS, INTEGERS, to_numpy
from cases import INTEGER_METHODS, LAYOUTS, METHODS, dense, one_episode, ragged, span_of
from jax_calls import assert_same_bits, needs_handlers, numpy_of, oracle_gradient, without_x64
from test_agreement import channels_for
from tolerance import assert_agrees

pytestmark = needs_handlers
WITH_GRADIENT = ("linear", "previous", "next", "nearest", "cubic", "mean", "rms")
NS = np.dtype(np.int64)


def options_of(rng, method, tdtype):
    """Some of the options of a stream."""
    options = {"method": method, "latency": span_of(int(rng.integers(-3, 4)), tdtype)}
    if rng.random() < 0.5:
        options |= {"max_gap": span_of(4, tdtype), "outside_valid": True}
    if rng.random() < 0.5:
        options |= {"tolerance": span_of(1, tdtype)}
    return options


def traced(case, **options):
    """align of a case under jax.jit, every array an argument."""
    query = {name: x for name, x in case.query().items() if x is not None}

    @jax.jit
    def call(values, times, offsets, query):
        stream = robocache.Stream(values, times, offsets, **options)
        return robocache.align(stream, **query, return_index=True, check=True)

    return call(case.values, case.times, case.offsets, query)


# ---- jit -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
def test_floats_under_jit_agree_with_the_oracle_and_have_the_bits_of_the_eager_call(method, layout, rng):
    dtype = FLOATS[(METHODS.index(method) + list(LAYOUTS).index(layout)) % len(FLOATS)]
    tdtype = np.dtype(("int64", "float64", "float32")[rng.integers(3)])
    case = LAYOUTS[layout](rng, dtype, tdtype, channels_for(layout, method), method)
    options = options_of(rng, method, tdtype)
    got = traced(case, **options)
    assert_agrees(got, case.expected(**options), dtype)
    eager = case.align(**options)
    assert_same_bits([got.valid, got.index], [eager.valid, eager.index])
    np.testing.assert_array_equal(to_numpy(got.values), to_numpy(eager.values))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("method", INTEGER_METHODS)
def test_integers_under_jit_agree_with_the_oracle(method, dtype, rng):
    case = ragged(rng, dtype, NS, (3,), method)
    assert_agrees(traced(case, method=method), case.expected(method=method), dtype)


def test_several_streams_keep_their_structure_and_their_own_options(rng):
    fast, slow = dense(rng, np.dtype("f4"), NS, (3,)), dense(rng, np.dtype("i4"), NS, (), num_rows=4)

    def call(a, b):
        streams = {"a": robocache.Stream(a, fast.times, method=[(0, 2, "cubic")]), "b": robocache.Stream(b, slow.times)}
        return robocache.align(streams, fast.targets)

    got, want = jax.jit(call)(fast.values, slow.values), call(fast.values, slow.values)
    assert set(got.values) == {"a", "b"}
    assert got.index is None
    assert_same_bits(got, want)


@pytest.mark.parametrize("return_valid", [False, True])
def test_resampling_and_fusion_have_the_bits_of_the_eager_call(return_valid, rng):
    a, b = one_episode(rng, np.dtype("f4"), NS, (3,)), one_episode(rng, np.dtype("f4"), NS, (2,), num_rows=5)

    def resample(values):
        return robocache.resample_trajectories(values, a.times, a.targets[0], return_valid=return_valid)

    def fuse(v, w):
        pairs = [(v, a.times), {"data": w, "times": b.times, "method": "previous"}]
        return robocache.fuse_multimodal(pairs, a.targets[0], return_valid=return_valid)

    assert_same_bits(jax.jit(resample)(a.values), resample(a.values))
    assert_same_bits(jax.jit(fuse)(a.values, b.values), fuse(a.values, b.values))


def test_an_empty_query_and_no_episode_under_jit(rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    call = jax.jit(lambda v, t, q: robocache.resample_trajectories(v, t, q))
    assert call(case.values, case.times, case.targets[:, :0]).shape == (3, 0, 2)
    assert call(case.values[:0], case.times[:0], case.targets[:0]).shape == (0, 8, 2)


def test_a_compiled_function_is_used_again_with_other_data(rng):
    first, second = (dense(rng, np.dtype("f4"), NS, (2,)) for _ in range(2))
    call = jax.jit(lambda v, t, q: robocache.resample_trajectories(v, t, q))
    for case in (first, second):
        want = robocache.resample_trajectories(case.values, case.times, case.targets)
        assert_same_bits(call(case.values, case.times, case.targets), want)
    assert call._cache_size() == 1


# ---- int64 without jax_enable_x64 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["dense", "ragged", "one_episode", "anchored", "picked"])
def test_nanoseconds_of_numpy_are_exact_without_x64(layout, rng):
    case = LAYOUTS[layout](rng, np.dtype("f4"), NS, (3,))
    with without_x64():
        call = jax.jit(lambda v: robocache.align(
            robocache.Stream(v, case.times, case.offsets), **case.query(), return_index=True))  # fmt: skip
        got = call(case.values)
        assert (got.values.dtype, got.index.dtype) == (np.float32, np.int32)
        mapped = jax.jit(jax.vmap(call))(np.stack([case.values, -case.values]))
    assert_agrees(got, case.expected(), np.dtype("f4"))
    np.testing.assert_array_equal(mapped.values, np.stack([got.values, -got.values]))
    np.testing.assert_array_equal(mapped.index, np.stack([got.index, got.index]))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("place", ["source_times", "target_times"])
def test_int64_that_jax_made_int32_is_refused_with_the_fix(place, eager, rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    arrays = {"source_data": case.values, "source_times": case.times, "target_times": case.targets}
    with without_x64():
        arrays = {name: jnp.asarray(x) for name, x in arrays.items() if eager or name == place} | {
            name: x for name, x in arrays.items() if not eager and name != place
        }  # fmt: skip
        assert arrays[place].dtype == np.int32
        call = robocache.resample_trajectories if eager else jax.jit(robocache.resample_trajectories)
        with pytest.raises(ValueError, match=r"got int32, to which JAX silently .*jax_enable_x64', True"):
            call(**arrays)


def test_float64_of_numpy_is_not_narrowed_in_silence(rng):
    case = dense(rng, np.dtype("f4"), np.dtype("f8"), (2,))
    with (
        without_x64(),
        pytest.raises(ValueError, match=r"source_times must not be float64 while jax_enable_x64 is off"),
    ):
        jax.jit(lambda v: robocache.resample_trajectories(v, case.times, case.targets))(case.values)


def test_offsets_and_episodes_may_be_int32_without_x64(rng):
    case = ragged(rng, np.dtype("f4"), np.dtype("f4"), (2,))
    episode = np.array([3, 0, 4, 1])
    targets = case.targets[episode]

    def call(v, t, offsets, episode, q):
        return robocache.align(robocache.Stream(v, t, offsets), q, episode=episode, return_index=True)

    want = call(case.values, case.times, case.offsets, episode, targets)
    with without_x64():
        got = jax.jit(call)(case.values, case.times, case.offsets, episode, targets)
        mapped = jax.jit(jax.vmap(call, in_axes=(0, None, None, None, None)))(
            np.stack([case.values] * 2), case.times, case.offsets, episode, targets
        )
    np.testing.assert_array_equal(got.values, want.values)
    np.testing.assert_array_equal(got.index, want.index)
    np.testing.assert_array_equal(mapped.index, np.stack([want.index] * 2))


# ---- grad ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["dense", "ragged", "one_episode", "anchored", "picked"])
@pytest.mark.parametrize("method", WITH_GRADIENT)
def test_the_gradient_is_that_of_the_oracle(method, layout, rng):
    case = LAYOUTS[layout](rng, np.dtype("f8"), NS, (2,), method)
    upstream = rng.normal(size=(*case.targets.shape, 2))
    query = case.query()

    def loss(values):
        made = robocache.align(robocache.Stream(values, case.times, case.offsets, method=method), **query)
        return (made.values * upstream).sum()

    want = oracle_gradient(case, upstream, method=method)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_allclose(gradient(case.values), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_gradient_has_the_dtype_of_the_values_and_is_added_in_float32(dtype, rng):
    case = one_episode(rng, dtype, NS, (2,), num_rows=3)
    upstream = rng.normal(size=(1, 8, 2)).astype(dtype)

    def loss(values):
        made = robocache.align(robocache.Stream(values, case.times), case.targets[:1])
        return (made.values * upstream).astype(np.float32).sum()

    got = jax.jit(jax.grad(loss))(case.values)
    assert got.dtype == dtype
    case.targets = case.targets[:1]
    want = oracle_gradient(case, upstream.astype(np.float64))
    limit = {"float64": 1e-7, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype.name]
    np.testing.assert_allclose(to_numpy(got).astype(np.float64), want, rtol=limit, atol=limit)


def test_only_the_streams_that_are_differentiated_have_a_gradient(rng):
    a, b = dense(rng, np.dtype("f8"), NS, (2,)), dense(rng, np.dtype("i4"), NS, (2,), num_rows=4)

    def loss(values, others):
        streams = [robocache.Stream(values, a.times, method="rms"), robocache.Stream(others, b.times),
                   robocache.Stream(2 * values, a.times, method="linear")]  # fmt: skip
        made = robocache.align(streams, a.targets)
        return made.values[0].sum() + made.values[2].sum() + made.values[1].astype(float).sum()

    ones = np.ones((*a.targets.shape, 2))
    want = oracle_gradient(a, ones, method="rms") + 2 * oracle_gradient(a, ones, method="linear")
    got = jax.jit(jax.grad(loss))(a.values, b.values)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_the_gradient_of_fusion_goes_to_each_stream(rng):
    a, b = dense(rng, np.dtype("f8"), NS, (2,)), dense(rng, np.dtype("f8"), NS, (3,), num_rows=5)
    upstream = rng.normal(size=(*a.targets.shape, 5))

    def loss(v, w):
        return (robocache.fuse_multimodal([(v, a.times), (w, b.times)], a.targets) * upstream).sum()

    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(a.values, b.values)
    b.targets = a.targets
    np.testing.assert_allclose(got[0], oracle_gradient(a, upstream[..., :2]), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(got[1], oracle_gradient(b, upstream[..., 2:]), rtol=1e-5, atol=1e-7)
    second = jax.grad(lambda w: loss(a.values, w))(b.values)
    np.testing.assert_array_equal(second, got[1])


@pytest.mark.parametrize("method", [m for m in METHODS if m not in WITH_GRADIENT])
def test_a_method_without_a_gradient_is_refused_only_where_one_is_wanted(method, rng):
    case = dense(rng, np.dtype("f4"), NS, (4,), method)

    def loss(values):
        return robocache.resample_trajectories(values, case.times, case.targets, method=method).sum()

    assert np.isfinite(jax.jit(loss)(case.values))
    with pytest.raises(NotImplementedError, match=f"resample_trajectories: .*{method}"):
        jax.jit(jax.grad(loss))(case.values)


@pytest.mark.parametrize("place", ["source_times", "target_times"])
def test_a_gradient_of_times_is_refused_and_never_zero(place, rng):
    case = dense(rng, np.dtype("f4"), np.dtype("f8"), (2,))
    arrays = {"source_data": case.values, "source_times": case.times, "target_times": case.targets}

    def loss(x):
        return robocache.resample_trajectories(**(arrays | {place: x})).sum()

    with pytest.raises(NotImplementedError, match=rf"{place} must not be differentiated, only values have a gradient"):
        jax.grad(loss)(arrays[place])
    assert np.isfinite(loss(jax.lax.stop_gradient(arrays[place])))


# ---- vmap ------------------------------------------------------------------------------------------------------------


def stacked(cases, name):
    return None if getattr(cases[0], name) is None else np.stack([getattr(case, name) for case in cases])


@pytest.mark.parametrize("mapped", ["values", "values times", "query", "all", "times offsets", "q_deltas q_episode"])
@pytest.mark.parametrize("layout", ["dense", "ragged", "one_episode", "anchored", "picked"])
def test_a_map_has_the_bits_of_one_call_for_each_element(layout, mapped, rng):
    cases = [LAYOUTS[layout](rng, np.dtype("f4"), NS, (2,)) for _ in range(3)]
    asked = [{f"q_{name}": x for name, x in case.query().items() if x is not None} for case in cases]
    every = [
        {"values": c.values, "times": c.times, "offsets": c.offsets} | q for c, q in zip(cases, asked, strict=True)
    ]
    names = [name for name, x in every[0].items() if x is not None]
    chosen = {"query": list(asked[0]), "all": names}
    picked = {n for word in mapped.split() for n in chosen.get(word, [word])} & set(names) or {"values"}
    arrays = {n: np.stack([a[n] for a in every]) if n in picked else every[0][n] for n in names}

    def call(arrays):
        stream = robocache.Stream(arrays["values"], arrays["times"], arrays.get("offsets"))
        query = {n.removeprefix("q_"): x for n, x in arrays.items() if n.startswith("q_")}
        return robocache.align(stream, **query, return_index=True)

    axes = ({n: 0 if n in picked else None for n in names},)
    got = jax.jit(jax.vmap(call, in_axes=axes))(arrays)
    for i in range(3):
        one = call({n: x[i] if n in picked else x for n, x in arrays.items()})
        assert_same_bits([got.values[i], got.valid[i], got.index[i]], [one.values, one.valid, one.index])


def test_maps_nest_and_take_other_axes(rng):
    case = one_episode(rng, np.dtype("f4"), NS, (2,))
    values = rng.normal(size=(3, 11, 2, 4)).astype(np.float32)  # the mapped axes are the first and the last

    def call(v):
        return robocache.resample_trajectories(v, case.times, case.targets[0], method="cubic")

    got = jax.vmap(jax.vmap(call), in_axes=-1, out_axes=1)(values)
    assert got.shape == (3, 4, 8, 2)
    for i, j in np.ndindex(3, 4):
        np.testing.assert_array_equal(got[i, j], call(np.ascontiguousarray(values[i, ..., j])))


def test_streams_with_one_and_with_many_episodes_map_together(rng):
    many, one = dense(rng, np.dtype("f4"), NS, (2,)), one_episode(rng, np.dtype("f4"), NS, (3,))

    def call(v, w):
        streams = [robocache.Stream(v, many.times), robocache.Stream(w, one.times)]
        return robocache.align(streams, many.targets)

    v, w = np.stack([many.values, -many.values]), np.stack([one.values, 3 * one.values])
    for axes in ((0, None), (None, 0), (0, 0)):
        got = jax.jit(jax.vmap(call, in_axes=axes))(*(x if a == 0 else x[0] for x, a in zip((v, w), axes, strict=True)))
        for i in range(2):
            want = call(*(x[i] if a == 0 else x[0] for x, a in zip((v, w), axes, strict=True)))
            for a, b in zip(got.values, want.values, strict=True):
                np.testing.assert_array_equal(a[i], b)


def test_an_episode_out_of_range_stays_so_in_a_map(rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    episode = np.array([0, 7, -1])

    def call(v):
        stream = robocache.Stream(v, case.times)
        return robocache.align(stream, case.targets, episode=episode, check=False)

    got = jax.jit(jax.vmap(call))(np.stack([case.values] * 3))
    for i in range(3):
        assert_same_bits([got.values[i], got.valid[i]], [call(case.values).values, call(case.values).valid])
        assert not np.asarray(got.valid)[i, 1:].any()


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["linear", "rms"])
@pytest.mark.parametrize("layout", ["dense", "ragged", "one_episode", "anchored", "picked"])
def test_grad_of_a_map_and_map_of_a_grad_are_the_gradients_of_the_elements(layout, method, rng):
    case = LAYOUTS[layout](rng, np.dtype("f8"), NS, (2,), method)
    query = case.query()
    values = rng.normal(size=(3, *case.values.shape))
    upstream = rng.normal(size=(3, *case.targets.shape, 2))

    def loss(v, up):
        made = robocache.align(robocache.Stream(v, case.times, case.offsets, method=method), **query)
        return (made.values * up).sum()

    of_map = jax.jit(jax.grad(lambda v: jax.vmap(loss)(v, upstream).sum()))(values)
    map_of = jax.vmap(jax.grad(loss))(values, upstream)
    for i in range(3):
        want = jax.grad(loss)(values[i], upstream[i])
        np.testing.assert_allclose(of_map[i], want, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(map_of[i], want, rtol=1e-12, atol=1e-12)


def test_values_that_all_elements_share_get_the_sum_of_their_gradients(rng):
    case = one_episode(rng, np.dtype("f8"), NS, (2,))
    upstream = rng.normal(size=(3, 8, 2))

    def loss(v):
        def one(targets):
            return robocache.resample_trajectories(v, case.times, targets)

        return (jax.vmap(one)(case.targets) * upstream).sum()

    np.testing.assert_allclose(jax.grad(loss)(case.values), oracle_gradient(case, upstream), rtol=1e-5, atol=1e-7)


def test_a_jacobian_by_rows_is_that_of_the_oracle(rng):
    case = one_episode(rng, np.dtype("f8"), NS, (), num_rows=4, num_targets=3)
    case.targets = case.targets[:1]
    got = jax.jacrev(lambda v: robocache.resample_trajectories(v, case.times, case.targets[0]))(case.values)
    for j in range(3):
        upstream = np.zeros((1, 3))
        upstream[0, j] = 1
        np.testing.assert_allclose(got[j], oracle_gradient(case, upstream), rtol=1e-5, atol=1e-7)


# ---- refusals --------------------------------------------------------------------------------------------------------

BAD = {
    "a method": {"method": "best"},
    "a duration": {"max_gap": 0.5},
    "an outside": {"outside": "wrap"},
    "the shape of targets": {"target_times": np.zeros((2, 4, 1), np.int64)},
    "the number of times": {"source_times": np.zeros((3, 4), np.int64)},
    "the dtype of targets": {"target_times": np.zeros((3, 4), np.float32)},
    "a dtype": {"dtype": "float8"},
    "integers that blend": {"source_data": np.zeros((3, 9, 2), np.int32), "method": "linear"},
    "a check": {"check": "yes"},
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_call_raises_while_it_is_traced_with_the_message_of_the_eager_call(what, rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    arguments = {"source_data": case.values, "source_times": case.times, "target_times": case.targets} | BAD[what]
    arrays = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray)}
    options = {name: x for name, x in arguments.items() if name not in arrays}
    with pytest.raises(ValueError) as eager:
        robocache.resample_trajectories(**arguments)

    def call(arrays):
        return robocache.resample_trajectories(**arrays, **options)

    for trace, given in ((jax.jit(call).lower, arrays), (jax.vmap(call), {n: x[None] for n, x in arrays.items()})):
        with pytest.raises(ValueError) as error:
            trace(given)
        assert str(error.value) == str(eager.value)


def test_bad_data_is_found_where_it_is_checked_with_the_message_of_the_eager_call(rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    case.times = case.times[:, ::-1].copy()
    with pytest.raises(ValueError) as eager:
        robocache.resample_trajectories(case.values, case.times, case.targets)
    call = jax.jit(
        lambda v, t, check: robocache.resample_trajectories(v, t, case.targets, check=check), static_argnums=2
    )
    with pytest.raises(Exception, match=r"must not decrease") as error:
        jax.block_until_ready(call(case.values, case.times, True))
    assert str(eager.value) in str(error.value)
    assert numpy_of(call(case.values, case.times, None)).shape == (3, 8, 2)  # as in a graph of PyTorch


@pytest.mark.parametrize(("argument", "given"), [("backend", "torch"), ("backend", "cpu"), ("device", "cpu")])
def test_a_traced_call_runs_where_jax_runs_it(argument, given, rng):
    case = dense(rng, np.dtype("f4"), NS, (2,))
    call = jax.jit(lambda v: robocache.resample_trajectories(v, case.times, case.targets, **{argument: given}))
    with pytest.raises(ValueError, match=rf"{argument} must be None in a traced call"):
        call(case.values)


def test_arrays_of_other_frameworks_are_refused_by_name(rng):
    import torch

    case = dense(rng, np.dtype("f4"), NS, (2,))
    call = jax.jit(lambda v: robocache.resample_trajectories(v, torch.tensor(case.times), case.targets))
    with pytest.raises(ValueError, match=r"source_times must be a JAX or NumPy array in a traced call, got Tensor"):
        call(case.values)
