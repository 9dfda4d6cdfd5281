"""Synthetic point clouds and depth images for the profiler and the benchmarks.

All are in a box of BOX_M meters around the origin, where a sensor stands in a room.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

BOX_M = 12.8
CLOUDS = ("uniform", "lidar", "sphere", "one voxel", "shuffled")
ROOM_M = (11.86, 8.94, 2.92)
ROOM_ON_FACES_M = (12.0, 9.0, 3.0)  # walls lie on cell faces of a 0.1 m grid, so rounding decides the cell
BOXES = (  # furniture: lower and upper corner
    ((1.5, 1.0, -1.5), (3.0, 2.2, -0.6)),
    ((-4.0, -3.5, -1.5), (-3.2, -1.5, 0.8)),
    ((2.0, -3.0, -1.5), (2.6, -2.4, 1.5)),
)
RINGS = 64


def make_cloud(kind: str, num_points: int, device: str = "cpu") -> Tensor:
    """(N, 3) float32. lidar: in the order of a spinning sensor, ring by ring per heading; shuffled: the same points."""
    if kind == "uniform":
        return (torch.rand(num_points, 3, device=device) - 0.5) * BOX_M
    if kind == "sphere":
        direction = torch.nn.functional.normalize(torch.randn(num_points, 3, device=device), dim=1)
        return direction * (0.45 * BOX_M)
    if kind == "one voxel":
        return torch.rand(num_points, 3, device=device) * 1e-3 + 0.01
    scan = scan_room(num_points, device)
    if kind == "lidar":
        return scan
    assert kind == "shuffled", kind
    return scan[torch.randperm(num_points, device=device)]


def scan_room(num_points: int, device: str = "cpu") -> Tensor:
    """A scan of a furnished room by a spinning LiDAR with RINGS beams and 5 mm of noise."""
    number = torch.arange(num_points, device=device)
    headings = math.ceil(num_points / RINGS)
    heading = (number // RINGS).float() * (2 * math.pi / headings)
    pitch = (number % RINGS).float() / (RINGS - 1) * 0.9 - 0.55
    rays = torch.stack([pitch.cos() * heading.cos(), pitch.cos() * heading.sin(), pitch.sin()], 1)
    distance = hit_distance(rays, torch.zeros(3, device=device))
    return rays * (distance + 0.005 * torch.randn(num_points, device=device))[:, None]


def hit_distance(rays: Tensor, eye: Tensor, room_m: tuple[float, float, float] = ROOM_M) -> Tensor:
    """Distance along each ray (N, 3) from the eye to the first wall or box."""
    half = torch.tensor(room_m, device=rays.device) / 2
    walls = torch.where(rays > 0, half - eye, -half - eye) / torch.where(rays == 0, -1e-9, rays)
    nearest = walls.amin(1)
    for low, high in BOXES:
        corners = torch.tensor([low, high], device=rays.device) - eye
        times = corners[:, None, :] / torch.where(rays == 0, -1e-9, rays)
        enter, leave = times.amin(0).amax(1), times.amax(0).amin(1)
        nearest = torch.where((enter > 0) & (enter < leave), torch.minimum(nearest, enter), nearest)
    return nearest


def make_depth(
    num_views: int, height: int, width: int, device: str = "cpu", room_m: tuple[float, float, float] = ROOM_M
) -> tuple[Tensor, Tensor, Tensor]:
    """Views from the middle of the room in all directions: depth (V, H, W) uint16 millimeters (0: not measured),
    intrinsics (3, 3), pose (V, 4, 4) from camera to room."""
    focal = 0.9 * width
    intrinsics = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], device=device)
    v, u = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
    beam = torch.stack([(u - width / 2) / focal, (v - height / 2) / focal, torch.ones_like(u).float()], -1)
    depth = torch.empty(num_views, height, width, dtype=torch.int32, device=device)
    pose = torch.eye(4, device=device).repeat(num_views, 1, 1)
    for i in range(num_views):
        a = 2 * math.pi * i / num_views
        forward, right, down = (math.cos(a), math.sin(a), 0.0), (math.sin(a), -math.cos(a), 0.0), (0.0, 0.0, -1.0)
        turn = torch.tensor([right, down, forward], device=device).T
        pose[i, :3, :3] = turn
        rays = beam.reshape(-1, 3) @ turn.T  # unit length along the camera axis: distance is depth
        meters = hit_distance(rays, torch.zeros(3, device=device), room_m).reshape(height, width)
        depth[i] = (meters * 1000).int()
    depth[torch.rand(depth.shape, device=device) < 0.02] = 0
    return depth.to(torch.uint16), intrinsics, pose


def grid_of(num_cells: int) -> dict[str, Any]:
    """Grid arguments of ``voxelize_pointcloud`` for the box, with ``num_cells`` along each axis."""
    low = -BOX_M / 2
    return {"grid_min": (low, low, low), "voxel_size": BOX_M / num_cells, "grid_size": (num_cells,) * 3}


def size_of(*tensors: Tensor | None) -> int:
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
