"""The code of every page runs as it stands, from top to bottom, on small recordings; C++ compiles.

A block that runs nowhere is in ``NOT_RUN``, with the reason. A new page, or a block in another language, fails until it
is run or listed.
"""

import contextlib
import importlib.util
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import page_recordings as recordings
import pytest
import robocache
from page_blocks import PAGES, blocks
from page_recordings import vectors
from paths import ROOT
from robocache import StreamSpec, _core

torch = pytest.importorskip("torch")

OPTIONAL = {"pytorch_lightning", "accelerate"}
"""Packages whose block of a page is left out where they are not installed."""
LICENSES = {("THIRD_PARTY_NOTICES.md", "")}
NOT_RUN = {
    ("docs/loader.md", 'step = torch.zeros((), dtype=torch.int64, device="cuda")'): (
        "a CUDA graph needs a GPU; tests/loader/batches/test_cuda_loader.py captures loader.batch_at"
    ),
}
"""``(page, first line of the block): reason``."""


@dataclass(frozen=True)
class Page:
    """What a page needs: ``make`` writes its recordings and returns the names that it takes for granted."""

    make: Callable[[], dict[str, Any] | None] = dict
    check: Callable[[dict[str, Any], str], None] = lambda names, printed: None
    packages: tuple[str, ...] = ()
    prints_comments: bool = False
    """Every ``print`` has a comment that begins with what is printed."""
    instead: tuple[tuple[str, str], ...] = ()
    """Text of the page, and what runs instead of it."""


# ---- what each page needs, and what must be true after it ------------------------------------------------------------
ON_CPU = () if torch.cuda.is_available() else (('device="cuda"', 'device="cpu"'),)
DATASET = (("/data/my_dataset", "my_dataset"),)
WINDOWS = vectors(state=(7, 50), action=(7, 20))


def make_readme():
    recordings.dataset("dataset", vectors(**{"observation.state": (7, 20), "action": (7, 20)}), seconds=5)


def check_manifest(names, printed):
    assert Path("runs.cache/manifest.json").exists()


def make_cache_folder():
    recordings.cache(".", vectors(state=(3, 10)), 1, 1)
    return {"crc32c": importlib.import_module("google_crc32c").value}


def make_dataset():
    recordings.dataset("my_dataset", vectors(state=(7, 20), arm=(6, 20), force=(3, 20)))
    return {"path": "my_dataset"}


def make_formats():
    recordings.cache("cache", vectors(arm=(6, 50), force=(3, 200)), 2, 2)
    return make_dataset()


def check_formats(names, printed):
    assert names["stream"].times.dtype == np.int64
    assert set(robocache.open("out").specs) == {"observation.state", "observation.force"}


def make_features():
    specs = vectors(**{"left/position": (7, 50), "right/position": (7, 50), "tcp/pose": (7, 20)})
    specs["tcp/pose"] = replace(specs["tcp/pose"], method=[(3, 7, "slerp_xyzw")])
    recordings.cache("runs.cache", specs)
    recordings.cache("evaluation.cache", specs, 1)
    Path("checkpoint").mkdir()
    return {
        "policy": lambda batch: batch["action"],
        "current_pose": torch.tensor([0.1, 0.2, 0.3, 0, 0, 0, 1.0]),
        "times": np.array([0, 10**9]),
        "tokenizer": lambda texts: [[len(word) for word in text.split()] for text in texts],
    }


def check_features(names, printed):
    batch = names["batch"]
    assert batch["observation.state"].shape == (64, 3, 14)
    assert batch["action"].shape == (64, 16, 9)
    assert batch["action_is_pad"].shape == (64, 16)
    assert batch["task"] == ["reach"] * 64
    anchors = names["current_pose"].expand(64, 7)
    assert names["command_of"](batch["action"], anchor=anchors).shape == (64, 16, 7)


def check_writer(names, printed):
    assert "pour the tea (1000, 7) so101" in printed
    assert "torch.Size([16, 11, 7]) torch.Size([16, 1, 96, 128, 3])" in printed
    caches = {path.name: robocache.Cache(path) for path in Path().iterdir() if path.suffix == ".cache"}
    assert {name: len(cache) for name, cache in caches.items()} == {"tea.cache": 5, "long.cache": 6, "small.cache": 6}
    assert caches["small.cache"].specs["arm"].dtype == "bfloat16"
    assert caches["small.cache"].specs["wrist"].shape == (48, 64, 3)
    lidar = [one.streams["lidar"].values for one in (caches["long.cache"].episode(5), names["record"](5))]
    np.testing.assert_array_equal(*lidar)


def make_pusht():
    recordings.dataset("lerobot_home/lerobot/pusht", {
        **vectors(**{"observation.state": (2, 10), "action": (2, 10)}),
        "observation.image": StreamSpec("observation.image", "uint8", (24, 32, 3), "image", rate_hz=10),
    }, 3)  # fmt: skip


def check_pusht(names, printed):
    item, batch = names["item"], next(iter(names["loader"]))
    assert item["action"].shape == (16, 2)
    assert item["action_is_pad"].shape == (16,)
    assert batch["action"].shape == (64, 16, 2)
    assert batch["task"] == ["reach"] * 64


def check_training(names, printed):
    with torch.no_grad():
        untrained = [names["loss_of"](names["Policy"]().to(names["device"]), x) for x in names["validation"]]
    assert names["held"] < 0.8 * torch.stack(untrained).mean()
    assert names["command"].shape[1:] == (16, 7)
    assert Path("run.json").stat().st_size <= 1024


def make_camera():
    camera = StreamSpec("camera", "uint8", (8, 8, 3), "image", rate_hz=30)
    recordings.cache("runs.cache", {**WINDOWS, "camera": camera}, 4, 2)


def check_pictures(names, printed):
    batch = next(iter(names["loader"]))
    assert batch["/wrist/image/compressed"].shape == (64, 2, 3, 224, 224)
    assert batch["/wrist/image/compressed"].dtype == torch.bfloat16


def make_jax():
    if _core.xla_ffi_version is None:
        pytest.skip("built without the headers of jaxlib")


def make_cells():
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32))
    cells = robocache.voxelize_sparse(points, features=points, voxel_size=0.5)
    sparse = lambda features, coordinates, *more: (features, coordinates, *more)  # noqa: E731
    return {
        "v": cells, "grid_size": (8, 8, 8), "batch_size": 1, "spconv": SimpleNamespace(SparseConvTensor=sparse),
        "ME": SimpleNamespace(SparseTensor=sparse),
        "torchsparse": SimpleNamespace(SparseTensor=lambda feats, coords: (feats, coords)),
    }  # fmt: skip


def tutorial(page, *packages):
    return Page(lambda: recordings.made_by_the_page(page), check_manifest, packages)


RUN = {
    "README.md": Page(make_readme, check_manifest, ("pyarrow",), prints_comments=True),
    "docs/cache.md": Page(make_cache_folder, packages=("google_crc32c",)),
    "docs/check.md": Page(make_dataset, packages=("pyarrow",), instead=DATASET),
    "docs/features.md": Page(make_features, check_features),
    "docs/formats.md": Page(make_formats, check_formats, ("pyarrow",), instead=DATASET),
    "docs/guides/cache_writer.md": Page(check=check_writer),
    "docs/guides/jax.md": Page(make_jax, packages=("jax",), prints_comments=True),
    "docs/guides/lerobot.md": Page(make_pusht, check_pusht, ("pyarrow", "PIL"), instead=ON_CPU),
    "docs/guides/training.md": Page(lambda: recordings.cache("runs.cache", WINDOWS, 12) and None, check_training),
    "docs/loader.md": Page(make_camera),
    "docs/pixels.md": Page(lambda: recordings.camera_logs("logs"), check_pictures, ("mcap_ros2", "PIL"),
                           instead=ON_CPU),
    "docs/tutorials/arrays.md": Page(check=check_manifest),
    "docs/tutorials/lerobot.md": tutorial("docs/tutorials/lerobot.md", "pyarrow", "PIL"),
    "docs/tutorials/ros_bags.md": tutorial("docs/tutorials/ros_bags.md", "mcap_ros2"),
    "docs/voxelize.md": Page(make_cells),
}  # fmt: skip
"""Stand-ins run in place of spconv, MinkowskiEngine and torchsparse, which need a GPU to be built."""


# ---- Python ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory; homes of caches and datasets in it; the surroundings of torchrun."""
    monkeypatch.chdir(tmp_path)
    for name in ("ROBOCACHE_HOME", "HF_LEROBOT_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.removeprefix("HF_").lower()))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def missing(code):
    """Packages that a block imports and that are not here."""
    return {name for name in re.findall(r"^import (\w+)", code, re.MULTILINE) if importlib.util.find_spec(name) is None}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, folder):
    needs = RUN[page]
    for package in needs.packages:
        pytest.importorskip(package)
    names = {"__name__": "page", **(needs.make() or {})}
    printed = io.StringIO()
    for block in blocks(page, "python"):
        if (page, block.first) in NOT_RUN or missing(block.code) & OPTIONAL:
            continue
        code = block.code
        for text, other in needs.instead:
            code = code.replace(text, other)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile("\n" * (block.line - 1) + code, str(ROOT / page), "exec"), names)
        if needs.prints_comments:
            expected = re.findall(r"^print\(.*\)\s+# (.*)$", block.code, re.MULTILINE)
            lines = shown.getvalue().splitlines()
            assert len(expected) == len(lines)
            assert all(comment.startswith(line) for comment, line in zip(expected, lines, strict=True))
        printed.write(shown.getvalue())
    needs.check(names, printed.getvalue())


# ---- C++ and CMake ---------------------------------------------------------------------------------------------------
PARAMETERS = {
    "docs/align.md": "std::span<const StreamView> streams, const Query& query, void* values, cudaStream_t stream",
    "docs/voxelize.md": "PointsView points, VoxelGrid grid, void* counts, void* workspace, cudaStream_t stream",
}
"""The names that the C++ of a page takes for granted."""


def test_the_cpp_of_a_page_compiles(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = (
        "#include <robocache/robocache.hpp>\nusing namespace robocache;\nusing cudaStream_t = struct CUstream_st*;\n"
    )
    for page, parameters in PARAMETERS.items():
        for block in blocks(page, "cpp"):
            program += f'void lines_{block.line}({parameters}) {{\n#line {block.line} "{page}"\n{block.code}}}\n'
    (tmp_path / "pages.cpp").write_text(program)
    command = [compiler, "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", "-I", str(ROOT / "include")]
    done = subprocess.run([*command, str(tmp_path / "pages.cpp")], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_every_option_of_cpp_can_be_set_alone_without_a_warning(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = "#include <robocache/robocache.hpp>\nusing namespace robocache;\n"
    for header in sorted((ROOT / "include/robocache").glob("*.hpp")):
        for name, body in re.findall(r"^struct (\w+Options) {\n(.*?)^};", header.read_text(), re.M | re.S):
            for field in re.findall(r"^    [\w:<>, ]+? (\w+)(?: = [^;]*|{[^;]*})?;", re.sub("//.*", "", body), re.M):
                program += f"const {name} {name}_{field}{{.{field} = {{}}}};\n"
    program += 'const CacheStream stream{.name = "arm"};\nconst CacheRows rows{.values = {}, .times = {}};\n'
    assert program.count("CacheWriterOptions") > 5
    assert program.count("DecodeOptions") > 5
    (tmp_path / "options.cpp").write_text(program)
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-Wno-unused", "-fsyntax-only"]
    done = subprocess.run(
        [*command, "-I", str(ROOT / "include"), str(tmp_path / "options.cpp")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_code_of_the_control_loop_is_that_of_the_program_that_the_installation_test_runs():
    program = (ROOT / "examples/cpp/control_loop.cpp").read_text()
    code = blocks("docs/tutorials/control_loop.md", "cpp")
    assert len(code) == 3
    for block in code:
        assert block.code in program
    assert "/example/control_loop)" in (ROOT / "tests/cpp/install_test.cmake").read_text()


def test_the_cmake_of_the_readme_is_that_of_the_examples():
    (block,) = blocks("README.md", "cmake")
    example = (ROOT / "examples/cpp/CMakeLists.txt").read_text()
    for line in block.code.splitlines():
        assert line.partition("#")[0].strip().replace("your_program", "${example}") in example


# ---- nothing is left out ---------------------------------------------------------------------------------------------
def test_every_block_of_every_page_is_run_or_listed():
    checked = {("docs/tutorials/control_loop.md", "cpp"), ("README.md", "cmake")}
    checked |= {(page, "python") for page in RUN} | {(page, "cpp") for page in PARAMETERS}
    found = {(block.page, block.language) for page in PAGES for block in blocks(page)} - LICENSES
    assert found - checked == set(), "run it here, or list it with the reason"
    assert checked - found == {("docs/tutorials/control_loop.md", "cpp")} - found
    assert len(PAGES) > 40


def test_blocks_that_are_not_run_are_still_there():
    assert set(NOT_RUN) <= {(block.page, block.first) for page in PAGES for block in blocks(page)}


def test_ingest_to_loader_is_on_the_first_screen_of_the_readme():
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])
    assert head.index("robocache.ingest(") < head.index("robocache.Loader(") < head.index("for batch in loader")


def test_every_tutorial_is_run_and_listed():
    pages = {page for page in PAGES if page.startswith("docs/tutorials/")} - {"docs/tutorials/index.md"}
    assert pages == {page for page in RUN if "tutorials" in page} | {"docs/tutorials/control_loop.md"}
    index = (ROOT / "docs/tutorials/index.md").read_text()
    assert all(f"]({Path(page).name})" in index for page in pages)
