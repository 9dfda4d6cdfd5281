"""An action-chunk policy: a window of observations in, the next setpoints of arm and gripper out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from windows import BLOCK, CAMERA, CHUNK, GOAL, GRIPPER, OBSERVED, OPENING, PAST_DELTAS_NS, SETPOINT, Batch

SEEN = 16
"""Numbers that the camera adds to the observation."""
Statistics = Mapping[str, Mapping[str, Any]]


class Policy(nn.Module):
    """Takes and gives metres, radians and newtons: it normalises by itself, with the statistics of the cache.

    Setpoints are predicted as the way from where the gripper is now.
    """

    def __init__(self, channels: Mapping[str, int], width: int = 256) -> None:
        super().__init__()
        for name, count in channels.items():
            self.register_buffer(f"{name}/mean", torch.zeros(count))
            self.register_buffer(f"{name}/std", torch.ones(count))
        self.eye = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.GELU()),
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GELU()),
            *(nn.Flatten(), nn.Linear(16 * 6 * 8, SEEN), nn.Tanh()),
        )
        inputs = len(PAST_DELTAS_NS) * sum(channels[name] for name in OBSERVED) + 6 + SEEN
        self.net = nn.Sequential(
            *(nn.Linear(inputs, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, CHUNK * 4),
        )

    @classmethod
    def for_cache(cls, statistics: Statistics, width: int = 256) -> Policy:
        """With the statistics of a cache. Channels that never change are not scaled."""
        policy = cls({name: len(statistics[name]["mean"]) for name in (*OBSERVED, CAMERA, SETPOINT, OPENING)}, width)
        for name, buffer in policy.named_buffers():
            stream, _, kind = name.rpartition("/")
            values = torch.tensor(statistics[stream][kind])
            buffer.copy_(torch.where(values < 1e-6, 1.0, values) if kind == "std" else values)
        return policy

    def normalised(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return (values - self.get_buffer(f"{name}/mean")) / self.get_buffer(f"{name}/std")

    def forward(self, batch: Batch) -> torch.Tensor:
        """(B, CHUNK, 4), normalised: what `targets` makes of the commands of a batch."""
        seen = [self.normalised(name, batch[name]).flatten(1) for name in OBSERVED]
        gripper, block, goal = (batch[name][:, -1] for name in (GRIPPER, BLOCK, GOAL))
        scale = self.get_buffer(f"{BLOCK}/std")
        ways = [(block - gripper) / scale, (goal - block) / scale]
        looks = self.eye(self.normalised(CAMERA, batch[CAMERA].float()))
        return self.net(torch.cat([*seen, *ways, looks], 1)).unflatten(1, (CHUNK, 4))

    def targets(self, batch: Batch) -> torch.Tensor:
        setpoint, opening = batch["action"].split([3, 1], -1)
        way = (setpoint - batch[GRIPPER][:, -1:]) / self.get_buffer(f"{SETPOINT}/std")
        return torch.cat([way, self.normalised(OPENING, opening)], -1)

    @torch.no_grad()
    def act(self, batch: Batch) -> torch.Tensor:
        """(B, CHUNK, 4): setpoints and openings in metres."""
        way, opening = self(batch).split([3, 1], -1)
        setpoint = batch[GRIPPER][:, -1:] + way * self.get_buffer(f"{SETPOINT}/std")
        opening = opening * self.get_buffer(f"{OPENING}/std") + self.get_buffer(f"{OPENING}/mean")
        return torch.cat([setpoint, opening], -1)

    def save(self, path: Path) -> None:
        safetensors.torch.save_file(self.state_dict(), path)

    @classmethod
    def load(cls, path: Path) -> Policy:
        tensors = safetensors.torch.load_file(path)
        names = [name.removesuffix("/mean") for name in tensors if name.endswith("/mean")]
        policy = cls({name: len(tensors[f"{name}/mean"]) for name in names}, len(tensors["net.0.bias"]))
        policy.load_state_dict(tensors)
        return policy
