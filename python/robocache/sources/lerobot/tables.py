"""The Parquet files of a LeRobot dataset: what they declare is checked before it is read, and no more is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ..reading.budget import Budget
from ..reading.paths import need

META_EXPANSION = 1000
MIN_META_BYTES = 256 << 20
"""What a table of meta/ may take in memory: at least this, else so many times its size."""
DICTIONARY_BYTES = 2 << 20
"""Writers end a dictionary at 1 MB, and go on without it. A larger column has most of its values once."""


class Tables:
    """Reads tables, and keeps the footer of the last file: with a row group for each episode it is long."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._last: tuple[Any, Any, NDArray[np.int64]] | None = None

    def columns(self, path: Path) -> list[str]:
        """The names of its columns."""
        try:
            return list(self._footer(path)[0].schema.to_arrow_schema().names)
        except (OSError, ValueError) as error:
            raise FormatError(f"lerobot: {path}: {error}") from error

    def num_rows(self, path: Path) -> int:
        """The rows of all row groups."""
        try:
            return int(self._footer(path)[0].num_rows)
        except (OSError, ValueError) as error:
            raise FormatError(f"lerobot: {path}: {error}") from error

    def episode(self, path: Path, index: int, wanted: Collection[str]) -> Any:
        """The rows of an episode, of the wanted columns that are there. Reads only row groups that may have some."""
        try:
            footer, bounds = self._footer(path)
            groups = np.flatnonzero((bounds[:, 0] <= index) & (index <= bounds[:, 1])).tolist()
            table = self._read(path, footer, groups, [*wanted, "episode_index"], self.budget)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:  # pyarrow's, and odd statistics
            raise FormatError(f"lerobot: {path}: {error}") from error
        if "episode_index" in table.column_names:
            number = table.column("episode_index").to_numpy()
            table = table.filter(number == index)
        return table

    def pieces(self, path: Path, name: str) -> Iterator[tuple[int, Any]]:
        """(episode, rows of the column), row group by row group; nothing where the file lacks one of the columns."""
        try:
            footer, _ = self._footer(path)
            if not {name, "episode_index"} <= set(footer.schema.to_arrow_schema().names):
                return
            for group in range(footer.num_row_groups):
                table = self._read(path, footer, [group], [name, "episode_index"], self.budget)
                episodes = table.column("episode_index").to_numpy()
                for episode in dict.fromkeys(episodes.tolist()):
                    yield episode, table.column(name).filter(episodes == episode)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise FormatError(f"lerobot: {path}: {error}") from error

    def whole(self, path: Path, wanted: Collection[str] | None = None) -> Any:
        """A table of meta/. Its limit follows from its size: texts and lists take more than what is stored."""
        size = path.stat().st_size
        try:
            footer, _ = self._footer(path)
            names = wanted if wanted is not None else footer.schema.to_arrow_schema().names
            self.budget.check(f"lerobot: {path}", footer.num_rows * 8, size)
            limit = max(MIN_META_BYTES, META_EXPANSION * size)
            total = sum(self._group_bytes(path, footer, group, names) for group in range(footer.num_row_groups))
            if total > limit:
                raise FormatError(f"lerobot: {path} declares {total} bytes, more than the limit of {limit}")
            return self._read(path, footer, list(range(footer.num_row_groups)), names, self.budget)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise FormatError(f"lerobot: {path}: {error}") from error

    def _read(self, path: Path, footer: Any, groups: list[int], wanted: Collection[str], budget: Budget) -> Any:
        parquet = need("pyarrow.parquet", "lerobot")
        total = 0
        for group in groups:
            total += self._group_bytes(path, footer, group, wanted)
            budget.check(f"lerobot: {path}: row group {group}", total, path.stat().st_size)
        names = [name for name in footer.schema.to_arrow_schema().names if name in wanted]
        # A dictionary has a value once, however many rows have it: expanded, 58 KB may become 20 GB.
        for kept in (_dictionaries(footer, groups), None):
            file = parquet.ParquetFile(
                _arrow_file(path), metadata=footer, read_dictionary=kept, page_checksum_verification=True
            )
            try:
                table = file.read_row_groups(groups, columns=names)
                break
            except NotImplementedError:  # several dictionaries in one column of pictures
                if not kept:
                    raise
        budget.count(f"lerobot: {path}", int(table.num_rows))
        return table

    def _footer(self, path: Path) -> tuple[Any, NDArray[np.int64]]:
        """What the file declares, and the first and last episode that each row group may have."""
        state = path.stat()
        key = (path, state.st_mtime_ns, state.st_size)
        if self._last is None or self._last[0] != key:
            footer = need("pyarrow.parquet", "lerobot").ParquetFile(_arrow_file(path)).metadata
            names = [footer.schema.column(i).path for i in range(footer.num_columns)]
            bounds = np.full((footer.num_row_groups, 2), [0, np.iinfo(np.int64).max], np.int64)
            if "episode_index" in names:
                for group in range(footer.num_row_groups):
                    known = footer.row_group(group).column(names.index("episode_index")).statistics
                    if known is not None and known.has_min_max:
                        bounds[group] = known.min, known.max
            self._last = (key, footer, bounds)
        return self._last[1], self._last[2]

    def _group_bytes(self, path: Path, footer: Any, group: int, wanted: Collection[str]) -> int:
        """What reading the wanted columns of a row group takes, by all that the file declares; FormatError where that
        is too much. Rows and values are counted beside bytes: a reader makes room for what is declared first."""
        row_group = footer.row_group(group)
        where = f"lerobot: {path}: row group {group}"
        size, num_rows = 0, int(row_group.num_rows)
        for i in range(footer.num_columns):
            column = row_group.column(i)
            name = column.path_in_schema
            if not any(name == one or name.startswith(f"{one}.") for one in wanted):
                continue
            unpacked, num_values = int(column.total_uncompressed_size), int(column.num_values)
            self.budget.check(where, unpacked, int(column.total_compressed_size))
            if num_values < num_rows:  # rows of lists have more values, of an empty list one
                raise FormatError(f"{where} has {num_rows} rows, its column {i} {num_values} values")
            size += unpacked + num_values * 8
        self.budget.check(where, max(size, num_rows * 8), path.stat().st_size)
        return size


def _arrow_file(path: Path) -> Any:
    """pyarrow takes paths as UTF-8, but names of files are any bytes."""
    return need("pyarrow", "lerobot").OSFile(os.fsencode(path))


def text_column(table: Any, name: str, where: str) -> list[bytes]:
    """The texts of a column. A text that rows share is one object: a dictionary is never expanded."""
    pa = need("pyarrow", "lerobot")
    if name not in table.column_names:
        raise FormatError(f"{where}: the column is missing, but meta/info.json declares it")
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise FormatError(f"{where}: a text is null")
    indices = None
    if pa.types.is_dictionary(column.type):
        indices, column = column.indices.to_pylist(), column.dictionary
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise FormatError(f"{where}: a column of {column.type} where string is declared")
    found: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    if any(text is None for text in found):
        raise FormatError(f"{where}: a text is null")
    return found if indices is None else [found[i] for i in indices]


def _dictionaries(footer: Any, groups: list[int]) -> list[str]:
    """Columns of texts and pictures that are read as dictionaries: those that may be much larger than they declare."""
    found = set()
    for group in groups:
        columns = [footer.row_group(group).column(i) for i in range(footer.num_columns)]
        found |= {
            column.path_in_schema
            for column in columns
            if column.physical_type == "BYTE_ARRAY"
            and column.has_dictionary_page
            and column.total_uncompressed_size < DICTIONARY_BYTES
        }
    return sorted(found)
