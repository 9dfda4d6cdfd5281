"""zarr stores: chunks are read as the zarr package reads them, and never further than a chunk is."""

import gzip
import json
import os
import struct
import zipfile

import numpy as np
import pytest
import robocache
from hostile import edit_json, refused, write
from robocache import FormatError, LeftOut
from robocache.sources.reading import budget
from robocache.sources.zarr import codecs

zarr = pytest.importorskip("zarr", minversion="3", reason="stores are written with zarr")
import numcodecs  # noqa: E402

ROWS = 11
V2 = {
    "none": {"compressors": None},
    "blosc": {"compressors": numcodecs.Blosc("lz4", shuffle=2)},
    "zstd": {"compressors": numcodecs.Zstd(3, checksum=True)},
    "lz4": {"compressors": numcodecs.LZ4()},
    "gzip": {"compressors": numcodecs.GZip()},
    "zlib": {"compressors": numcodecs.Zlib()},
    "fortran": {"order": "F"},
    "delta": {"filters": [numcodecs.Delta("<f4")], "compressors": numcodecs.Zlib()},
    "shuffle": {"filters": [numcodecs.Shuffle(4)]},
    "astype": {"filters": [numcodecs.AsType("<f8", "<f4")]},
    "scaled": {"filters": [numcodecs.FixedScaleOffset(0, 64, "<f4", "<i2")], "compressors": numcodecs.Zstd()},
    "slashes": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "big endian": {"dtype": ">f4"},
    "fill": {"fill_value": 2.5},
}
V3 = {
    "none": {"compressors": None},
    "blosc": {"compressors": zarr.codecs.BloscCodec()},
    "zstd": {"compressors": zarr.codecs.ZstdCodec(checksum=True)},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "checksum": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
    "checksum only": {"compressors": [zarr.codecs.Crc32cCodec()]},
    "transpose": {"filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
    "big endian": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "keys of v2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "not a number": {"fill_value": float("nan")},
}
STORES = [(2, name, options) for name, options in V2.items()] + [(3, name, options) for name, options in V3.items()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("version", "options"), [(v, o) for v, _, o in STORES], ids=[f"v{v} {n}" for v, n, _ in STORES]
)
def test_arrays_are_read_as_zarr_reads_them(tmp_path, rng, version, options):
    """With chunks that end outside of the array, chunks that are absent, and rows that are parts of chunks."""
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=version)
    options = {"dtype": "<f4", **options}
    array = group.create_array("data/a/b", shape=(ROWS, 5, 3), chunks=(4, 2, 3), **options)
    array[:] = np.round(rng.standard_normal((ROWS, 5, 3)), 1).astype(np.float32)
    for path in [p for p in (tmp_path / "x.zarr/data/a/b").rglob("*") if p.is_file() and p.name[0] != "z"][1:3]:
        if not path.name.startswith("."):
            path.unlink()
    group.create_array("meta/episode_ends", data=np.array([3, 4, 4, 11]))
    source = robocache.open(tmp_path / "x.zarr", rate_hz=10)
    expected = zarr.open_group(str(tmp_path / "x.zarr"), mode="r")["data/a/b"][:]
    found = np.concatenate([episode.streams["a/b"].values for episode in source])
    assert [len(episode.streams["a/b"]) for episode in source] == [3, 1, 0, 7]
    np.testing.assert_array_equal(found, expected.astype("<f4"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "endian"), [("<f4", "little"), (">f4", "big"), ("<f4", "big"), (">f4", "little")])
def test_filters_whose_byte_order_is_not_that_of_the_bytes_are_refused(tmp_path, rng, dtype, endian):
    """Also zarr reads other numbers than it was given then."""
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=3)
    options = {"filters": [zarr.codecs.numcodecs.Delta(dtype=dtype)]}
    options["serializer"] = zarr.codecs.BytesCodec(endian=endian)
    array = group.create_array("data/a", shape=(ROWS,), chunks=(4,), dtype="f4", **options)
    array[:] = np.arange(ROWS, dtype=np.float32)
    group.create_array("meta/episode_ends", data=np.array([ROWS]))
    if (dtype == ">f4") == (endian == "big"):
        values = robocache.open(tmp_path / "x.zarr", rate_hz=10).episode(0).streams["a"].values
        np.testing.assert_array_equal(values, array[:])
    else:
        refused(tmp_path / "x.zarr", f"data/a: delta makes {dtype}, and bytes has the other byte order", rate_hz=10)


def test_other_arrays_and_rows_behind_the_last_episode_are_told(tmp_path, rng):
    written = write("zarr v2", tmp_path, rng)
    group = zarr.open_group(str(written.path), mode="a")
    group.create_array("meta/episode_names", data=np.arange(3))
    group.create_array("extra", data=np.arange(3))
    ends = group["meta/episode_ends"]
    ends[:] = ends[:] - np.array([0, 0, 1])
    rows = int(ends[-1])
    left = robocache.open(written.path).left_out
    assert LeftOut("meta/episode_names", "only arrays in data/ become streams") in left
    assert LeftOut("extra", "only arrays in data/ become streams") in left
    assert LeftOut(f"state[{rows}:{rows + 1}]", "rows after the last entry of meta/episode_ends") in left


def test_consolidated_metadata_cannot_replace_what_was_checked(tmp_path, rng):
    written = write("zarr v2", tmp_path, rng)
    before = robocache.open(written.path).episode(0).streams["state"].values
    lie = json.loads((written.path / "data/state/.zarray").read_text())
    lie.update(dtype="|O", filters=[{"id": "pickle"}])
    content = {"zarr_consolidated_format": 1, "metadata": {"data/state/.zarray": lie}}
    (written.path / ".zmetadata").write_text(json.dumps(content))
    np.testing.assert_array_equal(robocache.open(written.path).episode(0).streams["state"].values, before)


@pytest.mark.parametrize("name", ["zarr v2", "zarr v3"])
def test_a_pipe_or_a_sparse_file_in_the_place_of_a_chunk_is_refused(tmp_path, rng, name):
    written = write(name, tmp_path, rng)
    chunk = written.path / ("data/state/0.0" if name == "zarr v2" else "data/state/c/0/0")
    os.truncate(chunk, 1 << 40)
    refused(written.path, "must have at most", **written.options)
    chunk.unlink()
    os.mkfifo(chunk)
    refused(written.path, "must be a regular file, got a pipe", **written.options)


def test_millions_of_absent_chunks_of_one_row_are_refused(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(budget, "FREE_ITEMS", 1 << 12)
    written = write("zarr v2", tmp_path, rng)
    rows = 5_000_000
    for path in written.path.glob("data/*/.zarray"):
        edit_json(path, lambda array: array.update(shape=[rows, *array["shape"][1:]], chunks=[1, *array["chunks"][1:]]))
    edit_json(written.path / "meta/episode_ends/.zarray", lambda array: array.update(fill_value=rows))
    for chunk in written.path.glob("*/*/[0-9]*"):
        chunk.unlink()
    refused(written.path, "items in .* stored bytes, rejected as a decompression bomb")


def test_absent_chunks_of_many_arrays_count_together(tmp_path, rng):
    written = write("zarr v2", tmp_path, rng)
    for i in range(8):
        array = written.path / f"data/zeros{i}"
        array.mkdir()
        described = {"shape": [100, 1 << 18], "chunks": [1, 1 << 18], "dtype": "<f4", "fill_value": 0, "order": "C"}
        (array / ".zarray").write_text(json.dumps({**described, "compressor": None, "filters": None, "zarr_format": 2}))
    refused(written.path, "with the chunks before it, declares .* decompression bomb")


def zstd_frame(blocks, flags=0, size=b""):
    """Blocks of one byte repeated, in a frame that may not declare its size."""
    head = b"\x28\xb5\x2f\xfd" + bytes([flags]) + b"\x48" + size
    return head + b"".join(
        (1 << 1 | n << 3 | int(i == len(blocks) - 1)).to_bytes(3, "little") + b"\0" for i, n in enumerate(blocks)
    )


def test_a_zstd_frame_without_a_size_is_bounded_by_its_blocks():
    declared = codecs.DECLARED["zstd"]
    assert declared(memoryview(zstd_frame([64])), 64) is None
    assert declared(memoryview(zstd_frame([128 << 10] * 1000)), 64) == -1
    assert declared(memoryview(zstd_frame([64], 0x80, struct.pack("<I", 64))), 64) == 64
    assert declared(memoryview(zstd_frame([64], 0x80, struct.pack("<I", 1 << 30))), 64) == -1


@pytest.mark.parametrize(
    ("head", "size"), [(b"\xff\x0a\x4f", (64, 64)), (b"\xff\x0a" + b"\xff" * 12, None), (b"", None)]
)
def test_the_size_of_a_jpeg_xl_picture_is_read_before_it_is_unpacked(head, size):
    found = codecs._jpegxl_size(head)
    assert found == size or size is None
    assert codecs.DECLARED[codecs.JPEGXL](memoryview(head), 100) == -1


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_gzip_chunk_without_its_end_is_refused(tmp_path, rng, cut):
    packed, steps = gzip.compress(bytes(64)), [codecs.Step("gzip", {}, 64)]
    with pytest.raises(FormatError, match=r"x (decompresses to|cannot be)"):
        codecs.unpack_chunk(packed[:-cut], steps, 64, "x")
    assert codecs.unpack_chunk(packed, steps, 64, "x") == bytes(64)


@pytest.mark.parametrize("config", [{"dtype": "|O"}, {"dtype": "<f4", "astype": "V8"}, {}, {"dtype": ["x"]}])
def test_filters_of_objects_are_refused(tmp_path, rng, config):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(filters=[{"id": "delta", **config}]))
    refused(written.path, "only numeric dtypes are supported")


def test_a_flipped_bit_of_a_zip_is_refused_or_changes_nothing(tmp_path, rng):
    written = write("zarr zip", tmp_path, rng)
    data = written.path.read_bytes()

    def content():
        source = robocache.open(written.path, format="zarr", **written.options)
        return [(name, s.values.tobytes()) for episode in source for name, s in episode.streams.items()]

    before, refused_flips = content(), 0
    with zipfile.ZipFile(written.path) as archive:
        directory = archive.start_dir
    bits = [*rng.choice(directory * 8, 200), *(directory * 8 + rng.choice((len(data) - directory) * 8, 400))]
    for bit in map(int, bits):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        written.path.write_bytes(changed)
        try:
            assert content() == before, f"bit {bit % 8} of byte {bit // 8}"
        except FormatError:
            refused_flips += 1
    assert refused_flips > 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("u1", 300), ("u1", -1), ("i4", 1.5), ("i4", 2**40), ("i8", 2**63), ("u1", float("nan")), ("i2", "NaN"), ("?", 2),
     ("f4", "0x7fc0"), ("f4", "1"), ("f4", [1])],
)  # fmt: skip
def test_a_fill_value_that_its_dtype_does_not_have_is_refused(tmp_path, version, dtype, fill):
    """It was another number: 44 for 300."""
    filled_store(tmp_path / "x.zarr", version, dtype, fill)
    refused(tmp_path / "x.zarr", "fill_value must be a number of dtype", rate_hz=10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "fill", "bits"),
    [
        ("u8", 2**64 - 1, b"\xff" * 8),
        ("i4", -5.0, b"\xfb\xff\xff\xff"),
        ("f4", 1e300, b"\0\0\x80\x7f"),
        ("?", True, b"\1"),
        ("f2", "-Infinity", b"\0\xfc"),
        ("f4", "0x7fc00001", b"\1\0\xc0\x7f"),
        ("f8", "0x3ff0000000000000", b"\0" * 6 + b"\xf0\x3f"),
    ],
)
def test_a_fill_value_is_the_number_that_zarr_gives(tmp_path, version, dtype, fill, bits):
    filled_store(tmp_path / "x.zarr", version, dtype, fill)
    values = robocache.open(tmp_path / "x.zarr", rate_hz=10).episode(0).streams["a"].values
    assert values[0].tobytes() == bits
    if not (version == 2 and str(fill).startswith("0x")):  # of format 3
        assert zarr.open_group(str(tmp_path / "x.zarr"), mode="r")["data/a"][0].tobytes() == bits


def filled_store(path, version, dtype, fill):
    """An array without chunks."""
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    group.create_array("data/a", shape=(3,), chunks=(2,), dtype=dtype)
    group.create_array("meta/episode_ends", data=np.array([3]))
    edit_json(path / "data/a" / (".zarray" if version == 2 else "zarr.json"), lambda a: a.update(fill_value=fill))


@pytest.mark.filterwarnings("ignore")
def test_absent_chunks_of_an_episode_are_counted(tmp_path):
    """They have the fill value, as in zarr; a copy that was interrupted looks the same."""
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=2)
    group.create_array("data/a", data=np.arange(1, 13).reshape(6, 2), chunks=(2, 1))
    group.create_array("data/b", data=np.arange(1, 7), chunks=(2,))
    group.create_array("meta/episode_ends", data=np.array([2, 6]))
    for chunk in ("1.0", "1.1", "2.1"):
        (tmp_path / "x.zarr/data/a" / chunk).unlink()
    whole, broken = robocache.open(tmp_path / "x.zarr", rate_hz=10)
    assert whole.meta == {"begin": 0, "end": 2}
    assert broken.meta == {"begin": 2, "end": 6, "absent_chunks": {"a": 3}}
    assert broken.streams["a"].values.tolist() == [[0, 0], [0, 0], [9, 0], [11, 0]]
