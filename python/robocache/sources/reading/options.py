"""Which options each format takes: unknown ones are refused before a file is opened."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ...text import did_you_mean

LIMITS = ("max_bytes", "max_items", "max_seconds")
"""Options that make up the ``Budget``."""


def options_of(open_format: Callable[..., Any]) -> list[str]:
    """The limits that every format takes, and the arguments of its ``open`` after the path."""
    names = inspect.signature(open_format).parameters
    limits = LIMITS if "budget" in names else ()
    return [*limits, *(name for name in names if name not in ("path", "budget"))]


def check_known(format: str, open_format: Callable[..., Any], given: Iterable[str]) -> None:
    known = options_of(open_format)
    for name in given:
        if name not in known:
            near = did_you_mean(name, known)
            raise ValueError(f"open: options of {format} must be among {', '.join(known)}, got {name!r}{near}")
