"""RLDS and Open X: TFRecords with one tf.train.Example per episode, described by features.json. No TensorFlow."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._core import FormatError
from ...cache.episode import JSON, LeftOut, StreamSpec
from ..reading.budget import BUDGET, ENTRY_BYTES, Budget, add_stored
from ..reading.declared import as_declared
from ..reading.guard import NeedsOption, OptionError
from ..reading.images import decode_picture, encoded_picture, mark_of, picture_size, stored_codec
from ..reading.json_file import load_json
from ..reading.paths import is_cache
from ..reading.repair import Repairer
from ..reading.source import BaseSource, Rows, first_others, text_rows, text_spec
from ..reading.times import checked_rate, times_at_rate
from .features import Leaf, read_features
from .rates import open_x_rate
from .tfrecord import Feature, read_example, read_record, record_offsets

SHARD = re.compile(r"(?P<name>.+)-(?P<split>[^-]+)\.tfrecord-(?P<number>\d{5,})-of-(?P<count>\d{5,})")
DESCRIPTIONS = ("features.json", "dataset_info.json", "metadata.json")
LABELS = ".labels.txt"
"""The end of the names of files that TFDS writes for features of labels."""
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")


@dataclass
class Shard:
    path: Path
    split: str
    number: int
    num_episodes: int


def detect(path: Path) -> bool:
    try:
        return _version_folder(path) is not None
    except OSError:
        return False


def open(
    path: Path,
    rate_hz: float | None = None,
    split: str | None = None,
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
    encoded: bool = False,
) -> Rlds:
    """``rate_hz``: needed unless the dataset is in the table of Open X rates, which it overrides. ``split``: one.
    ``encoded``: pictures stay as they are (``StreamSpec.codec``)."""
    folder = _version_folder(Path(path))
    if folder is None:
        raise FormatError(f"rlds: {path} has no features.json with *.tfrecord-* files beside it")
    return Rlds(folder, Path(path), rate_hz, split, (repair, budget, follow_symlinks, encoded))


class Rlds(BaseSource):
    format = "rlds"

    def __init__(
        self, path: Path, given: Path, rate_hz: float | None, split: str | None, shared: tuple[Any, ...]
    ) -> None:
        """``path``: of the version. ``given``: the same, or the folder of all versions."""
        super().__init__(path, *shared)
        self._leaves = read_features(self.tree.file("features.json"), self.budget)
        info = load_json(self.tree.file("dataset_info.json"), self.budget) if self.tree.has("dataset_info.json") else {}
        if not isinstance(info, dict):
            raise FormatError(f"rlds: {path}/dataset_info.json must be an object")
        self._shards = self._find_shards(info)
        splits = list(dict.fromkeys(shard.split for shard in self._shards))
        if split is not None:
            if split not in splits:
                raise OptionError(f"open: split must be one of {', '.join(splits)}, got {split!r}")
            self._shards = [shard for shard in self._shards if shard.split == split]
            self.left_out += [LeftOut(name, "not selected", "split=") for name in splits if name != split]
        self._add_others(given)
        self._ends = np.cumsum([shard.num_episodes for shard in self._shards], dtype=np.int64).tolist()
        self._scanned: tuple[Path, list[tuple[int, int]]] | None = None
        name = str(info.get("name") or path.parent.name)
        rate = open_x_rate(name) if rate_hz is None else checked_rate("rate_hz", rate_hz)
        if rate is None:
            raise NeedsOption(
                f"open: rate_hz is required for {name}: RLDS has no timestamps, and there is no Open X rate for it"
            )
        self._rate_hz = rate
        self.metadata = {
            "name": name,
            "version": info.get("version"),
            "description": info.get("description"),
            "citation": info.get("citation"),
            "splits": splits,
            "rate_from": "user" if rate_hz is not None else "the table of Open X rates",
        }
        for leaf in self._leaves:
            if leaf.in_steps and leaf.kind == "text" and leaf.shape:
                what = "arrays of texts are not streams; those of the first step are in meta"
                self.left_out.append(LeftOut(leaf.name, what))
            elif leaf.in_steps and leaf.kind == "other":
                self.left_out.append(LeftOut(leaf.name, "neither a numeric tensor, an image nor a text"))
        self._add_specs()
        self.metadata["left_out"] = [left.name for left in self.left_out]

    def _add_others(self, given: Path) -> None:
        """Lists the files that are not read, and other versions beside this one."""
        read = {*DESCRIPTIONS, *(shard.name for shard in self.tree.glob("*.tfrecord-*"))}
        beside = [name for name in os.listdir(self.path) if name not in read and not name.endswith(LABELS)]
        reason = "neither a shard nor a description of the dataset"
        self.left_out += first_others(self._not_caches(self.path, beside), reason, self.path.name)
        if given != self.path:
            others = [name for name in os.listdir(given) if name != self.path.name]
            reason = f"version {self.path.name} is read; to read another one, open its folder"
            self.left_out += first_others(self._not_caches(given, others), reason, given.name)

    def _not_caches(self, folder: Path, names: list[str]) -> list[str]:
        add_stored(len(names) * ENTRY_BYTES)
        self.budget.count(f"rlds: {folder}", len(names))
        return [name for name in names if not is_cache(os.path.join(folder, name))]

    def _undeclared(self, example: dict[str, Feature]) -> list[str]:
        """Features of a record that features.json does not declare. Of nested sequences, records have several parts."""
        declared = {leaf.key for leaf in self._leaves}
        parts = tuple(f"{leaf.key}/" for leaf in self._leaves if leaf.kind == "other" or None in leaf.shape)
        return sorted(key for key in example if key not in declared and not key.startswith(parts))

    def _add_specs(self) -> None:
        example, _ = self._example(0) if len(self) else ({}, 0)
        self._listed = self._undeclared(example)
        self.left_out += [LeftOut(key, "features.json does not declare it") for key in self._listed]
        for leaf in self._leaves:
            if leaf.in_steps and leaf.kind == "text" and not leaf.shape:
                self.specs[leaf.name] = text_spec(leaf.name)
            if not leaf.in_steps or leaf.kind in ("text", "other"):
                continue
            shape, dtype = leaf.shape, leaf.dtype
            codec, meta = None, {}
            if leaf.kind == "image":
                encoded = example.get(leaf.key)
                if isinstance(encoded, list) and encoded:  # sizes of pictures may be left open, as null
                    shape, dtype = picture_size(encoded[0], "rlds", f"rlds: {self.path}: {leaf.name}", self.budget)
                    if self.encoded:
                        codec = stored_codec(encoded[0], "image" if len(shape) == 3 else "depth", dtype, shape)
                    meta = {} if codec is not None else mark_of(encoded[0], self.encoded)
            if None in shape:
                self.left_out.append(LeftOut(leaf.name, "its shape is not fixed"))
                continue
            kind = "vector" if leaf.kind == "tensor" else "image" if len(shape) == 3 else "depth"
            sizes = tuple(size for size in shape if size is not None)
            spec = StreamSpec(leaf.name, dtype, sizes, kind, self._rate_hz, meta=meta, codec=codec)
            self.budget.check(f"rlds: {self.path}/features.json: one row of {leaf.name}", spec.row_bytes)
            self.specs[leaf.name] = spec

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def files(self) -> Iterable[Path]:
        names = ("features.json", "dataset_info.json")
        return [*(path for name in names if (path := self.path / name).exists()), *(s.path for s in self._shards)]

    def read_streams(
        self, index: int, repairer: Repairer, names: Collection[str]
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        return self.read(index, repairer, names)

    def read(
        self, index: int, repairer: Repairer, names: Collection[str] | None = None
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        wanted = self.specs if names is None else {name: s for name, s in self.specs.items() if name in names}
        example, stored = self._example(index)
        num_rows = self._num_rows(example, repairer)
        row_bytes = sum(s.row_bytes for s in wanted.values() if not s.codec and s.kind != "text")
        self.budget.check(self.label(index), row_bytes * num_rows, stored)
        times = times_at_rate(num_rows, self._rate_hz)
        rows = []
        meta: dict[str, JSON] = {"split": self._shards[self._place(index)[0]].split}
        texts: dict[str, str] = {}
        for leaf in self._leaves:
            value = example.get(leaf.key, [])
            if leaf.kind == "text" and isinstance(value, list) and value and leaf.in_steps:
                texts[leaf.name] = value[0].decode("utf-8", "replace")
            if leaf.in_steps and leaf.name in wanted and leaf.kind == "text":
                at = f"{repairer.where}, stream {leaf.name}"
                if not isinstance(value, list):
                    raise FormatError(f"{at}: has numbers, but features.json declares texts")
                rows.append(text_rows(wanted[leaf.name], value[:num_rows], times, at, self.budget, made=True))
            elif leaf.in_steps and leaf.name in wanted:
                spec = wanted[leaf.name]
                values = self._values(leaf, spec, value, num_rows, repairer.where)
                rows.append(Rows(spec, values, times.copy(), made=True))
            elif not leaf.in_steps and len(value):
                meta[leaf.name] = _plain(value)
        if texts:
            meta["first_step"] = texts
        if undeclared := [key for key in self._undeclared(example) if key not in self._listed]:
            meta["left_out"] = [f"feature {key}: features.json does not declare it" for key in undeclared]
        task = next((text for name, text in texts.items() if name.rpartition("/")[2] in INSTRUCTIONS), None)
        return rows, task, meta

    def _num_rows(self, example: dict[str, Feature], repairer: Repairer) -> int:
        """Rows of each stream must agree; ``length: trim`` cuts to the shortest."""
        counts = {}
        for leaf in self._leaves:
            if not leaf.in_steps or leaf.name not in self.specs:
                continue
            if leaf.key not in example:
                raise FormatError(f"{repairer.where}: there is no {leaf.key}, which features.json declares")
            size = len(example[leaf.key])
            per_row = 1
            if leaf.kind == "tensor" and not leaf.encoded:
                per_row = int(np.prod(self.specs[leaf.name].shape, dtype=np.int64))
            if per_row == 0 or size % per_row:
                raise FormatError(f"{repairer.where}, stream {leaf.name}: {size} values, {per_row} to a row")
            counts[leaf.name] = size // per_row
        shortest, longest = min(counts.values(), default=0), max(counts.values(), default=0)
        for name, count in counts.items():
            if shortest != longest and (count > shortest or self.policies["length"] == "error"):
                what = f"row {shortest}: it has {count} rows, another stream {longest if count < longest else shortest}"
                repairer.apply_policy("length", name, count - shortest, what)
        return shortest

    def _values(self, leaf: Leaf, spec: StreamSpec, value: Feature, num_rows: int, where: str) -> Any:
        """An array, or encoded pictures."""
        at = f"{where}, stream {leaf.name}"
        if leaf.kind == "image" or leaf.encoded:
            if not isinstance(value, list):
                raise FormatError(f"{at}: has numbers, but features.json declares encoded rows")
            if spec.codec is not None:
                return [
                    encoded_picture(value[row], spec, "rlds", f"{at}, row {row}", self.budget)
                    for row in range(num_rows)
                ]
            values = np.empty((num_rows, *spec.shape), spec.numpy_dtype)
            for row in range(num_rows):
                if leaf.kind == "image":
                    values[row] = decode_picture(value[row], spec.shape, "rlds", f"{at}, row {row}", self.budget)
                else:
                    values[row] = leaf.decode(value[row], spec.row_bytes, f"{at}, row {row}").reshape(spec.shape)
            return values
        if isinstance(value, list):
            raise FormatError(f"{at}: has bytes, but features.json declares numbers")
        size = num_rows * int(np.prod(spec.shape, dtype=np.int64))
        return as_declared(value[:size].reshape(num_rows, *spec.shape), spec.dtype, at)

    def _place(self, index: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return shard, index - (self._ends[shard - 1] if shard else 0)

    def _example(self, index: int) -> tuple[dict[str, Feature], int]:
        """The features of an episode, and the bytes of its record."""
        number, place = self._place(index)
        shard = self._shards[number]
        if self._scanned is None or self._scanned[0] != shard.path:
            self._scanned = (shard.path, record_offsets(shard.path, self.budget))
        offsets = self._scanned[1]
        if len(offsets) != shard.num_episodes:
            raise FormatError(
                f"rlds: {shard.path} has {len(offsets)} records, dataset_info.json declares {shard.num_episodes}"
            )
        where = f"rlds: {shard.path}: record {place}"
        data = read_record(shard.path, *offsets[place], where)
        return read_example(data, where, self.budget), len(data)

    def _find_shards(self, info: dict[str, Any]) -> list[Shard]:
        """The files by split and number. How many episodes each has stands in dataset_info.json, or in the file."""
        lengths = {}
        for split in info.get("splits") or []:
            if isinstance(split, dict):
                lengths[split.get("name")] = split.get("shardLengths")
        order = list(lengths)
        shards, counts = [], {}
        for path in self.tree.glob("*.tfrecord-*"):
            match = SHARD.fullmatch(path.name)
            if match is None:
                raise FormatError(f"rlds: {path} is not named <name>-<split>.tfrecord-<number>-of-<count>")
            number, declared = int(match["number"]), lengths.get(match["split"])
            if number >= int(match["count"]):
                raise FormatError(f"rlds: {path} is shard {number} of {match['count']}")
            if isinstance(declared, list) and len(declared) == int(match["count"]):
                try:
                    num_episodes = int(declared[number])
                except (TypeError, ValueError):
                    num_episodes = -1
                if not 0 <= num_episodes <= path.stat().st_size // 16:
                    raise FormatError(f"rlds: {path} cannot have the declared {declared[number]!r} episodes")
            else:
                num_episodes = len(record_offsets(path, self.budget))
            shards.append(Shard(path, match["split"], number, num_episodes))
            counts[match["split"]] = int(match["count"])
            self.budget.count(f"rlds: {path}")
            if match["split"] not in order:
                order.append(match["split"])
        shards.sort(key=lambda shard: (order.index(shard.split), shard.number))
        for split in order:
            numbers = [shard.number for shard in shards if shard.split == split]
            if numbers != list(range(len(numbers))):
                raise FormatError(f"rlds: {self.path}: shards of {split} are missing or duplicate: {numbers[:20]}")
            if not numbers and isinstance(declared := lengths.get(split), list) and declared:
                self.left_out.append(LeftOut(f"{split}: {len(declared)} shards", "missing from the folder"))
            if numbers and len(numbers) < counts[split]:
                what = f"{split}: shards {len(numbers)} to {counts[split] - 1} of {counts[split]}"
                self.left_out.append(LeftOut(what, "missing from the folder"))
        return shards


def _plain(value: Feature) -> JSON:
    items = [v.decode("utf-8", "replace") for v in value] if isinstance(value, list) else value.tolist()
    return items[0] if len(items) == 1 else items


def _version_folder(path: Path) -> Path | None:
    """The folder with features.json: the path, or the last version inside it."""
    versions = sorted(
        (p for p in path.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", p.name)),
        key=lambda p: [int(n) for n in p.name.split(".")],
    ) if path.is_dir() else []  # fmt: skip
    for folder in (path, *reversed(versions)):
        if (folder / "features.json").is_file() and any(folder.glob("*.tfrecord-*")):
            return folder
    return None
