"""The notebook runs from top to bottom; the recorded comparison with LeRobot found no difference."""

import json

import pytest
from paths import ROOT

pytest.importorskip("torch")
NOTEBOOK = ROOT / "examples/lerobot_first_batch.ipynb"


def cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_goes_from_a_dataset_to_a_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBOCACHE_HOME", str(tmp_path))
    names: dict = {}
    for cell in cells():
        exec("".join(cell["source"]), names)
    assert names["batch"]["action"].shape == (8, 16, 6)
    assert names["batch"]["observation.images.wrist"].shape == (8, 3, 48, 64)
    assert names["item"]["task"] == "wave"


def test_the_notebook_is_stored_without_outputs():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells())
    assert len(cells()) == 3


def recorded(name):
    return json.loads((ROOT / "benchmarks/results/oracles" / f"{name}.json").read_text())


def test_the_recorded_items_are_equal_to_those_of_lerobot():
    parts = recorded("lerobot_oracle")
    runs = [run for part in parts for run in part["runs"]]
    assert sum(part["items"] for part in parts) == sum(run["items"] for run in runs) >= 2000
    assert [run["dataset"] for run in runs if run["wrong"]] == []
    for rate in (10, 15, 30, 50):
        for kind in ("numbers", "pictures", "videos"):
            assert any(run["dataset"] == f"{kind}{rate}" for run in runs)
    assert any(run["dataset"].startswith("language") for run in runs)


def test_the_recorded_losses_are_equal_to_the_bit():
    (part,) = recorded("lerobot_train")
    assert [run["policy"] for run in part["training"]] == ["act", "diffusion"]
    for run in part["training"]:
        assert len(run["losses"]["ours"]) == 100
        assert run["losses"]["ours"] == run["losses"]["theirs"]
        assert run["equal"]
