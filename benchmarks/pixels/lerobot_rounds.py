"""LeRobot's own dataset in torch's DataLoader: times rounds of batches. Runs under the Python that has lerobot.

python lerobot_rounds.py ROOT WORKERS BATCH FRAMES    then "go N" on stdin: seconds of N batches on stdout, as JSON
"""

import importlib.util
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    import lerobot
    import numpy as np
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root, workers, batch, frames = sys.argv[1], *map(int, sys.argv[2:5])
    fps = LeRobotDataset("local/films", root=root).fps
    cameras = LeRobotDataset("local/films", root=root).meta.video_keys
    deltas = {name: [(i - frames + 1) / fps for i in range(frames)] for name in cameras}
    backends = {}
    try:
        import torchcodec

        backends["torchcodec"] = torchcodec.__version__
    except (ImportError, OSError, RuntimeError):
        pass
    if importlib.util.find_spec("av"):
        import av

        backends["pyav"] = av.__version__
    backend = next(iter(backends))
    # fps as in the file: times of frames are multiples of 1 / fps, rounded to the time base of the mp4
    options = {"delta_timestamps": deltas, "video_backend": backend, "tolerance_s": 1e-3, "return_uint8": True}
    dataset = LeRobotDataset("local/films", root=root, **options)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    sampler: list[int] = []
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch, sampler=sampler, num_workers=workers, persistent_workers=True, prefetch_factor=1
    )
    facts = {"lerobot": lerobot.__version__, "torch": torch.__version__, "backend": backend, "backends": backends}
    sampler[:] = order[: batch * workers]  # a worker must not inherit a decoder of this process
    found = next(iter(loader))
    facts |= {"frames": len(dataset), "shape": list(found[cameras[0]].shape), "dtype": str(found[cameras[0]].dtype)}
    facts |= {"episode": int(found["episode_index"][0]), "frame": int(found["frame_index"][0])}
    facts["sum"] = {name: float(found[name][0].double().sum()) for name in cameras}
    print(json.dumps(facts), flush=True)
    at = 0
    for line in sys.stdin:
        count = int(line.split()[1])
        sampler[:] = [order[i % len(order)] for i in range(at, at + count * batch)]
        at += count * batch
        begin = time.perf_counter()
        for found in loader:
            shape = found[cameras[0]].shape
        assert tuple(shape[:2]) == (batch, frames)
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
