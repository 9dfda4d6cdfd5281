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
    out. Action and dataset keys are float32. ``hdf5_cache_mode`` and ``hdf5_use_swmr`` have no effect: a cache needs
    neither. The other options of HDF5 files, goals and normalized actions are an error. ``episodes``: as in ``Loader``.
    ``rate_hz``: of the rows; None: that of the first stream. ``loader`` has the same samples in batches. An item has
    ``obs`` ``{key: (T, ...)}``, ``actions (T, A)`` and ``{key: (T, ...)}`` of the other keys, with T = ``frame_stack +
    seq_length - 1``.

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
        action_keys: Sequence[str],
        dataset_keys: Sequence[str],
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
            ("hdf5_normalize_obs", hdf5_normalize_obs or None, "Loader(normalize=) has the observations normalized"),
            ("filter_by_attribute", filter_by_attribute, "episodes= takes the numbers of the episodes"),
            ("lang", lang, 'Feature("task") of a Loader has the text'),
            ("demo_limit", demo_limit, "episodes=range(n) takes the first n episodes"),
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
        self.obs_keys, self.action_keys = tuple(obs_keys), tuple(action_keys)
        self.dataset_keys = tuple(dict.fromkeys((*action_keys, *dataset_keys)))
        self.get_pad_mask = get_pad_mask
        self._groups = ("obs", "next_obs") if load_next_obs else ("obs",)
        observations = [f"{group}/{key}" for group in self._groups for key in self.obs_keys]
        self._streams = [*self.dataset_keys, *observations]
        missing = [name for name in self._streams if name not in cache.specs]
        if missing or not self.action_keys:
            raise ValueError(
                f"SequenceDataset: action_keys, dataset_keys and obs_keys must name streams of {cache.path}, got "
                f"{', '.join(missing) or 'no action_keys'}; it has {', '.join(cache.specs)} (next_obs: "
                "ingest(next_obs=True), or load_next_obs=False)"
            )
        rate_hz = cache.specs[self._streams[0]].rate_hz if rate_hz is None else rate_hz
        window: dict[str, Any] = {"steps": range(1 - stack, length), "rate_hz": rate_hz}
        features = {name: Feature(name, dtype="float32", **window) for name in self.dataset_keys}
        features |= {name: Feature(name, **window) for name in observations}
        skipped = (0 if pad_frame_stack else stack - 1, 0 if pad_seq_length else length - 1)
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
            item[group] = {key: sample[f"{group}/{key}"] for key in self.obs_keys} | mask
        parts = [sample[key] for key in self.action_keys]
        item["actions"] = np.concatenate([x[:, None] if x.ndim == 1 else x for x in parts], axis=-1)
        return item | {"index": index}
