"""Point clouds of the honest inputs, all in the box of robocache's own made-up clouds, a sensor at its center.

uniform      independent points in the whole box
lidar        a scan of a furnished room, in the order of the sensor
shuffled     the points of lidar in random order
rings        a sensor above flat ground: rings, dense near the sensor, in the order of the sensor
clustered    forty objects of a few decimeters, in random order
sorted       the points of uniform, sorted by x, then y, then z: neighbors in memory share cells
sphere r9    on a sphere of 9/10 of the half box; few points per cell
sphere r3    on a sphere of 3/10 of the half box; nine times as many points per cell
one voxel    all points in one cell: the limit of contention, not among HONEST
"""

from __future__ import annotations

import math

import torch
from robocache.cli.clouds import BOX_M, RINGS, make_cloud
from torch import Tensor

CLEAN = "uniform"
HONEST = ("uniform", "lidar", "shuffled", "rings", "clustered", "sorted", "sphere r9", "sphere r3")
SENSOR_HEIGHT_M = 1.5
FAR_M = 6.0
OBJECTS, OBJECT_M = 40, 0.15


def make(kind: str, num_points: int, device: str = "cpu") -> Tensor:
    """(N, 3) float32."""
    if kind == "rings":
        return ground_rings(num_points, device)
    if kind == "clustered":
        centers = (torch.rand(OBJECTS, 3, device=device) - 0.5) * (BOX_M - 2)
        which = torch.randint(OBJECTS, (num_points,), device=device)
        return centers[which] + torch.randn(num_points, 3, device=device).clamp_(-3, 3) * OBJECT_M
    if kind == "sorted":
        return sort_by_cell(make_cloud("uniform", num_points, device))
    if kind.startswith("sphere r"):
        direction = torch.nn.functional.normalize(torch.randn(num_points, 3, device=device), dim=1)
        return direction * (int(kind.removeprefix("sphere r")) / 10 * BOX_M / 2)
    return make_cloud(kind, num_points, device)


def ground_rings(num_points: int, device: str = "cpu") -> Tensor:
    """RINGS beams of even pitch that meet flat ground up to FAR_M away, heading by heading, with 1 cm of noise."""
    number = torch.arange(num_points, device=device)
    heading = (number // RINGS).float() * (2 * math.pi / math.ceil(num_points / RINGS))
    steepest, flattest = math.radians(75), math.atan(SENSOR_HEIGHT_M / FAR_M)
    pitch = flattest + (number % RINGS).float() / (RINGS - 1) * (steepest - flattest)
    radius = SENSOR_HEIGHT_M / torch.tan(pitch) + 0.01 * torch.randn(num_points, device=device)
    height = -SENSOR_HEIGHT_M + 0.01 * torch.randn(num_points, device=device)
    return torch.stack([radius * heading.cos(), radius * heading.sin(), height], 1)


def sort_by_cell(points: Tensor, cells: int = 256) -> Tensor:
    cell = ((points / BOX_M + 0.5) * cells).long()
    return points[torch.argsort((cell[:, 0] * cells + cell[:, 1]) * cells + cell[:, 2])]
