"""README.md: its code runs as it stands, from top to bottom, and prints what its comments say."""

import contextlib
import io
import re

import numpy as np
import pytest
import robocache
from export_cases import listed, times_at
from paths import ROOT
from robocache import Episode, EpisodeStream, StreamSpec

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
FIRST_SCREEN = 60
"""Lines."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With `dataset` in it: a LeRobot dataset of four episodes at 20 Hz."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    specs = [StreamSpec(name, "float32", (7,), rate_hz=20) for name in ("observation.state", "action")]
    episodes = [
        Episode(i, {s.name: EpisodeStream(s, rng.normal(size=(100, 7)).astype("f4"), times_at(100, 20)) for s in specs})
        for i in range(4)
    ]
    robocache.export(listed(*episodes), tmp_path / "dataset")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_code_of_the_readme_runs_and_prints_what_it_says(folder):
    names = {}
    for block in BLOCKS:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(block, "README.md", "exec"), names)
        told = re.findall(r"^print\(.*\)\s+# (.*)$", block, re.MULTILINE)
        assert len(told) == len(shown.getvalue().splitlines())
        for line, comment in zip(shown.getvalue().splitlines(), told, strict=True):
            assert comment.startswith(line)
    assert (folder / "runs.cache" / "manifest.json").exists()


def test_ingest_to_loader_is_on_the_first_screen():
    head = "\n".join(README.splitlines()[:FIRST_SCREEN])
    assert head.index("robocache.ingest(") < head.index("robocache.Loader(") < head.index("for batch in loader")
