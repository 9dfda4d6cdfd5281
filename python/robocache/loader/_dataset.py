"""A loader for code that takes nothing but a dataset of PyTorch. Imported where one is asked for: it needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from ._loader import Batch, Loader


class LoaderDataset(IterableDataset["Batch"]):
    """Whole batches: for ``DataLoader(dataset, batch_size=None)`` and torchdata's ``StatefulDataLoader``."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)
