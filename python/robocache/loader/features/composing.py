"""Features that are put together from columns: by the reader itself on the host, or after it in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import _core
from ..batches.arrays import Arrays
from .layout import Composed


class Composing:
    """The composed features of a batch. ``place``: where batches are composed. ``scales``: for each source, ``(offset,
    scale)`` of composed features by name. ``num_columns``: of the reader."""

    def __init__(
        self,
        composed: Sequence[Composed],
        arrays: Arrays,
        place: Any,
        scales: list[dict[str, Any]],
        num_columns: int,
    ) -> None:
        self.place = place
        self.rows = [feature_rows(arrays, place, one, scales) for one in composed]
        self.hidden = {column for one in composed for column in one.columns}
        """Columns that are not in the batch."""
        self.needs_source = len(scales) > 1 and any(one.name in scales[0] for one in composed)
        self.end = 2 * num_columns
        self.composer: _core.Composer | None = _core.Composer(self.rows) if self.rows else None
        """None: the reader composes."""

    def of(self, made: list[Any]) -> list[Any]:
        """``[values, padding, values, padding, ...]`` of all features. ``made``: what the reader made."""
        if self.composer is None:
            return made[self.end : self.end + 2 * len(self.rows)]
        return self.composer.compose(made[: self.end], made[-3] if self.needs_source else None)


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
