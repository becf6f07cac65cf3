"""SQLite's exceptions as domain errors."""

from collections.abc import Generator
from contextlib import contextmanager

import apsw

from queryserver.domain.errors.statements import (
    EngineError,
    EngineUnavailable,
    SessionLost,
    StatementRejected,
    cell_too_large,
)
from queryserver.domain.positions import Octet
from queryserver.engines.threaded_session import Interrupted

_LOST = (
    apsw.ConnectionClosedError,
    apsw.ConnectionNotClosedError,
    apsw.CursorClosedError,
    apsw.ForkingViolationError,
    apsw.ThreadingViolationError,
)


@contextmanager
def opening_errors() -> Generator[None]:
    """Around the opening of a database. SQLite's texts name no path."""
    try:
        yield
    except apsw.Error as error:
        raise EngineUnavailable(f"The database cannot be opened: {error}.") from error


@contextmanager
def statement_errors(*, cell_max_bytes: int | None = None) -> Generator[None]:
    """Around each call of a statement. `cell_max_bytes`: what a value that SQLite refuses to make is told to exceed."""
    try:
        yield
    except apsw.TooBigError as error:
        if cell_max_bytes is None:
            raise domain_error(error) from error
        raise cell_too_large(limit_bytes=cell_max_bytes) from error
    except apsw.Error as error:
        raise domain_error(error) from error
    except UnicodeDecodeError as error:
        raise StatementRejected("A text in the result is not valid UTF-8; CAST it AS BLOB.") from error
    except ValueError as error:  # of the statement's own text; it never reaches SQLite
        raise StatementRejected("A statement must not hold U+0000 or half a character.") from error


def domain_error(error: apsw.Error) -> EngineError:
    """What an error of a statement means."""
    if isinstance(error, apsw.InterruptError):
        return Interrupted()
    if isinstance(error, _LOST):
        return SessionLost("Invalid session Id: the connection to the database is closed.")
    if isinstance(error, apsw.NoMemError):
        return StatementRejected("out of memory: the statement needs more than this server gives to SQLite")
    offset = getattr(error, "error_offset", -1)  # in bytes; -1: not known
    return StatementRejected(str(error).strip() or "The statement failed.").at(Octet(offset) if offset >= 0 else None)
