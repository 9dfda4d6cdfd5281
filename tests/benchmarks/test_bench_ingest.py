"""The benchmark of ingest on tiny sizes: what it writes, what it measures, and its table. No timings."""

import json
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("h5py", reason="the file that is ingested is HDF5")
pytest.importorskip("pyarrow", reason="the child imports what ingest does")

import bench_ingest
import robocache
import tables
from measure import harness
from pipeline.ingest import data as ingest_data
from pipeline.ingest import tables as ingest_tables


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
        monkeypatch.setattr(harness, "WARM_S", 0)
        found = [
            bench_ingest.measure_speed(folder, 500_000, ingest_data.ROWS, 2, 0.4),
            bench_ingest.measure_speed(folder, 500_000, 300, 2, None),
            bench_ingest.measure_open(folder, 100, 5, 3),
            bench_ingest.measure_memory(folder, 500_000),
        ]
    assert list(folder.iterdir()) == []  # nothing large stays behind
    return found


@pytest.fixture
def result(cases):
    environment = {"command": "python x", "date": "2026-11-15T00:00:00", "commit": "c" * 40, "modified": False,
                   "hardware": {"cpu": "test", "cores": 2, "load_average": [0.5]},
                   "versions": {"hdf5": "2.0", "h5py": "3.16"}, "quick": True}  # fmt: skip
    return json.loads(json.dumps(environment | {"cases": cases}))


def test_the_targets_are_those_of_the_issue(cases):
    asked = [
        {name: target.get("at_least", target.get("at_most")) for name, target in c["targets"].items()} for c in cases
    ]
    assert asked == [{"of raw read": 0.4}, {}, {"ms": 100.0}, {"MB": 500.0}]


def test_the_share_is_the_median_of_the_ratios_of_neighbors(cases):
    raw, ours = cases[0]["samples_s"]["raw"], cases[0]["samples_s"]["ingest"]
    assert cases[0]["of_raw"] == pytest.approx(sum(r / i for r, i in zip(raw, ours, strict=True)) / 2)
    assert cases[0]["size_bytes"] == cases[0]["axes"]["demos"] * ingest_data.ROWS * 107 * 8


def test_the_peak_is_that_of_the_ingest(cases):
    peaks = cases[3]["peak_bytes"]
    assert 10 << 20 < peaks["robocache_imported"] <= peaks["imported"] <= peaks["peak"] < 2 << 30


def test_a_cache_that_differs_from_its_file_is_noticed(tmp_path):
    source, out = tmp_path / "a.hdf5", tmp_path / "out"
    ingest_data.write_robomimic(source, 500_000)
    robocache.ingest(source, out)
    assert bench_ingest.agrees(source, out)
    import h5py

    with h5py.File(source, "a") as file:
        file["data/demo_0/actions"][0, 0] = 42
    assert not bench_ingest.agrees(source, out)


def test_targets_are_met_on_the_right_side():
    assert bench_ingest.target(0.5, at_least=0.4)["met"]
    assert not bench_ingest.target(0.3, at_least=0.4)["met"]
    assert bench_ingest.target(80, at_most=100.0)["met"]
    assert not bench_ingest.target(101, at_most=100.0)["met"]


def test_the_table_says_what_was_measured_and_what_was_missed(result):
    result["cases"][0] |= {"of_raw": 0.25, "targets": {"of raw read": bench_ingest.target(0.25, at_least=0.4)}}
    text = ingest_tables.table(result)
    assert "| 25 % of the raw read | MISSED, target at least 40 % |" in text
    assert "target at most 100 ms" in text
    assert "target at most 500 MB" in text
    assert "commit `cccccccccc`, 2026-11-15. A quick run" in text
    assert text.count("\n| ingest") == 2
    assert "sizes. Measured twice." in ingest_tables.table(result | {"note": "Measured twice."})


def test_one_command_writes_one_file_with_every_case(tmp_path, monkeypatch):
    asked = []

    def measured(name):
        def measure(*arguments):
            asked.append((name, *arguments[1:]))
            return {"name": name, "axes": {}, "size_bytes": 1, "of_raw": 1.0, "targets": {}}

        return measure

    names = {"speed": "ingest", "pictures": "pictures", "open": "open", "memory": "memory"}
    for function, name in ((f"measure_{key}", name) for key, name in names.items()):
        monkeypatch.setattr(bench_ingest, function, measured(name))
    out = tmp_path / "ingest_cpu.json"
    monkeypatch.setattr(sys, "argv", ["bench_ingest.py", "--folder", str(tmp_path / "made"), "--out", str(out)])
    assert bench_ingest.main() == 0
    written = json.loads(out.read_text())
    assert [case["name"] for case in written["cases"]] == ["ingest", "ingest", "pictures", "pictures", "open", "memory"]
    sizes = [10**9, 10**9, (480, 640), (224, 224), 100_000, 4 * 10**9]
    assert [call[1] for call in asked] == sizes
    assert not written["quick"]
    assert "note" not in written
    assert list((tmp_path / "made").iterdir()) == []


def test_the_committed_page_has_the_table():
    for block, content in ingest_tables.blocks().items():
        text = tables.DOCS.read_text()
        assert tables.fill(text, block, content) == text, "run python benchmarks/tables.py"


def test_the_case_of_pictures_states_what_it_read_and_its_table_shows_it(tmp_path, result):
    pytest.importorskip("mcap_ros2", reason="writes the log")
    from pipeline.ingest.pictures import measure_pictures

    case = measure_pictures(tmp_path, (32, 48), 20_000, 2)
    assert list(tmp_path.iterdir()) == []
    assert {name: len(s) for name, s in case["samples_s"].items()} == dict.fromkeys(
        ("cold", "raw", "messages", "ingest", "index", "write"), 2
    )
    assert set(case["targets"]) == {"of raw read", "cache size"}
    table = ingest_tables.pictures_table(result | {"cases": [case]})
    assert f"{case['axes']['pictures']:,} of 48 x 32" in table
    assert "target at least 50 %" in table
