"""Cameras by casting rays with MuJoCo, without a GPU or a display: what they see, and the camera on the wrist."""

from __future__ import annotations

import io
from typing import Any

import mujoco
import numpy as np
from PIL import Image

FAR_M = 8.0
SKY, BLOCK, TABLE, FLOOR = (np.array(x) for x in ([0.93, 0.95, 0.97], [0.91, 0.45, 0.1], [0.83, 0.8, 0.75], [0.7] * 3))
LIGHT_M = np.array([2.4, -0.6, 2.8])
WRIST_SIZE = (48, 64)  # height, width
WRIST_FOV_RAD = 1.7  # vertical
WRIST_AT_M, WRIST_TO_M = np.array([-0.1, 0.0, -0.16]), np.array([0.1, 0.0, 0.0])
"""In the axes of the grip, whose x points down and z to the front: behind the hand, looking at what is below it."""
WRIST_NOISE = 2.0  # of 255
JPEG_QUALITY = 90


def camera_rays(
    size: tuple[int, int],
    at_m: np.ndarray,
    to_m: np.ndarray,
    fov_rad: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (pixels, 3) in the world, and their parts along the axis of the camera."""
    height, width = size
    axis = (to_m - at_m) / np.linalg.norm(to_m - at_m)
    right = np.cross(axis, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    down = np.cross(axis, right)
    pixel = 2 * np.tan(fov_rad / 2) / height
    v, u = np.mgrid[:height, :width]
    u, v = (u.ravel() - (width - 1) / 2) * pixel, (v.ravel() - (height - 1) / 2) * pixel
    rays = axis + u[:, None] * right + v[:, None] * down
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    return rays, rays @ axis


def cast(scene: tuple[Any, Any, int], origin: np.ndarray, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each ray the shape it meets (-1: none) and how far away that is. `scene`: model, data, a body to ignore."""
    model, data, ignored = scene
    hit, distance = np.empty(len(rays), np.int32), np.empty(len(rays))
    given = (model, data, origin, np.ascontiguousarray(rays).ravel(), None, 1, ignored)
    mujoco.mj_multiRay(*given, hit, distance, len(rays), FAR_M)
    return hit, np.where(hit >= 0, distance, FAR_M)


def colors(model: Any) -> np.ndarray:
    """(shapes, 3)"""
    names = [model.geom(i).name for i in range(model.ngeom)]
    found = model.geom_rgba[:, :3].astype(np.float64)
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


def wrist_picture(
    scene: tuple[Any, Any, int], shape_colors: np.ndarray, grip: Any, rng: np.random.Generator
) -> np.ndarray:
    """(48, 64, 3) uint8 of the camera that moves with the grip; with noise, and without shadows."""
    turn = grip.xmat.reshape(3, 3)
    at_m, to_m = grip.xpos + turn @ WRIST_AT_M, grip.xpos + turn @ WRIST_TO_M
    rays, _ = camera_rays(WRIST_SIZE, at_m, to_m, WRIST_FOV_RAD)
    hit, distance_m = cast(scene, at_m, rays)
    light = 0.45 + 0.55 * facing((at_m + rays * distance_m[:, None]).reshape(*WRIST_SIZE, 3)).reshape(-1)
    color = np.where((hit >= 0)[:, None], shape_colors[hit] * light[:, None], SKY).reshape(*WRIST_SIZE, 3)
    noisy = 255 * color + rng.normal(scale=WRIST_NOISE, size=color.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def as_jpeg(pixels: np.ndarray) -> np.ndarray:
    """The bytes of the picture, (n,) uint8, as a camera driver sends them."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY)
    return np.frombuffer(file.getvalue(), np.uint8)
