"""Datasets with random changes: each is read, or refused with FormatError, in 10 s and 1 GB (tests/fuzz/adapters)."""

import random
import shutil
import sys

import pytest
import robocache
from paths import FUZZ

sys.path.insert(0, str(FUZZ))
import found
import images
import reading
import tracing
import workers

for package in ("pyarrow", "av", "PIL", "pandas", "h5py", "mcap", "mcap_ros2", "google.protobuf", "google_crc32c"):
    pytest.importorskip(package, reason="the datasets of all formats are written and changed")
pytest.importorskip("zarr", minversion="3")

CASES = 28
FLIPS = 60
SEED = 16


@pytest.fixture(scope="module")
def work():
    """The datasets of all formats, in memory, and one process that reads them."""
    folder = images.work_folder()
    images.save(folder / "images.pickle", list(images.MUTATED), list(images.FLIPPED))
    worker = workers.Worker(folder)
    yield worker
    worker.stop()
    shutil.rmtree(folder)


def failures(worker, kind, name, count):
    found = []
    for number in range(count):
        case = workers.Case(kind, name, SEED, number)
        outcome = worker.run(case)
        if outcome["kind"] in reading.FAILURES:
            found.append(f"{outcome['kind']}: {outcome['place']}: {outcome['message']}\n    {case.command()}")
    return "\n".join(found)


@pytest.mark.parametrize("name", images.MUTATED)
def test_a_mutated_dataset_is_read_or_refused(work, name):
    assert failures(work, "mutated", name, CASES) == ""


@pytest.mark.parametrize("name", images.FLIPPED)
def test_a_flipped_bit_is_noticed_or_changes_nothing(work, name):
    assert failures(work, "flipped", name, FLIPS if name in ("mcap", "parquet", "hdf5", "zarr") else FLIPS // 3) == ""


@pytest.mark.parametrize("name", found.FOUND)
def test_what_was_found_once_is_refused(work, name):
    outcome = work.run(workers.Case("found", name, 0, 0))
    assert outcome["kind"] in ("ok", "FormatError", "option"), outcome


@pytest.mark.parametrize(("name", "option"), [("zarr3", "rate_hz"), ("mcap", "clock"), ("rlds", "rate_hz")])
def test_a_dataset_that_lacks_what_an_option_gives_is_an_error_of_both_kinds(name, option, tmp_path):
    """Either the files are damaged, or the call lacks an option: nothing tells which."""
    image = images.make(name)
    folder = reading.Folder(tmp_path, image)
    if name == "rlds":
        folder.change(found.edited("dataset_info.json", "name", to="unknown")(image))
    with pytest.raises(robocache.FormatError, match=f"open: {option} is required") as raised:
        robocache.open(folder.path)
    assert isinstance(raised.value, ValueError)


def parse(data):
    """A parser with a fault that only bytes which pass five comparisons, one after the other, reach."""
    if len(data) > 4 and data[0] == 82:
        if data[1] == 79:
            if data[2] == 66:
                if data[3] == 79:
                    if data[4] == 33:
                        raise KeyError("planted")
                    return 4
                return 3
            return 2
        return 1
    return 0


def test_coverage_guides_the_fuzzer_to_a_planted_fault():
    """By chance alone, five bytes need 2^40 tries."""
    rng, coverage, corpus, tries = random.Random(16), tracing.Coverage(watched=(__file__,)), [bytes(5)], 0
    while True:
        data = bytearray(rng.choice(corpus[-2:]))
        data[rng.randrange(5)] = rng.randrange(256)
        tries += 1
        assert tries < 200_000
        try:
            with coverage:
                parse(data)
        except KeyError:
            break
        if coverage.take():
            corpus.append(bytes(data))
    assert len(corpus) >= 5


def test_a_case_is_decided_by_its_seed_and_its_number(work):
    runner = workers.Runner(work.work)
    case = workers.Case("mutated", "lerobot30", SEED, 3)
    assert runner.changes(case) == runner.changes(case)
    assert runner.changes(case) != runner.changes(workers.Case("mutated", "lerobot30", SEED, 4))


def test_rows_that_differ_are_a_silent_change(tmp_path):
    folder = reading.Folder(tmp_path / "source", images.make("zarr2"))
    before = reading.read(folder.path, folder.image.options)
    chunks = [found.named(folder.image, f"data/state/{i}.0") for i in (0, 1)]
    swapped = {chunks[0]: folder.image.files[chunks[1]], chunks[1]: folder.image.files[chunks[0]]}
    outcome = reading.run_case(folder, swapped, tmp_path / "out", before)
    assert (outcome.kind, outcome.place, outcome.message) == ("silent", "other values", "episode 0: state")
    assert reading.run_case(folder, {}, tmp_path / "out", before).kind == "ok"  # put back


@pytest.mark.parametrize(("error", "kind"), [(KeyError("x"), "exception"), (MemoryError(), "memory")])
def test_other_errors_than_format_error_are_failures(tmp_path, monkeypatch, error, kind):
    def planted(*_, **__):
        raise error

    folder = reading.Folder(tmp_path / "source", images.make("calvin"))
    monkeypatch.setattr(robocache, "open", planted)
    assert reading.run_case(folder, {}, tmp_path / "out").kind == kind
    assert kind in reading.FAILURES


def test_more_than_a_gigabyte_is_a_failure(tmp_path, monkeypatch):
    folder = reading.Folder(tmp_path / "source", images.make("calvin"))
    monkeypatch.setattr(robocache, "open", lambda *_, **__: bytearray(reading.EXTRA_BYTES + (64 << 20)))
    assert reading.run_case(folder, {}, tmp_path / "out").kind == "memory"


@pytest.mark.parametrize(("fault", "kind"), [("os.abort()", "crash"), ("time.sleep(60)", "hang")])
def test_the_watchdog_tells_a_crash_from_a_hang(tmp_path, fault, kind):
    """A process that answers the first line, for which there is no limit, and fails at the second."""
    code = f'import os, time\ninput()\nprint(\'{{"kind": "ok"}}\', flush=True)\ninput()\n{fault}'
    worker = workers.Worker(tmp_path, seconds=1, command=(sys.executable, "-X", "faulthandler", "-c", code))
    outcome = worker.run(workers.Case("mutated", "calvin", SEED, 0))
    assert (outcome["kind"], "<string>:5 <module>" in outcome["place"]) == (kind, True)
