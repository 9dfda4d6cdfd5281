"""Calls of the loader, one for each thing that can be asked for: what every tier and device must agree on."""

import itertools

from loader_cases import SPECS
from robocache import StreamSpec, Window

MORE = {name: spec for name, spec in SPECS.items() if name != "cloud"} | {
    "pose": StreamSpec("pose", "float32", (7,)),
    "half": StreamSpec("half", "float16", (5,)),
    "flag": StreamSpec("flag", "bool", ()),
    "depth": StreamSpec("depth", "uint16", (4, 6), "depth"),
}
FLOATING = ("state", "force", "small", "half")
QUATERNION = [(3, 7, "slerp_xyzw")]


def windows_of(names, **options):
    return {name: Window(past=0.03, future=0.05, rate_hz=100, **options) for name in names}


IMAGES = {"state": Window(), **windows_of(["camera", "depth"], method="nearest")}
MIXED = {
    **windows_of(["state", "force"], latency=0.001),
    "small": Window(deltas=[-0.015, 0, 0.02], method="nearest"),
    "gripper": Window(past=0.02, rate_hz=50),
    "camera": Window(past=0.1, rate_hz=20, max_gap=0.03),
}
# what is asked for: options of Loader
CASES = {
    **{f"{method}": {"windows": windows_of(FLOATING, method=method)} for method in ("linear", "next", "cubic")},
    **{f"{method}": {"windows": windows_of([*MORE], method=method)} for method in ("previous", "nearest")},
    "slerp": {"windows": windows_of(["pose"], method=QUATERNION)},
    "a window's mean": {"windows": windows_of(FLOATING, method="mean")},
    "every stream as it comes": {"windows": windows_of([*MORE])},
    "latency and a gap": {"windows": windows_of([*MORE], latency=0.0042, max_gap=0.012)},
    "a wide tolerance": {"windows": windows_of([*MORE], tolerance=0.003, latency=0.0042)},
    "no tolerance": {"windows": windows_of([*MORE], tolerance=0)},
    "moments at 30 Hz": {
        "windows": {name: Window(past=0.07, future=0.07, rate_hz=30, method="previous") for name in MORE},
        "anchors": "camera",
    },
    "edges that count": {"windows": windows_of(["state", "gripper"], outside_valid=True)},
    "edges that are not a number": {"windows": windows_of(FLOATING, outside="nan")},
    "edges drawn on": {"windows": windows_of(FLOATING, outside="linear")},
    "several sets of moments": {"windows": MIXED},
    "a cubic among others": {"windows": MIXED | {"small": Window(deltas=[-0.015, 0, 0.02], method="cubic")}},
    **{f"as {dtype}": {"windows": MIXED, "dtype": dtype} for dtype in ("float16", "bfloat16", "float32", "float64")},
    "each in its dtype": {"windows": MIXED, "dtype": {"state": "bfloat16", "force": "float32"}},
    **{
        f"{way} as {dtype}": {
            "windows": MIXED,
            "normalize": dict.fromkeys(MIXED, way),
            "dtype": dtype and dict.fromkeys(MIXED, dtype),
        }
        for way, dtype in itertools.product(("mean_std", "min_max", "quantile"), (None, "bfloat16", "float64"))
    },
    "images": {"windows": IMAGES},
    "images between 0 and 1": {"windows": IMAGES, "normalize": {"camera": "unit", "depth": "unit"}},
    "images as float16": {"windows": IMAGES, "normalize": {"camera": "unit"}, "dtype": {"camera": "float16"}},
    "LeRobot's windows": {"delta_timestamps": {"state": [-0.02, 0, 0.01, 0.2], "camera": [-0.1, 0]}},
    "a split": {"windows": MIXED, "split": ("train", 0.6)},
    "some episodes": {"windows": MIXED, "episodes": [4, 1, 3], "anchors": "force"},
    "anchors at a rate": {"windows": MIXED, "anchors": "force", "anchor_hz": 73.0},
    "skipped anchors": {"windows": MIXED, "skip_anchors": (2, 3)},
    "not shuffled": {"windows": MIXED, "shuffle": False},
    "one of three ranks": {"windows": MIXED, "rank": 1, "world_size": 3},
    "whole batches only": {"windows": MIXED, "drop_last": True},
    "with the index": {"windows": MIXED, "return_index": True},
}
