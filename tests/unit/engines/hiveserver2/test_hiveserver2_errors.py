"""What servers say about failures, as domain errors with clean messages."""

import pytest

from queryserver.engines.hiveserver2.errors import Purpose, clean_message, domain_error, message_of
from queryserver.engines.hiveserver2.protocol.structs import TStatus, TStatusCode
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)

SPARK = (
    "org.apache.hive.service.cli.HiveSQLException: Error running query: [TABLE_OR_VIEW_NOT_FOUND]"
    " org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `t` cannot be found.\n"
    "To tolerate the error use IF EXISTS.\n\n"
    "\tat org.apache.spark.sql.hive.thriftserver.X$.run(X.scala:43)\n\tat y.Z.a(Z:1)"
)
OPENING = (
    "*org.apache.hive.service.cli.HiveSQLException:Failed to open new session:"
    " org.apache.spark.sql.catalyst.analysis.NoSuchDatabaseException:"
    " [SCHEMA_NOT_FOUND] The schema `x` is missing.:14:13"
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (
            SPARK,
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `t` cannot be found.\nTo tolerate the error use IF EXISTS.",
        ),
        (OPENING, "[SCHEMA_NOT_FOUND] The schema `x` is missing."),
        (
            "Error while compiling statement: FAILED: ParseException line 1:0 cannot recognize input",
            "Error while compiling statement: FAILED: ParseException line 1:0 cannot recognize input",
        ),
        (
            "AnalysisException: Could not resolve table reference: 'x'",
            "AnalysisException: Could not resolve table reference: 'x'",
        ),
        ("Cannot read file:/var/lib/secret/part-0 now", "Cannot read (path) now"),
    ],
)
def test_messages_are_the_engine_s_words_without_wrappers(raw, clean):
    assert clean_message(raw) == clean


def test_the_first_info_message_stands_for_a_missing_error_message():
    status = TStatus(status_code=TStatusCode.ERROR, info_messages=[OPENING, "a.B:c:B.scala:1"])
    assert message_of(status) == "[SCHEMA_NOT_FOUND] The schema `x` is missing."


@pytest.mark.parametrize(
    ("message", "purpose", "expected"),
    [
        ("Database nope does not exist", Purpose.OPEN, StatementRejected),
        ("Cannot modify x at runtime. It is not in list of params", Purpose.OPEN, StatementRejected),
        ("User: svc is not allowed to impersonate ada", Purpose.OPEN, CredentialsRequired),
        ("Cannot open sessions on an inactive HS2 instance", Purpose.OPEN, EngineUnavailable),
        ("Hs2Connection limit per user reached (user: ada limit: 1)", Purpose.OPEN, EngineUnavailable),
        ("Invalid SessionHandle: SessionHandle [5f2]", Purpose.SUBMIT, SessionLost),
        ("Invalid session id: 5f2:9", Purpose.SUBMIT, SessionLost),
        ("Client session expired due to more than 3600s of inactivity", Purpose.SUBMIT, SessionLost),
        ("Invalid SessionHandle: SessionHandle [5f2]", Purpose.FOLLOW, OutcomeUnknown),
        ("Invalid OperationHandle: OperationHandle [opType=EXECUTE_STATEMENT]", Purpose.FOLLOW, OutcomeUnknown),
        ("Invalid query handle: 12:ab", Purpose.FOLLOW, OutcomeUnknown),
        ("Query 12:ab expired due to client inactivity (timeout is 5m)", Purpose.FOLLOW, OutcomeUnknown),
        ("Query timed out after 10 seconds", Purpose.FOLLOW, EngineTimeout),
        ("Table not found 'x'", Purpose.SUBMIT, StatementRejected),
        ("Vertex failed", Purpose.FOLLOW, StatementRejected),
        ("Permission denied: user [ada] does not have [SELECT] privilege on [d/t]", Purpose.SUBMIT, StatementDenied),
        (
            "AuthorizationException: User 'ada' does not have privileges to execute 'SELECT'",
            Purpose.SUBMIT,
            StatementDenied,
        ),
    ],
)
def test_words_of_servers_tell_what_happened(message, purpose, expected):
    assert type(domain_error(message, purpose)) is expected


def test_an_operation_that_is_gone_has_expired():
    error = domain_error("anything", Purpose.FOLLOW, TStatusCode.INVALID_HANDLE)
    assert error.message.startswith("Results have expired")
