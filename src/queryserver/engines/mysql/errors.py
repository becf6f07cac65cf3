"""asyncmy's exceptions as domain errors: the only place where they are known."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from asyncmy import errors as driver

from queryserver.engines.connections import no_connection
from queryserver.engines.statement_texts import NEAR, place_in
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)

INTERRUPTED = 1317
"""ER_QUERY_INTERRUPTED: the answer to KILL QUERY."""

LOGIN_REFUSED = 2059
"""The driver's own number for a login method that it does not carry out."""

DRIVER_ERRORS = (driver.MySQLError, OSError, RuntimeError)
"""RuntimeError: asyncmy raises it when a server asks for a file of ours."""

# Error numbers: 1045 access denied, 1130 host not allowed, 1251 authentication protocol, 1698 access denied without
# password, 1820 and 1862 password expired, 3118 and 4151 account locked.
_REFUSED_LOGIN = frozenset({1045, 1130, 1251, 1698, 1820, 1862, LOGIN_REFUSED, 3118, 4151})
# 1040 and 1203 too many connections, 1053 shutdown, 1226 resource limit, 1129 host blocked.
_NOT_READY = frozenset({1040, 1053, 1129, 1203, 1226})
_WANTS_TLS = 3159
# 1969 MariaDB's max_statement_time, 3024 MySQL's max_execution_time, 1205 lock wait timeout.
_TIME_LIMITS = frozenset({1205, 1969, 3024})
# 1053 shutdown, 1927 and 3169 connection killed, 1152 to 1161 broken packets, 4031 idle too long.
_CONNECTION_LOST = frozenset({1053, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1927, 3169, 4031})
# 1044 database, 1142 table, 1143 column, 1227 privilege, 1370 routine: denied to this login.
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})
_CLIENT_NUMBERS = range(2000, 3000)
_CLIENT_HOST = re.compile(r"'@'[^']*'")


@contextmanager
def connect_errors() -> Generator[None]:
    """Around the making of a connection: EngineUnavailable, CredentialsRequired or StatementRejected come out."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise _connect_error(error) from error


@contextmanager
def statement_errors(*, started: bool) -> Generator[None]:
    """Around work for a statement; `started` tells whether the server may have begun to execute it.

    Raises SessionLost or OutcomeUnknown when the connection is gone, EngineTimeout when a time limit of the server
    ended the statement, else StatementRejected or StatementDenied with the server's text.
    """
    try:
        yield
    except DRIVER_ERRORS as error:
        raise _statement_error(error, started=started) from error


def number_of(error: BaseException | None) -> int:
    """The server's error number; 0 where there is none, 2000 to 2999 for the driver's own."""
    if isinstance(error, driver.MySQLError) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return 0


def _connect_error(error: Exception) -> EngineError:
    number = number_of(error)
    if number in _REFUSED_LOGIN:
        return CredentialsRequired(_text_of(error))
    if number == _WANTS_TLS:
        return EngineUnavailable(_text_of(error))
    if number in _NOT_READY or _is_of_the_driver(error):
        return EngineUnavailable(no_connection("MySQL", error))
    return StatementRejected(_text_of(error))


def _statement_error(error: Exception, *, started: bool) -> EngineError:
    number = number_of(error)
    if number in _TIME_LIMITS:
        return EngineTimeout(_text_of(error))
    if isinstance(error, RuntimeError):
        return StatementRejected("LOAD DATA LOCAL is not allowed: this service has no files for the server.")
    if number in _CONNECTION_LOST or _is_of_the_driver(error):
        if started:
            return OutcomeUnknown("The connection to MySQL was lost while the statement ran.")
        return SessionLost("The MySQL session is gone; the statement was not started.")
    text = _text_of(error)
    return (StatementDenied if number in _DENIED else StatementRejected)(text).at(place_in(text, NEAR))


def _is_of_the_driver(error: Exception) -> bool:
    """Not an answer of the server: the connection is broken, or its stream cannot be followed any more."""
    number = number_of(error)
    return number == 0 or (number in _CLIENT_NUMBERS and number not in _REFUSED_LOGIN)


def _text_of(error: Exception) -> str:
    """The server's own text, without the address that it saw us come from."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return _CLIENT_HOST.sub("'", text) or "MySQL gave no reason."
