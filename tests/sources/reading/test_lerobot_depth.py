"""Depth maps of LeRobot 0.6: pictures and videos, with their units. Written here as LeRobot writes them."""

import io
import json
import math

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from hostile import edit_json

pa = pytest.importorskip("pyarrow", reason="LeRobot datasets are written with pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
av = pytest.importorskip("av")
image = pytest.importorskip("PIL.Image")

ROWS, FPS, SIZE = 6, 30, (24, 32)
QUANTIZER = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}


def as_codes(depth_m, depth_min, depth_max, shift, use_log):
    """The 12-bit codes of depth in meters, as LeRobot's quantize_depth makes them."""
    place = np.log(depth_m + shift) if use_log else depth_m
    low, high = (math.log(x + shift) for x in (depth_min, depth_max)) if use_log else (depth_min, depth_max)
    return np.rint((place - low) / (high - low) * 4095).clip(0, 4095).astype(np.uint16)


def as_depth_m(codes, depth_min, depth_max, shift, use_log):
    """And back, as its dequantize_depth does, in float64."""
    low, high = (math.log(x + shift) for x in (depth_min, depth_max)) if use_log else (depth_min, depth_max)
    place = codes / 4095 * (high - low) + low
    return np.clip(np.exp(place) - shift if use_log else place, depth_min, depth_max)


def tiff(picture):
    buffer = io.BytesIO()
    image.fromarray(picture).save(buffer, "TIFF", compression="raw")
    return buffer.getvalue()


def write_depth_video(path, codes, pixels="gray12le", codec="libx265"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options={"x265-params": "lossless=1:log-level=none"})
        stream.height, stream.width, stream.pix_fmt = *codes.shape[1:], pixels
        for picture in codes:
            frame = av.VideoFrame(picture.shape[1], picture.shape[0], pixels)
            plane = frame.planes[0]
            rows = np.zeros((picture.shape[0], plane.line_size // 2), np.uint16)
            rows[:, : picture.shape[1]] = picture
            plane.update(rows.tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_dataset(root, features, columns=None, tasks=("push",), task_of_frame=None, tasks_of_meta=None):
    """An episode of v3.0 with an action, and more columns and features."""
    for name in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / name).mkdir(parents=True)
    frame = np.arange(ROWS)
    table = {
        "action": pa.array(list(np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)), pa.list_(pa.float32())),
        **(columns or {}),
        "timestamp": pa.array((frame / FPS).astype(np.float32)),
        "frame_index": frame,
        "episode_index": np.zeros(ROWS, np.int64),
        "index": frame,
        "task_index": np.zeros(ROWS, np.int64) if task_of_frame is None else np.array(task_of_frame),
    }
    pq.write_table(pa.table(table), root / "data/chunk-000/file-000.parquet")
    videos = [name for name, feature in features.items() if feature["dtype"] == "video"]
    numbers = {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0}
    told = {f"videos/{name}/{key}": value for name in videos for key, value in numbers.items()}
    meta = {"episode_index": 0, "tasks": list(tasks_of_meta or tasks), "length": ROWS, "data/chunk_index": 0}
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pa.Table.from_pylist([{**meta, "data/file_index": 0, **told}]), path)
    names = pa.table({"task_index": np.arange(len(tasks)), "task": list(tasks)})
    pq.write_table(names, root / "meta/tasks.parquet")
    own = {name: datasets.FEATURES[name] for name in ("timestamp", "frame_index", "episode_index", "index")}
    own |= {"action": {"dtype": "float32", "shape": [2], "names": None}, "task_index": {"dtype": "int64", "shape": [1]}}
    info = datasets.lerobot_info("v3.0", {**own, **features}, FPS)
    (root / "meta/info.json").write_text(json.dumps({**info, "total_episodes": 1}))
    return root


def depth_feature(dtype, unit=None, **info):
    told = {"is_depth_map": True, **({"depth_unit": unit} if unit else {}), **info}
    return {"dtype": dtype, "shape": [*SIZE, 1], "names": ["height", "width", "channels"], "info": told}


def video_info(quantizer=QUANTIZER, pixels="gray12le"):
    return {"video.pix_fmt": pixels, "video.codec": "hevc", **{f"video.{k}": v for k, v in quantizer.items()}}


def cells(pictures):
    return pa.array([{"bytes": picture, "path": None} for picture in pictures])


@pytest.mark.parametrize(("dtype", "unit"), [("uint16", "mm"), ("float32", "m")])
@pytest.mark.parametrize("told", [True, False])
def test_depth_pictures_are_read_with_their_unit(tmp_path, rng, dtype, unit, told):
    depth = rng.integers(0, 60000, (ROWS, *SIZE)).astype(dtype) / (1 if dtype == "uint16" else 1000)
    depth = depth.astype(dtype)
    feature = depth_feature("image", unit if told else None)
    source = robocache.open(write_dataset(tmp_path / "x", {"depth": feature}, {"depth": cells(map(tiff, depth))}))
    spec = source.specs["depth"]
    assert (spec.kind, spec.dtype, spec.shape, spec.unit) == ("depth", dtype, SIZE, unit if told else None)
    np.testing.assert_array_equal(source.episode(0).streams["depth"].values, depth)
    assert source.left_out == []


def test_a_depth_picture_of_another_kind_than_the_first_is_an_error(tmp_path):
    pictures = [tiff(np.zeros(SIZE, np.uint16))] * (ROWS - 1) + [tiff(np.zeros(SIZE, np.float32))]
    source = robocache.open(
        write_dataset(tmp_path / "x", {"depth": depth_feature("image")}, {"depth": cells(pictures)})
    )
    with pytest.raises(
        robocache.FormatError, match="stream depth, row 5: the image is float32 24 x 32, but the stream"
    ):
        source.episode(0)


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("change", [{}, {"use_log": False}, {"depth_min": 0.0, "depth_max": 5.0, "shift": 1.0}])
def test_depth_videos_are_read_with_their_unit(tmp_path, rng, unit, change):
    quantizer = {**QUANTIZER, **change}
    codes = as_codes(rng.uniform(0.3, 6.0, (ROWS, *SIZE)), **quantizer)
    codes[0, 0, :2] = 0, 4095
    root = write_dataset(tmp_path / "x", {"depth": depth_feature("video", unit, **video_info(quantizer))})
    write_depth_video(root / "videos/depth/chunk-000/file-000.mp4", codes)
    source = robocache.open(root)
    spec = source.specs["depth"]
    dtype = {"mm": "uint16", "m": "float32"}[unit]
    assert (spec.kind, spec.dtype, spec.shape, spec.unit) == ("depth", dtype, SIZE, unit)
    assert spec.meta["quantizer"] == quantizer
    values = source.episode(0).streams["depth"].values
    exact = as_depth_m(codes, **quantizer)
    if unit == "m":
        np.testing.assert_allclose(values, exact, rtol=2e-6, atol=2e-6)
    else:
        assert np.abs(values - exact * 1000).max() <= 0.51


def test_depth_beyond_65_m_is_in_meters(tmp_path):
    quantizer = {**QUANTIZER, "depth_max": 200.0}
    root = write_dataset(tmp_path / "x", {"depth": depth_feature("video", "mm", **video_info(quantizer))})
    write_depth_video(root / "videos/depth/chunk-000/file-000.mp4", np.full((ROWS, *SIZE), 4095, np.uint16))
    source = robocache.open(root)
    assert (source.specs["depth"].unit, source.specs["depth"].dtype) == ("m", "float32")
    np.testing.assert_allclose(source.episode(0).streams["depth"].values, 200.0, rtol=1e-5)


@pytest.mark.parametrize("older", ["info", "video_info"])
def test_the_older_mark_of_a_depth_map_is_honoured(tmp_path, older):
    """An 8-bit video with it is left out: as a picture it would be something else without a word."""
    feature = {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]}
    feature[older] = {"video.is_depth_map": True, "video.pix_fmt": "yuv420p"}
    feature.setdefault("info", {"video.pix_fmt": "yuv420p"})
    source = robocache.open(write_dataset(tmp_path / "x", {"depth": feature}))
    assert "depth" not in source.specs
    assert [str(left) for left in source.left_out] == [
        "depth: depth video of pixel format yuv420p; only gray12le is supported"
    ]
    with pytest.raises(ValueError, match="the stream 'depth' was left out: depth: depth video of pixel format yuv420p"):
        robocache.ingest(source, tmp_path / "out", streams=["depth"])


def test_a_depth_video_that_has_other_pixels_than_told_is_an_error(tmp_path, rng):
    root = write_dataset(tmp_path / "x", {"depth": depth_feature("video", "mm", **video_info())})
    frames = rng.integers(0, 256, (ROWS, *SIZE, 3), dtype=np.uint8)
    datasets.write_video(root / "videos/depth/chunk-000/file-000.mp4", frames)
    with pytest.raises(robocache.FormatError, match="frames of a depth map must be gray12le, got gbrp"):
        robocache.open(root).episode(0)


@pytest.mark.parametrize("change", [{"depth_min": 11.0}, {"shift": -1.0}, {"depth_max": 1e300}, {"depth_max": "far"}])
def test_a_depth_range_that_is_none_is_refused(tmp_path, change):
    root = write_dataset(tmp_path / "x", {"depth": depth_feature("video", "mm", **video_info({**QUANTIZER, **change}))})
    with pytest.raises(robocache.FormatError, match=r"feature depth: video\.depth_m"):
        robocache.open(root)


def other_kinds():
    grey = image.fromarray(np.zeros(SIZE, np.int32))
    buffer = io.BytesIO()
    grey.save(buffer, "TIFF")
    packed = io.BytesIO()
    image.fromarray(np.zeros(SIZE, np.uint16)).save(packed, "TIFF", compression="tiff_lzw")
    return {"int32": buffer.getvalue(), "lzw": packed.getvalue(), "8 bits": datasets.png(np.zeros(SIZE, np.uint8))}


TIFF = "its images are TIFF of another kind than uncompressed uint16 or float32"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("int32", TIFF), ("lzw", TIFF), ("8 bits", "its images are 8-bit depth maps, which have no unit")],
)
def test_depth_pictures_that_are_not_read_are_left_out_with_the_reason(tmp_path, kind, reason):
    pictures = cells([other_kinds()[kind]] * ROWS)
    source = robocache.open(write_dataset(tmp_path / "x", {"depth": depth_feature("image")}, {"depth": pictures}))
    assert [(left.name, left.reason) for left in source.left_out] == [("depth", reason)]
    assert source.episode(0).streams.keys() == {"action"}


def test_a_damaged_picture_does_not_stop_the_other_streams(tmp_path):
    feature = {"dtype": "image", "shape": [24, 32, 3], "names": ["height", "width", "channels"]}
    root = write_dataset(tmp_path / "x", {"camera": feature}, {"camera": cells([b"no picture"] * ROWS)})
    cache = robocache.ingest(root, tmp_path / "out", streams=["action"])
    assert len(cache.episode(0).streams["action"].values) == ROWS
    with pytest.raises(robocache.FormatError, match="stream camera, row 0"):
        robocache.ingest(root, tmp_path / "all")


def test_a_missing_video_does_not_stop_the_other_streams(tmp_path):
    feature = {"dtype": "video", "shape": [24, 32, 3], "names": ["height", "width", "channels"]}
    root = write_dataset(tmp_path / "x", {"camera": feature})
    assert robocache.ingest(root, tmp_path / "out", streams=["action"]).specs.keys() == {"action"}
    with pytest.raises(robocache.FormatError, match="is missing or not a file"):
        robocache.open(root).episode(0)


def test_texts_and_columns_that_are_not_declared_are_listed(tmp_path):
    columns = {"note": pa.array(["x"] * ROWS), "language_events": pa.array([[]] * ROWS, pa.list_(pa.string()))}
    features = {"language_events": {"dtype": "language", "shape": [1], "names": None}}
    source = robocache.open(write_dataset(tmp_path / "x", features, columns))
    reasons = {left.name: left.reason for left in source.left_out}
    assert reasons.pop("language_events").endswith("known: a list of structs with role, content and style")
    assert reasons == {"note": "a column that meta/info.json does not declare"}
    assert source.metadata["left_out"] == ["language_events", "note"]


def test_videos_that_are_not_decoded_are_listed_with_the_option(tmp_path):
    feature = {"dtype": "video", "shape": [24, 32, 3], "names": ["height", "width", "channels"]}
    source = robocache.open(write_dataset(tmp_path / "x", {"camera": feature}), video=False)
    assert [str(left) for left in source.left_out] == ["camera: videos are not decoded; pass video=True to read it"]


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
@pytest.mark.parametrize("size", [(16, 16), (64, 64), (96, 96), (96, 128)])
def test_videos_of_small_pictures_open(tmp_path, codec, size):
    feature = {"dtype": "video", "shape": [*size, 3], "names": ["height", "width", "channels"]}
    root = write_dataset(tmp_path / "x", {"camera": feature})
    path = root / "videos/camera/chunk-000/file-000.mp4"
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for row in range(ROWS):
            picture = np.full((*size, 3), 30 * row, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    values = robocache.open(root).episode(0).streams["camera"].values
    assert np.abs(values.mean((1, 2, 3)) - 30 * np.arange(ROWS)).max() < 8


# ---- tasks


@pytest.mark.parametrize("tasks_of_meta", [("reach", "push"), ()])
def test_a_task_that_changes_within_an_episode_is_a_stream(tmp_path, tasks_of_meta):
    numbers = [0, 0, 1, 1, 1, 0]
    root = write_dataset(
        tmp_path / "x", {}, tasks=("reach", "push"), task_of_frame=numbers, tasks_of_meta=tasks_of_meta
    )
    source = robocache.open(root)
    episode = source.episode(0)
    assert episode.streams["task_index"].values.tolist() == [[n] for n in numbers]
    assert (episode.task, episode.meta["tasks"]) == (None, ["reach", "push"])
    assert source.metadata["tasks"] == {"0": "reach", "1": "push"}
    cache = robocache.ingest(source, tmp_path / "cache")
    assert cache.episode(0).streams["task_index"].values.tolist() == [[n] for n in numbers]


def test_a_task_of_a_whole_episode_is_no_stream(tmp_path):
    source = robocache.open(write_dataset(tmp_path / "x", {}, tasks=("reach", "push"), tasks_of_meta=("reach",)))
    assert source.specs.keys() == source.episode(0).streams.keys() == {"action"}
    assert source.episode(0).task == "reach"


def test_tasks_of_frames_that_the_episode_does_not_list_are_not_lost(tmp_path):
    numbers = [0, 0, 1, 1, 1, 1]
    root = write_dataset(tmp_path / "x", {}, tasks=("a", "b"), task_of_frame=numbers, tasks_of_meta=("a",))
    assert robocache.open(root).episode(0).streams["task_index"].values[:, 0].tolist() == numbers
    with pytest.raises(robocache.FormatError, match="has the stream 'task_index'"):
        robocache.ingest(root, tmp_path / "out")


def test_export_keeps_the_tasks_of_frames(tmp_path):
    numbers = [0, 0, 1, 1, 1, 0]
    root = write_dataset(tmp_path / "x", {}, tasks=("reach", "push"), task_of_frame=numbers)
    cache = robocache.ingest(root, tmp_path / "cache")
    robocache.export(cache, tmp_path / "out", fps=FPS)
    back = robocache.open(tmp_path / "out")
    texts = [back.metadata["tasks"][str(n)] for n in back.episode(0).streams["task_index"].values[:, 0]]
    assert texts == [("reach", "push")[n] for n in numbers]


def test_export_keeps_the_unit_of_depth(tmp_path, rng):
    depth = rng.integers(0, 60000, (ROWS, *SIZE)).astype(np.uint16)
    root = write_dataset(tmp_path / "x", {"depth": depth_feature("image", "mm")}, {"depth": cells(map(tiff, depth))})
    robocache.export(root, tmp_path / "out", fps=FPS)
    back = robocache.open(tmp_path / "out")
    assert (back.specs["depth"].unit, back.specs["depth"].kind) == ("mm", "depth")
    np.testing.assert_array_equal(back.episode(0).streams["depth"].values, depth)


def test_a_task_number_that_is_none_is_an_error(tmp_path):
    root = write_dataset(tmp_path / "x", {})
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("task_index")
    pq.write_table(table.set_column(place, "task_index", pa.array([0, None, 0, 0, 0, 0])), path)
    with pytest.raises(robocache.FormatError, match="column task_index, row 1: the value is null"):
        robocache.open(root).episode(0)
    edit_json(root / "meta/info.json", lambda info: info["features"].pop("task_index"))
    with pytest.raises(robocache.FormatError):
        robocache.open(root).episode(0)


# ---- stored in a cache


def test_keep_stores_depth_of_16_bits_as_png_in_its_unit(tmp_path, rng):
    depth = rng.integers(0, 60000, (ROWS, *SIZE)).astype(np.uint16)
    codes = as_codes(rng.uniform(0.3, 6.0, (ROWS, *SIZE)), **QUANTIZER)
    features = {
        "tiff": depth_feature("image", "mm"),
        "png": depth_feature("image", "mm"),
        "far": depth_feature("image", "m"),
        "video": depth_feature("video", "mm", **video_info()),
        "video_m": depth_feature("video", "m", **video_info()),
    }
    columns = {
        "tiff": cells(map(tiff, depth)),
        "png": cells(map(datasets.png, depth)),
        "far": cells(tiff((x / 1000).astype(np.float32)) for x in depth),
    }
    root = write_dataset(tmp_path / "x", features, columns)
    for name in ("video", "video_m"):
        write_depth_video(root / f"videos/{name}/chunk-000/file-000.mp4", codes)
    keep, raw = (robocache.ingest(root, tmp_path / images, images=images) for images in ("keep", "raw"))
    stored = {name: (spec.codec, spec.dtype, spec.unit) for name, spec in keep.specs.items() if name in features}
    assert stored == {
        "tiff": ("png", "uint16", "mm"), "png": ("png", "uint16", "mm"), "far": (None, "float32", "m"),
        "video": ("png", "uint16", "mm"), "video_m": (None, "float32", "m"),
    }  # fmt: skip
    kept = keep.episode(0).streams
    for name in features:
        np.testing.assert_array_equal(kept[name].values, raw.episode(0).streams[name].values)
    np.testing.assert_array_equal(kept["tiff"].values, depth)
    assert [*kept["png"].pictures] == [datasets.png(x) for x in depth]
    noted = {note.partition(":")[0] for note in keep.notes}
    assert noted == {"tiff", "far", "video", "video_m"}
