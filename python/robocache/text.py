"""Text in messages: names from files with control characters escaped, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

MAX_LENGTH = 2000


def escaped(text: object, max_length: int = MAX_LENGTH) -> str:
    r"""The text with non-printable characters escaped, shortened in the middle if it is too long.

    Escape sequences control terminals, and bidirectional marks reorder the displayed text.

    >>> escaped("/arm\x1b[2J\n")
    '/arm\\x1b[2J\\n'
    """
    shown = str(text)
    if len(shown) > max_length:
        shown = f"{shown[: max_length // 2]} ... {shown[-max_length // 2 :]}"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)


def escaped_lines(text: str) -> str:
    r"""Like ``escaped``, for text of any length; keeps line breaks.

    >>> print(escaped_lines("two\nlines\x07"))
    two
    lines\x07
    """
    return "\n".join(escaped(line, sys.maxsize) for line in text.split("\n"))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name most similar to ``given``, or ``""`` if none is similar.

    >>> did_you_mean("acton", ["action", "observation.state"])
    "; did you mean 'action'?"
    >>> did_you_mean("lidar", ["action"])
    ''
    """
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(given.casefold(), list(by_folded), n=1)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
