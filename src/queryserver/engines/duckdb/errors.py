"""DuckDB's exceptions as domain errors."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.statements import EngineError, EngineUnavailable, SessionLost, StatementRejected
from queryserver.domain.positions import Excerpt, Place, position_of
from queryserver.engines.error_places import LABELED, place_in
from queryserver.engines.threaded_session import Interrupted

# Behind them: traces, and advice to set what statements may not set.
_TRACE_MARKS = ("\n\nStack Trace", "\nThis error signals an assertion failure", "\n\nPossible solutions:")

_LINE = re.compile(r"^LINE (\d{1,7}):", re.MULTILINE)
_WORD = re.compile(r"\w+")
_NAMES = re.compile(r'"[^"\n]+"|\bwith name \S')

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
    root: Path | None, error_of: Callable[[str], QueryServerError | None] | None = None, *, lines_before: int = 0
) -> Generator[None]:
    """Around each call of a statement; paths below `root` lose it. `error_of` knows messages of our own.

    `lines_before`: of the text before what DuckDB was sent, which its numbers of lines leave out.
    """
    try:
        yield
    except duckdb.Error as error:
        known = error_of(str(error)) if error_of is not None else None
        raise (known or domain_error(error, root, lines_before)) from error
    except pa.ArrowInvalid as error:
        raise StatementRejected(_tidy(f"Not implemented Error: {error}", root)) from error
    except OSError as error:
        if error_of is not None and (known := error_of(str(error))) is not None:
            raise known from error
        # Arrow's reader hands an error of the running statement on as this class, with DuckDB's text.
        if "INTERRUPT Error" in str(error):
            raise Interrupted from error
        raise _rejected(str(error), root, lines_before) from error


def domain_error(error: duckdb.Error, root: Path | None, lines_before: int = 0) -> EngineError:
    """What an error of a statement means."""
    if isinstance(error, duckdb.InterruptException):
        return Interrupted()
    if isinstance(error, duckdb.ConnectionException):
        return SessionLost("Invalid session Id: the connection to the database is closed.")
    return _rejected(str(error), root, lines_before)


def place_of(error: duckdb.Error, lines_before: int = 0) -> Place | None:
    """Where in the text an error is, of which `lines_before` lines were left out."""
    return _place(_with_lines(str(error), lines_before))


def _with_lines(text: str, lines_before: int) -> str:
    if not lines_before:
        return text
    return _LINE.sub(lambda found: f"LINE {int(found[1]) + lines_before}:", text, count=1)


def _rejected(text: str, root: Path | None, lines_before: int) -> StatementRejected:
    text = _with_lines(text, lines_before)
    return StatementRejected(_tidy(text, root)).at(_place(text))


def _place(text: str) -> Place | None:
    """None where DuckDB marks a place of another text, such as that of a view, in the statement."""
    place = place_in(text, LABELED)
    return place if isinstance(place, Excerpt) and _is_named(place, text.partition("\n\nLINE ")[0]) else None


def _is_named(place: Excerpt, message: str) -> bool:
    """Whether the mark stands at the beginning of a word, one of the names of the message if it has any."""
    position = position_of(place, "\n" * (place.line - 1) + place.shown)
    if position is None or position.column is None:
        return True  # what cannot be found is no place later on
    before, marked = place.shown[: position.column - 1], place.shown[position.column - 1 :]
    word = _WORD.match(marked)
    if word is None:
        return True
    if before and _WORD.fullmatch(before[-1]):
        return False
    names = _NAMES.findall(message)
    return not names or word[0].casefold() in {name.casefold() for name in _WORD.findall(message)}


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
