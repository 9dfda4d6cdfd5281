"""What a policy sees and does at a moment: one table of windows, for `robocache.Loader` in training and for `Live` in
rollout.

Times are those of arrival (`log_time`), and what is observed is the last row that had arrived (`previous`). So a batch
holds nothing that a running robot would not have had. The controller wakes up a little early or late, so its commands
are the nearest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import robocache
import torch
from camera import WRIST_SIZE
from robocache import CenterCrop, ColorJitter, Image, RandomCrop, Window
from simulate import CONTROL_HZ, Message

CLOCK = "log_time"
GRIPPER, BLOCK, GOAL = "/arm/pose/position", "/block/pose/position", "/goal/pose/position"
FINGERS, SETPOINT, OPENING = "/gripper/state/position", "/arm/command/position", "/gripper/command/position"
OBSERVED = ("/arm/joint_states/position", GRIPPER, "/arm/wrench/force", FINGERS, GOAL)
WRIST = "/wrist/image/compressed"
COMMANDS = (SETPOINT, OPENING)
PAST, CHUNK = 3, 8  # moments of what is felt: now, 40 and 80 ms ago; and of what is done: from now on

FELT = Window(past=(PAST - 1) / CONTROL_HZ, rate_hz=CONTROL_HZ, method="previous")
IMAGE = Image(size=(36, 48), crop=CenterCrop(0.95), layout="CHW", dtype="float32")
"""What the policy sees of a picture of the wrist camera."""
SHAKEN = dataclasses.replace(IMAGE, crop=RandomCrop(0.95), color=ColorJitter(0.2, 0.2, 0.2))
"""The same in training: cut elsewhere and in other light each time, as another camera of the same kind would see it."""
SEEN = Window(deltas=[0.0], method="previous", image=IMAGE)
WHERE = Window(deltas=[0.0], method="nearest")
"""Where the block is, by a tracker: training tells the policy what it should have seen. A rollout has no tracker."""
DONE = Window(future=(CHUNK - 1) / CONTROL_HZ, rate_hz=CONTROL_HZ, method="nearest")
WINDOWS = {**dict.fromkeys(OBSERVED, FELT), WRIST: SEEN, BLOCK: WHERE, **dict.fromkeys(COMMANDS, DONE)}
NUMBERS = tuple(name for name in WINDOWS if name != WRIST)
"""Streams that are normalized by the statistics of the cache."""

Batch = dict[str, torch.Tensor]


def load(cache: robocache.Cache, part: str, share: float, batch_size: int, seed: int = 0) -> robocache.Loader:
    """A sample for each command of the episodes of one part, `train` or `validation`, that has this share of them all.

    Of each stream (B, moments, channels), normalized float32, of the camera (B, 1, 3, height, width) from 0 to 1; and
    `<stream>_is_pad` (B, moments) where the episode was over. The validation is read in order, and whole, without
    random edits of pictures.
    """
    training = part == "train"
    windows = {**WINDOWS, WRIST: dataclasses.replace(SEEN, image=SHAKEN if training else IMAGE)}
    return robocache.Loader(
        cache,
        batch_size,
        windows,
        anchors=SETPOINT,
        split=(part, share),
        normalize=dict.fromkeys(NUMBERS, "mean_std"),
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
        self.rows: dict[str, tuple[list[np.ndarray], list[int]]] = {name: ([], []) for name in (*OBSERVED, WRIST)}
        self.heard = 0

    def observe(self, messages: Sequence[Message], anchor_ns: int) -> Batch:
        """`messages` is the list of the robot, which grows; messages that arrive after `anchor_ns` are not seen."""
        for message in messages[self.heard :]:
            for part, values in message.parts.items():
                rows = self.rows.get(f"{message.topic}/{part}" if part else message.topic)
                if rows is not None:
                    rows[0].append(values if message.kind == "picture" else values.astype(np.float32))
                    rows[1].append(message.log_ns)
        self.heard = len(messages)
        return {name: self._look(name, anchor_ns) for name in self.rows}

    def _look(self, name: str, anchor_ns: int) -> torch.Tensor:
        rows, times = self.rows[name][0], torch.tensor(self.rows[name][1])
        values = torch.arange(len(rows)) if name == WRIST else torch.from_numpy(np.array(rows))
        stream = robocache.Stream(values, times, method=WINDOWS[name].method)
        targets = anchor_ns + torch.tensor([WINDOWS[name].deltas_ns])
        found = robocache.align(stream, targets).values
        return picture_seen(rows[int(found)]) if name == WRIST else found


def picture_seen(jpeg: np.ndarray) -> torch.Tensor:
    """(1, 1, 3, height, width), as the loader decodes and crops it: one call of the same function."""
    height, width = IMAGE.cropped(WRIST_SIZE)
    top, left = (WRIST_SIZE[0] - height) // 2, (WRIST_SIZE[1] - width) // 2
    pixels = robocache.decode_images(
        [jpeg.tobytes()],
        crop=(left, top, left + width, top + height),
        size=IMAGE.size,
        layout=IMAGE.layout,
        dtype=IMAGE.dtype,
    )
    return torch.from_numpy(pixels)[None]
