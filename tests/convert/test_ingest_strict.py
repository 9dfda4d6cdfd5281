"""What ingest must not do in silence: go on with other options, lose streams, store other numbers."""

import json

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource
from robocache import FormatError
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec


def write_calvin(folder, steps=4):
    folder.mkdir()
    for step in range(steps):
        np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step, np.float64))
    np.save(folder / "ep_start_end_ids.npy", np.array([[step, step + 1] for step in range(0, steps, 2)]))
    return folder


def write_robomimic(path, *demos):
    h5py = pytest.importorskip("h5py", reason="robomimic files are written with h5py")
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20}})
        for number, members in enumerate(demos):
            for name, values in members.items():
                file[f"data/demo_{number}/{name}"] = values
    return path


class Given(MadeSource):
    """Episodes of one stream, arm, with the values that are given."""

    def __init__(self, *values):
        first = np.asarray(values[0])
        super().__init__({"arm": StreamSpec("arm", first.dtype.name, first.shape[1:])}, len(values))
        self.values = [np.asarray(part) for part in values]

    def episode(self, index):
        values = self.values[index]
        spec = StreamSpec("arm", values.dtype.name, values.shape[1:])
        return Episode(index, {"arm": EpisodeStream(spec, values, np.arange(len(values)))})


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


# ---- streams that not all episodes have ------------------------------------------------------------------------------


def test_a_stream_that_turns_up_later_is_an_error_unless_the_streams_are_chosen(tmp_path):
    class Late(MadeSource):
        def __init__(self):
            super().__init__({"arm": SPECS["arm"]})

        def episode(self, index):
            return (MadeSource() if index == 3 else super()).episode(index)

    message = r"ingest: made: episode 3 has the stream 'force', .*; to leave it out, name the streams to keep with str"
    with pytest.raises(FormatError, match=message):
        robocache.ingest(Late(), tmp_path / "cache")
    assert not (tmp_path / "cache" / "manifest.json").exists()
    assert list(robocache.ingest(Late(), tmp_path / "cache", streams=["arm"]).specs) == ["arm"]


@pytest.mark.parametrize(
    ("name", "width", "problem"), [("\x1b[31m", 7, "a name of printable"), ("arm", 0, "rows of 1 to")]
)
def test_a_stream_that_no_cache_can_hold_is_an_error_of_the_source(tmp_path, name, width, problem):
    """Names and shapes come from files; a name that the user gives is an error of the call."""
    folder = tmp_path / "steps"
    folder.mkdir()
    np.savez(folder / "episode_0000000.npz", **{name: np.zeros(width)})
    np.save(folder / "ep_start_end_ids.npy", np.array([[0, 0]]))
    with pytest.raises(
        FormatError, match=rf"ingest: .*steps: stream .* must have {problem}.*; rename it or leave it out with streams="
    ):
        robocache.ingest(folder, tmp_path / "cache")
    with pytest.raises(ValueError, match=r"CacheWriter: stream .* must have a name"):
        robocache.ingest(MadeSource(), tmp_path / "cache", streams={"arm": "\x1b"})


def test_a_field_that_only_the_second_log_fills_is_named_with_its_file(tmp_path):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    for name, effort in (("a", []), ("b", [9.0])):
        log = logs.Log(tmp_path / f"{name}.mcap")
        message = {"header": logs.stamp(logs.START_NS), "name": ["j"], "position": [1.0], "velocity": []}
        log.write("/arm", "sensor_msgs/msg/JointState", {**message, "effort": effort}, logs.START_NS)
        log.close()
    with pytest.raises(FormatError, match=r"b\.mcap: episode 1 has the stream '/arm/effort'"):
        robocache.ingest(tmp_path, tmp_path / "cache", clock="log_time")
    cache = robocache.ingest(tmp_path, tmp_path / "cache", clock="log_time", streams=["/arm/position"])
    assert [len(episode.streams["/arm/position"]) for episode in cache] == [1, 1]


def test_robomimic_has_the_streams_of_all_demos(tmp_path):
    rows = np.ones((3, 2))
    path = write_robomimic(tmp_path / "x.h5", {"actions": rows}, {"actions": rows, "rewards": rows, "obs/x": 2 * rows})
    cache = robocache.ingest(path, tmp_path / "cache")
    assert list(cache.specs) == ["actions", "obs/x", "rewards"]
    assert [len(episode.streams.get("obs/x", ())) for episode in cache] == [0, 3]
    np.testing.assert_array_equal(cache.episode(1).streams["obs/x"].values, 2 * rows)


def test_robomimic_lists_the_members_that_it_leaves_out(tmp_path):
    rows = np.ones((3, 2))
    members = {"actions": rows, "action_dict/abs_pos": rows, "next_obs/x": rows, "obs/lang": np.array([b"a"] * 3)}
    path = write_robomimic(tmp_path / "x.h5", members, {"actions": rows, "seed": np.int64(3)})
    source = robocache.open(path)
    assert list(source.specs) == ["actions"]
    assert source.metadata["left_out"] == ["action_dict", "obs/lang", "seed"]
    assert len(list(source)) == 2


def test_a_robomimic_stream_that_is_no_rows_of_numbers_in_one_demo_is_an_error(tmp_path):
    rows = np.ones((3, 2))
    path = write_robomimic(tmp_path / "x.h5", {"actions": rows}, {"actions/left": rows, "rewards": rows})
    with pytest.raises(FormatError, match=r"episode 1 \(demo_1\): actions must be rows of numbers, as in another"):
        robocache.open(path).episode(1)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_a_float_that_becomes_wider_is_an_error_unless_a_dtype_is_asked_for(tmp_path):
    narrow, wide = np.ones((2, 1), np.float32), np.full((2, 1), 16777217.0)
    with pytest.raises(
        FormatError,
        match=r"ingest: episode 1: stream 'arm' must be float32, .*, got float64; set one dtype for all with dtype=",
    ):
        robocache.ingest(Given(narrow, wide), tmp_path / "cache")
    cache = robocache.ingest(Given(narrow, wide), tmp_path / "cache", dtype="float64")
    assert cache.episode(1).streams["arm"].values[0, 0] == 16777217
    cache = robocache.ingest(Given(narrow, wide), tmp_path / "cache", dtype={"arm": "float32"})
    assert cache.episode(1).streams["arm"].values[0, 0] == 16777216
    cache = robocache.ingest(Given(wide, narrow), tmp_path / "cache")  # every float32 is a float64
    assert cache.specs["arm"].dtype == "float64"
    assert cache.episode(1).streams["arm"].values[0, 0] == 1


def test_an_integer_that_changes_its_size_is_an_error(tmp_path):
    with pytest.raises(FormatError, match=r"stream 'arm' must be int32, as in the source's specs, got int64$"):
        robocache.ingest(Given(np.ones((2, 1), np.int32), np.ones((2, 1), np.int64)), tmp_path / "cache")


@pytest.mark.parametrize(("dtype", "large"), [("float16", 65520.0), ("bfloat16", 3.4e38), ("float32", 1e39)])
def test_a_number_that_is_too_large_for_the_dtype_is_an_error_and_infinity_is_not(dtype, large, tmp_path):
    values = np.array([[0, np.inf], [np.nan, -large]])
    with pytest.raises(FormatError, match=rf"stream 'arm', row 1: the value -.* is too large for {dtype}"):
        robocache.ingest(Given(values), tmp_path / "cache", dtype=dtype)
    values[1, 1] = 1
    assert robocache.ingest(Given(values), tmp_path / "cache", dtype=dtype).specs["arm"].dtype == dtype


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("images", ["keep", "jpeg"])
def test_pixels_that_are_floats_become_images(dtype, images, tmp_path, rng):
    pixels = rng.integers(0, 256, (3, 8, 10, 3)).astype(dtype)
    source = Given(pixels, pixels[:1])
    options = {"images": images, "quality": 100, "dtype": {"arm": "uint8"}}
    cache = robocache.ingest(source, tmp_path / "cache", **options)
    spec = cache.specs["arm"]
    assert (spec.dtype, spec.kind, spec.shape, spec.codec) == (
        "uint8", "image", (8, 10, 3), None if images == "keep" else "jpeg",
    )  # fmt: skip
    found = cache.episode(0).streams["arm"].values
    if images == "keep":
        np.testing.assert_array_equal(found, pixels)
    assert found.dtype == np.uint8
    window = robocache.Window(image=robocache.Image(size=(4, 4), layout="CHW"))
    batch = robocache.Loader(cache, 2, {"arm": window}, shuffle=False, framework="numpy").batch(0)["arm"]
    assert batch.shape == (2, 1, 3, 4, 4)
    small = robocache.ingest(source, tmp_path / "small", image_size=(4, 5), **options)
    assert small.episode(1).streams["arm"].values.shape == (1, 4, 5, 3)


@pytest.mark.parametrize("wrong", [0.5, -1.0, 256.0, np.nan])
def test_pixels_that_no_byte_holds_are_an_error(wrong, tmp_path):
    pixels = np.zeros((3, 2, 2, 1), np.float32)
    pixels[2, 1, 0] = wrong
    with pytest.raises(
        FormatError, match=rf"stream 'arm', row 2: pixels must be whole numbers from 0 to 255, got {wrong}"
    ):
        robocache.ingest(Given(pixels), tmp_path / "cache", dtype={"arm": "uint8"})


@pytest.mark.parametrize("shape", [(3,), (4, 4), (4, 4, 2)])
def test_other_floats_do_not_become_images(shape, tmp_path):
    message = r"dtype 'uint8' of 'arm' must be for pixels \(height, width, 1, 3 or 4 channels\), got vector"
    with pytest.raises(ValueError, match=message):
        robocache.ingest(Given(np.zeros((2, *shape), np.float32)), tmp_path / "cache", dtype="uint8")


def nested(levels):
    """An object of so many levels, with a number in the innermost one."""
    found = {"x": 1}
    for _ in range(levels - 1):
        found = {"x": found}
    return found


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (nested(62), "must have at most 61 levels of lists and objects, got 62"),
        ({"x": [0] * (1 << 20)}, "must have at most 1048568 values, got 1048578"),
        ({"x": "é" * (32 << 20)}, "must have at most 67108864 bytes of JSON, got 67108872"),
    ],
)
def test_metadata_that_no_manifest_can_hold_is_an_error_before_any_episode_is_read(tmp_path, metadata, message):
    """It was one at the commit, after hours of work."""
    source = Given(np.zeros((3, 2)))
    source.metadata = metadata
    source.episode = lambda index: pytest.fail("an episode was read")
    with pytest.raises(FormatError, match=message):
        robocache.ingest(source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_metadata_of_as_many_levels_as_a_manifest_can_hold_is_kept(tmp_path):
    source = Given(np.zeros((3, 2)))
    source.metadata = nested(61)
    assert robocache.ingest(source, tmp_path / "cache").metadata["source"]["metadata"] == nested(61)


def write_zarr(folder):
    zarr = pytest.importorskip("zarr", minversion="3", reason="stores are written with zarr")
    group = zarr.open_group(str(folder), mode="w", zarr_format=2)
    group.create_array("data/arm", data=np.arange(40.0), chunks=(4,))
    group.create_array("meta/episode_ends", data=np.array([10, 20, 40]))
    return folder


@pytest.mark.filterwarnings("ignore:.*metadata")
@pytest.mark.parametrize("inside", ["cache", "data/cache", "a/b/cache"])
def test_a_cache_may_be_written_into_a_folder_of_its_source(tmp_path, inside):
    """Its shards were taken for a change of the source, at the end of an ingest of more than one."""
    source = write_zarr(tmp_path / "x.zarr")
    (source / inside).parent.mkdir(exist_ok=True, parents=True)
    before = robocache.open(source, rate_hz=10).fingerprint()
    cache = robocache.ingest(source, source / inside, shard_bytes=64, rate_hz=10)
    assert cache.num_shards == 3
    assert robocache.open(source, rate_hz=10).fingerprint() == before
    assert robocache.ingest(source, source / inside, resume=True, shard_bytes=64, rate_hz=10).generation == 1
    (source / "data/more").write_text("x")
    assert robocache.open(source, rate_hz=10).fingerprint() != before
