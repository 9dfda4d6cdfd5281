"""``SequenceDataset``: the items of robomimic's own, read from a cache. docs/loader.md, "From other loaders"."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cache.cache import Cache
from ..loader import Feature, Loader

__all__ = ["SequenceDataset"]


class SequenceDataset:
    """Rows ``i - frame_stack + 1`` to ``i + seq_length - 1`` of an episode for each row i, in ascending order.

    ``hdf5_path``: a cache or its path, with streams as ``ingest`` names those of robomimic: ``actions``, ``obs/<key>``,
    ``next_obs/<key>``. The first and the last row are repeated at the ends of an episode. With
    ``pad_frame_stack=False`` or ``pad_seq_length=False``, items that would need a repeated row at that end are left
    out. Action and dataset keys are float32. ``action_keys=None`` is robomimic 0.3, whose items have neither
    ``actions`` of several keys nor ``index``. ``filter_by_attribute``: a filter key, as ``ingest`` keeps them.
    ``demo_limit``: only the first episodes. ``hdf5_normalize_obs``: observations of vectors less their mean, by their
    deviation + 0.001. ``hdf5_cache_mode`` and ``hdf5_use_swmr`` have no effect: a cache needs neither. Goals and
    normalized actions are an error. ``episodes``: as in ``Loader``. ``rate_hz``: of the rows; None: that of the first
    stream. ``loader`` has the same samples in batches, not normalized. An item has ``obs`` ``{key: (T, ...)}``,
    ``actions (T, A)`` and ``{key: (T, ...)}`` of the other keys, with T = ``frame_stack + seq_length - 1``.

    >>> import numpy as np, robocache, tempfile
    >>> from robocache.datasets.robomimic import SequenceDataset
    >>> specs = {n: robocache.StreamSpec(n, "float32", (2,), rate_hz=10) for n in ("actions", "obs/arm")}
    >>> writer = robocache.CacheWriter(tempfile.mkdtemp() + "/arm.cache", specs)
    >>> rows, times = np.ones((5, 2), np.float32), np.arange(5) * 10**8
    >>> writer.add(robocache.Episode(0, {n: robocache.EpisodeStream(spec, rows, times) for n, spec in specs.items()}))
    >>> dataset = SequenceDataset(writer.commit(), ["arm"], ["actions"], [], seq_length=3, load_next_obs=False)
    >>> len(dataset), dataset[0]["obs"]["arm"].shape, dataset[0]["actions"].shape
    (5, (3, 2), (3, 2))
    """

    def __init__(
        self,
        hdf5_path: Cache | str | os.PathLike[str],
        obs_keys: Sequence[str],
        action_keys: Sequence[str] | None = None,
        dataset_keys: Sequence[str] = (),
        action_config: Mapping[str, Mapping[str, Any]] | None = None,
        frame_stack: int = 1,
        seq_length: int = 1,
        pad_frame_stack: bool = True,
        pad_seq_length: bool = True,
        get_pad_mask: bool = False,
        goal_mode: str | None = None,
        hdf5_cache_mode: str | None = None,
        hdf5_use_swmr: bool = True,
        hdf5_normalize_obs: bool = False,
        filter_by_attribute: str | None = None,
        load_next_obs: bool = True,
        lang: Any = None,
        demo_limit: int | None = None,
        *,
        episodes: Any = None,
        rate_hz: float | None = None,
    ) -> None:
        for name, given, fix in (
            ("goal_mode", goal_mode, "goals are not supported"),
            ("lang", lang, 'Feature("task") of a Loader has the text'),
        ):
            if given is not None:
                raise ValueError(f"SequenceDataset: {name} must not be given ({fix}), got {given!r}")
        for key, config in (action_config or {}).items():
            if config.get("normalization") is not None:
                raise ValueError(
                    f"SequenceDataset: action_config must have no normalization of {key!r}, got "
                    f"{config['normalization']!r}; normalize the items, or use Loader(normalize=)"
                )
        stack, length = int(frame_stack), int(seq_length)
        if stack < 1 or length < 1:
            raise ValueError(
                f"SequenceDataset: frame_stack and seq_length must be at least 1, got {stack} and {length}"
            )
        cache = hdf5_path if isinstance(hdf5_path, Cache) else Cache(hdf5_path)
        self.obs_keys, self.action_keys = tuple(obs_keys), None if action_keys is None else tuple(action_keys)
        self.dataset_keys = tuple(dict.fromkeys((*(action_keys or ()), *dataset_keys)))
        self.get_pad_mask = get_pad_mask
        self._groups = ("obs", "next_obs") if load_next_obs else ("obs",)
        observations = [f"{group}/{key}" for group in self._groups for key in self.obs_keys]
        self._streams = [*self.dataset_keys, *observations]
        missing = [name for name in self._streams if name not in cache.specs]
        if missing or not self._streams or self.action_keys == ():
            raise ValueError(
                f"SequenceDataset: action_keys, dataset_keys and obs_keys must name streams of {cache.path}, got "
                f"{', '.join(missing) or 'none'}; it has {', '.join(cache.specs)} (next_obs: "
                "ingest(next_obs=True), or load_next_obs=False)"
            )
        rate_hz = cache.specs[self._streams[0]].rate_hz if rate_hz is None else rate_hz
        window: dict[str, Any] = {"steps": range(1 - stack, length), "rate_hz": rate_hz}
        features = {name: Feature(name, dtype="float32", **window) for name in self.dataset_keys}
        features |= {name: Feature(name, **window) for name in observations}
        skipped = (0 if pad_frame_stack else stack - 1, 0 if pad_seq_length else length - 1)
        if filter_by_attribute is not None or demo_limit is not None:
            if episodes is not None:
                raise ValueError("SequenceDataset: episodes takes the place of filter keys and demo_limit, got both")
            episodes = demos_of(cache, filter_by_attribute)[:demo_limit]
        episodes = episodes if episodes is None or callable(episodes) else [*episodes]
        self.hdf5_normalize_obs, self._statistics = hdf5_normalize_obs, {}
        if hdf5_normalize_obs:
            self._statistics = statistics_of(cache, self.obs_keys, self._streams[0], episodes)
        self.loader = Loader(
            cache, 1, features=features, anchors=self._streams[0], skip_anchors=skipped, episodes=episodes,
            shuffle=False, framework="numpy",
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """``obs`` and ``next_obs``, ``{key: (T, ...)}``; ``{key: (T, ...)}`` of the other keys; ``actions``, those of
        all action keys side by side; ``pad_mask`` (T, 1), false where a row is repeated, here and in ``obs``."""
        sample = self.loader.dataset[index]
        is_pad = sample[f"{self._streams[0]}_is_pad"]
        for name in self._streams:
            if not np.array_equal(sample[f"{name}_is_pad"], is_pad):
                raise ValueError(
                    f"SequenceDataset: {name!r} must have the rows of {self._streams[0]!r} in item {index}"
                )
        mask = {"pad_mask": ~is_pad[:, None]} if self.get_pad_mask else {}
        item: dict[str, Any] = {key: sample[key] for key in self.dataset_keys} | mask
        for group in self._groups:
            item[group] = {key: self._normalized(key, sample[f"{group}/{key}"]) for key in self.obs_keys} | mask
        if self.action_keys is None:
            return item
        parts = [sample[key] for key in self.action_keys]
        item["actions"] = np.concatenate([x[:, None] if x.ndim == 1 else x for x in parts], axis=-1)
        return item | {"index": index}

    def _normalized(self, key: str, rows: Any) -> Any:
        found = self._statistics.get(key)
        return rows if found is None else (rows - found["mean"]) / found["std"]

    def get_obs_normalization_stats(self) -> dict[str, dict[str, Any]]:
        """``{key: {"mean": (1, ...), "std": (1, ...)}}`` of the observations, float32, over all rows."""
        if not self.hdf5_normalize_obs:
            raise ValueError("SequenceDataset: hdf5_normalize_obs must be True to have statistics, got False")
        return {key: {name: x.copy() for name, x in found.items()} for key, found in self._statistics.items()}

    def get_dataset_sampler(self) -> None:
        """None: every item is drawn once in an epoch."""


def demos_of(cache: Cache, filter_key: str | None) -> list[int]:
    """The episodes with a filter key of robomimic, in ascending order."""
    names = [cache.episode_info(i).get("meta") for i in range(len(cache))]
    masks = [(meta.get("masks") if isinstance(meta, dict) else None) or [] for meta in names]
    found = [i for i, own in enumerate(masks) if filter_key is None or filter_key in own]
    if not found:
        known = ", ".join(sorted({name for own in masks for name in own})) or "none"
        raise ValueError(
            f"SequenceDataset: filter_by_attribute must be a filter key of {cache.path}, {known}, got {filter_key!r}"
        )
    return found


def statistics_of(cache: Cache, keys: Sequence[str], anchors: str, episodes: Any) -> dict[str, dict[str, Any]]:
    """Mean and deviation of each observation, as robomimic has them."""
    if pictures := [key for key in keys if cache.specs[f"obs/{key}"].kind != "vector"]:
        raise ValueError(f"SequenceDataset: hdf5_normalize_obs is for vectors, got obs/{pictures[0]}")
    features = {key: Feature(f"obs/{key}") for key in keys}
    stats = Loader(cache, 1, features=features, anchors=anchors, episodes=episodes, framework="numpy").stats
    return {
        key: {
            "mean": stats[key]["mean"].astype(np.float32).reshape(1, *cache.specs[f"obs/{key}"].shape),
            "std": (stats[key]["std"] + 1e-3).astype(np.float32).reshape(1, *cache.specs[f"obs/{key}"].shape),
        }
        for key in keys
    }
