"""docs/guides/cache_writer.md: its table of rules is true. tests/project/pages runs its code."""

import numpy as np
import pytest
import robocache
from page_blocks import blocks


def test_the_rules_of_the_guide_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "guide"}
    exec(blocks("docs/guides/cache_writer.md", "python")[0].code, names)
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
