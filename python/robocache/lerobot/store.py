"""The cache of a dataset: made once, in a folder named after the state of the dataset's files, and shared by ranks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import FormatError
from ..cache.cache import Cache
from ..cache.episode import StreamSpec
from ..cache.pictures import Pictures
from ..convert.ingest import ingest
from ..sources import open as open_dataset
from ..sources.lerobot import AUTOMATIC
from ..sources.lerobot.tables import Tables
from ..sources.reading.budget import BUDGET
from ..sources.reading.paths import need, state_of
from .metadata import LeRobotDatasetMetadata

LAYOUT = 1
"""Of the folder. Part of its name, so a new layout makes new folders."""
READY, CACHE, TEXTS = "ready.json", "cache", "texts.arrow"
MOST_VIEWS = 100_000
"""Views of streams of episodes that are kept."""
REPORT_S = 10.0


def store_home() -> Path:
    return Path(os.environ.get("ROBOCACHE_HOME") or "~/.cache/robocache").expanduser() / "lerobot"


def fingerprint(root: Path) -> str:
    """Of the path, and of names, sizes and times of the files. If it differs, the files may have changed."""
    digest = hashlib.sha256(os.fsencode(f"lerobot {LAYOUT}\0{os.path.realpath(root)}"))
    for top in ("data", "meta", "videos"):
        for folder, folders, names in os.walk(root / top, followlinks=True):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                digest.update(state_of(os.path.relpath(path, root), os.stat(path)))
    return digest.hexdigest()[:32]


class Store:
    """The rows of a dataset. ``positions``: for each episode of ``meta.placed``, its number in the cache, or -1."""

    def __init__(self, folder: Path, meta: LeRobotDatasetMetadata) -> None:
        self.folder = folder
        self.cache = Cache(folder / CACHE)
        with open(folder / READY) as file:
            ready = json.load(file)
        self.text_names: list[str] = ready["texts"]
        kept: list[int] = ready["episodes"]
        self.positions = np.full(len(meta.placed), -1, np.int64)
        self.positions[kept] = np.arange(len(kept))
        self._streams = {name: (i, spec) for i, (name, spec) in enumerate(self.cache.specs.items())}
        self._forget()

    def _forget(self) -> None:
        self._views: dict[tuple[int, str], Any] = {}
        self._texts: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_views", "_texts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def spec(self, name: str) -> StreamSpec:
        return self._streams[name][1]

    def num_rows(self, episode: int) -> int:
        return len(self.rows(episode, "episode_index"))

    def rows(self, episode: int, name: str) -> Any:
        """Of an episode of ``meta.placed``: an array (rows, *shape), a view of the mapped cache, or ``Pictures``."""
        key = (episode, name)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            found = self._views[key] = self._mapped(int(self.positions[episode]), name)
        return found

    def _mapped(self, position: int, name: str) -> Any:
        i, spec = self._streams[name]
        reader = self.cache._reader
        guard = _core.MappingGuard()
        values, _, splits, _ = reader.rows(position, i)
        if spec.codec is not None:
            index = reader.index(position, i)
            values = Pictures(values, splits - splits[0], index if len(index) else None)
        del guard
        reader.require_whole(position)
        return values

    def pixels(self, episode: int, name: str, rows: Sequence[int]) -> NDArray[Any]:
        """(len(rows), *shape) of a stream of pictures."""
        values = self.rows(episode, name)
        if isinstance(values, Pictures):
            return values.decoded(self.spec(name), rows)
        return np.asarray(values[list(rows)])

    def text(self, episode: int, name: str, row: int) -> Any:
        """A value that is not in the cache, as Python has it: str, a list of dicts, the bytes of a picture."""
        if self._texts is None:
            arrow = need("pyarrow", "lerobot")
            self._texts = need("pyarrow.ipc", "lerobot").open_file(arrow.memory_map(str(self.folder / TEXTS)))
        batch = self._texts.get_batch(int(self.positions[episode]))
        return batch.column(batch.schema.get_field_index(name))[row].as_py()


def open_store(meta: LeRobotDatasetMetadata, streams: Sequence[str] | None = None) -> Store:
    """The cache of this state of the dataset; ingests it if there is none. Concurrent calls: one ingests.

    ``streams``: None: all but videos, and texts beside them. Else these, videos included: another cache, for a loader.
    """
    folder = store_home() / (fingerprint(meta.root) + ("" if streams is None else "-videos"))
    if not (folder / READY).is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = open(f"{folder}.lock", "a")  # noqa: SIM115
        except OSError as error:
            raise OSError(
                f"LeRobotDataset: the cache folder {folder} cannot be written ({error}); set ROBOCACHE_HOME to another "
                "folder"
            ) from error
        with lock, locked(lock, folder):
            if not (folder / READY).is_file():
                make(folder, meta, streams)
    return Store(folder, meta)


@contextmanager
def locked(file: Any, folder: Path) -> Iterator[None]:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say(f"waiting for another process that ingests into {folder}")
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def make(folder: Path, meta: LeRobotDatasetMetadata, streams: Sequence[str] | None) -> None:
    """Writes cache and texts, then READY. An interrupted call continues where it stopped."""
    kept = [i for i, placed in enumerate(meta.placed) if (meta.root / placed.data_file).is_file()]
    if not kept:
        raise FileNotFoundError(f"LeRobotDataset: {meta.root}/data has no file of any episode")
    state = fingerprint(meta.root)
    for other in others_of(meta.root, folder):
        say(f"{other} is of an earlier state of {meta.root}, or of a dataset that was there before, and can be deleted")
    say(f"ingesting {meta.repo_id} ({len(kept)} episodes) from {meta.root} into {folder}, once")
    options: dict[str, Any] = {"automatic": True, "video": streams is not None, "follow_symlinks": True}
    options["rate_hz"] = float(meta.fps)
    chosen = streams
    if streams is None and any(feature["dtype"] in ("string", "language") for feature in meta.features.values()):
        found = open_dataset(meta.root, "lerobot", **options).specs  # texts are kept beside the cache, as columns
        chosen = [name for name, spec in found.items() if spec.kind != "text"]
    cache = ingest(
        meta.root,
        folder / CACHE,
        format="lerobot",
        streams=chosen,
        episodes=None if len(kept) == len(meta.placed) else kept,
        resume=True,
        progress=reporter(meta.repo_id),
        **options,
    )
    if missing := [name for name in AUTOMATIC if name not in cache.specs]:
        raise FormatError(f"LeRobotDataset: {meta.root}/meta/info.json must declare {', '.join(missing)}")
    others = [name for name in meta.features if name not in cache.specs and name not in meta.video_keys]
    texts = others if streams is None else []
    if texts:
        write_texts(folder / TEXTS, meta, kept, texts)
    if fingerprint(meta.root) != state:
        raise FormatError(f"LeRobotDataset: {meta.root} changed during the ingest; run it again")
    ready = {"texts": texts, "episodes": kept, "repo_id": meta.repo_id, "root": str(meta.root)}
    partial = folder / f"{READY}.part"
    partial.write_text(json.dumps(ready))
    os.replace(partial, folder / READY)


def others_of(root: Path, folder: Path) -> list[Path]:
    """Other finished folders beside this one that were made of the same path."""
    found = []
    for ready in sorted(folder.parent.glob(f"*/{READY}")):
        with suppress(OSError, ValueError, AttributeError):
            if ready.parent != folder and json.loads(ready.read_text()).get("root") == str(root):
                found.append(ready.parent)
    return found


def write_texts(path: Path, meta: LeRobotDatasetMetadata, kept: Sequence[int], names: Sequence[str]) -> None:
    """Columns that are no streams of numbers or pictures, as they are: one record batch per episode."""
    arrow, ipc = need("pyarrow", "lerobot"), need("pyarrow.ipc", "lerobot")
    tables = Tables(BUDGET)
    partial = path.with_suffix(".part")
    writer = None
    with arrow.OSFile(str(partial), "wb") as sink:
        for i in kept:
            placed = meta.placed[i]
            with BUDGET.call():
                table = tables.episode(meta.root / placed.data_file, placed.index, names)
            if missing := [name for name in names if name not in table.column_names]:
                raise FormatError(f"LeRobotDataset: {meta.root}/{placed.data_file} has no column {missing[0]}")
            table = table.select(list(names)).unify_dictionaries().combine_chunks()
            table = arrow.table({name: plain(arrow, table.column(name)) for name in names})
            if writer is None:
                schema = table.schema
                writer = ipc.new_file(sink, schema)
            for batch in [*table.cast(schema).to_batches()] or [empty(arrow, schema)]:
                writer.write_batch(batch)
        if writer is not None:
            writer.close()
    os.replace(partial, path)


def plain(arrow: Any, column: Any) -> Any:
    """One chunk without dictionaries, so that all batches of the file have one schema."""
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.combine_chunks()


def empty(arrow: Any, schema: Any) -> Any:
    return arrow.RecordBatch.from_arrays([arrow.array([], field.type) for field in schema], schema=schema)


def reporter(name: str) -> Callable[[int, int], None]:
    """Prints how far an ingest is, every ten seconds."""
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_S or (done == total and total > 1):
            last = time.monotonic()
            say(f"{name}: {done} of {total} episodes")

    return report


def say(text: str) -> None:
    print(f"robocache: {text}", file=sys.stderr, flush=True)
