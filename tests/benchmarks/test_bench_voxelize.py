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
import tables
from measure import cuda as cuda_measure
from measure import harness, timing
from measure.targets import rule
from robocache.cli import clouds as made
from voxelize import cases, clouds, rivals
from voxelize import tables as voxelize_tables

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


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The threads of PyTorch wait for each other at every step, which takes long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=DEVICES)
def on_gpu(tmp_path_factory, request, one_thread):
    """The JSON file of a whole --device cuda run: on the CPU by the clock, on a GPU in graphs as in earnest."""
    out = tmp_path_factory.mktemp("bench") / "voxelize_cuda.json"
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        assert bench_voxelize.run_cuda(arguments(out, quick=True), device=request.param, tiny=True) == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory, one_thread):
    out = tmp_path_factory.mktemp("bench") / "voxelize_cpu.json"
    threads = robocache.num_threads(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        assert bench_voxelize.run_cpu(arguments(out), tiny=True) == 0
    robocache.set_num_threads(threads[0])
    torch.set_num_threads(threads[1])
    return json.loads(out.read_text())


def test_a_gpu_run_has_the_targets_of_the_issue(on_gpu):
    asked = {c["name"]: {name: entry["at_most"] for name, entry in c["targets"].items()} for c in on_gpu["worst"]}
    scattered = {"x scatter_reduce, worst": 1.0, "x index_add, worst": 1.0, "spread, worst": 2.0}
    only_max = {"x scatter_reduce, worst": 1.0, "spread, worst": 2.0}  # there is no index_add of a maximum
    assert asked == {
        "count int32 1M": {"us, uniform": 13, **scattered},
        "mean 1M x 4": scattered,
        "occupancy int32 1M": {"us, uniform": 13, "spread, worst": 2.0},
        "occupancy uint8 1M": {"us, uniform": 13, "spread, worst": 2.0},
        "count int32 8M": {"us, sphere r9": 60, **scattered},
        "occupancy uint8 64M": {"us, uniform": 450, "spread, worst": 2.0},
        "count int32 64M": {"us, uniform": 450, **scattered},
        "max 1M x 16": {"us, uniform": 190, **only_max},
        "mean 1M x 16": {"us, uniform": 220, **scattered},
        "deterministic mean 1M x 16": {"x atomic mean, uniform": 2.0, **scattered},
        "batch occupancy uint8 128 x 8k": {"x floor, worst": 1.5},
        "sparse mean 250k x 4": {"us, worst": 80, "spread, worst": 2.0},
        "depth occupancy 64 x 640x480": {"us, room": 40},
        "one voxel, count int32 1M": {"x scatter_reduce, worst": 1.0, "x index_add, worst": 1.0},
        "one voxel, mean 1M x 4": {"x scatter_reduce, worst": 1.0, "x index_add, worst": 1.0},
    }  # fmt: skip


def test_the_clouds_of_a_size_are_compared_with_each_other(on_gpu):
    first = on_gpu["worst"][0]
    assert tuple(first["inputs"]) == clouds.HONEST
    us = [x["us"] for x in first["inputs"].values()]
    assert first["targets"]["spread, worst"]["measured"] == pytest.approx(max(us) / min(us))
    eight = next(c for c in on_gpu["worst"] if c["name"] == "count int32 8M")
    assert {"sphere r9", "sphere r3"} <= eight["inputs"].keys()


def test_every_rival_of_a_gpu_run_agreed_and_every_case_says_what_share_is_inside(on_gpu):
    for case in on_gpu["cases"]:
        assert case["agrees"], (case["axes"], case["notes"])
        assert case["ratios"] or case["name"] == "sparse mean"
        assert case["after_us"].keys() == case["median_us"].keys()
        assert 0.85 < case["in_grid"] <= 1
        assert case["points_per_s"] > 0


def test_a_cpu_run_has_every_cloud_and_the_targets_of_the_issue(on_cpu):
    assert {c["axes"]["cloud"] for c in on_cpu["cases"]} == {*clouds.HONEST, "one voxel", "room"}
    asked = {(c["name"].split()[0], name): rule(entry) for c in on_cpu["worst"] for name, entry in c["targets"].items()}
    for op in ("count", "mean"):
        assert asked[(op, "scatter_reduce")] == 5.0
        assert asked[(op, "spread, worst")] == 2.0
    if rivals.small_gicp_or_none() is not None:
        assert asked[("downsample", "small_gicp")] == 1.5
    for case in on_cpu["cases"]:
        ours = np.median(case["samples_s"]["ours"])
        assert case["median_s"]["ours"] == pytest.approx(ours)
        for rival in case["samples_s"].keys() - {"ours"}:
            assert case["ratios"][rival] == pytest.approx(np.median(case["samples_s"][rival]) / ours)


def test_the_worst_cloud_of_a_cpu_case_is_an_honest_one(on_cpu):
    count = on_cpu["worst"][0]
    assert "one voxel" in count["inputs"]
    assert count["worst_ms"] == max(x["ms"] for name, x in count["inputs"].items() if name != "one voxel")


def test_the_tables_show_every_case(on_cpu, on_gpu):
    full = voxelize_tables.cpu_full(on_cpu), voxelize_tables.cuda_full(on_gpu)
    for text, record in zip(full, (on_cpu, on_gpu), strict=True):
        lines = [line.count("|") for line in text.splitlines() if line.startswith("|")]
        assert len(lines) == len(record["cases"]) + len(record["worst"]) + 4
        assert len(set(lines)) == 2
        said = text.count("met: ") + text.count("MISSED: ")
        assert said == sum(len(c["targets"]) for c in record["worst"])
        assert f"of {said} targets met" in text


def test_missed_targets_and_faster_rivals_are_named(on_cpu):
    changed = copy.deepcopy(on_cpu)
    for case in changed["cases"] + changed["worst"]:
        case["ratios"] = dict.fromkeys(case.get("ratios", ()), 2.0)
        for target in case["targets"].values():
            target["met"] = True
    assert "missed" not in voxelize_tables.outcome(changed, voxelize_tables.CPU_RIVALS)
    changed["worst"][0]["targets"]["scatter_reduce"] |= {"met": False, "measured": 4.5}
    changed["cases"][0]["ratios"]["index_add"] = 0.5
    text = voxelize_tables.outcome(changed, voxelize_tables.CPU_RIVALS)
    assert "missed: count 2k 16^3 int32 (4.50, target 5)." in text
    assert "A rival is faster in: count, int32, 2k uniform, 16^3 (index_add, x 0.50)." in text


def test_the_committed_documents_have_the_blocks():
    for block, content in voxelize_tables.blocks().items():
        text = tables.DOCS.read_text()
        assert tables.fill(text, block, content) == text, "run python benchmarks/tables.py"


# ---- clouds and rivals -----------------------------------------------------------------------------------------------


def test_a_scan_of_the_room_ends_at_its_walls_and_keeps_the_order_of_the_sensor():
    torch.manual_seed(0)
    scan = made.scan_room(6400)
    half = torch.tensor(made.ROOM_M) / 2
    assert (scan.abs() <= half + 0.05).all()
    on_wall = ((scan.abs() - half).abs() < 0.03).any(1)
    assert 0.5 < float(on_wall.float().mean()) < 1  # the rest is furniture
    heading = torch.atan2(scan[:, 1], scan[:, 0]) % (2 * torch.pi)
    assert (heading[made.RINGS :: made.RINGS].diff() > 0).float().mean() > 0.95


def test_shuffled_is_lidar_in_another_order():
    torch.manual_seed(0)
    lidar = made.make_cloud("lidar", 500)
    torch.manual_seed(0)
    shuffled = made.make_cloud("shuffled", 500)
    assert not torch.equal(lidar, shuffled)
    assert torch.equal(lidar.sort(0).values, shuffled.sort(0).values)


@pytest.mark.parametrize("kind", clouds.HONEST)
def test_a_cloud_lies_in_the_box(kind):
    torch.manual_seed(0)
    points = clouds.make(kind, 5000)
    assert points.shape == (5000, 3)
    assert points.dtype == torch.float32
    assert float((points.abs() <= clouds.BOX_M / 2).all(1).float().mean()) > 0.99


def points_per_cell(kind, num_points=20_000, cells=32):
    torch.manual_seed(0)
    counts = rivals.count(clouds.make(kind, num_points), cases.cube(cells, "cpu"), torch.int32, "index_add")
    return num_points / int((counts > 0).sum())


def test_rings_are_dense_near_the_sensor_and_lie_on_the_ground():
    torch.manual_seed(0)
    points = clouds.make("rings", 6400)
    radius = points[:, :2].norm(dim=1)
    density = [int(((radius >= r) & (radius < r + 1)).sum()) / (2 * r + 1) for r in (1, 3, 5)]
    assert density[0] > 3 * density[1] > 6 * density[2]
    assert (points[:, 2] + clouds.SENSOR_HEIGHT_M).abs().max() < 0.1
    rings = radius[: 10 * clouds.RINGS].view(10, clouds.RINGS)
    assert rings.std(0).max() < 0.03  # a beam keeps its radius from heading to heading


def test_clustered_and_small_spheres_crowd_their_cells():
    assert points_per_cell("clustered") > 4 * points_per_cell("uniform")
    assert points_per_cell("sphere r3") > 4 * points_per_cell("sphere r9")
    for radius in (9, 3):
        found = clouds.make(f"sphere r{radius}", 100).norm(dim=1)
        assert torch.allclose(found, torch.tensor(radius / 10 * clouds.BOX_M / 2))


def test_sorted_is_uniform_in_the_order_of_the_cells():
    torch.manual_seed(0)
    uniform = clouds.make("uniform", 3000)
    torch.manual_seed(0)
    ordered = clouds.make("sorted", 3000)
    assert torch.equal(uniform.sort(0).values, ordered.sort(0).values)
    cell = ((ordered / clouds.BOX_M + 0.5) * 256).long()
    assert ((cell[:, 0] * 256 + cell[:, 1]) * 256 + cell[:, 2]).diff().min() >= 0


def test_depth_images_see_the_room_that_the_scan_sees():
    torch.manual_seed(0)
    depth, intrinsics, pose = made.make_depth(4, 24, 32)
    points = rivals.unproject(depth, intrinsics, pose)
    measured = ~points.isnan().any(1)
    assert 0.9 < float(measured.float().mean()) < 1
    assert (points[measured].abs() <= torch.tensor(made.ROOM_M) / 2 + 0.01).all()


def test_rivals_send_points_outside_nowhere():
    points = torch.tensor([[0.5, 0.5, 0.5], [9.0, 0.0, 0.0], [torch.nan, 0.0, 0.0], [-0.1, 0.0, 0.0]])
    grid = (torch.zeros(3), torch.ones(3), (2, 1, 1))
    for way in ("scatter_reduce", "scatter_add", "index_add"):
        assert rivals.count(points, grid, torch.int32, way).flatten().tolist() == [1, 0]


def measured(work):
    compiler, effort = cuda_measure.Compiler(False, "no"), cuda_measure.Effort(2, after=False)
    return cuda_measure.measure(cases.on_cuda(work), compiler, 1.0, effort, "cpu")


def test_a_wrong_result_fails_a_case():
    work = cases.dense("uniform", 1000, 8, "count", "int32", "cpu")
    work.ours = lambda p, right=work.ours: right(p) + 1
    with pytest.raises(AssertionError, match="differs"):
        bench_voxelize.check(work)
    assert not measured(work)["agrees"]


def test_a_reference_that_cannot_be_in_a_graph_is_compared_all_the_same():
    work = cases.sparse("lidar", 1000, "cpu")
    work.reference = lambda p, f, right=work.reference: right(p, f) + 1
    r = measured(work)
    assert not r["agrees"]
    assert "reference" in r["notes"]


@pytest.mark.parametrize("kind", ["occupancy", "mean", "batch", "depth"])
def test_the_rivals_can_be_traced_without_a_break(kind):
    work = {
        "occupancy": lambda: cases.dense("uniform", 500, 8, "occupancy", "uint8", "cpu"),
        "mean": lambda: cases.reduced("uniform", 500, 4, 8, "mean", "cpu"),
        "batch": lambda: cases.batch(3, 100, 6, "cpu"),
        "depth": lambda: cases.depth(2, 24, 32, 8, "cpu"),
    }[kind]()
    call = work.rivals[cases.on_cuda(work).compiled]
    traced = torch.compile(call, backend="aot_eager", dynamic=False, fullgraph=True)
    assert cuda_measure.largest_error(traced(*work.inputs), call(*work.inputs), work.axes["values"]) <= 1
