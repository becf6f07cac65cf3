"""Every exception of asyncpg becomes a domain error, and its text is the server's."""

import inspect

import asyncpg
import pytest
from asyncpg import exceptions
from tests.cases import each

from queryserver.engines.postgresql.connection import connect_errors, statement_errors
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

DRIVER_CLASSES = sorted(
    {
        member
        for _, member in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(member, Exception) and not issubclass(member, Warning)
    },
    key=lambda member: member.__name__,
)


def server_error(sqlstate: str, message: str, **fields: str) -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"C": sqlstate, "M": message, **fields})


def told(error: Exception, *, started: bool = True) -> EngineError:
    with pytest.raises(EngineError) as caught, statement_errors(started=started):
        raise error
    assert caught.value.__cause__ is error
    return caught.value


def told_on_connect(error: Exception) -> EngineError:
    with pytest.raises(EngineError) as caught, connect_errors():
        raise error
    return caught.value


def test_the_driver_has_the_classes_that_the_walk_expects() -> None:
    assert len(DRIVER_CLASSES) > 200


@each("kind", DRIVER_CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_of_the_driver_is_a_domain_error(kind: type[Exception]) -> None:
    for translated in (told(kind("text")), told(kind("text"), started=False), told_on_connect(kind("text"))):
        assert translated.message.strip()


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), TimeoutError(), OSError("no route")])
def test_a_broken_network_is_a_domain_error(error: Exception) -> None:
    assert isinstance(told(error), OutcomeUnknown)
    assert isinstance(told(error, started=False), SessionLost)
    assert isinstance(told_on_connect(error), EngineUnavailable)


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("57P01", OutcomeUnknown),
        ("57P02", OutcomeUnknown),
        ("08006", OutcomeUnknown),
        ("25P03", EngineTimeout),
        ("57P05", EngineTimeout),
        ("42P01", StatementRejected),
        ("28000", StatementRejected),
        ("XX999", StatementRejected),
    ],
)
def test_a_state_of_the_server_decides(sqlstate: str, expected: type[EngineError]) -> None:
    assert type(told(server_error(sqlstate, "text"))) is expected


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("28P01", CredentialsRequired),
        ("28000", CredentialsRequired),
        ("57P03", EngineUnavailable),
        ("53300", EngineUnavailable),
        ("3D000", StatementRejected),
        ("42501", StatementRejected),
    ],
)
def test_a_state_of_the_server_decides_about_a_login(sqlstate: str, expected: type[EngineError]) -> None:
    assert type(told_on_connect(server_error(sqlstate, "text"))) is expected


@pytest.mark.security("T23")
def test_the_address_that_the_server_saw_is_not_told() -> None:
    text = 'no pg_hba.conf entry for host "10.0.0.7", user "ann", database "shop", no encryption'
    assert told_on_connect(server_error("28000", text)).message == (
        'no pg_hba.conf entry for user "ann", database "shop", no encryption'
    )


def test_only_the_time_limit_of_the_server_is_a_timeout() -> None:
    assert type(told(server_error("57014", "canceling statement due to statement timeout"))) is EngineTimeout
    assert type(told(server_error("57014", "canceling statement due to user request"))) is StatementRejected
    assert type(told(server_error("55P03", "canceling statement due to lock timeout"))) is EngineTimeout
    assert type(told(server_error("55P03", "could not obtain lock on row"))) is StatementRejected


def test_a_closed_connection_is_known_by_its_text() -> None:
    closed = asyncpg.InterfaceError("cannot call Connection.fetch(): connection is closed")
    assert type(told(closed)) is OutcomeUnknown
    assert type(told(closed, started=False)) is SessionLost


def test_the_first_line_is_the_server_s_message_and_no_trace_follows() -> None:
    error = server_error("42P01", "no such thing", D="more", H="try it", P="8", W="PL/pgSQL function f() line 3")
    assert told(error).message.splitlines() == ["no such thing", "Detail: more", "Hint: try it", "Position: 8"]


def test_a_lack_of_rights_is_a_denial() -> None:
    denied = told(server_error("42501", "permission denied for table t"))
    assert isinstance(denied, StatementDenied)
    assert not isinstance(told(server_error("42P01", 'relation "t" does not exist')), StatementDenied)
