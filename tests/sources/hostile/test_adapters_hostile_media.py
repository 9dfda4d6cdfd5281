"""Hostile pictures, videos, tables and chunks: sizes in headers that lie. See test_adapters_hostile.py."""

import struct
import tracemalloc

import adapter_datasets as datasets
import adapter_logs as logs
import numpy as np
import pytest
import robocache
from hostile import PEAK_BYTES, edit_json, refused, write
from test_adapters_hostile import giant_png, hdf5

# --- HDF5: a chunk is unpacked whole


@pytest.mark.parametrize("compression", ["gzip", None])
def test_a_giant_chunk_under_a_small_dataset_of_hdf5_is_refused(tmp_path, rng, compression):
    written = write("robomimic", tmp_path, rng)

    def bomb(file, h5py):
        options = {"maxshape": (None,), "chunks": (1 << 28,), "compression": compression}
        file["data/demo_0"].create_dataset("states", (5,), "f8", **options)

    refused(
        hdf5(written, bomb),
        "/data/demo_0/states: a chunk declares 2147483648 bytes, more than 1000 times its 0 stored bytes",
    )


def test_a_giant_fill_value_of_hdf5_is_refused(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def filled(file, h5py):
        file["data/demo_0/obs"].create_dataset("object", (5, 1 << 28), "f8", chunks=(1, 1024), fillvalue=3.0)

    refused(hdf5(written, filled), "raise it with max_bytes=|decompression bomb")


def test_other_byte_orders_of_hdf5_are_read_as_they_are(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)
    rows = len(next(iter(written.streams[0].values()))[0])
    numbers = np.arange(rows, dtype=">f8")

    def swapped(file, h5py):
        for demo in file["data"].values():
            demo.pop("states", None)
        file["data/demo_0"]["states"] = numbers

    values = robocache.open(hdf5(written, swapped)).episode(0).streams["states"].values
    assert values.dtype == np.dtype("f8")
    assert values.tolist() == list(range(rows))


LONG = 3_000_001


def repeat_first_text(path, at, count):
    """A list of variable-length strings is one of places, 16 bytes each: all become the first one."""
    data = bytearray(path.read_bytes())
    data[at : at + 16 * count] = data[at : at + 16] * count
    path.write_bytes(data)


def test_a_mask_of_one_long_text_many_times_is_refused(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)
    where = []

    def names(file, h5py):
        file["mask"].create_dataset("all", data=["x" * LONG] + ["demo_0"] * 1999, dtype=h5py.string_dtype())
        file.flush()
        where.append(file["mask/all"].id.get_offset())

    path = hdf5(written, names)
    repeat_first_text(path, where[0], 2000)
    refused(path, "/mask/all holds a name of more than 65536 characters", peak_bytes=3 * 64 * LONG)


@pytest.mark.parametrize("group", ["data", "data/demo_0"])
def test_an_attribute_of_one_long_text_many_times_is_left_out(tmp_path, rng, group):
    written = write("robomimic", tmp_path, rng)

    def attribute(file, h5py):
        texts = np.array(["x" * LONG] + ["a"] * 1999, dtype=object)
        file[group].attrs.create("total" if group == "data" else "notes", texts, dtype=h5py.string_dtype())

    path = hdf5(written, attribute)
    repeat_first_text(path, path.read_bytes().index(struct.pack("<I", LONG)), 2000)
    assert peak_of(path) < PEAK_BYTES
    source = robocache.open(path)
    assert source.metadata["total"] != ["x" * LONG] * 2000
    assert "notes" not in source.episode(0).meta


# --- pictures


def giant_jpeg(width, height):
    """A real picture whose header says that it is larger."""
    image = pytest.importorskip("PIL.Image")
    import io

    buffer = io.BytesIO()
    image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


BOMBS = {
    "png": (giant_png, (60000, 60000)),
    "wide png": (giant_png, (8000, 4000)),
    "jpeg": (giant_jpeg, (65000, 65000)),
    "wide jpeg": (giant_jpeg, (9000, 4000)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_jpeg_or_png_bomb_in_a_table_is_refused(tmp_path, rng, bomb):
    written = write("lerobot v2.1", tmp_path, rng)
    import pyarrow as pa
    import pyarrow.parquet as pq

    make, size = BOMBS[bomb]
    path = written.path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    cells = table.column("observation.image").to_pylist()
    cells[0]["bytes"] = make(*size)
    column = pa.array(cells, table.schema.field("observation.image").type)
    pq.write_table(table.set_column(table.column_names.index("observation.image"), "observation.image", column), path)
    refused(written.path, "lerobot: ")


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_jpeg_or_png_bomb_in_a_message_is_refused(tmp_path, bomb):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    make, size = BOMBS[bomb]
    log = logs.Log(tmp_path / "x.mcap")
    message = {"header": logs.stamp(0), "format": "jpeg", "data": make(*size)}
    log.write("/rgb", "sensor_msgs/msg/CompressedImage", message, 0)
    log.close()
    refused(tmp_path / "x.mcap", "mcap: .*topic /rgb, message 0", clock="log_time")


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_jpeg_or_png_bomb_in_a_record_is_refused(tmp_path, rng, bomb):
    written = write("rlds", tmp_path, rng)
    root = written.path / "0.1.0"
    picture = {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8", "encodingFormat": "png"},
               "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image"}  # fmt: skip
    import json

    (root / "features.json").write_text(json.dumps(logs.tree(steps={"sequence": {"feature": logs.tree(x=picture)}})))
    make, size = BOMBS[bomb]
    record = logs.tfrecord(logs.make_example({"steps/x": [make(*size)]}))
    next(root.glob("*-00000-of-*")).write_bytes(record * 2)
    refused(written.path, "rlds: ")


# --- videos


def video_of(written):
    return next(written.path.glob("videos/**/*.mp4"))


@pytest.mark.parametrize("declared", [[20000, 20000, 3], [64, 48, 3], [3, 32, 47]])
def test_a_video_of_another_size_than_declared_is_refused(tmp_path, rng, declared):
    written = write("lerobot v2.1", tmp_path, rng)
    edit_json(written.path / "meta/info.json",
              lambda info: info["features"]["observation.video"].update(shape=declared))  # fmt: skip
    refused(written.path, "the video is 32 x 48, but|raise it with max_bytes=")


def test_a_video_whose_pictures_are_larger_than_declared_is_refused(tmp_path, rng):
    written = write("lerobot v2.1", tmp_path, rng)
    frames = len(written.streams[0]["observation.video"][0])
    datasets.write_video(video_of(written), np.zeros((frames, 512, 768, 3), np.uint8))
    refused(written.path, "the video is 512 x 768, but ")


@pytest.mark.parametrize("head", ["#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n",
                                  "ffconcat version 1.0\nfile '{}'\n"])  # fmt: skip
def test_a_playlist_with_the_name_of_a_video_opens_no_other_file(tmp_path, rng, head):
    written = write("lerobot v2.1", tmp_path, rng)
    video = video_of(written)
    video.rename(video.parent / "secret.mp4")
    video.write_text(head.format("secret.mp4"))
    refused(written.path, "lerobot: .*observation.video.*(Invalid argument|Invalid data)")


# --- tables


def varint(number):
    """Thrift's compact form of a number."""
    zigzag, out = number << 1, b""
    while zigzag >= 128:
        out += bytes([zigzag & 127 | 128])
        zigzag >>= 7
    return out + bytes([zigzag])


@pytest.mark.parametrize("rows", [10**9, 10**15, 2**62])
@pytest.mark.parametrize("name", ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"])
def test_a_table_that_declares_giant_row_groups_is_refused(tmp_path, rng, name, rows):
    """Each number that may be one of rows in turn; a lie that nobody believes may also give the true answer."""
    written = write("lerobot v3.0", tmp_path, rng)
    import pyarrow.parquet as pq

    path = written.path / name
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=table.num_rows)
    data = path.read_bytes()
    length = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - length : -8]
    true = b"\x16" + varint(table.num_rows)  # a field of type i64
    lies = giant_groups = 0
    while (at := footer.find(true, lies)) >= 0:
        lies = at + 1
        lying = footer[:at] + b"\x16" + varint(rows) + footer[at + len(true) :]
        path.write_bytes(data[: -8 - length] + lying + struct.pack("<I", len(lying)) + b"PAR1")
        try:
            giant = pq.read_metadata(path).row_group(0).num_rows == rows
        except (OSError, ValueError):
            giant = True  # not a table any more
        giant_groups += giant
        if giant:
            refused(written.path, "lerobot: ")
        else:
            taken = peak_of(written.path)
            assert taken < PEAK_BYTES
    assert giant_groups


def peak_of(path):
    """Bytes that reading all of it takes at most, refused or not."""
    tracemalloc.start()
    try:
        list(robocache.open(path))
    except robocache.FormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


# --- the cache


def test_a_giant_manifest_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "manifest.json").touch()
    with open(tmp_path / "manifest.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(robocache.FormatError, match=r"manifest\.json: has 1099511627776 bytes, more than 67108864"):
        robocache.Cache(tmp_path)
