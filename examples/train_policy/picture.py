"""Pictures of the arm by casting rays, as its depth camera does: no display and no GPU is needed."""

from __future__ import annotations

import mujoco
import numpy as np
from simulate import Arm, camera_rays

AT_M, TO_M, FOV_RAD = np.array([2.1, 0.05, 1.0]), np.array([1.26, 0.75, 0.58]), 0.6
LIGHT_M = np.array([2.4, -0.6, 2.8])
FAR_M = 8.0
SKY, BLOCK, TABLE, FLOOR = (np.array(x) for x in ([0.93, 0.95, 0.97], [0.91, 0.45, 0.1], [0.83, 0.8, 0.75], [0.7] * 3))
GOAL = np.array([0.82, 0.1, 0.16])
GOAL_RADIUS_M = 0.02


def picture(arm: Arm, size: tuple[int, int] = (165, 180), finer: int = 2) -> np.ndarray:
    """(height, width, 3) uint8, in the colors of the model, with a ball at the goal, which shines through what is in
    front of it. A pixel is the mean of `finer` x `finer` rays."""
    height, width = size[0] * finer, size[1] * finer
    rays, _ = camera_rays((height, width), AT_M, TO_M, FOV_RAD)
    hit, distance_m = cast(arm, AT_M, rays)
    points = AT_M + rays * distance_m[:, None]
    color = np.where((hit >= 0)[:, None], colors(arm)[hit], SKY)
    light = 0.45 + 0.55 * facing(points.reshape(height, width, 3)).reshape(-1) * lit(arm, points)
    color = np.where((hit >= 0)[:, None], color * light[:, None], color)
    ball_m, shade = ball(rays, arm.env.goal)
    cover = np.where(ball_m < distance_m, 1.0, np.where(np.isfinite(ball_m), 0.5, 0.0))[:, None]
    color = cover * GOAL * shade[:, None] + (1 - cover) * color
    pixels = color.reshape(size[0], finer, size[1], finer, 3).mean((1, 3))
    return (np.clip(pixels, 0, 1) * 255).astype(np.uint8)


def cast(arm: Arm, origin: np.ndarray, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each ray the shape it meets (-1: none) and how far away that is."""
    hit, distance = np.empty(len(rays), np.int32), np.empty(len(rays))
    scene = (arm.model, arm.data, origin, np.ascontiguousarray(rays).ravel(), None, 1, arm.mocap)
    mujoco.mj_multiRay(*scene, hit, distance, len(rays), FAR_M)
    return hit, np.where(hit >= 0, distance, FAR_M)


def colors(arm: Arm) -> np.ndarray:
    """(shapes, 3)"""
    names = [arm.model.geom(i).name for i in range(arm.model.ngeom)]
    found = arm.model.geom_rgba[:, :3].astype(np.float64)
    found[names.index("floor0")], found[names.index("object0")] = FLOOR, BLOCK
    found[names.index("object0") - 1] = TABLE
    return found


def facing(points: np.ndarray) -> np.ndarray:
    """(height, width): how much each surface looks towards the light, 0 to 1."""
    down, right = np.gradient(points, axis=0), np.gradient(points, axis=1)
    normal = np.cross(down, right)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True) + 1e-12
    towards = LIGHT_M - points
    towards /= np.linalg.norm(towards, axis=-1, keepdims=True)
    return np.abs((normal * towards).sum(-1))


def lit(arm: Arm, points: np.ndarray) -> np.ndarray:
    """1 where the light reaches a point, less in the shadow."""
    way = points - LIGHT_M
    length = np.linalg.norm(way, axis=1)
    _, reached = cast(arm, LIGHT_M, way / length[:, None])
    return np.where(reached < length - 5e-3, 0.35, 1.0)


def ball(rays: np.ndarray, center_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far away the ball at the goal is along each ray (infinite where it is missed), and its shade."""
    to = center_m - AT_M
    along = rays @ to
    aside2 = to @ to - along**2
    inside = np.sqrt(np.maximum(GOAL_RADIUS_M**2 - aside2, 0))
    met = (aside2 < GOAL_RADIUS_M**2) & (along > 0)
    return np.where(met, along - inside, np.inf), 0.55 + 0.45 * inside / GOAL_RADIUS_M
