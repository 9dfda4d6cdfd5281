"""A loader in other processes: which steps a worker of torch's DataLoader reads, and how a loader travels there."""

from __future__ import annotations

import dataclasses
import multiprocessing.context
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple


class Worker(NamedTuple):
    """Which worker of a ``DataLoader`` this process is, of how many, and the seed that all of them have in common."""

    id: int = 0
    num_workers: int = 1
    base_seed: int | None = None

    @property
    def is_one(self) -> bool:
        return self.base_seed is not None


def this_worker() -> Worker:
    """``Worker()`` where this is none."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return Worker() if info is None else Worker(info.id, info.num_workers, info.seed - info.id)


def given_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the names in the frame of ``Loader.__init__``: the arguments that make the same loader again, even if the
    caller changes a dict meanwhile."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in given.items()
        if name not in ("self", "torch")
    }


def reduced(loader: Any, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What ``pickle`` keeps: arguments and place, no rows. The copy opens the same version of the cache, with the same
    tier and, where it is known, for the same rank, or is an error."""
    same: dict[str, Any] = {"tier": loader.tier}
    if loader._ranks.known:
        same |= loader._ranks.share._asdict()
    # A process that this one starts counts epochs with it; any other copy does so by itself.
    epochs = loader._epochs if multiprocessing.context.get_spawning_popen() is not None else None
    return again, (type(loader), {**arguments, **same}, loader._place, epochs)


def again(kind: Any, arguments: Mapping[str, Any], place: Any, epochs: Any) -> Any:
    loader = kind(**arguments)
    loader._place = dataclasses.replace(place)
    if epochs is not None:
        loader._epochs = epochs
    return loader
