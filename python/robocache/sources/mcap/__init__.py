"""MCAP files and ROS 2 bag folders: every message of every topic at its own time, by a clock that the user chooses."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._core import FormatError
from ...cache.episode import JSON, RAGGED, LeftOut, StreamSpec
from ...cache.pictures import VIDEO_CODECS
from ...cache.video import stored_video
from ..reading.budget import BUDGET, ENTRY_BYTES, Budget, add_stored
from ..reading.guard import NeedsOption, OptionError
from ..reading.images import other_codec
from ..reading.paths import Tree, begins_with, is_cache, state_of
from ..reading.repair import Repairer
from ..reading.source import BaseSource, Rows, first_others
from .bags import METADATA, SQLITE, SqliteBagError, names_files, recordings_of
from .definitions import Definition, parse_definition
from .messages import FIELDS_LEFT_OUT, KNOWN, STRING, Collected, Part, VideoTopic, check_codes
from .records import MAGIC, Channel, Data, Message, Schema, read_summary
from .video import COMPRESSED_VIDEO

CLOCKS = ("log_time", "publish_time", "header.stamp")


def detect(path: Path) -> bool:
    """Also bags of SQLite, so that open can say what to do with them."""
    try:
        if path.is_file():
            return begins_with(path, MAGIC) or (path.suffix == ".db3" and begins_with(path, SQLITE))
        return path.is_dir() and bool(recordings_of(Tree(path, True), path))
    except SqliteBagError:
        return True
    except FormatError:  # for open to report
        return any(map(names_files, (path / METADATA, *path.glob(f"*/{METADATA}"))))
    except OSError:
        return False


def open(
    path: Path,
    clock: str | None = None,
    topics: Sequence[str] | None = None,
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
    encoded: bool = False,
) -> Mcap:
    """``clock`` must be chosen: ``log_time`` (when it was recorded), ``publish_time`` (when it was sent) or
    ``header.stamp`` (when it was measured, by the sensor's word). ``topics``: only these. ``encoded``: pictures of
    CompressedImage and packets of CompressedVideo stay as they are (``StreamSpec.codec``)."""
    if topics is not None and (isinstance(topics, str) or not all(isinstance(name, str) for name in topics)):
        raise OptionError(f"open: topics must be a list of names, got {topics!r}")
    return Mcap(Path(path), clock, topics, (repair, budget, follow_symlinks, encoded))


@dataclass(frozen=True)
class Topic:
    """``reason``: why it is left out; empty where it is read."""

    name: str
    schema: str
    reason: str = ""


class Mcap(BaseSource):
    format = "mcap"

    def __init__(self, path: Path, clock: str | None, topics: Sequence[str] | None, shared: tuple[Any, ...]) -> None:
        super().__init__(path, *shared)
        if path.is_file() and begins_with(path, SQLITE):
            raise SqliteBagError(path)
        self._recordings = [[path]] if path.is_file() else recordings_of(self.tree, path)
        if not self._recordings:
            raise FormatError(f"mcap: {path} has no MCAP file")
        if clock not in CLOCKS:
            if clock is None:
                raise NeedsOption(f"open: clock is required for {path}; it must be one of {', '.join(CLOCKS)}")
            raise OptionError(f"open: clock must be one of {', '.join(CLOCKS)}, got {clock!r}")
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._silent: set[str] = set()
        """Topics without messages, by the statistics of the files."""
        self._several: dict[str, tuple[Path, str, str]] = {}
        """Topics with several types: a file, its type, and the type before."""
        self._topic_of: dict[str, str] = {}
        """By the name of a stream: the topic that it comes from."""
        for file in self.files():
            self._add_topics(file)
        if topics is not None and (unknown := [name for name in topics if name not in self._topics]):
            raise OptionError(f"open: topics must be among {', '.join(self._topics)}, got {unknown[0]!r}")
        chosen = {name: topic for name, topic in self._topics.items() if topics is None or name in topics}
        for name, (file, schema, known) in self._several.items():
            if name in chosen:
                raise FormatError(
                    f"mcap: {file}: topic {name} is {schema}, elsewhere {known}; to leave it out, name the others "
                    "with topics="
                )
        self._wanted = {name: topic for name, topic in chosen.items() if not topic.reason}
        self._add_specs()
        self._add_left_out(chosen)
        self.metadata = {
            "clock": clock,
            "topics": {name: topic.schema for name, topic in self._topics.items()},
            "left_out": [left.name for left in self.left_out],
        }

    def _add_topics(self, file: Path) -> None:
        """From the summary where it has a checksum and statistics, else from the data: all of it is read."""
        summary = read_summary(file, self.budget)
        schemas, channels, stated = summary.schemas, summary.channels, summary.statistics
        defined = all(channel.schema_id in schemas for channel in channels.values() if channel.schema_id)
        if not summary.checked or not channels or not defined or stated is None:
            data = Data(file, self.budget)
            for _ in data.messages():
                pass
            schemas, channels, stated = data.schemas, data.channels, data.statistics()
        counts = stated.by_channel
        if stated.num_attachments or stated.num_metadata:
            what = f"{stated.num_attachments} attachments and {stated.num_metadata} metadata records"
            self.left_out.append(LeftOut(file.name, f"{what} are not read"))
        is_known = bool(counts) or not stated.num_messages
        heard = {channel.topic for number, channel in channels.items() if counts.get(number, 0 if is_known else 1)}
        for channel in channels.values():
            topic = _topic(channel, schemas.get(channel.schema_id), self._clock)
            known = self._topics.setdefault(channel.topic, topic)
            if known.schema != topic.schema:
                self._several.setdefault(topic.name, (file, topic.schema, known.schema))
            if topic.reason and not known.reason:
                self._topics[channel.topic] = topic
            if channel.topic in heard:
                self._silent.discard(channel.topic)
            elif known is topic:
                self._silent.add(channel.topic)

    def _add_specs(self) -> None:
        """Sizes are in the messages: the specs are those of the first message of each topic."""
        left = {name: topic for name, topic in self._wanted.items() if name not in self._silent}
        empty: set[str] = set()
        for recording in self._recordings:
            if not left:
                return
            for name, collected in self._collect(recording, left, first=True).items():
                specs = collected.specs()
                for spec in specs:
                    self._check_topic(spec.name, name, f"mcap: {recording[0]}")
                self.specs.update({spec.name: spec for spec in specs})
                if specs:
                    del left[name]
                    self._add_fields(specs)
                elif collected.times:
                    empty.add(name)
        for name, topic in left.items():
            if topic.schema == COMPRESSED_VIDEO:
                reason = "its video has no keyframe with parameter sets, so no frame can be decoded"
                del self._wanted[name]
                self.left_out.append(LeftOut(name, reason))
            elif name in empty:
                self.left_out.append(LeftOut(name, "its messages have no values"))

    def _add_fields(self, specs: Iterable[StreamSpec]) -> None:
        for spec in specs:
            names = [f"{spec.name}, field {name}" for name in spec.meta.get(FIELDS_LEFT_OUT, ())]
            self.left_out += [LeftOut(name, "its count is not 1, or its type is unknown") for name in names]

    def _add_left_out(self, chosen: Mapping[str, Topic]) -> None:
        for name, topic in self._topics.items():
            if name not in chosen:
                self.left_out.append(LeftOut(name, "not selected", "topics="))
            elif topic.reason:
                self.left_out.append(LeftOut(name, topic.reason))
            elif name in self._silent:
                self.left_out.append(LeftOut(name, "no messages"))
        if not self.path.is_dir():
            return
        one_bag = (self.path / METADATA).exists()
        for recording in self._recordings:
            bag = self.path if one_bag else self.path / recording[0].relative_to(self.path).parts[0]
            if bag.is_dir():
                self._add_others(bag, recording, f"{METADATA} does not list it")
        if not one_bag:
            self._add_others(self.path, self.files(), "neither an MCAP file nor a folder of a bag")

    def _add_others(self, folder: Path, files: Iterable[Path], reason: str) -> None:
        """Lists what is in a folder beside the files that are read: other recordings may be among it."""
        others, read = [], {METADATA, *(file.relative_to(folder).parts[0] for file in files)}
        with os.scandir(folder) as entries:
            for entry in entries:
                add_stored(ENTRY_BYTES)
                self.budget.count(f"mcap: {folder}")
                if entry.name not in read and not is_cache(entry.path):
                    others.append(os.path.relpath(entry.path, self.path))
        self.left_out += first_others(others, reason, folder.name)

    def __len__(self) -> int:
        return len(self._recordings)

    def files(self) -> Iterable[Path]:
        return list({file: None for recording in self._recordings for file in recording})

    def fingerprint(self) -> str:
        """Also of the lists of bags: they say in which order files are read."""
        folders = sorted({self.path, *(file.parent for file in self.files())})
        lists = [path for folder in folders if (path := folder / METADATA).is_file()]
        states = [state_of(os.path.relpath(path, self.path), path.stat()) for path in lists]
        own = super().fingerprint()
        return hashlib.sha256(b"".join([own.encode(), *states])).hexdigest() if states else own

    def label(self, index: int) -> str:
        return f"mcap: {self._recordings[index][0]}: episode {index}"

    def read(self, index: int, repairer: Repairer) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        collected = self._collect(self._recordings[index], self._wanted)
        rows = []
        self._check_clock(collected.values(), repairer.where)
        for topic in collected.values():
            if self._clock == "header.stamp" and topic.times and not any(topic.times):
                raise FormatError(
                    f"{repairer.where}, topic {topic.topic}: header.stamp is 0 in all {len(topic.times)} messages, "
                    "so it was never set; pass clock='log_time' or 'publish_time', or leave it out with topics="
                )
            if isinstance(topic, VideoTopic) and topic.before_key:
                what = f"message 0: {topic.before_key} messages before the first keyframe cannot be decoded"
                repairer.apply_policy("missing", topic.topic, topic.before_key, what)
            for part in topic.parts():
                self._check_topic(part.spec.name, topic.topic, repairer.where)
                self._check_same(part, repairer.where)
                rows.append(Rows(part.spec, part.values, np.array(topic.times, np.int64), part.offsets))
        present = {r.spec.name for r in rows}
        for name, spec in self.specs.items():
            if name not in present:
                offsets = np.zeros(1, np.int64) if spec.kind in RAGGED else None
                rows.append(Rows(spec, _no_rows(spec), np.empty(0, np.int64), offsets))
        files = [file.name for file in self._recordings[index]]
        return rows, None, {"files": files, "clock": self._clock}

    def _check_clock(self, topics: Iterable[Collected | VideoTopic], where: str) -> None:
        """Of a clock that the recorder never set, all times are 0. One message, or one topic, may be at the time 0."""
        count = sum(len(topic.times) for topic in topics)
        if self._clock != "header.stamp" and count > 1 and not any(any(topic.times) for topic in topics):
            other = "log_time" if self._clock == "publish_time" else "publish_time"
            raise FormatError(
                f"{where}: {self._clock} is 0 in all {count} messages, so it was never set; pass clock='{other}' or "
                "'header.stamp'"
            )

    def _check_topic(self, stream: str, topic: str, where: str) -> None:
        """A name stands for one stream: ``/arm/position`` may be a topic, and the positions of the topic ``/arm``."""
        if (other := self._topic_of.setdefault(stream, topic)) != topic:
            raise FormatError(
                f"{where}: the topics {other} and {topic} both give the stream {stream}; leave one of them out: name "
                "the others with topics="
            )

    def _check_same(self, part: Part, where: str) -> None:
        spec = self.specs.setdefault(part.spec.name, part.spec)
        if (spec.shape, spec.dtype, spec.names) != (part.spec.shape, part.spec.dtype, part.spec.names):
            raise FormatError(
                f"{where}, stream {spec.name}: rows are {part.spec.dtype} {part.spec.shape} of {part.spec.names}, "
                f"in the dataset's first message {spec.dtype} {spec.shape} of {spec.names}"
            )
        if spec.codec != part.spec.codec:
            raise FormatError(other_codec(f"{where}, stream {spec.name}", part.spec.codec, spec.codec))
        check_codes(part.spec.meta, spec.meta, f"{where}, stream {spec.name}")

    def _collect(
        self, files: Sequence[Path], topics: Mapping[str, Topic], first: bool = False
    ) -> dict[str, Collected | VideoTopic]:
        """Decodes the messages of the topics; only the first one of each where ``first``, of a video those up to the
        first keyframe."""
        collected: dict[str, Collected | VideoTopic] = {
            name: VideoTopic(name, self.budget, self.encoded)
            if topic.schema == COMPRESSED_VIDEO
            else Collected(name, topic.schema, self.budget, self.encoded)
            for name, topic in topics.items()
        }
        total = 0
        for file in files:
            data = Data(file, self.budget)
            definitions: dict[int, Definition] = {}
            for channel, message in data.messages():
                topic = collected.get(channel.topic)
                if topic is None:
                    if channel.topic not in self._topics:
                        raise FormatError(f"mcap: {file}: topic {channel.topic} is not in the summary of the file")
                    continue
                if first and topic.times:
                    continue
                where = f"mcap: {file}, topic {channel.topic}, message {topic.num_messages}"
                total += len(message.data)
                self.budget.check(f"mcap: {file}", total)
                if (definition := definitions.get(channel.schema_id)) is None:
                    definition = self._definition(data.schemas.get(channel.schema_id), topics[channel.topic], where)
                    definitions[channel.schema_id] = definition
                try:
                    decoded = definition.read(message.data)
                except (ValueError, struct.error) as error:
                    raise FormatError(f"{where}: {error}") from error
                time = self._time(message, decoded, where)
                try:
                    topic.add(decoded, time, where)
                except (AttributeError, TypeError) as error:  # the definition has other fields than the type
                    raise FormatError(f"{where}: it is not a {topics[channel.topic].schema}: {error}") from error
                if first and all(other.times for other in collected.values()):
                    return collected
        return collected

    def _definition(self, schema: Schema | None, topic: Topic, where: str) -> Definition:
        if schema is None or schema.name != topic.schema:
            raise FormatError(f"{where}: its type is not defined before the message")
        try:
            return parse_definition(schema.name, schema.data, self.budget)
        except ValueError as error:
            raise FormatError(f"{where}: the definition of {schema.name} cannot be read: {error}") from error

    def _time(self, message: Message, decoded: Any, where: str) -> int:
        if self._clock == "header.stamp":
            header = getattr(decoded, "header", None)
            stamp = getattr(decoded, "timestamp", None) if header is None else header.stamp  # of Foxglove: no header
            if stamp is None:
                raise FormatError(f"{where}: the message has no header.stamp; pass another clock= or other topics=")
            seconds = stamp.sec - (1 << 32 if stamp.sec >= 1 << 31 else 0)  # int32, in some definitions unsigned
            return int(seconds * 10**9 + stamp.nanosec)
        time = message.log_time if self._clock == "log_time" else message.publish_time
        if time >= 1 << 63:
            raise FormatError(f"{where}: {self._clock} is {time}, which is after the year 2262")
        return time


def _topic(channel: Channel, schema: Schema | None, clock: str) -> Topic:
    name = "" if schema is None else schema.name
    reason = ""
    if name not in KNOWN and name != COMPRESSED_VIDEO:
        reason = f"message type {name} is not supported" if name else "its messages have no type"
    elif channel.encoding != "cdr":
        reason = f"messages are encoded as {channel.encoding or 'nothing'}; only cdr is supported"
    elif schema is not None and schema.encoding != "ros2msg":
        reason = f"its type is defined in {schema.encoding or 'nothing'}; only ros2msg is supported"
    elif name == STRING and clock == "header.stamp":
        reason = "its messages have no header.stamp; pass clock='log_time' or 'publish_time' to read it"
    return Topic(channel.topic, name, reason)


def _no_rows(spec: StreamSpec) -> Any:
    if spec.codec in VIDEO_CODECS:
        return stored_video(spec, np.zeros(0, np.uint8), None, 0, spec.name)
    return [] if spec.codec is not None else np.empty((0, *spec.shape), spec.numpy_dtype)
