"""The methods of align, as the native module lists them."""

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
