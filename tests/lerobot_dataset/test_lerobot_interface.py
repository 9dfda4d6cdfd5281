"""The rest of LeRobot's interface: metadata, the table of frames, what is refused; and the loader."""

import inspect
import pickle

import numpy as np
import pytest
from lerobot_cases import FPS, PICTURE, VIDEO, written

torch = pytest.importorskip("torch")
from robocache.lerobot import LeRobotDataset, LeRobotDatasetMetadata  # noqa: E402
from robocache.lerobot.dataset import WRITE_SIDE  # noqa: E402

ARGUMENTS = [
    *("repo_id", "root", "episodes", "episode_filter", "image_transforms", "delta_timestamps", "tolerance_s"),
    *("revision", "force_cache_sync", "download_videos", "video_backend", "return_uint8", "depth_output_unit"),
    *("batch_encoding_size", "rgb_encoder", "depth_encoder", "encoder_threads", "streaming_encoding"),
    *("encoder_queue_maxsize", "token"),
]
"""Of LeRobot 0.6, in its order."""


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBOCACHE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return written(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def ours(dataset):
    return LeRobotDataset("local/x", root=dataset.path)


def test_the_constructor_has_the_arguments_of_lerobot():
    assert list(inspect.signature(LeRobotDataset).parameters) == ARGUMENTS


@pytest.mark.parametrize("name", WRITE_SIDE)
def test_arguments_for_recording_are_refused(dataset, name):
    with pytest.raises(ValueError, match=f"LeRobotDataset: {name} must be .* because this class only reads, got 7"):
        LeRobotDataset("local/x", root=dataset.path, **{name: 7})


def test_recording_is_refused(ours):
    for call in (ours.add_frame, ours.save_episode, ours.push_to_hub, LeRobotDataset.create, LeRobotDataset.resume):
        with pytest.raises(RuntimeError, match="this class only reads"):
            call({})
    assert ours.writer is None
    assert not ours.has_pending_frames()


def test_metadata_has_what_policies_samplers_and_scripts_read(ours, dataset):
    meta = LeRobotDatasetMetadata("local/x", root=dataset.path)
    assert (meta.fps, meta.robot_type, meta.total_frames, meta.total_episodes, meta.total_tasks) == (
        30,
        "so100",
        18,
        3,
        2,
    )
    assert (meta.camera_keys, meta.video_keys, meta.image_keys) == ([PICTURE, VIDEO], [VIDEO], [PICTURE])
    assert meta.shapes["action"] == (3,)
    assert meta.names["action"] == ["x", "y", "z"]
    assert meta.features["action"]["shape"] == (3,)
    assert meta.info["fps"] == meta.info.fps == 30
    assert "splits" in meta.info
    assert meta.info.get("nothing", 4) == 4
    assert meta.info.to_dict()["features"]["action"]["shape"] == [3]
    assert isinstance(meta.stats["action"]["mean"], np.ndarray)
    assert meta.stats["action"]["mean"].tolist() == [0.5]
    assert meta.tasks.iloc[1].name == "pour"
    assert meta.tasks.loc["pour"].task_index == 1
    assert (meta.get_task_index("pour"), meta.get_task_index("fly")) == (1, None)
    assert meta.episodes["dataset_from_index"] == [0, 5, 6]
    assert meta.episodes[2]["dataset_to_index"] == 18
    assert [row["length"] for row in meta.episodes] == [5, 1, 12]
    assert len(meta.episodes) == 3
    assert meta.episodes[[0, 2]]["length"] == [5, 12]
    assert "stats/action/min" not in meta.episodes.column_names
    assert str(meta.get_data_file_path(1)) == "data/chunk-000/file-000.parquet"
    assert str(meta.get_video_file_path(1, VIDEO)) == "videos/observation.video/chunk-000/file-000.mp4"
    assert not meta.has_language_columns
    assert meta.depth_keys == []
    assert ours.features is ours.meta.features
    assert ours.fps == 30


def test_the_table_of_frames_has_rows_and_columns(ours):
    table = ours.hf_dataset
    assert len(table) == 18
    assert VIDEO not in table.column_names
    assert [int(x) for x in table["index"][:3]] == [0, 1, 2]
    assert table[-1]["frame_index"].item() == 11
    assert ours.get_raw_item(0)[PICTURE].shape == (3, 16, 24)
    assert table.unique("episode_index") == [0, 1, 2]
    assert table.data.column("task_index").to_numpy().tolist() == [0] * 5 + [1] + [0] * 12
    assert [x.shape for x in ours.select_columns(["action", "index"])[2:4]["action"]] == [(3,), (3,)]
    with pytest.raises(KeyError, match="hf_dataset has no column 'acton'"):
        ours.select_columns("acton")


def test_the_representation_is_that_of_lerobot(ours):
    first, *_, last = repr(ours).splitlines()
    assert (first, last) == ("LeRobotDataset({", "})")
    assert "    Number of selected samples: '18',\n" in repr(ours)


def test_a_copy_by_pickle_returns_the_same_items(ours):
    ours[3]
    copy = pickle.loads(pickle.dumps(ours))
    assert torch.equal(copy[3][VIDEO], ours[3][VIDEO])
    assert copy[3]["task"] == ours[3]["task"]


@pytest.mark.parametrize(
    "deltas",
    [
        None,
        {"action": [0, 1, 2], "next.done": [-1, 0], PICTURE: [-1, 0], VIDEO: [0, 2]},
        {VIDEO: [0], "action": [0]},
        {"action": [*range(100)], VIDEO: [-20, 0]},
    ],
    ids=["frames", "windows", "one_moment", "longer_than_every_episode"],
)
@pytest.mark.parametrize("episodes", [None, [2, 0]])
def test_batches_of_the_loader_are_collated_items(dataset, deltas, episodes):
    seconds = deltas and {key: [frames / FPS for frames in moments] for key, moments in deltas.items()}
    ours = LeRobotDataset("local/x", root=dataset.path, delta_timestamps=seconds, episodes=episodes)
    expected = torch.utils.data.DataLoader(ours, batch_size=4, drop_last=False)
    loader = ours.loader(4, shuffle=False, drop_last=False)
    assert len(loader) == len(expected)
    for got, batch in zip(loader, expected, strict=True):
        assert set(got) == set(batch)
        for key, value in batch.items():
            if key == "task":
                assert got[key] == value
                continue
            assert (got[key].dtype, got[key].shape) == (value.dtype, value.shape), key
            assert torch.equal(got[key], value), key


def test_the_loader_is_one_of_robocache(ours):
    loader = ours.loader(4, seed=3, tasks=False)
    first = loader.batch(0)
    assert "task" not in first
    assert loader.seed == 3
    assert loader.num_steps == 4
    state = loader.state_dict()
    again = pickle.loads(pickle.dumps(loader))
    again.load_state_dict(state)
    assert torch.equal(next(iter(again))["index"], first["index"])


def test_datasets_of_the_loader_have_items_in_their_form(ours):
    loader = ours.loader(4, shuffle=False)
    batches = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)
    collated = torch.utils.data.DataLoader(loader.dataset, batch_size=4, drop_last=True)
    for got, by_number, expected in zip(batches, collated, loader, strict=True):
        assert set(got) == set(by_number) == set(expected)
        assert got[VIDEO].shape == by_number[VIDEO].shape == (4, 3, 32, 48)
        assert torch.equal(got[PICTURE], by_number[PICTURE])
        assert got["task"] == by_number["task"] == expected["task"]
    assert loader.dataset[7].keys() == ours[7].keys()
    assert torch.equal(loader.dataset[7][VIDEO], ours[7][VIDEO])


@pytest.mark.parametrize("episodes", [[], [7], np.array([2, 0])])
def test_a_selection_may_be_empty_or_an_array(dataset, episodes):
    selected = LeRobotDataset("local/x", root=dataset.path, episodes=episodes)
    count = 17 if len(episodes) == 2 else 0
    assert (len(selected), len(selected.absolute_to_relative_idx)) == (count, count)
    assert type(selected.num_episodes) is int


BAD = {
    "windows that are a list": (
        {"delta_timestamps": [0]},
        TypeError,
        r"delta_timestamps must be a dict, .*, got \[0\]",
    ),
    "a delta that is no list": (
        {"delta_timestamps": {"action": 0.1}},
        TypeError,
        r"delta_timestamps\['action'\] must be a list of seconds, got 0.1",
    ),
    "a delta in words": (
        {"delta_timestamps": {"action": ["a"]}},
        ValueError,
        r"delta_timestamps\['action'\] must be a number, got 'a'",
    ),
    "a delta that is NaN": (
        {"delta_timestamps": {"action": [float("nan")]}},
        ValueError,
        r"delta_timestamps\['action'\] must be finite, got nan",
    ),
    "a tolerance in words": ({"tolerance_s": "x"}, ValueError, "tolerance_s must be a number, got 'x'"),
    "episodes in words": ({"episodes": "0"}, TypeError, "episodes must be a list of numbers of episodes, got '0'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_get_one_clear_line(dataset, case):
    options, kind, message = BAD[case]
    with pytest.raises(kind, match=f"^LeRobotDataset: {message}"):
        LeRobotDataset("local/x", root=dataset.path, **options)


def test_deltas_may_be_tensors_and_items_are_found_by_numbers_alone(dataset):
    seconds = torch.tensor([0.0, 1 / FPS])
    ours = LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"action": seconds})
    assert ours[torch.tensor(3)]["action"].shape == (2, 3)
    with pytest.raises(TypeError, match=r"LeRobotDataset: index must be a whole number, got \[0, 1\]"):
        ours[[0, 1]]


def test_metadata_takes_the_type_of_a_repository(dataset):
    assert LeRobotDatasetMetadata("local/x", root=dataset.path, repo_type="dataset").repo_type == "dataset"
    with pytest.raises(ValueError, match="repo_type must be 'dataset', because buckets are not read, got 'bucket'"):
        LeRobotDatasetMetadata("local/x", root=dataset.path, repo_type="bucket")


def test_the_loader_refuses_what_the_dataset_decides(ours, dataset):
    with pytest.raises(ValueError, match="delta_timestamps must be given to LeRobotDataset, got it here"):
        ours.loader(4, delta_timestamps={})
    changed = LeRobotDataset("local/x", root=dataset.path, image_transforms=torch.nn.Identity())
    with pytest.raises(ValueError, match="image_transforms must be None"):
        changed.loader(4)
