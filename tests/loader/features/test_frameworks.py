"""``framework=``: the same bits as torch tensors, NumPy arrays and JAX arrays, and 64 bits that JAX must not narrow."""

import pickle

import numpy as np
import pytest
import robocache
import torch
from feature_cases import make_cache
from robocache import Feature, Image, Loader, Where


def lengths(texts):
    return [[len(text), 7] for text in texts]


def x64(is_on):
    """JAX's context manager, whose place depends on the version."""
    jax = pytest.importorskip("jax")
    return jax.enable_x64(is_on) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(is_on)


FEATURES = {
    "state": Feature(["left", "right"], past=0.04, rate_hz=50, normalize="mean_std"),
    "action": Feature("tcp", steps=range(4), rate_hz=50, relative_to="anchor", rotation="6d", normalize="min_max"),
    "now": Feature("left"),
    "half": Feature("left", past=0.02, rate_hz=50, dtype="bfloat16"),
    "grip": Feature("grip", past=0.02, rate_hz=50),
    "count": Feature("count"),
    "cam": Feature("cam", image=Image(layout="CHW", dtype="float32", flip=0.5)),
    "say": Feature("say"),
    "ids": Feature("say", tokenizer=lengths),
    "task": Feature("task"),
}
WIDE = {"grip", "ids", "source_index", "episode_index", "anchor_ns"}
"""Of 64 bits."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frameworks")
    return robocache.ingest(make_cache(folder / "pixels").path, folder / "jpeg", images="jpeg")


def loader_of(cache, framework, **options):
    return Loader(cache, 16, features=FEATURES, seed=3, return_index=True, framework=framework, **options)


def require_equal(found, expected):
    """Arrays of any framework against tensors, bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if isinstance(tensor, list):
            assert found[name] == tensor, name
            continue
        array = np.asarray(found[name])
        assert array.dtype.name == str(tensor.dtype).removeprefix("torch."), name
        assert array.shape == tuple(tensor.shape), name
        bits = tensor.contiguous().view(torch.uint8) if tensor.dtype != torch.bool else tensor
        assert np.ascontiguousarray(array).tobytes() == bits.numpy().tobytes(), name


@pytest.mark.parametrize("framework", ["numpy", "jax"])
@pytest.mark.parametrize("tier", ["memory", "mmap"])
def test_every_entry_has_the_bits_of_the_tensors_after_a_resume_too(cache, framework, tier):
    pytest.importorskip("ml_dtypes")
    if framework == "jax":
        pytest.importorskip("jax")
    loader, tensors = (loader_of(cache, x, tier=tier) for x in (framework, "torch"))
    seen = []
    for found, expected in zip(loader, tensors, strict=True):
        require_equal(found, expected)
        seen.append((found, loader.state_dict()))
    resumed = loader_of(cache, framework, tier=tier)
    resumed.load_state_dict(seen[2][1])
    require_equal(next(iter(resumed)), tensors.batch(3, 0))
    assert pickle.loads(pickle.dumps(loader)).where.framework == framework
    require_equal(loader.dataset[[5, 0]], tensors.dataset[[5, 0]])


def test_numpy_batches_have_numpy_arrays_alone(cache):
    loader = loader_of(cache, "numpy")
    arrays = {name: x for name, x in loader.batch(0).items() if name not in ("say", "task")}
    assert {type(x) for x in arrays.values()} == {np.ndarray}
    windows = Loader(cache, 4, {"left": robocache.Window()}, normalize="mean_std", framework="numpy")
    assert {type(x) for x in windows.scale_of("left")} == {np.ndarray}


def test_jax_takes_the_memory_of_a_batch_without_a_copy(cache):
    jax = pytest.importorskip("jax")
    pytest.importorskip("ml_dtypes")
    batch = loader_of(cache, "numpy").batch(0)
    copied = {"say", "task", "ids_mask"} | WIDE
    assert copied < batch.keys()
    for name in batch.keys() - copied:
        taken = jax.dlpack.from_dlpack(robocache._core.Exported(batch[name]))
        assert taken.unsafe_buffer_pointer() == batch[name].ctypes.data, name


def test_without_x64_entries_of_64_bits_stay_numpy_and_keep_every_bit(cache):
    jax = pytest.importorskip("jax")
    loader = loader_of(cache, "jax")
    with x64(False):
        batch = loader.batch(0)
    arrays = {name: x for name, x in batch.items() if name not in ("say", "task")}
    assert {name for name, x in arrays.items() if not isinstance(x, jax.Array)} == WIDE
    assert batch["anchor_ns"].dtype == np.int64
    assert batch["anchor_ns"].min() > 2**31
    with x64(True):
        wide = loader.batch(0)
        assert all(isinstance(wide[name], jax.Array) and wide[name].dtype.itemsize == 8 for name in WIDE)
        assert np.array_equal(np.asarray(wide["anchor_ns"]), batch["anchor_ns"])


@pytest.mark.parametrize("framework", ["torch", "numpy", "jax"])
def test_a_transform_gets_arrays_of_the_framework(cache, framework):
    kind = {"torch": torch.Tensor, "numpy": np.ndarray}.get(framework) or pytest.importorskip("jax").Array
    seen = []
    features = {"left": Feature("left", transform=lambda x: seen.append(type(x)) or x + 1)}
    loader = Loader(cache, 4, features=features, framework=framework)
    assert isinstance(loader.batch(0)["left"], kind)
    assert issubclass(seen[0], kind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"framework": "nunpy"}, "framework must be one of torch, numpy, jax, got 'nunpy'.*did you mean 'numpy'"),
        ({"framework": "numpy", "device": "cuda"}, "device must be 'cpu' for framework 'numpy', got 'cuda'"),
        ({"framework": "jax", "device": "cuda:1"}, "must be 'cpu' for framework 'jax', got 'cuda:1'.*from_dlpack"),
    ],
)
def test_bad_frameworks_get_one_clear_line(options, message):
    with pytest.raises(ValueError, match=message):
        Where(**options)
