"""Which GPUs a build is for, and whether `make` compiles CUDA code at all, with stand-ins for nvidia-smi and nvcc."""

import os
import pathlib
import shutil
import subprocess

import pytest
from paths import ROOT

CMAKE = shutil.which("cmake")
MAKE = shutil.which("make")
KNOWN = "compute_80 compute_86 compute_89 compute_90 compute_100 compute_120"


def pretend(folder, name, text, code=0):
    """A program that prints this."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)


def detect(folder, smi=None, code=0, nvcc=KNOWN):
    """The architectures and the reason that cmake/cuda_architectures.cmake finds with these tools."""
    if smi is not None:
        pretend(folder, "nvidia-smi", smi, code)
    pretend(folder, "nvcc", nvcc.replace(" ", "\n"))
    script = folder / "detect.cmake"
    script.write_text(
        f"set(CMAKE_PROGRAM_PATH {folder})\nset(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH FALSE)\n"
        f"set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH FALSE)\nset(CMAKE_CUDA_COMPILER {folder}/nvcc)\n"
        f"include({ROOT}/cmake/cuda_architectures.cmake)\n"
        'robocache_detect_architectures(found why)\nmessage(STATUS "${found}|${why}")\n'
    )
    done = subprocess.run([CMAKE, "-P", str(script)], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1].removeprefix("-- ").split("|")


@pytest.mark.skipif(CMAKE is None, reason="cmake is not here")
@pytest.mark.parametrize(
    ("smi", "expected"),
    [
        ("9.0", "90"),
        ("8.9\n8.9\n8.0", "80;89"),
        ("12.0\n10.0", "100;120"),
        ("12.1", "120"),  # newer than this nvcc: the PTX of 120 runs there
        ("7.5\n8.6", "86"),
    ],
)
def test_a_local_build_is_for_the_gpus_that_are_there(smi, expected, tmp_path):
    found, why = detect(tmp_path, smi)
    assert found == expected
    assert why == f"GPUs of this machine: {', '.join(dict.fromkeys(smi.split()))}"


@pytest.mark.skipif(CMAKE is None, reason="cmake is not here")
@pytest.mark.parametrize(("smi", "code"), [(None, 0), ("", 0), ("NVIDIA-SMI has failed", 9), ("[N/A]", 0), ("7.0", 0)])
def test_without_a_gpu_that_can_be_used_the_default_is_compiled_and_said(smi, code, tmp_path):
    found, why = detect(tmp_path, smi, code)
    assert found == "90"
    assert why == "no GPU was found here; CMAKE_CUDA_ARCHITECTURES sets others"


def test_a_release_is_for_every_supported_gpu():
    text = (ROOT / "cmake" / "cuda_architectures.cmake").read_text()
    assert "set(ROBOCACHE_ALL_ARCHITECTURES 80-real 86-real 89-real 90-real 100-real 120)" in text


def cuda_code(*words, env=None):
    """What `make` would hand to CMake as ROBOCACHE_CUDA."""
    command = [MAKE, "-s", "-f", "-", "show", *words]
    text = f"include {ROOT}/Makefile\nshow:\n\t@echo code=$(CUDA_CODE)\n"
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT, env=env, check=True
    )
    return done.stdout.split("code=")[1].strip()


@pytest.mark.skipif(MAKE is None, reason="make is not here")
def test_make_compiles_cuda_code_where_a_gpu_is_or_where_it_is_told_to(tmp_path):
    assert cuda_code("CUDA=1") == "ON"
    assert cuda_code("CUDA=0") == "OFF"
    gpu = bool(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    for name in ("ls", "find", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name))
    env = {key: value for key, value in os.environ.items() if key not in ("CUDA", "MAKEFLAGS")} | {
        "PATH": str(tmp_path)
    }
    assert cuda_code(env=env) == ("AUTO" if gpu else "OFF")
    pretend(tmp_path, "nvidia-smi", "GPU 0: NVIDIA H200")
    (tmp_path / "cat").symlink_to(shutil.which("cat"))
    assert cuda_code(env=env) == "AUTO"


def test_ci_compiles_cuda_code_although_it_has_no_gpu():
    text = (ROOT / ".ci" / "run").read_text()
    assert 'make test-python CUDA="$cuda"' in text
    assert "built=build/cuda cuda=1" in text
