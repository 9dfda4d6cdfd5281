"""What ingest must not do in silence: go on with other options, lose streams, store other numbers."""

import numpy as np
import pytest
import robocache


def write_calvin(folder, steps=4):
    folder.mkdir()
    for step in range(steps):
        np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64))
    np.save(folder / "ep_start_end_ids.npy", np.array([[step, step + 1] for step in range(0, steps, 2)]))
    return folder


# ---- resume ----------------------------------------------------------------------------------------------------------


def test_a_finished_cache_is_not_taken_for_one_with_other_options(tmp_path):
    path, out = write_calvin(tmp_path / "calvin"), tmp_path / "cache"
    robocache.ingest(path, out, rate_hz=30.0)
    cache = robocache.ingest(path, out, rate_hz=10.0, resume=True)
    assert (cache.generation, cache.specs["actions"].rate_hz) == (2, 10.0)
    np.testing.assert_array_equal(cache.episode(0).streams["actions"].times, [0, 100_000_000])
    assert robocache.ingest(path, out, rate_hz=10.0, resume=True).generation == 2


def test_a_stopped_ingest_is_not_continued_with_other_options(tmp_path):
    path, out = write_calvin(tmp_path / "calvin"), tmp_path / "cache"

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        robocache.ingest(path, out, rate_hz=30.0, shard_bytes=1, progress=stop)
    cache = robocache.ingest(path, out, rate_hz=10.0, shard_bytes=1, resume=True)
    assert [int(episode.streams["actions"].times[1]) for episode in cache] == [100_000_000] * 2


def test_a_source_remembers_the_options_it_was_opened_with(tmp_path):
    path, out = write_calvin(tmp_path / "calvin"), tmp_path / "cache"
    repair = {"missing": "drop", "length": "trim"}
    opened = robocache.open(path, rate_hz=30.0, repair=repair)
    robocache.ingest(opened, out)
    other_order = dict(reversed(repair.items()))
    repair.clear()  # what counts is what was given
    assert robocache.ingest(opened, out, resume=True).generation == 1
    assert robocache.ingest(path, out, repair=other_order, rate_hz=30.0, resume=True).generation == 1
    assert robocache.ingest(robocache.open(path, rate_hz=10.0, repair=other_order), out, resume=True).generation == 2
