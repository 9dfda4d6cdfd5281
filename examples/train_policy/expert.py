"""The scripted expert: above the block, down, grasp, to the goal. It sees the true state; it remembers nothing."""

from __future__ import annotations

import numpy as np
from simulate import OPEN_M, REACH_M, State

ABOVE = np.array([0.0, 0.0, 0.06])  # m
GAIN = 0.7
GRASPED_M = 0.052  # between the fingers; the block is 5 cm wide


def act(state: State) -> tuple[np.ndarray, float]:
    """The next setpoint (3,) and the opening of the gripper."""
    waypoint, opening_m = plan(state)
    return state.gripper + np.clip(GAIN * (waypoint - state.gripper), -REACH_M, REACH_M), opening_m


def plan(state: State) -> tuple[np.ndarray, float]:
    away = state.block - state.gripper
    aside = float(np.linalg.norm(away[:2]))
    if aside < 0.02 and abs(away[2]) < 0.015:  # the block is between the fingers
        return (state.goal - away, 0.0) if state.opening_m < GRASPED_M else (state.block, 0.0)
    if aside < min(0.012 + 0.5 * max(0.0, -away[2]), 0.025):  # right below
        return state.block, OPEN_M
    return state.block + ABOVE, OPEN_M
