"""The statements of all users in the service database: recorded, read, canceled, closed.

Who may see which statement is decided by the services.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from queryserver import errors
from queryserver.formats.columns import Column, LimitSource, ResultType, Segment, TruncationReason
from queryserver.platform.database import CoalescingReader, Connection, Database, Row
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.tree import Settings
from queryserver.sql.positions import Position
from queryserver.statements import model
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

_TIMES = "recorded_at, sent_at, ended_at, now() as read_at"
# Columns that have the name and the type of a field.
_STATUS_FIELDS = (
    "id", "history_id", "user_id", "connector", "dialect", "has_result_set", "rows", "modified_row_count",
    "error_code", "message", "progress", "expires_at", "owner",
)  # fmt: skip
_HANDLE_FIELDS = (
    "statement_index", "statements_count", "statement_hash", "guid", "secret", "session_id", "session_guid"
)  # fmt: skip
_RECORD_FIELDS = (
    "script_id", "database", "settings", "row_limit", "timeout_s", "in_named_session", "in_history", "parent_uuid",
    "size_bytes", "canceled_by", "text_is_cut", "sealed_parameters",
    "parameter_count", "error_sqlstate",
)  # fmt: skip
_HISTORY_FIELDS = ("id", "history_id", "dialect", "parent_uuid", "database", "rows", "parameter_count")
_END_FIELDS = ("id", "connector", "dialect", "rows", "size_bytes", "canceled_by", "is_import")

_STATUS = f"{', '.join(_STATUS_FIELDS)}, state, truncated_reason, limit_source, {_TIMES}"
_WITHOUT_TEXT = f"""{_STATUS}, {", ".join(_HANDLE_FIELDS)}, {", ".join(_RECORD_FIELDS)}, position, columns,
    cancel_requested_at, error_line, error_column"""
_RECORD = f"{_WITHOUT_TEXT}, statement"
END_COLUMNS = f"""{", ".join(_END_FIELDS[:-1])}, state, error_code, import_plan is not null as is_import,
    (select username from users where users.id = user_id) as username,
    extract(epoch from coalesce(sent_at, ended_at) - recorded_at)::float8 as queued_s,
    coalesce(extract(epoch from ended_at - sent_at), 0)::float8 as elapsed_s"""

# What a text of $32 bytes counts: short ones nothing, so that usual statements never fill the quota.
_COUNTED = "(case when octet_length({text}) > $32::integer then octet_length({text}) else 0 end)"
_STATEMENT_BYTES = f"""({_COUNTED.format(text="$7::text")} + case
    when octet_length($39::bytea) > $32::integer then octet_length($39::bytea) else 0
end)"""
_SCRIPT_BYTES = _COUNTED.format(text="$4::text")
_TEXT_BYTES = """(
    (select coalesce(sum(text_bytes), 0) from statements where user_id = {user} and text_bytes > 0)
    + (select coalesce(sum(text_bytes), 0) from scripts where user_id = {user} and text_bytes > 0)
)"""

_LOG_MOMENT = """to_char({moment} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
"""What a line of a log begins with."""

# Counts and inserts in one statement: a call above a limit stores nothing, and one round trip is enough.
# A script that its user sends again is stored once. The first log line is stored together with the record.
_INSERT = f"""
with room as (
    select 1
    where (select count(*) from statements where user_id = $2 and state in ('waiting', 'running')) < $27
        and (
            select coalesce(sum(size_bytes), 0) from statements
            where user_id = $2 and state = 'available' and size_bytes > 32768
        ) < $28
        and {_TEXT_BYTES.format(user="$2")} + {_STATEMENT_BYTES} + case
            when $4::text is null or exists (
                select from scripts where user_id = $2 and digest = $34::bytea and not text_is_cut
            ) then 0 else {_SCRIPT_BYTES}
        end <= $33::bigint
), script as (
    insert into scripts as known (user_id, digest, body, text_bytes)
    select $2, $34::bytea, $4::text, {_SCRIPT_BYTES} from room where $4::text is not null
    on conflict (user_id, digest) where not text_is_cut do update set text_bytes = known.text_bytes
    returning id
), recorded as (
    insert into statements (
        id, user_id, connector, dialect, state, statement, script_id, statement_index, statements_count, position,
        statement_hash, guid, secret, session_id, session_guid, in_named_session, keeps_session, database, settings,
        row_limit, timeout_s, in_history, parent_uuid, deadline_at, has_result_set, owner, fence, lease_until,
        import_plan, sealed_token, token_expires_at, text_bytes, limit_source, priority, notify,
        sealed_parameters, parameter_count
    )
    select $1, $2, $3, $6, 'waiting', $7, coalesce($5, (select id from script)), $8, $9, $10,
        $11, $12, $13, $14, $15, $16, $17, $18, $19,
        $20, $21::integer, $22, $23, now() + make_interval(secs => $21::integer), $24, $25::text,
        case when $25::text is null then 0 else 1 end,
        case when $25::text is null then null else now() + $26::interval end,
        $29, $30, to_timestamp($31), {_STATEMENT_BYTES}, $35, $37, $38, $39::bytea, $40
    from room
    returning {_WITHOUT_TEXT}, '' as statement
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select $1, 0, array[{_LOG_MOMENT.format(moment="recorded_at")} || $36::text]
    from recorded
)
select * from recorded
"""

_KEY = """
insert into idempotency_keys as known (user_id, key, fingerprint, statement_id) values ($1, $2, $3, $4)
on conflict (user_id, key) do update
    set fingerprint = excluded.fingerprint, statement_id = excluded.statement_id, created_at = now()
    where known.created_at < now() - interval '24 hours'
returning true
"""

_KNOWN_KEY = """
select fingerprint, statement_id from idempotency_keys
where user_id = $1 and key = $2 and created_at >= now() - interval '24 hours'
"""

# The result with the segments that hold rows [$2, $2 + $3); no $2: from the cursor.
_STORED = f"""
select {_STATUS}, columns, size_bytes, cursor_row, inline_result,
    last_used_at < now() - interval '1 minute' as unused,
    array(
        select array[number, start_row, rows, size_bytes, fence]::bigint[] from result_segments as segment
        where statement_id = $1 and inline_result is null
            and segment.start_row - $3::bigint < coalesce($2::bigint, cursor_row)
            and segment.start_row + segment.rows > coalesce($2::bigint, cursor_row)
        order by number
    ) as segments
from statements where id = $1
"""

_STATUS_OF = f"select {_STATUS} from statements where id = $1"
_STATUSES = f"""
select n, {_STATUS} from unnest($1::uuid[]) with ordinality as asked (key, n) join statements on id = key
"""

# Users take turns: the first statements of all of them come before the second ones, and all that somebody waits for
# before those of schedules.
_QUEUE_POSITIONS = """
with queued as (
    select id, connector, history_id, priority,
        row_number() over (partition by connector, user_id order by priority, history_id) as turn
    from statements
    where state = 'waiting' and sent_at is null
        and connector in (select connector from statements where id = any($1::uuid[]))
), placed as (
    select id, row_number() over (partition by connector order by priority, turn, history_id) as position from queued
)
select array_position($1::uuid[], id) as n, position from placed where id = any($1::uuid[])
"""

# A line that a runner adds at this moment may take the place of the one here; state and message say the same.
_CANCEL = f"""
with canceled as (
    update statements set
        cancel_requested_at = coalesce(cancel_requested_at, now()),
        canceled_by = coalesce(canceled_by, $2),
        state = case when sent_at is null then 'canceled' else state end,
        message = case when sent_at is null then 'Canceled by ' || $2::text || '.' else message end,
        ended_at = case when sent_at is null then now() end,
        sealed_token = case when sent_at is null then null else sealed_token end,
        token_expires_at = case when sent_at is null then null else token_expires_at end,
        fence = fence + case when sent_at is null then 1 else 0 end
    where id = $1 and state in ('waiting', 'running')
    returning {_STATUS}, {END_COLUMNS}, {_LOG_MOMENT.format(moment="ended_at")} || ' ' || message as line
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select $1, (select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs where statement_id = $1),
        array[line]
    from canceled where line is not null
    on conflict do nothing
)
select * from canceled
"""

MAY_HAVE_BYTES = "(fence > 1 or exists (select from result_segments where statement_id = id))"
"""Whether the store may have bytes of a result: a former attempt may have left some that no segment names."""

_CLOSE = f"""
with closed as (
    update statements set state = 'closed', message = 'The result was closed.', inline_result = null
    where state = 'available' and {{which}} returning id, {MAY_HAVE_BYTES} as may_have_bytes
), doomed as (
    insert into doomed_results (statement_id) select id from closed where may_have_bytes on conflict do nothing
)
select id from closed
"""
_CLOSE_ONE = _CLOSE.format(which="id = $1")
_CLOSE_SESSIONS = _CLOSE.format(
    which="""user_id = $1 and session_id in (
        select id from sessions
        where user_id = $1 and connector = $2 and named and ($3::bigint is null or id = $3)
    )"""
)
_HISTORY = r"""
where user_id = $1 and in_history
    and ($2::text[] is null or connector = any($2::text[]))
    and ($3::text is null or dialect = $3)
    and ($4::text is null or left(statement, 16384) ilike $4 escape '\')
"""
_ACTIVE = "and state in ('waiting', 'running')"


class StatementRecords:
    """The table of statements. Call `aclose` before the database is closed."""

    def __init__(self, database: Database, on_end: model.OnEnd = lambda _end: None) -> None:
        self._database = database
        self._on_end = on_end
        self._statuses = CoalescingReader(database, many=_STATUSES, one=_STATUS_OF)
        self._queue_positions = CoalescingReader(database, many=_QUEUE_POSITIONS, side_by_side=1)
        self._session_ids: list[int] = []
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def aclose(self) -> None:
        """Stop what is under way for several callers."""
        await self._statuses.aclose()
        await self._queue_positions.aclose()

    async def record(self, new: model.NewStatement) -> model.Recorded:
        """Store a new statement in state `waiting`, with its idempotency key; one round trip without a key.

        Raises idempotency_conflict, too_many_statements, quota_exceeded; then nothing is stored. The statements of a
        user are counted and stored one after the other within this process; two processes can pass the limit by a few.
        """
        key = new.idempotency
        async with self._turns.setdefault(new.user_id, asyncio.Lock()):
            if key is None:
                async with self._database.connection() as connection:
                    return model.Recorded(await _insert(connection, new), replayed=False)
            async with self._database.transaction() as connection:
                if await connection.fetchval(_KEY, new.user_id, key.key, key.fingerprint, new.id):
                    return model.Recorded(await _insert(connection, new), replayed=False)
                replayed = await _replay_of(connection, new.user_id, key)
        if replayed is None:
            raise errors.idempotency_conflict()
        return model.Recorded(replayed, replayed=True)

    async def find_replay(self, user_id: int, key: model.IdempotencyKey) -> model.StatementRecord | None:
        """The statement that was recorded under the key. Raises idempotency_conflict for another request's key."""
        async with self._database.connection() as connection:
            return await _replay_of(connection, user_id, key)

    async def new_session_id(self) -> int:
        """From a sequence, 48 at a time, so that most statements need no round trip for theirs."""
        if not self._session_ids:
            fresh = await self._database.fetch("select nextval('session_ids') as id from generate_series(1, 48)")
            self._session_ids.extend(row["id"] for row in reversed(fresh))
        return self._session_ids.pop()

    async def status(self, statement_id: UUID) -> model.StatementStatus | None:
        """The present status; concurrent calls share a query."""
        row = await self._statuses.get(statement_id)
        return _status_of(row) if row else None

    async def queue_position(self, statement_id: UUID) -> int | None:
        """Its place among the statements that wait to be sent to the same connector; 1: the next one; None: it runs.

        Users take turns, in the order in which their statements were recorded. Concurrent calls share a query; one
        query runs at a time.
        """
        row = await self._queue_positions.get(statement_id)
        return row["position"] if row else None

    async def read(self, statement_id: UUID) -> model.StatementRecord | None:
        row = await self._database.row(f"select {_RECORD} from statements where id = $1", statement_id)
        return _record_of(row) if row else None

    async def id_of_guid(self, guid: str, *, user_id: int | None) -> UUID | None:
        """The operation that an opaque handle names, if it belongs to that user; `user_id` None: to any user."""
        return await self._database.value(
            "select id from statements where guid = $1 and ($2::bigint is null or user_id = $2)", guid, user_id
        )

    async def script(self, script_id: int) -> str:
        """The stored script. Raises statement_text_expired when it was cut."""
        row = await self._database.row("select body, text_is_cut from scripts where id = $1", script_id)
        if row is None or row["text_is_cut"]:
            raise errors.statement_text_expired()
        return row["body"]

    async def stored_result(self, statement_id: UUID, *, start_row: int | None, rows: int) -> model.StoredResult | None:
        """Where rows [start_row, start_row + rows) are; None means from the cursor. Marks the record as used."""
        row = await self._database.row(_STORED, statement_id, start_row, rows)
        if row is None:
            return None
        if row["unused"]:
            await self._database.execute("update statements set last_used_at = now() where id = $1", statement_id)
        return model.StoredResult(
            status=_status_of(row),
            columns=_columns_of(row["columns"]) or (),
            size_bytes=row["size_bytes"],
            cursor_row=row["cursor_row"],
            inline=row["inline_result"],
            segments=[Segment(*numbers) for numbers in row["segments"]],
        )

    async def request_cancel(self, statement_id: UUID, *, by: str) -> model.StatementStatus | None:
        """Store the request to cancel. A statement that was never sent becomes `canceled` at once."""
        row = await self._database.row(_CANCEL, statement_id, by)
        if row is None:
            return await self.status(statement_id)
        status = _status_of(row)
        if status.state.is_terminal:
            self._on_end(end_of(row))
        return status

    async def active_in_session(self, session_id: int) -> Sequence[UUID]:
        found = await self._database.fetch(
            "select id from statements where session_id = $1 and state in ('waiting', 'running')", session_id
        )
        return [row["id"] for row in found]

    async def close_result(self, statement_id: UUID) -> bool:
        """`available` becomes `closed` and its bytes are doomed; False in any other state."""
        return await self._database.value(_CLOSE_ONE, statement_id) is not None

    async def close_results_of_sessions(self, user_id: int, connector: str, session_id: int | None) -> Sequence[UUID]:
        """As `close_result` for all statements of a named session, or of all that the user has or had there."""
        found = await self._database.fetch(_CLOSE_SESSIONS, user_id, connector, session_id)
        return [row["id"] for row in found]

    async def logs(self, statement_id: UUID, *, start: int, size: int | None) -> model.LogPage:
        """Log lines from number `start` on."""
        async with self._database.connection() as connection:
            head = await connection.fetchrow("select progress, jobs from statements where id = $1", statement_id)
            pieces = await connection.fetch(
                """select start_line, lines from statement_logs
                where statement_id = $1 and start_line + cardinality(lines) > $2::bigint order by start_line""",
                statement_id,
                start,
            )
        first = max(start, pieces[0]["start_line"]) if pieces else start
        lines = [line for piece in pieces for line in piece["lines"]]
        skipped = first - pieces[0]["start_line"] if pieces else 0
        return model.LogPage(
            start=first,
            lines=lines[skipped : None if size is None else skipped + size],
            progress=head["progress"] if head else 0,
            jobs=tuple(head["jobs"]) if head else (),
        )

    async def history(
        self,
        user_id: int,
        *,
        connectors: Sequence[str] | None,
        dialect: str | None,
        text: str | None,
        is_active: bool,
        offset: int,
        limit: int,
    ) -> tuple[int, Sequence[model.HistoryEntry]]:
        """How many entries match, and one page of them, newest first. No connectors: nothing matches; None: any.

        `is_active`: only those that wait or run.
        """
        matching = f"{_HISTORY} {_ACTIVE if is_active else ''}"
        pattern = None
        if text:
            escaped = text.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
            pattern = f"%{escaped}%"
        arguments = (user_id, connectors, dialect, pattern)
        async with self._database.connection() as connection:
            count = await connection.fetchval(f"select count(*) from statements {matching}", *arguments)
            page = await connection.fetch(
                f"""select {", ".join(_HISTORY_FIELDS)}, left(statement, 1001) as statement, state,
                    left(message, 1000) as message, error_line, error_column, {_TIMES}
                from statements {matching}
                order by recorded_at desc, history_id desc offset $5 limit $6""",
                *arguments,
                offset,
                limit,
            )
        return count, [
            model.HistoryEntry(
                **_fields(row, _HISTORY_FIELDS),
                statement=row["statement"],
                state=StatementState(row["state"]),
                times=times_of(row),
                message=row["message"],
                error_position=_error_position_of(row),
            )
            for row in page
        ]


async def _insert(connection: Connection, new: model.NewStatement) -> model.StatementRecord:
    handle, limits = new.handle, new.limits
    row = await connection.fetchrow(
        _INSERT,
        new.id,
        new.user_id,
        new.connector,
        new.script,
        new.script_id,
        new.dialect,
        handle.statement,
        handle.statement_index,
        handle.statements_count,
        list(handle.position),
        handle.statement_hash,
        handle.guid,
        handle.secret,
        handle.session_id,
        handle.session_guid,
        new.in_named_session,
        new.keeps_session,
        new.database,
        {name: str(value) for name, value in new.settings.items()},
        new.row_limit,
        int(new.timeout.total_seconds()),
        new.in_history,
        new.parent_uuid,
        new.has_result_set,
        new.owner,
        timedelta(seconds=limits.lease_timeout_s),
        limits.max_statements_per_user,
        limits.spool_max_bytes_per_user,
        new.import_plan,
        new.token.content if new.token else None,
        new.token.expires_at if new.token else None,
        limits.statement_text_kept_bytes,
        limits.statement_text_max_bytes_per_user,
        None if new.script is None else hashlib.sha256(new.script.encode()).digest(),
        new.limit_source.value,
        f" Submitted to {new.connector}; waiting for a free place.",
        new.priority,
        new.notify,
        new.sealed_parameters,
        new.parameter_count,
    )
    if row is None:
        raise await _limit_reached(connection, new)
    return replace(_record_of(row), handle=new.handle)


async def _replay_of(connection: Connection, user_id: int, key: model.IdempotencyKey) -> model.StatementRecord | None:
    """The statement that was recorded under the key, if any. Raises idempotency_conflict."""
    known = await connection.fetchrow(_KNOWN_KEY, user_id, key.key)
    if known is None:
        return None
    replayed = await connection.fetchrow(f"select {_RECORD} from statements where id = $1", known["statement_id"])
    if known["fingerprint"] != key.fingerprint or replayed is None:
        raise errors.idempotency_conflict()
    return _record_of(replayed)


async def _limit_reached(connection: Connection, new: model.NewStatement) -> errors.TooManyRequests:
    limits = new.limits
    active = await connection.fetchval(
        "select count(*) from statements where user_id = $1 and state in ('waiting', 'running')", new.user_id
    )
    if active >= limits.max_statements_per_user:
        most = limits.max_statements_per_user
        return errors.too_many_statements(f"{active} of your statements are waiting or running; {most} may.")
    stored = await connection.fetchval(f"select {_TEXT_BYTES.format(user='$1')}", new.user_id)
    sizes = [len(text.encode()) for text in (new.handle.statement, new.script) if text is not None]
    sizes.append(len(new.sealed_parameters or b""))
    counted = sum(size for size in sizes if size > limits.statement_text_kept_bytes)
    if stored + counted > limits.statement_text_max_bytes_per_user:
        return errors.quota_exceeded(
            f"The texts of your statements take {stored} bytes, and"
            f" `editor.statement_text_max_bytes_per_user` is {limits.statement_text_max_bytes_per_user}. Texts above"
            f" {limits.statement_text_kept_bytes} bytes count until they are cut, some time after their statement has"
            " ended.",
            retry_after=timedelta(hours=1),  # the default of `retention.run_every_s`
        )
    return errors.quota_exceeded(
        "Your stored results fill your share of the result store. Close some of them.",
        retry_after=timedelta(seconds=60),
    )


def _fields(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def end_of(row: Row) -> model.StatementEnd:
    """A row with END_COLUMNS."""
    state = StatementState(row["state"])
    outcome = _outcome_of(state, row["error_code"])
    return model.StatementEnd(
        **_fields(row, _END_FIELDS),
        user=row["username"],
        state=state,
        outcome=outcome[1] if outcome else "ok",
        queued_ms=round(row["queued_s"] * 1000),
        elapsed_ms=round(row["elapsed_s"] * 1000),
    )


def times_of(row: Row) -> model.StatementTimes:
    """A row with `recorded_at`, `sent_at`, `ended_at` and `read_at`."""
    submitted, sent, ended = row["recorded_at"], row["sent_at"], row["ended_at"]
    until = ended or row["read_at"]
    return model.StatementTimes(
        submitted,
        sent,
        ended,
        queued=max((sent or until) - submitted, timedelta(0)),
        elapsed=max(until - sent, timedelta(0)) if sent else timedelta(0),
    )


_OUTCOMES = {
    StatementState.CANCELED: (1, "canceled"),
    StatementState.TIMED_OUT: (-4, "statement_timeout"),
    StatementState.EXPIRED: (-3, "expired"),
    StatementState.CLOSED: (-3, "closed"),
}


def _outcome_of(state: StatementState, error_code: str | None) -> tuple[int, str] | None:
    if state is StatementState.FAILED:
        code = error_code or "engine_error"
        return (401 if code == "credentials_required" else 1), code
    return _OUTCOMES.get(state)


def _status_of(row: Row) -> model.StatementStatus:
    reason, source, state = row["truncated_reason"], row["limit_source"], StatementState(row["state"])
    return model.StatementStatus(
        **_fields(row, _STATUS_FIELDS),
        state=state,
        outcome=_outcome_of(state, row["error_code"]),
        truncated_reason=TruncationReason(reason) if reason else None,
        times=times_of(row),
        limit_source=LimitSource(source) if source else None,
    )


def _record_of(row: Row) -> model.StatementRecord:
    text = row["statement"]
    if row["text_is_cut"]:
        # No engine takes these words for a statement.
        text = f"{text} … [the rest of this text is not stored any more]"
    return model.StatementRecord(
        **_fields(row, _RECORD_FIELDS),
        status=_status_of(row),
        handle=model.StatementHandle(**_fields(row, _HANDLE_FIELDS), statement=text, position=tuple(row["position"])),
        columns=_columns_of(row["columns"]),
        cancel_requested=row["cancel_requested_at"] is not None,
        error_position=_error_position_of(row),
    )


def _columns_of(stored: Sequence[Sequence[str]] | None) -> tuple[Column, ...] | None:
    """Columns from their stored form: lists of name, type, native type, comment."""
    if stored is None:
        return None
    return tuple(Column(name, ResultType(kind), native, comment) for name, kind, native, comment in stored)


def _error_position_of(row: Row) -> Position | None:
    return Position(row["error_line"], row["error_column"]) if row["error_line"] else None


def statement_ends(settings: Settings) -> model.OnEnd:
    """Writes an audit event for each end, and a log line where the audit has a file of its own."""
    audit, has_file = AUDIT, settings.desktop.logging.audit_file is not None

    def record(end: model.StatementEnd) -> None:
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,  # of the stored rows
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if has_file:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)

    return record
