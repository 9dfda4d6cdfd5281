"""The half of the demo that voxelizes."""

import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "examples"))


def test_the_demo_voxelizes_a_room_as_pytorch_does_and_draws_it(tmp_path):
    pytest.importorskip("matplotlib")
    import demo_voxels

    rows = demo_voxels.run(20_000, tmp_path / "voxels.png", lambda calls: dict.fromkeys(calls, 1.0))
    assert [row["cloud"] for row in rows] == ["LiDAR scan", "8 depth images"]
    assert all(0.95 < row["in_grid"] / row["points"] <= 1 for row in rows)
    assert all(100 < row["occupied"] < row["points"] for row in rows)
    assert (tmp_path / "voxels.png").stat().st_size > 10_000
