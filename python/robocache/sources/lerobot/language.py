"""Language columns of LeRobot 0.6, ``language_persistent`` and ``language_events``: one stream of text per style.

A frame has a list of entries (role, content, style, camera, tool_calls). Persistent entries have a timestamp, are
repeated in every frame of the episode, and are active until the next entry of the same style, role and camera. Events
are in the frame in which they happen.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import LeftOut, StreamSpec
from ..reading.budget import Budget
from ..reading.paths import need
from ..reading.source import Rows, text_rows, text_spec

PERSISTENT = "language_persistent"
COLUMNS = (PERSISTENT, "language_events")
TEXTS = ("role", "content", "style", "camera")
MAX_STREAMS = 256
"""Of one column. LeRobot has eight styles."""


class Selector(NamedTuple):
    """The latest entry of a selector replaces the one before."""

    column: str
    style: str | None
    role: str | None
    camera: str | None


class Key(NamedTuple):
    """What a stream has of the entries of a selector: content, or calls of tools as JSON; ``number``: of entries with
    the same time, which one."""

    selector: Selector
    calls: bool
    number: int


class Entry(NamedTuple):
    """``moment``: the timestamp in seconds; of an event, the number of its frame."""

    moment: float
    selector: Selector
    content: str | None
    calls: str | None


class Language:
    """The streams of the language columns. ``keys``: what each stream has, by its name."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.keys: dict[str, Key] = {}

    def scan(self, column: str, pieces: Iterable[tuple[int, Any]], where: str) -> list[StreamSpec] | LeftOut:
        """The streams of a column. ``pieces``: (episode, chunked array); those of an episode follow each other."""
        most: Counter[tuple[Selector, bool]] = Counter()
        for _, of_episode in groupby(pieces, key=lambda piece: piece[0]):
            parts = [part for _, part in of_episode]
            if problem := next(filter(None, (column_problem(column, part.type) for part in parts)), None):
                return LeftOut(column, problem)
            chunks = [chunk for part in parts for chunk in part.chunks]
            for key in texts_of(self._entries(column, chunks, where)):
                most[key[:2]] = max(most[key[:2]], key.number + 1)
            if sum(most.values()) > MAX_STREAMS:
                return LeftOut(column, f"its styles, roles and cameras would be more than {MAX_STREAMS} streams")
        if not most:
            return LeftOut(column, "no frame has an entry")
        roles = Counter(style for style, _ in {(selector.style, selector.role) for selector, _ in most})
        keys: dict[str, Key] = {}
        for (selector, calls), count in sorted(most.items(), key=repr):
            for number in range(count):
                name = _name(selector, calls, roles[selector.style] > 1, number if count > 1 else None)
                if name in keys:
                    return LeftOut(column, f"two of its streams would be named {name}")
                keys[name] = Key(selector, calls, number)
        self.keys |= keys
        return [dataclasses.replace(text_spec(name), meta=_meta(key.selector)) for name, key in keys.items()]

    def rows(
        self,
        table: Any,
        specs: Sequence[StreamSpec],
        times: NDArray[Any],
        time_of: Callable[[float], float],
        where: str,
    ) -> list[Rows]:
        """Streams of an episode. ``times``: of its frames; ``time_of``: of a timestamp in seconds."""
        found = []
        for column in dict.fromkeys(self.keys[spec.name].selector.column for spec in specs):
            at = f"{where}, {column}"
            if column not in table.column_names:
                raise FormatError(f"{at}: the column is missing, but meta/info.json declares it")
            entries = self._entries(column, table.column(column).chunks, at)
            texts = texts_of(entries)
            if unknown := [key for key in texts if key not in self.keys.values()]:
                raise FormatError(f"{at} has {unknown[0]}, which it had not when the dataset was opened")
            for spec in specs:
                key = self.keys[spec.name]
                if key.selector.column != column or not len(times):
                    continue
                if column == PERSISTENT:
                    moments = sorted({entry.moment for entry in entries if entry.selector == key.selector})
                    when = [time_of(moment) for moment in moments]
                else:
                    moments, when = list(range(len(times))), times.tolist()
                said = [texts.get(key, {}).get(moment, "").encode("utf-8", "surrogatepass") for moment in moments]
                if not when or when[0] > times[0]:
                    when, said = [times[0], *when], [b"", *said]
                stream = f"{at}, stream {spec.name}"
                found.append(text_rows(spec, said, np.array(when, times.dtype), stream, self.budget))
        return found

    def _entries(self, column: str, chunks: Iterable[Any], where: str) -> list[Entry]:
        """The entries of an episode, in the order of the frames; a persistent entry that frames repeat, once."""
        found: list[Entry] = []
        seen: set[tuple[Entry, int]] = set()
        first_frame = 0
        for chunk in chunks:
            lengths = np.asarray(chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
            frames = np.repeat(np.arange(len(chunk)) + first_frame, lengths)
            first_frame += len(chunk)
            flat, num_rows = chunk.flatten(), int(lengths[0]) if len(lengths) else 0
            self.budget.count(where, len(flat))
            repeats = column == PERSISTENT and (lengths == num_rows).all()
            if repeats and flat.slice(num_rows).equals(flat.slice(0, len(flat) - num_rows)):
                flat = flat.slice(0, num_rows)
            self.budget.check(where, expanded_bytes(flat))
            in_frame: Counter[Entry] = Counter()
            last = -1
            for frame, row in zip(frames.tolist(), flat.to_pylist(), strict=False):
                entry = _entry(column, frame, row, where)
                if frame != last:
                    last, in_frame = frame, Counter()
                in_frame[entry] += 1
                if column != PERSISTENT or (entry, in_frame[entry]) not in seen:
                    found.append(entry)
                    seen.add((entry, in_frame[entry]))
        return found


def column_problem(column: str, kind: Any) -> str | None:
    """Why a column of this type cannot be read. Columns without entries, and fields without values, have type null."""
    pa = need("pyarrow", "lerobot")
    shown = kind.value_type if pa.types.is_dictionary(kind) else kind
    wanted = f"of type {str(shown)[:200]}; known: a list of structs with role, content and style"
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return wanted
    if pa.types.is_null(kind.value_type):
        return None
    if not pa.types.is_struct(kind.value_type):
        return wanted
    fields = {field.name: field.type for field in kind.value_type}
    if column == PERSISTENT and not pa.types.is_floating(fields.get("timestamp", pa.null())):
        return f"{wanted}, and a timestamp of type float"
    for name in TEXTS:
        found = fields.get(name, pa.null() if name == "camera" else None)
        if found is None or not _is_text(pa, found):
            return wanted
    calls = fields.get("tool_calls", pa.null())
    return None if pa.types.is_null(calls) or pa.types.is_list(calls) or pa.types.is_large_list(calls) else wanted


def texts_of(entries: Iterable[Entry]) -> dict[Key, dict[float, str]]:
    """{key: {moment: text}}"""
    counts: Counter[tuple[Selector, bool, float]] = Counter()
    texts: dict[Key, dict[float, str]] = {}
    for entry in entries:
        for calls, text in ((False, entry.content), (True, entry.calls)):
            if text is not None:
                place = (entry.selector, calls, entry.moment)
                texts.setdefault(Key(entry.selector, calls, counts[place]), {})[entry.moment] = text
                counts[place] += 1
    return texts


def expanded_bytes(array: Any) -> int:
    """What the values take without dictionaries: a dictionary has a text once, however many rows have it."""
    pa, compute = need("pyarrow", "lerobot"), need("pyarrow.compute", "lerobot")
    if isinstance(array.type, pa.BaseExtensionType):
        return expanded_bytes(array.storage)
    if pa.types.is_dictionary(array.type):
        sizes = compute.take(compute.binary_length(array.dictionary), array.indices)
        return int(compute.sum(sizes).as_py() or 0) + 8 * len(array)
    if pa.types.is_struct(array.type):
        return sum(expanded_bytes(child) for child in array.flatten())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return expanded_bytes(array.flatten()) + 8 * len(array)
    return int(array.nbytes)


def _is_text(pa: Any, kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _entry(column: str, frame: int, row: Any, where: str) -> Entry:
    if row is None:
        raise FormatError(f"{where}, frame {frame}: an entry is null")
    moment = row["timestamp"] if column == PERSISTENT else frame
    if moment is None or not np.isfinite(moment):
        raise FormatError(f"{where}, frame {frame}: the timestamp of an entry must be a finite number, got {moment}")
    calls = row.get("tool_calls")
    selector = Selector(column, row["style"], row["role"], row.get("camera"))
    return Entry(moment, selector, row["content"], None if calls is None else _json_of(calls))


def _json_of(calls: Sequence[Any]) -> str:
    """Calls of tools are stored as texts of JSON, or as structs."""
    parsed = []
    for call in calls:
        try:
            parsed.append(json.loads(call) if isinstance(call, str) else call)
        except ValueError:
            parsed.append(call)
    return json.dumps(parsed, ensure_ascii=False, default=str)


def _name(selector: Selector, calls: bool, with_role: bool, number: int | None) -> str:
    what = "tool_calls" if calls else None if selector.style else "content"
    parts = [selector.column, selector.style, selector.role if with_role else None, selector.camera, what]
    return "/".join([part for part in parts if part] + ([] if number is None else [str(number)]))


def _meta(selector: Selector) -> dict[str, str]:
    return {name: value for name, value in selector._asdict().items() if value is not None}
