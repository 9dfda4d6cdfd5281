"""The benchmark of training steps on tiny sizes: its JSON is whole, equal batches are asserted. No timings."""

import json
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
torch = pytest.importorskip("torch")

import bench_training  # noqa: E402
from pipeline.training import policy as training_policy  # noqa: E402
from pipeline.training import tables as training_tables  # noqa: E402

TINY = bench_training.Size(episodes=3, seconds=2.0, width=16, layers=1, steps=1, samples=2, loader_batches=2)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("training") / "training.json"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(bench_training.SIZES, "cpu quick", TINY)
        monkeypatch.setattr(bench_training.timing, "WARM_S", 0)
        monkeypatch.setattr(sys, "argv", ["bench_training.py", "--device", "cpu", "--quick", "--out", str(out)])
        assert bench_training.main() == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    cache = bench_training.make(tmp_path_factory.mktemp("training"), TINY)
    return bench_training.open_tiers(cache, "cpu", 16)[0]


def test_every_tier_is_timed_beside_the_cached_batch_or_says_why_not(result):
    (case,) = result["cases"]
    assert {*case["ratios"]} == {"cached", "cached again", "mmap", "memory"}
    assert {*case["ratios"], *result["skipped"]} == {"cached", "cached again", *bench_training.TIERS}
    assert "needs device 'cuda', got 'cpu'" in result["skipped"]["gpu"]
    assert all(len(samples) == TINY.samples for samples in case["samples_s"].values())
    assert case["ratios"]["cached"] == 1.0
    assert result["batches_compared"] == 1
    assert case["axes"] == {"batch": 256, "parameters": case["axes"]["parameters"], "width": 16, "layers": 1,
                            "state": [3, 32], "force": [6, 6], "action": [50, 14]}  # fmt: skip


def test_the_json_says_where_when_and_how(result):
    assert result["command"].endswith("--quick --out " + result["command"].split()[-1])
    assert result["quick"]
    assert result["size"]["width"] == 16
    assert result["hardware"]["cpu"]
    assert result["versions"]["torch"] == torch.__version__
    assert {"commit", "modified", "date", "streams", "threads"} <= result.keys()


def test_the_targets_are_those_of_the_issue():
    assert bench_training.TARGETS == {"gpu": 1.01, "pinned": 1.03}
    targets = bench_training.targets_of("gpu", ratio=1.02, cores=0.2, asked=True)
    assert [target["met"] for target in targets.values()] == [False, True]
    assert [target["met"] for target in bench_training.targets_of("pinned", 1.03, 1.0, True).values()] == [True, False]
    assert [*bench_training.targets_of("mmap", 2.0, 0.2, True)] == ["cores"]
    assert bench_training.targets_of("gpu", 1.0, 0.2, asked=False) == {}


def test_a_tier_that_differs_in_one_bit_is_found(loaders):
    assert bench_training.require_equal(loaders, 3) == 4

    class Wrong:
        def __init__(self, loader):
            self.loader = loader

        def __len__(self):
            return len(self.loader)

        def batch(self, step, epoch):
            batch = self.loader.batch(step, epoch)
            if step == len(self.loader) - 1:
                batch["force"][0, 0, 0] += 1e-3
            return batch

    with pytest.raises(AssertionError, match="memory gives another force in batch 17"):
        bench_training.require_equal(loaders | {"memory": Wrong(loaders["memory"])}, 3)


def test_a_step_learns_from_its_batch_and_not_from_its_padding(loaders):
    batch = loaders["memory"].batch(0)
    shapes = {name: tuple(batch[name].shape[1:]) for name in bench_training.STREAMS}

    def loss_after(steps, batch):
        step = training_policy.Step(shapes, 16, 1, "cpu")
        for _ in range(steps):
            step(batch)
        return float(step.loss)

    assert batch["action_is_pad"].any()
    wrong = batch | {"action": batch["action"].masked_fill(batch["action_is_pad"][..., None], 1e6)}
    assert loss_after(1, wrong) == loss_after(1, batch)
    assert loss_after(60, batch) < 0.98 * loss_after(1, batch)


def test_busy_time_counts_what_overlaps_once_and_nothing_but_the_gpu():
    trace = [
        {"cat": "kernel", "ts": 10.0, "dur": 5.0},
        {"cat": "gpu_memcpy", "ts": 12.0, "dur": 10.0},  # until 22
        {"cat": "kernel", "ts": 13.0, "dur": 1.0},
        {"cat": "gpu_memset", "ts": 30.0, "dur": 2.0},
        {"cat": "gpu_user_annotation", "ts": 0.0, "dur": 100.0},
        {"cat": "cuda_runtime", "ts": 22.0, "dur": 8.0},
        {"name": "no category", "ts": 0.0},
    ]
    assert bench_training.union_s(trace) == pytest.approx(14e-6)
    assert bench_training.union_s(trace[4:]) is None


def test_the_table_shows_the_measured_figures(result):
    (case,) = result["cases"]
    shown = json.loads(json.dumps(result))
    shown["cases"][0]["ratios"]["memory"] = 1.2345
    shown["cases"][0]["idle_share"]["memory"] = 0.125
    shown["cases"][0]["targets"]["memory"] = bench_training.targets_of("gpu", 1.2345, 0.1, True)
    text = training_tables.table(shown)
    assert "| 1.2345 | 12.5 % |" in text
    assert "MISSED: 1.234 x cached step, target 1.01; met: 0.100 cores, target 1" in text
    assert "Not there: *gpu*; *pinned*." in text
    assert f"{case['axes']['parameters'] / 1e6:.1f} M" in text


def test_a_quoted_result_is_of_a_full_run_on_a_known_commit():
    for device in ("cuda", "cpu"):
        kept = training_tables.load(device, "training")
        if kept is not None:
            assert kept["device"] == device
            assert "aborted" not in kept
            assert not kept["quick"]
            assert not kept["modified"]
            assert len(kept["commit"]) == 40
