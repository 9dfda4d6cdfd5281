"""Files made to harm: names that lead out, links, bombs, sizes that lie. All refused with FormatError, before memory."""

import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib

import adapter_datasets as datasets
import adapter_logs as logs
import numpy as np
import pytest
import robocache
from robocache import FormatError

PEAK_BYTES = 200 << 20
"""What reading a bomb may take: far below what the bombs here unpack to."""


def refused(path, match, **options):
    """Opening and reading all of it raises FormatError, and takes little memory on the way."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=match):
            list(robocache.open(path, **options))
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


def write(name, folder, rng):
    make, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package, reason=f"{name} datasets are written with {package}")
    return make(folder, rng)


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def move_out(path, folder):
    """Leaves a link where a file was: the content is the same, and out of the tree."""
    outside = folder / "outside"
    outside.mkdir(exist_ok=True)
    target = outside / path.name
    path.rename(target)
    path.symlink_to(target)


LINKED = {
    "lerobot v2.1": ["meta/info.json", "meta/episodes.jsonl", "data/chunk-000/episode_000001.parquet"],
    "lerobot v3.0": [
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "videos/observation.video/chunk-000/file-000.mp4",
    ],
    "zarr v2": ["data/state/0.0", "meta/episode_ends/0", "data/action/.zarray"],
    "mcap": ["run_0.mcap"],
    "ros2 bag": ["bag_1.mcap", "metadata.yaml"],
    "calvin": ["training/episode_0000102.npz", "training/ep_start_end_ids.npy"],
    "rlds": ["0.1.0/features.json", "0.1.0/asu_table_top_converted_externally_to_rlds-train.tfrecord-00001-of-00002"],
}


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in LINKED.items() for file in files])
def test_a_link_out_of_the_tree_is_refused_unless_trusted(tmp_path, rng, name, file):
    written = write(name, tmp_path, rng)
    move_out(written.path / file, tmp_path)
    refused(written.path, "link out of the dataset", **written.options)
    source = robocache.open(written.path, follow_symlinks=True, **written.options)
    assert len(list(source)) == len(written.streams)


def test_a_link_inside_the_tree_is_followed(tmp_path, rng):
    written = write("mcap", tmp_path, rng)
    (written.path / "run_9.mcap").symlink_to(written.path / "run_0.mcap")
    assert len(robocache.open(written.path, **written.options)) == 3


def test_a_link_that_the_user_names_is_followed(tmp_path, rng):
    written = write("robomimic", tmp_path / "", rng)
    (tmp_path / "far").mkdir()
    link = tmp_path / "far" / "link.hdf5"
    link.symlink_to(written.path)
    assert len(robocache.open(link)) == 3


TEMPLATES = [
    "../v21/data/chunk-000/episode_{episode_index:06d}.parquet",
    "data/../../v21/episode_{episode_index:06d}.parquet",
    "/etc/{episode_index}",
    "data\\..\\{episode_index}",
    "data/{episode_index}\0.parquet",
    "data/{episode_index.__class__}",
    "data/{episode_index:999999999d}",
    "{0.__init__.__globals__}{episode_index}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_path_templates_of_lerobot_stay_inside(tmp_path, rng, template):
    written = write("lerobot v2.1", tmp_path, rng)
    edit_json(written.path / "meta/info.json", lambda info: info.update(data_path=template))
    refused(written.path, "leads out of the dataset|a field that is not known")


def test_a_feature_name_cannot_lead_a_video_out(tmp_path, rng):
    written = write("lerobot v2.1", tmp_path, rng)
    video = {"dtype": "video", "shape": [32, 48, 3], "names": None}
    edit_json(written.path / "meta/info.json", lambda info: info["features"].update({"../../../x": video}))
    refused(written.path, "leads out of the dataset")


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../secret.png"])
def test_a_picture_by_its_name_stays_inside(tmp_path, rng, name):
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = write("lerobot v2.1", tmp_path, rng)
    (tmp_path / "secret.png").write_bytes(datasets.png(np.zeros((16, 24, 3), np.uint8)))
    path = written.path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    column = pa.array([{"bytes": None, "path": name}] * table.num_rows)
    place = table.column_names.index("observation.image")
    pq.write_table(table.set_column(place, "observation.image", column), path)
    refused(written.path, "leads out of the dataset")


@pytest.mark.parametrize("name", ["../bag_0.mcap", "/etc/x.mcap", "x/../../bag_0.mcap"])
def test_a_bag_lists_only_its_own_files(tmp_path, rng, name):
    written = write("ros2 bag", tmp_path, rng)
    (written.path / "metadata.yaml").write_text(f"info:\n  relative_file_paths:\n    - {name}\n")
    refused(written.path, "leads out of the dataset", format="mcap", **written.options)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "data\\..\\evil"])
def test_a_zip_with_names_that_lead_out_is_refused(tmp_path, rng, name):
    written = write("zarr zip", tmp_path, rng)
    with zipfile.ZipFile(written.path, "a") as archive:
        archive.writestr(name, b"x")
    refused(written.path, "leads out of the archive", **written.options)


# --- robomimic


def hdf5(written, change):
    import h5py

    with h5py.File(written.path, "a") as file:
        change(file, h5py)
    return written.path


def test_links_of_hdf5_are_not_followed(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def external(file, h5py):
        file["data/demo_0/states"] = h5py.ExternalLink("/etc/passwd", "/x")

    refused(hdf5(written, external), "is a link, which is not followed")


def test_soft_links_of_hdf5_are_not_followed(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def soft(file, h5py):
        file["data/demo_0/obs/again"] = h5py.SoftLink("/data/demo_0/obs/eef_pos")

    refused(hdf5(written, soft), "is a link, which is not followed")


def test_a_group_of_observations_that_is_an_external_link_is_not_followed(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)
    other = tmp_path / "other"
    other.mkdir()
    write("robomimic", other, rng)

    def external(file, h5py):
        del file["data/demo_0/obs"]
        file["data/demo_0/obs"] = h5py.ExternalLink(str(other / "low_dim.hdf5"), "/data/demo_0/obs")

    refused(hdf5(written, external), "is a link, which is not followed")


def test_datasets_in_other_files_are_not_opened(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def stored_elsewhere(file, h5py):
        file["data/demo_0"].create_dataset("states", (5, 2), "f4", external=[("/etc/passwd", 0, 40)])

    refused(hdf5(written, stored_elsewhere), "is stored in other files")


def test_virtual_datasets_are_not_opened(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def virtual(file, h5py):
        layout = h5py.VirtualLayout((5,), "f4")
        layout[:] = h5py.VirtualSource("/etc/passwd", "x", (5,))
        file["data/demo_0"].create_virtual_dataset("states", layout)

    refused(hdf5(written, virtual), "is stored in other files")


@pytest.mark.parametrize("rows", [10**8, 10**12, 2**62])
def test_a_dataset_of_hdf5_that_is_mostly_not_there_is_refused(tmp_path, rng, rows):
    written = write("robomimic", tmp_path, rng)

    def giant(file, h5py):
        file["data/demo_0"].create_dataset("states", (rows,), "f8", chunks=(1024,))

    refused(hdf5(written, giant), "max_bytes sets it|decompression bomb|shape must be")


def test_a_gzip_bomb_in_hdf5_is_refused(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def bomb(file, h5py):
        states = file["data/demo_0"].create_dataset("states", (1 << 27,), "u1", chunks=(1 << 24,), compression="gzip")
        states[:1] = 1

    refused(hdf5(written, bomb), "decompression bomb")


def test_a_giant_mask_of_hdf5_is_refused(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)
    refused(
        hdf5(written, lambda file, _: file["mask"].create_dataset("all", (10**11,), "S8", chunks=(1024,))),
        "names, more than",
    )


# --- zarr


def test_objects_in_zarr_are_refused(tmp_path, rng):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(dtype="|O"))
    refused(written.path, "only numbers are read")


@pytest.mark.parametrize("codec", ["pickle", "vlen-utf8", "json2", "lzma", "bz2"])
def test_codecs_that_run_code_or_have_no_bound_are_refused(tmp_path, rng, codec):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(filters=[{"id": codec}]))
    refused(written.path, f"is stored with {codec}")
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(filters=None, compressor={"id": codec}))
    refused(written.path, f"is stored with {codec}")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [10**15, 4]},
        {"shape": [18, 10**12]},
        {"shape": [18, 4], "chunks": [10**9, 10**9]},
        {"shape": [18] * 40, "chunks": [1] * 40},
        {"shape": [-1, 4]},
        {"shape": "many"},
        {"shape": [18, 4], "chunks": [0, 4]},
        {"shape": [18, 2**30], "chunks": [1, 1]},
    ],
)
def test_giant_shapes_of_zarr_are_refused(tmp_path, rng, change):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(change))
    refused(written.path, "zarr: ")


def chunk_of(codec, size):
    import numcodecs

    data = bytes(size)
    if codec == "blosc":
        return numcodecs.Blosc().encode(data)
    return {"zstd": numcodecs.Zstd, "lz4": numcodecs.LZ4, "gzip": numcodecs.GZip, "zlib": numcodecs.Zlib}[
        codec
    ]().encode(data)


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "gzip", "zlib"])
def test_a_chunk_that_unpacks_to_more_than_a_chunk_is_refused(tmp_path, rng, codec):
    written = write("zarr v2", tmp_path, rng)
    array = written.path / "data/state"
    edit_json(array / ".zarray", lambda described: described.update(compressor={"id": codec}))
    for path in array.glob("[0-9]*"):
        path.write_bytes(chunk_of(codec, 1 << 28))
    refused(written.path, "unpacks to")


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "gzip", "zlib"])
def test_a_chunk_of_the_right_size_is_read_with_every_codec(tmp_path, rng, codec):
    import numcodecs

    written = write("zarr v2", tmp_path, rng)
    array = written.path / "data/state"
    names = {"blosc": "Blosc", "zstd": "Zstd", "lz4": "LZ4", "gzip": "GZip", "zlib": "Zlib"}
    packer = getattr(numcodecs, names[codec])()
    edit_json(array / ".zarray", lambda described: described.update(compressor=packer.get_config()))
    for path in array.glob("[0-9]*"):
        path.write_bytes(packer.encode(np.full((4, 4), 2.5, np.float32)))
    assert (robocache.open(written.path).episode(2).streams["state"].values == 2.5).all()


def test_a_zip_bomb_is_refused(tmp_path, rng):
    written = write("zarr zip", tmp_path, rng)
    with zipfile.ZipFile(written.path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/state/9.9", bytes(1 << 27))
    refused(written.path, "decompression bomb", **written.options)


# --- MCAP


def chunk_record(data, size, compression):
    """A chunk record whose declared size may lie."""
    body = struct.pack("<QQQI", 0, 0, size, 0) + struct.pack("<I", len(compression)) + compression.encode()
    body += struct.pack("<Q", len(data)) + data
    return b"\x06" + struct.pack("<Q", len(body)) + body


def mcap_with(path, record):
    header = b"\x01" + struct.pack("<Q", 8) + struct.pack("<II", 0, 0)
    end = b"\x0f" + struct.pack("<Q", 4) + bytes(4)
    footer = b"\x02" + struct.pack("<Q", 20) + bytes(20)
    path.write_bytes(b"\x89MCAP0\r\n" + header + record + end + footer + b"\x89MCAP0\r\n")
    return path


def packed(compression, size):
    if compression == "lz4":
        return pytest.importorskip("lz4.frame").compress(bytes(size))
    return pytest.importorskip("zstandard").ZstdCompressor().compress(bytes(size))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("declared", [100, 2**33, 2**63, 2**64 - 1, 1 << 28])
def test_a_chunk_of_mcap_that_is_a_bomb_is_refused(tmp_path, compression, declared):
    pytest.importorskip("mcap_ros2", reason="MCAP is read with mcap-ros2-support")
    record = chunk_record(packed(compression, 1 << 28 if declared < 1 << 30 else 1000), declared, compression)
    path = mcap_with(tmp_path / "x.mcap", record)
    refused(path, "unpacks to|max_bytes|bomb", clock="log_time", max_bytes=1 << 27)


def test_a_zstd_chunk_that_asks_for_a_giant_window_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    pytest.importorskip("mcap_ros2", reason="MCAP is read with mcap-ros2-support")
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(bytes(1000)) + packer.flush()
    refused(mcap_with(tmp_path / "x.mcap", chunk_record(data, 1000, "zstd")), "mcap: ", clock="log_time")


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1])
def test_a_record_longer_than_the_file_is_refused(tmp_path, length):
    pytest.importorskip("mcap_ros2", reason="MCAP is read with mcap-ros2-support")
    path = mcap_with(tmp_path / "x.mcap", b"\x05" + struct.pack("<Q", length))
    refused(path, "the record at byte", clock="log_time")


def test_a_chunk_with_another_checksum_is_refused(tmp_path, rng):
    written = write("mcap", tmp_path, rng)
    path = written.path / "run_0.mcap"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    refused(path, "mcap: ", **written.options)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_a_truncated_mcap_is_refused(tmp_path, rng, share):
    written = write("mcap", tmp_path, rng)
    path = written.path / "run_0.mcap"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, "mcap: ", **written.options)


LYING = {
    "points outside of the data": {"width": 2**31},
    "a field outside of the point": {"point_step": 8},
    "rows shorter than their points": {"row_step": 1},
}


@pytest.mark.parametrize("lie", LYING)
def test_point_clouds_that_lie_about_their_size_are_refused(tmp_path, rng, lie):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    log = logs.Log(tmp_path / "x.mcap")
    message = {"header": logs.stamp(0), **logs.cloud_message(np.ones((3, 4), np.float32)), **LYING[lie]}
    log.write("/cloud", "sensor_msgs/msg/PointCloud2", message, 0)
    log.close()
    refused(tmp_path / "x.mcap", "mcap: .*topic /cloud, message 0", clock="log_time")


@pytest.mark.parametrize("lie", [{"height": 2**31}, {"width": 2**31}, {"step": 1}, {"encoding": "yuv422"}])
def test_images_that_lie_about_their_size_are_refused(tmp_path, lie):
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    log = logs.Log(tmp_path / "x.mcap")
    image = {"height": 2, "width": 2, "encoding": "rgb8", "is_bigendian": 0, "step": 6, "data": bytes(12), **lie}
    log.write("/rgb", "sensor_msgs/msg/Image", {"header": logs.stamp(0), **image}, 0)
    log.close()
    refused(tmp_path / "x.mcap", "mcap: .*topic /rgb, message 0", clock="log_time")


# --- CALVIN


def npy(header, data=b""):
    text = repr(header).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (-1,), (2,) * 40, "many", None])
def test_giant_shapes_of_npy_are_refused(tmp_path, rng, shape):
    written = write("calvin", tmp_path, rng)
    data = npy({"descr": "<f8", "fortran_order": False, "shape": shape}, bytes(16))
    with zipfile.ZipFile(written.path / "training/episode_0000102.npz", "w") as archive:
        for name in written.streams[0]:
            archive.writestr(f"{name}.npy", data)
    refused(written.path, "calvin: ")


def test_a_bomb_in_a_step_is_refused(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    header = npy({"descr": "|u1", "fortran_order": False, "shape": (1 << 27,)})
    with zipfile.ZipFile(written.path / "training/episode_0000102.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in written.streams[0]:
            archive.writestr(f"{name}.npy", header + bytes(1 << 27))
    refused(written.path, "decompression bomb")


def test_pickled_objects_in_a_step_are_refused(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    np.savez(written.path / "training/episode_0000100.npz", rgb_static=np.array({"a": 1}, object))
    refused(written.path, "pickled objects")


def language_file(written, payload):
    header = npy({"descr": "|O", "fortran_order": False, "shape": ()})
    (written.path / "training/lang_annotations/auto_lang_ann.npy").write_bytes(header + payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'touch {marker}'\ntR.",
        b'cbuiltins\neval\n(S\'open("{marker}", "w")\'\ntR.',
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0etouch {marker}\x85R.",
        b"cnumpy\nload\n(S'{marker}'\ntR.",
        b"(S'touch {marker}'\nios\nsystem\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n.",
        b"(cos\nsystem\nS'touch {marker}'\no.",
        b"(lp0\ng0\na.",
        b".",
        b"",
        b"\x80\x04N",
        b"garbage",
    ],
)
def test_a_language_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path, rng, payload):
    written = write("calvin", tmp_path, rng)
    marker = tmp_path / "m"
    language_file(written, payload.replace(b"{marker}", str(marker).encode()))
    refused(written.path, "calvin: .*auto_lang_ann.npy")
    assert not marker.exists()
    assert len(robocache.open(written.path, language=False)) == 3


def test_a_language_file_of_nested_lists_does_not_explode(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    payload = b"(lp0\n" + b"".join(b"(l" + b"g%d\na" % i * 10 + b"p%d\n" % (i + 1) for i in range(30)) + b"."
    language_file(written, payload)
    refused(written.path, "calvin: ")


@pytest.mark.parametrize("ranges", [[[5, 3]], [[-4, 3]], [[0, 10**15]]])
def test_ranges_of_steps_that_lie_are_refused(tmp_path, rng, ranges):
    written = write("calvin", tmp_path, rng)
    np.save(written.path / "training/ep_start_end_ids.npy", np.array(ranges))
    refused(written.path, "calvin: |is missing", repair={"missing": "drop"})


# --- RLDS


def shard(written):
    return next((written.path / "0.1.0").glob("*-00000-of-*"))


@pytest.mark.parametrize("byte", [3, 9, 40, -2])
def test_a_changed_byte_of_a_tfrecord_is_refused(tmp_path, rng, byte):
    written = write("rlds", tmp_path, rng)
    data = bytearray(shard(written).read_bytes())
    data[byte] ^= 4
    shard(written).write_bytes(data)
    refused(written.path, "does not have its checksum")


@pytest.mark.parametrize("length", [2**33, 2**63, 2**64 - 17])
def test_a_record_that_is_longer_than_its_file_is_refused(tmp_path, rng, length):
    written = write("rlds", tmp_path, rng)
    import google_crc32c

    head = struct.pack("<Q", length)
    crc = google_crc32c.value(head)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    shard(written).write_bytes(head + struct.pack("<I", masked) + bytes(100))
    refused(written.path, "more than the file has left")


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x05\x0a\xff\xff\xff\x7f",
        b"\xff" * 20,
        b"\x0b",
        b"\x0a\x08\x0a\x06\x0a\x01\xff\x12\x01\x12",
    ],
)
def test_examples_that_lie_about_their_lengths_are_refused(tmp_path, rng, data):
    written = write("rlds", tmp_path, rng)
    shard(written).write_bytes(logs.tfrecord(data) * 2)
    refused(written.path, "not a tf.train.Example|there is no steps/")


@pytest.mark.parametrize("sizes", [["1000000", "1000000"], ["-5"], ["x"], ["1"] * 20])
def test_giant_shapes_of_features_are_refused(tmp_path, rng, sizes):
    written = write("rlds", tmp_path, rng)

    def change(features):
        steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
        steps["action"]["tensor"]["shape"]["dimensions"] = sizes

    edit_json(written.path / "0.1.0/features.json", change)
    refused(written.path, "rlds: ")


def test_a_zlib_bomb_in_a_tensor_is_refused(tmp_path, rng):
    written = write("rlds", tmp_path, rng)
    root = written.path / "0.1.0"
    bomb = logs.tensor("uint8", 100)
    bomb["tensor"]["encoding"] = "zlib"
    features = logs.tree(steps={"sequence": {"feature": logs.tree(x=bomb)}})
    (root / "features.json").write_text(json.dumps(features))
    data = logs.make_example({"steps/x": [zlib.compress(bytes(1 << 28))]})
    shard(written).write_bytes(logs.tfrecord(data) * 2)
    refused(written.path, "where 100 are declared")


def test_features_nested_too_deep_are_refused(tmp_path, rng):
    written = write("rlds", tmp_path, rng)
    features = {"tensor": {}}
    for _ in range(100):
        features = logs.tree(steps=features)
    (written.path / "0.1.0/features.json").write_text(json.dumps(features))
    refused(written.path, "not a description of a feature")


# --- pictures and LeRobot


def giant_png(width, height):
    """The header of a picture that large, and next to nothing in it."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(bytes(100))) + part(b"IEND", b"")


@pytest.mark.parametrize("size", [(60000, 60000), (2**31 - 1, 2**31 - 1), (12000, 12000), (8000, 4000)])
@pytest.mark.parametrize("row", [0, 1])
def test_a_picture_that_is_a_bomb_is_refused(tmp_path, rng, size, row):
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = write("lerobot v2.1", tmp_path, rng)
    path = written.path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    cells = table.column("observation.image").to_pylist()
    cells[row]["bytes"] = giant_png(*size)
    column = pa.array(cells, table.schema.field("observation.image").type)
    pq.write_table(table.set_column(table.column_names.index("observation.image"), "observation.image", column), path)
    refused(written.path, "lerobot: ")


@pytest.mark.filterwarnings("ignore:open. .*info.json")
@pytest.mark.parametrize("shape", [[10**15], [10**6, 10**6], [-3], [1] * 40, "big", [None]])
def test_giant_shapes_of_lerobot_are_refused(tmp_path, rng, shape):
    written = write("lerobot v2.1", tmp_path, rng)
    edit_json(written.path / "meta/info.json", lambda info: info["features"]["action"].update(shape=shape))
    refused(written.path, "lerobot: ")


def test_a_table_of_many_rows_in_few_bytes_is_refused(tmp_path, rng):
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = write("lerobot v2.1", tmp_path, rng)
    path = written.path / "data/chunk-000/episode_000000.parquet"
    rows = 10_000_000
    names = ("episode_index", "frame_index", "next.done")
    zeros = {name: pa.array(np.zeros(rows, np.int64)) for name in names}
    pq.write_table(pa.table(zeros), path, compression="zstd")
    assert path.stat().st_size < 1_000_000
    refused(written.path, "bomb|max_bytes", max_bytes=1 << 27)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"features": 3}', "\xff", '{"features": {}, "fps": 0}'])
def test_info_that_is_not_one_is_refused(tmp_path, rng, text):
    written = write("lerobot v2.1", tmp_path, rng)
    (written.path / "meta/info.json").write_bytes(text.encode("latin1"))
    refused(written.path, "info.json")


@pytest.mark.parametrize("name", [name for name in datasets.CASES if name != "calvin"])
def test_random_damage_gives_an_error_or_an_answer_but_no_other_exception(tmp_path, rng, name):
    """Each file in turn: bytes changed at random, then the end cut off."""
    written = write(name, tmp_path, rng)
    files = [written.path] if written.path.is_file() else [p for p in written.path.rglob("*") if p.is_file()]
    for path in files[:12]:
        good = path.read_bytes()
        for attempt in range(6):
            bad = np.frombuffer(good, np.uint8).copy()
            if len(bad):
                bad[rng.integers(0, len(bad), 1 + attempt)] = rng.integers(0, 256, 1 + attempt)
            data = bad.tobytes() if attempt < 4 else good[: len(good) * (attempt - 3) // 3]
            path.unlink()
            path.write_bytes(data)
            try:
                list(robocache.open(written.path, max_bytes=1 << 28, **written.options))
            except (FormatError, ValueError) as error:
                assert isinstance(error, FormatError) or str(error).startswith("open: "), repr(error)
        path.write_bytes(good)


def test_a_named_pipe_does_not_hang(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    step = written.path / "training/episode_0000102.npz"
    step.unlink()
    os.mkfifo(step)
    refused(written.path, "missing or not a file")


def test_a_text_that_is_no_picture_is_refused():
    from robocache.adapters import _images

    pytest.importorskip("PIL", reason="pictures are decoded with Pillow")
    buffer = io.BytesIO(b"%!PS-Adobe")
    with pytest.raises(FormatError, match="x: neither a PNG nor a JPEG"):
        _images.picture_size(buffer.getvalue(), "lerobot", "x")
