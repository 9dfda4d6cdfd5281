"""CUDA gives what the CPU gives, bit for bit, over random calls: methods, dtypes, widths, layouts, strides, options."""

import dataclasses

import numpy as np
import pytest
import robocache
import torch
from arrays import FLOATS, INTEGERS, to_numpy, torch_dtype
from cases import (
    EXTRAPOLATING,
    INTEGER_METHODS,
    METHODS,
    WINDOW,
    dense,
    one_episode,
    ragged,
    span_of,
    times_of,
    values_of,
)
from cuda_tools import (
    DEVICE,
    TIME_VIEWS,
    VIEWS,
    assert_same_bits,
    assert_same_results,
    assert_same_values,
    copy_of,
    needs_cuda,
    tensor,
)

pytestmark = needs_cuda

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 14, 16, 26, 31, 32, 33, 64, 100, 255, 256, 512, 1000)
NUM_ROWS = (1, 2, 3, 31, 32, 33, 64, 255, 256, 257, 300, 1000, 4099)  # a warp keeps up to 256 times at hand
NUM_TARGETS = (1, 2, 3, 7, 31, 32, 33, 64, 100)
MOST_VALUES = 300_000  # of one stream: the CPU must not take longer than the tests are worth


@dataclasses.dataclass
class Call:
    """One call of align: streams and query as CPU tensors, and how the outputs lie in memory."""

    streams: list
    query: dict
    columns: bool = False  # outputs are column slices of wider arrays

    def run(self, device):
        """The call on copies of its tensors on the device, as NumPy, and what lies between the columns of outputs."""
        streams = [
            dataclasses.replace(
                s, **{name: copy_of(getattr(s, name), device) for name in ("values", "times", "offsets")}
            )
            for s in self.streams
        ]
        query = {name: copy_of(x, device) for name, x in self.query.items()}
        if not self.columns:
            return robocache.align(streams, **query, return_index=True), []
        memories = [self._memory(s).to(device) for s in self.streams]
        out = [memory[..., 1:-2] for memory in memories]
        got = robocache.align(streams, **query, out=out, return_index=True)
        whole = [to_numpy(memory) for memory in memories]
        return got._replace(values=[x[..., 1:-2] for x in whole]), [x[..., [0, -2, -1]] for x in whole]

    def _memory(self, stream):
        asked = self.query["times"] if "times" in self.query else self.query["deltas"]
        num_rows = next((len(self.query[n]) for n in ("episode", "anchor") if self.query.get(n) is not None), None)
        if num_rows is None:
            num_rows = len(asked) if asked.ndim == 2 else num_episodes(self.streams[0])
        dtype = stream.values.dtype if stream.dtype is None else getattr(torch, stream.dtype)
        return torch.full((num_rows, asked.shape[-1], stream.values.shape[-1] + 3), 77, dtype=dtype)

    def check(self, what=""):
        (got, got_between), (want, want_between) = self.run(DEVICE), self.run("cpu")
        assert_same_results(got, want, self.streams, what)
        for mine, theirs in zip(got_between, want_between, strict=True):
            assert_same_bits(mine, theirs, what)


def num_episodes(stream):
    return len(stream.times) if stream.times.ndim == 2 else len(stream.offsets) - 1


def some(rng, choices):
    return choices[rng.integers(len(choices))]


def some_rows(rng, num_episodes, width):
    return some(rng, [n for n in NUM_ROWS if n * num_episodes * width <= MOST_VALUES] or [1, 2, 3])


def some_dtype(rng, method):
    return some(rng, FLOATS + INTEGERS) if method in INTEGER_METHODS else some(rng, FLOATS)


def some_options(rng, method, dtype, tdtype):
    options = {"method": method}
    if rng.random() < 0.4:
        options["latency"] = span_of(rng.integers(-6, 7), tdtype)
    if rng.random() < 0.4:
        options["max_gap"] = span_of(rng.integers(0, 9), tdtype)
    if rng.random() < 0.3:
        options["tolerance"] = span_of(rng.integers(0, 5), tdtype)
    options["outside_valid"] = bool(rng.random() < 0.5)
    rules = ["hold"]
    if dtype in FLOATS:
        rules += ["nan", "linear"] if method in EXTRAPOLATING else ["nan"]
    options["outside"] = (some(rng, rules), some(rng, rules))
    if rng.random() < 0.15:
        options["dtype"] = some(rng, FLOATS).name
    if method == "angle":
        options["period"] = some(rng, (2 * np.pi, 1.0, 360.0))
    return options


def spoil(rng, values, method):
    """Puts numbers that arithmetic treats in its own way into some of the floats."""
    if values.dtype not in FLOATS or method.startswith("slerp") or rng.random() < 0.7:
        return
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, -6e-8, 3e38, 65504.0])
    places = rng.random(values.shape) < 0.05
    with np.errstate(over="ignore"):
        values[places] = rng.choice(special, places.sum()).astype(values.dtype)


def some_case(rng, layout, method, dtype, tdtype, width, num_targets, num_episodes):
    num_rows = some_rows(rng, num_episodes, width)
    if layout is ragged:
        lengths = [some(rng, (0, 1, 2, num_rows)) for _ in range(num_episodes)]
        case = ragged(rng, dtype, tdtype, (width,), method, lengths, num_targets)
    elif layout is dense:
        case = dense(rng, dtype, tdtype, (width,), method, num_rows, num_targets, num_episodes)
    else:
        case = one_episode(rng, dtype, tdtype, (width,), method, num_rows, num_targets)
    spoil(rng, case.values, method)
    return case


def some_stream(rng, case, options):
    """The stream of a case, its values and times seen through some view of memory."""
    times = tensor(case.times)
    if times.ndim == 2 and rng.random() < 0.2:
        times = times[:1].clone().expand(len(times), -1)  # one row of times for every episode
    elif times.numel() > 0:
        times = some(rng, TIME_VIEWS)(times)
    values = tensor(case.values)
    view = some(rng, VIEWS) if values.numel() > 0 else VIEWS[0]
    return robocache.Stream(view(values), times, tensor(case.offsets), **options)


def some_query(rng, case, tdtype, num_episodes, sorted_targets):
    """The first stream's targets, asked for in one of the four ways."""
    targets = case.targets if sorted_targets else rng.permuted(case.targets, axis=1)
    way = some(rng, ("own", "shared", "anchored", "picked"))
    if way == "shared":
        return {"times": some(rng, TIME_VIEWS)(tensor(targets[0]))}
    if way == "own":
        return {"times": some(rng, TIME_VIEWS)(tensor(targets))}
    episode = rng.integers(0, num_episodes, 7)
    if way == "picked":
        return {"times": some(rng, TIME_VIEWS)(tensor(targets[episode])), "episode": tensor(episode)}
    steps = np.sort(rng.integers(-60, 61, targets.shape[1]))
    deltas = np.array([span_of(step, tdtype) for step in steps], tdtype)
    return {"anchor": tensor(targets[episode, 0]), "deltas": tensor(deltas), "episode": tensor(episode)}


def some_call(rng, methods, widths, tdtype, num_targets=None, episodes=None):
    """A random call with one stream for each of the methods."""
    num_targets = num_targets or some(rng, NUM_TARGETS)
    num_episodes = episodes or some(rng, (1, 2, 3, 9))
    dtypes = [some_dtype(rng, method) for method in methods]
    cases, query = [], {}
    for i, (method, dtype, width) in enumerate(zip(methods, dtypes, widths, strict=True)):
        width = 4 * -(-width // 4) if method.startswith("slerp") else width
        layouts = (dense, ragged) if i == 0 or "episode" in query else (dense, ragged, one_episode)
        cases.append(some_case(rng, some(rng, layouts), method, dtype, tdtype, width, num_targets, num_episodes))
        if i == 0:
            sorted_targets = any(m in WINDOW for m in methods)
            query = some_query(rng, cases[0], tdtype, num_episodes, sorted_targets)
    options = [some_options(rng, m, d, tdtype) for m, d in zip(methods, dtypes, strict=True)]
    streams = [some_stream(rng, case, o) for case, o in zip(cases, options, strict=True)]
    return Call(streams, query, columns=bool(rng.random() < 0.3))


@pytest.mark.parametrize("width", WIDTHS)
def test_every_method_at_every_width(width, tdtype, rng):
    for method in METHODS:
        for _ in range(3):
            some_call(rng, [method], [width], tdtype).check(f"{method} {width}")


@pytest.mark.parametrize("num_streams", range(1, 21))
def test_up_to_twenty_streams_of_any_kind_in_one_call(num_streams, tdtype, rng):
    for _ in range(2):
        methods = [some(rng, METHODS) for _ in range(num_streams)]
        widths = [int(some(rng, WIDTHS[:14])) for _ in range(num_streams)]
        some_call(rng, methods, widths, tdtype).check(f"{num_streams} streams")


@pytest.mark.parametrize("method", ["linear", "previous", "next", "nearest"])
@pytest.mark.parametrize("num_streams", [1, 4, 5, 16, 17, 20])
def test_streams_that_share_a_launch(num_streams, method, tdtype, rng):
    widths = [int(some(rng, WIDTHS)) for _ in range(num_streams)]
    some_call(rng, [method] * num_streams, widths, tdtype).check(f"{num_streams} {method}")


@pytest.mark.parametrize("method", METHODS)
def test_more_than_65535_targets(method, tdtype, rng):
    width = 8 if method.startswith("slerp") else 3
    for num_targets, num_episodes in ((65_537, 2), (100_001, 1)):
        case = dense(rng, some_dtype(rng, method), tdtype, (width,), method, 1000, num_targets, num_episodes)
        stream = robocache.Stream(tensor(case.values), tensor(case.times), method=method)
        Call([stream], {"times": tensor(case.targets)}).check(f"{num_targets} targets")


@pytest.mark.parametrize("method", METHODS)
def test_more_than_65535_rows_of_the_query(method, tdtype, rng):
    num_rows, width = 70_001, 8 if method.startswith("slerp") else 3
    steps = 100 + 2 * np.cumsum(rng.choice([0, 1, 2, 9], size=(num_rows, 5)), axis=1)
    targets = np.sort(rng.integers(95, 150, size=(num_rows, 3)), axis=1)
    values = values_of(rng, (num_rows, 5, width), some_dtype(rng, method), method)
    stream = robocache.Stream(tensor(values), tensor(times_of(steps, tdtype)), method=method)
    Call([stream], {"times": tensor(times_of(targets, tdtype))}).check(f"{num_rows} rows")


RANGES = [
    [(0, 4, "slerp_wxyz"), (4, 7, "angle"), (7, 8, "nearest"), (8, 11, "cubic")],
    [(3, 7, "slerp_xyzw"), (9, 10, "previous")],
    [(6, 11, "next"), (0, 2, "mean"), (2, 3, "max"), (3, 4, "min"), (4, 6, "rms")],
]


@pytest.mark.parametrize("ranges", RANGES, ids=["covered", "holes", "windows"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_channel_ranges(ranges, dtype, tdtype, rng):
    for num_rows in (3, 32, 300):
        case = dense(rng, dtype, tdtype, (11,), None, num_rows, 33, 3)
        stream = some_stream(rng, case, {"method": ranges, "max_gap": span_of(6, tdtype)})
        Call([stream], {"times": tensor(case.targets)}).check()


@pytest.mark.parametrize("out_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_every_dtype_as_every_float(dtype, out_dtype, rng):
    for method in (
        INTEGER_METHODS if dtype in INTEGERS else ("linear", "nearest", "cubic", "angle", "mean", "max", "rms")
    ):
        case = dense(rng, dtype, np.dtype(np.float64), (5,), method, 33, 31, 2)
        stream = some_stream(rng, case, {"method": method, "dtype": out_dtype.name})
        Call([stream], {"times": tensor(case.targets)}).check(f"{dtype} as {out_dtype}")


@pytest.mark.parametrize("channels", [(), (2, 3), (3, 1, 5)], ids=str)
@pytest.mark.parametrize("method", ["linear", "nearest", "cubic", "mean", "rms"])
def test_other_numbers_of_channel_dimensions(method, channels, tdtype, rng):
    for dtype in FLOATS:
        case = dense(rng, dtype, tdtype, channels, method, 33, 31, 3)
        values, axes = tensor(case.values), tuple(reversed(range(case.values.ndim)))
        for view in (values, values.permute(axes).contiguous().permute(axes)):
            stream = robocache.Stream(view, tensor(case.times), method=method)
            Call([stream], {"times": tensor(case.targets)}).check(f"{channels} {view.stride()}")


@pytest.mark.parametrize("num_streams", [1, 2, 3, 7, 17])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fusion(dtype, num_streams, tdtype, rng):
    widths = [int(some(rng, WIDTHS[:14])) for _ in range(num_streams)]
    cases = [dense(rng, dtype, tdtype, (width,), None, some_rows(rng, 3, width), 33, 3) for width in widths]
    methods = [some(rng, ("linear", "linear", "nearest", "previous", "cubic")) for _ in widths]
    results = []
    for now in (DEVICE, "cpu"):
        streams = [
            {"data": tensor(case.values).to(now), "times": tensor(case.times).to(now), "method": method}
            for case, method in zip(cases, methods, strict=True)
        ]
        results.append(robocache.fuse_multimodal(streams, tensor(cases[0].targets).to(now), return_valid=True))
    assert to_numpy(results[0][0]).dtype == to_numpy(results[1][0]).dtype
    assert results[0][0].dtype == torch_dtype(dtype)
    assert_same_values(results[0][0], results[1][0], None)
    assert_same_bits(results[0][1], results[1][1])


def check_plain(case, outside, what):
    """Values and mask without the index, which is what calls ask for most and what some kernels are made for."""
    results = []
    for now in (DEVICE, "cpu"):
        offsets = None if case.offsets is None else tensor(case.offsets).to(now)
        stream = robocache.Stream(tensor(case.values).to(now), tensor(case.times).to(now), offsets, outside=outside)
        results.append(robocache.align(stream, tensor(case.targets).to(now)))
    assert_same_bits(results[0].values, results[1].values, what)
    assert_same_bits(results[0].valid, results[1].valid, what)


@pytest.mark.parametrize("outside", ["hold", "nan", "linear"])
@pytest.mark.parametrize("width", [1, 3, 7, 14, 26, 32, 64, 256])
def test_small_calls_that_ask_for_no_index(width, outside, tdtype, rng):
    """They search before the work ahead of them is done: with a window of times, or with probes where that is short."""
    for dtype in FLOATS[:3]:
        for num_rows, num_targets in ((1, 17), (33, 64), (300, 100), (4099, 130)):
            case = dense(rng, dtype, tdtype, (width,), None, num_rows, num_targets, 3)
            check_plain(case, outside, f"{dtype} {num_rows} rows, {num_targets} targets")
        check_plain(ragged(rng, dtype, tdtype, (width,), None, (4, 0, 1, 700, 2), 20), outside, f"{dtype} ragged")


@pytest.mark.parametrize("outside", ["hold", "nan", "linear"])
@pytest.mark.parametrize("width", [3, 5, 6, 7, 9, 14, 26, 31])
def test_many_short_episodes_of_narrow_rows(width, outside, tdtype, rng):
    """Whole episodes go through shared memory; those that have no rows, or too many, do not."""
    for dtype, num_targets in zip(FLOATS[:3], (65, 33, 64), strict=True):
        lengths = rng.integers(0, 90, 2200)
        lengths[[5, 2000]] = 700
        case = ragged(rng, dtype, tdtype, (width,), None, lengths.tolist(), num_targets)
        check_plain(case, outside, f"{dtype} ragged")
        check_plain(dense(rng, dtype, tdtype, (width,), None, 40, num_targets, 2200), outside, f"{dtype} dense")


def stamps(rng, kind, num_rows):
    """Milliseconds of a recording with a defect, in order."""
    gaps = np.ones(num_rows)
    if kind == "random":
        gaps = rng.exponential(1, num_rows)
    elif kind == "dropout":
        gaps[num_rows // 2] = num_rows
    elif kind == "bursts":
        gaps = np.where(np.arange(num_rows) % 16 == 0, 16.0, 0.01)
    times = np.cumsum(gaps * 10)
    return np.round(times / 25) * 25 if kind == "repeated" else times


@pytest.mark.parametrize("tolerance", [False, True])
@pytest.mark.parametrize("order", ["sorted", "shuffled", "backward", "beyond"])
@pytest.mark.parametrize("kind", ["random", "dropout", "bursts", "repeated"])
def test_windows_that_miss_their_targets(kind, order, tolerance, tdtype, rng):
    """Rows of one warp that fit a window, that need every second or fourth time, and that are too many for it."""
    for num_rows, num_targets in ((300, 40), (3000, 64), (20_000, 1000), (20_000, 60)):
        times = times_of(stamps(rng, kind, num_rows).round(), tdtype)
        span = float(times[-1] - times[0])
        around = (-0.2, 1.2) if order == "beyond" else (0.01, 0.99)
        targets = np.sort(float(times[0]) + span * rng.uniform(*around, num_targets)).astype(tdtype)
        targets = {"shuffled": rng.permutation(targets), "backward": targets[::-1].copy()}.get(order, targets)
        values = rng.normal(size=(num_rows, 4)).astype(np.float32)
        given = {"tolerance": span_of(7, tdtype)} if tolerance else {}
        streams = [
            robocache.Stream(tensor(values), tensor(times), method=method, **given)
            for method in ("linear", "previous", "nearest")
        ]
        Call(streams, {"times": tensor(targets)}).check()
