"""What the loader is measured against: the usual way to read windows of recordings in memory, in our own words.

The sampler is that of Diffusion Policy: recordings one after the other in one array per key, an index of four numbers
for each window, a copy of each window, edges repeated where it reaches out of its episode. Around it a map-style
dataset and torch's DataLoader. That of robomimic keeps an array for each episode and key, and says what was repeated.
Plain PyTorch is what is left without them: one gather for all windows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Recordings:
    """``arrays[key]`` holds the rows of all episodes; episode e ends before row ``ends[e]``."""

    def __init__(self, arrays: dict[str, np.ndarray], ends: np.ndarray) -> None:
        self.arrays, self.ends = arrays, ends


def window_index(ends: np.ndarray, length: int, pad_before: int, pad_after: int) -> np.ndarray:
    """For each window: rows [a, b) of the recordings that go to places [c, d) of it."""
    found = []
    begin = 0
    for end in ends.tolist():
        size = end - begin
        for first in range(-pad_before, size - length + pad_after + 1):
            a, b = max(first, 0), min(first + length, size)
            found.append((begin + a, begin + b, a - first, length - (first + length - b)))
        begin = end
    return np.array(found, np.int64)


class SequenceSampler:
    def __init__(self, recordings: Recordings, length: int, pad_before: int, pad_after: int) -> None:
        self.recordings, self.length = recordings, length
        self.index = window_index(recordings.ends, length, pad_before, pad_after)

    def __len__(self) -> int:
        return len(self.index)

    def sample(self, i: int) -> dict[str, np.ndarray]:
        a, b, c, d = self.index[i]
        windows = {}
        for key, array in self.recordings.arrays.items():
            rows = array[a:b]
            window = rows
            if c > 0 or d < self.length:
                window = np.zeros((self.length, *array.shape[1:]), array.dtype)
                if c > 0:
                    window[:c] = rows[0]
                if d < self.length:
                    window[d:] = rows[-1]
                window[c:d] = rows
            windows[key] = window
        return windows


class WindowDataset(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, sampler: SequenceSampler) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {key: torch.from_numpy(window) for key, window in self.sampler.sample(i).items()}


class RobomimicDataset(Dataset[dict[str, torch.Tensor]]):
    """robomimic's SequenceDataset with both paddings and the pad mask, low-dimensional data in memory.

    Row i of an episode begins a sequence: ``frame_stack - 1`` rows before it and ``seq_length`` from it on. Actions and
    observations are cut by a call each; edges are repeated and put around the slice by one concatenation.
    """

    def __init__(self, recordings: Recordings, seq_length: int, frame_stack: int) -> None:
        self.seq_length, self.num_before = seq_length, frame_stack - 1
        firsts = np.concatenate([[0], recordings.ends[:-1]]).tolist()
        ends = recordings.ends.tolist()
        self.demos = [
            {key: array[begin:end] for key, array in recordings.arrays.items()}
            for begin, end in zip(firsts, ends, strict=True)
        ]
        self.firsts, self.lengths = firsts, np.diff([0, *ends]).tolist()
        self.demo_of = {row: demo for demo, begin in enumerate(firsts) for row in range(begin, ends[demo])}
        self.groups = [[key for key in recordings.arrays if (key == "obs") == observed] for observed in (False, True)]

    def __len__(self) -> int:
        return len(self.demo_of)

    def sequence(self, demo: int, row: int, keys: list[str]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        length = self.lengths[demo]
        begin, end = max(0, row - self.num_before), min(length, row + self.seq_length)
        before, after = max(0, self.num_before - row), max(0, row + self.seq_length - length)
        found = {}
        for key in keys:
            rows = self.demos[demo][key][begin:end]
            first = [np.repeat(rows[[0]], before, axis=0)] if before > 0 else []
            last = [np.repeat(rows[[-1]], after, axis=0)] if after > 0 else []
            found[key] = np.concatenate([*first, rows, *last], axis=0)
        mask = np.array([0] * before + [1] * (end - begin) + [0] * after)
        return found, mask[:, None].astype(bool)

    def __getitem__(self, i: int) -> dict[str, Any]:
        demo = self.demo_of[i]
        item: dict[str, Any] = {}
        for keys in self.groups:
            found, item["pad_mask"] = self.sequence(demo, i - self.firsts[demo], keys)
            item |= found
        return item


def data_loader(
    sampler: SequenceSampler | RobomimicDataset, order: Sequence[int], batch_size: int, workers: int
) -> DataLoader[Any]:
    """The order is given, so that everybody reads the same windows."""
    dataset = WindowDataset(sampler) if isinstance(sampler, SequenceSampler) else sampler
    return DataLoader(
        dataset, batch_size, sampler=order, num_workers=workers, drop_last=True,  # type: ignore[arg-type]
        persistent_workers=workers > 0,
    )  # fmt: skip


class Gather:
    """Plain PyTorch: the rows of all windows of a batch at once, clamped to their episodes; and where they were not."""

    def __init__(self, recordings: Recordings, length: int, before: int) -> None:
        self.values = {key: torch.from_numpy(array) for key, array in recordings.arrays.items()}
        ends = torch.from_numpy(recordings.ends)
        sizes = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int64))
        self.end = torch.repeat_interleave(ends, sizes)
        self.begin = torch.repeat_interleave(ends - sizes, sizes)
        self.steps = torch.arange(-before, length - before)

    def batches(self, order: torch.Tensor, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
        for first in range(0, len(order) - batch_size + 1, batch_size):
            anchor = order[first : first + batch_size]
            wanted = anchor[:, None] + self.steps
            rows = torch.minimum(torch.maximum(wanted, self.begin[anchor, None]), self.end[anchor, None] - 1)
            pad = rows != wanted
            batch = {}
            for key, values in self.values.items():
                batch[key], batch[f"{key}_is_pad"] = values[rows], pad
            yield batch


# ---- on the device: free functions of tensors, which torch.compile compiles once per shape ---------------------------


def row_windows(values: torch.Tensor, steps: torch.Tensor, rows: int, anchor_rows: torch.Tensor) -> torch.Tensor:
    """Windows of evenly spaced rows: rows of the epoch, clamped to their episode of `rows`, one gather."""
    first = (anchor_rows // rows * rows)[:, None]
    index = (anchor_rows[:, None] + steps).clamp(first, first + (rows - 1))
    return values[index]


EPISODE_NS = 1 << 40  # longer than any episode: puts all episodes on one time axis


class Searched(NamedTuple):
    """A stream of episodes of `rows` rows each, ready for one search. `key`: times moved apart by EPISODE_NS."""

    values: torch.Tensor
    times: torch.Tensor
    key: torch.Tensor
    deltas: torch.Tensor
    offset: torch.Tensor
    scale: torch.Tensor
    rows: int


def searched(values: torch.Tensor, times: torch.Tensor, rows: int, deltas_ns: Sequence[int],
             offset: Any = 0.0, scale: Any = 1.0) -> Searched:  # fmt: skip
    episode = torch.arange(len(times), device=times.device) // rows
    deltas = torch.tensor(deltas_ns, device=times.device)
    of_channels = [torch.as_tensor(x, dtype=torch.float32, device=times.device) for x in (offset, scale)]
    return Searched(values, times, times + episode * EPISODE_NS, deltas, *of_channels, rows)


def rows_before(stream: Searched, episode: torch.Tensor, anchor_ns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The row before each moment, (B, steps), with a row after it in its episode; and the moments."""
    moments = anchor_ns[:, None] + stream.deltas
    first = (episode * stream.rows)[:, None]
    found = torch.searchsorted(stream.key, moments + (episode * EPISODE_NS)[:, None], right=True) - 1
    return found.clamp(first, first + (stream.rows - 2)), moments


def search_windows(stream: Searched, episode: torch.Tensor, anchor_ns: torch.Tensor) -> torch.Tensor:
    """Windows of any recording: one search, two gathers, linear interpolation in float32, (x - offset) * scale."""
    left, moments = rows_before(stream, episode, anchor_ns)
    t_left, t_right = stream.times[left], stream.times[left + 1]
    weight = ((moments - t_left).float() / (t_right - t_left).float()).nan_to_num(1.0).clamp(0, 1)[..., None]
    window = torch.lerp(stream.values[left].float(), stream.values[left + 1].float(), weight)
    return ((window - stream.offset) * stream.scale).to(stream.values.dtype)


def search_streams(streams: tuple[Searched, ...], episode: torch.Tensor, anchor_ns: torch.Tensor) -> torch.Tensor:
    """The windows of several streams side by side."""
    return torch.cat([search_windows(stream, episode, anchor_ns) for stream in streams], -1)


def touched_rows(stream: Searched, episode: torch.Tensor, anchor_ns: torch.Tensor) -> int:
    """Different rows that the windows of a batch need, counted window by window."""
    left = rows_before(stream, episode, anchor_ns)[0]
    both, _ = torch.cat([left, left + 1], 1).sort(1)
    return int((both[:, 1:] != both[:, :-1]).sum()) + len(both)
