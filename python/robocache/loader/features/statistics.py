"""Statistics of features over the kept episodes, and the numbers that normalize them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...cache.statistics import num_channels
from ...ops.decode.edits import as_normalization
from ...text import did_you_mean
from ..batches.reader import BatchReader, Column
from ..batches.scale import UNIT_DTYPES, column, scale_from, scale_of
from ..batches.store import open_store
from ..batches.verify import MappedRows
from .composing import Composing
from .feature import COMPUTED, Feature
from .inverse import Inverse
from .layout import Channels, Composed, Entry, Part, description
from .saved import VERSION, described_parts, read_saved, saved_inverse

if TYPE_CHECKING:
    from ..samples import Samples

NAMES = ("count", "mean", "std", "min", "max", "q01", "q99", "not_finite")
QUANTILES = {"q01": 0.01, "q99": 0.99}
STEP_BYTES = 4 << 20
"""Of the samples that are read at a time."""
SAMPLES = 1 << 16
SAMPLE_BYTES = 64 << 20
"""Of the samples that say where quantiles are, at most."""
DEVIATIONS = 4
"""Of the rank of a quantile in the sample: on either side, what is between these ranks is kept."""

Float64 = NDArray[np.float64]
Statistics = dict[str, Any]
"""``NAMES`` of one feature: arrays of a number for each channel."""


class FeatureStatistics:
    """The statistics of the features of some samples: read from a file, found in the folder of the user, or computed in
    one pass over all samples."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        stats = samples.what.stats
        self.saved: Mapping[str, Any] = {}
        self.given: dict[str, list[Statistics]] | None = None
        if stats is not None:
            self.saved, self.given = read_statistics(stats)
        self.known: list[dict[str, Statistics]] = [{} for _ in samples.caches]

    # ---- which features ----------------------------------------------------------------------------------------------

    def entries(self) -> dict[str, Entry]:
        """Features that have statistics: vectors."""
        found = {}
        for entry in self.samples.layout.entries:
            is_vector = entry.kind == "composed" or (entry.kind == "column" and self.spec(entry).kind == "vector")
            if is_vector and entry.feature is not None:
                found[entry.name] = entry
        return found

    def pictures(self) -> dict[str, Entry]:
        """Features of pictures that are normalized with statistics: those of the cache."""
        columns = [e for e in self.samples.layout.entries if e.kind == "column" and e.feature is not None]
        return {
            e.name: e
            for e in columns
            if e.feature is not None and e.feature.normalize in COMPUTED and self.spec(e).kind in ("image", "depth")
        }

    def spec(self, entry: Entry) -> Any:
        return self.samples.specs[self.samples.keys[entry.place].stream]

    def width(self, entry: Entry) -> int:
        if entry.kind == "composed":
            return self.samples.layout.composed[entry.place].width
        spec = self.spec(entry)
        return max(1, num_channels(spec) if spec.kind in ("image", "depth") else int(math.prod(spec.shape)))

    def inverse(self, entry: Entry, source: int) -> Inverse:
        scale = self.samples.scales[source].get(entry.name)
        return Inverse(entry.name, self.parts(entry), scale, self.row(entry), self.lows(entry))

    def row(self, entry: Entry) -> tuple[int, ...] | None:
        """The shape of a row where the batch and the stream have the same one."""
        if entry.kind != "composed":
            return tuple(self.spec(entry).shape)
        feature = entry.feature
        is_one = feature is not None and len(feature.names) == 1 and feature.rotation is None
        return self.samples.layout.composed[entry.place].row if is_one else None

    def lows(self, entry: Entry) -> tuple[float | None, ...]:
        """For each number of the streams, where the period of an angle begins, as the rows of the caches have it. None:
        they are in no single period, or it is not known."""
        assert entry.feature is not None
        found: list[float | None] = []
        for stream in entry.feature.names:
            spec = self.samples.specs[stream]
            told = [cache.statistics[stream] for cache in self.samples.caches]
            ends = [[x.get(which) or () for x in told] for which in ("min", "max")]
            for i in range(max(1, math.prod(spec.shape))):
                lows, highs = ([x[i] if i < len(x) else None for x in lists] for lists in ends)
                found.append(begin_of_period(lows, highs, spec.align_period))
        return tuple(found)

    def parts(self, entry: Entry) -> tuple[Part, ...]:
        """What the row of a feature is made of."""
        if entry.kind == "composed":
            return self.samples.layout.composed[entry.place].parts
        return (Part("values", self.width(entry), values=Channels(entry.place, 0)),)

    # ---- normalization -----------------------------------------------------------------------------------------------

    def scales(self) -> list[dict[str, Any]]:
        """For each source, ``(offset, scale)`` of the features that are normalized. Those of an ``Image`` become its
        ``normalize``."""
        entries = [e for e in self.samples.layout.entries if e.feature is not None and e.feature.normalize is not None]
        with_image = {e.name for e in entries if e.kind == "column" and self.samples.keys[e.place].window.image}
        for entry in entries:
            if entry.name not in with_image:
                self.require_way(entry)
        computed = [e for e in entries if e.feature is not None and e.feature.normalize in COMPUTED]
        if computed:
            self.compute([entry.name for entry in computed])
        for entry in computed:
            if entry.name in with_image:
                self.complete_image(entry)
        entries = [entry for entry in entries if entry.name not in with_image]
        return [{e.name: self.scale(e, source) for e in entries} for source in range(len(self.samples.caches))]

    def complete_image(self, entry: Entry) -> None:
        """Gives the ``Image`` of a feature the numbers of its statistics."""
        assert entry.feature is not None
        if len(self.samples.caches) > 1:
            raise ValueError(
                f"Loader: normalize of features[{entry.name!r}] must be 'imagenet', 'unit' or (mean, std) for an Image "
                f"and a Mixture, whose caches have statistics of their own, got {entry.feature.normalize!r}"
            )
        offset, scale = self.scale(entry, 0)
        numbers = [x[:3].tolist() for x in (offset / 255, 1 / (scale * 255))]  # alpha is ignored
        key = self.samples.keys[entry.place]
        assert key.window.image is not None
        image = dataclasses.replace(key.window.image, normalize=(*numbers,))
        self.samples.keys[entry.place] = dataclasses.replace(key, window=dataclasses.replace(key.window, image=image))

    def require_way(self, entry: Entry) -> None:
        assert entry.feature is not None
        what, way = f"Loader: normalize of features[{entry.name!r}]", entry.feature.normalize
        is_vector = entry.name in self.entries()
        if is_vector and way in ("unit", "imagenet"):
            raise ValueError(f"{what} must be one of {', '.join(COMPUTED)} or (mean, std) for vectors, got {way!r}")
        if not is_vector and entry.name not in self.pictures() and self.spec(entry).dtype not in UNIT_DTYPES:
            raise ValueError(f"{what} is for uint8 and uint16 pictures, got {self.spec(entry).dtype}")

    def scale(self, entry: Entry, source: int) -> tuple[Float64, Float64]:
        assert entry.feature is not None
        way = entry.feature.normalize
        if way in COMPUTED:
            found = self.known[source][entry.name]
            missing = [name for name in ("mean", "min", "max", "q01", "q99") if not np.isfinite(found[name]).all()]
            if missing:
                raise ValueError(
                    f"Loader: features[{entry.name!r}] must have finite values to normalize with, got no {missing[0]} "
                    f"of channel {int(np.flatnonzero(~np.isfinite(found[missing[0]]))[0])}"
                )
            return scale_from(way, lambda which: found[which])
        if entry.name not in self.entries():
            spec = self.spec(entry)
            if way == "unit":
                return scale_of(self.samples.caches[source], spec.name, "unit")
            channels = spec.shape[-1] if len(spec.shape) == 3 else 1
            mean, std = given_numbers(entry, as_normalization(way) if way == "imagenet" else way, channels)
            most = 255.0 if spec.dtype == "uint8" else 65535.0
            return mean * most, 1.0 / (std * most)
        mean, std = given_numbers(entry, way, self.width(entry))
        return mean, 1.0 / std

    # ---- statistics --------------------------------------------------------------------------------------------------

    def of_source(self, source: int) -> dict[str, Statistics]:
        """Of all features that have statistics."""
        names = [*self.entries(), *self.pictures()]
        self.compute(names)
        return {name: dict(self.known[source][name]) for name in names}

    def compute(self, names: list[str]) -> None:
        pictures = self.pictures()
        entries = self.entries() | pictures
        for source in range(len(self.samples.caches)):
            known = self.known[source]
            missing = [name for name in names if name not in known]
            if self.given is not None:
                known |= {name: self.from_file(entries[name], source) for name in missing if name in self.given}
                missing = [name for name in missing if name not in known]
                wanted = [n for n in missing if getattr(entries[n].feature, "normalize", None) in COMPUTED]
                if wanted:
                    raise ValueError(
                        f"Loader: stats must have feature {wanted[0]!r}, got {', '.join(self.given)}"
                        f"{did_you_mean(wanted[0], self.given)}"
                    )
            known |= {name: self.of_cache(pictures[name], source) for name in missing if name in pictures}
            missing = [name for name in missing if name not in pictures]
            places = {name: stored_path(self.fingerprint(entries[name], source)) for name in missing}
            for name, path in places.items():
                if (found := load_stored(path, self.width(entries[name]))) is not None:
                    known[name] = found
            missing = [name for name in missing if name not in known]
            if missing:
                for name, made in StatisticsPass(self.samples, source, [entries[n] for n in missing]).result().items():
                    known[name] = made
                    store(places[name], made)

    def of_cache(self, entry: Entry, source: int) -> Statistics:
        """Of pictures: of all episodes, and of a sample where they are encoded."""
        cache, spec = self.samples.caches[source], self.spec(entry)
        told, width = cache.statistics[spec.name], self.width(entry)
        made = {name: column(cache, spec.name, name) for name in NAMES if name not in ("count", "not_finite")}
        counts = {name: np.full(width, int(np.max(told.get(name, 0))), np.int64) for name in ("count", "not_finite")}
        return {name: (made | counts)[name] for name in NAMES}

    def from_file(self, entry: Entry, source: int) -> Statistics:
        assert self.given is not None
        sources = self.given[entry.name]
        if len(sources) not in (1, len(self.samples.caches)):
            raise ValueError(
                f"Loader: stats of {entry.name!r} must be of 1 or {len(self.samples.caches)} sources, got "
                f"{len(sources)}"
            )
        self.require_same(entry)
        found = sources[source if len(sources) > 1 else 0]
        width = self.width(entry)
        if len(found["mean"]) != width:
            raise ValueError(f"Loader: stats of {entry.name!r} must have {width} channels, got {len(found['mean'])}")
        return found

    def require_same(self, entry: Entry) -> None:
        """The statistics of a file must be those of a feature like this one: equal widths say little."""
        assert entry.feature is not None
        told, own = self.saved[entry.name], described(entry.feature)
        for which in ("streams", "relative_to", "rotation"):
            if which in told and told[which] != own[which]:
                raise ValueError(
                    f"Loader: stats of {entry.name!r} must be of a feature with {which}={own[which]!r} like this one, "
                    f"got {told[which]!r}; give it another name, or the file of its own statistics"
                )
        inverse = told.get("inverse")
        parts = inverse.get("parts") if isinstance(inverse, Mapping) else inverse
        if parts is not None and parts != described_parts(self.parts(entry)):
            has_parts = isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts)
            given = [part.get("math") for part in parts] if has_parts else str(parts)[:80]
            raise ValueError(
                f"Loader: stats of {entry.name!r} must be of a feature with the same quaternions, angles and numbers, "
                f"got {given} for {[part.math for part in self.parts(entry)]}"
            )

    def fingerprint(self, entry: Entry, source: int) -> str:
        """Of everything that decides the statistics of a feature: the rows, the kept episodes, the anchors, and how the
        feature is made."""
        samples = self.samples
        selection, table = samples.selections[source], dataclasses.replace(samples.tables[source], slots=None)
        reader = selection.cache._reader
        if entry.kind == "composed":
            composed = samples.layout.composed[entry.place]
            used = sorted(composed.columns)
            made = [repr(remapped(composed, {c: i for i, c in enumerate(used)}).parts), composed.dtype]
        else:
            used, made = [entry.place], [samples.columns[entry.place].dtype]
        keys = [description(samples.keys[column]) for column in used]
        told = [VERSION, selection.cache._identity(), reader.checksum, len(selection.cache), keys, made]
        digest = hashlib.sha256(json.dumps(told, default=str).encode())
        for array in (selection.kept, table.prefix, table.times):
            digest.update(array.tobytes())
        digest.update(str(table.period_ns).encode())
        return digest.hexdigest()

    def to_json(self) -> dict[str, Any]:
        numbers, pictures = self.entries(), self.pictures()
        self.compute([*numbers, *pictures])
        features: dict[str, dict[str, Any]] = {}
        for name, entry in (numbers | pictures).items():
            assert entry.feature is not None
            features[name] = {
                **described(entry.feature),
                "sources": [{which: plain(known[name][which]) for which in NAMES} for known in self.known],
            }
            if name in numbers:  # no robot takes pictures as commands
                scales = [found.get(name) for found in self.samples.scales]
                features[name]["inverse"] = saved_inverse(self.inverse(entry, 0), scales)
        return {"robocache_statistics": VERSION, "features": features}


def begin_of_period(lows: list[float | None], highs: list[float | None], period: float) -> float | None:
    """That of angles between these numbers, by the rule of align: -period / 2 if all are around 0, or else 0."""
    some = [x for x in (*lows, *highs) if x is not None]
    near = 1e-6 * period  # float32 of pi is above pi
    for begin in (-period / 2, 0.0):
        if len(some) == 2 * len(lows) and min(some) >= begin - near and max(some) <= begin + period + near:
            return begin
    return None


def given_numbers(entry: Entry, way: Any, width: int) -> tuple[Float64, Float64]:
    made = []
    for name, numbers in zip(("mean", "std"), way, strict=True):
        if len(numbers) not in (1, width):
            raise ValueError(
                f"Loader: {name} of normalize of features[{entry.name!r}] must be 1 or {width} numbers, got "
                f"{len(numbers)}"
            )
        made.append(np.broadcast_to(np.array(numbers, np.float64), (width,)).copy())
    return made[0], made[1]


def described(feature: Feature) -> dict[str, Any]:
    normalize = feature.normalize
    return {
        "streams": [*feature.names],
        "relative_to": feature.relative_to,
        "rotation": feature.rotation,
        "normalize": normalize if normalize is None or isinstance(normalize, str) else [[*x] for x in normalize],
    }


# ---- the pass -------------------------------------------------------------------------------------------------------


class StatisticsPass:
    """All samples of one source, read in order from the mapped files, whatever the tier of the loader is."""

    def __init__(self, samples: Samples, source: int, entries: list[Entry]) -> None:
        arrays = samples.arrays
        self.entries = entries
        self.selection, self.table = samples.selections[source], dataclasses.replace(samples.tables[source], slots=None)
        composed = [samples.layout.composed[e.place] for e in entries if e.kind == "composed"]
        hidden = {c for x in composed for c in x.columns}
        used = sorted(hidden | {e.place for e in entries if e.kind == "column"})
        self.place = {column: i for i, column in enumerate(used)}
        columns = [stored_column(samples.columns[c], c not in hidden) for c in used]
        names = [*dict.fromkeys(column.key.stream for column in columns)]
        data = open_store([self.selection], names, "mmap", 0, arrays, False)
        mapped = MappedRows([self.selection], names, False)
        self.composed = [wide(remapped(x, self.place)) for x in composed]
        self.composing = Composing(self.composed, arrays, arrays.host, [], len(columns))
        self.reader = BatchReader(data, [{}], columns, [(self.table, 1)], None, arrays, mapped, None, self.composing)

    def read(self, begin: int, count: int, shuffle: bool) -> list[tuple[Any, Any]]:
        """``(N, C)`` numbers and ``(N,)`` padding of each entry."""
        order = _core.SampleOrder(0, 0, self.table.count, shuffle)
        with self.reader.watched():
            made = self.reader.read(order, begin, count)
        composed = self.composing.of(made)
        found, number = [], 0
        for entry in self.entries:
            if entry.kind == "composed":
                pair = composed[2 * number : 2 * number + 2]
                number += 1
            else:
                place = 2 * self.place[entry.place]
                pair = made[place : place + 2]
            values, padding = pair
            found.append((values.reshape(math.prod(padding.shape), -1), padding.reshape(-1)))
        return found

    def result(self) -> dict[str, Statistics]:
        first = self.read(0, 1, False)
        sample_bytes = sum(values.nbytes for values, _ in first) or 1
        step = max(64, min(4096, STEP_BYTES // sample_bytes))
        moments = [np.zeros((6, values.shape[1])) for values, _ in first]
        for table in moments:
            table[3], table[4] = math.inf, -math.inf
        quantiles = self.quantiles(sample_bytes)
        waiting = [*enumerate(quantiles)]
        while waiting:  # the first time, all of them
            for begin in range(0, self.table.count, step):
                parts = self.read(begin, min(step, self.table.count - begin), False)
                for i, found in waiting:
                    if found.num_passes == 0:
                        _core.accumulate_moments(*parts[i], moments[i])
                    found.add(*parts[i])
            waiting = [(i, found) for i, found in waiting if not found.finish(moments[i][0].astype(np.int64))]
        made = {}
        for entry, table, found in zip(self.entries, moments, quantiles, strict=True):
            count, mean, squares, low, high, bad = table
            some = count > 0
            with np.errstate(invalid="ignore", divide="ignore"):
                std = np.where(some, np.sqrt(squares / count), np.nan)
            made[entry.name] = {
                "count": count.astype(np.int64), "mean": np.where(some, mean, np.nan), "std": std,
                "min": np.where(some, low, np.nan), "max": np.where(some, high, np.nan),
                **dict(zip(QUANTILES, found.values, strict=True)), "not_finite": bad.astype(np.int64),
            }  # fmt: skip
        return made

    def quantiles(self, sample_bytes: int) -> list[ExactQuantiles]:
        """Of each entry, with a sample that a permutation draws."""
        count = min(self.table.count, SAMPLES, max(1024, SAMPLE_BYTES // sample_bytes))
        return [ExactQuantiles(values, padding, count) for values, padding in self.read(0, count, True)]


class ExactQuantiles:
    """The quantiles of all numbers of each channel, as NumPy has them, from one pass over them: a sample says between
    which numbers they are, and only those are kept (``_core.Tails``). If it was wrong, which the deviation of its ranks
    makes rare, the channels in question take a wider range in another pass."""

    def __init__(self, values: Any, padding: Any, num_samples: int) -> None:
        kept = np.asarray(values[~padding])
        finite = [channel[np.isfinite(channel)] for channel in kept.T]
        self.sample = [np.sort(channel.astype(np.float64)) for channel in finite]
        self.num_samples, self.dtype = num_samples, kept.dtype.name
        self.values = np.full((len(QUANTILES), len(finite)), np.nan)
        self.is_done = np.zeros(len(finite), bool)
        self.num_passes, self.width = 0, DEVIATIONS
        self.tails = self.next_tails()

    def next_tails(self) -> _core.Tails:
        brackets = np.empty((2, 2, len(self.sample)))
        for tail, q in enumerate(QUANTILES.values()):
            nothing = (math.inf, math.inf) if tail else (-math.inf, -math.inf)
            for c, channel in enumerate(self.sample):
                brackets[tail, :, c] = nothing if self.is_done[c] else self.bracket(channel, q)
        return _core.Tails(brackets, self.dtype)

    def bracket(self, channel: Float64, q: float) -> tuple[float, float]:
        """Moments of a sample are alike, so only whole samples count as independent."""
        count = len(channel)
        if count == 0:
            return -math.inf, math.inf
        half = self.width * math.sqrt(q * (1 - q) / min(count, self.num_samples)) * count + 1
        low, high = math.floor(q * (count - 1) - half), math.ceil(q * (count - 1) + half)
        return (
            float(channel[low]) if low >= 0 else -math.inf,
            float(channel[high]) if high < count else math.inf,
        )

    def add(self, values: Any, padding: Any) -> None:
        self.tails.add(values, padding)

    def finish(self, counts: NDArray[np.int64]) -> bool:
        """After a pass. ``counts``: finite numbers of each channel. Returns whether all quantiles are known."""
        places = np.array([*QUANTILES.values()])[:, None] * (counts - 1)
        lower = np.floor(places).astype(np.int64)
        ranks = np.stack([lower, np.minimum(lower + 1, counts - 1)], 1)
        ranks[1] = counts - 1 - ranks[1]  # from the outer end of the upper tail
        found = np.empty(ranks.shape)
        self.tails.values_at(np.ascontiguousarray(ranks), found)
        below, above = found[:, 0], found[:, 1]
        weight, way = places - lower, above - below
        made = np.where(weight < 0.5, below + way * weight, above - way * (1 - weight))  # as NumPy rounds it
        news = ~self.is_done & ((counts == 0) | ~np.isnan(found).any((0, 1)))
        self.values[:, news] = np.where(counts[news] > 0, made[:, news], np.nan)
        self.is_done |= news
        self.num_passes += 1
        if self.is_done.all():
            return True
        self.width *= 8
        self.tails = self.next_tails()
        return False


def remapped(composed: Composed, place: Mapping[int, int]) -> Composed:
    """The same with other numbers of its columns."""

    def moved(x: Channels | None) -> Channels | None:
        return None if x is None else x._replace(column=place[x.column])

    parts = [
        dataclasses.replace(
            p,
            values=moved(p.values),
            turn=moved(p.turn),
            from_values=moved(p.from_values),
            from_turn=moved(p.from_turn),
        )
        for p in composed.parts
    ]
    paddings = [(place[column], moment) for column, moment in composed.paddings]
    return dataclasses.replace(composed, parts=tuple(parts), paddings=tuple(paddings))


def wide(composed: Composed) -> Composed:
    """With all bits: normalized before it is rounded to 16 of them."""
    return dataclasses.replace(composed, dtype="float64" if composed.dtype not in ("float32",) else "float32")


def stored_column(column: Column, is_measured: bool) -> Column:
    """Without normalization. What is measured is floating."""
    if not is_measured:
        return column
    dtype = column.written if column.written in ("float32", "float64") else "float64"
    return Column(column.key, dtype, dtype, None)


# ---- files ----------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Of the user: caches may be read-only, and shared."""
    given = os.environ.get("ROBOCACHE_HOME")
    if given:
        return Path(given) / "statistics"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robocache" / "statistics"


def stored_path(fingerprint: str) -> Path:
    return folder() / f"{fingerprint}.json"


def plain(numbers: Any) -> list[Any]:
    return [x if math.isfinite(x) else None for x in np.asarray(numbers).tolist()]


def store(path: Path, made: Statistics) -> None:
    """Kept for the next loader. A folder that cannot be written costs one pass each time."""
    text = json.dumps({name: plain(made[name]) for name in NAMES})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        return


def load_stored(path: Path, width: int) -> Statistics | None:
    """None where there is nothing, or something else."""
    try:
        found = statistics_of(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
    return found if all(len(found[name]) == width for name in NAMES) else None


def statistics_of(given: Any) -> Statistics:
    if not isinstance(given, dict) or any(not isinstance(given.get(name), list) for name in NAMES):
        raise ValueError(f"must have lists of {', '.join(NAMES)}, got {str(given)[:80]}")
    made: Statistics = {}
    for name in NAMES:
        numbers = [math.nan if x is None else x for x in given[name]]
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
            raise ValueError(f"must have numbers in {name}, got {str(given[name])[:80]}")
        is_count = name in ("count", "not_finite")
        if is_count and any(not 0 <= x < 2**63 for x in numbers):
            raise ValueError(f"must have counts in {name}, got {str(given[name])[:80]}")
        made[name] = np.array(numbers, np.int64 if is_count else np.float64)
        if len(numbers) != len(given["mean"]):
            raise ValueError(f"must have {len(given['mean'])} numbers in {name} as in mean, got {len(numbers)}")
    return made


def read_statistics(given: Any) -> tuple[Mapping[str, Any], dict[str, list[Statistics]]]:
    """What ``Loader.save_stats`` wrote, and the statistics in it: by feature, for each source."""
    what = "Loader: stats"
    features, made = read_saved(given, what), {}
    for name, told in features.items():
        sources = told.get("sources") if isinstance(told, Mapping) else None
        if not isinstance(sources, list) or not sources:
            raise ValueError(f"{what} of {name!r} must have sources, got {str(told)[:80]}")
        try:
            made[str(name)] = [statistics_of(x) for x in sources]
        except ValueError as error:
            raise ValueError(f"{what} of {name!r} {error}") from None
    return features, made
