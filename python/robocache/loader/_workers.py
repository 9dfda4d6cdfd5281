"""A loader in other processes: which steps a worker of torch's DataLoader reads, and how a loader travels there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def worker_info() -> Any:
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


def in_worker() -> bool:
    return worker_info() is not None


def worker_share() -> tuple[int, int]:
    """(which worker this is, of how many); (0, 1) where this is none."""
    info = worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def given_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the names in the frame of ``Loader.__init__``: the arguments that make the same loader again, even if the
    caller changes a dict meanwhile."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in given.items()
        if name not in ("self", "torch")
    }


def reduced(loader: Any, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What ``pickle`` keeps: arguments and place, no rows. The copy opens the same version of the cache, for the same
    rank and with the same tier, or is an error."""
    same = {"rank": loader.rank, "world_size": loader.world_size, "tier": loader.tier}
    return again, (type(loader), {**arguments, **same}, loader._epoch, loader._step, loader._resumed)


def again(kind: Any, arguments: Mapping[str, Any], epoch: int, step: int, resumed: bool) -> Any:
    loader = kind(**arguments)
    loader._epoch, loader._step, loader._resumed = epoch, step, resumed
    return loader
