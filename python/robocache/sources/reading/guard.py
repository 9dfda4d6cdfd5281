"""The errors of readers. Whatever a file makes a library raise leaves here as FormatError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..._core import FormatError
from ...text import escaped
from .budget import FREE_BYTES, Meter


class OptionError(ValueError):
    """A user's option is wrong, as only the files show. Any other ValueError is taken for the files' fault."""


class NeedsOption(FormatError, OptionError):
    """The files lack something that an option gives, a rate for one: either they are damaged, or the user must."""


@contextmanager
def guarded(where: str, meter: Meter) -> Iterator[None]:
    """FormatError for every exception but those that files do not cause: wrong options and missing packages.

    Lack of memory is the files' fault where they are too small to need any. Names in messages come from files, so
    messages are escaped, here and in no other place.
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
