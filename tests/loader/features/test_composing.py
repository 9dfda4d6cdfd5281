"""Features that the reader composes sample by sample have the bits of composing whole columns."""

import numpy as np
import pytest
import robocache
import torch
from feature_cases import RATE, SPECS, STEP_NS, make_cache
from robocache import Feature, Loader, Mixture
from robocache.loader.batches.reader import BatchReader

STEPS = {"steps": range(-3, 9), "rate_hz": RATE}
FEATURES = {
    "joined": Feature(["left", "right"], **STEPS),
    "dtypes": Feature(["count", "grip", "place"], **STEPS),
    "scaled": Feature(["left", "count"], normalize="mean_std", **STEPS),
    "pose": Feature("tcp", relative_to="anchor", rotation="6d", normalize="min_max", **STEPS),
    "poses": Feature(["place", "turn", "tcp"], relative_to="anchor", rotation="matrix", **STEPS),
    "angles": Feature("heading", relative_to="anchor", **STEPS),
    "later": Feature("tcp", relative_to="now", rotation="euler", steps=range(1, 6), rate_hz=RATE),
    "now": Feature("tcp"),
    "between": Feature(["left", "tcp"], deltas=[-0.013, 0.0, 0.007], method="linear", relative_to="anchor"),
    "gaps": Feature(["left", "fast"], rate_hz=RATE, past=0.1, max_gap=0.03, outside="nan"),
    "one": Feature(["left", "grip"]),
    "column": Feature("right", **STEPS),
    "task": Feature("task"),
}


def irregular(folder):
    """Times that jitter, rows that are missing, an episode of one row."""
    rng = np.random.default_rng(1)
    names = ["left", "right", "tcp", "grip", "count", "place", "turn", "heading", "fast"]
    specs = {name: SPECS[name] for name in names}
    writer = robocache.CacheWriter(folder, specs)
    for e, count in enumerate((60, 1, 7, 45)):
        streams = {}
        for name in names:
            times = np.arange(count) * STEP_NS + rng.integers(-(STEP_NS // 3), STEP_NS // 3, count)
            kept = np.sort(rng.permutation(count)[: max(1, count - count // 5)])
            rows = rng.normal(0, 50, (len(kept), *specs[name].shape)).astype(specs[name].dtype)
            streams[name] = robocache.EpisodeStream(specs[name], rows, times[kept])
        writer.add(robocache.Episode(e, streams, f"task {e}"))
    return writer.commit()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("composing")
    even, other = make_cache(folder / "even", shard_bytes=1 << 14), make_cache(folder / "other", 3, seed=4)
    return {"even": even, "irregular": irregular(folder / "irregular"), "mixture": Mixture([(even, 1), (other, 2)])}


@pytest.fixture
def threads():
    before = robocache.num_threads()
    robocache.set_num_threads(3)
    yield
    robocache.set_num_threads(before)


@pytest.mark.parametrize("tier", ["memory", "mmap"])
@pytest.mark.parametrize("source", ["even", "irregular", "mixture"])
def test_the_reader_composes_the_bits_of_compose(sources, source, tier, threads, monkeypatch):
    def loader():
        return Loader(sources[source], 37, features=FEATURES, anchors="left", tier=tier, seed=3, drop_last=False)

    fused, made = BatchReader.fused_reader, []
    made.append(loader())
    monkeypatch.setattr(BatchReader, "fused_reader", lambda self, composing: fused(self, None))
    made.append(loader())
    assert [one._form.composing.composer is None for one in made] == [True, False]
    for step in range(len(made[0])):
        ours, theirs = (one.batch(step) for one in made)
        assert [*ours] == [*theirs]
        for name, x in ours.items():
            if not isinstance(x, torch.Tensor):
                assert x == theirs[name], name
                continue
            assert (x.dtype, x.shape) == (theirs[name].dtype, theirs[name].shape), name
            assert x.numpy().tobytes() == theirs[name].numpy().tobytes(), (name, step)


def test_statistics_are_those_of_composing_afterwards(sources, monkeypatch, home):
    features = {name: f for name, f in FEATURES.items() if name not in ("task", "scaled")}
    fused = BatchReader.fused_reader
    found = [Loader(sources["irregular"], 8, features=features, anchors="left").stats]
    monkeypatch.setattr(BatchReader, "fused_reader", lambda self, composing: fused(self, None))
    monkeypatch.setenv("ROBOCACHE_HOME", str(home / "other"))
    found.append(Loader(sources["irregular"], 8, features=features, anchors="left").stats)
    for name in found[0]:
        for which, numbers in found[0][name].items():
            assert np.array(numbers).tobytes() == np.array(found[1][name][which]).tobytes(), (name, which)


@pytest.mark.parametrize("rotation", [None, "6d", "rotvec", "euler", "matrix"])
def test_poses_relative_to_a_rotation_of_nan_are_nan(tmp_path, rotation):
    writer = robocache.CacheWriter(tmp_path / "c", {"tcp": SPECS["tcp"]})
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
    rows[2, 4], rows[3, 3:] = np.nan, 0
    writer.add(robocache.Episode(0, {"tcp": robocache.EpisodeStream(SPECS["tcp"], rows, np.arange(5) * STEP_NS)}))
    feature = Feature("tcp", steps=[0, 1], rate_hz=RATE, relative_to="anchor", rotation=rotation)
    loader = Loader(writer.commit(), 5, features={"x": feature}, shuffle=False)
    made = loader.batch(0)["x"]
    assert made[2].isnan().all()
    assert made[3, :, :3].isfinite().all()  # zeros are no rotation
    assert made[1, 0].isfinite().all()
    assert np.isnan(loader.inverse("x")(made[1].numpy(), anchor=rows[2])[..., 3:]).all()
