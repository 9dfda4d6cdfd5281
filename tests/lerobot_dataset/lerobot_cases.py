"""Small LeRobot datasets, and their items restated from LeRobot's rules: by pyarrow, Pillow and PyAV alone."""

import io
import json

import adapter_datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("av")

FPS = 30
VIDEO, PICTURE = "observation.video", "observation.image"


def written(folder, version="v30"):
    """A dataset of 3 episodes with 5, 1 and 12 frames; numbers, an image, a lossless video."""
    rng = np.random.default_rng(5)
    return {"v30": adapter_datasets.lerobot_v30, "v21": adapter_datasets.lerobot_v21}[version](folder, rng)


def expected_item(dataset, number, deltas=None):
    """``dataset``: a ``Written``. ``deltas``: {key: [frames]}. In LeRobot's order: videos, features, is_pad, task."""
    lengths = [len(streams["action"][0]) for streams in dataset.streams]
    episode = int(np.searchsorted(np.cumsum(lengths), number, "right"))
    row = number - sum(lengths[:episode])
    last = lengths[episode] - 1
    streams = dataset.streams[episode]
    deltas = deltas or {}

    def at(key, moments):
        rows = [min(max(row + moment, 0), last) for moment in moments]
        if key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
            frames = np.array(rows)
            numbers = {
                "timestamp": (frames / FPS).astype(np.float32),
                "frame_index": frames,
                "episode_index": np.full(len(rows), episode),
                "index": frames + sum(lengths[:episode]),
                "task_index": np.full(len(rows), episode % 2),
            }
            return torch.tensor(numbers[key].tolist())
        values = streams[key][0][rows]
        if key in (VIDEO, PICTURE):
            return torch.from_numpy(values.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))
        values = torch.tensor(values.tolist())
        return values[:, 0] if values.shape[1:] == (1,) else values

    def value(key):
        found = at(key, deltas.get(key, [0]))
        return found if key in deltas and not (key == VIDEO and len(found) == 1) else found[0]

    item = {VIDEO: value(VIDEO)}
    item |= {key: value(key) for key in adapter_datasets.FEATURES if key != VIDEO}
    for key, moments in deltas.items():
        item[f"{key}_is_pad"] = torch.tensor([not 0 <= row + moment <= last for moment in moments])
    return item | {"task": dataset.tasks[episode]}


def assert_same_item(got, expected):
    assert list(got) == list(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert (got[key].dtype, got[key].shape) == (value.dtype, value.shape), key
            assert torch.equal(got[key], value), key
        else:
            assert got[key] == value, key


def add_columns(root, columns, features):
    """Appends columns to the only table of a v3.0 dataset, and declares them."""
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name, column in columns.items():
        table = table.append_column(name, column)
    pq.write_table(table, path)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= features
    (root / "meta/info.json").write_text(json.dumps(info))


def tiff(picture):
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(picture).save(buffer, "TIFF")
    return buffer.getvalue()


def cells(pictures, encode):
    return pa.array([{"bytes": encode(picture), "path": None} for picture in pictures])
