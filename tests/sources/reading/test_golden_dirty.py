"""Committed dirty files (golden_dirty): strict by default, named repairs with their counts, all that check finds."""

import json
import pathlib

import numpy as np
import pytest
import robocache
from golden_dirty import cases, make
from robocache import FormatError

ROOT = pathlib.Path(__file__).parent / "golden_dirty"
TABLE = json.loads((ROOT / "table.json").read_text())
PACKAGES = {"zarr": "zarr", "mcap": "mcap_ros2", "robomimic": "h5py", "lerobot": "pyarrow", "calvin": "numpy",
            "rlds": "numpy"}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:open. .*fps is the text")


def named(parts):
    return [pytest.param(*part, id=f"{part[0]['name'].replace(' ', '/')} {i}") for i, part in enumerate(parts)]


every_case = pytest.mark.parametrize("case", named((case,) for case in TABLE))
every_repair = pytest.mark.parametrize(
    ("case", "repair"), named((case, repair) for case in TABLE for repair in case["repairs"])
)
every_refusal = pytest.mark.parametrize(
    ("case", "refused"), named((case, refused) for case in TABLE for refused in case["refuses"])
)


@pytest.fixture(autouse=True)
def reader(request):
    if "case" in request.fixturenames:
        format = request.getfixturevalue("case")["format"]
        pytest.importorskip(PACKAGES[format], reason=f"{format} datasets are read with {PACKAGES[format]}")


def read(case, repair=None, **options):
    source = robocache.open(ROOT / case["path"], repair=repair, **case["options"], **options)
    return source.episode(case["episode"])


def assert_rows(stream, rows, times_ns):
    """Row i begins with 2 i."""
    np.testing.assert_array_equal(stream.values[:, 0], [2 * row for row in rows])
    np.testing.assert_array_equal(stream.times, times_ns)


@every_case
def test_strict_reading_refuses_it_with_the_place_or_gives_every_row(case):
    if case["strict"] is None:
        episode = read(case)
        assert_rows(episode.streams[case["stream"]], range(len(case["times_ns"])), case["times_ns"])
        assert "repairs" not in episode.meta
        return
    with pytest.raises(FormatError) as error:
        read(case)
    assert case["strict"] in str(error.value)
    assert case["path"] in str(error.value)
    if case["repairs"]:
        assert "; to continue, pass repair={'" in str(error.value)


@every_repair
def test_a_repair_leaves_these_rows_at_their_times_and_counts_the_others(case, repair):
    episode = read(case, repair["repair"], **repair["options"])
    times_ns = repair["times_ns"] or [case["times_ns"][row] for row in repair["rows"]]
    assert_rows(episode.streams[case["stream"]], repair["rows"], times_ns)
    assert episode.meta.get("repairs", {}).get(case["counted"], {}) == repair["counts"]
    assert set(episode.meta.get("repairs_at", {}).get(case["counted"], {})) <= set(repair["counts"])


@every_refusal
def test_what_a_policy_refuses_is_named(case, refused):
    with pytest.raises(FormatError) as error:
        read(case, refused["repair"])
    assert refused["message"] in str(error.value)


@every_case
def test_check_finds_what_is_wrong_and_nothing_else(case):
    report = robocache.check(ROOT / case["path"], **case["options"])
    found = [(f.kind, f.stream, f.episode, f.row, f.count) for f in report.findings]
    expected = [tuple(f[key] for key in ("kind", "stream", "episode", "row", "count")) for f in case["findings"]]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert (report.score == 100) == all(f.severity == "note" for f in report.findings)


@every_repair
def test_after_a_repair_check_finds_what_is_left_and_notes_the_rest(case, repair):
    report = robocache.check(ROOT / case["path"], repair=repair["repair"], **case["options"], **repair["options"])
    noted = [f for f in report.findings if f.kind == "repaired" and f.stream == case["counted"]]
    assert {f.text.split(":")[0]: f.count for f in noted} == repair["counts"]
    left = {f.kind for f in report.findings if f.stream == case["stream"]}
    gone = {"unsorted": "out_of_order", "nan_time": "nan_time", "missing": "missing", "length": "length"}
    gone |= {"duplicate": "duplicate", "nan_value": "nan_value", "clock_jump": "clock_jump", "negative": "negative"}
    assert not left & {gone[kind] for kind in repair["counts"]}


def test_there_are_more_than_forty_and_they_are_small():
    assert len(TABLE) >= 40
    assert len({case["path"] for case in TABLE}) == len(TABLE)
    assert sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file()) < 2 << 20
    dirty = [case for case in TABLE if case["findings"]]
    assert len(dirty) >= 40
    kinds = {finding["kind"] for case in dirty for finding in case["findings"]}
    assert kinds == set(robocache.quality.RULES) - {"checksum", "repaired"}


def test_the_committed_table_is_what_the_generator_writes(tmp_path):
    for package in (*PACKAGES.values(), "google_crc32c", "google.protobuf"):
        pytest.importorskip(package, minversion="3" if package == "zarr" else None)
    assert json.loads(json.dumps(make.make(tmp_path))) == TABLE
    assert list(cases.CASES) == list(PACKAGES)
    for case in TABLE:
        again = {path.relative_to(tmp_path) for path in (tmp_path / case["path"]).rglob("*")}
        assert again == {path.relative_to(ROOT) for path in (ROOT / case["path"]).rglob("*")}
