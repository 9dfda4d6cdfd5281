"""``LeRobotDataset``: LeRobot's constructor and items, with rows from a mapped cache."""

from __future__ import annotations

import bisect
import importlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from ..loader.numbers import number
from ..sources.lerobot.depth import Quantizer, quantizer_of
from ..sources.reading.paths import need
from . import depth as depth_maps
from . import location
from .deltas import delta_indices
from .loader import ItemLoader, from_0_to_1
from .metadata import LANGUAGE, LOG, LeRobotDatasetMetadata
from .store import open_store
from .tables import FrameTable, row_number
from .videos import Videos, chosen_backend

WRITE_SIDE = {
    "batch_encoding_size": 1,
    "rgb_encoder": None,
    "depth_encoder": None,
    "encoder_threads": None,
    "streaming_encoding": False,
    "encoder_queue_maxsize": 30,
}
"""Arguments that only matter for recording, and their defaults."""
PERSISTENT_FIELDS = ("role", "content", "style", "timestamp", "camera", "tool_calls")
FIELDS = {
    "language_persistent": PERSISTENT_FIELDS,
    "language_events": tuple(name for name in PERSISTENT_FIELDS if name != "timestamp"),
}


class LeRobotDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """A LeRobot dataset with the items of ``lerobot.datasets.LeRobotDataset``, read from a RoboCache cache.

    The arguments are those of LeRobot. ``root``: the folder of the dataset; None: ``$HF_LEROBOT_HOME/{repo_id}``, then
    LeRobot's snapshots of the hub, then a download. ``episodes``, ``episode_filter``: which episodes.
    ``image_transforms``: called with each picture. ``delta_timestamps``: ``{key: [seconds]}``, windows around a frame,
    clamped at the ends of the episode, with ``{key}_is_pad``. ``tolerance_s``: for these, and for frames of videos.
    ``return_uint8``: frames of videos as uint8. ``depth_output_unit``: ``"mm"`` or ``"m"``. Arguments for recording
    must have their defaults.

    An item is a dict of tensors: numbers of shape ``()`` for a feature of shape ``(1,)``, else the shape of the
    feature; pictures ``(C, height, width)`` float32 from 0 to 1; and ``task``, a str. With ``delta_timestamps`` a key
    has one more dimension in front.

    The first use ingests rows and pictures into ``$ROBOCACHE_HOME/lerobot`` (default ``~/.cache/robocache``); videos
    stay where they are. ``loader(batch_size)`` makes a ``robocache.Loader``. Guide: ``docs/guides/lerobot.md``.

    >>> from robocache.lerobot import LeRobotDataset
    >>> LeRobotDataset("lerobot/pusht", delta_timestamps={"action": [0, 0.1]})  # doctest: +SKIP
    """

    def __init__(
        self,
        repo_id: str,
        root: str | Path | None = None,
        episodes: list[int] | None = None,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        download_videos: bool = True,
        video_backend: str | None = None,
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        encoder_threads: int | None = None,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        *,
        token: str | bool | None = None,
    ) -> None:
        given = locals()
        for name, default in WRITE_SIDE.items():
            if given[name] != default:
                raise ValueError(
                    f"LeRobotDataset: {name} must be {default!r}, because this class only reads, got {given[name]!r}; "
                    "record with lerobot.datasets.LeRobotDataset"
                )
        if depth_output_unit not in depth_maps.UNITS:
            raise ValueError(
                f"LeRobotDataset: depth_output_unit must be one of {', '.join(depth_maps.UNITS)}, got "
                f"{depth_output_unit!r}"
            )
        number("tolerance_s", tolerance_s, "LeRobotDataset")
        super().__init__()
        self.repo_id, self.tolerance_s = repo_id, tolerance_s
        self.delta_timestamps = delta_timestamps
        self.return_uint8, self.depth_output_unit = return_uint8, depth_output_unit
        self.writer = None
        self.set_image_transforms(image_transforms)
        self._videos = Videos(chosen_backend(video_backend), tolerance_s)
        where = None if root is None else Path(root)
        self.meta = LeRobotDatasetMetadata(repo_id, where, revision, force_cache_sync, token=token)
        self.root, self.revision = self.meta.root, self.meta.revision
        self.meta.rescale_depth_stats(depth_output_unit)
        self.delta_indices: dict[str, list[int]] | None = None
        if delta_timestamps is not None:
            self.delta_indices = delta_indices(delta_timestamps, self.meta.fps, tolerance_s)
        self.episodes = self._selected(episodes, episode_filter)
        """As given; those that match where there is a filter; None: all."""
        self._download(where, download_videos, force_cache_sync, token)
        self._store = open_store(self.meta)
        self._add_rows()
        self._columns = [key for key in self.meta.features if key not in self.meta.video_keys]
        self._check_features()

    def _selected(self, episodes: list[int] | None, keep: Callable[[dict[str, Any]], bool] | None) -> list[int] | None:
        total = self.meta.total_episodes
        if isinstance(episodes, str) or (episodes is not None and not isinstance(episodes, Iterable)):
            raise TypeError(f"LeRobotDataset: episodes must be a list of numbers of episodes, got {episodes!r}")
        if episodes is not None and (wrong := [e for e in episodes if not 0 <= e < total]):
            LOG.warning("LeRobotDataset: episodes must be in [0, %d), others are ignored, got %s", total, wrong)
        if keep is None:
            return episodes
        found = self.meta.filter_episodes(keep, episodes)
        if not found:
            raise ValueError("LeRobotDataset: episode_filter must keep at least one episode, got none")
        return found

    def _download(self, root: Path | None, videos: bool, again: bool, token: Any) -> None:
        """Files of the selected episodes that are not there; all of them ``again``."""
        chosen = self._chosen()
        files = [placed.data_file for placed in chosen]
        if videos:
            files += [file for placed in chosen for file, _ in placed.videos.values()]
        missing = sorted({file for file in files if again or not (self.root / file).is_file()})
        if missing:
            location.download(self.repo_id, root, self.revision, token, missing, videos)
            if lost := [file for file in missing if not (self.root / file).is_file()]:
                raise FileNotFoundError(f"LeRobotDataset: {self.repo_id} has no file {lost[0]}, which its meta/ names")

    def _chosen(self) -> list[Any]:
        if self.episodes is None:
            return self.meta.placed
        wanted = set(self.episodes)
        return [placed for placed in self.meta.placed if placed.index in wanted]

    def _add_rows(self) -> None:
        """``_places``: the selected episodes, in the order of their rows. ``_ends``: their last rows + 1."""
        wanted = None if self.episodes is None else set(self.episodes)
        places = [i for i, placed in enumerate(self.meta.placed) if wanted is None or placed.index in wanted]
        self._places = places
        self._ends = np.cumsum([self._store.num_rows(i) for i in places], dtype=np.int64).tolist()

    def _check_features(self) -> None:
        for key, feature in self.meta.features.items():
            if not 1 <= len(feature["shape"]) <= 5:
                raise ValueError(f"LeRobotDataset: feature {key!r} must have 1 to 5 sizes, got {feature['shape']}")
        for key in self.delta_indices or {}:
            if key not in self.meta.features:
                raise KeyError(
                    f"LeRobotDataset: delta_timestamps must name features, {', '.join(self.meta.features)}, got {key!r}"
                )

    # Sizes and descriptions

    @property
    def fps(self) -> int:
        """Frames per second."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """``{key: {"dtype": ..., "shape": ..., "names": ...}}``."""
        return self.meta.features

    @property
    def num_frames(self) -> int:
        """Of the selected episodes."""
        return self._ends[-1] if self._ends else 0

    @property
    def num_episodes(self) -> int:
        """Selected ones."""
        if self.episodes is None:
            return self.meta.total_episodes
        return sum(bool(0 <= episode < self.meta.total_episodes) for episode in self.episodes)

    @property
    def cache(self) -> Any:
        """The ``robocache.Cache`` that rows and pictures come from."""
        return self._store.cache

    @property
    def hf_features(self) -> Any:
        """``datasets.Features``; needs the package datasets."""
        datasets = importlib.import_module("datasets")
        kinds: dict[str, Any] = {}
        for key in self._columns:
            feature = self.features[key]
            dtype, shape = feature["dtype"], tuple(feature["shape"])
            if key in LANGUAGE:
                language = importlib.import_module("lerobot.datasets.language")
                kinds[key] = getattr(language, f"{key}_column_feature")()
            elif dtype == "image":
                kinds[key] = datasets.Image()
            elif shape == (1,):
                kinds[key] = datasets.Value(dtype)
            elif len(shape) == 1:
                kinds[key] = datasets.Sequence(datasets.Value(dtype), length=shape[0])
            else:
                kinds[key] = getattr(datasets, f"Array{len(shape)}D")(shape=shape, dtype=dtype)
        return datasets.Features(kinds)

    @property
    def hf_dataset(self) -> FrameTable:
        """The frames without videos, windows and transforms: ``hf_dataset[3]``, ``hf_dataset["index"][:10]``."""
        return FrameTable(self._columns, self.num_frames, self._value)

    @cached_property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """``{number of a frame in the dataset: number in the selected episodes}``; None if all are selected."""
        if self.episodes is None:
            return None
        begins = [0, *self._ends][: len(self._ends)]
        numbers = [self._store.rows(e, "index").reshape(-1).tolist() for e in self._places]
        return {n: begin + r for begin, found in zip(begins, numbers, strict=True) for r, n in enumerate(found)}

    @property
    def episode_data_index(self) -> dict[str, torch.Tensor]:
        """Of LeRobot 0.3: ``from`` and ``to``, the first row of each selected episode and the last one + 1."""
        return {"from": torch.tensor([0, *self._ends[:-1]]), "to": torch.tensor(self._ends)}

    def __len__(self) -> int:
        return self.num_frames

    def __repr__(self) -> str:
        """In LeRobot's form, which scripts may parse."""
        lines = {
            "Repository ID": self.repo_id,
            "Number of selected episodes": self.num_episodes,
            "Number of selected samples": self.num_frames,
            "Features": list(self.features),
        }
        listed = "".join(f"    {name}: '{value}',\n" for name, value in lines.items())
        return f"{type(self).__name__}({{\n{listed}}})"

    # Items

    def __getitem__(self, idx: Any) -> Any:
        """One frame, or a list of frames for a slice."""
        if isinstance(idx, slice):
            return [self[i] for i in range(*idx.indices(len(self)))]
        number = row_number(idx, len(self), "LeRobotDataset")
        episode, row, num_rows = self._place(number)
        item: dict[str, Any] = {}
        windows: dict[str, list[int]] = {}
        for key, deltas in (self.delta_indices or {}).items():
            windows[key] = [min(max(row + delta, 0), num_rows - 1) for delta in deltas]
        for key in self._columns:
            item[key] = self._window(key, episode, windows[key]) if key in windows else self._at(key, episode, row)
        for key, deltas in (self.delta_indices or {}).items():
            item[f"{key}_is_pad"] = torch.tensor(
                [not 0 <= row + delta < num_rows for delta in deltas], dtype=torch.bool
            )
        if self.meta.video_keys:
            item = {key: self._frames(key, episode, windows.get(key, [row])) for key in self.meta.video_keys} | item
        if self._image_transforms is not None:
            for key in self.meta.camera_keys:
                if key not in self._depth_keys:
                    item[key] = self._image_transforms(item[key])
        for key, unit in self._picture_units.items():
            item[key] = depth_maps.converted(item[key], unit, self.depth_output_unit)
        item["task"] = self.meta.task_texts[int(self._store.rows(episode, "task_index")[row].item())]
        return item

    def _place(self, number: int) -> tuple[int, int, int]:
        """Episode, row in it, and its number of rows."""
        at = bisect.bisect_right(self._ends, number)
        begin = self._ends[at - 1] if at else 0
        return self._places[at], number - begin, self._ends[at] - begin

    def _value(self, key: str, number: int) -> Any:
        episode, row, _ = self._place(number)
        return self._at(key, episode, row)

    def _at(self, key: str, episode: int, row: int) -> Any:
        if key in self._texts:
            return self._text(key, episode, row)
        if key in self._pictures:
            return self._images(key, episode, [row])[0]
        return self._numbers(key, self._store.rows(episode, key)[row : row + 1])[0]

    def _window(self, key: str, episode: int, rows: list[int]) -> torch.Tensor:
        if key in self._texts:
            return torch.stack([self._text(key, episode, row) for row in rows])  # TypeError for texts, as in LeRobot
        if key in self._pictures:
            return self._images(key, episode, rows)
        return self._numbers(key, self._store.rows(episode, key)[rows])

    def _numbers(self, key: str, rows: Any) -> torch.Tensor:
        """Rows (n, *shape): integers become int64, floats torch's default, as ``torch.tensor`` of a list has them."""
        values = torch.from_numpy(np.array(rows))
        if values.dtype != torch.bool:
            values = values.to(torch.get_default_dtype() if values.is_floating_point() else torch.int64)
        return values.reshape(len(values)) if key in self._scalars else values

    def _images(self, key: str, episode: int, rows: list[int]) -> torch.Tensor:
        """(n, C, height, width): 8-bit pictures from 0 to 1, depth as float32 in its own unit."""
        different = sorted(set(rows))  # windows repeat the first and last row of an episode
        pixels = self._store.pixels(episode, key, different)
        if pixels.dtype == np.uint8:
            made = from_0_to_1(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).to(torch.get_default_dtype())
        else:
            made = torch.from_numpy(pixels.astype(np.float32)[:, None])
        return made if different == rows else made[[different.index(row) for row in rows]]

    def _frames(self, key: str, episode: int, rows: list[int]) -> torch.Tensor:
        """Of a video: (C, height, width) for one row, else (n, C, height, width)."""
        file, begin_s = self.meta.placed[episode].videos[key]
        seconds = self._store.rows(episode, "timestamp").reshape(-1)[rows].tolist()
        depth = key in self._depth_keys
        found = self._videos.frames(self.root / file, [begin_s + s for s in seconds], depth)
        if depth:
            found = depth_maps.depth_of_codes(found, self._quantizers[key], self.depth_output_unit)
        elif not self.return_uint8:
            found = from_0_to_1(found.numpy())
        return found.squeeze(0)

    def _text(self, key: str, episode: int, row: int) -> Any:
        value = self._store.text(episode, key, row)
        if key in LANGUAGE:
            return None if value is None else [_annotation(key, entry) for entry in value]
        if self.features[key]["dtype"] == "image":
            return _picture(value["bytes"] if isinstance(value, dict) else value)
        return value if isinstance(value, str) else torch.tensor(value)

    @cached_property
    def _texts(self) -> set[str]:
        return set(self._store.text_names)

    @cached_property
    def _pictures(self) -> set[str]:
        return {key for key in self.meta.image_keys if key not in self._texts}

    @cached_property
    def _scalars(self) -> set[str]:
        return {key for key, feature in self.features.items() if tuple(feature["shape"]) == (1,)}

    @cached_property
    def _depth_keys(self) -> set[str]:
        return set(self.meta.depth_keys)

    @cached_property
    def _picture_units(self) -> dict[str, str | None]:
        return {key: self.meta.depth_unit(key) for key in self.meta.image_keys if key in self._depth_keys}

    @cached_property
    def _quantizers(self) -> dict[str, Quantizer]:
        where = f"lerobot: {self.root}/meta/info.json: feature"
        return {key: quantizer_of(self.features[key], f"{where} {key}") for key in self.meta.depth_keys}

    def loader(self, batch_size: int, *, tasks: bool = True, **options: Any) -> ItemLoader:
        """Batches of these items by a ``robocache.Loader``, many times as fast as a ``DataLoader`` of this dataset.

        ``options``: those of ``Loader`` but for ``windows``, ``delta_timestamps`` and ``episodes``, which the dataset
        has: ``device``, ``shuffle``, ``seed``, ``rank``, ``tier``, ... A batch has the keys, shapes and dtypes that
        ``default_collate`` of items has, and ``task``, a list of str (``tasks=False``: without; it waits for a GPU).
        Texts and depth videos are not in it. The first call for a dataset with videos ingests them as packets.
        """
        return ItemLoader(self, batch_size, tasks, options)

    # The rest of LeRobot's interface

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """Replaces what is called with each picture that is not depth; None: nothing."""
        if image_transforms is not None and not callable(image_transforms):
            raise TypeError(f"LeRobotDataset: image_transforms must be callable or None, got {image_transforms!r}")
        self.image_transforms = self._image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """``set_image_transforms(None)``."""
        self.set_image_transforms(None)

    def select_columns(self, column_names: str | list[str]) -> FrameTable:
        """``hf_dataset`` with these columns."""
        return self.hf_dataset.select_columns(column_names)

    def get_raw_item(self, idx: Any) -> Any:
        """A row of ``hf_dataset``."""
        return self.hf_dataset[idx]

    def has_pending_frames(self) -> bool:
        """False: nothing is recorded."""
        return False

    def finalize(self) -> None:
        """Has no effect: nothing is recorded."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises RuntimeError: recording is for ``lerobot.datasets.LeRobotDataset``."""
        raise RuntimeError("LeRobotDataset: this class only reads; record with lerobot.datasets.LeRobotDataset")

    add_frame = save_episode = clear_episode_buffer = push_to_hub = _refuse

    @classmethod
    def create(cls, *_: Any, **__: Any) -> NoReturn:
        """Raises RuntimeError: recording is for ``lerobot.datasets.LeRobotDataset``."""
        raise RuntimeError("LeRobotDataset.create: this class only reads; record with lerobot.datasets.LeRobotDataset")

    resume = create


def _annotation(key: str, entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a language column with all fields; calls of tools are stored as JSON."""
    whole = {name: entry.get(name) for name in FIELDS[key]}
    if whole["tool_calls"] is not None:
        whole["tool_calls"] = [json.loads(c) if isinstance(c, str) else c for c in whole["tool_calls"]]
    return whole


def _picture(data: bytes) -> torch.Tensor:
    """A picture that a cache does not store, by Pillow: (C, height, width)."""
    image = need("PIL.Image", "lerobot").open(io.BytesIO(data))
    pixels = np.array(image, np.float32 if image.mode.startswith("I;16") else None)
    made = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None]).permute(2, 0, 1).contiguous()
    return made.to(torch.get_default_dtype()).div(255) if made.dtype == torch.uint8 else made
