"""Exceptions of drivers that nobody knows beforehand as domain errors; DBAPI's classes (PEP 249) are common to them."""

import re
import struct
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Dialect

from queryserver.engines.statement_texts import ANY, place_in
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    StatementRejected,
)
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.outbound import guarded

_BROKEN_ANSWER = (
    OSError,
    EOFError,
    RuntimeError,
    struct.error,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
)
"""What parsers of protocols raise over an answer that is none."""

DRIVER_ERRORS = (exc.SQLAlchemyError, *_BROKEN_ANSWER)
_THE_DRIVERS_OWN = ("InterfaceError", "InternalError")
"""Classes of PEP 249; without a number of the server the driver has lost its way in the protocol."""

_MYSQL_CLIENT_NUMBERS = range(2000, 3000)
_REFUSED_LOGIN = re.compile(
    r"access denied for user|authentication|password|login failed|logon denied|unauthori[sz]ed|invalid credentials",
    re.IGNORECASE,
)
_WHERE_FROM = re.compile(r"'@'[^']*'")
_TRACE = re.compile(r"\s*(?:Traceback|File \"|at [\w.$]+\(|\[SQL:|\(Background on this error)")
_MAX_TEXT = 4_000


@contextmanager
def connect_errors(name: str, rules: AddressRules) -> Generator[None]:
    """Around the making of a connection: EngineUnavailable, CredentialsRequired or StatementRejected come out."""
    try:
        with guarded(rules):
            yield
    except DRIVER_ERRORS as error:
        raise _connect_error(error, name) from error


@contextmanager
def statement_errors(dialect: Dialect, rules: AddressRules) -> Generator[None]:
    """Around work for a statement: OutcomeUnknown when the connection is gone, else StatementRejected."""
    try:
        with guarded(rules):
            yield
    except HostRefused as refused:
        # The first hop may have taken the statement: it must not be sent again. That no connection was seen proves
        # nothing: drivers keep them open for each other (clickhouse-connect), or make them in C and threads of theirs.
        raise OutcomeUnknown(refused.message) from refused
    except driver_errors(dialect) as error:
        raise _statement_error(error, dialect) from error


def driver_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    """All that the driver and SQLAlchemy may raise: cursors are partly read past SQLAlchemy."""
    return (*DRIVER_ERRORS, _dbapi_error(dialect))


def _dbapi_error(dialect: Dialect) -> type[Exception]:
    """The driver's own base class."""
    found = getattr(dialect.loaded_dbapi, "Error", None)
    return found if isinstance(found, type) and issubclass(found, Exception) else exc.SQLAlchemyError


def _connect_error(error: Exception, name: str) -> EngineError:
    original = _original(error)
    text = _text_of(original)
    if _REFUSED_LOGIN.search(text):
        return CredentialsRequired(text)
    if _is_the_server_s(original):
        return StatementRejected(text)
    return EngineUnavailable(f"No connection to {name} could be made.")


def _statement_error(error: Exception, dialect: Dialect) -> EngineError:
    original = _original(error)
    is_lost = isinstance(error, exc.DBAPIError) and error.connection_invalidated
    if is_lost or isinstance(original, _BROKEN_ANSWER) or _is_disconnect(original, dialect):
        return OutcomeUnknown("The connection to the data source was lost while the statement ran.")
    text = _text_of(original)
    return StatementRejected(text).at(place_in(text, ANY))


def _is_disconnect(error: Any, dialect: Dialect) -> bool:
    if type(error).__name__ in _THE_DRIVERS_OWN and not _is_the_server_s(error):
        return True
    return type(error).__module__ != "builtins" and bool(dialect.is_disconnect(error, None, None))


def _original(error: Exception) -> Exception:
    inner = error.orig if isinstance(error, exc.DBAPIError) else None
    return inner if isinstance(inner, Exception) else error


def _is_the_server_s(error: Exception) -> bool:
    """Whether the server itself said no: its number comes first, or a SQLSTATE is told."""
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        return number > 0 and number not in _MYSQL_CLIENT_NUMBERS and not isinstance(error, OSError)
    return bool(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None))


def _text_of(error: Exception) -> str:
    """The engine's own text, without numbers before it, traces and the address that it saw us come from."""
    texts = [part for part in error.args if isinstance(part, str)] or [str(error)]
    lines = list[str]()
    for line in texts[0].strip().splitlines():
        if _TRACE.match(line):
            break
        lines.append(line.rstrip())
    return _WHERE_FROM.sub("'", "\n".join(lines))[:_MAX_TEXT].strip() or "The data source gave no reason."
