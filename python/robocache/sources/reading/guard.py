"""Errors of readers: any exception that a file causes in a library is converted to FormatError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..._core import FormatError
from ...text import escaped
from .budget import FREE_BYTES, Meter


class OptionError(ValueError):
    """An option is wrong for these files. Any other ValueError is attributed to the files."""


class NeedsOption(FormatError, OptionError):
    """The files lack information that an option can provide, for example a rate."""


@contextmanager
def guarded(where: str, meter: Meter) -> Iterator[None]:
    """Converts every exception to FormatError, except wrong options and missing packages.

    A MemoryError is attributed to the files if they are too small to need much memory. Names in messages come from
    files, so messages are escaped; this is the only place that does it.
    """
    try:
        yield
    except (OptionError, FormatError) as error:
        error.args = (escaped(error),)
        raise
    except (ImportError, Warning):  # warnings are raised where the user turned them into errors
        raise
    except MemoryError as error:
        if meter.stored_bytes > FREE_BYTES:
            raise
        raise FormatError(escaped(f"{where}: the files declare more memory than is available: {error}")) from error
    except Exception as error:
        raise FormatError(escaped(f"{where}: {type(error).__name__}: {error}")) from error
