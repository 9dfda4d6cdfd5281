"""``robocache.datasets.robomimic.SequenceDataset`` against the loops of robomimic, item by item."""

import numpy as np
import pytest
import torch
from robocache import CacheWriter, Episode, EpisodeStream, StreamSpec
from robocache.datasets.robomimic import SequenceDataset
from robocache.sources.reading.times import times_at_rate
from test_loader_recipes import CLOCKS, LENGTHS, Recordings, robomimic_dataset

OBSERVATIONS = {"quat": ("float64", (4,)), "camera": ("uint8", (4, 5, 3)), "phase": ("int64", ())}
SPECS = {
    "actions": StreamSpec("actions", "float64", (3,)),
    "gripper": StreamSpec("gripper", "float32", ()),
    "dones": StreamSpec("dones", "int64", ()),
    **{
        f"{group}/{key}": StreamSpec(
            f"{group}/{key}",
            dtype,
            shape,
            "image" if key == "camera" else "vector",
            method="slerp_xyzw" if key == "quat" else None,
        )
        for group in ("obs", "next_obs")
        for key, (dtype, shape) in OBSERVATIONS.items()
    },
}
KEYS = {"obs_keys": (*OBSERVATIONS,), "action_keys": ("actions", "gripper"), "dataset_keys": ("dones", "actions")}


def recorded(folder, hz=20, clock="from zero"):
    return Recordings(folder, hz, clock, specs=SPECS)


def robomimic_item(index, windows):
    """What ``get_item`` returns for windows ``{stream: (sequence, pad_mask)}``."""
    mask = windows["actions"][1].reshape(-1, 1)
    item = {key: windows[key][0].astype(np.float32) for key in ("gripper", "dones")} | {"pad_mask": mask}
    for group in ("obs", "next_obs"):
        item[group] = {key: windows[f"{group}/{key}"][0] for key in OBSERVATIONS} | {"pad_mask": mask}
    joined = np.concatenate([windows["actions"][0], windows["gripper"][0].reshape(-1, 1)], axis=1)
    return item | {"actions": joined.astype(np.float32), "index": index}


def assert_same(found, expected, where=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}/{key}")
    elif isinstance(expected, int):
        assert found == expected, where
    else:
        assert found.dtype == expected.dtype, where
        np.testing.assert_array_equal(found, expected, where, strict=True)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("hz", [10, 15, 20, 24, 30, 60])
def test_every_item_is_that_of_robomimic(tmp_path, hz, clock):
    recordings = recorded(tmp_path / "c", hz, clock)
    for stack, length, *padded in ((1, 1), (1, 10), (3, 1), (4, 16), (4, 6, 0, 0), (4, 6, 1, 0), (4, 6, 0, 1), (3, 60)):
        before, after = map(bool, padded or (1, 1))
        dataset = SequenceDataset(
            recordings.cache, **KEYS, frame_stack=stack, seq_length=length, pad_frame_stack=before,
            pad_seq_length=after, get_pad_mask=True, rate_hz=hz,
        )  # fmt: skip
        expected = list(robomimic_dataset(recordings, stack, length, before, after))
        assert len(dataset) == len(expected) > 0
        for i, windows in enumerate(expected):
            assert_same(dataset[i], robomimic_item(i, windows))


def test_masks_and_next_observations_are_there_only_if_requested(tmp_path):
    cache = recorded(tmp_path / "c").cache
    item = SequenceDataset(cache.path, ["phase"], ["actions"], [], {"actions": {}}, load_next_obs=False, rate_hz=20)[3]
    assert item.keys() == {"actions", "obs", "index"}
    assert item["obs"].keys() == {"phase"}
    assert SequenceDataset(cache, ["phase"], ["actions"], [], rate_hz=20)[3].keys() == item.keys() | {"next_obs"}


def test_episodes_are_those_given(tmp_path):
    recordings = recorded(tmp_path / "c")
    dataset = SequenceDataset(recordings.cache, **KEYS, seq_length=4, episodes=[0, 2], rate_hz=20)
    assert len(dataset) == LENGTHS[0] + LENGTHS[2]
    expected = recordings.episodes[2]["obs/phase"][:4]
    np.testing.assert_array_equal(dataset[LENGTHS[0]]["obs"]["phase"], expected)


def test_the_rate_is_that_of_the_first_action_key(tmp_path):
    specs = {name: StreamSpec(name, "int64", (), rate_hz=30) for name in ("actions", "obs/phase")}
    recordings = Recordings(tmp_path / "c", 30, "from zero", specs=specs)
    dataset = SequenceDataset(recordings.cache, ["phase"], ["actions"], [], seq_length=5, load_next_obs=False)
    np.testing.assert_array_equal(dataset[2]["obs"]["phase"], recordings.episodes[0]["obs/phase"][2:7])


def test_the_options_that_the_training_of_robomimic_gives_are_taken(tmp_path):
    recordings = recorded(tmp_path / "c")
    given = {"hdf5_cache_mode": "low_dim", "hdf5_use_swmr": True, "hdf5_normalize_obs": False, "lang": None}
    given |= {"filter_by_attribute": None, "demo_limit": None, "goal_mode": None, "action_config": {"actions": {}}}
    dataset = SequenceDataset(recordings.cache, **KEYS, **given, load_next_obs=True, seq_length=4, rate_hz=20)
    same = SequenceDataset(recordings.cache, **KEYS, seq_length=4, rate_hz=20)
    assert_same(dataset[5], same[5])


def test_the_call_of_robomimic_0_3_has_its_items(tmp_path):
    recordings = recorded(tmp_path / "c")
    dataset = SequenceDataset(
        hdf5_path=recordings.cache.path, obs_keys=["quat"], dataset_keys=["actions", "dones"], load_next_obs=False,
        frame_stack=2, seq_length=4, pad_frame_stack=True, pad_seq_length=True, get_pad_mask=False, goal_mode=None,
        hdf5_cache_mode="all", hdf5_use_swmr=True, hdf5_normalize_obs=False, filter_by_attribute=None, rate_hz=20,
    )  # fmt: skip
    assert dataset.get_dataset_sampler() is None
    for i, windows in enumerate(robomimic_dataset(recordings, 2, 4)):
        expected = {key: windows[key][0].astype(np.float32) for key in ("actions", "dones")}
        assert_same(dataset[i], expected | {"obs": {"quat": windows["obs/quat"][0]}})


@pytest.mark.parametrize("options", [{}, {"filter_by_attribute": "train"}, {"demo_limit": 2}, {"episodes": [1, 2]}])
def test_normalized_observations_are_those_of_robomimic(tmp_path, options):
    """Episodes by their filter keys, by a limit, or by number."""
    masks = [["train"], ["valid"], ["train", "valid"], [], ["train"]]
    specs = {name: SPECS[name] for name in ("actions", "obs/quat", "obs/phase", "next_obs/quat", "next_obs/phase")}
    recordings = Recordings(tmp_path / "c", 20, "from zero", specs=specs, masks=masks)
    kept = {"filter_by_attribute": [0, 2, 4], "demo_limit": [0, 1], "episodes": [1, 2]}.get(
        next(iter(options), ""), range(5)
    )
    recordings.episodes = [recordings.episodes[i] for i in kept]
    options = options | {"hdf5_normalize_obs": True, "rate_hz": 20, "seq_length": 3}
    dataset = SequenceDataset(recordings.cache, ["quat", "phase"], ["actions"], **options)
    stats = dataset.get_obs_normalization_stats()
    for key, shape in (("quat", (1, 4)), ("phase", (1,))):
        rows = np.concatenate([episode[f"obs/{key}"] for episode in recordings.episodes]).astype(np.float64)
        assert stats[key]["mean"].shape == stats[key]["std"].shape == shape
        np.testing.assert_allclose(stats[key]["mean"][0], rows.mean(0), rtol=1e-6)
        np.testing.assert_allclose(stats[key]["std"][0], rows.std(0) + 1e-3, rtol=1e-6)
    expected = [*robomimic_dataset(recordings, 1, 3)]
    assert len(dataset) == len(expected)
    for i, windows in enumerate(expected):
        for name in ("obs/quat", "obs/phase", "next_obs/quat"):
            group, key = name.split("/")
            want = (windows[name][0] - stats[key]["mean"]) / stats[key]["std"]
            np.testing.assert_array_equal(dataset[i][group][key], want, strict=True)
    with pytest.raises(ValueError, match="hdf5_normalize_obs must be True to have statistics"):
        SequenceDataset(recordings.cache, ["quat"], ["actions"], rate_hz=20).get_obs_normalization_stats()


def test_items_are_batched_by_the_data_loader_of_torch(tmp_path):
    dataset = SequenceDataset(recorded(tmp_path / "c").cache, **KEYS, seq_length=4, get_pad_mask=True, rate_hz=20)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=8))
    assert sum(len(batch["index"]) for batch in batches) == len(dataset)
    assert batches[1]["obs"]["camera"].shape == (8, 4, 4, 5, 3)
    np.testing.assert_array_equal(batches[1]["actions"][2], dataset[10]["actions"])
    assert not batches[4]["pad_mask"][4, 1:].any()  # the last row of the first episode


def test_an_observation_without_the_rows_of_the_actions_is_an_error(tmp_path):
    specs = {name: StreamSpec(name, "float32", ()) for name in ("actions", "obs/arm")}
    writer = CacheWriter(tmp_path / "c", specs)
    for number, lengths in enumerate(((6, 6), (6, 4), (6, 0))):
        rows = {
            name: EpisodeStream(spec, np.ones(count, np.float32), times_at_rate(count, 20))
            for (name, spec), count in zip(specs.items(), lengths, strict=True)
            if count
        }
        writer.add(Episode(number, rows))
    dataset = SequenceDataset(writer.commit(), ["arm"], ["actions"], [], load_next_obs=False, rate_hz=20)
    readable = [*range(10)]
    assert [dataset[i]["index"] for i in readable] == readable
    for i in range(10, 18):
        with pytest.raises(ValueError, match=f"'obs/arm' must have the rows of 'actions' in item {i}"):
            dataset[i]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"goal_mode": "last"}, r"goal_mode must not be given \(goals are not supported\), got 'last'"),
        ({"filter_by_attribute": "train"}, r"filter_by_attribute must be a filter key of .*, none, got 'train'"),
        (
            {"demo_limit": 3, "episodes": [0]},
            "episodes takes the place of filter keys and demo",
        ),
        ({"hdf5_normalize_obs": True}, "hdf5_normalize_obs is for vectors, got obs/camera"),
        ({"action_config": {"actions": {"normalization": "min_max"}}}, "no normalization of 'actions', got 'min_max'"),
        ({"frame_stack": 0}, "frame_stack and seq_length must be at least 1, got 0 and 1"),
        ({"seq_length": 0}, "frame_stack and seq_length must be at least 1, got 1 and 0"),
        ({"obs_keys": ["arm"]}, r"must name streams of .*, got obs/arm, next_obs/arm; it has actions, "),
        ({"action_keys": []}, "got none; it has actions, "),
        ({"action_keys": None, "dataset_keys": [], "obs_keys": []}, "got none; it has actions, "),
    ],
)
def test_what_is_not_supported_is_an_error(tmp_path, given, words):
    with pytest.raises(ValueError, match=f"SequenceDataset: .*{words}"):
        SequenceDataset(recorded(tmp_path / "c").cache, **(KEYS | given), rate_hz=20)
