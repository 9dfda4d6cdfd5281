"""Which GPUs a build is for, and whether `make` compiles CUDA code at all, with stand-ins for nvidia-smi and nvcc."""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

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


def detect(folder, smi=None, code=0, nvcc=KNOWN, given=""):
    """The architectures and the reason that cmake/cuda_architectures.cmake finds with these tools."""
    if smi is not None:
        pretend(folder, "nvidia-smi", smi, code)
    pretend(folder, "nvcc", nvcc.replace(" ", "\n"))
    script = folder / "detect.cmake"
    script.write_text(
        f"set(CMAKE_PROGRAM_PATH {folder})\nset(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH FALSE)\n"
        f"set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH FALSE)\nset(CMAKE_CUDA_COMPILER {folder}/nvcc)\n"
        f"set(ROBOCACHE_ARCHITECTURES_WITHOUT_GPU {given})\n"
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
def test_without_a_gpu_that_can_be_used_a_build_is_for_all_of_a_release_and_says_so(smi, code, tmp_path):
    found, why = detect(tmp_path, smi, code)
    assert found == "80-real;86-real;89-real;90-real;100-real;120"
    assert why == "no GPU was found here, so all of a release; CMAKE_CUDA_ARCHITECTURES sets others"


@pytest.mark.skipif(CMAKE is None, reason="cmake is not here")
@pytest.mark.parametrize(("smi", "expected"), [(None, "90"), ("8.9", "89")])
def test_an_architecture_for_machines_without_a_gpu_does_not_replace_a_gpu_that_is_there(smi, expected, tmp_path):
    assert detect(tmp_path, smi, given="90")[0] == expected


def test_make_compiles_for_one_architecture_where_there_is_no_gpu():
    assert "-C cmake.define.ROBOCACHE_ARCHITECTURES_WITHOUT_GPU=90" in (ROOT / "Makefile").read_text()
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    (cuda,) = [preset for preset in presets if preset["name"] == "cuda"]
    assert cuda["cacheVariables"]["ROBOCACHE_ARCHITECTURES_WITHOUT_GPU"] == "90"


def test_the_build_files_need_no_newer_cmake_than_the_documents_say():
    assert "cmake_minimum_required(VERSION 3.22)" in (ROOT / "CMakeLists.txt").read_text()
    assert json.loads((ROOT / "CMakePresets.json").read_text())["version"] == 3  # the newest that CMake 3.22 reads
    assert 'cmake.version = ">=3.22"' in (ROOT / "pyproject.toml").read_text()
    assert "CMake 3.22" in (ROOT / "README.md").read_text()


WITH_BUILTINS = sorted(path for path in (ROOT / "src").rglob("cpu/*.cpp") if path.stem in ("baseline", "avx2"))
"""Files for one instruction set each: they use vector types and builtins, which differ between versions of GCC."""


@pytest.mark.skipif(shutil.which("g++-11") is None, reason="g++-11 is not here")
@pytest.mark.parametrize("path", WITH_BUILTINS, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_the_oldest_compiler_that_the_documents_name_knows_all_builtins(path):
    assert "GCC 11 or newer" in (ROOT / "README.md").read_text()
    flags = ["-std=c++20", "-fsyntax-only", "-DROBOCACHE_X86_64_V3", "-I", ROOT / "src", "-I", ROOT / "include"]
    if platform.machine() == "x86_64" and path.stem == "avx2":
        flags += ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"]
    done = subprocess.run(["g++-11", *flags, path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_release_is_for_every_supported_gpu():
    text = (ROOT / "cmake" / "cuda_architectures.cmake").read_text()
    assert "set(ROBOCACHE_ALL_ARCHITECTURES 80-real 86-real 89-real 90-real 100-real 120)" in text
    assert "set(ROBOCACHE_ALL_ARCHITECTURES 87-real 90-real 100-real 110-real 120)" in text


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
    assert 'wheel=(CUDA="$cuda"' in text
    assert 'make test-python "${wheel[@]}"' in text
    assert "built=build/cuda cuda=1" in text


# ---- make picture and make test: which wheel is installed, and what must be there for it ----------------------------

TOOLS = ("awk", "bash", "cat", "cmp", "cp", "dirname", "env", "find", "grep", "id", "ls", "make", "mkdir", "rm", "sed")
PYTHON_HERE = f"cp3{sys.version_info[1]}"
PREBUILT = f"robocache-0.1.0-{PYTHON_HERE}-{PYTHON_HERE}-manylinux_2_17_{os.uname().machine}.whl"
BUILT = f"robocache-0.1.0-{PYTHON_HERE}-{PYTHON_HERE}-linux_{os.uname().machine}.whl"


class Checkout:
    """A copy of the Makefile and its tools, a PATH without compiler, and a Python that only notes what is to be done.

    ``pip wheel`` writes a file, ``pip install`` of a wheel notes its hash as pip does; all else is noted in ``log``.
    """

    def __init__(self, root, compiler):
        self.root, self.log = root / "checkout", root / "log"
        self.bin = root / "bin"
        self.bin.mkdir()
        for name in (*TOOLS, "mv", "nice", "sh", "sha256sum", "sort", "tail", "touch"):
            (self.bin / name).symlink_to(shutil.which(name))
        if compiler:
            pretend(self.bin, "g++", "")
        (self.bin / "python3").symlink_to(self.python(root / "python3", "", headers=compiler))
        for name in (
            "Makefile",
            "pyproject.toml",
            "tools/setup.sh",
            "tools/build_progress.py",
            "tools/requirements.lock",
        ):
            self.copy(name)
        for path in [*(ROOT / "tools").glob("requirements*.txt"), ROOT / "tools/site/requirements.txt"]:
            self.copy(path.relative_to(ROOT))
        self.copy("tools/release/prebuilt.py")
        for name in ("cmake", "include", "src", "python"):
            (self.root / name).mkdir()
        (self.root / "CMakeLists.txt").touch()
        (self.root / ".venv/bin").mkdir(parents=True)
        self.python(self.root / ".venv/bin/python", root / "installed")

    def copy(self, name):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, self.root / name)

    def python(self, path, installed, headers=True):
        path.write_text(f"""#!/bin/bash
echo "$*" >>{self.log}
here() {{ exec env PYTHONPATH={installed} {sys.executable} "$@"; }}
case "$*" in
    *build_progress.py*" wheel "*)
        folder=${{@: -2:1}}
        mkdir -p $folder && echo made of $(cat CMakeLists.txt) >$folder/{BUILT}
        [ ! -e saved_meanwhile ] || {{ mv saved_meanwhile CMakeLists.txt && touch CMakeLists.txt; }} ;;
    *prebuilt.py*) here "$@" ;;
    *" install "*.whl)
        sum=$(sha256sum <"${{@: -1}}")
        mkdir -p {installed}/robocache-0.1.0.dist-info && cd {installed}/robocache-0.1.0.dist-info
        printf 'Metadata-Version: 2.1\\nName: robocache\\nVersion: 0.1.0\\n' >METADATA
        echo "{{\\"archive_info\\": {{\\"hash\\": \\"sha256=${{sum%% *}}\\"}}}}" >direct_url.json ;;
    -) exit {0 if headers else 1} ;;
    *platform*) echo "another Python" ;;
esac
""")
        path.chmod(0o755)
        return path

    def put(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def run(self, *command):
        """The exit code, all that was printed, and the words handed to Python."""
        self.log.write_text("")
        env = {"PATH": str(self.bin), "HOME": str(self.root)}
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr, self.log.read_text()


needs_make = pytest.mark.skipif(MAKE is None, reason="make is not here")


@needs_make
def test_a_prebuilt_wheel_needs_no_compiler_and_no_build_tools(tmp_path):
    checkout = Checkout(tmp_path, compiler=False)
    checkout.put(f"dist/release/{PREBUILT}", "prebuilt")
    code, printed, log = checkout.run("make", "picture")
    assert code == 0, printed
    assert f"--no-index dist/release/{PREBUILT}" in log
    assert "requirements-demo.txt" in log
    assert "requirements-build.txt" not in log
    build, demo = (
        re.findall(r"^[^#\n].*", (ROOT / f"tools/requirements-{x}.txt").read_text(), re.M) for x in ("build", "demo")
    )
    assert any(line.startswith("cmake") for line in build)
    assert not {"-r requirements-build.txt", *build} & {*demo}


@needs_make
def test_without_a_prebuilt_wheel_the_missing_compiler_is_named(tmp_path):
    code, printed, log = Checkout(tmp_path, compiler=False).run("make", "picture")
    assert code != 0
    assert "setup: these packages are missing: g++ python3-dev" in printed
    assert "build_progress.py" not in log


@pytest.mark.parametrize(
    ("purpose", "needs_compiler"), [("demo", False), ("policy", False), ("build", True), ("tests", True)]
)
def test_the_setup_needs_a_compiler_only_where_something_is_compiled(purpose, needs_compiler, tmp_path):
    checkout = Checkout(tmp_path, compiler=False)
    code, printed, _ = checkout.run("tools/setup.sh", ".venv", purpose)
    assert (code != 0) == needs_compiler, printed
    assert ("g++" in printed) == needs_compiler


@needs_make
def test_a_wheel_is_built_where_there_is_none_and_one_of_the_user_stays(tmp_path):
    checkout = Checkout(tmp_path, compiler=True)
    checkout.put(f"dist/{BUILT}", "of the user")
    code, printed, log = checkout.run("make", "picture")
    assert code == 0, printed
    assert "install --quiet --no-warn-script-location pip>=23.1 -r tools/requirements-build.txt" in log  # for -C
    assert (checkout.root / "dist" / BUILT).read_text() == "of the user"
    assert f"--no-index build/dist/{BUILT}" in log


@needs_make
def test_after_another_wheel_was_installed_that_of_the_checkout_is_installed_again(tmp_path):
    checkout = Checkout(tmp_path, compiler=True)
    (checkout.root / ".venv/.ready").touch()

    def installs():
        code, printed, log = checkout.run("make", "wheel")
        assert code == 0, printed
        return "build_progress.py" in log, f"--no-index build/dist/{BUILT}" in log

    assert installs() == (True, True)
    assert installs() == (False, False)
    checkout.put(f"dist/{PREBUILT}", "prebuilt")
    assert checkout.run("make", "picture")[0] == 0
    assert installs() == (False, True)
    checkout.put("CMakeLists.txt", "changed")
    checkout.put("saved_meanwhile", "changed while the wheel is built")
    assert installs() == (True, True)
    assert installs() == (True, True)
    assert installs() == (False, False)
