"""Names from files, made safe for a terminal: a stream's name may contain escape sequences and line breaks."""

from __future__ import annotations

import unicodedata

HARMLESS = {"\n", "\t"}


def printable(name: str) -> str:
    r"""``name`` with every control, format, surrogate and separator character but the space written as an escape.

    Backslashes stay as they are: the result is for people, and is not parsed again.

    >>> printable("arm\x1b[31m\n")
    'arm\\x1b[31m\\n'
    >>> printable("größe 測試")
    'größe 測試'
    """
    return "".join(_escaped(c) if _is_hidden(c) else c for c in name)


def printable_text(text: str) -> str:
    """A whole output: line breaks and tabs stay, all else is as in ``printable``.

    >>> print(printable_text("two\\nlines\\x07"))
    two
    lines\\x07
    """
    return "".join(c if c in HARMLESS or not _is_hidden(c) else _escaped(c) for c in text)


def _is_hidden(c: str) -> bool:
    # Cc: control, Cf: format (text direction), Cs: half of a pair, Zl and Zp: line separators
    return not c.isprintable() and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(c: str) -> str:
    return repr(c)[1:-1]
