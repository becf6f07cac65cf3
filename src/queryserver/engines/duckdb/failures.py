"""What the errors of DuckDB mean: its texts without paths and traces, their places, and what ended a statement."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver import errors
from queryserver.engines.statement_texts import LABELED, place_in
from queryserver.engines.threaded import Interrupted
from queryserver.errors.statements import engine_memory_exceeded
from queryserver.sql.positions import position_of

# Behind them: traces, and advice to set what statements may not set.
_TRACE_MARKS = ("\n\nStack Trace", "\nThis error signals an assertion failure", "\n\nPossible solutions:")

_PYTHON_TRACE = "Traceback (most recent call last)"

_LINE = re.compile(r"^LINE (\d{1,7}):", re.MULTILINE)
_WORD = re.compile(r"\w+")
_NAMES = re.compile(r'"[^"\n]+"|\bwith name \S')

_WHY_CLOSED = (
    ("Could not set lock", "The database file is held by another process."),
    ("not a valid DuckDB database", "The file is not a DuckDB database."),
    ("does not exist", "The database file does not exist."),
    ("No such file", "The database file does not exist."),
)

# The limit of the process: an allocation has failed. That of the database, `memory_limit`, gives how much is in use.
_PROCESS_IS_FULL = re.compile(r"(?:Out of Memory|INTERNAL) Error: .*(?:bad.alloc|Allocation failure)", re.DOTALL)
_IS_FATAL = re.compile(r"\b(?:INTERNAL|FATAL) Error\b")


def may_have_ended(text: str) -> bool:
    """Whether the database may be closed to all its connections: an internal error of a statement that runs does that,
    one of the planner does not.
    """
    return _IS_FATAL.search(text) is not None


@contextmanager
def opening_errors() -> Generator[None]:
    """Around the opening of a database. DuckDB's own texts name the file's path and the process that holds it."""
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
    """Around each call of a statement; paths below `root` lose it. `error_of` knows messages of our own.

    `lines_before`: of the text before what DuckDB was sent, which its numbers of lines leave out.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        raise errors.StatementRejected(_tidy(f"Not implemented Error: {error}", root)) from error
    except UnicodeDecodeError as error:
        # DuckDB cuts values within a character, and its binding cannot make the text of the error: the bytes are here.
        raise _rejected(bytes(error.object).decode(errors="replace"), root, lines_before) from error
    except (duckdb.Error, OSError) as error:
        text = str(error)
        if error_of is not None and (known := error_of(text)) is not None:
            raise known from error
        if isinstance(error, duckdb.Error):
            raise domain_error(error, root, lines_before) from error
        # Arrow's reader hands an error of the running statement on as OSError, with DuckDB's text.
        if "INTERRUPT Error" in text:
            raise Interrupted from error
        raise _rejected(text, root, lines_before) from error


def domain_error(error: duckdb.Error, root: Path | None, lines_before: int = 0) -> errors.EngineError:
    if isinstance(error, duckdb.InterruptException):
        return Interrupted()
    if isinstance(error, duckdb.ConnectionException):
        return errors.SessionLost("Invalid session Id: the connection to the database is closed.")
    return _rejected(str(error), root, lines_before)


# DuckDB has kinds of errors, in its texts by name, and no SQLSTATE. More special ones come first.
_SQLSTATES = {
    "Constraint": "23000", "Conversion": "22000", "Out of Range": "22003", "Parser": "42601", "Catalog": "42000",
    "Binder": "42000", "Permission": "42501", "Not implemented": "0A000", "Out of Memory": "53200",
}  # fmt: skip
_KIND = re.compile(rf"({'|'.join(_SQLSTATES)}) Error: ")


def sqlstate_of(text: str) -> str | None:
    kind = _KIND.match(text)
    return _SQLSTATES[kind[1]] if kind else None


def with_lines(text: str, lines_before: int) -> str:
    if not lines_before:
        return text
    return _LINE.sub(lambda found: f"LINE {int(found[1]) + lines_before}:", text, count=1)


def _rejected(text: str, root: Path | None, lines_before: int) -> errors.EngineError:
    if _PROCESS_IS_FULL.match(text):
        return engine_memory_exceeded().classed("53200")
    text = with_lines(text, lines_before)
    return errors.StatementRejected(_tidy(text, root)).at(place_of(text)).classed(sqlstate_of(text))


def place_of(text: str) -> errors.ErrorPlace | None:
    """None where DuckDB marks a place of another text, such as that of a view, in the statement."""
    place = place_in(text, LABELED)
    return (
        place if isinstance(place, errors.ErrorExcerpt) and _is_named(place, text.partition("\n\nLINE ")[0]) else None
    )


def _is_named(place: errors.ErrorExcerpt, message: str) -> bool:
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


@contextmanager
def without_excerpt() -> Generator[None]:
    """The part of the statement that DuckDB shows has values; its place is known without it."""
    try:
        yield
    except errors.StatementRejected as error:
        shown = errors.StatementRejected(error.message.partition("\n\nLINE ")[0])
        raise (error if isinstance(error, Interrupted) else shown.at(error.place).classed(error.sqlstate)) from error


def _tidy(text: str, root: Path | None) -> str:
    for mark in _TRACE_MARKS:
        text = text.partition(mark)[0]
    if _PYTHON_TRACE in text:  # of a defect in a callback
        return "IO Error: a file could not be read or written."
    if root is not None:
        text = text.replace(f"{root}/", "").replace(str(root), "")
    return text.strip() or "The statement failed."
