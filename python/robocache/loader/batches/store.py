"""Tiers: where the rows are that batches are read from. Same batches, bit for bit, from every one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._core import process_limits
from ..order.selection import Selection, ShardStream
from .arrays import Arrays

TIERS = ("gpu", "pinned", "memory", "mmap")
STAGED_BYTES = 64 << 20
"""Of rows on their way to a GPU."""
SHARE = 0.8
"""Of the free memory: what a resident tier may take."""

Rows = tuple[Any, Any, Any]
"""values, times, offsets: as ``align`` takes them."""


@dataclass
class Part:
    """Episodes whose rows lie together. ``rows[name]`` are the streams of all of them."""

    source: int
    rows: dict[str, Rows]


@dataclass
class Store:
    """Parts, and where each kept episode is: ``part (E,)`` and ``local (E,)`` on the host, through all sources."""

    tier: str
    size_bytes: int
    parts: list[Part]
    part: Any
    local: Any


def resident_bytes(selections: list[Selection], names: list[str]) -> int:
    """Of the values, times and offsets of the kept episodes."""
    total = 0
    for selection in selections:
        for name in names:
            rows = int(selection.counts(name).sum())
            total += rows * (selection.spec(name).row_bytes + 8) + (len(selection.kept) + 1) * 8
    return total


def choose_tier(asked: str | None, arrays: Arrays, needed: int, budget: int | None, local_ranks: int) -> str:
    """The tier asked for, if it fits; else the nearest one that does. ``local_ranks`` share the memory of the host."""
    if asked is not None and asked not in TIERS:
        raise ValueError(f"Loader: tier must be one of {', '.join(TIERS)}, got {asked!r}")
    if asked in ("gpu", "pinned") and not arrays.on_gpu:
        raise ValueError(f"Loader: tier {asked!r} needs device 'cuda', got {str(arrays.device)!r}")
    if asked == "mmap":
        return asked
    own = ("gpu", "pinned") if arrays.on_gpu else ("memory",)
    for tier in own if asked is None else (asked,):
        limit, what = (budget, "budget_bytes") if budget is not None else free_bytes(tier, arrays, local_ranks)
        if needed <= limit:
            return tier
        if asked is not None:
            raise MemoryError(f"Loader: tier {asked!r} needs {needed} bytes, {what} leaves {limit}")
    return "mmap"


def free_bytes(tier: str, arrays: Arrays, local_ranks: int) -> tuple[int, str]:
    """What a tier may take, and why. Memory of the host is what the cgroups of this process leave of it."""
    if tier == "gpu":
        free = arrays.xp.cuda.mem_get_info(arrays.device)[0]
        return int(free * SHARE), f"{SHARE:.0%} of the free memory of {arrays.device}"
    shared = f" for each of {local_ranks} ranks" if local_ranks > 1 else ""
    free = process_limits()["free_memory_bytes"] // local_ranks
    return int(free * SHARE), f"{SHARE:.0%} of the free memory{shared}"


def open_store(
    selections: list[Selection], names: list[str], tier: str, size_bytes: int, arrays: Arrays, check: bool
) -> Store:
    """``check``: compare checksums, of the rows that are copied and of all times."""
    parts: list[Part] = []
    part: list[Any] = []
    local: list[Any] = []
    for source, selection in enumerate(selections):
        if check:
            check_times(selection, names)
        if tier != "mmap":
            part.append(np.full(len(selection.kept), len(parts)))
            local.append(np.arange(len(selection.kept)))
            rows = {name: resident(selection, name, tier, arrays, check) for name in names}
            parts.append(Part(source, with_shared_times(rows, arrays)))
            continue
        part.append(len(parts) + np.searchsorted(selection.shards, selection.shard_of))
        local.append(selection.local)
        for shard in selection.shards:
            rows = {name: mapped(selection, name, selection.stream(name, int(shard)), arrays) for name in names}
            parts.append(Part(source, with_shared_times(rows, arrays)))
    part_of, local_of = (np.concatenate(x).astype(np.int64) for x in (part, local))
    return Store(tier, 0 if tier == "mmap" else size_bytes, parts, part_of, local_of)


def with_shared_times(rows: dict[str, Rows], arrays: Arrays) -> dict[str, Rows]:
    """Streams with the same times have them once, so that ``align`` sees that one search is enough."""
    known: list[Rows] = []
    for name, (values, times, offsets) in rows.items():
        same = (r for r in known if arrays.equal(r[1], times) and arrays.equal(r[2], offsets))
        found = next(same, None)
        if found is None:
            known.append((values, times, offsets))
        else:
            rows[name] = (values, found[1], found[2])
    return rows


def mapped(selection: Selection, name: str, stream: ShardStream, arrays: Arrays) -> Rows:
    values = arrays.of(selection.values(name, stream), selection.spec(name).dtype)
    return values, arrays.of(stream.times), arrays.of(stream.offsets)


def check_times(selection: Selection, names: list[str]) -> None:
    for name in names:
        for shard in selection.shards.tolist():
            selection.cache._reader.check_times(shard, list(selection.cache.specs).index(name))


def copy_values(
    selection: Selection, name: str, stream: ShardStream, begin: int, end: int, into: Any, arrays: Arrays, check: bool
) -> None:
    """Rows of a stream, by read calls: a file that is cut short is an error. A GPU gets them piece by piece."""
    if (name, stream.shard) in selection._first_numbers:  # numbers, which are in no file
        arrays.copy(into, arrays.of(selection.values(name, stream)[begin:end]))
        return
    reader, number = selection.cache._reader, list(selection.cache.specs).index(name)
    if arrays.is_on_host(into):
        reader.copy_values(stream.shard, number, begin, end, arrays.address(into), check)
        return
    step = max(1, STAGED_BYTES // max(1, selection.spec(name).row_bytes))
    for first in range(begin, end, step):
        last = min(end, first + step)
        part = arrays.empty((last - first, *into.shape[1:]), selection.spec(name).dtype, arrays.host)
        reader.copy_values(stream.shard, number, first, last, arrays.address(part), check)
        arrays.copy(into[first - begin : last - begin], part)


def resident(selection: Selection, name: str, tier: str, arrays: Arrays, check: bool) -> Rows:
    """The rows of all kept episodes, copied once, run by run: never twice in memory. Of the tier ``pinned``, values are
    in host memory that the GPU reads, and times on the GPU."""
    spec = selection.spec(name)
    counts = selection.counts(name)
    rows = int(counts.sum())
    place = arrays.host if tier == "memory" else arrays.device
    home = arrays.device if tier == "gpu" else arrays.host
    values = arrays.empty((rows, *spec.shape), spec.dtype, home, pinned=tier == "pinned" and rows > 0)
    times = arrays.empty((rows,), "int64", place)
    done = 0
    for stream, begin, end in selection.runs(name):
        into = slice(done, done + end - begin)
        copy_values(selection, name, stream, begin, end, values[into], arrays, check)
        arrays.copy(times[into], arrays.of(stream.times[begin:end]))
        done += end - begin
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return values, times, arrays.to(arrays.of(offsets), place)
