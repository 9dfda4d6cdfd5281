"""Hostile records: MCAP chunks, steps and language of CALVIN, TFRecords. See test_adapters_hostile.py."""

import contextlib
import json
import struct
import zipfile
import zlib

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from hostile import edit_json, refused, write
from robocache import LeftOut
from robocache.sources.reading import budget
from robocache.sources.rlds import features, tfrecord

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
    refused(path, "decompresses to|max_bytes|bomb", clock="log_time", max_bytes=1 << 27)


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
    refused(written.path, "has a wrong checksum")


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
    refused(written.path, "nested more than 64 deep")


# --- billion laughs, ranges and counts


DEPTH = 28
SHARED = b"((S'x'\nS'x'\ntp0\n" + b"".join(b"(g%d\ng%d\ntp%d\n" % (i, i, i + 1) for i in range(DEPTH)) + b"l"
"""A tuple of two references to a tuple of two references to ...: few bytes, 2^28 texts. It is in the memo."""
GET = b"g%d\n" % DEPTH
LAUGHS = {
    "a text": b"}S'language'\n}S'ann'\n(" + GET + b"lssS'info'\n}S'indx'\n((I1\nI2\ntlss.",
    "a key": b"}" + GET + b"S'x'\ns.",
    "a name": GET + b"S'x'\n\x93(tR.",
    "a dtype": b"cnumpy\ndtype\n(" + GET + b"tR.",
    "bytes": b"c_codecs\nencode\n(" + GET + b"S'latin1'\ntR.",
    "called": GET + b"(tR.",
    "a state": GET + b"Nb.",
    "a shape": b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n(" + GET + b"tcnumpy\ndtype\n(S'f4'\ntRI00\nS''\ntb.",
}


@pytest.mark.parametrize("payload", LAUGHS.values(), ids=LAUGHS)
def test_shared_parts_of_a_language_file_are_never_written_out(tmp_path, rng, payload):
    written = write("calvin", tmp_path, rng)
    language_file(written, SHARED + payload)
    refused(written.path, "calvin: .*auto_lang_ann.npy", max_seconds=5)


def test_a_long_text_that_is_shared_a_thousand_times_is_refused(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    text = b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20) + b"q\x01"
    texts = b"(" + text + b"h\x01" * 999 + b"l"
    ranges = b"((I1\nI2\ntq\x02" + b"h\x02" * 999 + b"l"
    payload = b"\x80\x02}S'language'\n}S'ann'\n" + texts + b"ssS'info'\n}S'indx'\n" + ranges + b"ss."
    language_file(written, payload)
    refused(written.path, "auto_lang_ann.npy has .* characters of text in .* decompression bomb")


def tiny_steps(folder, ranges):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "episode_0000000.npz", x=np.uint8(1))
    np.save(folder / "ep_start_end_ids.npy", np.array(ranges))
    return folder


@pytest.mark.parametrize("repair", [{}, {"missing": "drop"}])
def test_a_range_of_eight_billion_steps_is_refused(tmp_path, monkeypatch, repair):
    monkeypatch.setattr(budget, "FREE_ITEMS", 1 << 12)
    refused(tiny_steps(tmp_path / "x", [[0, 8 * 10**9]]), "episode_0000001.npz is missing|items in", repair=repair)


def test_a_sparse_index_of_steps_is_refused_before_it_is_read(tmp_path):
    path = tiny_steps(tmp_path / "x", [[0, 0]]) / "ep_start_end_ids.npy"
    header = {"descr": "<i8", "fortran_order": False, "shape": (1 << 28, 2)}
    path.write_bytes(npy(header))
    with path.open("r+b") as file:
        file.truncate(len(npy(header)) + (1 << 32))
    refused(tmp_path / "x", "must have at most 67108864 bytes", 1 << 20)


def test_what_calvin_and_rlds_leave_out_is_told(tmp_path, rng):
    left = robocache.open(write("calvin", tmp_path, rng).path).left_out
    name = "training/lang_annotations/auto_lang_ann.npy: emb"
    assert left == [LeftOut(name, "only texts and tasks of the language are read")]
    written = write("rlds", tmp_path, rng)
    assert robocache.open(written.path).left_out == []
    next((written.path / "0.1.0").glob("*-00001-of-*")).unlink()
    missing = LeftOut("train: shards 1 to 1 of 2", "missing from the folder")
    assert robocache.open(written.path).left_out == [missing]


def test_a_bit_of_the_list_of_a_step_cannot_hide_a_stream(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    first = written.path / "training/episode_0000100.npz"
    data = first.read_bytes()
    before = set(robocache.open(written.path).specs)
    with zipfile.ZipFile(first) as archive:
        begin = archive.start_dir
    for bit in range(begin * 8, len(data) * 8, 7):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        first.write_bytes(changed)
        with contextlib.suppress(robocache.FormatError):
            assert set(robocache.open(written.path).specs) == before, bit


def test_a_sparse_tfrecord_is_refused_before_it_is_read(tmp_path, rng):
    written = write("rlds", tmp_path, rng)
    length = struct.pack("<Q", 1 << 32)
    import google_crc32c

    crc = google_crc32c.value(length)
    path = shard(written)
    path.write_bytes(length + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF))
    with path.open("r+b") as file:
        file.truncate(12 + (1 << 32) + 4)
    if path.stat().st_blocks * 512 > 1 << 22:
        pytest.skip("this file system stores holes")
    refused(written.path, "decompression bomb|dataset_info.json")


def test_numbers_one_by_one_are_read_like_packed_ones():
    floats = b"".join(b"\x0d" + struct.pack("<f", v) for v in (1.5, -2.0))
    integers = b"\x08\x05\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"

    def entry(name, kind, values):
        inner = bytes([kind << 3 | 2, len(values)]) + values
        feature = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(inner)]) + inner
        return b"\x0a" + bytes([len(feature)]) + feature

    features = entry(b"f", 2, floats) + entry(b"i", 3, integers)
    found = tfrecord.read_example(b"\x0a" + bytes([len(features)]) + features, "x")
    assert found["f"].tolist() == [1.5, -2.0]
    assert found["i"].tolist() == [5, -1]


def field(number, content):
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


ONE, OTHER = (field(3, field(1, bytes([value, 2]))) for value in (1, 7))


@pytest.mark.parametrize(
    "entries",
    [
        [field(1, b"x") + field(2, ONE + OTHER)],  # protobuf joins these
        [field(1, b"x") + field(2, ONE + field(2, field(1, bytes(8))))],  # and takes the last of these
        [field(1, b"x") + field(2, ONE) + field(2, OTHER)],
        [field(1, b"y") + field(1, b"x") + field(2, ONE)],
        [field(1, b"x") + field(2, ONE), field(1, b"x") + field(2, OTHER)],
    ],
)
def test_a_feature_that_is_there_twice_is_refused(entries):
    """Readers differ in which of its values they take."""
    data = field(1, b"".join(field(1, entry) for entry in entries))
    with pytest.raises(robocache.FormatError, match=r"twice|several lists of values"):
        tfrecord.read_example(data, "x")
    assert tfrecord.read_example(field(1, field(1, field(1, b"x") + field(2, ONE))), "x")["x"].tolist() == [1, 2]


@pytest.mark.parametrize("change", [lambda z: z[:-3], lambda z: z[:-4], lambda z: z + b"xx", lambda z: z[:-1] + b"?"])
def test_zlib_rows_without_their_checksum_are_refused(change):
    leaf = features.Leaf("x", "steps/x", "tensor", "int16", (2,), True, "zlib")
    packed = zlib.compress(struct.pack("<2h", 1, -2))
    assert leaf.decode(packed, 4, "x").tolist() == [1, -2]
    with pytest.raises(robocache.FormatError, match=r"cut off|incorrect data check"):
        leaf.decode(change(packed), 4, "x")


@pytest.mark.parametrize("name", ["x.npy", "x"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_a_step_has_twice_is_refused(tmp_path, name):
    """zip files may have a name twice; NumPy takes the last one of them."""
    path = tiny_steps(tmp_path, [[0, 0]]) / "episode_0000000.npz"
    with zipfile.ZipFile(path) as archive:
        data = archive.read("x.npy")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, data[:-1] + b"?")
    refused(tmp_path, "the array x is there twice", format="calvin")


def test_two_streams_of_one_name_are_refused(tmp_path, rng, monkeypatch):
    written = write("rlds", tmp_path, rng)
    source = robocache.open(written.path)
    read = source.read
    monkeypatch.setattr(source, "read", lambda *given: (read(*given)[0] * 2, None, {}))
    with pytest.raises(robocache.FormatError, match="two streams are named"):
        source.episode(0)
