"""Files made to harm: names that lead out, links, bombs, sizes that lie. FormatError, before memory is taken."""

import io
import os
import struct
import zipfile
import zlib

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from hostile import edit_json, refused, write
from robocache import FormatError


def move_out(path, folder):
    """Leaves a link where a file was: the content is the same, and out of the tree."""
    outside = folder / "outside"
    outside.mkdir(exist_ok=True)
    target = outside / path.name
    path.rename(target)
    path.symlink_to(target)


LINKED = {
    "lerobot v2.1": ["meta/info.json", "meta/episodes.jsonl", "data/chunk-000/episode_000001.parquet"],
    "lerobot v3.0": [
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "videos/observation.video/chunk-000/file-000.mp4",
    ],
    "zarr v2": ["data/state/0.0", "meta/episode_ends/0", "data/action/.zarray"],
    "mcap": ["run_0.mcap"],
    "ros2 bag": ["bag_1.mcap", "metadata.yaml"],
    "calvin": ["training/episode_0000102.npz", "training/ep_start_end_ids.npy"],
    "rlds": ["0.1.0/features.json", "0.1.0/asu_table_top_converted_externally_to_rlds-train.tfrecord-00001-of-00002"],
}


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in LINKED.items() for file in files])
def test_a_link_out_of_the_tree_is_refused_unless_trusted(tmp_path, rng, name, file):
    written = write(name, tmp_path, rng)
    move_out(written.path / file, tmp_path)
    refused(written.path, "link out of the dataset", **written.options)
    source = robocache.open(written.path, follow_symlinks=True, **written.options)
    assert len(list(source)) == len(written.streams)


def test_a_link_inside_the_tree_is_followed(tmp_path, rng):
    written = write("mcap", tmp_path, rng)
    (written.path / "run_9.mcap").symlink_to(written.path / "run_0.mcap")
    assert len(robocache.open(written.path, **written.options)) == 3


def test_a_link_that_the_user_names_is_followed(tmp_path, rng):
    written = write("robomimic", tmp_path / "", rng)
    (tmp_path / "far").mkdir()
    link = tmp_path / "far" / "link.hdf5"
    link.symlink_to(written.path)
    assert len(robocache.open(link)) == 3


TEMPLATES = [
    "../v21/data/chunk-000/episode_{episode_index:06d}.parquet",
    "data/../../v21/episode_{episode_index:06d}.parquet",
    "/etc/{episode_index}",
    "data\\..\\{episode_index}",
    "data/{episode_index}\0.parquet",
    "data/{episode_index.__class__}",
    "data/{episode_index:999999999d}",
    "{0.__init__.__globals__}{episode_index}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_path_templates_of_lerobot_stay_inside(tmp_path, rng, template):
    written = write("lerobot v2.1", tmp_path, rng)
    edit_json(written.path / "meta/info.json", lambda info: info.update(data_path=template))
    refused(written.path, "points outside the dataset|an unknown field")


def test_a_feature_name_cannot_lead_a_video_out(tmp_path, rng):
    written = write("lerobot v2.1", tmp_path, rng)
    video = {"dtype": "video", "shape": [32, 48, 3], "names": None}
    edit_json(written.path / "meta/info.json", lambda info: info["features"].update({"../../../x": video}))
    refused(written.path, "points outside the dataset")


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../secret.png"])
def test_a_picture_by_its_name_stays_inside(tmp_path, rng, name):
    written = write("lerobot v2.1", tmp_path, rng)
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "secret.png").write_bytes(datasets.png(np.zeros((16, 24, 3), np.uint8)))
    path = written.path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    column = pa.array([{"bytes": None, "path": name}] * table.num_rows)
    place = table.column_names.index("observation.image")
    pq.write_table(table.set_column(place, "observation.image", column), path)
    refused(written.path, "points outside the dataset")


@pytest.mark.parametrize("name", ["../bag_0.mcap", "/etc/x.mcap", "x/../../bag_0.mcap"])
def test_a_bag_lists_only_its_own_files(tmp_path, rng, name):
    written = write("ros2 bag", tmp_path, rng)
    (written.path / "metadata.yaml").write_text(f"info:\n  relative_file_paths:\n    - {name}\n")
    refused(written.path, "points outside the dataset", format="mcap", **written.options)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "data\\..\\evil"])
def test_a_zip_with_names_that_lead_out_is_refused(tmp_path, rng, name):
    written = write("zarr zip", tmp_path, rng)
    with zipfile.ZipFile(written.path, "a") as archive:
        archive.writestr(name, b"x")
    refused(written.path, "points outside the archive", **written.options)


# --- robomimic


def hdf5(written, change):
    import h5py

    with h5py.File(written.path, "a") as file:
        change(file, h5py)
    return written.path


def test_links_of_hdf5_are_not_followed(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def external(file, h5py):
        file["data/demo_0/states"] = h5py.ExternalLink("/etc/passwd", "/x")

    refused(hdf5(written, external), "is a link, which is not followed")


def test_soft_links_of_hdf5_are_not_followed(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def soft(file, h5py):
        file["data/demo_0/obs/again"] = h5py.SoftLink("/data/demo_0/obs/eef_pos")

    refused(hdf5(written, soft), "is a link, which is not followed")


def test_a_group_of_observations_that_is_an_external_link_is_not_followed(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)
    other = tmp_path / "other"
    other.mkdir()
    write("robomimic", other, rng)

    def external(file, h5py):
        del file["data/demo_0/obs"]
        file["data/demo_0/obs"] = h5py.ExternalLink(str(other / "low_dim.hdf5"), "/data/demo_0/obs")

    refused(hdf5(written, external), "is a link, which is not followed")


def test_datasets_in_other_files_are_not_opened(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def stored_elsewhere(file, h5py):
        file["data/demo_0"].create_dataset("states", (5, 2), "f4", external=[("/etc/passwd", 0, 40)])

    refused(hdf5(written, stored_elsewhere), "is stored in other files")


def test_virtual_datasets_are_not_opened(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def virtual(file, h5py):
        layout = h5py.VirtualLayout((5,), "f4")
        layout[:] = h5py.VirtualSource("/etc/passwd", "x", (5,))
        file["data/demo_0"].create_virtual_dataset("states", layout)

    refused(hdf5(written, virtual), "is stored in other files")


@pytest.mark.parametrize("rows", [10**8, 10**12, 2**62])
def test_a_dataset_of_hdf5_that_is_mostly_not_there_is_refused(tmp_path, rng, rows):
    written = write("robomimic", tmp_path, rng)

    def giant(file, h5py):
        file["data/demo_0"].create_dataset("states", (rows,), "f8", chunks=(1024,))

    refused(hdf5(written, giant), "raise it with max_bytes=|decompression bomb|shape must be")


def test_a_gzip_bomb_in_hdf5_is_refused(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)

    def bomb(file, h5py):
        states = file["data/demo_0"].create_dataset("states", (1 << 27,), "u1", chunks=(1 << 24,), compression="gzip")
        states[:1] = 1

    refused(hdf5(written, bomb), "decompression bomb")


def test_a_giant_mask_of_hdf5_is_refused(tmp_path, rng):
    written = write("robomimic", tmp_path, rng)
    refused(
        hdf5(written, lambda file, _: file["mask"].create_dataset("all", (10**11,), "S8", chunks=(1024,))),
        "names, more than",
    )


# --- zarr


def test_objects_in_zarr_are_refused(tmp_path, rng):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(dtype="|O"))
    refused(written.path, "only numeric dtypes are supported")


@pytest.mark.parametrize("codec", ["pickle", "vlen-utf8", "json2", "lzma", "bz2"])
def test_codecs_that_run_code_or_have_no_bound_are_refused(tmp_path, rng, codec):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(filters=[{"id": codec}]))
    refused(written.path, f"is stored with {codec}")
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(filters=None, compressor={"id": codec}))
    refused(written.path, f"is stored with {codec}")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [10**15, 4]},
        {"shape": [18, 10**12]},
        {"shape": [18, 4], "chunks": [10**9, 10**9]},
        {"shape": [18] * 40, "chunks": [1] * 40},
        {"shape": [-1, 4]},
        {"shape": "many"},
        {"shape": [18, 4], "chunks": [0, 4]},
        {"shape": [18, 2**30], "chunks": [1, 1]},
    ],
)
def test_giant_shapes_of_zarr_are_refused(tmp_path, rng, change):
    written = write("zarr v2", tmp_path, rng)
    edit_json(written.path / "data/state/.zarray", lambda array: array.update(change))
    refused(written.path, "zarr: ")


def chunk_of(codec, size):
    import numcodecs

    data = bytes(size)
    if codec == "blosc":
        return numcodecs.Blosc().encode(data)
    return {"zstd": numcodecs.Zstd, "lz4": numcodecs.LZ4, "gzip": numcodecs.GZip, "zlib": numcodecs.Zlib}[
        codec
    ]().encode(data)


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "gzip", "zlib"])
def test_a_chunk_that_unpacks_to_more_than_a_chunk_is_refused(tmp_path, rng, codec):
    written = write("zarr v2", tmp_path, rng)
    array = written.path / "data/state"
    edit_json(array / ".zarray", lambda described: described.update(compressor={"id": codec}))
    for path in array.glob("[0-9]*"):
        path.write_bytes(chunk_of(codec, 1 << 28))
    refused(written.path, "decompresses to")


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "gzip", "zlib"])
def test_a_chunk_of_the_right_size_is_read_with_every_codec(tmp_path, rng, codec):
    written = write("zarr v2", tmp_path, rng)
    import numcodecs

    array = written.path / "data/state"
    names = {"blosc": "Blosc", "zstd": "Zstd", "lz4": "LZ4", "gzip": "GZip", "zlib": "Zlib"}
    packer = getattr(numcodecs, names[codec])()
    edit_json(array / ".zarray", lambda described: described.update(compressor=packer.get_config()))
    for path in array.glob("[0-9]*"):
        path.write_bytes(packer.encode(np.full((4, 4), 2.5, np.float32)))
    assert (robocache.open(written.path).episode(2).streams["state"].values == 2.5).all()


def test_a_second_frame_behind_a_good_one_is_refused(tmp_path, rng):
    written = write("zarr v2", tmp_path, rng)
    array = written.path / "data/state"
    edit_json(array / ".zarray", lambda described: described.update(compressor={"id": "zstd", "level": 1}))
    for path in array.glob("[0-9]*"):
        path.write_bytes(chunk_of("zstd", 64) + chunk_of("zstd", 1 << 28))
    refused(written.path, "decompresses to")


def test_a_zip_bomb_is_refused(tmp_path, rng):
    written = write("zarr zip", tmp_path, rng)
    with zipfile.ZipFile(written.path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/state/9.9", bytes(1 << 27))
    refused(written.path, "decompression bomb", **written.options)


# --- pictures and LeRobot


def giant_png(width, height):
    """The header of a picture that large, and next to nothing in it."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(bytes(100))) + part(b"IEND", b"")


@pytest.mark.parametrize("size", [(60000, 60000), (2**31 - 1, 2**31 - 1), (12000, 12000), (8000, 4000)])
@pytest.mark.parametrize("row", [0, 1])
def test_a_picture_that_is_a_bomb_is_refused(tmp_path, rng, size, row):
    written = write("lerobot v2.1", tmp_path, rng)
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = written.path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    cells = table.column("observation.image").to_pylist()
    cells[row]["bytes"] = giant_png(*size)
    column = pa.array(cells, table.schema.field("observation.image").type)
    pq.write_table(table.set_column(table.column_names.index("observation.image"), "observation.image", column), path)
    refused(written.path, "lerobot: ")


@pytest.mark.filterwarnings("ignore:open. .*info.json")
@pytest.mark.parametrize("shape", [[10**15], [10**6, 10**6], [-3], [1] * 40, "big", [None]])
def test_giant_shapes_of_lerobot_are_refused(tmp_path, rng, shape):
    written = write("lerobot v2.1", tmp_path, rng)
    edit_json(written.path / "meta/info.json", lambda info: info["features"]["action"].update(shape=shape))
    refused(written.path, "lerobot: ")


@pytest.mark.parametrize("name", ["lerobot v2.1", "lerobot v3.0"])
def test_a_name_that_utf8_cannot_hold_is_refused(tmp_path, rng, name):
    """JSON spells half of a surrogate pair as an escape; the cache has no bytes for it."""
    written = write(name, tmp_path, rng)

    def rename(info):
        info["features"]["\ud800"] = info["features"].pop("action")

    edit_json(written.path / "meta/info.json", rename)
    refused(written.path, "UTF-8", **written.options)


def test_a_table_of_many_rows_in_few_bytes_is_refused(tmp_path, rng):
    written = write("lerobot v2.1", tmp_path, rng)
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = written.path / "data/chunk-000/episode_000000.parquet"
    rows = 10_000_000
    names = ("episode_index", "frame_index", "next.done")
    zeros = {name: pa.array(np.zeros(rows, np.int64)) for name in names}
    pq.write_table(pa.table(zeros), path, compression="zstd")
    assert path.stat().st_size < 1_000_000
    refused(written.path, "bomb|max_bytes", max_bytes=1 << 27)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"features": 3}', "\xff", '{"features": {}, "fps": 0}'])
def test_info_that_is_not_one_is_refused(tmp_path, rng, text):
    written = write("lerobot v2.1", tmp_path, rng)
    (written.path / "meta/info.json").write_bytes(text.encode("latin1"))
    refused(written.path, "info.json")


@pytest.mark.parametrize("name", [name for name in datasets.CASES if name != "calvin"])
def test_random_damage_gives_an_error_or_an_answer_but_no_other_exception(tmp_path, rng, name):
    """Each file in turn: bytes changed at random, then the end cut off."""
    written = write(name, tmp_path, rng)
    files = [written.path] if written.path.is_file() else [p for p in written.path.rglob("*") if p.is_file()]
    for path in files[:12]:
        good = path.read_bytes()
        for attempt in range(6):
            bad = np.frombuffer(good, np.uint8).copy()
            if len(bad):
                bad[rng.integers(0, len(bad), 1 + attempt)] = rng.integers(0, 256, 1 + attempt)
            data = bad.tobytes() if attempt < 4 else good[: len(good) * (attempt - 3) // 3]
            path.unlink()
            path.write_bytes(data)
            try:
                list(robocache.open(written.path, max_bytes=1 << 28, **written.options))
            except FormatError:
                pass
            except ValueError as error:
                if not str(error).startswith("open: "):
                    raise
        path.write_bytes(good)


def test_a_named_pipe_does_not_hang(tmp_path, rng):
    written = write("calvin", tmp_path, rng)
    step = written.path / "training/episode_0000102.npz"
    step.unlink()
    os.mkfifo(step)
    refused(written.path, "must be a regular file, got a pipe")


def test_a_text_that_is_no_picture_is_refused():
    from robocache.sources.reading import budget, images

    pytest.importorskip("PIL", reason="pictures are decoded with Pillow")
    buffer = io.BytesIO(b"%!PS-Adobe")
    with pytest.raises(FormatError, match="x: neither a PNG nor a JPEG"):
        images.picture_size(buffer.getvalue(), "lerobot", "x", budget.BUDGET)
