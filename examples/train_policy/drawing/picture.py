"""Pictures of the arm for the page, by casting rays as its cameras do."""

from __future__ import annotations

from typing import Any

import numpy as np
from camera import LIGHT_M, SKY, camera_rays, cast, facing
from simulate import Arm

AT_M, TO_M, FOV_RAD = np.array([2.1, 0.05, 1.0]), np.array([1.26, 0.75, 0.58]), 0.6
GOAL = np.array([0.82, 0.1, 0.16])
GOAL_RADIUS_M = 0.02


def picture(arm: Arm, size: tuple[int, int] = (165, 180), finer: int = 2) -> np.ndarray:
    """(height, width, 3) uint8, in the colors of the model, with a ball at the goal, which shines through what is in
    front of it. A pixel is the mean of `finer` x `finer` rays."""
    height, width = size[0] * finer, size[1] * finer
    rays, _ = camera_rays((height, width), AT_M, TO_M, FOV_RAD)
    hit, distance_m = cast(scene_of(arm), AT_M, rays)
    points = AT_M + rays * distance_m[:, None]
    color = np.where((hit >= 0)[:, None], arm.colors[hit], SKY)
    light = 0.45 + 0.55 * facing(points.reshape(height, width, 3)).reshape(-1) * lit(arm, points)
    color = np.where((hit >= 0)[:, None], color * light[:, None], color)
    ball_m, shade = ball(rays, arm.env.goal)
    cover = np.where(ball_m < distance_m, 1.0, np.where(np.isfinite(ball_m), 0.5, 0.0))[:, None]
    color = cover * GOAL * shade[:, None] + (1 - cover) * color
    pixels = color.reshape(size[0], finer, size[1], finer, 3).mean((1, 3))
    return (np.clip(pixels, 0, 1) * 255).astype(np.uint8)


def scene_of(arm: Arm) -> tuple[Any, Any, int]:
    return arm.model, arm.data, arm.mocap


def lit(arm: Arm, points: np.ndarray) -> np.ndarray:
    """1 where the light reaches a point, less in the shadow."""
    way = points - LIGHT_M
    length = np.linalg.norm(way, axis=1)
    _, reached = cast(scene_of(arm), LIGHT_M, way / length[:, None])
    return np.where(reached < length - 5e-3, 0.35, 1.0)


def ball(rays: np.ndarray, center_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far away the ball at the goal is along each ray (infinite where it is missed), and its shade."""
    to = center_m - AT_M
    along = rays @ to
    aside2 = to @ to - along**2
    inside = np.sqrt(np.maximum(GOAL_RADIUS_M**2 - aside2, 0))
    met = (aside2 < GOAL_RADIUS_M**2) & (along > 0)
    return np.where(met, along - inside, np.inf), 0.55 + 0.45 * inside / GOAL_RADIUS_M
