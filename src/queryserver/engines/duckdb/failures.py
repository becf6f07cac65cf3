"""Translates DuckDB's errors with their positions and causes, and removes paths and stack traces from messages."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver import errors
from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.engine_messages import LABELED_POSITIONS, find_location
from queryserver.errors.statements import engine_memory_exceeded
from queryserver.sql.positions import position_of

# Start of a stack trace, or of advice to change settings that statements may not change.
_TRACE_MARKS = ("\n\nStack Trace", "\nThis error signals an assertion failure", "\n\nPossible solutions:")

_PYTHON_TRACE = "Traceback (most recent call last)"

_LINE = re.compile(r"^LINE (\d{1,7}):", re.MULTILINE)
_WORD = re.compile(r"\w+")
_NAMES = re.compile(r'"[^"\n]+"|\bwith name \S')

_WHY_CLOSED = (
    ("Could not set lock", "The database file is locked by another process."),
    ("not a valid DuckDB database", "The file is not a DuckDB database."),
    ("does not exist", "The database file does not exist."),
    ("No such file", "The database file does not exist."),
)

# Messages for an allocation that failed at the process's memory limit. An error at the database's own limit,
# `memory_limit`, instead reports how much memory is in use.
_PROCESS_IS_FULL = re.compile(r"(?:Out of Memory|INTERNAL) Error: .*(?:bad.alloc|Allocation failure)", re.DOTALL)
_IS_FATAL = re.compile(r"\b(?:INTERNAL|FATAL) Error\b")


def may_invalidate_database(text: str) -> bool:
    """Return whether the error may have invalidated the database for all connections.

    An internal error during the execution of a statement does so, but an internal error in the planner does not.
    """
    return _IS_FATAL.search(text) is not None


@contextmanager
def opening_errors() -> Generator[None]:
    """Translate errors on opening a database.

    DuckDB's messages would reveal the path and the process that has the file open.
    """
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        reason = next((reason for part, reason in _WHY_CLOSED if part in text), "The database file cannot be opened.")
        raise errors.EngineUnavailable(reason) from error


@contextmanager
def statement_errors(
    root: Path | None, error_of: Callable[[str], errors.QueryServerError | None] | None = None, *, lines_before: int = 0
) -> Generator[None]:
    """Translate statement errors and remove `root` from paths in messages.

    `error_of` returns the server's own error that caused a DuckDB message, if any. `lines_before` is the number of
    lines before the text sent to DuckDB. It is added to the line numbers in DuckDB's messages.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        raise errors.StatementRejected(_clean_message(f"Not implemented Error: {error}", root)) from error
    except UnicodeDecodeError as error:
        # DuckDB may truncate a value in the middle of a character. Its Python binding then fails to decode the message,
        # but this exception contains the message's bytes.
        raise _rejected(bytes(error.object).decode(errors="replace"), root, lines_before) from error
    except (duckdb.Error, OSError) as error:
        text = str(error)
        if error_of is not None and (known := error_of(text)) is not None:
            raise known from error
        if isinstance(error, duckdb.Error):
            raise domain_error(error, root, lines_before) from error
        # Arrow's reader raises a running statement's error as OSError with DuckDB's message.
        if "INTERRUPT Error" in text:
            raise Interrupted from error
        raise _rejected(text, root, lines_before) from error


def domain_error(error: duckdb.Error, root: Path | None, lines_before: int = 0) -> errors.EngineError:
    if isinstance(error, duckdb.InterruptException):
        return Interrupted()
    if isinstance(error, duckdb.ConnectionException):
        return errors.SessionLost("Invalid session Id: the connection to the database is closed.")
    return _rejected(str(error), root, lines_before)


# DuckDB has no SQLSTATE, but its messages name the kind of error. More specific kinds come first.
_SQLSTATES = {
    "Constraint": "23000", "Conversion": "22000", "Out of Range": "22003", "Parser": "42601", "Catalog": "42000",
    "Binder": "42000", "Permission": "42501", "Not implemented": "0A000", "Out of Memory": "53200",
}  # fmt: skip
_KIND = re.compile(rf"({'|'.join(_SQLSTATES)}) Error: ")


def sqlstate_of(text: str) -> str | None:
    kind = _KIND.match(text)
    return _SQLSTATES[kind[1]] if kind else None


def with_shifted_lines(text: str, lines_before: int) -> str:
    """Add `lines_before` to the line number in a DuckDB message."""
    if not lines_before:
        return text
    return _LINE.sub(lambda match: f"LINE {int(match[1]) + lines_before}:", text, count=1)


def _rejected(text: str, root: Path | None, lines_before: int) -> errors.EngineError:
    if _PROCESS_IS_FULL.match(text):
        return engine_memory_exceeded().with_sqlstate("53200")
    text = with_shifted_lines(text, lines_before)
    return errors.StatementRejected(_clean_message(text, root)).at(location_of(text)).with_sqlstate(sqlstate_of(text))


def location_of(text: str) -> errors.ErrorLocation | None:
    """Return an error's position; None if DuckDB's caret refers to other text, such as a view definition."""
    location = find_location(text, LABELED_POSITIONS)
    message = text.partition("\n\nLINE ")[0]
    return location if isinstance(location, errors.ErrorExcerpt) and _is_plausible(location, message) else None


def _is_plausible(location: errors.ErrorExcerpt, message: str) -> bool:
    """Return whether the caret is plausible.

    It must not be inside a word. If the message mentions names, it must be on a word that the message contains.
    """
    position = position_of(location, "\n" * (location.line - 1) + location.shown)
    if position is None or position.column is None:
        return True  # a position that cannot be resolved is dropped later
    before, marked = location.shown[: position.column - 1], location.shown[position.column - 1 :]
    word = _WORD.match(marked)
    if word is None:
        return True
    if before and _WORD.fullmatch(before[-1]):
        return False
    names = _NAMES.findall(message)
    return not names or word[0].casefold() in {name.casefold() for name in _WORD.findall(message)}


@contextmanager
def without_excerpt() -> Generator[None]:
    """Remove the statement excerpt from errors, because it contains parameter values. The position is kept."""
    try:
        yield
    except errors.StatementRejected as error:
        shown = errors.StatementRejected(error.message.partition("\n\nLINE ")[0])
        raise (
            error if isinstance(error, Interrupted) else shown.at(error.location).with_sqlstate(error.sqlstate)
        ) from error


def _clean_message(text: str, root: Path | None) -> str:
    for mark in _TRACE_MARKS:
        text = text.partition(mark)[0]
    if _PYTHON_TRACE in text:  # a bug in a callback
        return "IO Error: a file could not be read or written."
    if root is not None:
        text = text.replace(f"{root}/", "").replace(str(root), "")
    return text.strip() or "The statement failed."
