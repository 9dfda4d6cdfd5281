"""What the loader is measured against: the usual way to read windows of recordings in memory, in our own words.

The sampler is that of Diffusion Policy: recordings one after the other in one array per key, an index of four numbers
for each window, a copy of each window, edges repeated where it reaches out of its episode. Around it a map-style
dataset and torch's DataLoader. Plain PyTorch is what is left without them: one gather for all windows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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


def data_loader(sampler: SequenceSampler, order: Sequence[int], batch_size: int, workers: int) -> DataLoader[Any]:
    """The order is given, so that everybody reads the same windows."""
    return DataLoader(
        WindowDataset(sampler), batch_size, sampler=order, num_workers=workers, drop_last=True,  # type: ignore[arg-type]
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
