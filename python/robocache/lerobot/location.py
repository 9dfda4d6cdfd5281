"""Where a dataset lies: a given folder, ``$HF_LEROBOT_HOME/{repo_id}``, LeRobot's snapshots of the hub, or the hub."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORMAT_VERSION = "v3.0"
"""The revision that is downloaded unless another one is given: datasets are tagged with the version of their format."""
INFO = "meta/info.json"


def lerobot_home() -> Path:
    hub = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_LEROBOT_HOME") or os.path.join(hub, "lerobot")).expanduser()


def find(repo_id: str, root: Path | None, revision: str) -> Path | None:
    """The local folder of the dataset; None if it must be downloaded."""
    if root is not None:
        return root if (root / INFO).is_file() else None
    home = lerobot_home() / repo_id
    if (home / INFO).is_file() and not (home / ".cache/huggingface/download").exists():
        return home  # with the download folder it is a copy of an unknown revision, which LeRobot does not use either
    return _snapshot(repo_id, revision)


def _snapshot(repo_id: str, revision: str) -> Path | None:
    """In the layout of the hub's cache: refs/<revision> has the commit, snapshots/<commit> the files."""
    place = lerobot_home() / "hub" / f"datasets--{repo_id.replace('/', '--')}"
    ref = place / "refs" / revision
    try:
        commit = ref.read_text().strip() if ref.is_file() else revision
    except OSError:
        return None
    folder = place / "snapshots" / commit
    return folder if re.fullmatch(r"[\w.-]+", commit) and (folder / INFO).is_file() else None


def download(
    repo_id: str, root: Path | None, revision: str, token: Any, patterns: str | Sequence[str], videos: bool = True
) -> Path:
    """Downloads files of the dataset as LeRobot does: into ``root``, or as a snapshot into ``$HF_LEROBOT_HOME/hub``."""
    looked = root if root is not None else lerobot_home() / repo_id
    lacks = patterns if isinstance(patterns, str) else patterns[0]
    problem = f"LeRobotDataset: {repo_id} is not at {looked}"
    if (looked / INFO).is_file():
        problem = f"LeRobotDataset: {looked} has no {lacks} of {repo_id}"
    try:
        huggingface_hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise FileNotFoundError(
            f"{problem}, and downloading it needs the package huggingface_hub: pip install huggingface_hub"
        ) from None
    given = {} if token is None else {"token": token}
    place: dict[str, Any] = {"local_dir": root} if root is not None else {"cache_dir": lerobot_home() / "hub"}
    try:
        tag = found_revision(huggingface_hub, repo_id, revision, given)
        folder = huggingface_hub.snapshot_download(
            repo_id,
            repo_type="dataset",
            revision=tag,
            allow_patterns=patterns,
            ignore_patterns=None if videos else "videos/",
            **place,
            **given,
        )
    except Exception as error:  # the hub's own errors, and those of the network below it
        raise FileNotFoundError(f"{problem}, and it could not be downloaded: {error}") from error
    return Path(folder) if root is None else root


def found_revision(hub: Any, repo_id: str, revision: str, given: dict[str, Any]) -> str:
    """A version that the repository does not have becomes the newest older one of the same major version."""
    wanted = _version(revision)
    if wanted is None:
        return revision
    refs = hub.HfApi(**given).list_repo_refs(repo_id, repo_type="dataset")
    names = [ref.name for ref in (*refs.branches, *refs.tags)]
    if revision in names:
        return revision
    versions = {found: name for name in names if (found := _version(name)) is not None}
    fitting = [found for found in versions if found[0] == wanted[0] and found <= wanted]
    if not fitting:
        listed = ", ".join(sorted(versions.values())) or "none"
        raise FileNotFoundError(f"it has no revision {revision}, only {listed}; give one with revision=")
    return str(versions[max(fitting)])


def _version(name: str) -> tuple[int, ...] | None:
    return tuple(map(int, name.lstrip("v").split("."))) if re.fullmatch(r"v?\d+(\.\d+)*", name) else None
