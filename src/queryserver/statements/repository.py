"""Records, reads, cancels and closes statements in the service database.

The calling services check access rights.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from queryserver import errors
from queryserver.platform.database import COMMIT_EARLY, CoalescingReader, Connection, Database
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.tree import Settings
from queryserver.results.segments import Segment
from queryserver.statements import model, script_repository
from queryserver.statements.insertion import insert
from queryserver.statements.model import EndListener, StatementEnd
from queryserver.statements.rows import (
    END_COLUMNS,
    FIRST_LINE,
    HISTORY_FIELDS,
    LOG_MOMENT,
    NEXT_LINE,
    RECORD,
    STATUS,
    TIMES,
    columns_from_stored,
    end_from_row,
    error_position_from_row,
    fields,
    record_from_row,
    reused_from_row,
    status_from_row,
    times_from_row,
)
from queryserver.statements.states import StatementState
from queryserver.statements.traces import NO_TRACES, StatementTraces

log = structlog.get_logger(__name__)

# Idempotency keys are valid for 24 hours.
_RECORD_KEY = """
insert into idempotency_keys as known (user_id, key, fingerprint, statement_id) values ($1, $2, $3, $4)
on conflict (user_id, key) do update
    set fingerprint = excluded.fingerprint, statement_id = excluded.statement_id, created_at = now()
    where known.created_at < now() - interval '24 hours'
returning true
"""

_FIND_KEY = """
select fingerprint, statement_id from idempotency_keys
where user_id = $1 and key = $2 and created_at >= now() - interval '24 hours'
"""

# The result, with the segments that contain rows [$2, $2 + $3). If $2 is null, the rows start at the cursor.
_STORED_RESULT = f"""
select {STATUS}, columns, size_bytes, cursor_row, inline_result,
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

# Also moves the cursor to the end if the record contains all remaining rows, they fit the page, and the user owns the
# statement. The main query reads the row as it was before. If the cursor has been moved since then, the comparison of
# the two versions fails, so that concurrent calls never take the same rows.
_TAKE_RESULT = f"""
with taken as (
    update statements set cursor_row = read.rows, last_used_at = now()
    from statements as read
    where statements.id = $1 and read.id = $1 and statements.cursor_row = read.cursor_row
        and statements.state = 'available' and statements.inline_result is not null and statements.user_id = $4
        and read.rows - coalesce($2::bigint, read.cursor_row) between 1 and $3::bigint
    returning {COMMIT_EARLY}
)
{_STORED_RESULT.replace("as unused", "as unused, exists (select from taken) as is_taken")}
"""

# Statements of a script have the log of the script's operation. Logs of ended statements are deleted after some time,
# those of active statements are not.
_LOG_HEAD = f"""
select shown.progress, shown.jobs, ended_at is null as is_active, {FIRST_LINE} || case
        when destination is not null and source_operation is not null
        then ' The export begins when operation ' || source_operation || ' has ended.' else ''
    end as first_line
from (select progress, jobs, coalesce(operation_id, id) as log_id from statements where id = $1) as shown
join statements on id = log_id
"""

_STATUS_BY_ID = f"select {STATUS} from statements where id = $1"
_STATUSES_BY_ID = f"""
select n, {STATUS}
from unnest((select $1::uuid[])) with ordinality as requested (key, n) join statements on id = key
"""

# Users take turns: every user's first statement precedes any user's second, and interactive statements precede
# scheduled ones.
_QUEUE_POSITIONS = """
with queued as (
    select coalesce(operation_id, id) as id, connector, history_id, priority,
        row_number() over (partition by connector, user_id order by priority, history_id) as turn
    from statements
    where state = 'waiting' and sent_at is null and not is_script
        and connector in (select connector from statements where id = any($1::uuid[]))
), placed as (
    select id, row_number() over (partition by connector order by priority, turn, history_id) as position from queued
)
select array_position($1::uuid[], id) as n, position from placed where id = any($1::uuid[])
"""

# A log line that a runner adds concurrently may replace this line. State and message contain the same information.
_CANCEL_TEMPLATE = f"""
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
    where {{which}} and state in ('waiting', 'running')
    returning {STATUS}, {END_COLUMNS}, {LOG_MOMENT.format(moment="ended_at")} || ' ' || message as line
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select $1, (select {NEXT_LINE} from statement_logs where statement_id = $1), array[line]
    from canceled where line is not null
    on conflict do nothing
)
select * from canceled
"""

_CANCEL = _CANCEL_TEMPLATE.format(which="id = $1 and operation_id is null and not is_script")
_CANCEL_PART = _CANCEL_TEMPLATE.format(which="operation_id = $1")
_CANCEL_SCRIPT = """
update statements set
    cancel_requested_at = coalesce(cancel_requested_at, now()), canceled_by = coalesce(canceled_by, $2)
where id = $1 and state in ('waiting', 'running')
"""

MAY_HAVE_BYTES = "(fence > 1 or exists (select from result_segments where statement_id = id))"
"""SQL condition: the store may hold bytes of this result, including unrecorded bytes of an earlier attempt."""

_CLOSE_TEMPLATE = f"""
with closed as (
    update statements set state = 'closed', message = 'The result was closed.', inline_result = null,
        reuse_key = null
    where state = 'available' and {{which}} returning id, {MAY_HAVE_BYTES} as may_have_bytes
), doomed as (
    insert into doomed_results (statement_id) select id from closed where may_have_bytes on conflict do nothing
)
{{answer}}
"""
_CLOSED_IDS = "select id from closed"
_CLOSE_ONE = _CLOSE_TEMPLATE.format(which="(id = $1 or operation_id = $1)", answer=_CLOSED_IDS)
# The answer reads the row as it was before the query. If bytes must be deleted, the commit is durable, because a crash
# must not bring back a result without its bytes.
_CLOSE_AVAILABLE = _CLOSE_TEMPLATE.format(
    which="""id = $1 and not is_script
        and ($2::bigint is null or user_id = $2) and ($3::text[] is null or connector = any($3))""",
    answer=f"""select {STATUS}, exists (select from closed) as is_closed,
        (select {COMMIT_EARLY} from closed where not may_have_bytes) as early
    from statements where id = $1""",
)
_CLOSE_SESSIONS = _CLOSE_TEMPLATE.format(
    which="""user_id = $1 and session_id in (
        select id from sessions
        where user_id = $1 and connector = $2 and named and ($3::bigint is null or id = $3)
    )""",
    answer=_CLOSED_IDS,
)
_HISTORY = r"""
where user_id = $1 and in_history
    and ($2::text[] is null or connector = any($2::text[]))
    and ($3::text is null or dialect = $3)
    and ($4::text is null or left(statement, 16384) ilike $4 escape '\')
"""
_ACTIVE = "and state in ('waiting', 'running')"


def statement_ends(settings: Settings, traces: StatementTraces = NO_TRACES) -> EndListener:
    """Return a listener that records each statement's end as an audit event, and as a span if tracing is on.

    It also writes a log line if audit events go to their own file.
    """
    audit, has_file = AUDIT, settings.desktop.logging.audit_file is not None

    def record(end: StatementEnd) -> None:
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,  # size of the stored rows
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if has_file:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)
        traces.ended(end)

    return record


class StatementRecords:
    """Reads and writes the `statements` table. Close it before the database."""

    def __init__(self, database: Database, on_end: model.EndListener = lambda _end: None) -> None:
        self._database = database
        self._on_end = on_end
        self._statuses = CoalescingReader(database, many=_STATUSES_BY_ID, one=_STATUS_BY_ID)
        self._queue_positions = CoalescingReader(database, many=_QUEUE_POSITIONS, max_queries=1)
        self._session_ids: list[int] = []
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def aclose(self) -> None:
        """Stop the queries that several callers share."""
        await self._statuses.aclose()
        await self._queue_positions.aclose()

    async def record(
        self, new: model.NewStatement, first_statement: model.NewStatement | None = None
    ) -> model.RecordedStatement:
        """Store a new statement in state `waiting`, with its idempotency key.

        If `new` is the operation of a script, `first_statement` is the script's first statement. Otherwise, a statement
        without a key takes one round trip. Within this process, the statements of a user are counted and stored one at
        a time. Several processes together can exceed the limit by a few statements. Raises idempotency_conflict,
        too_many_statements, quota_exceeded, in which case nothing is stored.
        """
        key = new.idempotency
        async with self._turns.setdefault(new.user_id, asyncio.Lock()):
            if key is None and first_statement is None:
                async with self._database.connection() as connection:
                    return model.RecordedStatement(await insert(connection, new), is_replay=False)
            async with self._database.transaction() as connection:
                if key is None or await connection.fetchval(_RECORD_KEY, new.user_id, key.key, key.fingerprint, new.id):
                    recorded = await insert(connection, new)
                    if first_statement is not None:
                        await insert(connection, first_statement)
                    return model.RecordedStatement(recorded, is_replay=False)
                replay = await _find_replay(connection, new.user_id, key)
        if replay is None:
            raise errors.idempotency_conflict()
        return model.RecordedStatement(replay, is_replay=True)

    async def find_replay(self, user_id: int, key: model.IdempotencyKey) -> model.StatementRecord | None:
        """Return the statement recorded under the key, if any. Raises idempotency_conflict if the request differs."""
        async with self._database.connection() as connection:
            return await _find_replay(connection, user_id, key)

    async def find_recorded(self, user_id: int, key: str) -> UUID | None:
        """Return the statement recorded under an idempotency key, whatever the request was. None if there is none."""
        return await self._database.value(
            "select s.id from idempotency_keys k join statements s on s.id = k.statement_id"
            " where k.user_id = $1 and k.key = $2",
            user_id,
            key,
        )

    async def make_durable(self, statement_id: UUID) -> bool:
        """Wait until the record of a statement is on disk. Return False if there is none."""
        # Any commit that waits for the disk also makes all earlier commits durable.
        touched = "update statements set last_used_at = now() where id = $1"
        return await self._database.execute(touched, statement_id) > 0

    async def new_session_id(self) -> int:
        """Return a new id from a sequence. Reserves 48 ids at a time to save round trips."""
        if not self._session_ids:
            fresh = await self._database.fetch("select nextval('session_ids') as id from generate_series(1, 48)")
            self._session_ids.extend(row["id"] for row in reversed(fresh))
        return self._session_ids.pop()

    async def status(self, statement_id: UUID) -> model.StatementStatus | None:
        """Read the current status. Concurrent calls share a query."""
        row = await self._statuses.get(statement_id)
        return await self._with_parts(status_from_row(row)) if row else None

    async def _with_parts(self, status: model.StatementStatus) -> model.StatementStatus:
        if not status.runs_all:
            return status
        async with self._database.connection() as connection:
            return replace(status, parts=await script_repository.parts(connection, status.id))

    async def result_part(self, operation_id: UUID, statement_index: int | None) -> model.StatementRecord | None:
        """Read one statement of a script, by default the last one with a result. Return None if there is none yet."""
        async with self._database.connection() as connection:
            return await script_repository.result_part(connection, operation_id, statement_index)

    async def queue_position(self, statement_id: UUID) -> int | None:
        """Return the position among statements that wait for the same connector, starting at 1.

        None if the statement is not waiting. Interactive statements precede scheduled ones. Within each group users
        take turns, with their oldest statements first. Concurrent calls share a query, and only one such query runs at
        a time.
        """
        row = await self._queue_positions.get(statement_id)
        return row["position"] if row else None

    async def read(self, statement_id: UUID) -> model.StatementRecord | None:
        row = await self._database.row(f"select {RECORD} from statements where id = $1", statement_id)
        if row is None:
            return None
        record = record_from_row(row)
        return replace(record, status=await self._with_parts(record.status))

    async def id_of_guid(self, guid: str, *, user_id: int | None) -> UUID | None:
        """Return the id of the operation with this GUID. If `user_id` is not None, it must belong to that user."""
        return await self._database.value(
            "select id from statements where guid = $1 and ($2::bigint is null or user_id = $2)", guid, user_id
        )

    async def script(self, script_id: int) -> str:
        """Return the stored script. Raises statement_text_expired if it was truncated or deleted."""
        row = await self._database.row("select body, text_is_cut from scripts where id = $1", script_id)
        if row is None or row["text_is_cut"]:
            raise errors.statement_text_expired()
        return row["body"]

    async def stored_result(
        self,
        statement_id: UUID,
        *,
        start_row: int | None,
        rows: int,
        used_by: int | None = None,
        taken_by: int | None = None,
    ) -> model.StoredResult | None:
        """Return where rows [start_row, start_row + rows) are stored. `start_row` defaults to the cursor.

        Also marks the result as used if the user `used_by` owns the statement. If the user `taken_by` owns it, and
        the rows are the last ones and stored in the record, also moves the cursor to the end.
        """
        if taken_by is None:
            row = await self._database.row(_STORED_RESULT, statement_id, start_row, rows)
        else:
            row = await self._database.row(_TAKE_RESULT, statement_id, start_row, rows, taken_by)
        if row is None:
            return None
        is_taken = taken_by is not None and row["is_taken"]
        status = status_from_row(row)
        # Other readers, and callers who are about to be refused, do not prolong how long the result is kept.
        if row["unused"] and not is_taken and status.user_id == used_by:
            await self._database.execute("update statements set last_used_at = now() where id = $1", statement_id)
        return model.StoredResult(
            status=await self._with_parts(status) if status.outcome is not None else status,
            columns=columns_from_stored(row["columns"]) or (),
            size_bytes=row["size_bytes"],
            cursor_row=row["cursor_row"],
            inline=row["inline_result"],
            segments=[Segment(*numbers) for numbers in row["segments"]],
            is_taken=is_taken,
        )

    async def request_cancel(self, statement_id: UUID, *, by: str) -> model.StatementStatus | None:
        """Record a cancel request. A statement that was never sent becomes `canceled` immediately.

        Canceling one statement of a script cancels the whole script.
        """
        row = await self._database.row(_CANCEL, statement_id, by)
        if row is None:
            await self._cancel_script(statement_id, by)
            return await self.status(statement_id)
        status = status_from_row(row)
        if status.state.is_terminal:
            self._on_end(end_from_row(row))
        return status

    async def _cancel_script(self, statement_id: UUID, by: str) -> None:
        async with self._database.transaction() as connection:
            script = await script_repository.lock_script_of(connection, statement_id)
            if script is None:
                return
            await connection.execute(_CANCEL_SCRIPT, script["id"], by)
            part = await connection.fetchrow(_CANCEL_PART, script["id"], by)
            if part is not None and not status_from_row(part).state.is_terminal:
                return  # the runner of the statement also ends the script
            operation = await script_repository.end_canceled(connection, script, by)
        if operation is not None:
            self._on_end(end_from_row(operation))

    async def active_in_session(self, session_id: int) -> Sequence[UUID]:
        rows = await self._database.fetch(
            """select id from statements
            where session_id = $1 and state in ('waiting', 'running') and not is_script""",
            session_id,
        )
        return [row["id"] for row in rows]

    async def close_result(self, statement_id: UUID) -> bool:
        """Change the state from `available` to `closed`, and mark the stored rows for deletion.

        Return False if there was nothing to close. For a script's operation, also close the results of its statements.
        """
        return await self._database.value(_CLOSE_ONE, statement_id) is not None

    async def close_available(
        self, statement_id: UUID, *, user_id: int | None, connectors: Sequence[str] | None
    ) -> tuple[model.StatementStatus, bool] | None:
        """Close a result like `close_result` if it is available and belongs to the user and the connectors.

        None stands for all users or all connectors. Return the previous status and whether the result was closed, or
        None if there is no such statement. The results of a script are not closed.
        """
        row = await self._database.row(_CLOSE_AVAILABLE, statement_id, user_id, connectors)
        return None if row is None else (status_from_row(row), row["is_closed"])

    async def close_results_of_sessions(self, user_id: int, connector: str, session_id: int | None) -> Sequence[UUID]:
        """Close the results of one named session, or of all the user's named sessions on the connector."""
        rows = await self._database.fetch(_CLOSE_SESSIONS, user_id, connector, session_id)
        return [row["id"] for row in rows]

    async def logs(self, statement_id: UUID, *, start: int, size: int | None) -> model.LogPage:
        """Read up to `size` log lines, starting at line `start`. If `size` is None, read all of them."""
        async with self._database.connection() as connection:
            head = await connection.fetchrow(_LOG_HEAD, statement_id)
            pieces = await connection.fetch(
                """select start_line, lines from statement_logs
                where statement_id = (select coalesce(operation_id, id) from statements where id = $1)
                    and start_line + cardinality(lines) > $2::bigint order by start_line""",
                statement_id,
                start,
            )
        blocks = [(row["start_line"], row["lines"]) for row in pieces]
        if start == 0 and head and (blocks[0][0] == 1 if blocks else head["is_active"]):
            blocks.insert(0, (0, [head["first_line"]]))
        stored_from = blocks[0][0] if blocks else start
        first = max(start, stored_from)
        lines = [line for _, block in blocks for line in block]
        skipped = first - stored_from
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
        """Return the number of matching entries and one page of them, newest first.

        If `connectors` is None, all connectors match. If `is_active` is set, only waiting and running statements
        match.
        """
        matching = f"{_HISTORY} {_ACTIVE if is_active else ''}"
        pattern = None
        if text:
            escaped = text.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
            pattern = f"%{escaped}%"
        # The join returns one row without an entry if the page is empty.
        rows = await self._database.fetch(
            f"""select * from (select count(*) as entries from statements {matching}) as counted
            left join (
                select {", ".join(HISTORY_FIELDS)}, left(statement, 1001) as statement, state,
                    left(message, 1000) as message, error_line, error_column, reused_from, reused_sent_at, {TIMES}
                from statements {matching}
                order by recorded_at desc, history_id desc offset $5 limit $6
            ) as page on true
            order by recorded_at desc, history_id desc""",
            user_id,
            connectors,
            dialect,
            pattern,
            offset,
            limit,
        )
        return rows[0]["entries"], [
            model.HistoryEntry(
                **fields(row, HISTORY_FIELDS),
                statement=row["statement"],
                state=StatementState(row["state"]),
                times=times_from_row(row),
                message=row["message"],
                error_position=error_position_from_row(row),
                reused=reused_from_row(row),
            )
            for row in rows
            if row["id"] is not None
        ]


async def _find_replay(connection: Connection, user_id: int, key: model.IdempotencyKey) -> model.StatementRecord | None:
    """Return the statement recorded under the key, if any.

    Raises idempotency_conflict if the request differs or the statement was deleted.
    """
    stored = await connection.fetchrow(_FIND_KEY, user_id, key.key)
    if stored is None:
        return None
    row = await connection.fetchrow(f"select {RECORD} from statements where id = $1", stored["statement_id"])
    if stored["fingerprint"] != key.fingerprint or row is None:
        raise errors.idempotency_conflict()
    return record_from_row(row)
