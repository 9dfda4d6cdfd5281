"""The truth of the loader: docs/loader.md as plain loops over Python integers. Slow."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import oracle

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key_of(seed, turn, purpose):
    key = mix((seed + GOLDEN) & MASK)
    key = mix((key + turn * GOLDEN + 1) & MASK)
    return mix((key + purpose * GOLDEN + 2) & MASK)


def permute(x, count, key):
    bits = (count - 1).bit_length()
    low_bits = bits // 2
    low_size, high_size = 2**low_bits, 2 ** (bits - low_bits)
    while True:
        high, low = divmod(x, low_size)
        for turn in range(8):
            f = mix((low if turn % 2 == 0 else high) ^ ((key + (turn + 1) * GOLDEN) & MASK))
            if turn % 2 == 0:
                high ^= f % high_size
            else:
                low ^= f % low_size
        x = high * low_size + low
        if x < count:
            return x


class Anchor(NamedTuple):
    source: int
    episode: int  # of the cache
    time: int


def anchors_of(source, cache, kept, stream, hz=None):
    """Every anchor of a cache, in order."""
    found = []
    for e in kept:
        times = [int(t) for t in cache.episode(e).streams[stream].times]
        if hz is not None and times:
            period = 1e9 / hz
            count = math.floor((times[-1] - times[0]) / period) + 1
            times = [times[0] + round(k * period) for k in range(count)]
        found += [Anchor(source, e, t) for t in times]
    return found


def order(anchors, seed, epoch, shuffle=True):
    """The anchors of one cache in the order of an epoch."""
    key = key_of(seed, epoch, 1)
    return [anchors[permute(p, len(anchors), key) if shuffle else p] for p in range(len(anchors))]


def alias_parts(slots):
    """Of 2^32 * len(slots), what each number has: from the slots that ``make_alias_table`` wrote."""
    parts = [0] * len(slots)
    for i, slot in enumerate(slots):
        threshold, alias = (slot % 2**64) >> 32, slot % 2**32
        parts[i] += threshold
        parts[alias] += 2**32 - threshold
    return parts


def draw_weighted(slots, key, position):
    """The number at a position, drawn with replacement."""
    x = mix((key + (position + 1) * GOLDEN) & MASK) * len(slots)
    number, rest = x >> 64, (x >> 32) % 2**32
    slot = slots[number] % 2**64
    return number if rest < slot >> 32 else slot % 2**32


def mixture_order(sources, quotas, seed, epoch, epoch_size):
    """The same for several: ``sources[i]`` are the anchors of one cache, ``quotas[i]`` its part of each block."""
    block_size = sum(quotas)
    result = []
    for position in range(epoch * epoch_size, (epoch + 1) * epoch_size):
        block, slot = divmod(position, block_size)
        slot = permute(slot, block_size, key_of(seed, block, 0))
        i = 0
        while slot >= quotas[i]:
            slot -= quotas[i]
            i += 1
        turn, place = divmod(block * quotas[i] + slot, len(sources[i]))
        result.append(sources[i][permute(place, len(sources[i]), key_of(seed, turn, i + 1))])
    return result


def quotas_of(weights, block=65536):
    """Whole numbers that sum to ``block``, at least 1 each: what is left over goes to the largest remainders."""
    shares = [w / math.fsum(weights) * block for w in weights]
    quotas = [max(1, math.floor(s)) for s in shares]
    by_remainder = sorted(range(len(weights)), key=lambda i: quotas[i] - shares[i])
    for i in (by_remainder * block)[: max(0, block - sum(quotas))]:
        quotas[i] += 1
    while sum(quotas) > block:
        quotas[quotas.index(max(quotas))] -= 1
    return quotas


def steps_of(count, world, batch_size, drop_last):
    """For each step the positions of each rank: ``[[(begin, end), ...], ...]``."""
    steps, whole = [], world * batch_size
    for begin in range(0, count, whole):
        left = min(whole, count - begin)
        if left < whole and drop_last:
            break
        steps.append([(begin + left * r // world, begin + left * (r + 1) // world) for r in range(world)])
    return steps


def values_of(caches, anchors, stream, deltas_ns, **options):
    """What ``align`` reads: float64 (or the integers of the stream) ``(B, T, ...)`` and is_pad ``(B, T)``."""
    values, pads = [], []
    for a in anchors:
        rows = caches[a.source].episode(a.episode).streams[stream]
        targets = np.array([[a.time + d for d in deltas_ns]], np.int64)
        data = rows.values
        if rows.spec.dtype == "bfloat16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        got = oracle.align(data, rows.times, targets, **options)
        values.append(got.values[0])
        pads.append(~got.valid[0])
    return np.array(values), np.array(pads)


def scale_of(statistics, how, channel):
    """(offset, scale) of a channel."""
    if how == "mean_std":
        offset, width = statistics["mean"][channel], statistics["std"][channel]
    else:
        low, high = ("min", "max") if how == "min_max" else ("q01", "q99")
        low, high = statistics[low][channel], statistics[high][channel]
        offset, width = low + (high - low) / 2, (high - low) / 2
    return offset, 1.0 / width if width > 0 else 1.0
