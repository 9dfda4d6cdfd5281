"""The CUDA benchmark as far as a machine without a GPU can follow it: formulas, verdicts, tables, the whole run."""

import argparse
import copy
import json
import os
import signal
import sys

import numpy as np
import pytest
import torch
from arrays import CUDA, REQUIRE_CUDA
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import plots
import tables
from align import cuda as align_cuda
from align import cuda_cases as cases
from align import stamps
from align import tables as align_tables
from measure import cuda as cuda_measure
from measure import harness, readme_table, report, timing
from measure import run as measure_run
from measure.targets import CLEAN, Limit, judge, judge_inputs

ENVIRONMENT = {"command": "python benchmarks/bench_align.py", "date": "2026-11-15T00:00:00+00:00", "commit": "c" * 40,
               "modified": False, "hardware": {"cpu": "test"}, "versions": {}}  # fmt: skip


def shorten(monkeypatch):
    """Graphs of few calls over few sets: nothing here is about speed."""
    monkeypatch.setattr(timing, "MIN_REPLAY_S", 1e-9)
    monkeypatch.setattr(timing, "WARM_S", 0)
    monkeypatch.setattr(timing, "MAX_SETS", 3)
    monkeypatch.setattr(harness, "environment", lambda: copy.deepcopy(ENVIRONMENT))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


def arguments(out, **options):
    given = {"quick": True, "samples": 2, "only": "", "compile": False, "strict": False, "out": str(out)}
    return argparse.Namespace(**{**given, **options})


DEVICES = ("cpu", "cuda") if CUDA or REQUIRE_CUDA else ("cpu",)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The threads of PyTorch wait for each other at every step, which takes long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=DEVICES)
def result(tmp_path_factory, request, one_thread):
    """The JSON file of a whole run with tiny shapes: on the CPU by the clock, on a GPU in graphs as in earnest."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        out = tmp_path_factory.mktemp("bench") / "align_cuda.json"
        assert align_cuda.run(arguments(out), device=request.param, tiny=True) == 0
    return json.loads(out.read_text())


# ---- the run ---------------------------------------------------------------------------------------------------------


def test_a_run_measures_every_case_of_the_issue_on_every_input(result):
    named = [(c["name"], c["axes"]["values"], c["axes"]["times"], c["axes"]["order"]) for c in result["cases"]]
    for kind in stamps.KINDS:
        assert named.count(("resample", "bfloat16", "float32", kind)) == 6
        assert named.count(("int64 times", "bfloat16", "int64", kind)) == 2
        assert named.count(("ragged 10:1", "float32", "float32", kind)) == 1
        assert named.count(("ragged 10:1", "bfloat16", "float32", kind)) == 1
        assert named.count(("resample", "float32", "int64", kind)) == 1
        assert named.count(("fuse", "bfloat16", "float32", kind)) == 3
    assert len(result["worst"]) == 14
    assert all(case["inputs"].keys() == set(stamps.KINDS) for case in result["worst"])
    assert [case["name"] for case in result["eager"]] == ["resample_trajectories"] * 2 + ["fuse_multimodal"]
    assert len(result["sweep"]) == 2


def test_every_rival_was_compared_with_ours_and_agreed_on_every_input(result):
    for case in result["cases"] + result["sweep"]:
        assert case["agrees"], (case["axes"], case["notes"])
        assert case["notes"] == ({} if "int64 times" in case["name"] else {"compiled": "not requested in this run"})


def test_a_case_keeps_its_samples_and_they_give_its_median_ratio_and_floor(result):
    for case in result["cases"]:
        assert len(case["samples_us"]["ours"]) == 3
        ours = np.median(case["samples_us"]["ours"])
        assert case["median_us"]["ours"] == pytest.approx(ours, rel=1e-3)
        assert case["floor_us"] == pytest.approx(case["size_bytes"] / result["copy"]["tbps"] / 1e6)
        assert case["x_floor"] == pytest.approx(ours / case["floor_us"], rel=1e-3)
        for name, ratio in case["ratios"].items():
            assert ratio == pytest.approx(np.median(case["samples_us"][name]) / ours, rel=1e-3)


def test_every_input_is_also_timed_after_a_matmul_in_a_graph_and_eagerly(result):
    for case in result["cases"]:
        assert case["after_us"].keys() == case["after_eager_us"].keys() == case["median_us"].keys()
        assert case["matmul_us"].keys() == {"graph", "eager"}
        for way, key in (("graph", "after_us"), ("eager", "after_eager_us")):
            samples = case["after_samples_us"][way]
            assert len(samples["ours"]) == len(samples["matmul"]) == 3
            assert case[key]["ours"] == pytest.approx(np.median(samples["ours"]), abs=1e-3)
    assert "after_us" not in result["sweep"][0]


def test_a_quick_run_times_a_rival_where_nothing_is_compiled(result):
    for case in result["cases"]:
        assert {"gather", "rows"} & case["ratios"].keys()


def test_the_figure_of_a_case_is_its_worst_input_after_a_matmul(result):
    for case in result["worst"]:
        assert case["figure"] == "us after a matmul, in a graph"
        assert case["worst_us"] == max(x["us"] for x in case["inputs"].values())
        assert case["worst_us"] == case["inputs"][case["worst_input"]]["us"]
        for kind, x in case["inputs"].items():
            assert x["clean"] == stamps.CLEAN[kind]
            assert x["x_clean"] == pytest.approx(x["us"] / case["inputs"][stamps.CLEAN[kind]]["us"])
        found = case["targets"]["x clean, worst"]
        assert found["at_most"] == 1.5
        assert found["measured"] == pytest.approx(max(x["x_clean"] for x in case["inputs"].values()))
        assert case["inputs"][found["input"]]["x_clean"] == found["measured"]


def test_the_targets_are_those_of_the_issue(result):
    small = {("us", "worst"): 9.0, ("us", "clean"): 7.5}
    asked = {slashed: {(x.what, x.over): x.at_most for x in limits} for slashed, limits in (
        (cases.slashed(shape), limits) for shape, limits in cases.RESAMPLE)}  # fmt: skip
    assert asked == {
        "256/500/250/32": small, "64/4096/1024/32": small, "32/500/256/256": small, "4/50/20/14": small,
        "4096/2048/1024/64": {("x floor", "ramp"): 1.03, ("x floor", "random"): 1.20},
        "4096/512/1024/64": {("x floor", "ramp"): 1.20, ("x floor", "random"): 1.25},
    }  # fmt: skip
    fused = [{(x.what, x.over): x.at_most for x in limits} for *_, limits in cases.FUSE]
    assert fused == [small, {("x floor", "clean"): 1.4}, {("x floor", "worst"): 1.25}]
    for case in cases.all_cases("cpu", tiny=True):
        limits = case.all_limits()
        assert Limit("x clean", 1.5) in limits
        assert Limit("x compiled", 1.0) in limits or case.what.startswith("int64 times")
    for case in result["worst"]:
        names = {name for name in case["targets"] if name != "x clean, worst"}
        if case["name"].startswith("int64 times"):
            assert names == {"x float32 times, worst"}
        elif case["name"].startswith("ragged") or "float32 int64" in case["name"]:
            assert names == {"x floor, clean"}
    assert [c["targets"]["addcmul"]["at_most"] for c in result["eager"][:2]] == [1.6, 1.6]


def test_only_picks_cases_by_name_and_axes(tmp_path):
    out = tmp_path / "x.json"
    assert align_cuda.run(arguments(out, only="int64 times"), device="cpu", tiny=True) == 0
    record = json.loads(out.read_text())
    assert {case["name"] for case in record["cases"]} == {"int64 times"}
    assert record["eager"] == record["sweep"] == []
    assert all("x float32 times, worst" in case["targets"] for case in record["worst"])
    assert align_cuda.run(arguments(out, only="fuse 3 x, 1000000/1"), device="cpu", tiny=True) == 0
    assert {case["name"] for case in json.loads(out.read_text())["cases"]} == {"fuse"}


def test_a_machine_without_a_gpu_is_told_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert align_cuda.run(arguments(tmp_path / "x.json")) == 2
    assert "needs a GPU" in capsys.readouterr().out


def test_a_run_that_breaks_off_keeps_what_it_has(tmp_path, monkeypatch):
    measured = iter([{"notes": {}, "median_us": {}, "targets": {}}])
    monkeypatch.setattr(measure_run, "measure", lambda *_: next(measured))
    with pytest.raises(StopIteration):
        align_cuda.run(arguments(tmp_path / "x.json"), device="cpu", tiny=True)
    record = json.loads((tmp_path / "x.json").read_text())
    assert len(record["cases"]) == 1
    assert record["aborted"] == "StopIteration: "


def test_a_run_whose_time_is_over_keeps_what_it_has(tmp_path, monkeypatch):
    """`timeout` ends a benchmark with SIGTERM; on a machine lent by the minute its results would be lost."""
    before = signal.getsignal(signal.SIGTERM)
    measured = iter([{"notes": {}, "median_us": {}, "targets": {}}])
    monkeypatch.setattr(measure_run, "measure", lambda *_: next(measured, None) or os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        align_cuda.run(arguments(tmp_path / "x.json"), device="cpu", tiny=True)
    record = json.loads((tmp_path / "x.json").read_text())
    assert len(record["cases"]) == 1
    assert record["aborted"] == "Stopped: by SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == before


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_a_target_is_met_up_to_what_was_asked_and_never_with_other_values():
    assert judge({"us": 5.0}, {"us": 5.0})["us"]["met"]
    assert not judge({"us": 5.0}, {"us": 5.01})["us"]["met"]
    assert not judge({"us": 5.0}, {"us": 1.0}, agrees=False)["us"]["met"]


def one_case():
    return cases.resample((2, 30, 10, 4), "float32", "int64", "random", "cpu")


def measured(case, compiler=None, **effort):
    compiler = compiler or cuda_measure.Compiler(False, "no")
    return cuda_measure.measure(case, compiler, 1.0, cuda_measure.Effort(2, **effort), "cpu")


def test_other_values_fail_the_run_and_are_not_timed():
    case = one_case()
    case.ours = lambda v, t, q, right=case.ours: right(v, t, q) + 1e-3
    r = measured(case)
    assert not r["agrees"]
    found = measure_run.summarize("x", [r], (Limit("us", 1e9),))
    assert not found["targets"]["us, worst"]["met"]
    assert r["ratios"] == {}
    assert "other values" in r["notes"]["gather"]


def test_nan_never_agrees():
    x = torch.zeros(2, 3, 4)
    assert cuda_measure.largest_error(x, x, "float32") == 0
    assert cuda_measure.largest_error(x * torch.nan, x, "float32") == np.inf
    assert cuda_measure.largest_error(x[:1], x, "float32") == np.inf


def test_compiled_rivals_are_timed_and_their_failures_are_written_down(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda *inputs: call(*inputs))
    r = measured(one_case(), cuda_measure.Compiler(True))
    assert "compiled" in r["ratios"]

    def broken(call, **options):
        def fail(*inputs):
            raise RuntimeError("no C++ compiler\nand more")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    r = measured(one_case(), cuda_measure.Compiler(True))
    assert r["notes"] == {"compiled": "torch.compile failed: RuntimeError: no C++ compiler"}
    assert r["agrees"]
    late = cuda_measure.Compiler(True)
    late.spent_s = 1e9
    assert "were spent" in measured(one_case(), late)["notes"]["compiled"]


def test_a_quick_run_times_the_compiled_rival_on_every_input_and_an_eager_one_on_the_clean_ones(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda *inputs: call(*inputs))
    compiler = cuda_measure.Compiler(True)
    for kind in stamps.KINDS:
        case = cases.resample((2, 30, 10, 4), "float32", "int64", kind, "cpu")
        found = measured(case, compiler, quick=True)
        expected = {"compiled", "gather"} if kind in ("ramp", "random") else {"compiled"}
        assert found["ratios"].keys() == found["after_ratios"].keys() == expected


def figure(label, us, clean="ramp", **others):
    return cuda_measure.Figure(label, clean, us, 2.0, others)


def test_limits_are_judged_on_the_inputs_they_name():
    figures = [figure("ramp", 4.0, compiled=8.0), figure("random", 5.0, "random"), figure("packets", 7.0, compiled=5.0)]
    limits = (Limit("us", 9.0), Limit("us", 4.5, CLEAN), Limit("x floor", 2.5, "random"), Limit("x compiled", 1.0),
              Limit("x clean", 1.5), Limit("spread", 2.0), Limit("x gather", 1.0))  # fmt: skip
    found = judge_inputs(limits, figures)
    assert {name: (x["measured"], x["met"], x["input"]) for name, x in found.items()} == {
        "us, worst": (7.0, True, "packets"), "us, clean": (5.0, False, "random"),
        "x floor, random": (2.5, True, "random"), "x compiled, worst": (1.4, False, "packets"),
        "x clean, worst": (1.75, False, "packets"), "spread, worst": (1.75, True, "packets"),
    }  # fmt: skip


@pytest.mark.parametrize("make", [
    lambda: cases.resample((2, 30, 10, 4), "bfloat16", "float32", "ramp", "cpu"),
    lambda: cases.fuse(2, [(30, 8), (20, 4)], 10, "random", "cpu"),
    lambda: cases.ragged((5, 30, 10, 3), "float32", "random", "cpu"),
], ids=["resample", "fuse", "ragged"])  # fmt: skip
def test_the_rivals_can_be_traced_without_a_break(make):
    case = make()
    call = case.rivals[case.compiled]
    traced = torch.compile(call, backend="aot_eager", dynamic=False, fullgraph=True)
    assert cuda_measure.largest_error(traced(*case.inputs), call(*case.inputs), case.axes["values"]) <= 1


# ---- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size_bytes", "expected"), [(2**30, (2, 4)), (13_000_000, (20, 320)), (100, (1024, 1024))])
def test_buffers_rotate_over_four_times_the_l2_and_graphs_are_long_enough(monkeypatch, size_bytes, expected):
    monkeypatch.undo()
    num_sets, num_calls = timing.plan_rotation(size_bytes, 62_000_000)
    assert (num_sets, num_calls) == expected
    assert num_calls % num_sets == 0


def test_sets_are_equal_and_apart_in_memory():
    sets = timing.rotate((torch.arange(3), torch.ones(2)), 3)
    assert len({x.data_ptr() for inputs in sets for x in inputs}) == 6
    assert all(torch.equal(inputs[0], sets[0][0]) for inputs in sets)


def test_a_replay_calls_the_sets_in_turn():
    seen = []
    timing.Replay(lambda x: seen.append(int(x)), [(torch.tensor(i),) for i in range(3)], 6, "cpu")()
    assert seen == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_computes_what_the_calls_compute(device):
    case = cases.resample((3, 50, 20, 4), "float32", "int64", "random", device)
    replay = timing.Replay(case.ours, timing.rotate(case.inputs, 2), 4, device)
    for result in replay._results:
        result.fill_(torch.nan)
    assert replay() > 0
    assert len(replay._results) == (4 if device == "cuda" else 0)
    for result in replay._results:
        assert torch.equal(result, case.ours(*case.inputs))
    assert len({x.data_ptr() for x in replay._results}) == len(replay._results)


def ragged_rows_by_hand(times, offsets, targets):
    rows = set()
    for e in range(len(targets)):
        own = times[offsets[e] : offsets[e + 1]]
        for t in targets[e]:
            left = min(max(int((own <= t).sum()) - 1, 0), len(own) - 2)
            rows |= {offsets[e] + left, offsets[e] + left + 1}
    return len(rows)


@pytest.mark.parametrize("order", ["ramp", "random"])
@pytest.mark.parametrize("times_dtype", ["float32", "int64"])
def test_ragged_episodes_are_ten_to_one_sorted_and_counted_right(times_dtype, order):
    inputs = stamps.make_ragged(40, 128, 9, 7, "bfloat16", times_dtype, order, "cpu")
    values, times, offsets, targets = (x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in inputs)
    lengths = np.diff(offsets)
    assert (lengths.min(), lengths.max()) == (23, 233)
    assert lengths.mean() == pytest.approx(128, rel=0.01)
    assert offsets[-1] == len(times) == len(values)
    for e in range(40):
        own = times[offsets[e] : offsets[e + 1]]
        assert (np.diff(own) > 0).all()
        assert (np.diff(targets[e]) > 0).all()
        assert (own[0] <= targets[e][1]).all()
    item = times.dtype.itemsize
    rows = ragged_rows_by_hand(times, offsets, targets)
    expected = (rows + 40 * 9) * 7 * 2 + (len(times) + 40 * 9) * item + 41 * 8
    assert cases.ragged_bytes(*inputs) == expected


def test_fused_bytes_count_the_targets_once():
    case = cases.fuse(2, [(30, 8), (20, 4)], 10, "ramp", "cpu")
    alone = [sum(cases.moved_bytes(v, t, case.inputs[-1])) for v, t in cases.fuse_streams(case.inputs)[0]]
    assert case.size_bytes == sum(alone) - 2 * 10 * 4


def test_both_dtypes_of_times_ask_for_the_same_rows():
    case = cases.resample((3, 50, 20, 4), "bfloat16", "int64", "random", "cpu", both_times=True)
    call, inputs = case.beside["float32 times"]
    assert inputs[1].dtype == torch.float32
    assert cuda_measure.largest_error(call(*inputs), case.ours(*case.inputs), "bfloat16") <= 2


def test_the_commit_is_the_one_the_environment_names(monkeypatch):
    monkeypatch.setenv("ROBOCACHE_COMMIT", "a" * 40 + "-dirty")
    assert harness.revision() == {"commit": "a" * 40, "modified": True}
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROBOCACHE_COMMIT")
    assert harness.revision() == {"commit": "unknown", "modified": False}


# ---- tables and the picture ------------------------------------------------------------------------------------------


def test_the_tables_show_every_case_with_its_verdict(result):
    text = align_tables.cuda_full(result)
    shown = result["cases"] + result["worst"]
    assert text.count("| resample ") == len([c for c in shown if c["name"].startswith("resample")])
    said = text.count("met: ") + text.count("MISSED: ")
    assert said == sum(len(c["targets"]) for c in result["worst"] + result["eager"])
    assert tables.PICTURE in text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 3  # worst inputs, every input, eager calls
    assert all(len({line.count("|") for line in block}) == 1 for block in blocks)
    assert "fuse 3 x (30x512 100x64 200x12)>20" in text


def test_the_table_of_the_readme_is_small_and_shows_the_worst_input(monkeypatch):
    assert len(list(readme_table.rows())) <= 12
    (resample,) = [row for row in readme_table.rows() if "resample_trajectories`, 4,096 x 2,048" in row[0]]
    shown = readme_table.cases("cuda", "align", "resample", **{"B/S/T/D": "4096/2048/1024/64"})
    assert resample[3].startswith(report.number(min(min(case["ratios"].values()) for case in shown)))
    monkeypatch.setattr(readme_table, "load", lambda device, benchmark: None)
    assert list(readme_table.rows()) == []


def test_missed_targets_and_lost_cases_are_named(result):
    changed = copy.deepcopy(result)
    for case in changed["cases"] + changed["eager"] + changed["worst"]:
        for target in case["targets"].values():
            target["met"] = True
        for ratios in ("ratios", "after_ratios"):
            case[ratios] = dict.fromkeys(case.get(ratios, {}), 2.0)
    assert "missed" not in align_tables.outcome(changed)
    assert "faster" not in align_tables.outcome(changed)
    changed["worst"][0]["targets"]["us, worst"] |= {"met": False, "measured": 9.5}
    changed["cases"][1]["ratios"]["rows"] = 0.5
    changed["cases"][2]["after_ratios"]["gather"] = 0.25
    text = align_tables.outcome(changed)
    assert "missed: resample 3/60/20/32 bfloat16 float32 (9.50, target 9)." in text
    assert "PyTorch is faster in: resample 3/60/20/32 bfloat16, float32, random (rows, x 0.50); " in text
    assert "resample 3/60/20/32 bfloat16, float32, jitter (gather after a matmul, x 0.25)." in text


def test_a_block_is_filled_between_its_marks_and_nothing_else_changes():
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb"
    assert tables.fill(text, "x", "new") == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb"
    assert [report.number(x) for x in (4.826, 9.999, 12.44, 401.2, None)] == ["4.83", "10.0", "12.4", "401", ""]


def test_the_picture_knows_which_results_it_shows(result, tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    plots.draw(result, tmp_path / "sweep.png")
    picture = image.open(tmp_path / "sweep.png")
    assert picture.info[plots.SOURCE] == plots.fingerprint(result)
    other = copy.deepcopy(result)
    other["sweep"][0]["median_us"]["ours"] += 1
    assert plots.fingerprint(other) != plots.fingerprint(result)
