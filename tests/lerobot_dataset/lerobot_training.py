"""Trains LeRobot's ACT and Diffusion Policy with LeRobot's dataset and with ours, in the same order of samples."""

from __future__ import annotations

import importlib
import pathlib
import time
from typing import Any

import numpy as np
import torch

FPS, SIZE, BATCH = 10, 96, 4
CLASSES = {"theirs": "lerobot.datasets.lerobot_dataset", "ours": "robocache.lerobot"}
"""The line that a user changes."""
POLICIES: dict[str, dict[str, Any]] = {
    "act": {
        "chunk_size": 16,
        "n_action_steps": 16,
        "dim_model": 64,
        "n_heads": 4,
        "dim_feedforward": 128,
        "n_encoder_layers": 2,
        "n_vae_encoder_layers": 2,
        "latent_dim": 8,
        "pretrained_backbone_weights": None,
        "device": "cpu",
        "push_to_hub": False,
    },
    "diffusion": {
        "horizon": 16,
        "n_action_steps": 8,
        "down_dims": (32, 64),
        "diffusion_step_embed_dim": 32,
        "use_group_norm": True,
        "pretrained_backbone_weights": None,
        "crop_shape": (84, 84),
        "device": "cpu",
        "push_to_hub": False,
    },
}


def record_push(root: pathlib.Path) -> None:
    """A disk that follows its target, as a video: the keys of lerobot/pusht."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.image": {"dtype": "video", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }
    dataset = LeRobotDataset.create("local/push", fps=FPS, features=features, root=root, robot_type="2d")
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE]
    for _ in range(4):
        at, goal = rng.uniform(20, 76, 2), rng.uniform(20, 76, 2)
        for _ in range(40):
            action = at + 0.1 * (goal - at) + rng.normal(0, 0.5, 2)
            picture = np.full((SIZE, SIZE, 3), 255, np.uint8)
            picture[(x - goal[0]) ** 2 + (y - goal[1]) ** 2 < 100] = (120, 200, 120)
            picture[(x - at[0]) ** 2 + (y - at[1]) ** 2 < 36] = (40, 60, 220)
            dataset.add_frame(
                {
                    "observation.image": picture,
                    "observation.state": at.astype(np.float32),
                    "action": action.astype(np.float32),
                    "next.reward": np.array([-np.linalg.norm(goal - at)], np.float32),
                    "task": "push the disk to the target",
                }
            )
            at = action
        dataset.save_episode()
    dataset.finalize()


def losses(module: str, root: pathlib.Path, policy: str, steps: int, seed: int = 0) -> tuple[list[float], float]:
    """The loss of each step, and the seconds of all."""
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.factory import resolve_delta_timestamps
    from lerobot.datasets.sampler import EpisodeAwareSampler
    from lerobot.policies.factory import make_policy, make_policy_config, make_pre_post_processors

    dataset_class = importlib.import_module(module).LeRobotDataset
    torch.manual_seed(seed)
    config = make_policy_config(policy, **POLICIES[policy])
    plain = dataset_class("local/push", root=root, video_backend="pyav")
    deltas = resolve_delta_timestamps(config, plain.meta)
    dataset = dataset_class("local/push", root=root, delta_timestamps=deltas, video_backend="pyav")
    model = make_policy(config, ds_meta=dataset.meta)
    assert any(feature.type is FeatureType.VISUAL for feature in model.config.input_features.values())
    preprocess, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    bounds = (dataset.meta.episodes["dataset_from_index"], dataset.meta.episodes["dataset_to_index"])
    left_out = getattr(config, "drop_n_last_frames", 0)
    sampler = EpisodeAwareSampler(*bounds, drop_n_last_frames=left_out, shuffle=True, seed=seed)
    batches = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(model.get_optim_params(), lr=1e-4)
    model.train()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < steps:
        for batch in batches:
            loss, _ = model.forward(preprocess(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            if len(found) == steps:
                break
    return found, time.perf_counter() - began


def train_all(folder: pathlib.Path, steps: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)  # sums of several threads may be in another order
    root = folder / "push"
    record_push(root)
    results = []
    for policy in POLICIES:
        curves = {name: losses(module, root, policy, steps) for name, module in CLASSES.items()}
        other, _ = losses(CLASSES["ours"], root, policy, 3, seed=1)
        theirs, ours = curves["theirs"][0], curves["ours"][0]
        results.append(
            {
                "policy": policy,
                "config": POLICIES[policy],
                "steps": steps,
                "batch_size": BATCH,
                "equal": ours == theirs and other != theirs[:3],
                "seconds": {name: round(s, 1) for name, (_, s) in curves.items()},
                "losses": {"theirs": [x.hex() for x in theirs], "ours": [x.hex() for x in ours]},
                "first_and_last": [ours[0], ours[-1]],
                "control_with_another_seed": other,
            }
        )
        print(policy, "equal:", results[-1]["equal"], ours[0], ours[-1], results[-1]["seconds"], flush=True)
    return results
