"""What a loader gives, part by part, in any framework; as a program, in a process that cannot import PyTorch:

python framework_cases.py CACHES FRAMEWORK FILE       writes the batches of all cases to FILE
"""

import multiprocessing
import os
import pickle
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import paths  # noqa: F401

# isort: split
import feature_cases
import loader_cases
import numpy as np
import robocache
from picture_cases import CAMERAS, CameraSource
from robocache import (
    CenterCrop,
    ColorJitter,
    Feature,
    Image,
    Loader,
    Mixture,
    RandomCrop,
    Voxels,
    Window,
)  # fmt: skip
from robocache.datasets.diffusion_policy import SequenceSampler
from robocache.datasets.robomimic import SequenceDataset
from video_cases import FILMS, FilmSource

TIERS = ("memory", "mmap")


class Incomplete(FilmSource):
    """The first episode has no pictures of two cameras: batches have black ones."""

    def episode(self, index):
        episode = super().episode(index)
        for name in ("gray", "depth") if index == 0 else ():
            del episode.streams[name]
        return episode


def make_caches(folder):
    folder.mkdir()
    for seed in (0, 1):
        loader_cases.make_cache(folder / f"rows{seed}", seed=seed)
        feature_cases.make_cache(folder / f"features{seed}", seed=seed, episodes=5 - seed, shard_bytes=1 << 14)
    robocache.ingest(feature_cases.make_cache(folder / "pixels").path, folder / "jpeg", images="jpeg")
    cameras = Incomplete(CAMERAS | FILMS) if FILMS else CameraSource(CAMERAS)
    robocache.ingest(cameras, folder / "cameras", images="keep", shard_bytes=1)
    names = ("actions", "obs/hand", "next_obs/hand")
    hands = {name: robocache.StreamSpec(name, "float64", (2,), rate_hz=100) for name in names}
    loader_cases.make_cache(folder / "hands", episodes=3, specs=hands)


def lengths(texts):
    return [[len(text), 7] for text in texts]


def epoch(loader):
    return [dict(batch) for batch in loader]


# ---- cases: batches of the caches in a folder -----------------------------------------------------------------------

ROWS = {
    "state": Window(past=0.03, future=0.02, rate_hz=100, latency=0.01),
    "force": Window(deltas=[-0.01, 0.0]),
    "small": Window(past=0.02, rate_hz=100),
    "gripper": Window(),
    "camera": Window(past=0.1, rate_hz=30),
}


def windows(folder, **options):
    options |= {"normalize": {"state": "mean_std", "small": "min_max", "camera": "unit"}, "return_index": True}
    for tier in TIERS:
        yield from epoch(Loader(folder / "rows0", 8, ROWS, tier=tier, drop_last=False, **options))
        yield from epoch(Loader(folder / "rows0", 8, ROWS, tier=tier, dtype="bfloat16", anchor_hz=30, **options))
    yield {"scale": [*Loader(folder / "rows0", 8, ROWS, **options).scale_of("state")]}


def methods(folder, **options):
    """Of the reader, and one after the other, which ``outside="error"`` needs."""
    read = {
        "tcp": Window(past=0.05, rate_hz=100),
        "turn": Window(past=0.05, rate_hz=100, method="slerp_wxyz"),
        "fast": Window(past=0.04, rate_hz=50, method="mean"),
        "count": Window(past=0.05, rate_hz=100),
        "heading": Window(),
    }
    scaled = {"normalize": {"left": "mean_std", "fast": "min_max"}, "dtype": {"left": "float16"}}
    options |= {"return_index": True, "skip_anchors": (5, 0)}
    for outside in ("hold", "error"):
        read["left"] = Window(past=0.05, rate_hz=100, method="cubic", outside=outside)
        for tier in TIERS:
            one, mixture = folder / "features0", both(folder)
            loaders = [Loader(one, 7, read, **scaled, tier=tier, **options), Loader(mixture, 7, read, **options)]
            for loader in loaders:
                assert (loader._reader.fused is None) == (outside == "error")
                yield from epoch(loader)


FEATURES = {
    "state": Feature(["left", "right"], past=0.04, rate_hz=50, normalize="mean_std"),
    "action": Feature("tcp", steps=range(4), rate_hz=50, relative_to="anchor", rotation="6d", normalize="min_max"),
    "turn": Feature("turn", rotation="euler", dtype="float64"),
    "now": Feature("left", normalize="quantile"),
    "half": Feature(["left", "place"], past=0.02, rate_hz=50, dtype="bfloat16"),
    "grip": Feature("grip", past=0.02, rate_hz=50),
    "count": Feature("count", transform=lambda x: x + 1),
    "say": Feature("say"),
    "ids": Feature("say", past=0.02, rate_hz=50, tokenizer=lengths),
    "task": Feature("task"),
    "task_ids": Feature("task", tokenizer=lengths),
}


def features(folder, **options):
    for tier in TIERS:
        yield from epoch(Loader(folder / "features0", 16, features=FEATURES, return_index=True, tier=tier, **options))
    rows = {name: FEATURES[name] for name in ("state", "action", "ids")}
    loader = Loader(folder / "features0", 16, features=rows, **options)
    yield loader.batch_at(step_of(options["framework"], len(loader) + 1))


def step_of(framework, step):
    if framework != "torch":
        return np.array(step)
    import torch

    return torch.tensor(step)


def statistics(folder, **options):
    loader = Loader(folder / "features0", 16, features=FEATURES, **options)
    yield from loader.stats.values()
    loader.save_stats(path := Path(os.environ["ROBOCACHE_HOME"], "stats.json"))
    yield {"text": path.read_text()}
    again = Loader(folder / "features1", 16, features=FEATURES, stats=path, **options)
    batch = again.batch(0)
    yield batch
    anchor = np.linspace(-1, 1, 7)
    yield {"tcp": again.inverse("action")(np.asarray(batch["action"], np.float64), anchor)}


RANDOM = Image(
    size=(24, 30), crop=RandomCrop(0.8), flip=0.5, color=ColorJitter(0.2, 0.3, 0.4), layout="CHW", dtype="float32",
    normalize="imagenet",
)  # fmt: skip


def pictures(folder, **options):
    plain = {name: Window(past=0.2, rate_hz=10) for name in CAMERAS}
    edited = {
        "front": Window(past=0.1, rate_hz=10, image=RANDOM),
        "flat": Window(image=Image(size=(20, 20), crop=CenterCrop(0.5), filter="area", dtype="float16")),
        "gray": Window(image=Image(layout="CHW", dtype="bfloat16", normalize=([0.5], [0.25]))),
    }
    for tier in TIERS:
        made = [
            Loader(folder / "cameras", 5, plain, tier=tier, **options),
            Loader(folder / "cameras", 5, plain, tier=tier, normalize="unit", dtype="float16", **options),
            Loader(folder / "cameras", 5, plain, tier=tier, dtype={"front": "float32", "depth": "float32"}, **options),
            Loader(folder / "cameras", 5, edited, tier=tier, anchors="front", **options),
            Loader(folder / "jpeg", 5, features={"cam": Feature("cam", past=0.02, rate_hz=50)}, tier=tier, **options),
        ]
        for loader in made:
            yield from (loader.batch(step) for step in range(4))


def films(folder, **options):
    read = {name: Window(past=0.1, rate_hz=10, image=image) for name, image in zip(FILMS, (RANDOM, None), strict=False)}
    for tier in TIERS if FILMS else ():
        loader = Loader(folder / "cameras", 4, read, anchors="arm", tier=tier, **options)
        yield {"decoders": [*loader.video_decoders.items()]}
        yield from (loader.batch(step) for step in range(3))


def clouds(folder, **options):
    grid = {"grid_min": (0, 0, 0), "voxel_size": 40.0, "grid_size": (5, 5, 5)}
    for mode in ("occupancy", "count", "mean"):
        read = {"cloud": Window(past=0.1, rate_hz=20, voxels=Voxels(**grid, mode=mode)), "state": Window()}
        for tier in TIERS:
            yield from epoch(Loader(folder / "rows0", 6, read, tier=tier, **options))


def both(folder):
    return Mixture([(folder / "features0", 1.0), (folder / "features1", 2.0)])


def mixtures(folder, **options):
    for tier in TIERS:
        loader = Loader(both(folder), 16, features=FEATURES, return_index=True, tier=tier, **options)
        yield from epoch(loader)
        yield {"scale": [*loader.scale_of("state", source=1)]}


def orders(folder, **options):
    cache, read = folder / "features0", {"left": Window(past=0.04, rate_hz=50)}
    yield from epoch(Loader(cache, 16, read, weights={0: 3.0}, **options))
    yield from epoch(Loader(cache, 16, read, edges="inside", **options))
    yield from epoch(Loader(cache, 16, read, split=("train", 0.6), rank=1, world_size=3, **options))
    last = Loader(cache, 16, read, episodes=[0], drop_last=False, rank=0, world_size=48, **options)
    yield last.batch(0)  # 40 samples for 48 ranks: empty
    loader = Loader(cache, 16, read, return_index=True, **options)
    yield loader.dataset[5]
    yield loader.dataset[[5, 0, 5]]
    assert not {"RANK", "WORLD_SIZE"} & {*os.environ}
    os.environ |= {"RANK": "1", "WORLD_SIZE": "2"}
    try:
        launched = Loader(cache, 8, read, **options)
        yield {"ranks": [launched.rank, launched.world_size, len(launched)]}
        yield from epoch(launched)
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]


def copies(folder, **options):
    """Resumed loaders, and copies in other processes."""
    read = {"left": FEATURES["state"], "cam": Feature("cam"), "say": FEATURES["say"]}
    loader = Loader(folder / "features0", 16, features=read, **options)
    iterator = iter(loader)
    yield next(iterator)
    resumed = Loader(folder / "features0", 16, features=read, **options)
    resumed.load_state_dict(loader.state_dict())
    yield from epoch(resumed)
    copy = pickle.loads(pickle.dumps(loader))
    yield next(iter(copy))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool.apply(described_batch, (loader, 2))


def datasets(folder, **options):
    items = SequenceDataset(folder / "hands", ["hand"], ["actions"], [], frame_stack=2, seq_length=4, get_pad_mask=True)
    yield from (flat(items[i]) for i in range(0, len(items), 3))
    sampler = SequenceSampler(robocache.Cache(folder / "hands"), 4, 1, 2, rate_hz=100)
    yield from (sampler.sample_sequence(i) for i in range(0, len(sampler), 3))


def flat(item):
    return {key: flat(x) if isinstance(x, dict) else x for key, x in item.items()}


CASES = {
    case.__name__: case
    for case in (
        windows, methods, features, statistics, pictures, films, clouds, mixtures, orders, copies, datasets
    )
}  # fmt: skip


# ---- comparable batches ---------------------------------------------------------------------------------------------


def described(x):
    """Dtype, shape and bits of arrays of any framework."""
    if isinstance(x, dict):
        return {name: described(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [described(value) for value in x]
    if not hasattr(x, "dtype"):
        return x
    name = str(x.dtype).removeprefix("torch.")
    if name == "bfloat16" and type(x).__module__ == "torch":
        x = x.view(sys.modules["torch"].int16)
    array = np.ascontiguousarray(x)
    return name, tuple(x.shape), array.tobytes()


def described_batch(loader, step):
    return described(loader.batch(step))


def run(folder, framework):
    """The batches of each case."""
    return {
        name: [described(batch) for batch in case(folder, seed=3, framework=framework)] for name, case in CASES.items()
    }


if __name__ == "__main__":
    made = run(Path(sys.argv[1]), sys.argv[2])
    assert "torch" not in sys.modules
    Path(sys.argv[3]).write_bytes(pickle.dumps(made))
