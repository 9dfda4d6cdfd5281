"""``SequenceSampler``: the items of Diffusion Policy's own, read from a cache. docs/loader.md, "From other loaders"."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cache.cache import Cache
from ..loader import Feature, Loader

__all__ = ["SequenceSampler"]


class SequenceSampler:
    """Windows of ``sequence_length`` rows of a cache, in ascending order.

    The first and the last row are repeated where a window begins up to ``pad_before`` rows before an episode or ends up
    to ``pad_after`` rows after it. ``replay_buffer``: a cache or its path. ``keys``: streams, all of one rate; None:
    all. ``key_first_k``: of these keys only the first k recorded rows of a window are read; where a window has more,
    they are NaN, or 0 in integers. ``episode_mask``: whether each episode is read. ``rate_hz``: of the rows; None: that
    of the first stream. ``loader`` has the same samples in batches. An item is ``{key: (sequence_length, ...)}``.

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
        dropped = length - 1 - before - after
        if length < 1 or dropped < 0:
            raise ValueError(
                "SequenceSampler: sequence_length must be above pad_before + pad_after, got "
                f"{length}, {pad_before} and {pad_after}"
            )
        self.keys = [*cache.specs] if keys is None else [*keys]
        rate_hz = cache.specs[self.keys[0]].rate_hz if rate_hz is None and self.keys[0] in cache.specs else rate_hz
        self.sequence_length, self.key_first_k = length, dict(key_first_k or {})
        features = {
            key: Feature(key, steps=range(-before, min(self._most(key) + 1, length - before)), rate_hz=rate_hz)
            for key in self.keys
        }
        kept = None if episode_mask is None else np.flatnonzero(episode_mask).tolist()
        self.loader = Loader(
            cache, 1, features=features, anchors=self.keys[0], drop_last_steps=dropped, episodes=kept, shuffle=False,
            framework="numpy",
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def sample_sequence(self, idx: int) -> dict[str, Any]:
        """``{key: (sequence_length, ...)}``."""
        item = self.loader.dataset[idx]
        return {
            key: self._whole(key, item[key], item[f"{key}_is_pad"]) if key in self.key_first_k else item[key]
            for key in self.keys
        }

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
