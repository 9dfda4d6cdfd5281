"""diffusion policy and UMI zarr: data/<key> with time first, cut into episodes by meta/episode_ends. Folder or zip."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import JSON, LeftOut, StreamSpec
from ..reading.budget import BUDGET, Budget
from ..reading.guard import NeedsOption, OptionError
from ..reading.paths import open_regular
from ..reading.repair import Repairer
from ..reading.source import BaseSource, Rows
from ..reading.times import UNITS_NS, checked_rate, times_at_rate
from .arrays import ArrayInfo, ChunkReader, array_infos
from .files import Files, FolderFiles, ZipFiles

TIMES = "timestamp"
ENDS = "meta/episode_ends"


def detect(path: Path) -> bool:
    try:
        if path.is_dir():
            return (path / "meta" / "episode_ends").is_dir() and (path / "data").is_dir()
        if path.is_file():
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                return any(name.startswith("meta/episode_ends/") for name in archive.namelist())
    except (OSError, FormatError, zipfile.BadZipFile, ValueError, NotImplementedError):
        pass
    return False


def open(
    path: Path,
    rate_hz: float | None = None,
    timestamp: str | None = "",
    time_unit: str = "s",
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
) -> ZarrReplay:
    """``timestamp``: the array with times, in ``time_unit`` (s, ms, us, ns); unless given ``timestamp``, where the file
    has it, else ``rate_hz`` must be given. With both, the times are those of the file and the rate is what is declared.
    """
    if time_unit not in UNITS_NS:
        raise OptionError(f"open: time_unit must be one of {', '.join(UNITS_NS)}, got {time_unit!r}")
    return ZarrReplay(Path(path), rate_hz, timestamp, UNITS_NS[time_unit], (repair, budget, follow_symlinks))


class ZarrReplay(BaseSource):
    format = "zarr"

    def __init__(
        self, path: Path, rate_hz: float | None, timestamp: str | None, unit_ns: int, shared: tuple[Any, ...]
    ) -> None:
        super().__init__(path, *shared)
        self._files: Files = FolderFiles(self.tree, self.budget) if path.is_dir() else ZipFiles(path, self.budget)
        infos, others = array_infos(self._files, self.budget)
        if ENDS not in infos:
            raise FormatError(f"zarr: {path} has no array {ENDS}")
        self._infos = {name[len("data/") :]: info for name, info in infos.items() if name.startswith("data/")}
        self._ends = self._read_ends(infos[ENDS])
        if timestamp and timestamp not in self._infos:
            raise OptionError(f"open: timestamp must be one of {', '.join(self._infos)} of {path}, got {timestamp!r}")
        if timestamp == "":
            timestamp = TIMES if TIMES in self._infos else None
        self._times_key = timestamp
        self._unit_ns = unit_ns
        self._rate_hz = None if rate_hz is None else checked_rate("rate_hz", rate_hz)
        if self._times_key is None and self._rate_hz is None:
            raise NeedsOption(f"open: rate_hz is required for {path}: it has no array of timestamps, data/{TIMES}")
        num_rows = int(self._ends[-1]) if len(self._ends) else 0
        for key, info in self._infos.items():
            if not info.shape or info.shape[0] < num_rows:
                raise FormatError(
                    f"zarr: {path}: data/{key} has shape {info.shape}, but {ENDS} requires {num_rows} rows"
                )
            if key != self._times_key:
                self.specs[key] = self._spec(key, info)
        for key, info in self._infos.items():
            if info.shape[0] > num_rows:
                name = f"{key}[{num_rows}:{info.shape[0]}]"
                self.left_out.append(LeftOut(name, f"rows after the last entry of {ENDS}"))
        others += [name for name in infos if name.startswith("meta/") and name != ENDS]
        self.left_out += [LeftOut(name, "only arrays in data/ become streams") for name in sorted(others)]
        self.metadata = {
            "attributes": self._files.attributes(),
            "num_steps": num_rows,
            "times_from": self._times_key,
            "left_out": [left.name for left in self.left_out],
        }

    def __len__(self) -> int:
        return len(self._ends)

    def files(self) -> Iterable[Path]:
        return self._files.paths()

    def read(self, index: int, repairer: Repairer) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        begin, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        total = sum(spec.row_bytes for spec in self.specs.values()) * (end - begin)
        self.budget.check(self.label(index), total)
        reader = ChunkReader(self._files, self.budget)
        if self._times_key is not None:
            key, info = self._times_key, self._infos[self._times_key]
            times: NDArray[Any] = reader.rows(f"data/{key}", info, begin, end).reshape(-1)
            if len(times) != end - begin:
                raise FormatError(f"{self.label(index)}: data/{self._times_key} must have one time per row")
        else:
            times = times_at_rate(end - begin, self._rate_hz or 0.0)
        rows = []
        for key, spec in self.specs.items():
            values = reader.rows(f"data/{key}", self._infos[key], begin, end)
            rows.append(Rows(spec, values, times.copy(), unit_ns=self._unit_ns, made=self._times_key is None))
        meta: dict[str, JSON] = {"begin": begin, "end": end}
        if reader.absent:
            meta["absent_chunks"] = {name.removeprefix("data/"): count for name, count in reader.absent.items()}
        return rows, None, meta

    def _read_ends(self, info: ArrayInfo) -> NDArray[np.int64]:
        if len(info.shape) != 1 or info.dtype.kind not in "iu":
            raise FormatError(f"zarr: {self.path}: {ENDS} must be (episodes,) integers, got {info.dtype} {info.shape}")
        ends = ChunkReader(self._files, self.budget).rows(ENDS, info, 0, info.shape[0]).astype(np.int64)
        self.budget.count(f"zarr: {self.path}: {ENDS}", len(ends))
        if (np.diff(ends, prepend=0) < 0).any():
            row = int((np.diff(ends, prepend=0) < 0).argmax())
            raise FormatError(f"zarr: {self.path}: {ENDS}, row {row}: {ends[row]} is less than the previous entry")
        return ends

    def _spec(self, key: str, info: ArrayInfo) -> StreamSpec:
        shape = info.shape[1:]
        image = info.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4)
        kind = "image" if image else "depth" if "depth" in key and len(shape) == 2 else "vector"
        return StreamSpec(key, info.dtype.name, shape, kind, self._rate_hz)
