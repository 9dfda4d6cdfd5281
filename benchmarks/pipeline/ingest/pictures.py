"""The picture case of bench_ingest.py: a log of compressed images, kept as they are."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import robocache
from measure import harness
from measure.targets import target
from pixels.batches import encoded, photo

SHAPE = (480, 640)
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


def write_log(path: Path, size_bytes: int, distinct: int = 48) -> tuple[int, int]:
    """An MCAP log of one camera, JPEG of quality 90, without a compression of chunks. Returns bytes of pictures, and
    how many there are."""
    from mcap.writer import CompressionType
    from mcap_ros2.writer import Writer

    rng = np.random.default_rng(0)
    pictures = [encoded(photo(rng, *SHAPE, 6), 90) for _ in range(distinct)]
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


def read_raw(path: Path) -> int:
    """Every message of the log as bytes, by the library of the format. Returns how many bytes."""
    from mcap.reader import make_reader

    with path.open("rb") as file:
        return sum(len(message.data) for _, _, message in make_reader(file).iter_messages())


def measure_pictures(folder: Path, size_bytes: int, samples: int) -> dict[str, Any]:
    """Reading and ingesting in turns; both find the file in the page cache. ``plain``: the bytes of the file."""
    source, out = folder / "camera.mcap", folder / "camera.cache"
    size, count = write_log(source, size_bytes)
    seconds: dict[str, list[float]] = {"plain": [], "raw": [], "ingest": []}
    read_raw(source)

    def ingest() -> None:
        shutil.rmtree(out, ignore_errors=True)
        robocache.ingest(source, out, clock="log_time")

    calls = {"plain": source.read_bytes, "raw": lambda: read_raw(source), "ingest": ingest}
    for _ in range(samples):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    cache = robocache.Cache(out)
    assert len(cache.episode(0).streams["/camera"]) == count, "pictures are missing"
    share = harness.median(r / i for r, i in zip(seconds["raw"], seconds["ingest"], strict=True))
    grown = cache.size_bytes / size
    source.unlink()
    shutil.rmtree(out)
    return {
        "name": "pictures", "axes": {"pictures": count, "height": SHAPE[0], "width": SHAPE[1]}, "size_bytes": size,
        "samples_s": seconds, "median_s": {name: harness.median(s) for name, s in seconds.items()}, "of_raw": share,
        "cache_share": grown,
        "targets": {"of raw read": target(share, at_least=0.5), "cache size": target(grown, at_most=1.05)},
    }  # fmt: skip
