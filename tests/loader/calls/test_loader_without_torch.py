"""Loaders of NumPy and JAX arrays in a process that cannot import PyTorch: the same bits as the tensors of another."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import framework_cases
import pytest

pytest.importorskip("ml_dtypes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("without_torch")


@pytest.fixture(scope="module")
def without_torch(folder):
    """Runs Python in a process where ``import torch`` fails, as where it is not installed."""
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    environment = {**os.environ, "PYTHONPATH": str(blocked), "ROBOCACHE_HOME": str(folder / "home of the other")}

    def call(*words):
        done = subprocess.run(
            [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture(scope="module")
def tensors(folder):
    """The batches of PyTorch, by case."""
    framework_cases.make_caches(folder / "caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBOCACHE_HOME", str(folder / "home"))
        (folder / "home").mkdir()
        return framework_cases.run(folder / "caches", "torch")


@pytest.fixture(scope="module", params=["numpy", "jax"])
def arrays(request, folder, tensors, without_torch):
    if request.param == "jax":
        pytest.importorskip("jax")
    (folder / "home of the other").mkdir(exist_ok=True)
    file = folder / f"{request.param}.pickle"
    without_torch(Path(framework_cases.__file__), folder / "caches", request.param, file)
    return pickle.loads(file.read_bytes())


@pytest.mark.parametrize("case", framework_cases.CASES)
def test_every_batch_has_the_bits_of_the_tensors(case, tensors, arrays):
    assert len(arrays[case]) == len(tensors[case]) > 0
    for found, expected in zip(arrays[case], tensors[case], strict=True):
        assert found.keys() == expected.keys()
        for name in expected:
            assert found[name] == expected[name], name


NUMPY_ALONE = """
import sys, tempfile
import numpy as np
sys.modules["ml_dtypes"] = None
import robocache
from robocache import CacheWriter, Episode, EpisodeStream, Feature, Loader, StreamSpec, Window

specs = {"arm": StreamSpec("arm", "float32", (2,)), "half": StreamSpec("half", "bfloat16", (2,))}
times = np.arange(30) * 10**7
rows = {"arm": np.arange(60, dtype=np.float32).reshape(30, 2), "half": np.zeros((30, 2), np.uint16)}
writer = CacheWriter(tempfile.mkdtemp() + "/c", specs)
writer.add(Episode(0, {name: EpisodeStream(spec, rows[name], times) for name, spec in specs.items()}))
cache = writer.commit()
loader = Loader(cache, 4, {"arm": Window()}, shuffle=False, framework="numpy")
assert loader.device == "cpu"
for batch in loader:
    print(*batch["arm"][:, 0, 0].astype(int))

def refused(call):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("nothing")

refused(lambda: Loader(cache, 4, {"arm": Window()}))
refused(loader.as_dataset)
refused(lambda: Loader(cache, 4, {"arm": Window()}, framework="numpy", device="cuda"))
refused(lambda: Loader(cache, 4, {"arm": Window()}, framework="numpy", tier="gpu"))
refused(lambda: Loader(cache, 4, {"half": Window()}, framework="numpy"))
refused(lambda: Loader(cache, 4, {"arm": Window()}, framework="numpy", dtype="bfloat16"))
"""
NEEDS_BFLOAT16 = (
    "ImportError: Loader: dtype 'bfloat16' of NumPy arrays needs the package ml_dtypes: pip install ml_dtypes; or take "
    "framework='torch', which has this dtype itself"
)


def test_numpy_alone_is_enough_and_the_rest_is_refused_in_one_line(without_torch):
    lines = without_torch("-c", NUMPY_ALONE).splitlines()
    assert lines[:7] == [" ".join(str(2 * i) for i in range(first, first + 4)) for first in range(0, 28, 4)]
    assert lines[7:11] == [
        "ImportError: Loader: framework 'torch' needs PyTorch, which is not installed: take framework='numpy' (or "
        "'jax'), or pip install 'robocache[torch]'",
        "ImportError: Loader.as_dataset: needs PyTorch, whose dataset it makes, and which is not installed: iterate "
        "over the Loader itself, or pip install 'robocache[torch]'",
        "ValueError: Loader: device must be 'cpu' for framework 'numpy', got 'cuda'; take framework='torch'",
        "ValueError: Loader: tier 'gpu' needs device 'cuda', got 'cpu'",
    ]
    assert lines[11:] == [NEEDS_BFLOAT16] * 2
