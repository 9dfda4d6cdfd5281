"""robomimic HDF5: /data/demo_i with actions, rewards, dones, states, obs/<key>; no times: the user gives the rate."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._core import FormatError
from ..cache.episode import DTYPES, JSON, LeftOut, StreamSpec
from .reading.budget import BUDGET, Budget
from .reading.guard import NeedsOption, OptionError
from .reading.paths import begins_with, checked_shape, need, num_bytes, open_regular
from .reading.repair import Repairer
from .reading.source import BaseSource, Rows
from .reading.times import checked_rate, is_rate, times_at_rate

MAGIC = b"\x89HDF\r\n\x1a\n"
DEMO = re.compile(r"demo_[0-9]{1,18}")
OBSERVATIONS = ("obs", "next_obs")
NEXT_OBS = "repeats obs one row later"
MAX_MASK = 10_000_000
MAX_NAME = 1 << 16
PART_BYTES = 64 << 20
"""Of a dataset that is read at a time."""
MAX_ATTRIBUTE = 64 << 20
FILTERS = (1, 2, 3, 4, 5, 6, 32000)
"""Those that HDF5 and h5py have: deflate, shuffle, Fletcher32, szip, n-bit, scale-offset, LZF. Others are programs."""
TEXTS = 64
"""Texts without a fixed length that are read at a time."""
ROBOSUITE = 1
"""``env_args["type"]`` of robosuite, whose quaternions are x, y, z, w: https://robosuite.ai/docs, transform_utils."""
QUATERNION = re.compile(r"(next_)?obs/.*quat(_site)?")
ROBOT_QUATERNION = re.compile(r"(next_)?obs/robot\d+_eef_quat(_site)?")
"""A name that robosuite gives, whatever ``env_args`` says."""
UNKNOWN_TYPE = "its type of HDF5 has no equivalent in NumPy"
NUMBERS = frozenset(np.dtype(name) for name in DTYPES if name != "bfloat16")


def detect(path: Path) -> bool:
    return begins_with(path, MAGIC)


def open(
    path: Path,
    rate_hz: float | None = None,
    mask: str | None = None,
    next_obs: bool = False,
    repair: Mapping[str, str] | None = None,
    budget: Budget = BUDGET,
    follow_symlinks: bool = False,
) -> Robomimic:
    """``rate_hz``: needed unless env_args has ``control_freq``. ``mask``: a filter key of /mask. ``next_obs``: read
    these streams as well, although they repeat ``obs`` one row later."""
    return Robomimic(Path(path), rate_hz, mask, next_obs, (repair, budget, follow_symlinks))


class Stored(NamedTuple):
    """A dataset by HDF5's own handle: h5py's objects cost as much as reading a short dataset."""

    id: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, num_rows: int, budget: Budget, where: str) -> Any:
        """The first rows, in the byte order of this machine. Read in parts, so that there is progress to be seen."""
        h5s = need("h5py.h5s", "robomimic")
        values = np.empty((num_rows, *self.shape[1:]), self.dtype)
        if values.size == 0:
            return values
        step = self._rows_at_once(values.nbytes // num_rows)
        if num_rows == self.shape[0] and num_rows <= step:
            self.id.read(h5s.ALL, h5s.ALL, values)
            return values
        part = h5s.create_simple(self.shape)
        for begin in range(0, num_rows, step):
            budget.check_time(where)
            rows = values[begin : begin + step]
            part.select_hyperslab((begin, *(0,) * (len(self.shape) - 1)), rows.shape)
            self.id.read(h5s.create_simple(rows.shape), part, rows)
        return values

    def _rows_at_once(self, row_bytes: int) -> int:
        """Whole chunks: one that is read in two parts is unpacked twice."""
        how = self.id.get_create_plist()
        unit = int(how.get_chunk()[0]) if how.get_layout() == need("h5py.h5d", "robomimic").CHUNKED else 1
        return unit * max(1, PART_BYTES // max(1, unit * row_bytes))


class Robomimic(BaseSource):
    format = "robomimic"

    def __init__(
        self, path: Path, rate_hz: float | None, mask: str | None, next_obs: bool, shared: tuple[Any, ...]
    ) -> None:
        super().__init__(path, *shared)
        self._h5py = need("h5py", "robomimic")
        self._handle: Any = None
        self._pid = -1
        self._groups = OBSERVATIONS if next_obs else OBSERVATIONS[:1]
        try:
            self._open(rate_hz, mask)
        except (KeyError, OSError, RuntimeError, TypeError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"robomimic: {path} is not a robomimic file: {error}") from error

    def _open(self, rate_hz: float | None, mask: str | None) -> None:
        file = self._file()
        if "data" not in file:
            raise FormatError(f"robomimic: {self.path} has no group /data")
        data = self._child(file, "data", ("Group",))
        attributes, unread = self._attributes(data)
        env_args = _json_attribute(attributes.get("env_args"))
        filters = self._child(file, "mask", ("Group",)) if "mask" in list(file) else {}
        masks = {name: self._texts(self._child(filters, name, ("Dataset",))) for name in filters}
        self._demos = sorted((name for name in data if DEMO.fullmatch(name)), key=lambda name: int(name[5:]))
        if mask is not None:
            if mask not in masks:
                raise OptionError(f"open: mask must be one of {', '.join(masks) or 'none'}, got {mask!r}")
            chosen, all_demos = set(masks[mask]), self._demos
            self._demos = [demo for demo in all_demos if demo in chosen]
            if others := len(all_demos) - len(self._demos):
                self.left_out.append(LeftOut(f"{others} of {len(all_demos)} demos", "not selected", "mask="))
            if lost := sorted(chosen.difference(all_demos)):
                raise FormatError(
                    f"robomimic: {self.path}: mask/{mask} names {lost[0]!r}, which is not a demo of /data"
                )
        self._masks = masks
        self._rate_hz = _rate(self.path, rate_hz, env_args)
        self.metadata = {
            "env_args": env_args,
            "masks": masks,
            "total": attributes.get("total"),
            "rate_from": "user" if rate_hz is not None else "env_args",
        }
        left = {name: "outside /data and /mask" for name in file if name not in ("data", "mask")}
        left |= {f"data/{name}": "not a demo" for name in data if not DEMO.fullmatch(name)}
        left |= {f"data, attribute {name}": why for name, why in unread.items()}
        left |= self._add_specs(data)
        self.left_out += [
            LeftOut(name, why, "next_obs=True" if why is NEXT_OBS else None) for name, why in left.items()
        ]
        self.metadata["left_out"] = [entry.name for entry in self.left_out if entry.option is None]

    def _add_specs(self, data: Any) -> dict[str, str]:
        """Of all demos: each may have members that others lack. Returns what is left out, with reasons."""
        left_out: dict[str, str] = {}
        for number, demo in enumerate(self._demos):
            self.budget.count(f"robomimic: {self.path}")
            self.budget.check_time(f"robomimic: {self.path}")
            try:
                datasets, left = self._datasets(self._child(data, demo, ("Group",)), {*self.specs, *left_out})
            except (FormatError, KeyError, OSError, RuntimeError):
                if number == 0:
                    raise
                continue  # reading this episode says so, the others can be read
            left_out |= left
            self.specs.update({name: self._spec(name, dataset) for name, dataset in datasets.items()})
        return left_out

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_h5py", "_handle")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _h5py=need("h5py", "robomimic"), _handle=None)

    def __len__(self) -> int:
        return len(self._demos)

    def files(self) -> Iterable[Path]:
        return [self.path]

    def label(self, index: int) -> str:
        return f"robomimic: {self.path}: episode {index} ({self._demos[index]})"

    def read_streams(
        self, index: int, repairer: Repairer, names: Collection[str]
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        return self.read(index, repairer, names)

    def read(
        self, index: int, repairer: Repairer, names: Collection[str] | None = None
    ) -> tuple[list[Rows], str | None, dict[str, JSON]]:
        demo = self._demos[index]
        group = self._child(self._file()["data"], demo, ("Group",))
        found, left = self._datasets(group)
        if changed := [name for name in left if name in self.specs and (names is None or name in names)]:
            raise FormatError(f"{self.label(index)}: {changed[0]} must be rows of numbers, as in another episode")
        lengths = {name: dataset.shape[0] for name, dataset in found.items()}
        datasets = {name: dataset for name, dataset in found.items() if names is None or name in names}
        total = 0
        for name, dataset in datasets.items():
            where = f"{self.label(index)}: {name}"
            size = num_bytes(checked_shape(where, dataset.shape), dataset.dtype.itemsize)
            total += size
            self.budget.check(where, size, dataset.id.get_storage_size())
        self.budget.check(self.label(index), total)
        attributes, unread = self._attributes(group)
        num_rows = min(lengths.values(), default=0)
        declared = _count(attributes.pop("num_samples", None), f"{self.label(index)}: attribute num_samples")
        if declared is not None and declared < num_rows:
            num_rows = declared
        expected = declared if declared is not None else max(lengths.values(), default=0)
        odd = [name for name, length in lengths.items() if length != expected]
        if odd:
            length = lengths[odd[0]]
            what = f"row {min(length, expected)}: it has {length} rows, the episode {expected}"
            repairer.apply_policy("length", odd[0], 0, what)
            for name, length in lengths.items():
                repairer.note("length", name, length - num_rows)
        times = times_at_rate(num_rows, self._rate_hz)
        rows = [
            Rows(
                self._spec(name, dataset),
                dataset.read(num_rows, self.budget, self.label(index)),
                times.copy(),
                made=True,
            )
            for name, dataset in datasets.items()
        ]
        meta: dict[str, JSON] = {"demo": demo, "masks": [name for name, demos in self._masks.items() if demo in demos]}
        meta.update(attributes)
        if unread:
            meta["left_out"] = [f"attribute {name}: {why}" for name, why in unread.items()]
        return rows, _task(attributes, self.metadata["env_args"]), meta

    def _attributes(self, group: Any) -> tuple[dict[str, JSON], dict[str, str]]:
        """As JSON, and the reasons for those that are left out. Attributes are read whole, and of a list of texts
        without a fixed length a small file may hold one long text a thousand times."""
        found, left = {}, {}
        for name in group.attrs:
            kind = group.attrs.get_id(name)
            where = f"robomimic: {self.path}: attribute {name} of {group.name}"
            self.budget.count(where)
            shape = checked_shape(where, kind.shape or ())
            if (dtype := _dtype(kind)) is None:
                left[name] = UNKNOWN_TYPE
            elif dtype.kind == "O" and num_bytes(shape, 1) > 1:
                left[name] = "a list of variable-length strings"
            elif num_bytes(shape, dtype.itemsize) > MAX_ATTRIBUTE:
                left[name] = f"has more than {MAX_ATTRIBUTE} bytes"
            elif not _is_json(value := _plain(group.attrs[name])):
                left[name] = f"neither numbers nor texts, but {dtype}"
            else:
                found[name] = value
        return found, left

    def _file(self) -> Any:
        if self._handle is None or self._pid != os.getpid():  # HDF5 handles do not survive a fork
            try:
                _check_not_written(self.path)
                self._handle = self._h5py.File(self.path, "r", locking=False)  # others may write it afterwards
            except OSError as error:
                raise FormatError(f"robomimic: {self.path} is not a readable HDF5 file: {error}") from error
            self._pid = os.getpid()
        return self._handle

    def _child(self, group: Any, name: str, kinds: tuple[str, ...]) -> Any:
        """A member that is stored in this file, as an object of h5py."""
        h5py = self._h5py
        self._opened(group.id, name.encode())
        child = group[name]
        if not isinstance(child, tuple(getattr(h5py, kind) for kind in kinds)):
            raise FormatError(f"robomimic: {self.path}: {group.name}/{name} must be a {kinds[0].lower()}")
        return child

    def _opened(self, group: Any, name: bytes) -> Any:
        """The handle of a member that is stored in this file: links and external files could name any file of the
        machine, and a chunk is unpacked whole, however little of it the dataset has."""
        h5py = self._h5py

        def where() -> str:
            return f"robomimic: {self.path}: {h5py.h5i.get_name(group).decode()}/{name.decode('utf-8', 'replace')}"

        if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            raise FormatError(f"{where()} is a link, which is not followed")
        child = h5py.h5o.open(group, name)
        if isinstance(child, h5py.h5d.DatasetID):
            how = child.get_create_plist()
            layout = how.get_layout()
            if how.get_external_count() or layout == h5py.h5d.VIRTUAL:
                raise FormatError(f"{where()} is stored in other files, not opened")
            if layout == h5py.h5d.CHUNKED:
                size = num_bytes(how.get_chunk(), child.get_type().get_size())
                self.budget.check(f"{where()}: a chunk", size, child.get_storage_size())
        return child

    def _datasets(self, demo: Any, known: Set[str] = frozenset()) -> tuple[dict[str, Stored], dict[str, str]]:
        """Numeric datasets of a demo by stream name, ``actions`` or ``obs/<key>``, and the reasons for which other
        members are left out; without those that are known."""
        h5py = self._h5py
        found, left = {}, {}
        for raw in demo.id:
            name = os.fsdecode(raw)
            if name in known:
                continue
            member = self._opened(demo.id, raw)
            if isinstance(member, h5py.h5d.DatasetID):
                found[name] = member
            elif isinstance(member, h5py.h5g.GroupID) and name in self._groups:
                keys = {f"{name}/{os.fsdecode(key)}": key for key in member}
                found.update({path: self._opened(member, key) for path, key in keys.items() if path not in known})
            else:
                left[name] = NEXT_OBS if name in OBSERVATIONS else "a group other than obs"
        for name, member in found.items():
            if not isinstance(member, h5py.h5d.DatasetID):
                raise FormatError(f"robomimic: {self.path}: {demo.name}/{name} must be a dataset")
        rows = {}
        for name, member in found.items():
            if (dtype := _dtype(member)) is None:
                left[name] = UNKNOWN_TYPE
                continue
            stored = Stored(member, member.shape or (), dtype.newbyteorder("="))
            if not stored.shape or stored.dtype not in NUMBERS:
                left[name] = f"not rows of numbers, but {stored.dtype} {stored.shape}"
            elif why := _unknown_filter(member):
                left[name] = why
            else:
                rows[name] = stored
        return rows, left

    def _texts(self, dataset: Any) -> list[str]:
        """The names of a mask. Where they have no fixed length many may be the same long one of the file: few at a
        time."""
        where = f"robomimic: {self.path}: {dataset.name}"
        if dataset.ndim != 1:
            raise FormatError(f"{where} must be a list of names, got shape {dataset.shape}")
        if dataset.size > MAX_MASK:
            raise FormatError(f"{where} declares {dataset.size} names, more than {MAX_MASK}")
        self.budget.check(where, num_bytes(dataset.shape, dataset.dtype.itemsize), dataset.id.get_storage_size())
        self.budget.count(where, int(dataset.size))
        if why := _unknown_filter(dataset.id):
            raise FormatError(f"{where} is {why}")
        texts: list[str] = []
        step = TEXTS if dataset.dtype.kind == "O" else max(1, dataset.size)
        for begin in range(0, dataset.size, step):
            self.budget.check_time(where)
            part = dataset[begin : begin + step]
            texts += [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in part]
            if max(map(len, texts[begin:]), default=0) > MAX_NAME:
                raise FormatError(f"{where} holds a name of more than {MAX_NAME} characters")
        return texts

    def _spec(self, name: str, dataset: Stored) -> StreamSpec:
        dtype, shape = dataset.dtype, dataset.shape[1:]
        known = self.specs.get(name)
        if known is not None and known.shape == shape and known.numpy_dtype == dtype:
            return known
        shape = checked_shape(f"robomimic: {self.path}: {name}", shape)
        image = dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4)
        depth = name.endswith("depth") and len(shape) in (2, 3)
        kind = "image" if image else "depth" if depth else "vector"
        method = "slerp_xyzw" if shape == (4,) and dtype.kind == "f" and self._is_quaternion(name) else None
        return StreamSpec(name, dtype.name, shape, kind, self._rate_hz, method=method)

    def _is_quaternion(self, name: str) -> bool:
        """Of robosuite, by its name. Other environments of robomimic do not say how theirs are ordered."""
        env_args = self.metadata["env_args"]
        robosuite = isinstance(env_args, dict) and env_args.get("type") == ROBOSUITE
        return bool(ROBOT_QUATERNION.fullmatch(name) or (robosuite and QUATERNION.fullmatch(name)))


def _rate(path: Path, rate_hz: float | None, env_args: JSON) -> float:
    if rate_hz is not None:
        return checked_rate("rate_hz", rate_hz)
    kwargs = env_args.get("env_kwargs") if isinstance(env_args, dict) else None
    declared = kwargs.get("control_freq") if isinstance(kwargs, dict) else None
    if declared is not None and is_rate(declared):
        return float(declared)
    raise NeedsOption(
        f"open: rate_hz is required for {path}: robomimic files have no timestamps, and env_args has no control_freq"
    )


def _task(attributes: dict[str, JSON], env_args: JSON) -> str | None:
    for name in ("task", "language_instruction", "lang"):
        if isinstance(value := attributes.get(name), str):
            return value
    env_name = env_args.get("env_name") if isinstance(env_args, dict) else None
    return env_name if isinstance(env_name, str) else None


def _check_not_written(path: Path) -> None:
    """FormatError where another process has the file open for writing: HDF5 locks it then."""
    with open_regular(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FormatError(f"robomimic: {path} is open for writing by another process") from None
        except OSError:
            pass  # a file system without locks


def _dtype(stored: Any) -> np.dtype[Any] | None:
    """Of a dataset or an attribute as h5py reads it; None where it cannot: times, bit fields, integers of 3 bytes."""
    h5t = need("h5py.h5t", "robomimic")
    if stored.get_type().get_class() == h5t.BITFIELD:  # has a dtype, and no conversion to it
        return None
    try:
        found: np.dtype[Any] = stored.dtype
    except TypeError:
        return None
    return found


def _unknown_filter(dataset: Any) -> str:
    """Why a dataset cannot be decompressed; empty where it can."""
    how = dataset.get_create_plist()
    filters = [how.get_filter(i) for i in range(how.get_nfilters())]
    odd = [
        f"{number} ({name.decode('utf-8', 'replace')[:40]})" for number, _, _, name in filters if number not in FILTERS
    ]
    return f"compressed with the HDF5 filter {odd[0]}, which is a plugin" if odd else ""


def _count(value: JSON, where: str) -> int | None:
    """A number of rows, which may be the only number of a list; None where there is none."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or not float(value).is_integer():
        raise FormatError(f"{where} must be a number of rows, got {str(value)[:80]}")
    return int(value)


def _plain(value: Any) -> JSON:
    """An attribute as JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):  # h5py has bytes that are not UTF-8 as halves of surrogate pairs
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _is_json(value: Any) -> bool:
    """False where h5py gave an empty dataspace, a reference, a structure or a complex number."""
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _json_attribute(value: Any) -> JSON:
    text = _plain(value)
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return text
