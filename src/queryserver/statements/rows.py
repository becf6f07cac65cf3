"""Defines the columns of the table `statements`, inserts rows within user limits, and builds values from rows.

Also contains the SQL of claims, and of runners' writes, which all check the owner and the fence number.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from queryserver.formats.arrow import Column, ResultType
from queryserver.platform.database import NamedQuery, Row, notice
from queryserver.platform.ownership import OwnedTable
from queryserver.sql.positions import Position
from queryserver.statements import model
from queryserver.statements.session_repository import SESSIONS
from queryserver.statements.states import LimitSource, StatementState, TruncationReason

TIMES = "recorded_at, sent_at, ended_at, now() as read_at"
# Columns that have the same name and type as a field of the value built from them.
_STATUS_FIELDS = (
    "id", "history_id", "user_id", "connector", "dialect", "has_result_set", "rows", "modified_row_count",
    "error_code", "message", "progress", "expires_at", "owner",
    "runs_all", "is_script", "operation_id", "estimated_bytes", "scanned_bytes",
)  # fmt: skip
_HANDLE_FIELDS = (
    "statement_index", "statements_count", "statement_hash", "guid", "secret", "session_id", "session_guid"
)  # fmt: skip
_RECORD_FIELDS = (
    "script_id", "database", "settings", "row_limit", "timeout_s", "in_named_session", "in_history", "parent_uuid",
    "size_bytes", "canceled_by", "text_is_cut", "sealed_parameters",
    "parameter_count", "read_only", "max_estimated_bytes",
)  # fmt: skip
_PART_FIELDS = (
    "id", "statement_index", "has_result_set", "rows", "modified_row_count", "message", "error_sqlstate",
    "estimated_bytes", "scanned_bytes",
)  # fmt: skip
HISTORY_FIELDS = ("id", "history_id", "connector", "dialect", "parent_uuid", "database", "rows", "parameter_count")
_END_FIELDS = (
    "id", "connector", "dialect", "rows", "size_bytes", "canceled_by", "is_script", "operation_id", "traceparent",
    "lasted_s", "is_import"
)  # fmt: skip

_ERROR_FIELDS = ("error_line", "error_column", "error_sqlstate")
_DETAIL_FIELDS = ("statement", "text_is_cut", "position", *_HANDLE_FIELDS, *_ERROR_FIELDS)

_OUTCOMES = {
    StatementState.CANCELED: (1, "canceled"),
    StatementState.TIMED_OUT: (-4, "statement_timeout"),
    StatementState.EXPIRED: (-3, "expired"),
    StatementState.CLOSED: (-3, "closed"),
}
_WITHOUT_RESULT = ", ".join(f"'{state.value}'" for state in (StatementState.FAILED, *_OUTCOMES))

_PLAIN_STATUS = f"""{", ".join(_STATUS_FIELDS)}, state, truncated_reason, limit_source, reused_from, reused_sent_at,
    {TIMES}"""
# A status omits long texts: a query may return hundreds of statuses, and a statement may be 10 MB long.
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
"""The started statements of a `runs_all` operation, in order."""
_END_VALUES = """import_plan is not null as is_import,
    (select username from users where users.id = user_id) as username,
    extract(epoch from coalesce(sent_at, ended_at) - recorded_at)::float8 as queued_s,
    extract(epoch from ended_at - recorded_at)::float8 as lasted_s,
    coalesce(extract(epoch from ended_at - sent_at), 0)::float8 as elapsed_s"""
END_COLUMNS = f"{', '.join(_END_FIELDS[:-2])}, state, error_code, {_END_VALUES}"
_STATUS_AND_END = f"{STATUS}, size_bytes, canceled_by, traceparent, {_END_VALUES}"

LOG_MOMENT = """to_char({moment} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
"""SQL expression for the timestamp at the beginning of a log line."""
FIRST_LINE = f"""{LOG_MOMENT.format(moment="recorded_at")}
    || ' Submitted to ' || connector || '; waiting for a free slot.'"""
"""The first line of each log. It is stored only together with warnings, because a row of its own takes a fifth of the
time and of the WAL of recording a statement (docs/benchmarks.md). Lines written later start with number 1."""
NEXT_LINE = "coalesce(max(start_line + cardinality(lines)), 1)"
"""SQL expression for the number of the next line, from the stored lines of a log."""


def fields(row: Row | Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def end_from_row(row: Row) -> model.StatementEnd:
    """Build a statement's end from a row with the columns END_COLUMNS."""
    state = StatementState(row["state"])
    outcome = _wire_outcome(state, row["error_code"])
    return model.StatementEnd(
        **fields(row, _END_FIELDS),
        user=row["username"],
        state=state,
        outcome=outcome[1] if outcome else "ok",
        queued_ms=round(row["queued_s"] * 1000),
        elapsed_ms=round(row["elapsed_s"] * 1000),
    )


def times_from_row(row: Row) -> model.StatementTimes:
    """Build a statement's times from a row with the columns TIMES."""
    submitted, sent, ended = row["recorded_at"], row["sent_at"], row["ended_at"]
    if sent == submitted and ended is None:
        sent = None  # recorded as sent from the start, but not sent yet (ADR 81)
    until = ended or row["read_at"]
    return model.StatementTimes(
        submitted,
        sent,
        ended,
        queued=max((sent or until) - submitted, timedelta(0)),
        elapsed=max(until - sent, timedelta(0)) if sent else timedelta(0),
    )


def _wire_outcome(state: StatementState, error_code: str | None) -> tuple[int, str] | None:
    if state is StatementState.FAILED:
        code = error_code or "engine_error"
        return (401 if code == "credentials_required" else 1), code
    return _OUTCOMES.get(state)


def status_from_row(row: Row) -> model.StatementStatus:
    """Build a status from a row with the columns STATUS."""
    return _status_from_row(row, row["failure"])


def _status_from_row(row: Row, failure: Row | Mapping[str, Any] | None) -> model.StatementStatus:
    """Build a status. `failure` is a row with the columns _DETAIL_FIELDS, or None."""
    reason, source, state = row["truncated_reason"], row["limit_source"], StatementState(row["state"])
    return model.StatementStatus(
        **fields(row, _STATUS_FIELDS),
        state=state,
        outcome=_wire_outcome(state, row["error_code"]),
        truncated_reason=TruncationReason(reason) if reason else None,
        times=times_from_row(row),
        limit_source=LimitSource(source) if source else None,
        reused=reused_from_row(row),
        failure=_details_from_row(failure) if failure is not None else None,
    )


def _details_from_row(row: Row | Mapping[str, Any]) -> model.FailureDetails:
    return model.FailureDetails(_handle_from_row(row), error_position_from_row(row), row["error_sqlstate"])


def _handle_from_row(row: Row | Mapping[str, Any]) -> model.StatementHandle:
    text = row["statement"]
    if row["text_is_cut"]:
        # The addition is invalid SQL on every engine, so a truncated statement cannot run by accident.
        text = f"{text} … [the rest of this text is no longer stored]"
    return model.StatementHandle(**fields(row, _HANDLE_FIELDS), statement=text, position=tuple(row["position"]))


def reused_from_row(row: Row) -> model.ReusedResult | None:
    return model.ReusedResult(row["reused_from"], row["reused_sent_at"]) if row["reused_from"] else None


def part_from_row(row: Row) -> model.StatementPart:
    """Build a statement of a script from a row of the query PARTS."""
    reason, source, state = row["truncated_reason"], row["limit_source"], StatementState(row["state"])
    return model.StatementPart(
        **fields(row, _PART_FIELDS),
        position=tuple(row["position"]),
        state=state,
        times=times_from_row(row),
        outcome=_wire_outcome(state, row["error_code"]),
        truncated_reason=TruncationReason(reason) if reason else None,
        limit_source=LimitSource(source) if source else None,
        error_position=error_position_from_row(row),
    )


def record_from_row(row: Row) -> model.StatementRecord:
    """Build a record from a row with the columns RECORD."""
    has_result = _wire_outcome(StatementState(row["state"]), row["error_code"]) is None
    return model.StatementRecord(
        **fields(row, _RECORD_FIELDS),
        status=_status_from_row(row, None if has_result else row),
        handle=_handle_from_row(row),
        columns=columns_from_stored(row["columns"]),
        cancel_requested=row["cancel_requested_at"] is not None,
    )


def columns_from_stored(stored: Sequence[Sequence[str]] | None) -> tuple[Column, ...] | None:
    """Build columns from their stored form: lists of name, type, native type, comment."""
    if stored is None:
        return None
    return tuple(Column(name, ResultType(kind), native, comment) for name, kind, native, comment in stored)


def error_position_from_row(row: Row | Mapping[str, Any]) -> Position | None:
    return Position(row["error_line"], row["error_column"]) if row["error_line"] else None


ENDED = "ended"
"""Notice that a statement has ended. The subject is the statement id."""

STATEMENTS = OwnedTable("statements", active="state in ('waiting', 'running') and not is_script")
FENCED = "id = :id and owner = :owner and fence = :fence"

ASSIGNMENT_FIELDS = (
    "user_id", "connector", "dialect", "statement", "database", "settings", "session_id", "in_named_session",
    "keeps_session", "row_limit", "history_id", "import_plan", "source_operation", "reused_from", "destination",
    "session_guid", "statement_index", "statements_count", "needs_session", "rows", "was_retried",
    "read_only", "traceparent", "max_estimated_bytes", "log_lines",
)  # fmt: skip
ASSIGNMENT = f"""{", ".join(ASSIGNMENT_FIELDS[:-1])}, id, owner, fence, sent_at, engine_handle, cancel_requested_at,
    sealed_token, token_expires_at, api_token, sealed_parameters, size_bytes, limit_source, operation_id,
    deadline_at - clock_timestamp() as left, clock_timestamp() - recorded_at as age,
    (select count(*) from result_segments where statement_id = id) as segments,
    (select {NEXT_LINE} from statement_logs where statement_id = coalesce(operation_id, id)) as log_lines
"""

# Matches statements of deleted connectors, and those whose rows go to one. If a connector is deleted while a statement
# waits or is being sent, the statement would otherwise end only at its deadline.
_HAS_NO_CONNECTOR = """exists (
    select from connectors
    where id::text in (orphan.connector, orphan.destination->>'connector') and deleted_at is not null
)"""

# The session of a statement may be open in another process, which then must run the statement.
_IN_SESSION_OF_ANOTHER = f"""exists (
    select from sessions where sessions.id = orphan.session_id and closed_at is null
        and sessions.owner <> $1 and {SESSIONS.is_owned()}
)"""

# A worker must not be occupied by a statement that waits for the result of another one, which may need a worker itself.
_SOURCE_IS_ACTIVE = """exists (
    select from statements as source
    where source.id = {alias}.source_operation and source.state in ('waiting', 'running')
)"""

# Rows that go into an embedded database are written by the process that has it open. If only this process can run the
# statement, it claims it even if another process has that database open, so that the statement ends with the reason.
_REACHES_TARGET = """(
    coalesce({alias}.destination->>'connector' = any({connectors}::text[]), true)
    or {alias}.connector = any({bound}::text[])
)"""

# Also claims earlier waiting statements of the same session, because the statements of a session run in order.
CLAIM = f"""
update statements as orphan set {STATEMENTS.claimed("$1", "orphan")}
where id in (
        select one.id from statements as announced join statements as one on one.id = announced.id or (
            (announced.keeps_session or announced.in_named_session)
            and one.session_id = announced.session_id and one.history_id < announced.history_id
            and one.state = 'waiting'
        )
        where announced.id = $2
    )
    and state = 'waiting' and {STATEMENTS.may_claim("$1", "orphan")}
    and (
        connector = any($3::text[]) and {_REACHES_TARGET.format(alias="orphan", connectors="$3", bound="$5")}
        or session_id = any($4::bigint[])
    )
    and not {_IN_SESSION_OF_ANOTHER}
returning {ASSIGNMENT}
"""

# The sum prevents a scan of all statements in the order of the index on `history_id`: with 100,000 statements that have
# ended and 10,000 in the queue, it took 227 ms instead of 56.
ORPHANS = f"""
update statements set {STATEMENTS.claimed("$1")}
where id in (
    select id from statements as orphan
    where {STATEMENTS.active}
        and (
            connector = any($2::text[]) and {_REACHES_TARGET.format(alias="orphan", connectors="$2", bound="$5")}
            or session_id = any($3::bigint[])
            or (sent_at is not null and ($4 or engine_handle is null)) or deadline_at < now() or {_HAS_NO_CONNECTOR}
        )
        and {STATEMENTS.claimable("orphan", me="$1")} and not {_IN_SESSION_OF_ANOTHER}
    order by history_id + 0 limit 200 for update skip locked
) and {STATEMENTS.may_claim("$1")}
returning {ASSIGNMENT}
"""

# Users take turns: those with fewer running statements come first, and interactive statements precede scheduled ones.
# The statements of a session run one after another, in the process that has the session open. Only the first
# statements of each user are considered, so that a queue of ten thousand statements stays cheap. The first $6 of the
# $5 slots are assigned in turn. The remaining slots go to the first interactive statement of each user who has none
# running (ADR 66).
WAITING = f"""
with busy as (
    select connector, user_id, count(*) as running, count(*) filter (where priority = 0) as of_people from statements
    where {STATEMENTS.active} and {STATEMENTS.is_owned()}
    group by connector, user_id
), room as (
    select connector, $3::bigint - coalesce((
        select sum(running) from busy where busy.connector = reachable.connector
    ), 0) as free
    from unnest($2::text[]) as reachable (connector)
), users as (
    select distinct connector, user_id from statements join room using (connector)
    where state = 'waiting' and sent_at is null and free > 0 and not is_script
), turns as (
    select mine.id, connector, free, mine.priority, mine.history_id,
        coalesce(running, 0) + row_number() over (
            partition by connector, user_id order by mine.priority, mine.history_id
        ) as turn,
        mine.priority = 0 and user_id not in (select user_id from busy where of_people > 0)
            and row_number() over (partition by user_id order by mine.priority, mine.history_id) = 1 as is_first
    from users join room using (connector) left join busy using (connector, user_id), lateral (
        select id, priority, history_id from statements as orphan
        where orphan.connector = users.connector and orphan.user_id = users.user_id
            and state = 'waiting' and sent_at is null and {STATEMENTS.claimable("orphan", me="$1")}
            and not {_IN_SESSION_OF_ANOTHER} and not {_SOURCE_IS_ACTIVE.format(alias="orphan")}
            and {_REACHES_TARGET.format(alias="orphan", connectors="$2", bound="$7")}
            and not exists (
                select from statements as before
                where before.session_id = orphan.session_id and before.history_id < orphan.history_id
                    and before.state in ('waiting', 'running') and not before.is_script
            )
        order by priority, history_id limit greatest($4 - coalesce(running, 0), 0)
    ) as mine
), placed as (
    select id, is_first, priority, turn, history_id, free,
        row_number() over (
            partition by connector order by $6 > 0 or is_first desc, priority, turn, history_id
        ) as place
    from turns
), next as (
    select id, is_first, row_number() over (order by priority, turn, history_id) as number
    from placed where place <= free
)
update statements set {STATEMENTS.claimed("$1")}
where id in (
    select id from next where number <= $6 or is_first order by number limit $5
) and state = 'waiting' and {STATEMENTS.may_claim("$1")}
returning {ASSIGNMENT}
"""
_FREE_FOR_WORKERS = f"""
    state = 'waiting' and sent_at is null and connector = any($2::text[]) and {STATEMENTS.claimable(me="$1")}
    and not {_SOURCE_IS_ACTIVE.format(alias="statements")}
    and {_REACHES_TARGET.format(alias="statements", connectors="$2", bound="$3")}
"""
ANY_STATEMENT_WAITS = f"select exists (select from statements where {_FREE_FOR_WORKERS})"
ANY_FIRST_STATEMENT_WAITS = f"""
select exists (
    select from statements where {_FREE_FOR_WORKERS} and priority = 0 and user_id not in (
        select user_id from statements where {STATEMENTS.active} and priority = 0 and {STATEMENTS.is_owned()}
    )
)
"""
_QUEUE_LOCK = 0x71737175  # "qsqu"
# One worker at a time takes statements from the queue, so that slots are counted exactly. The timeout prevents a
# worker that hangs or loses its connection here from blocking other workers. `WAITING` is a separate query, because it
# must see what the previous worker has committed.
LOCK_QUEUE = f"""
set local idle_in_transaction_session_timeout = '3s'; set local lock_timeout = '10s';
select pg_advisory_xact_lock({_QUEUE_LOCK})
"""

STILL_OWNED = f"""
select id, cancel_requested_at is not null as canceled from statements
where id = any($2::uuid[]) and {STATEMENTS.owned_by("$1")}
"""

# All statements of a script share the log of the script's operation.
_LOG_ID = "coalesce(operation_id, id) as log_id"
_LOGGED = f"""
logged as (
    insert into statement_logs as known (statement_id, start_line, lines)
    select log_id,
        coalesce({{start}}::integer, (select {NEXT_LINE} from statement_logs where statement_id = log_id)),
        {{lines}}::text[]
    from changed where cardinality({{lines}}::text[]) > 0
    on conflict (statement_id, start_line) do update set lines = excluded.lines
        where cardinality(known.lines) < cardinality(excluded.lines)
)
"""

RETRY = NamedQuery.of(f"""
with changed as (
    update statements set state = 'waiting', sent_at = null, progress = 0, was_retried = true, {STATEMENTS.released}
    where {FENCED} and state in ('waiting', 'running') and rows = 0 and engine_handle is null and not was_retried
        and cancel_requested_at is null
    returning {_LOG_ID}
), {_LOGGED.format(start="null", lines=":lines")}
select count(*) from changed
""")

# A statement that reads a stored result may run again from the start, unless its rows may already be in a table.
GIVE_BACK = NamedQuery.of(f"""
with changed as (
    update statements set state = 'waiting', sent_at = null, progress = 0, {STATEMENTS.released}
    where {FENCED} and state in ('waiting', 'running') and rows = 0 and source_operation is not null
        and cancel_requested_at is null and destination ->> 'is_published' is null
    returning {_LOG_ID}
), {_LOGGED.format(start="null", lines=":lines")}
select count(*) from changed
""")

SENT = NamedQuery.of(f"""
update statements set sent_at = coalesce(nullif(sent_at, recorded_at), now())
where {FENCED} and state = 'waiting' and cancel_requested_at is null
""")

# A statement that was recorded as sent from the start has `sent_at = recorded_at` (ADR 81). Other statements do not,
# because they are recorded and marked as sent in different transactions.
TAKE_BACK = NamedQuery.of(f"""
update statements set sent_at = nullif(sent_at, recorded_at) where {FENCED} and state = 'waiting'
""")
_SENT_AT = "sent_at = case when sent_at = recorded_at then recorded_at + :queued::interval else sent_at end"

PUBLISHING = NamedQuery.of(f"""
update statements set destination = destination || :mark
where {FENCED} and state in ('waiting', 'running') and cancel_requested_at is null
""")

# Sources that are still null then tell that an older program has run the statement, which did not record them.
_READ_NOTHING_MORE = ", ".join(
    f"{column} = case when state = 'waiting' then coalesce({column}, {nothing}) else {column} end"
    for column, nothing in (("uses_own_rights", "false"), ("read_connectors", "'{}'"))
)

RUNNING = NamedQuery.of(f"""
update statements set state = 'running', engine_handle = :mark, {_SENT_AT}, {_READ_NOTHING_MORE},
    estimated_bytes = coalesce(:estimated_bytes::bigint, estimated_bytes)
where {FENCED} and state in ('waiting', 'running')
""")

RELEASE = NamedQuery.of(f"""
update statements set {STATEMENTS.released} where {FENCED} and state = 'waiting' and sent_at is null
""")

HAND_OVER = NamedQuery.of(f"""
update statements set {STATEMENTS.released}
where {FENCED} and state = 'running' and engine_handle is not null
""")

REPORT = NamedQuery.of(f"""
with changed as (
    update statements set progress = greatest(:progress, progress), jobs = :jobs,
        engine_handle = coalesce(:mark, engine_handle)
    where {FENCED} and state in ('waiting', 'running') returning {_LOG_ID}
), {_LOGGED.format(start=":start_line", lines=":lines")}
select count(*) from changed
""")

# Columns that are already stored are kept, because rewriting a large column list with each update is expensive.
_FINAL_COLUMNS = "case when :columns::jsonb is not null then coalesce(columns, :columns::jsonb) end"
# Large column descriptions and long messages count toward the statement's text size, and are removed with the text.
_COLUMNS_BYTES = (
    "case when octet_length(:columns::jsonb::text) > 16384 then octet_length(:columns::jsonb::text) else 0 end"
)
_MESSAGE_BYTES = "case when octet_length(:message::text) > 16384 then octet_length(:message::text) else 0 end"

SEGMENT = NamedQuery.of(f"""
with changed as (
    update statements set rows = :start_row::bigint + :rows::bigint, size_bytes = size_bytes + :size_bytes::bigint,
        columns = coalesce(columns, :columns::jsonb),
        engine_handle = coalesce(:mark, engine_handle)
    where {FENCED} and state = 'running' returning id
), stored as (
    insert into result_segments as known (statement_id, number, fence, start_row, rows, size_bytes)
    select id, :number::integer, :fence::bigint, :start_row::bigint, :rows::bigint, :size_bytes::bigint from changed
    on conflict (statement_id, number) do update
        set fence = excluded.fence, start_row = excluded.start_row, rows = excluded.rows,
            size_bytes = excluded.size_bytes
        where known.fence < excluded.fence
)
select count(*) from changed
""")

# A crashed runner may have left bytes that no segment row records. So if a statement ends without a result, its bytes
# are always marked for deletion.
FINISH = NamedQuery.of(f"""
with changed as (
    update statements set state = :state::text, ended_at = now(), {_SENT_AT}, {_READ_NOTHING_MORE},
        error_code = :error_code, message = :message::text,
        error_line = :error_line, error_column = :error_column, error_sqlstate = :error_sqlstate,
        estimated_bytes = coalesce(:estimated_bytes::bigint, estimated_bytes), scanned_bytes = :scanned_bytes,
        has_result_set = :has_result_set,
        columns = {_FINAL_COLUMNS}, text_bytes = text_bytes + {_COLUMNS_BYTES} + {_MESSAGE_BYTES},
        rows = :rows, size_bytes = :size_bytes, truncated_reason = :truncated_reason,
        modified_row_count = :modified_row_count, inline_result = :inline_result, engine_handle = null,
        reuse_key = case when :state::text = 'available' then reuse_key end,
        sealed_token = null, token_expires_at = null,
        progress = case when :state::text in ('available', 'success') then 100 else progress end,
        expires_at = case when :state::text = 'available' then now() + :retention::interval end
    where {FENCED} and state in ('waiting', 'running') returning {_LOG_ID}, {_STATUS_AND_END}
), doomed as (
    insert into doomed_results (statement_id)
    select id from changed where :state::text not in ('available', 'success')
    on conflict do nothing
), {_LOGGED.format(start=":start_line", lines=":lines")}
select *, case when :notifies::boolean then {notice(ENDED, "id::text")} end from changed
""")


NOTIFY_END = f"select {notice(ENDED, '$1::text')}"
