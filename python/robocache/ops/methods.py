"""The methods of align and the reductions of voxelize, as the native module lists them."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core
from .types import Method


class MethodTraits(NamedTuple):
    """``family``: row, blend, quaternion or window. ``gradient``, of the native backends: none, times or values."""

    family: str
    takes_integers: bool
    gradient: str


METHODS = {traits[0]: MethodTraits(*traits[1:]) for traits in _core.align_methods()}
ONE_ROW = tuple(name for name, traits in METHODS.items() if traits.family == "row")
WINDOW = tuple(name for name, traits in METHODS.items() if traits.family == "window")


def names_in(method: Method) -> list[str]:
    """The names in a method, which may be a list of channel ranges. What is no name is left for the contract."""
    if isinstance(method, str):
        return [method] if method in METHODS else []
    ranges = method if isinstance(method, (list, tuple)) else ()
    names = [part[-1] for part in ranges if isinstance(part, (list, tuple)) and part]
    return [name for name in names if isinstance(name, str) and name in METHODS]


def uses_windows(method: Method) -> bool:
    """Whether what is written for a target depends on the targets next to it."""
    return any(METHODS[name].family == "window" for name in names_in(method))


def gradient_reads_values(method: Method) -> bool:
    """Whether the native gradient depends on the values, not only on the times."""
    return any(METHODS[name].gradient == "values" for name in names_in(method))


# ---- reductions ------------------------------------------------------------------------------------------------------


class ReductionTraits(NamedTuple):
    """``gradient``, of the native backends, reads: none (there is none), cells, features, or values: features and the
    grid."""

    of_features: bool
    fills: bool
    gradient: str


REDUCTIONS = {traits[0]: ReductionTraits(*traits[1:]) for traits in _core.voxel_reductions()}
OF_FEATURES = tuple(name for name, traits in REDUCTIONS.items() if traits.of_features)


def gradient_needs(mode: str) -> str:
    """What the native gradient of a mode reads; "none" for what is no mode, which is left for the contract."""
    return REDUCTIONS[mode].gradient if mode in REDUCTIONS else "none"
