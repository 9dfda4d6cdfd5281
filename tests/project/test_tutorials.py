"""docs/tutorials: the code of each page runs as it stands, on recordings of examples/make_logs.py."""

import re
import subprocess
import sys

import pytest
from paths import ROOT

pytest.importorskip("torch")
TUTORIALS = ROOT / "docs/tutorials"
RECORDINGS = {"lerobot": ("lerobot", "my_dataset"), "ros_bags": ("mcap", "my_bags"), "arrays": None}
"""What examples/make_logs.py writes for a page, under the name that the page uses."""


def blocks(name, language):
    text = (TUTORIALS / f"{name}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_code_of_a_tutorial_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    for package in {"lerobot": ("pyarrow", "PIL"), "ros_bags": ("mcap_ros2",)}.get(name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROBOCACHE_HOME", str(tmp_path / "home"))
    if RECORDINGS[name]:
        command = [sys.executable, str(ROOT / "examples/make_logs.py"), *RECORDINGS[name]]
        assert " ".join(("python examples/make_logs.py", *RECORDINGS[name])) in (TUTORIALS / f"{name}.md").read_text()
        subprocess.run(command, check=True, timeout=200)
    names = {"__name__": "tutorial"}
    code = blocks(name, "python")
    assert len(code) >= 4
    for block in code:
        exec(compile(block, f"{name}.md", "exec"), names)
    assert (tmp_path / "runs.cache/manifest.json").exists()


def test_the_code_of_the_control_loop_is_that_of_the_program_that_the_installation_test_runs():
    program = (ROOT / "examples/cpp/control_loop.cpp").read_text()
    code = blocks("control_loop", "cpp")
    assert len(code) == 3
    for block in code:
        assert block in program
    assert "/example/control_loop)" in (ROOT / "tests/cpp/install_test.cmake").read_text()
    assert "control_loop" in (ROOT / "examples/cpp/CMakeLists.txt").read_text()


def test_every_tutorial_is_run_and_listed():
    pages = {path.stem for path in TUTORIALS.glob("*.md")} - {"index"}
    assert pages == {*RECORDINGS, "control_loop"}
    index = (TUTORIALS / "index.md").read_text()
    assert all(f"]({page}.md)" in index for page in pages)
