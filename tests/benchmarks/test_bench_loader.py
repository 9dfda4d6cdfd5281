"""The benchmark of the loader on tiny sizes: equal work is asserted, the table shows what was measured. No timings."""

import argparse
import copy
import json
import sys

import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
torch = pytest.importorskip("torch")

import bench_loader  # noqa: E402
from measure import harness, timing  # noqa: E402
from pipeline.loader import cuda as loader_cuda  # noqa: E402
from pipeline.loader import rivals as loader_rivals  # noqa: E402
from pipeline.loader import tables as loader_tables  # noqa: E402
from pipeline.loader.recordings import KINDS  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The threads of PyTorch wait for each other at every step, which takes long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def case(tmp_path_factory, one_thread):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
        monkeypatch.setattr(harness, "WARM_S", 0)
        return bench_loader.measure(tmp_path_factory.mktemp("bench"), "push-t", 64, 2, 50, 3)


def test_every_batch_of_the_epoch_was_compared_before_a_few_were_timed(case):
    assert case["batches_compared"] == case["axes"]["windows"] // 64 > 3
    assert case["batches_timed"] == 3
    assert set(case["ratios"]) == {"robocache memory", "robocache mmap", "DataLoader 0", "DataLoader 2", "robomimic",
                                   "plain torch"}  # fmt: skip


def test_the_cost_of_the_index_is_measured_with_its_target(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
    monkeypatch.setattr(harness, "WARM_S", 0)
    found = bench_loader.measure_index(tmp_path, "push-t", 64, 2, 50)
    assert set(found["median_batch_s"]) == {"with", "without"}
    assert found["targets"]["x without the index"]["at_most"] == 1.1


def test_the_benchmark_of_the_gpu_runs_to_its_end(tmp_path, monkeypatch, capsys):
    """Without a GPU, on tiny data: every part of it, batches compared, the table made from its file."""
    monkeypatch.setattr(timing, "WARM_S", 0)
    monkeypatch.setattr(timing, "MIN_REPLAY_S", 1e-9)
    monkeypatch.setattr(timing, "MAX_SETS", 3)
    out = tmp_path / "loader_cuda.json"
    options = {"quick": True, "samples": 1, "compile": False, "store_gb": 0.0, "folder": str(tmp_path), "only": "",
               "out": str(out), "strict": False}  # fmt: skip
    assert loader_cuda.run(argparse.Namespace(**options), "cpu", tiny=True) == 0
    result = json.loads(out.read_text())
    assert {case["name"] for case in result["tiers"]} == {"tier pinned", "tier mmap"}
    recordings = [(case["name"].split()[0], case["input"]) for case in result["cases"]]
    assert recordings == [("windows", kind) for kind in KINDS] + [("three", kind) for kind in loader_cuda.THREE_KINDS]
    assert all(case["agrees"] and case["after_us"]["ours"] for case in result["cases"])
    assert [case["name"] for case in result["worst"]] == ["windows, batch 64", "three streams, batch 64"]
    assert result["worst"][0]["inputs"].keys() == set(KINDS)
    assert "x clean, worst" in result["worst"][0]["targets"]
    assert len(result["eager"]) == 1
    assert [case["name"] for case in result["index"]] == ["return_index in a graph", "return_index, eager"]
    result["hardware"]["gpu"] = {"name": "none", "driver_version": "0"}
    told = loader_tables.cuda_table(result)
    assert "target 25" in told
    assert "of a plain copy, target 0.6" in told
    assert "windows of 17 x 32 bf16 in a graph, packets" in told


def test_the_targets_of_batches_are_those_of_the_issue():
    asked = {batch: {(x.what, x.over): x.at_most for x in limits} for batch, limits in loader_cuda.GRAPH_LIMITS.items()}
    compiled = {("x compiled", "worst"): 1.0}
    assert asked == {
        256: compiled,
        4096: {**compiled, ("us", "worst"): 4.5},
        65536: {**compiled, ("x floor", "worst"): 1.25},
    }
    assert loader_cuda.EAGER_TARGETS == {256: 25.0, 4096: 30.0}


def test_recordings_with_defects_are_measured_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
    monkeypatch.setattr(harness, "WARM_S", 0)
    found = {kind: bench_loader.measure_honest(tmp_path, kind, 5, 240, 2) for kind in ("ramp", "packets")}
    summary = bench_loader.summarize(found)
    assert summary["inputs"]["packets"]["clean"] == "ramp"
    assert summary["worst_ms"] == max(x["ms"] for x in summary["inputs"].values())
    assert summary["targets"]["x clean, worst"]["at_most"] == 1.5
    assert "search torch" in bench_loader.describe(found["packets"])


def test_a_batch_that_differs_in_one_bit_is_found():
    def batches(last):
        yield {"obs": torch.zeros(2, 3)}
        yield {"obs": torch.tensor([[0.0, 0, 0], [0, 0, last]])}

    assert bench_loader.require_equal({"a": lambda: batches(0.0), "b": lambda: batches(0.0)}) == 2
    with pytest.raises(AssertionError, match="b gives another obs in batch 1"):
        bench_loader.require_equal({"a": lambda: batches(0.0), "b": lambda: batches(1e-45)})


def test_the_windows_of_the_sampler_by_hand():
    recordings = loader_rivals.Recordings({"x": np.arange(5, dtype=np.float32)[:, None]}, np.array([3, 5]))
    sampler = loader_rivals.SequenceSampler(recordings, 3, 1, 1)
    windows = [sampler.sample(i)["x"][:, 0].tolist() for i in range(len(sampler))]
    assert windows == [[0, 0, 1], [0, 1, 2], [1, 2, 2], [3, 3, 4], [3, 4, 4]]


def test_the_sequences_of_robomimic_by_hand():
    arrays = {key: np.arange(5, dtype=np.float32)[:, None] for key in ("obs", "action")}
    dataset = loader_rivals.RobomimicDataset(loader_rivals.Recordings(arrays, np.array([3, 5])), 2, 2)
    items = [dataset[i] for i in range(len(dataset))]
    assert [item["obs"][:, 0].tolist() for item in items] == [[0, 0, 1], [0, 1, 2], [1, 2, 2], [3, 3, 4], [3, 4, 4]]
    masks = [item["pad_mask"][:, 0].astype(int).tolist() for item in items]
    assert masks == [[0, 1, 1], [1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 1, 0]]
    assert all(np.array_equal(item["obs"], item["action"]) for item in items)


def test_a_pad_mask_that_is_wrong_is_found():
    ours = {"obs": torch.zeros(1, 2), "obs_is_pad": torch.tensor([[False, True]])}
    for last, right in ((False, True), (True, False)):
        theirs = {"obs": torch.zeros(1, 2), "pad_mask": torch.tensor([[[True], [last]]])}
        made = {"a": lambda: iter([ours]), "b": lambda theirs=theirs: iter([theirs])}
        if right:
            assert bench_loader.require_equal(made) == 1
        else:
            with pytest.raises(AssertionError, match="b gives another obs_is_pad"):
                bench_loader.require_equal(made)


def test_the_target_is_that_of_the_issue_and_is_for_the_faster_of_both(case):
    assert bench_loader.TARGET == 10.0
    assert case["targets"] == {}  # asked at batch 256 only


def test_the_table_shows_the_measured_figures(case):
    environment = {"command": "python x", "date": "2026-11-15T00:00:00", "commit": "c" * 40, "modified": False,
                   "hardware": {"cpu": "test", "cores": 2, "load_average": [0.5]}, "versions": {"torch": "2.0"},
                   "quick": False}  # fmt: skip
    case = copy.deepcopy(case)
    case["ratios"]["DataLoader 0"] = 12.34
    case["targets"] = {"x DataLoader": {"at_least": 10.0, "measured": 9.5, "met": False}}
    text = loader_tables.table(json.loads(json.dumps(environment | {"cases": [case]})))
    assert "| 12.3 |" in text
    assert "MISSED: 9.50x DataLoader, target 10" in text
