"""Bad input to the loader: an error that names the argument, the rule and what was given; never a silent change."""

import re

import numpy as np
import pytest
import robocache
from loader_cases import SPECS, make_cache
from robocache import Loader, Mixture, Window, _core

torch = pytest.importorskip("torch")

STATE = {"state": Window()}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("bad") / "cache")


# what is wrong: (changes to a good call, the exception, what it says)
BAD = {
    "an unknown stream": (
        {"windows": {"stat": Window()}},
        ValueError,
        "the cache has no stream 'stat', only state, force",
    ),
    "no windows": ({"windows": None}, ValueError, "windows or delta_timestamps must be given, got neither"),
    "two kinds of windows": (
        {"delta_timestamps": {"state": [0]}},
        ValueError,
        "windows or delta_timestamps must be given, got both",
    ),
    "empty windows": ({"windows": {}}, ValueError, "windows must name at least one stream"),
    "a window that is a list": (
        {"windows": {"state": [0.0]}},
        ValueError,
        "windows['state'] must be a Window, got list",
    ),
    "a window longer than every episode, without padding": (
        {"windows": {"state": Window(future=9, rate_hz=10)}, "edges": "inside"},
        ValueError,
        "anchors 'state' must have rows whose windows have as little padding as edges says in the kept episodes, got "
        "none; the window of 'state' has 9 s, the longest episode 0.35 s: edges='pad' repeats the edge",
    ),
    "a point cloud": (
        {"windows": {"cloud": Window()}},
        ValueError,
        "stream 'cloud' is a point cloud: it needs Window(",
    ),
    "batch_size 0": ({"batch_size": 0}, ValueError, "batch_size must be from 1 to 2147483647, got 0"),
    "batch_size 2.5": ({"batch_size": 2.5}, ValueError, "batch_size must be a whole number, got 2.5"),
    "more than there is": ({"batch_size": 10**6}, ValueError, "batch_size of all ranks must be at most the"),
    "a negative seed": ({"seed": -1}, ValueError, "seed must be from 0 to 18446744073709551615, got -1"),
    "unknown anchors": (
        {"anchors": "x"},
        ValueError,
        "anchors must be a stream of sources[0], state, force, small, gripper, camera, cloud, got 'x'",
    ),
    "anchors that are a list": ({"anchors": ["state"]}, ValueError, "anchors must be the name of a stream, got ['st"),
    "a rate of anchors that no clock has": (
        {"anchor_hz": 2.0**63},
        ValueError,
        "anchor_hz must be at most 1e+09, beca",
    ),
    "a split that is a number": ({"split": 0.9}, ValueError, "split must be ('train', share) or ('validation', share)"),
    "an empty split": ({"split": []}, ValueError, "split must be ('train', share) or ('validation', share), got []"),
    "a split by name": (
        {"split": {"train": 0.9}},
        ValueError,
        "split must be ('train', share) or ('validation', share)",
    ),
    "shuffle in words": ({"shuffle": "False"}, ValueError, "shuffle must be True or False, got 'False'"),
    "drop_last in words": ({"drop_last": "no"}, ValueError, "drop_last must be True or False, got 'no'"),
    "return_index of a list": (
        {"return_index": ["state"]},
        ValueError,
        "return_index must be True or False, got ['sta",
    ),
    "a negative rate of anchors": ({"anchor_hz": -5}, ValueError, "anchor_hz must be above 0, got -5"),
    "anchors without rows": (
        {"episodes": [3], "windows": {"force": Window()}, "anchors": "state"},
        ValueError,
        "anchors 'state' must have rows in the kept episodes, got none",
    ),
    "a stream without rows": (
        {"episodes": [3], "anchors": "force"},
        ValueError,
        "stream 'state' must have rows in the kept episodes, got none",
    ),
    "anchors that are all left out": (
        {"drop_last_steps": 1000},
        ValueError,
        "must have rows in the kept episodes, got none; without the first 0 and the last 1000 of each episode",
    ),
    "a method of one of several windows": (
        {"windows": {"force": Window(), "state": Window(method="slerp_xyzw")}},
        ValueError,
        "Loader: windows['state']: method must have channels in groups of four for slerp_xyzw, got 3 channels",
    ),
    "a device of another kind": ({"device": "gpu"}, ValueError, "device must be 'cpu', 'cuda', 'cuda:1', ... or a"),
    "a list of windows": ({"windows": ["state"]}, ValueError, "windows must be a dict of streams, got ['state']"),
    "a list of normalizations": (
        {"normalize": ["unit"]},
        ValueError,
        "normalize must be a dict of streams or one of mean_std, min_max, quantile, unit, got ['unit']",
    ),
    "one normalization for nothing": (
        {"normalize": "unit"},
        ValueError,
        "normalize='unit' must be for a stream of uint8 or uint16, got none among state",
    ),
    "one normalization that is none": (
        {"normalize": "min_mix"},
        ValueError,
        "normalize must be one of mean_std, min_max, quantile, unit, got 'min_mix'; did you mean 'min_max'?",
    ),
    "a stream that is no name": ({"windows": {3: Window()}}, ValueError, "the cache has no stream 3, only state"),
    "a rate of anchors in words": ({"anchor_hz": "a"}, ValueError, "anchor_hz must be a number, got 'a'"),
    "a budget in words": ({"budget_bytes": "5"}, ValueError, "budget_bytes must be a whole number, got '5'"),
    "a number of episodes": ({"episodes": 3}, ValueError, "episodes must be numbers of episodes, got 3"),
    "a mask of episodes": ({"episodes": [False, True]}, ValueError, "episodes must be numbers of episodes, got False"),
    "a share of an episode": ({"episodes": [1.7]}, ValueError, "episodes must be numbers of episodes, got 1.7"),
    "an episode that is not there": ({"episodes": [5]}, ValueError, "episodes must be from 0 to 4, got 5"),
    "no episode": ({"episodes": lambda _: False}, ValueError, "must keep at least one of 5 episodes, got none"),
    "an unknown split": (
        {"split": ("test", 0.5)},
        ValueError,
        "split must be ('train', share) or ('validation', share), got ('test', 0.5)",
    ),
    "a share of 1.5": ({"split": ("train", 1.5)}, ValueError, "the share of split must be between 0 and 1, got 1.5"),
    "normalize of no key": (
        {"normalize": {"force": "min_max"}},
        ValueError,
        "normalize names 'force', which is not a key of the batch: state",
    ),
    "an unknown normalization": (
        {"normalize": {"state": "z"}},
        ValueError,
        "normalize['state'] must be None or one of mean_std, min_max, quantile, unit, got 'z'",
    ),
    "unit floats": (
        {"normalize": {"state": "unit"}},
        ValueError,
        "normalize['state'] 'unit' is for uint8 and uint16, got float32",
    ),
    "an integer dtype": (
        {"dtype": torch.int32},
        ValueError,
        "dtype of 'state' must be one of float16, bfloat16, float32, float64, got torch.int32",
    ),
    "a dtype of no key": (
        {"dtype": {"x": torch.float32}},
        ValueError,
        "dtype names 'x', which is not a key of the batch: state",
    ),
    "an unknown tier": ({"tier": "disk"}, ValueError, "tier must be one of gpu, pinned, memory, mmap, got 'disk'"),
    "the tier of a GPU on the CPU": ({"tier": "gpu"}, ValueError, "tier 'gpu' needs device 'cuda', got 'cpu'"),
    "a tier that is too small": (
        {"tier": "memory", "budget_bytes": 100},
        MemoryError,
        "tier 'memory' needs 2308 bytes, budget_bytes leaves 100",
    ),
    "a rank alone": ({"rank": 1}, ValueError, "rank and world_size belong together, got 1 and None"),
    "a rank that is not there": ({"rank": 2, "world_size": 2}, ValueError, "rank must be from 0 to 1, got 2"),
    "an unknown method": (
        {"windows": {"state": Window(method="quadratic")}},
        ValueError,
        "method must be linear, previous",
    ),
    "a source that is none": ({"source": 3}, ValueError, "source must be a Cache, its path, or a Mixture, got int"),
}


def test_a_gpu_that_is_not_there_is_refused_with_what_to_do(cache, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device 'cuda:0' needs a GPU that PyTorch sees .* take device='cpu'"):
        Loader(cache, 4, STATE, device="cuda:0")


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused(cache, what):
    changes, exception, message = BAD[what]
    good = {"source": cache, "batch_size": 4, "windows": STATE}
    Loader(**good)
    with pytest.raises(exception) as raised:
        Loader(**(good | changes)).batch(0)
    assert message in str(raised.value)
    assert re.match(r"Loader: |align: ", str(raised.value))


BAD_WINDOWS = {
    "a negative rate": ({"past": 1, "rate_hz": -50}, "rate_hz must be above 0, got -50"),
    "a rate of 0": ({"past": 1, "rate_hz": 0}, "rate_hz must be above 0, got 0"),
    "no rate": ({"past": 1}, "rate_hz must be given with past=1 and future=0.0, got None"),
    "a negative past": ({"past": -1, "rate_hz": 1}, "past must be 0 or more seconds, got -1"),
    "an infinite future": ({"future": float("inf"), "rate_hz": 1}, "future must be 0 or more seconds, got inf"),
    "no deltas": ({"deltas": []}, "deltas must not be empty, got []"),
    "a delta that is no number": ({"deltas": [float("nan")]}, "deltas must be finite, got nan"),
    "deltas and a rate": ({"deltas": [0], "rate_hz": 5}, "deltas take the place of past, future and rate_hz, got both"),
    "a negative gap": ({"max_gap": -1}, "max_gap must be 0 or more seconds, got -1"),
    "an infinite latency": ({"latency": float("inf")}, "latency must be finite, got inf"),
    "an infinite gap": ({"max_gap": float("inf")}, "max_gap must be 0 or more seconds, got inf"),
    "a delta beyond int64": ({"deltas": [1e11]}, "deltas must be at most 4e+09 seconds, got 100000000000.0"),
    "a delta alone": ({"deltas": 0.1}, "deltas must be a list of seconds, got 0.1"),
    "text": ({"past": "0.1", "rate_hz": 10}, "past must be a number, got '0.1'"),
    "nanoseconds": (
        {"past": 100_000_000, "rate_hz": 20},
        "past and future must hold at most 1048576 moments at rate_hz=20, got past=100000000 and future=0.0 seconds",
    ),
    "moments that go back where neighbors matter": (
        {"deltas": [0, 0.1, 0.05], "method": "mean"},
        "deltas must not decrease with method 'mean', got [0, 0.1, 0.05]",
    ),
    "the same for rms": (
        {"deltas": [0, 0.1, 0.05], "method": "rms"},
        "deltas must not decrease with method 'rms', got [0, 0.1, 0.05]",
    ),
    "the same in a range of channels": (
        {"deltas": [0.1, 0], "method": [(0, 1, "linear"), (1, 3, "max")]},
        "deltas must not decrease with method [(0, 1, 'linear'), (1, 3, 'max')], got [0.1, 0]",
    ),
}


@pytest.mark.parametrize("what", BAD_WINDOWS)
def test_bad_windows_are_refused(what):
    options, message = BAD_WINDOWS[what]
    with pytest.raises(ValueError) as raised:
        Window(**options)
    assert str(raised.value) == f"Window: {message}"


def test_moments_may_go_back_where_neighbors_do_not_matter(cache):
    windows = {"state": Window(deltas=[0.02, 0, 0.01], method="linear")}
    assert Loader(cache, 2, windows).batch(0)["state"].shape[1] == 3


def test_bad_mixtures_are_refused(cache, tmp_path):
    bad = {
        "weights must be 2, one for each cache, got 3": lambda: Mixture([cache, cache], [1, 2, 3]),
        "sources must be 1 to 64 caches, got 0": lambda: Mixture([]),
        "sources must be a list of (cache, weight), got Cache": lambda: Mixture(cache),
        "sources must be a list of (cache, weight), got int": lambda: Mixture(3),
        "weights must be a list of 1 numbers, got 2": lambda: Mixture([cache], weights=2),
        "sources must be 1 to 64 caches, got 65": lambda: Mixture([(cache, 1)] * 65),
        "sources[1] must be (cache, weight), got Cache": lambda: Mixture([(cache, 1), cache]),
        "sources[0] must be a Cache or its path, got int": lambda: Mixture([(3, 1)]),
        "the weight of sources[1] must be above 0 and finite, got 0": lambda: Mixture([(cache, 1), (cache, 0)]),
        "the weight of sources[0] must be above 0 and finite, got nan": lambda: Mixture([(cache, float("nan"))]),
        "the weight of sources[0] must be a number, got '1'": lambda: Mixture([(cache, "1")]),
        "epoch_size must be from 1 to 4611686018427387904, got 0": lambda: Mixture([(cache, 1)], epoch_size=0),
        "epoch_size must be a whole number, got 1000.0": lambda: Mixture([(cache, 1)], epoch_size=1e3),
    }
    for message, call in bad.items():
        with pytest.raises(ValueError) as raised:
            call()
        assert str(raised.value) == f"Mixture: {message}"
    wide = {"state": robocache.StreamSpec("state", "float32", (4,), rate_hz=100.0)}
    other = make_cache(tmp_path / "other", specs=wide)
    with pytest.raises(
        ValueError, match=re.escape("stream 'state' of sources[1] must be float32 (3,) like that of the")
    ):
        Loader(Mixture([cache, other], [1, 1]), 4, STATE)
    with pytest.raises(ValueError, match=re.escape("sources[1] has no stream 'force', only state")):
        Loader(Mixture([cache, other], [1, 1]), 4, {"force": Window()})
    with pytest.raises(ValueError, match="episodes of a Mixture must be a function, got a list"):
        Loader(Mixture([cache, cache], [1, 1]), 4, STATE, episodes=[0])


def test_channels_without_statistics_are_named(tmp_path):
    spec = SPECS["state"]
    writer = robocache.CacheWriter(tmp_path / "c", {"state": spec})
    rows = np.array([[1, np.nan, 2]] * 3, np.float32)
    writer.add(robocache.Episode(0, {"state": robocache.EpisodeStream(spec, rows, np.arange(3))}))
    with pytest.raises(ValueError, match="has no mean of channel 1 of stream 'state'"):
        Loader(writer.commit(), 1, STATE, normalize={"state": "mean_std"})


def test_caches_of_a_mixture_cannot_be_read_in_order(cache):
    with pytest.raises(ValueError, match="shuffle must be True for a Mixture"):
        Loader(Mixture([cache, cache], [1, 1]), 4, STATE, shuffle=False)
    Loader(Mixture([(cache, 1)]), 4, STATE, shuffle=False)


def test_streams_that_would_hide_something_of_a_batch_are_refused(tmp_path):
    specs = {name: robocache.StreamSpec(name, "float32", (1,)) for name in ("arm", "arm_is_pad", "episode_index")}
    writer = robocache.CacheWriter(tmp_path / "c", specs)
    rows, times = np.zeros((3, 1), np.float32), np.arange(3)
    writer.add(robocache.Episode(0, {n: robocache.EpisodeStream(s, rows, times) for n, s in specs.items()}))
    cache = writer.commit()
    with pytest.raises(ValueError, match="stream 'arm_is_pad' has the name that the padding of 'arm' has in a batch"):
        Loader(cache, 1, {"arm": Window(), "arm_is_pad": Window()})
    with pytest.raises(ValueError, match="stream 'episode_index' has the name that return_index has in a batch"):
        Loader(cache, 1, {"episode_index": Window()}, return_index=True)
    assert [*Loader(cache, 1, {"episode_index": Window()}).batch(0)] == ["episode_index", "episode_index_is_pad"]


def test_epochs_of_a_batch_are_whole_numbers(cache):
    for epoch in (2.5, -1, 2**70):
        with pytest.raises(ValueError, match="Loader: epoch must be"):
            Loader(cache, 4, STATE).batch(0, epoch)


def test_steps_that_are_not_there_are_an_index_error(cache):
    loader = Loader(cache, 4, STATE)
    for step in (-1, len(loader)):
        with pytest.raises(IndexError, match=re.escape(f"step must be in [0, {len(loader)}), got {step}")):
            loader.batch(step)


def test_normalize_refuses_what_does_not_fit():
    def call(values=(4, 3), offset=3, scale=3, out=(4, 3), dtype=torch.float32, offset_dtype=torch.float64):
        _core.normalize(
            torch.zeros(values), torch.zeros(offset, dtype=offset_dtype), torch.ones(scale, dtype=torch.float64),
            torch.zeros(out, dtype=dtype),
        )  # fmt: skip

    call()
    for changes, message in (
        ({"values": (4, 3, 1)}, "values must have 2 dimensions, got shape (4, 3, 1)"),
        ({"out": (4, 2)}, "out must have shape (4, 3), got (4, 2)"),
        ({"dtype": torch.int32}, "out must have a floating dtype, got int32"),
        ({"offset": 4}, "offset must have shape (3,), got (4,)"),
        ({"scale": 2}, "scale must have shape (3,), got (2,)"),
        ({"offset_dtype": torch.float32}, "offset must have dtype float64, got float32"),
    ):
        with pytest.raises(ValueError) as raised:
            call(**changes)
        assert str(raised.value) == f"normalize: {message}"
    with pytest.raises(ValueError, match="values must be contiguous"):
        _core.normalize(torch.zeros(3, 4).T, torch.zeros(3).double(), torch.ones(3).double(), torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deltas": b"ab"}, "deltas must be a list of seconds, got b'ab'"),
        ({"deltas": {0: 1}}, "deltas must be a list of seconds, got {0: 1}"),
        ({"rate_hz": 1e300, "past": 0}, "rate_hz must be at most 1e+09, because times are nanoseconds, got 1e+300"),
        ({"past": []}, "past must be a number, got []"),
        ({"future": np.zeros(2)}, "future must be a number, got array([0., 0.])"),
        ({"outside_valid": "no"}, "outside_valid must be True or False, got 'no'"),
    ],
)
@pytest.mark.parametrize("kind", ["Window", "Feature"])
def test_options_of_windows_and_features_of_a_wrong_type_get_one_line(kind, options, message):
    made = {"Window": Window, "Feature": lambda **given: robocache.Feature("state", **given)}
    with pytest.raises(ValueError, match="^" + re.escape(f"{kind}: {message}") + "$"):
        made[kind](**options)


def test_steps_are_whole_numbers_of_a_list():
    for wrong in (b"ab", {0: 1}, "01"):
        with pytest.raises(ValueError, match=r"^Feature: steps must be a list of whole numbers, got "):
            robocache.Feature("state", steps=wrong, rate_hz=10)
    with pytest.raises(ValueError, match=r"^Feature: rate_hz must be at most 1e\+09"):
        robocache.Feature("state", steps=[0, 1], rate_hz=2**63)
