"""The options of ``Loader`` in three groups: what is in a batch, the order of samples, and where rows are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from ..text import did_you_mean
from .batches.framework import check_framework
from .batches.verify import check_verify
from .features.feature import Feature
from .numbers import flag, rate, whole
from .order.edges import Edges, limits_of
from .order.selection import Episodes, Split
from .order.weights import Weights
from .window import Window, short_repr


@dataclass(frozen=True, repr=False)
class What:
    """What is in a batch: which streams, at which moments around an anchor, in which form.

    windows: ``{stream: Window(past, future, rate_hz)}``.
    delta_timestamps: LeRobot's ``{stream: [seconds]}``, instead of ``windows``.
    normalize: ``{stream: "mean_std" | "min_max" | "quantile" | "unit"}``, with the statistics of the cache; or one of
        these names: ``"unit"`` for all uint8 and uint16 streams, the others for all vectors of floats.
    dtype: of floating and normalized streams: one for all, or ``{stream: dtype}``.
    return_index: adds ``source_index``, ``episode_index`` and ``anchor_ns``, on the device of the loader.
    features: ``{name: Feature(streams, ...)}``, instead of ``windows``: keys under names of your own, docs/features.md.
    stats: a file of ``Loader.save_stats``, or its content: features are normalized with these statistics.

    >>> import robocache
    >>> robocache.What({"arm": robocache.Window(past=0.1, rate_hz=20)}, normalize="mean_std")
    What(windows={'arm': Window(past=0.1, rate_hz=20)}, normalize='mean_std')
    """

    windows: Mapping[str, Window] | None = None
    delta_timestamps: Mapping[str, Sequence[float]] | None = None
    normalize: Mapping[str, str | None] | str | None = None
    dtype: Any = None
    return_index: bool = False
    features: Mapping[str, Feature] | None = None
    stats: Any = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.features is not None:
            self._check_features()
        elif self.stats is not None:
            raise ValueError("Loader: stats are for features, got windows")
        for name in ("windows", "delta_timestamps"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Mapping):
                raise ValueError(f"Loader: {name} must be a dict of streams, got {given!r}")
        for name in ("windows", "delta_timestamps", "normalize", "dtype"):
            given = getattr(self, name)
            if isinstance(given, Mapping):
                _set(self, name, dict(given))  # the caller may change a dict later
        _set(self, "return_index", flag("return_index", self.return_index))

    def _check_features(self) -> None:
        if not isinstance(self.features, Mapping):
            raise ValueError(f"Loader: features must be a dict of features, got {self.features!r}")
        _set(self, "features", dict(self.features))
        if wrong := [name for name in dict(self.features) if not isinstance(name, str)]:
            raise ValueError(f"Loader: features must be a dict with names of type str, got {wrong[0]!r}")
        for name in ("windows", "delta_timestamps"):
            if getattr(self, name) is not None:
                raise ValueError(f"Loader: features take the place of {name}, got both")
        for name in ("normalize", "dtype"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"Loader: {name} must be a field of a Feature where features are given, got {name} of the loader"
                )


@dataclass(frozen=True, repr=False)
class Order:
    """Which samples an epoch has, in which order they come, and which of them this rank reads.

    anchors: the stream whose rows are the anchors of the samples; None: the first vector stream of the windows.
    anchor_hz: anchors at this rate, from the first row of that stream to its last, instead of its rows.
    skip_anchors: ``(first, last)``: how many anchors are left out at both ends of each episode.
    drop_last_steps: how many are left out at the end alone: ``skip_anchors=(0, n)``.
    edges: anchors by how much of their windows is padding. ``"pad"``: all. ``"inside"``: those without any. ``(before,
        after)``: at most so many moments of each window before the first row and after the last one. ``"robomimic"``:
        all, as its ``SequenceDataset``. ``("diffusion_policy", n_action_steps)``: those of its ``SequenceSampler``.
    weights: draws samples with replacement, as often as their weights say: ``{episode: weight}`` (1 for others), a
        function of an ``Episode``, both for each sample of the episode, or an array of one number for each sample.
    episodes: numbers of episodes, or a function of an ``Episode`` that returns whether it is kept; None: all.
    split: ``("train", share)`` or ``("validation", share)`` of the episodes.
    shuffle: whether samples come in a random order, a different one in each epoch.
    seed: of that order.
    drop_last: whether the samples that do not fill a batch of all ranks are left out.
    rank, world_size: of this process; None: those of ``torch.distributed``, also if the process group is initialized
        after the loader was constructed, or else of the launcher's environment.

    >>> import robocache
    >>> robocache.Order(split=("train", 0.9), seed=3)
    Order(split=('train', 0.9), seed=3)
    """

    anchors: str | None = None
    anchor_hz: float | None = None
    skip_anchors: tuple[int, int] = (0, 0)
    drop_last_steps: int = 0
    edges: Edges = "pad"
    weights: Weights = None
    episodes: Episodes = None
    split: Split = None
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = True
    rank: int | None = None
    world_size: int | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.anchors is not None and not isinstance(self.anchors, str):
            raise ValueError(f"Loader: anchors must be the name of a stream, got {self.anchors!r}")
        if self.anchor_hz is not None:
            rate("anchor_hz", self.anchor_hz)
        _set(self, "skip_anchors", _skipped(self.skip_anchors))
        _set(self, "drop_last_steps", whole("drop_last_steps", self.drop_last_steps, 0))
        if self.drop_last_steps and self.skip_anchors[1]:
            raise ValueError(
                f"Loader: drop_last_steps must be 0 where skip_anchors omits the last ones, got {self.drop_last_steps} "
                f"and {self.skip_anchors}"
            )
        limits_of(self.edges)
        _set(self, "shuffle", flag("shuffle", self.shuffle))
        if self.weights is not None and not self.shuffle:
            raise ValueError("Loader: shuffle must be True where samples have weights, which are drawn, got False")
        if isinstance(self.episodes, Iterator):
            _set(self, "episodes", [*self.episodes])  # several loaders may read them
        _set(self, "seed", whole("seed", self.seed, 0, 2**64 - 1))
        _set(self, "drop_last", flag("drop_last", self.drop_last))
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"Loader: rank and world_size belong together, got {self.rank} and {self.world_size}")


@dataclass(frozen=True, repr=False)
class Where:
    """Where rows are kept, and where batches are computed.

    device: of the batches: ``"cpu"``, or with torch ``"cuda"``, ``"cuda:1"``, a ``torch.device``.
    tier: ``"gpu"``, ``"pinned"``, ``"memory"`` or ``"mmap"``; None: the fastest one that fits into ``budget_bytes``.
    budget_bytes: memory for the rows; None: 80 % of what is free, divided by the ranks of this machine.
    verify: ``"load"`` compares checksums when rows are copied, or for ``mmap`` before rows are read for the first time;
        ``"none"`` or None never does; ``"auto"`` is ``"load"`` for tiers that copy. Damage is a ``FormatError``.
    framework: of the arrays in a batch: ``"torch"``; or ``"numpy"`` or ``"jax"``, for device ``"cpu"``, which need no
        PyTorch. Without ``jax_enable_x64``, entries of 64 bits stay NumPy arrays, since JAX would convert them to 32
        bits.

    >>> import robocache
    >>> robocache.Where(device="cuda", tier="pinned")
    Where(device='cuda', tier='pinned')
    """

    device: Any = "cpu"
    tier: str | None = None
    budget_bytes: int | None = None
    verify: str | None = "auto"
    framework: str = "torch"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.budget_bytes is not None:
            _set(self, "budget_bytes", whole("budget_bytes", self.budget_bytes, 0, 2**62))
        _set(self, "verify", check_verify(self.verify))
        check_framework(self.framework, self.device)


class Options(TypedDict, total=False):
    """The fields of the groups as keywords of ``Loader``, for editors and type checkers. ``windows`` is a parameter."""

    delta_timestamps: Mapping[str, Sequence[float]] | None
    normalize: Mapping[str, str | None] | str | None
    dtype: Any
    return_index: bool
    features: Mapping[str, Feature] | None
    stats: Any

    anchors: str | None
    anchor_hz: float | None
    skip_anchors: tuple[int, int]
    drop_last_steps: int
    edges: Edges
    weights: Weights
    episodes: Episodes
    split: Split
    shuffle: bool
    seed: int
    drop_last: bool
    rank: int | None
    world_size: int | None

    device: Any
    tier: str | None
    budget_bytes: int | None
    verify: str | None
    framework: str


GROUPS = {"what": What, "order": Order, "where": Where}
T = TypeVar("T", What, Order, Where)


def grouped(
    what: What | None, order: Order | None, where: Where | None, options: Mapping[str, Any]
) -> tuple[What, Order, Where]:
    """The three groups of a call: as they were given, or made from keywords."""
    known = [*GROUPS, *(field.name for kind in GROUPS.values() for field in fields(kind))]
    for name in options:
        if name not in known:
            near = did_you_mean(name, known)
            raise TypeError(f"Loader.__init__() got an unexpected keyword argument {name!r}{near}")
    return (
        _group("what", What, what, options),
        _group("order", Order, order, options),
        _group("where", Where, where, options),
    )


def _group(name: str, kind: type[T], given: T | None, options: Mapping[str, Any]) -> T:
    own = {field.name: options[field.name] for field in fields(kind) if field.name in options}
    if given is None:
        return kind(**own)
    if not isinstance(given, kind):
        raise ValueError(f"Loader: {name} must be of type robocache.{kind.__name__}, got {type(given).__name__}")
    if own:
        field, value = next(iter(own.items()))
        raise ValueError(
            f"Loader: {field} must be a field of {name}, or a keyword without {name}, got {field}={value!r} and "
            f"{name}={given!r}"
        )
    return given


def _set(group: Any, name: str, value: Any) -> None:
    """In ``__post_init__`` of a frozen dataclass."""
    object.__setattr__(group, name, value)


def _skipped(given: Any) -> tuple[int, int]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"Loader: skip_anchors must be (first, last), two whole numbers, got {given!r}")
    first, last = (whole("skip_anchors", number, 0, 2**31) for number in given)
    return first, last
