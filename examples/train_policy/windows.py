"""What a policy sees and does at a moment: one `observe` reads the cache in training and the robot in rollout.

Times are those of arrival (`log_time`), and what is observed is the last row that had arrived (`previous`). So a batch
holds nothing that a running robot would not have had.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import robocache
import torch
from simulate import CONTROL_HZ, Message

CLOCK = "log_time"
GRIPPER, BLOCK, GOAL = "/arm/pose/position", "/block/pose/position", "/goal/pose/position"
FINGERS, SETPOINT, OPENING = "/gripper/state/position", "/arm/command/position", "/gripper/command/position"
OBSERVED = ("/arm/joint_states/position", GRIPPER, "/arm/wrench/force", FINGERS, BLOCK, GOAL)
CAMERA = "/camera/depth"
COMMANDS = (SETPOINT, OPENING)
STEP_NS = 10**9 // CONTROL_HZ
PAST_DELTAS_NS = torch.arange(-2, 1) * STEP_NS  # what is felt: now, 40 and 80 ms ago
NOW_NS = torch.zeros(1, dtype=torch.int64)  # what is seen: the last picture
CHUNK = 8
FUTURE_DELTAS_NS = torch.arange(CHUNK) * STEP_NS  # what is done: from now on

Batch = dict[str, torch.Tensor]
Streams = Mapping[str, robocache.Stream]


def observe(streams: Streams, episode: torch.Tensor, anchor_ns: torch.Tensor) -> Batch:
    """As it was at the anchors `(B,)` of the episodes `(B,)`: of each observed stream (B, past, channels) float32, and
    of the camera (B, 1, height, width) uint16."""
    felt = {name: streams[name] for name in OBSERVED}
    batch = robocache.align(felt, episode=episode, anchor=anchor_ns, deltas=PAST_DELTAS_NS).values
    picture = robocache.align(streams[CAMERA], episode=episode, anchor=anchor_ns, deltas=NOW_NS).values
    return {**batch, CAMERA: picture}


def demonstrate(streams: Streams, episode: torch.Tensor, anchor_ns: torch.Tensor) -> Batch:
    """The commands from the anchors on: `action (B, CHUNK, 4)`, and `action_is_pad` where the episode was over."""
    asked = {name: streams[name] for name in COMMANDS}
    values, valid, _ = robocache.align(asked, episode=episode, anchor=anchor_ns, deltas=FUTURE_DELTAS_NS)
    return {"action": torch.cat([values[name] for name in COMMANDS], -1), "action_is_pad": ~valid[SETPOINT]}


def stream(name: str, values: np.ndarray, times: np.ndarray, offsets: np.ndarray) -> robocache.Stream:
    """Sensors as last heard. The controller wakes up a little early or late, so its commands are the nearest."""
    method = "nearest" if name in COMMANDS else "previous"
    values = values if name == CAMERA else values.astype(np.float32)
    tensors = (torch.from_numpy(x) for x in (values, times, offsets))
    return robocache.Stream(*tensors, method=method)


def load(cache: robocache.Cache, episodes: Sequence[int]) -> dict[str, robocache.Stream]:
    """The streams of these episodes, one after the other."""
    parts = [cache.episode(i).streams for i in episodes]
    streams = {}
    for name in (*OBSERVED, CAMERA, *COMMANDS):
        rows = [part[name] for part in parts]
        offsets = np.cumsum([0, *(len(r) for r in rows)]).astype(np.int64)
        values, times = np.concatenate([r.values for r in rows]), np.concatenate([r.times for r in rows])
        streams[name] = stream(name, values, times, offsets)
    return streams


def batches(cache: robocache.Cache, episodes: Sequence[int], batch_size: int, seed: int | None) -> Iterator[Batch]:
    """A sample for each command of the episodes: epoch after epoch, each in an order of its own, without end; or, where
    `seed` is None, once and in order. The last batch of an epoch is smaller.

    `robocache.Loader(cache, batch_size, windows)` will take the place of this function; nothing else here knows how a
    batch is made.
    """
    streams = load(cache, episodes)
    anchors, offsets = streams[SETPOINT].times, streams[SETPOINT].offsets
    episode_of = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
    for epoch in itertools.count():
        order = torch.arange(len(anchors))
        if seed is not None:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            order = torch.randperm(len(anchors), generator=generator)
        for rows in order.split(batch_size):
            where = (streams, episode_of[rows], anchors[rows])
            yield {**observe(*where), **demonstrate(*where)}
        if seed is None:
            return


class Live:
    """The streams of a running robot: what `load` would give of the messages so far."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[list[np.ndarray], list[int]]] = {name: ([], []) for name in (*OBSERVED, CAMERA)}
        self.heard = 0

    def observe(self, messages: Sequence[Message], anchor_ns: int) -> Batch:
        """`messages` is the list of the robot, which grows; messages that arrive after `anchor_ns` are not seen."""
        for message in messages[self.heard :]:
            for part, values in message.parts.items():
                rows = self.rows.get(f"{message.topic}/{part}" if part else message.topic)
                if rows is not None:
                    rows[0].append(values)
                    rows[1].append(message.log_ns)
        self.heard = len(messages)
        streams = {
            name: stream(name, np.array(values), np.array(times), np.array([0, len(times)]))
            for name, (values, times) in self.rows.items()
        }
        return observe(streams, torch.zeros(1, dtype=torch.int64), torch.tensor([anchor_ns]))
