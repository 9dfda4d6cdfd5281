"""The honest inputs of the benchmarks: each has its defect, and the rivals agree with ours on it."""

import itertools
import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
torch = pytest.importorskip("torch")

import bench_align  # noqa: E402
from align import cases as cpu_cases  # noqa: E402
from align import cuda_cases, stamps  # noqa: E402
from measure import foreign  # noqa: E402
from measure.cuda import largest_error  # noqa: E402
from pipeline.loader import cuda as loader_cuda  # noqa: E402
from pipeline.loader import recordings, rivals  # noqa: E402

B, S = 4, 120
PERIOD_S = 1 / stamps.RATE_HZ
ONE = (recordings.Stream("state", 50, 4),)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seconds(kind):
    torch.manual_seed(0)
    return stamps.make_seconds(B, S, kind, S * PERIOD_S)


def duplicates(times):
    return int((times.diff(dim=-1) == 0).sum())


# ---- stamps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", stamps.KINDS)
@pytest.mark.parametrize("times_dtype", ["float32", "float64", "int64"])
def test_stamps_do_not_decrease_and_only_two_kinds_have_duplicates(kind, times_dtype):
    _, times, targets = stamps.make_inputs((B, S, 40, 2), "float32", times_dtype, kind)
    assert (times.diff(dim=1) >= 0).all()
    assert (targets.diff(dim=1) > 0).all()
    assert (duplicates(times) > 0) == (kind in stamps.DUPLICATED)


def test_clean_stamps_are_even_or_random():
    gaps = seconds("ramp").diff(dim=1)
    assert torch.allclose(gaps, torch.full_like(gaps, PERIOD_S))
    assert 0.7 < float(seconds("random").diff(dim=1).std() / PERIOD_S) < 1.3  # exponential gaps: 1
    assert {kind for kind, clean in stamps.CLEAN.items() if kind == clean} == {"ramp", "random"}


def test_rounded_stamps_are_whole_milliseconds_with_many_duplicates():
    times = seconds("rounded")
    assert torch.allclose(times * 1e3, (times * 1e3).round())
    assert duplicates(times) > B * S / 5


@pytest.mark.parametrize("rate", [5.0, 30.0])
def test_rounded_stamps_have_duplicates_at_low_rates_too(rate):
    torch.manual_seed(0)
    assert duplicates(stamps.make_seconds(B, S, "rounded", S / rate)) > B * S / 5


def test_one_duplicate_is_exactly_one_in_the_whole_batch():
    assert duplicates(seconds("one duplicate")) == 1
    streams, _ = stamps.make_streams(B, [(S, 3), (50, 2)], 20, "float32", "int64", "one duplicate")
    assert [duplicates(times) for _, times in streams] == [1, 0]
    _, times, offsets, _ = stamps.make_ragged(20, 60, 9, 3, "float32", "int64", "one duplicate")
    inside = torch.ones(len(times) - 1, dtype=torch.bool)
    inside[offsets[1:-1] - 1] = False
    assert int((times.diff() == 0)[inside].sum()) == 1


def test_jittered_stamps_stay_within_a_third_of_their_place():
    off = (seconds("jitter") - seconds("ramp")).abs() / PERIOD_S
    assert 0.2 < float(off.max()) < 0.7  # ±30 % each, and the mean gap of a row differs a little


def test_packets_are_bursts_and_then_silence():
    gaps = seconds("packets").diff(dim=1) / PERIOD_S
    long = gaps > 4
    assert int(long[0].sum()) == S // stamps.PACKET - 1
    assert (gaps[~long] < 0.1).all()
    assert np.diff(np.flatnonzero(long[0].numpy())).tolist() == [stamps.PACKET] * (S // stamps.PACKET - 2)


def test_a_dropout_leaves_out_a_third_in_the_middle():
    times = seconds("dropout")
    gaps, span = times.diff(dim=1), S * PERIOD_S
    assert torch.allclose(gaps.amax(1) / span, torch.full((B,), stamps.DROPOUT, dtype=torch.float64), atol=0.01)
    begin = times.gather(1, gaps.argmax(1, keepdim=True))
    assert (begin < 0.5 * span).all()
    assert (begin + gaps.amax(1, keepdim=True) > 0.5 * span).all()


@pytest.mark.parametrize("kind", stamps.KINDS)
def test_only_targets_of_outside_lie_beyond_the_stamps(kind):
    _, times, targets = stamps.make_inputs((B, 500, 250, 2), "float32", "int64", kind)
    beyond = ((targets < times[:, :1]) | (targets > times[:, -1:])).float().mean()
    assert float(beyond) == pytest.approx(1 / 3, abs=0.01) if kind == "outside" else float(beyond) < 0.03


@pytest.mark.parametrize("kind", stamps.DUPLICATED)
def test_rows_with_the_same_stamp_have_the_same_values(kind):
    values, times, _ = stamps.make_inputs((B, S, 10, 3), "float32", "float32", kind)
    same = times.diff(dim=1) == 0
    assert torch.equal(values[:, 1:][same], values[:, :-1][same])
    assert not torch.equal(values[:, 1:][~same], values[:, :-1][~same])


# ---- rivals agree ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", stamps.KINDS)
@pytest.mark.parametrize("make", [
    lambda kind: cuda_cases.resample((3, 70, 40, 4), "float32", "int64", kind, "cpu"),
    lambda kind: cuda_cases.resample((3, 70, 40, 4), "bfloat16", "float32", kind, "cpu"),
    lambda kind: cuda_cases.fuse(3, [(30, 8), (100, 5)], 20, kind, "cpu"),
    lambda kind: cuda_cases.ragged((7, 60, 20, 3), "float32", kind, "cpu"),
], ids=["int64", "bfloat16", "fuse", "ragged"])  # fmt: skip
def test_the_rivals_on_a_gpu_agree_on_every_input(make, kind):
    case = make(kind)
    assert (case.input, case.clean) == (kind, stamps.CLEAN[kind])
    for name, rival in case.rivals.items():
        error = largest_error(case.ours(*case.inputs), rival(*case.inputs), case.axes["values"])
        assert error <= 1, f"{name}: {error} times the tolerance"


@pytest.mark.parametrize("kind", stamps.KINDS)
def test_the_rivals_on_the_cpu_agree_on_every_input(kind):
    bench_align.check(cpu_cases.resample("3/70/40/4", "float32", "int64", kind, numpy=True, out=True))
    bench_align.check(cpu_cases.fuse(3, [(30, 8), (100, 5)], 20, "float32", kind))
    bench_align.check(cpu_cases.ragged(kind, B=7, S=60, T=20, D=3))
    for method in cpu_cases.METHODS:
        case = cpu_cases.other_method(method, kind, (3, 100, 50, 4))
        assert bool(case.rivals) == (kind in cpu_cases.METHODS[method][2])
        bench_align.check(case)


def test_every_case_on_the_cpu_has_the_honest_inputs_in_a_full_run():
    for case in cpu_cases.all_cases(quick=False):
        large = "1 GB" in case.what or "4096 x" in case.what
        assert case.kinds == (("ramp", "random") if large else stamps.KINDS)
    quick = {case.what: case.kinds for case in cpu_cases.all_cases(quick=True)}
    assert quick["resample 256/500/250/32 float32 int64"] == stamps.KINDS
    assert quick["resample 32/500/256/256 float32 int64"] == ("ramp", "random")


def test_the_worst_input_on_the_cpu_is_judged():
    def result(ms, gather):
        return {"median_s": {"ours": ms / 1e3}, "ratios": {"gather": gather}, "size_bytes": 1, "copy_gbps": {"best": 1}}

    case = cpu_cases.Honest("x", 0.1, lambda kind: None, least={"gather": 5.0, "numpy": 20.0})
    found = bench_align.summarize(case, {"ramp": result(1.0, 9), "packets": result(1.6, 4), "rounded": result(2.0, 6)})
    assert (found["worst_input"], found["worst_ms"]) == ("rounded", 2.0)
    assert found["inputs"]["packets"]["x_clean"] == pytest.approx(1.6)
    assert found["inputs"]["rounded"]["x_clean"] is None  # its clean input was not run
    assert found["targets"]["gather"] == {"at_least": 5.0, "measured": 4, "met": False, "input": "packets"}
    assert found["targets"]["x clean, worst"] == {"at_most": 1.5, "measured": 1.6, "met": False, "input": "packets"}
    assert "numpy" not in found["targets"]


# ---- recordings for batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_batches_of_a_recording_agree_with_a_search_in_pytorch(kind, tmp_path):
    recording = recordings.Recording(kind, (recordings.Stream("state", 50, 4),), 5, 60)
    cache = recording.write(tmp_path / "one.cache")
    loader, told = (loader_cuda.state_loader(cache, 50, "memory", "cpu", index) for index in (False, True))
    stream = rivals.searched(recording.all_values("state", "cpu"), recording.all_times("state", "cpu"),
                             recording.rows["state"], loader_cuda.window_of(50).deltas_ns)  # fmt: skip
    for step, anchors in enumerate(loader_cuda.anchors_of(told, len(loader), "cpu")):
        error = largest_error(loader.batch(step)["state"], rivals.search_windows(stream, *anchors), "bfloat16")
        assert error <= 1, f"{error} times the tolerance in batch {step}"


def test_recordings_have_their_defects():
    made = {kind: recordings.Recording(kind, ONE, 48, 240).all_times("state", "cpu") for kind in recordings.KINDS}
    gaps = {kind: times.view(-1, 240 if kind != "edges" else recordings.EDGE_ROWS).diff(dim=1) / 2e7
            for kind, times in made.items()}  # fmt: skip
    assert (gaps["ramp"] == 1).all()
    assert int((gaps["one duplicate"] == 0).sum()) == 1
    assert float((gaps["rounded"] == 0).float().mean()) > 0.2
    assert gaps["dropout"].max() > 0.25 * 240
    assert float((gaps["packets"] < 0.1).float().mean()) > 0.8
    assert 0.1 < float(gaps["jitter"].std()) < 0.4
    assert len(gaps["edges"]) == 48 * 240 // recordings.EDGE_ROWS


def test_most_windows_of_the_edges_recording_reach_out_of_their_episode(tmp_path):
    for kind, least, most in (("edges", 0.6, 1.0), ("ramp", 0.0, 0.3)):
        cache = recordings.Recording(kind, ONE, 10, 240).write(tmp_path / f"{kind}.cache")
        batch = loader_cuda.state_loader(cache, 1000, "memory", "cpu").batch(0)
        assert least <= float(batch["state_is_pad"].any(1).float().mean()) <= most


def test_touched_rows_are_counted_by_hand():
    times = torch.tensor([0, 10, 20, 30, 0, 10, 20, 30])
    stream = rivals.searched(torch.zeros(8, 1), times, 4, [0, 5, 12])
    assert rivals.touched_rows(stream, torch.tensor([0, 1]), torch.tensor([0, 10])) == 3 + 3
    left, moments = rivals.rows_before(stream, torch.tensor([1]), torch.tensor([25]))
    assert left.tolist() == [[6, 6, 6]]
    assert moments.tolist() == [[25, 30, 37]]


def test_the_rivals_of_batches_can_be_traced_without_a_break():
    recording = recordings.Recording("jitter", ONE, 3, 60)
    values, times = recording.all_values("state", "cpu"), recording.all_times("state", "cpu")
    stream = rivals.searched(values, times, 60, [-20_000_000, 0, 20_000_000], torch.zeros(4), torch.ones(4))
    anchors = torch.tensor([0, 2]), torch.tensor([500_000_000, 0])
    for call, inputs in ((rivals.search_windows, (stream, *anchors)),
                         (rivals.search_streams, ((stream, stream), *anchors)),
                         (rivals.row_windows, (values, torch.arange(-2, 3), 60, torch.tensor([0, 70])))):  # fmt: skip
        traced = torch.compile(call, backend="aot_eager", dynamic=False, fullgraph=True)
        assert torch.equal(traced(*inputs), call(*inputs))


# ---- after a foreign kernel ------------------------------------------------------------------------------------------


def test_a_matmul_runs_before_each_call_and_its_time_is_taken_off(monkeypatch):
    order, now = [], [0.0]
    monkeypatch.setattr(foreign.timing, "WARM_S", 0)
    monkeypatch.setattr(foreign.timing, "MIN_REPLAY_S", 1e-9)

    def spend(name, seconds):
        def call(*_):
            order.append(name)
            now[0] += seconds

        return call

    for module in (foreign, foreign.timing):
        monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(foreign, "Matmul", lambda device: spend("matmul", 25.0))
    calls = {"ours": (spend("ours", 3.0), [(1,), (2,)]), "compiled": (spend("compiled", 8.0), [(1,), (2,)])}
    found = foreign.measure_after(calls, 100, 4, "cpu")
    for way in ("graph", "eager"):
        assert found[way]["ours"] == pytest.approx([3.0] * 4)
        assert found[way]["compiled"] == pytest.approx([8.0] * 4)
        assert found[way]["matmul"] == pytest.approx([25.0] * 4)
    assert all(before == "matmul" for before, name in itertools.pairwise(order) if name != "matmul")


def test_graphs_of_pairs_have_every_set_and_run_long_enough():
    assert foreign.plan_calls(20, 13_000_000) == (20, 40)
    assert foreign.plan_calls(1024, 1000) == (64, 64)
    assert foreign.plan_calls(1, 2**30) == (1, 4)
    foreign.Matmul("cpu")()
