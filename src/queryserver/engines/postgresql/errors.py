"""asyncpg's exceptions as domain errors: the only place where they are known."""

import re
from collections.abc import Generator
from contextlib import contextmanager

import asyncpg

from queryserver.engines.connections import NO_TLS, no_connection
from queryserver.errors.places import Character, ErrorPlace
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

_REFUSED_LOGIN = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)
_CLIENT_HOST = re.compile(r'(?<= for )host "[^"]*", ')
"""The address that the server saw us come from."""
_NOT_READY = (asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError)
_TIME_LIMITS = (
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
)
_MAY_BE_TIME_LIMIT = (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError)
_CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.DatabaseDroppedError,
    asyncpg.ProtocolViolationError,
    OSError,
    TimeoutError,
)


@contextmanager
def connect_errors() -> Generator[None]:
    """Around the making of a connection: EngineUnavailable, CredentialsRequired or StatementRejected come out."""
    try:
        yield
    except _REFUSED_LOGIN as error:
        raise CredentialsRequired(_CLIENT_HOST.sub("", text_of(error))) from error
    except (*_NOT_READY, *_CONNECTION_LOST) as error:
        raise EngineUnavailable(no_connection("PostgreSQL", error, reason=_refused_tls(error))) from error
    except asyncpg.PostgresError as error:
        raise StatementRejected(text_of(error)) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise EngineUnavailable("PostgreSQL refused the connection.") from error


def _refused_tls(error: BaseException) -> str:
    """asyncpg tells a server without TLS only by the text of a general error class."""
    return NO_TLS if type(error) is ConnectionError and "rejected SSL" in str(error) else ""


@contextmanager
def statement_errors(*, started: bool) -> Generator[None]:
    """Around work for a statement; `started` tells whether the server may have begun to execute it.

    Raises SessionLost or OutcomeUnknown when the connection is gone, EngineTimeout when a time limit of the server
    ended the statement, else StatementRejected or StatementDenied with the server's text.
    """
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise _domain_error(error, started=started) from error


def _domain_error(error: Exception, *, started: bool) -> EngineError:
    if isinstance(error, _TIME_LIMITS) or (isinstance(error, _MAY_BE_TIME_LIMIT) and "timeout" in str(error)):
        return EngineTimeout(text_of(error))
    if isinstance(error, (*_CONNECTION_LOST, asyncpg.InternalClientError)) or _is_closed_connection(error):
        if started:
            return OutcomeUnknown("The connection to PostgreSQL was lost while the statement ran.")
        return SessionLost("The PostgreSQL session is gone; the statement was not started.")
    denied = isinstance(error, asyncpg.InsufficientPrivilegeError)
    return (StatementDenied if denied else StatementRejected)(text_of(error)).at(_place(error))


def _place(error: Exception) -> ErrorPlace | None:
    """The server counts characters from 1; `internal_position`, within the body of a function, is another field."""
    position = str(error.as_dict().get("position") or "") if isinstance(error, asyncpg.PostgresError) else ""
    return Character(int(position) - 1) if position.isdecimal() else None


def _is_closed_connection(error: Exception) -> bool:
    """asyncpg tells a closed connection only by the text of its general error class."""
    return type(error) is asyncpg.InterfaceError and "clos" in str(error)


def text_of(error: Exception) -> str:
    """The server's message; detail, hint and position follow on lines of their own, where the server gave them."""
    if not isinstance(error, asyncpg.PostgresError):
        return str(error).splitlines()[0] if str(error) else "The driver could not carry out the statement."
    fields = error.as_dict()
    lines = [str(fields.get("message") or error.args[0])]
    lines += [f"{label}: {fields[key]}" for key, label in _FURTHER_LINES if fields.get(key)]
    return "\n".join(lines)


_FURTHER_LINES = (("detail", "Detail"), ("hint", "Hint"), ("position", "Position"))
