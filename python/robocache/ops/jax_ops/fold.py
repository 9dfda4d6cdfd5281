"""align under ``jax.vmap``: the mapped dimension becomes more episodes and more query rows of one call."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from .call import Array, is_halves, jnp, offset_by, shape_of


class Others(NamedTuple):
    """The arrays of a call but the values."""

    times: tuple[Array, ...]
    offsets: tuple[Array | None, ...]
    target_times: Array | None
    episode: Array | None
    anchor: Array | None
    deltas: Array | None


class Layout(NamedTuple):
    """A stream, as one element of the map sees it."""

    kind: str  # "dense", "ragged" or "one"
    episodes: int
    rows: int  # of an episode; ragged: of all


class Folded(NamedTuple):
    """A call for all elements. ``places``: how many episodes an element has of each stream; 0: the stream is shared."""

    values: tuple[Array | None, ...]
    others: Others
    places: tuple[int, ...]


class Sizes(NamedTuple):
    op: str
    elements: int
    layouts: list[Layout]
    rows: int  # of the query of one element


def sizes_of(op: str, elements: int, others: Others, batched: Others) -> Sizes:
    def shape(x: Array, flag: Any) -> tuple[int, ...]:
        return shape_of(x)[1:] if flag else shape_of(x)

    layouts = []
    for t, cut, t_flag, cut_flag in zip(others.times, others.offsets, batched.times, batched.offsets, strict=True):
        of_times = shape(t, t_flag)
        if cut is not None:
            layouts.append(Layout("ragged", shape(cut, cut_flag)[0] - 1, of_times[0]))
        elif len(of_times) == 2:
            layouts.append(Layout("dense", of_times[0], of_times[1]))
        else:
            layouts.append(Layout("one", 1, of_times[0]))
    given = []
    if others.episode is not None:
        given.append(shape(others.episode, batched.episode)[0])
    if others.target_times is not None and len(of := shape(others.target_times, batched.target_times)) == 2:
        given.append(of[0])
    if others.anchor is not None:
        given.append(shape(others.anchor, batched.anchor)[0])
    given += [layout.episodes for layout in layouts if layout.episodes != 1]
    return Sizes(op, elements, layouts, given[0] if given else 1)


def fold(
    sizes: Sizes, values: tuple[Array | None, ...], others: Others, value_flags: tuple[bool, ...], batched: Others,
    own: Collection[int] = (),
) -> Folded | None:  # fmt: skip
    """``own``: streams that must not be shared. None: there is no such call, elements must be computed one by one."""
    if batched.deltas:
        return None
    places = places_of(sizes, others, value_flags, batched, own)
    if places is None:
        return None
    folded = [
        fold_stream(sizes, i, place, (values[i], others.times[i], others.offsets[i]),
                    (value_flags[i], batched.times[i], batched.offsets[i]))
        for i, place in enumerate(places)
    ]  # fmt: skip
    n, rows = sizes.elements, sizes.rows
    target_times, episode, anchor = others.target_times, others.episode, others.anchor
    if target_times is not None:
        is_shared_row = len(shape_of(target_times)) - bool(batched.target_times) == 1
        if is_shared_row and batched.target_times:
            target_times = jnp.broadcast_to(target_times[:, None], (n, rows, *target_times.shape[1:]))
            target_times = to_rows(target_times, n, rows)
        elif not is_shared_row:
            target_times = to_rows(expanded(target_times, batched.target_times, n), n, rows)
    if episode is not None:
        episode = fold_episode(sizes, places, episode, batched.episode)
    if anchor is not None:
        anchor = to_rows(expanded(anchor, batched.anchor, n), n, rows)
    new = Others(
        tuple(f[1] for f in folded), tuple(f[2] for f in folded), target_times, episode, anchor, others.deltas
    )  # fmt: skip
    return Folded(tuple(f[0] for f in folded), new, places)


def places_of(
    sizes: Sizes, others: Others, value_flags: tuple[bool, ...], batched: Others, own: Collection[int]
) -> tuple[int, ...] | None:
    flags = [any(of) for of in zip(value_flags, batched.times, batched.offsets, strict=True)]
    layouts = sizes.layouts
    if others.episode is not None:
        if not any(flags) and not own:
            return (0,) * len(layouts)
        if len({layout.episodes for layout in layouts}) > 1 or layouts[0].episodes == 0:
            return None
        return tuple(layout.episodes for layout in layouts)
    places = []
    for i, layout in enumerate(layouts):
        is_mine = flags[i] or i in own
        place = 0 if layout.episodes == 1 and not is_mine else sizes.rows
        if layout.kind == "ragged" and place not in (0, layout.episodes):
            return None
        if layout.kind == "ragged" and place and layout.episodes == 0:
            return None
        places.append(place)
    return tuple(places)


def expanded(x: Array, flag: Any, n: int) -> Array:
    """With the mapped dimension, also where the array is shared."""
    return x if flag else jnp.broadcast_to(x, (n, *x.shape))


def to_rows(x: Array, n: int, rows: int) -> Array:
    """(n, rows, ...) as (n * rows, ...)."""
    return x.reshape(n * rows, *x.shape[2:])


def fold_stream(
    sizes: Sizes, i: int, place: int, arrays: tuple[Array | None, Array, Array | None],
    flags: tuple[Any, Any, Any],
) -> tuple[Array | None, Array, Array | None]:  # fmt: skip
    values, times, offsets = arrays
    if place == 0:
        return arrays
    n, layout = sizes.elements, sizes.layouts[i]

    def together(x: Array | None, flag: Any) -> Array | None:
        if x is None:
            return None
        x = expanded(x, flag, n)
        if layout.kind == "ragged":
            return x.reshape(n * layout.rows, *x.shape[2:])
        if layout.kind == "one":
            x = x[:, None]
        x = jnp.broadcast_to(x, (n, place, *x.shape[2:])) if x.shape[1] != place else x
        return x.reshape(n * place, *x.shape[2:])

    cut = None
    if offsets is not None:
        begin = expanded(offsets, flags[2], n)[:, :-1]
        shifts = (jnp.arange(n) * layout.rows)[:, None]
        begin = offset_by(sizes.op, begin, shifts, n * layout.rows)
        begin = begin.reshape(n * layout.episodes, *begin.shape[2:])
        last = np.asarray([n * layout.rows], np.int64)
        end = jnp.asarray(last.view(np.int32)[None]) if is_halves(begin) else jnp.asarray(last)
        cut = jnp.concatenate([begin, end])
    return together(values, flags[0]), together(times, flags[1]), cut


def fold_episode(sizes: Sizes, places: tuple[int, ...], episode: Array, flag: Any) -> Array:
    n, count = sizes.elements, sizes.layouts[0].episodes
    episode = expanded(episode, flag, n)
    if places[0] == 0:
        return to_rows(episode, n, sizes.rows)
    low = episode[..., 0] if is_halves(episode) else episode
    is_inside = (low >= 0) & (low < count)
    if is_halves(episode):
        is_inside = is_inside & (episode[..., 1] == 0)
    moved = offset_by(sizes.op, episode, (jnp.arange(n) * count)[:, None], n * count)
    keep = is_inside[..., None] if is_halves(episode) else is_inside
    moved = jnp.where(keep, moved, jnp.asarray(-1, moved.dtype))  # another element's episode is out of range too
    return to_rows(moved, n, sizes.rows)


def unfold_rows(sizes: Sizes, x: Array) -> Array:
    return x.reshape(sizes.elements, sizes.rows, *x.shape[1:])


def unfold_index(sizes: Sizes, i: int, place: int, index: Array) -> Array:
    """Rows of a ragged stream count from the element's own first row."""
    index = unfold_rows(sizes, index)
    if sizes.layouts[i].kind != "ragged" or place == 0:
        return index
    first = (jnp.arange(sizes.elements) * sizes.layouts[i].rows).astype(index.dtype)[:, None, None]
    return jnp.where(index >= 0, index - first, index)


def unfold_values(sizes: Sizes, i: int, place: int, x: Array) -> Array:
    """The gradient of the values of one stream."""
    n, layout = sizes.elements, sizes.layouts[i]
    if layout.kind == "ragged":
        return x.reshape(n, layout.rows, *x.shape[1:])
    x = x.reshape(n, place, *x.shape[1:])
    if place != layout.episodes:  # one episode for all query rows
        x = x.sum(axis=1, keepdims=True)
    return x[:, 0] if layout.kind == "one" else x
