"""What callers do with records."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID
from weakref import WeakValueDictionary

from queryserver.errors.base import TooManyRequests, quota_exceeded, too_many_statements
from queryserver.errors.statements import idempotency_conflict, statement_text_expired
from queryserver.formats.columns import Segment
from queryserver.platform.database import CoalescingReader, Connection, Database, Row
from queryserver.statements import rows
from queryserver.statements.model import (
    HistoryEntry,
    IdempotencyKey,
    LogPage,
    NewStatement,
    OnEnd,
    StatementRecord,
    StatementState,
    StatementStatus,
    StatementTimes,
    StoredResult,
    unobserved,
)
from queryserver.statements.rows import HistoryFilter, Recorded

# What a text of $32 bytes counts: short ones nothing, so that usual statements never fill the quota.
_COUNTED = "(case when octet_length({text}) > $32::integer then octet_length({text}) else 0 end)"
_STATEMENT_BYTES = _COUNTED.format(text="$7::text")
_SCRIPT_BYTES = _COUNTED.format(text="$4::text")

_LOG_TIME = 'YYYY-MM-DD"T"HH24:MI:SS"Z"'

_TEXT_BYTES = """(
    (select coalesce(sum(text_bytes), 0) from statements where user_id = {user} and text_bytes > 0)
    + (select coalesce(sum(text_bytes), 0) from scripts where user_id = {user} and text_bytes > 0)
)"""

# Counting and inserting in one statement: a call above a limit leaves nothing behind, and needs one round trip.
# A script that its user sends again is stored once. The first line of the log is there as soon as the record is.
_RECORD = f"""
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
        import_plan, sealed_token, token_expires_at, text_bytes, limit_source
    )
    select $1, $2, $3, $6, 'waiting', $7, coalesce($5, (select id from script)), $8, $9, $10,
        $11, $12, $13, $14, $15, $16, $17, $18, $19,
        $20, $21::integer, $22, $23, now() + make_interval(secs => $21::integer), $24, $25::text,
        case when $25::text is null then 0 else 1 end,
        case when $25::text is null then null else now() + $26::interval end,
        $29, $30, to_timestamp($31), {_STATEMENT_BYTES}, $35
    from room
    returning history_id, recorded_at, deadline_at, script_id
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select $1, 0, array[to_char(recorded_at at time zone 'UTC', '{_LOG_TIME}') || $36::text] from recorded
)
select history_id, recorded_at, deadline_at, script_id from recorded
"""

# The clean-up's usual rhythm (`retention.run_every_s`).
_TEXTS_ARE_CUT_EVERY = timedelta(hours=1)

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

_STORED = """
select {status}, columns, size_bytes, cursor_row, inline_result,
    last_used_at < now() - interval '1 minute' as unused
from statements where id = $1
"""

_SEGMENTS = """
select number, start_row, rows, size_bytes, fence from result_segments
where statement_id = $1 and start_row < $3 and start_row + rows > $2 order by number
"""

# Users take turns: the first statements of all of them come before the second ones.
_QUEUE_POSITIONS = """
with queued as (
    select id, connector, history_id, row_number() over (partition by connector, user_id order by history_id) as turn
    from statements
    where state = 'waiting' and sent_at is null
        and connector in (select connector from statements where id = any($1::uuid[]))
), placed as (
    select id, row_number() over (partition by connector order by turn, history_id) as position from queued
)
select id, position from placed where id = any($1::uuid[])
"""

_CANCEL = """
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
returning {status}, {end}
"""

_CLOSE = """
with closed as (
    update statements set state = 'closed', message = 'The result was closed.', inline_result = null
    where id = $1 and state = 'available' returning id
), doomed as (
    insert into doomed_results (statement_id) select id from closed on conflict do nothing
)
select count(*) from closed
"""


class StatementRecords:
    """The statements of everybody; who may see which is the business of the services."""

    def __init__(self, database: Database, on_end: OnEnd = unobserved) -> None:
        self._database = database
        self._on_end = on_end
        self._statuses = CoalescingReader(self._read_statuses)
        self._queue_positions = CoalescingReader(self._read_queue_positions, side_by_side=1)
        self._session_ids: list[int] = []
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def aclose(self) -> None:
        """Stop reads on their way."""
        await self._statuses.aclose()
        await self._queue_positions.aclose()

    async def record(self, new: NewStatement) -> Recorded:
        """Store a new statement in state `waiting`, with its idempotency key.

        Raises IdempotencyConflict, TooManyStatements, QuotaExceeded; then nothing is stored.
        One round trip without an idempotency key.

        A user's statements are counted and stored one after the other within this process; two processes at once can
        pass the limit by a few.
        """
        async with self._turns.setdefault(new.user_id, asyncio.Lock()):
            return await self._record(new)

    async def _record(self, new: NewStatement) -> Recorded:
        if new.idempotency is None:
            async with self._database.connection() as connection:
                return Recorded(await self._insert(connection, new), replayed=False)
        async with self._database.transaction() as connection:
            key = new.idempotency
            if await connection.fetchval(_KEY, new.user_id, key.key, key.fingerprint, new.id):
                return Recorded(await self._insert(connection, new), replayed=False)
            replayed = await _replay_of(connection, new.user_id, key)
        if replayed is None:
            raise idempotency_conflict()
        return Recorded(replayed, replayed=True)

    async def find_replay(self, user_id: int, key: IdempotencyKey) -> StatementRecord | None:
        """The statement that was recorded under the key. Raises IdempotencyConflict for another request's key."""
        async with self._database.connection() as connection:
            return await _replay_of(connection, user_id, key)

    async def new_session_id(self) -> int:
        """Taken from the sequence by the dozen, so that most statements need no round trip for theirs."""
        if not self._session_ids:
            fresh = await self._database.fetch("select nextval('session_ids') as id from generate_series(1, 48)")
            self._session_ids.extend(row["id"] for row in reversed(fresh))
        return self._session_ids.pop()

    async def status(self, statement_id: UUID) -> StatementStatus | None:
        """Shares a query with the other calls of this moment."""
        return await self._statuses.get(statement_id)

    async def queue_position(self, statement_id: UUID) -> int | None:
        """Its place among the statements that wait to be sent to the same connector; 1: the next one.

        Users take turns, in the order in which their statements were recorded. None: it does not wait any more.
        Calls that come at once share a query; one query runs at a time.
        """
        return await self._queue_positions.get(statement_id)

    async def read(self, statement_id: UUID) -> StatementRecord | None:
        """The whole record."""
        row = await self._database.row(
            f"select {rows.RECORD} from statements where id = $1",
            statement_id,
        )
        return rows.record_of(row) if row else None

    async def id_of_guid(self, guid: str, *, user_id: int | None) -> UUID | None:
        """The operation that an opaque handle names, if it is that user's; None: whosever it is."""
        return await self._database.value(
            "select id from statements where guid = $1 and ($2::bigint is null or user_id = $2)", guid, user_id
        )

    async def script(self, script_id: int) -> str:
        """The stored script. Raises StatementTextExpired when it was cut."""
        row = await self._database.row("select body, text_is_cut from scripts where id = $1", script_id)
        if row is None or row["text_is_cut"]:
            raise statement_text_expired()
        return row["body"]

    async def stored_result(self, statement_id: UUID, *, start_row: int | None, rows: int) -> StoredResult | None:
        """Where rows [start_row, start_row + rows) are; None means from the cursor. Marks the record as used."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(_STORED_SQL, statement_id)
            if row is None:
                return None
            first = row["cursor_row"] if start_row is None else start_row
            segments = []
            if row["inline_result"] is None and row["rows"] > first:
                segments = await connection.fetch(_SEGMENTS, statement_id, first, first + rows)
            if row["unused"]:
                await connection.execute("update statements set last_used_at = now() where id = $1", statement_id)
        return _stored_result(row, segments)

    async def advance_cursor(self, statement_id: UUID, *, expected: int | None, to: int) -> bool:
        """Move the cursor from `expected` (None: from anywhere); False when another call moved it."""
        return (
            await self._database.execute(
                """update statements set cursor_row = $3, last_used_at = now()
                where id = $1 and ($2::bigint is null or cursor_row = $2)""",
                statement_id,
                expected,
                to,
            )
            == 1
        )

    async def request_cancel(self, statement_id: UUID, *, by: str) -> StatementStatus | None:
        """Remember the wish to stop. A statement that was never sent becomes `canceled` at once."""
        row = await self._database.row(_CANCEL_SQL, statement_id, by)
        if row is None:
            return await self.status(statement_id)
        status = rows.status_of(row)
        if status.state.is_terminal:
            self._on_end(rows.end_of(row))
        return status

    async def active_in_session(self, session_id: int) -> Sequence[UUID]:
        """Statements that wait or run in a session."""
        found = await self._database.fetch(
            "select id from statements where session_id = $1 and state in ('waiting', 'running')", session_id
        )
        return [row["id"] for row in found]

    async def close_result(self, statement_id: UUID) -> bool:
        """`available` becomes `closed` and its bytes are doomed; False in any other state."""
        return await self._database.value(_CLOSE, statement_id) == 1

    async def logs(self, statement_id: UUID, *, start: int, size: int | None) -> LogPage:
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
        return LogPage(
            start=first,
            lines=lines[skipped : None if size is None else skipped + size],
            progress=head["progress"] if head else 0,
            jobs=tuple(head["jobs"]) if head else (),
        )

    async def history(
        self, user_id: int, chosen: HistoryFilter, *, offset: int, limit: int
    ) -> tuple[int, Sequence[HistoryEntry]]:
        """How many entries match, and one page of them, newest first."""
        arguments = (user_id, chosen.connectors, chosen.dialect, _like(chosen.text))
        async with self._database.connection() as connection:
            count = await connection.fetchval(f"select count(*) from statements {_HISTORY}", *arguments)
            page = await connection.fetch(
                f"""select {rows.HISTORY} from statements {_HISTORY}
                order by recorded_at desc, history_id desc offset $5 limit $6""",
                *arguments,
                offset,
                limit,
            )
        return count, [rows.history_of(row) for row in page]

    async def _read_statuses(self, statement_ids: Sequence[UUID]) -> Mapping[UUID, StatementStatus]:
        found = await self._database.fetch(
            f"select {rows.STATUS} from statements where id = any($1::uuid[])",
            list(statement_ids),
        )
        return {row["id"]: rows.status_of(row) for row in found}

    async def _read_queue_positions(self, statement_ids: Sequence[UUID]) -> Mapping[UUID, int]:
        found = await self._database.fetch(_QUEUE_POSITIONS, list(statement_ids))
        return {row["id"]: row["position"] for row in found}

    async def _insert(self, connection: Connection, new: NewStatement) -> StatementRecord:
        row = await connection.fetchrow(_RECORD, *_insert_arguments(new))
        if row is None:
            raise await _limit_reached(connection, new)
        return _fresh_record(new, row)


_HISTORY = r"""
where user_id = $1 and in_history
    and ($2::text[] is null or connector = any($2::text[]))
    and ($3::text is null or dialect = $3)
    and ($4::text is null or left(statement, 16384) ilike $4 escape '\')
"""
_STORED_SQL = _STORED.format(status=rows.STATUS)
_CANCEL_SQL = _CANCEL.format(status=rows.STATUS, end=rows.END)


def _insert_arguments(new: NewStatement) -> tuple[object, ...]:
    handle = new.handle
    return (
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
        rows.text_map(new.settings),
        new.row_limit,
        int(new.timeout.total_seconds()),
        new.in_history,
        new.parent_uuid,
        new.has_result_set,
        new.owner,
        new.lease,
        new.max_active,
        new.max_spool_bytes,
        new.import_plan,
        new.token.content if new.token else None,
        new.token.expires_at if new.token else None,
        new.texts.kept_bytes,
        new.texts.max_bytes_per_user,
        None if new.script is None else hashlib.sha256(new.script.encode()).digest(),
        new.limit_source.value,
        f" Submitted to {new.connector}; waiting for a free place.",
    )


async def _replay_of(connection: Connection, user_id: int, key: IdempotencyKey) -> StatementRecord | None:
    """What the key stands for, if anything. Raises idempotency_conflict."""
    known = await connection.fetchrow(_KNOWN_KEY, user_id, key.key)
    if known is None:
        return None
    replayed = await connection.fetchrow(
        f"select {rows.RECORD} from statements where id = $1",
        known["statement_id"],
    )
    if known["fingerprint"] != key.fingerprint or replayed is None:
        raise idempotency_conflict()
    return rows.record_of(replayed)


async def _limit_reached(connection: Connection, new: NewStatement) -> TooManyRequests:
    active = await connection.fetchval(
        "select count(*) from statements where user_id = $1 and state in ('waiting', 'running')", new.user_id
    )
    if active >= new.max_active:
        return too_many_statements(f"{active} of your statements are waiting or running; {new.max_active} may.")
    stored = await connection.fetchval(f"select {_TEXT_BYTES.format(user='$1')}", new.user_id)
    if stored + _counted_bytes(new) > new.texts.max_bytes_per_user:
        return quota_exceeded(
            f"The texts of your statements take {stored} bytes, and"
            f" `editor.statement_text_max_bytes_per_user` is {new.texts.max_bytes_per_user}. Texts above"
            f" {new.texts.kept_bytes} bytes count until they are cut, some time after their statement has ended.",
            retry_after=_TEXTS_ARE_CUT_EVERY,
        )
    return quota_exceeded(
        "Your stored results fill your share of the result store. Close some of them.",
        retry_after=timedelta(seconds=60),
    )


def _counted_bytes(new: NewStatement) -> int:
    """What the texts of a new statement count against the quota, as `_RECORD` counts them."""
    sizes = [len(text.encode()) for text in (new.handle.statement, new.script) if text is not None]
    return sum(size for size in sizes if size > new.texts.kept_bytes)


def _fresh_record(new: NewStatement, row: Row) -> StatementRecord:
    status = StatementStatus(
        id=new.id,
        history_id=row["history_id"],
        user_id=new.user_id,
        connector=new.connector,
        dialect=new.dialect,
        state=StatementState.WAITING,
        has_result_set=new.has_result_set,
        rows=0,
        truncated_reason=None,
        modified_row_count=None,
        error_code=None,
        message="",
        progress=0,
        expires_at=None,
        owner=new.owner,
        times=StatementTimes(row["recorded_at"], None, None, row["recorded_at"]),
        limit_source=new.limit_source,
    )
    return StatementRecord(
        status=status,
        handle=new.handle,
        script_id=row["script_id"],
        database=new.database,
        settings=new.settings,
        row_limit=new.row_limit,
        timeout_s=int(new.timeout.total_seconds()),
        in_named_session=new.in_named_session,
        in_history=new.in_history,
        parent_uuid=new.parent_uuid,
        deadline_at=row["deadline_at"],
        columns=None,
        size_bytes=0,
        cancel_requested=False,
        canceled_by=None,
    )


def _stored_result(row: Row, segments: Sequence[Row]) -> StoredResult:
    return StoredResult(
        status=rows.status_of(row),
        columns=rows.columns_of(row["columns"]) or (),
        size_bytes=row["size_bytes"],
        cursor_row=row["cursor_row"],
        inline=row["inline_result"],
        segments=[
            Segment(one["number"], one["start_row"], one["rows"], one["size_bytes"], one["fence"]) for one in segments
        ],
    )


def _like(text: str | None) -> str | None:
    if not text:
        return None
    escaped = text.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
    return f"%{escaped}%"
