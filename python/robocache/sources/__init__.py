"""Reads robot datasets as episodes of streams. One module per format; the format is detected from the files.

A format's module has ``detect(path) -> bool``, cheap and never raising, and ``open(path, **options) -> Source``.
``docs/formats.md`` lists what each format reads and loses.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Set
from contextlib import suppress
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

from .._core import FormatError
from ..cache.episode import Source
from ..text import did_you_mean
from .reading.budget import BUDGET, Budget
from .reading.guard import guarded
from .reading.isolated import IsolatedSource
from .reading.options import LIMITS, check_known, options_of
from .reading.source import BaseSource

FORMATS = {
    "robocache": "a cache: a folder with manifest.json and shards",
    "lerobot": "a folder with meta/info.json (LeRobot v2.1 or v3.0)",
    "robomimic": "an HDF5 file with /data/demo_*",
    "zarr": "a zarr folder or zip with data/ and meta/episode_ends (diffusion policy, UMI)",
    "mcap": "an MCAP file, a ROS 2 bag folder, or a folder of these",
    "calvin": "a folder with ep_start_end_ids.npy and one npz per step (CALVIN)",
    "rlds": "a folder with features.json and *.tfrecord-* files (RLDS, Open X)",
}

ISOLATED = ("lerobot", "robomimic")
"""Formats that are read in another process, because their libraries may crash or loop on malicious files."""

SWITCHES = ("automatic", "encoded", "follow_symlinks", "language", "next_obs", "video")
"""Options that are True or False."""


def detect(path: str | PathLike[str]) -> str | None:
    """The name of the first format that recognizes the path, or None."""
    where = Path(path)
    with BUDGET.call():
        for name in FORMATS:
            with suppress(Exception):  # for example, a file that is not a zip
                if _module(name).detect(where):
                    return name
    return None


def open(path: str | PathLike[str], format: str | None = None, **options: Any) -> Source:
    """Opens a dataset in place, without conversion. ``format`` defaults to the detected format.

    Options depend on the format; all formats have these. ``repair``: policies for dirty data; by default nothing is
    repaired. ``follow_symlinks``: allow links out of the dataset's folder (False). ``encoded`` (of lerobot, mcap and
    rlds): pictures stay encoded, and ``EpisodeStream.values`` decodes them when it is read (False). Limits on opening,
    and on reading one episode: ``max_bytes`` of memory (8 GiB), ``max_items`` records, chunks, files and values (200
    million), and ``max_seconds`` of processor time (8 s plus 1 s for each 256 KiB that the files store). A folder that
    ``ingest`` wrote opens as a ``Cache``, which takes no options.

    >>> import numpy as np, pathlib, robocache, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())  # CALVIN: a file per step, and which steps are an episode
    >>> for step in range(3):
    ...     np.savez(folder / f"episode_{step:07d}.npz", actions=np.full(7, step))
    >>> np.save(folder / "ep_start_end_ids.npy", np.array([[0, 2]]))
    >>> robocache.open(folder).episode(0).streams["actions"].times
    array([       0, 33333333, 66666667])
    """
    where = Path(path)
    if not where.exists():
        is_id = not where.is_absolute() and len(where.parts) == 2 and not where.parent.exists()  # of a hub: user/name
        advice = "; URLs and ids of a hub are not read: download the dataset first"
        raise FileNotFoundError(f"open: {path} does not exist{advice if is_id or '://' in str(path) else ''}")
    if format is not None and format not in FORMATS:
        near = did_you_mean(str(format), FORMATS)
        raise ValueError(f"open: format must be one of {', '.join(FORMATS)}, got {format!r}{near}")
    found = format or detect(where)
    if found is None:
        require_readable(where)
        tried = "".join(f"\n  {name}: {what}" for name, what in FORMATS.items())
        raise FormatError(f"open: {where}: unrecognized dataset format; tried:{tried}")
    if options and found == "robocache":
        raise ValueError(f"open: a cache takes no options, got {', '.join(options)}")
    module = _module(found)
    if found == "robocache":  # read by the native reader, which raises its own errors
        return module.open(where)  # type: ignore[no-any-return]
    where = where.absolute()  # stays valid after os.chdir
    _check_options(options)
    check_known(found, module.open, options)
    budget = Budget(**{name: options[name] for name in LIMITS if name in options})
    given = {name: value for name, value in options.items() if name not in LIMITS}
    isolated = found in ISOLATED
    source: Source = IsolatedSource(where, found, budget, given) if isolated else open_here(where, found, budget, given)
    if isinstance(source, BaseSource | IsolatedSource):
        source.open_options = json.dumps(given, sort_keys=True, default=_plain)
    return source


MARKS = (
    *("", "manifest.json", "meta", "meta/info.json", "meta/episode_ends", "data", "metadata.yaml"),
    *("ep_start_end_ids.npy", "training", "validation", "features.json"),
)
"""What detecting a format looks at."""


def require_readable(path: Path) -> None:
    """A dataset that this user may not read is in no unknown format."""
    for name in MARKS:
        place = path / name
        if os.path.lexists(place) and not os.access(place, os.R_OK | os.X_OK if os.path.isdir(place) else os.R_OK):
            raise FormatError(f"open: {place} cannot be read: permission denied, or a link to nothing")


def open_here(path: Path, format: str, budget: Budget, options: Mapping[str, Any]) -> Source:
    """Opens a dataset of any format in this process. The caller has checked the options."""
    with budget.call() as meter, guarded(f"{format}: {path}", meter):
        return _module(format).open(path, budget=budget, **options)  # type: ignore[no-any-return]


def takes(format: str | None, option: str) -> bool:
    """Whether ``open`` of a format has the option; False for an unknown format."""
    return format in FORMATS and option in options_of(_module(format).open)


def defaults(format: str) -> dict[str, Any]:
    """The options of ``open`` for a format with their defaults: first its own, then those that all formats have."""
    if format == "robocache":
        return {}
    arguments = signature(_module(format).open).parameters
    common = {"repair": None, "follow_symlinks": False} | {name: getattr(BUDGET, name) for name in LIMITS}
    own = {name: x.default for name, x in arguments.items() if name not in ("path", "budget", *common)}
    return own | common


def option_names() -> set[str]:
    """The options of all formats."""
    return {name for format in FORMATS for name in options_of(_module(format).open)}


def _plain(option: Any) -> Any:
    if isinstance(option, Mapping):
        return dict(option)
    return sorted(option) if isinstance(option, Set) else str(option)


def _check_options(options: Mapping[str, Any]) -> None:
    """Checks the types of options that would otherwise be accepted: a string is truthy where a bool is read."""
    for name, value in options.items():
        if name in SWITCHES and not isinstance(value, bool):
            raise ValueError(f"open: {name} must be True or False, got {value!r}")
        if name in LIMITS and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise ValueError(f"open: {name} must be a number of {name[4:]} of at least 0, got {value!r}")
        if name == "repair" and not isinstance(value, Mapping | None):
            raise ValueError(f"open: repair must be a dict like {{'unsorted': 'sort'}}, got {value!r}")


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


__all__ = ["FORMATS", "detect", "open"]
