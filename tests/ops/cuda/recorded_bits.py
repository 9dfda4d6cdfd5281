"""Digests of what random calls of every op give: one commit's bits against those of an earlier one, on any device.

python tests/ops/cuda/recorded_bits.py --write                    the file of digests, anew
python tests/ops/cuda/recorded_bits.py [--device cuda]            every call again; prints the groups that differ

A digest covers CALLS calls: inputs and outputs apart, so that another random generator is not taken for other results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import paths  # noqa: F401

# isort: split
import numpy as np
import robocache
import torch
from arrays import FLOATS, INTEGERS, TIMES, to_numpy
from cases import dense, ragged
from cuda_tools import copy_of, tensor
from loader_calls import CASES, MORE
from loader_cases import make_cache
from test_cuda_bits import WIDTHS, Call, some, some_case, some_options, some_query, some_stream
from voxel_calls import leaves, moved
from voxel_calls import some_call as some_cloud
from voxel_cases import FEATURES, OF_FEATURES, images_of

FILE = Path(__file__).with_name("recorded_bits.json")
CALLS, GROUPS = 25, 20
# What random calls draw from. The lists of the tests grow with the ops; these must not, because the record is of calls
# drawn from them. slerp is left out: its sine is the device's own.
METHODS = ("linear", "previous", "next", "nearest", "cubic", "angle", "mean", "min", "max")
INTEGER_METHODS = ("previous", "next", "nearest", "min", "max")
MODES = ("occupancy", "count", "sum", "mean", "min", "max")


class Digest:
    def __init__(self):
        self.sha = {"in": hashlib.sha256(), "out": hashlib.sha256()}

    def add(self, which, x):
        if x is None:
            return
        array = np.ascontiguousarray(to_numpy(x))
        if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
            array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)  # the payload of a NaN is free
        self.sha[which].update(f"{array.dtype} {array.shape}".encode() + array.tobytes())

    def text(self):
        return [sha.hexdigest()[:16] for sha in self.sha.values()]


def align_call(rng, dtype):
    methods = METHODS if dtype in FLOATS else INTEGER_METHODS
    method, tdtype, width = some(rng, methods), some(rng, TIMES), int(some(rng, WIDTHS[:14]))
    num_episodes = int(some(rng, (1, 2, 3, 9)))
    num_targets = int(some(rng, (1, 2, 7, 33, 64)))
    case = some_case(rng, some(rng, (dense, ragged)), method, dtype, tdtype, width, num_targets, num_episodes)
    query = some_query(rng, case, tdtype, num_episodes, True)
    stream = some_stream(rng, case, some_options(rng, method, dtype, tdtype))
    return Call([stream], query, columns=bool(rng.random() < 0.3))


def align_group(dtype, group, device):
    digest = Digest()
    for i in range(CALLS):
        call = align_call(np.random.default_rng([group, i, 1]), dtype)
        for x in (call.streams[0].values, call.streams[0].times, *call.query.values()):
            digest.add("in", x)
        got, between = call.run(device)
        for x in (*got.values, *got.valid, *got.index, *between):
            digest.add("out", x)
    return digest


def fuse_group(dtype, group, device):
    digest = Digest()
    for i in range(CALLS):
        rng = np.random.default_rng([group, i, 2])
        tdtype = some(rng, TIMES)
        widths = [int(some(rng, WIDTHS[:12])) for _ in range(some(rng, (1, 2, 3, 5)))]
        cases = [dense(rng, dtype, tdtype, (w,), None, int(some(rng, (1, 9, 33))), 17, 3) for w in widths]
        streams = [(tensor(c.values).to(device), tensor(c.times).to(device)) for c in cases]
        for c in cases:
            digest.add("in", c.values)
        for x in robocache.fuse_multimodal(streams, tensor(cases[0].targets).to(device), return_valid=True):
            digest.add("out", x)
    return digest


def gradient_group(dtype, group, device):
    """Of calls whose gradients have one order of addition on every device: each row is read once."""
    digest = Digest()
    for i in range(CALLS):
        rng = np.random.default_rng([group, i, 3])
        width, rows = int(some(rng, WIDTHS[:10])), int(some(rng, (2, 9, 40)))
        times = torch.arange(rows, dtype=torch.int64)[None] * 10
        values = tensor(rng.normal(size=(1, rows, width)).astype(np.float32)).to(torch.float32)
        values = values.to(getattr(torch, dtype.name)).to(device).requires_grad_()
        targets = (times[:, :-1:2] + int(rng.integers(0, 10))).to(device)
        out = robocache.resample_trajectories(values, times.to(device), targets)
        up = torch.arange(1.0, out.numel() + 1).sin().reshape(out.shape).to(out.dtype).to(device)
        out.backward(up)
        digest.add("in", values.detach())
        digest.add("out", values.grad)
    return digest


def voxel_group(dtype, group, device):
    digest = Digest()
    for i in range(CALLS):
        rng = np.random.default_rng([group, i, 4])
        mode = some(rng, MODES)
        width = int(some(rng, (1, 3, 4, 8, 17))) if mode in OF_FEATURES else None
        given = some_cloud(rng, dtype, width, int(some(rng, (1, 31, 257, 3000))), some(rng, ((2, 3, 5), (16, 16, 16))))
        for name in ("points", "features", "offsets"):
            digest.add("in", given.get(name))
        dense = robocache.voxelize_pointcloud(**moved(given, device), mode=mode, return_info=True, deterministic=True)
        for x in leaves(dense):
            digest.add("out", x)
        if mode in ("mean", "max", "count"):
            sparse = {k: x for k, x in given.items() if mode in OF_FEATURES or k != "features"}
            for x in leaves(robocache.voxelize_sparse(**moved(sparse, device), mode=mode, deterministic=True)):
                if isinstance(x, torch.Tensor):
                    digest.add("out", x)
    return digest


def depth_group(dtype, group, device):
    digest = Digest()
    for i in range(CALLS):
        rng = np.random.default_rng([group, i, 5])
        mode = some(rng, MODES)
        images = images_of(rng, some(rng, ((), (2,), (3,))), dtype.type, posed=bool(rng.random() < 0.7))
        arrays = [tensor(x) for x in (images.depth, images.intrinsics, images.pose)]
        features = tensor(images.features) if mode in OF_FEATURES else None
        digest.add("in", arrays[0])
        given = [None if x is None else copy_of(x, device) for x in (*arrays, features)]
        got = robocache.voxelize_depth(*given, images.origin, images.size, images.shape, mode, max_depth=3.0,
                                       deterministic=True, return_info=True)  # fmt: skip
        for x in leaves(got):
            digest.add("out", x)
    return digest


def loader_groups(device):
    """One digest a case: every batch of two epochs."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = make_cache(f"{folder}/cache", 7, 11, MORE, shard_bytes=1 << 20)
        for name, options in CASES.items():
            if "slerp" in name:
                continue
            digest = Digest()
            options = {"seed": 4, "drop_last": False, **options}
            loader = robocache.Loader(cache, 9, tier="gpu" if device == "cuda" else "memory", device=device, **options)
            for epoch in range(2):
                for step in range(len(loader)):
                    for key, x in loader.batch(step, epoch).items():
                        digest.sha["in"].update(key.encode())
                        digest.add("out", x)
            found[f"loader/{name}"] = [digest.text()]
    return found


OPS = {
    "align": (align_group, (*FLOATS, *INTEGERS)),
    "fuse": (fuse_group, FLOATS),
    "gradient": (gradient_group, FLOATS),
    "voxelize": (voxel_group, FEATURES),
    "depth": (depth_group, (np.dtype(np.uint16), np.dtype(np.float32))),
}


def digests(device, num_groups=GROUPS):
    found = {
        f"{op}/{dtype.name}": [group_of(dtype, group, device).text() for group in range(num_groups)]
        for op, (group_of, dtypes) in OPS.items()
        for dtype in dtypes
    }
    return found | loader_groups(device)


def differences(found, recorded):
    """Names of the groups whose outputs differ; of those whose inputs do, which say nothing of the outputs."""
    other = []
    for name, groups in found.items():
        for i, ((given, got), (given_then, got_then)) in enumerate(zip(groups, recorded[name], strict=False)):
            if given != given_then:
                other.append(f"{name} {i}: other inputs")
            elif got != got_then:
                other.append(f"{name} {i}: other outputs")
    return other


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", type=int, default=GROUPS, help=f"of {CALLS} calls, for each op and dtype")
    args = parser.parse_args()
    found = digests(args.device, args.groups)
    if args.write:
        lines = (f"{json.dumps(name)}: {json.dumps(groups)}" for name, groups in found.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    other = differences(found, json.loads(FILE.read_text()))
    print("\n".join(other) or f"the same bits in {sum(map(len, found.values()))} groups on {args.device}")
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
