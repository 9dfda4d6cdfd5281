"""Which anchors near the ends of an episode are samples: how many moments of a window may lie outside the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..numbers import whole
from ..window import Key, nanoseconds
from .selection import Selection

Edges = str | tuple[int, int] | tuple[str, int]
NAMES = ("pad", "inside", "robomimic")
FAR_NS = 2**62


class Limits(NamedTuple):
    """Moments of a window that may be before the first row and after the last one; None: any number."""

    before: int | None = None
    after: int | None = None


def limits_of(edges: Any) -> Limits:
    """Of a value of ``Order.edges``. robomimic pads both ends, as ``pad`` does; Diffusion Policy pads what was before
    the episode, and all but the first of the actions that are carried out."""
    if isinstance(edges, str) and edges in NAMES:
        return Limits(0, 0) if edges == "inside" else Limits()
    is_pair = isinstance(edges, tuple | list) and len(edges) == 2
    if is_pair and edges[0] == "diffusion_policy":
        return Limits(None, whole("n_action_steps of edges", edges[1], 1) - 1)
    if not is_pair or isinstance(edges[0], str):
        raise ValueError(
            f"Loader: edges must be 'pad', 'inside', 'robomimic', ('diffusion_policy', n_action_steps) or (before, "
            f"after), got {edges!r}"
        )
    before, after = (whole("edges", number, 0) for number in edges)
    return Limits(before, after)


def bounds_of(selection: Selection, keys: Sequence[Key], limits: Limits) -> NDArray[np.int64] | None:
    """``(E, 2)``: the first and the last time that an anchor of each kept episode may have; None: any. An episode
    without rows of a stream whose windows must be inside has no anchors: its first time is after its last."""
    if limits == Limits():
        return None
    bounds = np.repeat(np.array([[-FAR_NS, FAR_NS]]), len(selection.kept), axis=0)
    for key in keys:
        deltas = sorted(key.window.deltas_ns)
        shift, some = nanoseconds(key.window.latency), selection.counts(key.stream) > 0
        first, last = selection.ends(key.stream)
        if limits.before is not None and limits.before < len(deltas):
            earliest = first - (deltas[limits.before] + shift + key.tolerance_ns)
            bounds[some, 0] = np.maximum(bounds[some, 0], earliest)
            bounds[~some] = FAR_NS, -FAR_NS
        if limits.after is not None and limits.after < len(deltas):
            latest = last - (deltas[-1 - limits.after] + shift - key.tolerance_ns)
            bounds[some, 1] = np.minimum(bounds[some, 1], latest)
            bounds[~some] = FAR_NS, -FAR_NS
    return bounds


def too_long(selection: Selection, keys: Sequence[Key], limits: Limits) -> str:
    """For the error of a loader without samples: the longest window, and the longest episode of its stream."""
    if limits == Limits():
        return ""
    key = max(keys, key=lambda key: key.window.span_ns)
    first, last = selection.ends(key.stream)
    longest = int((last - first).max()) if len(first) else 0
    return (
        f"; the window of {key.name!r} has {key.window.span_ns / 1e9:g} s, the longest episode {longest / 1e9:g} s: "
        "edges='pad' repeats the edge"
    )
