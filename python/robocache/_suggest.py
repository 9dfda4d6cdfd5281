"""A suggestion for a misspelled name, as the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``given``, or ``""`` where none is near.

    >>> did_you_mean("acton", ["action", "observation.state"])
    "; did you mean 'action'?"
    >>> did_you_mean("lidar", ["action"])
    ''
    """
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(given.casefold(), list(by_folded), n=1)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
