"""``SequenceSampler``: the items of Diffusion Policy's own, read from a cache. docs/loader.md, "From other loaders"."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cache.cache import Cache
from ..loader import Feature, Loader
from ..loader.order.selection import Selection

__all__ = ["SequenceSampler"]


class SequenceSampler:
    """Windows of ``sequence_length`` rows of a cache, in ascending order.

    The first and the last row are repeated where a window begins up to ``pad_before`` rows before an episode or ends up
    to ``pad_after`` rows after it. ``replay_buffer``: a cache or its path. ``keys``: streams, all of one rate; None:
    all. ``key_first_k``: of these keys only the first k recorded rows of a window are read; where a window has more,
    they are NaN, or 0 in integers. ``episode_mask``: whether each episode is read. ``rate_hz``: of the rows; None: that
    of the first stream. ``loader`` has the same samples in batches; None where there are none. With ``pad_before +
    pad_after`` of ``sequence_length`` or more, an episode has more windows than rows, the last of which only items
    have. An item is ``{key: (sequence_length, ...)}``.

    >>> import numpy as np, robocache, tempfile
    >>> from robocache.datasets.diffusion_policy import SequenceSampler
    >>> action = robocache.StreamSpec("action", "float32", (2,), rate_hz=10)
    >>> writer = robocache.CacheWriter(tempfile.mkdtemp() + "/arm.cache", {"action": action})
    >>> rows = robocache.EpisodeStream(action, np.ones((5, 2), np.float32), np.arange(5) * 10**8)
    >>> writer.add(robocache.Episode(0, {"action": rows}))
    >>> sampler = SequenceSampler(writer.commit(), 3, pad_before=1, pad_after=1)
    >>> len(sampler), sampler.sample_sequence(0)["action"].shape
    (5, (3, 2))
    """

    def __init__(
        self,
        replay_buffer: Cache | str | os.PathLike[str],
        sequence_length: int,
        pad_before: int = 0,
        pad_after: int = 0,
        keys: Sequence[str] | None = None,
        key_first_k: Mapping[str, int] | None = None,
        episode_mask: Any = None,
        *,
        rate_hz: float | None = None,
    ) -> None:
        cache = replay_buffer if isinstance(replay_buffer, Cache) else Cache(replay_buffer)
        length = int(sequence_length)
        before, after = (min(max(int(pad), 0), length - 1) for pad in (pad_before, pad_after))
        if length < 1:
            raise ValueError(f"SequenceSampler: sequence_length must be at least 1, got {sequence_length}")
        added = before + after - (length - 1)
        self.keys = [*cache.specs] if keys is None else [*keys]
        rate_hz = cache.specs[self.keys[0]].rate_hz if rate_hz is None and self.keys[0] in cache.specs else rate_hz
        self.sequence_length, self.key_first_k = length, dict(key_first_k or {})
        features = {
            key: Feature(key, steps=range(-before, self._end(key, before, added)), rate_hz=rate_hz) for key in self.keys
        }
        kept = range(len(cache)) if episode_mask is None else np.flatnonzero(episode_mask).tolist()
        rows = np.zeros(0, np.int64)
        if len(kept) and self.keys[0] in cache.specs:
            rows = Selection(cache, kept, None).counts(self.keys[0])
        self._num_anchors = np.maximum(rows + min(added, 0), 0)
        num_windows = np.where(rows > 0, np.maximum(rows + added, 0), 0)
        self._ends = np.cumsum(num_windows)
        self._firsts = np.cumsum(self._num_anchors) - self._num_anchors
        self.loader: Loader | None = None
        if num_windows.any() or self.keys[0] not in cache.specs:
            self.loader = Loader(
                cache, 1, features=features, anchors=self.keys[0], drop_last_steps=max(-added, 0), episodes=kept,
                shuffle=False, framework="numpy",
            )  # fmt: skip

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def sample_sequence(self, idx: int) -> dict[str, Any]:
        """``{key: (sequence_length, ...)}``."""
        number = range(len(self))[idx]
        episode = int(np.searchsorted(self._ends, number, "right"))
        window = number - (int(self._ends[episode - 1]) if episode else 0)
        anchor = min(window, int(self._num_anchors[episode]) - 1)  # later windows have rows of its steps
        assert self.loader is not None
        item = self.loader.dataset[int(self._firsts[episode]) + anchor]
        made = {}
        for key in self.keys:
            rows, is_pad = (item[name][window - anchor :][: self.sequence_length] for name in (key, f"{key}_is_pad"))
            made[key] = self._whole(key, rows, is_pad) if key in self.key_first_k else rows
        return made

    def _end(self, key: str, before: int, added: int) -> int:
        """After the last step of a feature: that of the latest window from the last anchor."""
        return min(self._most(key) + 1, self.sequence_length - before) + max(added, 0)

    def _most(self, key: str) -> int:
        """Recorded rows of a window that are needed; one more is read, to know whether there are more."""
        most = int(self.key_first_k.get(key, self.sequence_length))
        if most < 1:
            raise ValueError(f"SequenceSampler: key_first_k must be at least 1, got {most} for {key!r}")
        return most

    def _whole(self, key: str, found: Any, is_pad: Any) -> Any:
        """A window of ``sequence_length`` rows from its first rows."""
        whole = np.empty((self.sequence_length, *found.shape[1:]), found.dtype)
        whole[: len(found)], whole[len(found) :] = found, found[-1]
        end = int(np.argmin(is_pad)) + self._most(key)
        if end < len(found) and not is_pad[end]:
            whole[end:] = 0 if np.issubdtype(found.dtype, np.integer) else np.nan
        return whole
