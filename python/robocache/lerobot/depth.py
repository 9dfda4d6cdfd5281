"""Depth as LeRobot returns it: codes of a video or values of a picture to float32 meters or millimeters."""

from __future__ import annotations

import math

import torch

from ..sources.lerobot.depth import LAST_CODE, MM_PER_M, Quantizer

UNITS = ("m", "mm")


def depth_of_codes(codes: torch.Tensor, quantizer: Quantizer, unit: str) -> torch.Tensor:
    """Codes (..., 1, height, width) to float32 of the same shape. Each step rounds to float32, in LeRobot's order, so
    that the bits are the same."""
    low, high, shift = quantizer.depth_min, quantizer.depth_max, quantizer.shift
    begin, end = (math.log(low + shift), math.log(high + shift)) if quantizer.use_log else (low, high)
    depth = codes.squeeze(-3).to(torch.float32, copy=True)
    depth.mul_((end - begin) / LAST_CODE).add_(begin)
    if quantizer.use_log:
        depth.exp_().sub_(shift)
    depth.clamp_(low, high)
    if unit == "mm":
        depth.mul_(MM_PER_M).round_().clamp_(0.0, 65535.0)
    return depth.unsqueeze_(-3)


def converted(depth: torch.Tensor, stored: str | None, unit: str) -> torch.Tensor:
    """``stored``: the unit of the values; None where the dataset does not state one, and they stay as they are."""
    if stored is None or stored == unit:
        return depth
    return depth * MM_PER_M if stored == "m" else depth / MM_PER_M
