"""What is shipped: the installed native files, the wheel, and what importing them pulls in."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
import robocache

PACKAGE = pathlib.Path(robocache.__file__).parent
REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
NATIVE = sorted(PACKAGE.rglob("*.so*"))
SYSTEM_LIBRARIES = (
    "libstdc++.so",
    "libc.so",
    "libm.so",
    "libgcc_s.so",
    "libpthread.so",
    "ld-linux",
    "libdl.so",
    "librt.so",
)


def tool(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_package_under_test_is_installed_and_not_the_source_tree():
    assert REPOSITORY / "python" not in PACKAGE.parents
    assert "site-packages" in PACKAGE.parts


def test_the_package_has_a_native_module():
    assert [path for path in NATIVE if path.name.startswith("_core.")], os.listdir(PACKAGE)


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: p.name)
def test_no_symbol_of_pytorch_or_pybind_is_in_a_native_file(path):
    mangled = tool("nm", "-D", str(path))
    demangled = tool("nm", "-D", "-C", str(path))
    assert "PyInit_" in mangled or "PyModuleDef_Init" in mangled  # nm did read the file
    foreign = [
        line for line in demangled.splitlines() if re.search(r"\bat::|\bc10::|\btorch|\bpybind11|\bcaffe2", line)
    ]
    foreign += [line for line in mangled.splitlines() if re.search(r"2at\d|N2at|3c10|5torch|8pybind11|aoti_|THP", line)]
    assert not foreign


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: p.name)
def test_a_native_file_needs_nothing_but_the_system(path):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", str(path)))
    assert needed
    assert [name for name in needed if not name.startswith(SYSTEM_LIBRARIES)] == []
    assert "(RUNPATH)" not in tool("readelf", "-d", str(path))


def wheel():
    """The wheel the tests were installed from: ROBOCACHE_WHEEL, or the newest one in dist/."""
    if "ROBOCACHE_WHEEL" in os.environ:
        return pathlib.Path(os.environ["ROBOCACHE_WHEEL"])
    wheels = sorted((REPOSITORY / "dist").glob("robocache-*.whl"), key=lambda path: path.stat().st_mtime)
    assert wheels, "no wheel in dist/ and no ROBOCACHE_WHEEL"
    return wheels[-1]


def test_the_wheel_contains_the_native_module_and_the_marker_of_types():
    names = zipfile.ZipFile(wheel()).namelist()
    assert [name for name in names if re.fullmatch(r"robocache/_core\..*so", name)]
    assert "robocache/py.typed" in names
    assert "robocache/__init__.py" in names
    assert [name for name in names if name.endswith("LICENSE")]
    strange = [
        n for n in names if not re.fullmatch(r"robocache(-[^/]*dist-info)?/.*", n) or n.endswith((".cpp", ".o", ".pyc"))
    ]
    assert strange == []


def test_what_is_installed_is_what_the_wheel_contains():
    with zipfile.ZipFile(wheel()) as archive:
        for name in archive.namelist():
            if name.startswith("robocache/"):
                assert (PACKAGE.parent / name).read_bytes() == archive.read(name), name


def test_importing_robocache_imports_no_framework():
    code = "import sys, robocache; print([m for m in ('torch', 'jax', 'scipy', 'ml_dtypes') if m in sys.modules])"
    assert tool(sys.executable, "-c", code) == "[]\n"


def test_a_call_with_numpy_imports_no_framework():
    code = (
        "import sys, numpy as np, robocache; t = np.arange(3.0); robocache.resample_trajectories(t, t, t);"
        "robocache.check_installation(); print([m for m in ('torch', 'jax') if m in sys.modules])"
    )
    assert tool(sys.executable, "-c", code) == "[]\n"


def test_the_version_is_that_of_pyproject():
    written = re.search(r'^version = "(.*)"$', (REPOSITORY / "pyproject.toml").read_text(), re.M)[1]
    assert robocache.__version__ == importlib.metadata.version("robocache") == written


def test_the_public_names_are_those_of_the_design():
    names = (
        "align resample_trajectories fuse_multimodal check_installation print_installation_info self_test __version__"
    )
    assert {*names.split(), "Stream", "Aligned", "FormatError", "set_num_threads", "num_threads"} <= set(
        robocache.__all__
    )
    assert all(hasattr(robocache, name) for name in robocache.__all__)
