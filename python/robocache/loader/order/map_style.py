"""Samples by number, for code that draws its own: torch's samplers and ``DataLoader``."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..loader import Batch, Loader


class SampleDataset:
    """All samples of a loader in ascending order, whatever its rank, shuffle, weights and batch size are.

    ``dataset[i]`` is one row of a batch: a dict without the dimension of the batch. ``dataset[[3, 5, 8]]`` is a batch,
    read in one call. ``dataset[2:9]`` too.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        return f"{self.loader!r}.dataset"

    def __len__(self) -> int:
        return self.loader.num_anchors

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Batch:
        if isinstance(index, slice):
            return self.batch(range(*index.indices(len(self))))
        if isinstance(index, Sequence) or getattr(index, "ndim", 0) == 1:
            return self.batch(index)
        return rows_of(self.batch([index]), 1)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Batch]:
        """Rows of one read; torch's ``DataLoader`` calls it for all samples of a batch."""
        return rows_of(self.batch(indices), len(indices))

    def batch(self, indices: Any) -> Batch:
        """The samples of these numbers, in this order, with repetitions."""
        return self.loader._read_numbers(np.array([self._number(i) for i in indices], np.int64))

    def _number(self, index: Any) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"Loader.dataset: a sample must be a whole number, got {index!r}") from None
        if not -len(self) <= number < len(self):
            raise IndexError(f"Loader.dataset: sample must be from {-len(self)} to {len(self) - 1}, got {number}")
        return number % len(self)


def rows_of(batch: Batch, count: int) -> list[Batch]:
    """The rows of a batch, each by itself. An entry may be a dict or a tuple of entries, made by a ``transform``."""
    for name, values in batch.items():
        require_rows(name, values, count)
    return [{name: row_of(values, i) for name, values in batch.items()} for i in range(count)]


def require_rows(name: str, values: Any, count: int) -> None:
    """Of what a ``transform`` returned: a row for each sample."""
    entries = values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else None
    if entries is not None:
        for entry in entries:
            require_rows(name, entry, count)
        return
    shape = getattr(values, "shape", None)
    if not (hasattr(values, "__len__") if shape is None else len(shape) > 0) or len(values) != count:
        given = type(values).__name__ if shape is None else f"shape {tuple(shape)}"
        raise ValueError(
            f"Loader.dataset: transform of features[{name!r}] must return a row for each of {count} samples, "
            f"got {given}"
        )


def row_of(values: Any, i: int) -> Any:
    if isinstance(values, Mapping):
        return {name: row_of(entry, i) for name, entry in values.items()}
    if isinstance(values, tuple):
        rows = [row_of(entry, i) for entry in values]
        return type(values)(*rows) if hasattr(values, "_fields") else tuple(rows)
    return values[i]
