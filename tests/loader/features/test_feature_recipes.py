"""The recipes of docs/features.md, executed as they are written there."""

import re

import numpy as np
import pytest
import robocache
import torch
from paths import ROOT
from robocache import Feature, Loader
from robocache.cache.pictures import Pictures

SPECS = {
    "state": robocache.StreamSpec("state", "float32", (14,), rate_hz=50),
    "gripper": robocache.StreamSpec("gripper", "float32", (1,), rate_hz=50),
    "action": robocache.StreamSpec("action", "float64", (14,), rate_hz=50),
    "tcp": robocache.StreamSpec("tcp", "float32", (7,), rate_hz=50, method=[(3, 7, "slerp_xyzw")]),
    "img": robocache.StreamSpec("img", "uint8", (96, 96, 3), "image", rate_hz=50),
    "top": robocache.StreamSpec("top", "uint8", (48, 64, 3), "image", rate_hz=50, codec="jpeg"),
}
SHAPES = {
    "act": {"observation.state": (8, 14), "observation.images.top": (8, 3, 48, 64), "action": (8, 100, 14)},
    "diffusion_policy": {"obs": (8, 2, 15), "action": (8, 16, 14)},
    "pusht_image": {"image": (8, 2, 3, 84, 84), "agent_pos": (8, 2, 14), "action": (8, 16, 14)},
    "umi": {"pose": (8, 2, 9), "action": (8, 16, 9), "action.gripper": (8, 16, 1)},
    "vla": {
        "state": (8, 15),
        "actions": (8, 50, 14),
        "prompt": (8, 4),
        "prompt_mask": (8, 4),
        "image": (8, 3, 224, 224),
    },
    "robomimic": {"obs/state": (8, 10, 14), "actions": (8, 10, 14)},
    "octo": {"observation": (8, 2, 14), "action": (8, 4, 14)},
}


def jpeg_of(rng):
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (48, 64, 3)).astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    writer = robocache.CacheWriter(tmp_path_factory.mktemp("recipes") / "c", SPECS)
    rng = np.random.default_rng(0)
    for e in range(2):
        n = 120
        times = np.arange(n) * 20_000_000
        streams = {
            name: robocache.EpisodeStream(spec, rng.normal(size=(n, *spec.shape)).astype(spec.dtype), times)
            for name, spec in SPECS.items()
            if spec.kind == "vector"
        }
        pixels = rng.integers(0, 256, (n, *SPECS["img"].shape), dtype=np.uint8)
        streams["img"] = robocache.EpisodeStream(SPECS["img"], pixels, times)
        streams["top"] = robocache.EpisodeStream(SPECS["top"], Pictures.of([jpeg_of(rng) for _ in range(n)]), times)
        writer.add(robocache.Episode(e, streams, f"pick up cup {e}"))
    return writer.commit()


def tokenizer(texts):
    return [[len(word) for word in text.split()] for text in texts]


def recipes():
    text = (ROOT / "docs" / "features.md").read_text()
    found = {}
    for code in re.findall(r"```python\n(\w+ = \{.*?)```", text[text.index("## Recipes") :], flags=re.S):
        names = {"robocache": robocache, "Feature": Feature, "tokenizer": tokenizer}
        before = set(names) | {"__builtins__"}
        exec(code, names)
        found |= {name: value for name, value in names.items() if name not in before}
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_a_recipe_gives_the_batch_that_it_promises(recorded, name):
    features = recipes()[name]
    loader = Loader(recorded, 8, features=features, skip_anchors=(1, 0), seed=1)
    batch = next(iter(loader))
    assert {key: tuple(batch[key].shape) for key in SHAPES[name]} == SHAPES[name]
    assert all(torch.isfinite(x).all() for x in batch.values() if torch.is_tensor(x) and x.is_floating_point())
    if name == "octo":
        assert len(batch["task"]) == 8
        assert set(batch["task"]) <= {"pick up cup 0", "pick up cup 1"}
    if name in ("diffusion_policy", "act"):
        assert batch["action"].dtype == torch.float64  # that of the stream


def test_every_recipe_of_the_page_is_tested():
    assert recipes().keys() == SHAPES.keys()
