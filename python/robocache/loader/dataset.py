"""A loader for code that takes nothing but a dataset of PyTorch. Imported on demand: it needs torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from .loader import Batch, Loader


class LoaderDataset(IterableDataset["Batch"]):
    """Whole batches: for ``DataLoader(dataset, batch_size=None)`` and torchdata's ``StatefulDataLoader``."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        return f"{self.loader!r}.as_dataset()"

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        self._require_undivided()
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        # Accelerate sets the epoch on every rank before each iteration, also where rank 0 alone reads.
        self._require_undivided()
        self.loader.set_epoch(epoch)

    def _require_undivided(self) -> None:
        """A ``DataLoader`` that Accelerate prepared divides what it reads among the ranks, as the loader does already:
        each rank would get its share of its share."""
        if self.loader.world_size > 1 and _is_divided_by_accelerate(self):
            raise RuntimeError(
                "Loader.as_dataset: accelerator.prepare must not be given its DataLoader on "
                f"{self.loader.world_size} ranks, it would divide the batches of each rank among all of them; prepare "
                "the Loader itself (it is left as it is), or do not prepare the DataLoader"
            )

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)


def _is_divided_by_accelerate(dataset: LoaderDataset) -> bool:
    """Whether a prepared ``DataLoader`` that is being iterated over reads from it."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.GradientState._shared_state:
        return False
    for prepared in state.GradientState().dataloader_references:
        read = getattr(prepared, "dataset", None)
        if dataset in (read, getattr(read, "dataset", None)):  # as it is, or in an IterableDatasetShard
            return True
    return False
