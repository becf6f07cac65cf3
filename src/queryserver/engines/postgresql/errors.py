"""Translates asyncpg's errors into domain errors, with the server's message and position."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager

import asyncpg

from queryserver import errors
from queryserver.engines.connections import NO_TLS, connection_failure_message

_REFUSED_LOGIN = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)
_CLIENT_HOST = re.compile(r'(?<= for )host "[^"]*", ')
"""Matches the client's address in the server's messages."""
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
    """Translate connection errors into EngineUnavailable, CredentialsRequired or StatementRejected."""
    try:
        yield
    except _REFUSED_LOGIN as error:
        raise errors.CredentialsRequired(_CLIENT_HOST.sub("", server_message(error))) from error
    except (*_NOT_READY, *_CONNECTION_LOST) as error:
        # asyncpg reports a server without TLS only in the message of a generic error.
        without_tls = type(error) is ConnectionError and "rejected SSL" in str(error)
        reason = NO_TLS if without_tls else ""
        raise errors.EngineUnavailable(connection_failure_message("PostgreSQL", error, reason=reason)) from error
    except asyncpg.PostgresError as error:
        raise errors.StatementRejected(server_message(error)) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise errors.EngineUnavailable("PostgreSQL refused the connection.") from error


@contextmanager
def statement_errors(*, started: bool, before: int = 0) -> Generator[None]:
    """Translate statement errors. `started` states whether the server may have begun to execute the statement.

    `before` is the number of characters that were sent before the statement, so positions are reduced by it.
    Raises SessionLost or OutcomeUnknown if the connection is lost, EngineTimeout if one of the server's time limits
    ended the statement, otherwise StatementRejected or StatementDenied with the server's message.
    """
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise _domain_error(error, started=started, before=before) from error


@contextmanager
def replace_cancellation(canceled: Callable[[], errors.EngineError] | None) -> Generator[None]:
    """Replace a canceled statement's error with the error from `canceled`, with the server's error as its cause.

    A disk-full error is also replaced, because it names files. It can occur before the storage watch of the sample
    server cancels the statement.
    """
    try:
        yield
    except errors.EngineError as error:
        if canceled is not None and isinstance(error.__cause__, (asyncpg.QueryCanceledError, asyncpg.DiskFullError)):
            raise canceled() from error.__cause__
        raise


def _domain_error(error: Exception, *, started: bool, before: int) -> errors.EngineError:
    if isinstance(error, _TIME_LIMITS) or (isinstance(error, _MAY_BE_TIME_LIMIT) and "timeout" in str(error)):
        return errors.EngineTimeout(server_message(error))
    # asyncpg reports a closed connection only in the message of a generic error.
    is_closed = type(error) is asyncpg.InterfaceError and "clos" in str(error)
    if is_closed or isinstance(error, (*_CONNECTION_LOST, asyncpg.InternalClientError)):
        if started:
            return errors.OutcomeUnknown("The connection to PostgreSQL was lost while the statement ran.")
        return errors.SessionLost("The PostgreSQL session no longer exists; the statement was not started.")
    known = (
        errors.StatementDenied if isinstance(error, asyncpg.InsufficientPrivilegeError) else errors.StatementRejected
    )(server_message(error, before=before))
    position = _position(error, before) if isinstance(error, asyncpg.PostgresError) else None
    known.with_sqlstate(getattr(error, "sqlstate", None))
    return known.at(None if position is None else errors.Character(position - 1))


def _position(error: asyncpg.PostgresError, before: int) -> int | None:
    """Return the error's position, counted from 1. Those inside function bodies are in `internal_position` instead."""
    position = str(error.as_dict().get("position") or "")
    return int(position) - before if position.isdecimal() else None


def server_message(error: Exception, *, before: int = 0) -> str:
    """Return the server's message, followed by detail, hint and position, if any, on separate lines.

    `before` is the number of characters that were sent before the statement.
    """
    if not isinstance(error, asyncpg.PostgresError):
        return str(error).splitlines()[0] if str(error) else "The driver could not execute the statement."
    fields = {**error.as_dict(), "position": _position(error, before)}
    lines = [str(fields.get("message") or error.args[0])]
    lines += [f"{key.capitalize()}: {fields[key]}" for key in ("detail", "hint", "position") if fields.get(key)]
    return "\n".join(lines)
