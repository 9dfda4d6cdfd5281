"""From the output of a policy back to the robot's command: normalization, rotation and anchor undone."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layout import Part

Arrays = tuple[Any, ...]
ROUNDING = 1e-6
"""Of an angle, in periods."""


class Inverse:
    """Undoes what a feature does to its streams: ``Loader.inverse``.

    Called with values ``(..., D)`` of the feature, as a batch has them, it returns rows ``(..., C)`` of its streams,
    side by side, in float64. Where the feature is one stream that is not rotated, both have the rows of the stream:
    ``(B, T)`` for shape ``()``, ``(B, T, 2, 3)`` for ``(2, 3)``. A relative feature needs ``anchor``: the row of the
    streams that it is relative to, at the anchor, ``(C,)``, or ``(B, C)`` for values ``(B, T, D)``. NumPy arrays and
    torch tensors; gradients flow through the latter.
    """

    def __init__(
        self,
        name: str,
        parts: tuple[Part, ...],
        scale: tuple[Any, Any] | None,
        row: tuple[int, ...] | None = None,
        lows: tuple[float | None, ...] | None = None,
    ) -> None:
        """``row``: the shape of a row in the batch and in the stream, where they are alike. ``lows``: for each number
        of the streams, where the period of an angle begins; None: it is not known, or the angle is not wrapped."""
        self.name, self.parts, self.scale, self.row, self.lows = name, parts, scale, row, lows
        self.width = sum(part.width for part in parts)
        """Numbers of the feature."""
        self.stored_width = sum(part.stored_width for part in parts)
        """Numbers of a row of its streams."""
        self.is_relative = any(part.from_values is not None or part.from_turn is not None for part in parts)

    def __repr__(self) -> str:
        return f"Inverse({self.name!r}, {self.width} numbers to {self.stored_width})"

    def __call__(self, values: Any, anchor: Any = None) -> Any:
        xp, values, shape = self._array("values", values, self.width)
        if self.is_relative != (anchor is not None):
            rule = "be given, because the feature is relative" if self.is_relative else "be None, it is not relative"
            raise ValueError(f"Loader.inverse: anchor of {self.name!r} must {rule}, got {type(anchor).__name__}")
        start = None
        if anchor is not None:
            start = self._array("anchor", anchor, self.stored_width)[1]
            if xp is not np:
                start = xp.as_tensor(start, device=values.device)
            elif not isinstance(start, np.ndarray):
                start = start.detach().cpu().numpy()
            while start.ndim < values.ndim:
                start = start[..., None, :]
            if any(1 not in (a, b) and a != b for a, b in zip(start.shape[-2::-1], values.shape[-2::-1], strict=False)):
                raise ValueError(
                    f"Loader.inverse: anchor of {self.name!r} must be a row, or one for each sample of the values "
                    f"{tuple(values.shape)}, got shape {tuple(np.shape(anchor))}"
                )
        if self.scale is not None:
            offset, scale = (self._like(xp, x, values) for x in self.scale)
            values = values / scale + offset
        made: list[Any] = []
        at = stored = 0
        for part in self.parts:
            found = [values[..., i] for i in range(at, at + part.width)]
            origin = None
            if start is not None:
                origin = [start[..., i] for i in range(stored, stored + part.stored_width)]
            rows = undone(xp, part, found, origin)
            if part.math == "angles" and origin is not None and self.lows is not None:
                rows = [wrapped(xp, x, self.lows[stored + i], part.period) for i, x in enumerate(rows)]
            made += rows
            at, stored = at + part.width, stored + part.stored_width
        wide = np.broadcast_shapes(*(tuple(x.shape) for x in made))
        rows = xp.stack([xp.broadcast_to(x, wide) for x in made], -1)
        return rows if shape is None else rows.reshape(*wide, *shape)

    def _array(self, what: str, given: Any, width: int) -> tuple[Any, Any, tuple[int, ...] | None]:
        """The library, the numbers as ``(..., width)``, and the shape of their rows where it was another one."""
        if type(given).__module__.partition(".")[0] == "torch":
            import torch

            xp: Any = torch
            found = given.to(torch.float64)
        else:
            xp, found = np, np.asarray(given, np.float64)
        shape, row = tuple(found.shape), self.row
        if row is not None and len(row) != 1 and shape[len(shape) - len(row) :] == row:
            return xp, found.reshape(*shape[: len(shape) - len(row)], width), row
        if not shape or shape[-1] != width:
            raise ValueError(
                f"Loader.inverse: {what} of {self.name!r} must have {width} numbers in the last dimension"
                f"{'' if row is None or len(row) == 1 else f', or rows of shape {row}'}, got shape {shape}"
            )
        return xp, found, None

    @staticmethod
    def _like(xp: Any, numbers: Any, values: Any) -> Any:
        return numbers if xp is np else xp.from_numpy(numbers).to(values.device)


def undone(xp: Any, part: Part, x: list[Any], origin: list[Any] | None) -> list[Any]:
    if part.turn is None:
        return x if origin is None else [a + b for a, b in zip(x, origin, strict=True)]
    position, turn = x[: part.num_channels], quaternion_of(xp, part.form, x[part.num_channels :])
    if origin is not None:
        start = stored_quaternion(part.stored, origin[part.num_channels :])
        start = normalized(xp, start)
        turn = product(start, turn)
        if position:
            turned = rotated(start, position)
            position = [a + b for a, b in zip(turned, origin[:3], strict=True)]
    x_, y, z, w = normalized(xp, turn)
    return [*position, *((w, x_, y, z) if part.stored == "quaternion_wxyz" else (x_, y, z, w))]


def wrapped(xp: Any, x: Any, low: float | None, period: float) -> Any:
    """An angle as the stream has it, from ``low`` to a period above. Rounding at the ends is no reason to turn."""
    if low is None:
        return x
    over = (x - low) / period
    inside = (over >= -ROUNDING) & (over <= 1 + ROUNDING)
    return xp.where(inside, x, x - period * xp.floor(over))


def stored_quaternion(form: str, x: list[Any]) -> Arrays:
    return (x[1], x[2], x[3], x[0]) if form == "quaternion_wxyz" else (x[0], x[1], x[2], x[3])


def normalized(xp: Any, q: Arrays) -> Arrays:
    """Of length 1, w >= 0; zeros are no rotation, and NaN stays NaN."""
    length = xp.sqrt(sum(c * c for c in q))
    there = length != 0
    sign = xp.where(q[3] < 0, -xp.ones_like(length), xp.ones_like(length))
    safe = xp.where(there, length, xp.ones_like(length)) * sign
    return (*(c / safe for c in q[:3]), xp.where(there, q[3] / safe, xp.ones_like(length)))


def product(a: Arrays, b: Arrays) -> Arrays:
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return (
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
        aw * bw - ax * bx - ay * by - az * bz,
    )


def rotated(q: Arrays, v: list[Any]) -> list[Any]:
    x, y, z, w = q
    cross = (y * v[2] - z * v[1] + w * v[0], z * v[0] - x * v[2] + w * v[1], x * v[1] - y * v[0] + w * v[2])
    return [
        v[0] + 2 * (y * cross[2] - z * cross[1]),
        v[1] + 2 * (z * cross[0] - x * cross[2]),
        v[2] + 2 * (x * cross[1] - y * cross[0]),
    ]


def quaternion_of(xp: Any, form: str, x: list[Any]) -> Arrays:
    """Of any length. Six numbers need not be exactly orthogonal, nor matrices rotations: the output of a policy is
    made one (Gram-Schmidt)."""
    if form in ("quaternion_xyzw", "quaternion_wxyz"):
        return stored_quaternion(form, x)
    if form == "rotvec":
        angle = xp.sqrt(sum(c * c for c in x))
        small = angle < 1e-9
        safe = xp.where(small, xp.ones_like(angle), angle)
        s = xp.where(small, 0.5 * xp.ones_like(angle), xp.sin(safe / 2) / safe)
        return x[0] * s, x[1] * s, x[2] * s, xp.cos(angle / 2)
    if form == "euler":
        return euler_quaternion(xp, x)
    if form == "6d_columns":
        columns = orthonormal(xp, x[:3], x[3:6])
        rows = [[columns[j][i] for j in range(3)] for i in range(3)]
    else:  # rows: the third one follows from the others
        rows = orthonormal(xp, x[:3], x[3:6])
    return matrix_quaternion(xp, rows)


def euler_quaternion(xp: Any, x: list[Any]) -> Arrays:
    """Roll about x, then pitch about y, then yaw about z: fixed axes."""
    (sr, cr), (sp, cp), (sy, cy) = ((xp.sin(a / 2), xp.cos(a / 2)) for a in x)
    return (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )


def orthonormal(xp: Any, a: list[Any], b: list[Any]) -> list[list[Any]]:
    length = xp.sqrt(sum(c * c for c in a))
    a = [c / length for c in a]
    along = sum(p * q for p, q in zip(a, b, strict=True))
    b = [q - along * p for p, q in zip(a, b, strict=True)]
    length = xp.sqrt(sum(c * c for c in b))
    b = [c / length for c in b]
    return [a, b, [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]]


def matrix_quaternion(xp: Any, m: list[list[Any]]) -> Arrays:
    """From the largest of the four components, which is at least 1/2."""
    t = [1 + m[0][0] - m[1][1] - m[2][2], 1 - m[0][0] + m[1][1] - m[2][2], 1 - m[0][0] - m[1][1] + m[2][2]]
    t.append(1 + m[0][0] + m[1][1] + m[2][2])
    wx, wy, wz = m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]
    xy, xz, yz = m[0][1] + m[1][0], m[0][2] + m[2][0], m[1][2] + m[2][1]
    choices = [(t[0], xy, xz, wx), (xy, t[1], yz, wy), (xz, yz, t[2], wz), (wx, wy, wz, t[3])]
    best, q = t[0], choices[0]
    for size, other in zip(t[1:], choices[1:], strict=True):
        larger = size > best
        q = tuple(xp.where(larger, b, a) for a, b in zip(q, other, strict=True))
        best = xp.where(larger, size, best)
    return q
