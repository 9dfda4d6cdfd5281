"""CALVIN: one npz per time step, episodes as ranges of step numbers, language as annotated ranges."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import DTYPES, JSON, LeftOut, StreamSpec
from ..reading.budget import BUDGET, ENTRY_BYTES, Budget, add_stored
from ..reading.guard import OptionError
from ..reading.paths import is_cache, read_file, state_of
from ..reading.repair import Repairer
from ..reading.source import BaseSource, Rows, first_others, text_rows, text_spec
from ..reading.times import checked_rate, index_to_ns
from ..reading.zip_file import ERRORS, opened_zip
from .language import Annotation, read_annotations
from .npy import read_npy, read_npy_header

RATE_HZ = 30.0
MAX_INDEX_BYTES = 64 << 20
ENDS = "ep_start_end_ids.npy"
ANNOTATIONS = "lang_annotations"
LANGUAGE = f"{ANNOTATIONS}/auto_lang_ann.npy"
SPLITS = ("training", "validation")
MAX_STEP = 10**18
"""Names of steps have at most 18 digits."""
STEP = re.compile(r"episode_([0-9]{7,18})\.npz")
TEXT = "language"
"""The stream of the annotated texts."""
ANGLES = {"robot_obs": (3, 4, 5), "actions": (3, 4, 5)}
"""Euler angles, which wrap around: columns of these streams."""
UNITS = "position in m, angles in rad, gripper"


def detect(path: Path) -> bool:
    try:
        return any((path / folder / ENDS).is_file() for folder in ("", *SPLITS))
    except OSError:
        return False


def open(
    path: Path,
    rate_hz: float = RATE_HZ,
    split: str | None = None,
    episodes: str = "recordings",
    language: bool = True,
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
) -> Calvin:
    """``split``: training or validation, else both. ``episodes``: ``recordings``, or ``language`` for one episode per
    annotated range. ``language``: read the annotations, with a reader that knows arrays, texts and numbers only."""
    if episodes not in ("recordings", "language"):
        raise OptionError(f"open: episodes must be recordings or language, got {episodes!r}")
    if split is not None and split not in SPLITS:
        raise OptionError(f"open: split must be one of {', '.join(SPLITS)}, got {split!r}")
    chosen = SPLITS if split is None else (split,)
    by_language = episodes == "language"
    return Calvin(Path(path), checked_rate("rate_hz", rate_hz), chosen, by_language, language or by_language, (
        repair, budget, follow_symlinks))  # fmt: skip


class Calvin(BaseSource):
    format = "calvin"

    def __init__(
        self,
        path: Path,
        rate_hz: float,
        splits: tuple[str, ...],
        by_language: bool,
        language: bool,
        shared: tuple[Any, ...],
    ) -> None:
        super().__init__(path, *shared)
        self._rate_hz = rate_hz
        self._ranges: list[tuple[str, int, int]] = []
        self._annotations: dict[str, list[Annotation]] = {}
        folders = [""] if (path / ENDS).is_file() else [s for s in splits if (path / s / ENDS).is_file()]
        if not folders:
            raise FormatError(f"calvin: {path} has no {ENDS}" + (f" in {' or '.join(splits)}" if path.is_dir() else ""))
        for folder in folders:
            found = self._annotations[folder] = self._read_language(folder) if language else []
            ranges = [(a.begin, a.end) for a in found] if by_language else self._read_ranges(folder)
            self._ranges += [(folder, begin, end) for begin, end in ranges]
            self._add_others(folder, ranges, (ENDS, ANNOTATIONS), 'episodes="recordings"' if by_language else None)
            self._add_unused(folder, found, ranges)
            annotations = _in(folder, ANNOTATIONS)
            if language and (self.tree.root / annotations).is_dir():
                self._add_others(annotations, [], (LANGUAGE.rpartition("/")[2],))
            elif self.tree.has(annotations):
                self.left_out.append(LeftOut(annotations, "not selected", "language=True"))
        if folders != [""]:
            self._add_others("", [], SPLITS)
            others = [split for split in SPLITS if split not in folders and self.tree.has(split)]
            self.left_out += [LeftOut(split, "not selected", "split=") for split in others]
        self._by_language = by_language
        self.metadata = {
            "splits": folders,
            "annotations": {folder: len(found) for folder, found in self._annotations.items()},
        }
        if self._ranges:
            folder, begin, _ = self._ranges[0]
            self._add_specs(self.tree.file(_step(folder, begin)))
        self._arrays = dict(self.specs)
        """The streams that steps have; the text comes from the ranges."""
        if any(self._annotations.values()):
            if TEXT in self.specs:
                self.left_out.append(LeftOut(LANGUAGE, f"the steps have an array that is named {TEXT} too"))
            else:
                self.specs[TEXT] = text_spec(TEXT)

    def __len__(self) -> int:
        return len(self._ranges)

    def files(self) -> Iterable[Path]:
        """The indices. Of the steps, which are millions, ``fingerprint`` keeps no list."""
        names = [f"{folder}/{name}" for folder in self._annotations for name in (ENDS, LANGUAGE)]
        return [path for name in names if (path := self.path / name.lstrip("/")).is_file()]

    def fingerprint(self) -> str:
        """Also of size and times of every step: steps are rewritten in place, which no folder shows."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for folder in self._annotations:
            total = 0  # of hashes: the same in whatever order the steps are listed
            with os.scandir(self.path / folder) as steps:
                for step in steps:
                    if step.name.startswith("episode_") and step.name.endswith(".npz"):
                        state = state_of(step.name, step.stat())
                        total += int.from_bytes(hashlib.blake2b(state, digest_size=16).digest(), "little")
            digest.update(f"\0{folder}\0{total % 2**128}".encode())
        return digest.hexdigest()

    def read(self, index: int, repairer: Repairer) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        folder, begin, end = self._ranges[index]
        num_rows = end - begin
        row_bytes = sum(spec.row_bytes for spec in self._arrays.values())
        self.budget.check(self.label(index), row_bytes * num_rows)
        present, stored, missing = [], 0, None
        for row in range(num_rows):
            self.budget.count(self.label(index))
            try:
                stored += os.stat(self.tree.root / _step(folder, begin + row)).st_size
                present.append(row)
            except FileNotFoundError:
                missing = row if missing is None else missing
                if self.policies["missing"] == "error":
                    break
        if missing is not None:
            what = f"row {missing}: {_step(folder, begin + missing)} is missing"
            for name in self._arrays:
                repairer.apply_policy("missing", name, num_rows - len(present), what)
        self.budget.check(self.label(index), row_bytes * len(present), stored)
        values = {name: np.empty((len(present), *spec.shape), spec.numpy_dtype) for name, spec in self._arrays.items()}
        for i, row in enumerate(present):
            self._read_step(self.tree.file(_step(folder, begin + row)), {name: v[i, ...] for name, v in values.items()})
        times = index_to_ns(np.array(present, np.int64), self._rate_hz)
        inside = [a for a in self._annotations[folder] if begin <= a.begin and a.end <= end]
        if self._by_language:
            inside = [a for a in inside if (a.begin, a.end) == (begin, end)]
        meta: dict[str, JSON] = {"split": folder, "first_step": begin, "last_step": end - 1}
        meta["language"] = [
            {"begin": a.begin - begin, "end": a.end - begin, "text": a.text, "task": a.task} for a in inside
        ]
        texts = list(dict.fromkeys(a.text for a in inside))
        task = texts[0] if len(texts) == 1 or (texts and self._by_language) else None
        rows = [Rows(spec, values[name], times.copy(), made=True) for name, spec in self._arrays.items()]
        if TEXT not in self._arrays and TEXT in self.specs:
            said = inside if self._by_language else self._annotations[folder]
            encoded = self._texts(said, begin, end, repairer.where)
            at = f"{repairer.where}, stream {TEXT}"
            rows.append(
                text_rows(self.specs[TEXT], [encoded[row] for row in present], times, at, self.budget, made=True)
            )
        return rows, task, meta

    def _texts(self, said: list[Annotation], begin: int, end: int, where: str) -> list[bytes]:
        """The text of each step in [begin, end); empty where there is none. Where ranges overlap, the one that begins
        last counts, and of those that begin together the last one of the file."""
        texts, chosen = [b""], np.zeros(end - begin, np.int64)
        for one in sorted(said, key=lambda a: a.begin):
            self.budget.count(where)
            if one.begin < end and one.end > begin:
                chosen[max(one.begin - begin, 0) : one.end - begin] = len(texts)
                try:
                    texts.append(one.text.encode())
                except UnicodeEncodeError as error:
                    raise FormatError(f"{where}, stream {TEXT}: the text must be UTF-8: {error.reason}") from None
        return [texts[i] for i in chosen.tolist()]

    def _read_ranges(self, folder: str) -> list[tuple[int, int]]:
        path = self.tree.file(_in(folder, ENDS))
        data = read_file(path, MAX_INDEX_BYTES)
        ranges = read_npy(io.BytesIO(data), len(data), f"calvin: {path}", self.budget)
        if ranges.ndim != 2 or ranges.shape[1] != 2 or ranges.dtype.kind not in "iu":
            raise FormatError(f"calvin: {path} must be (episodes, 2) integers, got {ranges.dtype} {ranges.shape}")
        self.budget.count(f"calvin: {path}", len(ranges))
        for row, (begin, end) in enumerate(ranges.tolist()):
            if begin < 0 or end < begin or end >= MAX_STEP:
                raise FormatError(f"calvin: {path}, row {row}: the episode begins at {begin} and ends at {end}")
        return [(int(begin), int(end) + 1) for begin, end in ranges.tolist()]

    def _read_language(self, folder: str) -> list[Annotation]:
        name = _in(folder, LANGUAGE)
        if not self.tree.has(name):
            return []
        annotations, others = read_annotations(self.tree.file(name), self.budget)
        self.left_out += [LeftOut(f"{name}: {key}", "only texts and tasks of the language are read") for key in others]
        return annotations

    def _add_others(
        self, folder: str, ranges: list[tuple[int, int]], known: Collection[str], option: str | None = None
    ) -> None:
        """Lists what the folder has and no episode: steps outside of the ranges, which ``option`` reads, and other
        entries that are not ``known``."""
        where, steps, others = f"calvin: {self.path / folder}", [], []
        with os.scandir(self.tree.root / folder) as entries:
            for entry in entries:
                add_stored(ENTRY_BYTES)
                self.budget.count(where)
                if step := STEP.fullmatch(entry.name):
                    steps.append(int(step[1]))
                elif entry.name not in known and not is_cache(entry.path):
                    others.append(_in(folder, entry.name))
        of = folder or self.path.name
        self.left_out += first_others(others, "neither a step nor an index", of, "neither steps nor indices")
        numbers = np.array(steps, np.int64)
        begins, ends = np.array(ranges, np.int64).reshape(-1, 2).T
        begun, ended = (np.searchsorted(np.sort(x), numbers, side="right") for x in (begins, ends))
        if outside := int((begun == ended).sum()):
            what = f"{outside} of {len(steps)} steps" + (f" of {folder}" if folder else "")
            self.left_out.append(LeftOut(what, "in no range of an episode", option))

    def _add_unused(self, folder: str, said: list[Annotation], ranges: list[tuple[int, int]]) -> None:
        """Annotations of steps that no episode has."""
        begins, ends = np.array(ranges, np.int64).reshape(-1, 2).T
        unused = 0
        for one in said:
            self.budget.count(f"calvin: {self.path / folder}", len(begins))
            unused += not bool(((begins < one.end) & (ends > one.begin)).any())
        if unused:
            what = f"{unused} of {len(said)} annotations" + (f" of {folder}" if folder else "")
            self.left_out.append(LeftOut(what, "their steps are in no episode"))

    def _add_specs(self, path: Path) -> None:
        with opened_zip(path, f"calvin: {path}", self.budget) as archive:
            for name, member in _arrays(archive, path).items():
                with archive.open(member) as file:
                    dtype, shape, _, _ = read_npy_header(file, member.file_size, f"calvin: {path}: {name}")
                if dtype.name not in DTYPES:
                    raise FormatError(f"calvin: {path}: {name} has dtype {dtype}; only numeric dtypes are supported")
                self.budget.check(f"calvin: {path}: {name}", member.file_size, member.compress_size)
                meta = {"angles": list(ANGLES[name]), "units": UNITS} if name in ANGLES else {}
                image = dtype == np.uint8 and len(shape) == 3
                kind = "image" if image else "depth" if name.startswith("depth") and len(shape) == 2 else "vector"
                self.specs[name] = StreamSpec(name, dtype.name, shape, kind, self._rate_hz, meta=meta)

    def _read_step(self, path: Path, rows: dict[str, NDArray[Any]]) -> None:
        with opened_zip(path, f"calvin: {path}", self.budget) as archive:
            members = _arrays(archive, path)
            if new := [name for name in members if name not in rows]:
                raise FormatError(f"calvin: {path}: {new[0]} is not in the first step")
            for name, row in rows.items():
                member = members.get(name)
                where = f"calvin: {path}: {name}"
                if member is None:
                    raise FormatError(f"{where} is missing")
                self.budget.check(where, member.file_size, member.compress_size)
                try:
                    with archive.open(member) as file:
                        found = read_npy(file, member.file_size, where, self.budget)
                except FormatError:
                    raise
                except ERRORS as error:
                    raise FormatError(f"{where}: {error}") from error
                if found.shape != row.shape or found.dtype.newbyteorder("=") != row.dtype:
                    raise FormatError(
                        f"{where} is {found.dtype} {found.shape}, but {row.dtype} {row.shape} in the first step"
                    )
                row[...] = found


def _arrays(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The members of a step by the names of their arrays."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if found.setdefault(name, member) is not member:
            raise FormatError(f"calvin: {path}: the array {name} is there twice")
    return found


def _step(folder: str, number: int) -> str:
    return _in(folder, f"episode_{number:07d}.npz")


def _in(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
