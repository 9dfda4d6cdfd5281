"""Numbers and pictures in the documents come from committed results."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import plots  # noqa: E402
import tables  # noqa: E402


def test_the_tables_of_the_documents_are_the_committed_results():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_picture_of_the_sweep_shows_the_committed_results():
    result = tables.load("cuda")
    picture = tables.DOCS.parent / tables.PICTURE
    if result is None:
        assert not picture.exists(), "a picture without the results it shows"
        assert tables.NOT_MEASURED in tables.DOCS.read_text()
        return
    image = pytest.importorskip("PIL.Image").open(picture)
    assert image.info[plots.SOURCE] == plots.fingerprint(result), "run python benchmarks/plots.py"


@pytest.mark.parametrize("benchmark", ["align", "voxelize"])
def test_a_quoted_gpu_result_is_of_a_full_run_on_a_known_commit(benchmark):
    result = tables.load("cuda", benchmark)
    if result is not None:
        assert result["device"] == "cuda"
        assert "aborted" not in result
        assert not result["quick"]
        assert not result["modified"]
        assert len(result["commit"]) == 40
        assert all(case["agrees"] for case in result["cases"])
