"""Which rank of how many a loader reads for: the one that was given, or the one this process has once it is known."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from ..._core import local_ranks
from ..numbers import whole


class Share(NamedTuple):
    rank: int = 0
    world_size: int = 1


class Ranks:
    """A process may learn its rank after the loader was made (Lightning, ``init_process_group`` later in the script).

    So rank and world size are looked up again whenever a batch or a length is asked for, until they are found. What was
    found stays when the process group is destroyed.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        self.given = rank is not None and world_size is not None
        """False: they are looked up."""
        self.known = self.given
        """Whether ``share`` is that of a launcher or a process group, or was given."""
        self.share = Share()
        if rank is not None and world_size is not None:
            world_size = whole("world_size", world_size, 1)
            self.share = Share(whole("rank", rank, 0, world_size - 1), world_size)
        elif (found := self.found()) is not None:
            self.take(found)

    def found(self) -> Share | None:
        """Of ``torch.distributed`` where that is initialized, else of the launcher (torchrun, Accelerate)."""
        return self._of_group() or (None if self.known else launched())

    def _of_group(self) -> Share | None:
        distributed: Any = sys.modules.get("torch.distributed")  # what is not imported is not initialized
        is_initialized = getattr(distributed, "is_initialized", None)  # a build without it has none
        if is_initialized is None or not is_initialized():
            return None
        return Share(distributed.get_rank(), distributed.get_world_size())

    def changed(self, group_only: bool = False) -> Share | None:
        """The share of this process, where that is not the one in use. ``group_only``: for every batch, in 0.1 us."""
        if self.given:
            return None
        found = self._of_group() if group_only else self.found()
        return None if found == self.share else found

    def num_local(self) -> int:
        """Ranks on this machine, which share its memory."""
        told = local_ranks()
        group = None if self.given else self._of_group()
        if told > 1 or group is None or os.environ.get("LOCAL_WORLD_SIZE"):
            return told
        if os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1", "::1"):
            return group.world_size
        # Several machines, and the ranks of each are not known: usually one rank for each GPU.
        return max(1, min(group.world_size, int(sys.modules["torch"].cuda.device_count())))

    def take(self, share: Share) -> None:
        self.share, self.known = share, True


def launched() -> Share | None:
    """``RANK`` and ``WORLD_SIZE`` of the environment. One of them alone is no launcher's."""
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        return None
    return Share(int(rank), int(world_size))
