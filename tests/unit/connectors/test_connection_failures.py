"""The messages of failed connection tests (Contract platform 5.8)."""

import ssl

import pytest

from queryserver.connectors.connection_tests import reason_of, sanitized_message
from queryserver.errors.statements import CredentialsRequired, EngineError, EngineUnavailable, StatementRejected
from queryserver.platform.addresses import HostRefused, UnknownHost

_SETTINGS = {"url": "mysql://svc:pa%24%24word@db.example.org:3306/shop", "ssl_ca": ""}
_PLACES = [("db.example.org", 3306)]


def because(error: EngineError, cause: BaseException) -> EngineError:
    """Set the cause of the error, as adapters do."""
    error.__cause__ = cause
    return error


@pytest.mark.platform(73)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnknownHost("x"), "dns"),
        (HostRefused("x"), "refused"),
        (ConnectionRefusedError(), "refused"),
        (OSError("no route"), "refused"),
        (TimeoutError(), "timeout"),
        (CredentialsRequired("no"), "auth"),
        (StatementRejected("no such database"), "engine"),
        (because(EngineUnavailable("x"), ssl.SSLError("handshake")), "tls"),
        (because(EngineUnavailable("x"), because(EngineUnavailable("y"), ConnectionRefusedError())), "refused"),
        (because(EngineUnavailable("x"), TimeoutError()), "timeout"),
        (EngineUnavailable("certificate verification failed"), "tls"),
        (EngineUnavailable("The server is full."), "other"),
        (ValueError("a defect"), "other"),
    ],
)
def test_each_failure_has_its_reason(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.platform(69)
@pytest.mark.security("T28")
@pytest.mark.parametrize("secret", ["pa$$word", "pa%24%24word"])
def test_secrets_are_masked_in_engine_messages(secret: str) -> None:
    told = sanitized_message(StatementRejected(f"Login svc/{secret} failed."), _SETTINGS, _PLACES)
    assert told == "Login svc/******** failed."


@pytest.mark.security("T28")
@pytest.mark.parametrize("text",
    ["upstream 10.1.2.3:9000 is down", "see http://inner.example.org:8080/a?b", "peer [fd00::1234:1] reset",
    "no leader at broker-7.inner:9092"])  # fmt: skip
def test_other_addresses_are_hidden(text: str) -> None:
    told = sanitized_message(StatementRejected(text), _SETTINGS, _PLACES)
    assert "(address)" in told
    for hidden in ("10.1.2.3", "inner", "fd00"):
        assert hidden not in told


def test_configured_address_may_be_shown() -> None:
    text = "Could not connect to db.example.org:3306 at 12:30:45."
    assert sanitized_message(EngineUnavailable(text), _SETTINGS, _PLACES) == text


@pytest.mark.security("T28")
def test_stack_traces_and_file_paths_are_removed() -> None:
    text = "Failed in /opt/engine/conf/site.xml\n\tat org.engine.Main.run(Main.java:7)\nCaused by: x"
    assert sanitized_message(StatementRejected(text), _SETTINGS, _PLACES) == "Failed in (path)"


def test_long_messages_are_truncated() -> None:
    assert len(sanitized_message(StatementRejected("word " * 10_000), _SETTINGS, _PLACES)) <= 500


def test_internal_defects_reveal_nothing() -> None:
    assert "secret" not in sanitized_message(ValueError("secret"), _SETTINGS, _PLACES)
