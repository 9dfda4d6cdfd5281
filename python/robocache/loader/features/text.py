"""Text in batches: each text once in a table, and for each sample its number there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...cache.episode import texts_of
from ...convert.export import task_texts
from ..batches.arrays import Arrays
from ..order.selection import Selection


class Numbered(NamedTuple):
    """The texts of numbers in a stream; number n of source s is at ``n + bounds[s]``, below ``bounds[s + 1]``."""

    texts: list[str]
    bounds: NDArray[np.int64] | None = None
    """None: all sources number them alike, from 0."""


class Tokens:
    """What a tokenizer makes of the texts of all features that have it: each different text once, in one call."""

    def __init__(self, tokenizer: Any, found: Mapping[str, Sequence[str]]) -> None:
        """``found``: the texts of each feature."""
        texts = [*dict.fromkeys(text for some in found.values() for text in some if text)]
        self.rows = {text: i for i, text in enumerate(texts)}
        self.ids, self.mask = tokenized(tokenizer, texts, next(iter(found)))

    def of(self, texts: Sequence[str]) -> tuple[Any, Any]:
        """Ids and mask of some of the texts, ``(N, L)``."""
        rows = [self.rows[text] for text in texts]
        return self.ids[rows], self.mask[rows]


class TextTable:
    """The texts that a feature can have, and which of them a number of the reader (or of an episode) stands for.

    With a tokenizer, all texts are tokenized once, when the loader is made (``Tokens``); a batch takes their rows.
    Where there is no text, ids and mask are 0.
    """

    def __init__(
        self,
        found: Sequence[str],
        arrays: Arrays,
        tokens: Tokens | None,
        bounds: NDArray[np.int64] | None = None,
    ) -> None:
        """``found[n]``: the text of number n; other numbers have none. ``bounds``: as in ``Numbered``. ``tokens``: has
        all of them, for batches of ids."""
        self.arrays, self.bounds = arrays, bounds
        self.texts = [*dict.fromkeys(text for text in found if text), ""]
        index = {text: i for i, text in enumerate(self.texts)}
        self.index: NDArray[np.int64] = np.array([*(index[text] for text in found), index[""]], np.int64)
        """For each number: which text it is. The last one is for numbers that have none."""
        self.strings = [self.texts[i] for i in self.index.tolist()]
        """For each number: its text."""
        self.ids = self.mask = None
        if tokens is not None:
            ids, mask = tokens.of(self.texts[:-1])
            tables = [np.concatenate([x, np.zeros((1, x.shape[1]), x.dtype)]) for x in (ids, mask)]
            # Batches copy nothing to the device.
            self.bounds_there = None if bounds is None else self.there(bounds)
            self.ids, self.mask, self.index_there = (self.there(x) for x in (*tables, self.index))

    def there(self, array: Any) -> Any:
        """A NumPy array on the device of the loader."""
        return self.arrays.to(self.arrays.of(array), self.arrays.device)

    @property
    def is_read_on_host(self) -> bool:
        return self.ids is None

    def of_sources(self, numbers: Any, sources: Any) -> Any:
        """Numbers ``(B, ...)`` that each source counts by itself, as numbers of this table; -1 where a source has no
        such number. ``sources``: ``(B,)``, and like the numbers on the host or on the device."""
        if self.bounds is None:
            return numbers
        is_host = isinstance(numbers, np.ndarray)
        xp: Any = np if is_host else self.arrays.xp
        bounds: Any = self.bounds if is_host else self.bounds_there
        first, end = (x[sources].reshape(-1, *(1,) * (numbers.ndim - 1)) for x in (bounds[:-1], bounds[1:]))
        return xp.where((numbers >= 0) & (numbers < end - first), numbers + first, -1)

    def put(self, batch: dict[str, Any], name: str, numbers: Any, there: Any) -> None:
        """Texts as lists of str; or ids and ``{name}_mask``. ``numbers``: on the host; ``there``: the same on the
        device, or None."""
        if self.ids is None or self.mask is None:
            batch[name] = _core.texts_of(whole(numbers), self.strings)
            return
        if not self.arrays.on_gpu:
            given = whole(numbers if there is None else there)
            batch[name], batch[f"{name}_mask"] = _core.tokens_of(given, self.index_there, self.ids, self.mask)
            return
        if there is None:
            rows = self.there(self.index.take(known(whole(numbers), len(self.index))))
        else:
            last = len(self.index) - 1
            rows = self.index_there[self.arrays.xp.where((there >= 0) & (there < last), there, last)]
        batch[name], batch[f"{name}_mask"] = self.ids[rows], self.mask[rows]


def whole(numbers: Any) -> NDArray[np.int64]:
    """As int64, without gaps."""
    return np.ascontiguousarray(np.asarray(numbers), np.int64)


def known(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The last of ``count`` for numbers that have no text."""
    unsigned = numbers.view(np.uint64)  # so that -1 is a large one
    found: NDArray[np.int64] = np.minimum(unsigned, np.uint64(count - 1)).view(np.int64)
    return found


def text_tables(
    found: Mapping[str, Numbered], tokenizers: Mapping[str, Callable[..., Any] | None], arrays: Arrays
) -> dict[str, TextTable]:
    """By feature. Features of one tokenizer share its ids."""
    sharing: dict[int, dict[str, Sequence[str]]] = {}
    for name, tokenizer in tokenizers.items():
        if tokenizer is not None:
            sharing.setdefault(id(tokenizer), {})[name] = found[name].texts
    tables: dict[str, Tokens] = {}
    for texts in sharing.values():
        first = next(iter(texts))
        tables |= dict.fromkeys(texts, Tokens(tokenizers[first], texts))
    return {name: TextTable(own.texts, arrays, tables.get(name), own.bounds) for name, own in found.items()}


def tokenized(tokenizer: Callable[..., Any], texts: list[str], name: str) -> tuple[Any, Any]:
    """``(N, L)`` int64 ids and bool mask: one call for all texts."""
    if not texts:
        return np.zeros((0, 0), np.int64), np.zeros((0, 0), bool)
    what = f"Loader: the tokenizer of features[{name!r}]"
    # Hugging Face's tokenizers pad only if they are told to.
    made = tokenizer(texts, padding=True) if hasattr(tokenizer, "pad") else tokenizer(texts)
    mask = None
    if hasattr(made, "keys"):
        if "input_ids" not in made:
            raise ValueError(f"{what} must return ids or a dict with input_ids, got keys {', '.join(map(str, made))}")
        made, mask = made["input_ids"], made.get("attention_mask", None)
    ids = as_table(what, made, len(texts)).astype(np.int64)
    if mask is None:
        return ids, np.ones(ids.shape, bool)
    found = as_table(what.replace("the tokenizer", "attention_mask of the tokenizer"), mask, len(texts)).astype(bool)
    if found.shape != ids.shape:
        raise ValueError(f"{what} must return a mask of the shape of its ids, {ids.shape}, got {found.shape}")
    return ids, found


def as_table(what: str, given: Any, count: int) -> NDArray[Any]:
    rows = given.tolist() if hasattr(given, "tolist") else [*given] if isinstance(given, Iterable) else None
    if not isinstance(rows, list) or len(rows) != count or any(not hasattr(row, "__len__") for row in rows):
        raise ValueError(f"{what} must return a row of ids for each of {count} texts, got {str(given)[:80]}")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise ValueError(
            f"{what} must return the same number of ids for every text, got {lengths[0]} to {lengths[-1]}; pad them, "
            "for example with padding='max_length'"
        )
    table = np.array([[*row] for row in rows])
    if table.ndim != 2 or table.dtype.kind not in "iub" or table.size == 0:
        raise ValueError(f"{what} must return a row of whole numbers for each text, got {table.dtype} {table.shape}")
    if table.dtype == np.uint64 and table.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what} must return ids below 2**63, got {table.max()}")
    return table


def messages(selections: list[Selection], stream: str) -> list[str]:
    """The text of each number that ``number_messages`` gave, from 0, which is none."""
    found = [""]
    for selection in selections:
        for shard in range(selection.cache.num_shards):
            found += texts_of(*selection.ragged(stream, shard), f"{selection.cache.path}: stream {stream!r}")
    return found


def tasks_by_number(selections: list[Selection], stream: str) -> Numbered | None:
    """LeRobot's tables of tasks, where a stream of every source has their numbers; None where one has not."""
    tables: list[dict[int, str]] = []
    for selection in selections:
        spec = selection.cache.specs.get(stream)
        if spec is None or spec.kind != "vector" or math.prod(spec.shape) != 1:
            return None
        texts = task_texts(selection.cache)
        if not texts:
            return None
        tables.append(texts)
    merged = {number: text for texts in tables for number, text in texts.items()}
    if all(texts == {number: merged.get(number) for number in texts} for texts in tables):
        return Numbered([merged.get(number, "") for number in range(max(merged) + 1)])
    each = [[texts.get(number, "") for number in range(max(texts) + 1)] for texts in tables]
    return Numbered([text for texts in each for text in texts], np.cumsum([0, *map(len, each)]))


def tasks(selections: list[Selection]) -> list[str]:
    """The task of each episode of all sources, one after the other; "" where it has none or is not kept."""
    found: list[str] = []
    for selection in selections:
        texts = [""] * len(selection.cache)
        for episode in selection.kept.tolist():
            texts[episode] = str(selection.cache.episode_info(episode).get("task") or "")
        found += texts
    return found
