"""DuckDB's exceptions as domain errors."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver.domain.errors import EngineError, EngineUnavailable, QueryServerError, SessionLost, StatementRejected
from queryserver.engines.threaded_session import Interrupted

# Behind them: traces, and advice to set what statements may not set.
_TRACE_MARKS = ("\n\nStack Trace", "\nThis error signals an assertion failure", "\n\nPossible solutions:")

# An internal error ends DuckDB's database instance: all its connections refuse work from then on.
FATAL: tuple[type[duckdb.Error], ...] = (duckdb.FatalException, duckdb.InternalException)


@contextmanager
def opening_errors() -> Generator[None]:
    """Around the opening of a database. DuckDB's own texts name the file's path and the process that holds it."""
    try:
        yield
    except duckdb.Error as error:
        raise EngineUnavailable(_why_closed(str(error))) from error


@contextmanager
def statement_errors(
    root: Path | None, error_of: Callable[[str], QueryServerError | None] | None = None
) -> Generator[None]:
    """Around each call of a statement; paths below `root` lose it. `error_of` knows messages of our own."""
    try:
        yield
    except duckdb.Error as error:
        known = error_of(str(error)) if error_of is not None else None
        raise (known or domain_error(error, root)) from error
    except pa.ArrowInvalid as error:
        raise StatementRejected(_tidy(f"Not implemented Error: {error}", root)) from error
    except OSError as error:
        if error_of is not None and (known := error_of(str(error))) is not None:
            raise known from error
        # Arrow's reader hands an error of the running statement on as this class, with DuckDB's text.
        if "INTERRUPT Error" in str(error):
            raise Interrupted from error
        raise StatementRejected(_tidy(str(error), root)) from error


def domain_error(error: duckdb.Error, root: Path | None) -> EngineError:
    """What an error of a statement means."""
    if isinstance(error, duckdb.InterruptException):
        return Interrupted()
    if isinstance(error, duckdb.ConnectionException):
        return SessionLost("Invalid session Id: the connection to the database is closed.")
    return StatementRejected(_tidy(str(error), root))


def _tidy(text: str, root: Path | None) -> str:
    for mark in _TRACE_MARKS:
        text = text.partition(mark)[0]
    if root is not None:
        text = text.replace(f"{root}/", "").replace(str(root), "")
    return text.strip() or "The statement failed."


def _why_closed(text: str) -> str:
    if "Could not set lock" in text:
        return "The database file is held by another process."
    if "not a valid DuckDB database" in text:
        return "The file is not a DuckDB database."
    if "does not exist" in text or "No such file" in text:
        return "The database file does not exist."
    return "The database file cannot be opened."
