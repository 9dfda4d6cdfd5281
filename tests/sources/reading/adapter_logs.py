"""MCAP files of ROS 2 messages at several rates, and TFRecords of episodes: see adapter_datasets.py."""

import json
import struct

import numpy as np

STAMP = "std_msgs/Header header\n"
TIME = "=" * 80 + "\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
HEADER = "=" * 80 + "\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n" + TIME
VECTOR3 = "=" * 80 + "\nMSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z\n"
POINT = VECTOR3.replace("Vector3", "Point")
QUATERNION = "=" * 80 + "\nMSG: geometry_msgs/Quaternion\nfloat64 x\nfloat64 y\nfloat64 z\nfloat64 w\n"
SCHEMAS = {
    "sensor_msgs/msg/JointState": STAMP
    + "string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n"
    + HEADER,
    "sensor_msgs/msg/Imu": STAMP
    + "geometry_msgs/Quaternion orientation\nfloat64[9] orientation_covariance\n"
    + "geometry_msgs/Vector3 angular_velocity\nfloat64[9] angular_velocity_covariance\n"
    + "geometry_msgs/Vector3 linear_acceleration\nfloat64[9] linear_acceleration_covariance\n"
    + HEADER
    + QUATERNION
    + VECTOR3,
    "geometry_msgs/msg/WrenchStamped": STAMP
    + "geometry_msgs/Wrench wrench\n"
    + HEADER
    + "=" * 80
    + "\nMSG: geometry_msgs/Wrench\ngeometry_msgs/Vector3 force\ngeometry_msgs/Vector3 torque\n"
    + VECTOR3,
    "geometry_msgs/msg/PoseStamped": STAMP
    + "geometry_msgs/Pose pose\n"
    + HEADER
    + "=" * 80
    + "\nMSG: geometry_msgs/Pose\ngeometry_msgs/Point position\ngeometry_msgs/Quaternion orientation\n"
    + POINT
    + QUATERNION,
    "geometry_msgs/msg/TwistStamped": STAMP
    + "geometry_msgs/Twist twist\n"
    + HEADER
    + "=" * 80
    + "\nMSG: geometry_msgs/Twist\ngeometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n"
    + VECTOR3,
    "sensor_msgs/msg/PointCloud2": STAMP
    + "uint32 height\nuint32 width\nsensor_msgs/PointField[] fields\nbool is_bigendian\nuint32 point_step\n"
    + "uint32 row_step\nuint8[] data\nbool is_dense\n"
    + HEADER
    + "=" * 80
    + "\nMSG: sensor_msgs/PointField\nstring name\nuint32 offset\nuint8 datatype\nuint32 count\n",
    "sensor_msgs/msg/Image": STAMP
    + "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data\n"
    + HEADER,
    "sensor_msgs/msg/CompressedImage": STAMP + "string format\nuint8[] data\n" + HEADER,
    "foxglove_msgs/msg/CompressedVideo": "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\n"
    + "string format\n"
    + TIME,
    "std_msgs/msg/Float64MultiArray": "std_msgs/MultiArrayLayout layout\nfloat64[] data\n"
    + "=" * 80
    + "\nMSG: std_msgs/MultiArrayLayout\nstd_msgs/MultiArrayDimension[] dim\nuint32 data_offset\n"
    + "=" * 80
    + "\nMSG: std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride\n",
    "std_msgs/msg/String": "string data\n",
    "std_msgs/msg/Bool": "bool data\n",
}
SAID = "größer 杯"
START_NS = 1_700_000_000_123_456_789


def stamp(time_ns):
    return {"stamp": {"sec": time_ns // 10**9, "nanosec": time_ns % 10**9}, "frame_id": "base"}


def xyz(values, names="xyz"):
    return dict(zip(names, map(float, values), strict=True))


class Log:
    """Writes messages to an MCAP file. log_time is 5 ms after publish_time, which is 2 ms after the stamp."""

    def __init__(self, path, **options):
        import mcap_ros2.writer

        self.file = path.open("wb")
        self.writer = mcap_ros2.writer.Writer(self.file, **options)
        self.schemas = {name: self.writer.register_msgdef(name, text) for name, text in SCHEMAS.items()}

    def write(self, topic, kind, message, time_ns):
        times = {"log_time": time_ns + 7_000_000, "publish_time": time_ns + 2_000_000}
        self.writer.write_message(topic, self.schemas[kind], message, **times)

    def close(self):
        self.writer.finish()
        self.file.close()


def cloud_message(points, order="<"):
    """Points of x, y, z, intensity with padding between them, in two rows where there are that many."""
    record = np.dtype(
        {"names": ["x", "y", "z", "i"], "formats": [f"{order}f4"] * 4, "offsets": [0, 4, 8, 16], "itemsize": 24}
    )
    data = np.zeros(len(points), record)
    for i, name in enumerate(record.names):
        data[name] = points[:, i]
    fields = [{"name": n, "offset": o, "datatype": 7, "count": 1} for n, o in zip("xyzi", (0, 4, 8, 16), strict=True)]
    return {
        "height": 1,
        "width": len(points),
        "fields": fields,
        "is_bigendian": order == ">",
        "point_step": 24,
        "row_step": 24 * len(points),
        "data": data.tobytes(),
        "is_dense": True,
    }


def log_messages(rng):
    """(topic, type, message, time), with each topic at its own rate and with jitter; and the streams these are."""

    def times(count, rate_hz):
        step = int(10**9 / rate_hz)
        return START_NS + np.arange(count) * step + rng.integers(0, step // 3, count)

    messages, streams = [], {}

    def add(topic, kind, rate_hz, count, make, parts):
        at = times(count, rate_hz)
        for i, t in enumerate(at):
            header = {} if kind == "std_msgs/msg/Float64MultiArray" else {"header": stamp(int(t))}
            messages.append((topic, kind, {**header, **make(i)}, int(t)))
        for name, values in parts.items():
            streams[f"{topic}/{name}" if name else topic] = (values, at.astype(np.int64))

    q, qd = rng.standard_normal((50, 6)), rng.standard_normal((50, 6))
    names = [f"joint{i}" for i in range(6)]
    add(
        *("/joint_states", "sensor_msgs/msg/JointState", 500, 50),
        lambda i: {"name": names, "position": q[i].tolist(), "velocity": qd[i].tolist(), "effort": []},
        {"position": q, "velocity": qd},
    )
    turn, gyro, push = rng.standard_normal((20, 4)), rng.standard_normal((20, 3)), rng.standard_normal((20, 3))
    none = {f"{n}_covariance": [0.0] * 9 for n in ("orientation", "angular_velocity", "linear_acceleration")}
    add(
        *("/imu", "sensor_msgs/msg/Imu", 200, 20),
        lambda i: {
            **none,
            "orientation": xyz(turn[i], "xyzw"),
            "angular_velocity": xyz(gyro[i]),
            "linear_acceleration": xyz(push[i]),
        },
        {"orientation": turn, "angular_velocity": gyro, "linear_acceleration": push},
    )
    force, torque = rng.standard_normal((100, 3)), rng.standard_normal((100, 3))
    add(
        *("/wrench", "geometry_msgs/msg/WrenchStamped", 1000, 100),
        lambda i: {"wrench": {"force": xyz(force[i]), "torque": xyz(torque[i])}},
        {"force": force, "torque": torque},
    )
    place, facing = rng.standard_normal((10, 3)), rng.standard_normal((10, 4))
    add(
        *("/pose", "geometry_msgs/msg/PoseStamped", 100, 10),
        lambda i: {"pose": {"position": xyz(place[i]), "orientation": xyz(facing[i], "xyzw")}},
        {"position": place, "orientation": facing},
    )
    linear, angular = rng.standard_normal((10, 3)), rng.standard_normal((10, 3))
    add(
        *("/twist", "geometry_msgs/msg/TwistStamped", 100, 10),
        lambda i: {"twist": {"linear": xyz(linear[i]), "angular": xyz(angular[i])}},
        {"linear": linear, "angular": angular},
    )
    command = rng.standard_normal((7, 5))
    layout = {"dim": [], "data_offset": 0}
    add(
        *("/command", "std_msgs/msg/Float64MultiArray", 70, 7),
        lambda i: {"layout": layout, "data": command[i].tolist()},
        {"": command},
    )
    add_cameras(add, rng)
    clouds = [rng.standard_normal((n, 4)).astype(np.float32) for n in (3, 0, 8)]
    add("/cloud", "sensor_msgs/msg/PointCloud2", 10, 3, lambda i: cloud_message(clouds[i], "<>"[i % 2]), {})
    at = np.array([t for topic, _, _, t in messages if topic == "/cloud"], np.int64)
    streams["/cloud"] = (np.concatenate(clouds), at, np.array([0, 3, 3, 11]))
    return messages, streams


def add_cameras(add, rng):
    import io

    import PIL.Image

    color = rng.integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)
    depth = rng.integers(0, 65536, (4, 6, 8), dtype=np.uint16)

    def image(rows, encoding, step):
        padded = np.zeros((len(rows), step), np.uint8)
        raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        padded[:, : raw.shape[1]] = raw
        size = {"height": rows.shape[0], "width": rows.shape[1]}
        return {**size, "encoding": encoding, "is_bigendian": 0, "step": step, "data": padded.tobytes()}

    def packed(picture):
        buffer = io.BytesIO()
        PIL.Image.fromarray(picture).save(buffer, "PNG")
        return {"format": "rgb8; png compressed", "data": buffer.getvalue()}

    kind = "sensor_msgs/msg/Image"
    add("/rgb", kind, 30, 4, lambda i: image(color[i][..., ::-1], "bgr8", 32), {"": color})
    add("/depth", kind, 30, 4, lambda i: image(depth[i], "16UC1", 16), {"": depth})
    add("/packed", "sensor_msgs/msg/CompressedImage", 30, 4, lambda i: packed(color[i]), {"": color})


def depth_header(a=0.0, b=0.0, kind=0):
    return struct.pack("<iff", kind, a, b)


def rvl(codes):
    """RVL by loops over pixels and nibbles."""
    nibbles = []

    def put(number):
        while True:
            more, low = number >> 3, number & 7
            nibbles.append(low | (8 if more else 0))
            number = more
            if not number:
                return

    flat, at, last = codes.reshape(-1).tolist(), 0, 0
    while at < len(flat):
        begin = at
        while at < len(flat) and flat[at] == 0:
            at += 1
        put(at - begin)
        begin = at
        while at < len(flat) and flat[at] != 0:
            at += 1
        put(at - begin)
        for value in flat[begin:at]:
            difference = value - last
            put(2 * difference if difference >= 0 else -2 * difference - 1)
            last = value
    nibbles += [0] * (-len(nibbles) % 8)
    words = [int("".join(f"{x:x}" for x in nibbles[i : i + 8]), 16) for i in range(0, len(nibbles), 8)]
    return struct.pack("<II", codes.shape[1], codes.shape[0]) + struct.pack(f"<{len(words)}I", *words)


def write_log(path, messages, said_ns=START_NS, **options):
    """In the order of time, as a recorder would; a topic of texts, and one of a type that is left out."""
    log = Log(path, **options)
    for topic, kind, message, time_ns in sorted(messages, key=lambda m: m[3]):
        log.write(topic, kind, message, time_ns)
    log.write("/chatter", "std_msgs/msg/String", {"data": SAID}, said_ns)
    log.write("/flag", "std_msgs/msg/Bool", {"data": True}, START_NS)
    log.close()


def spoken(texts, times):
    """A stream of text: bytes, times and offsets."""
    encoded = [text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in encoded])]).astype(np.int64)
    return np.array(bytearray(b"".join(encoded)), np.uint8), np.array(times, np.int64), offsets


def later(streams, by_ns):
    return {name: (values, times + by_ns, *rest) for name, (values, times, *rest) in streams.items()}


MCAP_SPECS = {
    "/joint_states/position": {"names": tuple(f"joint{i}" for i in range(6)), "unit": "rad", "dtype": "float64"},
    "/pose/orientation": {"meta": {"method": "slerp_xyzw"}, "names": ("x", "y", "z", "w")},
    "/rgb": {"kind": "image", "shape": (6, 8, 3)},
    "/depth": {"kind": "depth", "shape": (6, 8), "dtype": "uint16"},
    "/chatter": {"kind": "text", "shape": (), "dtype": "uint8"},
    "/cloud": {"kind": "points", "shape": (4,), "names": ("x", "y", "z", "i")},
}


def mcap_folder(folder, rng):
    """A folder of two files, each an episode."""
    from mcap.writer import CompressionType

    root = folder / "logs"
    root.mkdir()
    streams, packing = [], (CompressionType.ZSTD, CompressionType.LZ4)
    for i, compression in enumerate(packing):
        messages, found = log_messages(rng)
        write_log(root / f"run_{i}.mcap", messages, compression=compression, chunk_size=4096)
        found["/chatter"] = spoken([SAID], [START_NS])
        streams.append(later(found, 2_000_000))
    metadata = {"clock": "publish_time", "left_out": ["/flag"]}
    meta = [{"files": [f"run_{i}.mcap"]} for i in range(2)]
    return root, {"clock": "publish_time"}, streams, [None] * 2, metadata, meta, MCAP_SPECS


def ros2_bag(folder, rng):
    """One episode in two files, of which the second has the later half."""
    from mcap.writer import CompressionType

    root = folder / "bag"
    root.mkdir()
    messages, streams = log_messages(rng)
    messages.sort(key=lambda message: message[3])
    names = ["bag_0.mcap", "bag_1.mcap"]
    said_ns = [START_NS, START_NS + 1000]
    for name, part, t in zip(names, (messages[:100], messages[100:]), said_ns, strict=True):
        write_log(root / name, part, t, compression=CompressionType.NONE)
    listed = "".join(f"    - {name}\n" for name in names)
    text = f"rosbag2_bagfile_information:\n  version: 5\n  relative_file_paths:\n{listed}  message_count: 1\n"
    (root / "metadata.yaml").write_text(text)
    metadata = {"clock": "log_time", "left_out": ["/flag"]}
    streams["/chatter"] = spoken([SAID] * 2, said_ns)
    found = [later(streams, 7_000_000)]
    return root, {"clock": "log_time"}, found, [None], metadata, [{"files": names}], MCAP_SPECS


def example_class():
    """tf.train.Example, built by protobuf from its description."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = {"BytesList": 12, "FloatList": 2, "Int64List": 3}
    for name, kind in kinds.items():
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, label=3, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(kinds, 1):
        place = {"number": number, "label": 1, "type": 11, "type_name": f".t.{name}", "oneof_index": 0}
        feature.field.add(name=("bytes_list", "float_list", "int64_list")[number - 1], **place)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".t.Feature")
    features.field.add(name="feature", number=1, label=3, type=11, type_name=".t.Features.FeatureEntry")
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=11, type_name=".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def make_example(values):
    example = example_class()()
    for name, value in values.items():
        feature = example.features.feature[name]
        if isinstance(value, list):
            feature.bytes_list.value.extend(value)
        elif value.dtype.kind == "f":
            feature.float_list.value.extend(value.ravel().tolist())
        else:
            feature.int64_list.value.extend(value.astype(np.int64).ravel().tolist())
    return example.SerializeToString()


def tfrecord(data):
    import google_crc32c

    def masked(part):
        crc = google_crc32c.value(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def tensor(dtype, *shape):
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": "none"}}


def tree(**features):
    return {"featuresDict": {"features": features}}


def rlds_features():
    image = {"image": {"shape": {"dimensions": ["16", "24", "3"]}, "dtype": "uint8", "encodingFormat": "png"}}
    step = tree(
        observation=tree(image=image, state=tensor("float32", 4)),
        action=tensor("float32", 3),
        is_first=tensor("bool"),
        reward=tensor("float32"),
        counter=tensor("int64", 2),
        language_instruction={"text": {}},
        phase=tensor("string"),
    )
    return tree(steps={"sequence": {"feature": step, "length": "-1"}}, episode_metadata=tree(file_path={"text": {}}))


def rlds(folder, rng, lengths, tasks, times_of, png):
    root = folder / "asu_table_top_converted_externally_to_rlds" / "0.1.0"
    root.mkdir(parents=True)
    records, streams = [], []
    for i, rows in enumerate(lengths):
        values = {
            "observation/image": rng.integers(0, 256, (rows, 16, 24, 3), dtype=np.uint8),
            "observation/state": rng.standard_normal((rows, 4)).astype(np.float32),
            "action": rng.standard_normal((rows, 3)).astype(np.float32),
            "is_first": np.arange(rows) == 0,
            "reward": rng.standard_normal(rows).astype(np.float32),
            "counter": rng.integers(-(2**62), 2**62, (rows, 2)),
        }
        stored = {f"steps/{name}": value for name, value in values.items()}
        stored["steps/observation/image"] = [png(picture) for picture in values["observation/image"]]
        stored["steps/language_instruction"] = [tasks[i].encode()] * rows
        phases = ["reach" if row < rows // 2 else "grasp" for row in range(rows)]
        stored["steps/phase"] = [text.encode() for text in phases]
        stored["episode_metadata/file_path"] = [f"/raw/{i}.npy".encode()]
        records.append(tfrecord(make_example(stored)))
        times = times_of(range(rows), 12.5)
        streams.append({name: (value, times) for name, value in values.items()})
        streams[-1]["language_instruction"] = spoken([tasks[i]], times[:1])
        changed = [0, rows // 2] if rows > 1 else [0]
        streams[-1]["phase"] = spoken([phases[row] for row in changed], times[changed])
    name = "asu_table_top_converted_externally_to_rlds"
    for shard, part in enumerate((records[:2], records[2:])):
        (root / f"{name}-train.tfrecord-{shard:05d}-of-00002").write_bytes(b"".join(part))
    (root / "features.json").write_text(json.dumps(rlds_features()))
    info = {"name": name, "version": "0.1.0", "splits": [{"name": "train", "shardLengths": ["2", "1"]}]}
    (root / "dataset_info.json").write_text(json.dumps(info))
    meta = [{"episode_metadata/file_path": f"/raw/{i}.npy", "split": "train"} for i in range(len(lengths))]
    specs = {"observation/image": {"kind": "image"}, "action": {"rate_hz": 12.5}}
    metadata = {"name": name, "version": "0.1.0", "splits": ["train"]}
    return root.parent, {}, streams, list(tasks), metadata, meta, specs
