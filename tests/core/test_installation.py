"""check_installation, print_installation_info, self_test."""

import importlib
import os
import platform
import sys
from importlib.metadata import version

import numpy as np
import pytest
import robocache
from arrays import BACKENDS, CUDA, missing_on_gpu


def test_check_installation_tells_the_truth():
    info = robocache.check_installation()
    assert info["version"] == robocache.__version__
    assert info["python"] == platform.python_version()
    assert os.path.dirname(info["native_module"]) == os.path.dirname(robocache.__file__)
    assert info["cpu"]["num_threads"] == robocache.num_threads()
    assert info["cpu"]["instruction_set"] in ("x86-64-v3", "baseline")
    if platform.machine() == "x86_64":
        with open("/proc/cpuinfo") as cpu:
            flags = set(next(line for line in cpu if line.startswith("flags")).split())
        wide = {"avx2", "fma", "bmi2", "f16c"} <= flags
        assert info["cpu"]["instruction_set"] == ("x86-64-v3" if wide else "baseline")
    assert info["packages"] == {name: version(name) for name in ("numpy", "torch", "jax")}
    assert info["backends"].keys() == {"cpu", "cuda", "torch"}
    assert info["backends"]["cpu"] is info["backends"]["torch"] is True


def test_a_backend_works_exactly_where_it_is_said_to():
    times = np.arange(3.0)
    for backend, there in robocache.check_installation()["backends"].items():
        if there and backend != "cuda":
            assert robocache.resample_trajectories(times, times, times, backend=backend).tolist() == [0, 1, 2]
        elif not there:
            with pytest.raises(NotImplementedError, match=backend):
                robocache.resample_trajectories(times, times, times, backend=backend)


def test_cuda_is_available_only_with_a_device_and_otherwise_there_is_a_reason():
    cuda = robocache.check_installation()["cuda"]
    assert cuda["available"] == bool(cuda["devices"])
    assert bool(cuda["reason"]) != cuda["available"]
    assert cuda["available"] <= cuda["compiled"]


def test_the_cuda_backend_is_tested_too():
    if not CUDA and "cuda" not in BACKENDS:
        pytest.skip("no CUDA backend here; ROBOCACHE_REQUIRE_CUDA=1 makes every test of it fail instead")
    assert CUDA


def test_the_information_is_printed_for_people(capsys):
    robocache.print_installation_info()
    printed = capsys.readouterr().out
    info = robocache.check_installation()
    for fact in (
        robocache.__version__,
        info["python"],
        info["native_module"],
        info["cpu"]["instruction_set"],
        "cuda",
        "torch",
    ):
        assert fact in printed


def test_the_self_test_tries_every_backend_there_is():
    results = robocache.self_test()
    for backend, there in robocache.check_installation()["backends"].items():
        assert results[backend] == ("ok" if there else "not available")


@pytest.mark.parametrize(
    ("module", "name"), [("ops.align", "resample_trajectories"), ("ops.voxelize", "voxelize_pointcloud")]
)
def test_the_self_test_fails_where_a_backend_is_wrong(module, name, monkeypatch):
    module = importlib.import_module(f"robocache.{module}")
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **options: right(*args, **options) + 1)
    with pytest.raises(RuntimeError, match=r"^self_test: backend 'cpu'"):
        robocache.self_test()


def test_the_self_test_says_where_no_library_sees_the_gpu(monkeypatch):
    install = importlib.import_module("robocache.install")
    monkeypatch.setattr(
        install, "check_installation", lambda: {"backends": {"cpu": True, "cuda": True, "torch": False}}
    )
    for library in ("torch", "cupy", "jax"):
        monkeypatch.setitem(sys.modules, library, None)  # importing it is an ImportError
    assert install.self_test() == {
        "cpu": "ok",
        "cuda": "not tested: no PyTorch, CuPy or JAX with GPU support is installed",
        "torch": "not available",
    }


@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_the_self_test_takes_any_library_that_sees_the_gpu(library, monkeypatch):
    if missing_on_gpu(library):
        pytest.skip(missing_on_gpu(library))
    install = importlib.import_module("robocache.install")
    for other in {"torch", "cupy", "jax"} - {library}:
        monkeypatch.setattr(install, f"_{other}_on_gpu", lambda: None)
    assert install.self_test()["cuda"] == "ok"
