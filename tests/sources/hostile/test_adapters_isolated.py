"""Datasets that are read in another process: crashes, endless loops and bombs there are FormatErrors here."""

import gc
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from hostile import edit_json, write
from robocache import FormatError
from robocache.sources.reading import isolated, wire

CASES = ["lerobot v3.0", "robomimic"]


def reader():
    """The reader process that the next request goes to."""
    return isolated.READERS.choose()


def peak_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        told = next(line for line in file if line.startswith("VmHWM"))
    return int(told.split()[1]) << 10


def same(a, b):
    assert a.streams.keys() == b.streams.keys()
    for name, stream in a.streams.items():
        np.testing.assert_array_equal(stream.values, b.streams[name].values, name)
        np.testing.assert_array_equal(stream.times, b.streams[name].times, name)
    assert (a.task, a.meta) == (b.task, b.meta)


def here(written, format):
    """The same dataset, opened in this process."""
    return robocache.sources.open_here(written.path, format, robocache.sources.BUDGET, written.options)


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_there_is_what_is_read_here(tmp_path, rng, name):
    written = write(name, tmp_path, rng)
    source = robocache.open(written.path, **written.options)
    direct = here(written, source.format)
    assert source.specs == direct.specs
    assert source.metadata == direct.metadata
    assert source.left_out == direct.left_out
    assert source.fingerprint() == direct.fingerprint()
    assert sorted(source.files()) == sorted(direct.files())
    assert isinstance(source, robocache.Source)
    for index in range(len(source)):
        assert source.label(index) == direct.label(index)
        same(source.episode(index), direct.episode(index))


@pytest.mark.parametrize("name", CASES)
def test_only_the_streams_that_are_asked_for_are_read(tmp_path, rng, name):
    written = write(name, tmp_path, rng)
    source = robocache.open(written.path, **written.options)
    wanted = next(iter(source.specs))
    assert source.episode(0, streams=[wanted]).streams.keys() == {wanted}


def test_values_are_of_this_process_alone_and_can_be_changed(tmp_path, rng):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.hdf5"
    large = rng.integers(0, 256, (40, 200, 200), dtype=np.uint8)
    assert large.nbytes > wire.LARGE
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/large"] = large
        file["data/demo_0/obs/small"] = np.arange(40.0)
        file["data/demo_0/obs/none"] = np.empty((40, 0))
    source = robocache.open(path, rate_hz=20)
    episode = source.episode(0)
    for stream in episode.streams.values():
        stream.values[...] = 7
    np.testing.assert_array_equal(source.episode(0).streams["obs/large"].values, large)
    assert episode.streams["obs/none"].values.shape == (40, 0)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGSEGV, r"episode 1: the library that reads the file crashed \(SIGSEGV\)"),
        (signal.SIGABRT, r"episode 1: the library that reads the file crashed \(SIGABRT\)"),
        (signal.SIGXCPU, "episode 1: reading exceeded its processor time and was stopped"),
        (signal.SIGKILL, "episode 1: the reader process was killed, perhaps for lack of memory"),
    ],
)
def test_a_crash_of_the_reader_is_a_format_error_and_the_next_episode_is_read(tmp_path, rng, number, message):
    written = write("robomimic", tmp_path, rng)
    source = robocache.open(written.path)
    other = robocache.open(written.path)
    expected = source.episode(1)
    pid = source._reader.process.pid
    os.kill(pid, signal.SIGSTOP)

    def crash():
        time.sleep(0.1)
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=crash)
    thread.start()
    with pytest.raises(FormatError, match=message):
        source.episode(1)
    thread.join()
    same(source.episode(1), expected)
    same(other.episode(1), expected)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_reader_that_ended_between_two_requests_is_replaced(tmp_path, rng):
    source = robocache.open(write("robomimic", tmp_path, rng).path)
    expected = source.episode(0)
    os.kill(source._reader.process.pid, signal.SIGKILL)
    source._reader.process.wait()
    same(source.episode(0), expected)


def test_a_reader_that_ends_while_another_source_waits_for_it_is_replaced(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(isolated.READERS, "limit", 1)
    path = write("robomimic", tmp_path, rng).path
    source = robocache.open(path)
    expected, reader = source.episode(0), source._reader
    found = []

    def read(get):
        try:
            found.append(get())
        except FormatError as error:
            found.append(error)

    gets = (lambda: source.episode(0), lambda: robocache.open(path).episode(0))
    with reader.lock:  # a request of another source, in which the process ends
        threads = [threading.Thread(target=read, args=(get,)) for get in gets]
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # both wait
        reader.process.kill()
        reader.process.wait()
    for thread in threads:
        thread.join()
    for episode in found:
        same(episode, expected)


LIMITED = """
import socket, sys
import numpy as np
from robocache.sources.reading import reader_process
ours, theirs = socket.socketpair()
limits = reader_process.ProcessLimits(theirs)
"""


def limited(code):
    return subprocess.run([sys.executable, "-c", LIMITED + code], capture_output=True, text=True, timeout=120)


def test_an_endless_loop_is_ended_by_processor_time():
    assert limited("reader_process.CPU_S = 0\nlimits.begin()\nwhile True: pass").returncode == -signal.SIGXCPU


def test_progress_moves_the_limit_of_processor_time():
    code = """
import select, time
reader_process.CPU_S, reader_process.ALIVE_S = 1, 0.01
limits.begin()
end = time.process_time() + 2.2
while time.process_time() < end:
    limits.progress()
    select.select([ours], [], [], 0)[0] and ours.recv(1 << 16)
print("done")
"""
    assert limited(code).stdout == "done\n"


def test_memory_is_limited_to_what_a_budget_approved():
    code = """
limits.begin()
def fits(size):
    try:
        return np.ones(size, np.uint8).any()
    except MemoryError:
        return False
print(fits(1 << 20), fits(1 << 30))
limits.approve(1 << 30)
print(fits(1 << 30), fits(1 << 32))
limits.end()
"""
    assert limited(code).stdout.split() == ["True", "False", "True", "False"]


def forked(function):
    """The exit code of a fork of this process that calls the function."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_fork_reads_on_with_a_reader_of_its_own(tmp_path, rng, name):
    source = robocache.open(write(name, tmp_path, rng).path)
    expected = source.episode(0)
    pid = source._reader.process.pid

    def read():
        same(source.episode(0), expected)
        assert source._reader.process.pid != pid
        source._reader.end()

    assert forked(read) == 0
    assert source._reader.process.pid == pid
    same(source.episode(0), expected)


@pytest.mark.parametrize("name", CASES)
def test_a_source_survives_pickle(tmp_path, rng, name):
    source = robocache.open(write(name, tmp_path, rng).path)
    again = pickle.loads(pickle.dumps(source))
    assert again.specs == source.specs
    same(again.episode(0), source.episode(0))


def test_threads_read_at_the_same_time(tmp_path, rng):
    path = write("robomimic", tmp_path, rng).path
    sources = [robocache.open(path) for _ in range(4)]
    expected = sources[0].episode(2)
    failed = []

    def read(source):
        try:
            for _ in range(20):
                same(source.episode(2), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(source,)) for source in sources + sources[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(isolated.READERS.processes) <= isolated.READERS.limit


def test_sources_share_a_reader_that_closes_what_is_no_longer_used(tmp_path, rng):
    path = write("robomimic", tmp_path, rng).path
    source = robocache.open(path)
    pid = source._reader.process.pid
    for _ in range(5):
        assert robocache.open(path)._reader.process.pid == pid
    gc.collect()
    source.episode(0)
    held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert held.count(str(path)) <= 2  # of this source, and of one whose end the next request tells


def test_the_reader_ends_with_the_process_and_leaves_no_message(tmp_path, rng):
    path = write("robomimic", tmp_path, rng).path
    code = f"import robocache; s = robocache.open({str(path)!r}); s.episode(0); print(s._reader.process.pid)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    time.sleep(0.05)
    assert not os.path.exists(f"/proc/{done.stdout.strip()}")


def test_a_killed_process_leaves_no_reader(tmp_path, rng):
    path = write("robomimic", tmp_path, rng).path
    code = f"import os, robocache; s = robocache.open({str(path)!r}); print(s._reader.process.pid, flush=True); "
    code += "os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{done.stdout.strip()}") and time.monotonic() < end:
        with open(f"/proc/{done.stdout.strip()}/stat") as file:
            if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                return  # ended; whoever inherited it has not looked yet
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{done.stdout.strip()}")


def test_interrupting_a_request_ends_its_reader(tmp_path, rng, monkeypatch):
    source = robocache.open(write("robomimic", tmp_path, rng).path)

    def interrupted(connection):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(wire, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.episode(0)
    assert len(source.episode(0).streams) > 0


def action_of(written):
    streams = written.streams[1]
    return streams["action" if "action" in streams else "actions"][0]


@pytest.mark.parametrize("name", ["lerobot v2.1", *CASES])
def test_a_dataset_may_be_in_a_folder_of_any_name(tmp_path, rng, name):
    """Names of files are bytes, not UTF-8."""
    (tmp_path / "x").mkdir()
    written = write(name, tmp_path / "x", rng)
    folder = (tmp_path / "x").rename(tmp_path / os.fsdecode(b"gr\xfc\xdfe\xff"))
    path = folder / written.path.name
    found = robocache.open(path, **written.options).episode(1)
    np.testing.assert_array_equal(
        found.streams["actions" if name == "robomimic" else "action"].values, action_of(written)
    )
    assert len(robocache.ingest(path, tmp_path / "cache", **written.options)) == len(written.streams)


def run_alone(written, tmp_path, before):
    """Reads a dataset in a new process, after the code ``before``. Returns what it said."""
    told = tmp_path / "told"
    code = f"""
import os, sys, tempfile, traceback
{before}
try:
    import robocache
    found = str(sorted(robocache.open({str(written.path)!r}, **{written.options!r}).episode(0).streams))
except BaseException:
    found = traceback.format_exc()
with open({str(told)!r}, "w") as file:
    file.write(found)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    return told.read_text()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "before", ["os.close(0)", "os.closerange(0, 3)", 'tempfile._candidate_tempdir_list = lambda: ["/nowhere"]']
)
def test_standard_streams_and_temporary_folders_are_not_needed(tmp_path, rng, name, before):
    written = write(name, tmp_path, rng)
    assert run_alone(written, tmp_path, before) == str(sorted(written.streams[0]))


def test_a_warning_of_the_reader_is_given_here(tmp_path, rng):
    written = write("lerobot v3.0", tmp_path, rng)
    edit_json(written.path / "meta/info.json", lambda info: info.update(fps="30"))
    with pytest.warns(UserWarning, match="fps is the text '30'"):
        robocache.open(written.path)


@pytest.mark.parametrize("rate_hz", [np.float64(20), np.int64(20), 20])
def test_options_of_numpy_reach_the_reader(tmp_path, rng, rate_hz):
    source = robocache.open(write("robomimic", tmp_path, rng).path, rate_hz=rate_hz)
    assert source.specs["actions"].rate_hz == 20.0


def test_an_option_that_cannot_reach_the_reader_is_refused(tmp_path, rng):
    with pytest.raises(ValueError, match="open: rate_hz must be a number, a string, a bool or a dict, got <object"):
        robocache.open(write("robomimic", tmp_path, rng).path, rate_hz=object())


# ---- bombs


def lerobot_of_one_column(tmp_path, rng, column, feature, **options):
    """A dataset whose first table has the column ``x`` instead of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = write("lerobot v3.0", tmp_path, rng)
    rows = len(column)
    table = pa.table({"x": column, "episode_index": np.zeros(rows, np.int64)})
    path = written.path / "data/chunk-000/file-000.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=rows, **options)
    edit_json(written.path / "meta/info.json", lambda info: info.update(features={"x": feature}))
    return written.path, path.stat().st_size


@pytest.mark.parametrize("size", [1 << 20, 6 << 20])
def test_a_dictionary_that_expands_to_gigabytes_takes_little_memory(tmp_path, rng, size):
    pa = pytest.importorskip("pyarrow")
    value = bytes(size)
    indices = pa.array(np.zeros((3 << 30) // size, np.int32))
    column = pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary()))
    image = {"dtype": "image", "shape": [16, 24, 3], "names": ["height", "width", "channels"]}
    path, stored = lerobot_of_one_column(tmp_path, rng, column, image, dictionary_pagesize_limit=1 << 26)
    assert stored < 100_000
    with pytest.raises(FormatError, match="lerobot: "):
        robocache.open(path, repair={"missing": "drop"}).episode(0)
    assert peak_bytes(reader().process.pid) < 1 << 30


def test_runs_of_one_value_that_expand_to_gigabytes_are_refused(tmp_path, rng):
    pa = pytest.importorskip("pyarrow")
    column = pa.array(np.zeros(12_000_000))
    feature = {"dtype": "float64", "shape": []}
    path, _ = lerobot_of_one_column(tmp_path, rng, column, feature, use_dictionary=False)
    with pytest.raises(FormatError, match="rejected as a decompression bomb"):
        robocache.open(path).episode(0)


def test_a_page_that_is_larger_than_the_footer_says_takes_little_memory(tmp_path, rng):
    """The sizes in the header of each page become two gigabytes in turn."""
    pytest.importorskip("pyarrow")
    written = write("lerobot v3.0", tmp_path, rng)
    path = written.path / "data/chunk-000/file-000.parquet"
    data = path.read_bytes()
    assert data[4:6] == b"\x15\x04"  # a dictionary page; then its sizes
    for at in (7, 8, 9, 10):
        path.write_bytes(data[:at] + b"\xfe\xff\xff\xff\x0f" + data[at + 1 :])
        with pytest.raises(FormatError, match="lerobot: "):
            list(robocache.open(written.path))
    assert peak_bytes(reader().process.pid) < 1 << 30


def hdf5(tmp_path, rng, change):
    h5py = pytest.importorskip("h5py")
    written = write("robomimic", tmp_path, rng)
    with h5py.File(written.path, "a") as file:
        change(file)
    return written.path


def test_a_file_that_is_open_here_can_be_written_by_others(tmp_path, rng):
    h5py = pytest.importorskip("h5py")
    path = write("robomimic", tmp_path, rng).path
    source = robocache.open(path)
    with h5py.File(path, "a") as file:
        file["more"] = 1
        with pytest.raises(FormatError, match="is open for writing"):
            robocache.open(path)
    assert len(source.episode(0).streams) > 0


def test_a_mask_that_was_never_written_is_refused(tmp_path, rng):
    path = hdf5(tmp_path, rng, lambda f: f.create_dataset("mask/x", (9_000_000,), "S1000", chunks=(1000,)))
    with pytest.raises(FormatError, match="/mask/x declares 9000000000 bytes"):
        robocache.open(path)


def test_rows_that_were_never_written_are_refused(tmp_path, rng):
    path = hdf5(tmp_path, rng, lambda f: f["data/demo_0"].create_dataset("states", (5, 1 << 24), "f8", chunks=(1, 64)))
    with pytest.raises(FormatError, match="states declares 671088640 bytes, more than 1000 times its 0 stored bytes"):
        robocache.open(path).episode(0)


def test_members_that_are_not_read_are_listed_with_reasons(tmp_path, rng):
    def change(file):
        file["notes"] = np.arange(3)
        file["data/extra"] = np.arange(3)
        file["data/demo_0/action_dict/x"] = np.ones((5, 2))
        file["data/demo_0/seed"] = 3
        file["data/demo_0"].attrs["tags"] = ["a", "b"]

    source = robocache.open(hdf5(tmp_path, rng, change))
    assert {entry.name: (entry.reason, entry.option) for entry in source.left_out} == {
        "notes": ("outside /data and /mask", None),
        "data/extra": ("not a demo", None),
        "next_obs": ("repeats obs one row later", "next_obs=True"),
        "action_dict": ("a group other than obs", None),
        "seed": ("not rows of numbers, but int64 ()", None),
    }
    assert source.episode(0).meta["left_out"] == ["attribute tags: a list of variable-length strings"]


def test_types_of_hdf5_that_numpy_lacks_are_left_out_and_the_rest_is_read(tmp_path, rng):
    h5py = pytest.importorskip("h5py")

    def change(file):
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_size(3)
        kinds = {"narrow": narrow, "when": h5py.h5t.UNIX_D32LE, "bits": h5py.h5t.STD_B8LE}
        demo = file["data/demo_0"]
        for name, kind in kinds.items():
            h5py.h5d.create(demo.id, name.encode(), kind, h5py.h5s.create_simple((5,)))
        demo.attrs["nothing"] = h5py.Empty("f4")
        demo.attrs["where"] = file["data"].ref
        demo.attrs["pair"] = np.array((1, 2.0), [("a", "i4"), ("b", "f8")])
        demo.attrs["phase"] = 1 + 2j

    source = robocache.open(hdf5(tmp_path, rng, change))
    left = {entry.name for entry in source.left_out if entry.reason == "its type of HDF5 has no equivalent in NumPy"}
    assert left == {"narrow", "when", "bits"}
    assert {line.split(":")[0] for line in source.episode(0).meta["left_out"]} == {
        "attribute nothing", "attribute where", "attribute pair", "attribute phase"
    }  # fmt: skip


@pytest.mark.parametrize(("given", "rows"), [(5.0, 5), ([5], 5), (2.5, None), ("5", None), (float("nan"), None)])
def test_a_declared_number_of_rows_is_a_number(tmp_path, rng, given, rows):
    path = hdf5(tmp_path, rng, lambda file: file["data/demo_0"].attrs.create("num_samples", given))
    if rows is None:
        with pytest.raises(FormatError, match="attribute num_samples must be a number of rows, got"):
            robocache.open(path).episode(0)
    else:
        assert len(robocache.open(path).episode(0).streams["actions"]) == rows


def test_a_dataset_packed_by_a_plugin_is_left_out(tmp_path, rng):
    """A plugin is a program that the file chooses. The name of a filter is changed in the file to make one."""

    def change(file):
        file["data/demo_0"].create_dataset("states", data=np.ones((5, 7)), compression="lzf")

    path = hdf5(tmp_path, rng, change)
    data = path.read_bytes()
    assert data.count(b"lzf") == 1
    at = data.index(b"lzf") - 8
    assert struct.unpack_from("<H", data, at)[0] == 32000
    path.write_bytes(data[:at] + struct.pack("<H", 32008) + data[at + 2 :])
    source = robocache.open(path)
    assert [entry.reason for entry in source.left_out if entry.name == "states"] == [
        "compressed with the HDF5 filter 32008 (lzf), which is a plugin"
    ]
    assert "actions" in source.episode(0).streams


def test_the_checksum_of_a_page_is_checked(tmp_path, rng):
    """A byte of a float is changed: with a checksum that is an error, never another number."""
    pq = pytest.importorskip("pyarrow.parquet")
    written = write("lerobot v2.1", tmp_path, rng)
    path = written.path / "data/chunk-000/episode_000000.parquet"
    options = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pq.read_table(path), path, **options)
    robocache.open(written.path).episode(0)
    data = path.read_bytes()
    value = np.float32(written.streams[0]["observation.state"][0][2, 1]).tobytes()
    at = data.index(value)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(FormatError, match=r"could not verify page integrity|CRC"):
        robocache.open(written.path).episode(0)


def test_the_checksum_of_a_chunk_is_checked(tmp_path, rng):
    value = np.pi

    def change(file):
        file["data/demo_0"].create_dataset("states", data=np.full((5, 7), value), fletcher32=True, chunks=(5, 7))

    path = hdf5(tmp_path, rng, change)
    data = path.read_bytes()
    at = data.index(np.float64(value).tobytes())
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(FormatError, match="robomimic: "):
        robocache.open(path).episode(0)


FIFOS = {
    "lerobot v3.0": ["meta/tasks.parquet", "meta/stats.json", "meta/episodes/chunk-000/file-000.parquet",
                     "data/chunk-000/file-000.parquet", "videos/observation.video/chunk-000/file-000.mp4"],
    "lerobot v2.1": ["meta/episodes.jsonl", "meta/tasks.jsonl", "data/chunk-000/episode_000001.parquet",
                     "videos/chunk-000/observation.video/episode_000002.mp4"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in FIFOS.items() for file in files])
def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path, rng, name, file):
    written = write(name, tmp_path, rng)
    (written.path / file).unlink()
    os.mkfifo(written.path / file)
    with pytest.raises(FormatError, match="got a pipe"):
        list(robocache.open(written.path))


def test_a_pipe_in_the_place_of_an_hdf5_file_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "x.hdf5")
    with pytest.raises(FormatError):
        robocache.open(tmp_path / "x.hdf5", format="robomimic")


def test_a_picture_that_is_a_sparse_file_is_refused(tmp_path, rng):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    written = write("lerobot v2.1", tmp_path, rng)
    (written.path / "sparse.png").write_bytes(datasets.png(np.zeros((16, 24, 3), np.uint8)))
    os.truncate(written.path / "sparse.png", 1 << 40)
    path = written.path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    column = pa.array([{"bytes": None, "path": "sparse.png"}] * table.num_rows)
    place = table.column_names.index("observation.image")
    pq.write_table(table.set_column(place, "observation.image", column), path)
    with pytest.raises(FormatError, match=r"sparse\.png must have at most"):
        robocache.open(written.path).episode(0)
