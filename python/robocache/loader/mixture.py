"""Several caches as one: each sample comes from one of them, as often as its weight says."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..cache.cache import Cache
from .numbers import number, whole

BLOCK = 65536
"""Positions among which every cache has its share exactly."""
MAX_SOURCES = 64


def cache_of(source: Any, rule: str) -> Cache:
    """A cache, opened where its path is given. ``rule``: of the error for anything else."""
    if isinstance(source, str | os.PathLike):
        return Cache(source)
    if not isinstance(source, Cache):
        raise ValueError(f"{rule}, got {type(source).__name__}")
    return source


class Mixture:
    """Caches (or their paths) and their shares of the samples: ``[(cache, weight), ...]``, or caches and ``weights``.

    Weights do not depend on the sizes of the caches and need not sum to 1. An epoch has ``epoch_size`` samples; the
    default is the number of anchors of all caches. Each cache is traversed repeatedly, in its own order; the next epoch
    continues where the last one ended.

    >>> import robocache
    >>> robocache.Mixture([], weights=[])
    Traceback (most recent call last):
    ValueError: Mixture: sources must be 1 to 64 caches, got 0
    """

    def __init__(
        self, sources: Sequence[Any], weights: Sequence[float] | None = None, *, epoch_size: int | None = None
    ) -> None:
        if isinstance(sources, Cache | str | os.PathLike) or not isinstance(sources, Iterable):
            raise ValueError(f"Mixture: sources must be a list of (cache, weight), got {type(sources).__name__}")
        pairs = list(sources)
        if not 1 <= len(pairs) <= MAX_SOURCES:
            raise ValueError(f"Mixture: sources must be 1 to {MAX_SOURCES} caches, got {len(pairs)}")
        if weights is None:
            for i, pair in enumerate(pairs):
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    raise ValueError(f"Mixture: sources[{i}] must be (cache, weight), got {type(pair).__name__}")
        else:
            if not hasattr(weights, "__len__"):
                raise ValueError(f"Mixture: weights must be a list of {len(pairs)} numbers, got {weights!r}")
            if len(weights) != len(pairs):
                raise ValueError(f"Mixture: weights must be {len(pairs)}, one for each cache, got {len(weights)}")
            pairs = list(zip(pairs, weights, strict=True))
        for i, (_, weight) in enumerate(pairs):
            if not 0 < number(f"the weight of sources[{i}]", weight, "Mixture") < math.inf:
                raise ValueError(f"Mixture: the weight of sources[{i}] must be above 0 and finite, got {weight}")
        self.caches = [
            cache_of(cache, f"Mixture: sources[{i}] must be a Cache or its path") for i, (cache, _) in enumerate(pairs)
        ]
        self.weights = [float(weight) for _, weight in pairs]
        self.epoch_size = None if epoch_size is None else whole("epoch_size", epoch_size, 1, 2**62, "Mixture")

    def __repr__(self) -> str:
        parts = ", ".join(f"{str(c.path)!r}: {w:g}" for c, w in zip(self.caches, self.weights, strict=True))
        size = "" if self.epoch_size is None else f", epoch_size={self.epoch_size}"
        return f"Mixture({{{parts}}}{size})"

    def quotas(self) -> list[int]:
        """Samples of each cache in every block: whole, at least 1 each; remainders go to the largest."""
        unit = 1.0 if max(self.weights) < 1e300 else 1e300  # so that the sum is finite
        total = math.fsum(weight / unit for weight in self.weights)
        shares = [weight / unit / total * BLOCK for weight in self.weights]
        quotas = [max(1, math.floor(share)) for share in shares]
        for i in sorted(range(len(shares)), key=lambda i: quotas[i] - shares[i])[: max(0, BLOCK - sum(quotas))]:
            quotas[i] += 1
        while sum(quotas) > BLOCK:
            quotas[quotas.index(max(quotas))] -= 1
        return quotas
