"""Changes that hung, crashed or slipped through once, one for each cause: every test run repeats them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

from images import Image
from mutations import Odd

Changed = dict[str, "bytes | Odd"]


def named(image: Image, part: str) -> str:
    """The first file whose name has this in it."""
    return next(name for name in image.files if part in name)


def replaced(part: str, content: bytes | Odd) -> Callable[[Image], Changed]:
    return lambda image: {named(image, part): content}


def edited(part: str, *keys: str | int, to: Any) -> Callable[[Image], Changed]:
    """JSON with another value at these keys."""

    def change(image: Image) -> Changed:
        document = at = json.loads(image.files[named(image, part)])
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = to
        return {named(image, part): json.dumps(document).encode()}

    return change


def renamed(part: str, old: str, new: str) -> Callable[[Image], Changed]:
    return lambda image: {named(image, part): image.files[named(image, part)].replace(old.encode(), new.encode())}


def cut(part: str, length: int) -> Callable[[Image], Changed]:
    return lambda image: {named(image, part): image.files[named(image, part)][:length]}


def flipped(part: str, before: bytes, skip: int, bit: int) -> Callable[[Image], Changed]:
    """A bit of the byte that comes so many bytes after these bytes."""

    def change(image: Image) -> Changed:
        data = bytearray(image.files[named(image, part)])
        data[data.index(before) + len(before) + skip] ^= 1 << bit
        return {named(image, part): bytes(data)}

    return change


def column(part: str, name: str, values: list[Any]) -> Callable[[Image], Changed]:
    """Parquet with other values in a column."""

    def change(image: Image) -> Changed:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(io.BytesIO(image.files[named(image, part)]))
        rows = pa.array((values * table.num_rows)[: table.num_rows])
        packed = io.BytesIO()
        pq.write_table(table.set_column(table.column_names.index(name), name, rows), packed)
        return {named(image, part): packed.getvalue()}

    return change


def nested(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


def resealed(image: Image) -> Changed:
    """A manifest whose first stream has a number for meta, with the right checksum."""
    from robocache._core import crc32c

    name = named(image, "manifest.json")
    document = json.loads(image.files[name])
    document["streams"][0]["details"]["meta"] = 0.5
    del document["crc32c"]
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode().removesuffix(b"}")
    return {name: text + b',"crc32c":"%08x"}\n' % crc32c(text)}


def lzma_member(image: Image) -> Changed:
    """A step whose arrays are packed with LZMA, and damaged."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("actions.npy", b"\x93NUMPY\x01\x00" + bytes(100))
    data = bytearray(packed.getvalue())
    data[60:70] = b"\xff" * 10
    return {named(image, ".npz"): bytes(data)}


FOUND: dict[str, tuple[str, Callable[[Image], Changed]]] = {
    "a FIFO, HDF5": ("robomimic", replaced("low_dim", Odd("fifo"))),
    "a FIFO, zip": ("zarrzip", replaced(".zip", Odd("fifo"))),
    "a FIFO, MCAP": ("mcap", replaced("run.mcap", Odd("fifo"))),
    "a FIFO, metadata.yaml": ("ros2bag", replaced("metadata.yaml", Odd("fifo"))),
    "a FIFO, zarr chunk": ("zarr2", replaced("img/0.0", Odd("fifo"))),
    "a FIFO, Parquet": ("lerobot21", replaced(".parquet", Odd("fifo"))),
    "a FIFO, step": ("calvin", replaced(".npz", Odd("fifo"))),
    "a FIFO, shard": ("robocache", replaced("shard", Odd("fifo"))),
    "a terabyte of zeros after the magic": ("mcap", replaced("run.mcap", Odd("sparse", "\x89MCAP0\r\n\x01", 1 << 40))),
    "the length of a record beyond int64": ("mcap", flipped("run.mcap", b"\x04\0\0\0zstd", 7, 7)),
    "a topic of the summary renamed": ("mcap", renamed("run.mcap", "/joint_states", "/joint_statez")),
    "a Blosc chunk that is cut": ("zarr2", cut("img/0.0.0.0", 4368)),
    "an infinite shape, LeRobot": ("lerobot21", edited("info.json", "features", "action", "shape", to=[float("inf")])),
    "tasks that are no numbers": ("lerobot30", column("tasks.parquet", "task_index", [[1], [2]])),
    "an episode without a number": ("lerobot30", column("meta/episodes/", "episode_index", [None])),
    "tasks of an episode that are a number": ("lerobot30", column("meta/episodes/", "tasks", [1])),
    "a file number that is a list": ("lerobot30", column("meta/episodes/", "data/file_index", [[1]])),
    "a link to nowhere": ("lerobot21", replaced("episodes_stats.jsonl", Odd("link", "nowhere"))),
    "a stream whose name moves the cursor": ("lerobot21", renamed("info.json", "action", "\\u001b[31m")),
    "a feature that is a number": (
        "rlds",
        edited("features.json", "featuresDict", "features", "steps", "sequence", "feature", "featuresDict", to=7),
    ),
    "splits that are a number": ("rlds", edited("dataset_info.json", "splits", to=7)),
    "a wrong checksum of a step": ("calvin", flipped(".npz", b"\x93NUMPY\x01\x00v\x00{'descr", 0, 3)),
    "a number that no float holds": ("zarr2", edited("replay.zarr/.zattrs", "robot", to=10**400)),
    "attributes of 62 levels": ("zarr2", edited("replay.zarr/.zattrs", "robot", to=nested(62))),
    "a number that no float holds, LeRobot": ("lerobot30", edited("info.json", "splits", "train", to=10**400)),
    "a manifest whose meta is a number": ("robocache", resealed),
    "a damaged LZMA member": ("calvin", lzma_member),
}
"""By what it is: the dataset that is changed, and the change."""
