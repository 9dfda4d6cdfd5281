"""From the columns of the reader to a batch: features composed, texts looked up, entries under their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _core
from ..batches.arrays import Arrays
from ..batches.reader import INDEX
from .layout import Composed, Entry, Layout
from .text import TextTable


class BatchForm:
    """Gives out batches as ``layout`` describes them, on a device. Everything that is the same for all is made once.

    ``scales``: for each source, ``(offset, scale)`` of composed features by name. ``texts``: of entries that are text,
    by name. ``has_index``: whether the reader appends source, episode and anchor; ``gives_index``: whether batches have
    them. ``given``: converts arrays to those of another framework.
    """

    def __init__(
        self,
        layout: Layout,
        arrays: Arrays,
        scales: list[dict[str, Any]],
        texts: dict[str, TextTable],
        has_index: bool,
        gives_index: bool,
        given: Callable[[Any], Any] | None = None,
    ) -> None:
        self.layout, self.texts = layout, texts
        self.has_index, self.gives_index, self.given = has_index, gives_index, given
        self.composer = None
        if layout.composed:
            rows = [feature_rows(arrays, arrays.device, composed, scales) for composed in layout.composed]
            self.composer = _core.Composer(rows)
        self.needs_source = len(scales) > 1 and any(c.name in scales[0] for c in layout.composed)

    def batch(self, made: list[Any], episodes: Any, numbers: dict[int, Any]) -> dict[str, Any]:
        """``made``: what the reader made, on the device. ``episodes``: of the samples, an array, where the layout has a
        task. ``numbers``: of columns of text that were read on the host, by column; those of ``TextTable``."""
        composed: list[Any] = []
        if self.composer is not None:
            source = made[-3] if self.needs_source else None
            composed = self.composer.compose(made[: len(made) - 3] if self.has_index else made, source)
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


def feature_rows(arrays: Arrays, place: Any, composed: Composed, scales: list[dict[str, Any]]) -> _core.FeatureRows:
    """``place``: where it is composed."""
    offset = scale = None
    if scales and composed.name in scales[0]:
        pairs = [found[composed.name] for found in scales]
        offset, scale = (arrays.to(arrays.of(np.stack([pair[k] for pair in pairs])), place) for k in (0, 1))
    parts = [
        _core.FeaturePart(
            part.math, part.num_channels, part.period, part.stored, part.form,
            *(None if x is None else [*x] for x in (part.values, part.turn, part.from_values, part.from_turn)),
        )
        for part in composed.parts
    ]  # fmt: skip
    like, padding_like = (arrays.empty((0,), dtype, place) for dtype in (composed.dtype, "bool"))
    return _core.FeatureRows(
        parts, [*composed.paddings], composed.dtype, [*composed.row], composed.num_moments, offset, scale, like,
        padding_like,
    )  # fmt: skip
