"""Damaged MCAP files: no bit that a checksum covers changes what is read, and no topic is lost in silence."""

import struct
import zlib

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from hostile import refused
from robocache import FormatError, LeftOut

pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
from mcap.writer import CompressionType, IndexType, Writer

FLIPS = 400
WITHOUT = {"use_statistics": False, "repeat_channels": False, "repeat_schemas": False, "use_summary_offsets": False}


def write_log(path, messages=12, time_ns=10**9, **options):
    """Two topics that are read, one that is not; in several chunks. Written with mcap itself, for its options."""
    with path.open("wb") as file:
        writer = Writer(file, **{"chunk_size": 1024, "compression": CompressionType.ZSTD, **options})
        writer.start("ros2")
        encoder = {}
        for topic, kind in (("/arm", "sensor_msgs/msg/JointState"), ("/wrench", "geometry_msgs/msg/WrenchStamped"),
                            ("/flag", "std_msgs/msg/Bool")):  # fmt: skip
            schema = writer.register_schema(kind, "ros2msg", logs.SCHEMAS[kind].encode())
            from mcap_ros2._dynamic import serialize_dynamic

            encode = serialize_dynamic(kind, logs.SCHEMAS[kind])[kind]
            encoder[topic] = writer.register_channel(topic, "cdr", schema), encode
        for i in range(messages):
            t = time_ns * (i + 1)
            header = {"header": logs.stamp(t)}
            joints = {"name": ["a", "b"], "position": [float(i), 2.0], "velocity": [], "effort": []}
            wrench = {"wrench": {"force": logs.xyz([1, 2, i]), "torque": logs.xyz([4, 5, 6])}}
            for topic, message in (("/arm", joints), ("/wrench", wrench)):
                channel, encode = encoder[topic]
                writer.add_message(channel, t, encode({**header, **message}), t)
        channel, encode = encoder["/flag"]
        writer.add_message(channel, 10**9, encode({"data": True}), 10**9)
        writer.finish()
    return path


def content(path, **options):
    """All that is read, in a form that compares."""
    source = robocache.open(path, **{"clock": "log_time", **options})
    rows = [
        (name, stream.values.tobytes(), stream.times.tobytes(), stream.spec)
        for episode in source
        for name, stream in episode.streams.items()
    ]
    return rows, source.left_out


def flip(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_flips(path, bits):
    before, data = content(path), path.read_bytes()
    refused_flips = 0
    for bit in bits:
        path.write_bytes(flip(data, bit))
        try:
            assert content(path) == before, f"bit {bit % 8} of byte {bit // 8}"
        except FormatError:
            refused_flips += 1
    path.write_bytes(data)
    return refused_flips


CHECKED = {
    "zstd": {},
    "lz4": {"compression": CompressionType.LZ4},
    "none": {"compression": CompressionType.NONE},
    "no chunks": {"use_chunking": False, "enable_data_crcs": True},
}


@pytest.mark.parametrize("options", CHECKED.values(), ids=CHECKED)
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, rng, options):
    path = write_log(tmp_path / "x.mcap", **options)
    bits = rng.choice(path.stat().st_size * 8, FLIPS, replace=False)
    assert check_flips(path, bits.tolist()) > FLIPS // 2


@pytest.mark.parametrize("options", CHECKED.values(), ids=CHECKED)
def test_a_flipped_bit_of_the_last_records_is_refused_or_changes_nothing(tmp_path, options):
    path = write_log(tmp_path / "x.mcap", **options)
    size = path.stat().st_size
    check_flips(path, range((size - 8 - 29) * 8, size * 8))


def test_a_flipped_bit_of_the_head_of_any_record_is_refused_or_changes_nothing(tmp_path):
    path = write_log(tmp_path / "x.mcap")
    data, at, heads = path.read_bytes(), 8, []
    while at < len(data) - 8:
        heads.append(at)
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    check_flips(path, [(head + byte) * 8 + bit for head in heads for byte in (0, 1, 2) for bit in range(0, 8, 3)])


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_names_the_repair(tmp_path, share):
    path = write_log(tmp_path / "x.mcap")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, r"x\.mcap .* 'mcap recover x\.mcap -o recovered\.mcap'", clock="log_time")


def test_a_file_without_summary_or_checksums_is_read_from_its_data(tmp_path):
    whole = content(write_log(tmp_path / "x.mcap"))
    bare = content(write_log(tmp_path / "y.mcap", index_types=IndexType.NONE, enable_crcs=False, **WITHOUT))
    assert bare == whole


def spoil_summary(path, change, crc=False):
    """Changes the bytes of the summary, with the checksum made right, or taken away."""
    data = bytearray(path.read_bytes())
    (begin,) = struct.unpack_from("<Q", data, len(data) - 28)
    summary, footer = bytes(data[begin:-37]), bytes(data[-37:-12])
    changed = change(summary)
    assert changed != summary
    assert len(changed) == len(summary)
    value = zlib.crc32(footer, zlib.crc32(changed)) if crc else 0
    path.write_bytes(bytes(data[:begin]) + changed + footer + struct.pack("<I", value) + bytes(data[-8:]))


@pytest.mark.parametrize("crc", [False, True])
def test_a_summary_with_other_topics_than_the_data_is_refused(tmp_path, crc):
    path = write_log(tmp_path / "x.mcap")
    spoil_summary(path, lambda summary: summary.replace(b"/wrench", b"/wrecks"), crc)
    refused(path, "has a channel 2 that its summary does not have", clock="log_time")


@pytest.mark.parametrize(("old", "new", "match"), [
    (struct.pack("<QHI", 25, 3, 3), struct.pack("<QHI", 24, 3, 3), "has 25 messages in .* its statistics 24"),
    (struct.pack("<HQHQ", 1, 12, 2, 12), struct.pack("<HQHQ", 1, 13, 2, 11), "has 12 messages of channel 1, its stat"),
])  # fmt: skip
def test_counts_are_compared_with_the_statistics(tmp_path, old, new, match):
    path = write_log(tmp_path / "x.mcap")
    spoil_summary(path, lambda summary: summary.replace(old, new), crc=True)
    refused(path, match, clock="log_time")


def test_a_chunk_that_is_gone_is_missed_without_statistics_too(tmp_path):
    path = write_log(tmp_path / "x.mcap", use_statistics=False)
    data = bytearray(path.read_bytes())
    at = last = 8
    while data[at] != 15:  # the end of data
        last = at if data[at] == 6 else last
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    data[last] = 0x86  # an opcode of an application, which readers skip
    path.write_bytes(data)
    refused(path, "chunks, its index", clock="log_time")


def test_stamps_that_are_zero_throughout_are_an_error_that_names_the_other_clocks(tmp_path):
    log = logs.Log(tmp_path / "x.mcap")
    for i in range(3):
        joints = {"name": ["a"], "position": [1.0], "velocity": [], "effort": []}
        log.write("/arm", "sensor_msgs/msg/JointState", {"header": logs.stamp(0), **joints}, i * 10**9)
    log.close()
    refused(
        tmp_path / "x.mcap", "topic /arm: header.stamp is 0 in all 3 messages.*clock='log_time'", clock="header.stamp"
    )
    assert len(robocache.open(tmp_path / "x.mcap", clock="log_time").episode(0).streams["/arm/position"]) == 3


def test_topics_that_are_not_read_are_told_with_the_reason(tmp_path):
    path = write_log(tmp_path / "x.mcap", messages=0)
    assert robocache.open(path, clock="log_time").left_out == [
        LeftOut("/arm", "no messages"),
        LeftOut("/wrench", "no messages"),
        LeftOut("/flag", "message type std_msgs/msg/Bool is not supported"),
    ]
    left = robocache.open(write_log(path), clock="log_time", topics=["/arm"]).left_out
    assert left == [LeftOut(topic, "not selected", "topics=") for topic in ("/wrench", "/flag")]


def test_a_summary_that_repeats_channels_without_their_types_is_completed_from_the_data(tmp_path):
    """The C++ library writes it with ``noRepeatedSchemas``, to save room."""
    path = write_log(tmp_path / "x.mcap", repeat_schemas=False)
    assert content(path)[1] == [LeftOut("/flag", "message type std_msgs/msg/Bool is not supported")]
    assert content(path) == content(write_log(tmp_path / "y.mcap"))


@pytest.mark.parametrize("clock", ["log_time", "publish_time"])
def test_a_clock_that_is_zero_in_the_whole_file_is_an_error(tmp_path, clock):
    for messages in (1, 2):
        log = logs.Log(tmp_path / f"{messages}.mcap")
        for _ in range(messages):
            log.writer.write_message(
                "/said", log.schemas["std_msgs/msg/String"], {"data": "x"}, log_time=0, publish_time=0
            )
        log.close()
    assert robocache.open(tmp_path / "1.mcap", clock=clock).episode(0).streams["/said"].times[0] == 0
    refused(tmp_path / "2.mcap", f"{clock} is 0 in all 2 messages, so it was never set", clock=clock)


def test_a_topic_of_several_types_can_be_left_out(tmp_path):
    path = write_log(tmp_path / "0.mcap")
    log = logs.Log(tmp_path / "1.mcap")
    log.write("/arm", "std_msgs/msg/String", {"data": "x"}, 1)
    log.close()
    refused(tmp_path, "topic /arm is std_msgs/msg/String, elsewhere sensor_msgs/msg/JointState", clock="log_time")
    wrench = robocache.open(tmp_path, clock="log_time", topics=["/wrench"]).episode(0).streams["/wrench/force"]
    assert np.array_equal(
        wrench.values, robocache.open(path, clock="log_time").episode(0).streams["/wrench/force"].values
    )


def test_recordings_that_a_folder_has_and_the_source_does_not_read_are_told(tmp_path):
    for name in ("a.mcap", "b.MCAP", "run/c.mcap", "bag/d.mcap", "bag/e.mcap", "bag/f.db3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_log(tmp_path / name)
    (tmp_path / "bag/metadata.yaml").write_text("x:\n  relative_file_paths:\n    - d.mcap\n")
    for name in ("cache/manifest.json", "unfinished/manifest.json.next"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    left = {str(entry) for entry in robocache.open(tmp_path, clock="log_time").left_out}
    assert left == {
        "/flag: message type std_msgs/msg/Bool is not supported",
        "b.MCAP: neither an MCAP file nor a folder of a bag",
        "run: neither an MCAP file nor a folder of a bag",
        "bag/e.mcap: metadata.yaml does not list it",
        "bag/f.db3: metadata.yaml does not list it",
    }


@pytest.mark.parametrize(
    "files", ["\n    - a.mcap  # the first\n\n    # and\n    - 'b.mcap'\n", ' [a.mcap, "b.mcap"]\n  x: 1\n']
)
def test_the_list_of_a_bag_may_be_any_plain_yaml(tmp_path, files):
    for name in "ab":
        write_log(tmp_path / f"{name}.mcap", time_ns=10**9 if name == "a" else 10**11)
    (tmp_path / "metadata.yaml").write_text(f"x:\n  relative_file_paths:{files}")
    assert robocache.open(tmp_path, clock="log_time").episode(0).meta["files"] == ["a.mcap", "b.mcap"]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("[a.mcap, a.mcap]", "lists a file twice"),
        ("[a.mcap.zstd]", "is compressed as a file"),
        ("", "lists no files"),
        ("[b.mcap]", "b.mcap is missing"),
    ],
)
def test_the_list_of_a_bag_that_cannot_be_followed_is_the_error(tmp_path, listed, message):
    write_log(tmp_path / "a.mcap")
    (tmp_path / "metadata.yaml").write_text(f"x:\n  relative_file_paths: {listed}\n")
    refused(tmp_path, message, clock="log_time")


@pytest.mark.parametrize("options", [{}, {"enable_crcs": False, "use_chunking": False}])
def test_topics_of_a_log_without_any_message_are_told(tmp_path, options):
    with (tmp_path / "x.mcap").open("wb") as file:
        writer = Writer(file, **options)
        writer.start("ros2")
        kind = "sensor_msgs/msg/JointState"
        writer.register_channel("/arm", "cdr", writer.register_schema(kind, "ros2msg", logs.SCHEMAS[kind].encode()))
        writer.finish()
    assert robocache.open(tmp_path / "x.mcap", clock="log_time").left_out == [LeftOut("/arm", "no messages")]


def other_encodings(path, **options):
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start("ros2")
        kind = "sensor_msgs/msg/JointState"
        idl = writer.register_schema(kind, "ros2idl", b"module sensor_msgs {};")
        message = writer.register_schema(kind, "ros2msg", logs.SCHEMAS[kind].encode())
        for topic, schema, encoding in (("/idl", idl, "cdr"), ("/json", message, "json"), ("/none", 0, "cdr")):
            writer.add_message(writer.register_channel(topic, encoding, schema), 0, b"{}", 0)
        writer.add_attachment(0, 0, "calibration.yaml", "text/yaml", b"x")
        writer.add_metadata("site", {"city": "Kyoto"})
        writer.finish()


@pytest.mark.parametrize("options", [{}, {"enable_crcs": False}, {"use_statistics": False}, {"use_chunking": False}])
def test_topics_in_other_encodings_and_attachments_are_told(tmp_path, options):
    other_encodings(tmp_path / "x.mcap", **options)
    found = {str(left) for left in robocache.open(tmp_path / "x.mcap", clock="log_time").left_out}
    assert found == {
        "x.mcap: 1 attachments and 1 metadata records are not read",
        "/idl: its type is defined in ros2idl; only ros2msg is supported",
        "/json: messages are encoded as json; only cdr is supported",
        "/none: its messages have no type",
    }


def test_a_file_that_a_bag_does_not_list_is_told(tmp_path):
    for i in range(2):
        write_log(tmp_path / f"bag_{i}.mcap")
    (tmp_path / "metadata.yaml").write_text("x:\n  relative_file_paths:\n    - bag_0.mcap\n")
    assert (
        LeftOut("bag_1.mcap", "metadata.yaml does not list it") in robocache.open(tmp_path, clock="log_time").left_out
    )


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("string words", "message 0: it is not a std_msgs/msg/String: .* no attribute 'data'"),
        ("uint32 data", "message 0: it is not a std_msgs/msg/String"),
        ("string data\n===\nMSG: a/B\nint8 x\n===\nMSG: a/B\nint16 x", "a/B is defined twice, and differently"),
    ],
)
def test_a_definition_of_other_fields_than_its_type_is_refused_by_topic(tmp_path, definition, message):
    with (tmp_path / "x.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", definition.encode())
        writer.add_message(writer.register_channel("/said", "cdr", schema), 1, b"\0\1\0\0\2\0\0\0x\0", 1)
        writer.finish()
    refused(tmp_path / "x.mcap", f"topic /said, .*{message}", clock="log_time")


def test_fields_of_points_that_are_not_read_are_told(tmp_path):
    log = logs.Log(tmp_path / "x.mcap")
    message = logs.cloud_message(np.ones((2, 4), np.float32))
    message["fields"][3].update(name="normal", count=3)
    log.write("/lidar", "sensor_msgs/msg/PointCloud2", {"header": logs.stamp(10**9), **message}, 10**9)
    log.close()
    source = robocache.open(tmp_path / "x.mcap", clock="log_time")
    assert source.specs["/lidar"].names == ("x", "y", "z")
    left = LeftOut("/lidar, field normal", "its count is not 1, or its type is unknown")
    assert source.left_out == [left]
    assert robocache.ingest(source, tmp_path / "cache").left_out == [left]


@pytest.mark.parametrize("velocity", [[1.0], [1.0, 2.0, 3.0]])
def test_joints_of_other_names_than_values_are_refused(tmp_path, velocity):
    log = logs.Log(tmp_path / "x.mcap")
    joints = {"name": ["a", "b"], "position": [1.0, 2.0], "velocity": velocity, "effort": []}
    log.write("/arm", "sensor_msgs/msg/JointState", {"header": logs.stamp(10**9), **joints}, 10**9)
    log.close()
    message = f"topic /arm, message 0: it has 2 names and {len(velocity)} values of velocity"
    refused(tmp_path / "x.mcap", message, clock="log_time")


def test_messages_that_rosbag2_compressed_are_named_as_such(tmp_path):
    with (tmp_path / "x.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        writer.add_message(writer.register_channel("/said", "cdr", schema), 1, b"\x28\xb5\x2f\xfd\0", 1)
        writer.finish()
    refused(tmp_path / "x.mcap", "message 0: the bag has compression_mode MESSAGE", clock="log_time")


def test_topics_must_be_a_list_of_names(tmp_path):
    with pytest.raises(ValueError, match="open: topics must be a list of names, got '/arm'"):
        robocache.open(write_log(tmp_path / "x.mcap"), clock="log_time", topics="/arm")


# --- definitions


def joint_log(path, definition, data):
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("sensor_msgs/msg/JointState", "ros2msg", definition)
        writer.add_message(writer.register_channel("/arm", "cdr", schema), 0, data, 0)
        writer.finish()
    return path


MSG = b"\n================\nMSG: "
EVIL = {
    "constant": b"int32 " + b"A" * 100_000 + b"-=1\nfloat64[] position",
    "fixed array": b"uint8[4000000000] position",
    "fixed array of a type": b"x/B[4000000000] position" + MSG + b"x/B\nuint8[1] x",
    "fixed array of an empty type": b"x/B[4000000000] position" + MSG + b"x/B",
    "long array of a type": b"x/B[] position" + MSG + b"x/B\nuint8 x",
    "a type in itself": b"JointState position",
    "types of types": b"x/A0 position"
    + b"".join(MSG + b"x/A%d\n" % i + b"".join(b"x/A%d f%d\n" % (i + 1, j) for j in range(20)) for i in range(12)),
    "comment": b"float64[] position # " + b"[" * 200_000,
    "many fields": b"".join(b"uint8 f%d\n" % i for i in range(50_000)),
    "giant": b"#" * (2 << 20),
    "not text": b"\xff\xfe",
    "wide texts": b"wstring position",
}


@pytest.mark.parametrize("definition", EVIL.values(), ids=EVIL)
def test_hostile_definitions_are_refused_or_read_in_bounds(tmp_path, definition):
    data = b"\0\1\0\0" + struct.pack("<I", 2**32 - 1) + bytes(60)
    refused(joint_log(tmp_path / "x.mcap", definition, data), "mcap: .*topic /arm, message 0", clock="log_time")


def test_constants_and_comments_and_defaults_are_no_fields(tmp_path):
    text = b"""# a comment
int32 A=1
string B = "x = y"  # another
string[] name
float64[<=8] position   # [rad], between -pi and pi
float64[] velocity
float64[] effort []
uint8 spare 7
"""
    data = b"\0\1\0\0" + struct.pack("<I", 1) + struct.pack("<I2s", 2, b"j\0") + bytes(2)
    data += struct.pack("<I", 1) + struct.pack("<d", 2.5) + struct.pack("<II", 0, 0) + b"\7"
    stream = robocache.open(joint_log(tmp_path / "x.mcap", text, data), clock="log_time").episode(0).streams
    assert stream["/arm/position"].values.tolist() == [[2.5]]
    assert stream["/arm/position"].spec.names == ("j",)


@pytest.mark.parametrize("little", [True, False])
def test_messages_of_both_byte_orders_are_read(tmp_path, little):
    order = "<" if little else ">"
    data = bytes([0, int(little), 0, 0]) + struct.pack(f"{order}I", 0) + struct.pack(f"{order}I2d", 2, 1.5, -2.0)
    data += struct.pack(f"{order}II", 0, 0)
    text = b"string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort"
    source = robocache.open(joint_log(tmp_path / "x.mcap", text, data), clock="log_time")
    np.testing.assert_array_equal(source.episode(0).streams["/arm/position"].values, [[1.5, -2.0]])


def test_a_sparse_metadata_file_of_a_bag_is_refused_before_it_is_read(tmp_path):
    write_log(tmp_path / "bag_0.mcap")
    with (tmp_path / "metadata.yaml").open("wb") as file:
        file.truncate(1 << 40)
    refused(tmp_path, r"metadata.yaml must have at most 16777216 bytes", 1 << 20, format="mcap", clock="log_time")
