"""Tables with the access of ``datasets.Dataset``: a column by its name, a row by its number, rows as lists."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def row_number(index: Any, num_rows: int, what: str) -> int:
    """An index from the end is negative, as in a list."""
    try:
        at = operator.index(index)
    except TypeError:
        raise TypeError(f"{what}: index must be a whole number, got {index!r}") from None
    if not -num_rows <= at < num_rows:
        raise IndexError(f"{what}: index must be in [{-num_rows}, {num_rows}), got {at}")
    return at % num_rows


class Table:
    """Columns by name, as lists. ``table["length"]``, ``table[3]``, ``table[2:5]``, ``table[[0, 2]]``.

    >>> episodes = Table({"length": [5, 7], "tasks": [["pour"], ["lift"]]})
    >>> episodes[1], episodes["length"]
    ({'length': 7, 'tasks': ['lift']}, [5, 7])
    """

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self.num_rows = len(next(iter(columns.values()), []))

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        if isinstance(key, slice):
            return {name: column[key] for name, column in self._columns.items()}
        if isinstance(key, Sequence | np.ndarray | range):
            rows = [row_number(k, self.num_rows, "episodes") for k in key]
            return {name: [column[row] for row in rows] for name, column in self._columns.items()}
        row = row_number(key, self.num_rows, "episodes")
        return {name: column[row] for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(self.num_rows))

    def filter(self, keep: Callable[[dict[str, Any]], bool], **_: Any) -> Table:
        """The rows for which ``keep(row)`` is true. Other options of ``datasets.Dataset.filter`` have no effect."""
        rows = [row for row in range(self.num_rows) if keep(self[row])]
        return Table({name: [column[row] for row in rows] for name, column in self._columns.items()})

    def to_pandas(self) -> Any:
        return importlib.import_module("pandas").DataFrame(self._columns)

    def __repr__(self) -> str:
        return f"Table({self.num_rows} rows of {', '.join(self._columns)})"


class Column(Sequence[Any]):
    """One column of the frames. Values are read when they are indexed."""

    def __init__(self, frames: FrameTable, name: str) -> None:
        self._frames, self._name = frames, name

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            key = range(*key.indices(len(self)))
        if isinstance(key, Sequence | np.ndarray):
            return [self[k] for k in key]
        return self._frames.value(self._name, row_number(key, len(self), f"hf_dataset[{self._name!r}]"))

    def to_numpy(self) -> NDArray[Any]:
        return np.array([value.numpy() for value in self])


class FrameTable:
    """The frames as ``LeRobotDataset.hf_dataset`` has them: without videos, windows and transforms.

    ``value(name, row)`` reads one value of a row in ``range(num_rows)``.
    """

    def __init__(self, names: Sequence[str], num_rows: int, value: Callable[[str, int], Any]) -> None:
        self.column_names, self.num_rows, self.value = list(names), num_rows, value

    def __len__(self) -> int:
        return self.num_rows

    @property
    def data(self) -> FrameTable:
        return self

    def column(self, name: str) -> Column:
        if name not in self.column_names:
            raise KeyError(f"hf_dataset has no column {name!r}, only {', '.join(self.column_names)}")
        return Column(self, name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            key = range(*key.indices(len(self)))
        if isinstance(key, Sequence | np.ndarray):
            return {name: self.column(name)[key] for name in self.column_names}
        row = row_number(key, self.num_rows, "LeRobotDataset")
        return {name: self.value(name, row) for name in self.column_names}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(self.num_rows))

    def select_columns(self, names: str | Sequence[str]) -> FrameTable:
        chosen = [names] if isinstance(names, str) else list(names)
        for name in chosen:
            self.column(name)
        return FrameTable(chosen, self.num_rows, self.value)

    def unique(self, name: str) -> list[Any]:
        return list(dict.fromkeys(self.column(name).to_numpy().tolist()))

    def __repr__(self) -> str:
        return f"FrameTable({self.num_rows} rows of {', '.join(self.column_names)})"
