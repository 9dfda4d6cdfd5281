"""The notebook runs from top to bottom, and is stored without outputs."""

import json

import pytest
from paths import ROOT

pytest.importorskip("torch")
NOTEBOOK = ROOT / "docs/notebooks/lerobot_first_batch.ipynb"


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
