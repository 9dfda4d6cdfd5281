"""The picture cases of bench_ingest.py: a log of compressed images, kept as they are.

"Raw read" is a plain read of the file from the page cache into a buffer that is reused: no format is parsed and nothing
is kept. Beside it, in the same run: the file read from the disk (its pages dropped before), the messages read by the
library of the format, and the two parts of an ingest that cannot be left out: every bit of every scan is read once
(`index_pictures`), and the bytes are written and synced.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import robocache
from measure import harness
from measure.targets import target
from pixels.batches import encoded, photo

READ_BYTES = 8 << 20
RATE_HZ = 30
SCHEMA = """std_msgs/Header header
string format
uint8[] data
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""


def write_log(path: Path, shape: tuple[int, int], size_bytes: int, distinct: int = 48) -> tuple[int, int]:
    """An MCAP log of one camera, JPEG of quality 90 with edges, texture and noise, without a compression of chunks.
    Returns bytes of pictures, and how many there are."""
    from mcap.writer import CompressionType
    from mcap_ros2.writer import Writer

    rng = np.random.default_rng(0)
    pictures = [encoded(photo(rng, *shape, 6), 90) for _ in range(distinct)]
    total = count = 0
    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.NONE)
        schema = writer.register_msgdef("sensor_msgs/msg/CompressedImage", SCHEMA)
        while total < size_bytes:
            at = round(count * 1e9 / RATE_HZ)
            stamp = {"sec": at // 10**9, "nanosec": at % 10**9}
            data = pictures[count % distinct]
            message = {"header": {"stamp": stamp, "frame_id": "camera"}, "format": "jpeg", "data": data}
            writer.write_message("/camera", schema, message, log_time=at, publish_time=at)
            total += len(data)
            count += 1
        writer.finish()
    return total, count


def read_plain(path: Path) -> None:
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def read_cold(path: Path) -> float:
    """Seconds. The pages of the file are dropped before, which needs no privilege."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.perf_counter()
    read_plain(path)
    return time.perf_counter() - begin


def read_messages(path: Path) -> int:
    """Every message of the log as bytes, by the library of the format. Returns how many bytes."""
    from mcap.reader import make_reader

    with path.open("rb") as file:
        return sum(len(message.data) for _, _, message in make_reader(file).iter_messages())


def write_synced(data: np.ndarray[Any, Any], path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(memoryview(data))
        os.fsync(file.fileno())


def measure_pictures(folder: Path, shape: tuple[int, int], size_bytes: int, samples: int) -> dict[str, Any]:
    """Reading and ingesting in turns."""
    source, out, copy = folder / "camera.mcap", folder / "camera.cache", folder / "camera.bytes"
    size, count = write_log(source, shape, size_bytes)

    def ingest() -> None:
        shutil.rmtree(out, ignore_errors=True)
        robocache.ingest(source, out, clock="log_time")

    ingest()
    stored = robocache.Cache(out).episode(0, copy=True).streams["/camera"].pictures
    assert stored is not None
    assert len(stored) == count, "pictures are missing"
    calls = {
        "raw": lambda: read_plain(source),
        "messages": lambda: read_messages(source),
        "ingest": ingest,
        "index": lambda: robocache.index_pictures((stored.data, stored.splits)),
        "write": lambda: write_synced(stored.data, copy),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ("cold", *calls)}
    for _ in range(samples):
        seconds["cold"].append(read_cold(source))
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    share = harness.median(r / i for r, i in zip(seconds["raw"], seconds["ingest"], strict=True))
    grown = robocache.Cache(out).size_bytes / size
    source.unlink()
    copy.unlink()
    shutil.rmtree(out)
    return {
        "name": "pictures", "axes": {"pictures": count, "height": shape[0], "width": shape[1]}, "size_bytes": size,
        "samples_s": seconds, "median_s": {name: harness.median(s) for name, s in seconds.items()}, "of_raw": share,
        "cache_share": grown,
        "targets": {"of raw read": target(share, at_least=0.5), "cache size": target(grown, at_most=1.05)},
    }  # fmt: skip
