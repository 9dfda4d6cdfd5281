"""Which worker of torch's ``DataLoader`` this process is."""

from __future__ import annotations

import sys
from typing import NamedTuple


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
