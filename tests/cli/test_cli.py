"""The command `robocache`: its output, its exit codes where it cannot work, and how it reads what ncu writes."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import robocache
from arrays import CUDA, REQUIRE_CUDA
from robocache import _core
from robocache.cli import main, workload
from robocache.cli import profile as _profile

KERNEL = "void robocache::align_detail::align_rows<long, (int)4>(robocache::align_detail::DeviceTable<(int)4>)"
HEADER = ["ID", "Process ID", "Process Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device",
          "CC", *_profile.METRICS.values()]  # fmt: skip
UNITS = [""] * 10 + ["ns", "%", "byte", "byte", "%", "%", "%", "register/thread", "inst", "%", "", "thread"]
NUMBERS = ["331,520", "91.25", "1,073,741,824", "536,870,912.00", "12.5", "78.4", "100", "40", "25,165,824", "41.7",
           "16,384", "256"]  # fmt: skip


def quoted(*cells):
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def launch(i, kernel=KERNEL, numbers=NUMBERS):
    where = ["1", "7", "(256, 1, 1)", "(16384, 1, 1)", "0", "9.0"]
    return quoted(str(i), "4711", "python3.12", kernel, *where, *numbers)


def ncu_output(*lines, units=UNITS):
    before = [
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
        '==PROF== Profiling "align_rows" - 0: 0%....50%....100% - 9 passes',
        "==PROF== Disconnected from process 4711",
    ]
    return "\n".join([*before, quoted(*HEADER), quoted(*units), *lines]) + "\n"


def test_the_table_of_ncu_is_read_in_base_units_with_its_separators():
    (only,) = _profile.parse_ncu(ncu_output(launch(0)))
    assert only == {
        "kernel": "align_rows<long, 4>", "time_s": pytest.approx(331.52e-6), "dram_pct": 91.25,
        "dram_read_bytes": 2**30, "dram_written_bytes": 2**29, "l2_hit_pct": 12.5, "occupancy_pct": 78.4,
        "occupancy_limit_pct": 100, "registers": 40, "instructions": 25165824, "issue_pct": 41.7, "grid": 16384,
        "block": 256,
    }  # fmt: skip


def test_scaled_units_are_brought_to_base_units():
    units = [u.replace("ns", "usecond").replace("byte", "Mbyte") for u in UNITS]
    numbers = ["331.52", "91.25", "1,073.74", "536.87", *NUMBERS[4:]]
    (only,) = _profile.parse_ncu(ncu_output(launch(0, numbers=numbers), units=units))
    assert only["time_s"] == pytest.approx(331.52e-6)
    assert only["dram_read_bytes"] == pytest.approx(1073.74e6)


def test_what_a_gpu_cannot_count_is_none_and_stays_out_of_the_medians():
    numbers = ["n/a" if i == 1 else x for i, x in enumerate(NUMBERS)]
    launches = _profile.parse_ncu(ncu_output(launch(0, numbers=numbers), launch(1)))
    assert [x["dram_pct"] for x in launches] == [None, 91.25]
    (kernel,) = _profile.summarize(launches, {"read_bytes": 2**30, "written_bytes": 2**29})["kernels"]
    assert (kernel["dram_pct"], kernel["launches"], kernel["of_formula"]) == (91.25, 2, 1.0)


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM\n", '"ID","Kernel Name"\n'])
def test_no_table_is_no_launches(text):
    assert _profile.parse_ncu(text) == []


def test_a_kernel_that_is_not_ours_to_count_has_no_place_in_the_roofline():
    (x,) = _profile.parse_ncu(ncu_output(launch(0)))
    place = _profile.roofline(x)
    assert place["peak_bytes_per_s"] == pytest.approx(1.5 * 2**30 / 331.52e-6 / 0.9125)
    assert place["inst_per_byte"] == pytest.approx(25165824 / (1.5 * 2**30))
    assert _profile.roofline(x | {"dram_pct": None}) is None


# ---- the command -----------------------------------------------------------------------------------------------------


def command(*args):
    return subprocess.run([sys.executable, "-m", "robocache", *args], capture_output=True, text=True, timeout=120)


def test_info_prints_check_installation_for_people_and_as_json():
    assert json.loads(command("info", "--json").stdout) == json.loads(json.dumps(robocache.check_installation()))
    assert command("info").stdout.startswith(f"RoboCache {robocache.__version__}")


def test_the_script_robocache_is_installed_with_the_package():
    scripts = importlib.metadata.distribution("robocache").entry_points.select(group="console_scripts")
    assert {script.name: script.load() for script in scripts} == {"robocache": main.main}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "required: command"),
        (("profile",), "required: op"),
        (("profile", "align", "--case", "1,2,3"), "must be B,S,T,D"),
        (("profile", "align", "--case", "1,2,3,0"), "got '1,2,3,0'"),
        (("profile", "align", "--method", "spline"), "invalid choice: 'spline'"),
    ],
)
def test_bad_usage_ends_with_code_2_and_says_what_was_wrong(args, message):
    done = command(*args)
    assert done.returncode == 2
    assert message in done.stderr


def test_without_a_gpu_profile_says_why_and_ends_with_code_2(monkeypatch, capsys):
    monkeypatch.setattr(_core, "cuda_status", lambda: {"available": False, "reason": "no CUDA driver on this machine"})
    assert main.main(["profile", "align"]) == 2
    assert capsys.readouterr().err == "robocache profile align: needs a GPU: no CUDA driver on this machine\n"
    assert main.main(["profile", "voxelize", "--json"]) == 2
    failure = {"error": "needs a GPU: no CUDA driver on this machine", "type": "ProfileError"}
    assert json.loads(capsys.readouterr().out) == failure


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine that says it has a GPU, and no ncu yet; returns the folder of its PATH."""
    monkeypatch.setattr(_core, "cuda_status", lambda: {"available": True, "reason": ""})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(_profile, "NSIGHT", tmp_path / "nsight")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_without_ncu_profile_says_where_it_looked_and_ends_with_code_2(gpu, capsys):
    assert main.main(["profile", "align"]) == 2
    assert "needs Nsight Compute: ncu is not on the PATH" in capsys.readouterr().err


def test_ncu_is_found_beside_cuda_and_in_its_own_folder(gpu, tmp_path):
    for place in (tmp_path / "nsight" / "2025.3.1" / "ncu", tmp_path / "cuda" / "bin" / "ncu", gpu / "ncu"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
        assert _profile.find_ncu() == str(place)


def write_ncu(folder, body):
    script = folder / "ncu"
    script.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\nargs = sys.argv[1:]\n{body}\n")
    script.chmod(0o755)


def test_profile_writes_a_table_json_and_a_picture(gpu, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    text = ncu_output(*(launch(i) for i in range(3)))
    facts = {"read_bytes": 2**30, "written_bytes": 2**29, "device": "NVIDIA Test", "torch": "2"}
    write_ncu(
        gpu,
        f"""
spec = json.loads(args[-2])
assert spec["case"] == [2, 30, 10, 4] and spec["times_dtype"] == "int64" and spec["order"] == "random", spec
assert args[args.index("--clock-control") + 1] == "none"
pathlib.Path(args[args.index("--log-file") + 1]).write_text({text!r})
pathlib.Path(args[-1]).write_text({json.dumps(facts)!r})""",
    )
    out = tmp_path / "out"
    args = ["profile", "align", "--case", "2,30,10,4", "--times-dtype", "int64", "--order", "random"]
    assert main.main([*args, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "align_rows<long, 4>" in shown.out
    assert "NVIDIA Test" in shown.out
    row = next(line for line in shown.out.splitlines() if line.startswith("align_rows")).split()
    assert row[2:] == ["3", "331.52", "91.2", "1073.74", "536.87", "1.00", "12.5", "78.4", "100.0", "40", "41.7"]
    assert sorted(p.name for p in out.iterdir()) == ["align.csv", "align.json", "align.png", "align.txt"]
    assert json.loads((out / "align.json").read_text())["kernels"][0]["of_formula"] == 1.0
    assert main.main([*args, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["formula_bytes"] == 1.5 * 2**30


def test_what_ncu_complains_of_reaches_the_user(gpu, tmp_path, capsys):
    write_ncu(
        gpu,
        """
pathlib.Path(args[args.index("--log-file") + 1]).write_text("==ERROR== ERR_NVGPUCTRPERM - no permission\\n")
sys.exit(1)""",
    )
    assert main.main(["profile", "align", "--out", str(tmp_path)]) == 2
    assert "ncu exited with code 1:\n  ==ERROR== ERR_NVGPUCTRPERM" in capsys.readouterr().err


def test_a_run_without_our_kernels_is_an_error(gpu, tmp_path, capsys):
    write_ncu(
        gpu,
        """
pathlib.Path(args[args.index("--log-file") + 1]).write_text("==WARNING== No kernels were profiled.\\n")
pathlib.Path(args[-1]).write_text("{}")""",
    )
    assert main.main(["profile", "align", "--out", str(tmp_path)]) == 2
    assert (
        "profiled no kernel that matches ^align_:\n  ==WARNING== No kernels were profiled." in capsys.readouterr().err
    )


@pytest.mark.skipif(not (CUDA or REQUIRE_CUDA), reason="no CUDA backend here")
def test_a_real_profile_counts_about_the_bytes_of_the_formula(tmp_path):
    try:
        _profile.find_ncu()
    except _profile.ProfileError as error:
        pytest.skip(str(error))
    done = command("profile", "align", "--case", "2048,500,250,32", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (kernel,) = result["kernels"]
    assert kernel["kernel"].startswith("align_")
    assert kernel["launches"] == 5
    assert 0.9 * result["read_bytes"] < kernel["dram_read_bytes"] < 1.5 * result["read_bytes"]
    assert None not in kernel.values()


# ---- the process it watches ------------------------------------------------------------------------------------------


def rows_by_hand(times, targets, method):
    """Distinct rows a method needs, one target at a time."""
    rows = set()
    for b in range(len(targets)):
        for t in targets[b]:
            left = max(np.flatnonzero(times[b] <= t), default=0)
            reach = {"previous": [0], "nearest": [0], "next": [1], "cubic": [-1, 0, 1, 2]}.get(method, [0, 1])
            rows |= {(b, min(max(left + step, 0), times.shape[1] - 1)) for step in reach}
    return len(rows)


@pytest.mark.parametrize("order", ["ramp", "random"])
@pytest.mark.parametrize("times_dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("method", ["linear", "previous", "next", "cubic", "mean", "rms"])
def test_the_bytes_that_must_move_are_those_counted_by_hand(method, times_dtype, order):
    case = (3, 40, 13, 4)
    spec = {"case": case, "dtype": "bfloat16", "times_dtype": times_dtype, "method": method, "order": order, "calls": 2}
    result = workload.run(spec, "cpu")
    _, times, targets = (x.float().numpy() if i == 0 else x.numpy() for i, x in enumerate(
        workload.make_inputs(case, "bfloat16", times_dtype, order)))  # fmt: skip
    rows = 3 * 40 if method in ("mean", "rms") else rows_by_hand(times, targets, method)
    item = 4 if times_dtype == "float32" else 8
    assert result["written_bytes"] == 3 * 13 * 4 * 2
    assert result["read_bytes"] == rows * 4 * 2 + (3 * 40 + 3 * 13) * item


def test_the_watched_process_takes_the_arguments_that_profile_gives(tmp_path):
    if CUDA:
        pytest.skip("this is about a machine without a GPU")
    spec = _profile.Spec((2, 10, 5, 3), "float32", "int64", "linear", "ramp")
    args = [json.dumps(_profile.dataclasses.asdict(spec)), str(tmp_path / "facts.json")]
    done = subprocess.run([sys.executable, "-m", "robocache.cli.workload", *args], capture_output=True, text=True)
    assert done.returncode == 1  # torch cannot make tensors on a GPU that is not there
    assert "CUDA" in done.stderr
    assert not pathlib.Path(args[1]).exists()


@pytest.mark.parametrize("mode", ["count", "mean", "std"])
def test_a_voxelize_workload_counts_points_features_and_the_grid(mode):
    dtype = "int32" if mode == "count" else "float32"
    spec = _profile.VoxelSpec("lidar", 1000, 8, mode, dtype, 5, False, calls=2)
    result = workload.run_voxelize(_profile.dataclasses.asdict(spec), "cpu")
    channels = 0 if mode == "count" else 5
    assert result["read_bytes"] == 1000 * (3 + channels) * 4
    assert result["written_bytes"] == 8**3 * max(channels, 1) * 4


def test_voxelize_has_a_profile_of_its_own(monkeypatch, capsys):
    specs = []
    monkeypatch.setattr(main, "profile", lambda spec, out: specs.append(spec) or {"files": [], "device": "x"})
    monkeypatch.setattr(main, "table", lambda result: "table")
    assert main.main(["profile", "voxelize", "--mode", "mean", "--points", "77", "--deterministic"]) == 0
    assert specs == [_profile.VoxelSpec("uniform", 77, 128, "mean", "float32", 16, True)]
    assert "77 uniform points x 16 features to 128^3, deterministic mean, float32" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main.main(["profile", "voxelize", "--points", "0"])
    assert "must be an integer of at least 1, got '0'" in capsys.readouterr().err


def test_the_clouds_of_the_command_line_are_those_that_can_be_made():
    from robocache.cli import clouds

    assert main.CLOUDS == clouds.CLOUDS


def test_self_test_prints_one_line_per_backend(capsys):
    assert main.main(["self-test"]) == 0
    assert "cpu: ok" in capsys.readouterr().out.splitlines()
    assert main.main(["self-test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cpu"] == "ok"


def test_self_test_ends_with_code_1_where_a_backend_is_wrong(monkeypatch, capsys):
    def wrong():
        raise RuntimeError("self_test: backend 'cpu' returned [1], expected [2]")

    monkeypatch.setattr(main, "self_test", wrong)
    assert main.main(["self-test"]) == 1
    assert capsys.readouterr() == ("", "robocache self-test: backend 'cpu' returned [1], expected [2]\n")
    assert main.main(["self-test", "--json"]) == 1
    failure = {"error": "backend 'cpu' returned [1], expected [2]", "type": "RuntimeError"}
    assert json.loads(capsys.readouterr().out) == failure
