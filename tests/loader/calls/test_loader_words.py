"""What users type and see: paths, one word for all streams, short reprs, suggestions."""

import pickle

import pytest
from loader_cases import make_cache
from robocache import Cache, FormatError, Loader, Mixture, Voxels, Window

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("words") / "runs.cache")


def test_a_path_is_opened(cache):
    for source in (str(cache.path), cache.path):
        loader = Loader(source, 4, STATE)
        assert isinstance(loader.caches[0], Cache)
        assert torch.equal(loader.batch(0)["state"], Loader(cache, 4, STATE).batch(0)["state"])
        mixture = Mixture([(source, 1), (cache, 2)])
        assert [c.path for c in mixture.caches] == [cache.path] * 2


def test_a_copy_of_a_loader_of_a_path_reads_the_same_version_or_is_an_error(tmp_path, monkeypatch):
    make_cache(tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Loader(str(tmp_path / "c"), 4, STATE))
    assert len(pickle.loads(data)) > 1
    make_cache(tmp_path / "c", seed=1)
    with pytest.raises(FormatError, match="generation 1 is gone; another one, of generation 2"):
        pickle.loads(data)


@pytest.mark.parametrize("way", ["unit", "mean_std", "min_max", "quantile"])
def test_one_way_is_for_all_streams_that_it_is_meant_for(cache, way):
    names = ("state", "force", "small", "gripper", "camera")
    windows = {name: Window() for name in names}
    windows["cloud"] = Window(voxels=Voxels((-1, -1, -1), 0.5, (4, 4, 4)))
    meant = ("camera",) if way == "unit" else ("state", "force", "small")
    alone = Loader(cache, 4, windows, normalize=way).batch(0)
    named = Loader(cache, 4, windows, normalize=dict.fromkeys(meant, way)).batch(0)
    assert alone.keys() == named.keys()
    for name, x in named.items():
        assert alone[name].dtype == x.dtype
        assert torch.equal(alone[name], x), name


def test_reprs_are_short(cache):
    assert repr(Window(past=0.1, rate_hz=20, method="nearest")) == "Window(past=0.1, rate_hz=20, method='nearest')"
    assert repr(Window()) == "Window()"
    assert eval(repr(Window(deltas=(0.0, 0.5), tolerance=0.0))) == Window(deltas=(0.0, 0.5), tolerance=0.0)
    loader = Loader(cache, 4, STATE)
    expected = f"Loader('{cache.path}', batch_size=4, {loader.num_samples} samples, tier='memory', device='cpu')"
    assert repr(loader) == expected
    assert repr(loader.as_dataset()) == f"{expected}.as_dataset()"
    mixture = Mixture([(cache, 1), (cache, 2.5)], epoch_size=100)
    assert repr(mixture) == f"Mixture({{'{cache.path}': 1, '{cache.path}': 2.5}}, epoch_size=100)"
    assert repr(Loader(mixture, 4, STATE)).startswith("Loader(2 caches, batch_size=4, 100 samples")


SUGGESTED = {
    "a window": ({"windows": {"stat": Window()}}, "state"),
    "the case": ({"windows": {"Camera": Window()}}, "camera"),
    "deltas": ({"windows": None, "delta_timestamps": {"griper": [0.0]}}, "gripper"),
    "a normalization": ({"normalize": {"sate": "unit"}}, "state"),
    "a dtype": ({"dtype": {"states": "float16"}}, "state"),
    "the anchors": ({"anchors": "forces"}, "force"),
}


@pytest.mark.parametrize("what", SUGGESTED)
def test_a_misspelled_stream_is_answered_with_the_nearest_name(cache, what):
    options, meant = SUGGESTED[what]
    with pytest.raises(ValueError, match=rf"^Loader: .*; did you mean '{meant}'\?$"):
        Loader(cache, 4, **{"windows": STATE, **options})


def test_a_stream_without_a_scale_is_answered_with_the_nearest_name(cache):
    with pytest.raises(ValueError, match=r"; did you mean 'state'\?$"):
        Loader(cache, 4, STATE, normalize="mean_std").scale_of("stat")
