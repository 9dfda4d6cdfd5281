"""How often samples are drawn: weights of episodes or samples, as the alias table that the native reader draws from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import make_alias_table
from ...cache.episode import Episode
from ..numbers import number, whole
from .selection import Anchors, Selection

Weights = Mapping[int, float] | Callable[[Episode], float] | Any
"""Of episodes, by number or by a function; or an array with one number for each sample."""


def by_episode(selection: Selection, weights: Weights) -> dict[int, float]:
    """``{episode: weight}`` of the kept episodes. Those that a dict does not name have weight 1."""
    if callable(weights):
        found = {int(e): weights(selection.cache.episode(int(e))) for e in selection.kept}
    else:
        count = len(selection.cache)
        named = {whole("an episode of weights", e, 0, count - 1): w for e, w in weights.items()}
        found = {int(e): named.get(int(e), 1.0) for e in selection.kept}
    return {e: number(f"the weight of episode {e}", w) for e, w in found.items()}


def weights_of(selection: Selection, table: Anchors, weights: Any) -> NDArray[np.float64]:
    """One for each sample."""
    if isinstance(weights, Mapping):
        each = np.array([*by_episode(selection, weights).values()], np.float64)
        found = np.repeat(each, np.diff(table.prefix))
    else:
        try:
            found = np.array(weights, np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"Loader: weights must be a dict of episodes, a function of an Episode, or an array, got {weights!r}"
            ) from None
        if found.shape != (table.count,):
            raise ValueError(
                f"Loader: weights must have one number for each of {table.count} samples, got shape {found.shape}"
            )
    wrong = np.flatnonzero(~((found >= 0) & np.isfinite(found)))
    if len(wrong):
        raise ValueError(f"Loader: weights must be finite and 0 or above, got {found[wrong[0]]} for sample {wrong[0]}")
    if not found.any():
        raise ValueError("Loader: weights must be above 0 for at least one sample, got 0 for all")
    return found


def slots_of(selection: Selection, table: Anchors, weights: Any) -> NDArray[np.int64]:
    """``weights``: by episode, or an array."""
    found = weights_of(selection, table, weights)
    slots = np.empty(len(found), np.int64)
    make_alias_table(found, slots)
    return slots
