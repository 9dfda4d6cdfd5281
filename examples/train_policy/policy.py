"""An action-chunk policy: a window of observations in, the next setpoints of arm and gripper out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import robocache
import safetensors.torch
import torch
from torch import nn
from windows import BLOCK, CHUNK, GOAL, GRIPPER, NUMBERS, OBSERVED, OPENING, PAST, SETPOINT, WRIST, Batch

SEEN = 32
"""Numbers that the camera adds to the observation, besides where the block is."""


class Policy(nn.Module):
    """Reads batches of the loader, which are normalized. On a robot, `act` takes and gives meters, radians and newtons.

    Setpoints are predicted as the way from where the gripper is now.
    """

    def __init__(self, channels: Mapping[str, int], width: int = 256) -> None:
        super().__init__()
        for name, count in channels.items():
            self.register_buffer(f"{name}/offset", torch.zeros(count))
            self.register_buffer(f"{name}/scale", torch.ones(count))
        self.eye = nn.Sequential(
            *(nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.GELU()),
            *(nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.GELU()),
            *(nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.GELU()),
            *(nn.Flatten(), nn.Linear(32 * 5 * 6, 128), nn.GELU()),
        )
        self.place, self.features = nn.Linear(128, 3), nn.Linear(128, SEEN)
        inputs = PAST * sum(channels[name] for name in OBSERVED) + 6 + SEEN
        self.net = nn.Sequential(
            *(nn.Linear(inputs, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, CHUNK * 4),
        )

    @classmethod
    def for_loader(cls, loader: robocache.Loader, width: int = 256) -> Policy:
        """With the numbers that the loader normalizes by: (x - offset) * scale."""
        scales = {name: loader.scale_of(name) for name in NUMBERS}
        policy = cls({name: len(offset) for name, (offset, _) in scales.items()}, width)
        for name, (offset, scale) in scales.items():
            policy.get_buffer(f"{name}/offset").copy_(offset)
            policy.get_buffer(f"{name}/scale").copy_(scale)
        return policy

    def normalized(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """As the loader does it, to the bit."""
        return (values.float() - self.get_buffer(f"{name}/offset")) * self.get_buffer(f"{name}/scale")

    def measured(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The way back."""
        return values / self.get_buffer(f"{name}/scale") + self.get_buffer(f"{name}/offset")

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, CHUNK, 4), normalized: what `targets` makes of the commands of a batch. And (B, 3): where the policy
        sees the block, from the gripper, as `places` has it."""
        seen = self.eye(batch[WRIST][:, 0] - 0.5)
        place = self.place(seen)
        felt = [batch[name].flatten(1) for name in OBSERVED]
        gripper, goal = (self.measured(name, batch[name][:, -1]) for name in (GRIPPER, GOAL))
        to_goal = (goal - gripper) * self.get_buffer(f"{BLOCK}/scale")
        inputs = [*felt, place, to_goal - place, torch.tanh(self.features(seen))]
        return self.net(torch.cat(inputs, 1)).unflatten(1, (CHUNK, 4)), place

    def places(self, batch: Batch) -> torch.Tensor:
        """The way from gripper to block, by the tracker."""
        block, gripper = (self.measured(name, batch[name][:, -1]) for name in (BLOCK, GRIPPER))
        return (block - gripper) * self.get_buffer(f"{BLOCK}/scale")

    def targets(self, batch: Batch) -> torch.Tensor:
        setpoint, gripper = (self.measured(name, batch[name]) for name in (SETPOINT, GRIPPER))
        way = (setpoint - gripper[:, -1:]) * self.get_buffer(f"{SETPOINT}/scale")
        return torch.cat([way, batch[OPENING]], -1)

    @torch.no_grad()
    def act(self, seen: Batch) -> torch.Tensor:
        """(B, CHUNK, 4), setpoints and openings in meters, for what `Live` saw."""
        known = {name: x if name == WRIST else self.normalized(name, x) for name, x in seen.items()}
        way, opening = self(known)[0].split([3, 1], -1)
        setpoint = seen[GRIPPER][:, -1:] + way / self.get_buffer(f"{SETPOINT}/scale")
        return torch.cat([setpoint, self.measured(OPENING, opening)], -1)

    def save(self, path: Path) -> None:
        safetensors.torch.save_file(self.state_dict(), path)

    @classmethod
    def load(cls, path: Path) -> Policy:
        tensors = safetensors.torch.load_file(path)
        policy = cls({name: len(tensors[f"{name}/offset"]) for name in NUMBERS}, len(tensors["net.0.bias"]))
        policy.load_state_dict(tensors)
        return policy
