"""What is told of Phoenix's errors, and as which kind."""

import httpx
import pytest

from queryserver.engines.phoenix.protocol import (
    HttpRefusal,
    Malformed,
    Missing,
    NotConnected,
    Phase,
    ServerError,
    Silent,
    avatica_errors,
    server_text,
)
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

_GONE = ServerError(
    "x", ["org.apache.calcite.avatica.NoSuchConnectionException: Connection not found\n\tat a.B(C.java:1)"]
)
_LIMIT = ServerError(
    "x", ["java.sql.SQLTimeoutException: ERROR 6000 (TIM01): Operation timed out.\n\tat a.B(C.java:1)"]
)


def _told(error: Exception, phase: Phase) -> EngineError:
    with pytest.raises(EngineError) as caught, avatica_errors(phase):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "opening", "before", "sent"),
    [
        (NotConnected(), EngineUnavailable, SessionLost, OutcomeUnknown),
        (Silent(), EngineUnavailable, SessionLost, OutcomeUnknown),
        (httpx.ReadError("x"), EngineUnavailable, SessionLost, OutcomeUnknown),
        (Malformed(), EngineUnavailable, SessionLost, OutcomeUnknown),
        (HttpRefusal(503), EngineUnavailable, SessionLost, OutcomeUnknown),
        (HttpRefusal(401), CredentialsRequired, CredentialsRequired, CredentialsRequired),
        (_GONE, SessionLost, SessionLost, OutcomeUnknown),
        (_LIMIT, EngineTimeout, EngineTimeout, EngineTimeout),
        (Missing(), OutcomeUnknown, OutcomeUnknown, OutcomeUnknown),
    ],
)
def test_each_failure_means_what_its_moment_says(
    error: Exception, opening: type[EngineError], before: type[EngineError], sent: type[EngineError]
) -> None:
    kinds = tuple(type(_told(error, phase)) for phase in (Phase.OPENING, Phase.BEFORE, Phase.SENT))
    assert kinds == (opening, before, sent)


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            "java.X: org.apache.phoenix.X: ERROR 1012 (42M03): Table undefined. tableName=X\n\tat a.B(C:1)\n",
            "ERROR 1012 (42M03): Table undefined. tableName=X",
        ),
        (
            "java.X: org.apache.Phoenix\n\tat a.B(C:1)\nCaused by: java.X: a.b.C: disk full\n\tat d.E(F:2)",
            "disk full",
        ),
        ("java.sql.SQLException: first line\nsecond line\n\tat a.B(C.java:1)\n\t... 7 more", "first line\nsecond line"),
        ("java.lang.NullPointerException\n\tat a.B(C.java:1)", "Phoenix gave no reason."),
    ],
)
def test_the_text_is_what_phoenix_says_without_java(trace: str, said: str) -> None:
    assert server_text("", [trace]) == said


def test_an_error_of_phoenix_is_a_rejected_statement() -> None:
    error = _told(ServerError("x", ["java.sql.SQLException: ERROR 601 (42P00): Syntax error."]), Phase.SENT)
    assert isinstance(error, StatementRejected)
    assert error.message == "ERROR 601 (42P00): Syntax error."


def test_a_lack_of_rights_is_a_denial() -> None:
    trace = "org.apache.hadoop.hbase.security.AccessDeniedException: Insufficient permissions for user ada"
    error = _told(ServerError("x", [trace]), Phase.SENT)
    assert isinstance(error, StatementDenied)
    assert error.message == "Insufficient permissions for user ada"
