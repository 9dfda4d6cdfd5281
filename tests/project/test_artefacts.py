"""What is shipped: the installed native files, the wheel, and what importing them pulls in."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

import pytest
import robocache
from paths import ROOT

PACKAGE = pathlib.Path(robocache.__file__).parent
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
    assert ROOT / "python" not in PACKAGE.parents
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


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: p.name)
def test_a_native_file_exports_its_entry_and_nothing_else(path):
    defined = tool("nm", "-D", "--defined-only", str(path)).splitlines()
    assert [line.split()[-1] for line in defined] == ["PyInit__core"]


# ---- hardening (cmake/hardening.cmake) -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: p.name)
def test_tables_of_addresses_are_read_only_and_the_stack_is_not_executable(path):
    dynamic, segments = tool("readelf", "-dW", str(path)), tool("readelf", "-lW", str(path))
    assert "BIND_NOW" in dynamic
    assert "GNU_RELRO" in segments
    (stack,) = re.findall(r"GNU_STACK .* (R\S*) +0x", segments)
    assert stack == "RW"


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: p.name)
def test_the_stack_is_protected_and_copies_are_checked(path):
    symbols = tool("nm", "-D", "--undefined-only", str(path))
    assert "__stack_chk_fail" in symbols
    assert re.search(r"__\w*(mem|str|print)\w*_chk", symbols), "nothing was compiled with _FORTIFY_SOURCE"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="landing pads of CET are of x86-64")
@pytest.mark.parametrize("path", NATIVE, ids=lambda p: p.name)
def test_indirect_calls_land_on_landing_pads(path):
    code = path.read_bytes()
    endbr64 = b"\xf3\x0f\x1e\xfa"
    assert code.count(endbr64) > 500, "not compiled with -fcf-protection"


def wheel():
    """The wheel the tests were installed from: ROBOCACHE_WHEEL, or the one that `make wheel` built."""
    if "ROBOCACHE_WHEEL" in os.environ:
        return pathlib.Path(os.environ["ROBOCACHE_WHEEL"])
    wheels = sorted((ROOT / "build/dist").glob("robocache-*.whl"), key=lambda path: path.stat().st_mtime)
    assert wheels, "no wheel in build/dist and no ROBOCACHE_WHEEL"
    return wheels[-1]


def test_the_wheel_contains_the_native_module_and_the_marker_of_types():
    names = zipfile.ZipFile(wheel()).namelist()
    assert [name for name in names if re.fullmatch(r"robocache/_core\..*so", name)]
    assert "robocache/py.typed" in names
    assert "robocache/__init__.py" in names
    assert [name for name in names if name.endswith("LICENSE")]
    (notices,) = [name for name in names if name.endswith("THIRD_PARTY_NOTICES.md")]
    text = zipfile.ZipFile(wheel()).read(notices).decode()
    for part in ("nanobind", "Wenzel Jakob", "robin-map", "tessil", "CUB", "Thrust", "libcu++", "cudart"):
        assert part in text, part
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
    written = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert robocache.__version__ == importlib.metadata.version("robocache") == written


def test_the_public_names_are_those_of_the_design():
    names = (
        "align resample_trajectories fuse_multimodal check_installation print_installation_info self_test __version__"
    )
    loader = {"Loader", "Mixture", "Order", "Voxels", "What", "Where", "Window"}
    assert {*names.split(), *loader, "Stream", "Aligned", "FormatError", "set_num_threads", "num_threads"} <= set(
        robocache.__all__
    )
    assert all(hasattr(robocache, name) for name in robocache.__all__)


# ---- versions --------------------------------------------------------------------------------------------------------


def floor_of(line):
    """``"pillow>=12.3"`` as ("pillow", (12, 3))."""
    name, _, number = re.split(r"(>=|==)", line.split(";")[0].strip(), maxsplit=1)
    return name.strip(), tuple(int(part) for part in number.split(",")[0].split("."))


def test_no_extra_allows_a_version_with_known_faults():
    """The lowest versions that the issue of security asks for; pyproject.toml has the reasons and may be stricter."""
    lowest = {"h5py": (3, 12), "pillow": (10, 3), "av": (13,), "torch": (2, 6), "lz4": (4,), "pyarrow": (14, 0, 1)}
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer have it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen = set()
    for lines in project["optional-dependencies"].values():
        for line in lines:
            if line.startswith("robocache["):
                continue
            name, version = floor_of(line)
            assert version >= lowest.get(name, (0,)), line
            seen.add(name)
    assert lowest.keys() <= seen


def test_the_lock_has_a_hash_for_every_package_and_fits_the_requirements():
    tools = ROOT / "tools"
    text = (tools / "requirements.lock").read_text()
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.M))
    entries = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert len(pins) == len(entries) > 50
    assert "torch" not in pins
    for file in ("requirements.txt", "requirements-build.txt"):
        for line in (tools / file).read_text().splitlines():
            if line and not line.startswith(("#", "-r", "torch==")):
                name = re.split(r"[><=; ]", line)[0].lower().replace("_", "-")
                assert name in pins, f"run make lock: {name} is in {file} and not in the lock"
                if ">=" in line or "==" in line:
                    locked = tuple(int(part) for part in re.findall(r"\d+", pins[name])[:3])
                    assert locked >= floor_of(line)[1], line


def test_no_file_of_the_setup_names_a_registry():
    for path in [*(ROOT / "tools").iterdir(), ROOT / "Makefile", ROOT / "pyproject.toml"]:
        if path.is_file():
            assert not re.search(r"https?://|--(extra-)?index-url|--find-links", path.read_text()), path
