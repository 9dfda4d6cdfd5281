"""Changes to the content of a file: any bytes, or what its format makes of them."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40)
EDGES += (2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**9, 8 * 10**9)


def edge(rng: random.Random, size: int) -> int:
    return rng.choice((*EDGES, size, size - 1, size + 1, rng.randrange(2**16), rng.randrange(2**32)))


def part(rng: random.Random, size: int) -> tuple[int, int]:
    """A range, mostly short; near the beginning or the end more often, where formats have their headers."""
    length = min(size, rng.choice((1, 2, 4, 8, 16, 64, 256, 1024, max(1, size // 3))))
    spot = rng.random()
    room = size - length
    begin = (
        rng.randint(0, min(room, 256)) if spot < 0.25 else room - rng.randint(0, min(room, 1024)) if spot < 0.5 else 0
    )
    return (rng.randint(0, room) if spot >= 0.5 else begin), length


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        data[part(rng, len(data))[0]] ^= 1 << rng.randrange(8)


def set_bytes(rng: random.Random, data: bytearray) -> None:
    begin, length = part(rng, len(data))
    data[begin : begin + length] = rng.choice(
        (bytes(length), b"\xff" * length, b"\x80" * length, rng.randbytes(length))
    )


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.choice((0, len(data) // 2, rng.randrange(len(data)), len(data) - 1, part(rng, len(data))[0])) :]


def insert(rng: random.Random, data: bytearray) -> None:
    begin, length = part(rng, len(data))
    data[begin:begin] = rng.choice((bytes(length), rng.randbytes(length), bytes(data[begin : begin + length])))


def append(rng: random.Random, data: bytearray) -> None:
    data += rng.choice((bytes(rng.choice((1, 100, 5000))), rng.randbytes(50), bytes(data)))


def cut(rng: random.Random, data: bytearray) -> None:
    begin, length = part(rng, len(data))
    del data[begin : begin + length]


def swap(rng: random.Random, data: bytearray) -> None:
    (a, length), (b, other) = part(rng, len(data)), part(rng, len(data))
    length = min(length, other)
    data[a : a + length], data[b : b + length] = data[b : b + length], data[a : a + length]


def set_number(rng: random.Random, data: bytearray) -> None:
    """A length, a count or an offset at any place, as formats store them."""
    width = rng.choice((1, 2, 4, 4, 8, 8))
    if len(data) < width:
        return
    begin = part(rng, len(data) - width + 1)[0]
    value = edge(rng, len(data)) & (2 ** (8 * width) - 1)
    data[begin : begin + width] = value.to_bytes(width, rng.choice(("little", "little", "big")))


def set_varint(rng: random.Random, data: bytearray) -> None:
    """Protocol buffers, and the Thrift of Parquet."""
    value, found = edge(rng, len(data)), bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    begin = part(rng, len(data))[0]
    data[begin : begin + (len(found) if rng.random() < 0.5 else 0) + 1] = bytes((*found, value))


def set_digits(rng: random.Random, data: bytearray) -> None:
    """A number that is written out: the headers of npy files, JSON, message definitions."""
    digits = [i for i, byte in enumerate(data[:200_000]) if 48 <= byte <= 57]
    if digits:
        at = rng.choice(digits)
        more = rng.choice((b"9", b"0", b"-1", b"4000000000", b"99999999999999999999", b"1e400", b"x"))
        data[at : at + 1] = more


BYTES = (flip, flip, set_bytes, truncate, insert, append, cut, swap, set_number, set_number, set_varint, set_digits)
NAMES = (
    "../../../../etc/passwd",
    "/etc/passwd",
    "",
    ".",
    "a" * 5000,
    "\x1b[31m",
    "\0",
    "\ud800",
    "ä/ö",
    "{0.__class__}",
)


def odd_value(rng: random.Random, old: Any) -> Any:
    """A value of JSON where another one is expected."""
    if isinstance(old, int | float) and not isinstance(old, bool) and rng.random() < 0.5:
        return rng.choice(
            (-1, 0, old + 1, old - 1, old * 1000, -old, *EDGES, 0.5, 1e-300, 1e308, float("nan"), 10**400)
        )
    if isinstance(old, str) and rng.random() < 0.5:
        return rng.choice((*NAMES, old[:-1], old + old, old.upper(), old.replace("/", ".."), f"{old}\n"))
    if isinstance(old, list) and rng.random() < 0.5:
        return rng.choice((old[:-1], old + old, old[::-1], [old], old * 1000 if len(old) < 100 else old))
    deep: Any = 0
    for _ in range(rng.choice((1, 3, 500, 5000))):
        deep = [deep]
    plain = (None, True, False, -1, 0, 1, 3.7, 2**63, float("nan"), float("inf"), "", "x", [], {}, [1, "a", None])
    return rng.choice(
        (*plain, {"": {}}, deep, rng.choice(NAMES), [rng.choice(EDGES)] * rng.choice((1, 3, 40)), "9" * 5000)
    )


def edit_value(rng: random.Random, value: Any) -> Any:
    """One place of a document changed, removed, renamed or doubled."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        at = waiting.pop()
        keys = at.keys() if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        for key in keys:
            places.append((at, key))
            waiting.append(at[key])
    if not places or rng.random() < 0.02:
        return odd_value(rng, value)
    at, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.15:
        del at[key]
    elif kind < 0.3 and isinstance(at, dict):
        at[rng.choice((*NAMES, key + "x", key.upper()))] = at[key] if rng.random() < 0.5 else at.pop(key)
    else:
        at[key] = odd_value(rng, at[key])
    return value


def edit_json(rng: random.Random, data: bytearray) -> None:
    """All of the file, or one of its lines."""
    lines = bytes(data).split(b"\n")
    one = rng.randrange(len(lines)) if len(lines) > 2 and lines[0].endswith(b"}") else None
    try:
        value = json.loads(lines[one] if one is not None else data)
        text = json.dumps(edit_value(rng, value)).encode()
    except (ValueError, RecursionError):
        return
    if one is not None:
        lines[one] = text
        text = b"\n".join(lines)
    data[:] = text


def edit_manifest(rng: random.Random, data: bytearray) -> None:
    """The manifest of a cache changed, and its checksum made right."""
    from robocache._core import crc32c

    try:
        document = json.loads(data)
        document.pop("crc32c")
        text = (
            json.dumps(edit_value(rng, document), separators=(",", ":"), ensure_ascii=False).encode().removesuffix(b"}")
        )
    except (ValueError, RecursionError, KeyError, AttributeError):
        return
    data[:] = text + b',"crc32c":"%08x"}\n' % crc32c(text)


def edit_yaml(rng: random.Random, data: bytearray) -> None:
    lines = bytes(data).split(b"\n")
    at = rng.randrange(len(lines))
    more = (
        b"  - ../../etc/passwd",
        b"? {a: b}",
        b"&a [*a]",
        b"!!python/object/apply:os.getcwd []",
        b"\t",
        b"x: " + b"9" * 400,
    )
    lines[at] = rng.choice((b"", lines[at] * 2, lines[at][2:], b"  " + lines[at], lines[at][:-3], *more))
    if rng.random() < 0.1:
        lines = [
            b"a0: &a0 [x,x,x,x,x,x,x,x,x]",
            *(b"a%d: &a%d [%s]" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 10)),
        ]
    data[:] = b"\n".join(lines)


def edit_zip(rng: random.Random, data: bytearray) -> None:
    """A member changed and packed again, so that its checksum is right; or its name, or how it is packed."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, bytearray(archive.read(info))) for info in archive.infolist()]
    except Exception:  # damaged by a change before this one
        return
    if not members:
        return
    at = rng.randrange(len(members))
    name, content = members[at]
    kind = rng.random()
    if kind < 0.1:
        del members[at]
    elif kind < 0.2:
        members.append((rng.choice((*NAMES[:6], name, name + "x")), content))
    elif content:
        edit_bytes(rng, name, content)
    packed = io.BytesIO()
    how = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with zipfile.ZipFile(packed, "w", how) as archive:
        for name, content in members:
            archive.writestr(name or "x", bytes(content))
    data[:] = packed.getvalue()


def edit_tfrecord(rng: random.Random, data: bytearray) -> None:
    """The content of a record changed, and its checksums made right."""
    import adapter_logs

    records, at = [], 0
    while at + 16 <= len(data):
        length = struct.unpack_from("<Q", data, at)[0]
        if length > len(data) - at - 16:
            return
        records.append(bytearray(data[at + 12 : at + 12 + length]))
        at += 16 + length
    if records:
        chosen = rng.choice(records)
        if chosen:
            rng.choice(BYTES)(rng, chosen)
        if rng.random() < 0.1:
            records.append(chosen)
        data[:] = b"".join(adapter_logs.tfrecord(bytes(record)) for record in records)


def edit_mcap(rng: random.Random, data: bytearray) -> None:
    """A record changed inside a chunk, which is stored again without compression and checksum; or one outside. Mostly
    without the summary, which would give a changed chunk away before its messages are read."""
    records = mcap_records(data[8:-8])
    if not records:
        return
    chunks = [content for code, content in records if code == 6]
    if chunks and rng.random() < 0.7:
        if not edit_chunk(rng, rng.choice(chunks)):
            return
        ends = [i for i, (code, content) in enumerate(records) if code == 15 and len(content) == 4]
        if ends and rng.random() < 0.9:
            records = [*records[: ends[0]], (15, bytearray(4)), (2, bytearray(20))]
    else:
        chosen = rng.choice(records)[1]
        if chosen:
            rng.choice(BYTES)(rng, chosen)
        if rng.random() < 0.2:
            del records[rng.randrange(len(records))]
    data[8:-8] = mcap_bytes(records)


def edit_chunk(rng: random.Random, chunk: bytearray) -> bool:
    """start u64, end u64, size u64, crc u32, compression string, records with length u64. False where it is damaged."""
    import lz4.frame
    import zstandard

    try:
        name_bytes = struct.unpack_from("<I", chunk, 28)[0]
        name, stored = bytes(chunk[32 : 32 + name_bytes]), bytes(chunk[32 + name_bytes + 8 :])
        if name == b"zstd":
            stored = zstandard.ZstdDecompressor().decompress(stored, max_output_size=1 << 24)
        elif name == b"lz4":
            stored = lz4.frame.decompress(stored)
    except Exception:  # damaged by a change before this one
        return False
    inside, records = bytearray(stored), mcap_records(bytearray(stored))
    messages = [content for code, content in records if code == 5 and len(content) > 22]
    if messages and rng.random() < 0.7:
        message = rng.choice(messages)
        payload = message[22:]
        (edit_bytes_field if rng.random() < 0.6 else rng.choice(BYTES))(rng, payload)
        message[22:] = payload
        inside = mcap_bytes(records)
    elif inside:
        rng.choice(BYTES)(rng, inside)
    chunk[16:] = struct.pack("<QIIQ", len(inside), 0, 0, len(inside)) + inside
    return True


def edit_bytes_field(rng: random.Random, payload: bytearray) -> None:
    """The longest field of bytes in a message, a picture or a packet: length u32, bytes, padding to 4 bytes if fields
    follow. Its length stays right, so that what reads the picture sees the change."""
    sizes = [(int(struct.unpack_from("<I", payload, at)[0]), at + 4) for at in range(4, len(payload) - 4, 4)]
    length, begin = max(((size, at) for size, at in sizes if size <= len(payload) - at), default=(0, 0))
    if length:
        field, rest = payload[begin : begin + length], payload[begin + length + -(begin + length) % 4 :]
        rng.choice(BYTES)(rng, field)
        padding = bytes(-(begin + len(field)) % 4 if rest else 0)
        payload[begin - 4 :] = struct.pack("<I", len(field)) + field + padding + rest


def mcap_records(data: bytearray) -> list[tuple[int, bytearray]]:
    """Opcode and content of each record; empty where they do not fit."""
    records, at = [], 0
    while at + 9 <= len(data):
        length = struct.unpack_from("<Q", data, at + 1)[0]
        if length > len(data) - at - 9:
            return []
        records.append((data[at], data[at + 9 : at + 9 + length]))
        at += 9 + length
    return records


def mcap_bytes(records: list[tuple[int, bytearray]]) -> bytearray:
    return bytearray(b"".join(struct.pack("<BQ", code, len(content)) + content for code, content in records))


def edit_parquet(rng: random.Random, data: bytearray) -> None:
    """The table with a column of another type, with nulls, with lists of other lengths; written as Parquet can be."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data))
        names = table.column_names
    except Exception:  # damaged by a change before this one
        return
    if not names:
        return
    at, rows = rng.randrange(len(names)), table.num_rows
    name = names[at]
    columns = [
        lambda: pa.array([None] * rows, table.column(at).type),
        lambda: pa.array(["x"] * rows),
        lambda: pa.array([rng.choice(NAMES[:6])] * rows),
        lambda: pa.array([rng.choice((-1, 0, 2**31, 2**63 - 1))] * rows, pa.int64()),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([rng.choice((float("nan"), float("inf"), -1e300))] * rows),
        lambda: pa.array([[1.0] * (i % 3) for i in range(rows)], pa.list_(pa.float32())),
        lambda: pa.array([[[1.0]]] * rows),
        lambda: pa.array([{"bytes": b"\x89PNG", "path": "../../etc/passwd"}] * rows),
        lambda: pa.array([{"bytes": None, "path": None}] * rows),
        lambda: pa.array([b"x" * 100] * rows).dictionary_encode(),
        lambda: pa.array([True] * rows),
        lambda: pa.nulls(rows),
        lambda: pa.array([10**9] * rows, pa.timestamp("ns")),
    ]
    kind = rng.random()
    if kind < 0.1:
        table = table.drop_columns([name])
    elif kind < 0.2:
        table = table.rename_columns([rng.choice(NAMES[:6]) if i == at else n for i, n in enumerate(names)])
    elif kind < 0.3:
        table = pa.concat_tables([table] * rng.choice((2, 3))) if rng.random() < 0.5 else table.slice(0, 0)
    elif kind < 0.4:
        table = table.append_column(name, table.column(at))
    elif rows:
        table = table.set_column(at, name, rng.choice(columns)())
    packed = io.BytesIO()
    how = {"compression": rng.choice(("snappy", "gzip", "zstd", "none")), "use_dictionary": rng.random() < 0.5}
    pq.write_table(
        table, packed, data_page_version=rng.choice(("1.0", "2.0")), row_group_size=rng.choice((1, 6, 100)), **how
    )
    data[:] = packed.getvalue()


def edit_hdf5(rng: random.Random, data: bytearray) -> None:
    """A member or an attribute replaced by one of another kind."""
    import h5py
    import numpy as np

    stored = io.BytesIO(data)
    try:
        with h5py.File(stored, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            name = rng.choice(names)
            if rng.random() < 0.35:
                keys = list(file[name].attrs) or ["num_samples"]
                odd = (
                    -1,
                    2**62,
                    2.5,
                    "x",
                    b"\xff",
                    "",
                    np.zeros(3),
                    np.float16(1),
                    np.array(["a", "b"], "S1"),
                    h5py.Empty("f4"),
                )
                odd += ('{"env_kwargs": {"control_freq": 1e400}}', "[" * 5000, np.zeros((0, 4)), np.array(True))
                file[name].attrs[rng.choice(keys)] = rng.choice(odd)
            else:
                del file[name]
                replace_member(rng, file, name)
    except Exception:  # damaged by a change before this one
        return
    data[:] = stored.getvalue()


def replace_member(rng: random.Random, file: Any, name: str) -> None:
    import h5py
    import numpy as np

    kind = rng.randrange(16)
    if kind == 0:
        file.create_group(name)
    elif kind == 1:
        file[name] = h5py.SoftLink("/data")
    elif kind == 2:
        file[name] = h5py.ExternalLink("/etc/passwd", "/data")
    elif kind == 3:
        file[name] = file["/"]
    elif kind == 4:
        file.create_dataset(name, (rng.choice((10**6, 10**9, 10**12, 2**40)), 7), "f4", chunks=(1, 7))
    elif kind == 5:
        file.create_dataset(name, (5, 3), "f4", chunks=(5, 3), maxshape=(None, 3), compression="gzip")
    elif kind == 6:
        file.create_dataset(name, data=np.arange(rng.choice((0, 5))))
    elif kind == 7:
        file.create_dataset(name, data=3.5)
    elif kind == 8:
        file.create_dataset(name, data=["a", "b"], dtype=h5py.string_dtype())
    elif kind == 9:
        file.create_dataset(name, (5,), h5py.vlen_dtype(np.float32))
    elif kind == 10:
        file.create_dataset(name, data=np.zeros(5, [("a", "f4"), ("b", "i2", (3,))]))
    elif kind == 11:
        file.create_dataset(name, (5,), h5py.ref_dtype)
    elif kind == 12:
        file.create_dataset(name, (5, 3), rng.choice((">f8", "<f2", ">i4", "u1", "?", "c8", "S3", "V4")))
    elif kind == 13:
        file.create_dataset(name, data=h5py.Empty("f4"))
    elif kind == 14:
        file[name] = np.dtype("f4")
    elif kind == 15:
        file.create_dataset(name, (5,) + (1,) * 20, "f4")


Edit = Callable[[random.Random, bytearray], None]
FORMATTED: dict[str, Edit] = {
    ".json": edit_json,
    ".jsonl": edit_json,
    ".zarray": edit_json,
    ".zattrs": edit_json,
    ".zgroup": edit_json,
    ".zmetadata": edit_json,
    ".yaml": edit_yaml,
    ".npz": edit_zip,
    ".zip": edit_zip,
    ".mcap": edit_mcap,
    ".parquet": edit_parquet,
    ".hdf5": edit_hdf5,
}


def edit_bytes(rng: random.Random, name: str, data: bytearray) -> None:
    """One change: half of the time one that keeps the format of the file as it is."""
    last = name.rpartition("/")[2]
    edit = FORMATTED.get("." + last.rpartition(".")[2], edit_tfrecord if ".tfrecord" in last else None)
    edit = edit_manifest if last == "manifest.json" else edit
    if edit is not None and rng.random() < 0.5:
        edit(rng, data)
    elif data:
        rng.choice(BYTES)(rng, data)
