"""The arguments of ``Loader``: what they must be, and what they mean."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..cache.cache import Cache
from ..cache.episode import StreamSpec
from ..convert.ingest import FLOATS
from ..ops.arrays import dtype_name
from ..text import did_you_mean
from .batches.reader import INDEX
from .features.layout import Entry
from .mixture import Mixture, cache_of
from .order.selection import Anchors, Episodes, Selection
from .window import Key


def caches_of(source: Any, episodes: Episodes) -> list[Cache]:
    if isinstance(source, Mixture):
        if episodes is not None and not callable(episodes):
            raise ValueError("Loader: episodes of a Mixture must be a function, got a list")
        return source.caches
    return [cache_of(source, "Loader: source must be a Cache, its path, or a Mixture")]


def shared_specs(caches: list[Cache], names: list[str] | None, with_image: set[str]) -> dict[str, StreamSpec]:
    """The streams of the first cache; those of the others must be like them. ``names``: only these (None: all).
    ``with_image``: those that a window has an ``image`` for, whose codecs may differ."""
    specs = caches[0].specs
    for i, cache in enumerate(caches[1:], 1):
        for name, spec in specs.items():
            if names is not None and name not in names:
                continue
            other = cache.specs.get(name)
            if other is None:
                raise ValueError(
                    f"Loader: sources[{i}] has no stream {name!r}, only {', '.join(cache.specs)}"
                    f"{did_you_mean(name, cache.specs)}"
                )
            if (other.dtype, other.shape, other.kind) != (spec.dtype, spec.shape, spec.kind):
                raise ValueError(
                    f"Loader: stream {name!r} of sources[{i}] must be {spec.dtype} {spec.shape} like that of the "
                    f"first, got {other.dtype} {other.shape}"
                )
            if other.codec != spec.codec and name not in with_image:
                raise ValueError(
                    f"Loader: stream {name!r} of sources[{i}] must have codec {spec.codec} like that of the first, got "
                    f"{other.codec}; read it with image=robocache.Image(), or ingest both with the same images="
                )
    return specs


def require_read_alike(caches: list[Cache], keys: list[Key], windows: Mapping[str, Any]) -> None:
    """Where a window leaves the method to the stream, the streams of all sources must say the same."""
    for i, cache in enumerate(caches[1:], 1):
        for key in keys:
            spec, first = cache.specs[key.stream], caches[0].specs[key.stream]
            if key.name not in windows or (windows[key.name].method is not None and spec.period == first.period):
                continue
            if (spec.align_method, spec.align_period) != (first.align_method, first.align_period):
                raise ValueError(
                    f"Loader: stream {key.stream!r} of sources[{i}] must be read by {reading(first)} like that of the "
                    f"first, unless Window(method=...) says how, got {reading(spec)}"
                )


def reading(spec: StreamSpec) -> str:
    """In words, for errors."""
    period = "" if spec.period is None else f" with period {spec.period:g}"
    return f"{spec.align_method or 'the default of its dtype'}{period}"


def require_own_names(entries: list[Entry], return_index: bool) -> None:
    """No two things of a batch under one name."""
    others = {f"{entry.name}_is_pad": f"the padding of {entry.name!r}" for entry in entries if entry.padded}
    tokenized = [entry.name for entry in entries if entry.feature is not None and entry.feature.tokenizer is not None]
    others |= {f"{name}_mask": f"the mask of {name!r}" for name in tokenized}
    if return_index:
        others |= {name: "return_index" for name in INDEX}
    for entry in entries:
        if entry.name in others:
            what = "stream" if entry.feature is None else "feature"
            raise ValueError(f"Loader: {what} {entry.name!r} has the name that {others[entry.name]} has in a batch")


def require_rows(keys: list[Key], selections: list[Selection]) -> None:
    """A window may be longer than every episode: what is outside is padding."""
    for key in keys:
        if not any(s.counts(key.stream).any() for s in selections):
            raise ValueError(f"Loader: stream {key.stream!r} must have rows in the kept episodes, got none")


def dtypes_of(dtype: Any, specs: Mapping[str, StreamSpec], names: list[str], ways: Mapping[str, str]) -> dict[str, str]:
    """``{stream: dtype of the batch}`` where that was asked for."""
    if dtype is None:
        return {}
    if isinstance(dtype, Mapping):
        if unknown := [name for name in dtype if name not in names]:
            raise ValueError(
                f"Loader: dtype names {unknown[0]!r}, which is not a key of the batch: {', '.join(names)}"
                f"{did_you_mean(str(unknown[0]), names)}"
            )
        asked = {name: dtype_name(x) for name, x in dtype.items()}
    else:
        asked = {name: dtype_name(dtype) for name in names if specs[name].dtype in FLOATS or name in ways}
    for name, found in asked.items():
        if found not in FLOATS:
            given = dtype[name] if isinstance(dtype, Mapping) else dtype
            raise ValueError(f"Loader: dtype of {name!r} must be one of {', '.join(FLOATS)}, got {given}")
    return {name: found for name, found in asked.items() if found is not None}


def anchor_stream(asked: str | None, names: list[str], specs: Mapping[str, StreamSpec], caches: list[Cache]) -> str:
    if asked is None:
        vectors = [name for name in (*names, *specs) if specs[name].kind == "vector"]
        asked = next(iter(vectors), names[0])
    for i, cache in enumerate(caches):
        if asked not in cache.specs:
            raise ValueError(
                f"Loader: anchors must be a stream of sources[{i}], {', '.join(cache.specs)}, got {asked!r}"
                f"{did_you_mean(str(asked), cache.specs)}"
            )
    return asked


def steps_of(num_samples: int, global_batch: int, drop_last: bool) -> int:
    steps = num_samples // global_batch if drop_last else -(-num_samples // global_batch)
    if steps == 0:
        raise ValueError(
            f"Loader: batch_size of all ranks must be at most the {num_samples} samples of an epoch, unless "
            f"drop_last=False, got {global_batch}"
        )
    return steps


def fingerprint_of(
    selections: list[Selection], tables: list[Anchors], quotas: list[int], num_samples: int, shuffle: bool
) -> str:
    """Of everything that decides which sample is at which position, but for seed and epoch."""
    digest = hashlib.sha256(f"{shuffle} {num_samples} {quotas}".encode())
    for selection, table in zip(selections, tables, strict=True):
        digest.update(f"\n{selection.cache._identity()} {table.period_ns} ".encode())
        for array in (selection.kept, table.prefix, table.times):
            digest.update(array.tobytes())
        if table.slots is not None:
            digest.update(b"\nweights ")
            digest.update(table.slots.tobytes())
    return digest.hexdigest()
