"""From the columns of the reader to a batch: features composed, texts looked up, entries under their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..batches.reader import INDEX
from .composing import Composing
from .layout import Entry, Layout
from .text import TextTable


class BatchForm:
    """Gives out batches as ``layout`` describes them, on a device. Everything that is the same for all is made once.

    ``texts``: of entries that are text, by name. ``gives_index``: whether batches have the index. ``given``: converts
    arrays to those of another framework.
    """

    def __init__(
        self,
        layout: Layout,
        composing: Composing,
        texts: dict[str, TextTable],
        gives_index: bool,
        given: Callable[[Any], Any] | None = None,
    ) -> None:
        self.layout, self.composing, self.texts = layout, composing, texts
        self.gives_index, self.given = gives_index, given

    def batch(self, made: list[Any], episodes: Any, numbers: dict[int, Any]) -> dict[str, Any]:
        """``made``: what the reader made, on the device. ``episodes``: of the samples, an array, where the layout has a
        task. ``numbers``: of columns of text that were read on the host, by column; those of ``TextTable``."""
        composed = self.composing.of(made)
        batch: dict[str, Any] = {}
        for entry in self.layout.entries:
            self.add(batch, entry, made, composed, episodes, numbers)
        if self.gives_index:
            batch |= zip(INDEX, made[-3:], strict=True)
        if self.given is not None:
            batch = {name: x if isinstance(x, list) else self.given(x) for name, x in batch.items()}
        for entry in self.layout.entries:
            if entry.feature is not None and entry.feature.transform is not None:
                batch[entry.name] = entry.feature.transform(batch[entry.name])
                if batch[entry.name] is None:
                    raise ValueError(
                        f"Loader: transform of features[{entry.name!r}] must return an entry of the batch, got None"
                    )
        return batch

    def add(
        self,
        batch: dict[str, Any],
        entry: Entry,
        made: list[Any],
        composed: list[Any],
        episodes: Any,
        numbers: dict[int, Any],
    ) -> None:
        name, i = entry.name, 2 * entry.place
        if entry.kind == "task":
            self.texts[name].put(batch, name, episodes, None)
            return
        values, padding = composed[i : i + 2] if entry.kind == "composed" else made[i : i + 2]
        if entry.kind == "text":
            values = values.reshape(padding.shape)
            if self.texts[name].bounds is not None and not self.texts[name].is_read_on_host:
                values = self.texts[name].of_sources(values, made[-3])
            found = numbers.get(entry.place, values).reshape(padding.shape)
            self.texts[name].put(
                batch, name, found if entry.timed else found[:, 0], values if entry.timed else values[:, 0]
            )
        else:
            values = values if entry.timed else values[:, 0]
            batch[name] = values.squeeze(-1) if entry.squeezed else values
        if entry.padded:
            batch[f"{name}_is_pad"] = padding if entry.timed else padding[:, 0]
