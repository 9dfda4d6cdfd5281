"""ROS 2 messages to rows: which streams a topic of each message type becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.depth_codes import CODES, depth_of_codes, inverse_depth
from ...cache.episode import RAGGED, StreamSpec
from ...cache.pictures import PictureBuffer
from ..reading.budget import Budget
from ..reading.images import (
    DECODED_DEPTH,
    PICTURES,
    RAW_PICTURES,
    decode_picture,
    mark_of,
    other_codec,
    picture_size,
    stored_codec,
)
from .compressed_depth import CompressedDepth, is_compressed_depth, read_compressed_depth
from .video import VideoMessages


@dataclass
class Part:
    """One stream of a topic: JointState, for one, has positions, velocities and efforts."""

    spec: StreamSpec
    values: Any
    """An array, or ``Pictures`` or a ``Video`` where they are encoded."""
    offsets: NDArray[np.int64] | None = None


@dataclass
class Row:
    """What one message adds to a stream ``<topic>/<name>``, or ``<topic>`` where there is no name."""

    name: str
    values: NDArray[Any]
    kind: str = "vector"
    names: tuple[str, ...] | None = None
    unit: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    codec: str | None = None
    """Set: ``values`` are the bytes of a picture that decodes to ``shape`` and ``dtype``."""
    decoded: tuple[tuple[int, ...], str] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape if self.decoded is None else self.decoded[0]

    @property
    def dtype(self) -> str:
        return self.values.dtype.name if self.decoded is None else self.decoded[1]


STRING = "std_msgs/msg/String"
XYZ = ("x", "y", "z")
XYZW = ("x", "y", "z", "w")
TURN = {"method": "slerp_xyzw"}
"""How ``align`` must read a quaternion."""
POINT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
FIELDS_LEFT_OUT = "fields_left_out"
"""Key of ``meta``: fields of points that are not read, in the first message."""
PIXELS = {
    **{"rgb8": ("u1", 3), "bgr8": ("u1", 3), "rgba8": ("u1", 4), "bgra8": ("u1", 4), "mono8": ("u1", 1)},
    **{"8UC1": ("u1", 1), "8UC3": ("u1", 3), "mono16": ("u2", 0), "16UC1": ("u2", 0), "32FC1": ("f4", 0)},
}
"""Encoding: type and channels of a pixel; 0 channels: depth, (height, width)."""


def _joint_state(message: Any, where: str, budget: Budget) -> list[Row]:
    names = tuple(message.name) or None
    fields = (("position", "rad"), ("velocity", "rad/s"), ("effort", "N m"))
    rows = [Row(name, _floats(getattr(message, name)), names=names, unit=unit) for name, unit in fields]
    rows = [row for row in rows if len(row.values)]
    for row in rows:
        if names is not None and len(names) != len(row.values):
            raise FormatError(f"{where}: it has {len(names)} names and {len(row.values)} values of {row.name}")
    return rows


def _imu(message: Any, where: str, budget: Budget) -> list[Row]:
    return [
        Row("orientation", _named(message.orientation, XYZW), names=XYZW, meta=dict(TURN)),
        Row("angular_velocity", _named(message.angular_velocity, XYZ), names=XYZ, unit="rad/s"),
        Row("linear_acceleration", _named(message.linear_acceleration, XYZ), names=XYZ, unit="m/s^2"),
    ]


def _wrench(message: Any, where: str, budget: Budget) -> list[Row]:
    force, torque = message.wrench.force, message.wrench.torque
    return [
        Row("force", _named(force, XYZ), names=XYZ, unit="N"),
        Row("torque", _named(torque, XYZ), names=XYZ, unit="N m"),
    ]


def _pose(message: Any, where: str, budget: Budget) -> list[Row]:
    pose = message.pose
    return [
        Row("position", _named(pose.position, XYZ), names=XYZ, unit="m"),
        Row("orientation", _named(pose.orientation, XYZW), names=XYZW, meta=dict(TURN)),
    ]


def _twist(message: Any, where: str, budget: Budget) -> list[Row]:
    linear, angular = message.twist.linear, message.twist.angular
    return [
        Row("linear", _named(linear, XYZ), names=XYZ, unit="m/s"),
        Row("angular", _named(angular, XYZ), names=XYZ, unit="rad/s"),
    ]


def _multi_array(message: Any, where: str, budget: Budget) -> list[Row]:
    return [Row("", _floats(message.data))]


def _string(message: Any, where: str, budget: Budget) -> list[Row]:
    return [Row("", np.array(bytearray(message.data.encode()), np.uint8), "text")]


def _image(message: Any, where: str, budget: Budget) -> list[Row]:
    if message.encoding not in PIXELS:
        raise FormatError(f"{where}: pixel encoding must be one of {', '.join(PIXELS)}, got {message.encoding!r}")
    dtype, channels = PIXELS[message.encoding]
    pixel = np.dtype(dtype).newbyteorder(">" if message.is_bigendian else "<")
    width = message.width * max(channels, 1) * pixel.itemsize
    data = np.frombuffer(bytes(message.data), np.uint8)
    if message.step < width or len(data) < message.step * message.height:
        raise FormatError(
            f"{where}: {message.height} x {message.width} {message.encoding} with step {message.step} "
            f"does not fit into {len(data)} bytes"
        )
    rows = data[: message.step * message.height].reshape(message.height, message.step)[:, :width]
    pixels = np.ascontiguousarray(rows).view(pixel).astype(np.dtype(dtype))
    if channels == 0:
        unit = "m" if dtype == "f4" else "mm"
        return [Row("", pixels.reshape(message.height, message.width), "depth", unit=unit)]
    pixels = pixels.reshape(message.height, message.width, channels)
    if message.encoding.startswith("bgr"):
        pixels = pixels[:, :, [2, 1, 0, *range(3, channels)]]
    return [Row("", pixels, "image", meta={"encoding": message.encoding})]


def _compressed_image(message: Any, where: str, budget: Budget) -> list[Row]:
    data = bytes(message.data)
    if is_compressed_depth(message.format, data):
        return [_decoded_depth(read_compressed_depth(message.format, data, where, budget), message, where, budget)]
    shape, _ = picture_size(data, "mcap", where, budget)
    kind, unit = ("image", None) if len(shape) == 3 else ("depth", "mm")
    pixels = decode_picture(data, shape, "mcap", where, budget)
    return [Row("", pixels, kind, unit=unit, meta={"encoding": message.format} | mark_of(data, False))]


def _encoded_image(message: Any, where: str, budget: Budget) -> list[Row]:
    """The bytes of the picture; its pixels where it is of a kind that is not stored so."""
    data, meta, inverse = bytes(message.data), {"encoding": message.format}, None
    if is_compressed_depth(message.format, data):
        depth = read_compressed_depth(message.format, data, where, budget)
        if not depth.png:
            row = _decoded_depth(depth, message, where, budget)
            row.meta[PICTURES] = DECODED_DEPTH
            return [row]
        data, inverse = depth.png, depth.inverse
        _code_shape(data, where, budget)
    shape, dtype = picture_size(data, "mcap", where, budget)
    kind, unit = ("image", None) if len(shape) == 3 else ("depth", "mm")
    codec = stored_codec(data, kind, dtype, shape)
    if codec is None:
        pixels = decode_picture(data, shape, "mcap", where, budget)
        return [Row("", pixels, kind, unit=unit, meta=meta | mark_of(data, True))]
    if inverse is not None:
        dtype, unit, meta = "float32", "m", {**meta, **inverse_depth(*inverse)}
    return [Row("", np.frombuffer(data, np.uint8), kind, unit=unit, meta=meta, codec=codec, decoded=(shape, dtype))]


def _decoded_depth(depth: CompressedDepth, message: Any, where: str, budget: Budget) -> Row:
    """uint16 millimeters, or float32 meters."""
    codes = depth.codes
    if codes is None:
        codes = decode_picture(depth.png, _code_shape(depth.png, where, budget), "mcap", where, budget)
    meta = {"encoding": message.format}
    if depth.inverse is None:
        return Row("", codes, "depth", unit="mm", meta=meta)
    return Row("", depth_of_codes(codes, inverse_depth(*depth.inverse)), "depth", unit="m", meta=meta)


def _code_shape(png: bytes, where: str, budget: Budget) -> tuple[int, ...]:
    shape, dtype = picture_size(png, "mcap", where, budget)
    if dtype != "uint16":
        raise FormatError(f"{where}: the PNG of compressedDepth must be gray with 16 bits, got {dtype} {shape}")
    return shape


def _raw_image(message: Any, where: str, budget: Budget) -> list[Row]:
    """Pixels, marked as never encoded."""
    rows = _image(message, where, budget)
    for row in rows:
        row.meta[PICTURES] = RAW_PICTURES
    return rows


def _point_cloud(message: Any, where: str, budget: Budget) -> list[Row]:
    """Fields as float32, or float64 where one of the fields is."""
    fields = [f for f in message.fields if f.count == 1 and f.datatype in POINT_TYPES]
    if not fields:
        raise FormatError(f"{where}: the point cloud has no supported field")
    order = ">" if message.is_bigendian else "<"
    types = [np.dtype(order + POINT_TYPES[f.datatype]) for f in fields]
    if any(f.offset + t.itemsize > message.point_step for f, t in zip(fields, types, strict=True)):
        raise FormatError(f"{where}: a field of the points lies outside of point_step {message.point_step}")
    row_bytes = message.width * message.point_step
    data = np.frombuffer(bytes(message.data), np.uint8)
    if message.row_step < row_bytes or len(data) < message.row_step * message.height:
        raise FormatError(
            f"{where}: {message.height} x {message.width} points of {message.point_step} bytes "
            f"with row_step {message.row_step} do not fit into {len(data)} bytes"
        )
    record = np.dtype(
        {
            "names": [str(i) for i in range(len(fields))],
            "formats": types,
            "offsets": [f.offset for f in fields],
            "itemsize": message.point_step,
        }
    )
    rows = data[: message.row_step * message.height].reshape(message.height, message.row_step)[:, :row_bytes]
    points = np.ascontiguousarray(rows).reshape(-1).view(record)
    wide = any(t.itemsize == 8 or t.name in ("int32", "uint32") for t in types)
    values = np.empty((len(points), len(fields)), np.float64 if wide else np.float32)
    for i in range(len(fields)):
        values[:, i] = points[str(i)]
    others = [f.name for f in message.fields if f.count != 1 or f.datatype not in POINT_TYPES]
    return [Row("", values, "points", tuple(f.name for f in fields), "m", {FIELDS_LEFT_OUT: others} if others else {})]


KNOWN: dict[str, Callable[[Any, str, Budget], list[Row]]] = {
    "sensor_msgs/msg/JointState": _joint_state,
    "sensor_msgs/msg/Imu": _imu,
    "geometry_msgs/msg/WrenchStamped": _wrench,
    "geometry_msgs/msg/PoseStamped": _pose,
    "geometry_msgs/msg/TwistStamped": _twist,
    "sensor_msgs/msg/PointCloud2": _point_cloud,
    "sensor_msgs/msg/Image": _image,
    "sensor_msgs/msg/CompressedImage": _compressed_image,
    "std_msgs/msg/Float64MultiArray": _multi_array,
    STRING: _string,
}


ENCODED: dict[str, Callable[[Any, str, Budget], list[Row]]] = {
    "sensor_msgs/msg/Image": _raw_image,
    "sensor_msgs/msg/CompressedImage": _encoded_image,
}
"""In the place of ``KNOWN``, where encoded pictures stay as they are."""


class VideoTopic(VideoMessages):
    """In the place of ``Collected``, where each message is a packet of a video."""

    def parts(self) -> list[Part]:
        return [Part(spec, self.values()) for spec in self.specs()]


class Collected:
    """The messages of one topic of an episode, turned into rows one by one."""

    def __init__(self, topic: str, schema: str, budget: Budget, encoded: bool = False) -> None:
        self.topic = topic
        self.times: list[int] = []
        self._turn = (ENCODED if encoded and schema in ENCODED else KNOWN)[schema]
        self._rows: list[list[Row]] = []
        self._encoded: dict[int, PictureBuffer] = {}
        """By the place of their row in a message. The rows themselves then have no values."""
        self._budget = budget
        self._bytes = 0

    def add(self, message: Any, time_ns: int, where: str) -> None:
        rows = self._turn(message, where, self._budget)
        if self._rows:
            self._check_like_the_first(rows, where)
        self._bytes += sum(row.values.nbytes for row in rows)
        self._budget.check(where, self._bytes)
        for i, row in enumerate(rows):
            if row.codec is not None:
                if i not in self._encoded:
                    self._encoded[i] = PictureBuffer()
                self._encoded[i].add(row.values.data)
                row.values = row.values[:0].copy()
        self._rows.append(rows)
        self.times.append(time_ns)

    def _check_like_the_first(self, rows: list[Row], where: str) -> None:
        first = self._rows[0]
        if [row.name for row in rows] != [row.name for row in first]:
            raise FormatError(f"{where}: it has {_listed(rows)}, the first message {_listed(first)}")
        for row, other in zip(rows, first, strict=True):
            skip = 1 if row.kind in RAGGED else 0
            same = row.shape[skip:] == other.shape[skip:] and row.dtype == other.dtype
            if not same or row.names != other.names:
                raise FormatError(
                    f"{where}: {row.name or 'rows'} {row.dtype} {row.shape} of {row.names}, in the first "
                    f"message {other.dtype} {other.shape} of {other.names}"
                )
            if row.codec != other.codec:
                raise FormatError(other_codec(where, row.codec, other.codec))
            check_codes(row.meta, other.meta, where)

    @property
    def num_messages(self) -> int:
        return len(self.times)

    def specs(self) -> list[StreamSpec]:
        return [part.spec for part in self.parts()]

    def parts(self) -> list[Part]:
        if not self._rows:
            return []
        return [self._part(i, row) for i, row in enumerate(self._rows[0])]

    def _part(self, i: int, first: Row) -> Part:
        name = f"{self.topic}/{first.name}" if first.name else self.topic
        values = [rows[i].values for rows in self._rows]
        ragged = first.kind in RAGGED
        shape = first.shape[1:] if ragged else first.shape
        spec = StreamSpec(
            name, first.dtype, shape, first.kind, unit=first.unit, names=first.names, meta=first.meta, codec=first.codec
        )
        if first.codec is not None:
            return Part(spec, self._encoded[i].pictures())
        if not ragged:
            return Part(spec, np.stack(values))
        sizes = [len(v) for v in values]
        return Part(spec, np.concatenate(values), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def check_codes(meta: dict[str, Any], first: dict[str, Any], where: str) -> None:
    """The codes of a stream mean the same in all its pictures."""
    if meta.get(CODES) != first.get(CODES):
        raise FormatError(
            f"{where}: compressedDepth must have the parameters of the first message, {first.get(CODES)}, got "
            f'{meta.get(CODES)}; to store meters instead, pass images="raw" to ingest'
        )


def _listed(rows: list[Row]) -> str:
    return ", ".join(row.name for row in rows) or "nothing"


def _floats(values: Any) -> NDArray[np.float64]:
    return np.asarray(values, np.float64).reshape(-1)


def _named(value: Any, names: tuple[str, ...]) -> NDArray[np.float64]:
    return np.array([getattr(value, name) for name in names], np.float64)
