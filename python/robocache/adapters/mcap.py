"""MCAP files and ROS 2 bag folders: every message of every topic at its own time, by a clock that the user chooses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core import FormatError
from .._episode import JSON
from ._budget import BUDGET, Budget
from ._guard import OptionError
from ._mcap_messages import KNOWN, Collected, Part
from ._mcap_records import MAGIC, Topic, read_messages, read_topics
from ._paths import Tree, begins_with, need, read_file
from ._repair import Repairer
from ._source import BaseSource, Rows

CLOCKS = ("log_time", "publish_time", "header.stamp")
MAX_YAML_BYTES = 16 << 20
SQLITE = b"SQLite format 3\0"


def detect(path: Path) -> bool:
    """Also bags of SQLite, so that open can say what to do with them."""
    try:
        if path.is_file():
            return begins_with(path, MAGIC) or (path.suffix == ".db3" and begins_with(path, SQLITE))
        return path.is_dir() and bool(_recordings(Tree(path, True), path))
    except SqliteBagError:
        return True
    except (OSError, FormatError):
        return False


def open(
    path: Path,
    clock: str | None = None,
    topics: Sequence[str] | None = None,
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
) -> Mcap:
    """``clock`` must be chosen: ``log_time`` (when it was recorded), ``publish_time`` (when it was sent) or
    ``header.stamp`` (when it was measured, by the sensor's word). ``topics``: only these."""
    return Mcap(Path(path), clock, topics, (repair, budget, follow_symlinks))


class Mcap(BaseSource):
    format = "mcap"

    def __init__(self, path: Path, clock: str | None, topics: Sequence[str] | None, shared: tuple[Any, ...]) -> None:
        super().__init__(path, *shared)
        if path.is_file() and begins_with(path, SQLITE):
            raise SqliteBagError(path)
        self._recordings = [[path]] if path.is_file() else _recordings(self.tree, path)
        if not self._recordings:
            raise FormatError(f"mcap: {path} has no MCAP file")
        if clock not in CLOCKS:
            raise OptionError(f"open: clock must be one of {', '.join(CLOCKS)} for {path}, got {clock!r}")
        self._clock = clock
        need("mcap", "mcap")
        need("mcap_ros2.decoder", "mcap")
        self._topics: dict[str, Topic] = {}
        for file in {file: None for recording in self._recordings for file in recording}:
            for topic in read_topics(file, self.budget):
                known = self._topics.setdefault(topic.name, topic)
                if known.schema != topic.schema:
                    raise FormatError(f"mcap: {file}: topic {topic.name} is {topic.schema}, elsewhere {known.schema}")
        if topics is not None and (unknown := [name for name in topics if name not in self._topics]):
            raise OptionError(f"open: topics must be among {', '.join(self._topics)}, got {unknown[0]!r}")
        self._wanted = {
            name: topic
            for name, topic in self._topics.items()
            if topic.schema in KNOWN and topic.encoding == "cdr" and (topics is None or name in topics)
        }
        left_out = [name for name in self._topics if name not in self._wanted and (topics is None or name in topics)]
        self.metadata = {
            "clock": clock,
            "topics": {name: topic.schema for name, topic in self._topics.items()},
            "left_out": left_out,
        }
        self._add_specs()

    def _add_specs(self) -> None:
        """Sizes are in the messages: the specs are those of the first message of each topic."""
        left = dict(self._wanted)
        for recording in self._recordings:
            if not left:
                return
            for name, collected in self._collect(recording, left, first=True).items():
                self.specs.update({part.spec.name: part.spec for part in collected.parts()})
                if collected.times:
                    del left[name]

    def __len__(self) -> int:
        return len(self._recordings)

    def files(self) -> Iterable[Path]:
        return [file for recording in self._recordings for file in recording]

    def label(self, index: int) -> str:
        return f"mcap: {self._recordings[index][0]}: episode {index}"

    def read(self, index: int, repairer: Repairer) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        collected = self._collect(self._recordings[index], self._wanted)
        rows = []
        for topic in collected.values():
            for part in topic.parts():
                self._check_same(part, repairer.where)
                rows.append(Rows(part.spec, part.values, np.array(topic.times, np.int64), part.offsets))
        present = {r.spec.name for r in rows}
        for name, spec in self.specs.items():
            if name not in present:
                offsets = np.zeros(1, np.int64) if spec.kind == "points" else None
                rows.append(Rows(spec, np.empty((0, *spec.shape), spec.numpy_dtype), np.empty(0, np.int64), offsets))
        files = [file.name for file in self._recordings[index]]
        return rows, None, {"files": files, "clock": self._clock}

    def _check_same(self, part: Part, where: str) -> None:
        spec = self.specs.setdefault(part.spec.name, part.spec)
        if (spec.shape, spec.dtype, spec.names) != (part.spec.shape, part.spec.dtype, part.spec.names):
            raise FormatError(
                f"{where}, stream {spec.name}: rows are {part.spec.dtype} {part.spec.shape} of {part.spec.names}, "
                f"in the dataset's first message {spec.dtype} {spec.shape} of {spec.names}"
            )

    def _collect(self, files: Sequence[Path], topics: Mapping[str, Topic], first: bool = False) -> dict[str, Collected]:
        """Decodes the messages of the topics; only the first one of each where ``first``."""
        collected = {name: Collected(name, topic.schema, self.budget) for name, topic in topics.items()}
        decoders: dict[tuple[Path, int], Callable[[bytes], Any]] = {}
        total = 0
        for file in files:
            for schema, channel, message in read_messages(file, set(topics), self.budget):
                topic = collected[channel.topic]
                if first and topic.times:
                    continue
                where = f"mcap: {file}, topic {channel.topic}, message {len(topic.times)}"
                total += len(message.data)
                self.budget.check(f"mcap: {file}", total)
                decoder = decoders.get((file, schema.id)) or _decoder(schema, where)
                decoders[file, schema.id] = decoder
                try:
                    decoded = decoder(message.data)
                except Exception as error:  # the decoder raises whatever its parsing stumbles over
                    raise FormatError(f"{where}: {type(error).__name__}: {error}") from error
                topic.add(decoded, self._time(message, decoded, where), where)
                if first and all(other.times for other in collected.values()):
                    return collected
        return collected

    def _time(self, message: Any, decoded: Any, where: str) -> int:
        if self._clock == "header.stamp":
            header = getattr(decoded, "header", None)
            if header is None:
                raise FormatError(f"{where}: the message has no header.stamp; choose another clock, or other topics")
            seconds = header.stamp.sec - (1 << 32 if header.stamp.sec >= 1 << 31 else 0)  # int32, read as uint32
            return int(seconds * 10**9 + header.stamp.nanosec)
        time = int(getattr(message, self._clock))
        if time >= 1 << 63:
            raise FormatError(f"{where}: {self._clock} is {time}, which is after the year 2262")
        return time


def _decoder(schema: Any, where: str) -> Callable[[bytes], Any]:
    factory = need("mcap_ros2.decoder", "mcap").DecoderFactory()
    try:
        decoder: Callable[[bytes], Any] | None = factory.decoder_for("cdr", schema)
    except Exception as error:  # as above
        raise FormatError(f"{where}: the schema {schema.name} cannot be read: {error}") from error
    if decoder is None:
        raise FormatError(f"{where}: the schema {schema.name} is in {schema.encoding!r}; ros2msg is read")
    return decoder


class SqliteBagError(FormatError):
    def __init__(self, path: Path) -> None:
        super().__init__(
            f"mcap: {path} is a bag of SQLite; 'ros2 bag convert' makes MCAP of it, and without ROS "
            "'rosbags-convert --dst-storage mcap' (pip install rosbags)"
        )


def _recordings(tree: Tree, path: Path) -> list[list[Path]]:
    """The files of each episode: a bag folder is one, every other MCAP file is one; also of folders of these."""
    if (path / "metadata.yaml").is_file():
        return [_bag_files(tree, path)]
    found = [[file] for file in sorted(path.glob("*.mcap"))]
    found += [_bag_files(tree, bag.parent) for bag in sorted(path.glob("*/metadata.yaml"))]
    for files in found:
        for file in files:
            tree.check(file)
    return found


def _bag_files(tree: Tree, bag: Path) -> list[Path]:
    """The files that metadata.yaml lists, in their order. Only that list is read, so no YAML reader is needed."""
    text = read_file(tree.file((bag / "metadata.yaml").relative_to(tree.root)), MAX_YAML_BYTES).decode(
        "utf-8", "replace"
    )
    match = re.search(r"^ *relative_file_paths:\s*\n((?: *- *.*\n?)+)", text, re.M)
    names = [line.strip()[1:].strip().strip("'\"") for line in match[1].splitlines()] if match else []
    if not names:
        raise FormatError(f"mcap: {bag}/metadata.yaml lists no files under relative_file_paths")
    if other := [name for name in names if not name.endswith(".mcap")]:
        if ".db3" in other[0]:  # .db3.zstd too
            raise SqliteBagError(bag / other[0])
        raise FormatError(f"mcap: {bag}: {other[0]} is not MCAP")
    return [Tree(bag, tree.follow_symlinks).file(name) for name in names]
