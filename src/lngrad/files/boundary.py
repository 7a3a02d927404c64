"""Where a failure of parsing becomes the one clear error, whatever a parser below raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lngrad.errors import FileFormatError, LngradError

MOST_REASON = 160  # characters of the parser's own words


@contextmanager
def parsing(where: object, what: str) -> Iterator[None]:
    """Turn every exception raised inside into a FileFormatError.

    A damaged file can make a parser raise almost anything: zipfile lets LZMAError, zlib.error and NotImplementedError
    through, the parser of .npy headers TokenError and OverflowError, PyYAML ConstructorError. A list of these is never
    complete, so all are caught here; the original stays the cause, so that a defect of ours can still be found.

    Args:
        where: The file, and the place in it if one is known.
        what: What is wrong if anything is, as "its .npy header is damaged".

    Raises:
        FileFormatError: "WHERE: WHAT (the parser's own words)"; or that the file can't be read.
    """
    try:
        yield
    except LngradError:
        raise
    except OSError as error:
        raise FileFormatError(f"{error.filename or where}: can't be read: {error.strerror or error}") from error
    except Exception as error:
        words = (str(error).splitlines() or [""])[0][:MOST_REASON] or type(error).__name__
        raise FileFormatError(f"{where}: {what} ({words})") from error
