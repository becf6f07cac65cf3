"""DuckDB's exceptions as domain errors."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from queryserver.domain.errors import EngineError, EngineUnavailable, SessionLost, StatementRejected
from queryserver.engines.threaded_session import Interrupted

_TRACE_MARKS = ("\n\nStack Trace", "\nThis error signals an assertion failure")

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
def statement_errors(root: Path | None) -> Generator[None]:
    """Around each call of a statement; paths below `root` lose it."""
    try:
        yield
    except duckdb.Error as error:
        raise domain_error(error, root) from error
    except OSError as error:
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
        text = text.replace(f"{root}/", "")
    return text.strip() or "The statement failed."


def _why_closed(text: str) -> str:
    if "Could not set lock" in text:
        return "The database file is held by another process."
    if "not a valid DuckDB database" in text:
        return "The file is not a DuckDB database."
    if "does not exist" in text or "No such file" in text:
        return "The database file does not exist."
    return "The database file cannot be opened."
