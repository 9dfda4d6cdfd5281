"""How a stream is read belongs to the stream: ``StreamSpec.method`` from source through cache to reader."""

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from robocache import CacheWriter, Episode, EpisodeStream, Loader, Mixture, Stream, StreamSpec, Voxels, Window
from robocache.cache import cache as _cache

TURN = StreamSpec("turn", "float64", (4,), method="slerp_xyzw")
POSE = StreamSpec("pose", "float32", (6,), method=[(3, 6, "angle")], period=360.0)
DEPTH = StreamSpec("depth", "float32", (2, 3), "depth")
ARM = StreamSpec("arm", "float32", (2,))
SPECS = {spec.name: spec for spec in (ARM, TURN, POSE, DEPTH)}
STEP = 10**8
BETWEEN = Window(deltas=[0.05])
"""Half way between two rows."""


def rows_of(spec, rng, count=8):
    values = rng.uniform(-170, 170, (count, *spec.shape)).astype(spec.dtype)
    if spec.name == "turn":
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
    return EpisodeStream(spec, values, np.arange(count, dtype=np.int64) * STEP)


def cache_of(folder, rng, specs=SPECS):
    writer = CacheWriter(folder, specs)
    writer.add(Episode(0, {name: rows_of(spec, rng) for name, spec in specs.items()}))
    return writer.commit()


def first_batch(cache, windows, **options):
    return next(iter(Loader(cache, 7, windows, shuffle=False, **options)))


def half_way(cache, name, **options):
    """The same by ``align``, for the first seven anchors."""
    rows = cache.episode(0).streams[name]
    return robocache.align(Stream(rows.values, rows.times, **options), rows.times[:7] + STEP // 2).values[0]


def test_a_window_without_a_method_turns_quaternions(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    got = first_batch(cache, {"turn": BETWEEN})["turn"][:, 0].numpy()
    np.testing.assert_array_equal(got, half_way(cache, "turn", method="slerp_xyzw"))
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, rtol=1e-12)


def test_a_window_without_a_method_reads_angles_by_their_period(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    got = first_batch(cache, {"pose": BETWEEN})["pose"][:, 0].numpy()
    np.testing.assert_array_equal(got, half_way(cache, "pose", method=[(3, 6, "angle")], period=360.0))
    assert not np.array_equal(got, half_way(cache, "pose"))


def test_a_window_without_a_method_never_blends_pictures(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    got = first_batch(cache, {"arm": BETWEEN, "depth": BETWEEN})["depth"][:, 0].numpy()
    np.testing.assert_array_equal(got, cache.episode(0).streams["depth"].values[:7])


def test_the_method_of_a_window_comes_before_that_of_the_stream(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    window = Window(deltas=[0.05], method="linear")
    batch = first_batch(cache, {name: window for name in ("turn", "pose", "depth")}, anchors="turn")
    for name in ("turn", "pose", "depth"):
        np.testing.assert_array_equal(batch[name][:, 0].numpy(), half_way(cache, name, method="linear"))


def test_normalized_quaternions_are_turned_first(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    loader = Loader(cache, 7, {"turn": BETWEEN}, shuffle=False, normalize={"turn": "mean_std"})
    offset, scale = loader.scale_of("turn")
    expected = (half_way(cache, "turn", method="slerp_xyzw") - offset.numpy()) * scale.numpy()
    np.testing.assert_allclose(next(iter(loader))["turn"][:, 0].numpy(), expected, rtol=1e-12, atol=1e-12)


def test_delta_timestamps_take_the_nearest_row_of_a_quaternion_too(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    got = first_batch(cache, None, delta_timestamps={"turn": [0.05]}, anchors="turn")["turn"][:, 0].numpy()
    np.testing.assert_array_equal(got, cache.episode(0).streams["turn"].values[:7])


def test_clouds_are_chosen_by_the_method_of_their_stream(tmp_path, rng):
    specs = {"arm": ARM, "cloud": StreamSpec("cloud", "float32", (3,), "points", method="next")}
    writer = CacheWriter(tmp_path / "c", specs)
    points = np.arange(8, dtype=np.float32)[:, None] + np.array([0.5, 0, 0], np.float32)
    cloud = EpisodeStream(specs["cloud"], points, np.arange(8, dtype=np.int64) * STEP, np.arange(9, dtype=np.int64))
    writer.add(Episode(0, {"arm": rows_of(ARM, rng), "cloud": cloud}))
    grid = Voxels(grid_min=(0, 0, 0), voxel_size=1, grid_size=(9, 9, 9))
    batch = first_batch(writer.commit(), {"arm": BETWEEN, "cloud": Window(deltas=[0.05], voxels=grid)})
    assert batch["cloud"][:, 0].nonzero()[:, 1].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_cache_keeps_method_and_period(tmp_path, rng):
    cache = robocache.Cache(cache_of(tmp_path / "c", rng).path)
    assert cache.specs == SPECS
    assert cache.specs["pose"].method == ((3, 6, "angle"),)


def test_caches_from_before_the_field_have_it_in_meta(tmp_path, rng, monkeypatch):
    def old_details(spec, statistics):
        kept = {"rate_hz": None, "unit": None, "names": None, "meta": spec.meta}
        return _cache.to_json(kept | {"statistics": statistics})

    monkeypatch.setattr(_cache, "details_of", old_details)
    turn = StreamSpec("turn", "float64", (4,), meta={"method": "slerp_wxyz"})
    pose = StreamSpec("pose", "float32", (6,), meta={"angles": [4, 3, 9], "period": 360})
    arm = StreamSpec("arm", "float32", (2,), meta={"method": "by hand"})
    cache = cache_of(tmp_path / "c", rng, {"turn": turn, "pose": pose, "arm": arm})
    assert [spec.method for spec in cache.specs.values()] == ["slerp_wxyz", ((3, 4, "angle"), (4, 5, "angle")), None]
    got = first_batch(cache, {"turn": BETWEEN})["turn"][:, 0].numpy()
    np.testing.assert_array_equal(got, half_way(cache, "turn", method="slerp_wxyz"))
    assert cache.specs["pose"].period == 360


@pytest.mark.parametrize("method", ["slerp_xyzw", "quadratic", 7, [[0, 9, "linear"]], {"linear": 1}])
def test_a_manifest_with_a_method_that_does_not_fit_is_damaged(tmp_path, rng, monkeypatch, method):
    def damaged(spec, statistics):
        return _cache.to_json({"method": method})

    monkeypatch.setattr(_cache, "details_of", damaged)
    with pytest.raises(robocache.FormatError, match="stream 'arm' of the manifest: StreamSpec: method must"):
        cache_of(tmp_path / "c", rng, {"arm": ARM})


def test_sources_of_a_mixture_must_be_read_alike_unless_the_window_says_how(tmp_path, rng):
    other = {"turn": StreamSpec("turn", "float64", (4,), method="slerp_wxyz")}
    mixture = Mixture([(cache_of(tmp_path / "a", rng, {"turn": TURN}), 1), (cache_of(tmp_path / "b", rng, other), 1)])
    with pytest.raises(ValueError, match=r"'turn' of sources\[1\] must be read by slerp_xyzw .* got slerp_wxyz"):
        Loader(mixture, 2, {"turn": BETWEEN})
    Loader(mixture, 2, {"turn": Window(method="slerp_xyzw")})
    Loader(mixture, 2, delta_timestamps={"turn": [0.0]})


def test_export_reads_a_stream_as_it_says(tmp_path, rng):
    cache = cache_of(tmp_path / "c", rng)
    robocache.export(cache, tmp_path / "out", fps=20)
    back = robocache.open(tmp_path / "out").episode(0).streams
    for name, options in (("turn", {"method": "slerp_xyzw"}), ("pose", {"method": [(3, 6, "angle")], "period": 360.0})):
        np.testing.assert_array_equal(back[name].values[1:-1:2], half_way(cache, name, **options))


def test_mcap_marks_quaternions_and_a_loader_of_its_cache_turns_them(tmp_path, rng):
    source = datasets.opened("mcap", tmp_path, rng)
    assert source.specs["/pose/orientation"].method == "slerp_xyzw"
    assert source.specs["/pose/position"].method is None
    cache = robocache.ingest(source, tmp_path / "cache", streams=["/pose/orientation"])
    got = first_batch(cache, {"/pose/orientation": Window(deltas=[0.003])}, drop_last=False)["/pose/orientation"]
    rows = cache.episode(0).streams["/pose/orientation"]
    stream = Stream(rows.values, rows.times, method="slerp_xyzw")
    expected = robocache.align(stream, rows.times[: len(got)] + 3_000_000).values[0]
    np.testing.assert_array_equal(got[:, 0].numpy()[: len(rows)], expected[: len(rows)])


def test_calvin_marks_its_angles(tmp_path, rng):
    specs = datasets.opened("calvin", tmp_path, rng).specs
    assert specs["robot_obs"].method == ((3, 4, "angle"), (4, 5, "angle"), (5, 6, "angle"))


@pytest.mark.parametrize(
    ("env_args", "marked"),
    [
        ('{"type": 1, "env_kwargs": {"control_freq": 20}}', {"robot0_eef_quat", "robot0_eef_quat_site", "cube_quat"}),
        ('{"type": 2}', {"robot0_eef_quat", "robot0_eef_quat_site"}),
        ("{}", {"robot0_eef_quat", "robot0_eef_quat_site"}),
    ],
)
def test_robomimic_marks_the_quaternions_of_robosuite(tmp_path, env_args, marked):
    h5py = pytest.importorskip("h5py")
    shapes = {"robot0_eef_quat": 4, "robot0_eef_quat_site": 4, "cube_quat": 4, "square": 4, "robot1_eef_quat": 3}
    with h5py.File(tmp_path / "low_dim.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = env_args
        for key, width in shapes.items():
            file.create_dataset(f"data/demo_0/obs/{key}", data=np.ones((3, width)))
    specs = robocache.open(tmp_path / "low_dim.hdf5", rate_hz=20).specs
    assert {name[4:] for name, spec in specs.items() if spec.method == "slerp_xyzw"} == marked


BAD = {
    "three channels are no quaternion": ({"method": "slerp_xyzw"}, "groups of four for slerp_xyzw, got 3 channels"),
    "an unknown name": ({"method": "quadratic"}, "method must be linear, previous, .* got 'quadratic'"),
    "a number": ({"method": 3}, r"method must be a name or a list of \(begin, end, name\), got 3"),
    "ranges that overlap": ({"method": [(0, 2, "linear"), (1, 3, "angle")]}, "ranges that do not overlap"),
    "a range outside": ({"method": [(0, 9, "linear")]}, r"inside \[0, 3\), got \[0, 9\)"),
    "ranges of a matrix": ({"method": [(0, 1, "linear")], "shape": (3, 3)}, "exactly one channel dimension"),
    "integers that are blended": ({"method": "linear", "dtype": "int32"}, "previous, next, nearest, min or max"),
    "pictures that are blended": (
        {"method": "linear", "kind": "depth", "shape": (2, 2)},
        "method of kind depth must be one of previous, next, nearest, because it is never interpolated, got 'linear'",
    ),
    "a period of nothing": ({"period": 0}, "period must be positive and finite, got 0"),
    "a period in words": ({"period": "turn"}, "period must be a number, got 'turn'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_method_that_does_not_fit_the_stream_is_refused(case):
    given, words = BAD[case]
    with pytest.raises(ValueError, match=f"StreamSpec: .*{words}"):
        StreamSpec("arm", **({"dtype": "float32", "shape": (3,)} | given))
