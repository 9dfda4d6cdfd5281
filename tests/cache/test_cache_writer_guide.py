"""docs/guides/cache_writer.md: its code runs as it stands, from top to bottom; and its table of rules is true."""

import re

import numpy as np
import pytest
import robocache
from paths import ROOT

GUIDE = ROOT / "docs" / "guides" / "cache_writer.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"__name__": "guide"}


def test_the_code_of_the_guide_runs_from_top_to_bottom(names, tmp_path, capsys):
    pytest.importorskip("torch")
    for block in BLOCKS:
        exec(block, names)
    said = capsys.readouterr().out
    assert "pour the tea (1000, 7) so101" in said
    assert "torch.Size([16, 11, 7]) torch.Size([16, 1, 96, 128, 3])" in said
    caches = {path.name: robocache.Cache(path) for path in tmp_path.iterdir()}
    assert {name: len(cache) for name, cache in caches.items()} == {"tea.cache": 5, "long.cache": 6, "small.cache": 6}
    assert caches["small.cache"].specs["arm"].dtype == "bfloat16"
    assert caches["small.cache"].specs["wrist"].shape == (48, 64, 3)
    np.testing.assert_array_equal(
        caches["long.cache"].episode(5).streams["lidar"].values, names["record"](5).streams["lidar"].values
    )


def test_the_rules_of_the_guide_hold(names):
    exec(BLOCKS[0], names)
    specs, good = names["specs"], names["record"](9)
    writer = robocache.CacheWriter("rules.cache", specs)
    with pytest.raises(robocache.FormatError, match="another ingest is writing here"):
        robocache.CacheWriter("rules.cache", specs)

    def refused(name, match, **changes):
        was = good.streams[name]
        parts = {"values": was.values, "times": was.times, "offsets": was.offsets, **changes}
        with pytest.raises(ValueError, match=match):
            writer.add(robocache.Episode(9, {name: robocache.EpisodeStream(specs[name], **parts)}))

    arm, lidar = good.streams["arm"], good.streams["lidar"]
    refused("arm", "rows of float32", values=arm.values.astype(np.float64))
    refused("arm", r"rows of float32 \(7,\)", values=arm.values[:, :6])
    refused("arm", "must not decrease", times=arm.times[::-1])
    refused("lidar", "offsets|splits", offsets=lidar.offsets[:-1])
    with pytest.raises(ValueError, match="the cache has no stream 'leg'"):
        writer.add(robocache.Episode(9, {"leg": arm}))
    assert len(writer) == 0
    writer.add(robocache.Episode(9, {"arm": arm}))  # may lack the others
    assert len(writer.commit()) == 1
