"""bench_video.py: a LeRobot-shaped dataset is written, ingested both ways, and timed; LeRobot itself is not in CI."""

import json
import sys

import pytest
from paths import ROOT

pytest.importorskip("av")
pytest.importorskip("pyarrow")
pytest.importorskip("PIL")
sys.path.insert(0, str(ROOT / "benchmarks"))

import bench_video
from pixels import films, tables

SMALL = films.Shape("pusht-like", 64, 64, 1, 10, 40, 2)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    patch = pytest.MonkeyPatch()
    patch.setattr(bench_video, "SHAPES", (SMALL,))
    out = folder / "video.json"
    patch.setattr(sys, "argv", ["bench_video.py", "--quick", "--folder", str(folder), "--out", str(out)])
    assert bench_video.main() == 0
    patch.undo()
    return json.loads(out.read_text())


def test_both_caches_are_timed(record):
    (case,) = record["cases"]
    assert case["lerobot"] is None
    assert set(case["samples_per_s"]) == {"packets", "jpeg"}
    assert all(rate > 0 for rates in case["samples_per_s"].values() for rate in rates)
    assert set(case["targets"]) == {"cache of video"}


def test_the_table_says_what_was_missed(record):
    (case,) = record["cases"]
    case["median_samples_per_s"]["LeRobot"] = 10.0
    case["ratios"] = {"packets": 1.4, "jpeg": 6.0}
    case["targets"] |= {
        name: bench_video.target(ratio, at_least=bench_video.LEAST[name]) for name, ratio in case["ratios"].items()
    }
    text = tables.video_table(record)
    assert "1.40 (MISSED, target 1.5)" in text
    assert "6.00 (met, target 5)" in text
