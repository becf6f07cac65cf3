"""Every exception of asyncmy becomes a domain error, and its text is the server's."""

import inspect

import pytest
from asyncmy import errors as driver

from queryserver.engines.mysql.connection import connect_errors, statement_errors
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

DRIVER_CLASSES = [
    member for _, member in inspect.getmembers(driver, inspect.isclass) if issubclass(member, driver.MySQLError)
]


def told(error: Exception, *, started: bool = True) -> EngineError:
    with pytest.raises(EngineError) as caught, statement_errors(started=started):
        raise error
    return caught.value


def told_on_connect(error: Exception) -> EngineError:
    with pytest.raises(EngineError) as caught, connect_errors():
        raise error
    return caught.value


@pytest.mark.parametrize("kind", DRIVER_CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_of_the_driver_is_a_domain_error(kind: type[Exception]) -> None:
    assert len(DRIVER_CLASSES) == 11
    for error in (kind(), kind(1064, "text"), kind("text")):
        for translated in (told(error), told(error, started=False), told_on_connect(error)):
            assert translated.message.strip()


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1146, StatementRejected),
        (1317, StatementRejected),
        (1969, EngineTimeout),
        (3024, EngineTimeout),
        (1205, EngineTimeout),
        (1053, OutcomeUnknown),
        (1927, OutcomeUnknown),
        (2013, OutcomeUnknown),
        (2006, OutcomeUnknown),
        (0, OutcomeUnknown),
    ],
)
def test_a_number_of_the_server_decides(number: int, expected: type[EngineError]) -> None:
    assert type(told(driver.OperationalError(number, "text"))) is expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1045, CredentialsRequired),
        (1698, CredentialsRequired),
        (2059, CredentialsRequired),
        (1049, StatementRejected),
        (1040, EngineUnavailable),
        (2003, EngineUnavailable),
    ],
)
def test_a_number_of_the_server_decides_about_a_login(number: int, expected: type[EngineError]) -> None:
    assert type(told_on_connect(driver.OperationalError(number, "text"))) is expected


def test_a_connection_lost_before_the_statement_is_a_lost_session() -> None:
    assert type(told(driver.InterfaceError(0, "Not connected"), started=False)) is SessionLost


@pytest.mark.security("T23")
def test_the_address_that_the_server_saw_is_not_told() -> None:
    error = driver.OperationalError(1045, "Access denied for user 'ann'@'10.0.0.7' (using password: YES)")
    assert told_on_connect(error).message == "Access denied for user 'ann' (using password: YES)"


def test_a_server_that_takes_nobody_without_tls_is_told_in_its_own_words() -> None:
    error = told_on_connect(driver.OperationalError(3159, "Connections using insecure transport are prohibited"))
    assert isinstance(error, EngineUnavailable)
    assert "insecure transport" in error.message


def test_a_server_that_asks_for_a_file_is_refused() -> None:
    assert "LOAD DATA LOCAL" in told(RuntimeError("**WARN**: Received LOAD_LOCAL packet")).message


@pytest.mark.parametrize("number", [1044, 1142, 1143, 1227, 1370])
def test_a_lack_of_rights_is_a_denial(number: int) -> None:
    assert isinstance(told(driver.OperationalError(number, "SELECT command denied to user 'a'@'b'")), StatementDenied)
    assert not isinstance(told(driver.ProgrammingError(1146, "Table 'd.t' doesn't exist")), StatementDenied)
