"""docs/guides/training.md: its code runs as it stands, from top to bottom, on a small cache."""

import importlib.util
import re

import numpy as np
import pytest
from paths import ROOT
from robocache import CacheWriter, Episode, EpisodeStream, StreamSpec

torch = pytest.importorskip("torch")
GUIDE = ROOT / "docs" / "guides" / "training.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With `runs.cache` in it: twelve episodes of 4 s, of which two validate; and the surroundings of torchrun."""
    rng = np.random.default_rng(0)
    specs = {name: StreamSpec(name, "float32", (7,), rate_hz=hz) for name, hz in (("state", 50), ("action", 20))}
    writer = CacheWriter(tmp_path / "runs.cache", specs)
    for e in range(12):
        streams = {}
        for name, spec in specs.items():
            times = np.arange(int(4 * spec.rate_hz)) * int(1e9 / spec.rate_hz)
            values = np.sin(times[:, None] / 1e9 + np.arange(7) + e) + rng.normal(scale=0.01, size=(len(times), 7))
            streams[name] = EpisodeStream(spec, values.astype(np.float32), times)
        writer.add(Episode(e, streams))
    writer.commit()
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def missing(block):
    """Packages that a block imports and that are not here."""
    names = re.findall(r"^import (\w+)$", block, re.MULTILINE)
    return [name for name in names if importlib.util.find_spec(name) is None]


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_the_guide_runs_from_top_to_bottom(folder):
    names = {"__name__": "guide"}
    skipped = set()
    for block in BLOCKS:
        skipped.update(missing(block))
        if not missing(block):
            exec(compile(block, str(GUIDE), "exec"), names)
    assert skipped <= {"pytorch_lightning", "accelerate"}
    with torch.no_grad():
        untrained = [names["loss_of"](names["Policy"]().to(names["device"]), x) for x in names["validation"]]
    assert names["held"] < 0.8 * torch.stack(untrained).mean()
    assert names["command"].shape[1:] == (16, 7)
    assert (folder / "run.json").stat().st_size <= 1024
    assert len(BLOCKS) == 7


def test_the_guide_names_only_what_is_there():
    text = GUIDE.read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (GUIDE.parent / target).exists(), target
    for path in re.findall(r"`((?:tests|benchmarks|examples)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
