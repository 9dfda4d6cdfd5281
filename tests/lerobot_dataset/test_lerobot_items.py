"""Items of robocache.lerobot.LeRobotDataset against LeRobot's rules. With LeRobot itself: lerobot_oracle.py."""

import adapter_datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_cases import FPS, PICTURE, VIDEO, add_columns, assert_same_item, cells, expected_item, tiff, written

torch = pytest.importorskip("torch")
from robocache.lerobot import FrameTimestampError, LeRobotDataset  # noqa: E402

WINDOWS = (
    None,
    {"action": [0, 1, 2, 3], "observation.state": [-1, 0]},
    {"action": [0], "next.done": [-20, 0, 20], "index": [3, -3], PICTURE: [-1, 0, 1], VIDEO: [-2, 0, 5, -2]},
    {PICTURE: [0], VIDEO: [0]},
)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBOCACHE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module", params=["v30", "v21"])
def dataset(request, tmp_path_factory):
    return written(tmp_path_factory.mktemp("data"), request.param)


def in_seconds(deltas):
    return deltas and {key: [frames / FPS for frames in moments] for key, moments in deltas.items()}


@pytest.mark.parametrize("deltas", WINDOWS, ids=["frames", "chunks", "all_kinds", "one_moment"])
def test_every_item_has_keys_shapes_dtypes_and_values_of_lerobot(dataset, deltas):
    ours = LeRobotDataset("local/x", root=dataset.path, delta_timestamps=in_seconds(deltas), video_backend="pyav")
    assert len(ours) == ours.num_frames == 18
    for number in range(len(ours)):
        assert_same_item(ours[number], expected_item(dataset, number, deltas))


def test_selected_episodes_keep_the_order_of_the_files(dataset):
    ours = LeRobotDataset("local/x", root=dataset.path, episodes=[2, 0], delta_timestamps={"action": [-1 / FPS, 0]})
    assert (len(ours), ours.num_episodes, ours.episodes) == (17, 2, [2, 0])
    numbers = [*range(5), *range(6, 18)]
    for number, absolute in enumerate(numbers):
        assert_same_item(ours[number], expected_item(dataset, absolute, {"action": [-1, 0]}))
    assert ours.absolute_to_relative_idx == {absolute: number for number, absolute in enumerate(numbers)}
    assert ours.episode_data_index["from"].tolist() == [0, 5]
    assert ours.episode_data_index["to"].tolist() == [5, 17]


def test_a_filter_keeps_episodes_by_their_metadata(dataset):
    ours = LeRobotDataset("local/x", root=dataset.path, episodes=[0, 1], episode_filter=lambda row: row["length"] > 1)
    assert (ours.episodes, len(ours)) == ([0], 5)
    with pytest.raises(ValueError, match="episode_filter must keep at least one episode, got none"):
        LeRobotDataset("local/x", root=dataset.path, episode_filter=lambda row: row["length"] > 99)


def test_episodes_out_of_range_are_ignored_with_a_warning(dataset, caplog):
    ours = LeRobotDataset("local/x", root=dataset.path, episodes=[1, 7])
    assert (len(ours), ours.num_episodes) == (1, 1)
    assert "[0, 3), others are ignored, got [7]" in caplog.text


def test_numbers_from_the_end_and_slices_count_as_in_a_list(dataset):
    ours = LeRobotDataset("local/x", root=dataset.path)
    assert_same_item(ours[-1], expected_item(dataset, 17))
    assert_same_item(ours[np.int64(3)], expected_item(dataset, 3))
    assert [item["index"].item() for item in ours[15:]] == [15, 16, 17]
    for number in (18, -19):
        with pytest.raises(IndexError, match=rf"index must be in \[-18, 18\), got {number}"):
            ours[number]


def test_deltas_between_frames_are_an_error(dataset):
    with pytest.raises(ValueError, match=r"multiples of 1/30 s within tolerance_s=0.0001, got action: 0.05"):
        LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"action": [0, 0.05]})
    near = LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"action": [0.03334]}, tolerance_s=1e-4)
    assert near.delta_indices == {"action": [1]}
    with pytest.raises(KeyError, match="delta_timestamps must name features"):
        LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"acton": [0]})


def test_a_frame_of_a_video_that_is_too_far_away_is_an_error(tmp_path):
    dataset = written(tmp_path)
    path = dataset.path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    name = f"videos/{VIDEO}/from_timestamp"
    later = pa.array([begin + 0.01 for begin in table.column(name).to_pylist()])
    pq.write_table(table.set_column(table.column_names.index(name), name, later), path)
    with pytest.raises(FrameTimestampError, match=r"tolerance_s=0.0001 of 0.0100\d+ s, got one 0.0100\d+ s away"):
        LeRobotDataset("local/x", root=dataset.path, video_backend="pyav")[0]
    ours = LeRobotDataset("local/x", root=dataset.path, video_backend="pyav", tolerance_s=0.011)
    assert_same_item(ours[3], expected_item(dataset, 3))


def test_transforms_see_each_picture_and_can_be_replaced(dataset):
    def halved(picture):
        return picture[..., ::2, ::2]

    ours = LeRobotDataset("local/x", root=dataset.path, image_transforms=halved, return_uint8=True)
    item = ours[0]
    assert item[PICTURE].shape == (3, 8, 12)
    assert item[PICTURE].dtype == torch.float32
    assert item[VIDEO].shape == (3, 16, 24)
    assert item[VIDEO].dtype == torch.uint8
    ours.clear_image_transforms()
    assert ours[0][PICTURE].shape == (3, 16, 24)
    with pytest.raises(TypeError, match="image_transforms must be callable or None, got 3"):
        ours.set_image_transforms(3)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_return_the_same_items(dataset, context):
    ours = LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"action": [0, 1 / FPS]})
    ours[0]  # files are open when workers start
    batches = torch.utils.data.DataLoader(ours, batch_size=6, num_workers=2, multiprocessing_context=context)
    found = torch.cat([batch[VIDEO] for batch in batches])
    assert torch.equal(found, torch.stack([ours[number][VIDEO] for number in range(18)]))


def test_texts_language_and_wide_numbers_come_as_lerobot_returns_them(tmp_path):
    dataset = written(tmp_path)
    call = '{"function": {"name": "say"}}'
    said = {"role": "user", "content": "go", "style": None, "camera": None, "tool_calls": [call]}
    features = {
        "note": {"dtype": "string", "shape": [1], "names": None},
        "load": {"dtype": "float64", "shape": [2], "names": None},
        "mode": {"dtype": "uint8", "shape": [1], "names": None},
        "language_events": {"dtype": "language", "shape": [1], "names": None},
    }
    columns = {
        "note": pa.array([f"step {i}" for i in range(18)]),
        "load": pa.array([[0.1, i] for i in range(18)], pa.list_(pa.float64())),
        "mode": pa.array(np.arange(18, dtype=np.uint8)),
        "language_events": pa.array([[said] if i % 2 else [] for i in range(18)]),
    }
    add_columns(dataset.path, columns, features)
    ours = LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"mode": [-1 / FPS, 0]})
    item = ours[7]
    assert item["note"] == "step 7"
    assert item["load"].dtype == torch.float32
    assert torch.equal(item["load"], torch.tensor([0.1, 7.0]))
    assert item["mode"].dtype == torch.int64
    assert item["mode"].tolist() == [6, 7]
    assert item["language_events"] == [{**said, "tool_calls": [{"function": {"name": "say"}}]}]
    assert ours[6]["language_events"] == []
    assert ours.meta.has_language_columns
    with pytest.raises(TypeError):
        LeRobotDataset("local/x", root=dataset.path, delta_timestamps={"note": [0]})[0]


def test_depth_pictures_are_float32_in_the_unit_that_is_asked_for(tmp_path, rng):
    dataset = written(tmp_path)
    near = rng.random((18, 8, 12)).astype(np.float32)
    far = rng.integers(0, 65535, (18, 8, 12)).astype(np.uint16)
    gray = rng.integers(0, 256, (18, 8, 12)).astype(np.uint8)
    info = {"is_depth_map": True}
    features = {
        name: {"dtype": "image", "shape": [8, 12, 1], "names": None, "info": unit}
        for name, unit in (
            ("near", {**info, "depth_unit": "m"}),
            ("far", {**info, "depth_unit": "mm"}),
            ("odd", info),
        )
    }
    columns = {"near": cells(near, tiff), "far": cells(far, tiff), "odd": cells(gray, adapter_datasets.png)}
    add_columns(dataset.path, columns, features)
    mm, m = (LeRobotDataset("local/x", root=dataset.path, depth_output_unit=unit)[9] for unit in ("mm", "m"))
    assert torch.equal(mm["near"], torch.from_numpy(near[9:10]) * 1000)
    assert torch.equal(m["near"], torch.from_numpy(near[9:10]))
    assert torch.equal(mm["far"], torch.from_numpy(far[9:10].astype(np.float32)))
    assert torch.equal(m["far"], torch.from_numpy(far[9:10].astype(np.float32)) / 1000)
    # 8-bit depth is in no cache, because it has no unit; LeRobot returns it like any picture
    assert torch.equal(m["odd"], torch.from_numpy(gray[9:10].astype(np.float32)) / 255)
    with pytest.raises(ValueError, match="depth_output_unit must be one of m, mm, got 'cm'"):
        LeRobotDataset("local/x", root=dataset.path, depth_output_unit="cm")


def test_an_unknown_backend_of_videos_is_refused(dataset):
    with pytest.raises(ValueError, match="video_backend must be one of torchcodec, pyav, video_reader or None"):
        LeRobotDataset("local/x", root=dataset.path, video_backend="opencv")
