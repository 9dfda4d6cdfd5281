"""bench_voxelize: clouds, rivals, verdicts, and a walk through the whole run on both devices with tiny sizes."""

import argparse
import copy
import json
import sys

import numpy as np
import pytest
import robocache
import torch
from arrays import CUDA, REQUIRE_CUDA
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import bench_voxelize
import cuda_measure
import cuda_timing as timing
import harness
import tables
import voxelize_cases as cases
import voxelize_rivals as rivals
import voxelize_tables
from robocache.cli import clouds

ENVIRONMENT = {"command": "python benchmarks/bench_voxelize.py", "date": "2026-11-15T00:00:00+00:00",
               "commit": "c" * 40, "modified": False, "hardware": {"cpu": "test"}, "versions": {}}  # fmt: skip
DEVICES = ("cpu", "cuda") if CUDA or REQUIRE_CUDA else ("cpu",)


def shorten(monkeypatch):
    """Nothing here is about speed."""
    monkeypatch.setattr(timing, "MIN_REPLAY_S", 1e-9)
    monkeypatch.setattr(timing, "WARM_S", 0)
    monkeypatch.setattr(timing, "MAX_SETS", 3)
    monkeypatch.setattr(harness, "WARM_S", 0)
    monkeypatch.setattr(harness, "COPY_BYTES", 1 << 16)
    monkeypatch.setattr(harness, "wait_until_quiet", lambda: False)
    monkeypatch.setattr(harness, "environment", lambda: copy.deepcopy(ENVIRONMENT))


def arguments(out, **options):
    given = {"quick": False, "samples": 2, "only": "", "compile": False, "strict": False, "out": str(out), "threads": 1}
    return argparse.Namespace(**{**given, **options})


@pytest.fixture(scope="module", params=DEVICES)
def on_gpu(tmp_path_factory, request):
    """The JSON file of a whole --device cuda run: on the CPU by the clock, on a GPU in graphs as in earnest."""
    out = tmp_path_factory.mktemp("bench") / "voxelize_cuda.json"
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        assert bench_voxelize.run_cuda(arguments(out, quick=True), device=request.param, tiny=True) == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "voxelize_cpu.json"
    threads = robocache.num_threads(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        assert bench_voxelize.run_cpu(arguments(out), tiny=True) == 0
    robocache.set_num_threads(threads[0])
    torch.set_num_threads(threads[1])
    return json.loads(out.read_text())


def test_a_gpu_run_has_the_table_of_the_issue(on_gpu):
    asked = [(c["name"], c["axes"]["values"], {k: bar["at_most"] for k, bar in c["bars"].items()})
             for c in on_gpu["cases"] if c["bars"]]  # fmt: skip
    assert asked == [
        ("occupancy", "int32", {"us": 12}),
        ("occupancy", "uint8", {"us": 9}),
        ("count", "int32", {"us": 12}),
        ("occupancy", "uint8", {"us": 450}),
        ("count", "int32", {"us": 900}),
        ("count", "int32", {"us": 60}),
        ("max", "float32", {"us": 190}),
        ("mean", "float32", {"us": 220}),
        ("batch occupancy", "uint8", {"floor": 1.5}),
        ("deterministic mean", "float32", {"atomic mean": 2.0}),
        ("sparse mean", "float32", {"us": 80}),
        ("sparse mean", "float32", {"us": 80}),
        ("depth occupancy", "int32", {"us": 40}),
    ]


def test_every_rival_of_a_gpu_run_agreed_and_every_case_says_what_share_is_inside(on_gpu):
    for case in on_gpu["cases"]:
        assert case["agrees"], case["notes"]
        assert case["ratios"] or case["name"] == "sparse mean"
        assert 0.85 < case["in_grid"] <= 1
        assert case["points_per_s"] > 0


def test_a_cpu_run_has_every_cloud_and_the_bars_of_the_issue(on_cpu):
    assert {c["axes"]["cloud"] for c in on_cpu["cases"]} == {*clouds.CLOUDS, "room"}
    bars = {(c["name"], rival): bar["at_least"] for c in on_cpu["cases"] for rival, bar in c["bars"].items()}
    assert bars[("count", "scatter_reduce")] == bars[("mean", "scatter_reduce")] == 5.0
    if rivals.small_gicp_or_none() is not None:
        assert bars[("downsample", "small_gicp")] == 1.5
    for case in on_cpu["cases"]:
        ours = np.median(case["samples_s"]["ours"])
        assert case["median_s"]["ours"] == pytest.approx(ours)
        for rival, bar in case["bars"].items():
            assert bar["measured"] == pytest.approx(np.median(case["samples_s"][rival]) / ours)


def test_the_tables_show_every_case(on_cpu, on_gpu):
    full = voxelize_tables.cpu_full(on_cpu), voxelize_tables.cuda_full(on_gpu)
    for text, record in zip(full, (on_cpu, on_gpu), strict=True):
        lines = [line.count("|") for line in text.splitlines() if line.startswith("|")]
        assert len(lines) == len(record["cases"]) + 2
        assert len(set(lines)) == 1
        said = text.count("holds: ") + text.count("MISSED: ")
        assert said == sum(len(c["bars"]) for c in record["cases"])
        assert f"of {said} bars hold" in text
    assert "Not measured" not in "".join(full)


def test_a_result_that_is_missing_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(voxelize_tables, "load", lambda device, benchmark: None)
    assert all("Not measured yet" in text for text in voxelize_tables.blocks().values())


def test_missed_bars_and_faster_rivals_are_named(on_cpu):
    changed = copy.deepcopy(on_cpu)
    for case in changed["cases"]:
        case["ratios"] = dict.fromkeys(case["ratios"], 2.0)
        for bar in case["bars"].values():
            bar["holds"] = True
    assert "missed" not in voxelize_tables.outcome(changed, voxelize_tables.CPU_RIVALS)
    changed["cases"][0]["bars"]["scatter_reduce"] |= {"holds": False, "measured": 4.5}
    changed["cases"][0]["ratios"]["index_add"] = 0.5
    text = voxelize_tables.outcome(changed, voxelize_tables.CPU_RIVALS)
    assert "missed: count, int32, 2k uniform, 16^3 (4.50, asked 5)." in text
    assert "A rival is faster in: count, int32, 2k uniform, 16^3 (index_add, x 0.50)." in text


def test_the_committed_documents_have_the_blocks():
    assert "bench:begin" in tables.README.read_text()
    for block, content in voxelize_tables.blocks().items():
        text = tables.DOCS.read_text()
        assert tables.fill(text, block, content) == text, "run python benchmarks/tables.py"


# ---- clouds and rivals -----------------------------------------------------------------------------------------------


def test_a_scan_of_the_room_ends_at_its_walls_and_keeps_the_order_of_the_sensor():
    torch.manual_seed(0)
    scan = clouds.scan_room(6400)
    half = torch.tensor(clouds.ROOM_M) / 2
    assert (scan.abs() <= half + 0.05).all()
    on_wall = ((scan.abs() - half).abs() < 0.03).any(1)
    assert 0.5 < float(on_wall.float().mean()) < 1  # the rest is furniture
    heading = torch.atan2(scan[:, 1], scan[:, 0]) % (2 * torch.pi)
    assert (heading[clouds.RINGS :: clouds.RINGS].diff() > 0).float().mean() > 0.95


def test_shuffled_is_lidar_in_another_order():
    torch.manual_seed(0)
    lidar = clouds.make_cloud("lidar", 500)
    torch.manual_seed(0)
    shuffled = clouds.make_cloud("shuffled", 500)
    assert not torch.equal(lidar, shuffled)
    assert torch.equal(lidar.sort(0).values, shuffled.sort(0).values)


def test_depth_images_see_the_room_that_the_scan_sees():
    torch.manual_seed(0)
    depth, intrinsics, pose = clouds.make_depth(4, 24, 32)
    points = rivals.unproject(depth, intrinsics, pose)
    measured = ~points.isnan().any(1)
    assert 0.9 < float(measured.float().mean()) < 1
    assert (points[measured].abs() <= torch.tensor(clouds.ROOM_M) / 2 + 0.01).all()


def test_rivals_send_points_outside_nowhere():
    points = torch.tensor([[0.5, 0.5, 0.5], [9.0, 0.0, 0.0], [torch.nan, 0.0, 0.0], [-0.1, 0.0, 0.0]])
    grid = (torch.zeros(3), torch.ones(3), (2, 1, 1))
    for way in ("scatter_reduce", "scatter_add", "index_add"):
        assert rivals.count(points, grid, torch.int32, way).flatten().tolist() == [1, 0]


def test_a_wrong_result_fails_a_case():
    work = cases.dense("uniform", 1000, 8, "count", "int32", "cpu", {"us": 1e9})
    work.ours = lambda p, right=work.ours: right(p) + 1
    with pytest.raises(AssertionError, match="differs"):
        bench_voxelize.check(work)
    r = cuda_measure.measure(cases.on_cuda(work), cuda_measure.Compiler(False, "no"), 1.0, 2, "cpu")
    assert not r["agrees"]
    assert not r["bars"]["us"]["holds"]


def test_a_reference_that_cannot_be_in_a_graph_is_compared_all_the_same():
    work = cases.sparse("lidar", 1000, "cpu", {"us": 1e9})
    work.reference = lambda p, f, right=work.reference: right(p, f) + 1
    r = cuda_measure.measure(cases.on_cuda(work), cuda_measure.Compiler(False, "no"), 1.0, 2, "cpu")
    assert not r["agrees"]
    assert "reference" in r["notes"]


@pytest.mark.parametrize("kind", ["occupancy", "mean", "batch", "depth"])
def test_the_rivals_can_be_traced_without_a_break(kind):
    work = {
        "occupancy": lambda: cases.dense("uniform", 500, 8, "occupancy", "uint8", "cpu"),
        "mean": lambda: cases.reduced("uniform", 500, 4, 8, "mean", "cpu"),
        "batch": lambda: cases.batch(3, 100, 6, "cpu", {}),
        "depth": lambda: cases.depth(2, 24, 32, 8, "cpu", {}),
    }[kind]()
    call = work.rivals[cases.on_cuda(work).compiled]
    traced = torch.compile(call, backend="aot_eager", dynamic=False, fullgraph=True)
    assert cuda_measure.largest_error(traced(*work.inputs), call(*work.inputs), work.axes["values"]) <= 1
