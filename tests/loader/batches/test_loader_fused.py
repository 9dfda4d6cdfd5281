"""A batch read in one go has the bits of sample_anchors, align and normalize one after the other."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import robocache
from arrays import CUDA, REQUIRE_CUDA, bits
from hypothesis import given
from hypothesis import strategies as st
from robocache import Stream, _core

torch = pytest.importorskip("torch")

MS = 10**6
ON_ROWS = [k * 10 * MS for k in range(-3, 9)]
BETWEEN = [-25 * MS, -10 * MS, 3 * MS, 4 * MS, 61 * MS]
AT_30_HZ = [round(k * 1e9 / 30) for k in range(-3, 9)]
DEVICES = ["cpu", *(["cuda"] if CUDA or REQUIRE_CUDA else [])]
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("uint8", "int16", "int32", "int64", "bool")
BLENDS = ("linear", "cubic", "slerp_xyzw", "angle", "mean", "rms")
ROWS = ("previous", "next", "nearest", "min", "max")
FUSED_ON_CUDA = (None, "linear", "previous", "next", "nearest")


class Column(NamedTuple):
    """One key of a batch. Columns with the same ``clock`` have the same times."""

    method: Any = None
    stored: str = "float32"
    dtype: str = "float32"
    shape: tuple[int, ...] = (4,)
    deltas: list[int] = ON_ROWS
    scaled: bool = False
    clock: str = "even"
    latency: int = 0
    max_gap: int | None = None
    outside: Any = "hold"
    outside_valid: bool = False
    tolerance: int = 0

    def written(self):
        """The dtype that ``align`` writes: what is scaled keeps all its bits until then."""
        if not self.scaled:
            return self.dtype
        return "float32" if self.stored in ("float16", "bfloat16") else self.stored


def times_of(rng, clock, count):
    """int64 nanoseconds that do not decrease: rows 10 ms apart, or with jitter, repeated times, holes."""
    times = np.arange(count, dtype=np.int64) * 10 * MS + 10**9
    if clock == "jitter":
        times += rng.integers(-4 * MS, 4 * MS, count)
    elif clock == "repeated":
        times = np.sort(times[rng.integers(0, max(count, 1), count)]) if count else times
    elif clock == "holes":
        times += np.cumsum(rng.integers(0, 10, count) == 0) * 10 * MS
    elif clock == "fast":
        times = 10**9 + np.arange(count, dtype=np.int64) * 3 * MS
    elif clock == "between":  # and rows just before others, or at the same time
        times = np.sort(np.concatenate([times, times[::3] - 2 * MS, times[::7]]))[:count]
    elif clock.startswith("30 Hz"):
        times = 10**9 + np.round(np.arange(count) * 1e9 / 30).astype(np.int64)
        if clock == "30 Hz, nearly":
            times += rng.integers(-3, 4, count)
    elif clock == "late":  # the last rows of long episodes at the end of time
        times = np.minimum(times - 10**9, 200 * MS) + (2**63 - 1 - 200 * MS)
    return times


def values_of(rng, dtype, shape):
    if dtype in FLOATS:
        return torch.from_numpy(rng.normal(1, 3, shape)).to(getattr(torch, dtype))
    return torch.from_numpy(rng.integers(0, 120, shape)).to(getattr(torch, dtype))


class Case:
    """Episodes of several lengths in several parts: both ways to read batches of them."""

    def __init__(self, rng, columns, device="cpu", num_parts=1, lengths=(5, 0, 40, 1, 25, 0, 12), hz=None):
        self.columns, self.device = columns, device
        num_episodes = len(lengths)
        self.part = torch.from_numpy(np.sort(rng.integers(0, num_parts, num_episodes)))
        self.local = torch.tensor([int((self.part[:e] == self.part[e]).sum()) for e in range(num_episodes)])
        clocks = {}
        for clock in sorted({c.clock for c in columns}):
            seed = int(rng.integers(2**32))
            # The second column's clock may run in episodes where the anchors' does not, and the other way round.
            counts = [n if clock == columns[0].clock else max(0, n + (e % 3) - 1) for e, n in enumerate(lengths)]
            clocks[clock] = [times_of(np.random.default_rng([seed, e]), clock, n) for e, n in enumerate(counts)]
        self.streams, self.scales = [], []
        for p in range(num_parts):
            of_part = np.flatnonzero(self.part.numpy() == p)
            shared = {}
            for clock, episodes in clocks.items():
                times = np.concatenate([np.zeros(0, np.int64), *(episodes[e] for e in of_part)])
                offsets = np.cumsum([0, *(len(episodes[e]) for e in of_part)])
                shared[clock] = [torch.from_numpy(x).to(device) for x in (times, offsets)]
            for c in columns:
                times, offsets = shared[c.clock]
                values = values_of(rng, c.stored, (len(times), *c.shape)).to(device)
                self.streams.append(Stream(values, times, offsets, c.method, c.latency, c.max_gap, c.outside,
                                           c.outside_valid, dtype=c.written(), tolerance=c.tolerance))  # fmt: skip
                channels = c.shape[-1] if c.shape else 1
                pair = (rng.normal(0, 2, channels), rng.uniform(0.1, 3, channels))
                self.scales.append(tuple(map(torch.from_numpy, pair)) if c.scaled else (None, None))
        episodes = clocks[columns[0].clock]
        counts = [len(t) for t in episodes]
        moments = np.concatenate(episodes)
        if hz is not None:
            moments = np.array([t[0] if len(t) else 0 for t in episodes], np.int64)
            counts = [int((t[-1] - t[0]) * hz // 10**9) + 1 if len(t) else 0 for t in episodes]
        prefix = torch.from_numpy(np.cumsum([0, *counts])).to(device)
        self.count = int(sum(counts))
        period = 0.0 if hz is None else 1e9 / hz
        self.tables = [_core.AnchorTable(prefix, torch.from_numpy(moments).to(device), self.count, period, 1)]

    def order(self, seed=0, epoch=0):
        return _core.SampleOrder(seed, epoch, self.count, True)

    def reader(self):
        columns = []
        for c in self.columns:
            like = torch.empty(0, dtype=getattr(torch, c.dtype), device=self.device)
            padding_like = like.new_empty(0, dtype=torch.bool)
            columns.append(_core.BatchColumn(c.deltas, c.dtype, c.scaled, like, padding_like))
        rows = []
        for s, scale in zip(self.streams, self.scales, strict=True):
            fields = [getattr(s, field.name) for field in dataclasses.fields(Stream)]
            rows.append(_core.BatchRows(_core.Stream(*fields), *scale))
        return _core.BatchReader(self.tables, self.part, self.local, columns, rows)

    def one_after_the_other(self, order, first, size):
        """[values, padding, ...]: sample_anchors, align for each part and column, normalize."""
        episode, anchor = torch.empty((2, size), dtype=torch.int64, device=self.device)
        _core.sample_anchors(self.tables, order, first, episode, anchor)
        part, local = self.part.to(self.device)[episode], self.local.to(self.device)[episode]
        made = []
        for i, c in enumerate(self.columns):
            values = torch.zeros((size, len(c.deltas), *c.shape), dtype=getattr(torch, c.dtype), device=self.device)
            padding = torch.zeros((size, len(c.deltas)), dtype=torch.bool, device=self.device)
            deltas = torch.tensor(c.deltas, device=self.device)
            for p in range(len(self.streams) // len(self.columns)):
                chosen = part == p
                if not chosen.any():
                    continue
                number = p * len(self.columns) + i
                got = robocache.align(
                    self.streams[number], episode=local[chosen], anchor=anchor[chosen], deltas=deltas, check=False
                )
                found = got.values
                if c.scaled:
                    offset, scale = (x.to(self.device) for x in self.scales[number])
                    out = found.new_empty(found.shape, dtype=values.dtype)
                    _core.normalize(found.reshape(-1, len(offset)), offset, scale, out.view(-1, len(offset)))
                    found = out
                values[chosen], padding[chosen] = found, ~got.valid
            made += [values, padding]
        return made

    def check(self, sizes=(0, 1, 2, 31, 70), seed=3, epoch=1):
        assert self.count >= max(sizes)
        reader, first = self.reader(), 0
        for size in sizes:
            begin = min(first, self.count - size)
            self.compare(
                reader.read(self.order(seed, epoch), begin, size),
                self.one_after_the_other(self.order(seed, epoch), begin, size),
            )
            first += size

    def compare(self, got, expected):
        assert len(got) == len(expected) == 2 * len(self.columns)
        for i, (mine, its) in enumerate(zip(got, expected, strict=True)):
            column = self.columns[i // 2]
            assert mine.dtype == its.dtype
            assert mine.shape == its.shape, column
            assert bits_of_numbers(mine) == bits_of_numbers(its), column


def bits_of_numbers(tensor):
    """NaN is NaN whatever its payload, which a GPU writes its own way in 16 bits."""
    return bits(tensor.masked_fill(tensor.isnan(), torch.nan) if tensor.is_floating_point() else tensor)


METHODS_AND_DTYPES = [
    (method, stored)
    for method in (*BLENDS, *ROWS, None)
    for stored in (FLOATS if method in BLENDS else FLOATS + INTEGERS)
]


def run(case, **options):
    """On a GPU only what it can do is there; the loader then does one after the other itself."""
    methods = {c.method for c in case.columns}
    computed = {c.stored for c in case.columns if c.scaled or c.dtype != c.stored}
    if case.device == "cuda" and (methods - set(FUSED_ON_CUDA) or computed - {*FLOATS, "uint8", "uint16"}):
        with pytest.raises(NotImplementedError):
            case.reader()
        return
    case.check(**options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("deltas", [ON_ROWS, BETWEEN], ids=["on rows", "between"])
@pytest.mark.parametrize(("method", "stored"), METHODS_AND_DTYPES)
def test_every_method_and_dtype_as_it_is_and_cast(rng, method, stored, deltas, num_parts, device):
    # The next one is of the same search, so that it is found once.
    columns = [Column(method, stored, stored, deltas=deltas), Column(method, stored, stored, (8, 4), deltas)]
    columns += [Column(method, stored, dtype, deltas=deltas) for dtype in FLOATS if dtype != stored]
    run(Case(rng, columns, device, num_parts))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("deltas", [ON_ROWS, BETWEEN], ids=["on rows", "between"])
@pytest.mark.parametrize(("method", "stored"), METHODS_AND_DTYPES)
def test_every_method_and_dtype_scaled(rng, method, stored, deltas, num_parts, device):
    columns = [Column(method, stored, dtype, deltas=deltas, scaled=True) for dtype in FLOATS]
    columns.append(Column(method, stored, "float32", (3, 2, 4), deltas, True))
    run(Case(rng, columns, device, num_parts))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clock", ["even", "jitter", "repeated", "holes", "fast", "late"])
@pytest.mark.parametrize("outside", ["hold", "nan", "linear", ("nan", "hold")])
@pytest.mark.parametrize("outside_valid", [False, True])
@pytest.mark.parametrize("max_gap", [None, 15 * MS])
def test_edges_gaps_latency_and_clocks(rng, clock, outside, outside_valid, max_gap, device):
    rules = {"clock": clock, "outside": outside, "outside_valid": outside_valid, "max_gap": max_gap}
    columns = [Column(deltas=d, latency=t, **rules) for d in (ON_ROWS, BETWEEN) for t in (0, 10 * MS, -7 * MS)]
    # Another clock than the anchors' own; deltas in no order, and twice the same.
    columns += [Column(method="previous", clock="even"), Column(deltas=[20 * MS, 0, 0, -10 * MS], **rules)]
    columns += [Column(deltas=[0, 0, 10 * MS], **rules)]
    run(Case(rng, columns, device, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("clock", ["30 Hz", "30 Hz, nearly", "even", "jitter", "repeated", "between", "late"])
@pytest.mark.parametrize("tolerance", [1, 2, 1000, 2 * MS, 12 * MS, 40 * MS])
def test_a_tolerance_is_that_of_align(rng, tolerance, clock, num_parts, device):
    rules = {"clock": clock, "tolerance": tolerance}
    columns = [Column(method, deltas=AT_30_HZ, **rules) for method in ("linear", "previous", "next", "nearest")]
    columns += [Column(deltas=deltas, max_gap=15 * MS, outside_valid=True, **rules) for deltas in (ON_ROWS, BETWEEN)]
    columns += [Column("previous", "uint8", "uint8", (5,), deltas=deltas, **rules) for deltas in (AT_30_HZ, ON_ROWS)]
    columns += [Column("nearest", deltas=[-2000, -1000, 0, 999, 1000, 1001], outside="nan", **rules)]
    columns += [Column(deltas=AT_30_HZ, scaled=True, latency=latency, **rules) for latency in (-2, 1, 10 * MS)]
    columns += [Column(deltas=[0], **rules), Column(deltas=AT_30_HZ, clock=clock)]
    for begin in range(0, len(columns), 6):
        run(Case(rng, columns[begin : begin + 6], device, num_parts))
    run(Case(rng, columns[:6], device, num_parts, hz=30), sizes=(1, 15))


@pytest.mark.parametrize("method", ["slerp_xyzw", "cubic", "angle", "mean", "max", "rms"])
def test_a_tolerance_is_that_of_align_for_every_other_method(rng, method):
    for clock in ("30 Hz", "30 Hz, nearly", "between"):
        rules = {"method": method, "clock": clock, "deltas": AT_30_HZ}
        run(Case(rng, [Column(tolerance=tolerance, **rules) for tolerance in (0, 2, 1000, 2 * MS)]))


@pytest.mark.parametrize("method", ["mean", "min", "max", "rms", "linear", "previous"])
def test_rows_at_the_targets_are_not_all_that_counts(rng, method):
    """mean, min, max and rms have windows of their own; of rows with one time the last one counts."""
    for clock in ("even", "between"):
        targets = ([0], [0, 10 * MS], [-10 * MS, 0], ON_ROWS)
        Case(rng, [Column(method, deltas=deltas, clock=clock) for deltas in targets]).check()


@pytest.mark.parametrize("device", DEVICES)
def test_anchors_that_look_like_the_rows_and_are_not(rng, device):
    """As many as there are rows, at other times; or at the times of the rows, and one more for each episode."""
    lengths = (5, 40, 1, 25, 12)
    case = Case(rng, [Column(), Column(deltas=BETWEEN)], device, lengths=lengths)
    table = case.tables[0]
    times, rest = table.times, (table.period_ns, table.quota)
    case.tables = [_core.AnchorTable(table.prefix, times + 3 * MS, table.num_anchors, *rest)]
    run(case)
    ends = np.cumsum(lengths) - 1
    more = np.insert(times.cpu().numpy(), ends + 1, times.cpu().numpy()[ends] + 3 * MS)
    case.count = table.num_anchors + len(lengths)
    prefix = np.concatenate([[0], np.cumsum(np.array(lengths) + 1)])
    arrays = [torch.from_numpy(x).to(device) for x in (prefix, more)]
    case.tables = [_core.AnchorTable(*arrays, case.count, *rest)]
    run(case)


@pytest.mark.parametrize("device", DEVICES)
def test_windows_longer_than_a_tile_or_than_every_episode(rng, device):
    long = [k * 10 * MS for k in range(-70, 100)]
    columns = [Column(deltas=long), Column(deltas=long, scaled=True, dtype="float16"), Column("mean", deltas=long)]
    run(Case(rng, columns[:2], device, 2))
    run(Case(rng, columns, device, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("clock", ["even", "holes"])
@pytest.mark.parametrize("outside", ["hold", ("hold", "nan")])
@pytest.mark.parametrize(("outside_valid", "max_gap"), [(False, None), (True, 25 * MS)])
def test_many_windows_of_wide_rows(rng, stored, clock, outside, outside_valid, max_gap, device):
    """As many and as wide as a GPU copies in bulk: inside, over both ends, beyond them, and where rows are missing."""
    rules = {"clock": clock, "outside": outside, "outside_valid": outside_valid, "max_gap": max_gap}
    # Beyond the first row, the last one, and both in short episodes; the last column in most of them altogether.
    columns = [Column(None, stored, stored, (32,), ON_ROWS, latency=t, **rules) for t in (0, -50 * MS, 3000 * MS)]
    lengths = (4,) * 60 + (500, 0, 700, 1)
    for num_parts in (1, 3):
        run(Case(rng, columns, device, num_parts, lengths), sizes=(300, 1100))
    blends = [Column("linear", stored, stored, (32,), BETWEEN, scaled, **rules) for scaled in (False, True)]
    run(Case(rng, blends, device, 3, lengths), sizes=(300, 1100))


@pytest.mark.parametrize("device", DEVICES)
def test_moments_beyond_the_ends_of_time_are_those_of_align(rng, device):
    ends = [-(2**63), -(2**62), -(10 * MS), 0, 2**62, 2**63 - 1]
    run(Case(rng, [Column(), Column(deltas=ends), Column(deltas=ends, latency=2**62)], device, 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hz", [30, 100, 1000])
def test_regular_anchors(rng, hz, device):
    run(
        Case(rng, [Column(clock="jitter"), Column("nearest", "uint8", "uint8", (5, 3))], device, 2, hz=hz),
        sizes=(1, 20),
    )


def test_rows_with_gaps_between_their_elements(rng):
    """Strided values, times and both: what is no run in memory is read element by element."""
    for stride in (1, 2):
        case = Case(rng, [Column(), Column(scaled=True)])
        for i, s in enumerate(case.streams):
            wide = torch.stack([s.values, s.values], -1).reshape(len(s.values), -1)[:, ::2]
            times = torch.stack([s.times] * stride, -1).reshape(-1)[::stride]
            case.streams[i] = Stream(wide, times, s.offsets, s.method, dtype=s.dtype)
        case.check()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(rng, num_threads):
    """Batches that are large enough to be shared out."""
    columns = [Column(shape=(64,)), Column("cubic", shape=(16,), deltas=BETWEEN, clock="jitter", scaled=True)]
    case = Case(rng, columns, num_parts=3, lengths=(300, 0, 500, 1, 200))
    before = robocache.num_threads()
    try:
        robocache.set_num_threads(num_threads)
        case.check(sizes=(900, 101))
    finally:
        robocache.set_num_threads(before)


def test_into_given_tensors_and_at_a_step_that_memory_tells(rng):
    case = Case(rng, [Column(), Column(deltas=BETWEEN, scaled=True)], num_parts=2)
    reader, size = case.reader(), 16
    num_steps = case.count // size
    for step in range(2 * num_steps + 1):
        epoch, at = divmod(step, num_steps)
        expected = case.one_after_the_other(case.order(5, epoch), at * size, size)
        given = [torch.full_like(x, 1) for x in expected]
        reader.read_ahead(case.order(5, epoch), at * size, given).result()
        case.compare(given, expected)
        case.compare(reader.read_step(case.order(5), torch.tensor(step), num_steps, size, 0, size), expected)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 30), min_size=1, max_size=6), st.data())
def test_any_episodes_clocks_and_windows(seed, lengths, data):
    clock = data.draw(st.sampled_from(["even", "jitter", "repeated", "holes", "30 Hz", "30 Hz, nearly"]))
    step = data.draw(st.sampled_from([10 * MS, 5 * MS, 7 * MS, 33_333_333, 33_333_334]))
    tolerance = data.draw(st.sampled_from([0, 0, 1, 30, 1000, 4 * MS, 6 * MS, 40 * MS]))
    deltas = [step * k for k in data.draw(st.lists(st.integers(-5, 40), min_size=1, max_size=20))]
    if data.draw(st.booleans()):
        deltas = sorted(set(deltas))
    columns = [
        Column(method, deltas=deltas, clock=clock, scaled=scaled, tolerance=tolerance)
        for method in data.draw(st.lists(st.sampled_from(BLENDS + ROWS), min_size=1, max_size=3))
        for scaled in (False, True)
    ]
    lengths = [*lengths, 1]
    case = Case(np.random.default_rng(seed), columns, num_parts=data.draw(st.integers(1, 3)), lengths=lengths)
    case.check(sizes=(case.count,), seed=seed)
