"""What a policy sees and does at a moment: one table of windows, for `robocache.Loader` in training and for `Live` in
rollout.

Times are those of arrival (`log_time`), and what is observed is the last row that had arrived (`previous`). So a batch
holds nothing that a running robot would not have had. The controller wakes up a little early or late, so its commands
are the nearest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import robocache
import torch
from robocache import Window
from simulate import CONTROL_HZ, Message

CLOCK = "log_time"
GRIPPER, BLOCK, GOAL = "/arm/pose/position", "/block/pose/position", "/goal/pose/position"
FINGERS, SETPOINT, OPENING = "/gripper/state/position", "/arm/command/position", "/gripper/command/position"
OBSERVED = ("/arm/joint_states/position", GRIPPER, "/arm/wrench/force", FINGERS, BLOCK, GOAL)
CAMERA = "/camera/depth"
COMMANDS = (SETPOINT, OPENING)
PAST, CHUNK = 3, 8  # moments of what is felt: now, 40 and 80 ms ago; and of what is done: from now on

FELT = Window(past=(PAST - 1) / CONTROL_HZ, rate_hz=CONTROL_HZ, method="previous")
SEEN = Window(deltas=[0.0], method="previous")
DONE = Window(future=(CHUNK - 1) / CONTROL_HZ, rate_hz=CONTROL_HZ, method="nearest")
WINDOWS = {**dict.fromkeys(OBSERVED, FELT), CAMERA: SEEN, **dict.fromkeys(COMMANDS, DONE)}

Batch = dict[str, torch.Tensor]


def load(cache: robocache.Cache, part: str, share: float, batch_size: int, seed: int = 0) -> robocache.Loader:
    """A sample for each command of the episodes of one part, `train` or `validation`, that has this share of them all.

    Of each stream (B, moments, channels), of the camera (B, 1, height, width), all of it normalized float32; and
    `<stream>_is_pad` (B, moments) where the episode was over. The validation is read in order, and whole.
    """
    training = part == "train"
    return robocache.Loader(
        cache,
        batch_size,
        WINDOWS,
        anchors=SETPOINT,
        split=(part, share),
        normalize=dict.fromkeys(WINDOWS, "mean_std"),
        shuffle=training,
        drop_last=training,
        seed=seed,
        tier="memory",
    )


def epochs(loader: robocache.Loader) -> Iterator[Batch]:
    """One after the other, each in an order of its own, without end."""
    while True:
        yield from loader


class Live:
    """What a running robot has heard so far, through the windows of the training: not normalized."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[list[np.ndarray], list[int]]] = {name: ([], []) for name in (*OBSERVED, CAMERA)}
        self.heard = 0

    def observe(self, messages: Sequence[Message], anchor_ns: int) -> Batch:
        """`messages` is the list of the robot, which grows; messages that arrive after `anchor_ns` are not seen."""
        for message in messages[self.heard :]:
            for part, values in message.parts.items():
                rows = self.rows.get(f"{message.topic}/{part}" if part else message.topic)
                if rows is not None:
                    rows[0].append(values if message.kind == "depth" else values.astype(np.float32))
                    rows[1].append(message.log_ns)
        self.heard = len(messages)
        return {name: self._look(name, anchor_ns) for name in self.rows}

    def _look(self, name: str, anchor_ns: int) -> torch.Tensor:
        values, times = (torch.from_numpy(np.array(x)) for x in self.rows[name])
        stream = robocache.Stream(values, times, method=WINDOWS[name].method)
        targets = anchor_ns + torch.tensor([WINDOWS[name].deltas_ns])
        return robocache.align(stream, targets).values
