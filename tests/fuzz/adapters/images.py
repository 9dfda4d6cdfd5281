"""Valid datasets of every format as bytes in memory: what the fuzzers change."""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import paths  # noqa: F401

# isort: split
import adapter_datasets
import adapter_logs
import cache_cases
import video_cases

SEED = 16
Writer = Callable[[Path, np.random.Generator], adapter_datasets.Written]


@dataclass(frozen=True)
class Image:
    """``files``: by name, relative to the folder that holds the dataset. ``path``: what is opened, relative to it."""

    name: str
    files: dict[str, bytes]
    path: str
    options: dict[str, Any] = field(default_factory=dict)
    checked: tuple[str, ...] = ()
    """Files whose bytes all have checksums: a change in them must be noticed. Empty: the dataset has no checksums."""


def load(folder: Path, written: adapter_datasets.Written, name: str, checked: str = "") -> Image:
    """Takes up what was written; ``checked``: a pattern for the files that have checksums."""
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    matching = {p.relative_to(folder).as_posix() for p in folder.glob(checked)} if checked else set()
    names = tuple(name for name in files if name in matching)
    return Image(name, files, written.path.relative_to(folder).as_posix(), dict(written.options), names)


def cache(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """Three episodes in several shards; no source, because its path would be in the manifest."""
    import robocache

    path = folder / "arm.cache"
    source = cache_cases.MadeSource(episodes=3, messages=8)
    writer = robocache.CacheWriter(path, source.specs, fingerprint="made", shard_bytes=2048)
    for episode in source:
        writer.add(episode)
    writer.commit({"robot": "arm"})
    return adapter_datasets.Written(path, {}, [], [], {}, [])


def hdf5_checked(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """Fletcher32 over the chunks, and the file format whose headers have checksums."""
    import h5py

    path = folder / "checked.hdf5"
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(adapter_datasets.LENGTHS)
        data.attrs["env_args"] = np.bytes_(json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}}))
        for i, rows in enumerate(adapter_datasets.LENGTHS):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = rows
            for name, values in adapter_datasets.arm(rng, rows).items():
                how = {"compression": "gzip"} if name == "action" else {}
                demo.create_dataset(
                    f"{name}s", data=values, fletcher32=True, chunks=(min(4, rows), values.shape[1]), **how
                )
            demo.create_dataset("obs/image", data=adapter_datasets.pictures(rng, rows, 6, 8), fletcher32=True)
    return adapter_datasets.Written(path, {}, [], [], {}, [])


def parquet_checked(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """LeRobot v3.0 whose Parquet pages have checksums, without the video: that has none."""
    import pyarrow.parquet as pq

    written = adapter_datasets.lerobot_v30(folder, rng)
    for path in written.path.rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table, path, write_page_checksum=True, row_group_size=6)
    for path in written.path.rglob("*.mp4"):
        path.unlink()
    written.options["video"] = False
    return written


def zarr_checked(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """zarr v3 with the crc32c codec over every chunk."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    path, arrays = folder / "checked.zarr", adapter_datasets.zarr_arrays(rng, True)
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    how = {"compressors": [ZstdCodec(), Crc32cCodec()]}
    for name, array in arrays.items():
        root.create_array(f"data/{name}", data=array, chunks=(4, *array.shape[1:]), **how)
    root.create_array("meta/episode_ends", data=np.cumsum(adapter_datasets.LENGTHS).astype(np.int64), **how)
    return adapter_datasets.Written(path, {}, [], [], {}, [])


def few_messages(rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Three of each topic, in the order of time: a case then takes milliseconds."""
    messages, _ = adapter_logs.log_messages(rng)
    found: dict[str, list[tuple[Any, ...]]] = {}
    for message in messages:
        found.setdefault(message[0], []).append(message)
    return sorted((message for topic in found.values() for message in topic[:3]), key=lambda message: message[3])


def coded_messages(rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Pictures whose bytes our own code reads: depth as PNG and RVL, and the packets of each codec."""
    messages: list[tuple[Any, ...]] = []

    def add(topic: str, kind: str, packets: list[bytes], format: str) -> None:
        for i, data in enumerate(packets):
            at = adapter_logs.START_NS + i * 10**8
            stamp = adapter_logs.stamp(at)
            head = {"header": stamp} if kind.startswith("sensor") else {"timestamp": stamp["stamp"], "frame_id": ""}
            messages.append((topic, kind, {**head, "format": format, "data": data}, at))

    depth = rng.integers(300, 6000, (2, 6, 8)).astype(np.uint16)
    depth[:, 1:3] = 0
    packings = {"png": adapter_datasets.png, "rvl": adapter_logs.rvl}
    for encoding, parameters in (("16UC1", (0.0, 0.0)), ("32FC1", (10100.0, -1009.0))):
        for name, pack in packings.items():
            packets = [adapter_logs.depth_header(*parameters) + pack(picture) for picture in depth]
            topic = f"/depth/{encoding.lower()}_{name}"
            add(topic, "sensor_msgs/msg/CompressedImage", packets, f"{encoding}; compressedDepth {name}")
    film = video_cases.film(rng, 3, 48, 64)
    for codec, format in (("h264", "h264"), ("hevc", "h265"), ("vp9", "vp9"), ("av1", "av1")):
        packets = video_cases.packets_of(film, codec, gop=2)
        add(f"/video/{format}", "foxglove_msgs/msg/CompressedVideo", packets, format)
    return messages


def coded_file(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """Without compression, so that changed bytes are bytes of pictures; the topic of texts is in every log."""
    from mcap.writer import CompressionType

    path = folder / "coded.mcap"
    adapter_logs.write_log(path, coded_messages(rng), compression=CompressionType.NONE, chunk_size=4096)
    return adapter_datasets.Written(path, {"clock": "header.stamp"}, [], [], {}, [])


def kept(write: Writer) -> Writer:
    """The same, read with encoded pictures as they are."""

    def write_kept(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
        written = write(folder, rng)
        written.options["encoded"] = True
        return written

    return write_kept


def lerobot_of_06(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """What LeRobot 0.6 added to v3.0: depth as TIFF and as video, texts and language columns."""
    import pyarrow as pa
    import test_lerobot_depth as depth

    def entries(style: str | None, **fields: Any) -> list[dict[str, Any]]:
        call = [{"type": "function", "function": {"name": "say", "arguments": {"text": "ok"}}}]
        plain = {"role": "assistant", "content": "reach", "style": style, "camera": None, "tool_calls": None}
        return [{**plain, **fields}, {**plain, **fields, "content": None, "tool_calls": call}]

    rows = depth.ROWS
    codes = rng.integers(0, 4096, (rows, *depth.SIZE)).astype(np.uint16)
    columns = {
        "said": pa.array([f"part {row // 3}" for row in range(rows)]),
        "language_persistent": pa.array([entries("subtask", timestamp=0.1)] * rows),
        "language_events": pa.array([entries(None) if row % 2 else [] for row in range(rows)]),
        "near": depth.cells(depth.tiff(picture) for picture in codes),
        "far": depth.cells(depth.tiff(picture.astype(np.float32) / 1000) for picture in codes),
    }
    features = {
        "said": {"dtype": "string", "shape": [1], "names": None},
        **{name: {"dtype": "language", "shape": [1], "names": None} for name in columns if "language" in name},
        "near": depth.depth_feature("image", "mm"),
        "far": depth.depth_feature("image", "m"),
        "film": depth.depth_feature("video", "m", **depth.video_info()),
    }
    root = depth.write_dataset(folder / "v30", features, columns)
    depth.write_depth_video(root / "videos/film/chunk-000/file-000.mp4", codes)
    return adapter_datasets.Written(root, {}, [], [], {}, [])


def mcap_file(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    from mcap.writer import CompressionType

    path = folder / "run.mcap"
    adapter_logs.write_log(path, few_messages(rng), compression=CompressionType.ZSTD, chunk_size=2048)
    return adapter_datasets.Written(path, {"clock": "log_time"}, [], [], {}, [])


def ros2_bag(folder: Path, rng: np.random.Generator) -> adapter_datasets.Written:
    """One episode in two files, of which the second has the later half."""
    from mcap.writer import CompressionType

    root = folder / "bag"
    root.mkdir()
    messages = few_messages(rng)
    half = len(messages) // 2
    for i, (part, compression) in enumerate(
        ((messages[:half], CompressionType.LZ4), (messages[half:], CompressionType.NONE))
    ):
        adapter_logs.write_log(root / f"bag_{i}.mcap", part, compression=compression)
    text = "rosbag2_bagfile_information:\n  version: 5\n  relative_file_paths:\n    - bag_0.mcap\n    - bag_1.mcap\n"
    (root / "metadata.yaml").write_text(text)
    return adapter_datasets.Written(root, {"clock": "publish_time"}, [], [], {}, [])


MUTATED: dict[str, tuple[Writer, str]] = {
    "lerobot21": (adapter_datasets.lerobot_v21, ""),
    "lerobot30": (adapter_datasets.lerobot_v30, ""),
    "lerobot30-kept": (kept(adapter_datasets.lerobot_v30), ""),
    "lerobot06": (lerobot_of_06, ""),
    "robomimic": (adapter_datasets.robomimic, ""),
    "zarr2": (adapter_datasets.zarr_v2_with_times, ""),
    "zarr3": (adapter_datasets.zarr_v3_at_a_rate, ""),
    "zarrzip": (adapter_datasets.zarr_zip, "*.zip"),
    "mcap": (mcap_file, "*.mcap"),
    "mcap-coded": (coded_file, "*.mcap"),
    "mcap-kept": (kept(coded_file), "*.mcap"),
    "ros2bag": (ros2_bag, "*/*.mcap"),
    "calvin": (adapter_datasets.calvin, ""),
    "rlds": (adapter_datasets.rlds, "**/*.tfrecord*"),
    "robocache": (cache, "*/*"),
}
"""The formats of the mutated datasets: who writes them, and the files in them that have checksums."""

FLIPPED: dict[str, tuple[Writer, str]] = {
    "mcap": MUTATED["mcap"],
    "parquet": (parquet_checked, "**/*.parquet"),
    "hdf5": (hdf5_checked, "*.hdf5"),
    "zarr": (zarr_checked, "**/c/**/*"),
    "zarrzip": MUTATED["zarrzip"],
    "rlds": MUTATED["rlds"],
    "robocache": MUTATED["robocache"],
    "hdf5-plain": (adapter_datasets.robomimic, ""),
    "parquet-plain": (adapter_datasets.lerobot_v21, ""),
    "mcap-bag": (ros2_bag, "*/*.mcap"),
}
"""What single bits are flipped in. ``-plain``: files without checksums, or with few; only how reading ends counts."""


def make(name: str, flips: bool = False) -> Image:
    write, checked = (FLIPPED if flips else MUTATED)[name]
    with tempfile.TemporaryDirectory() as folder:
        written = write(Path(folder), np.random.default_rng(SEED))
        return load(Path(folder), written, name, checked)


def work_folder() -> Path:
    """In memory where that is possible: a case writes and reads a few files."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="robocache-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))


def load_saved(path: Path) -> dict[str, dict[str, Image]]:
    """By kind, mutated or flipped, and by name."""
    return dict(pickle.loads(path.read_bytes()))


def save(path: Path, names: list[str], flips: list[str]) -> None:
    """Made once and loaded by every worker: some writers take a while, and a zip has the time in it."""
    images = {"mutated": {n: make(n) for n in names}, "flipped": {n: make(n, True) for n in flips}}
    path.write_bytes(pickle.dumps(images))
