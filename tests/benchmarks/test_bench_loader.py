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
import cuda_timing  # noqa: E402
import harness  # noqa: E402
import loader_cuda  # noqa: E402
import loader_rivals  # noqa: E402
import loader_tables  # noqa: E402


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
        monkeypatch.setattr(harness, "WARM_S", 0)
        return bench_loader.measure(tmp_path_factory.mktemp("bench"), "push-t", 64, 2, 50, 3)


def test_every_batch_of_the_epoch_was_compared_before_a_few_were_timed(case):
    assert case["batches_compared"] == case["axes"]["windows"] // 64 > 3
    assert case["batches_timed"] == 3
    assert set(case["ratios"]) == {"robocache memory", "robocache mmap", "DataLoader 0", "DataLoader 2", "robomimic",
                                   "plain torch"}  # fmt: skip


def test_the_cost_of_the_index_is_measured_with_its_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
    monkeypatch.setattr(harness, "WARM_S", 0)
    found = bench_loader.measure_index(tmp_path, "push-t", 64, 2, 50)
    assert set(found["median_batch_s"]) == {"with", "without"}
    assert found["bars"]["x without the index"]["at_most"] == 1.1


def test_the_benchmark_of_the_gpu_runs_to_its_end(tmp_path, monkeypatch, capsys):
    """Without a GPU, on tiny data: every part of it, batches compared, the table made from its file."""
    monkeypatch.setattr(cuda_timing, "WARM_S", 0)
    out = tmp_path / "loader_cuda.json"
    options = {"quick": True, "samples": 1, "compile": False, "store_gb": 0.0, "folder": str(tmp_path), "only": "",
               "out": str(out), "strict": False}  # fmt: skip
    assert loader_cuda.run(argparse.Namespace(**options), "cpu", tiny=True) == 0
    result = json.loads(out.read_text())
    assert {case["name"] for case in result["tiers"]} == {"tier pinned", "tier mmap"}
    assert len(result["cases"]) == 2
    assert len(result["eager"]) == 1
    assert [case["name"] for case in result["index"]] == ["return_index in a graph", "return_index, eager"]
    result["hardware"]["gpu"] = {"name": "none", "driver_version": "0"}
    told = loader_tables.cuda_table(result)
    assert "asked 25" in told
    assert "asked 0.6" in told


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


def test_the_bar_is_that_of_the_issue_and_is_for_the_faster_of_both(case):
    assert bench_loader.BAR == 10.0
    assert case["bars"] == {}  # asked at batch 256 only


def test_the_table_shows_the_measured_figures(case):
    environment = {"command": "python x", "date": "2026-11-15T00:00:00", "commit": "c" * 40, "modified": False,
                   "hardware": {"cpu": "test", "cores": 2, "load_average": [0.5]}, "versions": {"torch": "2.0"},
                   "quick": False}  # fmt: skip
    case = copy.deepcopy(case)
    case["ratios"]["DataLoader 0"] = 12.34
    case["bars"] = {"x DataLoader": {"at_least": 10.0, "measured": 9.5, "holds": False}}
    text = loader_tables.table(json.loads(json.dumps(environment | {"cases": [case]})))
    assert "| 12.3 |" in text
    assert "MISSED: 9.50x DataLoader, asked 10" in text
