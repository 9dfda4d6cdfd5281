"""Batches of a ``robocache.Loader`` in the form that collated items of ``LeRobotDataset`` have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..loader.dataset import LoaderDataset
from ..loader.loader import Loader
from ..loader.order.map_style import SampleDataset
from . import depth as depth_maps
from .metadata import LOG
from .store import open_store

if TYPE_CHECKING:
    from .dataset import LeRobotDataset

OF_DATASET = ("windows", "delta_timestamps", "episodes", "what")
"""Options of ``Loader`` that the dataset decides."""


class ItemLoader:
    """Iterates over batches with the keys of ``dataset``. ``loader`` is the ``robocache.Loader`` behind it; attributes
    that are not here are its own: ``state_dict``, ``set_epoch``, ``num_steps``, ``tier``."""

    def __init__(self, dataset: LeRobotDataset, batch_size: int, tasks: bool, options: dict[str, Any]) -> None:
        for name in OF_DATASET:
            if name in options:
                raise ValueError(f"LeRobotDataset.loader: {name} must be given to LeRobotDataset, got it here")
        if dataset.image_transforms is not None:
            raise ValueError(
                "LeRobotDataset.loader: image_transforms must be None, because pictures are decoded as a batch, got "
                f"{dataset.image_transforms!r}; transform the batch instead"
            )
        meta = dataset.meta
        store = dataset._store
        films = [key for key in meta.video_keys if key not in meta.depth_keys]
        if films:
            store = open_store(meta, [*store.cache.specs, *films])
        if left_out := [key for key in meta.features if key not in store.cache.specs]:
            LOG.warning("LeRobotDataset.loader: not in the batches: %s", ", ".join(left_out))
        self._deltas = dataset.delta_indices or {}
        if unknown := [key for key in self._deltas if key not in store.cache.specs]:
            raise ValueError(
                f"LeRobotDataset.loader: delta_timestamps must name numbers or pictures, got {unknown[0]!r}"
            )
        self._unit, self._return_uint8, self._tasks = dataset.depth_output_unit, dataset.return_uint8, tasks
        self._meta = meta
        asked = {key: [frames / meta.fps for frames in deltas] for key, deltas in self._deltas.items() if deltas}
        self.loader = Loader(
            store.cache,
            batch_size,
            delta_timestamps=asked or {"index": [0.0]},
            episodes=store.positions[dataset._places].tolist(),
            **options,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.as_items, self.loader)

    def batch(self, step: int, epoch: int | None = None) -> dict[str, Any]:
        return self.as_items(self.loader.batch(step, epoch))

    def batch_at(self, step: Any) -> dict[str, Any]:
        return self.as_items(self.loader.batch_at(step))

    @property
    def dataset(self) -> SampleDataset:
        """Samples by number, for torch's samplers, in the form of the batches."""
        reads_items: Any = self
        return SampleDataset(reads_items)

    def as_dataset(self) -> LoaderDataset:
        """An ``IterableDataset`` of these batches, for ``DataLoader(dataset, batch_size=None)``."""
        reads_items: Any = self
        return LoaderDataset(reads_items)

    def _read_numbers(self, numbers: Any) -> dict[str, Any]:
        return self.as_items(self.loader._read_numbers(numbers))

    def __repr__(self) -> str:
        return f"ItemLoader({self.loader!r})"

    def as_items(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch of the loader as a batch of items."""
        made: dict[str, Any] = {}
        for key, values in batch.items():
            if key.endswith("_is_pad") and key not in self._meta.features:
                if key.removesuffix("_is_pad") in self._deltas:
                    made[key] = values
                continue
            timed = f"{key}_is_pad" in batch
            if timed and (key not in self._deltas or (key in self._meta.video_keys and values.shape[1] == 1)):
                values = values[:, 0]
            made[key] = self._converted(key, values)
        if self._tasks:
            now = batch["task_index"]
            if "task_index_is_pad" in batch:
                raise ValueError("LeRobotDataset.loader: delta_timestamps must not name task_index, unless tasks=False")
            texts = self._meta.task_texts
            made["task"] = [texts[number] for number in now.reshape(-1).tolist()]
        return made

    def _converted(self, key: str, values: torch.Tensor) -> torch.Tensor:
        """Dtype and shape of an item: pictures are (..., C, height, width)."""
        if key in self._meta.camera_keys:
            if values.dtype == torch.uint8:
                values = values.movedim(-1, -3)
                kept = self._return_uint8 and key in self._meta.video_keys
                return values.contiguous() if kept else values.contiguous().to(torch.get_default_dtype()).div_(255)
            depth = values.to(torch.float32).unsqueeze(-3)
            return depth_maps.converted(depth, self._meta.depth_unit(key), self._unit)
        if values.dtype != torch.bool:
            values = values.to(torch.get_default_dtype() if values.is_floating_point() else torch.int64)
        return values


def from_0_to_1(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """float32 / 255. By NumPy, in one thread: waiting for torch's threads takes longer where all cores are busy."""
    made = pixels.astype(np.float32)
    made /= np.float32(255)
    return torch.from_numpy(made)
