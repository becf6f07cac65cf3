"""Defines the columns of the statements table, and builds values from its rows."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from queryserver.formats.columns import Column, ResultType
from queryserver.platform.database import Row
from queryserver.sql.positions import Position
from queryserver.statements import model
from queryserver.statements.states import LimitSource, StatementState, TruncationReason

TIMES = "recorded_at, sent_at, ended_at, now() as read_at"
# Columns with the same name and type as a field.
_STATUS_FIELDS = (
    "id", "history_id", "user_id", "connector", "dialect", "has_result_set", "rows", "modified_row_count",
    "error_code", "message", "progress", "expires_at", "owner",
    "runs_all", "is_script", "operation_id",
)  # fmt: skip
_HANDLE_FIELDS = (
    "statement_index", "statements_count", "statement_hash", "guid", "secret", "session_id", "session_guid"
)  # fmt: skip
_RECORD_FIELDS = (
    "script_id", "database", "settings", "row_limit", "timeout_s", "in_named_session", "in_history", "parent_uuid",
    "size_bytes", "canceled_by", "text_is_cut", "sealed_parameters",
    "parameter_count",
)  # fmt: skip
_PART_FIELDS = (
    "id", "statement_index", "has_result_set", "rows", "modified_row_count", "message", "error_sqlstate"
)  # fmt: skip
HISTORY_FIELDS = ("id", "history_id", "dialect", "parent_uuid", "database", "rows", "parameter_count")
_END_FIELDS = ("id", "connector", "dialect", "rows", "size_bytes", "canceled_by", "is_import")

_ERROR_FIELDS = ("error_line", "error_column", "error_sqlstate")
_DETAIL_FIELDS = ("statement", "text_is_cut", "position", *_HANDLE_FIELDS, *_ERROR_FIELDS)

_OUTCOMES = {
    StatementState.CANCELED: (1, "canceled"),
    StatementState.TIMED_OUT: (-4, "statement_timeout"),
    StatementState.EXPIRED: (-3, "expired"),
    StatementState.CLOSED: (-3, "closed"),
}
_WITHOUT_RESULT = ", ".join(f"'{state.value}'" for state in (StatementState.FAILED, *_OUTCOMES))

_PLAIN_STATUS = f"{', '.join(_STATUS_FIELDS)}, state, truncated_reason, limit_source, {TIMES}"
# Statuses omit long texts, because a query may return hundreds of them, and a statement may have 10 MB.
STATUS = f"""{_PLAIN_STATUS},
    case when state in ({_WITHOUT_RESULT}) and octet_length(statement) <= 16384
        then jsonb_build_object({", ".join(f"'{name}', {name}" for name in _DETAIL_FIELDS)}) end as failure"""
WITHOUT_TEXT = f"""{_PLAIN_STATUS}, {", ".join(_HANDLE_FIELDS)}, {", ".join(_RECORD_FIELDS)}, position, columns,
    cancel_requested_at, {", ".join(_ERROR_FIELDS)}"""
RECORD = f"{WITHOUT_TEXT}, statement"
PARTS = f"""
select {", ".join(_PART_FIELDS)}, position, state, error_code, error_line, error_column, truncated_reason, limit_source,
    {TIMES}
from statements where operation_id = $1 or (id = $1 and not is_script) order by statement_index
"""
"""The started statements of an operation with `runs_all`, in order."""
END_COLUMNS = f"""{", ".join(_END_FIELDS[:-1])}, state, error_code, import_plan is not null as is_import,
    (select username from users where users.id = user_id) as username,
    extract(epoch from coalesce(sent_at, ended_at) - recorded_at)::float8 as queued_s,
    coalesce(extract(epoch from ended_at - sent_at), 0)::float8 as elapsed_s"""

LOG_MOMENT = """to_char({moment} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
"""SQL of the time at the beginning of a log line."""


def fields(row: Row | Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def end_of(row: Row) -> model.StatementEnd:
    """Build the end from a row with END_COLUMNS."""
    state = StatementState(row["state"])
    outcome = _outcome_of(state, row["error_code"])
    return model.StatementEnd(
        **fields(row, _END_FIELDS),
        user=row["username"],
        state=state,
        outcome=outcome[1] if outcome else "ok",
        queued_ms=round(row["queued_s"] * 1000),
        elapsed_ms=round(row["elapsed_s"] * 1000),
    )


def times_of(row: Row) -> model.StatementTimes:
    """Build the times from a row with the columns TIMES."""
    submitted, sent, ended = row["recorded_at"], row["sent_at"], row["ended_at"]
    until = ended or row["read_at"]
    return model.StatementTimes(
        submitted,
        sent,
        ended,
        queued=max((sent or until) - submitted, timedelta(0)),
        elapsed=max(until - sent, timedelta(0)) if sent else timedelta(0),
    )


def _outcome_of(state: StatementState, error_code: str | None) -> tuple[int, str] | None:
    if state is StatementState.FAILED:
        code = error_code or "engine_error"
        return (401 if code == "credentials_required" else 1), code
    return _OUTCOMES.get(state)


def status_of(row: Row) -> model.StatementStatus:
    """Build the status from a row with STATUS."""
    return _status_of(row, row["failure"])


def _status_of(row: Row, failure: Row | Mapping[str, Any] | None) -> model.StatementStatus:
    """Build the status. `failure` is a row with _DETAIL_FIELDS if the statement has no result."""
    reason, source, state = row["truncated_reason"], row["limit_source"], StatementState(row["state"])
    return model.StatementStatus(
        **fields(row, _STATUS_FIELDS),
        state=state,
        outcome=_outcome_of(state, row["error_code"]),
        truncated_reason=TruncationReason(reason) if reason else None,
        times=times_of(row),
        limit_source=LimitSource(source) if source else None,
        failure=_details_of(failure) if failure is not None else None,
    )


def _details_of(row: Row | Mapping[str, Any]) -> model.FailureDetails:
    return model.FailureDetails(_handle_of(row), error_position_of(row), row["error_sqlstate"])


def _handle_of(row: Row | Mapping[str, Any]) -> model.StatementHandle:
    text = row["statement"]
    if row["text_is_cut"]:
        # Engines never accept these words as a statement.
        text = f"{text} … [the rest of this text is not stored any more]"
    return model.StatementHandle(**fields(row, _HANDLE_FIELDS), statement=text, position=tuple(row["position"]))


def part_of(row: Row) -> model.StatementPart:
    """Build the statement of a script from a row of PARTS."""
    reason, source, state = row["truncated_reason"], row["limit_source"], StatementState(row["state"])
    return model.StatementPart(
        **fields(row, _PART_FIELDS),
        position=tuple(row["position"]),
        state=state,
        times=times_of(row),
        outcome=_outcome_of(state, row["error_code"]),
        truncated_reason=TruncationReason(reason) if reason else None,
        limit_source=LimitSource(source) if source else None,
        error_position=error_position_of(row),
    )


def record_of(row: Row) -> model.StatementRecord:
    """Build the record from a row with RECORD."""
    has_result = _outcome_of(StatementState(row["state"]), row["error_code"]) is None
    return model.StatementRecord(
        **fields(row, _RECORD_FIELDS),
        status=_status_of(row, None if has_result else row),
        handle=_handle_of(row),
        columns=columns_of(row["columns"]),
        cancel_requested=row["cancel_requested_at"] is not None,
    )


def columns_of(stored: Sequence[Sequence[str]] | None) -> tuple[Column, ...] | None:
    """Build columns from their stored form: lists of name, type, native type, comment."""
    if stored is None:
        return None
    return tuple(Column(name, ResultType(kind), native, comment) for name, kind, native, comment in stored)


def error_position_of(row: Row | Mapping[str, Any]) -> Position | None:
    return Position(row["error_line"], row["error_column"]) if row["error_line"] else None
