"""Recordings of the honest inputs for loader batches: one stream or three, with the defects of align/stamps.py.

Kinds are those of the stamps, and "edges": episodes shorter than two windows, so that most windows reach out of their
episode. Anchors are rows; moments outside are part of "edges".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import robocache
import torch
from align import stamps
from torch import Tensor

EDGES = "edges"
KINDS = (*(kind for kind in stamps.KINDS if kind != "outside"), EDGES)
CLEAN = {kind: stamps.CLEAN.get(kind, "ramp") for kind in KINDS}
EDGE_ROWS = 24
MAX_EDGES = 60_000  # more than the L2 cache holds; writing more short episodes takes too long
PATTERNS = 16  # different rows of stamps; episodes take them in turn
NOISE_OFFSETS = 997


@dataclass(frozen=True)
class Stream:
    name: str
    rate_hz: float
    channels: int


class Recording:
    """`num_rows` of the first stream per episode; the others cover the same time. Values are bfloat16 noise."""

    def __init__(self, kind: str, streams: tuple[Stream, ...], num_episodes: int, num_rows: int) -> None:
        if kind == EDGES:
            num_episodes, num_rows = min(MAX_EDGES, num_episodes * num_rows // EDGE_ROWS), EDGE_ROWS
        self.kind, self.streams, self.num_episodes = kind, streams, num_episodes
        self.span_s = num_rows / streams[0].rate_hz
        rng = np.random.default_rng(0)
        self.rows = {s.name: round(self.span_s * s.rate_hz) for s in streams}
        self._noise = {
            s.name: bfloat16(rng, (self.rows[s.name] + min(NOISE_OFFSETS, num_episodes), s.channels)) for s in streams
        }

    @cached_property
    def _patterns(self) -> dict[str, np.ndarray]:
        """(PATTERNS, rows) int64 nanoseconds; "one duplicate" is a ramp but for one episode, see times_ns."""
        torch.manual_seed(0)
        kind = "ramp" if self.kind in (EDGES, "one duplicate") else self.kind
        found = {}
        for stream in self.streams:
            seconds = stamps.make_seconds(PATTERNS, self.rows[stream.name], kind, self.span_s)
            ns = (seconds * 1e9).round().long().numpy()
            if kind == "ramp":  # exact multiples of the period from 0, as a recorder at a fixed rate writes them
                ns[:] = np.round(np.arange(self.rows[stream.name]) * (1e9 / stream.rate_hz)).astype(np.int64)
            found[stream.name] = ns
        return found

    def times_ns(self, stream: str, episode: int) -> np.ndarray:
        times = self._patterns[stream][episode % PATTERNS]
        if self.kind == "one duplicate" and stream == self.streams[0].name and episode == self.num_episodes // 2:
            times = times.copy()
            times[len(times) // 2] = times[len(times) // 2 - 1]
        return times

    def values(self, stream: str, episode: int) -> np.ndarray:
        """(rows, channels) uint16: the bits of bfloat16. Rows with the same stamp have the same values."""
        begin = episode % min(NOISE_OFFSETS, self.num_episodes)
        values = self._noise[stream][begin : begin + self.rows[stream]]
        if self.kind not in stamps.DUPLICATED:
            return values
        times = self.times_ns(stream, episode)
        return values[np.searchsorted(times, times)]

    def write(self, path: Path) -> robocache.Cache:
        specs = {s.name: robocache.StreamSpec(s.name, "bfloat16", (s.channels,), rate_hz=s.rate_hz)
                 for s in self.streams}  # fmt: skip
        writer = robocache.CacheWriter(path, specs)
        for e in range(self.num_episodes):
            made = {
                name: robocache.EpisodeStream(spec, self.values(name, e), self.times_ns(name, e))
                for name, spec in specs.items()
            }
            writer.add(robocache.Episode(e, made))
        return writer.commit()

    def all_values(self, stream: str, device: str) -> Tensor:
        """(N, channels) bfloat16, episode after episode."""
        bits = np.concatenate([self.values(stream, e) for e in range(self.num_episodes)])
        return torch.from_numpy(bits).view(torch.bfloat16).to(device)

    def all_times(self, stream: str, device: str) -> Tensor:
        """(N,) int64 nanoseconds, from the start of each episode."""
        times = torch.from_numpy(self._patterns[stream]).to(device)
        every = times[torch.arange(self.num_episodes, device=device) % PATTERNS]
        middle = self.num_episodes // 2
        every[middle] = torch.from_numpy(self.times_ns(stream, middle)).to(device)
        return every.view(-1)


def bfloat16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
