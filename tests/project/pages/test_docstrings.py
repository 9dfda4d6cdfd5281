"""Every public name has a docstring; arrays have their shapes in it; the examples of all docstrings run."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import robocache

pytest.importorskip("torch")

PUBLIC = {f"robocache.{name}": getattr(robocache, name) for name in robocache.__all__ if name != "__version__"}
for module in ("lerobot", "datasets.diffusion_policy", "datasets.robomimic"):
    loaded = importlib.import_module(f"robocache.{module}")
    own = [name for name, x in vars(loaded).items() if inspect.isclass(x) and x.__module__ == loaded.__name__]
    PUBLIC |= {f"robocache.{module}.{name}": getattr(loaded, name) for name in getattr(loaded, "__all__", own)}

WITH_ARRAYS = {
    *("Aligned", "EpisodeStream", "Feature", "Image", "Loader", "PictureIndex", "SparseVoxels", "Stream", "StreamSpec"),
    *("VoxelInfo", "Voxels", "Window", "align", "decode_images", "fuse_multimodal", "resample_trajectories"),
    *("voxelize_depth", "voxelize_pointcloud", "voxelize_sparse", "lerobot.LeRobotDataset"),
    *("datasets.diffusion_policy.SequenceSampler", "datasets.robomimic.SequenceDataset"),
}
WITHOUT = {
    *("Cache", "CacheWriter", "CenterCrop", "ColorJitter", "Episode", "Exported", "FormatError", "LeftOut", "Mixture"),
    *("Order", "RandomCrop", "Report", "Source", "What", "Where", "check", "check_installation", "export", "ingest"),
    *("index_pictures", "load_inverse", "num_threads", "open", "print_installation_info", "self_test"),
    *("set_num_threads", "view"),
    *("lerobot.FrameTimestampError", "lerobot.LeRobotDatasetMetadata"),
}
"""Names whose arguments and results are no arrays, or arrays that another name describes."""
SHAPE = re.compile(r"\((?:[A-Z]|[a-z_]+|\d),(?: [\w.]+,?)*\)|\(rows, |\(\[B,?\]")

MODULES = [
    "robocache",
    *(m.name for m in pkgutil.walk_packages(robocache.__path__, "robocache.") if "_core" not in m.name),
]


def members(thing):
    """Public methods and properties that a class defines."""
    for name, x in vars(thing).items() if inspect.isclass(thing) else ():
        x = getattr(x, "__func__", x)
        described = inspect.isfunction(x) or isinstance(x, property) or type(x).__name__ == "cached_property"
        if described and not name.startswith("_"):
            yield name, x


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_with_an_example(name):
    thing = PUBLIC[name]
    assert inspect.getdoc(thing)
    assert thing.__doc__ != getattr(thing.__mro__[1], "__doc__", None) if inspect.isclass(thing) else True
    assert doctest.DocTestParser().get_examples(inspect.getdoc(thing)), f"{name} has no example"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_method_and_property_has_a_docstring(name):
    assert [member for member, x in members(PUBLIC[name]) if not inspect.getdoc(x)] == []


@pytest.mark.parametrize("name", ["FormatError", "num_threads", "set_num_threads"])
def test_the_examples_of_names_made_in_c_run(name):
    runner = doctest.DocTestRunner()
    text = inspect.getdoc(PUBLIC[f"robocache.{name}"])
    runner.run(doctest.DocTestParser().get_doctest(text, {}, name, None, None))
    assert runner.summarize(verbose=False).failed == 0


def test_whatever_has_arrays_states_their_shapes():
    described = {name.removeprefix("robocache.") for name in PUBLIC}
    assert described == WITH_ARRAYS | WITHOUT
    text = {name: inspect.getdoc(PUBLIC[f"robocache.{name}"]).split(">>>")[0] for name in WITH_ARRAYS}
    assert sorted(name for name in text if not SHAPE.search(text[name])) == []
