"""Leases of statements: claims, heartbeats, and the writes of runners.

Every write names owner and fence: a runner whose lease ran out and that continues later changes nothing.
"""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from queryserver.errors.statements import OperationNotFound
from queryserver.formats.columns import Column
from queryserver.identity.model import ApiTokenLimits, SealedToken
from queryserver.platform.database import Connection, Database, Row, notice
from queryserver.platform.named_parameters import NamedQuery
from queryserver.platform.sealing import Sealer
from queryserver.results.model import Segment
from queryserver.statements import script_repository
from queryserver.statements.intake import SlotLimits
from queryserver.statements.model import (
    Assignment,
    ClaimScope,
    EngineMark,
    Lease,
    NewStatement,
    OnEnd,
    Outcome,
    PartEnd,
    Resumption,
)
from queryserver.statements.parameters import ParameterBook
from queryserver.statements.rows import END_COLUMNS, end_of
from queryserver.statements.truncation import LimitSource

log = structlog.get_logger(__name__)

ENDED = "ended"
"""Notice that a statement has ended; its subject is the id of the statement."""

_FENCED = "id = :id and owner = :owner and fence = :fence"

_ASSIGNMENT_FIELDS = (
    "user_id", "connector", "dialect", "statement", "database", "settings", "session_id", "in_named_session",
    "keeps_session", "row_limit", "history_id", "import_plan", "session_guid", "statement_index", "statements_count",
    "needs_session", "rows", "was_retried", "log_lines",
)  # fmt: skip
_ASSIGNMENT = f"""{", ".join(_ASSIGNMENT_FIELDS[:-1])}, id, owner, fence, sent_at, engine_handle, cancel_requested_at,
    sealed_token, token_expires_at, api_token, sealed_parameters, size_bytes, limit_source, operation_id,
    deadline_at - clock_timestamp() as left,
    (select count(*) from result_segments where statement_id = id) as segments,
    (select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs
        where statement_id = coalesce(operation_id, id)) as log_lines
"""

# Sent while its connector was being deleted: nothing else would end it before its deadline.
_HAS_NO_CONNECTOR = """exists (
    select from connectors where id::text = orphan.connector and deleted_at is not null
)"""

# Those that wait before it in its session come with it: the statements of a session run in their order.
_CLAIM = f"""
update statements as orphan set owner = $2, fence = fence + 1, lease_until = now() + $3
where id in (
        select one.id from statements as given join statements as one on one.id = given.id or (
            (given.keeps_session or given.in_named_session)
            and one.session_id = given.session_id and one.history_id < given.history_id and one.state = 'waiting'
        )
        where given.id = $1
    )
    and state = 'waiting' and (owner is null or lease_until < now())
    and (connector = any($4::text[]) or session_id = any($5::bigint[]))
    and not exists (
        select from sessions
        where sessions.id = orphan.session_id and closed_at is null
            and sessions.owner <> $2 and sessions.lease_until > now()
    )
returning {_ASSIGNMENT}
"""

_ORPHANS = f"""
update statements set owner = $1, fence = fence + 1, lease_until = now() + $2
where id in (
    select id from statements as orphan
    where state in ('waiting', 'running') and not is_script
        and (
            connector = any($3::text[]) or session_id = any($5::bigint[])
            or (sent_at is not null and ($6 or engine_handle is null)) or deadline_at < now() or {_HAS_NO_CONNECTOR}
        )
        and ($4 or lease_until is null or lease_until < now())
        and ($4 or not exists (
            select from sessions
            where sessions.id = orphan.session_id and closed_at is null
                and sessions.owner <> $1 and sessions.lease_until > now()
        ))
    order by history_id limit 200 for update skip locked
)
returning {_ASSIGNMENT}
"""

# Users take turns: those who run less come first, and statements of people before those of schedules. The statements of
# a session run one after the other, where the session is. Only the first ones of each user are looked at, so that a
# queue of ten thousand costs little. The first $7 places go by turns, the rest of $6 to the first statements of people
# who run nothing (ADR 66).
_WAITING = f"""
with busy as (
    select connector, user_id, count(*) as running, count(*) filter (where priority = 0) as of_people from statements
    where state in ('waiting', 'running') and owner is not null and lease_until >= now() and not is_script
    group by connector, user_id
), room as (
    select connector, $4::bigint - coalesce((
        select sum(running) from busy where busy.connector = asked.connector
    ), 0) as free
    from unnest($3::text[]) as asked (connector)
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
            and state = 'waiting' and sent_at is null and (owner is null or lease_until < now())
            and not exists (
                select from sessions
                where sessions.id = orphan.session_id and closed_at is null
                    and sessions.owner <> $1 and sessions.lease_until > now()
            )
            and not exists (
                select from statements as before
                where before.session_id = orphan.session_id and before.history_id < orphan.history_id
                    and before.state in ('waiting', 'running') and not before.is_script
            )
        order by priority, history_id limit greatest($5 - coalesce(running, 0), 0)
    ) as mine
), placed as (
    select id, is_first, priority, turn, history_id, free,
        row_number() over (
            partition by connector order by $7 > 0 or is_first desc, priority, turn, history_id
        ) as place
    from turns
), next as (
    select id, is_first, row_number() over (order by priority, turn, history_id) as number
    from placed where place <= free
)
update statements set owner = $1, fence = fence + 1, lease_until = now() + $2
where id in (
    select id from next where number <= $7 or is_first order by number limit $6
) and state = 'waiting' and (owner is null or lease_until < now())
returning {_ASSIGNMENT}
"""
_ANY_WAITS = """
select exists (
    select from statements where state = 'waiting' and sent_at is null
        and (owner is null or lease_until < now()) and connector = any($1::text[])
)
"""
_ANY_IS_FIRST = """
select exists (
    select from statements where state = 'waiting' and sent_at is null and priority = 0
        and (owner is null or lease_until < now()) and connector = any($1::text[])
        and user_id not in (
            select user_id from statements
            where state in ('waiting', 'running') and priority = 0 and owner is not null and lease_until >= now()
                and not is_script
        )
)
"""
_QUEUE_LOCK = 0x71737175  # "qsqu"
# One worker takes from the queue at a time, so that places are counted exactly. A worker that is stopped just here, or
# cut off, must not stop the others for long. `_WAITING` follows as a query of its own, for it must read what the worker
# before has committed.
_CLAIM_ALONE = f"""
set local idle_in_transaction_session_timeout = '3s'; set local lock_timeout = '10s';
select pg_advisory_xact_lock({_QUEUE_LOCK})
"""

_EXPIRE_ALL = """
update statements set lease_until = now()
where state in ('waiting', 'running') and lease_until > now() and not is_script
"""

# The statements of a script write into the log of their operation.
_LOG_ID = "coalesce(operation_id, id) as log_id"
_LOGGED = """
logged as (
    insert into statement_logs as known (statement_id, start_line, lines)
    select log_id, coalesce({start}::integer, (
            select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs where statement_id = log_id
        )), {lines}::text[]
    from changed where cardinality({lines}::text[]) > 0
    on conflict (statement_id, start_line) do update set lines = excluded.lines
        where cardinality(known.lines) < cardinality(excluded.lines)
)
"""

_RETRY = NamedQuery.of(f"""
with changed as (
    update statements set state = 'waiting', sent_at = null, owner = null, lease_until = null, progress = 0,
        was_retried = true
    where {_FENCED} and state in ('waiting', 'running') and rows = 0 and engine_handle is null and not was_retried
        and cancel_requested_at is null
    returning {_LOG_ID}
), {_LOGGED.format(start="null", lines=":lines")}
select count(*) from changed
""")

_SENT = NamedQuery.of(f"""
update statements set sent_at = coalesce(sent_at, now())
where {_FENCED} and state = 'waiting' and cancel_requested_at is null
""")

_RUNNING = NamedQuery.of(f"""
update statements set state = 'running', engine_handle = :mark where {_FENCED} and state in ('waiting', 'running')
""")

_RELEASE = NamedQuery.of(f"""
update statements set owner = null, lease_until = null where {_FENCED} and state = 'waiting' and sent_at is null
""")

_HAND_OVER = NamedQuery.of(f"""
update statements set owner = null, lease_until = null
where {_FENCED} and state = 'running' and engine_handle is not null
""")

_REPORT = NamedQuery.of(f"""
with changed as (
    update statements set progress = greatest(:progress, progress), jobs = :jobs,
        engine_handle = coalesce(:mark, engine_handle)
    where {_FENCED} and state in ('waiting', 'running') returning {_LOG_ID}
), {_LOGGED.format(start=":start_line", lines=":lines")}
select count(*) from changed
""")

# Stored columns stay untouched: large ones would be written again with each change.
_FINAL_COLUMNS = "case when :columns::jsonb is not null then coalesce(columns, :columns::jsonb) end"
# Descriptions of many columns and long messages count as text of the statement, until they are removed with it.
_COLUMNS_BYTES = (
    "case when octet_length(:columns::jsonb::text) > 16384 then octet_length(:columns::jsonb::text) else 0 end"
)
_MESSAGE_BYTES = "case when octet_length(:message::text) > 16384 then octet_length(:message::text) else 0 end"

_SEGMENT = NamedQuery.of(f"""
with changed as (
    update statements set rows = :start_row::bigint + :rows::bigint, size_bytes = size_bytes + :size_bytes::bigint,
        columns = coalesce(columns, :columns::jsonb),
        engine_handle = coalesce(:mark, engine_handle)
    where {_FENCED} and state = 'running' returning id
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

# A runner that died may have left bytes without a record: the bytes of what ended without a result are always doomed.
_FINISH = NamedQuery.of(f"""
with changed as (
    update statements set state = :state::text, ended_at = now(), error_code = :error_code, message = :message::text,
        error_line = :error_line, error_column = :error_column, error_sqlstate = :error_sqlstate,
        has_result_set = :has_result_set,
        columns = {_FINAL_COLUMNS}, text_bytes = text_bytes + {_COLUMNS_BYTES} + {_MESSAGE_BYTES},
        rows = :rows, size_bytes = :size_bytes, truncated_reason = :truncated_reason,
        modified_row_count = :modified_row_count, inline_result = :inline_result, engine_handle = null,
        sealed_token = null, token_expires_at = null,
        progress = case when :state::text in ('available', 'success') then 100 else progress end,
        expires_at = case when :state::text = 'available' then now() + :retention::interval end
    where {_FENCED} and state in ('waiting', 'running') returning {_LOG_ID}, {END_COLUMNS}
), doomed as (
    insert into doomed_results (statement_id)
    select id from changed where :state::text not in ('available', 'success')
    on conflict do nothing
), {_LOGGED.format(start=":start_line", lines=":lines")}
select *, case when :notifies::boolean then {notice(ENDED, "id::text")} end from changed
""")


_NOTIFY_END = f"select {notice(ENDED, '$1::text')}"


class StatementLeases:
    """What runners read and write of statements. Writes return False when the lease was lost: the runner stops then.

    Marks are sealed like credentials: their tokens open operations at the engine.
    """

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        on_end: OnEnd = lambda _end: None,
        notifies_ends: Callable[[], bool] = lambda: True,
    ) -> None:
        """`notifies_ends`: whether the ends of statements that other processes recorded are notified by the database.

        A commit with a notification waits for all others that have one (ADR 9).
        """
        self._notifies_ends = notifies_ends
        self._database = database
        self._on_end = on_end
        self._sealer = sealer
        self._parameters = ParameterBook(sealer)

    async def claim(
        self, statement_id: UUID, *, owner: str, lease: timedelta, within: ClaimScope
    ) -> Sequence[Assignment]:
        """Take a waiting statement within reach that has no live owner, and whose session no other process holds.

        Those that wait before it in its session come first.
        """
        connectors, sessions = list(within.connectors), list(within.sessions)
        found = await self._database.fetch(_CLAIM, statement_id, owner, lease, connectors, sessions)
        return sorted(map(self._assignment_of, found), key=lambda one: one.history_id)

    async def claim_orphans(
        self, *, owner: str, lease: timedelta, within: ClaimScope, everything: bool
    ) -> Sequence[Assignment]:
        """Take at most 200 statements within reach without a live owner, in the order in which they were recorded.

        Not those whose session another process holds. Those that were sent, or are past their deadline, are taken of
        any connector: they need no engine to end. `everything` ignores leases: no other instance is alive.
        """
        found = await self._database.fetch(
            _ORPHANS, owner, lease, list(within.connectors), everything, list(within.sessions), within.resumes
        )
        return sorted(map(self._assignment_of, found), key=lambda one: one.history_id)

    async def claim_waiting(
        self,
        *,
        owner: str,
        lease: timedelta,
        connectors: Sequence[str],
        slots: SlotLimits,
        most: int,
        most_of_busy: int,
    ) -> Sequence[Assignment]:
        """Take up to `most` unsent statements from the queue of all workers, in the order of their turns.

        Once there are `most_of_busy`, which is no larger, only the first ones of people who run nothing.
        """
        reachable = list(connectors)
        if not await self._database.value(_ANY_WAITS if most_of_busy else _ANY_IS_FIRST, reachable):
            return ()
        async with self._database.transaction() as connection:
            await connection.execute(_CLAIM_ALONE)
            found = await connection.fetch(
                _WAITING, owner, lease, reachable, slots.per_connector, slots.per_user, most, most_of_busy
            )
        return sorted(map(self._assignment_of, found), key=lambda one: one.history_id)

    async def expire_all(self) -> None:
        """End all leases: no process that holds one is alive."""
        await self._database.execute(_EXPIRE_ALL)

    async def renew(self, statement_ids: Sequence[UUID], *, owner: str, lease: timedelta) -> Mapping[UUID, bool]:
        """Extend leases of `owner`; for each statement still its own, whether a cancel is requested."""
        renewed = await self._database.fetch(
            """update statements set lease_until = now() + $2
            where owner = $1 and id = any($3::uuid[]) and state in ('waiting', 'running')
            returning id, cancel_requested_at is not null as canceled""",
            owner,
            lease,
            list(statement_ids),
        )
        return {row["id"]: row["canceled"] for row in renewed}

    async def release(self, lease: Lease) -> bool:
        """Give back a statement that was not sent; False when it was sent, or ended."""
        return await self._updated(_RELEASE, lease)

    async def hand_over(self, lease: Lease) -> bool:
        """Give a statement that the engine continues to another runner; False when it has no mark, or ended."""
        return await self._updated(_HAND_OVER, lease)

    async def retry(self, lease: Lease, *, line: str) -> bool:
        """Let a statement wait again that was sent, has no rows yet, and only reads; once. False when it must not.

        It has no owner then: `claim` takes it.
        """
        return await self._changed(_RETRY, lease, lines=[line])

    async def mark_sent(self, lease: Lease) -> bool:
        """Commit that the statement is about to reach the engine; False also when a cancel was requested."""
        if lease.operation_id is not None:
            async with self._database.transaction() as connection:
                if not await script_repository.begin(connection, lease.operation_id):
                    return False
                sent = await connection.execute(_SENT.sql, *_SENT.arguments(_fenced(lease)))
            return sent == "UPDATE 1"
        return await self._updated(_SENT, lease)

    async def mark_running(self, lease: Lease, *, mark: EngineMark | None = None) -> bool:
        """The engine has accepted it; `mark` when another runner could follow it."""
        return await self._updated(_RUNNING, lease, mark=self._sealed(mark))

    async def report(
        self,
        lease: Lease,
        *,
        progress: int | None,
        lines: Sequence[str],
        start_line: int,
        jobs: Sequence[Mapping[str, Any]] = (),
        mark: EngineMark | None = None,
    ) -> bool:
        """Progress and further log lines, numbered from `start_line`. No `mark`: the stored one stays."""
        return await self._changed(
            _REPORT,
            lease,
            progress=progress,
            jobs=list(jobs),
            mark=self._sealed(mark),
            start_line=start_line,
            lines=list(lines),
        )

    async def trim_logs(self, lease: Lease, *, before_line: int) -> None:
        """Drop log lines numbered below `before_line`, in whole pieces."""
        await self._database.execute(
            "delete from statement_logs where statement_id = $1 and start_line + cardinality(lines) <= $2",
            lease.operation_id or lease.statement_id,
            before_line,
        )

    async def add_segment(
        self, lease: Lease, segment: Segment, *, columns: Sequence[Column], mark: EngineMark | None = None
    ) -> bool:
        """Make durable rows visible, also in place of those of an older fence. No `mark`: the stored one stays."""
        return await self._changed(
            _SEGMENT,
            lease,
            number=segment.number,
            start_row=segment.start_row,
            rows=segment.rows,
            size_bytes=segment.size_bytes,
            columns=_stored_columns(columns),
            mark=self._sealed(mark),
        )

    async def finish(
        self, lease: Lease, outcome: Outcome, *, retention: timedelta, lines: Sequence[str], start_line: int | None
    ) -> bool:
        """Set the terminal state and all that is stored with it; log lines without a number come last."""
        if lease.operation_id is not None:
            ended = await self.finish_part(
                lease, outcome, retention=retention, lines=lines, start_line=start_line, next_statement=None
            )
            return ended is not None
        async with self._database.connection() as connection:
            changed = await self._finish(connection, lease, outcome, retention, lines, start_line)
        if changed is None:
            return False
        self._on_end(end_of(changed))
        return True

    async def finish_part(
        self,
        lease: Lease,
        outcome: Outcome,
        *,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
        next_statement: NewStatement | None,
    ) -> PartEnd | None:
        """`finish` for a statement of a script, which goes on with `next_statement` or ends; None: the lease was lost.

        The end of a statement and the next one are one transaction: a script always has a statement that ends it.
        """
        operation_id = lease.operation_id or lease.statement_id
        if next_statement is not None and next_statement.parameters is not None:
            next_statement = replace(
                next_statement, sealed_parameters=self._parameters.sealed(next_statement.parameters)
            )
        async with self._database.transaction() as connection:
            script = await script_repository.locked(connection, operation_id)
            changed = await self._finish(connection, lease, outcome, retention, lines, start_line)
            if changed is None or script is None:
                return None
            recorded, ended = await script_repository.go_on(connection, script, outcome, next_statement, retention)
            if ended is not None and lease.is_claimed and self._notifies_ends():
                await connection.execute(_NOTIFY_END, str(operation_id))
        if ended is not None:
            self._on_end(end_of(ended))
        return PartEnd(recorded)

    async def end_broken_scripts(self) -> None:
        """End the operations of which a program that knows no scripts has ended a statement."""
        async with self._database.transaction() as connection:
            ended = await script_repository.end_broken(connection)
        for row in ended:
            self._on_end(end_of(row))

    async def script(self, operation_id: UUID) -> str:
        """The text of a script whose statements all run. Raises OperationNotFound."""
        text = await self._database.value("select statement from statements where id = $1", operation_id)
        if text is None:
            raise OperationNotFound(str(operation_id))
        return text

    async def _finish(
        self,
        connection: Connection,
        lease: Lease,
        outcome: Outcome,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
    ) -> Row | None:
        position, reason = outcome.error_position, outcome.truncated_reason
        values = _fenced(
            lease,
            state=outcome.state.value,
            error_code=outcome.error_code,
            message=outcome.message,
            has_result_set=outcome.has_result_set,
            columns=_stored_columns(outcome.columns),
            rows=outcome.rows,
            size_bytes=outcome.size_bytes,
            truncated_reason=reason.value if reason else None,
            modified_row_count=outcome.modified_row_count,
            inline_result=outcome.inline_result,
            retention=retention,
            start_line=start_line,
            lines=list(lines),
            error_line=position.line if position else None,
            error_column=position.column if position else None,
            error_sqlstate=outcome.error_sqlstate,
            notifies=lease.is_claimed and lease.operation_id is None and self._notifies_ends(),
        )
        return await connection.fetchrow(_FINISH.sql, *_FINISH.arguments(values))

    async def _updated(self, update: NamedQuery, lease: Lease, **values: object) -> bool:
        return await self._database.execute(update.sql, *update.arguments(_fenced(lease, **values))) == 1

    async def _changed(self, query: NamedQuery, lease: Lease, **values: object) -> bool:
        """The query counts the rows that it changed."""
        return await self._database.value(query.sql, *query.arguments(_fenced(lease, **values))) == 1

    def _sealed(self, mark: EngineMark | None) -> str | None:
        """The stored form; a few microseconds, because it is written with each page."""
        if mark is None:
            return None
        return b64encode(self._sealer.seal(f"{mark.log_lines} {mark.token}".encode())).decode()

    def _assignment_of(self, row: Row) -> Assignment:
        """A row with the columns _ASSIGNMENT. A mark that cannot be read counts as none."""
        resumption = None
        if row["engine_handle"] is not None:
            try:
                unsealed = self._sealer.unseal(b64decode(row["engine_handle"], validate=True)).decode()
                log_lines, _, token = unsealed.partition(" ")
                mark = EngineMark(token, int(log_lines))
                resumption = Resumption(mark, row["rows"], row["size_bytes"], row["segments"], row["log_lines"])
            except ValueError as error:  # it was changed, or its key is unknown
                log.warning("mark of a statement cannot be read", operation_id=str(row["id"]), reason=str(error))
        token = None
        if row["sealed_token"] is not None:
            token = SealedToken(row["sealed_token"], int(row["token_expires_at"].timestamp()))
        parameters, lacks_parameters = None, False
        if (sealed := row["sealed_parameters"]) is not None:
            try:
                parameters = self._parameters.unsealed(sealed)
            except ValueError as error:
                lacks_parameters = True
                log.warning("parameters of a statement cannot be read", operation_id=str(row["id"]), reason=str(error))
        return Assignment(
            **{name: row[name] for name in _ASSIGNMENT_FIELDS},
            ends_at=time.monotonic() + row["left"].total_seconds(),
            lease=Lease(row["id"], row["owner"], row["fence"], is_claimed=True, operation_id=row["operation_id"]),
            sent=row["sent_at"] is not None,
            cancel_requested=row["cancel_requested_at"] is not None,
            resumption=resumption,
            token=token,
            api_token=ApiTokenLimits.of_stored(row["api_token"]) if row["api_token"] is not None else None,
            parameters=parameters,
            lacks_parameters=lacks_parameters,
            limit_source=LimitSource(row["limit_source"]) if row["limit_source"] else None,
        )


def _fenced(lease: Lease, **values: object) -> dict[str, object]:
    """The parameters of `_FENCED`, and others."""
    return {"id": lease.statement_id, "owner": lease.owner, "fence": lease.fence, **values}


def _stored_columns(columns: Sequence[Column] | None) -> list[list[str]] | None:
    """Lists of name, type, native type, comment."""
    if columns is None:
        return None
    return [[column.name, column.type.value, column.native_type, column.comment] for column in columns]
