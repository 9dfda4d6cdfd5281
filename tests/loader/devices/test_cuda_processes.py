"""Several processes on one device at the same time: each has the bits of the CPU. Also under NVIDIA's MPS."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from arrays import CUDA, REQUIRE_CUDA
from device_work import work
from loader_cases import make_cache
from loader_processes import program_of

# Each process begins when all are ready, so that they do work at the same time.
PROGRAM = """
from device_work import work
open(f"{FOLDER}/ready{NUMBER}", "w").close()
while sum(name.startswith("ready") for name in os.listdir(FOLDER)) < COUNT:
    time.sleep(0.01)
found = [work(DEVICE, CACHE) for _ in range(3)]
assert found == found[:1] * 3
print(json.dumps(found[0]))
"""


def run_together(folder, cache, devices, **environment):
    """What a process on each of ``devices`` has found."""
    started = []
    for number, device in enumerate(devices):
        names = {"FOLDER": str(folder), "CACHE": str(cache), "NUMBER": number, "COUNT": len(devices), "DEVICE": device}
        command = [sys.executable, "-c", program_of(PROGRAM, names)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, **environment}, **pipes))
    found = []
    try:
        for process in started:
            out, errors = process.communicate(timeout=250)
            assert process.returncode == 0, errors[-4000:]
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
    return found


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not CUDA:
        (pytest.fail if REQUIRE_CUDA else pytest.skip)("no CUDA backend here")
    return request.param


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache").path


def test_two_processes_on_one_device_have_the_bits_of_the_cpu(device, cache, tmp_path):
    assert run_together(tmp_path, cache, [device] * 2) == [work("cpu", cache)] * 2


@pytest.fixture
def mps(tmp_path):
    """The environment of clients of an MPS daemon of this test."""
    if not CUDA:
        pytest.skip("no CUDA backend here")
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("needs nvidia-cuda-mps-control, which is not installed")
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log")}
    for folder in folders.values():
        os.mkdir(folder)

    def tell(*options, text=None):
        environment = {**os.environ, **folders}
        command = [control, *options]
        return subprocess.run(command, input=text, env=environment, capture_output=True, text=True, timeout=60)

    daemon = tell("-d")
    if daemon.returncode != 0:
        pytest.skip(f"needs an MPS daemon, which does not start here: {daemon.stderr.strip()}")
    yield folders, lambda: tell(text="get_server_list\n").stdout.split()
    tell(text="quit\n")


def test_two_processes_under_mps_have_the_bits_of_the_cpu(mps, cache, tmp_path):
    environment, servers = mps
    assert run_together(tmp_path, cache, ["cuda"] * 2, **environment) == [work("cpu", cache)] * 2
    assert len(servers()) == 1  # so they did run under MPS
